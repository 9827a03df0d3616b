"""Messages through a socket: values as JSON, which names no code to run, and raw buffers for arrays, bytes and Arrow data.

A message is the length of its JSON, the JSON, and the buffers, whose sizes the JSON lists. In the JSON, numbers, texts, booleans, None
and lists stand for themselves; every other value is an object with one key, which names its kind. A damaged file may take over the
process that reads it, which may then send anything: :class:`MessageError` is raised for all that is not a message or is too large.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from socket import socket
from struct import Struct
from traceback import format_exception
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dfact import errors
from dfact.errors import DfactError
from dfact.lazy import sp

_READERS, _FORMATS = "dfact.imports.readers.", "dfact.formats."
_CLASSES = (
    "dfact.data.sources.array:LabelledArray",
    "dfact.storage.input_files:InputFile",
    f"{_FORMATS}hdf5_arrays:HDF5CSCSource",
    f"{_FORMATS}hdf5_arrays:HDF5CSRSource",
    f"{_FORMATS}hdf5_arrays:HDF5Source",
    f"{_FORMATS}netcdf:NetCDFSource",
    f"{_READERS}base:MissingCodes",
    f"{_READERS}base:ReadOptions",
    f"{_READERS}base:Variable",
    f"{_FORMATS}r:RTable",
    f"{_FORMATS}spreadsheet:SheetTable",
    f"{_FORMATS}statistical.readstat:Dates",
    f"{_FORMATS}statistical.readstat:StatisticalFile",
    f"{_FORMATS}statistical.readstat:StatisticalTable",
    f"{_FORMATS}statistical.readstat:_Rows",
    f"{_FORMATS}statistical.sas:_Member",
    f"{_FORMATS}statistical.sas:_TransportFile",
)
"""The classes whose instances are sent, as their attributes."""
_BUILTIN_ERRORS: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, RuntimeError, NotImplementedError)
"""Exceptions that are sent as they are, as are those of dfact; others become the nearest of them, or a RuntimeError."""
_ERRORS = {each.__name__: each for each in _BUILTIN_ERRORS}
_ERRORS |= {name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, DfactError)}
_SPARSE = ("csr_array", "csc_array")
"""Names of SciPy's classes of sparse matrices."""
_KINDS = "biufcUSmM"
"""Kinds of the types of arrays that are sent as buffers."""
_LENGTH = Struct("<Q")


class MessageError(ValueError):
    """Bytes that do not form a message."""


def send(connection: socket, value: Any) -> None:
    """Send a value; wait while the other end has not received those before it. Raises TypeError for values of other kinds."""
    buffers = list[memoryview]()
    encoded = _encode(value, buffers)
    text = json.dumps([encoded, [buffer.nbytes for buffer in buffers]]).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for buffer in buffers:
        connection.sendall(buffer)


def receive(connection: socket, most: int) -> Any:
    """Receive a value of at most ``most`` bytes.

    Raises
    ------
    EOFError
        The other end has closed the connection.
    MessageError
        The bytes do not form a message, or are too many.
    """
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    _check_size(length, most)
    try:
        encoded, sizes = json.loads(bytes(_receive(connection, length)))
        _check_size(sum(sizes) + length if min(sizes, default=0) >= 0 else -1, most)
        return _decode(encoded, [_receive(connection, size) for size in sizes])
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # of any kind, as the bytes may be anything
        raise MessageError(str(error) or type(error).__name__) from error


