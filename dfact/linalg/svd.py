"""Leading right singular vectors of the data, or of a matrix derived from it row by row, by passes; and the NNDSVD start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Released
from dfact.engine.requests import Solver, run
from dfact.kernels.entries import filled
from dfact.lazy import sp
from dfact.linalg.parts import Parts
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
class GramSum(PartialSums, name="svd_gram", disclosure=Released("products of the columns, summed over rows", products=True)):
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
    """σ (k,), decreasing; or those of the part of each column (m, k)."""
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
    parts: Parts | None = None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return the vectors V (m, k) and values σ of :func:`singular_pairs`, whether or not they have converged."""
    pairs = yield from singular_pairs(n_columns, k, dtype, view=view, tolerance=tolerance, sample=sample, parts=parts)
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
    parts: Parts | None = None,
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

    Of several ``parts`` of the columns, each has pairs of its own: in its rows, V has its singular vectors, and σ (m, k) its values.
    Both are 0 beyond the number of its columns.
    """
    if parts is not None and not parts.connected and not is_wide(n_columns, k):
        return (yield from _pairs_of_parts(parts, k, dtype, view, tolerance, max_passes, on_pass, sample))
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
    krylov = _Krylov(m, k, further, tolerance)
    for number in range(1, min(max_passes, krylov.limit) + 1):
        sums = yield from run(product, krylov.block.astype(product.dtype), sample=sample)
        krylov.add(sums.gram if below is None else sums.gram + below.T @ (below @ krylov.block))
        on_pass(number)
        if krylov.converged:
            break
    return krylov.vectors, krylov.values, number, krylov.converged


class _Krylov:
    """A block Krylov basis for the k + further leading eigenvectors of a matrix MᵀM (m, m)."""

    def __init__(self, m: int, k: int, further: int, tolerance: float) -> None:
        self._k, self._wanted, self._tolerance = k, k + further, tolerance
        self.block = qr(np.random.default_rng(0).standard_normal((m, k + OVERSAMPLING)), mode="economic")[0]
        """The block (m, l) that is multiplied next."""
        self.limit = min(m // self.block.shape[1], _BASIS_ENTRIES // self.block.size)
        """Largest number of blocks."""
        self._basis, self._products = np.empty((m, 0)), np.empty((m, 0))
        self.converged = False

    def add(self, image: NDArray[np.float64]) -> None:
        """Add the block, of which ``image`` (m, l) is the product with MᵀM, and choose the next one."""
        self._basis, self._products = np.hstack([self._basis, self.block]), np.hstack([self._products, image])
        projected = self._basis.T @ self._products
        values, vectors = eigh((projected + projected.T) / 2)
        self.values, vectors = np.maximum(values[::-1][: self._wanted], 0), vectors[:, ::-1][:, : self._wanted]
        self.vectors = np.asarray(self._basis @ vectors, np.float64)
        residuals = np.linalg.norm(self._products @ vectors - self._basis @ (vectors * self.values), axis=0)[: self._k]
        least = self._tolerance**2 * self.values[0]
        limits = self._tolerance * np.sqrt(self.values[0] * np.maximum(self.values[: self._k], least))
        self.converged = bool((residuals <= limits).all())
        block: NDArray[Any] = self._products[:, -self.block.shape[1] :]
        for _ in range(2):  # twice, as the first leaves rounding errors relative to the part that it removed
            block = qr(block - self._basis @ (self._basis.T @ block), mode="economic")[0]
        self.block = np.asarray(block, np.float64)

    @property
    def ends(self) -> bool:
        """Whether the pairs have converged, or the basis cannot grow."""
        return self.converged or self._basis.shape[1] >= self.limit * self.block.shape[1]


def _pairs_of_parts(
    parts: Parts,
    k: int,
    dtype: np.dtype[Any],
    view: View,
    tolerance: float,
    max_passes: int,
    on_pass: Callable[[int], None],
    sample: tuple[int, ...] | None,
) -> Solver[SingularPairs]:
    """Return the pairs of each part, all from the same passes."""
    m, width, number = len(parts.labels), k + OVERSAMPLING, 1
    if uses_gram(m, k):
        gram = (yield from run(GramPass(dtype, view), None, sample=sample)).gram
        on_pass(1)
        found = [gram_pairs(gram[np.ix_(columns, columns)], min(k, len(columns))) for columns in parts.columns]
        return _joined(parts, found, k, 1)
    bases = {i: _Krylov(len(columns), k, 0, tolerance) for i, columns in enumerate(parts.columns) if len(columns) > width}
    # The products of a small part with the identity are its Gram matrix.
    block = np.zeros((m, width))
    for columns in parts.columns:
        block[columns, np.arange(len(columns)) % width] = 1.0
    product, growing = SketchPass(dtype, view), dict(bases)
    while True:
        for i, basis in growing.items():
            block[parts.columns[i]] = basis.block
        image = (yield from run(product, block.astype(dtype), sample=sample)).gram
        on_pass(number)
        if number == 1:
            grams = {i: image[columns, : len(columns)] for i, columns in enumerate(parts.columns) if i not in bases}
        for i, basis in growing.items():
            basis.add(image[parts.columns[i]])
        growing = {i: basis for i, basis in growing.items() if not basis.ends}
        if not growing or number == max_passes or (number + 1) * block.size > _BASIS_ENTRIES:
            break
        block[:] = 0
        number += 1
    found = [
        _oriented(bases[i].vectors, bases[i].values, number, bases[i].converged)
        if i in bases
        else gram_pairs((grams[i] + grams[i].T) / 2, min(k, len(columns)))
        for i, columns in enumerate(parts.columns)
    ]
    return _joined(parts, found, k, number)


def _joined(parts: Parts, found: Sequence[SingularPairs], k: int, n_passes: int) -> SingularPairs:
    """Return the pairs of the parts as vectors and values of all columns (m, k)."""
    V, values = np.zeros((len(parts.labels), k)), np.zeros((len(parts.labels), k))
    for columns, pairs in zip(parts.columns, found, strict=True):
        rank = pairs.vectors.shape[1]
        V[columns, :rank], values[columns, :rank] = pairs.vectors, pairs.values
    return SingularPairs(V, values, n_passes, all(pairs.converged for pairs in found))


@dataclass
class SignNorms(PartialSums, name="svd_signs", disclosure=Released("squares of positive and negative scores, summed over rows")):
    """Squared norms of the positive and the negative parts of columns (k,), or of those in the rows of each part (p, k)."""

    positive: NDArray[Any]
    negative: NDArray[Any]


@dataclass(frozen=True)
class SignNormsPass(Pass[BlockState, NDArray[Any], SignNorms]):
    """Squared norms of the positive and the negative part of every column of M·P, with the broadcast P (m, k)."""

    dtype: np.dtype[Any]
    view: View = zero_filled
    parts: Parts | None = None
    """The parts of the columns, if there are several: a row belongs to that of its entries other than 0."""

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, SignNorms]:
        M = self.view(block)
        U = block.work.matmul(M, broadcast, "product")
        part = block.work.array("part", U.shape, U.dtype)
        signed = (np.square(sign(U, 0, out=part), out=part) for sign in (np.maximum, np.minimum))
        if self.parts is None:
            return state, SignNorms(*(squares.sum(axis=0) for squares in signed))
        of_rows = self.parts.numbers[_largest_entries(M)]
        return state, SignNorms(*(_sums_by_part(squares, of_rows, len(self.parts.columns)) for squares in signed))


def _largest_entries(M: Matrix) -> NDArray[np.intp]:
    """Return the column of an entry of each row that is not 0, or any column of a row without such an entry."""
    if not isinstance(M, np.ndarray):
        return np.asarray(abs(M).argmax(axis=1)).ravel()
    return np.asarray(np.abs(M).argmax(axis=1))


def _sums_by_part(rows: NDArray[Any], of_rows: NDArray[np.int64], n_parts: int) -> NDArray[np.float64]:
    """Return the sums (p, k) of the rows (n, k) of each part."""
    return np.stack([np.bincount(of_rows, column, n_parts) for column in rows.T], axis=1)


def _norms(V: NDArray[np.float64], parts: Parts | None) -> NDArray[np.float64]:
    """Return the norms of the columns of V (m, k), or of their entries in each part (p, k)."""
    if parts is None:
        return np.asarray(np.linalg.norm(V, axis=0))
    return np.sqrt(_sums_by_part(V**2, parts.numbers, len(parts.columns)))


def nndsvd(
    n_columns: int,
    k: int,
    dtype: np.dtype[Any],
    *,
    view: View = zero_filled,
    tolerance: float = 1e-3,
    sample: tuple[int, ...] | None = None,
    parts: Parts | None = None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Compute the NNDSVD start of the viewed data, or of a sample of its partitions, from singular vectors of this tolerance.

    The start is that of Boutsidis & Gallopoulos (2008), for each of several ``parts`` of the columns. Returns the loadings (k, m) and
    P (m, k), which gives the rows' factors max(M P, 0). Each singular pair gets the sign whose parts of u and v have the larger
    product of norms.
    """
    wide = is_wide(n_columns, k)
    sample = None if wide else sample
    V, sigma = yield from right_singular(n_columns, k, dtype, view=view, tolerance=tolerance, sample=sample, parts=parts)
    apart = None if parts is None or parts.connected or wide else parts
    safe = np.where(sigma > 0, sigma, 1.0)
    norms = yield from run(SignNormsPass(dtype, view, apart), (V / safe).astype(dtype), sample=sample)
    u = np.sqrt(np.stack([norms.positive, norms.negative]))  # (2, k)
    v = np.stack([_norms(np.maximum(sign * V, 0), apart) for sign in (1, -1)])
    choice = (u * v).argmax(axis=0)
    sign = np.where(choice == 0, 1.0, -1.0)
    u, v = (np.take_along_axis(norms, choice[None], axis=0)[0] for norms in (u, v))
    if apart is not None:
        sign, u, v = (of_parts[apart.numbers] for of_parts in (sign, u, v))
    scale = np.sqrt(sigma * u * v)
    loadings = np.maximum(sign * V, 0) * (scale / np.where(v > 0, v, 1.0))
    projection = V * (sign * scale / (np.where(u > 0, u, 1.0) * safe))
    return loadings.T.copy(), projection
