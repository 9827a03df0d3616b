"""``dfact export``."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from dfact.catalogue import find_part
from dfact.cli.options import apa_option, example, items_option, overwrite_option
from dfact.cli.types import InputLocation, OutputLocation
from dfact.storage.location import Location

_OF_CONFOUNDERS = ("effects", "impact", "confounders")
_STATISTICS = ("communalities", "factor-correlations", "item-correlations", "fit", "groups")
_EXCLUDED = dict.fromkeys(("factors", *_STATISTICS), ("loadings", ("--suppress", "--items", "--style"))) | {
    "impact": ("items", ("--suppress", "--items")),
    "items": ("loadings", ("--suppress", "--style")),
}
"""Options that a table has no use for, with what they apply to."""


def _formats(context: click.Context) -> str:
    if context.params.get("style") == "apa":  # absent if its own value is invalid, like table
        return f"{find_part('apa', '--style apa').__name__}:FORMATS"
    table = str(context.params.get("table"))
    names = {"factors": "FITTED_ROW_FORMATS", "loadings": "ITEM_FORMATS"}
    names |= dict.fromkeys((*_OF_CONFOUNDERS, *_STATISTICS, "items", "stability"), "LABELLED_FORMATS")
    return f"dfact.export.files:{names.get(table, 'TABLE_FORMATS')}"


@click.command(epilog=example("dfact export dfact-demo/factors4.model loadings.csv --suppress 0.1"))
@click.argument("model", type=InputLocation())
@click.argument("out", type=OutputLocation(_formats))
@click.option(
    "--table",
    type=click.Choice(["loadings", "factors", *_OF_CONFOUNDERS, *_STATISTICS, "items", "stability"]),
    metavar="TABLE",
    show_default="factors for .Q and .Q_se, else loadings",
    is_eager=True,  # the endings that OUT may have depend on it
    help="loadings of the items; factors, memberships or scores of the fitted rows (factors); effects of confounders on the "
    "items, or their impact on the factors; the raw loadings of the items on confounders (confounders); communalities, "
    "factor-correlations or item-correlations of a factor analysis; fit, its figures; groups or items, the factors in groups or the "
    "tests of items of dfact compare; stability, the loadings with the intervals and selection frequencies of dfact stability.",
)
@items_option("text, scale or both, in place of the wording and the scales in MODEL.")
@apa_option
@click.option("--suppress", type=click.FloatRange(0), metavar="NUMBER", help="Leave out loadings with an absolute value below this number.")
@overwrite_option
def export(
    model: Location, out: Location, table: str | None, items: Location | None, style: str | None, suppress: float | None, overwrite: bool
) -> None:
    """Write a table of a model.

    Writes the loadings of MODEL, with the labels of the items, or its factors of the fitted rows. OUT ends in .csv or
    .parquet, for loadings also in .xlsx (needs openpyxl), for factors also in .zarr. For new rows, use dfact transform.

    With --style apa, the loadings become a table for a paper, in .html or .md: items are sorted by the factor on which they load
    most, and a note describes the sample and the model. The table of a factor analysis has communalities, explained variances,
    and correlations of the factors, and loadings from .40 on are bold.

    Tables of confounders: impact is the difference that a confounder makes to the factors, effects are its effects on the items
    at equal factors, in points, and confounders are the raw loadings of single levels. If MODEL has its stability, impact and
    effects have their means over the refits, intervals and standard errors; with --style apa, both are in one file.

    The table of items has the tests of a comparison of groups, which dfact compare stores in MODEL: a row for each group and item.

    Memberships are also written to a .Q file, and the frequencies of an admixture to a .P file, both without labels, as other
    admixture programs do: a line for each individual or SNP, in the order of the data. Frequencies are of the allele A2. Standard
    errors of the memberships, which dfact stability stores in MODEL, are written alone to a .Q_se file, and as further columns
    of a table of factors.

    Factors have the names, the order and the signs of MODEL, as everywhere else: classes are sorted by size, components by
    singular value or weight, and factors of a factor analysis by explained variance.

    Labels and texts are never formulas. In a .csv, one that begins with =, +, -, @, a tab or a line break, and is not a number,
    gets an apostrophe, since a spreadsheet would interpret it; .parquet, .zarr and .xlsx have it unchanged.
    """
    table = table or ("factors" if Path(out).suffix in (".Q", ".Q_se") else "loadings")
    _check_options(table, {"--suppress": suppress, "--items": items, "--style": style})
    from dfact.export.files import (
        FITTED_ROW_FORMATS,
        TABLE_FORMATS,
        check_destination,
        write_confounder_effects,
        write_confounder_impact,
        write_confounder_loadings,
        write_item_tests,
        write_loadings,
        write_model_factors,
        write_stability,
    )
    from dfact.export.statistics import write_statistics
    from dfact.imports.dictionaries.table import read_items
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.presenters.base import find_presenter

    apa = None if style is None else find_part("apa", "--style apa")
    check_destination(out, overwrite=overwrite, formats=apa.FORMATS if apa else (*FITTED_ROW_FORMATS, *TABLE_FORMATS))
    described = None if items is None else read_items(items)
    texts, scales = ({}, {}) if described is None else (described.texts, described.scales)
    fitted = load_model(model)
    if apa and table in _OF_CONFOUNDERS:
        apa.write_apa_effects(fitted, out, texts=texts, overwrite=overwrite)
    elif apa:
        apa.write_apa_loadings(fitted, out, texts=texts, overwrite=overwrite)
    elif table in _STATISTICS:
        write_statistics(fitted, out, table, overwrite=overwrite)
    elif table == "impact":
        write_confounder_impact(fitted, out, overwrite=overwrite)
    elif table == "items":
        write_item_tests(fitted, out, texts=texts, overwrite=overwrite)
    elif table == "factors":
        with closing(Progress("write")) as progress:
            write_model_factors(fitted, out, overwrite=overwrite, progress=progress.update)
    else:
        write = {
            "loadings": write_loadings,
            "effects": write_confounder_effects,
            "confounders": write_confounder_loadings,
            "stability": write_stability,
        }[table]
        write(fitted, out, texts=texts, scales=scales, below=suppress or 0.0, overwrite=overwrite)
    words = {"factors": find_presenter(fitted).factors, "loadings": fitted.vocabulary.loadings[0].lower() + fitted.vocabulary.loadings[1:]}
    click.echo(f"{out}: {words.get(table, table)} of {model}")


def _check_options(table: str, given: Mapping[str, object]) -> None:
    """Raise an error for an option that would have no effect on a table."""
    applied_to, excluded = _EXCLUDED.get(table, ("", ()))
    for name in excluded:
        if given[name] is not None:
            raise click.UsageError(f"{name} applies to {applied_to} only; remove it or --table {table}.")
    if given["--style"] is not None and (table in ("confounders", "stability") or given["--suppress"] is not None):
        other = f"--table {table}" if given["--suppress"] is None else "--suppress"
        raise click.UsageError(f"--style applies to complete tables; remove it or {other}.")
