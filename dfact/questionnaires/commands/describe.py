"""``dfact describe``."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.catalogue import find_part
from dfact.cli.options import (
    apa_option,
    choice,
    choose_weights,
    example,
    executor_for,
    executor_option,
    items_option,
    json_option,
    memory_option,
    overwrite_option,
    plan_option,
    print_plan,
    read_dataset,
    require_no_options,
    scheduler_option,
    sites_option,
    wants_json,
    weights_option,
)
from dfact.cli.types import InputLocation, OutputLocation
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.questionnaires.description import Description


def _formats(context: click.Context) -> str:
    return "dfact.questionnaires.apa.write:FORMATS" if context.params.get("style") == "apa" else "dfact.questionnaires.tables:FORMATS"


@click.command(epilog=example("dfact describe dfact-demo/answers.zarr items.xlsx --items dfact-demo/items.csv"))
@click.argument("data", type=InputLocation())
@click.argument("out", type=OutputLocation(_formats), required=False)
@items_option("scale, key (-1 reverses an item) and text, in place of those in DATA.")
@choice("--correlation", "pearson polychoric", "Correlations of the answers as numbers, or as ordered categories.")
@choice("--missing", "pairwise listwise", "Correlations from participants who answered both items (pairwise) or all items (listwise).")
@click.option("--group-factors", default=3, help="Maximum number of group factors of omega total and omega hierarchical.")
@click.option(
    "--interval",
    type=click.Choice(["jackknife", "feldt", "replicates"]),
    show_default="replicates for a dataset with replicate weights, else jackknife",
    help="Interval of alpha: from leaving out each participant once, Feldt's for normal items, or from replicate weights.",
)
@choice("--table", "items scales", "Table to write, if OUT ends in .csv.")
@apa_option
@weights_option
@memory_option
@executor_option
@scheduler_option
@plan_option
@json_option
@overwrite_option
@sites_option
def describe(
    data: Location,
    out: Path | None,
    items: Location | None,
    correlation: str,
    missing: str,
    group_factors: int,
    interval: str | None,
    table: str,
    style: str | None,
    weighted: bool | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    overwrite: bool,
    sites: bool,
) -> None:
    """Describe the items and scales of a questionnaire.

    For each item of the dataset DATA, prints its missing answers, mean, standard deviation, skewness, floor and ceiling, its
    correlation with the rest of its scale, alpha without it, and its sampling adequacy. For each scale, prints alpha with its
    95% interval, the standardized alpha, lambda 6, omega, omega total and omega hierarchical. For all items, prints KMO and a
    test that no two are correlated: Bartlett's, or Steiger's if answers are missing.

    Writes the same tables to OUT: one of them to a .csv, all to an .xlsx (needs openpyxl) or an .html. With --style apa, an .html
    or .md gets tables for a paper.

    Without scales in DATA or FILE, all items are one scale. Items are reversed only where their key is -1.
    """
    from dfact.progress import Progress
    from dfact.questionnaires.description import describe as describe_data
    from dfact.questionnaires.description import plan_description
    from dfact.questionnaires.tables import check_description_path

    if out is not None:
        check_description_path(out, style=style, overwrite=overwrite)
    if sites:
        require_no_options(plan=plan_only, executor=executor, scheduler=scheduler, items=items, memory_limit=memory_limit)
        with find_part("across_sites", "--sites").open_sites(data) as found:
            described = found.describe(
                correlation=correlation, missing=missing, group_factors=group_factors, interval=interval, weights=weighted
            )
            _show(described, out, table=table, style=style, overwrite=overwrite)
        return
    dataset = choose_weights(read_dataset(data), weighted)
    with executor_for(executor, scheduler) as resolved:
        settings: dict[str, Any] = {
            "scales": items,
            "correlation": correlation,
            "missing": missing,
            "executor": resolved,
            "memory_limit": memory_limit,
        }
        if plan_only:
            plan = plan_description(dataset, **settings)
            print_plan(plan)
            plan.check()
            return
        with closing(Progress("describe")) as progress:
            description = describe_data(dataset, group_factors=group_factors, interval=interval, callbacks=[progress], **settings)
    _show(description, out, table=table, style=style, overwrite=overwrite)


def _show(description: "Description", out: Path | None, *, table: str, style: str | None, overwrite: bool) -> None:
    """Write a description to ``out``, if that is given, and print it."""
    from dfact.questionnaires.tables import write_description

    if out is not None:
        write_description(description, out, table=table, style=style, overwrite=overwrite)
        click.echo(f"{out}: {len(description.items)} items in {len(description.scales)} scale(s)\n", err=wants_json())
    if wants_json():
        from dfact.export.documents import description_document, to_json

        click.echo(to_json("description", description_document(description)))
    else:
        click.echo(description)
