"""The server of this process's metrics, for Prometheus. It has no other pages, unlike the servers of Dask's processes."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dfact.errors import DfactError, ParameterError
from dfact.monitoring import metrics
from dfact.monitoring.run_id import run_id
from dfact.settings import setting

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MAX_PORT = 65535
logger = logging.getLogger("dfact.metrics")


class _MetricsCollector:
    """The metrics as Prometheus' client takes them, read when they are asked for."""

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        values = metrics.values()
        for metric in metrics.METRICS:
            if metric.name in values:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                yield family(metrics.PREFIX + metric.name, metric.help, value=values[metric.name])
        yield InfoMetricFamily(f"{metrics.PREFIX}run", "The run of this process.", value={"run_id": run_id(), "version": version("dfact")})


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
