"""Settings are read without Dask, and the processors of a control group are those that it grants."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dfact.settings import _quotas, processors


@pytest.mark.parametrize("comment", ["", "# "])
def test_settings_of_dask_are_found_in_its_files(tmp_path: Path, comment: str) -> None:
    folder = tmp_path / ".config/dask"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text(f"{comment}scheduler-address: tcp://10.0.0.1:8786\n")
    code = "import sys; from dfact.settings import setting; print(setting('scheduler-address', 'none'), 'dask' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DASK_")} | {"HOME": str(tmp_path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True).stdout
    assert shown == ("none False\n" if comment else "tcp://10.0.0.1:8786 True\n")


def test_quotas_of_control_groups_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job\n")
    group = tmp_path / "sys/fs/cgroup/slurm/job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    assert list(_quotas(tmp_path)) == []
    (group / "cpu.max").write_text("250000 100000\n")
    assert list(_quotas(tmp_path)) == [(250000, 100000)]
    first = tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    first.mkdir()
    (first / "cpu.cfs_quota_us").write_text("-1\n")
    (first / "cpu.cfs_period_us").write_text("100000\n")
    assert list(_quotas(tmp_path)) == [(250000, 100000)]
    (first / "cpu.cfs_quota_us").write_text("100000\n")
    assert list(_quotas(tmp_path)) == [(250000, 100000), (100000, 100000)]


def test_processors_are_those_of_the_affinity() -> None:
    assert 1 <= processors() <= len(os.sched_getaffinity(0))
