"""Arrays in a stream are read unchanged, in their memory order."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from dfact.storage import array_stream

KINDS = st.sampled_from([np.dtype(name) for name in ("?", "i1", "<i8", ">i4", "<f4", "<f8", "<U3")])


@settings(max_examples=50)
@given(
    arrays=st.lists(arrays(KINDS, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)), max_size=4),
    order=st.sampled_from("CF"),
    step=st.integers(1, 2),
    segment=st.integers(1, 300),
)
def test_streams_are_read_unchanged(arrays: list[NDArray[Any]], order: Any, step: int, segment: int) -> None:
    given = [np.asarray(array, order=order)[..., ::step] if array.ndim else array for array in arrays]
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w").create_group("a")
    with mock.patch.object(array_stream, "_SEGMENT_BYTES", segment), mock.patch("ast.parse", None):
        writer = array_stream.StreamWriter(group, "s")
        for array in given:
            writer.append(array)
        found = list(array_stream.read_stream(group, "s", writer.close()))
    for array, expected in zip(found, given, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)
        assert array.flags.fnc == expected.flags.fnc  # by columns, and not also by rows
    assert writer.size == sum(map(array_stream.encoded_size, given))


@pytest.mark.parametrize("path", ["", "inner"])
def test_stream_lies_in_its_store(path: str, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "store.zarr", path=path, mode="w")
    writer = array_stream.StreamWriter(group, "stream")
    writer.append(np.arange(5))
    checksums = writer.close()
    assert (tmp_path / "store.zarr" / path / "stream" / "0").is_file()
    [found] = array_stream.read_stream(group, "stream", checksums)
    np.testing.assert_array_equal(found, np.arange(5))
