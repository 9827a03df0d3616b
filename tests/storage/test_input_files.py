"""Files on web servers: read by ranges, or from a copy where the server has none."""

import gzip
import io
import pickle
import random
import shutil
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dfact.errors import DataError, StoreError
from dfact.storage import remote_files
from dfact.storage.input_files import InputFile, InputFolder, open_input, open_input_file
from dfact.storage.location import parse_location
from tests import servers

pytest.importorskip("obstore")


class Server(ThreadingHTTPServer):
    """A web server of files in memory, with or without ranges."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges, self.tagged, self.requests = True, True, list[tuple[str, str | None]]()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(servers.Handler):
    wbufsize = 1 << 16  # one packet for header and body
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        content = self.server.files.get(self.path.partition("?")[0])
        body = content or b""
        if content is None:
            self.send_response(404)
        elif asked and self.server.ranges:
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            if first >= len(content):
                body = b""
                self.send_response(416)
            else:
                body = content[first : last + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if self.server.tagged:
            self.send_header("ETag", f'"{hash(content)}"')
        self.send_body(body)


@pytest.fixture
def web() -> Iterator[Server]:
    with servers.serving(Server()) as server:
        yield server


def random_bytes(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n)


@pytest.mark.parametrize("seed", range(3))
def test_seeking_and_reading_give_the_bytes_of_a_file(seed: int, web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_LEAST_READ", 100)
    monkeypatch.setattr(remote_files, "_MOST_READ", 1000)
    content = web.files["/x.bin"] = random_bytes(20_000, seed)
    rng, expected = random.Random(seed), io.BytesIO(content)
    with open_input_file(web.url("/x.bin")).open() as stream:
        assert stream.seekable()
        assert stream.readable()
        for _ in range(200):
            if rng.random() < 0.6:
                offset = rng.choice([(rng.randrange(21_000), 0), (-rng.randrange(9000), 2), (rng.randrange(50), 1)])
                assert stream.seek(*offset) == expected.seek(*offset)
            n = rng.choice([1, 10, 500, 5000])
            assert stream.read(n) == expected.read(n)
            assert stream.tell() == expected.tell()
        stream.seek(3)
        assert stream.read() == content[3:]


def test_a_stream_suits_the_libraries(web: Server) -> None:
    table = pa.table({"q": range(1000)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    web.files |= {"/t.parquet": sink.getvalue(), "/x.gz": gzip.compress(b"abc" * 1000)}
    with open_input_file(web.url("/t.parquet")).open() as stream:
        assert pq.read_table(pa.PythonFile(stream, "r")).equals(table)
    with open_input_file(web.url("/x.gz")).open() as stream, gzip.open(stream) as content:
        assert content.read() == b"abc" * 1000


def test_reading_in_sequence_takes_few_requests_and_a_footer_one(web: Server) -> None:
    content = web.files["/x.bin"] = bytes(20_000_000)
    file = open_input_file(web.url("/x.bin"))
    web.requests.clear()
    with file.open() as stream:
        while stream.read(1 << 16):
            pass
    assert len(web.requests) <= 12
    web.requests.clear()
    with file.open() as stream:
        stream.seek(-8, io.SEEK_END)
        stream.read(8)
    assert web.requests == [("/x.bin", f"bytes={len(content) - 8}-{len(content) - 1}")]
    web.requests.clear()
    with file.open() as stream:
        stream.seek(12_345_678)
        stream.read(10)
    assert web.requests == [("/x.bin", f"bytes=12345678-{12345678 + (1 << 16) - 1}")]


@pytest.mark.parametrize("ranges", [True, False])
def test_names_and_copies(ranges: bool, web: Server) -> None:
    web.ranges = ranges
    content = web.files["/a%20folder/t.csv"] = b"q\n1\n"
    web.files["/empty.csv"] = b""
    file = open_input_file(web.url("/a%20folder/t.csv?token=secret/x"))
    assert file.name == "t.csv"
    assert file.suffixes == [".csv"]
    assert file.is_remote == ranges
    assert file.signature() == pickle.loads(pickle.dumps(file)).signature() == (4, str(hash(content)))
    assert file.read_start(2) == b"q\n"
    with file.local() as path:
        assert path.read_bytes() == content
        assert path.name == "t.csv"
    assert path.exists() != ranges
    assert file.keep_local().read_bytes() == content
    assert file.keep_local() == file.keep_local()
    with open_input_file(web.url("/empty.csv")).open() as stream:
        assert stream.read() == b""


def test_a_server_without_ranges_is_read_once(web: Server) -> None:
    web.ranges = False
    web.files["/t.csv"] = b"q\n1\n"
    path = open_input_file(web.url("/t.csv")).path
    assert open_input_file(web.url("/t.csv")).path == path
    web.files["/t.csv"] = b"q\n2\n"
    assert open_input_file(web.url("/t.csv")).path.read_bytes() == b"q\n2\n"
    assert not path.exists()


@pytest.mark.parametrize("tagged", [True, False])
def test_a_file_that_changes_is_refused(tagged: bool, web: Server) -> None:
    web.tagged = tagged
    web.files["/t.csv"] = bytes(1_000_000)
    file = open_input_file(web.url("/t.csv"))
    with file.open() as stream:
        stream.read(10)
        web.files["/t.csv"] = bytes(999_999)
        with pytest.raises(DataError, match=r"/t.csv changed while it was read; import it again"):
            stream.read()
    assert open_input_file(web.url("/t.csv")).signature() != file.signature()


def test_a_copy_that_does_not_fit_is_refused(web: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/t.csv"] = bytes(5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4999))
    too_large = r"t.csv has 5,000 bytes, expected at most the 4,999 that are free in .*; set TMPDIR"
    with pytest.raises(StoreError, match=too_large), open_input_file(web.url("/t.csv")).local():
        pass


def test_what_cannot_be_opened_is_named_without_the_query(web: Server) -> None:
    with pytest.raises(StoreError, match=r"/none.csv does not exist, expected a file or a folder$"):
        open_input(web.url("/none.csv?token=secret"))
    with pytest.raises(StoreError, match=r"^http://example.org/t.csv is plain http, .* expected https://; download the file first$"):
        open_input("http://user:secret@example.org/t.csv?token=secret")


@pytest.mark.parametrize(
    "url", ["https://", "https:///x.csv", "https://host", "https://host/", "https:/host/x.csv", "https://[x/y", "ftp://a/b"]
)
def test_urls_that_name_no_file_are_refused(url: str) -> None:
    with pytest.raises(StoreError, match="expected"):
        parse_location(url, web=True)


def test_only_inputs_are_on_web_servers() -> None:
    assert parse_location("HTTPS://Host/A//b.csv?x=/../", web=True) == "https://Host/A//b.csv?x=/../"
    with pytest.raises(StoreError, match=r"is a URL with the scheme 'https', expected a path or a URL that begins with s3://"):
        parse_location("https://host/x.zarr")


def test_local_files_and_folders(tmp_path: Path) -> None:
    for name in ("b/1.csv", "a.csv", "b/0/2.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    folder = open_input(tmp_path)
    assert isinstance(folder, InputFolder)
    assert [file.name for file in folder.files] == ["a.csv", "b/0/2.csv", "b/1.csv"]
    file = open_input(tmp_path / "a.csv")
    assert isinstance(file, InputFile)
    with file.local() as path:
        assert path == file.path == file.keep_local() == tmp_path / "a.csv"
    before = folder.signature()
    (tmp_path / "a.csv").write_bytes(b"changed")
    assert folder.signature() != before
    with pytest.raises(StoreError, match="is a folder, expected a file"):
        open_input_file(tmp_path)
    with pytest.raises(StoreError, match="does not exist, expected a file or a folder"):
        open_input(tmp_path / "none")
