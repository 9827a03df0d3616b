"""Files that are read and never written: tables and arrays that users bring."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from dfact.errors import StoreError
from dfact.storage.location import Location, parse_location

Signature = tuple[int, int | str]
"""Size of a file, and the time of its last change or the tag of its content."""


@dataclass(frozen=True)
class InputFile:
    """A file that is read; ``name`` is its name in messages."""

    location: Location
    name: str

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of the name in lower case, such as [".csv", ".gz"]."""
        return [suffix.lower() for suffix in Path(self.name).suffixes]

    @property
    def path(self) -> Path:
        """Path of the file on this machine."""
        if isinstance(self.location, Path):
            return self.location
        raise StoreError(f"{self.location} is in an object store, expected a path on this machine; copy it here")

    def open(self) -> BinaryIO:
        """Open the file as a seekable stream of bytes."""
        try:
            return self.path.open("rb")
        except OSError as error:
            raise StoreError(f"{self.location} cannot be read: {error.strerror or error}") from error

    def read_start(self, n_bytes: int) -> bytes:
        """Read the first bytes."""
        with self.open() as stream:
            return stream.read(n_bytes)

    def signature(self) -> Signature:
        """Return the signature, which changes when the file is written again."""
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class InputFolder:
    """A folder of files that are read as one table, in the order of their names."""

    location: Location
    name: str
    files: tuple[InputFile, ...]
    """Files at any depth; the name of each is its path below the folder, with "/"."""

    def signature(self) -> tuple[Signature, ...]:
        """Return the signatures of all files."""
        return tuple(file.signature() for file in self.files)


def open_input(source: str | PathLike[str]) -> InputFile | InputFolder:
    """Find a file or a folder of files; raise StoreError if there is none."""
    location = parse_location(source)
    if not isinstance(location, Path):
        raise StoreError(f"{location} is in an object store, expected a path on this machine; copy it here")
    if location.is_file():
        return InputFile(location, location.name)
    if location.is_dir():
        paths = sorted((path for path in location.rglob("*") if path.is_file()), key=lambda path: path.relative_to(location).parts)
        return InputFolder(location, location.name, tuple(InputFile(path, path.relative_to(location).as_posix()) for path in paths))
    raise StoreError(f"{location} {'is not a file' if location.exists() else 'does not exist'}, expected a file or a folder")
