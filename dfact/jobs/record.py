"""TODO dfact.jobs.record"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from dfact.errors import StoreError
from dfact.jobs.job_file import Step, job_path
from dfact.storage.location import Location, parse_location


def _exists(place: Location) -> bool:
    from dfact.storage.groups import exists

    return exists(place)


def _is_whole(place: Location) -> bool:
    from dfact.storage.groups import is_complete

    return is_complete(place)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


KIND = "job"
RUNTIME_OPTIONS = (
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


class Record:
    """What of a job is done: the attributes of a Zarr group, step by step, each by the first place that it writes."""

    def __init__(self, place: Location) -> None:
        from dfact.storage.groups import attributes, exists, open_group

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
        from dfact.storage.groups import attributes, open_group

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
        given = {name: value for name, value in step.given.items() if name not in RUNTIME_OPTIONS}
        return _hash(given, {name: self._written.get(name) or _identity(place) for name, place in _by_name(step.inputs).items()})

    def made(self, place: Location) -> bool:
        """Whether this job wrote what is there."""
        return any(job_path(place) in known["outputs"] for known in self._steps.values())

    def begin(self, step: Step) -> None:
        """Make room for a step. What it writes is whole or not there, so that what is there behind this is of this step."""
        from dfact.storage.groups import kind_at, remove

        self._check_owner()
        known, digest = self._steps.get(_key(step)), self._own[step.number]
        if known is not None and known["digest"] != digest:
            remove(self._checkpoint(step))
        if step.name != "stability":
            for place in filter(self.made, step.outputs):
                if isinstance(place, Path) and place.is_file():
                    place.unlink()
                    continue
                if isinstance(place, Path) and place.exists() and kind_at(place) is None:
                    raise StoreError(f"{step.title} would replace {place}, which is no dfact store any more; move it away")
                remove(place)
                # With a model goes what was told of its stability.
                self._steps |= {key: {**known, "done": False} for key, known in self._steps.items() if job_path(place) in known["outputs"]}
        self._keep(step, digest, done=False)

    def finish(self, step: Step) -> None:
        """A step is done, by this process or by one that was killed before it could say so."""
        from dfact.storage.groups import remove

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

    def _checkpoint(self, step: Step) -> Location:
        name = hashlib.blake2b(_key(step).encode(), digest_size=4).hexdigest()
        return parse_location(f"{self.place}.{name}")

    def _keep(self, step: Step, digest: str, *, done: bool, written: str | None = None) -> None:
        self._steps[_key(step)] = {
            "digest": digest,
            "outputs": [job_path(place) for place in step.outputs],
            "done": done,
            "written": written,
            "time": _now(),
        }
        self._write()

    def _write(self) -> None:
        import zarr

        from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, exists, open_store

        written: Any = {"kind": KIND, "version": FORMAT_VERSION, "complete": True, "owner": self._owner, "steps": self._steps}
        if exists(self.place):
            zarr.open_group(open_store(self.place), mode="r+").attrs[ATTRIBUTE] = written
        else:
            zarr.create_group(open_store(self.place), attributes={ATTRIBUTE: written})


def _key(step: Step) -> str:
    return f"{step.name} {job_path(step.outputs[0])}"


def _by_name(places: Sequence[Location]) -> dict[str, Location]:
    return {job_path(place): place for place in places}


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()


def _identity(place: Location) -> Any:
    """What tells whether what lies there has changed: a file's size and time, what a store says of itself."""
    from dfact.storage.groups import attributes, kind_at, open_group

    if isinstance(place, Path) and place.is_file():
        status = place.stat()
        return [status.st_size, status.st_mtime_ns]
    kind = kind_at(place) if _exists(place) else None
    return None if kind is None else attributes(open_group(place, kind))
