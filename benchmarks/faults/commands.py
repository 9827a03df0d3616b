"""Commands with a checkpoint that faults hit: repeatable, on data on disk, in their own processes."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import Any

import dask

import dfact
from benchmarks.faults.fits import FORKSERVER, PATIENCE, answers, bits, differing, log_to, long_fit, slow, small_partitions


class Command:
    """``dfact …`` in its own process, with small partitions; its output and temporary files go to the folder.

    With ``last_words`` it is killed as soon as it has printed them.
    """

    def __init__(
        self, folder: Path, *arguments: str | Path, pause: float = 0, settings: dict[str, Any] | None = None, last_words: str = ""
    ) -> None:
        self._log = folder / "command.log"
        self._log.unlink(missing_ok=True)
        own = folder / "tmp"
        own.mkdir(exist_ok=True)
        given = [str(argument) for argument in arguments]
        self._process = FORKSERVER.Process(target=_command, args=(str(self._log), str(own), given, pause, settings or {}, last_words))
        self._process.start()

    def send(self, number: signal.Signals) -> None:
        """Send a signal unless the command has ended."""
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Return the exit code, None before the end; negative for the signal that killed it."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise TimeoutError(f"not within {seconds} s: {self.said}")
        return self._process.exitcode

    def reached(self, checkpoint: Path, steps: int) -> None:
        """Wait until the checkpoint has a version of this number of steps, or the command has ended."""
        self.wait(lambda: reached_by(checkpoint) >= steps)

    def says(self, words: str) -> None:
        """Wait until the command has printed this text, or has ended."""
        self.wait(lambda: words in self.said)

    def wait(self, there: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until the condition holds, or the command has ended."""
        until = time.monotonic() + seconds
        while not there() and self._process.is_alive():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds} s: {self.said}")
            time.sleep(0.005)

    @property
    def alive(self) -> bool:
        return bool(self._process.is_alive())

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


def reached_by(checkpoint: Path) -> int:
    """Return the number of steps in a checkpoint that may be written concurrently, or of finished fits of a selection."""
    names = [path.name for path in checkpoint.glob("*")]
    return max(
        (int(name.split("-")[1]) for name in names if name.startswith("state-")), default=sum(name.startswith("result-") for name in names)
    )


class Stored(ABC):
    """A repeatable command with a checkpoint on data on disk, and the model of an undisturbed run."""

    def __init__(self, folder: Path, pause: float, *options: str) -> None:
        self.data, self.model, self.checkpoint = folder / "data.zarr", folder / "found.model", folder / "checkpoint.zarr"
        self._folder, self._pause, self._options = folder, pause, options
        dfact.import_array(answers(4), self.data)
        dfact.save_model(self._found(), folder / "undisturbed.model")
        self._expected = bits(dfact.load_model(folder / "undisturbed.model"))
        self._prepare()

    @abstractmethod
    def _found(self) -> Any:
        """Return the expected result of the command."""

    @abstractmethod
    def _arguments(self) -> list[str | Path]: ...

    def _prepare(self) -> None:
        """Restore the state before the command."""
        for store in (self.model, self.checkpoint):
            shutil.rmtree(store, ignore_errors=True)

    def run(self, settings: dict[str, Any] | None = None) -> Command:
        """Start the command, which is the same each time."""
        arguments = [*self._arguments(), "--checkpoint", self.checkpoint, *self._options]
        return Command(self._folder, *arguments, pause=self._pause, settings=settings)

    def undisturbed(self) -> float:
        """Return the seconds of an undisturbed command that is called this number of times."""
        began = time.monotonic()
        command = self.run()
        if command.ended() != 0:
            raise RuntimeError(command.said)
        seconds = time.monotonic() - began
        self._prepare()
        return seconds

    def lost(self) -> int:
        """Return the number of bytes in which the model differs from the undisturbed one, plus those of leftover files."""
        ours = {"data.zarr", "found.model", "undisturbed.model", "command.log", "tmp"}
        left = [path for path in self._folder.iterdir() if path.name not in ours] + list((self._folder / "tmp").iterdir())
        different, size = differing(bits(dfact.load_model(self.model)), self._expected), size_of(left)
        if different or left:
            print(f"{different} bytes of the model differ, {size} bytes are left in {[str(path) for path in left]}")
        return different + size


class StoredFit(Stored):
    """``dfact fit icqf``."""

    def _found(self) -> Any:
        return long_fit(executor="inline").fit(self.data)

    def _arguments(self) -> list[str | Path]:
        fit = ["fit", "icqf", self.data, self.model, "-k", "3", "--max-iter", str(long_fit().max_iter), "--tol", "0"]
        return [*fit, "--checkpoint-every", "4", "--overwrite"]  # the model of a command that was killed after writing it


class StoredAdmixture(Stored):
    """``dfact fit admixture``, whose frequencies lie with the tiles of columns."""

    _MAX_ITER = 20

    def _found(self) -> Any:
        return dfact.Admixture(3, ploidy=3, max_iter=self._MAX_ITER, tol=0, executor="inline").fit(self.data)

    def _arguments(self) -> list[str | Path]:
        fit = ["fit", "admixture", self.data, self.model, "-k", "3", "--ploidy", "3", "--max-iter", str(self._MAX_ITER), "--tol", "0"]
        return [*fit, "--checkpoint-every", "4", "--overwrite"]


class StoredBootstrap(Stored):
    """``dfact stability`` of a model without stability; its checkpoint is not deleted."""

    RESAMPLES = 12

    def _found(self) -> Any:
        self._before = long_fit(executor="inline").fit(self.data)
        found = copy(self._before)
        found.stability_ = dfact.selection.bootstrap(found, self.data, self.RESAMPLES, warm_start=False, random_state=0)
        return found

    def _arguments(self) -> list[str | Path]:
        return ["stability", self.model, self.data, "--resamples", str(self.RESAMPLES), "--cold-start", "--seed", "0"]

    def _prepare(self) -> None:
        super()._prepare()
        dfact.save_model(self._before, self.model)

    def lost(self) -> int:
        whole = reached_by(self.checkpoint) == self.RESAMPLES
        shutil.rmtree(self.checkpoint)
        return super().lost() + (not whole)


def size_of(stores: Iterable[Path]) -> int:
    """Return the bytes of files and folders; an empty one counts as one."""
    return sum(max(1, sum(file.lstat().st_size for file in [store, *store.rglob("*")] if file.is_file())) for store in stores)


def _command(log: str, folder: str, arguments: list[str], pause: float, settings: dict[str, Any], last_words: str) -> None:
    from dfact.cli.main import main

    log_to(Path(log))
    if last_words:
        _die_at(last_words)
    tempfile.tempdir = folder
    slow(pause)
    try:
        with small_partitions(), dask.config.set(settings):
            code = main(arguments)
    finally:
        atexit._run_exitfuncs()  # multiprocessing skips them: the temporary folder of a model in a reference cycle would remain
    sys.stdout.flush()
    sys.exit(code)


def _die_at(words: str) -> None:
    """Kill this process as soon as it has printed these words to its errors."""
    write = sys.stderr.write

    def last(text: str) -> int:
        written = write(text)
        if words in text:
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    sys.stderr.write = last  # type: ignore[method-assign]
