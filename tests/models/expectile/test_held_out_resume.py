"""An interrupted selection by held-out entries resumes with bit-identical results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dfact
from dfact.engine.checkpoint import resume_point
from dfact.engine.executors import LocalSession
from dfact.models.expectile.held_out_entries import select_by_held_out
from dfact.selection.result import Selection
from dfact.selection.running import scheduler
from dfact.selection.running.results_store import ResultsStore
from dfact.storage.records import Records
from tests.cases import exhaustive_after
from tests.conftest import CutRows
from tests.models.expectile.test_held_out_entries import compressed, planted

DENSE = planted(1, 150, 30)
GRID: dict[str, Any] = {"n_components": [1, 3], "ridge": [0.1, 0.5]}


class InterruptionError(Exception):
    """An error that stands for a lost driver; killing a process would be slower."""


class PassCounter:
    """Counts passes over the data on this machine and interrupts them after ``left`` more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.left = 0, 1 << 30
        run = LocalSession.run

        def counted(session: LocalSession, request: Any) -> Any:
            sums = run(session, request)
            if self.left == 0:
                raise InterruptionError
            self.left -= 1
            self.count += 1
            return sums

        monkeypatch.setattr(LocalSession, "run", counted)

    def run(self, work: Callable[[], Any], left: int = 1 << 30) -> tuple[int, Any]:
        """Return the number of passes of the work and its result, None if it is interrupted."""
        self.count, self.left = 0, left
        try:
            found = work()
            return self.count, found
        except InterruptionError:
            return self.count, None
        finally:
            self.left = 1 << 30


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> PassCounter:
    return PassCounter(monkeypatch)


def select(X: Any, **settings: Any) -> Selection:
    model = {"ridge": 0.1, "max_iter": 6, "tol": 0.0, "checkpoint_every": 3, "executor": "inline"} | settings.pop("model", {})
    return select_by_held_out(dfact.ExpectileMF(**model), X, settings.pop("grid", GRID), **({"random_state": 0, "n_repeats": 2} | settings))


@pytest.fixture(scope="module")
def undisturbed() -> Selection:
    """The selection on the data DENSE without an interruption."""
    return select(DENSE)


def same(one: Selection, other: Selection) -> None:
    pd.testing.assert_frame_equal(one.table, other.table, check_exact=True)
    assert one.best_params == other.best_params
    for name in ("column_factors_", "row_factors_", "objective_history_"):
        np.testing.assert_array_equal(np.asarray(getattr(one.model, name)), np.asarray(getattr(other.model, name)))


