"""Web servers and object stores over https: their certificates are checked, and the message tells what is wrong with one."""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

import dfact
from dfact.storage.input_files import open_input_file
from dfact.storage.zarr_stores import StrictObjectStore
from tests import servers
from tests.tls.authority import Authority, strangers

BODY = b"id,q0\np,1\n"
LISTING = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'
REASONS = {
    "foreign": "is of an unknown authority|is invalid",
    "expired": "has expired",
    "not yet valid": "is not yet valid",
    "misnamed": "names another host",
    "named as its subject alone": "names another host",
}


class Handler(servers.Handler):
    def do_GET(self) -> None:
        body = LISTING if "list-type" in self.path else BODY
        self.send_response(200)
        self.send_body(body)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Yield the URL of a server with the certificate of a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with servers.serving(server):
        yield f"https://127.0.0.1:{server.server_address[1]}"


@pytest.mark.object_store
def test_certificates_of_servers_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'dfact[test]'")
    own = Authority.make()
    kinds = strangers(own, "127.0.0.1", tmp_path / "strangers") | {"misnamed": own.issue(tmp_path / "other", "example.org")}
    (tmp_path / "own.pem").write_bytes(own.pem)
    monkeypatch.setattr("dfact.storage.zarr_stores.RETRIES", 0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "test")

    def check(url: str) -> None:
        with open_input_file(f"{url}/t.csv").open() as stream:
            assert stream.read() == BODY
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert StrictObjectStore("s3://bucket/d.zarr").keys() == []

    with ExitStack() as stack:
        good = stack.enter_context(serving(own.issue(tmp_path / "good", "127.0.0.1")))
        with pytest.raises(dfact.StoreError, match="is of an unknown authority, expected a valid one"):
            check(good)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
        other = stack.enter_context(serving(tmp_path / "good"))  # clients are kept by their URL
        check(other)
        for kind, folder in kinds.items():
            url = stack.enter_context(serving(folder))
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            for request in (lambda url=url: open_input_file(f"{url}/t.csv"), lambda: StrictObjectStore("s3://bucket/d.zarr").keys()):
                with pytest.raises(dfact.StoreError, match=REASONS[kind]) as error:
                    request()
                assert "the TLS certificate of the server of" in str(error.value)
