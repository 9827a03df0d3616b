"""Algorithm 4: CP by Adamax on samples, drawn from whole chunks of mode 1 so that what is read is used for many steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.source import Layout, absent_of, read_rows, reads
from dfact.data.statistics import as_floating
from dfact.engine.partition import one_ahead
from dfact.engine.passes import Block, State
from dfact.engine.session import Arrays, Session
from dfact.errors import ParameterError
from dfact.kernels.adamax import BETA_1, adamax_updates
from dfact.kernels.cp import fill_missing
from dfact.kernels.elastic_net import row_optima
from dfact.models.cp_passes import FACTORS, Census, CensusPass, FillPass, RowsPass, RowSums, Start, row_grams
from dfact.models.cp_problem import (
    ElasticNet,
    Factors,
    Prior,
    component_weights,
    contracted,
    grams_product,
    khatri_rao,
    sizes_of,
    unfolded,
)
from dfact.models.elastic_cp_solvers import FillSolver, rows_between_passes

Chunk = tuple[NDArray[Any] | sp.csr_array, slice]
"""Rows as they are stored, and which they are."""

_STEPS = 30  # of an iteration
_VISIT = 32  # least number of steps on a chunk while it is here
_EARLY, _EARLY_SHARE = 3, 0.01  # iterations at the start with this share of the penalties
_DECAY = 0.2  # of the step, where the objective begins to rise
_MONITOR_ENTRIES = 1 << 20  # of the slices on which the objective is watched
_MONITOR_CHUNKS = 4  # they come from
_BATCH_ROWS, _BATCH_ENTRIES = 64, 1 << 10  # slices in a sample, at least, if these are not more than half; most entries of each
_WIDE = np.dtype(np.float64)


def batch_sizes_of(given: Sequence[int] | None, shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """s_n of every mode, none above its size."""
    if given is not None:
        if len(given) != len(shape):
            raise ParameterError(f"batch_sizes is {given!r}, expected {len(shape)} numbers, one for each mode")
        return tuple(min(int(s), size) for s, size in zip(given, shape, strict=True))
    sizes = [min(max(_BATCH_ROWS, 4 * rank), -(-shape[0] // 2)), *shape[1:]]
    while prod(sizes[1:]) > _BATCH_ENTRIES and max(sizes[1:]) > 1:
        n = 1 + int(np.argmax(sizes[1:]))
        sizes[n] = -(-sizes[n] // 2)
    return tuple(sizes)


def aside_rows(shape: Sequence[int]) -> int:
    """Number of slices on which the objective is watched."""
    return min(max(_BATCH_ROWS, _MONITOR_ENTRIES // prod(shape[1:])), shape[0])


@dataclass(frozen=True)
class SettledPass:
    """Every row at its optimum, beside what a refinement needs of the rows' state."""

    rows: RowsPass
    begin: FillPass

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def start(self, block: Block) -> State:
        return self.begin.start(block)

    def step(self, block: Block, state: State | None, shared: NDArray[np.float64]) -> tuple[State, RowSums]:
        found, sums = self.rows.step(block, None, shared)
        return {**(state or {}), **found}, sums


