"""How well a CP decomposition has the form it is meant to have: the core consistency diagnostic."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dfact.data.coerce import as_dataset
from dfact.data.validation import require_finite
from dfact.engine.passes import Block, PartialSums, Pass, State
from dfact.errors import DataError, ParameterError
from dfact.kernels.cp import fill_missing
from dfact.models.cp.base import CPModel
from dfact.models.cp.passes import tiles
from dfact.models.cp.problem import khatri_rao, unfolded


@dataclass
class Contracted(PartialSums, name="core_tensor"):
    """The data, filled by the model, contracted with mode 1."""

    cross: NDArray[Any]
    """(R, I_2⋯I_N)"""
    gram: NDArray[Any]
    """A⁽¹⁾ᵀA⁽¹⁾ (R, R)."""


@dataclass(frozen=True)
class ContractPass(Pass[NDArray[Any], Contracted]):
    """Of the rows' factors in the covariates."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: NDArray[Any]) -> tuple[State | None, Contracted]:
        """``broadcast`` is H (R, I_2⋯I_N)."""
        assert block.covariates is not None
        V, A, H, work = unfolded(block), block.covariates, broadcast, block.work
        cross = work.zeros(H.shape, H.dtype)
        for rows in tiles(V):
            B = work.matmul(A[rows], H, "target")
            fill_missing(V[rows], B)
            cross += work.matmul(A[rows].T, B, "part")
        return state, Contracted(cross, A.T @ A)


def core_consistency(model: Any, X: Any) -> float:
    """How far the components of a fitted CP decomposition are apart from one another, in percent: CORCONDIA.

    The core G (R, …, R) that fits X best given the factors, G = X ×₁A⁽¹⁾⁺ ⋯ ×_N A⁽ᴺ⁾⁺, is 1 on its superdiagonal and 0
    elsewhere if the model is as it should be:

        100 (1 − Σ (g_{r…s} − t_{r…s})² / R),   t the superdiagonal of ones.

    Near 100 it is; where it falls far below, to 0 or any negative number, components share what is one, and there are too
    many. One too many that fits something of its own, be it white noise, does not show. Missing entries are filled by the model.
    Each component's scale is spread evenly over the modes, which the figure depends on. Pseudo-inverses come from Gram
    matrices, A⁺ = (AᵀA)⁺Aᵀ: one pass contracts the data with mode 1, and all that is left is of the size of R slices.

    Parameters
    ----------
    model : ElasticCP or CPALS, fitted
        The penalties bias the core: that of a refined solution, or of a small λ, is meant.
    X : array (I_1, …, I_N) of any kind, path or Dataset
        What it was fitted to.

    Returns
    -------
    float
        At most 100.

    Raises
    ------
    ParameterError
        Another model, or no component is left.
    DataError
        X is of another shape than the model, or has infinite entries.

    References
    ----------
    Bro & Kiers (2003), "A new efficient method for determining the number of components in PARAFAC models".

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (30, 20, 10))
    >>> Z = np.einsum("ir,jr,kr->ijk", A, B, C)
    >>> model = dfact.ElasticCP(2, lam=1e-8, random_state=0, max_iter=1000, tol=1e-12).fit(Z)
    >>> round(dfact.selection.core_consistency(model, Z))
    100
    """
    if not isinstance(model, CPModel):
        raise ParameterError(f"model is a {type(model).__name__}, expected an ElasticCP or CPALS")
    check_is_fitted(model)
    dataset = as_dataset(X)
    require_finite(dataset)
    expected = tuple(A.shape[0] for A in model.factors_)
    if dataset.shape != expected:
        raise DataError(f"X has shape {dataset.shape}, the model was fitted to {expected}; pass the same data")
    rank = model.rank_
    if rank == 0:
        raise ParameterError("the model has no component left, expected at least one; fit with a smaller lam")
    factors = _even([np.asarray(A, np.float64)[:, :rank] for A in model.factors_])
    dtype = np.dtype(np.float64)
    with model._open(dataset, factors[0], model._footprint(dataset.shape, rank, dtype)) as session:
        sums = session.run(ContractPass(dtype), khatri_rao([A.T for A in factors[1:]]))
    core = sums.cross.reshape(rank, *dataset.shape[1:])
    for A in factors[1:]:  # each takes the second axis and leaves its own last
        core = np.tensordot(core, A, axes=(1, 0))
    for gram in [sums.gram, *(A.T @ A for A in factors[1:])]:
        core = np.tensordot(core, np.linalg.pinv(gram, hermitian=True), axes=(0, 0))
    ideal = np.zeros_like(core)
    ideal[(np.arange(rank),) * core.ndim] = 1
    return float(100 * (1 - np.square(core - ideal).sum() / rank))


def _even(factors: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """The same components with vectors of the same length in all modes."""
    lengths = np.stack([np.linalg.norm(A, axis=0) for A in factors])
    mean = np.exp(np.log(lengths).mean(axis=0))
    return [A * (mean / length) for A, length in zip(factors, lengths, strict=True)]
