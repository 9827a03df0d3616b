"""Sources of datasets that are concatenated: the rows of one after those of another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.base import DenseSource, RowSource
from dfact.data.sources.sparse import SparseSource
from dfact.lazy import sp


@dataclass(frozen=True, eq=False)
class _Segments(RowSource):
    """The rows of several sources with the same columns and type, each a segment."""

    sources: tuple[RowSource, ...]

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(source.shape[0] for source in self.sources)

    @property
    def present_rows(self) -> int:
        return sum(source.present_rows for source in self.sources)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self.segments), *self.sources[0].shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.sources[0].dtype

    @property
    def chunk_rows(self) -> int | None:
        return max((source.chunk_rows for source in self.sources if source.chunk_rows is not None), default=None)

    @property
    def row_bytes(self) -> int:
        return ceil(sum(source.row_bytes * source.shape[0] for source in self.sources) / max(1, self.shape[0]))

    def parts(self, start: int, stop: int) -> Iterator[tuple[RowSource, int, int]]:
        """Yield the sources with the rows start to stop, and the numbers of these rows in each; one source if there are no rows."""
        firsts = [0, *accumulate(self.segments)]
        number = min(bisect_right(firsts, start) - 1, len(self.sources) - 1)
        while True:
            first, last = firsts[number], firsts[number + 1]
            yield self.sources[number], start - first, min(stop, last) - first
            number, start = number + 1, last
            if start >= stop:
                return

    def read_ranges(self, layout: Layout | None = None) -> Iterator[slice]:
        layout = self.layout if layout is None else layout
        for first, source in zip([0, *accumulate(self.segments)], self.sources, strict=False):
            yield from (slice(first + rows.start, first + rows.stop) for rows in source.read_ranges(layout))

    def rows_decoded(self, ranges: Sequence[slice]) -> int:
        parts = [(source, slice(a, b)) for rows in ranges for source, a, b in self.parts(rows.start, rows.stop)]
        return sum(source.rows_decoded([rows for owner, rows in parts if owner is source]) for source in self.sources)

    def slice(self, rows: slice) -> RowSource:
        """Return a source of these rows alone: that of one dataset if they lie in it."""
        start, stop, _ = rows.indices(self.shape[0])
        parts = [source.slice(slice(a, b)) for source, a, b in self.parts(start, stop)]
        return parts[0] if len(parts) == 1 else replace(self, sources=tuple(parts))


@dataclass(frozen=True, eq=False)
class ConcatenatedSource(_Segments, DenseSource):
    """The rows of several dense sources."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.concatenate([source.read(a, b) for source, a, b in self.parts(start, stop)])


@dataclass(frozen=True, eq=False)
class ConcatenatedCSR(_Segments, SparseSource):
    """The rows of several CSR sources with the same implicit value."""

    sources: tuple[SparseSource, ...]

    @property
    def row_entries(self) -> float:
        return sum(source.row_entries * source.shape[0] for source in self.sources) / max(1, self.shape[0])

    @property
    def n_stored(self) -> int:
        return sum(source.n_stored for source in self.sources)

    def indptr(self, start: int, stop: int) -> NDArray[Any]:
        positions = [source.indptr(a, b) for source, a, b in self.parts(start, stop)]  # type: ignore[attr-defined]  # all are CSR
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in positions]))])

    def read_native(self, start: int, stop: int) -> sp.csr_array:
        rows: list[Any] = [source.read_native(a, b) for source, a, b in self.parts(start, stop)]
        return sp.csr_array(sp.vstack(rows, format="csr"))
