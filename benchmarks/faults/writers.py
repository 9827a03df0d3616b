"""Writers at one path: two to eight processes, some of them killed, locally and in an object store.

    python -m benchmarks.faults.writers [--rounds 500] [--remote 200] [--seed 0]

In each round processes write the same path at the same time, with and without ``overwrite``, where something is and where nothing is;
half of them kill themselves at a random step. *Broken*: the path cannot be read afterwards, or a later writer is refused. *Mixed*: it
holds parts of two versions. *False successes*: a writer said that it succeeded, and its version cannot have been there, or nobody did
although one should have. *Lost versions*: what was there before, or what a successful update has added, is gone.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import dfact
from benchmarks.faults.fits import FORKSERVER
from dfact.errors import DfactError, StoreError
from dfact.storage import replacement
from dfact.storage.arrays import write_array
from dfact.storage.files import atomic_file
from dfact.storage.groups import create_group, exists, open_group
from dfact.storage.location import Location, parse_location
from dfact.storage.remote_files import stream_file

FIRST = 99
"""The version that is at the path before a round."""
KILLED = "killed"
LINES = 40
STEPS = {"store": 90, "file": 15, "model": 570}
"""Steps among which a writer draws the one at which it kills itself; a writer of this kind takes about that many."""
REMOTE_STEPS = {"store": 20, "file": 3, "model": 60}
LAST_STEPS = 6
"""Half of the writers that kill themselves do so within so many steps around the one that puts their version in place."""
_OBSERVED = ("open", "os.", "shutil.", "ctypes.dlsym")
_PATIENCE = 600.0  # seconds
_ROWS, _ITEMS = 16, 6


@dataclass(frozen=True)
class Round:
    """What one round does."""

    kind: str
    n_writers: int
    overwrite: bool
    existing: bool
    kills: bool
    seed: int


@dataclass
class Found:
    """What a round has found: what each writer said, and the faults."""

    said: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def fault(self, name: str, note: str) -> None:
        self.faults[name] += 1
        self.notes.append(f"{name}: {note}")


FAULTS = ("broken", "mixed", "false", "lost")


# the contents


def answers(version: int) -> Any:
    """Answers of a batch, with a power of two of rows, so that their sum tells which batches a model has seen."""
    rng = np.random.default_rng(version)
    rows = 4 * _ROWS if version == FIRST else _ROWS << (version - 1)
    return np.clip(np.rint(rng.random((rows, 2)) @ (np.arange(2 * _ITEMS).reshape(2, _ITEMS) % 5) + rng.random((rows, _ITEMS))), 0, 4)


def write(kind: str, path: Location, version: int, *, overwrite: bool) -> None:
    """Write a version, which can be told from the others by any part of it; of a model, add the version's rows."""
    if kind == "store":
        with create_group(path, "dataset", overwrite=overwrite) as group:
            for name in ("a", "b"):
                write_array(group, name, np.full((4, 3), version), ("row", "column"))
    elif kind == "file":
        with atomic_file(path, overwrite=overwrite) as partial, partial.open("w") as stream:
            for number in range(LINES):
                stream.write(f"{version},{number}\n")
                stream.flush()
    elif version == FIRST:
        dfact.save_model(dfact.PCA(2).fit(answers(FIRST)), path)
    else:
        model = dfact.load_model(path)
        model.partial_fit(answers(version))
        dfact.save_model(model, path, overwrite=True)


def read(kind: str, path: Location) -> set[int]:
    """Return the versions at the path: one, or for a model all that have been added. Several of another kind are mixed."""
    if kind == "store":
        group: Any = open_group(path, "dataset")
        return {int(value) for name in ("a", "b") for value in np.unique(group[name][:])}
    if kind == "file":
        lines = (path.read_bytes() if isinstance(path, Path) else b"".join(map(bytes, stream_file(path)[1]))).splitlines()
        if len(lines) != LINES:
            raise StoreError(f"{path} has {len(lines)} lines, expected {LINES}")
        return {int(line.partition(b",")[0]) for line in lines}
    added = dfact.load_model(path).growth_.added_rows // _ROWS
    return {FIRST, *(version for version in range(1, 17) if added >> (version - 1) & 1)}


# a writer


