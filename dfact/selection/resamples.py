"""Refits of a model to resampled rows: its own fit, in sessions whose blocks hold the rows that were drawn."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.executors import InlineExecutor, resolve_executor
from dfact.engine.fused_passes import FusedSession, Members, whole
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.partitions import Partitions, partitions
from dfact.engine.passes import Block
from dfact.engine.session import Executor, Session
from dfact.engine.threads import single_threaded
from dfact.errors import DataError
from dfact.linalg.svd import Matrix
from dfact.models.estimator import Factorization
from dfact.selection.refits import with_parameters
from dfact.selection.scheduler import largest_batch

Refit = NDArray[Any] | DataError
"""The loadings (k, m), or why these rows have none."""
Keep = Callable[[int, Refit], None]
ALL_ROWS = -1
"""In place of a resample's number: all rows as they are."""


@dataclass(frozen=True, eq=False)
class Resample:
    """A block with each of its rows as often as it was drawn: of n rows n are, with replacement.

    How many fall on each block is drawn first, and then which, by a seed of the block's own: so nothing has the size of
    the data, and a block's rows are the same whoever computes with it.
    """

    seed: int
    number: int
    """Of the resample."""
    counts: NDArray[np.int64]
    """How many rows are drawn of each block."""
    weighted: bool
    """Whether rows that are drawn stand there once, with the last covariate times how often; else each stands there so often."""

    @classmethod
    def of(cls, shape: tuple[int, ...], seed: int, number: int, *, weighted: bool) -> "Resample":
        """For data of this shape."""
        n, step = shape[0], Layout.of(shape).block_rows
        sizes = np.minimum(step, n - np.arange(0, n, step))
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        return cls(seed, number, generator.multinomial(n, sizes / n), weighted)

    def rows(self, index: int, size: int) -> NDArray[np.intp]:
        """How often each of the ``size`` rows of a block is drawn."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.number, index)))
        return np.bincount(generator.integers(size, size=self.counts[index]), minlength=size)

    def __call__(self, block: Block) -> Block:
        """Blocks of repeated rows are numbered anew, as those of a data set that holds them."""
        multiplicity = self.rows(block.index, block.matrix.shape[0])
        if not self.weighted:
            chosen = np.repeat(np.arange(len(multiplicity)), multiplicity)
            covariates = None if block.covariates is None else block.covariates[chosen]
            return block.with_matrix(_taken(block, chosen), covariates=covariates, start=int(self.counts[: block.index].sum()))
        assert block.covariates is not None, "the weights are there"
        chosen = np.flatnonzero(multiplicity)
        covariates = block.covariates[chosen]
        covariates[:, -1] *= multiplicity[chosen]
        return block.with_matrix(_taken(block, chosen), covariates=covariates)


def _taken(block: Block, rows: NDArray[np.intp]) -> Matrix:
    """These rows of the block, in its working memory where it is dense."""
    M = block.matrix
    if not isinstance(M, np.ndarray):
        return M[rows]
    out = block.work.array("drawn", (len(rows), *M.shape[1:]), M.dtype)
    return np.take(M, rows, axis=0, out=out, mode="clip")  # the rows are there: to raise, NumPy would go through a copy


class _LoadingsSession(FusedSession):
    """A session of a fit whose rows' factors nobody wants."""

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        yield from ()


@dataclass(frozen=True, eq=False)
class _Place:
    """The executor of a fit that has its session already; what it takes was planned for all together."""

    session: Session

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return WorkerResources("resample", 1, 1, sys.maxsize, 0)

    def open(self, partitions: Partitions, plan: Any) -> Session:
        return self.session


