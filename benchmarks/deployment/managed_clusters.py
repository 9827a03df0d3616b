"""Fits on clusters of dask-jobqueue and dask-gateway, by their local backends: python -m benchmarks.deployment.managed_clusters

Each cluster runs real processes on this machine. A fit runs through the cluster object in Python, by the command line with the
scheduler's address, and while the cluster adapts; the bits are compared with a fit in this process. Both packages are
installed into a virtual environment of their own. What is not possible is shown with its message.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import exit_code, report, wait_until
from dfact.data.sources.dask import worker_infos

_PLACE = Path("/var/tmp/dfact-managed-clusters")
_PACKAGES = ("dask-jobqueue==0.9.0", "dask-gateway==2026.3.0", "dask-gateway-server[local]==2026.3.0", "sqlalchemy>=2")
_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 300
_GATEWAY = """\
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{api}"
c.Proxy.address = c.Proxy.tcp_address = "127.0.0.1:{proxy}"
c.ClusterConfig.scheduler_cmd = ["dask", "scheduler"]  # Dask has no command dask-scheduler any more
c.ClusterConfig.worker_cmd = ["dask", "worker"]
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "2 G"
"""
_LIMITS = {("dask-gateway", "command line"): "only the client of dask-gateway can reach"}
"""What is not possible, and a part of the message that says so."""
_FIT = {"max_iter": 12, "tol": 0.0, "init": "random", "random_state": 0}
_OPTIONS = ("--max-iter", "12", "--tol", "0", "--init", "random", "--seed", "0", "-k", "3")


def environment() -> Path:
    """Return the Python of the environment with both packages and dfact."""
    python = _PLACE / "bin" / "python"
    if not (_PLACE / "bin" / "dask-gateway-server").exists():
        venv.create(_PLACE, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", str(_ROOT), *_PACKAGES], check=True)
    return python


@contextmanager
def job_queue() -> Iterator[Any]:
    """Yield a cluster of dask-jobqueue without workers."""
    from dask_jobqueue.local import LocalCluster

    with LocalCluster(cores=1, memory="2GiB", scheduler_options={"dashboard_address": "127.0.0.1:0"}) as cluster:
        yield cluster


@contextmanager
def gateway(api: int, proxy: int) -> Iterator[Any]:
    """Yield a cluster of a gateway, which listens at these ports, without workers."""
    from dask_gateway import Gateway

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.py").write_text(_GATEWAY.format(api=api, proxy=proxy))
        with (Path(folder) / "log").open("w+") as log:
            commands = Path(sys.executable).parent
            found = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}  # the backend starts dask-scheduler by its name
            server = subprocess.Popen([commands / "dask-gateway-server", "-f", "config.py"], cwd=folder, env=found, stdout=log, stderr=log)
            try:
                client = Gateway(f"http://127.0.0.1:{proxy}", proxy_address=f"gateway://127.0.0.1:{proxy}")
                wait_until(lambda: client.list_clusters() is not None, "the gateway answers", _PATIENCE, not_yet=(OSError, ValueError))
                with client.new_cluster() as cluster:
                    yield cluster
            except Exception:
                log.seek(0)
                print(log.read()[-4000:])
                raise
            finally:
                server.terminate()
                server.wait()


def _n_workers(client: Any) -> int:
    return len(worker_infos(client))


def tried(kind: str, cluster: Any, data: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Try each way to a fit on the cluster; yield what was seen."""
    import dfact
    from benchmarks.faults.fits import bits, small_partitions

    expected = bits(dfact.ICQF(3, **_FIT).fit(data))

    def row(way: str, seen: str, same: bool) -> dict[str, Any]:
        limit = _LIMITS.get((kind, way))
        held = same if limit is None else limit in seen
        found = {"cluster": kind, "way": way, "seen": seen, "expected": "bit-identical" if limit is None else limit, "held": held}
        print(found, flush=True)
        return found

    cluster.scale(2)
    with cluster.get_client() as client:
        client.wait_for_workers(2, timeout=_PATIENCE)
        model = dfact.ICQF(3, executor=client, **_FIT).fit(data)
        yield row("Client of the cluster", f"{_n_workers(client)} workers", bits(model) == expected)
        yield row("command line", *_by_command(cluster, data, folder / f"{kind}.model", expected))
        cluster.scale(1)
        wait_until(lambda: _n_workers(client) == 1, "one worker is left", _PATIENCE, not_yet=(OSError, ValueError))
        cluster.adapt(minimum=1, maximum=2)
        counts: list[int] = []

        def more_workers(iteration: Any) -> None:
            if iteration.number == 3:
                with suppress(TimeoutError):  # that none was asked for is what the row shows
                    client.wait_for_workers(2, timeout=60)
            counts.append(_n_workers(client))

        with small_partitions():  # one thread is asked for per four partitions
            expected = bits(dfact.ICQF(3, **_FIT).fit(data))
            model = dfact.ICQF(3, executor=client, callbacks=[more_workers], **_FIT).fit(data)
        asked = kind != "dask-gateway"  # whose client has no adaptive cluster to which a fit could show its work
        yield row("adaptive from 1 to 2", f"at most {max(counts)} workers", bits(model) == expected and (max(counts) == 2 or not asked))


def _by_command(cluster: Any, data: Path, location: Path, expected: Any) -> tuple[str, bool]:
    """Return what a fit by the command line shows, and whether its bits are the expected ones; False if it is refused."""
    import dfact
    from benchmarks.faults.fits import bits

    given = ("--scheduler", cluster.scheduler_address, *_OPTIONS)
    command = [sys.executable, "-m", "dfact.cli.main", "fit", "icqf", str(data), str(location), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return " ".join(done.stderr.split())[-150:], False
    return f"exit code 0, {cluster.scheduler_address.partition(':')[0]}://", bits(dfact.load_model(location)) == expected


def inside(api: int, proxy: int) -> list[dict[str, Any]]:
    """Run all in the environment of both packages, with a gateway at these ports."""
    import numpy as np

    import dfact
    from benchmarks.faults.fits import answers

    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dfact.import_array(np.tile(answers(0), (4, 1)), folder / "answers.zarr")  # 20 small partitions
        for kind, make in (("dask-jobqueue", job_queue), ("dask-gateway", partial(gateway, api, proxy))):
            with make() as cluster:
                rows += [{**row, "version": version(kind)} for row in tried(kind, cluster, folder / "answers.zarr", folder)]
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        print("ROWS" + json.dumps(inside(*map(int, sys.argv[2:]))))
        return
    from tests.conftest import free_port  # imports pytest, which that environment lacks

    ports = set[int]()
    while len(ports) < 2:
        ports.add(free_port())
    command = [environment(), "-m", "benchmarks.deployment.managed_clusters", "--inside", *map(str, ports)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(_ROOT)}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout)
    rows = json.loads(done.stdout.split("ROWS")[1])
    thresholds = [(f"{row['cluster']}, {row['way']}: {row['expected']}", row["held"]) for row in rows]
    report("managed_clusters", rows, thresholds)
    sys.exit(exit_code(thresholds))


if __name__ == "__main__":
    main()
