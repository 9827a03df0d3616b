"""Block coordinate descent for CP in its two forms: by passes over the rows, and on the residual tensor in memory."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, memo, run, state_rows
from dfact.engine.session import Arrays
from dfact.kernels.cp import residual_sweep, subtract
from dfact.kernels.elastic_net import column_updates
from dfact.models.cp.passes import EPSILON, FACTORS, REFINED, FillPass, Point, RowStart, Sums, SupportCounts, SupportPass, extrapolate
from dfact.models.cp.problem import ElasticNet, Factors, Prior, component_weights, contract, grams_product, khatri_rao, penalty_norms
from dfact.progress import Reporter, remaining_change

_INNER = 3  # rounds over the other modes between two passes, which read no data
_MOMENTUM_DELAY, _MAX_MOMENTUM = 3, 0.95  # Nesterov's weights t/(t + 3), and the largest of them
_MOMENTUM_FALL = 0.02  # relative fall of the objective below which extrapolation begins: earlier, components still form
_LEAST_FALL = 0.1  # share of the last fall of the objective that an extrapolated point must bring


class Descent(Protocol):
    """Descent on the objective, with its current factors (R, I_n)."""

    @property
    def others(self) -> Factors:
        """Factors of modes 2, …, N."""
        ...

    def iterate(self, net: ElasticNet) -> Solver[float]:
        """Update all modes once. Return the objective before the update."""
        ...

    def evaluate(self) -> Solver[tuple[float, NDArray[np.float64]]]:
        """Return ‖Δ∘(Z − X)‖² and the components' weights γ (R,). Called before the other methods after an iteration."""
        ...

    def support_counts(self) -> Solver[SupportCounts]:
        """Count the zeros of each component in mode 1, and the changes of the support since the previous call."""
        ...

    def refinement(self, supports: Factors) -> "Descent":
        """Return a descent that continues from a copy, with mode 1 on its last counted support and the others on the given ones."""
        ...

    def rows(self) -> Solver[Iterable[NDArray[Any]]]:
        """Return the factors of mode 1, rows first, by consecutive groups of rows."""
        ...


def descend(
    descent: Descent,
    net: ElasticNet,
    max_iter: int,
    tol: float,
    report: Reporter | None = None,
    measure: Callable[[Sequence[float]], float] = remaining_change,
) -> Solver[tuple[list[float], bool]]:
    """Iterate until the ``measure`` of the objectives is less than ``tol``. Return the objectives and whether it is."""
    objectives: list[float] = []
    for _ in range(max_iter):
        objectives.append((yield from descent.iterate(net)))
        if report is not None:
            report.iteration(objectives)
        if measure(objectives) < tol:
            return objectives, True
    return objectives, False


@dataclass(frozen=True)
class RowSample:
    """Some partitions of the rows."""

    partitions: tuple[int, ...] | None
    """Their numbers, ascending; None for all."""
    share: float
    """Their share of the rows."""
    noise: float = 0.0
    """Expected relative excess of the objective at the sample's minimum over that at the minimum for all rows."""


ALL_ROWS = RowSample(None, 1.0)


