"""Metrics of this process: what its passes, its fits and its job have done so far, their current state, and their server for Prometheus.

They are counted once for a pass, a partition or an object of a store, never for a row, and whether or not anyone reads them. The server
has no other pages, unlike the servers of Dask's processes.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from dfact.errors import DfactError, ParameterError
from dfact.settings import run_id, setting

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as MetricFamily

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


MAX_PORT = 65535
logger = logging.getLogger("dfact.metrics")


class _MetricsCollector:
    """The metrics as Prometheus' client takes them, read when they are asked for."""

    def collect(self) -> "Iterator[MetricFamily]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        found = values()
        for metric in METRICS:
            if metric.name in found:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                yield family(PREFIX + metric.name, metric.help, value=found[metric.name])
        yield InfoMetricFamily(f"{PREFIX}run", "The run of this process.", value={"run_id": run_id(), "version": version("dfact")})


class _Server:
    """The server of this process, shared by all callers, and closed after the last one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.url = ""
        self._running: Any = None

    def start(self, host: str, port: int) -> None:
        try:
            from prometheus_client import start_http_server
        except ImportError as error:
            raise DfactError("metrics need prometheus-client; install dfact[metrics]") from error
        try:
            self._running = server, _ = start_http_server(port, host, _registry())
        except OSError as error:
            raise DfactError(
                f"cannot serve metrics at {host}:{port}: {error.strerror or error}; choose another port, or 0 for any that is free"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{server.server_port}/metrics"
        logger.info("Metrics are served at %s", self.url)

    def stop(self) -> None:
        server, thread = self._running
        server.shutdown()
        server.server_close()
        thread.join()
        self._running, self.url = None, ""


_server = _Server()


def _registry() -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(_MetricsCollector())
    ProcessCollector(registry=registry)  # memory, CPU time and open files of the process
    return registry


@contextmanager
def serve_metrics(port: int | None = None) -> Iterator[str | None]:
    """Serve the metrics of this process on a port and yield the URL, or None if neither ``port`` nor ``dask.config`` names a port.

    The settings are ``dfact.metrics-port``, 0 for any free port, and ``dfact.metrics-host``, by default 127.0.0.1. A process has
    one server, which all callers share.

    Parameters
    ----------
    port : int, optional
        Port of the server, 0 for any free one; by default that of ``dask.config``.

    Returns
    -------
    context manager
        Its value is the URL of the server, or None.

    Raises
    ------
    DfactError
        The port is not free.
    ParameterError
        The port is not a number from 0 to 65535.

    Examples
    --------
    >>> import dfact
    >>> with dfact.serve_metrics(0) as url:
    ...     print(url.rsplit(":", 1)[0])
    http://127.0.0.1
    """
    port = setting("dfact.metrics-port") if port is None else port
    if port is None:
        yield None
        return
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise ParameterError(f"dfact.metrics-port is {port!r}, expected a number from 0 to {MAX_PORT}")
    with _server.lock:
        if not _server.users:
            _server.start(setting("dfact.metrics-host", "127.0.0.1"), port)
        _server.users += 1
        url = _server.url
    try:
        yield url
    finally:
        with _server.lock:
            _server.users -= 1
            if not _server.users:
                _server.stop()
