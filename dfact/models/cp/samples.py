"""Passes on samples of the slices: local steps of algorithm 4 on blocks of a few partitions, and the objective of a fixed sample."""

from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.passes import Block, PartialSums, SampledPass, State, Workspace
from dfact.kernels.adamax import BETA_1, adamax_updates
from dfact.kernels.entries import filled
from dfact.kernels.samples import contracted_slices, optimal_slices, residual_squares, subproblem
from dfact.models.cp.passes import FACTORS, FillPass, RowsPass, RowSums
from dfact.models.cp.problem import ElasticNet, Factors, Prior, RowPrior, sizes_of, unfolded

_ASIDE, _ASIDE_OBSERVED, _ASIDE_VARIANCES = "aside", "aside observed", "aside variances"
_PARTITIONS = 32  # in a sample, at most: enough for the noise of single blocks to average out, and for as many threads
_ASIDE_ENTRIES, _ASIDE_ROWS = 1 << 20, 64  # of the slices on which the objective is watched
_ROW_TOLERANCE = 1e-12
_WIDE = np.dtype(np.float64)
Resample = list[NDArray[np.int64] | None]
"""Numbers of the slices of modes 2 to N that a step takes; None for all of a mode."""
Batch = tuple[NDArray[Any], NDArray[np.float32]]
"""Values of some slices (rows, I_2⋯I_N), 0 where missing, and a mask that is 1 where they are observed; (0, 0) if all are."""


def spread_partitions(n_partitions: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Up to 32 partitions at equal distances, from a random one on: so every worker holds its share of them."""
    count = min(n_partitions, _PARTITIONS)
    first = rng.random()
    return tuple(int((i + first) * n_partitions / count) for i in range(count))


def monitor_rows(shape: tuple[int, ...], batch_rows: int) -> int:
    """Number of slices on which the objective is watched, but for rounding up: not more than a step of all partitions draws."""
    partitions = min(Layout.of(shape).n_partitions, _PARTITIONS)
    return min(max(_ASIDE_ROWS, _ASIDE_ENTRIES // prod(shape[1:])), partitions * batch_rows, shape[0])


def seeded(seed: int, *key: int) -> np.random.Generator:
    """A generator of its own for each key, so that no draw depends on how many there were before."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def partition_of(block: Block, layout: Layout) -> int:
    """Number of the partition that a block belongs to."""
    return block.start // layout.partition_rows


@dataclass
class SampledRows(PartialSums, name="cp_sampled_rows"):
    """The number of slices kept."""

    count: NDArray[Any]


@dataclass(frozen=True)
class AsidePass(SampledPass):
    """Keep some slices of each of these partitions, drawn at random, in the state, as the kernels take a sample: (rows, I_2⋯I_N)."""

    rows: int
    """Slices to keep of a partition."""
    seed: int
    prior: RowPrior
    layout: Layout
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: None) -> tuple[State, SampledRows]:
        V, partition = unfolded(block), partition_of(block, self.layout)
        held = self.layout.rows(partition, partition + 1)
        drawn = held.start + seeded(self.seed, partition).permutation(held.stop - held.start)[: self.rows]
        rows = np.sort(drawn[(drawn >= block.start) & (drawn < block.start + len(V))]) - block.start
        sample = Sample(V[rows], self.prior.variances(block, _WIDE)[rows], Workspace())
        kept = {_ASIDE: sample.values, _ASIDE_OBSERVED: sample.observed, _ASIDE_VARIANCES: sample.variances[None]}
        return kept, SampledRows(np.asarray(len(rows)))


@dataclass
class MonitorSums(PartialSums, name="cp_monitor"):
    """Over the slices that are kept aside."""

    squares: NDArray[Any]
    """‖Δ∘(Z − X)‖²."""
    sizes: NDArray[Any]
    """aᵀR₁⁻¹a and ‖a‖₁ of their factors (2, R), from which the penalty follows."""


@dataclass(frozen=True)
class WatchPass(SampledPass):
    """The slices that are kept aside at their optimum given the other modes; nothing is read."""

    changes_state: ClassVar[bool] = False
    net: ElasticNet
    dtype: None = None

    def step(self, block: Block, state: State | None, broadcast: Factors) -> tuple[State, MonitorSums]:
        """``broadcast`` are the factors of the other modes (R, I_n)."""
        assert state is not None
        net, values, observed, variances = self.net, state[_ASIDE], state[_ASIDE_OBSERVED], state[_ASIDE_VARIANCES][0]
        A, sizes = np.hstack(broadcast), np.array([A.shape[1] for A in broadcast])
        X = optimal_slices(values, observed, A, sizes, net.ridge(variances), net.l1, net.nonnegative, _ROW_TOLERANCE)
        squares = residual_squares(X, values, observed, A, sizes)
        return state, MonitorSums(np.asarray(squares), sizes_of(X, variances))


