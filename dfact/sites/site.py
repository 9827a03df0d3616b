"""A site: it joins a coordinator, carries out the tasks that its policy allows on its own rows, and keeps the results."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.environment import as_fields, current_environment
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import WorkerResources
from dfact.errors import DfactError, FederationError, StoreError
from dfact.sites.coordinator import UNKNOWN_RUN, models_of, record_sites
from dfact.sites.description import Description
from dfact.sites.gate import Gate
from dfact.sites.ledger import Ledger
from dfact.sites.messages import Message, short
from dfact.sites.policy import Policy, WithheldError, words_that_leave
from dfact.sites.resources import Resources
from dfact.sites.sessions import SiteExecutor
from dfact.sites.site_log import SiteLog
from dfact.sites.tasks import Task
from dfact.storage.groups import remove
from dfact.storage.seals import json_digest


class RunLostError(FederationError):
    """A run, or a site, that the coordinator does not know: it was restarted."""


class UnreachableError(FederationError):
    """A coordinator that was not reached in time."""


logger = logging.getLogger("dfact.sites")
_DRIFT = 1.5  # of the free memory of a site that joins again, while the others' plan stays
_PAUSE = 0.5  # seconds, so that a coordinator that repeats itself keeps no site busy
_BEAT = 5.0  # seconds between two signs of life


class Connection(Protocol):
    """A site's connection to the coordinator, which survives interruptions."""

    def call(self, message: Message) -> Message:
        """Send a message, and return the answer.

        Raises FederationError with the coordinator's words if it refuses, and UnreachableError if it is not reached in time.
        """
        ...


