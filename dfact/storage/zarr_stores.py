"""Zarr stores in a local folder and in an object store; opened read-only, they report a missing chunk as an error.

Zarr 3.1 returns the fill value for a missing chunk. dfact writes all chunks, even empty ones, so a missing one is lost;
detecting it costs nothing, because the store looks it up in any case.
"""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import LocalStore, ObjectStore

from dfact.errors import StoreError
from dfact.monitoring import metrics
from dfact.storage.location import SCHEMES, Location
from dfact.storage.seals import Seal, check_read

T = TypeVar("T")

_PLAIN_KEY = re.compile(r"[^/\\:]+(/[^/\\:]+)*")
"""Keys that name nothing outside of the store's folder on any operating system, if no part is ``..``."""
_ENVIRONMENT = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Beginnings of the environment variables that configure the client, by scheme."""
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_METADATA_SERVICE = "169.254.169.254"  # of which the client asks credentials if the environment has none
_SIGNATURE = re.compile(r"\b(sig=)[^&\s]+")  # of Azure, in URLs, which obstore 0.12 does not print
RETRIES, RETRY_SECONDS = 40, 60.0
"""Maximum number of retries of a request that failed transiently (server error, lost connection), and their total duration in seconds."""
_WAITS = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 4}
# The client draws each wait between 0.1 s and `base` times the one before, so that with its default base of 2 waits hardly grow:
# 8 retries would end within 2 s, before a server has restarted. With these waits RETRIES last longer than RETRY_SECONDS.
_FIRST_RETRIES, _FIRST_SECONDS = 3, 3.0
"""Retries of the first request to a server and their duration, for as long as it has not answered this process: its name may be wrong."""

MULTIPART_THRESHOLD = 1 << 26
"""Size in bytes above which an object is written as a multipart upload, with two requests more than it has parts."""
_PART_BYTES, _PARTS_AT_ONCE = 1 << 24, 4  # together no more than the threshold, as each request must end within the client's 30 s

_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
_XML_ERROR = re.compile(r"<\?xml.*?<Code>(.*?)</Code>.*?<Message>(.*?)</Message>.*</Error>", re.DOTALL)
_NO_CONNECTION = "kind: Connect"  # in the client's internal structures
_UNKNOWN_HOST = '"dns error"'
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Only the client's internal structures, which follow the text of an error, tell that a certificate is refused."""
_CERTIFICATE_REASONS = {
    "Expired": "has expired",
    "NotValidYet": "is not yet valid",
    "NotValidForName": "names another host",
    "UnknownIssuer": "is of an unknown authority",
}


class ContainedLocalStore(LocalStore):
    """A local folder, whose links do not lead out of it: a store of others could have some to files that are not theirs."""

    async def get(self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None) -> Buffer | None:
        self._require_inside(key)
        value = await super().get(key, prototype, byte_range)
        metrics.add(store_read_bytes=len(value or ()))
        return value

    async def set(self, key: str, value: Buffer) -> None:
        self._require_inside(key)
        await super().set(key, value)
        metrics.add(store_written_bytes=len(value))

    def _require_inside(self, key: str) -> None:
        # Each access comes here, and to resolve a deep folder takes many calls of the system.
        path, parts = self.root, key.split("/")
        if _PLAIN_KEY.fullmatch(key) and ".." not in parts and not any((path := path / part).is_symlink() for part in parts):
            return
        root = os.path.realpath(self.root)
        if not os.path.realpath(self.root / key).startswith(f"{root}{os.sep}"):
            raise link_error(self.root / key)


def link_error(path: Path) -> StoreError:
    """Return the error of a link that leads out of its store or folder."""
    return StoreError(f"{path} is a link that leads out of its folder; replace it with a copy of what it leads to")


