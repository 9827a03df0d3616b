"""Writers at one path: none touches what another one writes, and none replaces what it has not found when it began."""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from benchmarks.faults import writers as attacks
from dfact.errors import StoreError
from dfact.models.persistence import annotate_model
from dfact.models.provenance import Stability
from dfact.storage import replacement
from dfact.storage.arrays import write_array
from dfact.storage.files import atomic_file
from dfact.storage.groups import create_group, exists, open_group, remove
from dfact.storage.replacement import Writer, host, partial_prefix, process_start, take_turn, writer_of

K, M = 2, 6


@contextmanager
def store(path: Path | str, version: int, *, overwrite: bool) -> Iterator[None]:
    """Write a store of a version, which is complete after the block."""
    with create_group(path, "dataset", overwrite=overwrite) as group:
        write_array(group, "a", np.full(3, version), ("a",))
        write_array(group, "b", np.full(3, version), ("b",))
        yield


@contextmanager
def file(path: Path, version: int, *, overwrite: bool) -> Iterator[None]:
    """Write a file of a version, the second half after the block."""
    with atomic_file(path, overwrite=overwrite) as partial, partial.open("w") as stream:
        for number in range(attacks.LINES):
            if number == attacks.LINES // 2:
                stream.flush()
                yield
            stream.write(f"{version},{number}\n")


KINDS: dict[str, Callable[..., AbstractContextManager[None]]] = {"store": store, "file": file}


def version_at(path: Path) -> int:
    [found] = attacks.read("file" if path.is_file() else "store", path)
    return found


def others_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all writers look as those of other hosts, of which nobody here knows whether they live."""
    monkeypatch.setattr(Writer, "lives", lambda _: None)


def without(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if feature == "exchange":
        monkeypatch.setattr(replacement, "_exchange", lambda *_: False)
    if feature == "lock":
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
    if feature == "link":
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "Operation not permitted")))


def _complete(writing: AbstractContextManager[None]) -> None:
    with writing:
        pass


# what the audit has found: each fails without names of one's own, and without comparing what is there with what was


def test_an_import_started_twice_replaces_a_good_dataset_once(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    first = dfact.import_array(np.full((20, 3), 7.0), path).fingerprint
    said = r"x\.zarr is being written by process \d+ on .*, which began at .* UTC, expected no other writer; wait until that has ended"
    with store(path, 1, overwrite=True):
        with pytest.raises(StoreError, match=said):
            dfact.import_array(np.full((20, 3), 2.0), path, overwrite=True)
        assert dfact.open_dataset(path).fingerprint == first
    assert version_at(path) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["x.zarr"]


def grown(path: Path, rows: int) -> dfact.PCA:
    model: dfact.PCA = dfact.load_model(path)
    return model.partial_fit(np.random.default_rng(rows).random((rows, M)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    dfact.save_model(dfact.PCA(K).fit(np.random.default_rng(0).random((40, M))), tmp_path / "m.model")
    return tmp_path / "m.model"


def added_rows(path: Path) -> int:
    return int(dfact.load_model(path).growth_.added_rows)


def test_an_update_is_not_lost_to_another_one(model: Path) -> None:
    first, second = grown(model, 10), grown(model, 20)
    dfact.save_model(first, model, overwrite=True)
    with pytest.raises(
        StoreError, match=r"m\.model has been changed by another writer since this model was read from it, .*: load it again"
    ):
        dfact.save_model(second, model, overwrite=True)
    assert added_rows(model) == 10
    dfact.save_model(second, model.with_name("n.model"))
    first.partial_fit(np.ones((5, M)) + np.eye(5, M))
    dfact.save_model(first, model, overwrite=True)  # it knows its own version
    assert added_rows(model) == 15
    shutil.rmtree(model)
    dfact.save_model(first, model, overwrite=True)


def test_an_export_does_not_take_the_half_written_file_of_another(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with file(path, 1, overwrite=True):
        with pytest.raises(StoreError, match="is being written by"), file(path, 2, overwrite=True):
            pass
        assert not path.exists()
    assert version_at(path) == 1


# one after the other, and at the same time


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize(
    ("kind", "lacking"), [("store", ""), ("store", "exchange"), ("store", "lock"), ("file", ""), ("file", "lock"), ("file", "link")]
)
def test_the_first_of_two_hosts_to_end_has_written(
    kind: str, existing: bool, lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "x", KINDS[kind]
    others_are_elsewhere(monkeypatch)
    without(lacking, monkeypatch)
    if existing:
        with write(path, 0, overwrite=False):
            pass
    with pytest.raises(StoreError, match="x has been changed by another writer since this one began"), write(path, 1, overwrite=existing):
        _complete(write(path, 2, overwrite=existing))
    assert version_at(path) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_removed_meanwhile_is_not_restored_by_a_writer(kind: str, tmp_path: Path) -> None:
    path, write = tmp_path / "x", KINDS[kind]
    with write(path, 0, overwrite=False):
        pass
    with pytest.raises(StoreError, match="has been changed"), write(path, 1, overwrite=True):
        remove(path) if kind == "store" else path.unlink()
    assert list(tmp_path.iterdir()) == []


def _swap(folder: Path) -> None:
    """Put a copy in place of a folder."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    copy.rename(folder)