class ImputingDescent:
    """Descent by one pass over the rows in each iteration, with missing entries filled in by the model.

    A pass updates mode 1 and contracts the filled data with it, which is all that
    the updates of the other modes need. No update raises the objective: all of them are column updates
    of one quadratic above it. Between iterations all modes are extrapolated along their last step with Nesterov's
    weights (Mitchell et al. 2020). If the objective then falls too little, the pass is repeated without extrapolation,
    and the weights restart. On a ``sample`` of the rows, the objective is the sample's share of the objective over all rows.
    """

    def __init__(
        self,
        prior: Prior,
        row_start: RowStart,
        dtype: np.dtype[Any],
        others: Factors,
        supports: Factors | None = None,
        sample: RowSample = ALL_ROWS,
    ) -> None:
        self._prior, self._row_start, self._dtype = prior, row_start, dtype
        self._others = [A.copy() for A in others]
        self._supports, self._sample = supports, sample
        self._reset = supports is None  # the state of the rows, in the first pass; a refinement needs it
        self._key = FACTORS if supports is None else REFINED
        self._scales = np.ones(len(others[0]), dtype)  # of mode 1; the next pass applies them
        self._net = ElasticNet(np.nan, np.nan)  # unequal to any other
        self._previous = self._others  # factors at the beginning of the last step
        self._last = self._fall = np.inf  # objective of the last iteration, and its last decrease
        self._steps = 0  # iterations since the weights restarted

    @property
    def others(self) -> Factors:
        return self._others

    def _run(self, net: ElasticNet, *, move: bool = True, weight: float = 0.0, back: bool = False) -> Solver[Sums]:
        H, gram = khatri_rao([A.astype(self._dtype) for A in self._others]), grams_product([A @ A.T for A in self._others])
        scales, self._scales = self._scales, np.ones_like(self._scales)
        reset, self._reset = self._reset, False
        row_start = self._row_start if reset else replace(self._row_start, H=None)  # later passes need not send it
        pass_ = FillPass(net, self._prior.rows, row_start, self._dtype, self._key, move)
        point = Point(H, gram.astype(self._dtype), scales, weight, back)
        return (yield from run(pass_, point, sample=self._sample.partitions, reset=reset))

    def _sizes(self) -> list[NDArray[np.float64]]:
        """Return the norms of the penalties of the other modes. The sample's share of the rows has the same share of these penalties."""
        return [self._sample.share * penalty_norms(A, variances) for A, variances in zip(self._others, self._prior.others, strict=True)]

    def iterate(self, net: ElasticNet) -> Solver[float]:
        if net != self._net:
            self._net, self._last, self._fall, self._steps = net, np.inf, np.inf, 0
        start, weight = self._others, min(_MAX_MOMENTUM, self._steps / (self._steps + _MOMENTUM_DELAY))
        if weight > 0:
            self._others = [extrapolate(A, B, weight, nonnegative=net.nonnegative) for A, B in zip(start, self._previous, strict=True)]
        objective, sums = yield from self._pass(net, weight=weight)
        if weight > 0 and self._last - objective < _LEAST_FALL * self._fall:
            self._others, self._steps = start, 0
            objective, sums = yield from self._pass(net, back=True)
        self._previous, self._fall, self._last = start, self._last - objective, objective
        self._steps = self._steps + 1 if self._fall < _MOMENTUM_FALL * objective else 0
        self._others = [A.copy() for A in self._others]
        self._update_others(net, sums)
        scales = net.balancing_scales(np.stack([sums.sizes[1], *self._sizes()]))
        self._scales = scales[0].astype(self._dtype)
        self._others = [A * c[:, None] for A, c in zip(self._others, scales[1:], strict=True)]
        return objective

    def _pass(self, net: ElasticNet, *, weight: float = 0.0, back: bool = False) -> Solver[tuple[float, Sums]]:
        """Run a pass. Return the objective at its beginning, and its sums."""
        sizes = self._sizes()
        sums = yield from self._run(net, weight=weight, back=back)
        return 0.5 * float(sums.squares) + net.penalty(sums.sizes[0] + sum(sizes)), sums

    def _update_others(self, net: ElasticNet, sums: Sums) -> None:
        others = self._others
        grams = [sums.gram, *(A @ A.T for A in others)]
        for _ in range(_INNER if len(others) > 1 else 1):
            for n, A in enumerate(others):
                G = grams_product([*grams[: n + 1], *grams[n + 2 :]])
                support = A[:0] if self._supports is None else self._supports[n]
                U = contract(sums.cross, others, n)
                ridge, share = net.ridge(self._prior.others[n]), self._sample.share
                column_updates(A, U, G, share * ridge, share * net.l1, net.nonnegative, support, _INNER)
                grams[n + 1] = A @ A.T

    def evaluate(self) -> Solver[tuple[float, NDArray[np.float64]]]:
        sums = yield from self._run(ElasticNet(0.0, 0.0), move=False)
        return float(sums.squares), component_weights(sums.gram, self._others)

    def support_counts(self) -> Solver[SupportCounts]:
        return (yield from run(SupportPass(), None))

    def refinement(self, supports: Factors) -> "ImputingDescent":
        others = [A * support for A, support in zip(self._others, supports, strict=True)]
        return ImputingDescent(self._prior, self._row_start, self._dtype, others, supports)

    def rows(self) -> Solver[Iterable[NDArray[Any]]]:
        return (yield from memoized_rows(self._key))


