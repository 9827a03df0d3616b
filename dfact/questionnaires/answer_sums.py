"""The sums from which a questionnaire is described, collected on one read of the answers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.validation import largest_magnitude, magnitude_limits, require_magnitude
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, BlockView
from dfact.engine.requests import FusedSolver, Solver, run, run_fused
from dfact.engine.session import Executor
from dfact.errors import DataError, warn
from dfact.linalg.correlation import Moments, MomentsPass
from dfact.questionnaires.alpha_jackknife import AlphaParts, AlphaPass
from dfact.questionnaires.item_sums import ItemRange, ItemSums, ItemSumsPass
from dfact.questionnaires.polychoric import Levels, Tabulated, answer_levels, gathered_bytes, table_bytes, tabulate
from dfact.questionnaires.reliability import alpha
from dfact.questionnaires.scales import Scale, Scales

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AnswerSums:
    """The sums of the items, and for each group of items their moments and correlations."""

    range: ItemRange
    items: ItemSums
    moments: list[Moments]
    """Moments of all items; listwise also those of each scale."""
    polychoric: list[Array]
    """Polychoric correlations of the same groups (m, m), NaN for items without variance; empty if they were not asked for."""
    alpha_se: Array
    """Standard errors of alpha by scale, from leaving out each row once."""


@dataclass(frozen=True)
class SurveyFigures:
    """Figures that have standard errors by replicate weights."""

    alphas: Array
    """Cronbach's alpha by scale, of the items that vary among all answers."""
    means: Array
    """Means of the items, in stored units and not reversed."""


@dataclass(frozen=True)
class ColumnsView:
    """A view of some columns of each block."""

    columns: tuple[int, ...]

    def __call__(self, block: Block) -> Block:
        return replace(block, stored=block.values[:, self.columns], missing_code=None)


@dataclass(frozen=True)
class _Group:
    """Items whose associations are computed from the same rows."""

    scales: tuple[Scale, ...]
    """Scales whose alphas are computed from these moments."""

    columns: NDArray[np.intp]
    varying: NDArray[np.intp]
    """The columns whose answers differ."""
    levels: Levels | None
    """Levels of the varying columns, for polychoric correlations."""


