"""Lines of logs: one format of text and one of JSON, for driver, scheduler and workers."""

import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from types import TracebackType
from typing import Any

from dfact.settings import run_id
from dfact.text import escape_control, escape_lines


def utc_now() -> str:
    """Return the current time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class JSONLines(logging.Formatter):
    """Format a record as a line of JSON, the same keys in every process, and those of the record's ``fields`` after them.

    ``step`` and ``command`` belong to a job; they are 0 and empty in processes that run none, such as schedulers and workers.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": utc_now(),
            "level": record.levelname.lower(),
            "run_id": run_id(),
            "logger": record.name,
            "step": getattr(record, "step", 0),
            "command": getattr(record, "command", ""),
            "message": escape_lines(_message(self, record)),
        }
        return json.dumps(fields | getattr(record, "fields", {}), ensure_ascii=False)


class TextLines(logging.Formatter):
    """Format a record of a job as a line of text."""

    def format(self, record: logging.LogRecord) -> str:
        number, command = getattr(record, "step", 0), getattr(record, "command", "")
        about = f"{command}: " if command else ""
        step = f"step {number} ({command}) " if number else about  # 0: about the job itself
        return f"{utc_now()} {record.levelname.lower():<7} {step}{escape_control(_message(self, record))}"


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the message of a record with the traceback of its error, if it has one."""
    return f"{record.getMessage()}\n{formatter.formatException(record.exc_info)}" if record.exc_info else record.getMessage()


def event_fields(event: str, **values: Any) -> dict[str, dict[str, Any]]:
    """Return the argument ``extra`` of a record of an event; numbers that are not finite are null in JSON."""
    plain = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}
    return {"fields": {"event": event, **plain}}


class LogStream(TextIOBase):
    """A text stream that logs each complete line, and lines of progress with fields."""

    def __init__(self, log: "logging.LoggerAdapter[Any]") -> None:
        self._log, self._line = log, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                warning = line.startswith("Warning: ")
                self._log.log(logging.WARNING if warning else logging.INFO, line.removeprefix("Warning: ").rstrip())
        return len(text)

    def log_progress(self, text: str, extra: dict[str, Any]) -> None:
        """Log a line of progress with its fields."""
        self._log.logger.info(text, extra=extra)


@contextmanager
def verbose_logging(*, in_job: bool) -> Iterator[None]:
    """Log each iteration, and print all that dfact logs to stderr, which a job does itself."""
    library, handler = logging.getLogger("dfact"), logging.StreamHandler()
    level = library.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    if not in_job:
        library.addHandler(handler)
    library.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        library.removeHandler(handler)
        library.setLevel(level)


def configure_logging() -> None:
    """Configure logging in a Dask process: warnings of dfact and of libraries, and uncaught errors, are logged with a level.

    Where the root logger has a handler, as with ``DASK_LOGGING`` in the batch jobs, that is the one; else dfact's lines get Dask's format.
    """
    library = logging.getLogger("dfact")
    if not library.hasHandlers():
        import dask

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(dask.config.get("distributed.admin.log-format")))
        library.addHandler(handler)
        library.setLevel(logging.INFO)
    if logging.getLogger().hasHandlers():
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("dfact").critical("The process ends with an error: %s", error, exc_info=(kind, error, trace))
