"""The executor on a Dask cluster, and how long it waits for what does not come."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from uuid import uuid4

import zarr
from numpy.typing import NDArray

from dfact.engine.kept import KeptState, Versions, rows_of, store, visit
from dfact.engine.partition import GROUP, Partition, add_up
from dfact.engine.passes import Partial, Pass
from dfact.engine.plan import GATHERED, Plan, Workers, cluster_workers
from dfact.engine.session import Stateful
from dfact.engine.spill import SpilledState
from dfact.engine.streams import StoredState
from dfact.engine.threads import single_threaded
from dfact.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client, Future

P = TypeVar("P", bound=Partial)
T = TypeVar("T")
_LOOK = 5.0  # seconds between two looks at a cluster that is silent


@dataclass(frozen=True)
class Sealed(Generic[T]):
    """What travels as one string of bytes.

    Otherwise Dask sends arrays apart from what holds them, and at times they come to lie at odd addresses. NumPy
    copies such arrays, in another order than they had, and BLAS then sums in another order; Numba compiles anew for them.
    """

    value: T

    def __reduce__(self) -> tuple[Any, ...]:
        from distributed.protocol.pickle import dumps

        return _unsealed, (dumps(self.value),)

    def __sizeof__(self) -> int:
        """By which Dask decides where tasks run, and when to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def _unsealed(content: bytes) -> Sealed[Any]:
    from distributed.protocol.pickle import loads

    return Sealed(loads(content))


def _task(
    partition: Partition, pass_and_shared: Sealed[tuple[Pass[Any, P], Any]], kept: KeptState, spill_to: Path | None
) -> tuple[KeptState, P]:
    pass_, shared = pass_and_shared.value
    with single_threaded():
        return visit(partition, pass_, shared, kept, spill_to, own=False)


def _identity(value: Any) -> Any:
    return value


def _item(pair: tuple[Any, Any], index: int) -> Any:
    return pair[index]


def _add_up(totals: list[P]) -> Sealed[P]:
    return Sealed(add_up([totals[0].total(), *totals[1:]]))  # what a task is given stays as it is


class Watch:
    """Waits for what a cluster computes, but not for ever.

    ``dask.config`` says how long: ``dfact.workers-wait`` (60 s) while there is no worker at all or the scheduler is
    silent, ``dfact.progress-wait`` (10 min) while nothing is finished. What a single lost worker held is computed
    again by the others; when a silent one counts as lost is the scheduler's ``worker-ttl``.
    """

    def __init__(self, client: "Client", *, progress: bool = True) -> None:
        import dask
        from dask.utils import parse_timedelta

        def seconds(name: str, default: str) -> float:
            return float(parse_timedelta(dask.config.get(f"dfact.{name}", default)))

        self._client = client
        self._known: set[str] = set()
        self._next_look = 0.0
        self._workers_wait = seconds("workers-wait", "60s")
        self._progress_wait = seconds("progress-wait", "10m") if progress else float("inf")

    def gather(self, futures: Sequence["Future"], pending: Sequence["Future"] = ()) -> list[Any]:
        """The results of the futures. It counts as progress when any of these or of those ``pending`` is finished."""
        with lost_cluster():
            found: list[Any] = self._client.sync(self._gather, list(futures), [*futures, *pending])
        return found

    def completed(self, futures: Sequence["Future"]) -> Iterator[tuple[int, Any]]:
        """The results as they come, each with its number."""
        from distributed import as_completed

        numbers, stream = {future.key: i for i, future in enumerate(futures)}, as_completed(futures, loop=self._client.loop)
        for _ in futures:
            with lost_cluster():
                future = self._client.sync(self._wait, stream.__anext__, futures)
            yield numbers[future.key], self.gather([future])[0]

    async def _gather(self, futures: list["Future"], moving: list["Future"]) -> Any:
        return await self._wait(lambda: self._client.gather(futures, asynchronous=True), moving)

    async def _wait(self, what: Callable[[], Awaitable[T]], moving: Sequence["Future"]) -> T:
        task = asyncio.ensure_future(what())
        with_workers = moved = time.monotonic()
        finished = -1
        try:
            while not (await asyncio.wait({task}, timeout=min(_LOOK, self._workers_wait / 4)))[0]:
                now, count = time.monotonic(), sum(future.status == "finished" for future in moving)
                if await self._workers():
                    with_workers = now
                if count != finished:
                    finished, moved = count, now
                if now - with_workers > self._workers_wait:
                    raise ClusterError(f"for {self._workers_wait:g} s the Dask cluster has had no worker, or its scheduler did not answer")
                if now - moved > self._progress_wait:
                    raise ClusterError(f"for {self._progress_wait:g} s no partition was finished; can the workers reach each other?")
            return task.result()
        finally:
            task.cancel()

    def newcomers(self) -> list[str]:
        """All workers, if some have come since the last look; not oftener than every few seconds."""
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + _LOOK
        known, self._known = self._known, set(self._client.sync(self._workers))
        return sorted(self._known) if known and self._known - known else []

    async def _workers(self) -> list[str]:
        """Their addresses; none if the scheduler does not answer."""
        try:
            return list(await asyncio.wait_for(self._client.scheduler.ncores(), self._workers_wait / 2))
        except (OSError, TimeoutError):
            return []


