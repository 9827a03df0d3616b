"""Replacement of a group by another one: after a kill at any time, one of them can be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.fits import in_forked_process
from dfact.errors import StoreError
from dfact.storage import replacement
from dfact.storage.arrays import write_array
from dfact.storage.groups import create_group, open_group


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


@pytest.mark.process
@pytest.mark.slow
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
    if path.exists():
        assert read(path) in (3, 4)
    else:  # between two renames
        assert not supported
        with pytest.raises(StoreError, match=r"was being replaced when its writer was stopped; rename .*x\.replaced back"):
            open_group(path, "dataset")
        with pytest.raises(StoreError, match="exists already"), create_group(path, "dataset"):
            pass
        assert read(path) == 3
    write(path, np.arange(5))
    assert read(path) == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
