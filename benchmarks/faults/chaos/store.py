"""The object store of the chaos: SeaweedFS, which keeps objects on disk, behind a proxy that errs, is slow or full on demand.

    python -m benchmarks.faults.chaos.store FOLDER PORT BEHIND

runs the proxy, which reads its troubles from FOLDER at each request, and touches a file there at each successful one that writes.
"""

import json
import os
import random
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

from tests.object_store.test_object_store import Handler, Proxy, settings

PORT = 9000
BUCKET = "chaos"
_SOCKETS = Path("/tmp")  # where SeaweedFS puts them, whatever TMPDIR is
_TROUBLES, _ACTIVE = "troubles.json", "active"
_ERROR_SHARE = 0.1
_SLOW_SECONDS = 0.3


def find_weed() -> str | None:
    """Return the path of SeaweedFS's program, None if it is not installed."""
    return shutil.which("weed", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


def _ports() -> dict[str, int]:
    """Return the ports of the store's servers, which name their sockets, too: runs of other processes must not share those."""
    return {name: 20_000 + 4 * (os.getpid() % 2_000) + number for number, name in enumerate(("master", "volume", "filer", "s3"))}


def weed_command(folder: Path) -> list[str]:
    """Return the command of a store that keeps its objects in the folder and listens on loopback."""
    folder.mkdir(exist_ok=True)
    weed = find_weed()
    assert weed is not None
    here = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", *(f"-{name}.port={port}" for name, port in _ports().items())]
    volumes = ["-master.volumeSizeLimitMB=256", "-volume.max=200", "-volume.minFreeSpace=1"]
    return [weed, "server", *here, *volumes, "-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"]


def remove_sockets() -> None:
    """Remove the sockets that the killed store has left."""
    for port in _ports().values():
        for name in (f"*-{port}.sock", f"*-grpc-{port + 10_000}.sock"):
            for path in _SOCKETS.glob(f"seaweedfs-{name}"):
                path.unlink()


def proxy_command(folder: Path) -> list[str]:
    """Return the command of the proxy before this process's store."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, "-m", __name__, str(folder), str(PORT), str(_ports()["s3"])]


def client_settings(address: str) -> dict[str, str]:
    """Return the environment of the store's clients, and of the store, which admits these keys."""
    return settings(PORT) | {"AWS_ENDPOINT_URL": f"http://{address}:{PORT}"}


def set_troubles(folder: Path, troubles: Iterable[str]) -> None:
    """Let the store err, be slow or be full from the next request on."""
    new = folder / f"{_TROUBLES}.new"
    new.write_text(json.dumps(sorted(troubles)))
    new.replace(folder / _TROUBLES)


def last_write(folder: Path) -> float:
    """Return when the store last completed a request that writes, 0 before the first."""
    active = folder / _ACTIVE
    return active.stat().st_mtime if active.exists() else 0.0


class _TroubledHandler(Handler):
    def send_response_only(self, code: int, message: str | None = None) -> None:
        if self.command in ("PUT", "POST", "DELETE") and code < 300:
            (self.server.folder / _ACTIVE).touch()  # type: ignore[attr-defined]
        super().send_response_only(code, message)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the name is the base class's
        """Leave single requests out of the log."""


class TroubledProxy(Proxy):
    """A proxy whose requests fail as the supervisor wishes: each tenth, or all that write."""

    request_queue_size = 256

    def __init__(self, folder: Path, port: int, behind: int) -> None:
        super().__init__(behind, ("0.0.0.0", port), _TroubledHandler)  # within the namespace of the store
        self.folder, self._random = folder, random.Random(0)

    def fails(self, *request: str) -> int | None:
        method, path = request[:2]
        troubles = json.loads((self.folder / _TROUBLES).read_text())
        if "store slow" in troubles:
            time.sleep(_SLOW_SECONDS)
        if "store full" in troubles and (method == "PUT" or (method == "POST" and "delete" not in path)):
            return 507
        if "store errs" in troubles and self._random.random() < _ERROR_SHARE:
            return self._random.choice((503, 500, 0))
        return None


if __name__ == "__main__":
    set_troubles(Path(sys.argv[1]), ())
    TroubledProxy(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).serve_forever()
