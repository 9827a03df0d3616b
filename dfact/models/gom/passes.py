"""Passes of grade of membership: counts of the responses, and the memberships by a projection of the responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, RowFactors
from dfact.engine.passes import Block, PartialSums, Pass, Withheld
from dfact.kernels.entries import all_whole, filled
from dfact.lazy import sp
from dfact.linalg.row_points import squared_norms
from dfact.linalg.svd import Matrix, zero_filled

PURE, MIXED = 0.9, 0.7  # bounds of the highest membership of highly pure (from) and highly mixed (up to) subjects, definition 1


@dataclass(frozen=True)
class Responses:
    """View R of a block (rows, J), a copy in its working memory: answers in their original units, 0 for missing ones."""

    offset: NDArray[Any] | None
    """Value that the import subtracted from each item's answers (J,); None if it subtracted nothing."""

    def __call__(self, block: Block) -> Matrix:
        if self.offset is None:
            return zero_filled(block)
        V, work = block.values, block.work
        original = np.add(V, self.offset.astype(V.dtype), out=work.array("original", V.shape, V.dtype))
        return filled(original, out=work.array("filled", V.shape, V.dtype))


@dataclass(frozen=True, eq=False)
class Respondents:
    """View of a block in which all answers of a subject without any response are missing."""

    offset: NDArray[Any]
    """Value that the import subtracted from each item's answers (J,)."""

    def __call__(self, block: Block) -> Block:
        M = block.values
        out = block.work.array("respondents", M.shape, M.dtype)
        np.add(M, self.offset.astype(M.dtype), out=out)
        silent = np.nansum(out, axis=1) == 0
        np.copyto(out, M)
        out[silent] = np.nan
        return block.with_matrix(out)


@dataclass(frozen=True)
class Regularized:
    """View L_τ = D_τ^(−½) R of a block, D_τ the row sums of R plus τ (equation 4)."""

    responses: Responses
    tau: float

    def __call__(self, block: Block) -> Matrix:
        R = self.responses(block)
        degrees = np.asarray(R.sum(axis=1)) + R.dtype.type(self.tau)
        scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
        return np.multiply(R, scale[:, None], out=R) if isinstance(R, np.ndarray) else sp.csr_array(R.multiply(scale[:, None]))


@dataclass
class ResponseCounts(PartialSums, name="gom_responses", disclosure=Withheld("has numbers of answers that few rows may have given")):
    column_sums: NDArray[Any]
    """Rᵀ1 (J,)"""
    nonrespondents: NDArray[Any]
    """Number of subjects without any response."""
    fractional: NDArray[Any]
    """Number of blocks with answers that are not whole numbers."""


@dataclass(frozen=True)
class ResponsePass(Pass[BlockState, None, ResponseCounts]):
    """Counts of the responses, for checks and for the modularity."""

    dtype: np.dtype[Any]
    responses: Responses

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, ResponseCounts]:
        R = self.responses(block)
        integral = all_whole(R if isinstance(R, np.ndarray) else R.data[None])
        column_sums = np.asarray(R.sum(axis=0, dtype=np.float64))
        return state, ResponseCounts(column_sums, np.asarray((_row_sums(R) == 0).sum()), np.asarray(int(not integral)))


@dataclass
class SpanNorms(PartialSums, name="gom_span", disclosure=Withheld("has not been reviewed for single rows")):
    inside: NDArray[Any]
    """Σ‖BᵀR(i, :)‖², of the projections of the rows on the span of B"""
    all: NDArray[Any]
    """Σ‖R(i, :)‖²"""


@dataclass(frozen=True)
class SpanPass(Pass[BlockState, NDArray[Any], SpanNorms]):
    """Share of the responses in the span of the orthonormal columns B (J, K) that are broadcast."""

    dtype: np.dtype[Any]
    responses: Responses

    def step(self, block: Block, state: BlockState, broadcast: NDArray[Any]) -> tuple[BlockState, SpanNorms]:
        R = self.responses(block)
        product = block.work.matmul(R, broadcast, "product")
        return state, SpanNorms(np.square(product, out=product).sum(dtype=np.float64), squared_norms(R).sum(dtype=np.float64))