@dataclass(frozen=True, eq=False)
class Resamples:
    """A model and the data whose rows are resampled."""

    model: Factorization
    """Not fitted."""
    dataset: Dataset
    encoded: NDArray[np.float64] | None
    """The confounders (n, c), as the model's fit encodes them."""
    weighted: bool
    """Whether the model's fit takes the weights of rows."""
    seed: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.model._working_dtype(self.dataset)

    @property
    def footprint(self) -> Footprint:
        """Of a refit."""
        found = self.model._footprint(self.dataset.shape, 0 if self.encoded is None else self.encoded.shape[1], self.dtype)
        return replace(found, result_per_row=0)

    def partitions(self) -> Partitions:
        """With what the fit would know of each row: the confounders and, where it takes weights, its weight."""
        weights = np.ones(self.dataset.shape[0]) if self.weighted else None
        known = [columns.astype(self.dtype) for columns in (self.encoded, weights) if columns is not None]
        return partitions(self.dataset.source, self.dataset.missing_code, np.column_stack(known) if known else None)

    def refit(self, members: Members, number: int) -> Refit:
        """The loadings of a resample, or why it has none: an item may not vary in it, or have no answer."""
        n = self.dataset.shape[0]
        view = whole if number == ALL_ROWS else Resample.of(self.dataset.shape, self.seed, number, weighted=self.weighted)
        place: dict[str, Any] = {"executor": _Place(_LoadingsSession(members, f"{number:06d}", view))}
        if "random_state" in self.model.get_params(deep=False):
            place["random_state"] = int(np.random.SeedSequence([self.seed, number + 1]).generate_state(1)[0] >> 1)
        model: Any = with_parameters(self.model, **place)
        try:
            model.fit(self.dataset, **({"sample_weight": np.ones(n)} if self.weighted else {}))
        except DataError as error:
            return error
        return np.asarray(model.components_)

    def run(self, numbers: list[int], keep: Keep, executor: Any, memory_limit: int | str | None) -> None:
        """Refit to the resamples of these numbers: each a task on data in memory, or all on the same reads of data that is stored."""
        found = resolve_executor(executor, 2)  # several refits at once, though the data be a single partition
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fit has told what there is to say
            if self._fits_in_memory(found.workers(memory_limit), len(numbers)):
                self._in_memory(numbers, keep, found)
            else:
                self._on_shared_reads(numbers, keep, executor, memory_limit)

    def _fits_in_memory(self, workers: WorkerResources, count: int) -> bool:
        """Whether the values are, and for every thread the state and the working arrays of a refit."""
        one = self.footprint
        states = min(count, workers.threads) * self.dataset.shape[0] * one.state_per_row
        working = make_plan(self.dataset.source, self.dtype, one, workers).working
        return workers.baseline + _bytes(self.dataset) + states + working <= workers.limit

    def _in_memory(self, numbers: list[int], keep: Keep, executor: Executor) -> None:
        executor.map(_refit_alone, numbers, self._loaded, keep, _quiet)

    def _loaded(self) -> "Resamples":
        """The same with the values in memory, as they are stored."""
        source = self.dataset.source
        if source.chunk_rows is not None:
            source = source.to_memory()
        return replace(self, dataset=replace(self.dataset, source=source))

    def _alone(self, number: int) -> list[Refit]:
        """A refit with a session of its own."""
        executor = InlineExecutor()
        plan = make_plan(self.dataset.source, self.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
        with executor.open(self.partitions(), plan) as session:
            members = Members(session, self.dtype)
            return members.run([partial(self.refit, members, number)])

    def _on_shared_reads(self, numbers: list[int], keep: Keep, executor: Any, memory_limit: int | str | None) -> None:
        parts = self.partitions()
        found, waiting = resolve_executor(executor, len(parts)), list(numbers)
        workers = found.workers(memory_limit)

        def work(members: Members, number: int) -> None:
            keep(number, self.refit(members, number))

        with single_threaded():
            while waiting:
                count, plan = largest_batch(self.dataset.source, self.dtype, [self.footprint] * len(waiting), workers)
                now, waiting = waiting[:count], waiting[count:]
                with found.open(parts, plan) as session:
                    members = Members(session, self.dtype)
                    members.run([partial(work, members, number) for number in now])


def _refit_alone(number: int, resamples: Resamples) -> list[Refit]:
    """Refit to one resample, as a task of its own."""
    return resamples._alone(number)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings, and use one BLAS thread."""
    with warnings.catch_warnings(), single_threaded():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _bytes(dataset: Dataset) -> int:
    """Of the values in memory."""
    row = getattr(dataset.source, "row_bytes", int(np.prod(dataset.shape[1:])) * dataset.dtype.itemsize)
    return int(dataset.shape[0] * row)
