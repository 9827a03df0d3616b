"""Files that are read and never written: tables and arrays that users bring, on this machine, in an object store or on a web server."""

import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO, cast

from dfact.errors import StoreError
from dfact.storage import remote_files
from dfact.storage.files import TemporaryFolder
from dfact.storage.groups import exists
from dfact.storage.location import Location, is_web, parse_location, public_url
from dfact.storage.remote_files import RangeStream, RangesUnsupportedError, Signature
from dfact.storage.zarr_stores import link_error

_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class InputFile:
    """A file that is read; ``name`` is its name in messages."""

    location: Location
    name: str
    found: Signature | None = None
    """Signature of a remote file when it was found; reading raises an error once it has changed."""

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of the name in lower case, such as [".csv", ".gz"]."""
        return [suffix.lower() for suffix in Path(self.name).suffixes]

    @property
    def is_remote(self) -> bool:
        """Whether the file is in an object store or on a web server."""
        return isinstance(self.location, str)

    @property
    def path(self) -> Path:
        """Path of the file on this machine; remote files have one within :meth:`local` only."""
        if isinstance(self.location, Path):
            return self.location
        raise StoreError(f"{self} is a URL, expected a path on this machine; copy it here")

    def open(self) -> BinaryIO:
        """Open the file as a seekable stream of bytes."""
        if isinstance(self.location, str):
            return cast(BinaryIO, io.BufferedReader(RangeStream(self.location, self.signature())))
        try:
            return self.location.open("rb")
        except OSError as error:
            raise StoreError(f"{self.location} cannot be read: {error.strerror or error}") from error

    def read_start(self, n_bytes: int) -> bytes:
        """Read the first bytes."""
        with self.open() as stream:
            return stream.read(n_bytes)

    def read_range(self, start: int, stop: int) -> bytes:
        """Read the bytes from ``start`` to before ``stop``, with one request."""
        if isinstance(self.location, str):
            return bytes(remote_files.read_range(self.location, start, stop, self.signature()))
        with self.open() as stream:
            stream.seek(start)
            return stream.read(stop - start)

    def signature(self) -> Signature:
        """Return the signature, which changes when the file is written again."""
        if self.found is not None:
            return self.found
        try:
            status = self.path.stat()
        except OSError as error:
            raise StoreError(f"{self.location} cannot be read: {error.strerror or error}") from error
        return status.st_size, status.st_mtime_ns

    @contextmanager
    def local(self) -> Iterator[Path]:
        """Yield a path on this machine: of the file itself, or of a temporary copy that is deleted afterwards."""
        if isinstance(self.location, Path):
            yield self.location
            return
        folder = TemporaryFolder("input")
        try:
            yield _write(folder, self.name, self.signature()[0], self._content())
        finally:
            folder.remove()

    def keep_local(self) -> Path:
        """Return a path on this machine; a temporary copy is deleted when the process ends."""
        if isinstance(self.location, Path):
            return self.location
        return _keep_copy(self.location, self.name, self.signature(), self._content()).path

    def _content(self) -> Iterator[bytes]:
        with self.open() as stream:
            yield from iter(lambda: stream.read(_COPY_BYTES), b"")

    def __str__(self) -> str:
        return public_url(self.location) if isinstance(self.location, str) else str(self.location)


@dataclass(frozen=True)
class InputFolder:
    """A folder of files that are read as one table, in the natural order of their names: part.2 before part.10."""

    location: Location
    name: str
    files: tuple[InputFile, ...]
    """Files at any depth; the name of each is its path below the folder, with "/"."""

    def __str__(self) -> str:
        return str(self.location)

    def signature(self) -> tuple[Signature, ...]:
        """Return the signatures of all files."""
        return tuple(file.signature() for file in self.files)


def open_input(source: str | PathLike[str] | InputFile | InputFolder) -> InputFile | InputFolder:
    """Find a file or a folder of files; raise StoreError if there is none.

    A folder in an object store is listed once; its files keep size and tag of the listing, so that reading them needs no
    further requests.
    """
    if isinstance(source, (InputFile, InputFolder)):
        return source
    location = parse_location(source, web=True)
    if isinstance(location, str):
        return _open_web(location) if is_web(location) else _open_object(location)
    if location.is_file():
        return InputFile(location, location.name)
    if location.is_dir():
        entries = sorted(location.rglob("*"), key=lambda path: [natural_key(part) for part in path.relative_to(location).parts])
        outside = (path for path in entries if path.is_symlink() and not path.resolve().is_relative_to(location.resolve()))
        if (link := next(outside, None)) is not None:
            raise link_error(link)
        paths = [path for path in entries if path.is_file()]
        return InputFolder(location, location.name, tuple(InputFile(path, path.relative_to(location).as_posix()) for path in paths))
    raise _absent(str(location), exists=location.exists())


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names as people and Dask count: numbers in them by their value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)], name


def input_exists(location: Location) -> bool:
    """Check whether there is a file, a folder or a store, without copying or listing it."""
    if isinstance(location, Path):
        return location.exists()
    if not is_web(location) and exists(location):
        return True
    try:
        return remote_files.describe(location) is not None
    except RangesUnsupportedError:
        return True


def open_input_file(source: str | PathLike[str] | InputFile) -> InputFile:
    """Find a file; raise StoreError if there is none, or if it is a folder."""
    found = open_input(source)
    if isinstance(found, InputFolder):
        raise StoreError(f"{found.location} is a folder, expected a file")
    return found


def _open_object(url: str) -> InputFile | InputFolder:
    name, denied = remote_files.file_name(url), None
    try:
        # Before the file: folders of parts also end in .parquet.
        found = remote_files.list_files(url)
    except StoreError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        found, denied = {}, error  # one may be allowed to read a file, but not to list its bucket
    if found:
        ordered = sorted(found, key=lambda file: [natural_key(part) for part in file.removeprefix(f"{url}/").split("/")])
        return InputFolder(url, name, tuple(InputFile(file, file.removeprefix(f"{url}/"), found[file]) for file in ordered))
    signature = remote_files.describe(url)
    if signature is None:
        raise denied or _absent(url)
    return InputFile(url, name, signature)


def _open_web(url: str) -> InputFile:
    name = remote_files.file_name(url)
    try:
        signature = remote_files.describe(url)
    except RangesUnsupportedError:
        copy = _keep_copy(url, name, *remote_files.stream_file(url))
        return InputFile(copy.path, name, copy.signature)
    if signature is None:
        raise _absent(public_url(url))
    return InputFile(url, name, signature)


def _absent(name: str, *, exists: bool = False) -> StoreError:
    return StoreError(f"{name} {'is not a file' if exists else 'does not exist'}, expected a file or a folder")


@dataclass(frozen=True)
class _Copy:
    """A copy of a remote file in a temporary folder, which is deleted with it."""

    path: Path
    signature: Signature


_copies: dict[str, _Copy] = {}
"""Copies that this process keeps until it ends, by URL."""


def remove_copies() -> None:
    """Delete the copies of this process before it ends without the finalizers of Python."""
    _copies.clear()


def _keep_copy(url: str, name: str, signature: Signature, content: Iterator[bytes]) -> _Copy:
    """Copy a remote file until the process ends, unless this process has a copy with the same signature."""
    copy = _copies.get(url)
    if copy is None or copy.signature != signature:
        folder = TemporaryFolder("input")
        copy = _copies[url] = _Copy(_write(folder, name, signature[0], content), signature)
        folder.remove_with(copy)
    return copy


def _write(folder: TemporaryFolder, name: str, size: int, content: Iterator[bytes]) -> Path:
    """Write a copy into a temporary folder; the folder is removed if that fails."""
    path = folder.path / Path(name).name
    try:
        free = shutil.disk_usage(folder.path).free
        if size > free:
            raise StoreError(
                f"{name} has {size:,} bytes, expected at most the {free:,} that are free in {tempfile.gettempdir()}, where it is copied; "
                "set TMPDIR to a larger folder"
            )
        with os.fdopen(folder.new_file(path.name), "wb") as file:
            for piece in content:
                file.write(piece)
        if path.stat().st_size != size:
            raise StoreError(f"{name} ended after {path.stat().st_size:,} bytes, expected {size:,}; try again")
    except (OSError, ValueError) as error:  # the latter for a null byte in the name
        folder.remove()
        raise StoreError(f"cannot copy {name!r} to {folder.path}: {getattr(error, 'strerror', None) or error}") from error
    except BaseException:
        folder.remove()
        raise
    return path
