"""Parsers in child processes: results and errors arrive, crashes and limits become errors, and nothing is left running."""

import errno
import itertools
import multiprocessing
import operator
import os
import signal
import socket
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
from distributed import Client
from numpy.testing import assert_array_equal

import dfact
from dfact.data import memory_limit
from dfact.data.readers.isolation import parsers
from dfact.data.readers.isolation.messages import receive, send
from dfact.data.readers.isolation.parsers import Parser, parse, parse_rows
from dfact.errors import DataError, ParameterError
from dfact.storage.input_files import InputFile
from tests.data import forked

READER = Parser("Reader")


@pytest.fixture
def file(tmp_path: Path) -> InputFile:
    path = tmp_path / "x.bin"
    path.write_bytes(b"content")
    return InputFile(path, path.name)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.zeros((0, 3)),
        pa.record_batch({"a": [1.5, None], "b": ["x", "é"]}).slice(1),
        pa.table({"a": pa.chunked_array([[1], [2, 3]])}),
        {"labels": np.array(["a", None], dtype=object), "bytes": b"0" * 3_000_000},
    ],
    ids=["fortran", "empty", "batch", "table", "objects"],
)
def test_values_arrive_unchanged(value: Any, file: InputFile) -> None:
    found = parse(file, READER, operator.itemgetter(0), [value])
    if isinstance(value, np.ndarray):
        assert_array_equal(found, value, strict=True)
        assert found.flags.f_contiguous == value.flags.f_contiguous
    elif isinstance(value, dict):
        assert found["bytes"] == value["bytes"]
        assert found["labels"].tolist() == ["a", None]
    else:
        assert found.equals(value)


def test_slices_are_sent_without_the_rest() -> None:
    batch = pa.record_batch({"a": np.arange(1_000_000)}).slice(5, 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)  # the whole would not fit in the buffers of the socket
        send(ours, batch)
        assert receive(theirs).equals(batch)


@pytest.mark.parametrize(
    "error", [DataError("t: column 'a' is x; do y"), ParameterError("p"), dfact.StoreError("s"), OSError(errno.EIO, "io")]
)
def test_errors_arrive_unchanged(error: Exception, file: InputFile) -> None:
    with pytest.raises(type(error)) as caught:
        parse(file, READER, forked.raised, error)
    assert type(caught.value) is type(error)
    assert caught.value.args == error.args


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (os.abort, (), "stopped with SIGABRT; the file is damaged, or takes more than the .* GiB of memory"),
        (signal.raise_signal, (signal.SIGSEGV,), "crashed with SIGSEGV; the file is damaged: export it again"),
        (signal.raise_signal, (signal.SIGKILL,), "was killed, as the system does when memory runs out"),
        (os._exit, (7,), "ended with code 7;"),
        (forked.failed, ("no more cells",), r"ended with code 3 \(no more cells\);"),
        (bytearray, (1 << 45,), "requires more memory than it may take; .* GiB of memory"),
    ],
)
def test_a_child_that_ends_is_an_error(function: Callable[..., Any], arguments: tuple[Any, ...], message: str, file: InputFile) -> None:
    with pytest.raises(DataError, match=rf"^x\.bin cannot be read: its parser Reader {message}"):
        parse(file, READER, function, *arguments)
    assert parse(file, READER, len, "ab") == 2


def test_memory_is_that_of_the_plan(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "half_of_free_memory", lambda: float(1 << 27))
    assert len(parse(file, READER, bytearray, 1 << 24)) == 1 << 24
    with pytest.raises(DataError, match=r"more than the 0\.1 GiB of memory"):
        parse(file, READER, bytearray, 1 << 28)


def test_computation_without_an_end_is_an_error(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_SECONDS", 1)
    with pytest.raises(DataError, match="does not end within 1 s of computation; the file is damaged"):
        parse(file, READER, sum, itertools.count())


def test_a_child_waits_for_its_parent_and_ends_with_its_reader(file: InputFile) -> None:
    pids = parse_rows(file, READER, iter, os.getpid, None)  # without an end
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
        found.append(list(parse_rows(file, READER, range, start, start + 300)))

    threads = [threading.Thread(target=read, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [list(range(1000 * i, 1000 * i + 300)) for i in range(6)]


def test_children_know_the_folder_and_the_environment_of_the_request(
    file: InputFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse(file, READER, len, "")
    monkeypatch.setenv("NEW_OF_THIS_TEST", "1")
    monkeypatch.chdir(tmp_path)
    assert parse(file, READER, os.getenv, "NEW_OF_THIS_TEST") == "1"
    assert parse(file, READER, os.getcwd) == str(tmp_path)


def test_a_server_that_ended_is_replaced(file: InputFile) -> None:
    first = parse(file, READER, os.getppid)
    os.kill(first, signal.SIGKILL)
    parsers._server._process.wait()  # type: ignore[union-attr]  # started above
    assert parse(file, READER, os.getppid) != first


def test_a_server_that_does_not_start_is_reported(file: InputFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers, "_server", parsers._Server())
    monkeypatch.setattr(parsers, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(DataError, match=r"x\.bin cannot be read: the process that starts its parser Reader has ended; try again"):
        parse(file, READER, len, "ab")
    parsers._server.close()


def test_processes_without_children_of_their_own_parse(file: InputFile) -> None:
    """Dask's workers are daemons of multiprocessing."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=forked.parsed, args=(theirs, str(file.path)), daemon=True)
    process.start()
    assert ours.recv() == 7
    process.join()


def test_a_forked_process_has_a_server_of_its_own(file: InputFile) -> None:
    server = parse(file, READER, os.getppid)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, str(parse(file, READER, os.getppid)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reading, 99)) != server
    os.close(reading)
    os.close(writing)
    assert parse(file, READER, os.getppid) == server


_SCRIPT = """
import os, sys
from dfact.data.readers.isolation.parsers import Parser, parse_rows
from dfact.storage.input_files import open_input
print("started", flush=True)
rows = parse_rows(open_input(sys.argv[1]), Parser("Reader"), iter, os.getpid, None)
print(next(rows), flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_nothing_outlives_a_killed_script_without_a_main_guard(file: InputFile, tmp_path: Path) -> None:
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
    parse(file, READER, print, "damaged")
    assert capfd.readouterr() == ("", "")
