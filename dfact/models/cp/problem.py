"""The CP problem: elastic net, priors of the factors, products of factors that updates need, and checks of the inputs.

Factors are stored components first, (R, I_n).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_numbers
from dfact.engine.passes import Block
from dfact.errors import DataError, ParameterError
from dfact.kernels.cp import balance, observed_squares
from dfact.models.fitted_schema import Shape

FLOOR = 1e-8  # of a prior variance
_ZERO_WEIGHT = 1e-9  # of the largest component's weight; components up to this weight count as 0

Factors = list[NDArray[np.float64]]


@dataclass(frozen=True)
class ElasticNet:
    """λ Σ_r Σ_n [(1−α)/2 a_r⁽ⁿ⁾ᵀR_n⁻¹a_r⁽ⁿ⁾ + α‖a_r⁽ⁿ⁾‖₁], over a ≥ 0 where ``nonnegative``."""

    lam: float
    l1_ratio: float
    nonnegative: bool = False

    @property
    def l1(self) -> float:
        return self.lam * self.l1_ratio

    def ridge(self, variances: NDArray[Any]) -> NDArray[Any]:
        """Return λ(1−α)R_n⁻¹ of a mode (I_n)."""
        return np.asarray(self.lam * (1 - self.l1_ratio) / variances)

    def penalty(self, sizes: NDArray[np.float64]) -> float:
        """Return the penalty from the norms (2, R) of :func:`penalty_norms`, summed over the modes."""
        return float(self.lam * ((1 - self.l1_ratio) / 2 * sizes[0].sum() + self.l1_ratio * sizes[1].sum()))

    def balancing_scales(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scales c (N, R) of all modes, from their norms (N, 2, R), that minimize the penalty and leave the model unchanged."""
        squares, lengths = np.ascontiguousarray(sizes[:, 0]), np.ascontiguousarray(sizes[:, 1])
        return np.asarray(balance(squares, lengths, self.lam * (1 - self.l1_ratio), self.l1))


def penalty_norms(A: NDArray[Any], variances: NDArray[Any]) -> NDArray[np.float64]:
    """Return aᵀR_n⁻¹a and ‖a‖₁ of the components of a mode's factors A (R, I_n): (2, R)."""
    wide, sizes = A.astype(np.float64), np.empty((2, len(A)))
    np.matmul(np.square(wide), 1 / variances.astype(np.float64), out=sizes[0])
    np.abs(wide, out=wide).sum(axis=1, out=sizes[1])
    return sizes


