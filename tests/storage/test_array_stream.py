"""Arrays in a stream are read unchanged, in their memory order."""

import io
from pathlib import Path

import numpy as np
import pytest
import zarr

from dfact.storage import array_stream
from tests.suites.arrays import ARRAYS


@pytest.mark.parametrize("segment", [1, 7, 100, 1 << 20])
def test_streams_are_read_unchanged(segment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ast.parse", None)
    monkeypatch.setattr(array_stream, "_SEGMENT_BYTES", segment)
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w").create_group("a")
    writer = array_stream.StreamWriter(group, "s")
    for array in ARRAYS.values():
        writer.append(array)
    found = list(array_stream.read_stream(group, "s", writer.close()))
    for array, expected in zip(found, ARRAYS.values(), strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)
        assert array.flags.f_contiguous == expected.flags.f_contiguous


@pytest.mark.parametrize("name", ARRAYS)
def test_encoded_size_is_that_of_the_written_bytes(name: str) -> None:
    file = io.BytesIO()
    array_stream.write_array(file, ARRAYS[name])
    assert array_stream.encoded_size(ARRAYS[name]) == len(file.getvalue())


@pytest.mark.parametrize("path", ["", "inner"])
def test_stream_lies_in_its_store(path: str, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "store.zarr", path=path, mode="w")
    writer = array_stream.StreamWriter(group, "stream")
    writer.append(np.arange(5))
    checksums = writer.close()
    assert (tmp_path / "store.zarr" / path / "stream" / "0").is_file()
    [found] = array_stream.read_stream(group, "stream", checksums)
    np.testing.assert_array_equal(found, np.arange(5))
