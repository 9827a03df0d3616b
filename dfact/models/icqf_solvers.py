"""ICQF's solvers: what the driver does between passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.box_lasso import box_lasso
from dfact.models.icqf_passes import ADMMPass, Problem, SplitlessPass, Start, Sums

_SWEEPS, _TOLERANCE = 200, 1e-7  # for the loadings, of which there are few
_EXTRAPOLATION = 0.8  # of the last step of Q; fewest passes on real questionnaires, from 0.5 to 0.95
_RHO_START, _RHO_GROWTH = 0.1, 1.05


class ADMM:
    """The paper's algorithm 1, with Z = [W, C]Qᵀ split off and its dual kept as one array of state."""

    def __init__(self, problem: Problem, begin: Start, dtype: np.dtype[Any]) -> None:
        self.problem = problem
        self.pass_ = ADMMPass(problem, begin, dtype)

    def shared(self, Q: NDArray[Any]) -> NDArray[Any]:
        return Q

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> NDArray[Any]:
        """Step 2 of an iteration, from the sums of a pass: steps 3 and 4 of the one before (Z and A), and step 1 (W)."""
        return _solve(self.problem, sums, Q, self.problem.rho)

    def next_point(self, Q: NDArray[Any], lagrangians: Sequence[float]) -> NDArray[Any]:
        return Q


class Splitless:
    """Only the bounds of Z are split off; missing entries are filled in by the model.

    A pass minimises a quadratic above the augmented Lagrangian (see :func:`dfact.kernels.bound_fill.bound_fill`),
    in W and then in Q. Between passes Q is extrapolated along its last step (Ang & Gillis 2019), unless
    the Lagrangian has risen. ρ starts at a tenth of its value and is raised by 5 % a pass: the
    objective falls fastest while it is small, the bounds are met when it is large.
    """

    def __init__(self, problem: Problem, begin: Start, dtype: np.dtype[Any]) -> None:
        self.problem = problem
        self.pass_ = SplitlessPass(problem, begin, dtype)
        self._rho = _RHO_START * problem.rho
        self._previous: NDArray[Any] | None = None

    def shared(self, Q: NDArray[Any]) -> tuple[NDArray[Any], float]:
        return Q, self._rho

    def loadings(self, sums: Sums, Q: NDArray[Any]) -> NDArray[Any]:
        return _solve(self.problem, sums, Q, 1.0)

    def next_point(self, Q: NDArray[Any], lagrangians: Sequence[float]) -> NDArray[Any]:
        previous, self._previous = self._previous, Q
        self._rho = min(self.problem.rho, _RHO_GROWTH * self._rho)
        if previous is None or lagrangians[-1] > (1 + 1e-3) * lagrangians[-2]:
            return Q
        point: NDArray[Any] = np.clip(Q + Q.dtype.type(_EXTRAPOLATION) * (Q - previous), 0, self.problem.q_max)
        return point


def _solve(problem: Problem, sums: Sums, Q: NDArray[Any], weight: float) -> NDArray[Any]:
    """The minimum over 0 ≤ Q ≤ q_max of weight/2 ‖B − [W, C]Q‖² + βγ‖Q‖₁."""
    solution = Q.astype(np.float64)
    scale = problem.q_max if np.isfinite(problem.q_max) else 1.0
    box_lasso(solution, sums.cross, sums.gram, len(solution), problem.loadings_penalty / weight, problem.q_max, _SWEEPS, _TOLERANCE * scale)
    return solution.astype(Q.dtype)
