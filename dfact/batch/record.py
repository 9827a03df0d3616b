"""The record of a job: which steps are done, with digests of their settings, inputs and outputs.

The storage is imported inside the functions, as Zarr takes long to import. Not to be confused with :mod:`dfact.storage.records`,
the format of checkpoints.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from dfact.batch.job_file import Step, job_path
from dfact.errors import StoreError
from dfact.monitoring.logs import utc_now
from dfact.settings import run_id
from dfact.storage.location import Location, is_web, parse_location

KIND = "job"
_MOST_HASHED = 1 << 28
"""Size in bytes of files up to which the record holds their contents; these take half a second to read."""
RUNTIME_OPTIONS = (
    "scheduler",
    "executor",
    "n-readers",
    "memory-limit",
    "tls-ca-file",
    "tls-cert",
    "tls-key",
    "checkpoint",
    "checkpoint-every",
    "overwrite",
    "metrics-port",
    "json",
)
"""Options that change no result, and which the digest of a step's settings therefore leaves out."""


def output_exists(location: Location) -> bool:
    """Return whether a file, folder or store exists."""
    from dfact.storage.groups import exists

    return exists(location)


class Record:
    """The steps of a job that were begun or are done, in the attributes of a Zarr group, keyed by command and first output.

    A step goes through :meth:`why_pending`, :meth:`begin` and :meth:`finish`, after the steps before it. What is recorded of it:

    - ``digest``: of its settings and inputs
    - ``outputs``: their names
    - ``done``: false from the beginning of the step to its end, and again when its output is replaced
    - ``written``: the digest of its outputs, null until it is done
    - ``time`` and ``run``: of the last change, and the id of the run that made it
    - ``written_by``: the version of dfact that ran it last
    """

    def __init__(self, location: Location) -> None:
        from dfact.storage.groups import attributes, exists, open_group, read_metadata
        from dfact.storage.records import WRITER, check_writer
        from dfact.storage.seals import sealed

        self.location = location
        stored: dict[str, Any] = {"steps": {}}
        self._metadata = read_metadata(location)
        """The metadata that this process has read or written last."""
        if exists(location):
            stored = attributes(open_group(location, KIND))
            # Steps that are done stay done. The checkpoint of one that was interrupted is refused where it resumes.
            check_writer(f"the job {location}", stored.get(WRITER), any_patch=True)
            if sealed(stored) != stored:
                raise StoreError(
                    f"the attributes of {location} do not match their digest: they are damaged; delete it and the outputs of the job to "
                    "start over"
                )
        self._steps: dict[str, dict[str, Any]] = dict(stored["steps"])
        self._written: dict[str, str] = {}
        """Digests of the outputs of the steps so far, by the outputs' names; stability changes the digest of its model."""
        self._digests: dict[int, str] = {}
        """Digests of settings and inputs, by step number."""
        self._owner = uuid4().hex

    def claim(self) -> None:
        """Make this process the owner of the job. A previous owner that still runs stops at its next step."""
        self._write()

    def is_owner(self) -> bool:
        """Return whether no other process has claimed the job since."""
        from dfact.storage.groups import attributes, open_group

        return attributes(open_group(self.location, KIND)).get("owner") == self._owner

    def _check_owner(self) -> None:
        if not self.is_owner():
            raise StoreError("another process has claimed the job")

    def pending(self, steps: Sequence[Step]) -> dict[int, str]:
        """Return, by number, why each step that is not done has to run, or the earlier step it depends on.

        That is a forecast: a step that depends on another one may turn out to be done once that one has run.
        """
        todo: dict[int, str] = {}
        writers: dict[str, Step] = {}
        for step in steps:
            writer = next((writers[name] for name in _by_name(step.inputs) if name in writers), None)
            if writer is not None and _key(step) in self._steps:
                todo[step.number] = f"depends on {writer.title}"
            elif (reason := self.why_pending(step)) is not None:
                todo[step.number] = f"to do ({reason})"
            if step.number in todo:
                writers |= dict.fromkeys(_by_name(step.outputs), step)
        return todo

    def why_pending(self, step: Step) -> str | None:
        """Return why a step has to run, once the steps before it are done; None if it is done.

        This also stores the digest of its settings and inputs for :meth:`begin` and :meth:`finish`, and, for a step that is done,
        the digest of its outputs, on which those of later steps depend. It may return None for a step whose outputs are complete
        and which was killed before it recorded that.
        """
        from dfact.storage.groups import is_complete

        digest = self._digests[step.number] = self._input_digest(step)
        recorded = self._steps.get(_key(step))
        if recorded is None:
            return "not done yet"
        if recorded["digest"] != digest:
            return "its settings or inputs have changed"
        if not all(is_complete(output) for output in step.outputs):
            return "not finished yet" if not recorded["done"] else "its output has been removed"
        # A complete output may be older than the interrupted step where that replaces or updates it.
        if not recorded["done"] and (step.created != step.outputs or step.parameters.get("overwrite")):
            return "not finished yet"
        self._written |= dict.fromkeys(recorded["outputs"], recorded["written"] if recorded["done"] else self._output_digest(step))
        return None

    def earlier_version(self, step: Step) -> str | None:
        """Return the version of dfact that ran a step last, if it is another than this one."""
        from dfact.storage.records import WRITER

        writer = self._steps[_key(step)].get(WRITER, version("dfact"))
        return None if writer == version("dfact") else str(writer)

    def _input_digest(self, step: Step) -> str:
        """Digest of the settings and the inputs. A fit without a seed is identified by its output: it differs each time."""
        settings = {name: value for name, value in step.settings.items() if name not in RUNTIME_OPTIONS}
        return _hash(settings, {name: self._written.get(name) or _identity(path) for name, path in _by_name(step.inputs).items()})

    def wrote(self, location: Location) -> bool:
        """Return whether a step of this job wrote the output at this location."""
        return any(job_path(location) in recorded["outputs"] for recorded in self._steps.values())

    def begin(self, step: Step) -> None:
        """Remove the outputs of earlier runs of a step. Outputs are complete or absent, so any later output is of this run."""
        from dfact.storage.groups import kind_at, remove

        self._check_owner()
        recorded, digest = self._steps.get(_key(step)), self._digests[step.number]
        if recorded is not None and recorded["digest"] != digest:
            remove(self._checkpoint(step))
        for output in filter(self.wrote, step.created):
            if isinstance(output, Path) and output.is_file():
                output.unlink()
                continue
            if isinstance(output, Path) and output.exists() and kind_at(output) is None:
                raise StoreError(f"{step.title} would replace {output}, which is no longer a dfact store; move it away")
            remove(output)
            # The stability stored in a model is removed with it.
            self._steps |= {key: {**done, "done": False} for key, done in self._steps.items() if job_path(output) in done["outputs"]}
        self._update(step, digest, done=False)

    def finish(self, step: Step) -> None:
        """Record that a step is done, by this process or by one that was killed before it recorded that, unless it is recorded."""
        from dfact.storage.groups import remove

        if _key(step) in self._steps and self._steps[_key(step)]["done"]:
            return
        self._check_owner()
        remove(self._checkpoint(step))
        written = self._output_digest(step)
        self._written |= dict.fromkeys(_by_name(step.outputs), written)
        self._update(step, self._digests[step.number], done=True, written=written)

    def _output_digest(self, step: Step) -> str:
        """Digest of the outputs and of the step's inputs, since the attributes of a store may not cover all its contents."""
        return _hash(self._digests[step.number], {name: _identity(path) for name, path in _by_name(step.outputs).items()})

    def parameters(self, step: Step) -> dict[str, Any]:
        """Return the parameters to run a step with: a checkpoint next to the record is added if it can have one and names none."""
        parameters = dict(step.parameters)
        if step.is_resumable and parameters["checkpoint"] is None:
            parameters["checkpoint"] = self._checkpoint(step)
        return parameters

    def _checkpoint(self, step: Step) -> Location:
        name = hashlib.blake2b(_key(step).encode(), digest_size=4).hexdigest()
        return parse_location(f"{self.location}.{name}")

    def _update(self, step: Step, digest: str, *, done: bool, written: str | None = None) -> None:
        from dfact.storage.records import WRITER

        self._steps[_key(step)] = {
            "digest": digest,
            "outputs": [job_path(output) for output in step.outputs],
            "done": done,
            "written": written,
            "time": utc_now(),
            WRITER: version("dfact"),
            "run": run_id(),
        }
        self._write()

    def _write(self) -> None:
        from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, replace_metadata
        from dfact.storage.records import WRITER
        from dfact.storage.replacement import locked
        from dfact.storage.seals import sealed

        description = {"kind": KIND, "format": FORMAT_VERSION, "complete": True, WRITER: version("dfact")}
        written: Any = sealed(description | {"owner": self._owner, "steps": self._steps})
        metadata = {"zarr_format": 3, "node_type": "group", "attributes": {ATTRIBUTE: written}}
        if isinstance(self.location, Path):
            self.location.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.location.parent) if isinstance(self.location, Path) else nullcontext():
            self._metadata = replace_metadata(self.location, metadata, self._metadata)


def _key(step: Step) -> str:
    return f"{step.name} {job_path(step.outputs[0])}"


def _by_name(locations: Sequence[Location]) -> dict[str, Location]:
    return {job_path(location): location for location in locations}


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def _identity(location: Location) -> Any:
    """Return values that change with the contents: attributes of a store, or those of files; None if there is nothing.

    Files on this machine of up to 256 MiB are identified by their contents, larger ones by size and time, remote ones by size and tag.
    """
    from dfact.storage.groups import attributes, kind_at, open_group
    from dfact.storage.input_files import InputFile, input_exists, open_input

    if not input_exists(location):
        return None
    is_store = not (isinstance(location, Path) and location.is_file()) and not is_web(location)
    kind = kind_at(location) if is_store else None
    if kind is not None:
        return attributes(open_group(location, kind))
    source = open_input(location)
    files = (source,) if isinstance(source, InputFile) else source.files
    if any(file.is_remote for file in files) or sum(file.signature()[0] for file in files) > _MOST_HASHED:
        return source.signature()
    contents = {}
    for file in files:
        with file.open() as stream:
            contents["" if file is source else file.name] = hashlib.file_digest(cast("io.BufferedReader", stream), "blake2b").hexdigest()
    return contents
