"""Messages through a socket: Python objects, whose arrays are sent without a copy and whose Arrow data are sent as Arrow streams."""

import io
import pickle
from socket import socket
from typing import Any

import numpy as np
import pyarrow as pa


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, pa.RecordBatch | pa.Table):
            return NotImplemented
        sink = pa.BufferOutputStream()  # Arrow's own pickles hold all of an array of which a slice is sent
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        return _read_batch if isinstance(value, pa.RecordBatch) else _read_table, (pickle.PickleBuffer(sink.getvalue()),)


def _read_batch(stream: Any) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_next_batch()


def _read_table(stream: Any) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_all()


def send(connection: socket, value: Any) -> None:
    """Send an object; wait while the other end has not received those before it."""
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
    pieces = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    connection.sendall(np.uint32(len(pieces)).tobytes() + np.array([piece.nbytes for piece in pieces], np.uint64).tobytes())
    for piece in pieces:
        connection.sendall(piece)


def receive(connection: socket) -> Any:
    """Receive an object; raise EOFError if the other end has closed the connection."""
    (count,) = np.frombuffer(_receive(connection, 4), np.uint32)
    sizes = np.frombuffer(_receive(connection, 8 * int(count)), np.uint64).tolist()
    pickled, *buffers = [_receive(connection, size) for size in sizes]
    return pickle.loads(pickled, buffers=buffers)


def _receive(connection: socket, size: int) -> memoryview:
    buffer = np.empty(size, np.uint8).data  # unlike a bytearray, not filled with zeros first
    rest = buffer
    while rest:
        n = connection.recv_into(rest)
        if not n:
            raise EOFError
        rest = rest[n:]
    return buffer
