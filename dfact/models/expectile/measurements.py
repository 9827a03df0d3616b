"""Expectile matrix factorization of general linear measurements, in memory: the case of the paper's theory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import svds

from dfact.data.sources.entrance import as_numbers
from dfact.errors import DataError, ParameterError
from dfact.lazy import is_sparse, sp
from dfact.models.expectile.alternation import balance
from dfact.models.expectile.passes import Loss
from dfact.parameters import is_count

_ROUNDS, _HALVINGS = 100, 50
_ROUNDING = 1e-13


class Measurements:
    """b_i ≈ ⟨A_i, XYᵀ⟩ for i = 1…p, and the alternating minimization of Σ ρ_τ(b_i − ⟨A_i, XYᵀ⟩) + ridge·(‖X‖² + ‖Y‖²)."""

    def __init__(self, A: Any, b: NDArray[np.float64], shape: tuple[int, int]) -> None:
        """A (p, n·m) holds row-major matrices, dense or CSR."""
        self._b, self._shape, self._A = b, shape, A
        n, m = shape
        # Stored in both orders: the rows' design needs A_i Y, the columns' design A_iᵀ X.
        if isinstance(A, np.ndarray):
            self._by_row: Any = A.reshape(-1, m)
            self._by_column: Any = A.reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, n)
        else:
            entries = A.tocoo()
            i, j = np.divmod(entries.col.astype(np.int64), m)
            self._by_row = sp.csr_array((entries.data, (entries.row * n + i, j)), shape=(A.shape[0] * n, m))
            self._by_column = sp.csr_array((entries.data, (entries.row * m + j, i)), shape=(A.shape[0] * m, n))

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

    def start(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return X (n, k) and Y (m, k) of the rank-k SVD of Σ b_i A_i, scaled to fit b best."""
        X, Y = np.zeros((self._shape[0], k)), np.zeros((self._shape[1], k))
        total = (self._b @ self._A).reshape(self._shape)
        if not total.any():  # ARPACK does not converge for a matrix of zeros
            return X, Y
        if k < min(self._shape):
            U, values, Vt = svds(total, k, rng=np.random.default_rng(0))
        else:
            U, values, Vt = np.linalg.svd(total, full_matrices=False)
        model = self._A @ ((U * values) @ Vt).ravel()
        scale = max(float(self._b @ model) / max(float(model @ model), np.finfo(float).tiny), 0.0)
        root = np.sqrt(values * scale)
        X[:, : len(root)], Y[:, : len(root)] = U * root, Vt.T * root
        return X, Y

    def objective(self, X: NDArray[np.float64], Y: NDArray[np.float64], loss: Loss) -> float:
        r = self._b - self._A @ (X @ Y.T).ravel()
        w = np.where(r >= 0, loss.tau, 1 - loss.tau)
        return float(np.sum(w * r * r)) + loss.ridge * float(np.vdot(X, X) + np.vdot(Y, Y))

    def alternate(
        self, X: NDArray[np.float64], Y: NDArray[np.float64], loss: Loss, history: list[float], *, orthogonalize: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Minimize in X given Y, and then in Y given X. Append the objective after each to the history.

        ⟨A_i, XYᵀ⟩ is linear in X, with the design A_i Y, and in Y, with A_iᵀ X.
        """

        def minimum(by_side: Any, others: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
            design = (by_side @ others).reshape(len(self._b), -1)
            solution, value = expectile_regression(design, self._b, loss, start.ravel())
            history.append(value + loss.ridge * float(np.vdot(others, others)))
            return solution.reshape(start.shape)

        X = minimum(self._by_row, Y, X)
        Y = minimum(self._by_column, X, Y)
        if orthogonalize:
            rotation, row_rotation = balance(X.T @ X, Y)
            X, Y = X @ row_rotation.T, Y @ rotation
        return X, Y


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
    for _ in range(_ROUNDS):
        scaled = D * w[:, None]
        end = cho_solve(cho_factor(scaled.T @ D + loss.ridge * np.eye(D.shape[1])), scaled.T @ b)
        (signs, value), halvings = evaluate(end), 0
        while not value <= objective * (1 + _ROUNDING) and halvings < _HALVINGS:  # NaN does not count as descent
            halvings, end = halvings + 1, (x + end) / 2
            signs, value = evaluate(end)
        if halvings == _HALVINGS:  # rounding is all that is left to gain
            break
        converged = halvings == 0 and (signs == w).all()
        x, w, objective = end, signs, value
        if converged:
            break
    return x, objective
