"""What tests ask of children that parse files; a parser with this module may call it there. Nothing here imports a test."""

import os
import signal
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any

from dfact.formats.isolation.parsers import Parser, parse
from dfact.storage.input_files import InputFile

READER = Parser("Reader", (__name__,))


def same(value: Any) -> Any:
    """Return the value."""
    return value


def raised(error: Exception) -> None:
    """Raise an error."""
    raise error


def failed(text: str) -> None:
    """End the process as a library does that gives up."""
    os.write(2, f"{text}\n".encode())
    os._exit(3)


def aborted() -> None:
    """End the process as a library does that cannot allocate memory."""
    os.abort()


def signalled(number: int) -> None:
    """End the process with a signal."""
    signal.raise_signal(number)


def ended(code: int) -> None:
    """End the process with a code."""
    os._exit(code)


def zeros(n_bytes: int) -> int:
    """Take memory; return how much."""
    return len(bytearray(n_bytes))


def endless() -> None:
    """Compute without an end."""
    sum(count())


def pids() -> Iterator[int]:
    """Yield the number of this process without an end."""
    while True:
        yield os.getpid()


def numbers(start: int, stop: int) -> Iterator[int]:
    """Yield numbers."""
    yield from range(start, stop)


def environment(name: str) -> tuple[str | None, Path]:
    """Return a variable of the environment, and the folder."""
    return os.environ.get(name), Path.cwd()


def server() -> int:
    """Return the number of the process that has started this one."""
    return os.getppid()


def printed(text: str) -> None:
    """Print a text as a library in C does."""
    os.write(1, text.encode())


def content(file: InputFile) -> bytes:
    """Return what a file holds."""
    with file.open() as stream:
        return stream.read()


def written(data: bytes) -> None:
    """Send bytes to the parent in place of a message."""
    for descriptor in range(3, 100):
        try:
            connection = socket(fileno=os.dup(descriptor))
            connection.getpeername()
        except OSError:
            continue
        connection.sendall(data)
    os._exit(0)


def parsed(connection: Connection, path: str) -> None:
    """Send the size of a file, which a child of this process reads."""
    file = InputFile(Path(path), "x")
    connection.send(len(parse(file, READER, content, file)))
