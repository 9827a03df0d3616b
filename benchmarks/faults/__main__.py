"""Fault injection: faults tried and survived, and their cost.

    python -m benchmarks.faults [--tries 5] [--seed 0] [word]

Each row is a fault that hits fits at random times, several times; with a word, only faults whose name contains it.
*Survived*: the fit continued by itself, or ended with an error message and, once the cause was removed, the same call
resumed and completed. *Equal*: the model is bit-identical to the undisturbed fit. *Seconds lost*: the median
against the undisturbed fit in the same run, including the restart. *Bytes lost*: the bytes in which the models differ,
and those of incomplete or useless files.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any

import numpy as np
from distributed import Client

from benchmarks.common import exit_code, report
from benchmarks.faults import cluster_of_hosts, network_faults, storage
from benchmarks.faults.commands import Stored, StoredAdmixture, StoredBootstrap, StoredFit, reached_by
from benchmarks.faults.fits import (
    PATIENCE,
    SELECTIONS,
    SOLVERS,
    Processes,
    Solver,
    Strike,
    answers,
    bits,
    differing,
    joined,
    long_fit,
    small_partitions,
)
from benchmarks.faults.namespaces import available
from benchmarks.faults.storage import Outcome

PAUSE = 0.02  # minimum seconds that a partition takes in a pass
Random = np.random.Generator
Fault = Callable[[int, Random], list[Outcome]]
"""As many outcomes as there are tries."""
Fit = Callable[..., Any]
"""A fit or a selection, of an executor, callbacks and where a checkpoint is, if it keeps one."""


@contextmanager
def cluster(settings: dict[str, Any] | None = None) -> Iterator[tuple[Processes, Client]]:
    """Yield a client of two slow workers."""
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder), settings, PAUSE) as processes:
        processes.start(2)
        with Client(processes.address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE)
            yield processes, client


def timed(run: Callable[[], Any]) -> tuple[dict[str, bytes], float]:
    began = time.monotonic()
    found = run()
    return bits(found), time.monotonic() - began


def on_a_cluster(
    fit: Fit, last: int, act: Callable[[Processes, Random], None], tries: int, rng: Random, settings: dict[str, Any] | None = None
) -> list[Outcome]:
    """Hit a part of the cluster up to a certain iteration; every second fit has a checkpoint."""
    outcomes = []
    expected = bits(fit("inline"))
    with tempfile.TemporaryDirectory() as folder, cluster(settings) as (processes, client):
        fit(client)  # kernels are compiled
        undisturbed = statistics.median(timed(lambda: fit(client))[1] for _ in range(3))
        for number in range(tries):
            processes.start(2)
            client.wait_for_workers(2, timeout=PATIENCE)
            strike = Strike(int(rng.integers(1, last + 1)), rng.uniform(0, 3 * PAUSE), partial(act, processes, rng))
            checkpoint = Path(folder) / f"{number}.zarr" if number % 2 else None
            strikes = [strike, joined(client, 3, last + 1)] if act is start_one else [strike]
            found, seconds = timed(partial(fit, client, strikes, checkpoint))
            outcomes.append(Outcome(strike.done(), differing(found, expected), seconds - undisturbed))
            processes.kill(*processes.workers[2:], *processes.stopped)
    return outcomes


def solved(solver: Solver) -> Fit:
    X = solver.data(0)

    def fit(executor: Any, callbacks: Any = (), checkpoint: Path | None = None) -> Any:
        return solver.make(executor=executor, callbacks=callbacks, checkpoint=checkpoint, checkpoint_every=3).fit(X)

    return fit


def selected(run: Callable[..., Any]) -> Fit:
    def select(executor: Any, callbacks: Any = (), checkpoint: Path | None = None) -> Any:
        del checkpoint  # not all selections have a checkpoint
        return run(executor, callbacks)

    return select


def kill_one(processes: Processes, rng: Random) -> None:
    processes.kill(str(rng.choice(processes.workers)))


def kill_one_and_start_another(processes: Processes, rng: Random) -> None:
    kill_one(processes, rng)
    processes.start_worker()


def start_one(processes: Processes, rng: Random) -> None:
    del rng
    processes.start_worker()


def pause_one(processes: Processes, rng: Random) -> None:
    processes.send(SIGSTOP, str(rng.choice(processes.workers)))


def pause_one_for_a_second(processes: Processes, rng: Random) -> None:
    name = str(rng.choice(processes.workers))
    processes.send(SIGSTOP, name)
    time.sleep(1)
    processes.send(SIGCONT, name)


def cluster_errors(what: str, said: str, tries: int, rng: Random) -> list[Outcome]:
    """Run ``dfact fit`` on a cluster whose workers or scheduler are killed, then again on a new one."""
    outcomes: list[Outcome] = []
    while len(outcomes) < tries:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own, Processes(Path(own), pause=PAUSE) as processes:
            fit = StoredFit(Path(folder), 0, "--scheduler", processes.address)
            processes.start(2)
            undisturbed = fit.undisturbed()
            began = time.monotonic()
            command = fit.run({"dfact.worker-timeout": "2s"})
            command.reached(fit.checkpoint, int(rng.integers(4, 12)))
            time.sleep(rng.uniform(0, 5 * PAUSE))
            processes.kill(*(processes.workers if what == "workers" else ["scheduler"]))
            refused = command.ended() == 1 and said in command.said
            processes.kill(*processes.running)
            processes.start(2)
            again = fit.run().ended() == 0
            seconds = time.monotonic() - began
            if command.ended() != 0:  # otherwise it ended before
                outcomes.append(Outcome(refused and again, fit.lost(), seconds - undisturbed))
    return outcomes


def struck_driver(number: Signals, code: int, tries: int, rng: Random, stored: type[Stored] = StoredFit) -> list[Outcome]:
    """Send a command a signal at a random time after its first second, twice if it runs long enough, then run it again."""
    outcomes: list[Outcome] = []
    while len(outcomes) < tries:
        with tempfile.TemporaryDirectory() as folder:
            fit = stored(Path(folder), PAUSE / 2, "--executor", "threads")
            undisturbed = fit.undisturbed()
            began, codes = time.monotonic(), [code]
            while codes[-1] == code:
                before, command = reached_by(fit.checkpoint), fit.run()
                if codes.count(code) < 3:
                    if number != SIGKILL:  # before the program's first line Python handles the signal
                        command.reached(fit.checkpoint, before + 1)
                    time.sleep(rng.uniform(0, 0.5 * undisturbed))
                    command.send(number)
                codes.append(command.ended())
            seconds = time.monotonic() - began
            if len(codes) > 2 or codes[-1] != 0:  # otherwise it ended before the signal came
                outcomes.append(Outcome(codes[-1] == 0, fit.lost(), seconds - undisturbed))
    return outcomes


def between_hosts(name: str, tries: int, rng: Random) -> list[Outcome]:
    """Return a fault between hosts, over TLS."""
    del rng
    fault = next(fault for fault in network_faults.FAULTS if fault.name == name)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        data = cluster_of_hosts.make_data(Path(folder))
        expected = cluster_of_hosts.digest(cluster_of_hosts.model_of(fault.iterations, executor="threads").fit(data))
        for _ in range(tries):
            row = network_faults.suffer(fault, data, expected, tls=True)
            # Only a digest is returned: a different one means at least one different byte.
            outcomes.append(Outcome(row["ended"] == "finished", 0 if row["equal"] else 1, row["lost"]))
    return outcomes


def faults() -> dict[str, Fault]:
    """Return all faults by name."""
    found: dict[str, Fault] = {}
    for name, solver in SOLVERS.items():
        found[f"worker killed, {name}"] = partial(on_a_cluster, solved(solver), solver.last, kill_one_and_start_another)
    for name, run in SELECTIONS.items():
        found[f"worker killed, {name}"] = partial(on_a_cluster, selected(run), 2, kill_one_and_start_another)
    long = Solver(type(long_fit()), answers, {"max_iter": 20, "tol": 0}, last=15)
    ttl = {"distributed.scheduler.worker-ttl": "2s"}
    found |= {
        "worker killed, none comes": partial(on_a_cluster, solved(long), long.last, kill_one),
        "worker joins": partial(on_a_cluster, solved(long), long.last, start_one),
        "worker paused for 1 s": partial(on_a_cluster, solved(long), long.last, pause_one_for_a_second),
        "worker paused, worker-ttl 2 s": partial(on_a_cluster, solved(long), long.last, pause_one, settings=ttl),
        "all workers killed, resumed": partial(cluster_errors, "workers", "the Dask cluster has had no worker"),
        "scheduler killed, resumed": partial(cluster_errors, "scheduler", "the Dask scheduler is lost"),
        "driver SIGKILL, resumed": partial(struck_driver, SIGKILL, -SIGKILL),
        "driver SIGKILL, admixture, resumed": partial(struck_driver, SIGKILL, -SIGKILL, stored=StoredAdmixture),
        "driver SIGKILL, bootstrap, resumed": partial(struck_driver, SIGKILL, -SIGKILL, stored=StoredBootstrap),
        "driver SIGTERM, resumed": partial(struck_driver, SIGTERM, 128 + SIGTERM),
        "driver SIGINT, resumed": partial(struck_driver, SIGINT, 128 + SIGINT),
    }
    found |= storage.FAULTS
    for name in ("worker cut off for 5 s", "worker cut off; short timeouts"):
        found[f"{name}, hosts"] = partial(between_hosts, name)
    return found


def row_of(name: str, fault: Fault, tries: int, rng: Random) -> dict[str, Any]:
    """Return a row of the table."""
    row: dict[str, Any] = {"fault": name, "tried": 0, "survived": 0, "equal": 0, "seconds lost": float("nan"), "bytes lost": 0}
    on_hosts = name.endswith(", hosts")
    if reason := available()[1] if on_hosts else storage.prevented(name):
        return row | {"note": f"skipped: {reason}"}
    try:
        with nullcontext() if on_hosts else small_partitions():
            outcomes = fault(tries, rng)
    except Exception as error:
        return row | {"tried": tries, "note": f"{type(error).__name__}: {error}"}
    return row | {
        "tried": len(outcomes),
        "survived": sum(outcome.survived for outcome in outcomes),
        "equal": sum(outcome.lost_bytes == 0 for outcome in outcomes),
        "seconds lost": statistics.median(outcome.lost_seconds for outcome in outcomes),
        "bytes lost": sum(outcome.lost_bytes for outcome in outcomes),
        "note": "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("word", nargs="?", default="")
    options = parser.parse_args()
    rows = []
    for number, (name, fault) in enumerate(faults().items()):
        if options.word in name:
            rows.append(row_of(name, fault, options.tries, np.random.default_rng([options.seed, number])))
            print(rows[-1], flush=True)
    tried = [row for row in rows if not row["note"].startswith("skipped")]
    thresholds = [
        ("every fault is survived", all(row["survived"] == row["tried"] for row in tried)),
        ("every result is bit-identical, and nothing is left behind", all(row["equal"] == row["tried"] for row in tried)),
    ]
    report("faults", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
