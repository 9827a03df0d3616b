"""Algorithm 3: CP solutions along increasing λ, each started from the previous one, and refined when the support changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.sources.entrance import as_numbers
from dfact.engine.requests import Solver
from dfact.errors import ParameterError
from dfact.models.cp.base import CPModel
from dfact.models.cp.block_descent import Descent, descend
from dfact.models.cp.passes import EPSILON
from dfact.models.cp.problem import ElasticNet, component_weights, nonzero
from dfact.models.fit_task import fitted_attributes
from dfact.progress import relative_change, remaining_change

REFINING_LAMBDA = 1e-8
_REFINING_ITERATIONS = 100
_ROWS_AT_ONCE = 1 << 16  # of stored factors

Gather = Callable[[Descent, NDArray[np.float64]], Solver[list[Any]]]
"""Solver that copies the factors (I_n, R) of a descent, with the components in the order of these weights."""


def default_lambdas() -> NDArray[np.float64]:
    """Return 1e-10, 1e-9, …, 1, then 10, 20, …, 90, 100, 200, …, 1e10."""
    small = [10.0**e for e in range(-10, 1)]
    return np.array([*small, *(digit * 10.0**e for e in range(1, 10) for digit in range(1, 10)), 1e10])


def checked_lambdas(lambdas: Sequence[float] | None) -> list[float]:
    """Return the λ of a path, by default those of :func:`default_lambdas`. Refuse invalid ones."""
    grid = default_lambdas() if lambdas is None else as_numbers("lambdas", lambdas)
    if grid.ndim != 1 or not grid.size or not (np.diff(grid) > 0).all() or grid[0] < 0 or not np.isfinite(grid).all():
        raise ParameterError(f"lambdas are {lambdas!r}, expected increasing numbers of at least 0")
    numbers: list[float] = grid.tolist()
    return numbers


@dataclass(frozen=True, eq=False)
class PathStep:
    """Solution at one λ."""

    lam: float
    rank: int
    zeros: int
    """Number of zeros in the factors of the nonzero components."""
    relative_error: float
    """‖Δ∘(Z − X)‖ / ‖Δ∘Z‖."""
    objectives: NDArray[np.float64]
    """Objective before each iteration."""
    converged: bool
    factors: list[Any]
    """Factors (I_n, R), components in the order of their weights."""
    refined: list[Any] | None = None
    """Factors on this support without the shrinkage (algorithm 2)."""
    refined_error: float = float("nan")
    refined_objectives: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    refined_converged: bool = False
    refined_iterations: int = 0
    """Iterations of the refinement; 0 if the step has the support and the refinement of the previous one."""


@dataclass(frozen=True, eq=False)
class SolutionPath:
    """Solutions along increasing λ: ``table`` has a row for each, and ``at(i)`` returns the i-th as a fitted model."""

    steps: tuple[PathStep, ...]
    """The solutions, in the order of increasing λ."""
    base: CPModel
    """Model whose path this is, with all fitted attributes that do not depend on λ."""

    @property
    def table(self) -> pd.DataFrame:
        """Table of λ, rank, zeros, errors and iterations of each step."""
        columns = ["lam", "rank", "zeros", "relative_error", "refined_error", "refined_iterations", "converged"]
        table = pd.DataFrame([{name: getattr(step, name) for name in columns} for step in self.steps])
        table.insert(4, "iterations", [len(step.objectives) for step in self.steps])
        return table.rename(columns={"lam": "lambda"}).rename_axis("step")

    def at(self, i: int, *, refined: bool = False) -> CPModel:
        """Return step i as a fitted model: the shrunk solution, or the ``refined`` one, whose λ is that of the refinement.

        Parameters
        ----------
        i : int
            Number of the step, from 0.
        refined : bool
            Whether to return the solution without shrinkage.

        Returns
        -------
        CPModel
            A fitted model.
        """
        step, base = self.steps[i], self.base
        factors, error, objectives, converged = step.factors, step.relative_error, step.objectives, step.converged
        if refined:
            if step.refined is None:
                raise ParameterError(f"the step at λ = {step.lam:g} was not refined; expected refined=False")
            factors, error, objectives, converged = step.refined, step.refined_error, step.refined_objectives, step.refined_converged
        model = type(base)(**{**base.get_params(deep=False), "lam": REFINING_LAMBDA if refined else step.lam})
        model.__dict__.update(fitted_attributes(base))
        model.factors_, model.objective_history_, model.converged_ = factors, objectives, converged
        model.explained_share_, model.n_iter_ = 1 - error**2, len(objectives)
        model.remaining_ = remaining_change(objectives.tolist())
        squares = np.zeros(factors[0].shape[1])
        for start in range(0, factors[0].shape[0], _ROWS_AT_ONCE):
            squares += np.square(factors[0][start : start + _ROWS_AT_ONCE], dtype=np.float64).sum(axis=0)
        model._set_weights(component_weights(np.diag(squares), [A.T for A in factors[1:]]))
        return model


def trace_path(
    descent: Descent,
    net: ElasticNet,
    lambdas: Sequence[float],
    *,
    norm: float,
    max_iter: int,
    tol: float,
    refine: bool,
    gather: Gather,
    report: Callable[[PathStep], None],
) -> Solver[list[PathStep]]:
    """Return the steps of the path, each reported when it is done, up to the first at which all components are 0. ``norm`` is ‖Δ∘Z‖².

    A fit ends when an iteration changes the objective by less than ``tol``: each starts near its solution, where a few
    iterations are enough, fewer than an estimate of the remaining distance needs.
    """
    steps: list[PathStep] = []
    supports: list[NDArray[np.float64]] = []
    components = np.empty(0, np.bool_)
    for lam in lambdas:
        # Step 3: algorithm 1 from the last solution.
        objectives, converged = yield from descend(descent, replace(net, lam=float(lam)), max_iter, tol, measure=relative_change)
        # Steps 4 and 5: weights, support, rank and number of zeros.
        (squares, weights), counts = (yield from descent.evaluate()), (yield from descent.support_counts())
        previous_support = (components, supports)
        components, supports = nonzero(weights), [(np.abs(A) > EPSILON).astype(np.float64) for A in descent.others]
        zeros = counts.zeros + sum((support == 0).sum(axis=1) for support in supports)
        step = PathStep(
            float(lam),
            int(components.sum()),
            int(zeros[components].sum()),
            relative_error(squares, norm),
            np.asarray(objectives),
            converged,
            (yield from gather(descent, weights)),
        )
        # Step 6: algorithm 2 if the support has changed.
        if refine and components.any():
            if steps and _same_support(components, counts.changed, supports, previous_support):
                names = ("refined", "refined_error", "refined_objectives", "refined_converged")
                step = replace(step, **{name: getattr(steps[-1], name) for name in names})
            else:
                step = yield from _refined(step, descent.refinement(supports), net, norm, tol, gather)
        steps.append(step)
        report(step)
        if not components.any():
            break
    return steps


def _refined(step: PathStep, descent: Descent, net: ElasticNet, norm: float, tol: float, gather: Gather) -> Solver[PathStep]:
    objectives, converged = yield from descend(
        descent, replace(net, lam=REFINING_LAMBDA), _REFINING_ITERATIONS, tol, measure=relative_change
    )
    squares, weights = yield from descent.evaluate()
    return replace(
        step,
        refined=(yield from gather(descent, weights)),
        refined_error=relative_error(squares, norm),
        refined_objectives=np.asarray(objectives),
        refined_converged=converged,
        refined_iterations=len(objectives),
    )


def relative_error(squares: float, norm: float) -> float:
    """Return ‖Δ∘(Z − X)‖ / ‖Δ∘Z‖ from the squares of both."""
    return float(np.sqrt(squares / norm)) if norm > 0 else 0.0


def _same_support(
    components: NDArray[np.bool_],
    changed: NDArray[np.float64],
    supports: list[NDArray[np.float64]],
    previous: tuple[NDArray[np.bool_], Any],
) -> bool:
    """Return whether the same components are nonzero as in the previous step, with the same zeros."""
    others = all(np.array_equal(new[components], old[components]) for new, old in zip(supports, previous[1], strict=True))
    return np.array_equal(components, previous[0]) and not changed[components].any() and others
