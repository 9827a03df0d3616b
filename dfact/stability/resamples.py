"""Refits of a model to bootstrap resamples of the rows, by its own fit in sessions whose blocks hold the drawn rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.replicate_weights import ReplicateWeights
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.passes import Block, BlockView
from dfact.engine.requests import FusedSolver, Solver, run_fused
from dfact.errors import DataError
from dfact.linalg.svd import Matrix
from dfact.models.bounded_nmf.effects import AdjustedDifferences
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.selection.running.estimators import with_parameters


@dataclass(frozen=True, eq=False)
class RefittedLoadings:
    """The loadings of a model that was fitted to a resample."""

    components: NDArray[Any]
    """Loadings on the components (k, m)."""
    confounders: NDArray[Any] | None
    """Loadings on the encoded confounder columns (c, m); None for a model without."""
    differences: AdjustedDifferences | None = None
    """Differences that the confounders make to the factors and residuals."""
    scale: NDArray[Any] | None = None
    """Standard deviation of each item's answers (m,), to which standardized loadings refer; None for loadings in the items' units, which
    alone have confounders."""


Refit = RefittedLoadings | DataError
"""The result of a refit, or the error of a resample that cannot be fitted."""
Keep = Callable[[int, Refit], None]
ALL_ROWS = -1
"""The number that stands for all rows, once each, instead of a resample."""


@dataclass(frozen=True, eq=False)
class Resample:
    """A view of blocks with each row as often as it was drawn: n of n rows, with replacement, or as many of each stratum as it has.

    The number of draws from each block is drawn first, then the rows, by a seed of the block. Only the strata have a value
    for each row, and the rows of a block do not depend on the worker.
    """

    seed: int
    number: int
    """Number of the resample."""
    counts: NDArray[np.int64]
    """Number of draws of each stratum from each block (strata, blocks); without strata, all rows are one."""
    weighted: bool
    """Whether a drawn row occurs once, with its multiplicity as a factor of the last covariate, rather than repeatedly."""
    strata: NDArray[Any] | None = None
    """Number of the stratum of each row (n,)."""

    @classmethod
    def draw(cls, layout: Layout, seed: int, number: int, *, weighted: bool, strata: NDArray[Any] | None = None) -> "Resample":
        """Draw the counts of the blocks for data with this layout, for ``strata`` numbered from 0 without gaps."""
        sizes = _block_sizes(layout, strata)
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        counts = np.stack(
            [generator.multinomial(total, blocks / max(total, 1)) for blocks, total in zip(sizes, sizes.sum(axis=1), strict=True)]
        )
        return cls(seed, number, counts, weighted, strata)

    def multiplicity(self, index: int, start: int, size: int) -> NDArray[np.intp]:
        """Return the number of times that each of the ``size`` rows of a block from row ``start`` on is drawn (size,)."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.number, index)))
        if self.strata is None:
            return np.bincount(generator.integers(size, size=self.counts[0, index]), minlength=size)
        block, drawn = self.strata[start : start + size], np.zeros(size, np.intp)
        for stratum, count in enumerate(self.counts[:, index]):
            rows = np.flatnonzero(block == stratum)
            if count:
                np.add.at(drawn, rows[generator.integers(len(rows), size=count)], 1)
        return drawn

    def _rows_before(self, index: int) -> int:
        """Return the number of rows that are drawn from the blocks before this one."""
        return int(self.counts[:, :index].sum())

    def __call__(self, block: Block) -> Block:
        """Return the block of drawn rows; repeated rows are numbered as in a dataset that holds them."""
        multiplicity = self.multiplicity(block.index, block.start, block.matrix.shape[0])
        if not self.weighted:
            drawn = np.repeat(np.arange(len(multiplicity)), multiplicity)
            covariates = None if block.covariates is None else block.covariates[drawn]
            return block.with_matrix(_take_rows(block, drawn), covariates=covariates, start=self._rows_before(block.index))
        assert block.covariates is not None, "the last covariate holds the weights"
        drawn = np.flatnonzero(multiplicity)
        covariates = block.covariates[drawn]
        covariates[:, -1] *= multiplicity[drawn]
        return block.with_matrix(_take_rows(block, drawn), covariates=covariates)


