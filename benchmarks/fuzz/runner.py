"""Trial of mutated inputs in worker processes, with limits of time and address space."""

import contextlib
import gc
import random
import resource
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

import dfact
from benchmarks.faults.fits import FORKSERVER
from benchmarks.fuzz.arrays import ARRAY_TARGETS
from benchmarks.fuzz.checkpoints import CHECKPOINT_TARGETS
from benchmarks.fuzz.commands import COMMAND_TARGETS
from benchmarks.fuzz.datasets import dataset_target, join_target
from benchmarks.fuzz.dictionaries import DICTIONARY_TARGETS
from benchmarks.fuzz.genotypes import GENOTYPE_TARGETS
from benchmarks.fuzz.jobs import JOB_TARGETS
from benchmarks.fuzz.models import FORGED, forged_target, model_target
from benchmarks.fuzz.statistical import DESCRIBED_TARGETS
from benchmarks.fuzz.tables import TABLE_TARGETS
from benchmarks.fuzz.target import Target

SECONDS, ADDRESS_SPACE = 60.0, 1 << 30  # limits for an input: processor time; bytes beyond those of the process
WAITING = 10 * SECONDS  # limit of elapsed time, for an input that waits forever; a busy machine stays below it

TARGETS: dict[str, Target] = {
    **TABLE_TARGETS,
    **DESCRIBED_TARGETS,
    **DICTIONARY_TARGETS,
    **ARRAY_TARGETS,
    **GENOTYPE_TARGETS,
    "join": join_target(),
    **{f"{kind} dataset": dataset_target(kind) for kind in ("dense", "sparse", "tensor")},
    **{f"{kind} model": model_target(kind) for kind in ("dense", "sparse", "tensor")},
    **CHECKPOINT_TARGETS,
    **COMMAND_TARGETS,
    **JOB_TARGETS,
    **{f"forged {name}": forged_target(name) for name in FORGED},
}


class Bench:
    """Unchanged inputs, and a folder in which copies of them are mutated and read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        tempfile.tempdir = str(self._fresh("tmp"))

    def _fresh(self, name: str) -> Path:
        folder = self._root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def good(self, name: str) -> Path:
        """Return the folder of the unchanged input, which has been read once without an error."""
        folder = self._root / "good" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            TARGETS[name].make(folder)
            TARGETS[name].read(folder, self._fresh("out"), False)
        return folder

    def try_one(self, name: str, seed: int, number: int) -> tuple[str, str]:
        """Return the verdict (right, refused or failed) and its message."""
        target, rng = TARGETS[name], random.Random(f"{seed}/{name}/{number}")
        good, folder, out = self.good(name), self._root / "input", self._fresh("out")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        same = target.mutate(folder, rng)
        before = sorted(folder.iterdir())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verdict, message = _outcome(lambda: target.read(folder, out, same))
        numeric = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
        left = [path.name for path in out.iterdir() if verdict == "refused" or path.name not in ("d.zarr", "j.zarr")]
        left += self._temporary()
        left += [path.name for path in folder.iterdir() if path not in before]
        if verdict != "failed" and (left or numeric or len(caught) > 5):
            return "failed", f"left {left}" if left else f"warns: {(numeric or caught)[0]}"
        return verdict, message

    def _temporary(self) -> list[str]:
        """Return the files left in TMPDIR, and remove them before the next input."""
        folder = self._root / "tmp"
        if any(folder.iterdir()):
            gc.collect()  # the factors of a fitted model are removed with the model
        left = [path.name for path in folder.iterdir()]
        self._fresh("tmp")
        return left


def _outcome(read: Callable[[], None]) -> tuple[str, str]:
    try:
        read()
    except dfact.DfactError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:
        return "failed", traceback.format_exc()
    return "right", ""


def work(connection: Connection, root: str) -> None:
    """Try inputs in a worker process until the pipe is closed."""
    bench = Bench(Path(root))
    allowed: set[str] = set()
    with contextlib.suppress(EOFError):
        while True:
            name, seed, number = connection.recv()
            if name not in allowed:  # imports and compilation do not count towards the limits
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                bench.good(name)
                allowed.add(name)
                resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ADDRESS_SPACE, resource.RLIM_INFINITY))
            connection.send(None)  # the time limit starts
            connection.send(bench.try_one(name, seed, number))


class Worker:
    """A process that tries inputs; it is replaced if it dies or exceeds the time limit."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.connection, theirs = FORKSERVER.Pipe()
        self._root = tempfile.mkdtemp(prefix="fuzz-")
        self._process = FORKSERVER.Process(target=work, args=(theirs, self._root), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, job: tuple[str, int, int]) -> None:
        self.job, self.began = job, float("inf")
        self.connection.send(job)

    def answer(self) -> tuple[str, str] | None:
        """Return the verdict and its message; None while the input is still being tried."""
        try:
            while self.connection.poll():
                found: tuple[str, str] | None = self.connection.recv()
                if found is not None:
                    return found
                self.began, self._used = time.monotonic(), self._processor_time()
        except EOFError:
            self._process.join()
            return self._restart(f"the process died with exit code {self._process.exitcode}")
        elapsed = time.monotonic() - self.began
        if elapsed > SECONDS and self._processor_time() - self._used > SECONDS:  # it cannot use more than elapses
            return self._restart(f"no end after {SECONDS:g} s of processor time")
        return self._restart(f"no end after {WAITING:g} s") if elapsed > WAITING else None

    def _processor_time(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)

    def _restart(self, why: str) -> tuple[str, str]:
        self.close()
        self._start()
        return "failed", why

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
        shutil.rmtree(self._root, ignore_errors=True)


def run(jobs: Iterable[tuple[str, int, int]], workers: list[Worker]) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    """Yield the job (target, seed, number), its verdict and message, as jobs finish."""
    pending = iter(jobs)
    busy: list[Worker] = []

    def next_for(worker: Worker) -> None:
        job = next(pending, None)
        if job is not None:
            worker.give(job)
            busy.append(worker)

    for worker in workers:
        next_for(worker)
    while busy:
        wait([worker.connection for worker in busy], timeout=0.5)
        for worker in list(busy):
            found = worker.answer()
            if found is not None:
                busy.remove(worker)
                yield worker.job, *found
                next_for(worker)
