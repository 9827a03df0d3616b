"""Parallel imports: the same bytes for any parts, batches and executors; the first error; nothing left behind."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import forked_workers
from dfact import DataError, Dataset, ParameterError, import_table
from dfact.data.statistics import as_float
from dfact.errors import ClusterError
from dfact.imports.readers.base import Table, TablePart
from dfact.imports.tables import spool, table
from dfact.storage import replacement
from tests.conftest import CutRows

N, M = 1600, 300
SEEDS = [0, 1]
KINDS = ["answers", "wide", "single", "double", "mixed"]


@dataclass
class Part(TablePart):
    """Rows in memory, in batches of the given sizes; can fail like a file, wait for another part, or kill its process once."""

    values: NDArray[np.float64]
    ids: Sequence[str]
    sizes: Sequence[int]
    n_bytes: int = 0
    fails_at: int | None = None
    wait_for: threading.Event | None = None
    done: threading.Event | None = None
    kill_once: Path | None = None
    name: str = "part"

    def position(self, row: int) -> str:
        return f"row {row}"

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.wait_for is not None:
            assert self.wait_for.wait(60)
        start = 0
        try:
            for size in self.sizes:
                stop = start + size
                if self.fails_at is not None and start <= self.fails_at < stop:
                    raise DataError(f"row {self.ids[self.fails_at]} is damaged")
                ids = pa.array(self.ids[start:stop], pa.string())
                yield pa.record_batch([*map(pa.array, self.values[start:stop].T.copy()), *[ids] * len(texts)], [*numbers, *texts])
                start = stop
                if self.kill_once is not None and not self.kill_once.exists():
                    self.kill_once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        finally:
            if self.done is not None:
                self.done.set()


@dataclass
class Parts(Table):
    """A table of such parts."""

    all_parts: list[Part]
    columns: list[str] = field(default_factory=lambda: [f"Q{j}" for j in range(M)] + ["id"])
    name: str = "parts"

    def parts(self) -> Sequence[TablePart]:
        return self.all_parts

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        raise AssertionError("a table of parts is read by its parts")


def values_of(kind: str, seed: int) -> NDArray[np.float64]:
    """Values of all types of storage; every part has an own range, and zeros have both signs."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 6, (N, M)).astype(float)
    if kind == "wide":
        values[N // 2 :] *= rng.integers(-5000, 5000)
    elif kind == "single":
        values[N // 3 :] = rng.normal(size=(N - N // 3, M)).astype(np.float32)
    elif kind == "double":
        values[:, 3] = rng.normal(size=N) * 1e200
    elif kind == "mixed":
        values[100:200] += 0.1
        values[1000:1100] += 1e6
    values[rng.random((N, M)) < 0.1] = np.nan
    values[rng.random((N, M)) < 0.05] = -0.0
    values[rng.random((N, M)) < 0.05] = 0.0
    values[:, 0] = 1
    return values


def ids_of(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


def cut(values: NDArray[np.float64], n_parts: int, rng: np.random.Generator) -> list[Part]:
    """Cut the rows into parts and batches at random; some are empty."""
    parts, ids = [], ids_of(len(values))
    edges = [0, *sorted(rng.integers(0, len(values) + 1, n_parts - 1)), len(values)]
    for start, stop in pairwise(edges):
        inner = sorted(rng.integers(0, stop - start + 1, rng.integers(0, 5)))
        parts.append(Part(values[start:stop], ids[start:stop], np.diff([0, *inner, stop - start]).tolist()))
    return parts


@pytest.fixture(autouse=True)
def many_tasks(cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores have small chunks, so that small data has many tasks."""
    cut_rows(chunk_entries=1)
    monkeypatch.setattr(spool, "_OBJECT_ENTRIES", 1 << 14)


def imported(monkeypatch: pytest.MonkeyPatch, path: Path, parts: list[Part], **options: Any) -> Dataset:
    source = path.parent / "t.csv"
    source.touch()
    monkeypatch.setattr(table, "open_table", lambda *_: Parts(parts))
    return import_table(source, path, **{"items": "Q*", "id_column": "id"} | options)


def content(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files."""
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool:
        yield pool


@pytest.fixture
def executor(request: pytest.FixtureRequest) -> Any:
    """Return the executor that the parameter names."""
    if request.param == "pool":
        return request.getfixturevalue("processes")
    if request.param == "cluster":
        return request.getfixturevalue("client")
    return request.param


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "n_parts"), [(0, 2), (1, 9)])
def test_every_division_into_parts_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int, n_parts: int
) -> None:
    rng, values = np.random.default_rng(seed), values_of(kind, seed)
    shift = kind != "double"  # compared with 1e200, a shift would round everything else to 0
    serial = imported(monkeypatch, tmp_path / "serial.zarr", [Part(values, ids_of(N), [N])], executor="inline", shift=shift)
    stored = as_float(serial.source.read(0, N), serial.missing_code, np.dtype(np.float64)) + serial.offset
    expected = values.astype(np.float32) if kind in ("single", "mixed") else values
    tolerance = {"rtol": 1e-6, "atol": 0.2} if kind == "mixed" else {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(stored, expected, **tolerance)
    dataset = imported(monkeypatch, tmp_path / "d.zarr", cut(values, n_parts, rng), n_readers=3, shift=shift)
    assert dataset.fingerprint == serial.fingerprint == serial.with_confounders(None).fingerprint
    assert content(tmp_path / "d.zarr") == content(tmp_path / "serial.zarr")
    assert len(content(tmp_path / "serial.zarr" / "values")) > 5
    stored -= serial.offset
    np.testing.assert_array_equal(serial.statistics.minimum, np.nanmin(stored, axis=0))
    np.testing.assert_array_equal(serial.statistics.maximum, np.nanmax(stored, axis=0))
    np.testing.assert_array_equal(serial.statistics.observed, (~np.isnan(stored)).sum(axis=0))


@pytest.mark.further
@pytest.mark.parametrize("executor", ["inline", "threads", "pool", "cluster"], indirect=True)
def test_every_executor_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: Any) -> None:
    values = values_of("mixed", 0)
    values[[3, 700, 701]] = np.nan
    rng = np.random.default_rng(0)
    serial = imported(monkeypatch, tmp_path / "serial.zarr", [Part(values, ids_of(N), [N])], executor="inline", empty_rows="drop")
    dataset = imported(monkeypatch, tmp_path / "d.zarr", cut(values, 6, rng), executor=executor, empty_rows="drop")
    assert dataset.dropped_rows == serial.dropped_rows == 3
    assert content(tmp_path / "d.zarr") == content(tmp_path / "serial.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "serial.zarr", "t.csv"]


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_dropped_rows_leave_no_trace_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng, values = np.random.default_rng(seed), values_of("answers", seed)
    empty = rng.random(N) < rng.choice([0.01, 0.5])
    empty[[0, N - 1]] = seed % 2
    values[empty] = np.nan
    dataset = imported(monkeypatch, tmp_path / "d.zarr", cut(values, 7, rng), empty_rows="drop")
    without = [Part(values[~empty], [each for each, is_empty in zip(ids_of(N), empty, strict=True) if not is_empty], [N - empty.sum()])]
    expected = imported(monkeypatch, tmp_path / "e.zarr", without)
    assert dataset.shape == (N - empty.sum(), M)
    assert dataset.dropped_rows == empty.sum()
    assert dataset.fingerprint == expected.fingerprint
    assert content(tmp_path / "d.zarr" / "values") == content(tmp_path / "e.zarr" / "values")


@pytest.mark.further
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda part, row: setattr(part, "fails_at", row), "row p905 is damaged"),
        (lambda part, row: part.values.__setitem__((row, 7), np.inf), r"row 905 .*, column 'Q7' is infinite"),
        (lambda part, row: part.values.__setitem__((row, 7), 17), r"row 905 .*, column 'Q7' holds 17, expected the valid range 0 to 5"),
        (lambda part, row: part.values.__setitem__(row, np.nan), r"row 905 .* has no answer"),
    ],
    ids=["damaged", "infinite", "outside", "empty"],
)
def test_first_error_of_the_table_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, match: str) -> None:
    values = values_of("answers", 0)
    parts = [Part(values[start : start + 400], ids_of(N)[start : start + 400], [30] * 13 + [10]) for start in range(0, N, 400)]
    damage(parts[2], 105)
    parts[3].values[0, 0] = np.inf  # reported first, but later in the table
    parts[3].done = parts[2].wait_for = threading.Event()
    with pytest.raises(DataError, match=match):
        imported(monkeypatch, tmp_path / "d.zarr", parts, n_readers=2, valid_range=(0, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_first_invalid_row_counts_not_the_kind_of_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of("answers", 0)
    values[40], values[41, 2] = np.nan, np.inf
    for sizes in ([N], [41, N - 41]):
        with pytest.raises(DataError, match=r"row 40 .* has no answer"):
            imported(monkeypatch, tmp_path / "d.zarr", [Part(values, ids_of(N), sizes)])


@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_interrupt_ends_all_tasks_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    parts = cut(values_of("answers", 0), 6, np.random.default_rng(0))
    for part in parts:
        part.n_bytes = 1000

    def interrupt(_: int, total: int, unit: str) -> None:
        assert total == (6000 if unit == "bytes read" else N)
        if unit == {"reading": "bytes read", "writing": "rows written"}[stage]:
            raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool, pytest.raises(KeyboardInterrupt):
        imported(monkeypatch, tmp_path / "d.zarr", parts, executor=pool, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_progress_counts_bytes_then_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = cut(values_of("answers", 0), 4, np.random.default_rng(0))
    for part in parts:
        part.n_bytes = 50
    calls: list[tuple[int, int, str]] = []
    imported(monkeypatch, tmp_path / "d.zarr", parts, progress=lambda *call: calls.append(call))
    assert calls[:4] == [(done, 200, "bytes read") for done in (50, 100, 150, 200)]
    assert calls[4:] == [(min(N, done), N, "rows written") for done in range(512, N + 512, 512)]


@pytest.mark.further
@pytest.mark.cluster
def test_lost_worker_is_replaced_and_lost_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of("answers", 0)
    serial = imported(monkeypatch, tmp_path / "serial.zarr", [Part(values, ids_of(N), [N])])
    parts = cut(values, 6, np.random.default_rng(0))
    parts[3].kill_once = tmp_path / "killed"
    with forked_workers():
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", memory_limit="2GiB")
    with cluster, Client(cluster, set_as_default=False) as client:
        dataset = imported(monkeypatch, tmp_path / "d.zarr", parts, executor=client)
    assert parts[3].kill_once.exists()
    assert content(dataset_path(dataset)) == content(dataset_path(serial))
    parts[3].kill_once.unlink()
    with ProcessPoolExecutor(2, get_context("forkserver")) as pool, pytest.raises(ClusterError, match="a process of the import was lost"):
        imported(monkeypatch, tmp_path / "e.zarr", parts, executor=pool)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "killed", "serial.zarr", "t.csv"]


def dataset_path(dataset: Dataset) -> Path:
    assert isinstance(dataset.path, Path)
    return dataset.path


@pytest.mark.parametrize("options", [{"n_readers": 0}, {"n_readers": 1.5}, {"executor": "distributed"}])
def test_invalid_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="expected"):
        imported(monkeypatch, tmp_path / "d.zarr", [Part(values_of("answers", 0), ids_of(N), [N])], **options)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_difference_beyond_double_precision_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of("answers", 0)
    values[:2, 1] = [-1.5e308, 1.5e308]
    with pytest.raises(DataError, match=r"answers range from -1.5e\+308 to 1.5e\+308.*shift=False"):
        imported(monkeypatch, tmp_path / "d.zarr", [Part(values, ids_of(N), [N])])
    assert imported(monkeypatch, tmp_path / "d.zarr", [Part(values, ids_of(N), [N])], shift=False).dtype == np.float64


def test_remains_of_a_killed_import_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / f"d.zarr.scratch-{replacement.host()}.{os.getpid()}.1.1"
    scratch.mkdir()
    (scratch / "0").write_bytes(b"old")
    with pytest.raises(dfact.StoreError, match="its writer was interrupted: run the same command again"):
        dfact.open_dataset(tmp_path / "d.zarr")
    imported(monkeypatch, tmp_path / "d.zarr", [Part(values_of("answers", 0), ids_of(N), [N])])
    assert not scratch.exists()
