"""Parsers in child processes: results and errors arrive, crashes and limits become errors, and nothing is left running."""

import errno
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyreadstat
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.data import memory_limit
from dfact.errors import DataError, ParameterError
from dfact.formats.isolation import parsers
from dfact.formats.isolation.messages import MessageError, receive, send
from dfact.formats.isolation.parsers import parse, parse_rows
from dfact.imports.readers.base import MissingCodes, Variable
from dfact.storage.input_files import InputFile
from tests.data import forked
from tests.formats import parsed_functions as asked
from tests.formats.parsed_functions import READER

MESSAGE = struct.Struct("<Q")


@pytest.fixture
def file(tmp_path: Path) -> InputFile:
    path = tmp_path / "x.bin"
    path.write_bytes(b"content")
    return InputFile(path, path.name)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12)[::5],
        np.zeros((0, 3)),
        np.array(3, np.int16),
        np.array(["a", "é"]),
        np.array(["2024-01-01", "NaT"], "datetime64[ns]"),
        np.array([["a", None], ["\udce9", 1.5]], dtype=object),
    ],
    ids=["fortran", "strided", "empty", "scalar", "texts", "dates", "objects"],
)
def test_arrays_arrive_unchanged(value: NDArray[Any], file: InputFile) -> None:
    found = parse(file, READER, asked.same, value)
    assert_array_equal(found, value, strict=True)
    if value.ndim == 2:
        assert found.flags.f_contiguous == value.flags.f_contiguous


@pytest.mark.parametrize(
    "value",
    [
        pa.record_batch({"a": [1.5, None], "b": ["x", "é"]}).slice(1),
        pa.record_batch({"a": pa.array([], pa.string())}),
        pa.table({"a": pa.chunked_array([[1], [2, 3]])}),
        pa.table({"a": pa.array([], pa.int8())}),
    ],
    ids=["batch", "empty batch", "table", "empty table"],
)
def test_rows_arrive_unchanged(value: pa.Table | pa.RecordBatch, file: InputFile) -> None:
    found = parse(file, READER, asked.same, value)
    assert type(found) is type(value)
    assert found.equals(value)


@pytest.mark.parametrize("layout", [sp.csr_array, sp.csc_array])
def test_sparse_arrays_arrive_unchanged(layout: Any, file: InputFile) -> None:
    value = layout([[0, 1, 0], [2.5, 0, 3]])
    found = parse(file, READER, asked.same, value)
    assert type(found) is layout
    assert_array_equal(found.toarray(), value.toarray(), strict=True)


def test_other_values_arrive_unchanged(file: InputFile) -> None:
    value = {
        "bytes": b"0" * 3_000_000,
        1.5: (None, [True, -(10**30)], float("inf"), "\udce9"),
        "types": [np.dtype("<i2"), slice(1, None), Path("/a/b"), file],
        "variable": Variable("Q1", "number", labels={1.0: "a"}, missing=MissingCodes((1.0, "x"), ((2.0, 3.0),)), limits=(0.0, 9.0)),
    }
    assert parse(file, READER, asked.same, value) == value
    found = parse(file, READER, asked.same, np.float32(0.1))
    assert type(found) is np.float32
    assert found == np.float32(0.1)


def test_values_of_other_classes_are_not_sent(file: InputFile) -> None:
    for value in (Trap(), Trap, np.array([Trap()]), np.zeros(2, "i4,f8"), asked.same, {1}):
        with pytest.raises(TypeError):
            parse(file, READER, asked.same, value)


class Trap:
    """A class that no message may name."""


def test_functions_are_those_of_the_parser(file: InputFile) -> None:
    for function in (len, subprocess.run, forked.killed):
        with pytest.raises(ValueError, match="is not a function of dfact or of"):
            parse(file, READER, function, "")


def encoded(value: Any, *sizes: Any) -> bytes:
    text = json.dumps([value, sizes]).encode()
    return MESSAGE.pack(len(text)) + text


_STREAM = pa.BufferOutputStream()
with pa.ipc.new_stream(_STREAM, pa.schema([("a", pa.string())])) as _writer:
    _writer.write(pa.record_batch({"a": ["aaaa", "bbbb"]}))
_ROWS = _STREAM.getvalue().to_pybytes()
_OFFSETS = struct.pack("<3i", 0, 4, 8)
_MEMBERS = [{"array": [kind, [n], "C", i]} for i, (kind, n) in enumerate([("<f8", 1), ("<i4", 1), ("<i4", 2)])]
_CONTENT = struct.pack("<d3i", 1.0, 1 << 30, 0, 1)

