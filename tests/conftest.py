"""Fixtures shared by all tests."""

import gc
import random
import socket
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from numpy.typing import NDArray

from dfact.data.layout import cut_into

# The same examples in every run, independent of the clock, and nothing next to the sources.
settings.register_profile(
    "dfact", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("dfact")
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "dfact-hypothesis")

# By default an idle cluster samples its stacks, event loops and machine up to a hundred times per second, a tenth of a core.
dask.config.set(
    {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "5s",
    }
)

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
CutRows = Callable[..., None]
"""Type of the fixture ``cut_rows``."""

FIXTURES: dict[str, set[str]] = {
    "cluster": {"cluster", "processes", "secured"},
    "process": {"secured", "server", "slurm", "workers"},
    "object_store": {"server"},
    "browser": {"browser"},
    "root": {"small_disk"},
}
"""Markers of the tests that use one of these fixtures, also through other fixtures or by the value of a parameter."""
CLUSTERS = {"cluster", "distributed"}
"""Values of parameters for which a test asks for a cluster."""
FURTHER = {"seed", "variant", "chunk_rows", "chunks", "rows"}
"""Parameters whose first value represents all in the default run."""
OUTSIDE = {"cluster", "process", "faults", "object_store", "browser", "root", "slow", "exhaustive"}
"""Markers of tests outside the quick tier."""
QUICK_SECONDS = 2.0
"""Time that a test of the quick tier may take without its fixtures; checked on demand, as it depends on the machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-tier", action="store_true", help=f"fail tests of the quick tier that take more than {QUICK_SECONDS:g} s")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed NumPy's global generator, from which fits without a ``random_state`` draw, before the fixtures of the test's module."""
    np.random.seed(zlib.crc32(item.location[0].encode()))  # noqa: NPY002  (the one that None stands for in scikit-learn)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    checked = item.config.getoption("strict_tier") and item.get_closest_marker("quick") and report.passed and call.when == "call"
    if checked and call.duration > QUICK_SECONDS:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {call.duration:.1f} s, expected at most {QUICK_SECONDS:g} s; make it smaller or mark it as slow"
        )
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, further seeds and the like as exhaustive, and the cheap rest as quick; begin with the slowest files."""
    repeated = [item for item in items if repeats_on_a_cluster(item)]
    if repeated:
        items[:] = [item for item in items if item not in set(repeated)]
        config.hook.pytest_deselected(items=repeated)
    costs = Counter[Path]()
    for item in items:
        for marker, fixtures in FIXTURES.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(marker)
        if case := getattr(item, "callspec", None):
            if any(isinstance(value, str) and value in CLUSTERS for value in case.params.values()):
                item.add_marker("cluster")
            if any(case.indices.get(name, 0) for name in FURTHER):
                item.add_marker("exhaustive")
        outside = OUTSIDE & {mark.name for mark in item.iter_markers()}
        costs[item.path] += len(outside - {"exhaustive"})
        if not outside:
            item.add_marker("quick")
    items.sort(key=lambda item: -costs[item.path])  # a long file that begins last would keep one worker busy alone


def repeats_on_a_cluster(item: pytest.Item) -> bool:
    """A test of a model's further variant on a cluster: its passes are distributed as those of the first variant are."""
    case = getattr(item, "callspec", None)
    return case is not None and case.indices.get("variant", 0) > 0 and "distributed" in case.params.values()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run the whole suite with three processes more than cores: tests of clusters and faults often wait for the processes they start."""
    if config.option.numprocesses != "auto" or config.option.markexpr == "quick":
        return None
    return (psutil.cpu_count(logical=False) or psutil.cpu_count() or 1) + 3


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the thousands of tests, which live to the end; it would walk through them each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # as the commands do


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """A Dask cluster of two worker processes."""
    from benchmarks.faults.fits import forked_workers  # imports every family of models

    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0", "memory_limit": "2GiB"}
    with forked_workers():
        cluster = LocalCluster(**settings)
    with cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of it that is not the active one."""
    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def cut_rows() -> Iterator[CutRows]:
    """Function that cuts data into pieces of the sizes that it is given, fields of Sizes, until the test ends."""
    with ExitStack() as stack:

        def cut(**changes: Any) -> None:
            stack.enter_context(cut_into(**changes))

        yield cut


@pytest.fixture
def questionnaires() -> Path:
    """Folder of the real questionnaires; skips where it is not at hand."""
    folder = REAL_DATA / "questionnaires"
    if not folder.is_dir():
        pytest.skip("the real questionnaires are not next to the project")
    return folder


def free_port() -> int:
    """A port of this machine that nobody has, of those that the system gives to nobody who does not name them: it stays free."""
    for port in random.sample(range(30_000, 32_768), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


def planted_answers(n: int, m: int, k: int, seed: int, missing: float = 0.0) -> NDArray[np.float64]:
    """Answers 0..3 of a planted model, NaN where missing."""
    rng = np.random.default_rng(seed)
    W = rng.random((n, k)) * (rng.random((n, k)) < 0.5)
    Q = rng.uniform(0, 3, (k, m)) * (rng.random((k, m)) < 0.5)
    M = np.rint(np.clip(W @ Q + rng.normal(0, 0.3, (n, m)), 0, 3))
    M[rng.random((n, m)) < missing] = np.nan
    return M
