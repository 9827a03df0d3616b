"""Starts of CP: the prior, initial factors (random, or left singular vectors of the unfoldings), and the choice of the solver."""

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dfact.data.dataset import Dataset
from dfact.engine.partitions import partitions
from dfact.engine.requests import Solver, memo, run, state_rows
from dfact.linalg.svd import gram_size, right_singular, tiled_gram_size
from dfact.models.cp.block_descent import Descent, ImputingDescent, MaskedDescent
from dfact.models.cp.passes import FACTORS, RowStart, SlicesPass, SliceSums, UnfoldingsPass, filled_rows, random_factors
from dfact.models.cp.problem import Factors, Prior, RowPrior, check_factors, check_variances, estimate_prior, find_unobserved, unfold
from dfact.models.cp.stochastic import StochasticDescent, resolve_batch_sizes
from dfact.parameters import resolve_seed

_EXACT_ENTRIES = 1 << 20  # up to which a residual tensor fits roughly into a second-level cache
_EXACT_MISSING = 0.5  # share of missing entries above which filling them in is slow, and leads to worse local minima


class Parameters(Protocol):
    """The parameters of an ElasticCP on which its start depends."""

    n_components: int
    nonnegative: bool
    solver: Any
    missing: Any
    batch_sizes: Sequence[int] | None
    step_size: float
    prior: Any
    init: Any
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
    if model.prior is not None and not isinstance(model.prior, str):
        covariates.append(check_variances(model.prior, dataset.shape)[0][:, None])
    if not isinstance(model.init, str):
        covariates.append(check_factors(model.init, dataset.shape, model.n_components)[0])
    return np.hstack(covariates).astype(dtype) if covariates else None


def make_descent(model: Parameters, dataset: Dataset, dtype: np.dtype[Any]) -> Solver[tuple[Prior, Descent, float]]:
    """Make the model's descent at its start. Return the prior, the descent, and ‖Δ∘Z‖²."""
    row_start, others = yield from _initial_factors(model, dataset, dtype)
    for A, empty in zip(others, find_unobserved(dataset), strict=True):
        A[:, empty] = 0
    exact = is_exact(model, dataset.shape, dataset.missing_rate)
    rescaled = model.solver == "bcd" and isinstance(model.init, str) and (exact or dataset.missing_rate > 0)
    # A single pass computes everything about the data that the first iteration needs.
    sums = yield from run(SlicesPass(dtype, row_start if rescaled else None), None)
    prior, norm = _make_prior(model, dataset, sums), float(sums.columns.sum())
    if model.solver == "stochastic":
        sizes = resolve_batch_sizes(model.batch_sizes, dataset.shape, model.n_components)
        masked = model.missing == "exact" or (model.missing == "auto" and dataset.missing_rate > _EXACT_MISSING)
        return prior, StochasticDescent(dataset.source, prior, row_start, dtype, others, sizes, model.step_size, exact=masked), norm
    descent = ImputingDescent(prior, row_start, dtype, others)
    if rescaled:
        descent.shrink(sums.gram, norm / max(1 - dataset.missing_rate, 1e-12))
    if not exact:
        return prior, descent, norm
    # The exact solver starts from the mode 1 and the variances of the passes, so that both solvers start alike.
    yield from descent.evaluate()
    arrays = {FACTORS: (yield from state_rows(FACTORS)), "variances": (yield from state_rows("variances"))}
    state = yield from memo("rows", lambda: {name: np.concatenate(list(rows)) for name, rows in arrays.items()})
    rows, variances = (state[name].T.astype(np.float64) for name in (FACTORS, "variances"))
    parts = partitions(dataset.source, dataset.missing_code, None)
    Z = np.concatenate([unfold(block) for block in parts.blocks(np.dtype(np.float64))])
    factors = np.hstack([rows, *others])
    return prior, MaskedDescent(Z, dataset.shape, np.concatenate([variances[0], *prior.others]), factors), norm


def _make_prior(model: Parameters, dataset: Dataset, sums: SliceSums) -> Prior:
    """Make the prior that the model's parameter names: estimated from the data, given, or ones."""
    shape = dataset.shape
    if model.prior is None:
        return Prior(RowPrior("none"), tuple(np.ones(size) for size in shape[1:]))
    if not isinstance(model.prior, str):
        return Prior(RowPrior("given"), tuple(check_variances(model.prior, shape)[1:]))
    squares = np.asarray(sums.columns, np.float64).reshape(shape[1:])
    return estimate_prior(model.n_components, shape, squares, dataset.statistics.observed.reshape(shape[1:]), float(sums.rows))


def _initial_factors(model: Parameters, dataset: Dataset, dtype: np.dtype[Any]) -> Solver[tuple[RowStart, Factors]]:
    """Return the start of mode 1, and the other modes' initial factors (R, I_n)."""
    k, shape, nonnegative = model.n_components, dataset.shape, model.nonnegative
    seed = yield from resolve_seed(model.random_state)
    if not isinstance(model.init, str):
        others = [np.ascontiguousarray(A.T) for A in check_factors(model.init, shape, k)[1:]]
        return RowStart(k, seed, nonnegative, from_covariates=True), [np.abs(A) if nonnegative else A for A in others]
    seeds = (np.random.SeedSequence(seed, spawn_key=(n,)) for n in range(1, len(shape)))
    others = [random_factors(stream, (k, size), nonnegative) for stream, size in zip(seeds, shape[1:], strict=True)]
    if model.init == "random":
        return RowStart(k, seed, nonnegative), others
    projection = yield from _nvecs(shape, others, dtype, nonnegative=nonnegative)
    return RowStart(k, seed, nonnegative, projection), others


def _nvecs(shape: Sequence[int], others: Factors, dtype: np.dtype[Any], *, nonnegative: bool) -> Solver[NDArray[np.float64]]:
    """Overwrite the first components of the other modes (R, I_n) with singular vectors, as many as exist.

    Return the projection (m, j) of the data on those of mode 1.
    """
    flat, start = (yield from run(UnfoldingsPass(dtype), None)).grams, 0
    for A, size in zip(others, shape[1:], strict=True):
        j = min(len(A), size)
        gram = flat[start : start + size * size].reshape(size, size)
        vectors = eigh(gram, subset_by_index=(size - j, size - 1))[1][:, ::-1]
        vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(j)] < 0, -1.0, 1.0)
        A[:j] = np.abs(vectors.T) if nonnegative else vectors.T
        start += size * size
    m = prod(shape[1:])
    V, sigma = yield from right_singular(m, min(len(others[0]), shape[0], m), dtype, view=filled_rows)
    # The vector of a singular value of 0 would consist of rounding errors.
    strong = sigma > 1e-6 * sigma[0]
    return np.asarray(V[:, strong] / sigma[strong])


def start_size(shape: Sequence[int], rank: int) -> int:
    """Return how many numbers a pass for the singular vectors sums: Gram matrices of the unfoldings, or those that mode 1 needs."""
    m = prod(shape[1:])
    k = min(rank, shape[0], m)
    return max(sum(size * size for size in shape[1:]), gram_size(m, k) + tiled_gram_size(m, k))
