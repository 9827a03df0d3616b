"""Alternation of rows and columns in expectile matrix factorization: the columns' step between passes, and its acceptance."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.expectile import newton_columns
from dfact.models.expectile.passes import Loss, Point, Sums, above_rounding

_HALVINGS = 40
_GROWTH, _MIN_LENGTH = 1.3, 2**-10  # of a column's step after a halved one, whose curvature was inaccurate
_PLAIN_ITERATIONS = 30  # without momentum: most data converges in fewer, and momentum would end farther from the start
_MOMENTUM_DELAY, _MAX_MOMENTUM = 3, 0.95  # Nesterov's weights, and the largest of them
_ROUNDING = {"float32": 1e-6, "float64": 1e-13}  # relative, of the objective, a sum over all entries


@dataclass(frozen=True, eq=False)
class _Step:
    """Step of the columns that the next pass tries."""

    Y: NDArray[np.float64]
    direction: NDArray[np.float64]
    """Newton direction (m, k)."""
    rotation: NDArray[np.float64]
    """Transformation (k, k) after which the columns' factors are Y·rotation."""
    gram: NDArray[np.float64]
    """XᵀX (k, k) of the rows' factors that belong to Y·rotation."""
    objective: float
    columns: NDArray[np.float64]
    """Loss of each column (m,) at Y."""
    lengths: NDArray[np.float64]
    """Step length of each column (m,), as a share of the direction."""
    last: NDArray[np.float64]
    """End of the previous step without momentum (m, k)."""

    def end(self, momentum: float = 0.0) -> NDArray[np.float64]:
        """Return the columns' factors after the step, extrapolated by this share of their change since the previous step."""
        Y: NDArray[np.float64] = self.Y + self.lengths[:, None] * self.direction
        if momentum:
            Y += momentum * (Y - self.last)
        return np.asarray(Y @ self.rotation)


