"""Several hosts as network namespaces: a fit survives what happens between them, and ends with bit-identical results.

``python -m benchmarks.faults.network_faults`` tries more, and longer.
"""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.faults.cluster_of_hosts import SHORT_TIMEOUT, Certificates, Cluster, Ended, digest, make_data, model_of
from benchmarks.faults.namespaces import Hosts, available

pytestmark = [pytest.mark.faults, pytest.mark.process, pytest.mark.root, pytest.mark.exhaustive]
ITERATIONS = 18


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    possible, reason = available()
    if not possible:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Data of 64 partitions, and the digest of its model as this process alone fits it."""
    data = make_data(tmp_path_factory.mktemp("hosts"))
    return data, digest(model_of(ITERATIONS, executor="threads").fit(data))


def seconds_lost(ended: Ended, struck: list[float]) -> list[float]:
    """The longest wait for an iteration between each fault and the next."""
    times = [*ended.times, ended.at]
    begins = [max(i for i, done in enumerate(times) if done <= moment) for moment in struck] + [len(times) - 1]
    return [max(times[i + 1] - times[i] for i in range(begin, max(end, begin + 1))) for begin, end in itertools.pairwise(begins)]


# Only what encryption may change runs over TLS, too: the loss of a worker, and certificates of another authority.
@pytest.mark.parametrize(("protocol", "workers"), [("tcp", "abc"), ("tls", "ab")])
def test_a_host_that_is_cut_off_then_killed_then_cut_off_for_good(protocol: str, workers: str, undisturbed: tuple[Path, str]) -> None:
    data, expected = undisturbed
    with Hosts(["scheduler", "driver", *workers, "d"]) as hosts:
        own = Certificates.make(hosts.folder / "own") if protocol == "tls" else None
        foreign = Certificates.make(hosts.folder / "foreign")
        cluster = Cluster(hosts, own, SHORT_TIMEOUT)
        cluster.scheduler()
        for name in workers:
            cluster.worker(name)
        fit = cluster.fit(data, ITERATIONS, len(workers))
        struck: list[float] = []

        def strike(iteration: int, fault: Callable[[], None]) -> None:
            fit.reached(iteration)
            struck.append(time.monotonic())
            fault()

        def cut_and_restore() -> None:
            hosts.cut("a")
            time.sleep(2)
            hosts.restore("a")

        if protocol == "tcp":
            strike(3, cut_and_restore)
        strike(7, lambda: cluster.processes["b"].send_signal(signal.SIGKILL))
        if protocol == "tcp":
            strike(11, lambda: hosts.cut("c"))
        stranger = cluster.fit(data, 1, 1, foreign)
        cluster.worker("d", foreign, "--no-nanny", "--death-timeout", "4")
        ended, refused = fit.ended(), stranger.ended()
        assert cluster.processes["d"].wait(timeout=120) != 0
        assert [f"name: {name}" in cluster.log("scheduler").read_text() for name in "abd"] == [True, True, False]
    assert (ended.error, ended.digest) == ("", expected)
    assert refused.error.startswith("FatalCommClosedError: TLS certificate does not match" if own else "RuntimeError: encryption required")
    lost = seconds_lost(ended, struck)
    assert max(lost) < 60
    if protocol == "tcp":
        assert lost[0] > 1
        assert lost[2] > 9  # the timeout is 11 s


def test_hosts_that_are_cut_off_from_each_other_alone() -> None:
    reach = "import socket, sys; socket.create_connection((sys.argv[1], 7000), timeout=1).close()"
    with Hosts(["a", "b", "c"]) as hosts:
        for name in hosts.names:
            hosts.run(name, [sys.executable, "-m", "http.server", "7000", "--bind", hosts.address(name)])

        def reached(here: str, there: str, attempts: int) -> bool:
            command = [sys.executable, "-c", reach, hosts.address(there)]
            return any(hosts.run(here, command).wait() == 0 for _ in range(attempts))

        assert all(reached(here, there, 100) for here, there in ("ab", "ba", "ac", "cb")), "the servers have not started"
        hosts.part("a", "b")
        assert not reached("a", "b", 2)
        assert not reached("b", "a", 2)
        assert reached("a", "c", 10)
        assert reached("c", "b", 10)
        hosts.join("a", "b")
        assert reached("a", "b", 10)


@pytest.mark.process
def test_leftovers_of_a_killed_run_are_removed() -> None:
    code = """
import json, os, sys
from benchmarks.faults.namespaces import Hosts
with Hosts(["a"]) as hosts:
    process = hosts.run("a", [sys.executable, "-c", "import time; time.sleep(60)"])
    print(json.dumps([process.pid, str(hosts.folder)]), flush=True)
    os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    process, folder = json.loads(killed.stdout)
    assert killed.returncode == -signal.SIGKILL
    assert psutil.pid_exists(process)
    with Hosts(["a"]):
        pass
    assert not Path(folder).exists()
    assert not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
