"""Options that several commands share, the connection to a cluster, and datasets."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.types import Counts, InputPath, LocationType, Numbers
from dfact.errors import DataError
from dfact.settings import setting
from dfact.storage.location import Location, absolute

if TYPE_CHECKING:
    from distributed import Client

    from dfact.data.dataset import Dataset
    from dfact.engine.memory_plan import Plan
    from dfact.models.estimator import Factorization

Option = Callable[[Any], Any]
"""A decorator that adds one or more options to a command."""
_TLS = {"ca_file": "tls_ca_file", "cert": "tls_client_cert", "key": "tls_client_key"}
"""Names of the options --tls-… and of Dask's settings."""
_JSON = f"{__name__}.json"
"""The place of --json in a context."""
_METRICS_PORT = f"{__name__}.metrics_port"
"""The option's place in a context, as commands need not pass its value on."""

memory_option = click.option(
    "--memory-limit", metavar="SIZE", help="Memory limit of each process, such as 4GiB.", show_default="most of the free memory"
)
apa_option = click.option(
    "--style",
    type=click.Choice(["apa"]),
    is_eager=True,  # the endings that OUT may have depend on it
    help="Write tables for a paper, in the style of the American Psychological Association, to an .html or .md.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing outputs.")


def choice(flag: str, choices: str, help_text: str, **settings: Any) -> Option:
    """Return an option whose choices are separated by spaces; ``none`` stands for None.

    The first choice is the default, unless ``show_default`` describes another one.
    """
    names = choices.split()
    settings = settings if "show_default" in settings else {"default": names[0], **settings}
    return click.option(
        flag, type=click.Choice(names), callback=lambda _, __, value: None if value == "none" else value, help=help_text, **settings
    )


def component_numbers(help_text: str = "Candidate numbers of factors.", default: str = "2-10") -> Option:
    """Return the option of candidates for the number of components."""
    return click.option("-k", "--components", "n_components", default=default, help=help_text, metavar="NUMBERS", type=Counts())


def numbers(flag: str, help_text: str, *, name: str | None = None, **settings: Any) -> Option:
    """Return an option of several numbers, for the parameter ``name``, by default that of the flag."""
    flags = (flag,) if name is None else (flag, name)
    return click.option(*flags, metavar="NUMBERS", type=Numbers(), help=help_text, **settings)


def seed(help_text: str) -> Option:
    """Return the option of the seed of random numbers."""
    return click.option("--seed", "random_state", type=int, help=help_text)


def _store_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_JSON] = value


json_option = click.option(
    "--json",
    is_flag=True,
    callback=_store_json,
    expose_value=False,
    help="Print the result, or the memory plan, as a JSON document; dfact help programs describes it.",
)


def wants_json() -> bool:
    """Return whether the command was asked for JSON; what it prints besides goes to stderr then."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_plan(plan: "Plan") -> None:
    """Print a memory plan, as a table or as JSON."""
    if wants_json():
        from dfact.export.documents import plan_document, to_json

        click.echo(to_json("plan", plan_document(plan)))
    else:
        click.echo(plan)


plan_option = click.option("--plan", "plan_only", is_flag=True, help="Print the memory plan and exit.")
executor_option = choice(
    "--executor",
    "inline threads",
    "Run in one thread, or in one for each core of this machine.",
    show_default="chosen by the size of the data",
)
_dtype_option = choice("--dtype", "float32 float64", "Floating-point precision of the computation.", show_default="float32 for answers")


def option_group(*options: Option) -> Option:
    """Combine several options into one decorator, in their order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _tls_option(name: str, help_text: str) -> Option:
    """Return an option whose value :func:`cluster` reads from the context, so that commands need not pass it on."""

    def store(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[f"{__name__}.{name}"] = value

    kind = click.Path(exists=True, dir_okay=False, resolve_path=True)
    flag = f"--tls-{name.replace('_', '-')}"
    return click.option(flag, metavar="FILE", type=kind, callback=store, expose_value=False, help=help_text)


def _store_port(context: click.Context, _: click.Parameter, value: int | None) -> None:
    if value is not None:
        context.meta[_METRICS_PORT] = value


metrics_option = click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    callback=_store_port,
    expose_value=False,
    help="Port on which to serve metrics of this process for Prometheus; 0 chooses any free one.",
    show_default="DASK_DFACT__METRICS_PORT, else none",
)


@contextmanager
def metrics_server(default: int | None = None) -> Iterator[None]:
    """Serve the metrics of this process if --metrics-port, ``default`` or Dask's configuration names a port."""
    from dfact.monitoring.metrics import serve_metrics
    from dfact.settings import use_run_id

    context = click.get_current_context(silent=True)
    port = default if context is None else context.meta.get(_METRICS_PORT, default)
    with use_run_id(), serve_metrics(port) as url:
        if port is not None and not logging.getLogger("dfact").isEnabledFor(logging.INFO):  # else the log of a job has it
            click.echo(f"Metrics are served at {url}.", err=True)
        yield


def _configured_scheduler() -> str | None:
    """Return the address in Dask's configuration, which batch systems set for all processes."""
    address: str | None = setting("scheduler-address")
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
    metrics_option,
)
checkpoint_options = option_group(
    click.option(
        "--checkpoint",
        type=LocationType(),
        metavar="STORE",
        help="Save progress to this store and resume from it after an interruption. Deleted once the model is written.",
    ),
    click.option("--checkpoint-every", type=int, default=10, metavar="PASSES", help="Number of passes between two checkpoint versions."),
)
results_checkpoint_option = click.option(
    "--checkpoint",
    type=LocationType(),
    metavar="STORE",
    help="Save finished fits to this store and resume from them after an interruption.",
)
"""Option of commands that run many fits; their checkpoint is not deleted."""
computing_options = option_group(_dtype_option, memory_option, executor_option, scheduler_option)
"""Precision, memory and location of a computation."""


