"""How long a driver waits for what a cluster does not do, and the errors that say so."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from dfact.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
POLL_SECONDS = 5.0  # seconds between two looks at a cluster that is silent


class Watchdog:
    """Waits for what a cluster computes, but not for ever.

    ``dask.config`` says how long: ``dfact.worker-timeout`` (60 s) while there is no worker at all or the scheduler is
    silent, ``dfact.progress-timeout`` (10 min) while nothing is finished. What a single lost worker held is computed
    again by the others; when a silent one counts as lost is the scheduler's ``worker-ttl``.
    """

    def __init__(self, client: "Client", *, progress: bool = True) -> None:
        import dask
        from dask.utils import parse_timedelta

        def seconds(name: str, default: str) -> float:
            return float(parse_timedelta(dask.config.get(f"dfact.{name}", default)))

        self._client = client
        self.workers_wait = seconds("workers-wait", "60s")
        self._progress_wait = seconds("progress-wait", "10m") if progress else float("inf")

    def gather(self, futures: Sequence["Future"], pending: Sequence["Future"] = ()) -> list[Any]:
        """The results of the futures. It counts as progress when any of these or of those ``pending`` is finished."""
        with cluster_errors():
            found: list[Any] = self._client.sync(self._gather, list(futures), [*futures, *pending])
        return found

    def completed(self, futures: Sequence["Future"]) -> Iterator[tuple[int, Any]]:
        """The results as they come, each with its number."""
        from distributed import as_completed

        numbers, stream = {future.key: i for i, future in enumerate(futures)}, as_completed(futures, loop=self._client.loop)
        for _ in futures:
            with cluster_errors():
                future = self._client.sync(self._wait, stream.__anext__(), futures)
            yield numbers[future.key], self.gather([future])[0]

    async def _gather(self, futures: list["Future"], moving: list["Future"]) -> Any:
        return await self._wait(self._client.gather(futures, asynchronous=True), moving)

    async def _wait(self, work: Awaitable[T], moving: Sequence["Future"]) -> T:
        async def finished() -> int:
            return sum(future.status == "finished" for future in moving)

        return await self.wait(work, finished)

    async def wait(
        self,
        work: Awaitable[T],
        progress: Callable[[], Awaitable[int]] | None = None,
        check: Callable[[dict[str, int]], None] | None = None,
    ) -> T:
        """What the work gives, unless the cluster is gone for too long, ``progress`` stays the same for too long, or ``check`` of
        the workers raises an error.
        """
        task = asyncio.ensure_future(work)
        with_workers = moved = asked = time.monotonic()
        reached = -1
        try:
            look = 0.5
            while not (await asyncio.wait({task}, timeout=min(look, POLL_SECONDS, self.workers_wait / 4)))[0]:
                look *= 2  # whoever is gone already is seen soon, and long passes are left alone
                workers, now = await self.workers(), time.monotonic()
                if workers is not None and check is not None:
                    check(workers)
                if workers:
                    with_workers = now
                if now - with_workers > self.workers_wait:
                    raise ClusterError(f"for {self.workers_wait:g} s the Dask cluster has had no worker, or its scheduler did not answer")
                if progress is not None and now - asked > min(POLL_SECONDS, self._progress_wait / 4):
                    count, asked = await progress(), now
                    if count != reached:
                        reached, moved = count, now
                if progress is not None and now - moved > self._progress_wait:
                    raise ClusterError(f"for {self._progress_wait:g} s no partition was finished; can the workers reach each other?")
            return task.result()
        finally:
            task.cancel()

    def some_workers(self) -> dict[str, int]:
        """The workers' addresses with their threads, once there are any."""

        async def some() -> dict[str, int]:
            while not (found := await self.workers()):
                await asyncio.sleep(0.1)
            return found

        with cluster_errors():
            found: dict[str, int] = self._client.sync(self.wait, some())
        return found

    async def workers(self) -> dict[str, int] | None:
        """The workers' addresses with their threads; None if the scheduler does not answer."""
        if self._client.scheduler is None:
            raise ClusterError("the Dask scheduler is lost: the client was closed")
        try:
            found: dict[str, int] = await asyncio.wait_for(self._client.scheduler.ncores(), min(POLL_SECONDS, self.workers_wait / 2))
        except (OSError, TimeoutError):
            return None
        return found


@contextmanager
def cluster_errors() -> Iterator[None]:
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
