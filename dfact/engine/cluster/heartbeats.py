"""Metrics of a worker's passes, and its progress, which it reports to Dask's scheduler with its heartbeats.

A worker sends no message of its own: each heartbeat carries the totals of its passes, for the dashboard, and the number of steps of each of
its shards. The driver asks the scheduler for the sum over a session's shards and the age of the oldest figure in it, in one small message
for any number of workers. The sum grows as long as any worker makes progress, and stands still if none does.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from distributed import Scheduler, Worker

    from dfact.engine.shard import Shard


@dataclass
class Meter:
    """Totals of a worker over all its sessions, for the scheduler and its dashboard."""

    passes: int = 0
    partitions: int = 0
    rows_per_second: float = 0.0
    """Speed of the last pass."""
    shards: dict[str, "Shard"] = field(default_factory=dict)
    """The open shards by their keys."""


METRICS = {"dfact passes": "passes", "dfact partitions": "partitions", "dfact rows/s": "rows_per_second"}
"""Fields of a :class:`Meter` by the names under which Dask's dashboard shows them."""
_STEPS = "dfact steps"
_meters: "WeakKeyDictionary[Worker, Meter]" = WeakKeyDictionary()


def meter_of(worker: "Worker") -> Meter:
    """Return the worker's meter, created in its first session."""
    return _meters.setdefault(worker, Meter())


def show_metrics(worker: "Worker") -> None:
    """Add the metrics to those that the worker reports with its heartbeats."""
    for name, metric in METRICS.items():
        worker.metrics.setdefault(name, partial(_read_metric, metric))
    worker.metrics.setdefault(_STEPS, _steps)


def _read_metric(metric: str, worker: "Worker") -> float:
    return float(getattr(meter_of(worker), metric))


def _steps(worker: "Worker") -> Mapping[str, int]:
    """Return the steps so far of the worker's shards, which show that there is progress."""
    return {key: shard.n_steps for key, shard in meter_of(worker).shards.items()}


def session_steps(session: str, dask_scheduler: "Scheduler") -> tuple[int, float]:
    """Return the steps so far of a session's shards, and the age of the oldest of these figures in seconds.

    The scheduler runs this, so that a driver learns with one small message whether a thousand workers make progress. The keys of
    the shards begin with that of their session.
    """
    total, oldest = 0, (now := time.time())
    for worker in dask_scheduler.workers.values():
        steps = [count for key, count in worker.metrics.get(_STEPS, {}).items() if key.startswith(session)]
        if steps:
            total, oldest = total + sum(steps), min(oldest, worker.last_seen)
    return total, now - oldest
