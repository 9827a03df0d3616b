"""What a pass takes on a cluster larger than this machine, by what the tree of workers costs here.

A pass takes the arithmetic of the busiest worker, and the way down and up the longest path of the tree: each level a
latency, each further call that a worker makes its processor's time, and each byte that it exchanges with those below the
processor's time at both ends and that of its network connection of 10 Gbit/s, one worker after the other. Nothing of it
is taken to overlap. Which sums travel is not modelled: the engine's own tree of workers, split of partitions and tree of
sums say so. The processors' time is that of this machine while one worker at a time works; that many workers share its
two cores is fitted too, and left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.optimize import nnls

import dfact
from dfact.data.source import Layout
from dfact.engine.cluster.placement import FAN_OUT, Tree, split, tree
from dfact.engine.passes import Partial
from dfact.engine.reduction import TreeSum

_ENTRY_SECONDS = 1.5e-9
"""A thread's time for an entry of ICQF with 20 factors, read from disk: benchmarks/icqf_out_of_core."""
_NETWORK = 1.25e9
"""Bytes a second that a machine takes in or gives out: 10 Gbit/s."""
_SPEED_UPS = [1 << i for i in range(11)]


@dataclass
class _Nothing(Partial):
    """A sum that only counts."""


@dataclass(frozen=True)
class Route:
    """The longest path of a pass through the tree of workers, from the driver to a worker without any below."""

    levels: int
    calls: int
    """That the workers on it make, besides those to each other."""
    sums: int
    """Sums of a model's size that they take in, the driver the last."""
    replies: int
    """Of these sums, those of workers on the path."""
    broadcasts: int
    """That they give out."""
    all_sums: int
    """That travel anywhere."""
    busiest: int
    """Partitions of the worker that has the most."""


@cache
def route(workers: int, partitions: int, fan_out: int = FAN_OUT) -> Route:
    """Of passes over so many partitions, by the engine's own trees."""
    shares = [share for share in split([range(partitions)], [1.0] * workers) if share]
    travelling = 0

    def path(here: Tree[list[range]]) -> tuple[list[int], TreeSum[Any]]:
        """Levels, further calls, sums, replies and broadcasts from this worker on; its sums and those from below."""
        nonlocal travelling
        runs, below = here
        held = TreeSum[Any](partitions)
        held.update({(0, number): _Nothing() for run in runs for number in run})
        longest, taken = [0, 0, 0, 0, 0], 0
        for child in below:
            theirs, sums = path(child)
            theirs[3] += len(sums.nodes)
            held.update(sums.nodes)
            taken += len(sums.nodes)
            longest = max(longest, theirs, key=lambda p: (p[2], p[0]))
        travelling += taken
        own = [1, max(0, len(below) - 1), taken, 0, len(below)]
        return [one + other for one, other in zip(longest, own, strict=True)], held

    (levels, calls, sums, replies, broadcasts), _ = path(tree(shares, fan_out))
    return Route(levels, calls, sums + 1, replies + 1, broadcasts + 1, travelling + 1, max(len(run) for share in shares for run in share))


@dataclass(frozen=True)
class Measured:
    """A pass of workers that wait, without the wait."""

    workers: int
    partitions: int
    fan_out: int
    """1: a chain of workers, of which one works at a time, so that none waits for a core of this machine."""
    size: int
    """Bytes of the sums."""
    seconds: float


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    call: float
    """From the driver to the first worker and back, through the scheduler."""
    level: float
    """From a worker to one below and back."""
    byte: float
    """Of sums, from one to the next: made into a message, sent, received, added."""
    worker: float
    """Of this machine's cores, which all share: further workers of a cluster have their own."""
    shared_byte: float
    """The same of the bytes that all send."""

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> "Costs":
        """By least squares of relative errors, none of them negative."""
        rows = [cls._terms(m) for m in measured]
        weights = np.array([1 / m.seconds for m in measured])
        matrix = np.array(rows) * weights[:, None]
        scale = matrix.max(axis=0)
        found, _ = nnls(matrix / scale, np.ones(len(measured)))
        return cls(*(float(value) for value in found / scale))

    @staticmethod
    def _terms(m: Measured) -> list[float]:
        r, side_by_side = route(m.workers, m.partitions, m.fan_out), m.fan_out > 1
        return [1, r.levels - 1, m.size * r.sums, side_by_side * (m.workers - 1), side_by_side * m.size * r.all_sums]

    def seconds(self, m: Measured) -> float:
        """What these costs say of a measured pass."""
        return float(np.dot(self._terms(m), [getattr(self, f.name) for f in fields(self)]))


@dataclass(frozen=True)
class Caller:
    """Seconds of the processor of a worker that calls others, for each of them."""

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
        """Bytes of sums, and at most of what is broadcast."""
        return int(dfact.ICQF(20)._footprint((self.rows, self.columns), 0, np.dtype(np.float32)).shared) // 2

    def seconds(self, costs: Costs, caller: Caller, workers: int) -> float:
        """A pass on so many one-thread workers, each with a core and a network connection of its own."""
        r = route(workers, self.partitions)
        arithmetic = r.busiest * _ENTRY_SECONDS * self.rows * self.columns / self.partitions
        called = (r.replies + r.levels) * max(0.0, costs.byte - caller.taken)  # the other end of each connection of the path
        travelling = r.sums * (caller.taken + 1 / _NETWORK) + r.broadcasts * (caller.given + 1 / _NETWORK) + called
        return arithmetic + costs.call + (r.levels - 1) * costs.level + r.calls * caller.call + self.size * travelling

    def speed_up(self, costs: Costs, caller: Caller, workers: int) -> float:
        return self.seconds(costs, caller, 1) / self.seconds(costs, caller, workers)

    def half_efficient(self, costs: Costs, caller: Caller) -> int:
        """The largest cluster that gains at least half of what its size promises, to some 5 %."""
        sizes = sorted({round(1.05**i) for i in range(170)})
        return max(w for w in sizes if w <= self.partitions and self.speed_up(costs, caller, w) >= w / 2)

    def __str__(self) -> str:
        return f"{self.rows:,} × {self.columns:,}"


def outlook(costs: Costs, caller: Caller) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Speed-ups of two fits, and bars for them."""
    small, large = Fit(500_000, 1_000), Fit(1_000_000, 10_000)
    faster = {fit: partial(fit.speed_up, costs, caller) for fit in (small, large)}
    rows: list[dict[str, Any]] = []
    for workers in _SPEED_UPS:
        rows.append({"workers": workers})
        for fit in (small, large):
            rows[-1] |= {f"{fit}, s": fit.seconds(costs, caller, workers), f"{fit}, ×": faster[fit](workers)}
    bars = [
        (f"{fit} on {workers} workers {faster[fit](workers):.0f} × as fast as on one, at least {bar}", faster[fit](workers) >= bar)
        for fit, workers, bar in ((small, 64, 20), (large, 512, 200))
    ]
    for fit in (small, large):
        print(f"{fit} gains half of its workers' number up to {fit.half_efficient(costs, caller)}")
    return rows, bars
