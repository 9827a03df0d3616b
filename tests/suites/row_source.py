"""What every row source keeps to: any range of its rows equals that of the array in NumPy, in slices and in other processes too."""

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.sources.sparse import to_dense
from dfact.storage.location import Location


def draw_range(rng: np.random.Generator, n: int, step: int = 1) -> slice:
    """Draw a range of at least one row that begins at a multiple of ``step``."""
    start = int(rng.integers(0, -(-n // step))) * step
    return slice(start, int(rng.integers(start, n)) + 1)


class RowSourceSuite:
    """A subclass makes the source."""

    implicit_value: float = 0.0
    dtype: Any = np.float32
    """Type of the stored entries."""
    slice_rows: int = 1
    """Slices begin at multiples of this number."""
    decodes_chunks: bool = True
    """Whether a source with chunks reads them as they are, so that no range crosses their borders."""

    def open(self, folder: Path) -> RowSource:
        raise NotImplementedError

    def rows(self) -> NDArray[Any]:
        """Return all rows, as a read returns them."""
        raise NotImplementedError

    def location(self, folder: Path) -> Location | None:
        """Return the location of the stored array."""
        del folder
        return None

    def send(self, source: RowSource) -> RowSource:
        """Return the source as a worker receives it."""
        received: RowSource = pickle.loads(pickle.dumps(source))
        return received

    def check(self, source: RowSource, expected: NDArray[Any]) -> None:
        """Compare all that a source says of its rows."""
        assert source.shape == expected.shape
        assert source.dtype == self.dtype
        np.testing.assert_equal(source.implicit_value, self.implicit_value)
        np.testing.assert_array_equal(source.read(0, len(expected)), expected, strict=True)

    def test_metadata(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        self.check(source, self.rows())
        assert source.location == self.location(tmp_path)
        assert source.row_bytes > 0
        assert source.rows_decoded([]) == 0
        assert source.rows_decoded([slice(0, source.shape[0])]) == source.shape[0]

    @pytest.mark.parametrize("seed", range(2))
    def test_any_range_equals_that_of_the_array(self, seed: int, tmp_path: Path) -> None:
        rng, source, expected = np.random.default_rng(seed), self.open(tmp_path), self.rows()
        for _ in range(10):
            rows = draw_range(rng, len(expected))
            values = source.read(rows.start, rows.stop)
            np.testing.assert_array_equal(values, expected[rows], strict=True)
            assert values.flags.c_contiguous

    def test_native_rows_are_dense_or_csr(self, tmp_path: Path) -> None:
        source, expected = self.open(tmp_path), self.rows()
        for rows in (slice(0, 1), slice(3, 20), slice(0, len(expected))):
            values = source.read_native(rows.start, rows.stop)
            assert sp.issparse(values) is source.is_sparse
            if isinstance(values, sp.csr_array):
                assert values.dtype == self.dtype
                values = to_dense(values, source.implicit_value)
            np.testing.assert_array_equal(values, expected[rows], strict=True)

    @pytest.mark.parametrize("seed", range(2))
    def test_ranges_to_read_cover_all_rows_in_order(self, seed: int, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        part = source.slice(draw_range(np.random.default_rng(seed), source.shape[0], self.slice_rows))
        ranges = list(part.read_ranges(Layout.of(part.shape)))
        assert (ranges[0].start, ranges[-1].stop) == (0, part.shape[0])
        assert all(a.stop == b.start for a, b in pairwise(ranges))
        assert all(rows.stop > rows.start for rows in ranges)
        step = part.chunk_rows
        if step is not None and self.decodes_chunks:
            assert all((part.offset + r.start) // step == (part.offset + r.stop - 1) // step for r in ranges)

    @pytest.mark.parametrize("seed", range(2))
    def test_slices_of_slices(self, seed: int, tmp_path: Path) -> None:
        rng, source, expected = np.random.default_rng(seed), self.open(tmp_path), self.rows()
        for _ in range(4):
            part, values = source, expected
            for _ in range(3):
                rows = draw_range(rng, len(values), self.slice_rows)
                part, values = part.slice(rows), values[rows]
                self.check(part, values)
                assert part.location == source.location

    def test_pickled_sources_read_the_same_rows(self, tmp_path: Path) -> None:
        source, expected = self.open(tmp_path), self.rows()
        for rows in (slice(0, len(expected)), slice(self.slice_rows, 2 * self.slice_rows + 9)):
            received = self.send(source.slice(rows))
            self.check(received, expected[rows])
            assert received.location == source.location
            assert received.is_sparse is source.is_sparse

    def test_rows_in_memory(self, tmp_path: Path) -> None:
        source, expected = self.open(tmp_path), self.rows()
        loaded = source.to_memory()
        assert loaded.chunk_rows is None
        assert loaded.is_sparse is source.is_sparse
        self.check(loaded, expected)
        part = source.slice(slice(self.slice_rows, 2 * self.slice_rows + 9)).to_memory()
        self.check(part, expected[self.slice_rows : 2 * self.slice_rows + 9])
