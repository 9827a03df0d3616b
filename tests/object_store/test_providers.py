"""Stores of Amazon's, Google's and Azure's kind: the same datasets and models, and the same answers to faults, whatever the provider.

Google's XML interface is that of S3, which moto serves; the proxy adds what differs. Azure's is served by azurite, a program of npm.
"""

import base64
import hashlib
import hmac
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import StoreError
from dfact.storage import zarr_stores as stores
from dfact.storage.arrays import write_array
from dfact.storage.groups import create_group
from dfact.storage.input_files import InputFolder, open_input, open_input_file
from dfact.storage.zarr_stores import StrictObjectStore, client_errors
from tests.conftest import free_port, planted_answers
from tests.object_store.test_object_store import ObjectStoreSuite, Proxy, answers, proxied, put, send, server, settings  # noqa: F401  # a fixture

pytestmark = [pytest.mark.object_store, pytest.mark.process, pytest.mark.exhaustive]
N, M, K = 300, 12, 2
START_SECONDS = 150
ACCOUNT, CANARY = "studies", "canary-7f3a91-not-to-be-printed"
KEY = base64.b64encode(CANARY.encode()).decode()


@pytest.fixture(scope="session")
def azurite() -> Iterator[int]:
    """The port of Azure's emulator in a separate process."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed: npm install --global azurite")
    port = free_port()
    command = [program, "--blobPort", str(port), "--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(port):
                assert process.poll() is None, "azurite ended"
                assert time.monotonic() < deadline, f"azurite has not answered for {START_SECONDS} s"
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


def create_container(port: int, name: str) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    digest = base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {ACCOUNT}:{digest}"}
    assert send(port, "PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)[0] == 201


def google(port: int) -> dict[str, str]:
    return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{port}", "GOOGLE_ALLOW_HTTP": "true", "GOOGLE_BEARER_TOKEN": CANARY}


def azure(port: int) -> dict[str, str]:
    names = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_ALLOW_HTTP": "true"}
    return {**names, "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}"}


SETTINGS: dict[str, Callable[[int], dict[str, str]]] = {"s3": settings, "gs": google, "az": azure}


@dataclass
class Place:
    """A new bucket behind a proxy."""

    url: str
    proxy: Proxy

    @property
    def environment(self) -> dict[str, str]:
        return SETTINGS[self.url[:2]](self.proxy.server_address[1])


@pytest.fixture(params=["gs", "az"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(scheme: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # Google's client encodes a hyphen, which moto does not decode.
    port, name = request.getfixturevalue("azurite" if scheme == "az" else "server"), f"bucket{uuid4().hex[:8]}"
    if scheme == "az":
        create_container(port, name)
    else:
        assert send(port, "PUT", f"/{name}")[0] == 200
    with proxied(port, monkeypatch) as proxy:
        proxy.google = scheme == "gs"
        found = Place(f"{scheme}://{name}", proxy)
        for variable, value in found.environment.items():
            monkeypatch.setenv(variable, value)
        yield found


@pytest.fixture(scope="module")
def X() -> NDArray[np.float64]:
    return planted_answers(N, M, K, seed=5, missing=0.1)


def icqf(**parameters: Any) -> dfact.ICQF:
    return dfact.ICQF(**{"n_components": K, "max_iter": 4, "tol": 0, "random_state": 1, "executor": "threads"} | parameters)


def test_a_fit_killed_and_resumed_gives_the_bits_of_a_folder(
    X: NDArray[np.float64], place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(iteration: Any) -> None:
        if iteration.number == 3:
            raise InterruptedError

    expected = icqf().fit(dfact.import_array(X, tmp_path / "x.zarr"))
    data, model, checkpoint = (f"{place.url}/a/{name}" for name in ("x.zarr", "x.model", "x.checkpoint"))
    place.proxy.every = 9
    dfact.import_array(X[:50], data)
    dfact.import_array(X, data, overwrite=True)
    kept = {"checkpoint": checkpoint, "checkpoint_every": 1}
    with pytest.raises(InterruptedError):
        icqf(**kept, callbacks=[interrupt]).fit(data)
    dfact.save_model(icqf(**kept).fit(data), model)
    assert place.proxy.failed > 5
    place.proxy.every = 0
    loaded = dfact.load_model(model)
    np.testing.assert_array_equal(loaded.components_, expected.components_)
    np.testing.assert_array_equal(np.asarray(loaded.factors_), np.asarray(expected.factors_))
    assert main(["transform", model, data, f"{place.url}/a/w.zarr"]) == 0
    assert main(["info", data]) == main(["info", model]) == 0
    assert data in capsys.readouterr().out
    grid = {"n_components": [1, 2]}
    selections = [
        dfact.selection.block_cross_validate(icqf(), data, grid, (2, 2), 2, random_state=0, checkpoint=f"{place.url}/s") for _ in range(2)
    ]
    assert selections[0].table.equals(selections[1].table)  # the seconds, too: nothing was computed again


class TestStores(ObjectStoreSuite):
    @pytest.fixture
    def location(self, place: Place) -> str:
        return place.url

    def put(self, location: str, content: bytes) -> None:
        bucket, _, key = location.removeprefix("gs://").removeprefix("az://").partition("/")
        put(f"{location[:5]}{bucket}", {key: content})

    @pytest.mark.faults
    @pytest.mark.parametrize("executor", ["threads"])
    def test_a_chunk_lost_after_opening(self, executor: str, location: str, request: pytest.FixtureRequest) -> None:
        super().test_a_chunk_lost_after_opening(executor, location, request)


def test_tables_in_a_bucket_are_listed_and_read_by_ranges(place: Place, tmp_path: Path) -> None:
    lines = ["id," + ",".join(f"q{j}" for j in range(M)), *(f"p{i}," + ",".join("1" for _ in range(M)) for i in range(5))]
    parts = {f"folder/part {i}.csv": "\n".join(lines).replace("p", f"p{i}").encode() for i in range(3)}
    put(place.url, parts | {"folder2/x.csv": b"other"})
    folder = open_input(f"{place.url}/folder")
    assert isinstance(folder, InputFolder)
    assert [file.name for file in folder.files] == ["part 0.csv", "part 1.csv", "part 2.csv"]
    assert open_input_file(f"{place.url}/folder/part 1.csv").signature() == folder.files[1].signature()
    assert main(["import", f"{place.url}/folder/part 1.csv", str(tmp_path / "x.zarr"), "--items", "q*", "--id-column", "id"]) == 0
    assert dfact.open_dataset(tmp_path / "x.zarr").shape == (5, M)
    put(place.url, {"folder/part 0.csv": parts["folder/part 0.csv"].replace(b"1", b"2")})
    with folder.files[0].open() as stream, pytest.raises(dfact.DataError, match="changed while it was read"):
        stream.read()


@pytest.mark.faults
def test_objects_that_are_deleted_already_are_no_error(place: Place) -> None:
    keys = [f"{i:03d}" for i in range(300)]
    put(f"{place.url}", {f"x/{key}": b"." for key in keys[::2]})
    StrictObjectStore(f"{place.url}/x").remove(keys)
    assert not StrictObjectStore(f"{place.url}/x").holds_any()


@pytest.mark.faults
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_store_of_a_killed_writer_is_refused_and_replaced(X: NDArray[np.float64], place: Place) -> None:
    address = f"{place.url}/x.zarr"
    script = f"""
