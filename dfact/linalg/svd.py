"""Leading right singular vectors of the data, or of a matrix derived from it row by row, by passes; and the NNDSVD start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.requests import Solver, run
from dfact.kernels.entries import filled
from dfact.lazy import sp
from dfact.linalg.wide_svd import leading_vectors

_GRAM_COLUMNS = 512  # up to this number of columns, M'M costs no more than the passes of the block iteration
OVERSAMPLING = 10
"""Vectors of a block of the iteration beyond those that are wanted."""
_MAX_PASSES = 12
_BASIS_ENTRIES = 1 << 26  # limit of a Krylov basis on the driver, which holds it, its products and copies of both

Matrix: TypeAlias = "NDArray[Any] | sp.csr_array"
View = Callable[[Block], Matrix]
"""A function that returns a block's rows (rows, m) of the decomposed matrix. It is sent to workers, so it must be a module's function
or a dataclass. Its result lies in working memory of the block and is overwritten by the next call."""


def zero_filled(block: Block) -> Matrix:
    """Return a copy of the data with 0 for missing entries."""
    M = block.matrix
    entries = M if isinstance(M, np.ndarray) else M.data[None]
    imputed = filled(entries, out=block.work.array("filled", entries.shape, entries.dtype))
    return imputed if isinstance(M, np.ndarray) else sp.csr_array((imputed[0], M.indices, M.indptr), shape=M.shape)


@dataclass
class GramSum(PartialSums, name="svd_gram"):
    """A product of MᵀM with a matrix, or MᵀM itself."""

    gram: NDArray[Any]


@dataclass(frozen=True)
class GramPass(Pass[BlockState, None, GramSum]):
    """The Gram matrix MᵀM."""

    dtype: np.dtype[Any]
    view: View = zero_filled

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, GramSum]:
        M = self.view(block)
        return state, GramSum(block.work.matmul(M.T, M) if isinstance(M, np.ndarray) else (M.T @ M).toarray())


@dataclass(frozen=True)
class SketchPass(Pass[BlockState, NDArray[Any], GramSum]):
    """The product MᵀMΩ with the broadcast Ω (m, l)."""

    dtype: np.dtype[Any]
    view: View = zero_filled

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, GramSum]:
        M = self.view(block)
        return state, GramSum(block.work.matmul(M.T, block.work.matmul(M, broadcast, "product")))


@dataclass(frozen=True)
class SingularPairs:
    """Leading right singular vectors and values of a matrix."""

    vectors: NDArray[np.float64]
    """V (m, k); the largest entry of each is positive."""
    values: NDArray[np.float64]
    """σ (k,), decreasing."""
    n_passes: int
    converged: bool
    """Whether every pair met the tolerance."""

    def first(self, k: int) -> SingularPairs:
        """Return the first k pairs."""
        return replace(self, vectors=self.vectors[:, :k], values=self.values[:k])


def right_singular(
    n_columns: int,
    k: int,
    dtype: np.dtype[Any],
    *,
    view: View = zero_filled,
    tolerance: float = 1e-3,
    sample: tuple[int, ...] | None = None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the vectors V (m, k) and values σ (k) of :func:`singular_pairs`, whether or not they have converged."""
    pairs = yield from singular_pairs(n_columns, k, dtype, view=view, tolerance=tolerance, sample=sample)
    return pairs.vectors, pairs.values