@contextmanager
def lost_cluster() -> Iterator[None]:
    """What Dask raises when a cluster is lost, in words."""
    from distributed import KilledWorker
    from distributed.client import CancelledError, ClosedClientError
    from distributed.comm import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(f"one worker after the other was lost in the same task: {error}; is their memory limit too low?") from error
    except (CancelledError, ClosedClientError, CommClosedError) as error:
        raise ClusterError(f"the Dask scheduler is lost: {error or type(error).__name__}") from error


class DistributedSession(Stateful):
    """Chains of pure futures, one for each partition: what a lost worker held is computed again.

    Spilled states are files that all workers can reach; only their names travel, and so it is with what a
    checkpoint holds: behind it the chains begin anew.
    """

    def __init__(self, client: "Client", partitions: list[Partition], plan: Plan) -> None:
        self._client, self._plan, self._watch = client, plan, Watch(client)
        self._versions = Versions(plan, take_turns=False)
        self._kept: list[Any] = [None] * len(partitions)  # Future[KeptState] or KeptState
        self._sources = partitions
        self._partitions: list[Future] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        import dask

        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "10GB"}), lost_cluster():
            # Data in memory travels to the workers once, as the task that returns it.
            for i, partition in enumerate(self._sources):
                load = Partition.load if i < self._plan.values_in_memory else _identity
                self._partitions.append(self._submit(load, partition))
        self._sources = []
        self._stack.callback(self._versions.remove)
        # For the driver's own products: more threads give other bits than those of a session on this machine.
        self._stack.enter_context(single_threaded())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._partitions, self._kept = [], []  # the cluster forgets what nobody holds
        self._stack.close()

    def _submit(self, function: Any, *args: Any, **where: Any) -> "Future":
        return self._client.submit(function, *args, pure=False, **where)

    def _map(self, function: Any, *lists: Sequence[Any], **how: Any) -> "list[Future]":
        """A task for each partition, all in one message: one each takes the scheduler more than twice the time."""
        futures: list[Future] = self._client.map(function, *lists, pure=False, **how)
        return futures

    def _spread(self) -> None:
        """Tasks go where their inputs are, so those who come later get none, unless inputs are moved there."""
        workers = self._watch.newcomers()
        for i in range(len(self._partitions)) if workers else ():
            there = {"workers": [workers[i % len(workers)]], "allow_other_workers": True}
            self._partitions[i] = self._submit(_identity, self._partitions[i], **there)
            if isinstance(self._kept[i], type(self._partitions[i])):  # what is on disk is not moved
                self._kept[i] = self._submit(_identity, self._kept[i], **there)

    def run(self, pass_: Pass[Any, P], shared: Any) -> P:
        self._versions.next_pass()
        with lost_cluster():
            self._spread()
            places = [self._versions.place(i) for i in range(len(self._partitions))]
            broadcast = self._submit(_identity, Sealed((pass_, shared)))
            visits = self._map(_task, self._partitions, [broadcast] * len(places), self._kept, places)
            # At once: what is to be added up need not wait for the last visit.
            states = self._map(_item, visits, [0] * len(places), priority=1)
            totals = self._map(_item, visits, [1] * len(places), priority=1)
            groups = self._map(_add_up, [totals[i : i + GROUP] for i in range(0, len(totals), GROUP)], priority=1)
            del visits, totals  # the workers keep no longer what is added up
        spilled = [i for i, place in enumerate(places) if place is not None]
        self._kept = [kept if place else state for kept, state, place in zip(self._kept, states, places, strict=True)]
        batches = (groups[start : start + GATHERED] for start in range(0, len(groups), GATHERED))
        sums: P = add_up(group.value for batch in batches for group in self._watch.gather(batch, states))
        for i, state in zip(spilled, self._watch.gather([states[i] for i in spilled]), strict=True):
            self._keep(i, state)
        return sums

    def _keep(self, partition: int, state: KeptState) -> None:
        # The driver holds the names of the files, so a version may go once the next is written.
        if isinstance(self._kept[partition], SpilledState):
            self._kept[partition].delete()
        self._kept[partition] = state

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        for kept in self._kept:
            yield self._watch.gather([self._submit(rows_of, kept, name)])[0]

    def save(self, group: zarr.Group) -> list[StoredState | None]:
        # Under a name of its own each: a worker that was given up for lost may still be writing.
        names = [f"{i:06d}-{uuid4().hex}" for i in range(len(self._kept))]
        with lost_cluster():
            stored = self._map(store, self._kept, [group] * len(names), names)
        states = self._watch.gather(stored)
        for i, state in enumerate(states):
            self._keep(i, state)
        return states

    def restore(self, states: Sequence[StoredState | None]) -> None:
        self._kept = list(states)


class DistributedExecutor:
    """The workers of a Dask cluster."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def workers(self, memory_limit: int | str | None) -> Workers:
        found = self.client.scheduler_info(n_workers=-1)["workers"]
        if not found:
            self.client.wait_for_workers(1, timeout=60)
            found = self.client.scheduler_info(n_workers=-1)["workers"]
        limits = [worker["memory_limit"] or sys.maxsize for worker in found.values()]
        return cluster_workers(limits, max(worker["nthreads"] for worker in found.values()), memory_limit)

    def open(self, partitions: list[Partition], plan: Plan) -> DistributedSession:
        return DistributedSession(self.client, partitions, plan)