class StrictLocalStore(ContainedLocalStore):
    """A local folder to which dfact has written all chunks, so that a missing one is an error when it is read."""

    seal: Seal | None = None
    """The parts that the store must have when it is read; None if they are not known."""

    async def get(self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if self.read_only:
            check_read(self.seal, key, value, byte_range)
        return value


class StrictObjectStore(ObjectStore[Any]):
    """A prefix in an object store, pickled as its URL: each process reads credentials from its own environment."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        super().__init__(object_client(url), read_only=read_only)
        self.url = url
        self.seal: Seal | None = None  # as in a local store

    def with_read_only(self, read_only: bool = False) -> Self:
        return type(self)(self.url, read_only=read_only)

    def __getstate__(self) -> dict[Any, Any]:
        return {"url": self.url, "read_only": self.read_only, "seal": self.seal}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        type(self).__init__(self, state["url"], read_only=state["read_only"])
        self.seal = state["seal"]

    def __str__(self) -> str:
        return self.url

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        with self.object_errors(key):
            value = await super().get(key, prototype, byte_range)
        metrics.add(store_read_bytes=len(value or ()))
        if self.read_only:
            check_read(self.seal, key, value, byte_range)
        return value

    async def exists(self, key: str) -> bool:
        with self.object_errors(key):
            return await super().exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        from obstore import put_async

        if self.read_only:
            raise ValueError(f"{self.url} was opened read-only, expected a writable store")
        # If a process is killed during a multipart upload, the store keeps the parts already sent, and bills them.
        in_parts: dict[str, Any] = {
            "use_multipart": len(value) > MULTIPART_THRESHOLD,
            "chunk_size": _PART_BYTES,
            "max_concurrency": _PARTS_AT_ONCE,
        }
        with self._write_errors(key):
            await put_async(self.store, key, value.as_buffer_like(), **in_parts)
        metrics.add(store_written_bytes=len(value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        with self._write_errors(key):
            await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        with self.object_errors(key):
            await super().delete(key)

    async def getsize(self, key: str) -> int:
        with self.object_errors(key):
            return await super().getsize(key)

    async def list(self) -> AsyncIterator[str]:  # type: ignore[override]  # the base class declares a function that returns one
        with self.object_errors(""):
            async for key in super().list():
                yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:  # type: ignore[override]  # see list
        with self.object_errors(prefix):
            async for key in super().list_prefix(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:  # type: ignore[override]  # see list
        with self.object_errors(prefix):
            async for key in super().list_dir(prefix):
                yield key

    def holds_any(self) -> bool:
        """Check whether any object has the prefix."""
        import obstore

        def request(client: Any) -> bool:
            return any(len(objects) > 0 for objects in obstore.list(client, chunk_size=1))

        with self.object_errors(""):
            return reach(server_of(self.url), request, self.store, lambda: _client(self.url, _settings(), first=True))

    def keys(self) -> Sequence[str]:
        """List the keys of all objects under the prefix."""
        import obstore

        with self.object_errors(""):
            return [entry["path"] for entry in obstore.list(self.store).collect()]

    def names(self) -> Sequence[str]:
        """List the objects and the folders of the first level."""
        import obstore

        def request(client: Any) -> Any:
            return obstore.list_with_delimiter(client)

        with self.object_errors(""):
            found = reach(server_of(self.url), request, self.store, lambda: _client(self.url, _settings(), first=True))
        return [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]

    def read(self, key: str) -> tuple[bytes, Any] | None:
        """Return the content of an object and its version; None if it is absent."""
        import obstore

        with self.object_errors(key):
            try:
                found = obstore.get(self.store, key)
                return bytes(found.bytes()), version_of(found.meta)
            except FileNotFoundError:
                return None

    def replace(self, key: str, content: bytes, version: Any) -> Any:
        """Write an object if its version is still this one, or if it is still absent (None). Return the new version, or None."""
        with self._write_errors(key):
            return put_if(self.store, key, content, version)

    def total_bytes(self) -> int:
        """Return the total size of all objects under the prefix."""
        import obstore

        with self.object_errors(""):
            return sum(entry["size"] for entry in obstore.list(self.store).collect())

    def remove(self, keys: Sequence[str]) -> None:
        """Delete the objects with these keys; some may be deleted already, by another process or by a request that was repeated."""
        import obstore

        remaining = [*keys]
        with self.object_errors(""):
            while remaining:
                try:
                    obstore.delete(self.store, remaining)
                    return
                except FileNotFoundError as error:  # from Google and Azure, which may not have deleted the others
                    found = {*remaining}.intersection(self.keys())
                    if len(found) == len(remaining):
                        raise StoreError(f"the object store failed at {self.url}: it lists objects and reports them as missing") from error
                    remaining = sorted(found)

    @contextmanager
    def _write_errors(self, key: str) -> Iterator[None]:
        try:
            with self.object_errors(key):
                yield
        except FileNotFoundError as error:
            raise StoreError(
                f"the object store failed at {self.url}/{key}: the bucket does not exist; create it, or correct its name"
            ) from error

    @contextmanager
    def object_errors(self, key: str) -> Iterator[None]:
        """Translate the client's errors into a StoreError that names the object."""
        with client_errors(f"{self.url}/{key}".rstrip("/")):
            yield


def version_of(meta: Any) -> dict[str, str]:
    """Return what tells the version of an object for :func:`put_if`."""
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}


