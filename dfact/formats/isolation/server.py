"""The server that forks a child for each request to parse a file.

It is a single thread that has imported the parsers, so a fork is safe and takes milliseconds. A request comes with three descriptors: the
connection for its arguments and results, the pipe for the exit code of the child, and a file for what the parser prints.
"""

import gc
import importlib
import os
import resource
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from socket import recv_fds, socket
from struct import Struct
from typing import Any, Literal, NamedTuple

import psutil

from dfact.errors import DfactError
from dfact.formats.isolation.messages import receive, send
from dfact.storage.input_files import remove_copies

_FILES = 256
_WRITTEN_BYTES = 1 << 28
EXIT_CODE = Struct("<i")
"""The exit code of a child, negative for a signal, as bytes."""

is_child = False
"""Whether this process is such a child, which calls parsers itself."""


class Request(NamedTuple):
    """A call of a parser, and its limits."""

    function: str
    """Its module and name, such as ``dfact.formats.r:_open_table``."""
    arguments: tuple[Any, ...]
    several: bool
    """Whether the function yields several results."""
    modules: tuple[str, ...]
    """Modules of the parser, which the server imports; those outside dfact whose functions may be called."""
    memory: int
    """Bytes of memory besides those that the child has when it starts."""
    seconds: int
    """Seconds of computation for each result."""
    folder: str
    environment: dict[str, str]


Reply = tuple[Literal["result", "error", "memory", "end"], Any]
"""A result of a child, its error, a lack of memory, or the end of its results, with its value, which only the first two have."""


@dataclass
class _Child:
    pid: int
    connection: socket
    ending: int
    """Pipe to the parent for its exit code."""
    alive: int
    """Pipe that is closed when it ends."""

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.alive, self.connection.fileno()

    def finish(self) -> None:
        """End the child, which has ended or whose parent has closed the connection, and report how it ended."""
        os.kill(self.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            os.write(self.ending, EXIT_CODE.pack(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])))
        self.close()

    def close(self) -> None:
        self.connection.close()
        os.close(self.ending)
        os.close(self.alive)


def serve(descriptor: int) -> None:
    """Serve requests until the parent closes the socket ``descriptor``, or ends; its children end with it."""
    warnings.simplefilter("ignore")  # of libraries about damaged files, and of Arrow's thread, which frees memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and closes the connection
    control, children, events = socket(fileno=descriptor), list[_Child](), select.poll()
    events.register(control, select.POLLIN)
    while True:
        for found, _ in events.poll():  # new requests come first, so that none takes the descriptor of a child that has ended
            if found == descriptor:
                _, descriptors, _, _ = recv_fds(control, 1, 3)
                if not descriptors:
                    for child in children:
                        os.kill(child.pid, signal.SIGKILL)
                    os._exit(0)
                new = _start(descriptors, [control, *children])
                if new is not None:
                    children.append(new)
                    events.register(new.alive, 0)  # both report only that the other end is closed
                    events.register(new.connection, 0)
            elif ended := [child for child in children if found in child.descriptors]:
                children.remove(ended[0])
                for each in ended[0].descriptors:
                    events.unregister(each)
                ended[0].finish()


def _start(descriptors: Sequence[int], others: list[Any]) -> _Child | None:
    """Fork a child for a request; return None if there is none, since the parent has closed the connection or it is invalid."""
    connection, ending, output = descriptors
    channel, child = socket(fileno=connection), None
    try:
        request = Request(*receive(channel, sys.maxsize))
        for module in request.modules:
            importlib.import_module(module)
        function = _find(request)  # imports its module, which else each child would do
        gc.freeze()  # else a collection in the child would copy the memory that it shares
        alive, held = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run(request, function, channel, output, others)
        os.close(held)
        child = _Child(pid, channel, ending, alive)
    except Exception as error:
        with suppress(OSError):
            send(channel, ("error", error))
    os.close(output)
    if child is None:
        channel.close()
        os.close(ending)
    return child


def _run(request: Request, function: Callable[..., Any], connection: socket, output: int, others: list[Any]) -> None:
    """Call the parser in the child, and end it."""
    code = 1
    try:
        for each in others:  # else the parents of other children would not learn of their ends
            each.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        reply = _reply(request, function, connection)
        remove_copies()
        send(connection, reply)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reply(request: Request, function: Callable[..., Any], connection: socket) -> Reply:
    global is_child  # noqa: PLW0603  # a fact about the process
    is_child = True
    _limit(resource.RLIMIT_NOFILE, _FILES)
    _limit(resource.RLIMIT_FSIZE, _WRITTEN_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, psutil.Process().memory_info().vms + request.memory)
    _limit_time(request.seconds)
    try:
        found = function(*request.arguments)
        for result in found if request.several else [found]:
            send(connection, ("result", result))
            _limit_time(request.seconds)
    except BaseException as error:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # the reply takes memory
        if isinstance(error, MemoryError) and not isinstance(error, DfactError):
            return "memory", None
        return "error", error
    return "end", None


def _find(request: Request) -> Callable[..., Any]:
    module = request.function.partition(":")[0]
    if not module.startswith("dfact.") and module not in request.modules:
        raise ValueError(f"{request.function} is not a function of dfact or of {request.modules}")
    found: Callable[..., Any] = resolve_name(request.function)
    return found


def _limit(kind: int, size: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _limit_time(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
