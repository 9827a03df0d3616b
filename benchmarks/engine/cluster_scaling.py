"""Overhead of passes on large clusters, their scaling, and the cost of slow, lost and joining workers.

python -m benchmarks.engine.cluster_scaling             all parts, about five minutes
python -m benchmarks.engine.cluster_scaling messages    one part: messages, latency, scaling, stragglers, recovery, joining
python -m benchmarks.engine.cluster_scaling --small     fewer workers and passes, as a test

The workers do no arithmetic: they answer at once or wait for its time (benchmarks.engine.idle_workers). ``latency``
also predicts the speed of two large fits on clusters of up to 1024 workers (benchmarks.engine.cost_model).
"""

import argparse
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import exit_code, report
from benchmarks.engine.cost_model import Caller, Costs, Measurement, chain, outlook, star
from benchmarks.engine.idle_workers import Idle, IdleCluster, Usage, Waiting, noise, slow_down
from dfact.data.sources.dask import worker_infos
from dfact.engine.cluster import session as session_module
from dfact.engine.cluster.session import ClusterSession
from dfact.engine.passes import RunPass

Thresholds = list[tuple[str, bool]]
_SUMS = 160_000
"""Bytes of the sums of 20 factors and 1,000 columns."""
_WARM_UP = 3


@dataclass(frozen=True)
class Size:
    """Numbers of workers, partitions and passes."""

    workers: int
    partitions: tuple[int, int]
    passes: int
    idle: float
    """Seconds for which nothing happens, to see what the processes use then."""
    tree: tuple[int, ...]
    """Numbers of workers."""
    calling: int
    """The one of these where each is still a process of its own."""
    waiting_passes: int
    wait: float
    processes: int
    """WorkerResources that are processes of their own."""
    slow_passes: int
    kept_passes: int


_FULL = Size(100, (100, 5000), 40, 5.0, (1, 2, 4, 8, 16, 32, 64), 16, 9, 0.1, 16, 60, 50)
_SMALL = Size(10, (10, 200), 5, 0.5, (1, 2, 4), 4, 3, 0.02, 4, 20, 8)


def _seconds(session: ClusterSession, pass_: Any, count: int, broadcast: NDArray[Any]) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        session.run(RunPass(pass_, broadcast))
        found.append(time.perf_counter() - began)
    return found


def messages(size: Size) -> Thresholds:
    """Measure the processor time of scheduler, driver and workers in passes without arithmetic."""
    rows: list[dict[str, Any]] = []
    with IdleCluster() as cluster:
        cluster.grow(size.workers, processes=4)
        for partitions in size.partitions:
            with cluster.session(partitions) as session:
                pass_, broadcast = Idle(_SUMS), noise(_SUMS)
                _seconds(session, pass_, _WARM_UP, broadcast)
                used = _usage(cluster, partial(_seconds, session, pass_, size.passes, broadcast), size.idle)
            milliseconds = {name: 1e3 * value / size.passes for name, value in vars(used).items()}
            milliseconds["a worker"] = milliseconds.pop("workers") / size.workers
            rows.append({"workers": size.workers, "partitions": partitions, "bytes": _SUMS} | milliseconds)
    few, many = rows
    rows[1]["a further partition"] = (many["a worker"] - few["a worker"]) / ((many["partitions"] - few["partitions"]) / size.workers)
    thresholds = []
    for row in rows:
        ours = row["scheduler"] + row["driver"]
        thresholds.append(
            (f"scheduler and driver take {ours:.1f} ms of a pass over {row['partitions']} partitions, at most 15", ours <= 15)
        )
    alone = few["a worker"]
    thresholds.append((f"a worker with one partition takes {alone:.1f} ms of its processor for a pass, at most 4", alone <= 4))
    report("cluster_messages", rows, thresholds)
    return thresholds


def _usage(cluster: IdleCluster, work: Callable[[], object], idle: float) -> Usage:
    """Return the usage of the work beyond that of an idle cluster, such as heartbeats."""
    before = cluster.usage()
    time.sleep(idle)
    between = cluster.usage()
    work()
    return cluster.usage().since(between).beyond(between.since(before))


