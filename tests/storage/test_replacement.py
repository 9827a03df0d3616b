"""Replacement of a group by another one: after a kill at any time, one of them can be read."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from benchmarks.faults.fits import in_forked_process
from dfact.errors import StoreError
from dfact.storage import replacement
from dfact.storage.arrays import write_array
from dfact.storage.files import atomic_file
from dfact.storage.groups import create_group, open_group
from dfact.storage.records import Records, records_of


def write(path: Path, values: Any) -> None:
    with create_group(path, "dataset", overwrite=True) as group:
        write_array(group, "a", values, ("a",))


def read(path: Path) -> int:
    array: Any = open_group(path, "dataset")["a"]
    return len(array[:])


@pytest.mark.parametrize("supported", [True, False])
def test_a_replacement_leaves_nothing_else(supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supported:
        monkeypatch.setattr(replacement, "_exchange", lambda *_: False)
    for length in (3, 4):
        write(tmp_path / "x", np.arange(length))
        assert read(tmp_path / "x") == length
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


class Disk:
    """The inodes that the system has been asked to write to the disk, and those that lacked when something was deleted or replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced, self.lacking = set[int](), list[str]()
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            self.synced.add(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        monkeypatch.setattr("os.fsync", synced)

    def require(self, path: Path) -> None:
        """Note the files and folders there that could still be lost by a power cut."""
        paths = [path, *path.rglob("*")] if path.is_dir() else [path]
        self.lacking += [str(each) for each in paths if each.stat().st_ino not in self.synced]


@pytest.mark.parametrize("supported", [True, False])
def test_a_group_is_on_the_disk_before_the_earlier_one_goes(supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x", np.arange(3))
    disk, delete = Disk(monkeypatch), replacement.delete

    def deleted(path: Path, **options: Any) -> None:
        if path.exists() and (tmp_path / "x").exists():
            disk.require(tmp_path / "x")
            assert tmp_path.stat().st_ino in disk.synced
        delete(path, **options)

    if not supported:
        monkeypatch.setattr(replacement, "_exchange", lambda *_: False)
    monkeypatch.setattr(replacement, "delete", deleted)
    write(tmp_path / "x", np.arange(4))
    assert disk.synced
    assert disk.lacking == []
    assert read(tmp_path / "x") == 4


def test_a_file_is_on_the_disk_before_the_earlier_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path, replace = Disk(monkeypatch), tmp_path / "x.csv", Path.replace

    def replaced(self: Path, target: Path) -> Path:
        disk.require(self)
        return replace(self, target)

    path.write_text("1")
    monkeypatch.setattr(Path, "replace", replaced)
    with atomic_file(path, overwrite=True) as partial:
        partial.write_text("2")
    assert (path.read_text(), disk.lacking) == ("2", [])


@pytest.mark.parametrize("every", [1, 3])
def test_a_version_of_a_checkpoint_is_on_the_disk_before_the_earlier_one_goes(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, remove, removed = Disk(monkeypatch), Records.remove, list[str]()

    def checked(self: Records, name: str) -> None:
        removed.append(name)
        for kept in records_of(self.group).keys() - {name}:
            disk.require(tmp_path / "c" / kept)
        remove(self, name)

    monkeypatch.setattr(Records, "remove", checked)
    answers = np.random.default_rng(0).integers(0, 4, (60, 8)).astype(np.float32)
    dfact.ICQF(2, max_iter=8, tol=0, checkpoint=tmp_path / "c", checkpoint_every=every).fit(answers)
    assert len(removed) > 1
    assert disk.lacking == []


@pytest.mark.process
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("kill_at", range(4))
def test_a_killed_replacement_leaves_a_complete_group(supported: bool, kill_at: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, np.arange(3))
    try:
        error = json.loads(in_forked_process("tests.storage.forked", "killed_replacement", json.dumps([str(path), supported, kill_at])))
    except EOFError:  # killed
        pass
    else:
        assert not error
        assert kill_at > 1  # each replacement takes at least two calls
    between = not path.exists()
    assert not (between and supported)
    assert read(path) in ((3,) if between else (3, 4))
    with pytest.raises(StoreError, match="exists already"), create_group(path, "dataset"):
        pass
    write(path, np.arange(5))
    assert read(path) == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