def _check_size(size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise MessageError(f"{size} bytes, expected at most {most}")


def _receive(connection: socket, size: int) -> memoryview:
    buffer = np.empty(size, np.uint8).data  # unlike a bytearray, not filled with zeros first
    rest = buffer
    while rest:
        n = connection.recv_into(rest)
        if not n:
            raise EOFError
        rest = rest[n:]
    return buffer


def _encode(value: Any, buffers: list[memoryview]) -> Any:
    """Return a value as JSON, and append to ``buffers`` what is sent without a copy."""
    kind = type(value)
    if value is None or kind in (bool, int, float) or isinstance(value, str):
        return value
    if kind is list:
        return [_encode(each, buffers) for each in value]
    if kind is tuple:
        return {"tuple": _encode([*value], buffers)}
    if isinstance(value, dict):
        return {"dict": [[_encode(key, buffers), _encode(each, buffers)] for key, each in value.items()]}
    if kind in (np.ndarray, np.memmap) and value.dtype.kind == "O":
        return {"objects": [value.shape, value.ravel().tolist()]}
    if kind in (np.ndarray, np.memmap) and value.dtype.kind in _KINDS:
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return {"array": [value.dtype.str, value.shape, order, _append(buffers, value.ravel(order).view(np.uint8).data)]}
    if isinstance(value, np.generic):
        return {"scalar": _encode(np.asarray(value), buffers)}
    if kind in (bytes, bytearray):
        return {"bytes": _append(buffers, memoryview(value))}
    if isinstance(value, pa.RecordBatch | pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        return {"arrow": [_append(buffers, memoryview(sink.getvalue())), isinstance(value, pa.RecordBatch)]}
    if kind.__name__ in _SPARSE and kind.__module__.startswith("scipy.sparse"):
        return {"sparse": [kind.__name__, value.shape, *(_encode(each, buffers) for each in (value.data, value.indices, value.indptr))]}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if kind is slice:
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, BaseException):
        return {"error": _encode_error(value)}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if name not in _CLASSES:
        raise TypeError(f"a value of {name} cannot be sent")
    names = [each.name for each in fields(value)] if is_dataclass(value) else getattr(value, "_fields", None) or [*vars(value)]
    return {"instance": [name, {each: _encode(getattr(value, each), buffers) for each in names}]}


def _append(buffers: list[memoryview], buffer: memoryview) -> int:
    buffers.append(buffer)
    return len(buffers) - 1


def _encode_error(error: BaseException) -> Any:
    """Return an error of a known class, with its traceback unless it is meant for users; others become a RuntimeError."""
    text, notes = "".join(format_exception(error)), getattr(error, "__notes__", [])
    name = next((each.__name__ for each in type(error).__mro__ if each in _ERRORS.values()), None)
    if name is None or not all(isinstance(each, int | str | None) for each in error.args):
        return ["RuntimeError", [text], []]
    return [name, [*error.args], notes if isinstance(error, DfactError) else [*notes, f"In the process of the parser:\n{text}"]]


def _decode(encoded: Any, buffers: list[memoryview]) -> Any:
    if isinstance(encoded, list):
        return [_decode(each, buffers) for each in encoded]
    if not isinstance(encoded, dict):
        return encoded
    [(kind, content)] = encoded.items()
    return _DECODERS[kind](content, buffers)


def _decode_array(content: Any, buffers: list[memoryview]) -> Any:
    name, shape, order, number = content
    if min(shape, default=0) < 0:  # which NumPy accepts
        raise ValueError(f"an array of shape {shape}")
    return np.ndarray(tuple(shape), _decode_type(name, buffers), buffer=buffers[number], order=order)


def _decode_type(name: Any, _: list[memoryview]) -> Any:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise TypeError(f"an array of {dtype}")
    return dtype


def _decode_objects(content: Any, _: list[memoryview]) -> Any:
    shape, values = content
    if not all(each is None or isinstance(each, str | int | float) for each in values):
        raise TypeError("an array of objects, expected texts or numbers")
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _decode_arrow(content: Any, buffers: list[memoryview]) -> Any:
    number, is_batch = content
    with pa.ipc.open_stream(pa.py_buffer(buffers[number])) as reader:
        rows = reader.read_next_batch() if is_batch else reader.read_all()
    rows.validate(full=True)
    return rows


def _decode_sparse(content: Any, buffers: list[memoryview]) -> Any:
    name, shape, *members = content
    if name not in _SPARSE:
        raise ValueError(f"{name!r} is not a sparse matrix")
    matrix = getattr(sp, name)(tuple(_decode(each, buffers) for each in members), shape=tuple(shape))
    matrix.check_format(full_check=True)
    return matrix


def _decode_error(content: Any, _: list[memoryview]) -> Any:
    name, arguments, notes = content
    error = _ERRORS[name](*arguments)
    for note in notes:
        error.add_note(note)
    return error


def _decode_instance(content: Any, buffers: list[memoryview]) -> Any:
    name, attributes = content
    if name not in _CLASSES:
        raise TypeError(f"an instance of {name}")
    kind: Any = resolve_name(name)
    values = {key: _decode(each, buffers) for key, each in attributes.items()}
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(**values)
    instance = object.__new__(kind)
    vars(instance).update(values)
    return instance


_DECODERS: Mapping[str, Any] = {
    "tuple": lambda content, buffers: tuple(_decode(content, buffers)),
    "dict": lambda content, buffers: {_decode(key, buffers): _decode(each, buffers) for key, each in content},
    "array": _decode_array,
    "objects": _decode_objects,
    "scalar": lambda content, buffers: _decode(content, buffers)[()],
    "bytes": lambda number, buffers: bytes(buffers[number]),
    "arrow": _decode_arrow,
    "sparse": _decode_sparse,
    "path": lambda text, _: Path(text),
    "dtype": _decode_type,
    "slice": lambda content, _: slice(*content),
    "error": _decode_error,
    "instance": _decode_instance,
}
