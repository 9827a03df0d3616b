"""Lines of logs: one format of text and one of JSON, for driver, scheduler and workers."""

import json
import logging
import sys
import time
from types import TracebackType

from dfact.monitoring.run_id import run_id
from dfact.text import escape_control, escape_lines


def utc_now() -> str:
    """Return the current time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class JSONLines(logging.Formatter):
    """Format a record as a line of JSON, the same keys in every process.

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
        return json.dumps(fields, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Format a record of a job as a line of text."""

    def format(self, record: logging.LogRecord) -> str:
        step = f"step {getattr(record, 'step', 0)} ({getattr(record, 'command', '')})"
        return f"{utc_now()} {record.levelname.lower():<7} {step} {escape_control(_message(self, record))}"


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the message of a record with the traceback of its error, if it has one."""
    return f"{record.getMessage()}\n{formatter.formatException(record.exc_info)}" if record.exc_info else record.getMessage()


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