def limit_batches(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the memory to this number of fits at once."""
    largest_batch = limit_batches.largest_batch  # type: ignore[attr-defined]
    monkeypatch.setattr(scheduler, "largest_batch", lambda source, dtype, fits, workers: largest_batch(source, dtype, fits[:size], workers))


limit_batches.largest_batch = scheduler.largest_batch  # type: ignore[attr-defined]


@pytest.mark.further
@pytest.mark.parametrize(
    ("kind", "every", "size"), exhaustive_after(1, [("stored", 3, 3), ("dense", 1, 8), ("sparse", 3, 8), ("threads", 3, 5)])
)
def test_selection_interrupted_anywhere_resumes_with_the_same_bits(
    kind: str, every: int, size: int, tmp_path: Path, passes: PassCounter, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows(partition_entries=1 << 11)
    X: Any = planted(every, 150, 30, observed=0.3)
    X = dfact.import_array(X, tmp_path / "x.zarr") if kind == "stored" else compressed(X) if kind == "sparse" else X
    settings: dict[str, Any] = {"model": {"checkpoint_every": every, "executor": "threads" if kind == "threads" else "inline"}}
    limit_batches(size, monkeypatch)
    total, undisturbed = passes.run(lambda: select(X, **settings))
    for left in np.random.default_rng(size).permutation(total)[:2]:
        stored = settings | {"checkpoint": tmp_path / f"{left}.zarr"}
        assert passes.run(lambda: select(X, **stored), int(left)) == (left, None)  # noqa: B023
        done, found = passes.run(lambda: select(X, **stored))  # noqa: B023
        same(found, undisturbed)
        assert total - left <= done <= total - left + every  # passes after the last version are repeated
    rest, again = passes.run(lambda: select(X, **stored))
    same(again, undisturbed)
    assert rest < every, "passes of the last fit alone, after its last version"


@pytest.mark.further
def test_selection_interrupted_repeatedly_completes(tmp_path: Path, passes: PassCounter, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_batches(3, monkeypatch)
    X = planted(0, 150, 30)
    total, undisturbed = passes.run(lambda: select(X))
    tries, found = 0, None
    while found is None:
        found = passes.run(lambda: select(X, checkpoint=tmp_path / "results"), 4)[1]
        tries += 1
    same(found, undisturbed)
    assert total // 4 <= tries <= (total + 4 * 2) // 3, "a try goes on by 3 passes; up to 2 are lost at the end of each of 4 batches"
    names = sorted(path.name for path in (tmp_path / "results").iterdir())
    results = [f"result-{stage}-{number}" for stage, count in ((0, 2), (1, 8)) for number in range(count)]
    assert names == ["model", *results, "zarr.json"], "no batch remains"


@pytest.mark.further
@pytest.mark.parametrize(("before", "then"), exhaustive_after(2, [(4, 8), (8, 3), (3, 2)]))
def test_resuming_with_other_memory_changes_nothing(
    before: int, then: int, undisturbed: Selection, tmp_path: Path, passes: PassCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results"
    limit_batches(before, monkeypatch)
    last = 7 // before * before
    while not (begun := [found for found in path.glob(f"passes-1-{last:06d}-*") if resume_point(found)]):
        assert passes.run(lambda: select(DENSE, checkpoint=path), 4)[1] is None
    limit_batches(then, monkeypatch)
    steps = resume_point(begun[0])
    taken: list[tuple[int, int, int, int]] = []
    checkpoint_batch = ResultsStore.checkpoint_batch

    def watched(self: ResultsStore, session: Any, stage: int, batch: range, every: int) -> Any:
        found = checkpoint_batch(self, session, stage, batch, every)
        checkpoint = path / f"passes-{stage}-{batch.start:06d}-{len(batch):06d}"
        taken.append((stage, batch.start, len(batch), resume_point(checkpoint) if checkpoint.exists() else 0))
        return found

    monkeypatch.setattr(ResultsStore, "checkpoint_batch", watched)
    same(select(DENSE, checkpoint=path), undisturbed)
    # The current fits resume if they still fit in memory; otherwise they start over in smaller batches.
    first, count = (int(number) for number in begun[0].name.split("-")[2:])
    assert taken[0] == ((1, first, count, steps) if count <= then else (1, first, then, 0))
    assert steps >= 3


def test_partly_removed_checkpoint_counts_as_incomplete(
    undisturbed: Selection, tmp_path: Path, passes: PassCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes.run(lambda: select(DENSE, checkpoint=tmp_path / "results"), 8)
    [checkpoint] = (tmp_path / "results").glob("passes-*")

    def interrupted(_: Records, name: str) -> None:
        for file in (tmp_path / "results" / name).glob("steps-*/arrays/*"):
            file.unlink()
        raise InterruptionError

    with monkeypatch.context() as patched:
        patched.setattr(Records, "remove", interrupted)
        limit_batches(2, patched)
        assert passes.run(lambda: select(DENSE, checkpoint=tmp_path / "results"))[1] is None
    assert checkpoint.exists()
    same(select(DENSE, checkpoint=tmp_path / "results"), undisturbed)


@pytest.mark.parametrize("step", ["add", "remove_batches"])
def test_selection_resumes_at_the_end_of_a_batch(
    step: str, undisturbed: Selection, tmp_path: Path, passes: PassCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, but: str = "") -> None:
        if not but:  # a batch that begins removes the checkpoints of others
            raise InterruptionError

    with monkeypatch.context() as patched:
        patched.setattr(ResultsStore, step, interrupted)
        assert passes.run(lambda: select(DENSE, checkpoint=tmp_path / "results"))[1] is None
    same(select(DENSE, checkpoint=tmp_path / "results"), undisturbed)


@pytest.mark.further
@pytest.mark.parametrize("after", exhaustive_after(2, [0, 5, 1, 2]))
def test_selection_resumes_within_a_write(
    after: int, undisturbed: Selection, tmp_path: Path, passes: PassCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interruption follows the attributes of some records."""
    finish, left = dfact.storage.records.RecordWriter.finish, [after]

    def interrupted(self: Any, **attributes: Any) -> None:
        if left[0] == 0:
            raise InterruptionError
        left[0] -= 1
        finish(self, **attributes)

    with monkeypatch.context() as patched:
        patched.setattr(dfact.storage.records.RecordWriter, "finish", interrupted)
        assert passes.run(lambda: select(DENSE, checkpoint=tmp_path / "results"))[1] is None
    same(select(DENSE, checkpoint=tmp_path / "results"), undisturbed)


@pytest.mark.further
def test_selection_resumes_on_another_executor(tmp_path: Path, client: Client, passes: PassCounter, cut_rows: CutRows) -> None:
    cut_rows(partition_entries=1 << 11)
    X = dfact.import_array(planted(5, 150, 30), tmp_path / "x.zarr")
    undisturbed = select(X)
    path = tmp_path / "results"
    assert passes.run(lambda: select(X, checkpoint=path), 8)[1] is None

    def interrupted(iteration: Any) -> None:
        if iteration.number >= 32:  # four of each of eight fits
            raise InterruptionError

    with pytest.raises(InterruptionError):
        select(X, checkpoint=path, model={"executor": client}, callbacks=[interrupted])
    same(select(X, checkpoint=path, model={"executor": "threads"}), undisturbed)


@pytest.mark.further
def test_random_seeds_are_recorded(tmp_path: Path, passes: PassCounter) -> None:
    X = planted(6, 150, 30)
    random: dict[str, Any] = {"model": {"init": "random", "random_state": None}, "random_state": None}
    tables = [select(X, **random).table for _ in range(2)]
    assert not tables[0].equals(tables[1])
    stored = random | {"checkpoint": tmp_path / "results"}
    assert passes.run(lambda: select(X, **stored), 4)[1] is None
    first = select(X, **stored)
    same(select(X, **stored), first)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"X": planted(8, 150, 30)}, "data is"),
    ({"model": {"tol": 1e-3}}, r"model is ExpectileMF\(.*tol=0.0.*, expected .*tol=0.001.*"),
    ({"grid": GRID | {"tau": [0.2]}}, "grid is"),
    ({"holdout_fraction": 0.2}, r"holdout_fraction is 0.1, expected 0.2"),
    ({"error": "absolute"}, "error is expectile, expected absolute"),
    ({"bins": [0, 1, np.inf]}, r"bins is \[\], expected \[0.0, 1.0, inf\]"),
    ({"n_repeats": 3}, "repeats is 2, expected 3"),
    ({"random_state": 1}, "seed is"),
]


@pytest.mark.further
def test_checkpoint_of_another_selection_is_refused(tmp_path: Path, passes: PassCounter) -> None:
    settings: dict[str, Any] = {"X": planted(7, 150, 30), "checkpoint": tmp_path / "results"}
    assert passes.run(lambda: select(**settings), 5)[1] is None
    for change, named in OTHERS:
        with pytest.raises(dfact.ParameterError, match=rf"results belongs to another selection: {named}"):
            select(**settings | change)
    select(**settings, model={"memory_limit": "9GiB", "checkpoint_every": 1})  # parameters that do not change results


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    X, path = planted(7, 150, 30), tmp_path / "results"
    select(X, checkpoint=path)
    [piece] = (path / "result-1-0").glob("*/0")
    piece.write_bytes(b"torn")
    with pytest.raises(dfact.StoreError, match=r"result-1-0 is missing or damaged .*; delete the checkpoint"):
        select(X, checkpoint=path)
    with pytest.raises(dfact.ParameterError, match="checkpoint_every is 0, expected an integer of at least 1"):
        select(X, model={"checkpoint_every": 0})