@dataclass(frozen=True)
class FinalRowsPass:
    """Every row at its optimum, beside what a refinement needs of the rows' state."""

    rows: RowsPass
    begin: FillPass

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def start(self, block: Block) -> State:
        none = unfolded(block)[:0].copy()
        return {_ASIDE: none, _ASIDE_OBSERVED: none.astype(np.float32), _ASIDE_VARIANCES: np.empty((1, 0)), **self.begin.start(block)}

    def step(self, block: Block, state: State | None, broadcast: NDArray[np.float64]) -> tuple[State, RowSums]:
        assert state is not None
        if FACTORS not in state:  # but slices that are kept aside
            state = state | self.begin.start(block)
        found, sums = self.rows.step(block, None, broadcast)
        return {**state, **found}, sums


@dataclass
class AdamaxState(PartialSums, name="cp_adamax"):
    """The factors of modes 2 to N with Adamax's moments; as a sum those of several samples, each times its ``weight``.

    The modes lie side by side. See :func:`dfact.kernels.adamax.adamax_updates` for the moments.
    """

    factors: NDArray[Any]
    """(R, ΣI_n)."""
    moments: NDArray[Any]
    """M (R, ΣI_n)."""
    zeros: NDArray[Any]
    """Z (R, ΣI_n)."""
    sizes: NDArray[Any]
    """S (N−1, R)."""
    squares: NDArray[Any]
    """‖a_r⁽¹⁾‖² (R), tracked over the samples; negative before the first."""
    weight: NDArray[Any]

    @classmethod
    def at(cls, others: Factors) -> Self:
        """The start: no moments yet."""
        A = np.hstack(others)
        return cls(A, np.zeros_like(A), np.zeros_like(A), np.zeros((len(others), len(A))), np.full(len(A), -1.0), np.ones(()))

    @classmethod
    def nothing(cls) -> Self:
        """An empty sum."""
        none = np.zeros(0)
        return cls(none, none, none, none, none, np.zeros(()))

    def times(self, weight: float) -> "AdamaxState":
        """Multiply all arrays by a number."""
        return AdamaxState(**{f.name: np.asarray(weight * getattr(self, f.name)) for f in fields(self)})

    def add(self, other: Self) -> None:
        if other.weight and not self.weight:
            self.__dict__.update(other.accumulator().__dict__)
        elif other.weight:
            super().add(other)