import os, signal, numpy
from dfact.storage.arrays import write_array
from dfact.storage.groups import create_group
with create_group({address!r}, "dataset") as group:
    write_array(group, "values", numpy.zeros((10, 2)), ("row", "column"))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert any(key.endswith("values/c/0/0") for key in list(StrictObjectStore(address).keys()))
    with pytest.raises(StoreError, match=r"does not exist, .*; its writer was interrupted: run the same command again"):
        dfact.open_dataset(address)
    assert dfact.import_array(X[:100], address).shape == (100, M)
    assert len(StrictObjectStore(address).names()) == 2


@pytest.mark.faults
@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_reader_at_each_step_of_a_replacement_finds_one_model(place: Place) -> None:
    address, found, said = f"{place.url}/x.model", list[Any](), list[str]()
    models = [icqf(n_components=1, max_iter=2, random_state=seed).fit(planted_answers(30, 5, 1, seed)) for seed in (1, 2)]

    def read(method: str) -> None:
        if method not in ("GET", "HEAD"):
            try:
                found.append(dfact.load_model(address).components_.tolist())
            except StoreError as error:
                said.append(str(error))
                found.append(None)

    dfact.save_model(models[0], address)
    place.proxy.watched = read
    dfact.save_model(models[1], address, overwrite=True)
    place.proxy.watched = lambda _: None
    first, second = (model.components_.tolist() for model in models)
    assert first != second
    assert said == []
    assert [found[0], *(now for before, now in pairwise(found) if now != before)] == [first, second]
    assert len(found) > 10
    assert dfact.load_model(address).components_.tolist() == second


