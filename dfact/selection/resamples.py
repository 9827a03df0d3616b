"""Refits of a model to bootstrap resamples of the rows, by its own fit in sessions whose blocks hold the drawn rows."""

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
from dfact.selection.estimators import with_parameters
from dfact.selection.scheduler import largest_batch

Refit = NDArray[Any] | DataError
"""The loadings (k, m), or the error of a resample that cannot be fitted."""
Keep = Callable[[int, Refit], None]
ALL_ROWS = -1
"""The number that stands for all rows, once each, instead of a resample."""


@dataclass(frozen=True, eq=False)
class Resample:
    """A view of blocks with each row as often as it was drawn: n of n rows, with replacement.

    The number of draws from each block is drawn first, then the rows, by a seed of the block. No array has the
    size of the data, and the rows of a block do not depend on the worker.
    """

    seed: int
    number: int
    """Number of the resample."""
    counts: NDArray[np.int64]
    """Number of draws from each block."""
    weighted: bool
    """Whether a drawn row occurs once, with its multiplicity as a factor of the last covariate, rather than repeatedly."""

    @classmethod
    def draw(cls, shape: tuple[int, ...], seed: int, number: int, *, weighted: bool) -> "Resample":
        """Draw the counts of the blocks for data of this shape."""
        n, step = shape[0], Layout.of(shape).block_rows
        sizes = np.minimum(step, n - np.arange(0, n, step))
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        return cls(seed, number, generator.multinomial(n, sizes / n), weighted)

    def multiplicity(self, index: int, size: int) -> NDArray[np.intp]:
        """Return the number of times that each of the ``size`` rows of a block is drawn (size,)."""
        generator = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.number, index)))
        return np.bincount(generator.integers(size, size=self.counts[index]), minlength=size)

    def __call__(self, block: Block) -> Block:
        """Return the block of drawn rows; repeated rows are numbered as those of a dataset that holds them."""
        multiplicity = self.multiplicity(block.index, block.matrix.shape[0])
        if not self.weighted:
            drawn = np.repeat(np.arange(len(multiplicity)), multiplicity)
            covariates = None if block.covariates is None else block.covariates[drawn]
            return block.with_matrix(_take_rows(block, drawn), covariates=covariates, start=int(self.counts[: block.index].sum()))
        assert block.covariates is not None, "the last covariate holds the weights"
        drawn = np.flatnonzero(multiplicity)
        covariates = block.covariates[drawn]
        covariates[:, -1] *= multiplicity[drawn]
        return block.with_matrix(_take_rows(block, drawn), covariates=covariates)


def _take_rows(block: Block, rows: NDArray[np.intp]) -> Matrix:
    """Return these rows of the block, in its working memory if it is dense."""
    M = block.matrix
    if not isinstance(M, np.ndarray):
        return M[rows]
    out = block.work.array("drawn", (len(rows), *M.shape[1:]), M.dtype)
    return np.take(M, rows, axis=0, out=out, mode="clip")  # all rows exist; mode="raise" would make NumPy buffer the output


class _LoadingsSession(FusedSession):
    """A session of a fit whose row factors are not needed."""

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        yield from ()


@dataclass(frozen=True, eq=False)
class _SessionExecutor:
    """An executor that returns an open session; the memory of all its fits has been planned together."""

    session: Session

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return WorkerResources("resample", 1, 1, sys.maxsize, 0)

    def open(self, partitions: Partitions, plan: Any) -> Session:
        return self.session


