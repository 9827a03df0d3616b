"""The file of a coordinator: the names of the sites, its own address, and its certificates."""

import tomllib
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from dfact.errors import ParameterError


@dataclass(frozen=True)
class SitesFile:
    """The settings of a coordinator, as a file in TOML holds them. Paths are relative to the file.

    Parameters
    ----------
    sites : tuple of str
        Names of the sites, which their certificates bear.
    address : str
        Address and port at which sites connect, such as "0.0.0.0:8790".
    wait : float
        Seconds to wait for a site that has not joined, or that is lost.
    contract : Path, optional
        File of the contract that the data of every site must keep; without one, the first site's columns count.
    ca, cert, key : Path, optional
        Certificate of the authority, and certificate and key of the coordinator.
    insecure : bool
        Whether connections are not encrypted, which is permitted within one machine alone.
    """

    sites: tuple[str, ...]
    address: str = "0.0.0.0:8790"  # sites connect from other machines; TLS decides who may
    wait: float = 600.0
    contract: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "SitesFile":
        """Read the file; raise ParameterError for other fields or types than those above."""
        file = Path(path)
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ParameterError(f"there is no file of sites at {file}") from None
        except (ValueError, OSError) as error:
            raise ParameterError(f"the file of sites {file} is not TOML: {error}") from error
        known = {field.name: field.type for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in found.items():
            if name not in known:
                raise ParameterError(f"the file of sites {file} has the field {name!r}, expected some of {', '.join(known)}")
            values[name] = _converted(value, known[name], f"{name} of the file of sites {file}", file.parent)
        if not values.get("sites"):
            raise ParameterError(f'the file of sites {file} names no sites, expected sites = ["north", "south"]')
        return cls(**values)


def _converted(value: Any, kind: Any, what: str, folder: Path) -> Any:
    """Return a value of the file in the type of its field."""
    if get_args(kind) and not isinstance(kind, UnionType):
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        expected = "a list of texts"
    elif isinstance(kind, UnionType):
        if isinstance(value, str) and value:
            return folder / value
        expected = "a path"
    elif kind is float:
        if type(value) in (int, float) and value > 0:
            return float(value)
        expected = "a number above 0"
    elif type(value) is kind:
        return value
    else:
        expected = "true or false" if kind is bool else "a text"
    raise ParameterError(f"{what} is {value!r}, expected {expected}")
