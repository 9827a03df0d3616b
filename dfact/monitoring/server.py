"""The server of this process's figures, for Prometheus. It has no other pages, unlike the servers of Dask's processes."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dfact.errors import DfactError, ParameterError
from dfact.monitoring import figures
from dfact.monitoring.run_id import run_id

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MAX_PORT = 65535
logger = logging.getLogger("dfact.metrics")


class _FiguresCollector:
    """The figures as Prometheus' client takes them, read when they are asked for."""

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        values = figures.values()
        for figure in figures.FIGURES:
            if figure.name in values:
                family = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                yield family(figures.PREFIX + figure.name, figure.help, value=values[figure.name])
        yield InfoMetricFamily(f"{figures.PREFIX}run", "The run of this process.", value={"run_id": run_id(), "version": version("dfact")})


class _Server:
    """The server of this process, shared by all who ask for it, and closed by the last one."""

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
    registry.register(_FiguresCollector())
    ProcessCollector(registry=registry)  # memory, processor time and open files of the process
    return registry


@contextmanager
def serving(port: int | None = None, host: str | None = None) -> Iterator[str | None]:
    """Serve the figures of this process at a port; yields the URL, or None if neither ``port`` nor ``dask.config`` names a port.

    The settings are ``dfact.metrics-port``, 0 for any free port, and ``dfact.metrics-host``, by default 127.0.0.1. A process has
    one server: whoever asks for one while it runs shares it. Raises DfactError if the port is not free.

    Examples
    --------
    >>> from dfact.monitoring.server import serving
    >>> with serving(0) as url:
    ...     print(url.rsplit(":", 1)[0])
    http://127.0.0.1
    """
    import dask

    port = dask.config.get("dfact.metrics-port", None) if port is None else port
    if port is None:
        yield None
        return
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT:
        raise ParameterError(f"dfact.metrics-port is {port!r}, expected a number from 0 to {MAX_PORT}")
    with _server.lock:
        if not _server.users:
            _server.start(host or dask.config.get("dfact.metrics-host", "127.0.0.1"), port)
        _server.users += 1
        url = _server.url
    try:
        yield url
    finally:
        with _server.lock:
            _server.users -= 1
            if not _server.users:
                _server.stop()
