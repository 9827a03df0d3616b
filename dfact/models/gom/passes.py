"""Grade of membership's passes: what the responses are, and the memberships that a projection of them gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.engine.passes import Block, PartialSums, Pass, State
from dfact.kernels.entries import all_whole, filled
from dfact.linalg.points import squared_norms
from dfact.linalg.svd import Matrix, zero_filled

PURE, MIXED = 0.9, 0.7  # a subject's highest membership from which, and up to which, the paper's definition 1 calls it so


@dataclass(frozen=True)
class Responses:
    """R of a block (rows, J), a copy in its working memory: the answers as they were given, 0 for no response and for missing ones."""

    offset: NDArray[Any] | None
    """(J,) what the import subtracted from the answers; None if nothing"""

    def __call__(self, block: Block) -> Matrix:
        if self.offset is None:
            return zero_filled(block)
        V, work = block.values, block.work
        given = np.add(V, self.offset.astype(V.dtype), out=work.array("given", V.shape, V.dtype))
        return filled(given, out=work.array("filled", V.shape, V.dtype))


@dataclass(frozen=True)
class Regularized:
    """L_τ = D_τ^(−½) R of a block, D_τ the row sums of R plus τ (equation 4)."""

    responses: Responses
    tau: float

    def __call__(self, block: Block) -> Matrix:
        R = self.responses(block)
        degrees = np.asarray(R.sum(axis=1)) + R.dtype.type(self.tau)
        scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
        return np.multiply(R, scale[:, None], out=R) if isinstance(R, np.ndarray) else sp.csr_array(R.multiply(scale[:, None]))


@dataclass
class ResponseCounts(PartialSums, name="gom_responses"):
    column_sums: NDArray[Any]
    """Rᵀ1 (J,)"""
    silent: NDArray[Any]
    """Subjects without any response."""
    fractional: NDArray[Any]
    """Blocks with answers that are not whole numbers."""


@dataclass(frozen=True)
class ResponsePass(Pass[None, ResponseCounts]):
    dtype: np.dtype[Any]
    responses: Responses

    def step(self, block: Block, state: State | None, broadcast: None) -> tuple[State | None, ResponseCounts]:
        R = self.responses(block)
        whole = all_whole(R if isinstance(R, np.ndarray) else R.data[None])
        column_sums = np.asarray(R.sum(axis=0, dtype=np.float64))
        return state, ResponseCounts(column_sums, np.asarray((_row_sums(R) == 0).sum()), np.asarray(int(not whole)))


@dataclass
class SpanNorms(PartialSums, name="gom_span"):
    inside: NDArray[Any]
    """Σ‖BᵀR(i, :)‖² of the rows' parts in the span of B"""
    all: NDArray[Any]
    """Σ‖R(i, :)‖²"""


@dataclass(frozen=True)
class SpanPass(Pass[NDArray[Any], SpanNorms]):
    """How much of the responses lies in the span of the shared orthonormal columns B (J, K)."""

    dtype: np.dtype[Any]
    responses: Responses

    def step(self, block: Block, state: State | None, broadcast: NDArray[Any]) -> tuple[State | None, SpanNorms]:
        R = self.responses(block)
        product = block.work.matmul(R, broadcast, "product")
        return state, SpanNorms(np.square(product, out=product).sum(dtype=np.float64), squared_norms(R).sum(dtype=np.float64))


@dataclass
class MembershipSums(PartialSums, name="gom_memberships"):
    """Of the memberships Π of all candidates side by side, c columns in all."""

    cross: NDArray[Any]
    """RᵀΠ (J, c)"""
    gram: NDArray[Any]
    """ΠᵀΠ (c, c)"""
    sizes: NDArray[Any]
    """Πᵀ1 (c,)"""
    pure: NDArray[Any]
    """Subjects with a membership of at least 0.9 in each class (c,)."""
    highly_pure: NDArray[Any]
    """Subjects whose highest membership is at least 0.9, of each candidate."""
    highly_mixed: NDArray[Any]
    """The same of at most 0.7."""
    silent: NDArray[Any]
    """Subjects without any response."""

    def split(self, widths: Sequence[int]) -> "list[MembershipSums]":
        """Those of each candidate alone."""
        ends = np.cumsum(widths)
        return [
            MembershipSums(
                self.cross[:, own],
                self.gram[own, own],
                self.sizes[own],
                self.pure[own],
                self.highly_pure[[s]],
                self.highly_mixed[[s]],
                self.silent,
            )
            for s, own in enumerate(slice(end - width, end) for width, end in zip(widths, ends, strict=True))
        ]


@dataclass(frozen=True)
class MembershipPass(Pass[Sequence[NDArray[Any]], MembershipSums]):
    """Memberships Π = Z / Z1, Z = max(0, R P), of each shared projection P (J, K); a zero row of Z is uniform.

    State, if ``keep`` and of the first projection: ``factors`` Πᵀ (K, rows), NaN for subjects without any response.
    """

    dtype: np.dtype[Any]
    responses: Responses
    keep: bool

    def step(self, block: Block, state: State | None, broadcast: Sequence[NDArray[Any]]) -> tuple[State | None, MembershipSums]:
        R = self.responses(block)
        silent = _row_sums(R) == 0
        products = block.work.matmul(R, np.hstack(broadcast).astype(self.dtype), "product")
        parts = np.split(products, np.cumsum([P.shape[1] for P in broadcast])[:-1], axis=1)
        memberships = [_normalized(Z) for Z in parts]
        if self.keep:
            kept = memberships[0].T.copy()
            kept[:, silent] = np.nan
            state = {"factors": kept}
        Pi = np.hstack(memberships)
        Pi[silent] = 0
        highest = np.column_stack([part.max(axis=1) for part in memberships])[~silent]
        return state, MembershipSums(
            cross=block.work.matmul(R.T, Pi),
            gram=Pi.T @ Pi,
            sizes=Pi.sum(axis=0, dtype=np.float64),
            pure=(Pi >= PURE).sum(axis=0),
            highly_pure=(highest >= PURE).sum(axis=0),
            highly_mixed=(highest <= MIXED).sum(axis=0),
            silent=silent.sum(),
        )


def _normalized(Z: NDArray[Any]) -> NDArray[Any]:
    Z = np.maximum(Z, 0)
    totals = Z.sum(axis=1, keepdims=True)
    return np.where(totals > 0, Z / np.where(totals > 0, totals, 1), Z.dtype.type(1 / Z.shape[1]))


def _row_sums(R: Matrix) -> NDArray[Any]:
    return np.asarray(R.sum(axis=1))