@dataclass(frozen=True)
class SumsTask:
    """The passes that collect the sums, with their memory plan."""

    dataset: Dataset
    groups: list[_Group]
    """All items; listwise also those of each scale."""
    keys: Array
    """1 or −1 by item (m)."""
    listwise: bool
    dtype: np.dtype[Any]
    executor: Executor
    plan: Plan
    tiles: int
    """Number of reads: the tables of all pairs of items may need several to stay within the memory limit."""

    @classmethod
    def prepare(
        cls, dataset: Dataset, scales: Scales, *, listwise: bool, polychoric: bool, executor: Any, memory_limit: int | str | None
    ) -> "SumsTask":
        """Plan the passes; nothing runs."""
        m = dataset.shape[1]
        dtype = _working_dtype(dataset)
        groups = [_group(dataset, np.arange(m), polychoric, () if listwise else scales.scales)]
        groups += [_group(dataset, scale.columns, polychoric, (scale,)) for scale in scales.scales if listwise]
        resolved = resolve_executor(executor, Layout.of(dataset.shape).n_partitions)
        resources = resolved.workers(memory_limit)

        def planned(tiles: int) -> Plan:
            return make_plan(dataset.source, dtype, _footprint(dataset, groups, tiles, dtype), resources)

        tiles = 1
        while polychoric and tiles < m and not planned(tiles).fits:
            tiles *= 2
        return cls(dataset, groups, scales.keys, listwise, dtype, resolved, planned(tiles), tiles)

    def run(self) -> AnswerSums:
        """Read the answers; raise MemoryPlanError if the plan does not fit."""
        self.plan.check()
        dataset, dtype, m = self.dataset, self.dtype, self.dataset.shape[1]
        statistics, weighted = dataset.statistics, dataset.weights is not None
        with np.errstate(invalid="ignore"):  # without answers the extremes are infinite
            shift = np.where(statistics.observed > 0, (statistics.minimum + statistics.maximum) / 2, 0.0)
        item_range = ItemRange(dataset.valid_range[:, 0], dataset.valid_range[:, 1], shift)
        moments_pass = MomentsPass(dtype, self.listwise, weighted)
        solvers: list[FusedSolver[Any]] = [
            FusedSolver(run(ItemSumsPass(dtype, weighted), item_range)),
            *(FusedSolver(self._moments(moments_pass, group, shift[group.columns]), _view(group.columns, m)) for group in self.groups),
        ]
        tabulated = [i for i, group in enumerate(self.groups) if group.levels is not None and len(group.varying)]
        for i in tabulated:
            group = self.groups[i]
            assert group.levels is not None
            tiles, threads = self.tiles if i == 0 else 1, self.plan.workers.threads
            settings: dict[str, Any] = {"complete_only": self.listwise, "weighted": weighted, "threads": threads}
            tables = tabulate(group.levels, tiles, dataset.shape[0], dtype, **settings)
            solvers.append(FusedSolver(tables, _view(group.varying, m)))
        with self.executor.open(partitions(dataset.source, dataset.missing_code, _scaled_weights(dataset)), self.plan) as session:
            items, *found = run_fused(solvers, session, dtype)
        moments, alphas = zip(*found[: len(self.groups)], strict=True)
        found_tables = dict(zip(tabulated, found[len(self.groups) :], strict=True))
        correlations = [_filled(dataset, group, found_tables.get(i)) for i, group in enumerate(self.groups) if group.levels is not None]
        return AnswerSums(item_range, items, list(moments), correlations, np.concatenate(alphas))

    def with_weights(self, weights: Any) -> "SumsTask":
        """Return the task with other weights of the rows, for :meth:`figures`; it has no polychoric correlations."""
        groups = [replace(group, levels=None) for group in self.groups]
        return replace(self, dataset=replace(self.dataset, weights=weights), groups=groups, tiles=1)

    def figures(self) -> SurveyFigures:
        """Read the answers, and return alphas and means."""
        sums, alphas = self.run(), []
        for group, moments in zip(self.groups, sums.moments, strict=True):
            for scale in group.scales:
                columns = np.intersect1d(scale.columns, group.varying)
                keys, positions = self.keys[columns], np.searchsorted(group.columns, columns)
                alphas.append(alpha(moments.part(positions).covariances() * np.outer(keys, keys)))
        return SurveyFigures(np.asarray(alphas, np.float64), sums.items.means() + sums.range.shift)

    def _moments(self, moments_pass: MomentsPass, group: _Group, shifts: Array) -> Solver[tuple[Moments, Array]]:
        """Return the moments of a group, and the standard errors of the alphas of its scales."""
        moments: Moments = yield from run(moments_pass, shifts)
        positions = [np.searchsorted(group.columns, scale.columns) for scale in group.scales]
        varying = ~np.isnan(moments.correlations().diagonal())
        positions = [p[varying[p]] for p in positions]  # alpha is of the items that vary
        errors, several = np.full(len(positions), np.nan), [len(p) > 1 for p in positions]
        if any(several):
            parts = [AlphaParts.of(moments.part(p), p, self.keys[group.columns[p]], shifts[p]) for p in positions if len(p) > 1]
            sums = yield from run(AlphaPass(self.dtype, self.listwise, self.dataset.weights is not None), parts)
            errors[several] = sums.standard_errors()
        return moments, errors