@dataclass(frozen=True, eq=False)
class Half(Resample):
    """A view of a random half of the rows, drawn without replacement, in which each row counts twice.

    So the total weight, and with it the weight of a penalty, equals that of all rows. Halves 2b and 2b + 1 have no row in common; with an
    odd number of rows, or of rows of a stratum, one row is in neither. The ``number`` is the pair's, b.
    """

    before: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Number of rows of each stratum and block that the other half took before this one (strata, blocks)."""

    @classmethod
    def draw(cls, layout: Layout, seed: int, number: int, *, weighted: bool, strata: NDArray[Any] | None = None) -> "Half":
        """Draw the numbers of rows of the blocks for half ``number``."""
        pair, second = divmod(number, 2)
        sizes = _block_sizes(layout, strata)
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(pair,)))
        counts = np.stack([generator.multivariate_hypergeometric(blocks, int(blocks.sum()) // 2) for blocks in sizes])
        before = np.zeros_like(counts)
        if second:
            before, left = counts, sizes - counts
            counts = np.stack([generator.multivariate_hypergeometric(b, int(all_.sum()) // 2) for b, all_ in zip(left, sizes, strict=True)])
        return cls(seed, pair, counts, weighted, strata, before)

    def multiplicity(self, index: int, start: int, size: int) -> NDArray[np.intp]:
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.number, index)))
        block = np.zeros(size, np.intp) if self.strata is None else self.strata[start : start + size]
        drawn = np.zeros(size, np.intp)
        for stratum, (first, count) in enumerate(zip(self.before[:, index], self.counts[:, index], strict=True)):
            rows = generator.permutation(np.flatnonzero(block == stratum))
            drawn[rows[first : first + count]] = 2
        return drawn

    def _rows_before(self, index: int) -> int:
        return 2 * super()._rows_before(index)


@dataclass(frozen=True, eq=False)
class ClusterResample(Resample):
    """A view of the rows of whole clusters, each as often as its cluster was drawn.

    Clusters are drawn with replacement, as many of each stratum as it has, or each half of them without replacement. If a
    cluster spans several strata, each of its parts is drawn on its own. If clusters differ in size, so do the resamples.
    """

    units: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.intp))
    """Number of the cluster in its stratum of each row (n,)."""
    drawn: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    """Number of times that each of these is drawn."""

    @classmethod
    def draw_clusters(cls, layout: Layout, seed: int, number: int, clusters: "Clusters", *, weighted: bool, halves: bool = False) -> Self:
        """Draw the clusters of resample ``number``; with ``halves``, 2b and 2b + 1 are halves without a common cluster."""
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number // 2 if halves else number,)))
        drawn = np.zeros(len(clusters.strata), np.intp)
        for stratum in range(int(clusters.strata.max()) + 1):
            members = np.flatnonzero(clusters.strata == stratum)
            if halves:
                half, order = len(members) // 2, generator.permutation(members)
                drawn[order[half : 2 * half] if number % 2 else order[:half]] = 2
            elif len(members):
                drawn[members] = np.bincount(generator.integers(len(members), size=len(members)), minlength=len(members))
        return cls.of_draws(layout, seed, number, clusters.units, drawn, weighted=weighted)

    @classmethod
    def of_draws(cls, layout: Layout, seed: int, number: int, units: NDArray[Any], drawn: NDArray[np.intp], *, weighted: bool) -> Self:
        """Return the view of these draws."""
        counts = np.add.reduceat(drawn[units], layout.block_starts, dtype=np.int64)[None]
        return cls(seed, number, counts, weighted, None, units, drawn)

    def multiplicity(self, index: int, start: int, size: int) -> NDArray[np.intp]:
        return np.asarray(self.drawn[self.units[start : start + size]], np.intp)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Units that are drawn in place of rows: clusters, or the parts of clusters in each stratum."""

    units: NDArray[Any]
    """Number of the unit of each row (n,), from 0; it travels with each resample, in a small type."""
    strata: NDArray[np.intp]
    """Number of the stratum of each unit."""

    @classmethod
    def of(cls, clusters: NDArray[np.intp], strata: NDArray[Any] | None = None) -> "Clusters":
        """Number the units of ``clusters`` (n,) within ``strata`` (n,), both numbered from 0."""
        levels = np.zeros(len(clusters), np.intp) if strata is None else np.asarray(strata, np.intp)
        pairs, units = np.unique(np.stack([levels, clusters]), axis=1, return_inverse=True)
        return cls(units.ravel().astype(np.min_scalar_type(pairs.shape[1])), pairs[0])


