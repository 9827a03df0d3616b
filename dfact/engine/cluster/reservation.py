"""Reservations of memory on workers, so that fits on the same cluster do not plan the same memory twice.

A shard reserves what its fit's plan adds to a worker, from its opening to its end. The worker decides: what a driver asked before it made
its plan may have changed.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary

from dfact.engine.cluster.watchdog import cluster_errors
from dfact.engine.memory_plan import Plan, reservable_bytes, worker_limit
from dfact.errors import MemoryPlanError
from dfact.internals.distributed import memory_limit
from dfact.text import format_bytes

if TYPE_CHECKING:
    from distributed import Client, Worker

_ANSWER_SECONDS = 5.0  # a worker that takes longer counts as free, and decides once it answers


@dataclass(frozen=True)
class Reservation:
    """Memory that a session reserves on each of its workers."""

    session: str
    """Unique name of the session: a worker that joins again replaces its own reservation."""
    size: int
    holder: str
    """The fit, with the process and the host of its driver."""

    @classmethod
    def of(cls, plan: Plan) -> "Reservation":
        """Return what a new session of this process reserves for this plan."""
        holder = f"a fit of {'×'.join(map(str, plan.shape))} of process {os.getpid()} on {socket.gethostname()}"
        return cls(uuid4().hex, plan.reserved, holder)

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} by {self.holder}"


_held: "WeakKeyDictionary[Worker, dict[str, Reservation]]" = WeakKeyDictionary()  # by the keys of the shards


def held(dask_worker: "Worker") -> list[Reservation]:
    """Return the reservations on this worker, one of each session; Dask runs this on its event loop."""
    return list({reservation.session: reservation for reservation in _held.get(dask_worker, {}).values()}.values())


def reserve(worker: "Worker", key: str, wanted: Reservation) -> None:
    """Reserve memory for the shard with this key. Raises MemoryPlanError if others hold so much that it does not fit."""
    limit = memory_limit(worker) or sys.maxsize
    others = [reservation for reservation in held(worker) if reservation.session != wanted.session]
    rest = reservable_bytes(limit, sum(reservation.size for reservation in others))
    holders = ", ".join(map(str, others))
    if others and wanted.size > rest:
        raise MemoryPlanError(
            f"{wanted.holder} needs {format_bytes(wanted.size)}, expected at most {format_bytes(max(0, rest))}: of the "
            f"{format_bytes(worker_limit(limit))} that fits may use on this worker others hold {holders}; wait until they "
            "end, start again to plan with the memory that is left, or use workers with more memory"
        )
    _held.setdefault(worker, {})[key] = wanted


def release(worker: "Worker", key: str) -> None:
    """Release the memory of the shard with this key."""
    _held.get(worker, {}).pop(key, None)


def reservations(client: "Client") -> dict[str, list[Reservation]]:
    """Return the reservations on all workers of the cluster, by their addresses."""

    async def ask() -> dict[str, list[Reservation]]:
        found: dict[str, list[Reservation]] = await asyncio.wait_for(client.run(held, on_error="ignore"), _ANSWER_SECONDS)
        return found

    try:
        answers: dict[str, list[Reservation]] = client.sync(ask)
    except (OSError, TimeoutError):
        return {}
    return answers


def least_rest(client: "Client", limits: Mapping[str, int]) -> tuple[int, str] | None:
    """Return the least bytes that fits leave of a worker, and a statement of what they hold there; None if they hold nothing.

    ``limits`` are the memory limits of the workers by their addresses. Raises ClusterError if the client has lost its cluster.
    """
    with cluster_errors():
        known = reservations(client).items()
    rests = [
        (
            reservable_bytes(limits[address], sum(reservation.size for reservation in found)),
            f"memory that others hold on worker {address}: {', '.join(map(str, found))}",
        )
        for address, found in known
        if found and address in limits
    ]
    return min(rests, default=None)