class Chunks:
    """The rows of a data set as they are read: in a seeded order, all once before any comes again."""

    def __init__(self, dataset: Dataset, known: NDArray[Any] | None, seed: np.random.SeedSequence) -> None:
        self._source, self._code, self._known = dataset.source, dataset.missing_code, known
        self._runs = list(reads(dataset.source, Layout.of(dataset.shape)))
        self._seed = seed

    def visits(self, size: int, skip: int) -> Iterator[tuple[int, int, Chunk]]:
        """Without an end: the number of a visit, how many of its samples are skipped, and the chunk.

        What lies wholly before the sample number ``skip`` is not read. The one chunk of small data stays here.
        """
        order = np.random.default_rng(child(self._seed, 0))
        held = self._read(self._runs[0]) if len(self._runs) == 1 else None
        for number in count():
            place = number % len(self._runs)
            if place == 0:
                runs = order.permutation(len(self._runs))
            run = self._runs[runs[place]]
            n_samples = samples_of_a_visit(run, size)
            if skip < n_samples:
                yield number, skip, held or self._read(run)
            skip = max(0, skip - n_samples)

    def some(self, number: int) -> Iterator[Chunk]:
        """A few of the chunks."""
        for i in np.random.default_rng(child(self._seed, 1)).permutation(len(self._runs))[:number]:
            yield self._read(self._runs[i])

    def _read(self, run: slice) -> Chunk:
        return read_rows(self._source, run.start, run.stop), run

    def block(self, chunk: Chunk, rows: NDArray[np.int64]) -> Block:
        """Some rows of a chunk as a pass sees them."""
        raw, run = chunk
        known = None if self._known is None else self._known[run.start + rows]
        return Block(as_floating(raw[rows], self._code, _WIDE), known, 0, run.start, absent_of(self._source))