def memoized_rows(name: str) -> Solver[Iterable[NDArray[Any]]]:
    """Return a state array, rows first, by consecutive groups of rows.

    It is memoized: a path resumed from a checkpoint needs the array as it was here, not the later state of the checkpoint.
    """
    rows = yield from state_rows(name)
    groups = yield from memo(name, lambda: {f"{i}": part for i, part in enumerate(rows)})
    return groups.values()


class MaskedDescent:
    """Algorithm 1, or algorithm 2 on a support: on the residual tensor, with the mask in every column update.

    Its sweeps are those printed. After each sweep the scale of every component is distributed over the modes so that the penalties
    are least, which the printed algorithm leaves to its column updates.

    In memory and in double precision: Z flat by rows (I_1, I_2⋯I_N), NaN where missing; all factors side by side (R, ΣI_n).
    """

    def __init__(
        self,
        Z: NDArray[np.float64],
        sizes: Sequence[int],
        variances: NDArray[np.float64],
        A: NDArray[np.float64],
        support: NDArray[np.float64] | None = None,
    ) -> None:
        self._Z, self._sizes, self._variances, self._A = Z, np.asarray(sizes, np.int64), variances, A.copy()
        self._support = np.empty((0, 0)) if support is None else support
        self._counted_support = np.ones(A.shape, np.uint8)

    def _modes(self, A: NDArray[np.float64]) -> Factors:
        return np.split(A, np.cumsum(self._sizes)[:-1], axis=1)

    @property
    def others(self) -> Factors:
        return self._modes(self._A)[1:]

    def _residual(self) -> tuple[NDArray[np.float64], float]:
        rows, *others = self._modes(self._A)
        E = rows.T @ khatri_rao(others)
        return E, subtract(self._Z, E)

    def iterate(self, net: ElasticNet) -> Solver[float]:
        result = yield from memo("iteration", lambda: self._sweep(net))
        self._A = result["factors"]
        return float(result["objective"])

    def _sweep(self, net: ElasticNet) -> Arrays:
        E, squares = self._residual()
        objective = 0.5 * squares + net.penalty(penalty_norms(self._A, self._variances))
        moved = self._A.copy()
        residual_sweep(E.ravel(), moved, self._sizes, net.ridge(self._variances), net.l1, net.nonnegative, self._support)
        modes, variances = self._modes(moved), np.split(self._variances, np.cumsum(self._sizes)[:-1])
        scales = net.balancing_scales(np.stack([penalty_norms(A, v) for A, v in zip(modes, variances, strict=True)]))
        factors = np.hstack([A * c[:, None] for A, c in zip(modes, scales, strict=True)])
        return {"factors": factors, "objective": np.asarray(objective)}

    def evaluate(self) -> Solver[tuple[float, NDArray[np.float64]]]:
        yield from ()
        rows, *others = self._modes(self._A)
        return self._residual()[1], component_weights(rows @ rows.T, others)

    def support_counts(self) -> Solver[SupportCounts]:
        yield from ()
        support = (np.abs(self._A) > EPSILON).astype(np.uint8)
        previous, self._counted_support = self._counted_support, support
        rows = slice(0, self._sizes[0])
        return SupportCounts((support[:, rows] == 0).sum(axis=1), (support != previous)[:, rows].sum(axis=1))

    def refinement(self, supports: Factors) -> "MaskedDescent":
        support = np.hstack([self._counted_support[:, : self._sizes[0]], *supports]).astype(np.float64)
        return MaskedDescent(self._Z, self._sizes.tolist(), self._variances, self._A * support, support)

    def rows(self) -> Solver[Iterable[NDArray[Any]]]:
        yield from ()
        return [self._modes(self._A)[0].T]
