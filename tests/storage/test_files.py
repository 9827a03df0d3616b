"""Temporary folders and files: private, and removed once their process is gone; files that are complete or absent."""

import gc
import itertools
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from dfact.engine.block_state import SpillFile
from dfact.engine.cluster.journal import Journal
from dfact.errors import StoreError
from dfact.models.row_factors import gather_rows
from dfact.storage import replacement
from dfact.storage.files import TemporaryFolder, atomic_file
from dfact.storage.groups import create_group, scratch_store


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


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files are open to everyone, unless their writer says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_temporary_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state, journal = SpillFile(), Journal()
    state.write([{"H": np.ones((2, 2))}])
    rows = gather_rows([np.ones((5, 2))], (5, 2), np.dtype(float), stored=True)
    with journal:
        journal.append(b"pass", b"broadcast")
        folders = [*tmp_path.iterdir()]
        assert len(folders) == 3
        assert {stat.S_IMODE(folder.lstat().st_mode) for folder in folders} == {0o700}
        files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
        assert {file.name for file in files} == {"blocks.state", "passes"}
        assert {stat.S_IMODE(file.lstat().st_mode) for file in files} == {0o600}
    state.close()
    del rows
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_new_temporary_file_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = TemporaryFolder("state")
    (folder.path / "passes").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError):
        folder.new_file("passes")
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def stale_name(purpose: str) -> str:
    """The name of a folder whose process has ended: a process with the id of this one, that began earlier."""
    here = replacement.host()
    return f"dfact-{purpose}-{here}.{os.getpid()}.1.abc"


def test_links_and_folders_of_other_users_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others, link, target = tmp_path / stale_name("state"), tmp_path / stale_name("link"), tmp_path / "target"
    others.mkdir()
    target.mkdir()
    (target / "file").touch()
    link.symlink_to(target)
    own, found = os.geteuid(), Path.lstat
    of_another = os.stat_result([*others.lstat()[:4], own + 1, *others.lstat()[5:]])
    with monkeypatch.context() as context:
        context.setattr(Path, "lstat", lambda path: of_another if path == others else found(path))
        before = sorted(tmp_path.rglob("*"))
        TemporaryFolder("state").remove()
        assert sorted(tmp_path.rglob("*")) == before
    TemporaryFolder("state").remove()
    assert sorted(tmp_path.rglob("*")) == [link, target, target / "file"], "an abandoned folder of one's own is removed"


def test_folders_of_other_hosts_boots_and_containers_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that nodes share, whether or not its locks work: theirs are in use as far as this host can tell."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name, (host, boot, space) = stale_name("state"), replacement.host().rsplit(".", 2)
    others = [
        name.replace(f"-{host}.", "-node7."),
        name.replace(f"-{host}.", f"-my-{host}.x."),
        name.replace(boot, "5a1f3f0e-0000-4000-8000-000000000000"),
        name.replace(f".{space}.", ".4026539999."),
        name.replace(f".{os.getpid()}.1.", f".{os.getpid()}.{replacement.process_start(os.getpid())}."),
        "dfact-state-abcdefgh",
    ]
    for other in others:
        (tmp_path / other).mkdir()
    (tmp_path / name).mkdir()
    with (tmp_path / others[0] / "in-use").open("w"):  # not locked, as on a file system that pretends to lock
        TemporaryFolder("state").remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("exists", [True, False])
def test_a_planted_link_is_replaced_and_not_followed(exists: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if exists:
        target.write_text("keep")
    planted = tmp_path / f"table.csv.incomplete-{replacement.host()}.{os.getpid()}.1.1"
    planted.symlink_to(target)
    with atomic_file(tmp_path / "table.csv") as partial:
        assert not planted.is_symlink()
        partial.write_text("written")
    assert target.exists() is exists
    assert not exists or target.read_text() == "keep"
    assert not (tmp_path / "table.csv").is_symlink()
    assert (tmp_path / "table.csv").read_text() == "written"


def test_outputs_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "table.csv") as partial:
            partial.write_text("written")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o640


def test_a_file_in_the_place_of_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(StoreError, match=r"cannot write .*w\.csv: .*; no partial file is left"), atomic_file(tmp_path / "file" / "w.csv"):
        raise AssertionError("the folder cannot be created")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["out", "new/out", "new/folder/out"])
@pytest.mark.parametrize("depth", range(2))
def test_a_failed_writer_leaves_no_folder_that_it_made(name: str, depth: int, tmp_path: Path) -> None:
    above = tmp_path.joinpath(*itertools.repeat("earlier", depth))
    above.mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ArithmeticError), atomic_file(above / name):
        raise ArithmeticError
    with pytest.raises(ArithmeticError), create_group(above / name, "model"):
        raise ArithmeticError
    with pytest.raises(ZeroDivisionError), scratch_store(above / name) as store:
        zarr.create_array(store, shape=(1 // 0,), dtype="f4")
    with pytest.raises(StoreError, match="File name too long"), atomic_file(above / "new" / ("x" * 300) / name):
        raise AssertionError
    assert sorted(tmp_path.rglob("*")) == before
