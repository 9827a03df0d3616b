"""Leading right singular vectors of the zero-filled data, by passes; and the NNDSVD start from them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, qr

from dfact.engine.executors import Session
from dfact.engine.passes import Block, Partial, Startless, State
from dfact.kernels.entries import filled

_GRAM_COLUMNS = 512  # up to here M'M costs no more than the passes of the block iteration
_OVERSAMPLING = 10


@dataclass
class GramSum(Partial):
    gram: NDArray[Any]


@dataclass(frozen=True)
class GramPass(Startless):
    """MᵀM of the zero-filled data."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: None) -> tuple[State | None, GramSum]:
        M = filled(block.values)
        return state, GramSum(M.T @ M)


@dataclass(frozen=True)
class SketchPass(Startless):
    """MᵀMΩ of the zero-filled data, with the shared Ω (m, l)."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: NDArray[Any]) -> tuple[State | None, GramSum]:
        M = filled(block.values)
        return state, GramSum(M.T @ (M @ shared))


def right_singular(
    session: Session, n_columns: int, k: int, dtype: np.dtype[Any], *, tolerance: float = 1e-3, max_passes: int = 20
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The k leading right singular vectors V (m, k) and values σ (k) of the zero-filled data.

    Up to 512 columns from the Gram matrix, in one pass. Beyond, by block power iteration on a
    random start (Halko, Martinsson & Tropp 2011, algorithm 4.4) until the values change by less
    than ``tolerance`` of the largest. The start is fixed, so the result depends on the data alone.
    Each vector's largest entry is positive.
    """
    if n_columns <= max(_GRAM_COLUMNS, k + _OVERSAMPLING):
        values, vectors = eigh(session.run(GramPass(dtype), None).gram)
        basis: NDArray[Any] = np.eye(n_columns)
    else:
        width = k + _OVERSAMPLING
        basis = qr(np.random.default_rng(0).standard_normal((n_columns, width)), mode="economic")[0]
        before = np.zeros(k)
        for _ in range(max_passes):
            product = session.run(SketchPass(dtype), basis.astype(dtype)).gram
            projected = basis.T @ product
            values, vectors = eigh((projected + projected.T) / 2)
            leading = np.sqrt(np.maximum(values[::-1][:k], 0))
            if np.abs(leading - before).max() <= tolerance * leading[0]:
                break
            before, basis = leading, qr(product, mode="economic")[0]
    V = basis @ vectors[:, ::-1][:, :k]
    V *= np.where(V[np.abs(V).argmax(axis=0), np.arange(k)] < 0, -1.0, 1.0)
    return V, np.sqrt(np.maximum(values[::-1][:k], 0))


@dataclass
class SignNorms(Partial):
    positive: NDArray[Any]
    negative: NDArray[Any]


@dataclass(frozen=True)
class SignNormsPass(Startless):
    """Squared norms of the positive and the negative part of every column of M·P, with the shared P (m, k)."""

    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, shared: NDArray[Any]) -> tuple[State | None, SignNorms]:
        U = filled(block.values) @ shared
        return state, SignNorms(np.square(np.maximum(U, 0)).sum(axis=0), np.square(np.minimum(U, 0)).sum(axis=0))


def nndsvd(session: Session, n_columns: int, k: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The NNDSVD start of the zero-filled data (Boutsidis & Gallopoulos 2008).

    Returns the loadings (k, m) and P (m, k), from which the rows' factors are max(M P, 0): of each
    singular pair the sign is taken whose parts of u and v carry more.
    """
    V, sigma = right_singular(session, n_columns, k, dtype)
    safe = np.where(sigma > 0, sigma, 1.0)
    norms = session.run(SignNormsPass(dtype), (V / safe).astype(dtype))
    u = np.sqrt(np.stack([norms.positive, norms.negative]))  # (2, k)
    v = np.stack([np.linalg.norm(np.maximum(sign * V, 0), axis=0) for sign in (1, -1)])
    choice = (u * v).argmax(axis=0)
    sign = np.where(choice == 0, 1.0, -1.0)
    u, v = (np.take_along_axis(norms, choice[None], axis=0)[0] for norms in (u, v))
    scale = np.sqrt(sigma * u * v)
    loadings = np.maximum(sign * V, 0) * (scale / np.where(v > 0, v, 1.0))
    projection = V * (sign * scale / (np.where(u > 0, u, 1.0) * safe))
    return loadings.T.copy(), projection
