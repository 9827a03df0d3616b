"""Connections over TLS that processes of a cluster open and accept, and connections of strangers, who check nothing themselves."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Security
from distributed.comm import connect, listen

from tests.tls.authority import FILES

SECONDS = 60


def dasks_security(folder: Path) -> Security:
    """Return Dask's own security with the certificates of a folder, in every role."""
    ca, cert, key = (str(folder / name) for name in FILES)
    roles = {f"tls_{role}_{what}": path for role in ("client", "scheduler", "worker") for what, path in (("cert", cert), ("key", key))}
    return Security(require_encryption=True, tls_ca_file=ca, **roles)


async def _opened(address: str, arguments: dict[str, Any]) -> str:
    """Return why a connection is refused; empty if it is accepted, and answers."""
    try:
        comm = await connect(address, timeout=SECONDS, **arguments)
    except OSError as error:
        return f"{error} {error.__cause__}"
    try:
        await comm.write({"op": "identity", "reply": True})
        await asyncio.wait_for(comm.read(), SECONDS)
    except OSError as error:
        return f"{error}"
    finally:
        comm.abort()
    return ""


async def refusals(addresses: Sequence[str], dask_scheduler: Any = None, dask_worker: Any = None) -> list[str]:
    """Connect from within a scheduler, a worker or a nanny."""
    return [await _opened(address, (dask_scheduler or dask_worker).connection_args) for address in addresses]


def refusal(address: str, security: Security) -> str:
    """Connect from this process."""
    return asyncio.run(_opened(address, security.get_connection_args("client")))


@contextmanager
def listeners(*holders: Security) -> Iterator[list[str]]:
    """Yield the addresses of listeners with these certificates, who answer whatever they are asked."""

    async def answer(comm: Any) -> None:
        await comm.read()
        await comm.write({"workers": {}})

    async def start() -> list[Any]:
        return [await listen("tls://127.0.0.1:0", answer, **holder.get_listen_args("scheduler")) for holder in holders]

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        started = asyncio.run_coroutine_threadsafe(start(), loop).result(SECONDS)
        yield [listener.contact_address for listener in started]
        for listener in started:
            loop.call_soon_threadsafe(listener.stop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
