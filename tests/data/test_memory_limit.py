"""The memory that control groups of either version leave to this process."""

from pathlib import Path

import psutil
import pytest

from dfact.data.memory_limit import FreeMemory, free_memory

GIB = 1 << 30
V2 = {
    "cgroup": "0::{group}\n",
    "mount": "35 24 0:30 {root} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    "point": "sys/fs/cgroup",
    "limit": "memory.max",
    "usage": "memory.current",
    "cache": "inactive_file",
}
V1 = {
    "cgroup": "5:cpu,cpuacct:/elsewhere\n4:memory:{group}\n0::/elsewhere\n",
    "mount": "30 24 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "35 30 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 30 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n",
    "point": "sys/fs/cgroup/memory",
    "limit": "memory.limit_in_bytes",
    "usage": "memory.usage_in_bytes",
    "cache": "total_inactive_file",
}


def write_tree(root: Path, version: dict[str, str], group: str, limits: dict[str, tuple[str, int, int]], mounted: str = "/") -> None:
    """Write the files of a process in ``group``, with the limit, the usage and the files' contents of folders below the mount."""
    process = root / "proc" / "self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(version["cgroup"].format(group=group))
    (process / "mountinfo").write_text(version["mount"].format(root=mounted))
    for folder, (limit, usage, cache) in limits.items():
        path = root / version["point"] / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / version["limit"]).write_text(f"{limit}\n")
        (path / version["usage"]).write_text(f"{usage}\n")
        (path / "memory.stat").write_text(f"anon 1\n{version['cache']} {cache}\n")


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 400 * GIB}))


@pytest.mark.parametrize("version", [V2, V1])
@pytest.mark.parametrize("level", ["", "slurm", "slurm/job_7", "slurm/job_7/step_0"])
def test_the_limit_of_every_level_counts(tmp_path: Path, version: dict[str, str], level: str) -> None:
    levels = ["", "slurm", "slurm/job_7", "slurm/job_7/step_0"]
    none = "max" if version is V2 else str((1 << 63) - 4096)
    limits = {folder: (str(16 * GIB) if folder == level else none, 3 * GIB, GIB) for folder in levels}
    write_tree(tmp_path, version, "/slurm/job_7/step_0", limits)
    found = free_memory(tmp_path)
    assert found.size == 14 * GIB  # 16 less 3, of which 1 can be dropped
    assert found.source == str(tmp_path / version["point"] / level / version["limit"])


def test_the_least_of_several_limits_counts(tmp_path: Path) -> None:
    write_tree(tmp_path, V2, "/a/b", {"a": (str(20 * GIB), 15 * GIB, 0), "a/b": (str(8 * GIB), 2 * GIB, 0)})
    assert free_memory(tmp_path).size == 5 * GIB  # the upper group is nearly used up by others


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    write_tree(tmp_path, V2, "/a", {"a": (str(GIB), 2 * GIB, 0)})
    assert free_memory(tmp_path).size == 0


@pytest.mark.parametrize(("group", "mounted"), [("/docker/7/inner", "/docker/7"), ("/inner", "/"), ("/../../job/inner", "/../..")])
def test_the_part_of_the_tree_that_a_container_sees(tmp_path: Path, group: str, mounted: str) -> None:
    write_tree(tmp_path, V2, group, {"": (str(2 * GIB), GIB, 0), "inner": ("max", GIB, 0)}, mounted)
    assert free_memory(tmp_path).size == GIB


def test_without_groups_the_machine_limits(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == FreeMemory(400 * GIB, "the machine")
    assert psutil.virtual_memory().available == 400 * GIB


def test_this_machine_has_free_memory() -> None:
    assert 0 < free_memory().size <= 400 * GIB
