"""Figures of this process: what its passes, its fits and its job have done so far, and their present state.

They are counted once for a pass, a partition or an object of a store, never for a row, and whether or not anyone reads them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

PREFIX = "dfact_"


@dataclass(frozen=True)
class Figure:
    """A figure as Prometheus knows it. Counters only grow, and their names get the ending ``_total``."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str

    @property
    def exported_name(self) -> str:
        """The name of its samples."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


FIGURES = (
    # Of a process that holds partitions: a worker, or a fit on one machine.
    Figure("passes", "counter", "Passes over partitions of this process."),
    Figure("partitions", "counter", "Partitions that passes of this process have processed."),
    Figure("rows", "counter", "Rows that passes of this process have processed."),
    Figure("rows_per_second", "gauge", "Speed of the last pass of this process."),
    Figure("spilled_bytes", "counter", "Bytes of state and sums that this process has written to its temporary disk."),
    Figure("store_read_bytes", "counter", "Bytes that this process has read from Zarr stores: datasets, checkpoints, models."),
    Figure("store_written_bytes", "counter", "Bytes that this process has written to Zarr stores."),
    Figure("memory_limit_bytes", "gauge", "Memory limit of this worker."),
    # Of the driver.
    Figure("fits", "gauge", "Fits of this driver that run now."),
    Figure("fit_passes", "counter", "Passes over all rows that this driver has completed."),
    Figure("iteration", "gauge", "Iteration of the fit that reported last."),
    Figure("iteration_limit", "gauge", "Maximum number of iterations of the fit that reported last."),
    Figure("objective", "gauge", "Objective of the fit that reported last; NaN in a step that minimises none."),
    Figure("estimated_end_timestamp_seconds", "gauge", "Time by which the fit that reported last ends at its present rate."),
    Figure("checkpoint_timestamp_seconds", "gauge", "Time at which the last version of a checkpoint was complete."),
    Figure("checkpoints", "counter", "Versions of checkpoints that this driver has written."),
    Figure("workers", "gauge", "Workers that take part in the fits of this driver."),
    Figure("workers_lost", "counter", "Workers that the fits of this driver have lost."),
    Figure("partitions_recovered", "counter", "Partitions that other workers took over and recomputed after a loss."),
    Figure("direct_calls", "gauge", "Fits whose driver calls each worker itself, as workers could not reach each other."),
    Figure("job_steps", "gauge", "Steps of the job."),
    Figure("job_steps_done", "gauge", "Steps of the job that are done."),
)
_COUNTERS = frozenset(figure.name for figure in FIGURES if figure.kind == "counter")
_GAUGES = frozenset(figure.name for figure in FIGURES if figure.kind == "gauge")
_OF_FITS = (
    "iteration",
    "iteration_limit",
    "objective",
    "estimated_end_timestamp_seconds",
    "checkpoint_timestamp_seconds",
    "rows_per_second",
)
"""Gauges without a meaning when no fit runs."""
_lock = threading.Lock()
_values: dict[str, float] = dict.fromkeys([*_COUNTERS, "fits", "workers", "direct_calls"], 0)


def add(**amounts: float) -> None:
    """Add to counters, or to gauges that count what is there now."""
    with _lock:
        for name, amount in amounts.items():
            _values[name] += amount


def put(**values: float) -> None:
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
            for name in _OF_FITS if not _values["fits"] else ():
                _values.pop(name, None)
