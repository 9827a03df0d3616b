"""The fit of memberships by binomial likelihood: one read of the data makes a Newton step of all rows, then of all columns."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.kernels.binomial import EDGE, newton_columns
from dfact.linalg.binomial.passes import Point, StepPass, StepSums

_EM_READS = 2  # at the beginning, as a Newton step from a start is often too long
_WINDOW = 3
_RCOND = 1e-10  # of the coefficients of the extrapolation
_FALL = 1e-9  # fall of the log-likelihood, relative, from which a point is rejected

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Maximum:
    """The result of a fit."""

    P: Floats
    """Frequencies (K, m)."""
    sizes: Floats
    """Sums of the memberships (K,)."""
    history: list[float]
    """Log-likelihood of each accepted point: it never falls."""
    n_reads: int
    converged: bool
    state: str
    """Name of the state array with the memberships that belong to P."""


class Extrapolation:
    """Anderson's extrapolation of the frequencies from the last steps (Anderson 1965), with a window of 3."""

    def __init__(self) -> None:
        self._points: deque[Floats] = deque(maxlen=_WINDOW)
        self._residuals: deque[Floats] = deque(maxlen=_WINDOW)
        self._last: tuple[Floats, Floats] | None = None

    def clear(self) -> None:
        """Forget all steps."""
        self._points.clear()
        self._residuals.clear()
        self._last = None

    def add(self, P: Floats, following: Floats) -> Floats | None:
        """Add the step from P to ``following``. Return the extrapolated point; None if no earlier step is known."""
        residual = (following - P).ravel()
        if self._last is not None:
            self._points.append(P.ravel() - self._last[0])
            self._residuals.append(residual - self._last[1])
        self._last = P.ravel(), residual
        if not self._points:
            return None
        gram = np.array([[float(r @ s) for s in self._residuals] for r in self._residuals])
        right = np.array([float(r @ residual) for r in self._residuals])
        extrapolated = following.ravel().copy()
        for weight, x, r in zip(np.linalg.lstsq(gram, right, rcond=_RCOND)[0], self._points, self._residuals, strict=True):
            extrapolated -= weight * (x + r)
        clipped: Floats = np.clip(extrapolated, EDGE, 1 - EDGE).reshape(P.shape)
        return clipped


def step_columns(P: Floats, sums: StepSums) -> tuple[Floats, Floats]:
    """Return the frequencies after Newton's step of each column, and after the EM's, which are the same without curvatures."""
    up, down = sums.up * P, sums.down * (1 - P)
    total = up + down
    em = np.clip(np.divide(up, total, out=P.copy(), where=total > 0), EDGE, 1 - EDGE)
    if not len(sums.curvature):
        return em, em
    newton = P.copy()
    newton_columns(newton, sums.up - sums.down, sums.curvature)
    return newton, em


def maximize_likelihood(
    pass_: StepPass,
    P: Floats,
    *,
    tol: float,
    max_iter: int,
    report: Callable[[Sequence[float]], Any] = lambda _: None,
    em_reads: int = _EM_READS,
) -> Solver[Maximum]:
    """Maximize the likelihood from frequencies P (K, m) and the memberships in the state.

    The merit of a point is its log-likelihood after the rows' step. If it falls, the fit returns to the last accepted point's
    Newton step without extrapolation, then to its EM step, which cannot fall. It ends when the merit rises by at most ``tol``,
    relative, or after ``max_iter`` reads. The first ``em_reads`` make EM steps; near a maximum there need not be any.
    """
    point = Point(np.clip(P, EDGE, 1 - EDGE), newton=em_reads == 0)
    extrapolation, fallbacks = Extrapolation(), list[Floats]()
    accepted, sizes, history = point.P, np.zeros(len(P)), list[float]()
    n_reads, converged, rejected = 0, False, False
    while n_reads < max_iter and not converged:
        priming = n_reads < em_reads
        sums = yield from run(pass_, point)
        n_reads, merit = n_reads + 1, float(sums.log_likelihood)
        rejected = bool(history) and merit < history[-1] - _FALL * abs(history[-1])
        if rejected:
            if not fallbacks:
                converged = True  # rounding is all that is left
                break
            extrapolation.clear()
            point = Point(fallbacks.pop(), newton=n_reads >= em_reads, retry=True)
            continue
        converged = bool(history) and not priming and merit - history[-1] <= tol * abs(merit)
        history.append(merit)
        accepted, sizes = point.P, sums.sizes
        report(history)
        newton, em = step_columns(point.P, sums)
        following = None if priming else extrapolation.add(point.P, newton)
        fallbacks = [em] if following is None else [em, newton]
        point = Point(newton if following is None else following, newton=n_reads >= em_reads)
    return Maximum(accepted, sizes, history, n_reads, converged, "previous" if rejected else "factors")
