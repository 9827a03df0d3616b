"""A site: it joins a coordinator, carries out the tasks that its policy allows on its own rows, and keeps the results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.environment import as_fields, current_environment
from dfact.engine.executors import ThreadsExecutor
from dfact.errors import DfactError, FederationError
from dfact.federation.coordinator import UNKNOWN_RUN, result_digest, shared_memory
from dfact.federation.description import Description
from dfact.federation.messages import Message
from dfact.federation.policy import Policy
from dfact.federation.sessions import SiteExecutor
from dfact.federation.site_log import SiteLog
from dfact.federation.tasks import Task
from dfact.models.estimator import Factorization
from dfact.storage.digests import json_digest


class RunLostError(FederationError):
    """A run that the coordinator does not know: it was restarted."""


logger = logging.getLogger("dfact.federation")
_BEAT = 5.0  # seconds between two signs of life


class Connection(Protocol):
    """A site's connection to the coordinator, which survives interruptions."""

    def call(self, message: Message) -> Message:
        """Send a message, and return the answer; raise FederationError with the coordinator's words if it refuses."""
        ...


class Site:
    """The rows of one site, its policy and its log."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        connection: Connection,
        *,
        policy: Policy | None = None,
        log: str | PathLike[str] | None = None,
        executor: ThreadsExecutor | None = None,
        checkpoint: str | PathLike[str] | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self._name, self._dataset, self._connection = name, dataset, connection
        self._policy = Policy() if policy is None else policy
        self._log, self._executor = SiteLog(log), ThreadsExecutor() if executor is None else executor
        self._checkpoints = None if checkpoint is None else Path(checkpoint)
        self._memory_limit = memory_limit
        self._last = ""

    def join(self) -> None:
        """Check the data against the policy, describe it to the coordinator, and check it against the contract."""
        try:
            self._join()
        except DfactError as error:
            self._send({"kind": "refused", "text": str(error)})
            raise

    def _join(self) -> None:
        self._policy.check_data(self._dataset)
        description = Description.of(self._name, self._dataset, extremes=self._policy.extremes)
        message = description.message("description")
        workers = self._executor.workers(self._memory_limit)
        fields = {
            "kind": "join",
            "environment": as_fields(current_environment()),
            "memory": max(0, workers.limit - workers.baseline),
            "threads": workers.threads,
            "description": {name: value for name, value in message.fields.items() if name != "kind"},
        }
        self._log.record(0, "description", message, self._dataset.shape[0])
        answer = self._connection.call(Message(fields, message.arrays))
        if len(answer.arrays):
            self._require_same(Description.from_message(answer))

    def _require_same(self, contract: Description) -> None:
        difference = contract.difference(self._dataset)
        if difference is not None:
            raise FederationError(f"the data of site {self._name} differs from the contract: {difference}")

    def next_task(self) -> Message | None:
        """Wait for the next run, and return it; None if the coordinator has ended."""
        while True:
            answer = self._connection.call(Message({"kind": "task", "after": self._last}))
            kind = answer.get("kind", str)
            if kind == "closed":
                return None
            if kind == "run":
                return answer

    def carry_out(self, run: Message) -> tuple[Task, Any]:
        """Carry out a run, and return its task and the site's result, with the factors of its own rows."""
        fields = dict(run.fields)
        number, task = run.get("run", str), Task.from_json(fields.pop("task", None))
        memory = shared_memory(run.get("memory", int), run.get("threads", int))
        for name in ("run", "memory", "threads"):
            del fields[name]
        pooled = Description.from_message(Message(fields, run.arrays))
        self._last, self._log.run = number, f"{number} {task.kind} {task.model or ''}".strip()
        channel = _RunChannel(self._connection, number)
        try:
            self._policy.check_task(task.kind, task.model)
            if (self._name, self._dataset.shape[0]) not in pooled.sites:
                raise FederationError(f"the coordinator's sites do not name the {self._dataset.shape[0]} rows of {self._name}")
            self._require_same(pooled)
            executor = SiteExecutor(self._executor, memory, channel, self._policy, self._log)
            with _Beats(self._connection):
                result = task.run(pooled.dataset(self._name, self._dataset), executor, **self._runtime(task, pooled))
            channel.end(result_digest(result))
        except RunLostError:
            raise
        except DfactError as error:
            self._send({"kind": "failed", "run": number, "text": str(error)})
            raise
        except Exception:
            self._send({"kind": "failed", "run": number, "text": "it has failed; its own output says why"})
            raise
        for model in (result, getattr(result, "model", None)):
            if isinstance(model, Factorization):
                model.fingerprint_ = self._dataset.stored_fingerprint  # its factors are those of this site's rows
        return task, result

    def _runtime(self, task: Task, pooled: Description) -> dict[str, Any]:
        """Return the checkpoint of a fit that keeps one, which depends on its task and on the data of all sites."""
        if self._checkpoints is None or not task.resumable:
            return {}
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        name = json_digest({"task": task.as_json(), "data": pooled.fingerprint})
        return {"checkpoint": self._checkpoints / f"{name[:16]}.zarr"}

    def _send(self, fields: dict[str, Any]) -> None:
        """Tell the coordinator why this site does not go on, if it can be reached."""
        try:
            self._connection.call(Message(fields))
        except FederationError as error:
            logger.info("the coordinator was not told: %s", error)

    def serve(self, on_result: Callable[[Task, Any], None]) -> None:
        """Join, and carry out runs until the coordinator ends. Join again if it was restarted."""
        self.join()
        while (run := self.next_task()) is not None:
            try:
                task, result = self.carry_out(run)
            except RunLostError:
                logger.warning("the coordinator was restarted; joining again")
                self.join()
                continue
            on_result(task, result)


class _RunChannel:
    """The exchange of one run, as a site calls it."""

    def __init__(self, connection: Connection, run: str) -> None:
        self._connection, self._run = connection, run

    def contribute(self, step: int, message: Message) -> Message:
        return self._call({"kind": "step", "step": step, "message": dict(message.fields)}, message.arrays)

    def end(self, digest: str) -> None:
        """Say that the run has ended with this result."""
        self._call({"kind": "ended", "digest": digest})

    def _call(self, fields: dict[str, Any], arrays: Sequence[NDArray[Any]] = ()) -> Message:
        answer = self._connection.call(Message({**fields, "run": self._run}, arrays))
        if answer.fields == UNKNOWN_RUN.fields:
            raise RunLostError("the coordinator does not know this run")
        return answer


class _Beats:
    """Signs of life while a site computes."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._stop = connection, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="dfact-alive", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT):
            try:
                self._connection.call(Message({"kind": "alive"}))
            except FederationError as error:
                logger.info("no sign of life was taken: %s", error)
