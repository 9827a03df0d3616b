"""Fixtures shared by all tests."""

import gc
import os
import random
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
import zarr
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from numpy.typing import NDArray

from dfact.catalogue import MISSING
from dfact.data.layout import cut_into
from tests import tiers
from tests.cases import ABSENT
from tests.cpu_seconds import Recorder

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
"""Parameters whose first value represents all, unless exhaustive cases are asked for."""
collect_ignore = [each.name for each in MISSING] + ["benchmarks", "documentation", "faults/test_fuzz.py"] * bool(MISSING)
"""Tests of slices that are not installed, and of pages, benchmarks and generated inputs, which are of all of dfact."""
TOUCHED = pytest.StashKey[tiers.Touched]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dfact", "which tests of dfact run; without an option, the default ones")
    group.addoption("--further", action="store_true", help="run the further tests too")
    group.addoption("--touched", metavar="COMMIT", help="run the further tests too that the changes since this commit touch")
    group.addoption("--exhaustive", action="store_true", help="run all tests, for all seeds, variants and matrices")
    group.addoption("--cpu-seconds", type=Path, metavar="FILE", help="add the processor seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    # The checkout, its copy in the environment and all processes share compiled kernels.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(tiers.ROOT / ".kernels"))
    # Small stores spend most of their time in the file system: use memory for them if there is plenty.
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 8 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    path, starts_workers = config.getoption("cpu_seconds"), getattr(config.option, "numprocesses", None)
    if path and (hasattr(config, "workerinput") or not starts_workers):
        config.pluginmanager.register(Recorder(path.resolve()))
    if hasattr(config, "workerinput"):
        config.stash[TOUCHED] = tiers.Touched(**config.workerinput["touched"])
    else:
        commit = config.getoption("touched")
        config.stash[TOUCHED] = tiers.touched(commit) if commit else tiers.Touched()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which files of further tests a change touches, and which of them do not fit in the time."""
    found = config.stash[TOUCHED]
    named = (("further tests that the change touches", found.chosen), ("left to .ci/full for time", found.left))
    return [f"{title}: {' '.join(files)}" for title, files in named if files]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist what the change touches."""
    node.workerinput["touched"] = node.config.stash[TOUCHED]._asdict()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed NumPy's global generator, from which fits without a ``random_state`` draw, before the fixtures of the test's module."""
    np.random.seed(zlib.crc32(item.location[0].encode()))  # noqa: NPY002  (the one that None stands for in scikit-learn)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Build the exhaustive cases of a test on request alone: there are thousands, and each process would build them."""
    if metafunc.config.getoption("exhaustive"):
        return
    parametrize = metafunc.parametrize

    def represent(argnames: str | Sequence[str], argvalues: Iterable[Any], *arguments: Any, **options: Any) -> None:
        names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else argnames
        values = list(argvalues)
        kept = [i for i, value in enumerate(values) if not is_exhaustive(value)][: 1 if FURTHER & set(names) else None]
        if isinstance(ids := options.get("ids"), Sequence):
            options["ids"] = [ids[i] for i in kept] if kept else ids
        parametrize(argnames, [values[i] for i in kept] if kept else values, *arguments, **options)

    metafunc.parametrize = represent  # type: ignore[method-assign]  # the marks and fixtures of the test are read after this hook


def is_exhaustive(value: Any) -> bool:
    """A case of ``parametrize`` with the marker."""
    return any(mark.name == "exhaustive" for mark in getattr(value, "marks", ()))


def is_case_of(names: set[str], item: pytest.Item) -> bool:
    """Return whether a parameter of the test is, or begins with, one of the names."""
    case = getattr(item, "callspec", None)
    return case is not None and any(isinstance(value, str) and re.split(r"\W", value)[0] in names for value in case.params.values())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, keep those of the tier that is asked for, and begin with the slowest files."""
    missing = {each.name for each in MISSING}
    items[:] = [item for item in items if not any(missing.intersection(mark.args) for mark in item.iter_markers("needs"))]
    items[:] = [item for item in items if not is_case_of(ABSENT, item)]
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in FIXTURES.items():
            if fixtures & names:
                item.add_marker(marker)
        case = getattr(item, "callspec", None)
        if case and any(isinstance(value, str) and value in CLUSTERS for value in case.params.values()):
            item.add_marker("cluster")
    kept = tier(config, items)
    if len(kept) < len(items):
        chosen = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    costs = tiers.seconds()
    kept.sort(key=lambda item: -sum(costs.get(item.location[0], ())))  # a long file that begins last would keep one worker busy alone
    items[:] = kept


def tier(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that the options of the command ask for."""
    options = config.option
    items = [item for item in items if not repeats_on_a_cluster(item)]
    if options.exhaustive:
        return items
    items = [item for item in items if not item.get_closest_marker("exhaustive")]
    if options.further or config.args != config.getini("testpaths"):  # files or folders that someone named
        return items
    touched = set(config.stash[TOUCHED].chosen)
    return [item for item in items if item.location[0] in touched or not item.get_closest_marker("further")]


def repeats_on_a_cluster(item: pytest.Item) -> bool:
    """A test of a model's further variant on a cluster: its passes are distributed as those of the first variant are."""
    case = getattr(item, "callspec", None)
    return case is not None and case.indices.get("variant", 0) > 0 and "distributed" in case.params.values()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run a process more than cores: tests of clusters and faults often wait for the processes they start."""
    return (psutil.cpu_count(logical=False) or psutil.cpu_count() or 1) + 1


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


def unseal(group: zarr.Group) -> None:
    """Remove the seal of a dataset, as those of earlier versions of dfact have none, so that changed contents are read."""
    facts = dict(group.attrs["dfact"])  # type: ignore[arg-type]  # a dict
    facts.pop("seal", None)
    group.attrs["dfact"] = facts
