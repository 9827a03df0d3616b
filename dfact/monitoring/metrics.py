"""Metrics of this process: what its passes, its fits and its job have done so far, and their current state.

They are counted once for a pass, a partition or an object of a store, never for a row, and whether or not anyone reads them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

PREFIX = "dfact_"


@dataclass(frozen=True)
class Metric:
    """A metric as Prometheus defines it. Counters only grow, and their names get the ending ``_total``."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str

    @property
    def exported_name(self) -> str:
        """The name of its samples."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


METRICS = (
    # Reported by each process that holds partitions: a worker, or a fit on one machine.
    Metric("passes", "counter", "Passes over partitions of this process."),
    Metric("partitions", "counter", "Partitions that passes of this process have processed."),
    Metric("rows", "counter", "Rows that passes of this process have processed."),
    Metric("rows_per_second", "gauge", "Rows per second in the last pass of this process."),
    Metric("spilled_bytes", "counter", "Bytes of state and sums that this process has written to temporary files."),
    Metric("store_read_bytes", "counter", "Bytes that this process has read from Zarr stores: datasets, checkpoints, models."),
    Metric("store_written_bytes", "counter", "Bytes that this process has written to Zarr stores."),
    Metric("memory_limit_bytes", "gauge", "Memory limit of this worker."),
    # Reported by the driver.
    Metric("fits", "gauge", "Fits that this driver is running."),
    Metric("fit_passes", "counter", "Passes over all rows that this driver has completed."),
    Metric("iteration", "gauge", "Iteration of the fit that reported last."),
    Metric("iteration_limit", "gauge", "Maximum number of iterations of the fit that reported last."),
    Metric("objective", "gauge", "Objective of the fit that reported last; NaN in a step that minimizes none."),
    Metric(
        "estimated_end_timestamp_seconds",
        "gauge",
        "Unix time at which that fit would finish all its iterations at its current rate.",
    ),
    Metric("checkpoint_timestamp_seconds", "gauge", "Unix time at which the last version of a checkpoint was completed."),
    Metric("checkpoints", "counter", "Versions of checkpoints that this driver has written."),
    Metric("workers", "gauge", "Workers that take part in the fits of this driver."),
    Metric("workers_lost", "counter", "Workers that the fits of this driver have lost."),
    Metric("partitions_recovered", "counter", "Partitions that other workers took over and recomputed after a loss."),
    Metric("fits_with_direct_calls", "gauge", "Fits whose driver calls each worker itself, as workers could not reach each other."),
    Metric("job_steps", "gauge", "Number of steps in the job."),
    Metric("job_steps_done", "gauge", "Number of steps of the job that are done."),
)
_COUNTERS = frozenset(metric.name for metric in METRICS if metric.kind == "counter")
_GAUGES = frozenset(metric.name for metric in METRICS if metric.kind == "gauge")
_FIT_GAUGES = (
    "iteration",
    "iteration_limit",
    "objective",
    "estimated_end_timestamp_seconds",
    "checkpoint_timestamp_seconds",
    "rows_per_second",
)
"""Gauges without a meaning when no fit runs."""
_lock = threading.Lock()
_values: dict[str, float] = dict.fromkeys([*_COUNTERS, "fits", "workers", "fits_with_direct_calls"], 0)


def add(**amounts: float) -> None:
    """Add to counters, or to gauges that count what is there now."""
    with _lock:
        for name, amount in amounts.items():
            _values[name] += amount


def set_gauges(**values: float) -> None:
    """Set gauges."""
    if not values.keys() <= _GAUGES:
        raise KeyError(*sorted(values.keys() - _GAUGES))
    with _lock:
        _values.update(values)


def values() -> dict[str, float]:
    """Return the values of all counters and of those gauges that have one, by name."""
    with _lock:
        return dict(_values)


@contextmanager
def fit() -> Iterator[None]:
    """Count a fit while it runs. After the last one, the gauges that describe a running fit have no value."""
    add(fits=1)
    try:
        yield
    finally:
        add(fits=-1)
        with _lock:
            for name in _FIT_GAUGES if not _values["fits"] else ():
                _values.pop(name, None)
