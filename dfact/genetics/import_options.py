"""Options of ``dfact import`` about genotypes."""

from typing import Any

import click

from dfact.cli.options import choice, option_group
from dfact.cli.types import InputPath

_GENOTYPES_ONLY = (
    "population",
    "population_column",
    "empty_variants",
    "multiallelic",
    "drop_invalid",
    "chromosomes",
    "keep_failing",
)
_GENOTYPES_TOO = ("id_column", "n_readers", "overwrite", "memory_limit")
_OF_THE_RUN = ("scheduler", "memory_limit")
"""Settings that a job states for all its steps, ignored by an import that does not use them."""

genotype_options = option_group(
    click.option(
        "--population",
        metavar="FILE",
        type=InputPath(),
        help="Populations of individuals with genotypes: a text file with a line for each, or a table with individuals and populations.",
        show_default="the .pop file next to SOURCE, if there is one",
    ),
    click.option(
        "--population-column",
        metavar="NAME",
        help="Column of that table with the populations.",
        show_default="pop or the like, the family of a .fam file, or the only one",
    ),
    choice("--empty-variants", "error drop", "Treatment of variants without any genotype: an error, or drop them.", show_default="error"),
    choice(
        "--multiallelic",
        "error drop",
        "Treatment of variants with more than two alleles: an error, or drop them.",
        show_default="error",
    ),
    click.option(
        "--drop-invalid",
        is_flag=True,
        help="Drop all invalid variants: empty, multiallelic, symbolic or repeated ones, and those with haploid or polyploid calls.",
    ),
    click.option(
        "--chromosomes",
        metavar="NAMES",
        help="Chromosomes whose variants are taken, such as 1-22,X, or all.",
        show_default="all but X, Y, XY and MT",
    ),
    click.option("--keep-failing", is_flag=True, help="Take variants that fail a filter of the file, too."),
    click.option("--memory-limit", metavar="SIZE", help="Memory limit for genotypes, such as 4GiB.", show_default="2GiB"),
)


def select_settings(settings: dict[str, Any], command: click.Command, *, genotypes: bool) -> dict[str, Any]:
    """Return the settings of an import of genotypes or of a table; raise UsageError if one of the other kind was given."""
    tables = tuple(name for name in settings if name not in (*_GENOTYPES_ONLY, "memory_limit"))
    own = (*_GENOTYPES_ONLY, *_GENOTYPES_TOO) if genotypes else tables
    given = [name for name, value in settings.items() if name not in (*own, *_OF_THE_RUN) and value and value != "error"]
    if given:
        option = next(parameter.opts[0] for parameter in command.params if parameter.name == given[0])
        kinds = ("tables", "genotypes") if genotypes else ("genotypes", "tables")
        raise click.UsageError(f"{option} applies to {kinds[0]}, and SOURCE is a file of {kinds[1]}; leave it out.")
    return {name: settings[name] for name in own if name in settings}
