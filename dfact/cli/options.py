"""What several commands share: options, the cluster, reading a dataset."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.errors import DataError, ParameterError
from dfact.storage.location import Location, absolute, parse_location

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

    from dfact.data.dataset import Dataset

_TLS = {"ca_file": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}
"""Our options --tls-… and what Dask calls them."""

path_type = click.Path(path_type=Path)


class LocationType(click.ParamType[Location]):
    """A folder, or an address in an object store."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        try:
            return parse_location(value)
        except ParameterError as error:
            self.fail(str(error), param, ctx)


location_type = LocationType()
memory_option = click.option(
    "--memory-limit", metavar="SIZE", help="Memory a process may use, such as 4GiB.", show_default="most of what is free"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is there.")
plan_option = click.option("--plan", "plan_only", is_flag=True, help="Print what the fit would hold in memory, and stop.")


def ending_among(formats: Callable[[click.Context], Sequence[str]]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A check of a file to be written by its ending, as the command is read: a job tells of it before hours of other steps."""

    def check(context: click.Context, _: click.Parameter, place: Location | None) -> Location | None:
        if place is not None:
            from dfact.report.export import check_ending

            check_ending(place, formats(context))
        return place

    return check


def _plot_formats(_: click.Context) -> Sequence[str]:
    from dfact.report.plots import FORMATS

    return FORMATS


plot_ending = ending_among(_plot_formats)
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=location_type,
    callback=plot_ending,
    help="Draw what the model says of the items: .png, .pdf or .svg; needs Matplotlib.",
)
executor_option = click.option(
    "--executor",
    type=click.Choice(["inline", "threads"]),
    help="Run in one thread or on all cores.",
    show_default="by the size of the data",
)
_dtype_option = click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), help="Working precision.", show_default="float32 for answers"
)


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in their order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _tls_option(name: str, help_text: str) -> Callable[[Any], Any]:
    """An option that :func:`cluster` finds in the context, since all commands have it and none does anything with it."""

    def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[f"{__name__}.{name}"] = value

    kind = click.Path(exists=True, dir_okay=False, resolve_path=True)
    flag = f"--tls-{name.replace('_', '-')}"
    return click.option(flag, metavar="FILE", type=kind, callback=keep, expose_value=False, help=help_text)


def _configured_scheduler() -> str | None:
    """Dask's own setting, with which a batch system tells all processes alike where the scheduler is."""
    import dask

    address: str | None = dask.config.get("scheduler-address", None)
    return address


scheduler_option = option_group(
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        default=_configured_scheduler,
        help="Run on the Dask cluster at this address, such as tls://10.0.0.1:8786.",
        show_default="DASK_SCHEDULER_ADDRESS, else this machine",
    ),
    _tls_option("ca_file", "Certificate of the authority that signed those of the cluster; with --tls-cert and --tls-key."),
    _tls_option("cert", "Your certificate, signed by it."),
    _tls_option("key", "The key of your certificate."),
)
checkpoint_options = option_group(
    click.option(
        "--checkpoint",
        type=location_type,
        metavar="STORE",
        help="Keep what is done there, and go on from it after an interruption; removed once the model is written.",
    ),
    click.option("--checkpoint-every", type=int, default=10, metavar="PASSES", help="How often."),
)
results_checkpoint_option = click.option(
    "--checkpoint", type=location_type, metavar="STORE", help="Keep what is finished there, and go on from it."
)
"""For what is no fit, but many."""
computing_options = option_group(_dtype_option, memory_option, executor_option, scheduler_option)
"""In what precision a fit works, and where."""


@contextmanager
def executor_for(executor: str | None, scheduler: str | None) -> Iterator["str | Client | None"]:
    """What an estimator takes as its ``executor``."""
    if executor and scheduler:
        raise click.UsageError("--executor is for this machine alone; leave it out with --scheduler.")
    with cluster(scheduler) as client:
        yield client or executor


@contextmanager
def cluster(address: str | None) -> Iterator["Client | None"]:
    """Yield a client of the running cluster; None without an address."""
    security = _security(address)
    if address is None:
        yield None
        return
    from dfact.engine.cluster.connection import connect

    with connect(address, security) as client:
        yield client


def _security(address: str | None) -> "Security":
    """TLS as the options say, else as Dask's configuration does."""
    from distributed.security import Security

    context = click.get_current_context(silent=True)
    files = {} if context is None else {name: context.meta.get(f"{__name__}.{name}") for name in _TLS}
    given = {_TLS[name]: file for name, file in files.items() if file is not None}
    if not given:
        return Security()
    if len(given) < len(_TLS) or address is None:
        raise click.UsageError("--tls-ca-file, --tls-cert and --tls-key go together, and with --scheduler.")
    if not address.startswith("tls://"):
        raise click.UsageError(
            f"--scheduler is {address}, which is not encrypted; with --tls-… expected an address that begins with tls://."
        )
    return Security(require_encryption=True, **given)


def read_dataset(path: Location) -> "Dataset":
    """The dataset at ``path``. Its path is absolute: workers may have another working folder."""
    from dfact.data.stored_dataset import open_dataset

    if isinstance(path, Path) and path.is_file():
        raise DataError(f"{path} is a file, expected a dataset; make one of a table: dfact import {path} {path.stem}.zarr --items 'Q*'")
    return open_dataset(absolute(path))


def split_list(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """The entries of an option that may be repeated, and may hold several separated by commas."""
    return [entry.strip() for value in values for entry in value.split(",") if entry.strip()]


def list_option(name: str, help_text: str, **settings: Any) -> Callable[[Any], Any]:
    """An option whose value is a list."""
    return click.option(name, multiple=True, callback=split_list, show_default=False, help=help_text, **settings)


def example(*lines: str) -> str:
    """An example of a command, at the end of its help."""
    return "\n  ".join(["\b\nExample:", *" \\\n".join(lines).split("\n")])
