"""Core consistency diagnostic (CORCONDIA) of a CP decomposition."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.validation import require_finite
from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, RunPass, Withheld
from dfact.errors import DataError, ParameterError
from dfact.kernels.cp import fill_missing
from dfact.models.cp.base import CPModel
from dfact.models.cp.passes import tiles
from dfact.models.cp.problem import khatri_rao, unfold
from dfact.models.scikit_learn import check_is_fitted


@dataclass
class ContractedData(PartialSums, name="core_tensor", disclosure=Withheld("has sums weighted by factors that a single row may have")):
    """The data contracted with mode 1; the model fills missing entries."""

    cross: NDArray[Any]
    """(R, I_2⋯I_N)"""
    gram: NDArray[Any]
    """A⁽¹⁾ᵀA⁽¹⁾ (R, R)."""


@dataclass(frozen=True)
class ContractPass(Pass[BlockState, NDArray[Any], ContractedData]):
    """A pass that contracts the data with the rows' factors, which are the covariates."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, ContractedData]:
        """Contract a block; ``broadcast`` is H (R, I_2⋯I_N)."""
        assert block.covariates is not None
        V, A, H, work = unfold(block), block.covariates, broadcast, block.work
        cross = work.zeros(H.shape, H.dtype)
        for rows in tiles(V):
            B = work.matmul(A[rows], H, "target")
            fill_missing(V[rows], B)
            cross += work.matmul(A[rows].T, B, "part")
        return state, ContractedData(cross, A.T @ A)


def core_consistency(model: Any, X: Any) -> float:
    """Return how well a CP structure describes the fitted components, in percent: CORCONDIA.

    The core G (R, …, R) that fits X best given the factors, G = X ×₁A⁽¹⁾⁺ ⋯ ×_N A⁽ᴺ⁾⁺, is 1 on its superdiagonal and 0
    elsewhere if the CP structure is appropriate:

        100 (1 − Σ (g_{r…s} − t_{r…s})² / R),   t the superdiagonal of ones.

    A value near 100 supports the structure. Values far below, near 0 or negative, mean that several components share
    one source, so that there are too many. A surplus component that fits a pattern of its own, even white noise, is not
    detected. The model fills missing entries. The result depends on the scales of the factors: each component's scale is
    spread evenly over the modes. Pseudo-inverses come from Gram matrices, A⁺ = (AᵀA)⁺Aᵀ: one pass contracts the data with
    mode 1, and the remaining arrays have the size of R slices.

    Parameters
    ----------
    model : ElasticCP or CPALS, fitted
        Penalties bias the core: use a refined solution or one with a small λ.
    X : array (I_1, …, I_N) of any kind, path or Dataset
        The data that the model was fitted to.

    Returns
    -------
    float
        At most 100.

    Raises
    ------
    ParameterError
        The model is not a CP model, or has no component left.
    DataError
        The shape of X differs from the model's, or X has infinite entries.

    References
    ----------
    Bro & Kiers (2003).

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
    factors = _spread_scales([np.asarray(A, np.float64)[:, :rank] for A in model.factors_])
    dtype = np.dtype(np.float64)
    with model.open_session(dataset, covariates=factors[0], n_covariates=rank, dtype=dtype) as session:
        sums = session.run(RunPass(ContractPass(dtype), khatri_rao([A.T for A in factors[1:]])))
    core = sums.cross.reshape(rank, *dataset.shape[1:])
    for A in factors[1:]:  # each contracts the second axis and appends its own
        core = np.tensordot(core, A, axes=(1, 0))
    for gram in [sums.gram, *(A.T @ A for A in factors[1:])]:
        core = np.tensordot(core, np.linalg.pinv(gram, hermitian=True), axes=(0, 0))
    ideal = np.zeros_like(core)
    ideal[(np.arange(rank),) * core.ndim] = 1
    return float(100 * (1 - np.square(core - ideal).sum() / rank))


def _spread_scales(factors: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the same components with vectors of equal length in all modes."""
    lengths = np.stack([np.linalg.norm(A, axis=0) for A in factors])
    mean = np.exp(np.log(lengths).mean(axis=0))
    return [A * (mean / length) for A, length in zip(factors, lengths, strict=True)]
