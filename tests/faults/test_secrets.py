"""Credentials appear in no message and in nothing that is written: planted ones are searched for everywhere."""

import logging
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import dfact
from benchmarks.faults.fits import Processes
from dfact.cli.main import main
from dfact.storage.groups import current_version
from dfact.storage.location import parse_location, public_url
from dfact.storage.zarr_stores import StrictObjectStore
from tests import servers
from tests.conftest import planted_answers
from tests.object_store.test_object_store import bucket, server  # noqa: F401  # fixtures

CANARY = "Kh7canary3Xq"
TABLE = "id,q0,q1,q2\n" + "".join(f"p{i},{i % 3},{i % 2},{(i + 1) % 3}\n" for i in range(40))


class Handler(servers.Handler):
    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        if status == 0:
            self.close_connection = True
            return
        body = TABLE.encode() if status == 200 else b"denied"
        if (asked := self.headers.get("Range")) and status == 200:
            first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
            body = body[first : last + 1]
        else:
            self.send_response(status)
        self.send_body(body)


@pytest.fixture
def web() -> Iterator[str]:
    with servers.serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as served:
        yield f"http://127.0.0.1:{served.server_address[1]}"


def objects(url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the content of every object below a URL."""
    store: Any = StrictObjectStore(url)
    for key in list(store.keys()):
        yield f"{url}/{key}", bytes(store.store.get(key).bytes())


def files_with_canary(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{CANARY}@host",
        f"https:/user:{CANARY}@host/x.csv",
        f"ftp://user:{CANARY}@host/x.csv",
        f"s3://key:{CANARY}@bucket/x.zarr",
        f"s3://key:{CANARY}@bucket",
        f"https://host?signature={CANARY}",
        f"https://[bad/x.csv?signature={CANARY}",
        f"az://account:{CANARY}@bucket//x",
    ],
)
@pytest.mark.parametrize("web", [False, True])
def test_a_refused_url_is_named_without_credentials(url: str, web: bool) -> None:
    with pytest.raises(dfact.StoreError) as error:
        parse_location(url, web=web)
    assert CANARY not in str(error.value)
    assert CANARY not in public_url(url)


def test_public_urls() -> None:
    assert public_url("https://user:word@host:80/a/b.csv?x=1#y") == "https://host:80/a/b.csv"
    assert public_url("s3://bucket/a@b?c") == "s3://bucket/a@b?c"
    assert public_url("a@b/c?d") == "a@b/c?d"


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.faults
@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale")
@pytest.mark.parametrize("status", [200, 403, 404, 500, 0])
def test_a_signature_in_a_url_is_not_told(
    status: int,
    web: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("dfact.storage.zarr_stores.RETRIES", 1)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    url = f"{web}/{status}/t.csv?X-Amz-Signature={CANARY}"
    ended = main(["import", url, str(tmp_path / "t.zarr"), "--id-column", "id", "--items", "q*"])
    assert (ended == 0) == (status == 200), capsys.readouterr().err
    if status == 200:
        assert main(["fit", "icqf", str(tmp_path / "t.zarr"), str(tmp_path / "m.model"), "-k", "1"]) == 0
        assert main(["info", str(tmp_path / "t.zarr")]) == 0
        assert main(["describe", str(tmp_path / "t.zarr"), str(tmp_path / "d.html")]) == 0
        assert main(["describe", str(tmp_path / "t.zarr"), str(tmp_path / "d.csv")]) == 0
        assert main(["report", str(tmp_path / "m.model"), str(tmp_path / "r.html"), "--data", str(tmp_path / "t.zarr")]) == 0
        assert main(["export", str(tmp_path / "m.model"), str(tmp_path / "l.csv")]) == 0
    else:
        assert main(["--debug", "import", url, str(tmp_path / "t.zarr"), "--id-column", "id", "--items", "q*"]) == 1
    told = capsys.readouterr()
    assert told.err if status != 200 else told.out
    assert ("Traceback" in told.err) == (status != 200)
    assert CANARY not in told.out + told.err + caplog.text
    assert files_with_canary(tmp_path) == []


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale")
def test_credentials_of_a_store_are_not_written(
    bucket: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"{CANARY}{name}")
    data, model = f"{bucket}/d.zarr", f"{bucket}/m.model"
    dfact.import_array(planted_answers(60, 6, 2, 0), data)
    job = tmp_path / "job.toml"
    job.write_text(
        f'[job]\nstate = "{bucket}/state"\n'
        f'[[step]]\nrun = "fit icqf"\ndata = "{data}"\nmodel = "{model}"\ncomponents = 2\nmax-iter = 3\ncheckpoint-every = 1\n'
        f'[[step]]\nrun = "stability"\nmodel = "{model}"\ndata = "{data}"\nresamples = 2\n'
        f'[[step]]\nrun = "transform"\nmodel = "{model}"\ndata = "{data}"\nout = "{bucket}/w.zarr"\n'
    )
    assert main(["run", str(job)]) == 0, capfd.readouterr().err
    assert main(["deploy", str(job), str(tmp_path / "manifests"), "--image", "image:1"]) == 0
    assert dfact.load_model(model).stability_.n_refits == 2
    assert main(["report", model, str(tmp_path / "r.html"), "--data", data]) == 0
    assert main(["export", model, str(tmp_path / "l.csv")]) == 0
    assert main(["fit", "icqf", f"{bucket}/none.zarr", f"{bucket}/n.model", "-k", "2"]) != 0
    assert main(["select", "icqf", data, f"{bucket}/s.model", "-k", "1-2", "--folds", "2", "--blocks", "2x2", "--tol", "0.1"]) == 0, (
        capfd.readouterr().err
    )
    assert main(["describe", data, str(tmp_path / "d.md"), "--style", "apa"]) == 0
    checkpoint = f"{bucket}/checkpoint"
    dfact.ICQF(2, max_iter=3, checkpoint=checkpoint, checkpoint_every=1).fit(dfact.open_dataset(data))
    written = {
        key: body
        for folder in ("d.zarr", "m.model", "s.model", "w.zarr", "state", "checkpoint")
        for key, body in objects(f"{bucket}/{folder}")
    }
    assert len(written) > 20
    assert [key for key, body in written.items() if CANARY.encode() in body] == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("dfact.storage.zarr_stores.RETRIES", 0)
    assert main(["--debug", "info", model]) == 1
    told = capfd.readouterr()
    assert CANARY not in told.out + told.err + caplog.text
    assert files_with_canary(tmp_path) == []


@pytest.mark.further
@pytest.mark.process
def test_credentials_are_not_in_the_logs_of_a_cluster(
    bucket: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"{CANARY}{name}")
    data = f"{bucket}/d.zarr"
    dfact.import_array(planted_answers(60, 6, 2, 0), data)
    with Processes(tmp_path) as processes:
        processes.start(2)
        command = ["fit", "icqf", data, f"{bucket}/m.model", "-k", "2", "--max-iter", "3", "--scheduler", processes.address]
        assert main(command) == 0, capfd.readouterr().err
        store: Any = StrictObjectStore(str(current_version(data)))
        store.store.put("values/c/0/0", b"damaged")
        assert main(["--debug", *command, "--overwrite"]) == 1
    told = capfd.readouterr()
    logs = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert sorted(logs) == ["scheduler.log", "worker-0.log", "worker-1.log"]
    assert all("INFO" in text for text in logs.values())
    assert "Traceback" in told.err
    assert "has the checksum" in told.err  # found by a worker
    assert CANARY not in told.out + told.err + "".join(logs.values())
    assert files_with_canary(tmp_path) == []
