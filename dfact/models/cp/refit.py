"""A fit of CP for its vectors alone: the model's, and those without its penalties and constraints; no factors of the rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver
from dfact.models.cp.block_descent import descend
from dfact.models.cp.initialization import Parameters, make_descent
from dfact.models.cp.path import REFINING_LAMBDA
from dfact.models.cp.problem import ElasticNet, Factors
from dfact.models.fit_task import FitTask


@dataclass(frozen=True, eq=False)
class Vectors:
    """Solutions of a fit, components in the order of the start."""

    penalized: Factors
    """Factors of modes 2 to N of the model, components first (R, I_n)."""
    others: Factors
    """The same without penalties and constraints."""
    weights: NDArray[np.float64]
    """γ_r = Π_n ‖a_r⁽ⁿ⁾‖ of the latter over all modes (R,)."""
    converged: bool


def fit_vectors(model: Parameters, task: FitTask[Any], max_iter: int, tol: float) -> Solver[Vectors]:
    """Fit the vectors of modes 2 to N by algorithm 1, and go from there to the least squares without shrinkage and constraints.

    The components that algorithm 1 has set to 0 stay 0. Both fits end when the estimated relative distance of the objective from its
    limit falls below ``tol``.
    """
    net: ElasticNet = task.problem
    _, descent, _ = yield from make_descent(model, task.dataset, task.dtype, net)
    _, converged = yield from descend(descent, net, max_iter, tol)
    penalized = [A.copy() for A in descent.others]
    if net.lam > REFINING_LAMBDA or net.nonnegative:
        free = replace(net, lam=min(net.lam, REFINING_LAMBDA), nonnegative=False)
        _, freed = yield from descend(descent, free, max_iter, tol)
        converged = converged and freed
    _, weights = yield from descent.evaluate()
    return Vectors(penalized, descent.others, weights, converged)
