"""Options that several commands share, the connection to a cluster, and datasets."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.types import location_type
from dfact.storage.location import Location, absolute

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

    from dfact.data.dataset import Dataset

_TLS = {"ca_file": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}
"""Names of the options --tls-… and of Dask's settings."""

memory_option = click.option(
    "--memory-limit", metavar="SIZE", help="Memory limit of each process, such as 4GiB.", show_default="most of the free memory"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
plan_option = click.option("--plan", "plan_only", is_flag=True, help="Print the memory plan of the fit and exit.")


def ending_among(formats: Callable[[click.Context], Sequence[str]]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that checks the ending of an output while options are parsed, so that a job fails before its first step."""

    def check(context: click.Context, _: click.Parameter, location: Location | None) -> Location | None:
        if location is not None:
            from dfact.report.export import check_ending

            check_ending(location, formats(context))
        return location

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
    help="Plot the loadings of the items to a .png, .pdf or .svg file; needs Matplotlib.",
)
executor_option = click.option(
    "--executor",
    type=click.Choice(["inline", "threads"]),
    help="Run in one thread, or in one for each core of this machine.",
    show_default="chosen by the size of the data",
)
_dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    help="Floating-point precision of the computation.",
    show_default="float32 for answers",
)


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Combine several options into one decorator, in their order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _tls_option(name: str, help_text: str) -> Callable[[Any], Any]:
    """Return an option whose value :func:`cluster` reads from the context, so that commands need not pass it on."""

    def store(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[f"{__name__}.{name}"] = value

    kind = click.Path(exists=True, dir_okay=False, resolve_path=True)
    flag = f"--tls-{name.replace('_', '-')}"
    return click.option(flag, metavar="FILE", type=kind, callback=store, expose_value=False, help=help_text)


def _configured_scheduler() -> str | None:
    """Return the address in Dask's configuration, which batch systems set for all processes."""
    import dask

    address: str | None = dask.config.get("scheduler-address", None)
    return address


scheduler_option = option_group(
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        default=_configured_scheduler,
        help="Address of the scheduler of a running Dask cluster, such as tls://10.0.0.1:8786.",
        show_default="DASK_SCHEDULER_ADDRESS, else this machine",
    ),
    _tls_option("ca_file", "Certificate of the authority that signed the cluster's certificates; requires --tls-cert and --tls-key."),
    _tls_option("cert", "Your TLS certificate, signed by the same authority."),
    _tls_option("key", "Private key of your TLS certificate."),
)
checkpoint_options = option_group(
    click.option(
        "--checkpoint",
        type=location_type,
        metavar="STORE",
        help="Save progress to this store and resume from it after an interruption. Deleted once the model is written.",
    ),
    click.option("--checkpoint-every", type=int, default=10, metavar="PASSES", help="Number of passes between two checkpoint versions."),
)
results_checkpoint_option = click.option(
    "--checkpoint", type=location_type, metavar="STORE", help="Save finished fits to this store and resume from them after an interruption."
)
"""Option of commands that run many fits; their checkpoint is not deleted."""
computing_options = option_group(_dtype_option, memory_option, executor_option, scheduler_option)
"""Precision, memory and location of a computation."""


@contextmanager
def executor_for(executor: str | None, scheduler: str | None) -> Iterator["str | Client | None"]:
    """Yield the value of an estimator's ``executor``: a client of the cluster, or the name of a local executor."""
    if executor and scheduler:
        raise click.UsageError("--executor applies to this machine only; remove it or --scheduler.")
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
    """Open a dataset by its absolute path, as workers may have another working folder."""
    from dfact.data.stored_dataset import open_dataset

    return open_dataset(absolute(path))


def split_list(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Split the values of a repeatable option at commas."""
    return [entry.strip() for value in values for entry in value.split(",") if entry.strip()]


def list_option(name: str, help_text: str, **settings: Any) -> Callable[[Any], Any]:
    """Return a repeatable option whose values may be separated by commas."""
    return click.option(name, multiple=True, callback=split_list, show_default=False, help=help_text, **settings)


def example(*lines: str) -> str:
    """Format an example command for the end of a help text."""
    return "\n  ".join(["\b\nExample:", *" \\\n".join(lines).split("\n")])
