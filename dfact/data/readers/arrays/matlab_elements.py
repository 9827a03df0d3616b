"""A check of the elements of a MATLAB file of version 5 to 7, whose types SciPy looks up without a check: others end the process."""

import struct
import zlib
from typing import Any, BinaryIO

_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18}
"""Numbers of the types of values."""
_MATRIX, _COMPRESSED = 14, 15
_HEADER = 128
_PIECE = 1 << 16


class _Inflated:
    """The content of a compressed element."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._left, self._pieces = stream, size, zlib.decompressobj()

    def read(self, n: int) -> bytes:
        out = b""
        while len(out) < n and not self._pieces.eof:
            packed = self._pieces.unconsumed_tail
            if not packed:
                packed = self._stream.read(min(self._left, _PIECE))
                self._left -= len(packed)
                if not packed:
                    break
            out += self._pieces.decompress(packed, n - len(out))
        return out


def check_elements(stream: BinaryIO, name: str) -> None:
    """Raise ValueError unless the variables of this name consist of elements of known types, within at most one cell array."""
    stream.seek(_HEADER - 4)
    order = "<" if stream.read(4)[2:] == b"IM" else ">"
    while len(tag := stream.read(8)) == 8:
        kind, size = struct.unpack(f"{order}2I", tag)
        end = stream.tell() + size
        content: Any = stream
        if kind == _COMPRESSED:
            content = _Inflated(stream, size)
            kind, size = struct.unpack(f"{order}2I", _read(content, 8))
        if kind == _MATRIX:
            _check_matrix(content, order, size, name)
        stream.seek(end)


def _check_matrix(content: Any, order: str, size: int, name: str | None) -> None:
    """Check the elements of an array: its flags, shape and name come before its values. None stands for a cell of an array."""
    number = 0
    while size > 0:
        tag = _read(content, 8)
        kind, length = struct.unpack(f"{order}2I", tag)
        short = kind >> 16  # the length of an element within its tag
        kind, n_bytes = (kind & 0xFFFF, 0) if short else (kind, length)
        length = n_bytes + -n_bytes % 8
        size -= 8 + length
        if kind == _MATRIX and name is None:
            raise ValueError("a cell array holds cells within cells")
        if kind not in _TYPES and kind != _MATRIX:
            raise ValueError(f"element {number} of an array has the type {kind}")
        if kind == _MATRIX:
            _check_matrix(content, order, length, None)
        elif number == 2 and name is not None:
            text = tag[4 : 4 + short] if short else _read(content, length)[:n_bytes]
            if text and text.decode("latin-1") != name:
                return
        else:
            _skip(content, length)
        number += 1


def _read(content: Any, n: int) -> bytes:
    data: bytes = content.read(min(n, _PIECE))
    if len(data) < n:
        raise ValueError("the file ends within an array")
    return data


def _skip(content: Any, n: int) -> None:
    while n > 0:
        n -= len(_read(content, min(n, _PIECE)))
