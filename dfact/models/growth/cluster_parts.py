"""Figures of new rows in parts of whole clusters, for tests that take the clusters as independent."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.clusters import deal_clusters
from dfact.data.layout import Layout
from dfact.engine.passes import Block
from dfact.engine.requests import FusedSolver, run_fused
from dfact.models.fit_task import FitTask
from dfact.models.growth.baseline import Baseline

_MOST_PARTS = 60
_AT_ONCE = 10  # parts that share a pass: memory for more would be planned as if each had all rows
_SEED = 21  # of the parts: the tests of a check do not differ from run to run


@dataclass(frozen=True, eq=False)
class PartRows:
    """A view of the rows of one part, once each."""

    parts: NDArray[Any]
    """Part of each row (n,)."""
    part: int
    before: NDArray[np.int64]
    """Number of its rows before each block."""

    @classmethod
    def of(cls, parts: NDArray[Any], part: int, layout: Layout) -> "PartRows":
        """Return the view of the rows of a part, for data with this layout."""
        counts = np.add.reduceat(parts == part, layout.block_starts, dtype=np.int64)
        return cls(parts, part, np.cumsum(counts) - counts)

    def __call__(self, block: Block) -> Block:
        chosen = np.flatnonzero(self.parts[block.start : block.start + block.matrix.shape[0]] == self.part)
        covariates = None if block.covariates is None else block.covariates[chosen]
        return block.with_matrix(block.matrix[chosen], covariates=covariates, start=int(self.before[block.index]))


def measure_parts(task: FitTask[Any], clusters: NDArray[np.intp]) -> list[Baseline]:
    """Return the figures of the rows of each part, for clusters (n,) that are numbered from 0."""
    count = int(clusters.max()) + 1
    n_parts = min(_MOST_PARTS, count)
    parts = deal_clusters(clusters, n_parts, np.random.default_rng(_SEED)).astype(np.uint8)
    found: list[Baseline] = []
    for first in range(0, n_parts, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, n_parts))
        shared = task.for_views().without_rows().times(len(numbers))
        model: Any = task.model
        with shared.open_session() as session:
            solvers = [FusedSolver(model._measure(shared), PartRows.of(parts, number, shared.layout)) for number in numbers]
            found += [Baseline.of(sums) for sums in run_fused(solvers, session, shared.dtype)]
    return found
