"""TODO dfact.jobs.runner"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOBase
from typing import Any

import click

from dfact.errors import DfactError, StoppedError
from dfact.jobs.job_file import Problem, Step, job_path
from dfact.jobs.record import Record, _exists, _now


def _problems(step: Step, record: "Record", steps: Sequence[Step]) -> Iterator[Problem]:
    """What stands in the way of a step."""
    made = {job_path(place) for other in steps if other.number < step.number for place in other.outputs}
    for place in step.inputs:
        if job_path(place) not in made and not _exists(place):
            yield Problem(step.line, f"{step.title} reads {place}, which does not exist and no step before makes")
    if step.name != "stability" and not step.parameters.get("overwrite"):
        for place in step.outputs:
            if _exists(place) and not record.made(place):
                what = f"{step.title} writes {place}, which exists and is not of this job"
                yield Problem(step.line, f"{what}: remove it, or give the step overwrite = true")


def _run(steps: Sequence[Step], record: "Record", log: logging.LoggerAdapter[Any]) -> None:
    """Do the steps that are not done yet."""
    began = time.monotonic()
    record.take()
    for step in steps:
        log.extra = {"step": step.number, "command": step.name}
        reason = record.reason(step)
        if reason is None:
            record.finish(step)
            log.info("is done already")
            continue
        log.info(f"begins: {reason}")
        since = time.monotonic()
        try:
            record.begin(step)
            with _written_to(log), click.Context(step.command, info_name=step.name) as context:
                context.meta.update(step.meta)
                context.invoke(step.command, **record.parameters(step))
            record.finish(step)
        except StoppedError as error:
            log.warning(f"stopped: {error}")
            raise click.exceptions.Exit(128 + error.signal) from error
        except (DfactError, click.ClickException) as error:
            log.error(f"failed: {error.format_message() if isinstance(error, click.ClickException) else error}")
            if not record.is_ours():
                log.error(f"another process runs this job now, by its record {record.place}; this one stops")
            raise click.exceptions.Exit(1) from error  # the log has told why
        log.info(f"is done, in {time.monotonic() - since:.1f} s")
    log.extra = {"step": 0, "command": "job"}
    log.info(f"all {len(steps)} steps are done, in {time.monotonic() - began:.1f} s")


class _JSONLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {"time": _now(), "level": record.levelname.lower(), "step": getattr(record, "step", 0)}
        return json.dumps(found | {"command": getattr(record, "command", ""), "message": record.getMessage()}, ensure_ascii=False)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        where = f"step {getattr(record, 'step', 0)} ({getattr(record, 'command', '')})"
        return f"{_now()} {record.levelname.lower():<7} {where} {record.getMessage()}"


def _logger(log_format: str) -> "logging.LoggerAdapter[Any]":
    """A log on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JSONLines() if log_format == "json" else _TextLines())
    logger = logging.Logger("dfact.run", logging.INFO)
    logger.addHandler(handler)
    return logging.LoggerAdapter(logger, {})


@contextmanager
def _written_to(log: "logging.LoggerAdapter[Any]") -> Iterator[None]:
    """What commands print goes to the log, line by line."""
    with redirect_stdout(_ToLog(log)), redirect_stderr(_ToLog(log)):
        yield


class _ToLog(TextIOBase):
    """A text stream whose lines are those of a log."""

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
