"""Algorithm 3: CP solutions along increasing λ, each from the one before, and refined where the support changes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.models.cp.block_descent import Solver, descend
from dfact.models.cp.passes import EPSILON
from dfact.models.cp.problem import ElasticNet, nonzero
from dfact.progress import relative_change

if TYPE_CHECKING:
    from dfact.models.cp.elastic import ElasticCP

REFINING_LAMBDA = 1e-8
_REFINING_ITERATIONS = 100

Gather = Callable[[Solver, NDArray[np.float64]], list[Any]]
"""The factors (I_n, R) of a solver, to keep, with the components in the order of these weights."""


def default_lambdas() -> NDArray[np.float64]:
    """1e-10, 1e-9, …, 1, then 10, 20, …, 90, 100, 200, …, 1e10."""
    small = [10.0**e for e in range(-10, 1)]
    return np.array([*small, *(digit * 10.0**e for e in range(1, 10) for digit in range(1, 10)), 1e10])


def checked_lambdas(lambdas: Sequence[float] | None) -> list[float]:
    """The λ of a path, if they are some that can be."""
    grid = default_lambdas() if lambdas is None else np.asarray(lambdas, np.float64)
    if grid.ndim != 1 or not grid.size or not (np.diff(grid) > 0).all() or grid[0] < 0 or not np.isfinite(grid).all():
        raise ParameterError(f"lambdas are {lambdas!r}, expected increasing numbers of at least 0")
    found: list[float] = grid.tolist()
    return found


@dataclass(frozen=True, eq=False)
class PathStep:
    """The solution at one λ."""

    lam: float
    rank: int
    zeros: int
    """In the factors of the components that are left."""
    relative_error: float
    """‖Δ∘(Z − X)‖ / ‖Δ∘Z‖."""
    objectives: NDArray[np.float64]
    """Before each iteration."""
    converged: bool
    factors: list[Any]
    """(I_n, R), components in the order of their weights."""
    refined: list[Any] | None = None
    """The same on this support without the shrinkage (algorithm 2)."""
    refined_error: float = float("nan")
    refined_objectives: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    refined_converged: bool = False
    refined_iterations: int = 0
    """0 where the support is that of the step before, whose refinement this is."""


@dataclass(frozen=True, eq=False)
class SolutionPath:
    """Solutions along increasing λ; ``table`` has a row for each, ``at(i)`` is the i-th as a fitted model."""

    steps: tuple[PathStep, ...]
    base: "ElasticCP"
    """The model whose path it is, with all that is fitted but the factors."""

    @property
    def table(self) -> pd.DataFrame:
        """λ, rank, zeros, errors and iterations of each step."""
        columns = ["lam", "rank", "zeros", "relative_error", "refined_error", "refined_iterations", "converged"]
        table = pd.DataFrame([{name: getattr(step, name) for name in columns} for step in self.steps])
        table.insert(4, "iterations", [len(step.objectives) for step in self.steps])
        return table.rename(columns={"lam": "lambda"}).rename_axis("step")

    def at(self, i: int, *, refined: bool = False) -> "ElasticCP":
        """Step i as a fitted model: the shrunk solution, or the ``refined`` one, whose λ is that of the refinement."""
        return self.base._at(self.steps[i], refined=refined)


def trace_path(
    solver: Solver, net: ElasticNet, lambdas: Sequence[float], *, norm: float, max_iter: int, tol: float, refine: bool, gather: Gather
) -> Iterator[PathStep]:
    """The steps of the path, up to the first at which nothing is left. ``norm`` is ‖Δ∘Z‖².

    A fit ends when an iteration changes the objective by less than ``tol``: each starts near its end, where a few iterations
    are enough, fewer than the estimate of the distance needs.
    """
    previous: PathStep | None = None
    supports: list[NDArray[np.float64]] = []
    kept = np.empty(0, np.bool_)
    for lam in lambdas:
        # Step 3: algorithm 1 from the last solution.
        objectives, converged = descend(solver, replace(net, lam=float(lam)), max_iter, tol, measure=relative_change)
        # Steps 4 and 5: weights, support, rank and number of zeros.
        (squares, weights), support_counts = solver.evaluate(), solver.support_counts()
        left, before = nonzero(weights), (kept, supports)
        kept, supports = left, [(np.abs(A) > EPSILON).astype(np.float64) for A in solver.others]
        zeros = support_counts.zeros + sum((support == 0).sum(axis=1) for support in supports)
        step = PathStep(
            float(lam),
            int(left.sum()),
            int(zeros[left].sum()),
            relative_error(squares, norm),
            np.asarray(objectives),
            converged,
            gather(solver, weights),
        )
        # Step 6: algorithm 2 where the support is another one.
        if refine and left.any():
            same = previous is not None and _same(left, support_counts.changed, supports, before)
            if same and previous is not None:
                names = ("refined", "refined_error", "refined_objectives", "refined_converged")
                step = replace(step, **{name: getattr(previous, name) for name in names})
            else:
                step = _refined(step, solver.refinement(supports), net, norm, tol, gather)
        previous = step
        yield step
        if not left.any():
            return


def _refined(step: PathStep, solver: Solver, net: ElasticNet, norm: float, tol: float, gather: Gather) -> PathStep:
    objectives, converged = descend(solver, replace(net, lam=REFINING_LAMBDA), _REFINING_ITERATIONS, tol, measure=relative_change)
    squares, weights = solver.evaluate()
    return replace(
        step,
        refined=gather(solver, weights),
        refined_error=relative_error(squares, norm),
        refined_objectives=np.asarray(objectives),
        refined_converged=converged,
        refined_iterations=len(objectives),
    )


def relative_error(squares: float, norm: float) -> float:
    """‖Δ∘(Z − X)‖ / ‖Δ∘Z‖ from the squares of both."""
    return float(np.sqrt(squares / norm)) if norm > 0 else 0.0


def _same(
    left: NDArray[np.bool_], changed: NDArray[np.float64], supports: list[NDArray[np.float64]], before: tuple[NDArray[np.bool_], Any]
) -> bool:
    """Whether the same components are left, with the same zeros."""
    kept, old = before
    others = all(np.array_equal(new[left], support[left]) for new, support in zip(supports, old, strict=True))
    return np.array_equal(left, kept) and not changed[left].any() and others