class Alternation:
    """Alternation of rows and columns. A pass brings the rows to their minimum, and sums one Newton step of the columns.

    The step is accepted if the next pass, which begins with it, finds that the objective has not risen. Otherwise
    the step of the columns whose loss has risen is halved, and the rows return to their previous factors.

    If rows are solved exactly, a long alternation is accelerated: rows and columns are extrapolated along their last change
    by Nesterov's weights, which restart when such a step is rejected (O'Donoghue & Candès 2015).
    """

    def __init__(self, loss: Loss, Y: NDArray[np.float64], dtype: np.dtype[np.floating], *, orthogonalize: bool) -> None:
        self._loss, self._dtype, self._orthogonalize, self._rounding = loss, dtype, orthogonalize, 1 + _ROUNDING[dtype.name]
        self._step: _Step | None = None
        self.point = Point(Y)
        self.history: list[float] = []
        """Objective after each half-step, that of the start first."""
        self.rejected = False
        """Whether the last pass rejected the step that it tried."""
        self._accelerated = 0  # steps with momentum since the last rejected one

    def restart_from(self, loss: Loss, Y: NDArray[np.float64]) -> "Alternation":
        """Return an alternation with the same settings that starts from Y, with this loss."""
        return Alternation(loss, Y, self._dtype, orthogonalize=self._orthogonalize)

    def update(self, sums: Sums) -> None:
        """Accept or reject the step by the sums of the pass at ``point``, and set ``point`` for the next pass."""
        Y, ridge = self.point.Y, self._loss.ridge
        size = ridge * float(np.vdot(Y, Y))
        before = float(sums.before.sum()) + ridge * float(sums.size_before) + size
        step = self._step
        # The comparison is negated so that NaN counts as a rise.
        self.rejected = step is not None and not before <= step.objective * self._rounding and step.lengths.max() > 0
        if step is not None and self.rejected:
            self._shorten(step, sums)
            return
        objective = float(sums.after.sum()) + ridge * float(np.trace(sums.gram)) + size
        self.history += [before, objective]
        direction = newton_direction(sums, Y, ridge)
        lengths = np.ones(len(Y)) if step is None else np.clip(_GROWTH * step.lengths, _MIN_LENGTH, 1)
        rotation, row_rotation = self._balance(sums.gram, Y + lengths[:, None] * direction)
        gram = row_rotation @ sums.gram @ row_rotation.T
        self._step = _Step(Y, direction, rotation, gram, objective, sums.after, lengths, Y if step is None else step.end())
        momentum = 0.0
        if sums.curvature.ndim == 2 and len(self.history) > 2 * _PLAIN_ITERATIONS:
            self._accelerated += 1
            momentum = min(_MAX_MOMENTUM, self._accelerated / (self._accelerated + _MOMENTUM_DELAY))
        self.point = Point(self._step.end(momentum), row_rotation, momentum=momentum)

    def _shorten(self, step: _Step, sums: Sums) -> None:
        """Undo the momentum. Without momentum, halve the step of the columns whose loss has risen, and rebalance the factors."""
        if self.point.momentum:
            self._accelerated = 0
            self.point = Point(step.end(), retry=True)
            return
        risen = ~(sums.before <= step.columns)
        np.multiply(step.lengths, 0.5, out=step.lengths, where=risen if risen.any() else True)
        if step.lengths.max() < 0.5**_HALVINGS:
            step.lengths[:] = 0
        Y = step.end()
        rotation, row_rotation = self._balance(step.gram, Y)
        self._step = replace(step, rotation=step.rotation @ rotation, gram=row_rotation @ step.gram @ row_rotation.T)
        self.point = Point(Y @ rotation, row_rotation, retry=True)

    def _balance(self, gram: NDArray[np.float64], Y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return balance(gram, Y) if self._orthogonalize else (np.eye(Y.shape[1]), np.eye(Y.shape[1]))

    def end_points(self) -> Iterator[Point]:
        """Yield the candidates for the final point in order of preference: after the last step, without momentum; before that step."""
        assert self._step is not None, "update has not been called"
        yield replace(self.point, Y=self._step.end(), momentum=0.0)
        yield Point(self._step.Y @ self._step.rotation, retry=True)

    def final_objective(self, loss: float, size: float, Y: NDArray[np.float64]) -> float:
        """Return the objective at Y, with this Σ ρ_τ and this ‖X‖² of the rows."""
        return loss + self._loss.ridge * (size + float(np.vdot(Y, Y)))

    def accepts(self, objective: float) -> bool:
        """Return whether a final point with this objective continues the descent."""
        return objective <= self.history[-1] * self._rounding


def newton_direction(sums: Sums, Y: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """Return (H_j + ridge)⁻¹(g_j − ridge·y_j) of each column (m, k), with the curvature H_j that the pass summed."""
    gradient = sums.gradient - ridge * Y
    if sums.curvature.ndim == 1:
        # Σ w/n · XXᵀ: one decomposition for all columns.
        values, U = np.linalg.eigh(sums.gram)
        share = sums.curvature / sums.n_rows
        return np.asarray(((gradient @ U) / (above_rounding(values) * share[:, None] + ridge)) @ U.T, np.float64)
    direction = np.empty_like(Y)
    newton_columns(sums.curvature, gradient, ridge, direction)
    return direction


def balance(gram: NDArray[np.float64], Y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return T and S (k, k) such that XYᵀ = (X·Sᵀ)(Y·T)ᵀ = UΣ^½ (VΣ^½)ᵀ, its singular value decomposition; ``gram`` is XᵀX.

    Among all factors with this product, these minimize ‖X‖² + ‖Y‖².
    """
    (E, x), (F, y) = _root(gram), _root(Y.T @ Y)
    P, values, Qt = np.linalg.svd((E * x).T @ (F * y))
    root = np.sqrt(values)
    T = (F / y) @ Qt.T * root
    S = ((E / x) @ P * root).T
    # The sign of a component makes its largest factor of a column positive.
    rotated = Y @ T
    sign = np.where(rotated[np.abs(rotated).argmax(axis=0), np.arange(len(values))] < 0, -1.0, 1.0)
    return T * sign, S * sign[:, None]


def _root(gram: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the eigenvectors of a Gram matrix and the roots of its eigenvalues, raised to rounding level so that they can divide."""
    values, vectors = np.linalg.eigh(gram)
    floor = max(float(values[-1]), np.finfo(float).tiny) * np.finfo(float).eps
    return vectors, np.sqrt(np.maximum(values, floor))