def latency(size: Size) -> Thresholds:
    """Measure the overhead of waiting passes, in a tree and in a chain of workers, and predict the overhead in large clusters."""
    measured: list[Measurement] = []
    rows: list[dict[str, Any]] = []
    with IdleCluster() as cluster:
        for workers in size.tree:
            cluster.grow(workers, processes=8)
            for shape in (session_module.build_call_tree, chain):
                with patch.object(session_module, "build_call_tree", shape), cluster.session(workers) as session:
                    for sums in (8_000, _SUMS, 10 * _SUMS):
                        pass_ = Waiting(size.wait, sums)
                        _seconds(session, pass_, _WARM_UP, noise(8))
                        found = statistics.median(_seconds(session, pass_, size.waiting_passes, noise(8)))
                        latest = Measurement(workers, sums, max(found - size.wait, 1e-4))
                        rows.append(vars(latest) | {"shape": shape.__name__})
                        if shape is chain:
                            measured.append(latest)
            if workers == size.calling:
                caller = _caller(cluster, size.passes)
    costs = Costs.of(measured)
    report("cluster_latency", rows)
    print(f"the driver's call {costs.call * 1e3:.1f} ms, a level {costs.level * 1e3:.1f} ms and {costs.byte * 1e9:.2f} s/GB")
    for m in measured:
        print(f"chain of {m.workers}, {m.size} bytes: {m.seconds * 1e3:.1f} ms, by the model {costs.seconds(m) * 1e3:.1f}")
    each = f"{caller.call * 1e3:.2f} ms, {caller.taken * 1e9:.2f} s/GB of sums and {caller.given * 1e9:.2f} s/GB of a broadcast"
    print(f"each callee takes of the caller's processor {each}")
    table, thresholds = outlook(costs, caller)
    report("cluster_outlook", table, thresholds)
    return thresholds


def _caller(cluster: IdleCluster, passes: int) -> Caller:
    """Measure the cost of calls for the calling worker, when one worker calls all others, each in its own process."""
    found = []
    for sums, broadcast in ((8_000, 8), (10 * _SUMS, 8), (8_000, 10 * _SUMS)):
        with patch.object(session_module, "build_call_tree", star), cluster.session(cluster.workers) as session:
            _seconds(session, Idle(sums), _WARM_UP, noise(broadcast))
            before = cluster.each()
            _seconds(session, Idle(sums), passes, noise(broadcast))
            *others, first = sorted(late - early for early, late in zip(before, cluster.each(), strict=True))
        found.append((first - statistics.median(others)) / (passes * (cluster.workers - 1)))
    call, taken, given = found
    return Caller(call, max(0.0, taken - call) / (10 * _SUMS), max(0.0, given - call) / (10 * _SUMS))


def scaling(size: Size) -> Thresholds:
    """Time passes on workers that wait for the time of their share."""
    partitions, arithmetic, rows = 8 * size.processes, 0.05 * size.processes, []
    with IdleCluster() as cluster:
        for workers in [w for w in (1, 2, 4, 8, 16) if w <= size.processes]:
            cluster.grow(workers)
            with cluster.session(partitions) as session:
                pass_ = Waiting(arithmetic / partitions, _SUMS)
                _seconds(session, pass_, _WARM_UP, noise(_SUMS))
                found = statistics.median(_seconds(session, pass_, size.waiting_passes, noise(_SUMS)))
            rows.append({"workers": workers, "s": found, "ideal s": arithmetic / workers, "efficiency": arithmetic / workers / found})
    last = rows[-1]
    thresholds = [(f"{last['workers']} workers have an efficiency of {last['efficiency']:.0%}, at least 80%", last["efficiency"] >= 0.8)]
    report("cluster_scaling", rows, thresholds)
    return thresholds


def stragglers(size: Size) -> Thresholds:
    """Time passes with one worker half as fast as the others."""
    workers = size.processes // 2
    partitions, each = 32 * workers, size.wait / 20
    with IdleCluster() as cluster:
        cluster.grow(workers)
        slow = next(iter(worker_infos(cluster.client)))
        cluster.client.run(slow_down, 2.0, workers=[slow])
        with cluster.session(partitions) as session:
            found = _seconds(session, Waiting(each, _SUMS), size.slow_passes, noise(_SUMS))
    ideal = partitions * each / (workers - 0.5)
    share = sum(found) / (len(found) * ideal)
    row = {"workers": workers, "partitions": partitions, "passes": len(found), "ideal s": ideal, "first s": found[0], "last s": found[-1]}
    thresholds = [(f"with one worker half as fast, passes take {share:.2f} × what is ideal, at most 1.3", share <= 1.3)]
    report("cluster_stragglers", [row | {"of ideal": share}], thresholds)
    return thresholds


