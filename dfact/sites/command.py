"""``dfact site``: a site of a fit across sites, whose rows stay there."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.options import (
    example,
    executor_for,
    json_option,
    memory_option,
    overwrite_option,
    read_dataset,
    scheduler_option,
    wants_json,
)
from dfact.cli.types import InputLocation, path_type
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.sites.policy import Policy
    from dfact.sites.tasks import Task


@click.group()
def site() -> None:
    """Take part in fits across sites with data that stays here.

    A coordinator names the model; this site runs the same passes over its own rows, and sends sums alone. Its policy says what may
    leave, and its log holds what has left: see 'dfact help federated'.
    """


@site.command(epilog=example("dfact site join 127.0.0.1:8790 --data dfact-demo/north.zarr", "    --name north --insecure --output north"))
@click.argument("coordinator", metavar="HOST:PORT")
@click.option("--data", required=True, type=InputLocation(), help="The dataset of this site.")
@click.option("--name", required=True, help="Name of this site, which its certificate bears.")
@click.option("--policy", type=path_type, help="File of the policy, in TOML.", show_default="that of 'dfact site policy'")
@click.option("--output", type=path_type, required=True, help="Folder for the models of this site's rows, and for the log.")
@click.option("--log", type=path_type, help="File for a line about everything that leaves.", show_default="log.jsonl in the output folder")
@click.option("--checkpoint", type=path_type, help="Folder for the progress of fits, from which this site resumes if it is started again.")
@click.option("--threads", type=click.IntRange(min=1), help="Number of threads on this machine.", show_default="one for each core")
@memory_option
@scheduler_option
@click.option("--wait", type=click.FloatRange(min=0, min_open=True), default=600.0, help="Seconds to wait for a coordinator out of reach.")
@click.option("--ca", type=path_type, help="Certificate of the authority.")
@click.option("--cert", type=path_type, help="Certificate of this site.")
@click.option("--key", type=path_type, help="Key of the certificate.")
@click.option("--insecure", is_flag=True, help="Connect without certificates, to a coordinator on this machine alone.")
@overwrite_option
def join(
    coordinator: str,
    data: Location,
    name: str,
    policy: Path | None,
    output: Path,
    log: Path | None,
    checkpoint: Path | None,
    threads: int | None,
    memory_limit: str | None,
    scheduler: str | None,
    wait: float,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    insecure: bool,
    overwrite: bool,
) -> None:
    """Join the coordinator at HOST:PORT, and carry out its tasks until it ends.

    Prints the policy first. The connection goes outwards, so that no port of this site must be open. Each fit leaves a model with the
    factors of this site's rows in the output folder, as icqf.model, icqf-2.model and so on. The model has the loadings of the
    coordinator's. With --scheduler, the workers of this site's Dask cluster run the passes; they must reach the dataset.
    """
    from dfact.engine.executors import ThreadsExecutor
    from dfact.sites.site import Site
    from dfact.sites.transport import GrpcConnection, Security

    if threads and scheduler:
        raise click.UsageError("--threads applies to this machine only; remove it or --scheduler.")
    rules = _policy(policy)
    click.echo(f"Policy of {name}\n{policy_text(rules)}\n", err=True)
    dataset = read_dataset(data)
    output.mkdir(parents=True, exist_ok=True)
    with (
        executor_for(None, scheduler) as client,
        GrpcConnection(coordinator, Security.of(ca, cert, key), wait, insecure=insecure, name=name) as connection,
    ):
        program = Site(
            name,
            dataset,
            connection,
            policy=rules,
            log=output / "log.jsonl" if log is None else log,
            executor=client or ThreadsExecutor(threads),
            checkpoint=checkpoint,
            memory_limit=memory_limit,
        )
        click.echo(f"Joining {coordinator} with {dataset.shape[0]} rows.", err=True)
        ended = program.serve(lambda task, result: _keep(task, result, output, overwrite=overwrite))
    click.echo(f"The coordinator has ended{'' if ended else ', or is out of reach; the result of the last run is here'}.", err=True)


def _keep(task: "Task", result: Any, output: Path, *, overwrite: bool) -> None:
    """Write the model of a task, if it has one."""
    from dfact.catalogue import BY_NAME
    from dfact.models.persistence import save_model

    model = result if task.kind == "fit" else getattr(result, "model", None)
    if model is None or task.model is None:
        click.echo(f"Done: {task.kind}.", err=True)
        return
    command = BY_NAME[task.model].command or task.model
    names = (f"{command}{'' if number == 1 else f'-{number}'}.model" for number in range(1, 1 << 20))
    path = next(output / name for name in names if overwrite or not (output / name).exists())
    save_model(model, path, overwrite=overwrite)
    click.echo(f"Done: {task.kind} {task.model}, the factors of this site's rows are in {path}.", err=True)


def _policy(path: Path | None) -> "Policy":
    from dfact.sites.policy import Policy

    return Policy() if path is None else Policy.read(path)


def policy_text(policy: "Policy") -> str:
    """Return a policy as a table."""
    from dfact.text import align_columns

    rows = [
        ("models", ", ".join(policy.models) or "all that can be fitted across sites"),
        ("tasks", ", ".join(policy.tasks) or "none"),
        ("rows behind each sum", f"at least {policy.min_rows}"),
        ("rows in a cell of a table of two items, or that connect items", f"at least {policy.min_cell}, or none"),
        ("rows for each component", f"at least {policy.rows_per_component}"),
        ("share of one row in a sum of squares", f"at most {policy.max_share:g}"),
        ("numbers about an item, as a share of its answers", f"at most {policy.max_numbers:g}"),
        ("passes", f"at most {policy.max_passes}"),
        ("lowest and highest answers", "leave" if policy.extremes else "stay; ranges come from the contract"),
        (
            "narrower ranges of parameters",
            ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in policy.ranges.items()) or "none",
        ),
        ("sums that stay in addition", ", ".join(policy.forbidden_sums) or "none"),
        ("refusals, each an answer of one bit", f"at most {policy.max_refusals}"),
        ("contracts to compare with", f"at most {policy.max_contracts}"),
    ]
    return str(align_columns([(f"  {name}", text) for name, text in rows]))


@site.command("log", epilog=example("dfact site log dfact-demo/north/log.jsonl"))
@click.argument("file", type=path_type)
@click.option("--verify", is_flag=True, help="Check instead that no line was altered, and none removed before another.")
@json_option
def log_command(file: Path, verify: bool) -> None:
    """Summarize the log FILE: what has left this site.

    For each run and pass, prints the number of messages, arrays and bytes, and the fewest rows behind one; then how many numbers about
    an item have left. The file itself has a line for each message, with the digest of each array.
    """
    from dfact.sites.site_log import read_log, summarize, verify_log

    if verify:
        complete, cut, last = verify_log(file)
        torn = f" A crash has cut line {', '.join(map(str, cut))}." if cut else ""
        click.echo(f"{complete} lines follow from one another.{torn} Digest of the last: {last}.")
        return
    entries = read_log(file)
    table = summarize(entries)
    if wants_json():
        from dfact.export.documents import to_json

        click.echo(to_json("site-log", {"entries": entries}))
        return
    click.echo(table.reset_index().to_string(index=False) if len(table) else "Nothing has left.")
    spent = next((entry for entry in reversed(entries) if "share_of_answers" in entry), None)
    if spent is not None:
        numbers, share = spent["numbers_about_an_item"], spent["share_of_answers"]
        click.echo(f"Numbers about an item that have left, in all runs: {numbers:g}, {share:.2%} of its answers (max_numbers).")


@site.command(epilog=example("dfact site contract dfact-demo/north.zarr contract.json"))
@click.argument("data", type=InputLocation())
@click.argument("file", type=path_type)
@overwrite_option
def contract(data: Location, file: Path, overwrite: bool) -> None:
    """Write the contract that the dataset DATA keeps to FILE.

    A contract has the columns, types, levels, ranges and texts of the items, and no counts. The coordinator gives it to all sites, and
    data that differs is refused before anything is computed.
    """
    from dfact.sites.contract import write_contract

    write_contract(read_dataset(data), file, overwrite=overwrite)
    click.echo(f"{file}: the contract of {data}")


@site.command("policy", epilog=example("dfact site policy"))
def policy_command() -> None:
    """Print the default policy, as a file to be changed."""
    from dataclasses import fields

    from dfact.sites.policy import Policy

    default = Policy()
    for field in fields(default):
        value = getattr(default, field.name)
        if isinstance(value, Mapping):
            click.echo(f"# [{field.name}]  # narrower ranges of parameters, such as: beta = [0, 0.5]")
            continue
        shown = str(value).lower() if isinstance(value, bool) else list(value) if isinstance(value, tuple) else value
        click.echo(f"{field.name} = {shown}".replace("'", '"'))
