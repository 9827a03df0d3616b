"""Row sources: each keeps to the suite of all sources, and reads no more than it must."""

import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

import dfact
from dfact.data.layout import Layout
from dfact.data.sources import sparse
from dfact.data.sources.base import ArraySource, LazySource, RowSource, RowSubset, ZarrSource
from dfact.data.sources.dask import Chunk, DaskRows
from dfact.data.sources.sparse import CSRSource, StoredCSRSource, to_dense
from dfact.selection.cross_validation.masks import EntryMask, MaskedSource
from dfact.storage.location import Location
from tests.suites.row_source import RowSourceSuite
from tests.suites.session import sparse_values

N, M = 150, 7
CHUNK = 32


def matrix(*tail: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.random.default_rng(1).integers(0, 9, (N, *(tail or (M,)))).astype(dtype)


def csr(dtype: Any = np.uint8) -> sp.csr_array:
    """Rows of unequal lengths; the first two store nothing and a single 0."""
    X = matrix(dtype=dtype)
    stored = np.random.default_rng(2).random(X.shape) < np.linspace(0.1, 0.8, N)[:, None]
    stored[:2] = False
    stored[1, 3], X[1, 3] = True, 0
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    return sp.csr_array((X[stored], np.nonzero(stored)[1], indptr), shape=X.shape)


class TestArray(RowSourceSuite):
    """An array in memory, in Fortran order."""

    def rows(self) -> NDArray[Any]:
        return matrix()

    def open(self, folder: Path) -> RowSource:
        return ArraySource(np.asfortranarray(self.rows()))


class TestTensor(RowSourceSuite):
    dtype = np.int16

    def rows(self) -> NDArray[Any]:
        return matrix(4, 3, dtype=self.dtype)

    def open(self, folder: Path) -> RowSource:
        return ArraySource(self.rows())


class TestZarr(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return matrix(4, 3)

    def open(self, folder: Path) -> RowSource:
        return ZarrSource(zarr.create_array(folder / "x.zarr", data=self.rows(), chunks=(CHUNK, 3, 2), overwrite=True))

    def location(self, folder: Path) -> Location:
        return folder / "x.zarr"


class TestShardedZarr(TestZarr):
    def open(self, folder: Path) -> RowSource:
        array = zarr.create_array(folder / "x.zarr", data=self.rows(), chunks=(8, 4, 3), shards=(CHUNK, 4, 3), overwrite=True)
        source = ZarrSource(array)
        assert source.chunk_rows == CHUNK
        return source


class TestLazy(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return matrix()

    def open(self, folder: Path) -> RowSource:
        return LazySource(da.from_array(self.rows(), chunks=(CHUNK, 3)))


@dataclass(frozen=True)
class LocalFuture:
    """A future of this process, whose client calls a function at once."""

    value: Any

    @property
    def client(self) -> "LocalFuture":
        return self

    def submit(self, function: Callable[..., Any], futures: "list[LocalFuture]", *arguments: Any) -> "LocalFuture":
        return LocalFuture(function([future.value for future in futures], *arguments))

    def result(self) -> Any:
        return self.value


class TestDask(RowSourceSuite):
    """Chunks of unequal lengths, among them an empty one."""

    def rows(self) -> NDArray[Any]:
        return matrix(4, 3)

    def futures(self) -> dict[Any, LocalFuture]:
        edges = [0, 20, 20, 75, 79, N]
        return {(a, b, i): LocalFuture(self.rows()[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))}

    def open(self, folder: Path) -> RowSource:
        futures: Any = self.futures()
        return DaskRows(tuple(Chunk(key[0], key[1], key) for key in futures), np.dtype(self.dtype), (4, 3), 0, N, futures)

    def send(self, source: RowSource) -> RowSource:
        """Give the received source, which holds keys alone, the chunks again."""
        received = super().send(source)
        assert isinstance(received, DaskRows)
        assert received.futures is None
        futures: Any = self.futures()
        return replace(received, futures=futures)


class TestCSR(RowSourceSuite):
    dtype = np.uint8

    def rows(self) -> NDArray[Any]:
        return to_dense(csr(), self.implicit_value)

    def open(self, folder: Path) -> RowSource:
        return CSRSource(csr(), implicit_value=self.implicit_value)


class TestCSRWithMissingEntries(TestCSR):
    implicit_value = np.nan


class TestStoredCSR(TestCSR):
    decodes_chunks = False  # ranges end where as many entries are read as one read returns

    @pytest.fixture(autouse=True)
    def short_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sparse, "_READ_ENTRIES", 60)

    def open(self, folder: Path) -> RowSource:
        X, group = csr(), zarr.open_group(folder / "x.zarr", mode="w")
        arrays = {"data": X.data, "indices": X.indices, "positions": X.indptr}
        stored = {name: group.create_array(name, data=array, chunks=(50,)) for name, array in arrays.items()}
        return StoredCSRSource(**stored, n_columns=M, implicit_value=self.implicit_value)

    def location(self, folder: Path) -> Location:
        return folder / "x.zarr"


class TestStoredCSRWithMissingEntries(TestStoredCSR):
    implicit_value = np.nan


class TestSubset(RowSourceSuite):
    """Every row but a few of a Zarr array."""

    def numbers(self) -> NDArray[np.intp]:
        return np.flatnonzero(np.random.default_rng(3).random(N) < 0.7)

    def rows(self) -> NDArray[Any]:
        return matrix()[self.numbers()]

    def open(self, folder: Path) -> RowSource:
        return RowSubset(ZarrSource(zarr.create_array(folder / "x.zarr", data=matrix(), chunks=(CHUNK, 3), overwrite=True)), self.numbers())


class TestSubsetOfCSR(TestSubset):
    dtype = np.uint8

    def rows(self) -> NDArray[Any]:
        return csr().toarray()[self.numbers()]

    def open(self, folder: Path) -> RowSource:
        return RowSubset(CSRSource(csr()), self.numbers())


class TestMasked(RowSourceSuite):
    """Codes seen through a mask, which draws by block."""

    slice_rows = 8
    held_out = False

    def codes(self) -> NDArray[np.uint8]:
        X = matrix(dtype=np.uint8)
        X[X == 4] = 255
        return X

    def rows(self) -> NDArray[Any]:
        X = np.where(self.codes() == 255, np.nan, self.codes()).astype(np.float32)
        for i, first in enumerate(range(0, N, self.slice_rows)):
            block = X[first : first + self.slice_rows].reshape(-1)
            observed = np.flatnonzero(~np.isnan(block))
            drawn = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(2, i))).random(len(observed)) < 0.3
            block[observed[drawn != self.held_out]] = np.nan
        return X

    def open(self, folder: Path) -> RowSource:
        return MaskedSource(ArraySource(self.codes()), 255, EntryMask(0.3, 5, 2, self.held_out), Layout(N, self.slice_rows, N, N))


