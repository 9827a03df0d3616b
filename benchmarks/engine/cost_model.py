"""Model of the time of a pass on a cluster larger than this machine, from the cost of calls between workers on it.

The model follows the engine's split of the partitions, its tree of workers and its tree of sums. Each worker forwards the
broadcast to its children in turn, runs its partitions, and adds the sums of its children as they arrive, one at a time.
A call costs latency, processor time at both ends, and the time of its bytes at both ends and on a connection of 10 Gbit/s.
All of these are measured with one busy worker at a time, as each worker has its own core on a cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.optimize import nnls

import dfact
from dfact.data.layout import Layout
from dfact.engine.cluster.placement import Tree, build_call_tree, split_runs
from dfact.engine.partitions import Leaves, TreeSum
from dfact.engine.passes import PartialSums

_ENTRY_SECONDS = 1.5e-9
"""Seconds of a thread per entry of ICQF with 20 factors, read from disk: benchmarks/bounded_nmf/out_of_core."""
NETWORK = 1.25e9
"""Bytes a second that a machine takes in or gives out: 10 Gbit/s."""
_SPEED_UPS = [1 << i for i in range(11)]


@dataclass
class _Nothing(PartialSums):
    """An empty sum that only counts."""


Nodes = tuple[int, int, list[Any]]
"""Of a worker in the tree: its partitions, the nodes whose sums it returns, and the same of those that it calls."""


def chain(items: Sequence[Any], firsts: Sequence[int]) -> Tree[Any]:
    """Return a chain: each worker calls the next, so that one is busy at a time."""
    return items[0], [chain(items[1:], firsts[1:])] if len(items) > 1 else []


def star(items: Sequence[Any], firsts: Sequence[int]) -> Tree[Any]:
    """Return a star: the first worker calls all others."""
    del firsts
    return items[0], [(item, []) for item in items[1:]]


@cache
def counted(workers: int, partitions: int, shape: Any = build_call_tree) -> Nodes:
    """Return the partitions and sums of each worker in a pass, in the engine's tree or another."""
    shares = [share for share in split_runs([range(partitions)], [1.0] * workers) if share]

    def count(here: Tree[list[range]]) -> tuple[Nodes, TreeSum[Any]]:
        runs, below = here
        held = TreeSum[Any](Leaves((partitions,)))
        held.update({(0, number): _Nothing() for run in runs for number in run})
        found = []
        for child in below:
            nodes, sums = count(child)
            found.append(nodes)
            held.update(sums.nodes)
        return (sum(map(len, runs)), len(held.nodes), found), held

    return count(shape(shares, [share[0].start for share in shares]))[0]


@dataclass(frozen=True)
class Measurement:
    """The overhead of a pass of waiting workers in a chain, which do not compete for the cores of this machine."""

    workers: int
    size: int
    """Bytes of the sums."""
    seconds: float


@dataclass(frozen=True)
class Costs:
    """Costs of a call in seconds."""

    call: float
    """From the driver to the first worker and back, through the scheduler."""
    level: float
    """From a worker to one below and back."""
    byte: float
    """Of sums, from one to the next: made into a message, sent, received, added."""

    @classmethod
    def of(cls, measured: Sequence[Measurement]) -> "Costs":
        """Fit nonnegative costs by least squares of relative errors."""
        weights = np.array([1 / m.seconds for m in measured])
        matrix = np.array([cls._terms(m) for m in measured]) * weights[:, None]
        scale = matrix.max(axis=0)
        found, _ = nnls(matrix / scale, np.ones(len(measured)))
        return cls(*(float(value) for value in found / scale))

    @staticmethod
    def _terms(m: Measurement) -> list[float]:
        sums, (_, nodes, below) = 1, counted(m.workers, m.workers, chain)
        while below:
            [(_, nodes, below)] = below
            sums += nodes
        return [1, m.workers - 1, m.size * sums]

    def seconds(self, m: Measurement) -> float:
        """Return the predicted seconds of a measured pass."""
        return float(np.dot(self._terms(m), [self.call, self.level, self.byte]))


@dataclass(frozen=True)
class Caller:
    """Processor seconds of a calling worker, per callee."""

    call: float
    taken: float
    """A byte of sums."""
    given: float
    """A byte of what is broadcast."""


@dataclass(frozen=True)
class Fit:
    """An ICQF with 20 factors."""

    rows: int
    columns: int

    @property
    def partitions(self) -> int:
        return Layout.of((self.rows, self.columns)).n_partitions

    @property
    def size(self) -> int:
        """Size of the sums in bytes."""
        return int(dfact.ICQF(20)._footprint((self.rows, self.columns), 0, np.dtype(np.float32)).broadcast) // 2

    def seconds(self, costs: Costs, caller: Caller, workers: int) -> float:
        """Return the seconds of a pass on one-thread workers, each with its own core and network connection."""
        each = _ENTRY_SECONDS * self.rows * self.columns / self.partitions
        broadcast = self.size / 2  # in single precision
        given, taken = broadcast * (caller.given + 1 / NETWORK), self.size * (caller.taken + 1 / NETWORK)
        made = self.size * max(0.0, costs.byte - caller.taken)  # the other end of a connection

        def finished(here: Nodes, start: float) -> float:
            """Return the time at which a worker has the sums of its subtree, if the broadcast reaches it at ``start``."""
            load, _, below = here
            arriving = []
            for child in below:
                start += caller.call / 2 + given
                arriving.append((finished(child, start + costs.level / 2) + costs.level / 2 + child[1] * made, child[1]))
            now = start + load * each
            for arrived, nodes in sorted(arriving):
                now = max(now, arrived) + caller.call / 2 + nodes * taken
            return now

        root = counted(workers, self.partitions)
        return costs.call + finished(root, 0.0) + root[1] * self.size * (costs.byte + 2 / NETWORK) + broadcast / NETWORK

    def speed_up(self, costs: Costs, caller: Caller, workers: int) -> float:
        return self.seconds(costs, caller, 1) / self.seconds(costs, caller, workers)

    def half_efficient(self, costs: Costs, caller: Caller) -> int:
        """Return the number of workers up to which the efficiency is at least one half, to about 5%."""
        sizes = sorted({round(1.05**i) for i in range(170)})
        return max(w for w in sizes if w <= self.partitions and self.speed_up(costs, caller, w) >= w / 2)

    def __str__(self) -> str:
        return f"{self.rows:,} × {self.columns:,}"


def outlook(costs: Costs, caller: Caller) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Return the speed-ups of two fits and their thresholds."""
    small, large = Fit(500_000, 1_000), Fit(1_000_000, 10_000)
    faster = {fit: partial(fit.speed_up, costs, caller) for fit in (small, large)}
    rows: list[dict[str, Any]] = []
    for workers in _SPEED_UPS:
        rows.append({"workers": workers})
        for fit in (small, large):
            rows[-1] |= {f"{fit}, s": fit.seconds(costs, caller, workers), f"{fit}, ×": faster[fit](workers)}
    thresholds = [
        (
            f"{fit} on {workers} workers {faster[fit](workers):.0f} × as fast as on one, at least {threshold}",
            faster[fit](workers) >= threshold,
        )
        for fit, workers, threshold in ((small, 64, 20), (large, 512, 200))
    ]
    for fit in (small, large):
        print(f"{fit} has an efficiency of at least one half up to this number of workers: {fit.half_efficient(costs, caller)}")
    return rows, thresholds