def _block_sizes(layout: Layout, strata: NDArray[Any] | None) -> NDArray[np.int64]:
    """Return the number of rows of each stratum in each block (strata, blocks); without strata, all rows are one."""
    starts = layout.block_starts
    if strata is None:
        return np.diff([*starts, layout.n_rows])[None]
    return np.stack([np.add.reduceat(strata == level, starts, dtype=np.int64) for level in range(int(strata.max()) + 1)])


def _take_rows(block: Block, rows: NDArray[np.intp]) -> Matrix:
    """Return these rows of the block, in its working memory if it is dense."""
    M = block.matrix
    if not isinstance(M, np.ndarray):
        return M[rows]
    out = block.work.array("drawn", (len(rows), *M.shape[1:]), M.dtype)
    return np.take(M, rows, axis=0, out=out, mode="clip")  # all rows exist; mode="raise" would make NumPy buffer the output


@dataclass(frozen=True, eq=False)
class ResampleFits:
    """Fits of a model to resamples of the rows of a dataset, which the scheduler runs, by number of the resample."""

    ignored_warnings: ClassVar[str] = ""  # all: the fit itself has warned
    model: Factorization
    """Not fitted."""
    task: FitTask[Any]
    """The fit to all rows, each once; with weights as the last covariate if the rows have any, or draws become weights."""
    seed: int
    strata: NDArray[Any] | None = None
    """Number of the stratum of each row (n,), from 0, within which rows are drawn."""
    clusters: Clusters | None = None
    """Units that are drawn in place of rows; None to draw rows."""

    @classmethod
    def make(
        cls,
        model: Factorization,
        dataset: Dataset,
        *,
        seed: int,
        strata: NDArray[Any] | None = None,
        clusters: NDArray[np.intp] | None = None,
    ) -> Self:
        """Prepare the fits, whose row factors are not needed. ``clusters`` (n,) are numbered from 0, and drawn whole within strata."""
        if model.traits.copies_weights and dataset.weights is None:
            dataset = dataset.with_weights(np.ones(dataset.shape[0]))
        small = None if strata is None else strata.astype(np.min_scalar_type(int(strata.max())))  # it travels with each resample
        units = None if clusters is None else Clusters.of(clusters, strata)
        return cls(model, model.prepare(dataset).for_views().without_rows(), seed, small, units)

    def footprint(self, which: int) -> Footprint:
        """Return what a refit holds in memory."""
        return self.task.footprint

    def shared(self, which: int, keep: Callable[[Refit], None]) -> FusedSolver[None]:
        """Return the solver of a resample."""
        changes: dict[str, Any] = {}
        if "random_state" in self.model.get_params(deep=False):
            changes["random_state"] = int(np.random.SeedSequence([self.seed, which + 1]).generate_state(1)[0] >> 1)
        task, view = (self.task, None) if which == ALL_ROWS else (self._task(which), self._view(which))
        return FusedSolver(self._refit(with_parameters(self.model, **changes), task, keep), view)

    def _view(self, which: int) -> BlockView:
        """Return the view of the rows of a resample."""
        if self.clusters is not None:
            return self._drawn_clusters(which)
        return Resample.draw(self.task.layout, self.seed, which, weighted=self.model.traits.copies_weights, strata=self.strata)

    def _drawn_clusters(self, which: int, *, halves: bool = False) -> ClusterResample:
        assert self.clusters is not None, "clusters are drawn in place of rows"
        weighted = self.model.traits.copies_weights
        return ClusterResample.draw_clusters(self.task.layout, self.seed, which, self.clusters, weighted=weighted, halves=halves)

    def _task(self, which: int) -> FitTask[Any]:
        """Return the task of the fit to a resample."""
        return self.task

    def _refit(self, model: Factorization, task: FitTask[Any], keep: Callable[[Refit], None]) -> Solver[None]:
        """Keep the loadings of a refit, or its error: an item may be constant or unanswered in a resample."""
        try:
            yield from model.solve(task)
        except DataError as error:
            keep(error)
            return
        confounders = getattr(model, "confounder_components_", None)
        confounders = None if confounders is None or not len(confounders) else confounders
        differences, scale = getattr(model, "differences_", None), getattr(model, "scale_", None)
        keep(RefittedLoadings(np.asarray(model.components_), confounders, differences, scale))

    def fits_in_memory(self, count: int, workers: WorkerResources) -> bool:
        """Whether the values, and for each thread the state and the working arrays of a refit, fit within the memory limit."""
        task, dataset = self.task, self.task.dataset
        states = min(count, workers.threads) * dataset.shape[0] * task.footprint.state_per_row
        working = make_plan(dataset.source, task.dtype, task.footprint, workers).working
        return workers.baseline + _nbytes(dataset) + states + working <= workers.limit

    def prepare_in_memory(self) -> Callable[[int], list[Refit]]:
        """Load the values, in their stored type; return the function that refits to a resample of them."""
        dataset = self.task.dataset
        source = dataset.source if dataset.source.chunk_rows is None else dataset.source.to_memory()
        fits = replace(self, task=replace(self.task, dataset=replace(dataset, source=source)))
        # All refits have the same plan. To measure the free memory would take a tenth of the time of a small one.
        plan = make_plan(source, self.task.dtype, Footprint(0, 0, 0, 0), InlineExecutor().workers(None))
        return partial(fits._refit_alone, plan)

    def _refit_alone(self, plan: Plan, which: int) -> list[Refit]:
        task, refits = self.task, list[Refit]()
        with InlineExecutor().open(task.partitions, plan) as session:
            run_fused([self.shared(which, refits.append)], session, task.dtype)
        return refits


