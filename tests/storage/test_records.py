"""Records: another process may write, remove or take over while one finishes."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

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
