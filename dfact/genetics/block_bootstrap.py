"""Standard errors of the memberships of an admixture, by refits to bootstrap resamples of blocks of SNPs."""

import heapq
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.executors import resolve_executor
from dfact.engine.passes import Block, NoSums, Pass
from dfact.engine.requests import FusedSolver, Solver, memo, run, run_fused, state_rows
from dfact.errors import ParameterError
from dfact.genetics.admixture import Admixture, AdmixtureProblem
from dfact.genetics.matcher import chromosome_borders
from dfact.models.binomial.passes import Memberships
from dfact.models.binomial.row_block import ColumnWeights
from dfact.models.fit_task import FitTask
from dfact.models.row_factors import gather_rows
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import check_count, describe_value, is_count
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.running.estimators import fitted_dataset, require_method, with_parameters
from dfact.selection.running.results_store import ResultsStore, describe_model
from dfact.selection.running.scheduler import largest_batch

_SCALE = float(1 << 20)  # memberships are rounded to its inverse, so that sums are exact and their order does not matter
_MAX_RESAMPLES = 1 << 13  # whose sums of squares, multiples of 2⁻⁴⁰, a double holds exactly


def block_bootstrap(
    model: Admixture,
    X: Any,
    n_resamples: int = 100,
    *,
    n_blocks: int = 100,
    populations: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Any:
    """Estimate the standard errors of the memberships of a fitted admixture, by resamples of its SNPs.

    SNPs near each other are in linkage, so blocks of consecutive SNPs are drawn rather than single ones: for each resample, as many
    blocks as there are, with replacement. The SNPs of a block that is drawn w times count w times in the likelihood. Each refit starts
    from the model, so that its populations are the same, and ends by the model's ``tol``. The standard error is the standard deviation
    of the membership over the refits. As many refits as the memory plan allows share each read of the data.

    The errors reflect the sampling of SNPs alone: people, the number of populations and the maximum are taken as given. A
    membership at its bound has a standard error near 0.

    Parameters
    ----------
    model : fitted Admixture
        It is not changed. Refits use its ``executor`` and ``memory_limit``.
    X : array (n, m) of any kind, path or Dataset
        The data that the model was fitted to.
    n_resamples : int
        Number of resamples, from 2 to 8192; the relative error of a standard error is about 1/√(2·n_resamples).
    n_blocks : int
        Number of blocks of consecutive SNPs, in the order of the data. No block crosses the border of two chromosomes, where the
        fitted data states them; each chromosome has blocks in proportion to its SNPs, and at least one. Blocks should be longer
        than linkage, else the errors are too small, and many enough to tell how they vary; a hundred do both in a human genome.
    populations : array (n,), optional
        The populations passed to ``fit`` of a supervised model, by default the dataset's.
    random_state : int, RandomState or None
        Seed of the resamples. The result does not depend on the executor.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each refit, such as ``dfact.Progress("refits")``.
    checkpoint : path, optional
        Store (folder or URL) for the progress. After an interruption the same call resumes from it with bit-identical
        results; the checkpoint of a different call is refused.

    Returns
    -------
    array (n, K)
        Standard errors; a Zarr array if the data is stored. NaN for people without any genotype. Assign it to
        ``model.memberships_se_`` to save and report it with the model.

    Raises
    ------
    ParameterError
        Invalid arguments; a checkpoint of another call.
    DataError
        The data differs from the fitted data in shape, labels or fingerprint.
    MemoryPlanError
        The same conditions as for ``model.fit``.

    References
    ----------
    Alexander et al. (2009); Künsch (1989).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> genotypes = rng.binomial(2, rng.dirichlet([0.3, 0.3], 60) @ rng.random((2, 400)))
    >>> model = dfact.Admixture(n_components=2).fit(genotypes)
    >>> model.memberships_se_ = dfact.selection.block_bootstrap(model, genotypes, 20, random_state=0)
    >>> model.memberships_se_.shape
    (60, 2)
    """
    edges = _check(model, n_resamples, n_blocks)
    dataset, (n, k) = fitted_dataset(model, X), model.memberships_.shape
    inputs = {} if populations is None else {"populations": populations}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit of the model has warned
        task = with_parameters(model, callbacks=()).prepare(dataset, **inputs)
    labels = np.full((n, 1), -1.0) if task.covariates is None else task.covariates
    estimate = np.hstack([labels, np.asarray(model.memberships_, np.float64)])
    described = f"{describe_model(model)}, frequencies {describe_value(np.asarray(model.allele_frequencies_))}"
    settings = {"labels": describe_value(labels), "n_resamples": int(n_resamples), "blocks": describe_value(edges)}
    store = ResultsStore.of_fits(checkpoint, dataset, described, random_state, **settings)
    reporter, left = Reporter(callbacks, n_resamples), TimeLeft(n_resamples)
    # Each refit has two states, one of the maximization and the sums; the driver adds up the sums.
    footprint = replace(task.footprint, state_per_row=2 * task.footprint.state_per_row)
    largest = replace(footprint, broadcast=footprint.broadcast + 8 * n * (3 * k + 1))
    executor = resolve_executor(model.executor, len(task.partitions))
    fits = [largest, *[footprint] * (n_resamples - 1)]
    count, plan = largest_batch(dataset.source, task.dtype, fits, executor.workers(model.memory_limit))
    resamples = Resamples(model, replace(task, covariates=estimate), edges, store.seed)
    sums, done = np.zeros((2, n, k)), [0]

    def finished() -> None:
        done[0] += 1
        reporter.reached(done[0], left.text(done[0]))

    def add(_: int, chain: NDArray[np.float64]) -> None:
        np.add(sums, chain, out=sums)

    opened = executor.open(resamples.task.partitions, plan)
    with store.checkpoint_batch(opened, 0, range(count), model.checkpoint_every) as session:
        solvers = [FusedSolver(resamples.chain(range(first, n_resamples, count), finished)) for first in range(count)]
        run_fused(solvers, session, task.dtype, add)
    store.remove_batches()
    rows = _standard_errors(sums, int(n_resamples), task.dtype)
    return gather_rows(rows, (n, k), task.dtype, stored=dataset.path is not None)


def _check(model: Any, n_resamples: Any, n_blocks: Any) -> NDArray[np.intp]:
    """Check the arguments, and return the edges of the blocks."""
    require_method(model, "refit", "an Admixture; for other models use bootstrap")
    check_is_fitted(model)
    check_count("n_resamples", n_resamples, 2, _MAX_RESAMPLES)
    m = len(model.column_labels_)
    if not is_count(n_blocks) or not 2 <= n_blocks <= m:
        raise ParameterError(f"n_blocks is {n_blocks!r}, expected an integer from 2 to {m}, the number of SNPs")
    borders = chromosome_borders(m, model.variants_)
    if n_blocks < (n_runs := len(borders) - 1):
        found = f"n_blocks is {n_blocks}, expected at least {n_runs}, the number of runs of SNPs with one chromosome, which no block leaves"
        raise ParameterError(f"{found}; pass more blocks, or sort the genotypes by chromosome before the import")
    return block_edges(borders, int(n_blocks))


def _standard_errors(sums: NDArray[np.float64], count: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    """Yield runs of the standard errors (rows, K), given the sums of the memberships and of their squares (2, n, K)."""
    step = Layout.of(sums.shape[1:]).chunk_rows
    for start in range(0, sums.shape[1], step):
        totals, squares = sums[:, start : start + step]
        yield np.sqrt(np.maximum(squares - totals * totals / count, 0) / (count - 1)).astype(dtype)


def block_edges(borders: NDArray[np.intp], n_blocks: int) -> NDArray[np.intp]:
    """Return the first column of each of ``n_blocks`` blocks, and the number of columns (blocks + 1,).

    Each run between two borders is divided into blocks whose sizes differ by at most one. One after the other, further blocks go
    to the run whose blocks are the longest.
    """
    sizes, counts = np.diff(borders), np.ones(len(borders) - 1, np.intp)
    longest = [(-float(size), run) for run, size in enumerate(sizes)]
    heapq.heapify(longest)
    for _ in range(n_blocks - len(counts)):
        run = longest[0][1]
        counts[run] += 1
        heapq.heapreplace(longest, (-sizes[run] / counts[run], run))
    starts = [first + np.arange(count) * (last - first) // count for (first, last), count in zip(pairwise(borders), counts, strict=True)]
    return np.concatenate([*starts, borders[-1:]])


def draw_weights(edges: NDArray[np.intp], seed: int, number: int) -> ColumnWeights:
    """Draw as many blocks as there are, with replacement, given their edges; the weights are how often each was drawn."""
    n_blocks, generator = len(edges) - 1, np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    return ColumnWeights(edges, np.bincount(generator.integers(n_blocks, size=n_blocks), minlength=n_blocks))


@dataclass
class Moments(Memberships):
    """The memberships of a refit, with the sums over the refits before it."""

    totals: NDArray[np.float64]
    """Sums of the memberships (K, rows)."""
    squares: NDArray[np.float64]
    """Sums of their squares (K, rows)."""


@dataclass(frozen=True)
class MomentPass(Pass[Moments, str, NoSums]):
    """Add the memberships of a refit, the state array whose name is broadcast, to the sums, and return to the estimate.

    The estimate follows the label among the covariates.
    """

    dtype: np.dtype[Any]
    state_type = Moments

    def start(self, block: Block) -> Moments:
        estimate = _estimate(block)
        return Moments(estimate, estimate, np.zeros(estimate.shape), np.zeros(estimate.shape))

    def step(self, block: Block, state: Moments, broadcast: str) -> tuple[Moments, NoSums]:
        if not broadcast:
            return state, NoSums()
        Q, estimate = np.rint(state.arrays()[broadcast] * _SCALE) / _SCALE, _estimate(block)
        return Moments(estimate, estimate, state.totals + Q, state.squares + Q * Q), NoSums()


def _estimate(block: Block) -> NDArray[np.float64]:
    assert block.covariates is not None, "the label and the estimate go with the rows"
    return np.array(block.covariates[:, 1:].T, order="C")


@dataclass(frozen=True, eq=False)
class Resamples:
    """Refits of an admixture to resamples of its SNPs."""

    model: Admixture
    """The fitted model."""
    task: FitTask[AdmixtureProblem]
    """The fit, with labels and memberships of the model as covariates."""
    edges: NDArray[np.intp]
    """First SNP of each block, and the number of SNPs."""
    seed: int

    def chain(self, numbers: range, finished: Callable[[], None]) -> Solver[NDArray[np.float64]]:
        """Refit to the resamples with these numbers, one after another; return the sums of memberships and of squares (2, n, K)."""
        moments = MomentPass(self.task.dtype)
        yield from run(moments, "")
        for number in numbers:
            memberships = yield from self.model.refit(self.task, draw_weights(self.edges, self.seed, number))
            yield from run(moments, memberships)
            finished()
        totals, squares = (yield from state_rows("totals")), (yield from state_rows("squares"))
        sums = yield from memo("moments", lambda: {"sums": np.stack([np.concatenate(list(rows)) for rows in (totals, squares)])})
        return sums["sums"]
