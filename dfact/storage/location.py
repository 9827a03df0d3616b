"""Where a store lies: a folder on this machine, or an address in an object store, which no ``Path`` can hold."""

import re
from os import PathLike
from pathlib import Path

from dfact.errors import ParameterError, StoreError

Location = Path | str
"""A folder, or an address such as ``s3://bucket/prefix`` without a slash at its end."""

SCHEMES = ("s3", "gs", "az")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)  # one letter is a drive


def parse_location(path: str | PathLike[str]) -> Location:
    """What a user named, as a place.

    Raises
    ------
    ParameterError
        No path at all, or an empty one, which would be the working folder.
    StoreError
        An address of a kind that we do not read, without a bucket or a prefix, or that went through a ``Path``.
    """
    if not isinstance(path, (str, PathLike)) or not str(path):
        raise ParameterError(f"{path!r} names no place; expected a path, or an address such as s3://bucket/prefix")
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        return Path(path)
    scheme, slashes, rest = found[1].lower(), found[2], found[3].rstrip("/")
    if scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise StoreError(
            f"{path} is an address of a kind that dfact does not read; expected a path, or an address that begins with {known}"
        )
    if len(slashes) != 2:
        raise StoreError(f"{path} is no address; expected {scheme}://bucket/prefix, as text: a pathlib.Path drops a slash")
    if "/" not in rest or "" in rest.split("/") or {".", ".."} & set(rest.split("/")):
        raise StoreError(f"{path} names no place in a bucket; expected {scheme}://bucket/prefix")
    return f"{scheme}://{rest}"


def absolute(place: Location) -> Location:
    """The same place for a process with another working folder."""
    return place.absolute() if isinstance(place, Path) else place


def stem(place: Location) -> str:
    """The last part, without its ending."""
    return Path(place).stem
