"""The core without slices: its tests pass, its demo runs, and it fits on a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dfact.catalogue import MISSING, SLICES
from tests.hidden import copy_without
from tests.tiers import ROOT

pytestmark = [pytest.mark.further, pytest.mark.skipif(bool(MISSING), reason="slices are not installed")]
SELECTED = ("tests/models/test_catalogue.py", "tests/golden/test_golden.py", "tests/cli/test_help.py", "tests/models/test_persistence.py")
"""Tests of the core that are quick: numbers, the catalogue, the help and saved models."""
CLUSTER = """
from distributed import Client, LocalCluster
import numpy as np
import dfact
from dfact.catalogue import INSTALLED

if __name__ == "__main__":
    assert INSTALLED == ()
    M = np.random.default_rng(3).integers(0, 4, (400, 9)).astype(float)
    alone = dfact.ICQF(2, max_iter=4, random_state=1).fit(M)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
        fitted = dfact.ICQF(2, max_iter=4, random_state=1, executor=client).fit(M)
    assert np.array_equal(fitted.components_, alone.components_)
"""


def environment(folder: Path) -> dict[str, str]:
    """The environment of a program that imports the copy in a folder."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return inherited | {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(ROOT / ".kernels"))}


@pytest.mark.parametrize("hidden", [*((each.name,) for each in SLICES), ()], ids=lambda names: "".join(names) or "all")
def test_tests_of_the_core_pass_without_slices(hidden: tuple[str, ...]) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not further and not exhaustive"]
    command = [sys.executable, "-m", "tests.hidden", *hidden, "--", *options, *SELECTED]
    done = subprocess.run(command, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_the_demo_and_a_cluster_work_without_any_slice(tmp_path: Path) -> None:
    folder, work = tmp_path / "checkout", tmp_path / "work"
    copy_without({each.name for each in SLICES}, folder)
    work.mkdir()
    (work / "cluster.py").write_text(CLUSTER)
    for command in (["-m", "dfact.cli.main", "demo"], ["cluster.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=work, env=environment(folder), capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (work / "dfact-demo" / "factors4.model").exists()
