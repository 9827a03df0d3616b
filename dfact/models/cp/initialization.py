"""Starts of CP: the prior, initial factors (random, or left singular vectors of the unfoldings), and the choice of the solver."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.partitions import partitions
from dfact.engine.requests import Solver, drive, memo, run, state_rows
from dfact.engine.session import Arrays
from dfact.engine.threads import single_threaded
from dfact.linalg.parts import find_parts
from dfact.linalg.svd import gram_pairs
from dfact.models.cp.block_descent import ALL_ROWS, Descent, ImputingDescent, MaskedDescent, RowSample
from dfact.models.cp.kept_sample import KeepRowsPass, KeptRows, SampleSession, plan_sample
from dfact.models.cp.passes import FACTORS, RowStart, SlicesPass, SliceSums, UnfoldingsPass
from dfact.models.cp.problem import (
    ElasticNet,
    Factors,
    Prior,
    RowPrior,
    check_factors,
    check_variances,
    estimate_prior,
    find_unobserved,
    khatri_rao,
    unfold,
)
from dfact.models.cp.stochastic import StochasticDescent, resolve_batch_sizes
from dfact.parameters import resolve_seed
from dfact.progress import Reporter, relative_change

_EXACT_ENTRIES = 1 << 20  # up to which a residual tensor fits roughly into a second-level cache
_VECTORS_ENTRIES = 1 << 22  # of the unfoldings' Gram matrices, up to which starts of both kinds have one of singular vectors
_EXACT_MISSING = 0.5  # share of missing entries above which filling them in is slow, and leads to worse local minima


class Parameters(Protocol):
    """The parameters of an ElasticCP on which its start depends."""

    n_components: int
    nonnegative: bool
    solver: Any
    missing: Any
    batch_sizes: Sequence[int] | None
    step_size: float
    slice_variances: Any
    init: Any
    n_init: int
    random_state: Any


def is_exact(model: Parameters, shape: tuple[int, ...], missing_rate: float) -> bool:
    """Return whether the model's column updates are exact, on the residual tensor in memory."""
    if model.solver != "bcd":
        return False
    small = missing_rate > _EXACT_MISSING and prod(shape) <= _EXACT_ENTRIES
    return bool(model.missing == "exact" or (model.missing == "auto" and small))