# errors


def printed(place: Place, capfd: pytest.CaptureFixture[str], name: str = "x.zarr") -> str:
    """What the command prints that opens a dataset there."""
    assert main(["info", f"{place.url}/{name}"]) == 1
    return capfd.readouterr().err


@pytest.mark.faults
def test_errors_name_the_cause_and_no_secret(place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    texts = [printed(place, capfd)]
    assert f"{place.url}/x.zarr does not exist, expected" in texts[0]
    texts.append(printed(Place(f"{place.url}-none", place.proxy), capfd))
    assert "does not exist; create it, or correct its name" in texts[1]
    place.proxy.every = 1
    texts.append(printed(place, capfd))
    assert "after 2 retries" in texts[2]
    place.proxy.every = 0
    if place.url.startswith("az"):
        monkeypatch.delenv("AZURE_ALLOW_HTTP")
        texts.append(printed(place, capfd))
        assert "an endpoint with plain http needs AZURE_ALLOW_HTTP=true" in texts[-1]
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(f"other {CANARY}".encode()).decode())
        texts.append(printed(place, capfd))
        assert "403 Forbidden" in texts[-1]
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=2021-08-06&ss=b&srt=sco&sp=rwdl&se=2100-01-01T00:00:00Z&sig={CANARY}")
        texts.append(printed(place, capfd))
        assert "403 Forbidden" in texts[-1]
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
        texts.append(printed(place, capfd))
        assert "such as AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY" in texts[-1]
    else:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", f'{{"private_key": "{CANARY}"')
        texts.append(printed(place, capfd))
        assert "such as GOOGLE_APPLICATION_CREDENTIALS" in texts[-1]
    assert not [text for text in texts if CANARY in text or KEY in text]


@pytest.mark.parametrize(
    ("url", "text", "said"),
    [
        ("gs://b/x", "GET http://169.254.169.254/token", "no credentials, expected GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://b/x", "GET https://a.blob/b?sv=1&sig=secret%2B1&x=2 in 2 s", "b?sv=1&sig=…&x=2 in 2 s"),
    ],
)
def test_errors_of_the_client_are_explained(url: str, text: str, said: str) -> None:
    from obstore.exceptions import GenericError

    with pytest.raises(StoreError) as found, client_errors(url):
        raise GenericError(text)
    assert said in str(found.value)
    assert "secret" not in str(found.value)


@pytest.mark.faults
def test_a_bucket_deleted_while_a_store_is_written(server: int, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for name, value in settings(server).items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket{uuid4().hex[:8]}"
    assert send(server, "PUT", f"/{bucket}")[0] == 200
    with pytest.raises(StoreError, match=f"s3://{bucket}/x.zarr.*the bucket does not exist; create it"):
        write_without(server, bucket)


def write_without(port: int, bucket: str) -> None:
    """Write a store whose bucket is deleted meanwhile."""
    with create_group(f"s3://{bucket}/x.zarr", "dataset") as group:
        begun = StrictObjectStore(f"s3://{bucket}/x.zarr")
        begun.remove(begun.keys())
        assert send(port, "DELETE", f"/{bucket}")[0] == 204
        write_array(group, "values", np.zeros((10, 2)), ("row", "column"))


@pytest.mark.parametrize("scheme", ["gs"])
def test_a_store_behind_tls(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    subject = ["-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*new, "-keyout", "key.pem", "-out", "cert.pem", *subject], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    place.proxy.socket = context.wrap_socket(place.proxy.socket, server_side=True)
    monkeypatch.delenv("GOOGLE_ALLOW_HTTP")
    monkeypatch.setenv("GOOGLE_BASE_URL", os.environ["GOOGLE_BASE_URL"].replace("http:", "https:"))
    assert "SSL_CERT_FILE names the file of an authority of your own" in printed(place, capfd)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    stores._client.cache_clear()  # this setting is not the client's
    dfact.import_array(np.ones((5, 2)), f"{place.url}/x.zarr")
    assert dfact.open_dataset(f"{place.url}/x.zarr").shape == (5, 2)