def put_if(client: Any, key: str, content: Any, version: Any) -> dict[str, str] | None:
    """Write an object if its version is still this one, or if it is still absent (None). Return the new version, or None."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    try:
        return version_of(obstore.put(client, key, content, mode="create" if version is None else version))
    except (AlreadyExistsError, PreconditionError):
        return None
    except FileNotFoundError:
        if version is None:  # the bucket
            raise
        return None


@contextmanager
def client_errors(url: str) -> Iterator[None]:
    """Translate the client's errors into a StoreError that names the URL."""
    try:
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise StoreError(f"{url} needs obstore; install dfact[cloud]") from error
    try:
        yield
    except (BaseError, PermissionError) as error:
        if refused := _CERTIFICATE.search(str(error)):
            reason = _CERTIFICATE_REASONS.get(refused[1].removesuffix("Context"), f"is invalid ({refused[1]})")
            raise StoreError(
                f"the TLS certificate of the server of {url} {reason}, expected a valid one of a known authority; check the address and "
                "the certificate (SSL_CERT_FILE names the file of an authority of your own)"
            ) from error
        raise StoreError(f"the object store failed at {url}: {_explain(url, error)}") from error


def _explain(url: str, error: Exception) -> str:
    """Return the client's message in one line, without secrets and with a remedy where the settings of the client are wrong."""
    # The text begins with the request, its retries and seconds; the client's internal structures follow.
    whole, scheme = str(error), url.partition("://")[0]
    text = _SIGNATURE.sub(r"\1…", " ".join(whole.partition("\n\nDebug source")[0].split()))
    if scheme in SCHEMES and _NO_BUCKET.search(text):
        return f"the bucket {url.split('/')[2]} does not exist; create it, or correct its name"
    if _NO_CONNECTION in whole and _METADATA_SERVICE not in text:
        host = re.search(r"\bhttps?://([^/\s]+)", text)
        found = f"its server {host[1].rpartition('@')[2] if host else ''} {'is unknown' if _UNKNOWN_HOST in whole else 'does not answer'}"
        named = (
            f"; check the network and the address (environment variables {_ENVIRONMENT[scheme]}…)"
            if scheme in SCHEMES
            else "; check the network and the address"
        )
        return found + named
    text = _XML_ERROR.sub(r"\1: \2", text)
    if scheme not in SCHEMES:
        return text
    if _METADATA_SERVICE in text:
        return f"{text}; the environment has no credentials, expected {_CREDENTIALS[scheme]}, or a machine that has an identity there"
    if "builder error" in text:
        return f"{text}; an endpoint with plain http needs {_ENVIRONMENT[scheme]}ALLOW_HTTP=true"
    return text


def location_of(store: Any) -> Location | None:
    """Return the folder or the URL of a store, None for a store of another kind."""
    if isinstance(store, StrictObjectStore):
        return store.url
    root = getattr(store, "root", None)
    return None if root is None else Path(root)


def _settings() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that configure the client."""
    return tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith(tuple(_ENVIRONMENT.values()))))


def object_client(url: str) -> Any:
    """Return a client of the URL, configured by the environment."""
    return _client(url, _settings())


def first_object_client(url: str) -> Any:
    """Return a client of the bucket of the URL for the first request to its server."""
    scheme, _, rest = url.partition("://")
    return _client(f"{scheme}://{rest.partition('/')[0]}", _settings(), first=True)


_reached: set[Any] = set()
"""Servers that have answered this process."""


def server_of(url: str) -> Any:
    """Return a key of the server of a URL: scheme, host or bucket, and the settings that name its address."""
    return (*url.split("/", 3)[:3], _settings())


def reach(server: Any, request: Callable[[Any], T], client: Any, first_client: Callable[[], Any]) -> T:
    """Return the answer to a request, which fails soon if the server has never answered this process and cannot be reached."""
    from obstore.exceptions import GenericError

    if server not in _reached:
        try:
            answer = request(first_client())
        except GenericError as error:
            if _NO_CONNECTION in str(error):
                raise
        else:
            _reached.add(server)
            return answer
        _reached.add(server)
    return request(client)


def retry_config(*, first: bool = False) -> Any:
    """Return the client's rules for transient failures, those of the ``first`` request or of all others."""
    retries, seconds = (min(RETRIES, _FIRST_RETRIES), _FIRST_SECONDS) if first else (RETRIES, RETRY_SECONDS)
    return {"max_retries": retries, "retry_timeout": timedelta(seconds=seconds), "backoff": _WAITS}


@lru_cache(maxsize=64)
def _client(url: str, _: tuple[tuple[str, str], ...], *, first: bool = False) -> Any:
    """Create a client of the URL; all arrays there share it and its connections while the environment stays the same."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise StoreError(f"{url} is in an object store, which needs obstore; install dfact[cloud]") from error
    try:
        return from_url(url, retry_config=retry_config(first=first))
    except (BaseError, ValueError) as error:
        remedy = f"credentials, region and endpoint are read from the environment, such as {_CREDENTIALS[url.partition('://')[0]]}"
        raise StoreError(f"cannot open {url}: {_explain(url, error)}; {remedy}") from error