def recovery(size: Size) -> Thresholds:
    """Time the recovery of a worker killed during a pass, with the loss of the state of earlier passes."""
    partitions, more = 8 * size.processes, 6
    broadcasts = [np.arange(_SUMS // 8) / 1e5 + i for i in range(size.kept_passes + more)]
    pass_ = Waiting(0.05 / 8, _SUMS)
    found: dict[bool, tuple[Any, Any, list[float]]] = {}
    with IdleCluster() as cluster:
        cluster.grow(size.processes)
        for disturbed in (False, True):
            with cluster.session(partitions) as session:
                times: list[float] = []
                for i, broadcast in enumerate(broadcasts):
                    if disturbed and i == size.kept_passes:
                        threading.Timer(0.02, cluster.processes[size.processes // 2].kill).start()
                    times += _seconds(session, pass_, 1, broadcast)
                sums = session.run(RunPass(pass_, broadcasts[0]))
                found[disturbed] = sums.of_items, np.concatenate(list(session.rows("rows"))), times
    equal = all(np.array_equal(mine, theirs) for mine, theirs in zip(found[True][:2], found[False][:2], strict=True))
    times = found[True][2]
    usual, longest = statistics.median(times[: size.kept_passes]), max(times[size.kept_passes :])
    lost = (longest - usual) / usual
    row = {"workers": size.processes, "partitions": partitions, "passes before": size.kept_passes, "usual s": usual, "longest s": longest}
    thresholds = [
        (f"a killed worker costs the time of {lost:.1f} passes, at most 10", lost <= 10),
        ("sums and rows are bit-identical to an undisturbed run", equal),
    ]
    report("cluster_recovery", [row | {"passes lost": lost}], thresholds)
    return thresholds


def _owners(session: ClusterSession) -> dict[int, str]:
    """Return the worker of each partition."""
    return {partition: worker.address for worker in session._workers.owners for run in worker.runs for partition in run}


def joining(size: Size) -> Thresholds:
    """Time short passes over few partitions while workers join, more than partitions in the end, and after all but one are replaced."""
    rows: list[dict[str, Any]] = []
    thresholds: Thresholds = []
    for partitions in (2, 8):
        stages = [w for w in (1, 2, 4, 8, 16) if w <= size.processes]
        pass_, broadcast = Waiting(size.wait / 20, 8_000), noise(8)
        with IdleCluster() as cluster:
            cluster.grow(1)
            count = 0
            with cluster.session(partitions) as session:
                owners: dict[int, str] = {}
                for workers, replaced in [(w, False) for w in stages] + [(stages[-1], True)]:
                    if replaced:
                        cluster.lose_all_but_the_first()
                    cluster.grow(workers, processes=1)
                    session._next_poll = 0.0
                    seconds = statistics.median(_seconds(session, pass_, size.waiting_passes, broadcast))
                    count += size.waiting_passes
                    before, owners = owners, _owners(session)
                    loads = Counter(owners.values())
                    moved = sum(before.get(partition) != owner for partition, owner in owners.items())
                    row = {"partitions": partitions, "workers": workers, "replaced": replaced, "ms": 1e3 * seconds, "moved": moved}
                    rows.append(row | {"busiest": max(loads.values()), "idle": workers - len(loads)})
                found = np.concatenate(list(session.rows("rows")))
            with cluster.session(partitions) as session:
                _seconds(session, pass_, count, broadcast)
                expected = np.concatenate(list(session.rows("rows")))
        thresholds.append((f"the state of {partitions} partitions is bit-identical to undisturbed passes", np.array_equal(found, expected)))
    uneven = [row for row in rows if row["busiest"] > -(-row["partitions"] // min(row["workers"], row["partitions"]))]
    useless = sum(row["moved"] for row in rows if not row["replaced"] and row["workers"] > row["partitions"])
    thresholds += [
        (f"the busiest worker has more than its share in {len(uneven)} of {len(rows)} cases, at most 0", not uneven),
        (f"{useless} partitions move to workers that are not needed, at most 0", useless == 0),
    ]
    report("cluster_joining", rows, thresholds)
    return thresholds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["messages", "latency", "scaling", "stragglers", "recovery", "joining"]
    parser.add_argument("parts", nargs="*", choices=[*names, []], help="parts to run, by default all")
    parser.add_argument("--small", action="store_true", help="fewer workers and passes")
    arguments = parser.parse_args()
    size, parts, thresholds = _SMALL if arguments.small else _FULL, arguments.parts or names, []
    for name in parts:
        thresholds += {
            "messages": messages,
            "latency": latency,
            "scaling": scaling,
            "stragglers": stragglers,
            "recovery": recovery,
            "joining": joining,
        }[name](size)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