def row_inputs(model: Parameters, dataset: Dataset, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the given values of the rows (I_1, …) as covariates: their variances, and their initial factors; None without any."""
    covariates = []
    if model.slice_variances is not None and not isinstance(model.slice_variances, str):
        covariates.append(check_variances(model.slice_variances, dataset.shape)[0][:, None])
    if not isinstance(model.init, str):
        covariates.append(check_factors(model.init, dataset.shape, model.n_components)[0])
    return np.hstack(covariates).astype(dtype) if covariates else None


def make_descent(
    model: Parameters, dataset: Dataset, dtype: np.dtype[Any], net: ElasticNet, report: Reporter | None = None
) -> Solver[tuple[Prior, Descent, float]]:
    """Make the model's descent at its start: the given one, or the best of short ones. Return the prior, the descent, and ‖Δ∘Z‖²."""
    seed = yield from resolve_seed(model.random_state)
    sums = yield from run(SlicesPass(dtype), None)
    prior, norm = _make_prior(model, dataset, sums), float(sums.columns.sum())
    descents = _Descents(model, dataset, dtype, prior, seed)
    layout = dataset.source.layout
    sampled = None if descents.exact else plan_sample(dataset.shape, model.n_components, dataset.missing_rate, layout)
    if not isinstance(model.init, str):
        others = [np.ascontiguousarray(A.T) for A in check_factors(model.init, dataset.shape, model.n_components)[1:]]
        others = _without_unobserved([np.abs(A) if model.nonnegative else A for A in others], dataset)
    elif sampled is None:
        starts = yield from _initial_factors(model, dataset, seed, dtype)
        others = yield from best_start(starts, ALL_ROWS, net, descents.make)
    else:
        pass_ = KeepRowsPass(sampled.rows, seed, prior.rows, layout, dtype)
        rows = yield from run(pass_, None, sample=sampled.partitions)
        size = dataset.shape, model.n_components, dataset.missing_rate
        sample = row_sample(*size, len(rows.values), None)
        others = yield from _start_on_sample(model, dataset, seed, net, rows, sample, prior, report)
        if model.solver != "stochastic":
            others = yield from grow(others, growing_samples(*size, sample, layout), net, descents.make, report)
    return prior, (yield from descents.make_last(others, net)), norm


def _start_on_sample(
    model: Parameters,
    dataset: Dataset,
    seed: int,
    net: ElasticNet,
    rows: KeptRows,
    sample: RowSample,
    prior: Prior,
    report: Reporter | None,
) -> Solver[Factors]:
    """Return the factors of modes 2 to N at which the best start on the driver's sample ends."""
    dtype = rows.values.dtype

    def solve() -> Solver[Factors]:
        descents = _Descents(model, dataset, dtype, Prior(RowPrior("given"), prior.others), seed, exact=False)
        starts = yield from _initial_factors(model, dataset, seed, dtype)
        others = yield from best_start(starts, sample, net, descents.make)
        return (yield from grow(others, [sample], net, descents.make, report))

    def compute() -> Arrays:
        with single_threaded():
            return {f"{n}": A for n, A in enumerate(drive(solve(), SampleSession(rows, dataset.shape[1:])))}

    arrays = yield from memo("starts", compute)
    return [arrays[f"{n}"] for n in range(len(arrays))]


class _Descents:
    """Makes the descents of a model from given factors of modes 2 to N."""

    def __init__(
        self, model: Parameters, dataset: Dataset, dtype: np.dtype[Any], prior: Prior, seed: int, *, exact: bool | None = None
    ) -> None:
        self._model, self._dataset, self._dtype, self._prior, self._seed = model, dataset, dtype, prior, seed
        self.exact = is_exact(model, dataset.shape, dataset.missing_rate) if exact is None else exact
        self._Z: NDArray[np.float64] | None = None

    def make(self, others: Factors, net: ElasticNet, sample: RowSample = ALL_ROWS) -> Solver[Descent]:
        """Make a descent on a sample of the rows, which begin at their optimum, or at the given factors of mode 1."""
        H = khatri_rao(others) if isinstance(self._model.init, str) else None
        row_start = RowStart(len(others[0]), net, H)
        descent = ImputingDescent(self._prior, row_start, self._dtype, others, sample=sample)
        return (yield from self._masked(descent)) if self.exact else descent

    def make_last(self, others: Factors, net: ElasticNet) -> Solver[Descent]:
        """Make the descent of the model's solver."""
        model, shape = self._model, self._dataset.shape
        if model.solver != "stochastic":
            return (yield from self.make(others, net))
        sizes = resolve_batch_sizes(model.batch_sizes, shape, model.n_components)
        masked = model.missing == "exact" or (model.missing == "auto" and self._dataset.missing_rate > _EXACT_MISSING)
        source = self._dataset.source
        given = not isinstance(model.init, str)
        return StochasticDescent(source, self._prior, self._seed, self._dtype, others, sizes, model.step_size, exact=masked, warmup=given)

    def _masked(self, descent: ImputingDescent) -> Solver[MaskedDescent]:
        """Make a descent on the residual tensor, which starts from the mode 1 and the variances of the passes."""
        yield from descent.evaluate()
        arrays = {FACTORS: (yield from state_rows(FACTORS)), "variances": (yield from state_rows("variances"))}
        state = yield from memo("rows", lambda: {name: np.concatenate(list(rows)) for name, rows in arrays.items()})
        rows, variances = (state[name].T.astype(np.float64) for name in (FACTORS, "variances"))
        if self._Z is None:
            parts = partitions(self._dataset.source, self._dataset.missing_code, None)
            self._Z = np.concatenate([unfold(block) for block in parts.blocks(np.dtype(np.float64))])
        factors = np.hstack([rows, *descent.others])
        return MaskedDescent(self._Z, self._dataset.shape, np.concatenate([variances[0], *self._prior.others]), factors)


def _make_prior(model: Parameters, dataset: Dataset, sums: SliceSums) -> Prior:
    """Make the prior that the model's parameter names: estimated from the data, given, or ones."""
    shape = dataset.shape
    if model.slice_variances is None:
        return Prior(RowPrior("none"), tuple(np.ones(size) for size in shape[1:]))
    if not isinstance(model.slice_variances, str):
        return Prior(RowPrior("given"), tuple(check_variances(model.slice_variances, shape)[1:]))
    squares = np.asarray(sums.columns, np.float64).reshape(shape[1:])
    return estimate_prior(model.n_components, shape, squares, dataset.statistics.observed.reshape(shape[1:]), float(sums.rows))


def _initial_factors(model: Parameters, dataset: Dataset, seed: int, dtype: np.dtype[Any]) -> Solver[list[Factors]]:
    """Return the starts of modes 2 to N (R, I_n): singular vectors, random factors, or both kinds."""
    shape, starts = dataset.shape, list[Factors]()
    for number in range(model.n_init):
        keys = ((n, number) if number else (n,) for n in range(1, len(shape)))
        rngs = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)) for key in keys)
        starts.append([rng.standard_normal((model.n_components, size)) for rng, size in zip(rngs, shape[1:], strict=True)])
    if uses_vectors(model, shape):
        yield from _set_singular_vectors(dataset, starts[0], dtype)
    return [_without_unobserved([np.abs(A) if model.nonnegative else A for A in others], dataset) for others in starts]


def uses_vectors(model: Parameters, shape: Sequence[int]) -> bool:
    """Return whether the first start consists of singular vectors."""
    return isinstance(model.init, str) and (model.init == "svd" or (model.init == "auto" and start_size(shape) <= _VECTORS_ENTRIES))


