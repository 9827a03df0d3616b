"""Commands whose data is at several sites: ``--sites`` of ``fit``, ``select`` and ``describe``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.options import require_no_options
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization
    from dfact.selection.result import Selection
    from dfact.sites.transport import Sites


@contextmanager
def open_sites(path: Location) -> Iterator["Sites"]:
    """Listen for the sites that a file names, and say on standard error whom the command waits for."""
    from dfact.sites.sites_file import SitesFile
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
