"""Datasets, models and row factors in an S3-compatible server, without and with transient and permanent errors."""

import gzip
import importlib.util
import io
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import xarray as xr
import zarr
from distributed import Client
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

import dfact
from dfact.cli.main import cli, main
from dfact.engine.checkpoint import resume_point
from dfact.errors import StoreError
from dfact.storage import zarr_stores as stores
from dfact.storage.array_stream import StreamWriter
from dfact.storage.groups import ATTRIBUTE, create_group, current_version, kind_at, open_store
from dfact.storage.input_files import InputFolder, open_input, open_input_file
from dfact.storage.location import parse_location
from dfact.storage.remote_files import stream_file
from dfact.storage.zarr_stores import StrictObjectStore
from tests.cases import further_unless
from tests.conftest import free_port, planted_answers
from tests.servers import serving
from tests.suites.zarr_store import ZarrStoreSuite

N, M, K = 1000, 40, 3
START_SECONDS = 150
S3_SERVER = Path(__file__).resolve().parents[2] / "benchmarks" / "faults" / "s3_server.py"
RETRIES = stores.RETRIES


# the server


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """The port of a server in a separate process."""
    for package in ("moto.server", "obstore"):
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            pytest.skip(f"{package} is not installed: pip install 'dfact[test]'")
    port = free_port()
    command = [sys.executable, "-P", S3_SERVER, str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.skip("the S3-compatible server of moto does not start")
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def send(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


class Proxy(ThreadingHTTPServer):
    """A proxy between client and server that lets every ``every``-th request fail: 503, 500 and a lost connection in turn; 0: none.

    Unless ``every`` is 1, no request fails more often than the client retries it, whatever the order of the client's threads.
    """

    daemon_threads = True

    def __init__(self, behind: int, address: tuple[str, int] = ("127.0.0.1", 0), handler: "type[Handler] | None" = None) -> None:
        super().__init__(address, handler or Handler)
        self.behind, self.every, self.asked, self.failed, self.lock = behind, 0, 0, 0, threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.failures: Counter[tuple[str, str]] = Counter()
        self.watched: Callable[[str], None] = lambda _: None
        """Called with the method before each request that is passed on."""
        self.refused = ""
        """A part of the paths that are refused for good."""
        self.google = False
        """Whether to answer as Google where moto does not: deletions of missing objects are errors, existing ones may be kept."""

    def fails(self, *request: str) -> int | None:
        """Return the status with which the next request fails, 0 for a lost connection, None if it is passed on."""
        with self.lock:
            self.asked += 1
            self.requests.append((request[0], request[1]))
            if self.refused and self.refused in request[1]:
                return 403
            if not self.every or self.asked % self.every or (self.every > 1 and self.failures[request] == stores.RETRIES):
                return None
            self.failures[request] += 1
            self.failed += 1
            return (503, 500, 0)[self.failed % 3]


def generation_of(headers: dict[str, str]) -> str:
    """Return a number of the version of an object with these headers; an empty text if they are of no object."""
    tag = next((value for name, value in headers.items() if name.lower() == "etag"), "").strip('"')
    return str(int(tag[:12], 16)) if tag else ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def exists(self) -> bool:
        return self.generation() != "0"

    def generation(self) -> str:
        """Return the number of the object's version, which Google compares; 0 if it is absent."""
        authorization = {"Authorization": self.headers["Authorization"]}
        status, headers, _ = send(self.server.behind, "HEAD", self.path, headers=authorization)
        return generation_of(headers) if status == 200 else "0"

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        failure = self.server.fails(self.command, self.path)
        if failure == 0:
            self.close_connection = True
            return
        if not failure:
            self.server.watched(self.command)
        if failure:
            status, headers, answer = failure, {}, b"<Error><Code>SlowDown</Code></Error>"
        elif self.server.google and self.command == "DELETE" and not self.exists():
            status, headers, answer = 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        elif self.server.google and (condition := self.headers.get("x-goog-if-generation-match")) and condition != self.generation():
            status, headers, answer = 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        else:
            status, headers, answer = send(self.server.behind, self.command, self.path, body, dict(self.headers.items()))
        self.send_response_only(status)
        if self.server.google and (generation := generation_of(headers)):
            self.send_header("x-goog-generation", generation)
        for name, value in headers.items():
            if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                self.send_header(name, value)
        sizes = {name.lower(): value for name, value in headers.items()}
        size = sizes.get("content-length", "0") if self.command == "HEAD" else str(len(answer))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815  # the names are those of the protocol


def settings(port: int) -> dict[str, str]:
    names = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    return {**names, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def use(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings(port).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(server: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket."""
    use(server, monkeypatch)
    name = f"bucket-{uuid4().hex[:8]}"
    assert send(server, "PUT", f"/{name}")[0] == 200
    return f"s3://{name}"


@pytest.mark.faults
@pytest.mark.object_store
def test_a_missing_bucket_and_an_unreachable_server_are_named(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(server, monkeypatch)
    for call in (dfact.open_dataset, open_input):
        with pytest.raises(StoreError, match=r"the bucket none-such does not exist; create it, or correct its name$"):
            call("s3://none-such/x.zarr")
    asked: list[Any] = []
    from_url: Any = pytest.importorskip("obstore.store").from_url
    monkeypatch.setattr("obstore.store.from_url", lambda url, **options: asked.append(options["retry_config"]) or from_url(url, **options))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for call in (dfact.open_dataset, open_input):
        with pytest.raises(StoreError, match=r"its server 127.0.0.1:9 does not answer; check the network and the address"):
            call("s3://none-such/x.zarr")
    with pytest.raises(StoreError, match=r"its server 127.0.0.1:9 does not answer"):
        open_input("http://127.0.0.1:9/x.csv")
    assert min(config["retry_timeout"] for config in asked) <= timedelta(seconds=5)


@contextmanager
def proxied(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy between client and server; few and short retries keep the test fast."""
    monkeypatch.setattr(stores, "RETRIES", 2)
    from_url: Any = pytest.importorskip("obstore.store").from_url
    waits = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}

    def with_short_waits(url: str, *, retry_config: dict[str, Any]) -> Any:
        return from_url(url, retry_config=retry_config | {"backoff": waits})

    monkeypatch.setattr("obstore.store.from_url", with_short_waits)
    with serving(Proxy(port)) as found:
        yield found


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy between client and server."""
    with proxied(server, monkeypatch) as found:
        use(found.server_address[1], monkeypatch)
        yield found


@pytest.fixture(scope="module")
def X() -> NDArray[np.float64]:
    return planted_answers(N, M, K, seed=5, missing=0.1)


@pytest.fixture(scope="module")
def local(X: NDArray[np.float64], tmp_path_factory: pytest.TempPathFactory) -> dfact.Dataset:
    return dfact.import_array(X, tmp_path_factory.mktemp("local") / "x.zarr")


def icqf(**settings: Any) -> dfact.ICQF:
    return dfact.ICQF(**{"n_components": K, "max_iter": 3, "random_state": 1} | settings)


# the client


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreError, match=r"install dfact\[cloud\]"):
        open_store("s3://nowhere/x")


@pytest.mark.faults
@pytest.mark.needs("batch")
def test_killed_step_of_a_job_is_repeated(bucket: str, local: dfact.Dataset, tmp_path: Path) -> None:
    from dfact.batch.job_file import read_job
    from dfact.batch.record import Record

    job, model = tmp_path / "job.toml", f"{bucket}/icqf.model"
    job.write_text(
        f'[job]\nstate = "{bucket}/state"\n[[step]]\nrun = "fit icqf"\ndata = "{local.path}"\nmodel = "{model}"\ncomponents = {K}\n'
        "max-iter = 3\n"
    )
    (step,), _ = read_job(job, cli)
    record = Record(parse_location(f"{bucket}/state"))
    record.pending([step])
    record.claim()
    record.begin(step)
    zarr.create_group(open_store(model), attributes={ATTRIBUTE: {"kind": "model", "format": 1, "complete": False}})
    assert main(["run", str(job)]) == 0
    assert dfact.load_model(model).n_iter_ == 3
    assert not Record(parse_location(f"{bucket}/state")).pending([step])


def test_pickled_store_holds_no_credentials(bucket: str) -> None:
    store = open_store(f"{bucket}/x", read_only=True)
    sent = pickle.dumps(store)
    assert b"very-secret" not in sent
    assert pickle.loads(sent) == store
    assert pickle.loads(sent).read_only


# the way through


@pytest.mark.parametrize("executor", further_unless("cluster".__eq__, ["inline", "threads", "cluster"]))
def test_object_store_gives_the_bits_of_a_folder(
    X: NDArray[np.float64], local: dfact.Dataset, bucket: str, server: int, request: pytest.FixtureRequest, executor: str
) -> None:
    where: Any = executor
    if executor == "cluster":
        where = client = request.getfixturevalue("client")
        client.run(os.environ.update, settings(server))  # each process has credentials of its own
    labels = np.array([f"p{i}" for i in range(N)], dtype=object)
    dataset = dfact.import_array(X, f"{bucket}/a/x.zarr", row_labels=labels)
    assert dfact.open_dataset(f"{bucket}/a/x.zarr").path == f"{bucket}/a/x.zarr"
    assert list(dataset.row_labels[:2]) == ["p0", "p1"]
    expected = icqf(executor=where).fit(local)
    model = icqf(executor=where).fit(f"{bucket}/a/x.zarr")
    assert isinstance(model.factors_, zarr.Array)  # never held whole, as of any stored data
    dfact.save_model(model, f"{bucket}/a/x.model")
    loaded = dfact.load_model(f"{bucket}/a/x.model")
    np.testing.assert_array_equal(loaded.components_, expected.components_)
    np.testing.assert_array_equal(np.asarray(loaded.factors_), np.asarray(expected.factors_))
    assert list(loaded.row_labels_[:2]) == ["p0", "p1"]
    out = loaded.set_params(executor=where).transform(dataset, out=f"{bucket}/a/factors.zarr")
    np.testing.assert_array_equal(out[...], expected.transform(local)[...])
    with pytest.raises(StoreError, match="exists already"):
        loaded.transform(dataset, out=f"{bucket}/a/factors.zarr")


@pytest.mark.further
def test_sparse_and_joined_datasets_in_an_object_store(X: NDArray[np.float64], bucket: str) -> None:
    import scipy.sparse as sp

    values = sp.csr_array(np.nan_to_num(X[:500]))
    dataset = dfact.import_array(values, f"{bucket}/s.zarr")
    np.testing.assert_array_equal(dataset.source.read(7, 30), values[7:30].toarray())
    labels = np.arange(500).astype(str).astype(object)
    parts = [dfact.import_array(X[:500], f"{bucket}/{name}.zarr", row_labels=labels) for name in ("one", "two")]
    joined = dfact.join_datasets([str(part.path) for part in parts], f"{bucket}/joined.zarr")
    assert joined.shape == (500, 2 * M)
    assert joined.column_labels[0] == "one.0"


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_command_line(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", planted_answers(200, 10, 2, seed=2))
    data, model, out = f"{bucket}/x.zarr", f"{bucket}/x.model", f"{bucket}/factors.zarr"
    assert main(["import-array", str(tmp_path / "x.npy"), data]) == 0
    assert main(["fit", "icqf", data, model, "-k", "2"]) == 0
    assert main(["info", model]) == 0
    assert main(["transform", model, data, out]) == 0
    assert main(["info", data]) == 0
    assert data in capsys.readouterr().out
    assert xr.open_zarr(open_store(current_version(out), read_only=True))["factors"].shape == (200, 2)
    commands = {"factors.csv": ["transform", model, data], "a.html": ["export", model, "--style", "apa"], "report.html": ["report", model]}
    for name, command in commands.items():  # single files are objects of the same bytes
        assert main([*command, f"{bucket}/{name}"]) == main([*command, str(tmp_path / name)]) == 0
        assert b"".join(map(bytes, stream_file(f"{bucket}/{name}")[1])) == (tmp_path / name).read_bytes()
        assert main([*command, f"{bucket}/{name}"]) == 1
        assert f"{bucket}/{name} exists already" in capsys.readouterr().err


# tables in a store


def put(bucket: str, files: dict[str, bytes]) -> None:
    import obstore

    for name, content in files.items():
        obstore.put(stores.object_client(bucket), name, content)


def test_a_folder_is_listed_once_and_its_files_are_read_by_ranges(bucket: str, proxy: Proxy) -> None:
    contents = {f"wave={wave}/part-{i}.parquet": bytes([i]) * 200_000 for wave in "ba" for i in range(4)}
    put(bucket, {f"folder/{name}": content for name, content in contents.items()} | {"folder-2/x": b"other", "folder2": b"other"})
    proxy.requests.clear()
    folder = open_input(f"{bucket}/folder/")
    assert isinstance(folder, InputFolder)
    assert [(method, "list-type" in path) for method, path in proxy.requests] == [("GET", True)]
    assert [file.name for file in folder.files] == sorted(contents)
    assert folder.signature() == pickle.loads(pickle.dumps(folder)).signature()
    for file in folder.files:
        with file.open() as stream:
            stream.seek(-1000, os.SEEK_END)
            assert stream.read() == contents[file.name][-1000:]
    assert [method for method, _ in proxy.requests] == ["GET"] * 9
    put(bucket, {"folder/wave=a/part-0.parquet": bytes([9]) * 200_000})
    with folder.files[0].open() as stream, pytest.raises(dfact.DataError, match=r"s3://.*part-0.parquet changed while it was read"):
        stream.read(10)
    with pytest.raises(StoreError, match=r"s3://.*/none does not exist, expected a file or a folder"):
        open_input(f"{bucket}/none")
    with pytest.raises(
        StoreError, match=r"s3://nobody-has-this/none: the bucket nobody-has-this does not exist|s3://nobody-has-this/none does not exist"
    ):
        open_input("s3://nobody-has-this/none")


@pytest.mark.further
@pytest.mark.faults
def test_transient_errors_of_reading_a_file_are_retried(bucket: str, proxy: Proxy) -> None:
    content = np.random.default_rng(1).bytes(30_000_000)
    put(bucket, {"a b/x+1.bin": content})
    proxy.every = 3
    with open_input_file(f"{bucket}/a b/x+1.bin").open() as stream:
        assert stream.read() == content
    assert proxy.failed > 2
    proxy.every = 1
    with pytest.raises(StoreError, match=r"the object store failed at s3://.*/a b/x\+1.bin: .*after 2 retries"):
        open_input_file(f"{bucket}/a b/x+1.bin")


@pytest.mark.further
def test_imports_from_a_bucket(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = planted_answers(50, 6, 2, seed=3)
    lines = ["id," + ",".join(f"q{j}" for j in range(6)), *(f"p{i}," + ",".join(f"{x:g}" for x in row) for i, row in enumerate(answers))]
    table, array = "\n".join(lines).encode(), io.BytesIO()
    np.save(array, answers)
    put(bucket, {"in/survey.csv": table, "in/survey.csv.gz": gzip.compress(table), "in/x.npy": array.getvalue()})
    put(bucket, {"in/t.tsv": b"row\tcolumn\tvalue\na\tb\t1\na\tc\t2\n"})
    for name in ("survey.csv", "survey.csv.gz"):
        out = tmp_path / f"{name}.zarr"
        assert main(["import", f"{bucket}/in/{name}", str(out), "--items", "q*", "--id-column", "id"]) == 0
        dataset = dfact.open_dataset(out)
        np.testing.assert_array_equal(dataset.source.read(0, 50), answers)
        assert dataset.row_labels[3] == "p3"
    assert main(["import-array", f"{bucket}/in/x.npy", str(tmp_path / "x.zarr")]) == 0
    assert main(["import-triplets", f"{bucket}/in/t.tsv", str(tmp_path / "t.zarr")]) == 0
    capsys.readouterr()
    assert main(["import", f"{bucket}/in/none.csv", str(tmp_path / "n.zarr"), "--items", "q*"]) == 1
    assert f"{bucket}/in/none.csv does not exist" in capsys.readouterr().err
    job = tmp_path / "job.toml"
    job.write_text(f'[[step]]\nrun = "import"\nsource = "{bucket}/in/survey.csv"\ndest = "y.zarr"\nitems = ["q*"]\nid-column = "id"\n')
    for done in (1, 0):
        assert main(["run", str(job)]) == 0
        assert capsys.readouterr().err.count("finished in") == done
    put(bucket, {"in/survey.csv": table + b"\nlast,1,1,1,1,1,1"})
    assert main(["run", str(job)]) == 0
    assert dfact.open_dataset(tmp_path / "y.zarr").shape == (51, 6)


@pytest.mark.needs("formats")
def test_arrays_and_statistical_files_are_read_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    """Each file gives the dataset that its copy on this machine gives."""
    pyreadstat = pytest.importorskip("pyreadstat")
    rng = np.random.default_rng(4)
    X, people = rng.integers(0, 5, (40, 5)), [f"p{i}" for i in range(40)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    stored = xr.DataArray(X.astype(np.int32), dims=["person", "item"], coords={"person": people}, name="X")
    stored.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    stored.drop_vars("person").to_netcdf(tmp_path / "classic.nc", engine="scipy")
    scipy.io.savemat(tmp_path / "x.mat", {"X": X})
    np.save(tmp_path / "x.npy", X)
    scipy.io.mmwrite(tmp_path / "matrix.mtx", scipy.sparse.coo_array(X))
    (tmp_path / "matrix.mtx.gz").write_bytes(gzip.compress((tmp_path / "matrix.mtx").read_bytes()))
    (tmp_path / "barcodes.tsv.gz").write_bytes(gzip.compress("".join(f"c{j}\n" for j in range(5)).encode()))
    frame = pd.DataFrame(X, columns=[f"q{j}" for j in range(5)], dtype=float)
    labels = {name: dict(enumerate(["never", "rarely", "sometimes", "often", "always"])) for name in frame}
    wording = [f"Question {j}" for j in range(5)]
    pyreadstat.write_sav(frame, tmp_path / "x.sav", column_labels=wording, variable_value_labels=labels)
    pyreadstat.write_dta(frame, tmp_path / "x.dta", column_labels=wording, variable_value_labels=labels)
    (tmp_path / "matrix.mtx").unlink()
    put(bucket, {f"in/{path.name}": path.read_bytes() for path in tmp_path.iterdir()})
    for name in ("x.h5", "x.nc", "classic.nc", "x.mat", "x.npy", "matrix.mtx.gz", "x.sav", "x.dta"):
        command = ["import"] if name in ("x.sav", "x.dta") else ["import-array"]
        for source, out in ((tmp_path / name, "here"), (f"{bucket}/in/{name}", "there")):
            assert main([*command, str(source), str(tmp_path / f"{name}.{out}.zarr")]) == 0
        here, there = (dfact.open_dataset(tmp_path / f"{name}.{out}.zarr") for out in ("here", "there"))
        assert here.fingerprint == there.fingerprint
        assert here.codebook == there.codebook
        np.testing.assert_array_equal(there.source.read(0, 40), X)
    assert there.codebook is not None
    assert [item.wording for item in there.codebook] == wording
    assert list(dfact.open_dataset(tmp_path / "matrix.mtx.gz.there.zarr").column_labels) == [f"c{j}" for j in range(5)]
    assert list(dfact.open_dataset(tmp_path / "x.nc.there.zarr").row_labels) == people


# whole or not taken for it


class ObjectStoreSuite(ZarrStoreSuite):
    """What becomes of a store whose objects are lost or replaced, by any provider."""

    def keys(self, location: str) -> list[str]:
        return [*StrictObjectStore(location).keys()]

    def remove(self, location: str) -> None:
        store, key = version(location)
        store.remove([key])

    def content(self, location: str) -> bytes:
        store, key = version(location)
        found = store.read(key)
        assert found is not None
        return found[0]

    def replace(self, location: str, content: bytes) -> None:
        store, key = version(location)
        store.store.put(key, content)


def version(location: str) -> tuple[StrictObjectStore, str]:
    """Return the present version of the store in which an object is, and its key there."""
    store, _, key = location.partition(".zarr/")
    return StrictObjectStore(f"{current_version(f'{store}.zarr')}"), key


class TestObjectStore(ObjectStoreSuite):
    @pytest.fixture
    def location(self, bucket: str) -> str:
        return bucket

    def put(self, location: str, content: bytes) -> None:
        assert send(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), "PUT", f"/{location.removeprefix('s3://')}", content)[0] == 200

    def reach(self, client: Client) -> None:
        client.run(os.environ.update, settings(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])))

    @pytest.mark.further
    def test_what_is_still_to_be_read_is_replaced_afterwards(self, X: NDArray[np.float64], location: str) -> None:
        labels = np.arange(100).astype(str).astype(object)
        one, two = (dfact.import_array(X[:100], f"{location}/{name}.zarr", row_labels=labels) for name in ("one", "two"))
        values = zarr.open_group(open_store(current_version(f"{location}/two.zarr"), read_only=True), mode="r")["values"]
        assert dfact.join_datasets([one, two], f"{location}/one.zarr", overwrite=True).shape == (100, 2 * M)
        assert dfact.import_array(values, f"{location}/two.zarr", overwrite=True).shape == (100, M)


@pytest.mark.further
def test_what_is_replaced_is_read_meanwhile(X: NDArray[np.float64], bucket: str) -> None:
    address = f"{bucket}/x.zarr"
    dfact.import_array(X[:100], address)
    with pytest.raises(StoreError, match="exists already"):
        dfact.import_array(X[:50], address)
    with pytest.raises(ZeroDivisionError), create_group(address, "dataset", overwrite=True):
        assert dfact.open_dataset(address).shape[0] // 0
    assert dfact.open_dataset(address).shape == (100, M)
    assert dfact.import_array(X[:50], address, overwrite=True).shape == (50, M)
    assert kind_at(address) == "dataset"


@pytest.mark.faults
def test_chunk_missing_after_opening_is_named(X: NDArray[np.float64], bucket: str) -> None:
    dataset = dfact.import_array(X, f"{bucket}/x.zarr")
    StrictObjectStore(f"{current_version(f'{bucket}/x.zarr')}").remove(["values/c/0/0"])
    with pytest.raises(StoreError, match=r"cannot read rows .* of s3://.*/x.zarr/version-.*/values: its chunk values/c/0/0 is missing"):
        icqf(executor="threads").fit(dataset)
    with pytest.raises(StoreError, match="has 0 chunks, expected 1"):
        dfact.open_dataset(f"{bucket}/x.zarr")


# a server that errs


@pytest.mark.further
@pytest.mark.faults
def test_transient_errors_of_the_server_are_retried(X: NDArray[np.float64], local: dfact.Dataset, bucket: str, proxy: Proxy) -> None:
    proxy.every = 12
    model = icqf(executor="threads").fit(dfact.import_array(X, f"{bucket}/x.zarr"))
    dfact.save_model(model, f"{bucket}/x.model")
    np.testing.assert_array_equal(dfact.load_model(f"{bucket}/x.model").components_, icqf(executor="inline").fit(local).components_)
    assert proxy.failed > 5


@pytest.mark.faults
def test_many_errors_within_the_time_for_retries_are_survived(bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of a server that restarts."""
    put(bucket, {"x": b"1"})
    left = iter(range(20))
    monkeypatch.setattr(stores, "RETRIES", RETRIES)
    monkeypatch.setattr(proxy, "fails", lambda *_: 503 if next(left, None) is not None else None)
    assert StrictObjectStore(f"{bucket}/").keys() == ["x"]
    assert next(left, None) is None


@pytest.mark.further
@pytest.mark.faults
def test_permanent_errors_of_the_server_are_reported(X: NDArray[np.float64], bucket: str, proxy: Proxy) -> None:
    dataset = dfact.import_array(X, f"{bucket}/x.zarr")
    model = icqf(executor="inline").fit(dataset)
    proxy.every = 1
    tried = r".*after 2 retries, max_retries: 2, retry_timeout: 60s"
    with pytest.raises(StoreError, match=r"the object store failed at s3://.*/x.zarr/version-.*/values/c/0/0: " + tried):
        dataset.source.read(0, 10)
    with pytest.raises(StoreError, match="the object store failed at s3://.*/x.model" + tried):
        dfact.save_model(model, f"{bucket}/x.model")
    proxy.every = 0
    with pytest.raises(StoreError, match=r"a partial store may remain at s3://.*/z.zarr/version-.*: delete it"):
        fail_while_writing(f"{bucket}/z.zarr", proxy)
    proxy.every = 0
    with pytest.raises(StoreError, match=r"z\.zarr does not exist, .*; its writer was interrupted: run the same command again"):
        dfact.open_dataset(f"{bucket}/z.zarr")


def fail_while_writing(address: str, proxy: Proxy) -> None:
    with create_group(address, "dataset") as group:
        proxy.every = 1
        group.create_group("values")


@pytest.mark.further
@pytest.mark.faults
def test_fit_resumes_from_a_checkpoint_in_the_store(X: NDArray[np.float64], local: dfact.Dataset, bucket: str, proxy: Proxy) -> None:
    """With transient errors of the server; also a selection."""

    def interrupt(iteration: Any) -> None:
        if iteration.number == 7:
            raise InterruptedError

    address, parameters = f"{bucket}/fit.checkpoint", {"tol": 0, "max_iter": 12, "checkpoint_every": 2}
    undisturbed = icqf(**parameters).fit(local)
    proxy.every = 5
    with pytest.raises(InterruptedError):
        icqf(**parameters, checkpoint=address, callbacks=[interrupt]).fit(local)
    assert resume_point(address) == 10
    resumed = icqf(**parameters, checkpoint=address).fit(local)
    assert proxy.failed > 3
    proxy.every = 0
    np.testing.assert_array_equal(resumed.components_, undisturbed.components_)
    np.testing.assert_array_equal(resumed.objective_history_, undisturbed.objective_history_)
    with pytest.raises(dfact.ParameterError, match=r"the checkpoint s3://.* belongs to another fit: beta is 0.1, expected"):
        icqf(**parameters, beta=0.2, checkpoint=address).fit(local)
    grid = {"n_components": [1, 2]}
    selections = [
        dfact.selection.block_cross_validate(icqf(), X, grid, (2, 2), 2, random_state=0, checkpoint=f"{bucket}/select.checkpoint")
        for _ in range(2)
    ]
    assert selections[0].folds.equals(selections[1].folds)
    assert selections[0].table.equals(selections[1].table)  # the seconds, too: nothing was computed again


@pytest.mark.further
def test_job_record_in_an_object_store(X: NDArray[np.float64], bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(X, f"{bucket}/job.zarr")
    job = f"""
[job]
state = "{bucket}/job.state"

[[step]]
run = "fit icqf"
data = "{bucket}/job.zarr"
model = "{bucket}/job.model"
components = 2
max-iter = 3

[[step]]
run = "transform"
model = "{bucket}/job.model"
data = "{bucket}/job.zarr"
out = "{bucket}/job-factors.csv"
"""
    (tmp_path / "job.toml").write_text(job)
    for done in (2, 0):
        assert main(["run", str(tmp_path / "job.toml")]) == 0
        assert capsys.readouterr().err.count("finished in") == done
    (tmp_path / "job.toml").write_text(job.replace("components = 2", "components = 1"))
    assert main(["run", str(tmp_path / "job.toml")]) == 0
    assert dfact.load_model(f"{bucket}/job.model").n_components == 1
    [header, *_] = b"".join(map(bytes, stream_file(f"{bucket}/job-factors.csv")[1])).splitlines()
    assert header.count(b",") == 1  # of the model with one component: the object has been replaced
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


# requests that write


def uploads(port: int, bucket: str) -> int:
    """Return the number of uploads in parts that were begun and neither completed nor aborted, whose parts are billed."""
    return send(port, "GET", f"/{bucket.removeprefix('s3://')}?uploads")[2].count(b"<Upload>")


def test_a_segment_of_a_checkpoint_is_one_request(bucket: str, proxy: Proxy) -> None:
    group = zarr.create_group(open_store(f"{bucket}/checkpoint"))
    proxy.requests.clear()
    writer = StreamWriter(group, "states")
    for _ in range(20):
        writer.append(np.ones(1 << 17))
    n_segments = len(writer.close())
    assert n_segments == 3
    assert [method for method, _ in proxy.requests] == ["PUT"] * n_segments


@pytest.mark.parametrize("broken", [False, True])
def test_an_object_in_parts_is_complete_or_aborted(
    bucket: str, server: int, proxy: Proxy, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MULTIPART_THRESHOLD", 1 << 20)
    monkeypatch.setattr(stores, "_PART_BYTES", 5 << 20)  # the least that S3 accepts
    store, content = open_store(f"{bucket}/large"), default_buffer_prototype().buffer.from_bytes(b"x" * (11 << 20))
    if broken:
        proxy.refused = "partNumber=2"
        with pytest.raises(StoreError, match="object store failed"):
            sync(store.set("object", content))
        assert sync(store.get("object", default_buffer_prototype())) is None
    else:
        sync(store.set("object", content))
        assert sync(store.get("object", default_buffer_prototype())) == content
    sent = Counter(method for method, _ in proxy.requests)
    assert sent["POST"] == (1 if broken else 2)  # begun, and completed
    assert sent["DELETE"] == broken
    assert uploads(server, bucket) == 0
