"""Leading right singular vectors of a matrix with so many columns that the driver does not hold a basis of them.

The basis lies with the tiles of columns. It has three blocks of vectors: the approximations X, the previous directions P and the
residuals R (Knyazev 2001, LOBPCG without a preconditioner). A pass multiplies R alone by MᵀM, as the images of X and P are combinations
of earlier products. The driver sees Gram matrices of the basis, and the block R that all rows need.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.passes import Block, PartialSums, Released, TiledPass
from dfact.engine.requests import Solver, read_tiles, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast

_PART_COLUMNS = 1 << 12  # columns of a block that are multiplied at once
_INDEPENDENT = 1e-10  # smallest eigenvalue of the scaled basis's Gram matrix, relative to the largest, that counts


@dataclass
class ProductSum(PartialSums, name="svd_product", disclosure=Released("products of sketches and data, summed over rows")):
    """The product RMᵀM (l, m)."""

    product: NDArray[Any]


@dataclass(frozen=True)
class ProductPass(TiledPass[BlockState, tuple[NDArray[Any], None], ProductSum]):
    """The product RMᵀM with the broadcast R (l, m)."""

    dtype: np.dtype[Any]
    view: Callable[[Block], Any]
    width: int
    """Number l of vectors."""
    tiled = ("product",)

    def zeros(self, n_columns: int) -> ProductSum:
        return ProductSum(np.zeros((self.width, n_columns)))

    def accumulate(self, block: Block, state: BlockState, broadcast: tuple[NDArray[Any], None], total: ProductSum) -> BlockState:
        M, R = self.view(block), broadcast[0]
        Y = block.work.matmul(M, R.T, "product")
        if not isinstance(M, np.ndarray):
            total.product += (M.T @ Y).T
            return state
        for start in range(0, M.shape[1], _PART_COLUMNS):
            part = slice(start, start + _PART_COLUMNS)
            total.product[:, part] += block.work.matmul(Y.T, M[:, part], "part")
        return state


@dataclass
class Grams(PartialSums, name="svd_tiles", disclosure=Released("products of the columns' sketches")):
    """Inner products of the basis S (s, m) with its images SMᵀM and with itself, and the squared norms of the residuals."""

    images: NDArray[Any]
    overlaps: NDArray[Any]
    residuals: NDArray[Any]


@dataclass(frozen=True)
class RandomBlock:
    """The first block R of the basis, random and the same for the same shape."""

    width: int

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        shape = self.width, tile.columns.stop - tile.columns.start
        R = np.random.default_rng([0, tile.number]).standard_normal(shape)
        empty = np.empty((0, shape[1]))
        return {"basis": empty, "images": empty, "R": R}, Grams(np.zeros(()), np.zeros(()), np.zeros(()))


def extend(tile: Tile) -> tuple[StateArrays, PartialSums]:
    """Add R and its image to the basis, and return the inner products."""
    basis = np.vstack([tile.state["basis"], tile.state["R"]])
    images = np.vstack([tile.state["images"], tile.sums["product"]])
    return {"basis": basis, "images": images}, Grams(basis @ images.T, basis @ basis.T, np.zeros(()))


@dataclass(frozen=True)
class Rotate:
    """The new blocks X and P, given their coefficients (l, s) in the basis, and R from the values (l,) of X."""

    X: NDArray[np.float64]
    P: NDArray[np.float64]
    values: NDArray[np.float64]

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        C = np.vstack([self.X, self.P])
        basis, images = C @ tile.state["basis"], C @ tile.state["images"]
        n = len(self.X)
        R = images[:n] - self.values[:, None] * basis[:n]
        return {"basis": basis, "images": images, "R": R}, Grams(np.zeros(()), np.zeros(()), np.square(R).sum(axis=1))


@dataclass(frozen=True)
class Keep:
    """The first k vectors of X alone."""

    k: int

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        return {"V": tile.state["basis"][: self.k]}, Grams(np.zeros(()), np.zeros(()), np.zeros(()))


def leading_vectors(
    k: int,
    width: int,
    dtype: np.dtype[Any],
    view: Callable[[Block], Any],
    tolerance: float,
    max_passes: int,
    on_pass: Callable[[int], None] = lambda _: None,
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64], int, bool]]:
    """Return the k leading eigenvectors (m, k) and eigenvalues of MᵀM, from blocks of ``width`` vectors.

    The iteration ends when every pair has ‖MᵀMv − λv‖ ≤ ``tolerance`` √(λ₁·max(λ, ``tolerance``² λ₁)), or after ``max_passes``. Also
    return the number of passes, and whether all pairs have converged. ``on_pass`` is called with the number of passes after each.
    """
    yield from step_tiles(RandomBlock(width))
    for number in range(1, max_passes + 1):
        yield from run(ProductPass(dtype, view, width), TileBroadcast("R", dtype))
        grams = yield from step_tiles(extend)
        coefficients, values = _ritz_pairs(grams, width)
        previous = coefficients.copy()
        previous[:, : width if coefficients.shape[1] > width else 0] = 0  # without the part of the previous X
        rotated = yield from step_tiles(Rotate(coefficients, previous, values))
        allowed = tolerance * np.sqrt(values[0] * np.maximum(values[:k], tolerance**2 * values[0]))
        converged = bool((np.sqrt(rotated.residuals[:k]) <= allowed).all())
        on_pass(number)
        if converged:
            break
    yield from step_tiles(Keep(k))
    V = yield from read_tiles("V", np.dtype(np.float64))
    return V.T, values[:k], number, converged


def _ritz_pairs(grams: Grams, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the coefficients (l, s) of the leading Ritz vectors in the basis, orthonormal, and their values (l,)."""
    norms = np.sqrt(np.diag(grams.overlaps))
    scale = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    overlaps = scale[:, None] * (grams.overlaps + grams.overlaps.T) / 2 * scale
    images = scale[:, None] * (grams.images + grams.images.T) / 2 * scale
    sizes, vectors = eigh(overlaps)
    kept = sizes > _INDEPENDENT * sizes[-1]
    whitened = vectors[:, kept] / np.sqrt(sizes[kept])
    values, rotation = eigh(whitened.T @ images @ whitened)
    found = min(width, len(values))
    coefficients, all_values = np.zeros((width, len(scale))), np.zeros(width)
    coefficients[:found] = (scale[:, None] * (whitened @ rotation[:, ::-1][:, :found])).T
    all_values[:found] = np.maximum(values[::-1][:found], 0)
    return coefficients, all_values
