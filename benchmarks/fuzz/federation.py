"""Hostile messages between sites and a coordinator: each is refused with a FederationError, or answered as it should be.

    python -m benchmarks.fuzz.federation [--count 5000] [--seed 0] [--one NUMBER]

A good run of two sites is recorded. Then it is replayed with a mutated message: half of the times of a site, to a coordinator that
carries out the run, and half of the times of the coordinator, to a site that carries it out. Mutations are those of bytes, of the JSON
of the header, and of types, shapes and values of the arrays. Every tenth time the same coordinator, or the same site, must carry out the
good run afterwards. Each input has limits of time and of address space.
"""

import argparse
import faulthandler
import json
import random
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

import dfact
from benchmarks.common import exit_code, report
from benchmarks.fuzz.models import walk
from benchmarks.fuzz.mutations import as_json, mutate_bytes, mutate_json
from dfact.data.coerce import as_dataset
from dfact.engine.executors import InlineExecutor
from dfact.errors import DfactError, FederationError
from dfact.sites import coordinator
from dfact.sites.coordinator import Hub, Run
from dfact.sites.in_process import MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site
from dfact.sites.tasks import Task

SECONDS, ADDRESS_SPACE = 20.0, 1 << 31  # limits for an input: elapsed time; bytes beyond those of the process
WAIT = 0.5  # seconds until the coordinator gives a silent site up
NAMES = ("north", "south")


@dataclass
class Recording:
    """The messages of a good run: what each site has sent, and what it was answered."""

    task: Task
    data: dict[str, Any]
    sent: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    answers: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    components: Any = None

    @classmethod
    def of(cls, task: Task) -> "Recording":
        rng = np.random.default_rng(0)
        found = cls(task, {name: as_dataset(rng.integers(0, 4, (60, 6)).astype(np.uint8)) for name in NAMES})

        class Recorded(MemoryConnection):
            def call(self, message: Message) -> Message:
                answer = super().call(message)
                if message.fields["kind"] == "alive":  # how many there are depends on the clock
                    return answer
                found.sent[self.name].append(message.encode())
                found.answers[self.name].append(answer.encode())
                return answer

        hub = Hub(NAMES, wait=60, contract=None)
        threads = [threading.Thread(target=serve, args=(found.site(name, Recorded(hub, name)),)) for name in NAMES]
        for thread in threads:
            thread.start()
        found.components = result_of(Run(hub).carry_out(task))
        hub.close()
        for thread in threads:
            thread.join()
        return found

    def site(self, name: str, connection: Any) -> Site:
        return Site(
            name,
            self.data[name],
            connection,
            policy=Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9),
            executor=InlineExecutor(),
        )


def serve(site: Site) -> None:
    """Join, and carry out one run."""
    site.join()
    run = site.next_task()
    assert run is not None
    site.carry_out(run)


def result_of(result: Any) -> Any:
    return np.asarray(result.components_) if hasattr(result, "components_") else result.items.to_numpy()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a message with a few changes: of its bytes, its header or its arrays."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    message = Message.decode(data)
    arrays, fields = [np.array(array) for array in message.arrays], json.loads(json.dumps(message.fields))
    described: Any = None
    for _ in range(rng.randint(1, 2)):
        match rng.randrange(6):
            case 0 | 1 if arrays:
                number = rng.randrange(len(arrays))
                arrays[number] = mutated_array(arrays[number], rng)
            case 2 if arrays:
                match rng.randrange(3):
                    case 0:
                        arrays.append(rng.choice(arrays))
                    case 1:
                        arrays.pop(rng.randrange(len(arrays)))
                    case _:
                        rng.shuffle(arrays)
            case 3 if arrays:
                described = mutate_json([[array.dtype.str, list(array.shape)] for array in arrays], rng)
            case _:
                parent, key = rng.choice([(None, None), *(walk(fields) if isinstance(fields, (dict, list)) else ())])
                if parent is None:
                    fields = mutate_json(fields, rng)
                else:
                    parent[key] = mutate_json(parent[key], rng)
    if described is None:
        described = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = as_json({"fields": fields, "arrays": described}, rng).encode("utf-8", "surrogatepass")
    return b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)])


def chosen(messages: list[bytes], described: int, rng: random.Random) -> int:
    """Return the number of a message: half of the times of the one with the description of the data."""
    return described if rng.random() < 0.5 else rng.randrange(len(messages))


