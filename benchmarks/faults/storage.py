"""Storage faults: damaged chunks, disks that are full or become read-only, an object store with transient errors."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import dfact
from benchmarks.common import listens, wait_until
from benchmarks.faults.commands import size_of
from benchmarks.faults.fits import answers, bits, differing, long_fit
from dfact.engine.executors import LocalSession
from dfact.engine.memory_plan import Plan, WorkerResources, local_workers
from dfact.engine.partitions import Partitions
from dfact.errors import StoreError
from tests.conftest import free_port
from tests.object_store.test_object_store import S3_SERVER, Proxy, send, settings
from tests.servers import serving

Random = np.random.Generator
_ROOM = {"little": "size=1m", "enough": "remount,size=64m", "read-only": "remount,ro", "writable": "remount,rw"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault."""

    survived: bool
    lost_bytes: int
    lost_seconds: float


class OnDisk:
    """An executor of one thread that reads its values from disk in every pass."""

    def workers(self, memory_limit: Any) -> WorkerResources:
        return local_workers("inline", 1, memory_limit)

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
        return LocalSession(partitions, replace(plan, resident_values=0), 1)


def resumed(
    data: Path, checkpoint: Path, strike: Callable[[], Any], mend: Callable[[], Any], rng: Random, said: str, **settings: Any
) -> Outcome:
    """Hit a fit after a random iteration; it must end with these words, and resume after the repair."""
    fit = partial(long_fit, executor=OnDisk(), **settings)
    fit().fit(data)
    began = time.monotonic()
    expected = bits(fit().fit(data))
    undisturbed = time.monotonic() - began
    kept, at = {"checkpoint": checkpoint, "checkpoint_every": 3}, int(rng.integers(1, 15))
    began, reported = time.monotonic(), False
    try:
        fit(**kept, callbacks=[lambda done: strike() if done.number == at else None]).fit(data)
    except StoreError as error:
        reported = said in str(error)
    mend()
    found = bits(fit(**kept).fit(data))
    return Outcome(reported, differing(found, expected), time.monotonic() - began - undisturbed)


def lose(chunk: Path) -> None:
    chunk.unlink()


def truncate(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2])