@dataclass(frozen=True, eq=False)
class HalfFits(ResampleFits):
    """Fits to random halves of the rows, in pairs without a common row, in which each row counts twice."""

    def _view(self, which: int) -> BlockView:
        if self.clusters is not None:
            return self._drawn_clusters(which, halves=True)
        return Half.draw(self.task.layout, self.seed, which, weighted=self.model.traits.copies_weights, strata=self.strata)


@dataclass(frozen=True, eq=False)
class OtherCovariates:
    """A view of blocks with other covariates, such as other weights."""

    covariates: NDArray[Any]
    """(n, c)."""

    def __call__(self, block: Block) -> Block:
        rows = slice(block.start, block.start + block.matrix.shape[0])
        return block.with_matrix(block.matrix, covariates=self.covariates[rows])


@dataclass(frozen=True, eq=False)
class ReplicateFits(ResampleFits):
    """Fits with each of the replicate weights of a survey, by their number."""

    replicates: ReplicateWeights | None = None

    def shared(self, which: int, keep: Callable[[Refit], None]) -> FusedSolver[None]:
        if which == ALL_ROWS:
            return super().shared(which, keep)
        assert self.replicates is not None, "there is a fit for each of the replicate weights"
        dataset = replace(self.task.dataset, weights=self.replicates.column(which))
        prepared = self.model.prepare(dataset)  # a model scales its weights, and constants depend on their sum
        assert prepared.covariates is not None, "the last covariate holds the weights"
        task = replace(self.task, dataset=dataset, problem=prepared.problem)
        return FusedSolver(self._refit(with_parameters(self.model), task, keep), OtherCovariates(prepared.covariates))


def _nbytes(dataset: Dataset) -> int:
    """Return the size of the values in memory, in bytes."""
    row = getattr(dataset.source, "row_bytes", int(np.prod(dataset.shape[1:])) * dataset.dtype.itemsize)
    return int(dataset.shape[0] * row)
