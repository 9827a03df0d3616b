"""Waits of a driver with limits on the time without workers or progress, and the errors of a lost cluster.

A wait has three ends: the awaited result; the error of a check, by which a session learns of a lost worker; or a ClusterError, which names
the limit that has passed. A slow cluster has no limit: as long as some worker makes steps, and the scheduler answers, the wait lasts. The
watchdog counts steps and workers alone and does not know what they work on. It asks the scheduler at least every five seconds, and rarely
in the first seconds of a wait, so that it costs nothing in short passes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dfact.data.sources.dask import worker_infos
from dfact.errors import ClusterError, DfactError

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
_FEW = 50  # number of simultaneous calls up to which one takes no longer than alone
POLL_SECONDS = 5.0  # maximum time between two queries of the scheduler during a wait


class Watchdog:
    """Waits for the results of a cluster, with timeouts.

    ``dask.config`` sets them: ``dfact.worker-timeout`` (60 s) while the cluster has no worker or the scheduler does not
    answer, ``dfact.progress-timeout`` (10 min) while no worker makes a step: a partition of a pass, an array of a state that moves
    or is saved, a chunk of rows. The loss of a single worker is not a timeout, as the others recompute its partitions; Dask's
    ``worker-ttl`` determines when a silent worker counts as lost. Workers report their steps with Dask's heartbeats, so a timeout is
    longer by the age of the report.
    """

    def __init__(self, client: "Client", *, progress: bool = True) -> None:
        import dask
        from dask.utils import parse_timedelta

        def seconds(name: str, default: str) -> float:
            return float(parse_timedelta(dask.config.get(f"dfact.{name}", default)))

        self._client = client
        self.worker_timeout = seconds("worker-timeout", "60s")
        self._progress_timeout = seconds("progress-timeout", "10m") if progress else float("inf")

    def gather(self, futures: Sequence["Future"], pending: Sequence["Future"] = ()) -> list[Any]:
        """Return the results of the futures. Each of these, or of those ``pending``, that finishes counts as progress."""
        with cluster_errors():
            results: list[Any] = self._client.sync(self._gather, list(futures), [*futures, *pending])
        return results

    def completed(self, futures: Sequence["Future"]) -> Iterator[tuple[int, Any]]:
        """Yield the results as the futures finish, each with its position."""
        from distributed import as_completed

        positions, stream = {future.key: i for i, future in enumerate(futures)}, as_completed(futures, loop=self._client.loop)
        for _ in futures:
            with cluster_errors():
                future = self._client.sync(self._wait, stream.__anext__(), futures)
            yield positions[future.key], self.gather([future])[0]

    async def _gather(self, futures: list["Future"], watched: list["Future"]) -> Any:
        return await self._wait(self._client.gather(futures, asynchronous=True), watched)

    async def _wait(self, work: Awaitable[T], watched: Sequence["Future"]) -> T:
        async def finished() -> tuple[int, float]:
            return sum(future.status == "finished" for future in watched), 0.0

        return await self.wait(work, finished)

    async def wait(
        self,
        work: Awaitable[T],
        progress: Callable[[], Awaitable[tuple[int, float]]] | None = None,
        check: Callable[[dict[str, int]], Awaitable[None]] | None = None,
    ) -> T:
        """Return the result of the work, unless the cluster is lost or ``progress`` stays the same for too long, or ``check`` of
        the workers raises an error. ``progress`` is a number of steps, with the age of this figure in seconds.
        """
        with self._open_client():
            return await self._wait_for(asyncio.ensure_future(work), progress, check)

    async def _wait_for(
        self,
        task: asyncio.Future[T],
        progress: Callable[[], Awaitable[tuple[int, float]]] | None,
        check: Callable[[dict[str, int]], Awaitable[None]] | None,
    ) -> T:
        with_workers = progressed = queried = time.monotonic()
        last_count, age = -1, 0.0
        try:
            interval = 0.5
            while not (await asyncio.wait({task}, timeout=min(interval, POLL_SECONDS, self.worker_timeout / 4)))[0]:
                interval *= 2  # early losses are noticed soon, and long passes are not disturbed
                workers, now = await self.workers(), time.monotonic()
                if workers is not None and check is not None:
                    await check(workers)
                if workers:
                    with_workers = now
                if now - with_workers > self.worker_timeout:
                    raise ClusterError(f"for {self.worker_timeout:g} s the Dask cluster has had no worker, or its scheduler did not answer")
                if progress is not None and now - queried > min(POLL_SECONDS, self._progress_timeout / 4):
                    (count, age), queried = await progress(), now
                    if count != last_count:
                        last_count, progressed = count, now
                # A stale report must not extend the timeout without limit: the worker may be silent.
                if progress is not None and now - progressed > self._progress_timeout + min(age, self._progress_timeout):
                    raise ClusterError(
                        f"for {self._progress_timeout:g} s no worker has processed, read or written anything; can they reach each "
                        "other and the stores?"
                    )
            return task.result()
        finally:
            task.cancel()

    def some_workers(self) -> dict[str, int]:
        """Wait for workers; returns their addresses with their threads."""

        async def poll() -> dict[str, int]:
            while not (workers := await self.workers()):
                await asyncio.sleep(0.1)
            return workers

        with cluster_errors():
            workers: dict[str, int] = self._client.sync(self.wait, poll())
        return workers

    def worker_infos(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers, by their addresses."""
        with cluster_errors():
            return worker_infos(self._client)

    async def workers(self) -> dict[str, int] | None:
        """Return the workers' addresses with their threads; None if the scheduler does not answer."""
        if self._client.scheduler is None:
            raise ClusterError("the Dask scheduler is lost: the client was closed")
        try:
            with self._open_client():
                workers: dict[str, int] = await asyncio.wait_for(
                    self._client.scheduler.ncores(), min(POLL_SECONDS, self.worker_timeout / 2)
                )
        except (OSError, TimeoutError):
            return None
        return workers

    @contextmanager
    def _open_client(self) -> Iterator[None]:
        """Raise ClusterError for an error of a client that has closed, as it does when it has lost its scheduler."""
        try:
            yield
        except RuntimeError as error:
            if self._client.status == "running" or isinstance(error, DfactError):
                raise
            raise ClusterError("the Dask scheduler is lost: the connection to it was closed") from error


async def until_silent(calls: Sequence[Coroutine[Any, Any, T]], timeout: float) -> list[T | BaseException]:
    """Return the calls' results or errors: a TimeoutError for those that are left once none has finished for ``timeout`` seconds.

    A thousand calls take longer than one: each that finishes shows that the others only wait for their turn, and while many are
    left, the first of them takes longer too.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    done, left = set[asyncio.Task[T]](), set(tasks)
    try:
        while left:
            done, left = await asyncio.wait(left, timeout=timeout * max(1.0, len(left) / _FEW), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
    finally:
        for task in left:
            task.cancel()
    results: list[T | BaseException] = await asyncio.gather(*tasks, return_exceptions=True)
    late = TimeoutError(f"no answer for {timeout:g} s")
    return [late if task in left else result for task, result in zip(tasks, results, strict=True)]


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Raise ClusterError for the exceptions by which Dask reports a lost cluster."""
    from distributed import KilledWorker

    from dfact.internals.distributed import CancelledError, ClosedClientError, CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise ClusterError(f"one worker after the other was lost in the same task: {error}; is their memory limit too low?") from error
    except (CancelledError, ClosedClientError, CommClosedError) as error:
        raise ClusterError(f"the Dask scheduler is lost: {error or type(error).__name__}") from error
