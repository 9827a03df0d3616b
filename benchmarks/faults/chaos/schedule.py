"""When which fault strikes: drawn from a seed, so that the same seed gives the same schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SCHEDULER, DRIVER, STORE = "scheduler", "driver", "store"

_KINDS = {
    # kind: part that it hits, least and most seconds until it is undone
    "worker killed": ("worker", 0, 0),
    "worker stopped by SIGTERM": ("worker", 0, 0),
    "worker paused": ("worker", 3, 40),
    "worker cut off": ("worker", 3, 40),
    "worker's link slow": ("worker", 10, 40),
    "worker's link loses packets": ("worker", 10, 40),
    "worker's disk full": ("worker", 10, 40),
    "scheduler killed": (SCHEDULER, 0, 0),
    "scheduler paused": (SCHEDULER, 3, 25),
    "scheduler cut off": (SCHEDULER, 3, 25),
    "scheduler's link slow": (SCHEDULER, 10, 40),
    "driver killed": (DRIVER, 0, 0),
    "driver stopped by SIGTERM": (DRIVER, 0, 0),
    "driver paused": (DRIVER, 3, 25),
    "driver cut off": (DRIVER, 3, 25),
    "driver's link loses packets": (DRIVER, 10, 40),
    "store killed": (STORE, 1, 15),
    "store paused": (STORE, 3, 25),
    "store cut off": (STORE, 3, 25),
    "store errs": (STORE, 10, 40),
    "store slow": (STORE, 10, 40),
    "store full": (STORE, 5, 25),
}
KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class Fault:
    """One fault of the schedule."""

    at: float
    """Seconds since the start of the chaos."""
    kind: str
    target: str
    """Name of the host that it hits."""
    seconds: float
    """Time until it is undone; 0 for what the supervisor repairs by a restart."""

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:7.1f} s  {self.kind}{lasting} ({self.target})"


def worker_names(count: int) -> tuple[str, ...]:
    return tuple(f"w{number}" for number in range(count))


def draw_schedule(seed: int, seconds: float, every: float, n_workers: int, kinds: Sequence[str] = KINDS) -> list[Fault]:
    """Draw the faults of a run: exponential waits with the mean ``every``, and each kind equally often."""
    rng = np.random.default_rng(seed)
    faults, at = [], float(rng.exponential(every))
    bag: list[str] = []
    while at < seconds:
        bag = bag or [kinds[i] for i in rng.permutation(len(kinds))]  # all kinds strike before one strikes again
        kind = bag.pop()
        part, least, most = _KINDS[kind]
        target = worker_names(n_workers)[rng.integers(n_workers)] if part == "worker" else part
        faults.append(Fault(at, kind, target, float(rng.uniform(least, most))))
        at += float(rng.exponential(every))
    return faults
