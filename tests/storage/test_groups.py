"""Zarr groups: only complete ones of the expected kind and format version are opened."""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dfact.errors import StoreError
from dfact.storage.arrays import write_array
from dfact.storage.groups import ATTRIBUTE, FORMAT_VERSION, create_group, is_complete, kind_at, open_group
from dfact.storage.zarr_stores import StrictLocalStore


def attributes(path: Path, **changes: Any) -> None:
    """Change dfact's attributes of the group at ``path``."""
    group = zarr.open_group(path, mode="r+")
    stored: Any = group.attrs[ATTRIBUTE]
    group.attrs[ATTRIBUTE] = {**stored, **changes}


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("dataset", "import it again"),
        ("model", "fit it again"),
        ("checkpoint of a fit", "delete it to start over"),
        ("job", "delete it to run all steps of the job again"),
        ("factors", "write it again with this version of dfact"),
    ],
)
@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, None])
def test_other_format_version_is_refused_with_the_remedy(tmp_path: Path, kind: str, remedy: str, version: int | None) -> None:
    with create_group(tmp_path / "x", kind) as group:
        write_array(group, "a", np.arange(3), ("a",))
    assert open_group(tmp_path / "x", kind)["a"].shape == (3,)
    attributes(tmp_path / "x", format=version)
    if version == FORMAT_VERSION + 1:
        remedy = "a later version of dfact wrote it: upgrade dfact"
    message = f"x has format version {version}, expected {FORMAT_VERSION}; {remedy}"
    with pytest.raises(StoreError, match=re.escape(message)):
        open_group(tmp_path / "x", kind)


def test_incomplete_group_is_refused(tmp_path: Path) -> None:
    with create_group(tmp_path / "x", "dataset"):
        pass
    attributes(tmp_path / "x", complete=False)
    assert kind_at(tmp_path / "x") == "dataset"
    assert not is_complete(tmp_path / "x")
    with pytest.raises(StoreError, match="x is incomplete: its writer was interrupted; write it again"):
        open_group(tmp_path / "x", "dataset")


def test_failed_writer_leaves_the_existing_group(tmp_path: Path) -> None:
    with create_group(tmp_path / "x", "dataset") as group:
        write_array(group, "a", np.arange(3), ("a",))
    with pytest.raises(ZeroDivisionError), create_group(tmp_path / "x", "dataset", overwrite=True):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    array: Any = open_group(tmp_path / "x", "dataset")["a"]
    np.testing.assert_array_equal(array[:], np.arange(3))


@pytest.mark.parametrize("key", ["../secret", "inner/../../secret", "ABSOLUTE", "file", "inner/folder/secret"])
def test_keys_and_links_that_lead_out_of_a_store_are_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret").write_text("of others")
    (tmp_path / "x" / "inner").mkdir(parents=True)
    (tmp_path / "x" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "x" / "inner" / "folder").symlink_to("../..")
    store = StrictLocalStore(tmp_path / "x")
    with pytest.raises(StoreError, match="is a link that leads out of its folder"):
        asyncio.run(store.get(key.replace("ABSOLUTE", str(tmp_path / "secret"))))
