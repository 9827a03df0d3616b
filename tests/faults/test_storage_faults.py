"""Faults of storage: chunks missing, truncated or changed, full and read-only disks."""

import itertools
import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray

import dfact
import dfact.data.sources.base
import dfact.data.stored_dataset
from dfact.data.layout import cut_into
from dfact.errors import DfactError, StoreError
from dfact.storage.groups import create_group
from tests.cases import exhaustive_unless
from tests.conftest import planted_answers

pytestmark = pytest.mark.faults
N, M, K = 1200, 20, 3


@pytest.fixture(scope="module")
def X() -> NDArray[np.float64]:
    return planted_answers(N, M, K, seed=11, missing=0.1)


@pytest.fixture
def dense(X: NDArray[np.float64], tmp_path: Path) -> Path:
    """A dataset whose values are several chunks."""
    with cut_into(chunk_entries=256 * M, partition_entries=256 * M, block_rows=(64, 256)):
        dfact.import_array(X, tmp_path / "dense.zarr")
    assert len([*(tmp_path / "dense.zarr" / "values" / "c").iterdir()]) > 2
    return tmp_path / "dense.zarr"


@pytest.fixture
def sparse(X: NDArray[np.float64], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dfact.data.stored_dataset, "_CHUNK_ENTRIES", 1000)
    monkeypatch.setattr(dfact.data.stored_dataset, "_INDPTR_CHUNK", 500)
    dfact.import_array(sp.csr_array(np.nan_to_num(X)), tmp_path / "sparse.zarr")
    return tmp_path / "sparse.zarr"


def icqf(**settings: Any) -> dfact.ICQF:
    return dfact.ICQF(n_components=K, max_iter=2, random_state=0, **settings)


# chunks


def lose(chunk: Path) -> None:
    chunk.unlink()


def cut(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[:-7])


def cut_to_nothing(chunk: Path) -> None:
    chunk.write_bytes(b"")


