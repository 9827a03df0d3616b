"""Refits of a model to bootstrap resamples of the rows, by its own fit in sessions whose blocks hold the drawn rows."""

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
from dfact.engine.driver import FusedSolver, drive_together, whole
from dfact.engine.executors import InlineExecutor, resolve_executor
from dfact.engine.memory_plan import Footprint, WorkerResources, make_plan
from dfact.engine.passes import Block
from dfact.engine.requests import Solver
from dfact.engine.session import Executor
from dfact.engine.threads import single_threaded
from dfact.errors import DataError
from dfact.linalg.svd import Matrix
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
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


@dataclass(frozen=True, eq=False)
class ResampleFits:
    """Fits of a model to resamples of the rows of a dataset."""

    model: Factorization
    """Not fitted."""
    task: FitTask[Any]
    """The fit to all rows, each once; with weights as the last covariate if the fit takes any."""
    weighted: bool
    """Whether the model's fit takes weights of rows."""
    seed: int

    @classmethod
    def make(cls, model: Factorization, dataset: Dataset, *, weighted: bool, seed: int) -> "ResampleFits":
        """Prepare the fits, whose row factors are not needed."""
        task = model.prepare(dataset, **({"sample_weight": np.ones(dataset.shape[0])} if weighted else {}))
        return cls(model, task.without_rows(), weighted, seed)

    def refit(self, number: int) -> FusedSolver[Refit]:
        """Return the solver of a resample."""
        shape = self.task.dataset.shape
        view = whole if number == ALL_ROWS else Resample.draw(shape, self.seed, number, weighted=self.weighted)
        changes: dict[str, Any] = {}
        if "random_state" in self.model.get_params(deep=False):
            changes["random_state"] = int(np.random.SeedSequence([self.seed, number + 1]).generate_state(1)[0] >> 1)
        return FusedSolver(self._loadings(with_parameters(self.model, **changes)), view)

    def _loadings(self, model: Factorization) -> Solver[Refit]:
        """Return the loadings of a refit, or its error: an item may be constant or unanswered in a resample."""
        try:
            solution = yield from model.solve(self.task)
        except DataError as error:
            return error
        model.finish(self.task, solution)
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
        task, dataset = self.task, self.task.dataset
        states = min(count, workers.threads) * dataset.shape[0] * task.footprint.state_per_row
        working = make_plan(dataset.source, task.dtype, task.footprint, workers).working
        return workers.baseline + _nbytes(dataset) + states + working <= workers.limit

    def _run_in_memory(self, numbers: list[int], keep: Keep, executor: Executor) -> None:
        executor.map(_refit_alone, numbers, self._load, keep, _refit_context)

    def _load(self) -> "ResampleFits":
        """Return a copy with the values in memory, in their stored type."""
        dataset = self.task.dataset
        if dataset.source.chunk_rows is None:
            return self
        return replace(self, task=replace(self.task, dataset=replace(dataset, source=dataset.source.to_memory())))

    def _run_on_shared_reads(self, numbers: list[int], keep: Keep, executor: Any, memory_limit: int | str | None) -> None:
        task, parts = self.task, self.task.partitions
        resolved, pending = resolve_executor(executor, len(parts)), list(numbers)
        workers = resolved.workers(memory_limit)
        with single_threaded():
            while pending:
                count, plan = largest_batch(task.dataset.source, task.dtype, [task.footprint] * len(pending), workers)
                batch, pending = pending[:count], pending[count:]
                with resolved.open(parts, plan) as session:
                    refits = [self.refit(number) for number in batch]
                    drive_together(refits, session, task.dtype, partial(_keep_in_order, keep, batch))


def _keep_in_order(keep: Keep, numbers: list[int], position: int, refit: Refit) -> None:
    keep(numbers[position], refit)


def _refit_alone(number: int, fits: ResampleFits) -> list[Refit]:
    """Refit to one resample, as a task of its own."""
    executor, task = InlineExecutor(), fits.task
    plan = make_plan(task.dataset.source, task.dtype, Footprint(0, 0, 0, 0), executor.workers(None))
    with executor.open(task.partitions, plan) as session:
        return drive_together([fits.refit(number)], session, task.dtype)


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
