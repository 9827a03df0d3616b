# ruff: noqa: F811  # fixtures of another module
"""Writers at one URL: conditional requests let one of them succeed, and what it replaces stays until then."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dfact
from benchmarks.faults import writers as attacks
from dfact.cli.main import main
from dfact.errors import StoreError
from dfact.models.persistence import annotate_model
from dfact.storage import zarr_stores
from dfact.storage.arrays import write_array
from dfact.storage.files import atomic_file
from dfact.storage.groups import create_group, current_version, exists, open_group, open_store, remove, scratch_store
from dfact.storage.replacement import Writer, host
from dfact.storage.zarr_stores import StrictObjectStore
from tests.object_store.test_object_store import bucket, server, settings  # noqa: F401  # fixtures
from tests.storage.test_writers import K, M, stability, store

pytestmark = pytest.mark.object_store


@contextmanager
def file(url: str, version: int, *, overwrite: bool) -> Iterator[None]:
    with atomic_file(url, overwrite=overwrite) as partial:
        partial.write_text("".join(f"{version},{number}\n" for number in range(attacks.LINES)))
        yield


KINDS: dict[str, Callable[..., AbstractContextManager[None]]] = {"store": store, "file": file}


def complete(writing: AbstractContextManager[None]) -> None:
    with writing:
        pass


def names(url: str) -> list[str]:
    return sorted(StrictObjectStore(url).names())


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_two_to_end_has_written(kind: str, existing: bool, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, write = f"{bucket}/x", KINDS[kind]
    monkeypatch.setattr(Writer, "lives", lambda _: None)
    if existing:
        complete(write(url, 0, overwrite=False))
    with pytest.raises(StoreError, match="x has been changed by another writer since this one began"), write(url, 1, overwrite=existing):
        complete(write(url, 2, overwrite=existing))
    assert attacks.read(kind, url) == {2}
    with pytest.raises(StoreError, match="exists already"):
        complete(write(url, 3, overwrite=False))
    if kind == "store":
        assert names(url) == sorted([str(current_version(url)).rpartition("/")[2], "zarr.json"])


def test_a_replaced_store_is_there_until_the_new_one_is_complete(bucket: str) -> None:
    url = f"{bucket}/x"
    complete(store(url, 1, overwrite=False))
    with store(url, 2, overwrite=True):
        assert attacks.read("store", url) == {1}
        with pytest.raises(StoreError, match="x is being written by process"):
            complete(store(url, 3, overwrite=True))
    assert attacks.read("store", url) == {2}
    with pytest.raises(ZeroDivisionError), store(url, 3, overwrite=True):
        raise ZeroDivisionError
    assert attacks.read("store", url) == {2}
    assert len(names(url)) == 2
    remove(url)
    assert names(url) == []
    with store(url, 3, overwrite=False), pytest.raises(StoreError, match=r"x does not exist, .*; it is being written by process"):
        open_group(url, "dataset")


def test_what_killed_writers_have_left_is_removed(bucket: str) -> None:
    url, ended = f"{bucket}/x", f"{host()}.{os.getppid()}.1.1700000000000000000"
    elsewhere = "node7.5a1f3f0e.4026531836.12.34.1700000000000000000"
    for name in (f"version-{ended}", f"scratch-{ended}", f"version-{elsewhere}"):
        zarr.create_group(open_store(f"{url}/{name}"))
    assert not exists(url)
    with scratch_store(url) as scratch:
        zarr.create_group(scratch)
        complete(store(url, 1, overwrite=False))
        assert len(names(url)) == 4
    assert names(url) == sorted([str(current_version(url)).rpartition("/")[2], f"version-{elsewhere}", "zarr.json"])


def test_a_copy_of_a_local_store_is_read_and_replaced_and_copied_back(bucket: str, tmp_path: Path) -> None:
    url, local = f"{bucket}/x", tmp_path / "x"
    with create_group(local, "dataset") as group:
        write_array(group, "a", np.full(3, 1), ("a",))
        write_array(group, "b", np.full(3, 1), ("b",))
    copies = StrictObjectStore(url)
    for each in local.rglob("*"):
        if each.is_file():
            assert copies.replace(each.relative_to(local).as_posix(), each.read_bytes(), None)
    assert attacks.read("store", url) == {1}
    complete(store(url, 2, overwrite=True))
    assert attacks.read("store", url) == {2}
    assert len(names(url)) == 2
    for key in list(copies.keys()):
        found = copies.read(key)
        assert found is not None
        (tmp_path / "y" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "y" / key).write_bytes(found[0])
    assert attacks.read("store", tmp_path / "y") == {2}


@pytest.mark.parametrize("name", ["../x", "/etc", "a", "version-x/../../y", 3])
def test_a_forged_name_of_a_version_leads_nowhere(name: Any, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"dfact": {"kind": "dataset", "current": name}}}
    (tmp_path / "x" / "zarr.json").write_text(json.dumps(document))
    assert current_version(tmp_path / "x") == tmp_path / "x"
    with pytest.raises(StoreError, match="format version None"):
        open_group(tmp_path / "x", "dataset")


@pytest.mark.further
def test_a_model_is_updated_and_annotated_in_place(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, rng = f"{bucket}/m.model", np.random.default_rng(0)
    dfact.save_model(dfact.PCA(K).fit(dfact.import_array(rng.random((40, M)), tmp_path / "a.zarr")), url)
    dfact.import_array(rng.random((10, M)), tmp_path / "b.zarr")
    assert main(["update", url, str(tmp_path / "b.zarr")]) == 0
    first, second = dfact.load_model(url), dfact.load_model(url)
    assert first.growth_.added_rows == 10
    first.partial_fit(rng.random((5, M)))
    dfact.save_model(first, url, overwrite=True)
    np.asarray(first.factors_)  # they lie in the new version
    second.stability_ = stability(1.0)
    for change in (lambda: dfact.save_model(second, url, overwrite=True), lambda: annotate_model(url, second, "stability_")):
        with pytest.raises(StoreError, match="has been changed by another writer since this model was read from it"):
            change()
    for value in (1.0, 2.0):
        first.stability_ = stability(value)
        annotate_model(url, first, "stability_")
        assert dfact.load_model(url).stability_.mean[0, 0] == value
    assert dfact.load_model(url).growth_.added_rows == 15
    assert "b.zarr" not in capsys.readouterr().err


@pytest.mark.needs("batch")
def test_of_two_processes_that_begin_a_job_one_has_it(bucket: str) -> None:
    from dfact.batch.record import Record

    first, second = Record(f"{bucket}/state"), Record(f"{bucket}/state")
    first.claim()
    with pytest.raises(StoreError, match="has been changed by another writer"):
        second.claim()
    assert first.is_owner()
    first.claim()


def test_a_request_that_was_repeated_is_no_other_writer(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer was lost, and the second one says that the object has changed."""
    put = zarr_stores.put_if

    def repeated(*given: Any) -> Any:
        put(*given)
        return put(*given)

    monkeypatch.setattr(zarr_stores, "put_if", repeated)
    for version in (1, 2):
        complete(store(f"{bucket}/x", version, overwrite=True))
        assert attacks.read("store", f"{bucket}/x") == {version}


def test_an_answer_that_never_comes_does_not_remove_what_is_in_place(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = zarr_stores.put_if

    def lost(*given: Any) -> Any:
        put(*given)
        raise StoreError("the connection is lost")

    monkeypatch.setattr(zarr_stores, "put_if", lost)
    with pytest.raises(StoreError, match="the connection is lost"):
        complete(store(f"{bucket}/x", 1, overwrite=True))
    assert attacks.read("store", f"{bucket}/x") == {1}


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("n_writers", [2, 3, 8])
@pytest.mark.parametrize(
    ("kind", "overwrite", "existing"), [("store", True, True), ("store", False, False), ("file", True, True), ("model", True, True)]
)
def test_killed_writers_leave_one_version(kind: str, overwrite: bool, existing: bool, n_writers: int, bucket: str, server: int) -> None:
    plan = attacks.Round(kind, n_writers, overwrite=overwrite, existing=existing, kills=True, seed=n_writers)
    assert attacks.attack(plan, f"{bucket}/x", settings(server)).notes == []