def flip(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 16
    chunk.write_bytes(content)


def damaged_chunk(damage: Callable[[Path], None], tries: int, rng: Random) -> list[Outcome]:
    """Damage a chunk of the data and restore it later."""
    outcomes = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.zarr"
            dfact.import_array(answers(0), data)
            chunks = [path for path in sorted((data / "values" / "c").rglob("*")) if path.is_file()]
            chunk = chunks[rng.integers(len(chunks))]
            whole = chunk.read_bytes()
            said = "its chunk values/c/" if damage is lose else "the store is damaged"
            strike, mend = partial(damage, chunk), partial(chunk.write_bytes, whole)
            outcomes.append(resumed(data, Path(folder) / "checkpoint.zarr", strike, mend, rng, said))
    return outcomes


def damaged_checkpoint(damage: Callable[[Path], None], tries: int, rng: Random) -> list[Outcome]:
    """Damage a chunk of a checkpoint, which must be refused, and delete the checkpoint later."""
    outcomes = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, X = Path(folder) / "checkpoint.zarr", answers(0)
            began = time.monotonic()
            expected = bits(long_fit(checkpoint=checkpoint).fit(X))
            undisturbed = time.monotonic() - began
            chunks = [path for path in sorted(checkpoint.glob("*/*/*")) if path.is_file()]
            damage(chunks[rng.integers(len(chunks))])
            began, reported = time.monotonic(), False
            try:
                long_fit(checkpoint=checkpoint).fit(X)
            except StoreError as error:
                reported = "is missing or damaged" in str(error)
            shutil.rmtree(checkpoint)
            found = bits(long_fit(checkpoint=checkpoint).fit(X))
            outcomes.append(Outcome(reported, differing(found, expected), time.monotonic() - began - undisturbed))
    return outcomes


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a disk of 1 MiB."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", _ROOM["little"], "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def troubled_disk(strike: str, mend: str, said: str, tries: int, rng: Random) -> list[Outcome]:
    """Make the disk of the checkpoint fail from a random iteration on, and restore it later."""
    outcomes = []
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder, small_disk() as disk:
            data, checkpoint, filling = Path(folder) / "data.zarr", disk / "checkpoint.zarr", disk / "filling"
            dfact.import_array(answers(0), data)

            def change(how: str, disk: Path = disk, filling: Path = filling) -> None:
                if how == "little":
                    room = os.statvfs(disk)
                    filling.write_bytes(bytes(room.f_bavail * room.f_frsize))
                else:
                    subprocess.run(["mount", "-o", _ROOM[how], disk], check=True)

            outcome = resumed(data, checkpoint, partial(change, strike), partial(change, mend), rng, said)
            filling.unlink(missing_ok=True)
            left = size_of(path for path in disk.iterdir() if path != checkpoint)
            outcomes.append(replace(outcome, lost_bytes=outcome.lost_bytes + left))
    return outcomes


@contextmanager
def object_store() -> Iterator[Any]:
    """Start an S3-compatible server in its own process, behind the tests' proxy that injects errors."""
    port = free_port()
    command = [sys.executable, "-P", S3_SERVER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: listens(port), "the object store listens", 200)
            with serving(Proxy(port)) as proxy, mock.patch.dict(os.environ, settings(proxy.server_address[1])):
                send(port, "PUT", "/faults")
                yield proxy
        finally:
            server.kill()


def erring_object_store(tries: int, rng: Random) -> list[Outcome]:
    """Fit with data and checkpoint in an object store in which every few requests fail; it must complete without an error."""
    outcomes = []
    with object_store() as proxy:
        dfact.import_array(answers(0), "s3://faults/data.zarr")
        fit = partial(long_fit, executor=OnDisk(), checkpoint_every=3)
        expected = bits(fit().fit("s3://faults/data.zarr"))
        for number in range(tries):
            proxy.every, seconds = 0, []
            for errs in (False, True):
                proxy.every = int(rng.integers(8, 20)) if errs else 0
                before, began = proxy.failed, time.monotonic()
                found = bits(fit(checkpoint=f"s3://faults/{number}-{errs}.zarr").fit("s3://faults/data.zarr"))
                seconds.append(time.monotonic() - began)
            proxy.every = 0
            outcomes.append(Outcome(proxy.failed > before, differing(found, expected), seconds[1] - seconds[0]))
    return outcomes


FAULTS: dict[str, Callable[[int, Random], list[Outcome]]] = {
    **{
        f"chunk of the data {name}, resumed": partial(damaged_chunk, f)
        for name, f in (("lost", lose), ("cut", truncate), ("flipped", flip))
    },
    **{
        f"chunk of the checkpoint {name}, started over": partial(damaged_checkpoint, damage)
        for name, damage in (("lost", lose), ("cut", truncate), ("flipped", flip))
    },
    "disk full, resumed": partial(troubled_disk, "little", "enough", "the disk is full"),
    "store read-only, resumed": partial(troubled_disk, "read-only", "writable", "Read-only file system"),
    "object store errs now and then": erring_object_store,
}


def prevented(name: str) -> str:
    """Return the reason why a fault cannot be tried on this machine; empty if it can."""
    if name.startswith(("disk", "store")):
        if os.geteuid() != 0:
            return "to mount a disk needs root"
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True, text=True)
            if done.returncode:
                return f"no disk can be mounted here: {done.stderr.strip()}"
            subprocess.run(["umount", folder], check=True)
    if name.startswith("object") and not all(importlib.util.find_spec(package) for package in ("moto", "obstore")):
        return "moto or obstore is not installed: pip install 'dfact[test]'"
    return ""