def writer(
    sender: Any,
    start: Any,
    kind: str,
    path: str,
    version: int,
    overwrite: bool,
    kill: tuple[int, bool],
    pauses: list[float],
    environment: dict[str, str],
) -> None:
    """Write a version in a process of its own, which says what came of it, and kills itself at a step."""
    os.environ.update(environment)
    replacement.WAIT_SECONDS = _PATIENCE
    location, said = parse_location(path), ""
    start.wait(_PATIENCE)
    watch(location, *kill, pauses)
    try:
        write(kind, location, version, overwrite=overwrite)
        said = "ok"
    except DfactError as error:
        said = str(error)
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    sender.send(said)


def watch(location: Location, kill_at: int, late: bool, pauses: list[float]) -> None:
    """Count the steps of this process: its calls of the system, or its requests. Pause at each, and kill it at one.

    If it is to be killed ``late``, the steps count from the one that puts its version in place.
    """
    steps, counts = 0, not late

    def step(last: bool) -> None:
        nonlocal steps, counts
        counts |= last
        if counts and steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += counts
        if pause := pauses[steps % len(pauses)]:
            time.sleep(pause)

    if isinstance(location, Path):
        folder, inside = str(location.parent), False

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal inside
            named = event.startswith("ctypes") or any(isinstance(each, (str, os.PathLike)) and folder in str(each) for each in arguments)
            if event.startswith(_OBSERVED) and named and not inside:
                inside = True
                step("renameat2" in arguments or (event in ("os.rename", "os.link") and ".incomplete-" in Path(arguments[0]).name))
                inside = False

        sys.addaudithook(audit)
        return
    import obstore

    def counted(function: Callable[..., Any], *, last: bool) -> Callable[..., Any]:
        def request(*given: Any, **settings: Any) -> Any:
            step(last)
            return function(*given, **settings)

        return request

    for name in ("put", "put_async", "delete", "get", "get_async"):
        setattr(obstore, name, counted(getattr(obstore, name), last=name == "put"))


# a round


def attack(plan: Round, path: Location, environment: dict[str, str] | None = None) -> Found:
    """Let the writers of a round write, and judge what they said and what is at the path."""
    rng = np.random.default_rng(plan.seed)
    if plan.existing:
        write(plan.kind, path, FIRST, overwrite=False)
    limit = (STEPS if isinstance(path, Path) else REMOTE_STEPS)[plan.kind]
    start, running = FORKSERVER.Barrier(plan.n_writers), []
    for version in range(1, plan.n_writers + 1):
        receiver, sender = FORKSERVER.Pipe(duplex=False)
        late = bool(rng.integers(2))
        kill = (int(rng.integers(LAST_STEPS if late else limit)) if plan.kills and rng.random() < 0.5 else -1, late)
        pauses = [float(pause) if rng.random() < 0.3 else 0.0 for pause in rng.uniform(0, 0.004, 16)]
        given = (sender, start, plan.kind, str(path), version, plan.overwrite, kill, pauses, environment or {})
        process = FORKSERVER.Process(target=writer, args=given)
        process.start()
        sender.close()
        running.append((receiver, process))
    found = Found([_answer(receiver) for receiver, _ in running])
    for receiver, process in running:
        process.join()
        receiver.close()
    _judge(plan, path, found)
    return found


def _answer(receiver: Any) -> str:
    try:
        return str(receiver.recv())
    except EOFError:
        return KILLED


def _judge(plan: Round, path: Location, found: Found) -> None:
    successes = {version for version, said in enumerate(found.said, start=1) if said == "ok"}
    killed = {version for version, said in enumerate(found.said, start=1) if said == KILLED}
    for said in found.said:
        if said not in ("ok", KILLED) and not ("another" in said or "exists already" in said or "being written" in said):
            found.fault("false", f"an error that explains nothing: {said}")
    at: set[int] = set()
    try:
        at = read(plan.kind, path)
    except Exception as error:
        if plan.existing or successes or exists(path):
            found.fault("broken", repr(error))
        if plan.existing:
            found.fault("lost", "nothing is left of the first version")
    if plan.kind == "model":
        if lost := ({FIRST} | successes) - at:
            found.fault("lost", f"{lost} not among {at}")
        if not successes and not killed:
            found.fault("false", "no update succeeded")
    else:
        _judge_version(plan, at, successes, killed, found)
    try:
        write(plan.kind, path, 9, overwrite=True)
        if 9 not in read(plan.kind, path):
            found.fault("broken", "a later writer's version is not there")
    except DfactError as error:
        found.fault("broken", f"a later writer is refused: {error}")
    if isinstance(path, Path) and (left := {each.name for each in path.parent.iterdir()} - {path.name}):
        found.fault("broken", f"{left} is left behind")