def mutated_array(array: Any, rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0:
            return array.astype(rng.choice(["<f4", "<f8", "|i1", "<i8", "|u1", "|b1"]))
        case 1:
            return array.reshape(-1)[: rng.choice([0, 1, max(0, array.size - 1)])]
        case 2:
            return array[..., None] if rng.random() < 0.5 else array.T
        case 3:
            return np.zeros(rng.choice([(0,), (1 << 20,), (1, 0, 5)]))
        case _:
            changed = array.astype(np.float64).reshape(-1)
            if changed.size:
                changed[rng.randrange(changed.size)] = rng.choice([float("nan"), float("inf"), -1.0, 0.0, 1e300, -1e300, 1e9])
            with np.errstate(invalid="ignore", over="ignore"):
                return changed.reshape(array.shape).astype(array.dtype)


Change = Callable[[bytes], bytes]


def to_coordinator(recording: Recording, hub: Hub, number: int, change: Change) -> Any:
    """Replay what the sites sent to a coordinator, which carries out the task; message ``number`` of the first site is changed."""
    recorded = next(Message.decode(data).fields["run"] for data in recording.sent["north"] if b'"step"' in data)
    unexpected: list[BaseException] = []
    before, ended = hub._run, threading.Event()

    def replay(name: str) -> None:
        try:
            for position, data in enumerate(recording.sent[name]):
                own = data.replace(recorded.encode(), hub._run.encode()) if hub._run else data
                changed = change(own) if name == "north" and position == number else own
                hub.answer(name, Message.decode(changed))
                while b'"task"' in data and (hub._offer is None or hub._run == before) and not ended.wait(0.002):
                    pass
        except FederationError as error:
            for kind in ("refused", "failed"):
                hub.answer(name, Message({"kind": kind, "run": hub._run, "text": str(error)}))
        except BaseException as error:
            unexpected.append(error)

    threads = [threading.Thread(target=replay, args=(name,), daemon=True) for name in NAMES]
    for thread in threads:
        thread.start()
    try:
        return result_of(Run(hub).carry_out(recording.task))
    finally:
        ended.set()
        if hub.exchange is not None:
            hub.exchange.fail("the run has ended")
        for thread in threads:
            thread.join(SECONDS)
        if unexpected:
            raise unexpected[0]


class Answers:
    """A coordinator that gives recorded answers, of which one may be changed."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers, self.number, self.change, self.position = answers, -1, bytes, 0

    def start(self, number: int, change: Change) -> None:
        self.number, self.change, self.position = number, change, 0  # type: ignore[assignment]

    def call(self, message: Message) -> Message:
        message.encode()
        if message.fields["kind"] in ("failed", "refused", "alive"):
            return Message({"kind": message.fields["kind"]})
        position = self.position
        self.position += 1
        if position >= len(self.answers):
            raise FederationError("the coordinator has gone")
        data = self.answers[position]
        return Message.decode(self.change(data) if position == self.number else data)


class Bench:
    """A recorded run of each kind, with a coordinator and a site that live as long as they can."""

    def __init__(self) -> None:
        coordinator._POLL = 0.0
        tasks = (Task.of("fit", dfact.ICQF(2, max_iter=3, random_state=0)), Task.of("describe", None))
        self.recordings = [Recording.of(task) for task in tasks]

    def try_one(self, seed: int, number: int) -> tuple[str, str]:
        """Return the verdict (right, refused or failed) and its message."""
        rng = random.Random(f"{seed}/federation/{number}")
        recording = rng.choice(self.recordings)
        trial = self._coordinator if rng.random() < 0.5 else self._site
        begin = time.monotonic()
        try:
            verdict, message = trial(recording, rng, again=number % 10 == 0)
        except BaseException:
            return "failed", traceback.format_exc()
        seconds = time.monotonic() - begin
        return (verdict, message) if seconds < SECONDS else ("failed", f"no end after {seconds:.0f} s: {message}")

    def _coordinator(self, recording: Recording, rng: random.Random, *, again: bool) -> tuple[str, str]:
        hub = Hub(NAMES, wait=WAIT, contract=None)
        try:
            to_coordinator(recording, hub, chosen(recording.sent["north"], 0, rng), lambda data: mutated(data, rng))
            verdict = "right", ""
        except DfactError as error:
            verdict = "refused", f"{type(error).__name__}: {error}"
        if again:
            hub.wait = 10
            hub._refusals.clear()
            try:
                np.testing.assert_array_equal(to_coordinator(recording, hub, -1, bytes), recording.components)
            except FederationError as error:
                if "had other data" not in str(error):  # the changed description was valid
                    raise
        hub.close()
        return verdict

    def _site(self, recording: Recording, rng: random.Random, *, again: bool) -> tuple[str, str]:
        connection = Answers(recording.answers["north"])
        site = recording.site("north", connection)
        connection.start(chosen(connection.answers, 1, rng), lambda data: mutated(data, rng))
        try:
            serve(site)
            verdict = "right", ""
        except AssertionError:
            verdict = "right", "the coordinator has ended"
        except DfactError as error:
            verdict = "refused", f"{type(error).__name__}: {error}"
        if again:
            connection.start(-1, bytes)
            serve(site)
        return verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, metavar="NUMBER", help="try this input alone, and print the verdict")
    arguments = parser.parse_args()
    bench = Bench()
    if arguments.one is not None:
        print(*bench.try_one(arguments.seed, arguments.one))
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ADDRESS_SPACE, resource.RLIM_INFINITY))
    counts: Counter[str] = Counter()
    for number in range(arguments.count):
        faulthandler.dump_traceback_later(10 * SECONDS, exit=True)
        verdict, message = bench.try_one(arguments.seed, number)
        counts[verdict] += 1
        if verdict == "failed":
            print(f"--seed {arguments.seed} --one {number}: {message}", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()
    thresholds = [(f"of {arguments.count} messages none fails: each is answered or refused with a message", counts["failed"] == 0)]
    report("fuzz federation", [{name: counts[name] for name in ("right", "refused", "failed")}], thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
