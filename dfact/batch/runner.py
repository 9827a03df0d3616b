"""Run the steps of a job that are not done, and log them."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import click

from dfact.batch.job_file import Problem, Step, job_path
from dfact.batch.record import Record, output_exists
from dfact.errors import DfactError, StoppedError
from dfact.monitoring import metrics
from dfact.monitoring.logs import JSONLines, LogStream, TextLines, event_fields
from dfact.storage.replacement import taking_over

_JOB_FIELDS = {"step": 0, "command": "job"}
"""The step and command of lines about the job itself."""


def find_problems(steps: Sequence[Step], record: Record) -> Iterator[Problem]:
    """Yield the inputs that do not exist and the outputs that would replace files of others."""
    from dfact.storage.input_files import input_exists

    written: set[str] = set()
    for step in steps:
        for path in step.inputs:
            if job_path(path) not in written and not input_exists(path):
                yield Problem(step.line, f"{step.title} reads {path}, which does not exist and which no earlier step writes")
        if not step.parameters.get("overwrite"):
            for path in step.created:
                if output_exists(path) and not record.wrote(path):
                    conflict = f"{step.title} writes {path}, which exists and is not an output of this job"
                    yield Problem(step.line, f"{conflict}; remove it, or set overwrite = true in the step")
        written |= {job_path(path) for path in step.outputs}


def run_steps(steps: Sequence[Step], record: Record, log: "logging.LoggerAdapter[Any]") -> None:
    """Run the steps that are not done yet, in order; exit at the first failure."""
    job_start = time.monotonic()
    record.claim()
    metrics.set_gauges(job_steps=len(steps))
    for done, step in enumerate(steps):
        metrics.set_gauges(job_steps_done=done)
        log.extra = {"step": step.number, "command": step.name}
        reason = record.why_pending(step)
        if reason is None:
            record.finish(step)
            earlier = record.earlier_version(step)
            log.logger.info("already done" if earlier is None else f"already done, by dfact {earlier}", extra=event_fields("step_skipped"))
            continue
        log.logger.info(f"started: {reason}", extra=event_fields("step_started"))
        start = time.monotonic()
        try:
            record.begin(step)
            with redirected_to(log), taking_over(), click.Context(step.command, info_name=step.name) as context:
                context.meta.update(step.meta)
                context.invoke(step.command, **record.parameters(step))
            record.finish(step)
        except StoppedError as error:
            log.logger.warning(f"stopped: {error}", extra=event_fields("step_stopped", seconds=time.monotonic() - start))
            raise click.exceptions.Exit(128 + error.signal) from error
        except (DfactError, click.ClickException) as error:
            message = error.format_message() if isinstance(error, click.ClickException) else error
            log.logger.error(f"failed: {message}", extra=event_fields("step_failed", seconds=time.monotonic() - start))
            if not record.is_owner():
                log.error(f"another process has claimed this job in its record {record.location}; this process stops")
            raise click.exceptions.Exit(1) from error  # the log has the message
        seconds = time.monotonic() - start
        log.logger.info(f"finished in {seconds:.1f} s", extra=event_fields("step_finished", seconds=seconds))
    metrics.set_gauges(job_steps_done=len(steps))
    log.extra = dict(_JOB_FIELDS)
    seconds = time.monotonic() - job_start
    log.logger.info(f"all {len(steps)} steps are done, in {seconds:.1f} s", extra=event_fields("job_finished", seconds=seconds))


@contextmanager
def job_log(log_format: str) -> Iterator["logging.LoggerAdapter[Any]"]:
    """Yield a logger that writes lines of text or JSON to stderr. Messages of all libraries go there too meanwhile, with their levels."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if log_format == "json" else TextLines())
    logger = logging.Logger("dfact.run", logging.INFO)
    logger.addHandler(handler)
    log = logging.LoggerAdapter(logger, dict(_JOB_FIELDS))

    def add_step(record: logging.LogRecord) -> bool:
        vars(record).update(log.extra or {})
        return True

    # Python would write their warnings to stderr without a level, which is redirected to this log as output of level info. Dask adds
    # no handlers of its own where the root logger has one.
    handler.addFilter(add_step)
    library, root = logging.getLogger("dfact"), logging.getLogger()
    level = library.level
    library.setLevel(min(level or logging.INFO, logging.INFO))
    logger.setLevel(library.level)
    root.addHandler(handler)
    try:
        yield log
    finally:
        root.removeHandler(handler)
        library.setLevel(level)


@contextmanager
def redirected_to(log: "logging.LoggerAdapter[Any]") -> Iterator[None]:
    """Send the output of commands to the log, line by line."""
    with redirect_stdout(LogStream(log)), redirect_stderr(LogStream(log)):
        yield
