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
    """Speed of the last pass."""


FIGURES = {"dfact passes": "passes", "dfact partitions": "partitions", "dfact rows/s": "rows_per_second"}
"""Fields of a :class:`Meter` by the names under which Dask's dashboard shows them."""
_meters: "WeakKeyDictionary[Worker, Meter]" = WeakKeyDictionary()


def meter_of(worker: "Worker") -> Meter:
    """Return the worker's meter, created in its first session."""
    return _meters.setdefault(worker, Meter())


def show_figures(worker: "Worker") -> None:
    """Add the figures to those that the worker reports with its heartbeats."""
    for name, figure in FIGURES.items():
        worker.metrics.setdefault(name, partial(_read_figure, figure))


def _read_figure(figure: str, worker: "Worker") -> float:
    return float(getattr(meter_of(worker), figure))
