"""``dfact run``."""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from io import TextIOBase
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from dfact.cli.job import JobError, Problem, Step, name_in_job, read_job
from dfact.cli.options import example, path_type
from dfact.data.places import Place, place_of
from dfact.errors import DfactError, StoppedError, StoreError

KIND = "job"
_NO_MATTER = (
    "scheduler",
    "executor",
    "memory-limit",
    "tls-ca-file",
    "tls-cert",
    "tls-key",
    "checkpoint",
    "checkpoint-every",
    "overwrite",
)
"""What changes no result."""


@click.command(epilog=example("dfact run job.toml --dry-run"))
@click.argument("job", type=path_type)
@click.option("--dry-run", is_flag=True, help="Check the job, tell what would be done, in what memory and about how long, and stop.")
@click.option("--log", "log_format", type=click.Choice(["text", "json"]), default="text", help="How lines of the log look.")
@click.pass_context
def run(context: click.Context, job: Path, dry_run: bool, log_format: str) -> None:
    r"""Run the steps of a job file, JOB.

    A job is a TOML file with a table [[step]] for each command, whose options have the names they have on the command line,
    and whose paths are seen from the file's folder:

    \b
        [job]
        memory-limit = "8GiB"            # for all steps that take it; so is scheduler

    \b
        [[step]]
        run = "import"
        source = "survey.csv"
        dest = "survey.zarr"
        items = ["Q*"]

    \b
        [[step]]
        run = "fit icqf"
        data = "survey.zarr"
        model = "survey.model"
        components = 6

    All of it is checked before anything starts. What is finished is not done again by the same job, what was interrupted
    goes on from its checkpoint, and steps that changed are done anew with those that read something else now. The record of that
    and the checkpoints lie beside the file, as JOB.state, or at the place "state" in [job], such as one in an object store.

    Ends with 0: done; 1: a step has failed, or would; 2: the job is wrong; 130 and 143: stopped by SIGINT and SIGTERM, with a checkpoint.
    """
    commands = context.find_root().command
    assert isinstance(commands, click.Group), "dfact's commands"
    try:
        steps, settings = read_job(job, commands)
        with chdir(job.absolute().parent):
            record = Record(place_of(str(settings.get("state", f"{job.name}.state"))))
            problems = [problem for step in steps for problem in _problems(step, record, steps)]
            if problems:
                raise JobError(job, problems)
            if dry_run:
                from dfact.cli.estimate import tell

                if not tell(steps, record.compare(steps)):
                    raise click.exceptions.Exit(1)
                return
            _run(steps, record, _logger(log_format))
    except JobError as error:
        raise click.UsageError(str(error)) from error


def _problems(step: Step, record: "Record", steps: Sequence[Step]) -> Iterator[Problem]:
    """What stands in the way of a step."""
    made = {name_in_job(place) for other in steps if other.number < step.number for place in other.outputs}
    for place in step.inputs:
        if name_in_job(place) not in made and not _exists(place):
            yield Problem(step.line, f"{step.title} reads {place}, which does not exist and no step before makes")
    if step.name != "stability" and not step.parameters.get("overwrite"):
        for place in step.outputs:
            if _exists(place) and not record.made(place):
                what = f"{step.title} writes {place}, which exists and is not of this job"
                yield Problem(step.line, f"{what}: remove it, or give the step overwrite = true")


def _exists(place: Place) -> bool:
    from dfact.data.store import exists

    return exists(place)


def _is_whole(place: Place) -> bool:
    from dfact.data.store import is_whole

    return is_whole(place)


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


