"""Locations of stores: a path on this machine, or a URL in an object store, which no ``Path`` can hold."""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from urllib.parse import urlsplit

from dfact.errors import ParameterError, StoreError

Location = Path | str
"""A path, or a URL such as ``s3://bucket/prefix`` without a slash at its end."""

SCHEMES = ("s3", "gs", "az")
WEB_SCHEMES = ("https", "http")
"""Schemes of files that are only read."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)  # two letters at least: a single one is a drive


def public_url(url: str) -> str:
    """Return the URL for messages: without a user, a password and, of a web server, a query, which may be a signature."""
    found = _URL.fullmatch(url)
    if found is None:
        return url
    authority, slash, rest = found[3].partition("/")
    shown = f"{found[1]}:{found[2]}{authority.rpartition('@')[2]}{slash}{rest}"
    return shown.partition("?")[0].partition("#")[0] if found[1].lower() in WEB_SCHEMES else shown


def parse_location(path: str | PathLike[str], *, web: bool = False) -> Location:
    """Parse a location that a user named; ``web`` accepts URLs of files on web servers, which are only read.

    Raises
    ------
    ParameterError
        ``path`` is not a path, holds a NUL character, or is empty, which would mean the working folder.
    StoreError
        The system refuses to look the path up, such as for a name that is too long. The URL has an unsupported scheme, lacks a bucket
        or a prefix, names a user, or has lost a slash in a ``Path``.
    """
    if not isinstance(path, (str, PathLike)) or not str(path) or "\0" in str(path):
        found = repr(path) if isinstance(path, (str, PathLike)) else f"a {type(path).__name__}"  # data is not printed
        raise ParameterError(f"the location is {found}, expected a path or a URL such as s3://bucket/prefix")
    url = _URL.fullmatch(str(path))
    if url is None:
        _require_reachable(Path(path))
        return Path(path)
    scheme, slashes, rest, shown = url[1].lower(), url[2], url[3].rstrip("/"), public_url(str(path))
    accepted = (*SCHEMES, *WEB_SCHEMES[:1]) if web else SCHEMES
    if web and scheme in WEB_SCHEMES:
        return _parse_web_url(str(path), scheme, slashes, url[3])
    if scheme not in SCHEMES:
        expected = ", ".join(f"{scheme}://" for scheme in accepted)
        raise StoreError(f"{shown} is a URL with the scheme {scheme!r}, expected a path or a URL that begins with {expected}")
    if len(slashes) != 2:
        raise StoreError(f"{shown} is not a URL, expected {scheme}://bucket/prefix; pass it as a string: pathlib.Path drops a slash")
    if "@" in rest.partition("/")[0]:
        raise StoreError(f"{shown} is given with a user, expected {scheme}://bucket/prefix; pass credentials in the environment")
    if "/" not in rest or "" in rest.split("/") or {".", ".."} & set(rest.split("/")):
        raise StoreError(f"{shown} does not name a prefix in a bucket, expected {scheme}://bucket/prefix")
    return f"{scheme}://{rest}"


def _require_reachable(path: Path) -> None:
    """Raise StoreError if the system refuses to look the path up; it may be absent. Methods such as ``exists`` would raise OSError."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StoreError(f"cannot look up {path}: {error.strerror or error}; choose another path, or ask for access") from error


def _parse_web_url(url: str, scheme: str, slashes: str, rest: str) -> str:
    if len(slashes) != 2:
        raise StoreError(f"{public_url(url)} is not a URL, expected {scheme}://host/file; pass it as a string: pathlib.Path drops a slash")
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        named = bool(parts.hostname and parts.path.strip("/"))
    except ValueError:  # an address or a port that is none
        named = False
    if not named:
        raise StoreError(f"{public_url(url)} does not name a file on a web server, expected {scheme}://host/file")
    return f"{scheme}://{rest}"


def is_web(location: Location) -> bool:
    """Check whether a location is on a web server."""
    return isinstance(location, str) and location.partition("://")[0] in WEB_SCHEMES


def absolute(location: Location) -> Location:
    """Return the location as a process with another working folder can use it."""
    return location.absolute() if isinstance(location, Path) else location


def stem(location: Location) -> str:
    """Return the last part without its suffix."""
    return Path(location).stem


def suffix(location: Location) -> str:
    """Return the ending of the last part, with its dot; an empty text without one."""
    return Path(location).suffix


def check_ending(location: Location, formats: Sequence[str]) -> None:
    """Raise an error if the ending of a location is not one of the formats."""
    ending = suffix(location)
    if ending not in formats:
        raise ParameterError(f"{location} ends in {ending!r}, expected one of {', '.join(formats)}")