@dataclass(frozen=True)
class RowPrior:
    """Variances R_1 of the rows of a block, by one of three rules."""

    kind: Literal["estimate", "given", "none"]
    """"estimate": ``scale`` times each row's squares, extrapolated to its missing entries; "given": the first of the block's
    covariates; "none": 1."""
    scale: float = 1.0

    def variances(self, block: Block, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the variances (rows,)."""
        if self.kind == "given":
            assert block.covariates is not None
            return np.ascontiguousarray(block.covariates[:, 0], dtype)
        if self.kind == "none":
            return np.ones(len(block.matrix if isinstance(block.matrix, np.ndarray) else block.values), dtype)
        return np.maximum(self.scale * extrapolated_squares(*row_squares(block)[:2], unfold(block).shape[1]), FLOOR).astype(dtype)


@dataclass(frozen=True)
class Prior:
    """Variances R_n: a rule for those of the rows, and arrays (I_n) for those of the other modes."""

    rows: RowPrior
    others: tuple[Annotated[NDArray[np.float64], Shape((None,))], ...]


def unfold(block: Block) -> NDArray[Any]:
    """Return the block's values with one row for each slice of mode 1 (rows, I_2⋯I_N)."""
    values = block.values
    return values.reshape(len(values), prod(values.shape[1:]))


def row_squares(block: Block) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return Σ X² and the number of observed entries of each row, and Σ X² of each column."""
    M = unfold(block)
    squares, counts, columns = np.empty(len(M)), np.empty(len(M)), np.zeros(M.shape[1])
    observed_squares(M, squares, counts, columns)
    return squares, counts, columns


def extrapolated_squares(squares: NDArray[np.float64], counts: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Extrapolate ‖slice‖² from observed to all entries, so that variances do not depend on which entries are missing."""
    return squares * (size / np.maximum(counts, 1))


def estimate_prior(rank: int, shape: Sequence[int], squares: NDArray[np.float64], observed: NDArray[np.int64], row_sum: float) -> Prior:
    """Estimate R_n(i, i) = ‖X(n-slice i)‖² / (R θ^{N−1}), θ = (‖X‖²/R)^{1/N}.

    The arguments are Σ X² and the number of observed entries over the rows (I_2, …, I_N), and the sum of the rows'
    extrapolated squares. θ is the trace of every R_n (equation 5); without extrapolation, missing entries would make the
    traces unequal.
    """
    total = float(squares.sum()) * prod(shape) / max(int(observed.sum()), 1)
    theta = (total / rank) ** (1 / len(shape))
    others = []
    for n in range(squares.ndim):
        axes = tuple(axis for axis in range(squares.ndim) if axis != n)
        slices = extrapolated_squares(squares.sum(axis=axes), observed.sum(axis=axes).astype(np.float64), prod(shape) // shape[n + 1])
        others.append(np.maximum(theta * slices / max(float(slices.sum()), np.finfo(float).tiny), FLOOR))
    return Prior(RowPrior("estimate", theta / max(row_sum, np.finfo(float).tiny)), tuple(others))


def khatri_rao(factors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return H (R, I_2⋯I_N), whose row r is the Kronecker product of the vectors a_r of the given modes.

    H is C-contiguous for any memory order of the factors, on which the order of BLAS's sums could depend.
    """
    H = factors[0]
    for A in factors[1:]:
        H = (H[:, :, None] * A[:, None, :]).reshape(len(H), -1)
    return np.ascontiguousarray(H)


def contract(T: NDArray[np.float64], factors: Sequence[NDArray[np.float64]], keep: int) -> NDArray[np.float64]:
    """Contract each row r of T (R, I_2⋯I_N) with a_r of all given modes but ``keep``: (R, I_keep)."""
    k = len(T)
    for A in reversed(factors[keep + 1 :]):
        T = np.matmul(T.reshape(k, -1, A.shape[1]), A[:, :, None])
    for A in factors[:keep]:
        T = np.matmul(A[:, None, :], T.reshape(k, A.shape[1], -1))
    return np.ascontiguousarray(T.reshape(k, -1))


def grams_product(grams: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the entry-wise product of Gram matrices (R, R): the Gram matrix of a Khatri-Rao product."""
    product = np.ones_like(grams[0])
    for gram in grams:
        product = product * gram
    return product


def component_weights(gram: NDArray[np.float64], others: Factors) -> NDArray[np.float64]:
    """Return γ_r = Π_n ‖a_r⁽ⁿ⁾‖ (R,) from the Gram matrix of mode 1 and the other modes' factors."""
    weights = np.sqrt(gram.diagonal())
    for A in others:
        weights = weights * np.linalg.norm(A, axis=1)
    return weights


def nonzero(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which components (R,) exceed rounding errors of the largest; their number is the rank."""
    return np.asarray(weights > _ZERO_WEIGHT * weights.max())


def _as_arrays(name: str, given: Sequence[Any]) -> list[NDArray[np.float64]]:
    try:
        return [as_numbers(name, values) for values in given]
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{name} is not a list of arrays ({error}), expected an array of numbers for each mode") from error


def check_factors(init: Sequence[Any], shape: Sequence[int], rank: int) -> list[NDArray[np.float64]]:
    """Return the initial factors (I_n, R) as floats. Refuse invalid ones."""
    factors = _as_arrays("init", init)
    expected = [(size, rank) for size in shape]
    if [A.shape for A in factors] != expected:
        raise ParameterError(f"init has shapes {[A.shape for A in factors]}, expected {expected}")
    if not all(np.isfinite(A).all() for A in factors):
        raise ParameterError("init holds factors that are not finite numbers")
    return factors


def check_variances(given: Sequence[Any], shape: Sequence[int]) -> list[NDArray[np.float64]]:
    """Return the variances (I_n) of every mode as floats of at least 1e-8. Refuse invalid ones."""
    arrays = _as_arrays("slice_variances", given)
    expected = [(size,) for size in shape]
    if [variances.shape for variances in arrays] != expected:
        raise ParameterError(f"slice_variances has shapes {[v.shape for v in arrays]}, expected the variances of every mode: {expected}")
    if not all((variances > 0).all() and np.isfinite(variances).all() for variances in arrays):
        raise ParameterError("slice_variances holds numbers that are not finite numbers above 0")
    return [np.maximum(variances, FLOOR) for variances in arrays]


def check_size(dataset: Dataset, fitted: Sequence[int] | None) -> None:
    """Refuse slices whose shape differs from that of the fitted ones."""
    if fitted is not None and tuple(dataset.shape[1:]) != tuple(fitted):
        expected, found = ("×".join(map(str, shape)) for shape in (fitted, dataset.shape[1:]))
        raise DataError(f"the slices of X are {found}, those the model was fitted on {expected}; pass slices of that shape")


def find_unobserved(dataset: Dataset) -> list[NDArray[np.bool_]]:
    """Return for each of modes 2, …, N which slices have no observed entry."""
    observed = dataset.statistics.observed.reshape(dataset.shape[1:])
    modes = range(observed.ndim)
    return [observed.sum(axis=tuple(axis for axis in modes if axis != n)) == 0 for n in modes]
