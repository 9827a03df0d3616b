"""Messages between sites and a coordinator: a JSON object and named arrays of numbers. No code, no pickle.

A message is the length of its header (8 bytes, little-endian), the header as JSON in UTF-8, and the bytes of the arrays, one after
the other. The header has the fields of the message, and type and shape of each array.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import FederationError

MAX_BYTES = 1 << 31
"""Default size of the largest message that is read."""
_MAX_HEADER = 1 << 25  # labels and codebooks of a million columns; JSON of many empty lists takes twenty times as much memory
_MAX_DEPTH = 12  # of lists and objects within one another
_MAX_TEXT = 2000  # characters of the words of another participant
_MAX_ARRAYS = 1 << 16
_MAX_MODES = 8
_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")  # half of a character, which no output can encode
_TYPES = {np.dtype(name).str for name in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")}


@dataclass(frozen=True)
class Message:
    """Fields that JSON can hold, and arrays."""

    fields: Mapping[str, Any]
    arrays: Sequence[NDArray[Any]] = field(default=())

    def get(self, name: str, kind: type) -> Any:
        """Return a field of this type; raise FederationError if it is another or missing."""
        value = self.fields.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FederationError(f"a message has the {name} {short(value)}, expected a value of type {kind.__name__}")
        return value

    def words(self, name: str) -> str:
        """Return a text of another participant for a terminal or an error: printable, and not too long."""
        text: str = self.get(name, str)[:_MAX_TEXT]
        return "".join(letter if letter.isprintable() else " " for letter in text)

    def encode(self) -> bytes:
        """Return the message as bytes."""
        arrays = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in map(np.asarray, self.arrays)]
        assert all(array.dtype.str in _TYPES for array in arrays), "messages hold numbers"
        described = [[array.dtype.str, list(array.shape)] for array in map(np.asarray, self.arrays)]
        header = json.dumps({"fields": self.fields, "arrays": described}, ensure_ascii=False).encode()
        return b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in arrays)])

    @classmethod
    def decode(cls, data: bytes | memoryview, max_bytes: int = MAX_BYTES) -> "Message":
        """Read a message; raise FederationError if it is larger than ``max_bytes``, or anything else than :meth:`encode` returns."""
        view = memoryview(data)
        if len(view) > max_bytes:
            raise FederationError(f"a message has {len(view)} bytes, expected at most {max_bytes}")
        size = int.from_bytes(view[:8], "little") if len(view) >= 8 else -1
        if not 0 <= size <= min(_MAX_HEADER, len(view) - 8):
            raise FederationError(f"a message of {len(view)} bytes has a header of {size} bytes, expected one within the message")
        header = _parse(bytes(view[8 : 8 + size]))
        arrays, start = [], 8 + size
        for dtype, shape in _described(header.get("arrays")):
            stop = start + prod(shape) * dtype.itemsize
            if stop > len(view):
                raise FederationError(f"a message ends after {len(view)} bytes, within an array of shape {shape}")
            try:
                arrays.append(np.frombuffer(view[start:stop], dtype).reshape(shape))
            except ValueError as error:  # an empty array whose other modes are too long
                raise FederationError(f"a message has an array of shape {shape}, which no process can hold") from error
            start = stop
        if start != len(view):
            raise FederationError(f"a message has {len(view) - start} bytes after its arrays, expected none")
        return cls(header["fields"], arrays)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        if _SURROGATE.search(text):
            raise ValueError("a text has half of a character")
        header = json.loads(text)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, and numbers of thousands of digits
        raise FederationError(f"the header of a message is not JSON: {type(error).__name__}") from error
    if not isinstance(header, dict) or not isinstance(header.get("fields"), dict) or header.keys() != {"fields", "arrays"}:
        raise FederationError("the header of a message has other members than fields and arrays")
    nested: list[Any] = [header["fields"]]
    for _ in range(_MAX_DEPTH):
        parts = (each.values() if isinstance(each, dict) else each for each in nested)
        nested = [value for values in parts for value in values if isinstance(value, (dict, list))]
    if nested:
        raise FederationError(f"the fields of a message are nested deeper than {_MAX_DEPTH} times")
    return header


def _described(arrays: Any) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return type and shape of each array as a header describes it."""
    if not isinstance(arrays, list) or len(arrays) > _MAX_ARRAYS:
        raise FederationError(f"a message describes its arrays as {short(arrays)}, expected a list of at most {_MAX_ARRAYS}")
    described = []
    for each in arrays:
        dtype, shape = each if isinstance(each, list) and len(each) == 2 else (None, None)
        known = isinstance(dtype, str) and dtype in _TYPES
        if not known or not isinstance(shape, list) or len(shape) > _MAX_MODES or not all(_is_size(length) for length in shape):
            raise FederationError(f"a message describes an array as {short(each)}, expected the type of a number, and a shape")
        described.append((np.dtype(dtype), tuple(shape)))
    return described


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def short(value: Any) -> str:
    """Return a value of another participant for an error."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