@dataclass(frozen=True)
class LocalStepsPass(SampledPass):
    """Steps of Adamax on one block of each of these partitions, from the same factors; returns the weighted sum of what they reach.

    A step draws slices of mode 1, finds their factors at their optimum on the entries drawn, and moves the factors of every
    other mode towards the solution of its subproblem (algorithm 4).
    """

    changes_state: ClassVar[bool] = False
    number: int
    """The number of the iteration; with the seed and the block's number it determines the draws."""
    steps: int
    batch_sizes: tuple[int, ...]
    net: ElasticNet
    prior: Prior
    seed: int
    shape: tuple[int, ...]
    layout: Layout
    exact: bool
    """Whether the other modes' subproblems leave out what is missing, as those of the slices do; else the model fills it in."""
    dtype: np.dtype[Any]

    def step(self, block: Block, state: State | None, broadcast: tuple[AdamaxState, float, int]) -> tuple[State | None, AdamaxState]:
        """``broadcast`` is where the steps begin, the step size, and the number of steps before."""
        if not self._is_drawn(block):
            return state, AdamaxState.nothing()
        begin, step_size, t = broadcast
        rng, V = seeded(self.seed, self.number, 1, block.index), unfolded(block)
        local = _LocalSteps(self, begin, Sample(V, self.prior.rows.variances(block, _WIDE), block.work))
        size = min(self.batch_sizes[0], len(V))
        batches: list[NDArray[np.int64]] = []
        for i in range(self.steps):
            if not batches:
                batches = np.array_split(rng.permutation(len(V)), -(-len(V) // size))
            local.move(np.sort(batches.pop()), self._columns(rng), step_size, t + i + 1)
        return state, local.reached().times(size)

    def _is_drawn(self, block: Block) -> bool:
        """Whether the block is the one of its partition that this pass takes: each with the chance of its share of the rows."""
        partition = partition_of(block, self.layout)
        rows = self.layout.rows(partition, partition + 1)
        row = int(seeded(self.seed, self.number, 0, partition).integers(rows.start, rows.stop))
        return block.start <= row < block.start + self.layout.block_rows

    def _columns(self, rng: np.random.Generator) -> Resample:
        return [
            None if drawn == size else np.sort(rng.choice(size, drawn, replace=False))
            for drawn, size in zip(self.batch_sizes[1:], self.shape[1:], strict=True)
        ]


class Sample:
    """The slices of a block (rows, I_2⋯I_N) as the kernels of :mod:`dfact.kernels.samples` take them."""

    def __init__(self, V: NDArray[Any], variances: NDArray[np.float64], work: Workspace) -> None:
        self.variances, self._work = variances, work
        self.values = filled(V, out=work.array("filled", V.shape, V.dtype))
        gaps = np.isnan(V, out=work.array("missing", V.shape, bool))
        self.observed = work.array("observed", V.shape if gaps.any() else (0, 0), np.float32)
        if len(self.observed):
            np.subtract(1, gaps, out=self.observed)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Some of the slices."""
        values, observed = (
            np.take(V, rows, axis=0, out=self._work.array(name, (len(rows), V.shape[1]), V.dtype), mode="clip") if len(V) else V
            for name, V in (("batch", self.values), ("observed batch", self.observed))
        )
        return values, observed


class _LocalSteps:
    """The factors on their way through the local steps of a block."""

    def __init__(self, pass_: LocalStepsPass, begin: AdamaxState, sample: Sample) -> None:
        self._pass, self._sample = pass_, sample
        self._others, self._M, self._Z = (split_modes(array, pass_.shape) for array in (begin.factors, begin.moments, begin.zeros))
        self._S, self._squares = begin.sizes.copy(), begin.squares.copy()
        self._ridges = [pass_.net.ridge(variances) for variances in pass_.prior.others]

    def reached(self) -> AdamaxState:
        A, M, Z = (np.hstack(modes) for modes in (self._others, self._M, self._Z))
        return AdamaxState(A, M, Z, self._S, self._squares, np.ones(()))

    def move(self, rows: NDArray[np.int64], drawn: Resample, step_size: float, t: int) -> None:
        """Find the factors of the slices drawn, then move every other mode towards its sample's solution."""
        net, whole = self._pass.net, all(s is None for s in drawn)
        batch = self._sample.batch(rows)
        X = self._rows(batch, self._sample.variances[rows], drawn)
        lengths = np.square(X).sum(axis=1)
        squares = self._pass.shape[0] / len(rows) * lengths
        self._squares = np.where(self._squares < 0, squares, BETA_1 * self._squares + (1 - BETA_1) * squares)
        rows_share = _ratio(lengths, self._squares)
        products: Any = None
        for n, A in enumerate(self._others):
            taken: Resample = [None if i == n else s for i, s in enumerate(drawn)]
            some, sizes = self._taken(taken)
            if products is None or not whole:  # without a draw they are the same for all modes
                products = contracted_slices(X, *self._entries(batch, taken), some, sizes, self._pass.exact)
            U, G = subproblem(n, X, products[0], products[1], some, sizes)
            shares = rows_share if whole else rows_share * self._columns_share(taken)
            moments = self._M[n], self._S[n], self._Z[n]
            adamax_updates(A, U, G, self._ridges[n], net.l1, shares, net.nonnegative, step_size, t, *moments)

    def _rows(self, batch: Batch, variances: NDArray[np.float64], drawn: Resample) -> NDArray[np.float64]:
        """The factors (R, rows) of slices at their optimum on the entries drawn, with these's share of the penalty."""
        net, (values, observed), (some, sizes) = self._pass.net, self._entries(batch, drawn), self._taken(drawn)
        share = values.shape[1] / prod(self._pass.shape[1:])
        return optimal_slices(values, observed, some, sizes, share * net.ridge(variances), share * net.l1, net.nonnegative, _ROW_TOLERANCE)

    def _taken(self, drawn: Resample) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The factors of the slices drawn of modes 2 to N side by side, and how many these are of each mode."""
        some = [A if s is None else A.take(s, axis=1) for A, s in zip(self._others, drawn, strict=True)]  # in C order, unlike A[:, s]
        return np.hstack(some), np.array([A.shape[1] for A in some])

    def _columns_share(self, drawn: Resample) -> NDArray[np.float64]:
        """The share (R,) that the slices drawn have of Π‖a_r⁽ⁿ⁾‖²."""
        pairs = [(A[:, s], A) for A, s in zip(self._others, drawn, strict=True) if s is not None]
        shares = [_ratio(np.square(some).sum(axis=1), np.square(A).sum(axis=1)) for some, A in pairs]
        return np.asarray(np.prod(shares, axis=0))

    def _entries(self, batch: Batch, drawn: Resample) -> Batch:
        """The entries of a batch in these slices of modes 2 to N, unfolded."""
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
    """The modes 2 to N of an array (R, ΣI_n) in which they lie side by side."""
    return [np.array(part, order="C") for part in np.split(array, np.cumsum(shape[1:])[:-1], axis=1)]


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide; 0 where b is."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
