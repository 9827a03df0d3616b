"""Files in object stores and on web servers: found, described and read by ranges of bytes."""

import io
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dfact.errors import DataError, StoreError
from dfact.storage.location import is_web, public_url
from dfact.storage.zarr_stores import (
    MULTIPART_THRESHOLD,
    client_errors,
    first_object_client,
    object_client,
    put_if,
    reach,
    retry_config,
    server_of,
    version_of,
)

Signature = tuple[int, int | str]
"""Size of a file, and the time of its last change or the tag of its content."""

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_LEAST_READ, _MOST_READ = 1 << 16, 1 << 22
"""Bytes of the smallest and the largest request: reading in sequence doubles them, reading elsewhere starts over."""
_KEPT_RANGES = 4
_READ_SECONDS = 60.0  # without a byte from a web server; the default limit of 30 s for a whole answer is too short for a large file


class RangesUnsupportedError(Exception):
    """The server sends complete files only."""


def file_name(url: str) -> str:
    """Return the last part of the path of a URL, without a query, which may hold a password."""
    return unquote(urlsplit(url).path.rpartition("/")[2]) if is_web(url) else url.rpartition("/")[2]


def list_files(url: str) -> dict[str, Signature]:
    """List the files below a URL of an object store, at any depth, with one request per thousand: signatures by URL."""
    import obstore

    client, key = _object(url)
    with _errors(url):
        entries = _ask(url, lambda client: obstore.list(client, prefix=key).collect(), client)
    root = url.removesuffix(key)
    return {root + entry["path"]: _signature(entry) for entry in entries if entry["path"] != key}


def describe(url: str) -> Signature | None:
    """Return the signature of a file, None if there is no such file.

    Raises RangesUnsupportedError for a file on a web server that cannot be read by ranges.
    """
    import obstore
    from obstore.exceptions import GenericError, NotSupportedError

    client, key = _object(url)
    with _errors(url):
        try:
            if not is_web(url):
                return _signature(_ask(url, lambda client: obstore.head(client, key), client))
            # Not a HEAD: the signature of a signed URL allows one method.
            result = _ask(url, lambda client: obstore.get(client, key, options={"range": (0, 1)}), client)
            result.bytes()
            return _signature(result.meta)
        except FileNotFoundError:
            return None
        except NotSupportedError as error:
            raise RangesUnsupportedError from error
        except GenericError as error:
            if "416" in str(error):  # range not satisfiable: the file is empty
                raise RangesUnsupportedError from error
            raise


def read_range(url: str, start: int, stop: int, expected: Signature) -> memoryview:
    """Read bytes of a file; raise DataError if its signature has changed."""
    import obstore

    client, key = _object(url)
    with _errors(url):
        result = obstore.get(client, key, options={"range": (start, stop)})
        if _signature(result.meta) != expected:
            raise DataError(f"{public_url(url)} changed while it was read; import it again")
        return memoryview(result.bytes())


def stream_file(url: str) -> tuple[Signature, Iterator[bytes]]:
    """Return the signature of a file and its content, with one request."""
    import obstore

    client, key = _object(url)
    with _errors(url):
        result = obstore.get(client, key)

    def content() -> Iterator[bytes]:
        with _errors(url):
            yield from result.stream(_MOST_READ)

    return _signature(result.meta), content()


def object_version(url: str) -> Any:
    """Return what tells the version of an object for :func:`upload`; None if there is none."""
    import obstore

    client, key = _object(url)
    with _errors(url):
        try:
            return version_of(_ask(url, lambda client: obstore.head(client, key), client))
        except FileNotFoundError:
            return None


def upload(path: Path, url: str, version: Any) -> bool:
    """Write a local file as an object, which is complete or absent, if its version is still this one, or it is still absent (None).

    Return whether it was.
    """
    import obstore

    client, key = _object(url)
    try:
        with _errors(url):
            if path.stat().st_size <= MULTIPART_THRESHOLD:
                return put_if(client, key, path, version) is not None
            if object_version(url) != version:
                return False
            obstore.put(client, key, path)  # in parts, for which there is no condition
            return True
    except StoreError as error:
        raise StoreError(f"cannot write {public_url(url)}: {error}") from error


def remove_object(url: str) -> None:
    """Delete the object of this name."""
    import obstore

    client, key = _object(url)
    with _errors(url):
        obstore.delete(client, key)


class RangeStream(io.RawIOBase):
    """A seekable stream of a remote file that requests ranges and reads ahead."""

    def __init__(self, url: str, signature: Signature) -> None:
        self._url, self._signature, self._size = url, signature, signature[0]
        self._position = self._end = 0  # the end of the last request
        self._window = _LEAST_READ
        self._ranges = deque[tuple[int, memoryview]](maxlen=_KEPT_RANGES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if position < 0:
            raise ValueError(f"the position is {position}, expected one from 0")
        self._position = position
        return position

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        n = min(len(view), self._size - self._position)
        if n <= 0:
            return 0
        start, data = next((kept for kept in self._ranges if kept[0] <= self._position < kept[0] + len(kept[1])), (0, None))
        if data is None:
            start, data = self._position, self._request(n)
        piece = data[self._position - start :][:n]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _request(self, n: int) -> memoryview:
        """Request at least the next ``n`` bytes."""
        start = self._position
        self._window = min(2 * self._window, _MOST_READ) if start == self._end else _LEAST_READ
        self._end = min(start + max(n, self._window), self._size)
        data = read_range(self._url, start, self._end, self._signature)
        if n < self._window:
            self._ranges.append((start, data))
        return data


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Translate the client's errors into a StoreError without the query of the URL.

    A query may be a credential, and the client's own error quotes it, so the traceback must not show that as the cause.
    """
    query = urlsplit(url).query if is_web(url) else ""
    try:
        with client_errors(public_url(url)):
            yield
    except FileNotFoundError as error:
        raise StoreError(f"{public_url(url)} does not exist, expected a file or a folder") from (None if query else error)
    except StoreError as error:
        if query:
            raise StoreError(str(error).replace(f"?{query}", "")) from None
        raise


def _signature(meta: Any) -> Signature:
    tag = meta["e_tag"]
    if tag is None:
        return meta["size"], meta["last_modified"].isoformat()
    return meta["size"], tag.removeprefix("W/").strip('"')  # Azure lists tags without the quotation marks of an answer


def _object(url: str) -> tuple[Any, str]:
    """Return the client for a URL, and the key of the file in its store."""
    if is_web(url):
        return _web_client(url), ""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return object_client(f"{scheme}://{bucket}"), key


def _ask(url: str, request: Callable[[Any], Any], client: Any) -> Any:
    """Return the answer to a request, which fails soon if its server has never answered."""
    return reach(server_of(url), request, client, lambda: _web_client(url, first=True) if is_web(url) else first_object_client(url))


@lru_cache(maxsize=64)
def _web_client(url: str, *, first: bool = False) -> Any:
    parts = urlsplit(url)
    local = parts.hostname in _LOCAL_HOSTS
    if parts.scheme == "http" and not local:
        raise StoreError(
            f"{public_url(url)} is plain http, which others can read and change on its way, expected https://; download the file first"
        )
    try:
        from obstore.store import HTTPStore
    except ImportError as error:
        raise StoreError(f"{public_url(url)} is on a web server, which needs obstore; install dfact[cloud]") from error
    limits: Any = {"timeout": timedelta(days=1), "read_timeout": timedelta(seconds=_READ_SECONDS), "allow_http": local}
    with client_errors(public_url(url)):
        return HTTPStore(url, client_options=limits, retry_config=retry_config(first=first))