class Site:
    """The rows of one site, its policy and its log.

    Passes run by the ``executor``, which is what estimators take as theirs: threads, or the Dask cluster of the site, for example. None
    stands for threads, or for the cluster of the active Dask client; ``memory_limit`` is that of each process.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        connection: Connection,
        *,
        policy: Policy | None = None,
        log: str | PathLike[str] | None = None,
        executor: Any = None,
        checkpoint: str | PathLike[str] | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self._name, self._dataset = name, dataset
        self._policy = Policy() if policy is None else policy
        self._ledger = Ledger(log)
        self._log, self._executor = SiteLog(log), resolve_executor(executor, dataset.source.layout.n_partitions)
        self._connection = _LoggedConnection(connection, self._log)
        self._checkpoints = None if checkpoint is None else Path(checkpoint).absolute()  # workers may have another working folder
        self._memory_limit = memory_limit
        self._last = ""
        self._finished: dict[Path, str] = {}
        """Names of the runs that have ended here by their checkpoints, which are kept until the coordinator has the result, too."""
        self._workers: WorkerResources | None = None
        """The processes of the executor when this site joined."""
        self._gate = Gate(self._policy, self._ledger, dataset)

    def join(self) -> None:
        """Check the data against the policy, describe it to the coordinator, and check it against the contract."""
        try:
            self._ledger.require_refusals_left(self._policy.max_refusals)
            self._join()
        except Exception as error:
            if not isinstance(error, StoreError):
                self._ledger.count_refusal()
            self._send({"kind": "refused", "text": words_that_leave(error)})
            if isinstance(error, DfactError):
                raise
            raise FederationError(f"site {self._name} has failed to join: {type(error).__name__}: {error}") from error

    def _join(self) -> None:
        self._policy.check_data(self._dataset)
        self._check_contract(self._connection.call(Message({"kind": "contract"})))
        self._gate.admit_data()
        description = Description.of(self._name, self._dataset, extremes=self._policy.extremes)
        description = replace(description, fingerprint=self._ledger.keyed(self._dataset.fingerprint))
        message = description.message("description")
        self._workers = self._executor.workers(self._memory_limit)
        fields = {
            "kind": "join",
            "environment": as_fields(current_environment()),
            **Resources.of(self._workers).as_fields(),
            "description": {name: value for name, value in message.fields.items() if name != "kind"},
        }
        self._connection.call(Message(fields, message.arrays), self._dataset.shape[0])

    def _check_contract(self, answer: Message) -> None:
        """Check the data against the contract of the coordinator, before the data is described: so its columns say nothing."""
        if len(answer.arrays):
            contract = Description.from_message(answer, least_rows=0)
            self._ledger.pin(hashlib.sha256(answer.encode()).hexdigest(), self._policy.max_contracts)
            self._require_same(contract)
        elif not self._policy.extremes:
            found = f"the coordinator has no contract, and the policy of site {self._name} does not let lowest and highest answers leave"
            raise FederationError(f"{found}, expected a contract with the ranges; give the coordinator a contract")

    def _require_same(self, contract: Description) -> None:
        difference = contract.difference(self._dataset)
        if difference is not None:
            raise FederationError(f"the data of site {self._name} differs from the contract: {difference}")

    def next_task(self) -> Message | None:
        """Wait for the next run, and return it; None if the coordinator has ended.

        Raises RunLostError if the site must join first, and FederationError if the last run failed before this site began it.
        """
        while True:
            answer = self._connection.call(Message({"kind": "task", "after": self._last}))
            kind = answer.get("kind", str)
            if answer.fields == UNKNOWN_RUN.fields:
                raise RunLostError("the coordinator does not know this site")
            if kind == "closed":
                self._delete_checkpoints(answer.get("completed", list))
                if answer.fields.get("failure"):
                    raise FederationError(f"the coordinator has ended a run before this site began it: {answer.words('failure')}")
                return None
            if kind == "run":
                self._last = answer.get("run", str)
                return answer

    def _delete_checkpoints(self, completed: list[Any]) -> None:
        for path, run in self._finished.items():
            if run in completed:
                remove(path)

    def carry_out(self, run: Message) -> tuple[Task, Any]:
        """Carry out a run, and return its task and the site's result, with the factors of its own rows.

        If it fails, the coordinator gets the words that :func:`dfact.sites.policy.words_that_leave` returns.
        """
        number = run.get("run", str)
        try:
            return self._carry_out(run, number)
        except RunLostError:
            raise
        except Exception as error:
            if isinstance(error, WithheldError):
                self._ledger.count_refusal()
            self._send({"kind": "failed", "run": number, "text": words_that_leave(error)})
            if isinstance(error, DfactError):
                raise
            raise FederationError(f"the run has failed at this site: {type(error).__name__}: {error}") from error

    def _carry_out(self, run: Message, number: str) -> tuple[Task, Any]:
        self._ledger.require_refusals_left(self._policy.max_refusals)
        fields, task, resources = dict(run.fields), Task.from_json(run.fields.get("task")), Resources.from_message(run)
        for name in ("run", "task", *resources.as_fields()):
            fields.pop(name, None)
        self._log.run = f"{short(number)[1:-1]} {task.kind} {task.model or ''}".strip()
        self._policy.check_task(task, self._dataset.shape[0])
        pooled = Description.from_message(Message(fields, run.arrays))
        if (self._name, self._dataset.shape[0]) not in pooled.sites:
            raise FederationError(f"the coordinator's sites do not name the {self._dataset.shape[0]} rows of {self._name}")
        assert self._workers is not None, "it has joined"
        needed, stated = max(resources.memory / _DRIFT, pooled.table_bytes), Resources.of(self._workers).memory
        if needed > stated:
            raise FederationError(f"the run may take {needed:.0f} bytes of memory, and site {self._name} has stated {stated}")
        self._require_same(pooled)
        channel = _RunChannel(self._connection, number)
        executor = SiteExecutor(self._executor, self._own_workers(self._workers, resources), resources.planned(), channel, self._gate)
        checkpoint = self._checkpoint(task, pooled)
        runtime: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
        blocks = self._gate.admit_task(task)
        if blocks is not None:
            runtime["blocks"] = {[name for name, _ in pooled.sites].index(self._name): blocks}
        with _Beats(self._connection):
            result = task.run(pooled.dataset(self._name, self._dataset), executor, **runtime)
        channel.end(record_sites(result, pooled))
        if checkpoint is not None:
            self._finished[checkpoint] = number
        for model in models_of(result):
            model.fingerprint_ = self._dataset.stored_fingerprint  # its factors are those of this site's rows
        return task, result

    def _own_workers(self, joined: WorkerResources, common: Resources) -> WorkerResources:
        """Return what the passes of a run may use here: the cluster as it is now, or what the site had when it joined.

        The run may plan with a little more than that, as free memory varies.
        """
        if joined.on_cluster:
            return self._executor.workers(self._memory_limit)
        return replace(joined, limit=max(joined.limit, joined.baseline + common.memory))

    def _checkpoint(self, task: Task, pooled: Description) -> Path | None:
        """Return the checkpoint of a fit that keeps one, which depends on its task and on the data of all sites."""
        if self._checkpoints is None or not task.resumable:
            return None
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        path = self._checkpoints / f"{json_digest({'task': task.as_json(), 'data': pooled.fingerprint})[:16]}.zarr"
        self._finished.pop(path, None)  # of an earlier run of the same fit
        return path

    def _send(self, fields: dict[str, Any]) -> None:
        """Tell the coordinator why this site does not go on, if it can be reached."""
        try:
            self._connection.call(Message(fields))
        except FederationError as error:
            logger.info("the coordinator was not told: %s", error)

    def serve(self, on_result: Callable[[Task, Any], None]) -> bool:
        """Join, and carry out runs until the coordinator ends. Join again if it was restarted.

        The site outlives a run that fails. The error of the last run is raised in the end. Returns whether the coordinator has said that
        it ends; it may also be out of reach for good after a run whose result this site has.
        """
        failure: DfactError | None = None
        ended = False
        self.join()
        while True:
            try:
                run = self.next_task()
            except RunLostError:
                logger.warning("the coordinator was restarted; joining again")
                time.sleep(_PAUSE)
                self.join()
                continue
            except UnreachableError as error:
                if not ended:
                    raise
                logger.warning("%s", error)
                return False
            if run is None:
                if failure is not None:
                    raise failure
                return True
            failure, ended = None, False
            try:
                task, result = self.carry_out(run)
            except RunLostError:
                continue
            except DfactError as error:
                logger.warning("a run has failed: %s", error)
                failure = error
                time.sleep(_PAUSE)
                continue
            with _Beats(self._connection):  # the coordinator waits until the result is saved
                on_result(task, result)
            ended = True


class _LoggedConnection:
    """The one way out of a site: each message is in its log before it leaves, and each answer as it has come in."""

    def __init__(self, connection: Connection, log: SiteLog) -> None:
        self._connection, self._log = connection, log

    def call(self, message: Message, rows: int = 0, details: Mapping[str, Any] | None = None) -> Message:
        silent = message.fields["kind"] in ("alive", "task")
        if not silent:
            self._log.record(message, rows, details=details)
        answer = self._connection.call(message)
        if not self._log.peer:
            self._log.peer = str(getattr(self._connection, "peer", "")) or "in this process"
        if not silent or answer.fields.get("kind") == "run":
            self._log.record(answer, way="in")
        return answer


class _RunChannel:
    """The exchange of one run, as a site calls it."""

    def __init__(self, connection: _LoggedConnection, run: str) -> None:
        self._connection, self._run = connection, run

    def contribute(self, step: int, message: Message, rows: int = 0, details: Mapping[str, Any] | None = None) -> Message:
        return self._request({"kind": "step", "step": step, "message": dict(message.fields)}, message.arrays, rows, details)

    def end(self, digest: str) -> None:
        """Say that the run has ended with this result."""
        self._request({"kind": "ended", "digest": digest})

    def _request(
        self, fields: dict[str, Any], arrays: Sequence[NDArray[Any]] = (), rows: int = 0, details: Mapping[str, Any] | None = None
    ) -> Message:
        answer = self._connection.call(Message({**fields, "run": self._run}, arrays), rows, details)
        if answer.fields == UNKNOWN_RUN.fields:
            raise RunLostError("the coordinator does not know this run")
        return answer


class _Beats:
    """Signs of life while a site computes."""

    def __init__(self, connection: _LoggedConnection) -> None:
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
