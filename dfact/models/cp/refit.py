"""A fit of CP for its vectors alone: without shrinkage on the support that the penalties leave, and without factors of the rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver
from dfact.models.cp.block_descent import descend
from dfact.models.cp.passes import EPSILON
from dfact.models.cp.path import REFINING_LAMBDA
from dfact.models.cp.problem import ElasticNet, Factors
from dfact.models.cp.starts import Parameters, make_descent
from dfact.models.fit_task import FitTask


@dataclass(frozen=True, eq=False)
class Vectors:
    """Solution of a fit, components in the order of the start."""

    others: Factors
    """Factors of modes 2 to N, components first (R, I_n)."""
    weights: NDArray[np.float64]
    """γ_r = Π_n ‖a_r⁽ⁿ⁾‖ over all modes (R,)."""
    converged: bool


def unshrunken_vectors(model: Parameters, task: FitTask[Any], max_iter: int, tol: float) -> Solver[Vectors]:
    """Fit the vectors of modes 2 to N: algorithm 1, then algorithm 2 on the support that it leaves.

    The second needs no run where λ is that of algorithm 2 or less. Both end when the estimated relative distance of the
    objective from its limit falls below ``tol``.
    """
    net: ElasticNet = task.problem
    _, descent, _ = yield from make_descent(model, task.dataset, task.dtype)
    _, converged = yield from descend(descent, net, max_iter, tol)
    if net.lam > REFINING_LAMBDA:
        yield from descent.support_counts()  # sets the support of mode 1
        supports = [(np.abs(A) > EPSILON).astype(np.float64) for A in descent.others]
        descent = descent.refinement(supports)
        _, refined = yield from descend(descent, replace(net, lam=REFINING_LAMBDA), max_iter, tol)
        converged = converged and refined
    _, weights = yield from descent.evaluate()
    return Vectors(descent.others, weights, converged)