INVALID = {
    "no JSON": MESSAGE.pack(3) + b"abc",
    "deep": MESSAGE.pack(200_001) + b"[" * 200_001,
    "long": MESSAGE.pack(1 << 62),
    "no sizes": MESSAGE.pack(1) + b"1",
    "large buffer": encoded(1, 1 << 62),
    "negative buffer": encoded(1, 99, -98),
    "many buffers": encoded(1, *[1 << 30] * 9),
    "text for a size": encoded(1, "9"),
    "unknown kind": encoded({"function": "os:abort"}),
    "two kinds": encoded({"path": "a", "tuple": []}),
    "unknown class": encoded({"instance": ["subprocess:Popen", {"args": "true"}]}),
    "class of dfact": encoded({"instance": ["dfact.formats.isolation.parsers:_Server", {}]}),
    "unknown field": encoded({"instance": ["dfact.imports.readers.base:MissingCodes", {"other": 1}]}),
    "unknown error": encoded({"error": ["SystemExit", ["1"], []]}),
    "notes": encoded({"error": ["ValueError", ["1"], [1]]}),
    "array without its buffer": encoded({"array": ["<f8", [1], "C", 0]}),
    "short array": encoded({"array": ["<f8", [2], "C", 0]}, 8) + bytes(8),
    "overflowing array": encoded({"array": ["<f8", [1 << 62, 1 << 62], "C", 0]}, 8) + bytes(8),
    "negative array": encoded({"array": ["<f8", [-1], "C", 0]}, 8) + bytes(8),
    "array of addresses": encoded({"array": ["|O", [1], "C", 0]}, 8) + bytes(8),
    "array of hidden addresses": encoded({"array": ["O,i8", [1], "C", 0]}, 16) + bytes(16),
    "objects": encoded({"objects": [[1], [{"path": "a"}]]}),
    "objects of another shape": encoded({"objects": [[3], ["a"]]}),
    "rows that end": encoded({"arrow": [0, True]}, 99) + _ROWS[:99],
    "rows with wrong offsets": encoded({"arrow": [0, True]}, len(_ROWS)) + _ROWS.replace(_OFFSETS, struct.pack("<3i", 0, 4, 1 << 30)),
    "sparse array beyond its shape": encoded({"sparse": ["csr_array", [1, 2], *_MEMBERS]}, 8, 4, 8) + _CONTENT,
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_messages_are_refused(name: str) -> None:
    assert _OFFSETS in _ROWS
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(INVALID[name])
        theirs.settimeout(60)
        with pytest.raises(MessageError):
            receive(theirs, 1 << 32)


@pytest.mark.parametrize(
    "data", [INVALID["unknown class"], encoded(1), encoded({"tuple": ["error", "text"]}), encoded({"tuple": ["run", 1]})]
)
def test_a_child_that_sends_other_things_is_an_error(data: bytes, file: InputFile) -> None:
    with pytest.raises(DataError, match=r"^x\.bin cannot be read: its parser Reader sent an invalid result \(.*; the file is damaged"):
        parse(file, READER, asked.written, data)


def test_slices_are_sent_without_the_rest() -> None:
    batch = pa.record_batch({"a": np.arange(1_000_000)}).slice(5, 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)  # the whole would not fit in the buffers of the socket
        send(ours, batch)
        assert receive(theirs, 1 << 20).equals(batch)


@pytest.mark.parametrize(
    "error", [DataError("t: column 'a' is x; do y"), ParameterError("p"), dfact.StoreError("s"), OSError(errno.EIO, "io")]
)
def test_errors_arrive_unchanged(error: Exception, file: InputFile) -> None:
    with pytest.raises(type(error)) as caught:
        parse(file, READER, asked.raised, error)
    assert type(caught.value) is type(error)
    assert caught.value.args == error.args


class OtherError(Exception):
    """An error that the parent need not know."""


@pytest.mark.parametrize(
    ("error", "received", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "absent"), FileNotFoundError, "absent"),
        (pa.ArrowInvalid("rows"), ValueError, r"^rows\n"),
        (UnicodeDecodeError("utf-8", b"a", 0, 1, "why"), RuntimeError, "UnicodeDecodeError: 'utf-8' codec"),
        (OtherError("text"), RuntimeError, "OtherError: text"),
    ],
)
def test_errors_of_other_classes_arrive_as_known_ones(error: Exception, received: type[Exception], message: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, error)
        found = receive(theirs, 1 << 20)
    assert type(found) is received
    with pytest.raises(received, match=message):
        raise found


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (asked.aborted, (), "stopped with SIGABRT; the file is damaged, or takes more than the .* GiB of memory"),
        (asked.signalled, (int(signal.SIGSEGV),), "crashed with SIGSEGV; the file is damaged: export it again"),
        (asked.signalled, (int(signal.SIGKILL),), "was killed, as the system does when memory runs out"),
        (asked.ended, (7,), "exited with code 7;"),
        (asked.failed, ("no more cells",), r"exited with code 3 \(no more cells\);"),
        (asked.zeros, (1 << 45,), "requires more memory than it may take; .* GiB of memory"),
    ],
)
def test_a_child_that_ends_is_an_error(function: Callable[..., Any], arguments: tuple[Any, ...], message: str, file: InputFile) -> None:
    with pytest.raises(DataError, match=rf"^x\.bin cannot be read: its parser Reader {message}"):
        parse(file, READER, function, *arguments)
    assert parse(file, READER, asked.same, "ab") == "ab"


