"""A man in the middle with certificates for both ends: it passes everything on, and records it unencrypted.

``python -m benchmarks.sites.relay HOST:PORT COORDINATOR:PORT FOLDER RECORDS``; the folder has the certificate of the middle, and
one of each site.
"""

import asyncio
import itertools
import ssl
import sys
from pathlib import Path

READY = "The relay listens."
_FAREWELL = 0.2  # seconds for the end of TLS, after which a connection is closed


def security(purpose: ssl.Purpose, folder: Path) -> ssl.SSLContext:
    """Return the settings of an end, which requires a certificate of the authority of the other one."""
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Relay:
    """Passes on the connections of sites; ``records`` gets a file for each connection and direction."""

    def __init__(self, upstream: str, folder: Path, records: Path) -> None:
        self._host, port = upstream.rsplit(":", 1)
        self._port, self._folder, self._records = int(port), folder, records
        self._numbers = itertools.count()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("ssl_object").getpeercert()
        site = next(name for kind, name in certificate["subjectAltName"] if kind == "DNS")
        number = next(self._numbers)
        context = security(ssl.Purpose.SERVER_AUTH, self._folder / site)
        while True:
            try:
                further, back = await asyncio.open_connection(self._host, self._port, ssl=context, ssl_shutdown_timeout=_FAREWELL)
                break
            except OSError:  # the coordinator is not there yet, or again
                await asyncio.sleep(0.1)
            if reader.at_eof():
                writer.close()
                return
        there, here = (self._records / f"{number:04d}-{site}-{way}" for way in ("sent", "received"))
        await asyncio.gather(self._pass_on(reader, back, there), self._pass_on(further, writer, here))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Path) -> None:
        with record.open("wb", buffering=0) as file:
            try:
                while data := await reader.read(1 << 16):
                    file.write(data)  # before anybody gets it
                    writer.write(data)
                    await writer.drain()
            except OSError:
                return  # one end has closed the connection
            finally:
                writer.close()


async def main(listen: str, upstream: str, folder: Path, records: Path) -> None:
    relay, (host, port) = Relay(upstream, folder, records), listen.rsplit(":", 1)
    context = security(ssl.Purpose.CLIENT_AUTH, folder / "tls")
    server = await asyncio.start_server(relay.accept, host, int(port), ssl=context, ssl_shutdown_timeout=_FAREWELL)
    print(READY, flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