class Record:
    """What of a job is done: the attributes of a Zarr group, step by step, each by the first place that it writes."""

    def __init__(self, place: Place) -> None:
        from dfact.data.store import attributes, exists, open_group

        self.place = place
        self._steps: dict[str, dict[str, Any]] = dict(attributes(open_group(place, KIND))["steps"]) if exists(place) else {}
        self._written: dict[str, str] = {}
        """What the steps so far have made of each place: of the model with its stability, not of the fit alone."""
        self._own: dict[int, str] = {}
        self._owner = uuid4().hex

    def take(self) -> None:
        """The job is this process's from now on: one that ran it before, and was given up for lost, stops at its next step."""
        self._write()

    def is_ours(self) -> bool:
        from dfact.data.store import attributes, open_group

        return attributes(open_group(self.place, KIND)).get("owner") == self._owner

    def _check_owner(self) -> None:
        if not self.is_ours():
            raise StoreError("the job is not this process's any more")

    def compare(self, steps: Sequence[Step]) -> dict[int, str]:
        """What is to be done of each step that is not done, or on which step before it that depends."""
        todo: dict[int, str] = {}
        pending: dict[str, Step] = {}
        for step in steps:
            before = next((pending[name] for name in _by_name(step.inputs) if name in pending), None)
            if before is not None and _key(step) in self._steps:
                todo[step.number] = f"depends on {before.title}"
            elif (reason := self.reason(step)) is not None:
                todo[step.number] = f"to do ({reason})"
            if step.number in todo:
                pending |= dict.fromkeys(_by_name(step.outputs), step)
        return todo

    def reason(self, step: Step) -> str | None:
        """Why a step is to be done, once those before it are; None if it is done."""
        digest = self._own[step.number] = self._digest(step)
        known = self._steps.get(_key(step))
        if known is None:
            return "not done yet"
        if known["digest"] != digest:
            return "it, or what it reads, has changed"
        if not all(_is_whole(place) for place in step.outputs):
            return "not finished yet" if not known["done"] else "what it wrote is gone"
        if not known["done"] and (step.name == "stability" or step.parameters.get("overwrite")):  # what is there may be older
            return "not finished yet"
        self._written |= dict.fromkeys(known["outputs"], known["written"] if known["done"] else self._result(step))
        return None

    def _digest(self, step: Step) -> str:
        """Of all that its results follow from: its settings and what it reads, which a fit without a seed makes another each time."""
        given = {name: value for name, value in step.given.items() if name not in _NO_MATTER}
        return _hash(given, {name: self._written.get(name) or _identity(place) for name, place in _by_name(step.inputs).items()})

    def made(self, place: Place) -> bool:
        """Whether this job wrote what is there."""
        return any(name_in_job(place) in known["outputs"] for known in self._steps.values())

    def begin(self, step: Step) -> None:
        """Make room for a step. What it writes is whole or not there, so that what is there behind this is of this step."""
        from dfact.data.store import remove, store_kind

        self._check_owner()
        known, digest = self._steps.get(_key(step)), self._own[step.number]
        if known is not None and known["digest"] != digest:
            remove(self._checkpoint(step))
        if step.name != "stability":
            for place in filter(self.made, step.outputs):
                if isinstance(place, Path) and place.is_file():
                    place.unlink()
                    continue
                if isinstance(place, Path) and place.exists() and store_kind(place) is None:
                    raise StoreError(f"{step.title} would replace {place}, which is no dfact store any more; move it away")
                remove(place)
                # With a model goes what was told of its stability.
                self._steps |= {
                    key: {**known, "done": False} for key, known in self._steps.items() if name_in_job(place) in known["outputs"]
                }
        self._keep(step, digest, done=False)

    def finish(self, step: Step) -> None:
        """A step is done, by this process or by one that was killed before it could say so."""
        from dfact.data.store import remove

        if _key(step) in self._steps and self._steps[_key(step)]["done"]:
            return
        self._check_owner()
        remove(self._checkpoint(step))
        written = self._result(step)
        self._written |= dict.fromkeys(_by_name(step.outputs), written)
        self._keep(step, self._own[step.number], done=True, written=written)

    def _result(self, step: Step) -> str:
        """Of what a step has written, and of how: a store may not tell of all that it holds."""
        return _hash(self._own[step.number], {name: _identity(place) for name, place in _by_name(step.outputs).items()})

    def parameters(self, step: Step) -> dict[str, Any]:
        """Those with which a step runs: with a checkpoint of its own, if it can have one and names none."""
        found = dict(step.parameters)
        if found.get("checkpoint", "") is None and len(found.get("omegas") or ()) < 2:
            found["checkpoint"] = self._checkpoint(step)
        return found

    def _checkpoint(self, step: Step) -> Place:
        name = hashlib.blake2b(_key(step).encode(), digest_size=4).hexdigest()
        return place_of(f"{self.place}.{name}")

    def _keep(self, step: Step, digest: str, *, done: bool, written: str | None = None) -> None:
        self._steps[_key(step)] = {
            "digest": digest,
            "outputs": [name_in_job(place) for place in step.outputs],
            "done": done,
            "written": written,
            "time": _now(),
        }
        self._write()

    def _write(self) -> None:
        import zarr

        from dfact.data.store import ATTRIBUTE, FORMAT_VERSION, exists, store_at

        written: Any = {"kind": KIND, "version": FORMAT_VERSION, "complete": True, "owner": self._owner, "steps": self._steps}
        if exists(self.place):
            zarr.open_group(store_at(self.place), mode="r+").attrs[ATTRIBUTE] = written
        else:
            zarr.create_group(store_at(self.place), attributes={ATTRIBUTE: written})


def _key(step: Step) -> str:
    return f"{step.name} {name_in_job(step.outputs[0])}"


def _by_name(places: Sequence[Place]) -> dict[str, Place]:
    return {name_in_job(place): place for place in places}


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def _identity(place: Place) -> Any:
    """What tells whether what lies there has changed: a file's size and time, what a store says of itself."""
    from dfact.data.store import attributes, open_group, store_kind

    if isinstance(place, Path) and place.is_file():
        status = place.stat()
        return [status.st_size, status.st_mtime_ns]
    kind = store_kind(place) if _exists(place) else None
    return None if kind is None else attributes(open_group(place, kind))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