def singular_pairs(
    n_columns: int,
    k: int,
    dtype: np.dtype[Any],
    *,
    view: View = zero_filled,
    tolerance: float = 1e-3,
    max_passes: int = _MAX_PASSES,
    on_pass: Callable[[int], None] = lambda _: None,
    below: NDArray[np.float64] | None = None,
    further: int = 0,
    sample: tuple[int, ...] | None = None,
) -> Solver[SingularPairs]:
    """Compute the k leading right singular vectors V (m, k) and values σ (k) of the viewed matrix M.

    Up to 512 columns they come from the Gram matrix, in one pass. Beyond, block Krylov iteration on a
    random start computes them (Musco & Musco 2015, algorithm 2): each pass multiplies one more block by MᵀM, and
    the iteration ends when every pair has ‖MᵀMv − σ²v‖ ≤ ``tolerance`` σ₁·max(σ, ``tolerance`` σ₁), or after ``max_passes``. With so
    many columns that the basis of 12 passes might exceed 2²⁶ entries, :mod:`dfact.linalg.wide_svd` restarts the iteration in each pass.
    The start is fixed, so the result depends on the data alone. ``on_pass`` is called with the number of passes after each.

    The block Krylov iteration, and no other way, also takes the rows ``below`` (r, m) as a part of M that the driver holds, and returns
    up to 10 ``further`` pairs, whether or not they have converged.
    M has the rows of a ``sample`` of the partitions, by default all; with so many columns that the iteration restarts, always all.
    """
    if uses_gram(n_columns, k):
        sums = yield from run(GramPass(dtype, view), None, sample=sample)
        on_pass(1)
        return gram_pairs(sums.gram, k)
    if is_wide(n_columns, k):
        found = yield from leading_vectors(k, k + OVERSAMPLING, dtype, view, tolerance, max_passes, on_pass)
    else:
        found = yield from _block_krylov(SketchPass(dtype, view), n_columns, k, tolerance, max_passes, on_pass, below, further, sample)
    return _oriented(*found)


def uses_gram(n_columns: int, k: int) -> bool:
    """Return whether :func:`singular_pairs` takes the vectors from the Gram matrix."""
    return n_columns <= max(_GRAM_COLUMNS, k + OVERSAMPLING)


def gram_pairs(gram: NDArray[np.float64], k: int) -> SingularPairs:
    """Return the k leading right singular vectors and values of a matrix M, given its Gram matrix MᵀM (m, m)."""
    m = len(gram)
    values, V = eigh(gram, subset_by_index=(m - k, m - 1))
    return _oriented(V[:, ::-1], values[::-1], 1, True)


def _oriented(V: NDArray[np.float64], squares: NDArray[np.float64], n_passes: int, converged: bool) -> SingularPairs:
    signs = np.where(V[np.abs(V).argmax(axis=0), np.arange(V.shape[1])] < 0, -1.0, 1.0)
    return SingularPairs(V * signs, np.sqrt(np.maximum(squares, 0)), n_passes, converged)


def is_wide(n_columns: int, k: int) -> bool:
    """Return whether :func:`right_singular` keeps its basis with the tiles of columns."""
    return n_columns * (k + OVERSAMPLING) * _MAX_PASSES > _BASIS_ENTRIES


def gram_size(n_columns: int, k: int) -> int:
    """Return the number of entries of the sums in a pass of :func:`right_singular`, without those of :func:`tiled_gram_size`."""
    return 0 if is_wide(n_columns, k) else n_columns * (n_columns if n_columns <= _GRAM_COLUMNS else k + OVERSAMPLING)


