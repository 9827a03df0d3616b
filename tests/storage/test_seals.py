"""Seals of stores: what is read must be what was sealed. The stores of datasets have further tests in their suite."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zarr

from dfact.errors import StoreError
from dfact.storage.arrays import member, read_array, write_array
from dfact.storage.groups import create_group, open_group, update_attributes
from dfact.storage.seals import seal


@contextmanager
def sealed_group(path: Path) -> Iterator[zarr.Group]:
    with create_group(path, "dataset") as group:
        yield group
        update_attributes(group, seal=seal(group))


def write(path: Path) -> np.ndarray:
    values = np.arange(77.0).reshape(7, 11)
    with sealed_group(path) as group:
        write_array(group, "a", values, ("x", "y"), chunks=(2, 3))
        write_array(group.create_group("b"), "c", values[0], ("y",))
        write_array(group, "empty", values[:0, 0], ("x",))
    return values


def test_a_sealed_store_is_read(tmp_path: Path) -> None:
    values = write(tmp_path / "s")
    group = open_group(tmp_path / "s", "dataset")
    np.testing.assert_array_equal(read_array(group, "a", values.shape), values)
    np.testing.assert_array_equal(read_array(group, "b/c", (11,)), values[0])
    assert read_array(group, "empty", (0,)).shape == (0,)
    assert member(group, "d") is None


def test_each_chunk_has_its_own_place(tmp_path: Path) -> None:
    values = write(tmp_path / "s")
    places = [f"c/{i}/{j}" for i in range(4) for j in range(4)]
    for one, other in pairwise(places):
        first, second = tmp_path / "s" / "a" / one, tmp_path / "s" / "a" / other
        before = first.read_bytes()
        first.write_bytes(second.read_bytes())
        with pytest.raises(StoreError, match=rf"cannot read array 'a' of .*: its chunk a/{one} has the checksum \w{{8}}, expected \w{{8}}"):
            read_array(open_group(tmp_path / "s", "dataset"), "a", values.shape)
        first.write_bytes(before)


def test_an_array_of_another_version_does_not_belong_to_the_store(tmp_path: Path) -> None:
    write(tmp_path / "s")
    write_array(zarr.open_group(tmp_path / "s", mode="r+", use_consolidated=False), "added", np.ones(3), ("x",))
    with pytest.raises(StoreError, match=r"array 'added' of .*: its added/zarr.json has the checksum \w+, expected none"):
        member(open_group(tmp_path / "s", "dataset"), "added")


@pytest.mark.parametrize("name", ["a", "b", "b/c"])
def test_lost_metadata_are_named(name: str, tmp_path: Path) -> None:
    write(tmp_path / "s")
    (tmp_path / "s" / name / "zarr.json").unlink()
    with pytest.raises(StoreError, match=f"its {name}/zarr.json is missing"):
        member(open_group(tmp_path / "s", "dataset"), name)


def test_a_damaged_seal_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "s")
    for value in ("x", {}, {"digest": "0"}):
        update_attributes(zarr.open_group(tmp_path / "s", mode="r+", use_consolidated=False), seal=value)
        with pytest.raises(StoreError, match=r"s: its attributes have the digest \w+, expected"):
            open_group(tmp_path / "s", "dataset")


def test_a_chunk_that_is_lost_before_the_seal_is_an_error(tmp_path: Path) -> None:
    def lose() -> None:
        with sealed_group(tmp_path / "s") as group:
            write_array(group, "a", np.ones(3), ("x",))
            (found,) = tmp_path.glob("s.incomplete-*/a/c/0")
            found.unlink()

    with pytest.raises(StoreError, match=r"a/c/0 of .* is missing, expected it to be left alone; run the same command again"):
        lose()
    assert not list(tmp_path.iterdir())


def test_a_checksum_ends_every_sealed_chunk(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the chunks of a end with their checksum"), sealed_group(tmp_path / "s") as group:
        group.create_array("a", data=np.ones(3))