@dataclass
class MembershipSums(PartialSums, name="gom_memberships", disclosure=Withheld("has sums over classes, which may have a single row")):
    """Sums over the memberships Π of all candidates side by side, c columns in all."""

    cross: NDArray[Any]
    """RᵀΠ (J, c)"""
    gram: NDArray[Any]
    """ΠᵀΠ (c, c)"""
    sizes: NDArray[Any]
    """Πᵀ1 (c,)"""
    pure: NDArray[Any]
    """Number of subjects with a membership of at least 0.9 in each class (c,)."""
    highly_pure: NDArray[Any]
    """Number of subjects whose highest membership is at least 0.9, for each candidate."""
    highly_mixed: NDArray[Any]
    """Number of subjects whose highest membership is at most 0.7, for each candidate."""
    nonrespondents: NDArray[Any]
    """Number of subjects without any response."""

    def split(self, widths: Sequence[int]) -> list[MembershipSums]:
        """Return the sums of each candidate."""
        ends = np.cumsum(widths)
        return [
            MembershipSums(
                self.cross[:, columns],
                self.gram[columns, columns],
                self.sizes[columns],
                self.pure[columns],
                self.highly_pure[[s]],
                self.highly_mixed[[s]],
                self.nonrespondents,
            )
            for s, columns in enumerate(slice(end - width, end) for width, end in zip(widths, ends, strict=True))
        ]


def modularity(cross: NDArray[np.float64], column_sums: NDArray[np.float64]) -> float:
    """Return Q = (‖RᵀΠ‖² − ‖Πᵀd‖²/ω) / ω with d = R(Rᵀ1) and ω = ‖Rᵀ1‖²; A = RRᵀ is never formed (equation 5)."""
    omega = column_sums @ column_sums
    return float((np.square(cross).sum() - np.square(cross.T @ column_sums).sum() / omega) / omega)


@dataclass(frozen=True)
class MembershipPass(Pass[BlockState, Sequence[NDArray[Any]], MembershipSums]):
    """Memberships Π = Z / Z1, Z = max(0, R P), for each projection P (J, K) that is broadcast; a zero row of Z becomes uniform.

    State, if ``keep``: ``factors``, Πᵀ (K, rows) for the first projection, NaN for subjects without any response.
    """

    dtype: np.dtype[Any]
    responses: Responses
    keep: bool

    def step(self, block: Block, state: BlockState, broadcast: Sequence[NDArray[Any]]) -> tuple[BlockState, MembershipSums]:
        R = self.responses(block)
        nonrespondents = _row_sums(R) == 0
        products = block.work.matmul(R, np.hstack(broadcast).astype(self.dtype), "product")
        parts = np.split(products, np.cumsum([P.shape[1] for P in broadcast])[:-1], axis=1)
        memberships = [_normalized(Z) for Z in parts]
        if self.keep:
            factors = memberships[0].T.copy()
            factors[:, nonrespondents] = np.nan
            state = RowFactors(factors)
        return state, _summarize(block, R, memberships, nonrespondents)


@dataclass(frozen=True)
class SummaryPass(Pass[BlockState, None, MembershipSums]):
    """Sums over the memberships in a state array, NaN for subjects without any response."""

    dtype: np.dtype[Any]
    responses: Responses
    memberships: str
    """Name of the array."""

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[BlockState, MembershipSums]:
        Pi = state.arrays()[self.memberships].T.astype(self.dtype)
        return state, _summarize(block, self.responses(block), [Pi], np.isnan(Pi[:, 0]))


def _summarize(block: Block, R: Matrix, memberships: Sequence[NDArray[Any]], nonrespondents: NDArray[np.bool_]) -> MembershipSums:
    Pi = np.hstack(memberships)
    Pi[nonrespondents] = 0
    highest = np.column_stack([part.max(axis=1) for part in memberships])[~nonrespondents]
    return MembershipSums(
        cross=block.work.matmul(R.T, Pi),
        gram=Pi.T @ Pi,
        sizes=Pi.sum(axis=0, dtype=np.float64),
        pure=(Pi >= PURE).sum(axis=0),
        highly_pure=(highest >= PURE).sum(axis=0),
        highly_mixed=(highest <= MIXED).sum(axis=0),
        nonrespondents=nonrespondents.sum(),
    )


def _normalized(Z: NDArray[Any]) -> NDArray[Any]:
    Z = np.maximum(Z, 0)
    totals = Z.sum(axis=1, keepdims=True)
    return np.where(totals > 0, Z / np.where(totals > 0, totals, 1), Z.dtype.type(1 / Z.shape[1]))


def _row_sums(R: Matrix) -> NDArray[Any]:
    return np.asarray(R.sum(axis=1))