def flip(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0x10
    chunk.write_bytes(content)


def swap(chunk: Path) -> None:
    """Replace the file by random bytes of the same length."""
    chunk.write_bytes(np.random.default_rng(3).bytes(chunk.stat().st_size))


DAMAGES = [lose, cut, cut_to_nothing, flip, swap]


@pytest.mark.further
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_chunk_damaged_after_opening_is_named(dense: Path, damage: Callable[[Path], None], executor: str) -> None:
    dataset = dfact.open_dataset(dense)
    damage(dense / "values" / "c" / "2" / "0")
    found = {lose: "is missing", flip: ""}.get(damage, r"has the checksum \w*, expected \w{8}: it is damaged, or of another version")
    where = "512 to 768 of .*/values: .*" if damage is flip else rf"0 to {N} of .*dense.zarr/values: its chunk values/c/2/0 {found}"
    with pytest.raises(StoreError, match=rf"cannot read rows {where}; the store is damaged"):
        icqf(executor=executor).fit(dataset)


@pytest.mark.further
@pytest.mark.parametrize(
    ("array", "damage"),
    exhaustive_unless(lambda case: case[0] == "data" or case[1] is flip, itertools.product(["data", "indices", "indptr"], DAMAGES)),
)
def test_csr_chunk_damaged_after_opening_is_named(sparse: Path, damage: Callable[[Path], None], array: str) -> None:
    dataset = dfact.open_dataset(sparse)
    damage(sparse / "values" / array / "c" / "1")
    with pytest.raises(StoreError, match=rf"(entries|positions of rows) \d+ to \d+ of .*sparse.zarr/values/{array}"):
        icqf(executor="inline").fit(dataset)


def test_missing_chunk_is_named(dense: Path) -> None:
    dataset = dfact.open_dataset(dense)
    lose(dense / "values" / "c" / "1" / "0")
    with pytest.raises(StoreError, match="its chunk values/c/1/0 is missing"):
        dataset.source.read(0, N)


def test_chunk_missing_on_a_cluster_is_named(dense: Path, client: Client) -> None:
    dataset = dfact.open_dataset(dense)
    lose(dense / "values" / "c" / "1" / "0")
    with pytest.raises(StoreError, match="its chunk values/c/1/0 is missing"):
        icqf(executor=client).fit(dataset)


@pytest.mark.further
@pytest.mark.parametrize("damage", DAMAGES)
def test_factors_damaged_after_loading_are_named(X: NDArray[np.float64], tmp_path: Path, damage: Callable[[Path], None]) -> None:
    model = icqf().fit(dfact.import_array(X, tmp_path / "x.zarr"))
    dfact.save_model(model, tmp_path / "x.model")
    loaded = dfact.load_model(tmp_path / "x.model")
    damage(tmp_path / "x.model" / "factors_" / "c" / "0" / "0")
    with pytest.raises((DfactError, ValueError, RuntimeError)):
        np.asarray(loaded.factors_)
    with pytest.raises(StoreError, match=r"'factors_' of .*x.model is damaged; save the model again"):
        dfact.load_model(tmp_path / "x.model")


@pytest.mark.parametrize(
    "edit",
    [
        {"shape": [N - 7, M]},
        {"shape": [N + 7, M]},
        {"shape": [N, M - 1]},
        {"shape": [N * M]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [128, M]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [512, M // 2]}}},
        {"data_type": "float32"},
        {"data_type": "int64"},
    ],
    ids=str,
)
def test_array_of_another_shape_is_refused(dense: Path, edit: dict[str, Any]) -> None:
    metadata = dense / "values" / "zarr.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **edit}))
    with pytest.raises(StoreError, match=r"dense.zarr"):
        dfact.open_dataset(dense)


# disks


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """No file of this process may be longer; Python leaves the signal for it ignored."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("to mount a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder))
    yield folder
    subprocess.run(
        ["umount", "--lazy", str(folder)],  # what failed may still be held by its traceback
        check=True,
    )


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def noise(n: int) -> NDArray[np.float64]:
    return np.abs(np.random.default_rng(n).normal(size=(n, M)))


def test_full_disk_during_import_is_reported(small_disk: Path, X: NDArray[np.float64]) -> None:
    dfact.import_array(X[:200], small_disk / "old.zarr")
    with pytest.raises(StoreError, match=r"cannot write .*x.zarr: the disk is full; no partial store is left"):
        dfact.import_array(noise(20_000), small_disk / "x.zarr")
    with pytest.raises(StoreError, match="the disk is full"):
        dfact.import_array(noise(20_000), small_disk / "old.zarr", overwrite=True)
    assert entries(small_disk) == ["old.zarr"]
    assert dfact.open_dataset(small_disk / "old.zarr").shape == (200, M)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dfact.ICQF, dfact.Dataset]:
    """A model whose factors are longer than the small disk, and its data."""
    dataset = dfact.import_array(noise(20_000), tmp_path_factory.mktemp("fitted") / "x.zarr")
    return icqf(executor="inline").fit(dataset), dataset


def test_full_disk_during_save_is_reported(small_disk: Path, fitted: tuple[dfact.ICQF, dfact.Dataset]) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*x.model: the disk is full; no partial store is left"):
        dfact.save_model(fitted[0], small_disk / "x.model")
    assert entries(small_disk) == []


def test_full_disk_under_the_factors_is_reported(
    small_disk: Path, fitted: tuple[dfact.ICQF, dfact.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset = fitted
    with pytest.raises(StoreError, match=r"cannot write rows 0 to .* of the factors to .*: the disk is full; free space there"):
        model.transform(dataset, out=small_disk / "factors.zarr")
    assert entries(small_disk) == []
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(StoreError, match="the disk is full; free space there, or choose a larger disk"):
        icqf(executor="inline").fit(dataset)


def test_file_size_limit_is_reported(fitted: tuple[dfact.ICQF, dfact.Dataset], tmp_path: Path) -> None:
    model, dataset = fitted
    with size_limit(100_000):
        with pytest.raises(StoreError, match=r"cannot write .*x.zarr: File too large; no partial store is left"):
            dfact.import_array(noise(20_000), tmp_path / "x.zarr")
        with pytest.raises(StoreError, match=r"cannot write .*x.model: File too large; no partial store is left"):
            dfact.save_model(model, tmp_path / "x.model")
        with pytest.raises(StoreError, match="File too large"):
            model.transform(dataset, out=tmp_path / "factors.zarr")
    assert entries(tmp_path) == []


@pytest.mark.process
def test_disk_remounted_read_only_is_reported(small_disk: Path, X: NDArray[np.float64]) -> None:
    dataset = dfact.import_array(X[:200], small_disk / "x.zarr")
    model = icqf(executor="inline").fit(dataset)
    with pytest.raises(StoreError, match=r"Read-only file system; a partial store may remain at .*y.zarr.incomplete-"):
        turn_read_only_while_writing(small_disk)
    with pytest.raises(StoreError, match=r"y.zarr does not exist, .*; its writer was interrupted: run the same command again"):
        dfact.open_dataset(small_disk / "y.zarr")
    for write in (
        lambda: dfact.import_array(X, small_disk / "z.zarr"),
        lambda: dfact.import_array(X, small_disk / "x.zarr", overwrite=True),
        lambda: dfact.save_model(model, small_disk / "x.model"),
        lambda: model.transform(X, out=small_disk / "factors.zarr"),
    ):
        with pytest.raises(StoreError, match="Read-only file system"):
            write()
    # It can still be read.
    np.testing.assert_array_equal(icqf(executor="inline").fit(small_disk / "x.zarr").components_, model.components_)
    mount("-o", "remount,rw", str(small_disk))
    assert dfact.import_array(X[:100], small_disk / "y.zarr").shape == (100, M)
    assert not list(small_disk.glob("y.zarr.*"))


def turn_read_only_while_writing(disk: Path) -> None:
    with create_group(disk / "y.zarr", "dataset") as group:
        mount("-o", "remount,ro", str(disk))
        group.create_group("values")
