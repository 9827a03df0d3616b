"""Passes on samples of slices: local steps of algorithm 4 on blocks of a few partitions, and the objective on a fixed sample."""

from dataclasses import dataclass, fields, replace
from math import ceil, prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, Withheld, Workspace
from dfact.kernels.adamax import BETA_1, adamax_updates
from dfact.kernels.entries import filled
from dfact.kernels.samples import contracted_slices, optimal_slices, residual_squares, subproblem
from dfact.models.cp.passes import FACTORS, CPState, RowsPass, RowSums
from dfact.models.cp.problem import ElasticNet, Factors, Prior, RowPrior, penalty_norms, unfold

_PARTITIONS, _PARTITIONS_SHARE = 16, 1 / 32  # in a sample, at least, and as a share: large data has work for as many workers as it needs
_MONITOR_ENTRIES, _MONITOR_ROWS = 1 << 20, 64  # of the slices on which the objective is estimated
_ROW_TOLERANCE = 1e-12
_WIDE = np.dtype(np.float64)
DrawnSlices = list[NDArray[np.int64] | None]
"""Indices of the slices of modes 2 to N that a step draws; None for all slices of a mode."""
Batch = tuple[NDArray[Any], NDArray[np.float32]]
"""Values of some slices (rows, I_2⋯I_N), 0 where missing, and a mask that is 1 for observed entries; (0, 0) if all are observed."""


def spread_partitions(n_partitions: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw a 32nd of the partitions, at least 16, equidistant with a random first one, so that every worker holds its share of them."""
    count = sample_size(n_partitions)
    first = rng.random()
    return tuple(int((i + first) * n_partitions / count) for i in range(count))


def sample_size(n_partitions: int) -> int:
    """Return the number of partitions in a sample."""
    return min(n_partitions, max(_PARTITIONS, ceil(_PARTITIONS_SHARE * n_partitions)))


def monitor_rows(shape: tuple[int, ...], batch_rows: int) -> int:
    """Return the number of slices on which the objective is estimated, before rounding up: at most what a step of all partitions draws."""
    rows = min(_PARTITIONS, Layout.of(shape).n_partitions) * batch_rows
    return min(max(_MONITOR_ROWS, _MONITOR_ENTRIES // prod(shape[1:])), rows, shape[0])


def seeded(seed: int, *key: int) -> np.random.Generator:
    """Make a separate generator for each key, so that no draw depends on earlier draws."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


@dataclass
class SampledRows(PartialSums, name="cp_sampled_rows", disclosure=Withheld("is about a small sample of the rows")):
    """Number of slices in a sample."""

    count: NDArray[Any]


@dataclass
class MonitorState(BlockState):
    """The block's slices of the monitoring sample, in the form of a :class:`Sample`."""

    monitor: NDArray[Any]
    """Values (rows, I_2⋯I_N)."""
    monitor_observed: NDArray[np.float32]
    monitor_variances: NDArray[np.float64]
    """(1, rows)."""


@dataclass(frozen=True)
class MonitorRowsPass(Pass[BlockState, None, SampledRows]):
    """Random slices of each partition of a sample, which become the state."""

    rows: int
    """Number of slices to draw from a partition."""
    seed: int
    prior: RowPrior
    layout: Layout
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: None) -> tuple[MonitorState, SampledRows]:
        V, partition = unfold(block), self.layout.partition_of(block.start)
        extent = self.layout.rows(partition, partition + 1)
        drawn = extent.start + seeded(self.seed, partition).permutation(extent.stop - extent.start)[: self.rows]
        rows = np.sort(drawn[(drawn >= block.start) & (drawn < block.start + len(V))]) - block.start
        sample = Sample(V[rows], self.prior.variances(block, _WIDE)[rows], Workspace())
        return MonitorState(sample.values, sample.observed, sample.variances[None]), SampledRows(np.asarray(len(rows)))


@dataclass
class MonitorSums(PartialSums, name="cp_monitor", disclosure=Withheld("is about a small sample of the rows")):
    """Sums over the slices of the monitoring sample."""

    squares: NDArray[Any]
    """‖Δ∘(Z − X)‖²."""
    norms: NDArray[Any]
    """aᵀR₁⁻¹a and ‖a‖₁ of their factors (2, R), which give the penalty."""


@dataclass(frozen=True)
class MonitorPass(Pass[MonitorState, Factors, MonitorSums]):
    """Slices of the monitoring sample at their optimum given the other modes. The pass reads no data."""

    changes_state: ClassVar[bool] = False
    net: ElasticNet
    dtype: None = None
    state_type = MonitorState

    def step(self, block: Block, state: MonitorState, broadcast: Factors) -> tuple[MonitorState, MonitorSums]:
        """``broadcast`` holds the factors of the other modes (R, I_n)."""
        net, values, observed, variances = self.net, state.monitor, state.monitor_observed, state.monitor_variances[0]
        A, mode_sizes = np.hstack(broadcast), np.array([A.shape[1] for A in broadcast])
        X = optimal_slices(values, observed, A, mode_sizes, net.ridge(variances), net.l1, net.nonnegative, _ROW_TOLERANCE)
        squares = residual_squares(X, values, observed, A, mode_sizes)
        return state, MonitorSums(np.asarray(squares), penalty_norms(X, variances))