def test_memory_is_that_of_the_plan(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "half_of_free_memory", lambda: float(1 << 27))
    assert parse(file, READER, asked.zeros, 1 << 24) == 1 << 24
    with pytest.raises(DataError, match=r"more than the 0\.1 GiB of memory"):
        parse(file, READER, asked.zeros, 1 << 28)


def test_computation_without_an_end_is_an_error(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_SECONDS", 1)
    with pytest.raises(DataError, match="does not end within 1 s of computation; the file is damaged"):
        parse(file, READER, asked.endless)


def test_a_child_waits_for_its_parent_and_ends_with_its_reader(file: InputFile) -> None:
    pids = parse_rows(file, READER, asked.pids)
    child = psutil.Process(next(pids))
    assert child.pid != os.getpid()
    assert {next(pids) for _ in range(9)} == {child.pid}
    while child.status() != psutil.STATUS_SLEEPING:
        time.sleep(0.01)
    pids.close()  # type: ignore[attr-defined]  # a generator
    child.wait(60)


def test_requests_of_many_threads_have_children_of_their_own(file: InputFile) -> None:
    found: list[list[int]] = []

    def read(start: int) -> None:
        found.append(list(parse_rows(file, READER, asked.numbers, start, start + 300)))

    threads = [threading.Thread(target=read, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [list(range(1000 * i, 1000 * i + 300)) for i in range(6)]


def test_children_know_the_folder_and_the_environment_of_the_request(
    file: InputFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse(file, READER, asked.same, "")
    monkeypatch.setenv("NEW_OF_THIS_TEST", "1")
    monkeypatch.chdir(tmp_path)
    assert parse(file, READER, asked.environment, "NEW_OF_THIS_TEST") == ("1", tmp_path)


def test_a_server_that_ended_is_replaced(file: InputFile) -> None:
    first = parse(file, READER, asked.server)
    os.kill(first, signal.SIGKILL)
    parsers._server._process.wait()  # type: ignore[union-attr]  # started above
    assert parse(file, READER, asked.server) != first


def test_a_server_that_does_not_start_is_reported(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_server", parsers._Server())
    monkeypatch.setattr(parsers, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(DataError, match=r"x\.bin cannot be read: the process that starts its parser Reader has ended; try again"):
        parse(file, READER, asked.same, "ab")
    parsers._server.close()


def test_processes_without_children_of_their_own_parse(file: InputFile) -> None:
    """Dask's workers are daemons of multiprocessing."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=asked.parsed, args=(theirs, str(file.path)), daemon=True)
    process.start()
    assert ours.recv() == 7
    process.join()


def test_a_forked_process_has_a_server_of_its_own(file: InputFile) -> None:
    server = parse(file, READER, asked.server)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(parse(file, READER, asked.server)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reading, 99)) != server
    os.close(reading)
    os.close(writing)
    assert parse(file, READER, asked.server) == server


_FUNCTIONS = """
import os

def pids():
    while True:
        yield os.getpid()
"""
_SCRIPT = """
import sys
from dfact.formats.isolation.parsers import Parser, parse_rows
from dfact.storage.input_files import open_input
from functions import pids
print("started", flush=True)
rows = parse_rows(open_input(sys.argv[1]), Parser("Reader", ("functions",)), pids)
print(next(rows), flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_nothing_outlives_a_killed_script_without_a_main_guard(file: InputFile, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(_FUNCTIONS)
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(file.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "started\n"
        child = psutil.Process(int(script.stdout.readline()))
        server = child.parent()
        assert server is not None
        assert server.ppid() == script.pid
        script.kill()
        assert script.stdout.read() == ""
    for process in (server, child):
        process.wait(60)


@pytest.mark.cluster
def test_workers_of_dask_parse(tmp_path: Path, client: Client) -> None:
    frame = pd.DataFrame({f"q{j}": np.arange(40.0) % (j + 2) for j in range(4)})
    pyreadstat.write_sav(frame, tmp_path / "t.sav")
    here = dfact.import_table(tmp_path / "t.sav", tmp_path / "a.zarr", items="q*")
    there = dfact.import_table(tmp_path / "t.sav", tmp_path / "b.zarr", items="q*", executor=client)
    assert there.fingerprint == here.fingerprint


def test_output_of_parsers_is_not_shown(file: InputFile, capfd: pytest.CaptureFixture[str]) -> None:
    parse(file, READER, asked.printed, "damaged")
    assert capfd.readouterr() == ("", "")
