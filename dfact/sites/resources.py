"""The memory and the processes of sites, with which all of a run plan the same passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import WorkerResources
from dfact.errors import FederationError
from dfact.sites.messages import Message, short

_MAX_MEMORY, _MAX_THREADS, _MAX_WORKERS = 1 << 50, 1 << 12, 1 << 16


@dataclass(frozen=True)
class Resources:
    """The resources of a site for its passes, or those of all sites together."""

    memory: int
    """Free memory of a process, in bytes."""
    threads: int
    """Threads of a process."""
    workers: int
    """Number of workers of the site's Dask cluster; 0 if its own program runs the passes."""

    @classmethod
    def of(cls, found: WorkerResources) -> Resources:
        """Return those of the executor of a site, whose memory may have no limit."""
        workers = found.processes if found.on_cluster else 0
        return cls(min(max(0, found.limit - found.baseline), _MAX_MEMORY), found.threads, workers)

    @classmethod
    def common(cls, sites: Iterable[Resources]) -> Resources:
        """Return those for which passes fit at every site: the least memory, and the most threads and workers."""
        memory, threads, workers = zip(*((each.memory, each.threads, each.workers) for each in sites), strict=True)
        return cls(min(memory), max(threads), max(workers))

    @classmethod
    def from_message(cls, message: Message) -> Resources:
        """Read them from a message; raise FederationError if no machine has them."""
        found = cls(message.get("memory", int), message.get("threads", int), message.get("workers", int))
        if not 0 <= found.memory <= _MAX_MEMORY or not 1 <= found.threads <= _MAX_THREADS or not 0 <= found.workers <= _MAX_WORKERS:
            stated = f"{short(found.memory)} bytes of memory, {short(found.threads)} threads and {short(found.workers)} workers"
            raise FederationError(f"a message states {stated}, which no machine has")
        return found

    def require(self, table_bytes: int, sites: Iterable[tuple[str, int]]) -> None:
        """Refuse numbers of rows whose tables do not fit into the memory of every process, before they are made."""
        free = min(self.memory, Resources.of(InlineExecutor().workers(None)).memory)
        if table_bytes > free:
            site, rows = max(sites, key=lambda each: each[1])
            found = f"site {site} states {rows} rows; the tables of all rows take {table_bytes} bytes of memory"
            raise FederationError(f"{found}, expected at most the {free} that are free; leave the site out, or use more memory")

    def as_fields(self) -> dict[str, int]:
        """Return them as fields of a message."""
        return asdict(self)

    def planned(self) -> WorkerResources:
        """Return what every process of a run plans with, so that all form the same passes."""
        return WorkerResources("sites", 1, self.threads, self.memory, 0, "site with the least free memory", self.workers)