def test_a_writer_whose_folder_was_taken_says_so(tmp_path: Path) -> None:
    said = "has been removed or replaced, expected it to be left alone"
    with pytest.raises(StoreError, match=said), create_group(tmp_path / "x", "dataset"):
        _swap(*tmp_path.iterdir())
    assert not exists(tmp_path / "x")


def named(path: Path, where: str, use: str = "incomplete") -> Path:
    """The path of a writer's work, of which the number of the process is 1, or of one that has ended."""
    return path.with_name(f"{partial_prefix(path, use)}-{where}.1700000000000000000")


@pytest.mark.parametrize("use", ["incomplete", "scratch", "replaced"])
def test_only_what_ended_writers_have_left_is_removed(use: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with store(path, 0, overwrite=False):
        pass
    parent = f"{host()}.{os.getppid()}"
    elsewhere = named(path, "node7.5a1f3f0e-0000-4000-8000-000000000000.4026531836.12.34", use)
    ended, other = named(path, f"{parent}.1", use), named(tmp_path / "y", f"{parent}.1", use)
    foreign = [elsewhere, other, tmp_path / "x.incomplete", tmp_path / f"x.{use}-1.2.3"]
    for folder in (ended, *foreign):
        folder.mkdir()
    with store(path, 1, overwrite=True):
        pass
    assert version_at(path) == 1
    assert sorted(tmp_path.iterdir()) == sorted([path, *foreign])


def test_a_reader_is_told_who_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(StoreError, match=r"x does not exist, expected a dfact dataset$"):
        open_group(path, "dataset")
    with (
        store(path, 0, overwrite=False),
        pytest.raises(StoreError, match=r"; it is being written by process .*: wait until that has ended"),
    ):
        open_group(path, "dataset")
    remove(path)
    named(path, "node7.5a1f3f0e.4026531836.12.34").mkdir()
    with pytest.raises(StoreError, match=r"; process 12 on node7, which began at 2023-11-14 22:13:20 UTC, has begun to write it"):
        open_group(path, "dataset")


def test_a_writer_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Writer("x", "node7.1.1", os.getppid(), "1", 0)
    answers = iter([other, other, None])
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    take_turn("x", lambda: next(answers))
    assert len(slept) == 2
    monkeypatch.setattr(replacement, "WAIT_SECONDS", -1.0)
    with pytest.raises(StoreError, match=r"x is being written by process \d+ on node7, which began at 1970-01-01 00:00:00 UTC"):
        take_turn("x", lambda: other)


def test_names_tell_the_writer(tmp_path: Path) -> None:
    start = process_start(os.getpid())
    for name in ("x", "a-b.zarr", "ä" * 120):
        prefix = partial_prefix(tmp_path / name)
        with replacement.writer_name(prefix) as own:
            assert len(os.fsencode(own)) <= 255
            found = writer_of(own, prefix)
            assert found is not None
            assert (found.host, found.pid, found.start, found.lives()) == (host(), os.getpid(), start, True)
        assert found.lives() is False  # the process lives, but writes no more
    assert partial_prefix(tmp_path / ("ä" * 120)) != partial_prefix(tmp_path / ("ä" * 119 + "x"))
    assert writer_of("x.incomplete-", "x.incomplete") is None
    assert Writer("", host(), os.getppid(), str(process_start(os.getppid())), 0).lives() is True
    with store(tmp_path / ("x" * 240), 3, overwrite=False):
        pass
    assert version_at(tmp_path / ("x" * 240)) == 3


@pytest.mark.parametrize("may_rename", [True, False])
def test_a_reader_finds_what_lies_aside(may_rename: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two names cannot be exchanged, a killed writer may leave the earlier version under another name."""
    path = tmp_path / "x"
    with store(path, 5, overwrite=False):
        pass
    aside = path.rename(named(path, f"{host()}.{os.getppid()}.1", "replaced"))

    def refused(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    if not may_rename:
        monkeypatch.setattr(Path, "rename", refused)
    assert version_at(path) == 5
    assert exists(path)
    assert [*tmp_path.iterdir()] == [path if may_rename else aside]


# changes in place


def stability(value: float) -> Stability:
    loadings = np.full((K, M), value)
    return Stability(np.ones((2, K)), loadings, loadings, loadings, 0.95, np.ones((K, M)))


def test_annotations_of_two_writers_are_kept_and_those_of_another_model_refused(model: Path) -> None:
    first, second, earlier = (dfact.load_model(model) for _ in range(3))
    for estimator, value in ((first, 1.0), (second, 2.0), (first, 3.0)):
        estimator.stability_ = stability(value)
        annotate_model(model, estimator, "stability_")
        assert dfact.load_model(model).stability_.mean[0, 0] == value
    with pytest.raises(StoreError, match="has been changed by another writer since this model was read"):
        dfact.save_model(earlier, model, overwrite=True)  # it would remove the stability
    dfact.save_model(grown(model, 10), model, overwrite=True)
    with pytest.raises(StoreError, match="has been changed by another writer since this model was read"):
        annotate_model(model, first, "stability_")
    assert added_rows(model) == 10


@pytest.mark.needs("batch")
def test_of_two_processes_that_begin_a_job_one_has_it(tmp_path: Path) -> None:
    from dfact.batch.record import Record

    first, second = Record(tmp_path / "state"), Record(tmp_path / "state")
    first.claim()
    with pytest.raises(StoreError, match="has been changed by another writer"):
        second.claim()
    assert first.is_owner()
    third = Record(tmp_path / "state")
    third.claim()
    assert not first.is_owner()


@pytest.mark.needs("sites")
def test_lines_of_a_log_do_not_mix(tmp_path: Path) -> None:
    from dfact.sites.site_log import SiteLog, read_log

    logs = [SiteLog(tmp_path / "log") for _ in range(2)]
    for number in range(4):
        logs[number % 2].write({"number": number, "text": "x" * 20_000})
    assert [entry["number"] for entry in read_log(tmp_path / "log")] == [0, 1, 2, 3]
    assert len(json.dumps(read_log(tmp_path / "log"))) > 80_000


# processes, some of them killed


@pytest.mark.process
def test_two_writers_of_a_store_leave_one_version(tmp_path: Path) -> None:
    found = attacks.attack(attacks.Round("store", 2, overwrite=True, existing=True, kills=False, seed=1), tmp_path / "x")
    assert not found.notes
    assert found.said == ["ok", "ok"]  # one after the other


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("n_writers", [2, 3, 8])
@pytest.mark.parametrize(
    ("kind", "overwrite", "existing"),
    [
        *((kind, *flags) for kind in KINDS for flags in ((True, True), (True, False), (False, True), (False, False))),
        ("model", True, True),
    ],
)
def test_killed_writers_leave_one_version(kind: str, overwrite: bool, existing: bool, n_writers: int, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        plan = attacks.Round(kind, n_writers, overwrite=overwrite, existing=existing, kills=True, seed=10 * n_writers + number)
        assert attacks.attack(plan, folder / "x").notes == []
