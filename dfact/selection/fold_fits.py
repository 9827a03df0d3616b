"""The fits of one fold, each from the solution of the one before."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfact.engine.fused_passes import FusedSession, Member, Members
from dfact.engine.passes import Block, Pass, State
from dfact.linalg.svd import nndsvd
from dfact.models.bounded_nmf.passes import Start
from dfact.models.bounded_nmf.solvers import Splitless, descend
from dfact.progress import relative_change
from dfact.selection.folds import Folds
from dfact.selection.held_out_errors import SquaredErrorPass, SquaredErrors
from dfact.selection.masks import FoldMask


class FoldSession(Protocol):
    """A session on the data without what a fold hides."""

    def run(self, pass_: Pass[Any, Any], broadcast: Any) -> Any: ...

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        """Σ (M − R)² over the hidden answers, with the model R of the factors of the last pass and of Qᵀ (k+c, m), and their number."""
        ...


@dataclass(frozen=True)
class ResetPass:
    """A pass from its start, whatever state there was."""

    pass_: Pass[Any, Any]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.pass_.dtype

    def start(self, block: Block) -> None:
        """The step makes it."""

    def step(self, block: Block, state: State | None, broadcast: Any) -> tuple[State | None, Any]:
        return self.pass_.step(block, self.pass_.start(block), broadcast)


class FoldMember(FusedSession):
    """A fold's session among those that share their reads."""

    def __init__(self, members: Members, name: str, folds: Folds, fold: int, dtype: np.dtype[Any]) -> None:
        super().__init__(members, name, FoldMask(folds, fold, hidden=False))
        self._members, self._others, self._dtype = members, FoldMask(folds, fold, hidden=True), dtype

    def score(self, problem: Any, Q: NDArray[Any]) -> tuple[float, int]:
        errors: SquaredErrors = self._members.request(Member(self.name, self._others, SquaredErrorPass(problem, self._dtype)), Q)
        return float(errors.squares), int(errors.count)


# Times the model's tolerance, for the first β of a number of components and for the others, which go on from there.
# With 3 and 1 it takes 1.6 times the passes, and errors on eqsq differ by a third of their standard error.
_FIRST_TOLERANCE, _TOLERANCE = 5.0, 2.0


@dataclass(frozen=True)
class Score:
    """What a fit came to on what its fold hides."""

    squares: float
    count: int
    seconds: float
    passes: int


@dataclass(frozen=True)
class GridGroup:
    """Configurations that differ in the penalty alone, in the order in which they are fitted."""

    configurations: tuple[int, ...]
    """Their numbers in the grid."""
    problems: tuple[Any, ...]
    continues: bool
    """Whether the group before differs in the number of components alone, which is smaller there."""

    @property
    def k(self) -> int:
        return int(self.problems[0].k)


@dataclass(frozen=True)
class Settings:
    """What all fits share."""

    n_columns: int
    n_covariates: int
    dtype: np.dtype[Any]
    tol: float
    max_iter: int
    restarts: int
    seed: int


def from_the_middle(values: Sequence[float]) -> list[int]:
    """Positions of the values from the middle one to the lowest, and then those above it, rising.

    Halfway, the middle one is the nearest to all others.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    middle = (len(order) - 1) // 2
    return order[middle::-1] + order[middle + 1 :]


class WarmStartPath:
    """Fits of the groups of configurations on one fold's data.

    The first configuration of a group starts from the loadings with fewer components, with further
    ones from the NNDSVD, of which the one for the most components holds all others; the rest of the
    group goes on from there. What a group starts from is ``Qᵀ`` of the group before alone, so that work
    that was interrupted goes on with the same numbers.
    """

    def __init__(self, session: FoldSession, settings: Settings) -> None:
        self._session, self._settings = session, settings

    def run(self, groups: Sequence[GridGroup], n_done: int, before: NDArray[Any] | None) -> Iterator[tuple[int, list[Score], NDArray[Any]]]:
        """Number, scores and first loadings of each group after the first ``n_done``, which ended with the loadings ``before``."""
        s = self._settings
        if n_done == len(groups):
            return
        session: Any = self._session
        loadings, projection = nndsvd(session, s.n_columns, max(group.k for group in groups), s.dtype)
        for number in range(n_done, len(groups)):
            group = groups[number]
            began = time.perf_counter()
            Q, begin = self._start(group, loadings, projection, before if group.continues else None)
            first, passes = self._first(group.problems[0], Q, begin)
            Q, scores = first, []
            for i, problem in enumerate(group.problems):
                if i:
                    Q, passes, _ = self._fit(problem, Q, None, _TOLERANCE * s.tol)
                squares, count = self._session.score(problem, Q)
                scores.append(Score(squares, count, time.perf_counter() - began, passes))
                began = time.perf_counter()
            before = first
            yield number, scores, first

    def _start(
        self, group: GridGroup, loadings: NDArray[Any], projection: NDArray[Any], before: NDArray[Any] | None
    ) -> tuple[NDArray[Any], Start]:
        """Qᵀ (k+c, m) and the rows' start."""
        s, k, problem = self._settings, group.k, group.problems[0]
        Q = np.zeros((k + s.n_covariates, s.n_columns), s.dtype)
        Q[:k] = np.clip(loadings[:k], 0, problem.q_max)
        if before is None:
            return Q, Start(projection[:, :k])
        known = len(before) - s.n_covariates
        Q[:known], Q[k:] = before[:known], before[known:]
        return Q, Start.given(Q[:k])

    def _first(self, problem: Any, Q: NDArray[Any], begin: Start) -> tuple[NDArray[Any], int]:
        """The loadings of the first fit of a group, of the best start by the objective, and the passes of all starts."""
        s, tol = self._settings, _FIRST_TOLERANCE * self._settings.tol
        best, passes, lowest = self._fit(problem, Q, begin, tol)
        last = best
        for restart in range(s.restarts):
            seed = np.random.SeedSequence(s.seed, spawn_key=(problem.k, restart)).generate_state(1)[0]
            random = np.zeros_like(Q)
            top = np.minimum(problem.q_max, np.finfo(s.dtype).max)
            random[: problem.k] = np.random.default_rng(seed).uniform(0, top, (problem.k, s.n_columns))
            last, more, objective = self._fit(problem, random, Start(None, int(seed)), tol)
            passes += more
            if objective < lowest:
                best, lowest = last, objective
        if last is not best:  # the rows' factors are those of another start
            best, more, _ = self._fit(problem, best, Start.given(best[: problem.k]), tol)
            passes += more
        return best, passes

    def _fit(self, problem: Any, Q: NDArray[Any], begin: Start | None, tol: float) -> tuple[NDArray[Any], int, float]:
        """The loadings, passes and objective of a fit; without a start for the rows, from their factors in the fit before."""
        s = self._settings
        solver = Splitless(problem, Start(None) if begin is None else begin, s.dtype)
        session: Any = _FirstFit(self._session, anew=begin is not None)
        descent = descend(session, solver, Q, s.max_iter, tol, None, relative_change)
        return descent.Q, len(descent.objectives), descent.objectives[-1]


class _FirstFit:
    """A session whose first pass is from the start."""

    def __init__(self, session: FoldSession, *, anew: bool) -> None:
        self._session, self._anew = session, anew

    def run(self, pass_: Any, broadcast: Any) -> Any:
        anew, self._anew = self._anew, False
        return self._session.run(ResetPass(pass_) if anew else pass_, broadcast)
