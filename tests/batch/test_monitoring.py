"""Metrics and logs of a batch job: what its processes serve and write, and what the board shows of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import dfact
from dfact.monitoring import metrics
from dfact.monitoring.metrics import serve_metrics
from tests.batch.manifest_rules import DEPLOY, MANIFESTS
from tests.conftest import free_port, planted_answers

PATIENCE = 400  # seconds after which a process hangs: on a busy machine the imports alone take minutes
RUN_ID = "study-0d1f"
KEYS = {"time", "level", "run_id", "logger", "step", "command", "message"}
OF_PROCESSES = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
"""Metrics of the client library that the board shows."""


def scraped(url: str) -> dict[str, float]:
    """Return the samples that a process serves, by name; of those with labels, the labels too."""
    with urlopen(url, timeout=PATIENCE) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found = [sample for family in families for sample in family.samples]
    return {" ".join([sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))]): sample.value for sample in found}


@dataclass
class Job:
    """A batch job of one driver and two workers, each started by the program of the pods, with the settings of the manifests."""

    folder: Path
    port: int = field(default_factory=free_port)
    """The scheduler's."""
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self) -> None:
        manifests = MANIFESTS / "kubernetes" / "base" / "settings.env"
        settings = dict(line.split("=", 1) for line in manifests.read_text().splitlines() if line and not line.startswith("#"))
        settings |= {
            "DASK_DFACT__METRICS_HOST": "127.0.0.1",
            "DASK_DFACT__METRICS_PORT": "0",
            "DFACT_WORKER_PORT": "0",
            "DFACT_THREADS": "1",
            "DFACT_MEMORY": "2GiB",
        }
        settings |= {"DASK_SCHEDULER_ADDRESS": f"tcp://127.0.0.1:{self.port}", "DASK_DFACT__RUN_ID": RUN_ID, "TMPDIR": str(self.folder)}
        known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "DFACT_"))}
        settings["PATH"] = f"{Path(sys.executable).parent}:{known['PATH']}"
        command = [str(MANIFESTS / "node-entrypoint"), str(self.folder / "job.toml")]
        for number in range(3):
            own = {"JOB_COMPLETION_INDEX": str(number)}
            with self.log(number).open("wb") as log:
                started = subprocess.Popen(command, env=known | settings | own, stdout=log, stderr=log, start_new_session=True)
            self.processes.append(started)

    def log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def metrics(self, number: int) -> dict[str, float]:
        """Return what a process serves; nothing before it listens."""
        logged = re.search(r"Metrics are served at (http://127\.0\.0\.1:\d+/metrics)", self.log(number).read_text())
        return scraped(logged[1]) if logged else {}

    def wait(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            said = "\n".join(self.log(number).read_text()[-2000:] for number in range(3))
            assert time.monotonic() < until, said
            assert self.processes[0].poll() is None, said
            time.sleep(0.05)

    def kill(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class Observed:
    """What a job has served and logged, in which a worker was killed in the middle of a fit."""

    driver: dict[str, float]
    worker: dict[str, float]
    after_loss: dict[str, float]
    lines: dict[int, list[str]]
    record: str


def is_amid_the_long_fit(driver: dict[str, float]) -> bool:
    return driver.get("dfact_iteration_limit") == 1000000 and driver["dfact_iteration"] > 20 and driver["dfact_workers"] == 2


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("job")
    dfact.import_array(planted_answers(8192, 64, 3, seed=0), folder / "answers.zarr")
    fit = 'run = "fit icqf"\ndata = "answers.zarr"\ncomponents = 3\n'
    steps = [fit + 'model = "short.model"\nmax-iter = 2\n', fit + 'model = "long.model"\nmax-iter = 1000000\ntol = 0\ninit = "random"\n']
    (folder / "job.toml").write_text("".join(f"[[step]]\n{step}" for step in steps))
    job = Job(folder)
    try:
        job.start()
        job.wait(lambda: is_amid_the_long_fit(job.metrics(0)))
        job.wait(lambda: job.metrics(1)["dfact_passes_total"] >= 20)
        driver, worker = job.metrics(0), job.metrics(1)
        os.killpg(job.processes[2].pid, signal.SIGKILL)
        job.wait(lambda: job.metrics(0).get("dfact_workers_lost_total") == 1)
        passes = job.metrics(0)["dfact_fit_passes_total"]
        job.wait(lambda: job.metrics(0)["dfact_fit_passes_total"] > passes)
        after_loss = job.metrics(0)
        job.processes[0].send_signal(signal.SIGTERM)
        assert job.processes[0].wait(timeout=PATIENCE) == 143
        assert job.processes[1].wait(timeout=PATIENCE) == 75
        lines = {number: job.log(number).read_text().splitlines() for number in range(3)}
        yield Observed(driver, worker, after_loss, lines, (folder / "job.toml.state" / "zarr.json").read_text())
    finally:
        job.kill()


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(4 * PATIENCE)
def test_a_driver_serves_the_state_of_its_job_and_fit(observed: Observed) -> None:
    found, after = observed.driver, observed.after_loss
    expected = {"dfact_job_steps": 2, "dfact_job_steps_done": 1, "dfact_fits": 1, "dfact_workers": 2, "dfact_fits_with_direct_calls": 0}
    assert {name: found[name] for name in expected} == expected
    assert 0 < found["dfact_iteration"] < 1000000
    assert found["dfact_objective"] > 0
    assert found["dfact_fit_passes_total"] >= 20
    started = found["process_start_time_seconds"]
    assert started < found["dfact_checkpoint_timestamp_seconds"] < found["dfact_estimated_end_timestamp_seconds"]
    assert found["dfact_store_written_bytes_total"] > 0
    assert found[f"dfact_run_info run_id={RUN_ID} version={dfact.__version__}"] == 1
    assert (found["dfact_workers_lost_total"], found["dfact_partitions_recovered_total"]) == (0, 0)
    assert (after["dfact_workers_lost_total"], after["dfact_workers"]) == (1, 1)
    assert after["dfact_partitions_recovered_total"] in {1, 2, 3}  # of four; those of each worker depend on its speed


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(4 * PATIENCE)
def test_a_worker_serves_what_it_has_done(observed: Observed) -> None:
    found = observed.worker
    assert found["dfact_passes_total"] >= 20
    assert found["dfact_rows_total"] == 2048 * found["dfact_partitions_total"]
    assert found["dfact_partitions_total"] > found["dfact_passes_total"]
    assert found["dfact_store_read_bytes_total"] > 0
    assert found["dfact_rows_per_second"] > 0
    assert found["dfact_memory_limit_bytes"] == 2 << 30
    assert found["process_resident_memory_bytes"] > 0
    assert "dfact_iteration" not in found
    assert found[f"dfact_run_info run_id={RUN_ID} version={dfact.__version__}"] == 1


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(4 * PATIENCE)
def test_all_processes_log_lines_of_json_with_the_run_id(observed: Observed) -> None:
    by_logger = defaultdict(list)
    for number, lines in observed.lines.items():
        for line in lines:
            fields = json.loads(line)
            assert fields.keys() == KEYS or (fields.keys() > KEYS and "event" in fields)
            assert fields["run_id"] == RUN_ID
            by_logger[number, fields["logger"]].append(fields)
    assert {(0, "dfact.run"), (0, "dfact.cluster"), (0, "distributed.scheduler"), (1, "distributed.worker")} <= by_logger.keys()
    losses = [fields for fields in by_logger[0, "dfact.cluster"] if "is lost" in fields["message"]]
    assert [(fields["level"], fields["step"], fields["command"]) for fields in losses] == [("warning", 2, "fit icqf")]
    assert by_logger[0, "dfact.run"][-1]["level"] == "warning"  # stopped
    assert f'"run": "{RUN_ID}"' in observed.record


@pytest.mark.further
@pytest.mark.process
def test_an_uncaught_error_is_a_line_of_json(tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "SLURM_", "DFACT_"))}
    settings = {"JOB_COMPLETION_INDEX": "1", "DASK_SCHEDULER_ADDRESS": "ftp://127.0.0.1:9"}
    settings |= {"DFACT_THREADS": "1", "DFACT_MEMORY": "1GiB", "DASK_DISTRIBUTED__WORKER__PRELOAD": "dfact.engine.cluster.preload"}
    settings |= {"PATH": f"{Path(sys.executable).parent}:{known['PATH']}", "TMPDIR": str(tmp_path)}
    entrypoint = str(MANIFESTS / "node-entrypoint")
    done = subprocess.run([entrypoint, "job.toml"], env=known | settings, capture_output=True, text=True, timeout=PATIENCE, check=False)
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["level"], last["logger"]) == ("critical", "dfact")
    assert "Traceback" in last["message"]


