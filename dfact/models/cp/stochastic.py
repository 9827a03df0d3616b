"""Algorithm 4: CP by Adamax on samples, in local steps on the workers that hold the slices, with averaged results.

The algorithm is that of the paper that :class:`dfact.ElasticCP` cites. Slices are taken along mode 1, the rows of the data; the
"others" are modes 2 to N. A step's formulas are in :func:`dfact.kernels.adamax.adamax_updates`, its code in
:class:`dfact.models.cp.samples.LocalStepsPass`; here are the iterations, each one pass and the mean of its results.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.base import RowSource
from dfact.engine.requests import Solver, run
from dfact.errors import ParameterError
from dfact.kernels.adamax import BETA_1
from dfact.models.cp.block_descent import ImputingDescent, memoized_rows
from dfact.models.cp.passes import FACTORS, RowsPass, RowStart, RowSums, SupportCounts, SupportPass
from dfact.models.cp.problem import ElasticNet, Factors, Prior, component_weights, khatri_rao, penalty_norms
from dfact.models.cp.samples import (
    AdamaxState,
    FinalRowsPass,
    LocalStepsPass,
    MonitorPass,
    MonitorRowsPass,
    monitor_rows,
    seeded,
    split_modes,
    spread_partitions,
)

_STEPS = (8, 25)  # of a block in an iteration, between two averages, at least and at most
_EPOCHS = 2  # in which a block's steps use up its slices, within these limits
_WINDOW = 3  # iterations over which the objective is averaged
_WARMUP, _WARMUP_SHARE = 3, 0.01  # iterations at the start with this share of the penalties
_DECAY = 0.2  # factor of the step size when the objective begins to rise
_BATCH_ENTRIES, _BATCH_ROWS = 1 << 16, 16  # of a step's sample: the intended entries, and the minimum of slices of mode 1
LEAST_SLICES, LEAST_ENTRIES = 30, 20  # of mode 1; and for each component in a sampled slice of it
_SLICE_ENTRIES = 1 << 14  # maximum of entries of a slice of mode 1 that a step takes


def progress(history: Sequence[float]) -> float:
    """Return by how much the mean of the last three objectives is below the mean of the three before, relative to the latter.

    It is 0 if this is not more than the standard error of the difference, which the draws cause; NaN for fewer than 6 objectives.
    """
    if len(history) < 2 * _WINDOW:
        return float("nan")
    before, last = np.asarray(history[-2 * _WINDOW : -_WINDOW]), np.asarray(history[-_WINDOW:])
    fall, noise = before.mean() - last.mean(), np.sqrt((before.var(ddof=1) + last.var(ddof=1)) / _WINDOW)
    return float(max(fall, 0.0) / abs(last.mean())) if fall > noise and last.mean() else 0.0


def resolve_batch_sizes(batch_sizes: Sequence[int] | None, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return s_n, the number of slices of mode n in a step's sample, for every mode: at most its size, by default as in ElasticCP."""
    if batch_sizes is not None:
        if len(batch_sizes) != len(shape):
            raise ParameterError(f"batch_sizes is {batch_sizes!r}, expected {len(shape)} numbers, one for each mode")
        return tuple(min(int(s), size) for s, size in zip(batch_sizes, shape, strict=True))
    drawn = list(shape[1:])
    while prod(drawn) > _SLICE_ENTRIES and max(drawn) > 1:
        n = int(np.argmax(drawn))
        drawn[n] = -(-drawn[n] // 2)
    # A slice of any other mode must have more entries in the sample than factors.
    entries = min(prod(drawn[:n] + drawn[n + 1 :]) for n in range(len(drawn)))
    rows = max(_BATCH_ROWS, _BATCH_ENTRIES // prod(drawn), -(-4 * rank // entries))
    return (min(rows, -(-shape[0] // 2)), *drawn)


def require_samples(batch_sizes: Sequence[int] | None, shape: Sequence[int], rank: int) -> None:
    """Raise ParameterError for samples so small that the mean of their solutions differs from the solution for all data.

    They are those of a first mode of fewer than 30 slices, of which objectives ended 0.1 to 4% above that of block descent, and those
    with fewer than 20 entries of a slice for each component (up to 50%). A step on all entries is exact and never refused.
    """
    drawn, advice = resolve_batch_sizes(batch_sizes, shape, rank), "use solver='bcd' (--solver bcd)"
    if shape[0] < LEAST_SLICES and drawn[0] < shape[0]:
        found = f"X has {shape[0]} slices in mode 1, expected at least {LEAST_SLICES} for steps on samples of them"
        raise ParameterError(f"{found}, which would end short of the optimum; {advice}, or make the longest mode the first one")
    entries = prod(drawn[1:])
    if batch_sizes is not None and entries < min(prod(shape[1:]), LEAST_ENTRIES * rank):
        found = f"batch_sizes={list(batch_sizes)} draws {entries} entries of a slice of mode 1 for {rank} components"
        raise ParameterError(f"{found}, expected at least {LEAST_ENTRIES * rank}; draw more slices of the other modes, or {advice}")


class StochasticDescent:
    """Algorithm 4 on samples Z(s_1, …, :, …, s_N), in local steps whose results are averaged.

    A sample has s_n slices of mode n, except of the mode that it moves, of which it has all.

    An iteration is a pass over a 32nd of the partitions, at least 16. Each block takes 8 to 25 Adamax steps from the same factors
    and moments, on samples of its own slices, and the next iteration begins at the weighted means of the results.
    One small sum thus serves many steps of all workers. The draws depend on the seed and the shape of the data alone.

    The solver differs from the printed algorithm in eleven points.

    - Blocks take their steps apart, and their results are averaged; the printed algorithm is one sequence of steps.
    - Slices of mode 1 are drawn without replacement until the block is used up, not independently for each step.
    - τ is the sample's share of ‖h‖² over all slices, not the mean of d_s ⊘ (‖h‖² 1 + λ(1−α) diag R_n⁻¹) with a running average
      of ‖h‖². The factor α that is printed in front of the last term is a slip.
    - The curvature of an entry is at least a quarter of the mean over its component, since the solution of a sample with fewer
      observations is mostly noise.
    - The factors of a slice of mode 1 are not moved by Adamax. They are its optimum given the other modes, since the sample
      holds all data of the slice. No factors of mode 1 are stored between steps.
    - The sample's solution ā, that of a vector of factors, scales both parts of the penalty by the sample's share τ, not the ℓ1
      part alone, which would weight the other part I_1/s_1 times.
    - An entry becomes 0 if most of its recent ā are 0, not if any is: by chance, more and more entries would become 0.
    - The step is relative to a vector's length. It shrinks when the objective begins to rise, not the error, which must
      rise along a path. The objective is estimated on a fixed monitoring sample of slices.
    - Modes are balanced as in block coordinate descent.
    - The first iterations from given factors have a hundredth of the penalties; with all of them, components would vanish too early.
      Other starts are made by block coordinate descent on a sample of the slices.
    - It ends when the objective falls no more than the draws make it vary.
    """

    def __init__(
        self,
        source: RowSource,
        prior: Prior,
        seed: int,
        dtype: np.dtype[Any],
        others: Factors,
        batch_sizes: tuple[int, ...],
        step_size: float,
        *,
        exact: bool,
        warmup: bool,
    ) -> None:
        self._prior, self._dtype = prior, dtype
        self._others = [A.copy() for A in others]
        shape = source.shape
        self._source, self._shape, self._layout = source, shape, source.layout
        self._batch_sizes, self._step_size, self._exact = batch_sizes, step_size, exact
        self._rows_read = 0
        # Seeds of the partitions drawn, the steps on them, and the monitoring sample.
        self._seeds = [int(seeded(seed, len(shape), i).integers(1 << 62)) for i in range(3)]
        self._monitor_partitions = spread_partitions(self._layout.n_partitions, seeded(self._seeds[2]))[::2]
        self._n_monitor_rows = 0
        self._net = ElasticNet(np.nan, np.nan)  # unequal to any other
        self._warmup = _WARMUP if warmup else 0
        batches = -(-self._layout.block_rows // batch_sizes[0])
        self._steps = min(max(_EPOCHS * batches, _STEPS[0]), _STEPS[1])
        self._iteration, self._step, self._last = 0, step_size, np.inf

    @property
    def others(self) -> Factors:
        return self._others

    @property
    def n_epochs(self) -> float:
        """Slices of all chunks that the iterations have read, repeated reads included, as a share of all slices."""
        return self._rows_read / self._shape[0]

    def iterate(self, net: ElasticNet) -> Solver[float]:
        if net != self._net:
            self._restart(net)
        objective, norms = yield from self._estimate()
        if objective > self._last:
            self._step = _DECAY * min(self._step, self._full_step())
        self._last = objective
        self._balance(norms)
        if self._warmup:
            self._warmup -= 1
            net = replace(net, lam=_WARMUP_SHARE * net.lam)
        yield from self._take_steps(net)
        return objective

    def _restart(self, net: ElasticNet) -> None:
        """Begin with another penalty, from the same factors: without moments, and with a new step size."""
        # The solution of another λ is a closer start.
        self._step = self._step_size * (1.0 if np.isnan(self._net.lam) else _DECAY)
        self._net, self._t, self._last = net, 0, np.inf
        self._state = AdamaxState.initial(self._others)

    def _full_step(self) -> float:
        """Return the least step size at which every step ends at its sample's solution."""
        lengths = np.stack([np.linalg.norm(A, axis=1) for A in self._others])
        return float(np.divide(self._state.distances, lengths, out=np.zeros_like(lengths), where=lengths > 0).max())

    def _take_steps(self, net: ElasticNet) -> Solver[None]:
        """Run local steps on a few partitions, and continue from the mean of their results."""
        self._iteration += 1
        partitions = spread_partitions(self._layout.n_partitions, seeded(self._seeds[0], self._iteration))
        pass_ = LocalStepsPass(
            number=self._iteration,
            steps=self._steps,
            batch_sizes=self._batch_sizes,
            net=net,
            prior=self._prior,
            seed=self._seeds[1],
            shape=self._shape,
            exact=self._exact,
            dtype=self._dtype,
        )
        sums = yield from run(pass_, (self._state, self._step, self._t), sample=partitions)
        self._rows_read += self._source.rows_decoded([self._layout.rows(i, i + 1) for i in partitions])
        self._state, self._t = sums.scaled(1 / float(sums.weight)), self._t + self._steps
        # A mean of zeros and nonzeros is not 0, so all samples together decide which entries are.
        self._state.factors[self._state.zeros > 0.5 * (1 - BETA_1**self._t)] = 0
        self._others = split_modes(self._state.factors, self._shape)

    def _estimate(self) -> Solver[tuple[float, list[NDArray[np.float64]]]]:
        """Estimate the objective with all slices at their optimum, from the monitoring sample.

        Return it with the penalty norms (2, R) of all modes.
        """
        if not self._n_monitor_rows:
            self._n_monitor_rows = yield from self._draw_monitor_rows()
        sums = yield from run(MonitorPass(self._net), self._others, sample=self._monitor_partitions)
        scale = self._shape[0] / self._n_monitor_rows
        norms = [scale * sums.norms, *(penalty_norms(A, v) for A, v in zip(self._others, self._prior.others, strict=True))]
        return 0.5 * scale * float(sums.squares) + self._net.penalty(sum(norms, np.zeros_like(sums.norms))), norms

    def _draw_monitor_rows(self) -> Solver[int]:
        """Draw the monitoring sample, which stays with the state of its partitions. Return its number of slices."""
        rows = -(-monitor_rows(self._shape, self._batch_sizes[0]) // len(self._monitor_partitions))
        pass_ = MonitorRowsPass(rows, self._seeds[2], self._prior.rows, self._layout, self._dtype)
        return int((yield from run(pass_, None, sample=self._monitor_partitions)).count)

    def _balance(self, norms: list[NDArray[np.float64]]) -> None:
        """Distribute the scale of each component over the modes, and that of its moments, given the norms (2, R) of all modes."""
        scales, state = self._net.balancing_scales(np.stack(norms)), self._state
        self._others = [A * c[:, None] for A, c in zip(self._others, scales[1:], strict=True)]
        wide = np.hstack([np.broadcast_to(c[:, None], A.shape) for A, c in zip(self._others, scales[1:], strict=True)])
        self._state = replace(
            state,
            factors=np.hstack(self._others),
            moments=state.moments * wide,
            distances=state.distances * scales[1:],
            squares=state.squares * scales[0] ** 2,
        )

    def _final_rows(self) -> Solver[RowSums]:
        """Solve for the factors of every slice, which become the state, and return their sums."""
        rows = RowsPass(self._net, self._prior.rows, self._dtype)
        return (yield from run(FinalRowsPass(rows), khatri_rao(self._others)))

    def evaluate(self) -> Solver[tuple[float, NDArray[np.float64]]]:
        sums = yield from self._final_rows()
        return float(sums.squares), component_weights(sums.gram, self._others)

    def support_counts(self) -> Solver[SupportCounts]:
        return (yield from run(SupportPass(), None))

    def refinement(self, supports: Factors) -> ImputingDescent:
        row_start = RowStart(len(self._others[0]), self._net, None)
        return ImputingDescent(self._prior, row_start, self._dtype, self._others).refinement(supports)

    def rows(self) -> Solver[Iterable[NDArray[Any]]]:
        return (yield from memoized_rows(FACTORS))