@dataclass(frozen=True)
class FinalRowsPass(Pass[BlockState, NDArray[np.float64], RowSums]):
    """Every row at its optimum, with the state of the rows that a refinement needs."""

    rows: RowsPass

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def start(self, block: Block) -> MonitorState:
        empty = unfold(block)[:0].copy()
        return MonitorState(empty, empty.astype(np.float32), np.empty((1, 0)))

    def step(self, block: Block, state: BlockState, broadcast: NDArray[np.float64]) -> tuple[CPState, RowSums]:
        arrays = state.arrays()  # the monitoring sample, and the state of the rows if a pass has kept it
        rows, sums = self.rows.step(block, state, broadcast)
        if FACTORS in arrays:
            return replace(CPState.of(arrays), factors=rows.factors), sums
        return replace(CPState.of_block(block, rows.factors, self.rows.prior.variances(block, self.dtype)), others=arrays), sums


@dataclass
class AdamaxState(PartialSums, name="cp_adamax", disclosure=Withheld("is the outcome of steps on a small sample of the rows")):
    """Factors of modes 2 to N with Adamax's moments; as a partial sum, the weighted sum over several blocks.

    The modes are stored side by side. See :func:`dfact.kernels.adamax.adamax_updates` for the moments.
    """

    factors: NDArray[Any]
    """(R, ΣI_n)."""
    moments: NDArray[Any]
    """M (R, ΣI_n)."""
    zeros: NDArray[Any]
    """Z (R, ΣI_n)."""
    distances: NDArray[Any]
    """S (N−1, R), the largest recent distances from the solution of a sample."""
    squares: NDArray[Any]
    """‖a_r⁽¹⁾‖² (R), a moving average over the samples; negative before the first."""
    weight: NDArray[Any]

    @classmethod
    def initial(cls, others: Factors) -> Self:
        """Make the initial state, without moments."""
        A = np.hstack(others)
        return cls(A, np.zeros_like(A), np.zeros_like(A), np.zeros((len(others), len(A))), np.full(len(A), -1.0), np.ones(()))

    def scaled(self, weight: float) -> "AdamaxState":
        """Multiply all arrays by a number."""
        return AdamaxState(**{f.name: np.asarray(weight * getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True)
class LocalStepsPass(Pass[BlockState, tuple[AdamaxState, float, int], AdamaxState]):
    """Steps of Adamax on each block of the partitions of a sample, from the same factors, with the weighted sum of their results.

    A step draws slices of mode 1, solves for their factors on the entries drawn, and moves the factors of every
    other mode towards the solution of its subproblem (algorithm 4).
    """

    changes_state: ClassVar[bool] = False
    number: int
    """Number of the iteration; with the seed and the block's number it determines the draws."""
    steps: int
    batch_sizes: tuple[int, ...]
    net: ElasticNet
    prior: Prior
    seed: int
    shape: tuple[int, ...]
    exact: bool
    """Whether the other modes' subproblems leave out missing entries, as those of the slices do; otherwise the model fills them in."""
    dtype: np.dtype[Any]

    def step(self, block: Block, state: BlockState, broadcast: tuple[AdamaxState, float, int]) -> tuple[BlockState, AdamaxState]:
        """``broadcast`` is the initial state, the step size, and the number of previous steps."""
        initial, step_size, t = broadcast
        rng, V = seeded(self.seed, self.number, 1, block.index), unfold(block)
        local = _LocalSteps(self, initial, Sample(V, self.prior.rows.variances(block, _WIDE), block.work))
        batch_size = min(self.batch_sizes[0], len(V))
        batches: list[NDArray[np.int64]] = []
        for i in range(self.steps):
            if not batches:
                batches = np.array_split(rng.permutation(len(V)), -(-len(V) // batch_size))
            local.take_step(np.sort(batches.pop()), self._draw_columns(rng), step_size, t + i + 1)
        return state, local.result().scaled(batch_size)

    def _draw_columns(self, rng: np.random.Generator) -> DrawnSlices:
        return [
            None if drawn == size else np.sort(rng.choice(size, drawn, replace=False))
            for drawn, size in zip(self.batch_sizes[1:], self.shape[1:], strict=True)
        ]


class Sample:
    """Slices of a block (rows, I_2⋯I_N) in the form that the kernels of :mod:`dfact.kernels.samples` take."""

    def __init__(self, V: NDArray[Any], variances: NDArray[np.float64], work: Workspace) -> None:
        self.variances, self._work = variances, work
        self.values = filled(V, out=work.array("filled", V.shape, V.dtype))
        gaps = np.isnan(V, out=work.array("missing", V.shape, bool))
        self.observed = work.array("observed", V.shape if gaps.any() else (0, 0), np.float32)
        if len(self.observed):
            np.subtract(1, gaps, out=self.observed)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Return some of the slices."""
        values, observed = (
            np.take(V, rows, axis=0, out=self._work.array(name, (len(rows), V.shape[1]), V.dtype), mode="clip") if len(V) else V
            for name, V in (("batch", self.values), ("observed batch", self.observed))
        )
        return values, observed


class _LocalSteps:
    """Factors during the local steps of a block."""

    def __init__(self, pass_: LocalStepsPass, initial: AdamaxState, sample: Sample) -> None:
        self._pass, self._sample = pass_, sample
        self._others, self._M, self._Z = (split_modes(array, pass_.shape) for array in (initial.factors, initial.moments, initial.zeros))
        self._S, self._squares = initial.distances.copy(), initial.squares.copy()
        self._ridges = [pass_.net.ridge(variances) for variances in pass_.prior.others]

    def result(self) -> AdamaxState:
        A, M, Z = (np.hstack(modes) for modes in (self._others, self._M, self._Z))
        return AdamaxState(A, M, Z, self._S, self._squares, np.ones(()))

    def take_step(self, rows: NDArray[np.int64], drawn: DrawnSlices, step_size: float, t: int) -> None:
        """Solve for the factors of the slices drawn, then move every other mode towards its sample's solution."""
        net, all_columns = self._pass.net, all(s is None for s in drawn)
        batch = self._sample.batch(rows)
        X = self._optimal_rows(batch, self._sample.variances[rows], drawn)
        lengths = np.square(X).sum(axis=1)
        squares = self._pass.shape[0] / len(rows) * lengths
        self._squares = np.where(self._squares < 0, squares, BETA_1 * self._squares + (1 - BETA_1) * squares)
        rows_share = _ratio(lengths, self._squares)
        products: Any = None
        for n, A in enumerate(self._others):
            taken: DrawnSlices = [None if i == n else s for i, s in enumerate(drawn)]
            factors, mode_sizes = self._take_factors(taken)
            if products is None or not all_columns:  # without a draw they are the same for all modes
                products = contracted_slices(X, *self._entries(batch, taken), factors, mode_sizes, self._pass.exact)
            U, G = subproblem(n, X, products[0], products[1], factors, mode_sizes)
            shares = rows_share if all_columns else rows_share * self._columns_share(taken)
            moments = self._M[n], self._S[n], self._Z[n]
            adamax_updates(A, U, G, self._ridges[n], net.l1, shares, net.nonnegative, step_size, t, *moments)

    def _optimal_rows(self, batch: Batch, variances: NDArray[np.float64], drawn: DrawnSlices) -> NDArray[np.float64]:
        """Return the factors (R, rows) of slices at their optimum on the entries drawn, with the penalty scaled by their share."""
        net, (values, observed), (A, mode_sizes) = self._pass.net, self._entries(batch, drawn), self._take_factors(drawn)
        share = values.shape[1] / prod(self._pass.shape[1:])
        return optimal_slices(
            values, observed, A, mode_sizes, share * net.ridge(variances), share * net.l1, net.nonnegative, _ROW_TOLERANCE
        )

    def _take_factors(self, drawn: DrawnSlices) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the factors of the slices drawn from modes 2 to N side by side, and the number of slices of each mode."""
        factors = [A if s is None else A.take(s, axis=1) for A, s in zip(self._others, drawn, strict=True)]  # C order, unlike A[:, s]
        return np.hstack(factors), np.array([A.shape[1] for A in factors])

    def _columns_share(self, drawn: DrawnSlices) -> NDArray[np.float64]:
        """Return the share (R,) of the slices drawn in Π‖a_r⁽ⁿ⁾‖²."""
        pairs = [(A[:, s], A) for A, s in zip(self._others, drawn, strict=True) if s is not None]
        shares = [_ratio(np.square(sample).sum(axis=1), np.square(A).sum(axis=1)) for sample, A in pairs]
        return np.asarray(np.prod(shares, axis=0))

    def _entries(self, batch: Batch, drawn: DrawnSlices) -> Batch:
        """Return the entries of a batch in these slices of modes 2 to N, unfolded."""
        if all(s is None for s in drawn):
            return batch
        parts = []
        for V in batch:
            tensor = V.reshape(len(V), *(self._pass.shape[1:] if len(V) else [0]))
            for axis, s in enumerate(drawn, start=1):
                tensor = tensor if s is None or not len(V) else tensor.take(s, axis=axis)
            parts.append(tensor.reshape(len(V), -1) if len(V) else V)
        return parts[0], parts[1]


def split_modes(array: NDArray[Any], shape: tuple[int, ...]) -> Factors:
    """Split an array (R, ΣI_n) of modes 2 to N side by side into its modes."""
    return [np.array(part, order="C") for part in np.split(array, np.cumsum(shape[1:])[:-1], axis=1)]


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a / b; 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