# The board


def board_queries() -> list[str]:
    board = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_board_shows_metrics_that_exist() -> None:
    with serve_metrics(0) as url:
        assert url is not None
        exported = {name.split()[0] for name in scraped(url)}
    known = exported | {metric.exported_name for metric in metrics.METRICS}
    shown = {name for query in board_queries() for name in re.findall(r"\b(?:dfact|process)_\w+", query)}
    assert shown <= known
    assert shown - OF_PROCESSES == {metric.exported_name for metric in metrics.METRICS} | {"dfact_run_info"}
    assert exported >= OF_PROCESSES


def test_the_example_of_a_pod_monitor_names_the_port_of_the_pods() -> None:
    monitor = yaml.safe_load((DEPLOY / "monitoring" / "podmonitor.yaml").read_text())
    job = yaml.safe_load((MANIFESTS / "kubernetes" / "base" / "job" / "job.yaml").read_text())
    template = job["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(ports[endpoint["port"]])
    assert template["metadata"]["annotations"]["prometheus.io/path"] == endpoint["path"]


def test_the_operators_pods_log_as_the_jobs_do() -> None:
    entrypoint = (MANIFESTS / "node-entrypoint").read_text()
    expected = " ".join(re.search(r"json_lines='([^']*)'", entrypoint)[1].split())  # type: ignore[index]  # it is there
    cluster = yaml.safe_load((DEPLOY / "kubernetes" / "daskjob" / "daskjob.yaml").read_text())["spec"]["cluster"]["spec"]
    for part in ("worker", "scheduler"):
        variables = {entry["name"]: entry["value"] for entry in cluster[part]["spec"]["containers"][0]["env"]}
        assert " ".join(variables["DASK_LOGGING"].split()) == expected
