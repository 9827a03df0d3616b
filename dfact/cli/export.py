"""``dfact export``."""

from contextlib import closing

import click

from dfact.cli.options import example, overwrite_option
from dfact.jobs.declarations import InputLocation, OutputLocation
from dfact.storage.location import Location


def _formats(context: click.Context) -> str:
    has_zarr = context.params.get("table", "factors") == "factors"  # absent if its own value is invalid
    return f"dfact.report.export:{'FORMATS' if has_zarr else 'TABLES'}"


@click.command(epilog=example("dfact export survey.model loadings.csv --suppress 0.1"))
@click.argument("model", type=InputLocation())
@click.argument("out", type=OutputLocation(_formats))
@click.option(
    "--table",
    type=click.Choice(["loadings", "factors", "confounders"]),
    default="loadings",
    is_eager=True,  # the endings that OUT may have depend on it
    help="Loadings of the items; factors, memberships or scores of the fitted participants; or loadings of the items on confounders.",
)
@click.option("--suppress", type=click.FloatRange(0), metavar="NUMBER", help="Leave out loadings with an absolute value below this number.")
@overwrite_option
def export(model: Location, out: Location, table: str, suppress: float | None, overwrite: bool) -> None:
    """Write a table of a model.

    Writes the loadings of MODEL, with the labels of the items, or its factors of the fitted participants. OUT ends in .csv or
    .parquet, for factors also in .zarr. For new participants, use dfact transform.

    Factors are sorted by their contribution to the answers, largest first, or have the model's own order: classes by size,
    components by singular value or weight, factors of a factor analysis by explained variance. If signs are arbitrary, the
    largest loading of a factor is positive.

    Labels are written to csv files unchanged, and a spreadsheet interprets one that begins with =, +, - or @ as a formula. Do
    not open tables with untrusted labels in a spreadsheet; R and pandas read them as text.
    """
    if table == "factors" and suppress is not None:
        raise click.UsageError("--suppress applies to loadings only; remove it or --table factors.")
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.export import check_destination, write_confounder_loadings, write_loadings, write_model_factors

    check_destination(out, overwrite=overwrite)
    fitted = load_model(model)
    if table == "factors":
        with closing(Progress("write")) as progress:
            write_model_factors(fitted, out, overwrite=overwrite, progress=progress.update)
    else:
        write = write_loadings if table == "loadings" else write_confounder_loadings
        write(fitted, out, below=suppress or 0.0, overwrite=overwrite)
    click.echo(f"{out}: {table} of {model}")
