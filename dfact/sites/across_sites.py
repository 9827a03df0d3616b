"""Commands whose data is at several sites, ``--sites`` of ``fit``, ``select`` and ``describe``, and the file of their coordinator."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args

import click

from dfact.cli.options import require_no_options
from dfact.errors import ParameterError
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization
    from dfact.selection.result import Selection
    from dfact.sites.transport import Sites


@contextmanager
def open_sites(path: Location) -> Iterator["Sites"]:
    """Listen for the sites that a file names, and say on standard error whom the command waits for."""
    from dfact.sites.transport import Security, Sites

    found = SitesFile.read(str(path))
    security = Security.of(found.ca, found.cert, found.key)
    settings: dict[str, Any] = {"security": security, "insecure": found.insecure, "wait": found.wait, "contract": found.contract}
    with Sites(found.sites, found.address, **settings, on_change=_say) as sites:
        click.echo(f"Listening at {sites.address}.", err=True)
        yield sites
        click.echo("Waiting until the sites have saved their results.", err=True)


def _say(missing: Sequence[str]) -> None:
    click.echo(f"Waiting for {', '.join(missing)}." if missing else "All sites have joined.", err=True)


def select_across_sites(path: Location, model: "Factorization", search: str, settings: Mapping[str, Any]) -> "Selection":
    """Choose the parameters of a model over the rows of all sites."""
    from dfact.sites.tasks import ARGUMENTS

    if not search.endswith(":block_cross_validate"):
        raise click.UsageError("--sites is given, expected a selection by held-out blocks; sites have no other.")
    known = ARGUMENTS["select"]
    require_no_options(**{name: value for name, value in settings.items() if name not in {*known, "callbacks"}})
    with open_sites(path) as sites:
        found: Selection = sites.select(model, **{name: value for name, value in settings.items() if name in known})
        return found


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
