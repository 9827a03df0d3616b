"""Expectile matrix factorization of general linear measurements, the case of the paper's theory: all of them in memory, or a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import svds

from dfact.data.sources.entrance import as_numbers
from dfact.engine.requests import Solver
from dfact.errors import DataError, ParameterError
from dfact.lazy import is_sparse, sp
from dfact.models.expectile.alternation import balance
from dfact.models.expectile.passes import Loss
from dfact.parameters import is_count

T = TypeVar("T")
ROUNDS, HALVINGS = 100, 50
"""Most Newton steps of a regression, and most halvings of one."""
ROUNDING = 1e-13


class Measurements:
    """b_i ≈ ⟨A_i, XYᵀ⟩ for i = 1…p, and the alternating minimization of Σ ρ_τ(b_i − ⟨A_i, XYᵀ⟩) + ridge·(‖X‖² + ‖Y‖²)."""

    def __init__(self, A: Any, b: NDArray[np.float64], shape: tuple[int, int]) -> None:
        """A (p, n·m) holds row-major matrices, dense or CSR."""
        self.b, self._shape, self._A = b, shape, A

    # In both orders: the rows' design needs A_i Y, the columns' design A_iᵀ X.
    @cached_property
    def _by_row(self) -> Any:
        n, m = self._shape
        if isinstance(self._A, np.ndarray):
            return self._A.reshape(-1, m)
        entries = self._A.tocoo()
        i, j = np.divmod(entries.col.astype(np.int64), m)
        return sp.csr_array((entries.data, (entries.row.astype(np.int64) * n + i, j)), shape=(self._A.shape[0] * n, m))

    @cached_property
    def _by_column(self) -> Any:
        n, m = self._shape
        if isinstance(self._A, np.ndarray):
            return self._A.reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, n)
        entries = self._A.tocoo()
        i, j = np.divmod(entries.col.astype(np.int64), m)
        return sp.csr_array((entries.data, (entries.row.astype(np.int64) * m + j, i)), shape=(self._A.shape[0] * m, n))

    @classmethod
    def from_arrays(cls, A: Any, b: Any, shape: tuple[int, int]) -> Measurements:
        """Check the measurements: A (p, n, m) or (p, n·m), or sparse (p, n·m), and b (p,)."""
        if np.shape(shape) != (2,) or not all(map(is_count, shape)):
            raise ParameterError(f"shape is {shape!r}, expected numbers of rows and of columns")
        n, m = shape
        argument: Any = A
        matrices: Any = (
            sp.csr_array(argument).astype(np.float64) if is_sparse(A) else as_numbers("A", argument, "a matrix for each measurement")
        )
        dimensions = tuple(matrices.shape)
        if dimensions[1:] not in ((n, m), (n * m,)):
            raise DataError(f"A has shape {dimensions}, expected (p, {n}, {m}) or (p, {n * m}): a matrix for each measurement")
        values = as_numbers("b", b, "a number for each measurement")
        if values.shape != dimensions[:1] or not len(values):
            raise DataError(f"b has shape {values.shape}, expected {dimensions[:1]}, at least one: a number for each matrix of A")
        if not np.isfinite(matrices.data if is_sparse(A) else matrices).all() or not np.isfinite(values).all():
            raise DataError("A or b hold NaN or infinity, expected finite numbers; leave out measurements without a value")
        return cls(matrices.reshape(dimensions[0], n * m), values, (n, m))

    def total(self) -> NDArray[np.float64]:
        """Return Σ b_i A_i (n·m,)."""
        return np.asarray(self.b @ self._A)

    def scale_sums(self, model: NDArray[np.float64]) -> tuple[float, float]:
        """Return Σ b_i r_i and Σ r_i² for the measurements r of a matrix (n·m,)."""
        measured = self._A @ model
        return float(self.b @ measured), float(measured @ measured)

    def design(self, side: str, others: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the design (p, q) of one side, "rows" or "columns", given the factors of the other."""
        return np.asarray(((self._by_row if side == "rows" else self._by_column) @ others).reshape(len(self.b), -1))

    def start(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return X (n, k) and Y (m, k) of the rank-k SVD of Σ b_i A_i, scaled to fit b best."""

        def scale(model: NDArray[np.float64]) -> Solver[tuple[float, float]]:
            yield from ()
            return self.scale_sums(model)

        return without_passes(start_factors(self.total().reshape(self._shape), k, scale))

    def objective(self, X: NDArray[np.float64], Y: NDArray[np.float64], loss: Loss) -> float:
        r = self.b - self._A @ (X @ Y.T).ravel()
        w = np.where(r >= 0, loss.tau, 1 - loss.tau)
        return float(np.sum(w * r * r)) + loss.ridge * float(np.vdot(X, X) + np.vdot(Y, Y))

    def alternate(
        self, X: NDArray[np.float64], Y: NDArray[np.float64], loss: Loss, history: list[float], *, orthogonalize: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Minimize in X given Y, and then in Y given X. Append the objective after each to the history.

        ⟨A_i, XYᵀ⟩ is linear in X, with the design A_i Y, and in Y, with A_iᵀ X.
        """

        def minimum(side: str, others: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
            solution, value = expectile_regression(self.design(side, others), self.b, loss, start.ravel())
            history.append(value + loss.ridge * float(np.vdot(others, others)))
            return solution.reshape(start.shape)

        X = minimum("rows", Y, X)
        Y = minimum("columns", X, Y)
        if orthogonalize:
            rotation, row_rotation = balance(X.T @ X, Y)
            X, Y = X @ row_rotation.T, Y @ rotation
        return X, Y


def start_factors(
    total: NDArray[np.float64], k: int, scale: Callable[[NDArray[np.float64]], Solver[tuple[float, float]]]
) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return X (n, k) and Y (m, k) of the rank-k SVD of Σ b_i A_i, ``total`` (n, m), scaled to fit b best.

    ``scale`` returns Σ b_i r_i and Σ r_i² for the measurements r of a matrix (n·m,).
    """
    X, Y = np.zeros((total.shape[0], k)), np.zeros((total.shape[1], k))
    if not total.any():  # ARPACK does not converge for a matrix of zeros
        return X, Y
    if k < min(total.shape):
        U, values, Vt = svds(total, k, rng=np.random.default_rng(0))
    else:
        U, values, Vt = np.linalg.svd(total, full_matrices=False)
    cross, squares = yield from scale(((U * values) @ Vt).ravel())
    root = np.sqrt(values * max(cross / max(squares, np.finfo(float).tiny), 0.0))
    X[:, : len(root)], Y[:, : len(root)] = U * root, Vt.T * root
    return X, Y


def without_passes(solver: Solver[T]) -> T:
    """Return the result of a solver that requests no pass."""
    try:
        next(solver)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the solver requests a pass")


def expectile_regression(
    D: NDArray[np.float64], b: NDArray[np.float64], loss: Loss, x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Minimize Σ ρ_τ(b − Dx) + ridge‖x‖² for the design D (p, q), from x. Return the minimizer (q,) and the minimum.

    The method is Newton's on the signs of the residuals; a step that does not lower the objective is halved.
    """

    def evaluate(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        r = b - D @ x
        w = np.where(r >= 0, loss.tau, 1 - loss.tau)
        return w, float(np.sum(w * r * r)) + loss.ridge * float(x @ x)

    w, objective = evaluate(x)
    for _ in range(ROUNDS):
        scaled = D * w[:, None]
        end = cho_solve(cho_factor(scaled.T @ D + loss.ridge * np.eye(D.shape[1])), scaled.T @ b)
        (signs, value), halvings = evaluate(end), 0
        while not value <= objective * (1 + ROUNDING) and halvings < HALVINGS:  # NaN does not count as descent
            halvings, end = halvings + 1, (x + end) / 2
            signs, value = evaluate(end)
        if halvings == HALVINGS:  # rounding is all that is left to gain
            break
        converged = halvings == 0 and (signs == w).all()
        x, w, objective = end, signs, value
        if converged:
            break
    return x, objective
