"""``dfact export``."""

from contextlib import closing
from pathlib import Path

import click

from dfact.cli.options import example, overwrite_option
from dfact.jobs.declarations import InputLocation, OutputLocation
from dfact.storage.location import Location


def _formats(context: click.Context) -> str:
    table = str(context.params.get("table"))  # absent if its own value is invalid
    names = {"factors": "FITTED_ROW_FORMATS", "loadings": "ITEM_FORMATS", "confounders": "TABLES"}
    return f"dfact.report.export:{names.get(table, 'TABLE_FORMATS')}"


@click.command(epilog=example("dfact export survey.model loadings.csv --suppress 0.1"))
@click.argument("model", type=InputLocation())
@click.argument("out", type=OutputLocation(_formats))
@click.option(
    "--table",
    type=click.Choice(["loadings", "factors", "confounders"]),
    show_default="factors for .Q and .Q_se, else loadings",
    is_eager=True,  # the endings that OUT may have depend on it
    help="Loadings of the items; factors, memberships or scores of the fitted participants; or loadings of the items on confounders.",
)
@click.option("--suppress", type=click.FloatRange(0), metavar="NUMBER", help="Leave out loadings with an absolute value below this number.")
@overwrite_option
def export(model: Location, out: Location, table: str | None, suppress: float | None, overwrite: bool) -> None:
    """Write a table of a model.

    Writes the loadings of MODEL, with the labels of the items, or its factors of the fitted participants. OUT ends in .csv or
    .parquet, for factors also in .zarr. For new participants, use dfact transform.

    Memberships are also written to a .Q file, and the frequencies of an admixture to a .P file, both without labels, as other
    admixture programs do: a line for each person or SNP, in the order of the data. Frequencies are of the allele A2. Standard
    errors of the memberships, which dfact stability stores in MODEL, are written alone to a .Q_se file, and as further columns
    of a table of factors.

    Factors are sorted by their contribution to the answers, largest first, or have the model's own order: classes by size,
    components by singular value or weight, factors of a factor analysis by explained variance. If signs are arbitrary, the
    largest loading of a factor is positive.

    Labels are written to csv files unchanged, and a spreadsheet interprets one that begins with =, +, - or @ as a formula. Do
    not open tables with untrusted labels in a spreadsheet; R and pandas read them as text.
    """
    table = table or ("factors" if Path(out).suffix in (".Q", ".Q_se") else "loadings")
    if table == "factors" and suppress is not None:
        raise click.UsageError("--suppress applies to loadings only; remove it or --table factors.")
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.export import (
        FITTED_ROW_FORMATS,
        TABLE_FORMATS,
        check_destination,
        write_confounder_loadings,
        write_loadings,
        write_model_factors,
    )

    check_destination(out, overwrite=overwrite, formats=(*FITTED_ROW_FORMATS, *TABLE_FORMATS))
    fitted = load_model(model)
    if table == "factors":
        with closing(Progress("write")) as progress:
            write_model_factors(fitted, out, overwrite=overwrite, progress=progress.update)
    else:
        write = write_loadings if table == "loadings" else write_confounder_loadings
        write(fitted, out, below=suppress or 0.0, overwrite=overwrite)
    click.echo(f"{out}: {table} of {model}")