def _without_unobserved(others: Factors, dataset: Dataset) -> Factors:
    """Set the factors of slices without any observed entry to 0."""
    for A, empty in zip(others, find_unobserved(dataset), strict=True):
        A[:, empty] = 0
    return others


def _set_singular_vectors(dataset: Dataset, others: Factors, dtype: np.dtype[Any]) -> Solver[None]:
    """Overwrite the first components of the other modes (R, I_n) with singular vectors of the unfoldings, as many as each part has."""
    all_parts = yield from find_parts(dataset, dtype)
    flat, start = (yield from run(UnfoldingsPass(dtype), None)).grams, 0
    for A, size, parts in zip(others, dataset.shape[1:], all_parts, strict=True):
        gram = flat[start : start + size * size].reshape(size, size)
        for slices in parts.columns:
            pairs = gram_pairs(gram[np.ix_(slices, slices)], min(len(A), len(slices)))
            j = int(np.count_nonzero(pairs.values**2 > size * np.finfo(dtype).eps * pairs.values[0] ** 2))
            A[:j, slices] = pairs.vectors[:, :j].T  # further ones are orthogonal to the data: a saddle
        start += size * size


def start_size(shape: Sequence[int]) -> int:
    """Return how many numbers the pass for the singular vectors sums: the Gram matrices of the unfoldings."""
    return sum(size * size for size in shape[1:])


_ROUNDS = (10, 20)  # iterations of each start, and further ones of the better half
_WARMUP, _WARMUP_SHARE = 4, 0.01  # first iterations, and their share of the penalties: with all, components vanish before they form
_SHARES = (1 / 16, 1 / 4)  # of the partitions in the samples that follow the driver's
_PASSES = 80  # over a sample, at most
_PROGRESS = 0.25  # relative change of the objective in a pass, as a share of the sample's noise, below which the next sample follows


class MakeDescent(Protocol):
    """Makes a descent from factors of modes 2 to N on a sample of the rows."""

    def __call__(self, others: Factors, net: ElasticNet, sample: RowSample) -> Solver[Descent]: ...


def row_sample(shape: tuple[int, ...], rank: int, missing_rate: float, rows: int, partitions: tuple[int, ...] | None) -> RowSample:
    """Return a sample of so many rows, and its noise.

    At the minimum of a sample with n observed entries, the objective exceeds its minimum, by as much as p parameters fit noise: p/n of
    its value. More passes over the sample than reach this are of no use for all rows (progressive batching; Bollapragada et al. 2018).
    """
    observed = rows * prod(shape[1:]) * (1 - missing_rate)
    return RowSample(partitions, rows / shape[0], rank * sum(shape[1:]) / max(observed, 1))


def growing_samples(shape: tuple[int, ...], rank: int, missing_rate: float, first: RowSample, layout: Layout) -> list[RowSample]:
    """Return the samples of a 16th and a quarter of the partitions that are at least twice as large as the one before."""
    samples = [first]
    for share in _SHARES:
        partitions = layout.sample(share)
        rows = sum(part.stop - part.start for part in (layout.rows(i, i + 1) for i in partitions))
        if rows >= 2 * samples[-1].share * shape[0]:
            samples.append(row_sample(shape, rank, missing_rate, rows, partitions))
    return samples[1:]


def best_start(starts: Sequence[Factors], sample: RowSample, net: ElasticNet, make: MakeDescent) -> Solver[Factors]:
    """Return the factors of modes 2 to N at which the best of short descents ends. Half of them stop early."""
    found: list[tuple[float, Factors]] = [(0.0, others) for others in starts]
    for number, iterations in enumerate(_ROUNDS):
        found = sorted(found, key=lambda end: end[0])[: len(found) if number == 0 else -(-len(found) // 2)]
        warmup = _WARMUP if number == 0 else 0
        weak = replace(net, lam=_WARMUP_SHARE * net.lam)
        for i, (_, others) in enumerate(found):
            descent = yield from make(others, weak if warmup else net, sample)
            objective = 0.0
            for k in range(iterations):
                objective = yield from descent.iterate(weak if k < warmup else net)
            found[i] = objective, descent.others
    return min(found, key=lambda end: end[0])[1]


def grow(others: Factors, samples: Sequence[RowSample], net: ElasticNet, make: MakeDescent, report: Reporter | None) -> Solver[Factors]:
    """Continue on larger and larger samples, on each until a pass brings less than the sample's noise. Return the factors."""
    for sample in samples:
        descent, history = (yield from make(others, net, sample)), list[float]()
        for _ in range(_PASSES):
            history.append((yield from descent.iterate(net)))
            if report is not None:
                report.on_sample(history)
            if relative_change(history) < _PROGRESS * sample.noise:
                break
        others = descent.others
    return others
