"""Calls of parsers in child processes.

Files come from strangers, and libraries in C crash, never end or take all memory on some that are damaged. A child has limits, so that
neither harms the import: a child that ends without an answer is a DataError. It has the rights of its user: this is not a protection
from files that are made to run code.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import send_fds, socket, socketpair
from tempfile import TemporaryFile
from types import MethodType
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dfact.data import memory_limit
from dfact.errors import DataError
from dfact.formats.isolation import server
from dfact.formats.isolation.messages import MessageError, receive, send
from dfact.formats.isolation.server import EXIT_CODE, Request
from dfact.storage.input_files import InputFile

T = TypeVar("T")
_SECONDS = 10
_SECONDS_PER_BYTE = 2e-5
"""Computation for each byte of a file: many times that of the slowest parser, also of compressed files."""
_MOST_OUTPUT = 200
_LEAST_MESSAGE = 1 << 24
"""Bytes of a message that are accepted whatever the limit of memory."""
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve address space, which counts towards the limit
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from dfact.formats.isolation.server import serve; serve(int(sys.argv[1]))"


class Parser(NamedTuple):
    """A library that parses files: its name in messages, and the modules to import before a child is forked.

    A child calls functions of these modules, and of dfact's own.
    """

    name: str
    modules: tuple[str, ...] = ()

    def in_child(self, open_file: Callable[..., T]) -> Callable[[InputFile, Any], T]:
        """Return the function of a format that opens its files in a child."""

        def open_in_child(file: InputFile, options: Any) -> T:
            return parse(file, self, open_file, file, options)

        return open_in_child


def parse(file: InputFile, parser: Parser, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a child, and return its result; its errors are raised here.

    Raises DataError if the child crashes, or exceeds a limit.
    """
    if server.is_child:
        return function(*arguments)
    result: T
    [result] = _results(file, parser, function, arguments, several=False)
    return result


def parse_rows(file: InputFile, parser: Parser, function: Callable[..., Iterator[T]], *arguments: Any) -> Iterator[T]:
    """Call a function in a child, and yield what it yields; see :func:`parse`. The child waits while nothing is taken from it."""
    return function(*arguments) if server.is_child else _results(file, parser, function, arguments, several=True)


def _results(file: InputFile, parser: Parser, function: Callable[..., Any], arguments: tuple[Any, ...], *, several: bool) -> Iterator[Any]:
    name = f"{function.__module__}:{function.__qualname__}"
    if isinstance(function, MethodType):
        arguments = function.__self__, *arguments
    memory = int(memory_limit.half_of_free_memory())
    seconds = _SECONDS + int(_SECONDS_PER_BYTE * file.signature()[0])
    request = Request(name, arguments, several, parser.modules, memory, seconds, str(Path.cwd()), dict(os.environ))
    with ExitStack() as opened:
        connection, theirs = socketpair()
        opened.enter_context(connection)
        reading, writing = os.pipe()
        ending = opened.enter_context(os.fdopen(reading, "rb"))
        output = opened.enter_context(TemporaryFile())
        try:
            with theirs, os.fdopen(writing, "wb"):
                _server.give(theirs.fileno(), writing, output.fileno())
            send(connection, tuple(request))
            while (reply := _receive_reply(connection, memory))[0] == "result":
                yield reply[1]
                del reply  # before the next result is received
        except MessageError as error:
            raise _refused(file, parser, f"sent an invalid result ({error})") from error
        except (EOFError, ConnectionError):
            code = ending.read()
            reply = "error", _died(file, parser, EXIT_CODE.unpack(code)[0] if code else None, output, request)
        if reply[0] == "memory":
            raise _refused(file, parser, "requires more memory than it may take", request.memory)
        if reply[0] == "error":
            raise reply[1]


def _receive_reply(connection: socket, memory: int) -> tuple[str, Any]:
    """Receive a reply of a child with this limit of memory: its kind and its value, of which an error is one."""
    match receive(connection, max(memory, _LEAST_MESSAGE)):
        case ("result" | "memory" | "end" as kind, value):
            return kind, value
        case ("error", Exception() as error):
            return "error", error
    raise MessageError("not a reply")


def _died(file: InputFile, parser: Parser, code: int | None, output: BinaryIO, request: Request) -> DataError:
    output.seek(0)
    lines = output.read().decode(errors="replace").split("\n")
    printed = next((f" ({line.strip()[-_MOST_OUTPUT:]})" for line in reversed(lines) if line.strip()), "")
    if code == -signal.SIGXCPU:
        return _refused(file, parser, f"does not end within {request.seconds} s of computation")
    if code == -signal.SIGKILL:
        return _refused(file, parser, "was killed, as the system does when memory runs out", request.memory)
    if code == -signal.SIGABRT:  # libraries in Rust and C++ abort where memory cannot be allocated
        return _refused(file, parser, f"stopped with SIGABRT{printed}", request.memory)
    if code is None:
        return DataError(f"{file.name} cannot be read: the process that starts its parser {parser.name} has ended; try again")
    return _refused(file, parser, f"{f'crashed with {signal.Signals(-code).name}' if code < 0 else f'exited with code {code}'}{printed}")


def _refused(file: InputFile, parser: Parser, found: str, memory: int | None = None) -> DataError:
    """Return the error for a file, whose parser may have reached its limit of memory."""
    limit = "" if memory is None else f", or takes more than the {memory / 2**30:.1f} GiB of memory that are half of what is free"
    remedy = f"the file is damaged{limit}: export it again, or in another format, such as csv or parquet"
    return DataError(f"{file.name} cannot be read: its parser {parser.name} {found}; {remedy}")


class _Server:
    """The server of this process, which the first request starts, and which ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket | None = None

    def give(self, *descriptors: int) -> None:
        """Send the descriptors of a request."""
        with self._lock:
            if self._control is None or self._process is None or self._process.poll() is not None:
                self.close()
                self._control, theirs = socketpair()
                command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
                with theirs:
                    self._process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**os.environ, **_ENVIRONMENT}
                    )
            send_fds(self._control, [b"\0"], descriptors)

    def close(self) -> None:
        """End the server."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()

    def leave(self) -> None:
        """Leave the server to the process from which this one was forked."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # it is not a child of this process, so there is nothing to wait for
        self._lock, self._process, self._control = threading.Lock(), None, None  # another thread may have held the lock


_server = _Server()
atexit.register(_server.close)
os.register_at_fork(after_in_child=_server.leave)
