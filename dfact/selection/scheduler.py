"""Where the fits of all folds run: each on its own copy of data in memory, or all on the same reads of data that is stored."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource
from dfact.data.sources.dense import ArraySource
from dfact.engine.executors import InlineExecutor
from dfact.engine.fused_passes import Members
from dfact.engine.memory_plan import Footprint, Plan, WorkerResources, make_plan
from dfact.engine.partitions import Partitions, partitions
from dfact.engine.session import Executor, Session
from dfact.engine.threads import single_threaded
from dfact.selection.fold_fits import FoldMember, FoldSession, GridGroup, Score, Settings, WarmStartPath
from dfact.selection.folds import Folds
from dfact.selection.held_out_errors import clipped_errors

GroupResult = tuple[int, list[Score], NDArray[Any]]
"""Number of a group of configurations, their scores, and the loadings from which the next group starts."""


@dataclass(frozen=True, eq=False)
class FoldTask:
    """The fits of one fold, one after the other."""

    repeat: int
    fold: int
    n_done: int
    """Groups of configurations that are finished."""
    before: NDArray[Any] | None
    """The loadings from which the next group starts."""


Keep = Callable[[FoldTask, GroupResult], None]


class FoldFits(Protocol):
    """How the configurations are fitted to the data of a fold in memory."""

    def run(self, M: NDArray[Any], C: NDArray[Any] | None, folds: Folds, chain: FoldTask) -> Iterator[GroupResult]: ...


@dataclass(frozen=True, eq=False)
class WarmStarts:
    """Each from the solution of the one before, by passes."""

    groups: tuple[GridGroup, ...]
    settings: Settings

    def run(self, M: NDArray[Any], C: NDArray[Any] | None, folds: Folds, chain: FoldTask) -> Iterator[GroupResult]:
        hidden = folds.hidden(chain.fold)
        seen = masked(M, folds, hidden)
        executor, source = InlineExecutor(), ArraySource(seen)
        plan = make_plan(source, seen.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
        with executor.open(partitions(source, None, C), plan) as session:
            yield from self.on(_FoldInMemory(session, M, folds, hidden), chain)

    def on(self, session: FoldSession, chain: FoldTask) -> Iterator[GroupResult]:
        return WarmStartPath(session, self.settings).run(self.groups, chain.n_done, chain.before)


def masked(M: NDArray[Any], folds: Folds, hidden: NDArray[np.bool_]) -> NDArray[Any]:
    """A copy of M (n, m) with NaN for what is hidden (row blocks, m)."""
    seen: NDArray[Any] = np.where(hidden, np.nan, 0).astype(M.dtype)[folds.rows]
    seen += M
    return seen


class _FoldInMemory:
    """A session on a fold's data, with what the fold hides beside it."""

    def __init__(self, session: Session, M: NDArray[Any], folds: Folds, hidden: NDArray[np.bool_]) -> None:
        self._session = session
        places = [(np.flatnonzero(folds.rows == block), np.flatnonzero(columns)) for block, columns in enumerate(hidden)]
        self._hidden = [(rows, columns, M[np.ix_(rows, columns)]) for rows, columns in places]

    def run(self, pass_: Any, broadcast: Any) -> Any:
        return self._session.run(pass_, broadcast)

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        X = np.concatenate(list(self._session.rows("factors")))
        lower, upper = (np.broadcast_to(bound, Q.shape[1]) for bound in (problem.lower, problem.upper))
        parts = [clipped_errors(M, X[rows] @ Q[:, columns], lower[columns], upper[columns]) for rows, columns, M in self._hidden]
        return sum(squares for squares, _ in parts), sum(count for _, count in parts)


def dense(parts: Partitions, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The values (n, m), NaN where missing, and the covariates of all rows."""
    return np.concatenate([block.values for block in parts.blocks(dtype)]), parts.covariates


def run_in_memory(
    fits: FoldFits,
    parts: Partitions,
    dtype: np.dtype[Any],
    folds: Sequence[Folds],
    chains: list[FoldTask],
    keep: Keep,
    executor: Executor,
) -> None:
    """Run each chain as one Dask task, on threads or on workers."""
    tasks = [(chain, folds[chain.repeat]) for chain in chains]
    executor.map(partial(_run_chain, fits), tasks, partial(dense, parts, dtype), lambda task, done: keep(task[0], done), _computing)


def _run_chain(fits: FoldFits, task: tuple[FoldTask, Folds], data: tuple[NDArray[Any], NDArray[Any] | None]) -> Iterator[GroupResult]:
    chain, folds = task
    return fits.run(*data, folds, chain)


@contextmanager
def _computing() -> Iterator[None]:
    """One BLAS thread, and no word of rows of which a fold hides every answer.

    Around all threads, as the filters of warnings are the process's: of two threads each would undo what the other sets.
    """
    with single_threaded(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "row .* no observed entry", UserWarning)
        yield


def fits_in_memory(shape: tuple[int, ...], dtype: np.dtype[Any], workers: WorkerResources) -> bool:
    """Whether the data, and for every thread a copy of it with the working arrays of a fit, are within the limit."""
    size = shape[0] * shape[1] * dtype.itemsize
    return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit


def shared_reads(
    fits: WarmStarts,
    source: RowSource,
    parts: Partitions,
    footprint: Footprint,
    folds: Sequence[Folds],
    chains: list[FoldTask],
    keep: Keep,
    executor: Executor,
    memory_limit: int | str | None,
) -> None:
    """Run as many chains at once on each read as the memory holds the state of."""
    dtype = fits.settings.dtype

    def work(session: FoldSession, chain: FoldTask) -> None:
        for done in fits.on(session, chain):
            keep(chain, done)

    workers, waiting = executor.workers(memory_limit), list(chains)
    while waiting:
        count, plan = largest_batch(source, dtype, [footprint] * len(waiting), workers)
        now, waiting = waiting[:count], waiting[count:]
        with executor.open(parts, plan) as session:
            members = Members(session, dtype)
            views = [FoldMember(members, f"{i:06d}", folds[chain.repeat], chain.fold, dtype) for i, chain in enumerate(now)]
            members.run([partial(work, view, chain) for view, chain in zip(views, now, strict=True)])


def largest_batch(source: RowSource, dtype: np.dtype[Any], fits: Sequence[Footprint], workers: WorkerResources) -> tuple[int, Plan]:
    """How many of the fits at once, from the first, keep their state in memory, and the plan for them; one though its state be spilled."""
    row = source.shape[1] * dtype.itemsize  # a view of the block
    for count in range(len(fits), 0, -1):
        now = fits[:count]
        work = max(one.work_per_row for one in now) + row
        footprint = Footprint(sum(one.state_per_row for one in now), work, sum(one.broadcast for one in now), 0)
        plan = make_plan(source, dtype, footprint, workers)
        if count == 1 or (plan.fits and plan.state_in_memory == plan.n_partitions):
            break
    plan.check()
    return count, plan
