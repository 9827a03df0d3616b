"""The sums from which a questionnaire is described, collected on one read of the answers."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.scales import Scale
from dfact.engine.driver import FusedSolver, drive_together, whole
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block
from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.linalg.correlation import Moments, MomentsPass
from dfact.linalg.item_sums import ItemRange, ItemSums, ItemSumsPass
from dfact.linalg.polychoric import Levels, Tabulated, answer_levels, gathered_bytes, table_bytes, tabulate

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


@dataclass(frozen=True)
class ColumnsView:
    """A view of some columns of each block."""

    columns: tuple[int, ...]

    def __call__(self, block: Block) -> Block:
        return replace(block, stored=block.values[:, self.columns], missing_code=None)


@dataclass(frozen=True)
class _Group:
    """Items whose associations are computed from the same rows."""

    columns: NDArray[np.intp]
    varying: NDArray[np.intp]
    """Those of the columns whose answers differ."""
    levels: Levels | None
    """Levels of the varying columns, for polychoric correlations."""


def collect(
    dataset: Dataset, scales: tuple[Scale, ...], *, listwise: bool, polychoric: bool, executor: Any, memory_limit: int | str | None
) -> AnswerSums:
    """Read the answers once, or for polychoric correlations as often as the tables of all pairs need within the memory limit."""
    statistics, m = dataset.statistics, dataset.shape[1]
    with np.errstate(invalid="ignore"):  # without answers the extremes are infinite
        shift = np.where(statistics.observed > 0, (statistics.minimum + statistics.maximum) / 2, 0.0)
    item_range = ItemRange(dataset.valid_range[:, 0], dataset.valid_range[:, 1], shift)
    dtype = np.dtype("float32" if np.can_cast(dataset.dtype, np.float32) else "float64")
    groups = [_group(dataset, columns, polychoric) for columns in (np.arange(m), *(scale.columns for scale in scales if listwise))]
    weights = None if dataset.weights is None else np.asarray(dataset.weights, np.float64)[:, None]
    covariates, weighted = (None if weights is None else weights / weights.max()), weights is not None
    resolved = resolve_executor(executor, Layout.of(dataset.shape).n_partitions)
    resources = resolved.workers(memory_limit)

    def plan(tiles: int) -> Plan:
        return make_plan(dataset.source, dtype, _footprint(dataset, groups, tiles, dtype, weighted=weighted), resources)

    tiles = 1
    while polychoric and tiles < m and not plan(tiles).fits:
        tiles *= 2
    chosen = plan(tiles)
    chosen.check()
    solvers: list[FusedSolver[Any]] = [FusedSolver(_run(ItemSumsPass(dtype, weighted), item_range))]
    for group in groups:
        view = whole if len(group.columns) == m else ColumnsView(tuple(group.columns.tolist()))
        solvers.append(FusedSolver(_run(MomentsPass(dtype, listwise, weighted), shift[group.columns]), view))
    tabulated = [i for i, group in enumerate(groups) if group.levels is not None and len(group.varying)]
    for i in tabulated:
        group, levels = groups[i], groups[i].levels
        assert levels is not None
        view = whole if len(group.varying) == m else ColumnsView(tuple(group.varying.tolist()))
        settings: dict[str, Any] = {"complete_only": listwise, "threads": resources.threads}
        solvers.append(FusedSolver(tabulate(levels, tiles if i == 0 else 1, dataset.shape[0], dtype, **settings), view))
    with resolved.open(partitions(dataset.source, dataset.missing_code, covariates), chosen) as session:
        items, *found = drive_together(solvers, session, dtype)
    moments, tables = found[: len(groups)], dict(zip(tabulated, found[len(groups) :], strict=True))
    correlations = [_filled(dataset, group, tables.get(i)) for i, group in enumerate(groups)] if polychoric else []
    return AnswerSums(item_range, items, moments, correlations)


def _run(pass_: Any, broadcast: Any) -> Solver[Any]:
    return (yield from run(pass_, broadcast))


def _group(dataset: Dataset, columns: NDArray[np.intp], polychoric: bool) -> _Group:
    statistics = dataset.statistics
    low, high = statistics.minimum[columns], statistics.maximum[columns]
    kept = np.flatnonzero((statistics.observed[columns] > 0) & (low < high))
    varying = columns[kept]
    levels = answer_levels(low[kept], high[kept], dataset.column_labels[varying]) if polychoric else None
    return _Group(columns, varying, levels)


def _footprint(dataset: Dataset, groups: list[_Group], tiles: int, dtype: np.dtype[Any], *, weighted: bool) -> Footprint:
    """Return the footprint of the passes, whose tables of all items are split into ``tiles``."""
    size, (n, m) = dtype.itemsize, dataset.shape
    square = sum(len(group.columns) ** 2 for group in groups)
    slots = [group.levels.n_slots for group in groups if group.levels is not None]
    tables = sum(table_bytes(count, n) / (tiles if i == 0 else 1) + gathered_bytes(count) for i, count in enumerate(slots))
    return Footprint(
        state_per_row=0,
        work_per_row=(3 * size + 2) * m + (18 + 24 * weighted) * m + size * m * (len(groups) > 1) + sum(slots),
        broadcast=8 * ((4 + 2 * weighted) * square + 11 * m) + round(tables),
        result_per_row=0,
    )


def _filled(dataset: Dataset, group: _Group, found: Tabulated | None) -> Array:
    """Return the polychoric correlations of a group, with NaN for items without variance, and warn of those at their limit."""
    R = np.full((len(group.columns),) * 2, np.nan)
    if found is None or found.rows < 2:
        return R
    names = [str(dataset.column_labels[j]) for j in group.varying]
    if found.fractions.any():
        j = int(np.flatnonzero(found.fractions)[0])
        message = f"item {names[j]!r} has {found.fractions[j]} answers that are no whole numbers"
        raise DataError(f"{message}, expected ordered categories; use correlation='pearson'")
    limit = found.correlations.at_limit
    if limit.size:
        pairs = ", ".join(" and ".join(repr(names[j]) for j in pair) for pair in limit[:3])
        message = f"the polychoric correlation is at its limit for {len(limit)} pairs of items ({pairs}), expected less than 0.9999"
        warnings.warn(f"{message}; leave out items that repeat others", UserWarning, stacklevel=4)
    positions = np.flatnonzero(np.isin(group.columns, group.varying))
    R[np.ix_(positions, positions)] = found.correlations.R
    return R
