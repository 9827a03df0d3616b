"""Temporary folders: those of killed processes are removed, those of running ones stay."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dfact.storage.files import TemporaryFolder


@pytest.mark.process
@pytest.mark.faults
def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, lost = TemporaryFolder("state"), tmp_path / "lost"
    code = (
        "import os; from dfact.storage.files import TemporaryFolder; "
        "print(TemporaryFolder('state').path, flush=True); os.kill(os.getpid(), 9)"
    )
    with lost.open("w") as out:
        subprocess.run([sys.executable, "-c", code], check=False, stdout=out, env=os.environ | {"TMPDIR": str(tmp_path)})
    abandoned = Path(lost.read_text().strip())
    assert abandoned.is_dir()
    other = tmp_path / "dfact-of-mine"  # not one of these
    other.mkdir()
    second = TemporaryFolder("state")
    assert not abandoned.exists()
    assert ours.path.is_dir()
    assert other.is_dir()
    second.remove()
    ours.remove()
    assert sorted(tmp_path.iterdir()) == [other, lost]