@contextmanager
def executor_for(executor: str | None, scheduler: str | None) -> Iterator["str | Client | None"]:
    """Yield the value of an estimator's ``executor``: a client of the cluster, or the name of a local executor."""
    if executor and scheduler:
        raise click.UsageError("--executor applies to this machine only; remove it or --scheduler.")
    with metrics_server(), cluster(scheduler) as client:
        yield client or executor


@contextmanager
def cluster(address: str | None) -> Iterator["Client | None"]:
    """Yield a client of the running cluster; None without an address."""
    if (address or "").startswith("gateway://"):
        raise click.UsageError(
            f"--scheduler is {address}, which only the client of dask-gateway can reach, expected an address such as tcp://… or tls://…; "
            "fit in Python, with that client active."
        )
    files = _tls_files(address)
    if address is None:
        yield None
        return
    from dfact.engine.cluster.certificate_names import ClusterSecurity
    from dfact.engine.cluster.connection import connect

    with connect(address, ClusterSecurity(require_encryption=True, **files) if files else ClusterSecurity()) as client:
        yield client


def _tls_files(address: str | None) -> dict[str, Any]:
    """Return the files of the TLS options by the parameters of Security; none of them, and Dask's configuration applies."""
    context = click.get_current_context(silent=True)
    files = {} if context is None else {name: context.meta.get(f"{__name__}.{name}") for name in _TLS}
    given = {_TLS[name]: file for name, file in files.items() if file is not None}
    if not given:
        return {}
    if len(given) < len(_TLS) or address is None:
        raise click.UsageError("--tls-ca-file, --tls-cert and --tls-key go together, and with --scheduler.")
    if not address.startswith("tls://"):
        raise click.UsageError(
            f"--scheduler is {address}, which is not encrypted; with --tls-… expected an address that begins with tls://."
        )
    return given


def read_dataset(path: Location) -> "Dataset":
    """Open a dataset by its absolute path, as workers may have another working folder."""
    from dfact.data.stored_dataset import open_dataset

    return open_dataset(absolute(path))


def _weights_option(default: str) -> Option:
    text = "Use the weights of the rows, or ignore them."
    return click.option("--weights/--no-weights", "weighted", default=None, help=text, show_default=default)


weights_option = _weights_option("used if the dataset has any")
fitted_weights_option = _weights_option("as in the fit of MODEL")


clusters_option = click.option(
    "--clusters",
    metavar="COLUMN",
    help="Confounder of DATA with the cluster of each row, such as its school, if rows of the same cluster are alike. Standard errors and "
    "tests then take clusters, not rows, as independent; at least 10 are needed.",
    show_default="rows are independent",
)


def choose_weights(dataset: "Dataset", weighted: bool | None, *, taken: bool = True) -> "Dataset":
    """Return the dataset as ``--weights/--no-weights`` says, by default with the weights that it has, and print whether they are used.

    ``taken`` states whether the computation takes weights at all.
    """
    from dfact.data.weights import describe_weights

    if dataset.weights is None and weighted:
        raise DataError(f"{dataset.path} has no weights, expected some for --weights; import it with --weight NAME")
    if dataset.weights is None or weighted is False:
        return dataset.with_weights(None)
    if not taken:
        click.echo(f"The weights {str(dataset.weights.name)!r} of the dataset are not used: this model takes none.", err=True)
        return dataset.with_weights(None)
    click.echo(f"Weighted by {describe_weights(dataset.weights)}.", err=True)
    return dataset


def choose_fitted_weights(dataset: "Dataset", weighted: bool | None, estimator: "Factorization", model: Location) -> "Dataset":
    """Return the dataset with its weights if the estimator, which is stored in ``model``, was fitted with weights, else without."""
    fitted = getattr(estimator, "weighted_", False)
    if weighted is not None and weighted != fitted:
        found = f"{'--weights' if weighted else '--no-weights'} is given, and {model} was fitted {'with' if fitted else 'without'} weights"
        raise click.UsageError(f"{found}; leave it out, or fit the model again.")
    return choose_weights(dataset, fitted)


def split_list(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Split the values of a repeatable option at commas."""
    return [entry.strip() for value in values for entry in value.split(",") if entry.strip()]


def items_option(columns: str) -> Option:
    """Return the option of a csv file of items; ``columns`` names those after the item, and what they replace."""
    return click.option("--items", type=InputPath(), metavar="FILE", help=f"Csv file with a column item and columns {columns}")


def list_option(name: str, help_text: str, **settings: Any) -> Option:
    """Return a repeatable option whose values may be separated by commas."""
    return click.option(name, multiple=True, callback=split_list, show_default=False, help=help_text, **settings)


def example(*lines: str) -> str:
    """Format example commands for the end of a help text; a line that begins with a space continues the command above it."""
    text = "\n".join(lines).replace("\n ", " \\\n ")
    heading = "Example:" if all(line.startswith(" ") for line in lines[1:]) else "Examples:"
    return "\n  ".join([f"\b\n{heading}", *text.split("\n")])


sites_option = click.option(
    "--sites", is_flag=True, help="DATA is a file that names sites, whose rows stay there; see 'dfact help federated'."
)


def require_no_options(**given: object) -> None:
    """Refuse options that mean nothing where each site has its own settings."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} is given with --sites, where each site has its own settings; leave it out.")