def child(seed: np.random.SeedSequence, number: int) -> np.random.SeedSequence:
    """A seed of its own for each number, so that no draw depends on how many there were before."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))


def _parts(run: slice, size: int) -> int:
    """Samples of so many slices out of all those of a chunk."""
    return int(-(-(run.stop - run.start) // size))


def samples_of_a_visit(run: slice, size: int) -> int:
    """Number of samples that are taken of a chunk while it is here: all its slices equally often."""
    return -(-_VISIT // _parts(run, size)) * _parts(run, size)


def samples(chunks: Chunks, size: int, seed: np.random.SeedSequence, skip: int = 0) -> Iterator[Block]:
    """Slices of one chunk after the other, from the sample number ``skip`` on; the next chunk is read meanwhile."""
    for number, behind, chunk in one_ahead(chunks.visits(size, skip)):
        n, draws, parts = chunk[0].shape[0], np.random.default_rng(child(seed, number)), _parts(chunk[1], size)
        rounds = samples_of_a_visit(chunk[1], size) // parts
        drawn = [rows for _ in range(rounds) for rows in np.array_split(draws.permutation(n), parts)]
        for rows in drawn[behind:]:
            yield chunks.block(chunk, np.sort(rows))


class StochasticSolver:
    """Algorithm 4 on samples Z(s_1, …, :, …, s_N), the s_1 slices out of the chunk at hand.

    It departs from the print in this. A slice's own factors are not moved by Adamax: they are its optimum
    given the others, as all that tells of it is in the sample; so nothing of mode 1 is kept between steps.
    Missing entries are filled in by the model. The sample's solution ā counts the whole penalty by the
    sample's share τ, not the l1 part alone, which would weigh the other part I_1/s_1 times. Entries become
    0 where most ā of late are 0 instead of any: by chance ever more would be. The step is relative to
    a vector's length. It shrinks where the objective begins to rise, not the error, which must rise
    along a path; that is watched on slices kept aside. Modes are balanced as in block coordinate descent.
    The first iterations have a hundredth of the penalties, without which components are given up too early.
    """

    def __init__(
        self,
        session: Session,
        dataset: Dataset,
        known: NDArray[Any] | None,
        prior: Prior,
        begin: Start,
        dtype: np.dtype[Any],
        others: Factors,
        batch_sizes: Sequence[int],
        step_size: float,
    ) -> None:
        self._session, self._prior, self._begin, self._dtype = session, prior, begin, dtype
        self._others = [A.copy() for A in others]
        self._shape, self._sizes, self._step_size = dataset.shape, batch_sizes, step_size
        seed = np.random.SeedSequence(begin.seed, spawn_key=(len(dataset.shape),))
        order, self._slices, self._entries, self._kept_aside = (child(seed, i) for i in range(4))
        self._chunks = Chunks(dataset, known, order)
        self._batches: Iterator[Block] | None = None
        self._monitor: list[Block] = []
        self._net = ElasticNet(np.nan, np.nan)  # none yet
        self._early = _EARLY
        self._iteration = 0

    @property
    def others(self) -> Factors:
        return self._others

    def _begin_again(self, net: ElasticNet) -> None:
        # From the solution of another λ there is less of a way to go.
        self._step = self._step_size * (1.0 if np.isnan(self._net.lam) else _DECAY)
        self._t, self._last = 0, np.inf
        self._M, self._Z = ([np.zeros_like(A) for A in self._others] for _ in range(2))
        self._S = [np.zeros(len(A)) for A in self._others]
        self._squares = np.zeros(0)  # ‖a_r⁽¹⁾‖², tracked over the samples

    def iterate(self, net: ElasticNet) -> float:
        found = self._session.remember("iteration", lambda: self._iterated(net))
        self._net, self._iteration, modes = net, self._iteration + 1, range(len(self._others))
        self._others, self._M, self._Z, self._S = ([found[f"{name}{n}"] for n in modes] for name in "AMZS")
        self._squares, (self._step, self._t, self._last, self._early) = found["squares"], found["scalars"]
        return float(self._last)

    def _iterated(self, net: ElasticNet) -> Arrays:
        """All that the next iteration needs; the objective is the last."""
        if net != self._net:
            self._begin_again(net)
            self._net = net
        objective, sizes = self._estimate()
        if objective > self._last:
            self._step *= _DECAY
        self._last = objective
        self._balance(sizes)
        if self._early:
            self._early -= 1
            net = replace(net, lam=_EARLY_SHARE * net.lam)
        if self._batches is None:
            self._batches = samples(self._chunks, self._sizes[0], self._slices, _STEPS * self._iteration)
        draws = np.random.default_rng(child(self._entries, self._iteration))
        for _ in range(_STEPS):
            self._move(next(self._batches), net, draws)
        arrays = {"A": self._others, "M": self._M, "Z": self._Z, "S": self._S}
        found = {f"{name}{n}": array for name, modes in arrays.items() for n, array in enumerate(modes)}
        return found | {"squares": self._squares, "scalars": np.array([self._step, self._t, self._last, self._early])}

    def _estimate(self) -> tuple[float, list[NDArray[np.float64]]]:
        """The objective with all slices at their optimum, from those kept aside, and all modes' sizes."""
        if not self._monitor:
            self._monitor = self._aside()
        pass_, H, n = RowsPass(self._net, self._prior.rows, _WIDE), khatri_rao(self._others), 0
        squares, sizes = 0.0, np.zeros((2, len(H)))
        for block in self._monitor:
            sums = pass_.step(block, None, H)[1]
            squares, sizes, n = squares + float(sums.squares), sizes + sums.sizes, n + len(block.values)
        whole = self._shape[0] / n
        all_sizes = [whole * sizes, *(sizes_of(A, v) for A, v in zip(self._others, self._prior.others, strict=True))]
        return 0.5 * whole * squares + self._net.penalty(sum(all_sizes, np.zeros_like(sizes))), all_sizes

    def _aside(self) -> list[Block]:
        chunks, draws = list(self._chunks.some(_MONITOR_CHUNKS)), np.random.default_rng(self._kept_aside)
        each = -(-aside_rows(self._shape) // len(chunks))
        drawn = (np.sort(draws.permutation(rows.shape[0])[:each]) for rows, _ in chunks)
        return [self._chunks.block(chunk, rows) for chunk, rows in zip(chunks, drawn, strict=True)]

    def _balance(self, sizes: list[NDArray[np.float64]]) -> None:
        scales = self._net.balanced(np.stack(sizes))
        for n, c in enumerate(scales[1:]):
            self._others[n] *= c[:, None]
            self._M[n] *= c[:, None]
            self._S[n] *= c
        if len(self._squares):
            self._squares *= scales[0] ** 2

    def _move(self, block: Block, net: ElasticNet, draws: np.random.Generator) -> None:
        """A step: the slices of the sample to their optimum, then every other mode towards its sample's solution."""
        drawn = [
            np.arange(size) if s == size else np.sort(draws.choice(size, s, replace=False))
            for s, size in zip(self._sizes[1:], self._shape[1:], strict=True)
        ]
        V = unfolded(block).reshape(-1, *self._shape[1:])
        X = self._rows(block, V, drawn, net)
        self._t += 1
        squares = self._shape[0] / len(V) * np.square(X).sum(axis=1)
        self._squares = BETA_1 * self._squares + (1 - BETA_1) * squares if len(self._squares) else squares
        for n, A in enumerate(self._others):
            U, G, shares = self._subproblem(n, V, X, drawn)
            ridge = net.ridge(self._prior.others[n])
            moments = self._M[n], self._S[n], self._Z[n]
            adamax_updates(A, U, G, ridge, net.l1, shares, net.nonnegative, self._step, self._t, *moments)

    def _subproblem(
        self, n: int, V: NDArray[np.float64], X: NDArray[np.float64], drawn: list[NDArray[np.int64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Of Z(s_1, …, :, …, s_N): u (R, I) of all components before they are taken off one another, by their Gram matrix (R, R);
        and the share (R,) that the sample has of every ‖h_r‖².
        """
        drawn = [np.arange(V.shape[1 + i]) if i == n else s for i, s in enumerate(drawn)]
        some = [A[:, s] for A, s in zip(self._others, drawn, strict=True)]
        part, target = _sampled(V, drawn), X.T @ khatri_rao(some)
        fill_missing(part, target)
        G = grams_product([X @ X.T, *(A @ A.T for i, A in enumerate(some) if i != n)])
        lengths = [np.square(A).sum(axis=1) for i, A in enumerate(self._others) if i != n]
        whole = self._squares * np.prod(lengths, axis=0)
        shares = np.divide(G.diagonal(), whole, out=np.zeros(len(G)), where=whole > 0)
        return contracted(X @ target, some, n), G, shares

    def _rows(self, block: Block, V: NDArray[np.float64], drawn: list[NDArray[np.int64]], net: ElasticNet) -> NDArray[np.float64]:
        """The factors (R, rows) of the slices at their optimum on the entries drawn, with these's share of the penalty."""
        H, part = khatri_rao([A[:, s] for A, s in zip(self._others, drawn, strict=True)]), _sampled(V, drawn)
        share = part.shape[1] / prod(self._shape[1:])
        seen = ~np.isnan(part)
        U = H @ np.where(seen, part, 0.0).T
        grams = (H @ H.T)[None] if seen.all() else row_grams(seen, H, block.work)
        ridge = share * net.ridge(self._prior.rows.variances(block, _WIDE))
        X = np.zeros_like(U)
        row_optima(X, U, grams, ridge, share * net.l1, net.nonnegative, 1e-12)
        return X

    def _settle(self) -> RowSums:
        rows = RowsPass(self._net, self._prior.rows, self._dtype)
        return self._session.run(
            SettledPass(rows, FillPass(self._net, self._prior.rows, self._begin, self._dtype)), khatri_rao(self._others)
        )

    def evaluate(self) -> tuple[float, NDArray[np.float64]]:
        sums = self._settle()
        return float(sums.squares), component_weights(sums.gram, self._others)

    def census(self) -> Census:
        return self._session.run(CensusPass(), None)

    def refinement(self, supports: Factors) -> FillSolver:
        return FillSolver(self._session, self._prior, self._begin, self._dtype, self._others).refinement(supports)

    def rows(self) -> Iterator[NDArray[Any]]:
        return rows_between_passes(self._session, FACTORS)


def _sampled(V: NDArray[np.float64], drawn: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """The entries of V (rows, I_2, …, I_N) at these indices of modes 2 to N, unfolded."""
    for axis, s in enumerate(drawn, start=1):
        if len(s) < V.shape[axis]:
            V = V.take(s, axis=axis)
    return V.reshape(len(V), -1)