def _judge_version(plan: Round, at: set[int], successes: set[int], killed: set[int], found: Found) -> None:
    if len(at) > 1:
        found.fault("mixed", str(at))
        return
    replaceable = plan.overwrite or not plan.existing
    permitted = (successes or killed | ({FIRST} if plan.existing else set())) | (killed if plan.overwrite else set())
    if at and not replaceable and at != {FIRST}:
        found.fault("lost", f"{at} is in place of the first version, which was not to be replaced")
    elif at and replaceable and not at <= permitted:
        found.fault("false", f"{at} is at the path, {successes} said that they had succeeded")
    if not plan.overwrite and len(successes) > (0 if plan.existing else 1):
        found.fault("false", f"{successes} succeeded without overwriting")
    if replaceable and not successes and not (at & killed) and len(killed) < plan.n_writers:
        found.fault("false", "nobody has succeeded")


def rounds(n: int, seed: int) -> Iterator[Round]:
    """Draw the rounds: each kind with two, three and eight writers, with and without ``overwrite``."""
    rng = np.random.default_rng(seed)
    for number in range(n):
        kind = ("store", "file", "store", "file", "model")[number % 5]
        overwrite = bool(rng.integers(2)) or kind == "model"
        existing = bool(rng.integers(2)) or kind == "model"
        yield Round(kind, int(rng.choice([2, 3, 8])), overwrite, existing, bool(rng.integers(4)), int(rng.integers(1 << 31)))


# the table


@contextmanager
def local_place() -> Iterator[tuple[Callable[[int], Location], dict[str, str]]]:
    """Yield a function that names a new path, and the environment of the writers."""
    with tempfile.TemporaryDirectory() as folder:

        def place(number: int) -> Location:
            new = Path(folder) / str(number)
            new.mkdir()
            return new / "x"

        yield place, {}


@contextmanager
def remote_place() -> Iterator[tuple[Callable[[int], Location], dict[str, str]]]:
    """Yield a function that names a new URL, and the environment of the writers."""
    from benchmarks.faults.storage import object_store  # imports what a writer, which imports this module, does not need
    from tests.object_store.test_object_store import settings

    with object_store() as proxy, mock.patch.dict(os.environ, settings(proxy.behind)):
        yield lambda number: f"s3://faults/{number}/x", settings(proxy.behind)


def main() -> int:
    """Run the rounds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="rounds on the local disk")
    parser.add_argument("--remote", type=int, default=200, help="rounds in an object store")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'where':8}{'writers':>8}{'rounds':>8}{'killed':>8}{'ok':>6}{'broken':>8}{'mixed':>8}{'false':>8}{'lost':>8}")
    faults = 0
    for where, n, places in (("local", options.rounds, local_place), ("S3", options.remote, remote_place)):
        total: dict[int, Counter[str]] = {}
        with places() if n else nullcontext((None, {})) as (place, environment):  # type: ignore[attr-defined]  # a function or nothing
            for number, plan in enumerate(rounds(n, options.seed)):
                assert place is not None
                path = place(number)
                found = attack(plan, path, environment)
                counts = total.setdefault(plan.n_writers, Counter())
                counts += Counter(rounds=1, ok=found.said.count("ok"), killed=found.said.count(KILLED)) + found.faults
                total[plan.n_writers] = counts
                for note in found.notes:
                    print(f"  {plan}: {note}; said: {found.said}", file=sys.stderr, flush=True)
                if isinstance(path, Path):
                    shutil.rmtree(path.parent)
        for n_writers, counts in sorted(total.items()):
            shown = "".join(
                f"{counts[name]:{width}}" for name, width in (("rounds", 8), ("killed", 8), ("ok", 6), *((f, 8) for f in FAULTS))
            )
            print(f"{where:8}{n_writers:8}{shown}", flush=True)
            faults += sum(counts[name] for name in FAULTS)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
