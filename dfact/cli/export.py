"""``dfact export``."""

from collections.abc import Sequence
from contextlib import closing

import click

from dfact.cli.options import ending_among, example, location_type, overwrite_option
from dfact.storage.location import Location


def _formats(context: click.Context) -> Sequence[str]:
    from dfact.report.export import FORMATS, TABLES

    return FORMATS if context.params.get("what", "factors") == "factors" else TABLES  # it lacks where that is itself refused


@click.command(epilog=example("dfact export survey.model loadings.csv --suppress 0.1"))
@click.argument("model", type=location_type)
@click.argument("out", type=location_type, callback=ending_among(_formats))
@click.option(
    "--table",
    type=click.Choice(["loadings", "factors", "confounders"]),
    default="loadings",
    is_eager=True,  # it says what OUT may end in
    help="Loadings of the items; factors, memberships or scores of the fitted participants; loadings of the items on confounders.",
)
@click.option("--suppress", type=click.FloatRange(0), metavar="NUMBER", help="Leave out loadings smaller than this, of either sign.")
@overwrite_option
def export(model: Location, out: Location, what: str, suppress: float | None, overwrite: bool) -> None:
    """Write a model's tables.

    The fitted MODEL's loadings, with the items' labels, or what it found of the participants; OUT ends in .csv or
    .parquet, of participants also in .zarr. For new participants there is dfact transform.

    Factors come by how much of the answers they make, the largest first, or in the model's own order: classes by size,
    components by singular value or weight, factors of a factor analysis by explained variance. Where signs are open,
    the largest loading of a factor is positive.

    A csv file is for programs: labels stand there as they are, and a spreadsheet takes one that begins with =, +, - or @
    for a formula. Do not open tables with labels of strangers in one; R and pandas read them as text.
    """
    if what == "factors" and suppress is not None:
        raise click.UsageError("--suppress is for loadings.")
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.export import check_destination, write_confounder_loadings, write_loadings, write_model_factors

    check_destination(out, overwrite=overwrite)
    fitted = load_model(model)
    if what == "factors":
        with closing(Progress("write")) as progress:
            write_model_factors(fitted, out, overwrite=overwrite, progress=progress.update)
    else:
        write = write_loadings if what == "loadings" else write_confounder_loadings
        write(fitted, out, below=suppress or 0.0, overwrite=overwrite)
    click.echo(f"{out}: {what} of {model}")