class TestHeldOut(TestMasked):
    held_out = True


# Of single sources


@pytest.mark.parametrize("chunk", [3, 10, 64])
def test_reads_follow_the_chunks_of_the_array(chunk: int, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", data=np.arange(200).reshape(100, 2), chunks=(chunk, 2))
    source = ZarrSource(array).slice(slice(17, 93))
    ranges = list(source.read_ranges(Layout.of(source.shape)))
    np.testing.assert_array_equal(np.concatenate([source.read(r.start, r.stop) for r in ranges]), np.arange(200).reshape(100, 2)[17:93])
    assert all((17 + r.start) // chunk == (17 + r.stop - 1) // chunk for r in ranges)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("most", [1, 30, 500, 10**6])
def test_row_ranges_do_not_exceed_the_limit_of_one_read(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_READ_ENTRIES", most)
    X = sparse_values(seed, n=400)
    ranges = list(CSRSource(X).read_ranges())
    assert (ranges[0].start, ranges[-1].stop) == (0, 400)
    assert all(a.stop == b.start for a, b in itertools.pairwise(ranges))
    assert all(X[rows].nnz <= most or rows.stop - rows.start == 1 for rows in ranges)
    assert list(CSRSource(X).read_ranges(Layout.of(X.shape))) == ranges


@pytest.mark.further
def test_a_part_of_a_source_is_pickled_without_the_rest(tmp_path: Path) -> None:
    X = sp.random_array((200_000, 40), density=0.1, rng=np.random.default_rng(0), format="csr")
    stored = dfact.import_array(X, tmp_path / "d.zarr").source
    in_memory = CSRSource(X).slice(slice(1000, 1100))
    assert len(pickle.dumps(in_memory)) < 20_000
    for source in (in_memory, stored.slice(slice(1000, 1100)), stored.slice(slice(900, None)).slice(slice(100, 200))):
        sent = pickle.dumps(source)
        assert len(sent) < 20_000
        assert (pickle.loads(sent).read_native(0, 100) != X[1000:1100]).nnz == 0
    assert stored.location == tmp_path / "d.zarr"
