"""Figures of a worker's passes for Dask's scheduler and dashboard."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from distributed import Worker


@dataclass
class Meter:
    """Totals of a worker over all its sessions, for the scheduler and its dashboard."""

    passes: int = 0
    partitions: int = 0
    rows_per_second: float = 0.0
    """In the last pass."""


FIGURES = {"dfact passes": "passes", "dfact partitions": "partitions", "dfact rows/s": "rows_per_second"}
"""Names of a worker's metrics as Dask's dashboard shows them, and what they are of a :class:`Meter`."""
_meters: "WeakKeyDictionary[Worker, Meter]" = WeakKeyDictionary()


def meter_of(worker: "Worker") -> Meter:
    """The worker's own, from its first session on."""
    return _meters.setdefault(worker, Meter())


def show_figures(worker: "Worker") -> None:
    """Have the worker report its figures with its heartbeats."""
    for name, figure in FIGURES.items():
        worker.metrics.setdefault(name, partial(_measured, figure))


def _measured(figure: str, worker: "Worker") -> float:
    return float(getattr(meter_of(worker), figure))