def basis_bytes(n_columns: int, k: int, max_passes: int) -> int:
    """Return the bytes of the Krylov basis and its products on the driver, with the copies that are made as they grow."""
    if uses_gram(n_columns, k) or is_wide(n_columns, k):
        return 0
    block = n_columns * (k + OVERSAMPLING)
    return 4 * 8 * block * min(max_passes, n_columns // (k + OVERSAMPLING), _BASIS_ENTRIES // block)


def tiled_gram_size(n_columns: int, k: int) -> int:
    """Return the number of entries of the tiled sums in a pass of :func:`right_singular`, and of its broadcast."""
    return n_columns * (k + OVERSAMPLING) if is_wide(n_columns, k) else 0


def _block_krylov(
    product: SketchPass,
    m: int,
    k: int,
    tolerance: float,
    max_passes: int,
    on_pass: Callable[[int], None],
    below: NDArray[np.float64] | None,
    further: int,
    sample: tuple[int, ...] | None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64], int, bool]]:
    """Return the k + further leading eigenvectors (m, k + further) and eigenvalues of MᵀM, given the pass that multiplies it by a block.

    Also the number of passes, and whether the k leading pairs have converged. Passes end when the basis would exceed 2²⁶ entries.
    """
    block = qr(np.random.default_rng(0).standard_normal((m, k + OVERSAMPLING)), mode="economic")[0]
    basis, products = np.empty((m, 0)), np.empty((m, 0))
    converged, limit = False, min(max_passes, m // block.shape[1], _BASIS_ENTRIES // block.size)
    for number in range(1, limit + 1):
        basis = np.hstack([basis, block])
        sums = yield from run(product, block.astype(product.dtype), sample=sample)
        products = np.hstack([products, sums.gram if below is None else sums.gram + below.T @ (below @ block)])
        projected = basis.T @ products
        values, vectors = eigh((projected + projected.T) / 2)
        values, vectors = np.maximum(values[::-1][: k + further], 0), vectors[:, ::-1][:, : k + further]
        residuals = np.linalg.norm(products @ vectors - basis @ (vectors * values), axis=0)[:k]
        converged = bool((residuals <= tolerance * np.sqrt(values[0] * np.maximum(values[:k], tolerance**2 * values[0]))).all())
        on_pass(number)
        if converged:
            break
        block = products[:, -block.shape[1] :]
        for _ in range(2):  # twice, as the first leaves rounding errors relative to the part that it removed
            block = qr(block - basis @ (basis.T @ block), mode="economic")[0]
    return basis @ vectors, values, number, converged


@dataclass
class SignNorms(PartialSums, name="svd_signs"):
    """Squared norms of the positive and the negative parts of columns (k,)."""

    positive: NDArray[Any]
    negative: NDArray[Any]


@dataclass(frozen=True)
class SignNormsPass(Pass[BlockState, NDArray[Any], SignNorms]):
    """Squared norms of the positive and the negative part of every column of M·P, with the broadcast P (m, k)."""

    dtype: np.dtype[Any]
    view: View = zero_filled

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, SignNorms]:
        U = block.work.matmul(self.view(block), broadcast, "product")
        part = block.work.array("part", U.shape, U.dtype)
        positive, negative = (np.square(sign(U, 0, out=part), out=part).sum(axis=0) for sign in (np.maximum, np.minimum))
        return state, SignNorms(positive, negative)


def nndsvd(
    n_columns: int,
    k: int,
    dtype: np.dtype[Any],
    *,
    view: View = zero_filled,
    tolerance: float = 1e-3,
    sample: tuple[int, ...] | None = None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Compute the NNDSVD start of the viewed data, or of a sample of its partitions, from singular vectors of this tolerance.

    The start is that of Boutsidis & Gallopoulos (2008). Returns the loadings (k, m) and P (m, k), which gives the rows' factors
    max(M P, 0). Each singular pair gets the sign whose parts of u and v have the larger product of norms.
    """
    sample = None if is_wide(n_columns, k) else sample
    V, sigma = yield from right_singular(n_columns, k, dtype, view=view, tolerance=tolerance, sample=sample)
    safe = np.where(sigma > 0, sigma, 1.0)
    norms = yield from run(SignNormsPass(dtype, view), (V / safe).astype(dtype), sample=sample)
    u = np.sqrt(np.stack([norms.positive, norms.negative]))  # (2, k)
    v = np.stack([np.linalg.norm(np.maximum(sign * V, 0), axis=0) for sign in (1, -1)])
    choice = (u * v).argmax(axis=0)
    sign = np.where(choice == 0, 1.0, -1.0)
    u, v = (np.take_along_axis(norms, choice[None], axis=0)[0] for norms in (u, v))
    scale = np.sqrt(sigma * u * v)
    loadings = np.maximum(sign * V, 0) * (scale / np.where(v > 0, v, 1.0))
    projection = V * (sign * scale / (np.where(u > 0, u, 1.0) * safe))
    return loadings.T.copy(), projection