def _working_dtype(dataset: Dataset) -> np.dtype[Any]:
    """Return single precision if it holds the answers and the sums of their squares, else double precision."""
    single = np.dtype("float32")
    lowest, highest = magnitude_limits(single)
    if np.can_cast(dataset.dtype, single) and (largest := largest_magnitude(dataset)) <= highest and not 0 < largest < lowest:
        return single
    require_magnitude(dataset, np.dtype("float64"), fitted=True)
    return np.dtype("float64")


def _scaled_weights(dataset: Dataset) -> Array | None:
    """Return the weights of the rows as a covariate (n, 1), divided by a power of two, at most 1; None without weights."""
    weights = dataset.weight_summary()
    return None if weights is None else np.asarray(dataset.weights, np.float64)[:, None] / weights.scale


def _view(columns: NDArray[np.intp], m: int) -> BlockView | None:
    return None if len(columns) == m else ColumnsView(tuple(columns.tolist()))


def _group(dataset: Dataset, columns: NDArray[np.intp], polychoric: bool, scales: tuple[Scale, ...]) -> _Group:
    statistics = dataset.statistics
    low, high = statistics.minimum[columns], statistics.maximum[columns]
    kept = np.flatnonzero((statistics.observed[columns] > 0) & (low < high))
    varying = columns[kept]
    levels = answer_levels(low[kept], high[kept], dataset.column_labels[varying]) if polychoric else None
    return _Group(scales, columns, varying, levels)


def _footprint(dataset: Dataset, groups: list[_Group], tiles: int, dtype: np.dtype[Any]) -> Footprint:
    """Return the footprint of the passes, whose tables of all items are split into ``tiles``.

    The sums of a block and those that wait for others are squares (m, m) and tables; the driver holds squares besides: covariances,
    correlations, their eigenvectors and, polychoric, standard errors and counts.
    """
    size, (n, m), weighted = dtype.itemsize, dataset.shape, dataset.weights is not None
    largest = max((len(scale.columns) for group in groups for scale in group.scales), default=0)
    square = 8 * sum(len(group.columns) ** 2 for group in groups)
    slots = [(len(group.varying), group.levels.n_slots) for group in groups if group.levels is not None]
    gathered = sum(gathered_bytes(count, weighted_items=items * weighted) for items, count in slots)
    tables = sum(table_bytes(count, n, weighted=weighted) / (tiles if i == 0 else 1) for i, (_, count) in enumerate(slots))
    packed = sum(4 * items if weighted else count for items, count in slots)
    return Footprint(
        state_per_row=0,
        work_per_row=(3 * size + 2 + 8 * 6) * m + (18 + 24 * weighted) * m + size * m * (len(groups) > 1) + packed,
        broadcast=(3 if slots else 2) * square + 8 * 3 * m + 8 * 8 * largest**2,
        result_per_row=0,
        summed=(4 + (4 if slots else 2) * weighted) * square + 8 * 8 * m + round(tables) + gathered,
    )


def _filled(dataset: Dataset, group: _Group, found: Tabulated | None) -> Array:
    """Return the polychoric correlations of a group, with NaN for items without variance, and warn of those at their limit."""
    R = np.full((len(group.columns),) * 2, np.nan)
    if found is None or found.rows < 2:
        return R
    names = [str(dataset.column_labels[j]) for j in group.varying]
    if found.fractions.any():
        j = int(np.flatnonzero(found.fractions)[0])
        message = f"item {names[j]!r} has {found.fractions[j]} answers that are not whole numbers"
        raise DataError(f"{message}, expected ordered categories; use correlation='pearson' (--correlation pearson)")
    limit = found.correlations.at_limit
    if limit.size:
        pairs = ", ".join(" and ".join(repr(names[j]) for j in pair) for pair in limit[:3])
        message = f"the polychoric correlation is at its limit for {len(limit)} pairs of items ({pairs}), expected less than 0.9999"
        warn(f"{message}; leave out items that repeat others")
    positions = np.flatnonzero(np.isin(group.columns, group.varying))
    R[np.ix_(positions, positions)] = found.correlations.R
    return R