@dataclass(frozen=True, eq=False)
class ResampleFits:
    """Fits of a model to resamples of the rows of a dataset."""

    model: Factorization
    """Not fitted."""
    dataset: Dataset
    encoded: NDArray[np.float64] | None
    """The confounders (n, c), as the model's fit encodes them."""
    weighted: bool
    """Whether the model's fit takes weights of rows."""
    seed: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.model._working_dtype(self.dataset)

    @property
    def footprint(self) -> Footprint:
        """Memory of one refit."""
        footprint = self.model._footprint(self.dataset.shape, 0 if self.encoded is None else self.encoded.shape[1], self.dtype)
        return replace(footprint, result_per_row=0)

    def partitions(self) -> Partitions:
        """Return partitions with the confounders as covariates and, if the fit takes weights, the weights as the last one."""
        weights = np.ones(self.dataset.shape[0]) if self.weighted else None
        covariates = [columns.astype(self.dtype) for columns in (self.encoded, weights) if columns is not None]
        return partitions(self.dataset.source, self.dataset.missing_code, np.column_stack(covariates) if covariates else None)

    def refit(self, members: Members, number: int) -> Refit:
        """Return the loadings of a resample, or its error: an item may be constant or unanswered in it."""
        n = self.dataset.shape[0]
        view = whole if number == ALL_ROWS else Resample.draw(self.dataset.shape, self.seed, number, weighted=self.weighted)
        changes: dict[str, Any] = {"executor": _SessionExecutor(_LoadingsSession(members, f"{number:06d}", view))}
        if "random_state" in self.model.get_params(deep=False):
            changes["random_state"] = int(np.random.SeedSequence([self.seed, number + 1]).generate_state(1)[0] >> 1)
        model: Any = with_parameters(self.model, **changes)
        try:
            model.fit(self.dataset, **({"sample_weight": np.ones(n)} if self.weighted else {}))
        except DataError as error:
            return error
        return np.asarray(model.components_)

    def run(self, numbers: list[int], keep: Keep, executor: Any, memory_limit: int | str | None) -> None:
        """Refit to the resamples of these numbers: each as a task on data in memory, or together on shared reads of stored data."""
        resolved = resolve_executor(executor, 2, tasks=True)  # several refits at once, even if the data is a single partition
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fit itself has warned
            if self._fits_in_memory(resolved.workers(memory_limit), len(numbers)):
                self._run_in_memory(numbers, keep, resolved)
            else:
                self._run_on_shared_reads(numbers, keep, executor, memory_limit)

    def _fits_in_memory(self, workers: WorkerResources, count: int) -> bool:
        """Whether the values, and for each thread the state and the working arrays of a refit, fit within the memory limit."""
        one = self.footprint
        states = min(count, workers.threads) * self.dataset.shape[0] * one.state_per_row
        working = make_plan(self.dataset.source, self.dtype, one, workers).working
        return workers.baseline + _nbytes(self.dataset) + states + working <= workers.limit

    def _run_in_memory(self, numbers: list[int], keep: Keep, executor: Executor) -> None:
        executor.map(_refit_alone, numbers, self._load, keep, _refit_context)

    def _load(self) -> "ResampleFits":
        """Return a copy with the values in memory, in their stored type."""
        source = self.dataset.source
        if source.chunk_rows is not None:
            source = source.to_memory()
        return replace(self, dataset=replace(self.dataset, source=source))

    def _refit_alone(self, number: int) -> list[Refit]:
        """Refit in a session of its own."""
        executor = InlineExecutor()
        plan = make_plan(self.dataset.source, self.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
        with executor.open(self.partitions(), plan) as session:
            members = Members(session, self.dtype)
            return members.run([partial(self.refit, members, number)])

    def _run_on_shared_reads(self, numbers: list[int], keep: Keep, executor: Any, memory_limit: int | str | None) -> None:
        parts = self.partitions()
        resolved, pending = resolve_executor(executor, len(parts)), list(numbers)
        workers = resolved.workers(memory_limit)

        def work(members: Members, number: int) -> None:
            keep(number, self.refit(members, number))

        with single_threaded():
            while pending:
                count, plan = largest_batch(self.dataset.source, self.dtype, [self.footprint] * len(pending), workers)
                batch, pending = pending[:count], pending[count:]
                with resolved.open(parts, plan) as session:
                    members = Members(session, self.dtype)
                    members.run([partial(work, members, number) for number in batch])


def _refit_alone(number: int, fits: ResampleFits) -> list[Refit]:
    """Refit to one resample, as a task of its own."""
    return fits._refit_alone(number)


@contextmanager
def _refit_context() -> Iterator[None]:
    """Ignore warnings, and use one BLAS thread."""
    with warnings.catch_warnings(), single_threaded():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _nbytes(dataset: Dataset) -> int:
    """Return the size of the values in memory, in bytes."""
    row = getattr(dataset.source, "row_bytes", int(np.prod(dataset.shape[1:])) * dataset.dtype.itemsize)
    return int(dataset.shape[0] * row)
