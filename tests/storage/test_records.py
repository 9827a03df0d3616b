"""Records: another process may write, remove or take over while one finishes."""

import errno
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfact.engine.checkpoint import resume_point
from dfact.errors import StoreError
from dfact.storage.records import Records


def test_a_record_is_removed_though_another_process_still_writes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(tmp_path / "checkpoint.zarr", "fit", {})
    record = tmp_path / "checkpoint.zarr" / records.begin("steps-000001-old").name
    assert record.is_dir()

    def disturbed(path: Path) -> None:
        monkeypatch.undo()
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    monkeypatch.setattr(shutil, "rmtree", disturbed)
    records.remove(record.name)
    assert not record.exists()


def test_a_record_finished_during_a_takeover_is_ignored(tmp_path: Path) -> None:
    records = Records(tmp_path / "checkpoint.zarr", "fit", {})
    record, check = records.begin("state-000001-old"), records.check_owner

    def taken_over_meanwhile() -> None:
        check()
        records.check_owner = check  # type: ignore[method-assign]
        Records(tmp_path / "checkpoint.zarr", "fit", {}).remove(record.name)

    records.check_owner = taken_over_meanwhile  # type: ignore[method-assign]
    record.append(np.arange(3))
    with pytest.raises(StoreError, match="another process has resumed"):
        record.finish(steps=[], states=[])
    assert Records(tmp_path / "checkpoint.zarr", "fit", {}).names() == []


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes of a record or of the store."""
    document = path / "zarr.json"
    tree = json.loads(document.read_text())
    change(tree["attributes"]["dfact"])
    document.write_text(json.dumps(tree))


def finished(path: Path) -> Records:
    """Write the two records of a checkpoint."""
    records = Records(path, "fit", {"n": "3"})
    for name in ("steps-000001", "state-000001"):
        records.write(name, [np.arange(3)], steps=["steps-000001"], states=[], tiles=[])
    return records


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("", lambda found: found.pop("identity")),
        ("", lambda found: found["identity"].update(n="4")),
        ("steps-000001", lambda found: found.update(steps=[])),
        ("state-000001", lambda found: found.update(states="x")),
        ("state-000001", lambda found: found.pop("digest")),
    ],
)
def test_changed_attributes_are_refused(name: str, change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    records = finished(tmp_path / "c.zarr")
    edit(tmp_path / "c.zarr" / name, change)
    with pytest.raises(StoreError, match=r"do not match their digest.*; delete the checkpoint to start over"):
        Records(tmp_path / "c.zarr", "fit", {"n": "3"}).read(name)
    with pytest.raises(StoreError, match="do not match their digest") if name else nullcontext():
        records.names()


def test_attributes_of_another_record_are_refused(tmp_path: Path) -> None:
    records = finished(tmp_path / "c.zarr")
    shutil.copy(tmp_path / "c.zarr" / "state-000001" / "zarr.json", tmp_path / "c.zarr" / "steps-000001" / "zarr.json")
    with pytest.raises(StoreError, match="has the attributes of another record; delete the checkpoint"):
        records.read("steps-000001")


def test_a_damaged_checkpoint_has_no_resume_point(tmp_path: Path) -> None:
    finished(tmp_path / "c.zarr")
    assert resume_point(tmp_path / "c.zarr") == 1
    (tmp_path / "c.zarr" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="delete the checkpoint to start over"):
        resume_point(tmp_path / "c.zarr")
