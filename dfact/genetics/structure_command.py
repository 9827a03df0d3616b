"""``dfact structure``."""

from pathlib import Path
from typing import Any

import click

from dfact.cli.options import example, list_option, overwrite_option, read_dataset
from dfact.cli.types import InputLocation, InputPath, OutputLocation
from dfact.storage.location import Location


@click.command(
    epilog=example("dfact structure plot.png dfact-demo/best.model dfact-demo/cohort.3.Q", "    --population dfact-demo/cohort.pop")
)
@click.argument("out", metavar="PLOT", type=OutputLocation("dfact.report.plots:FORMATS"))
@click.argument("runs", metavar="RUN...", type=InputLocation(), nargs=-1, required=True)
@click.option("--data", type=InputLocation(), metavar="DATASET", help="Dataset with the populations of the individuals.")
@click.option("--population", type=InputPath(), metavar="FILE", help="Text file with the populations: a line for each individual.")
@list_option("--order", "Populations that come first, in this order, separated by commas; the others follow.", metavar="NAMES")
@list_option(
    "--names",
    "Names of the components in the legend, separated by commas: of the run with the most of them, in its order.",
    metavar="NAMES",
)
@click.option("--means", is_flag=True, help="Draw the mean of each population instead of its individuals.")
@overwrite_option
def structure(
    out: Path,
    runs: tuple[Location, ...],
    data: Location | None,
    population: Location | None,
    order: list[str],
    names: list[str],
    means: bool,
    overwrite: bool,
) -> None:
    """Plot memberships as stacked bars.

    Each RUN is a model with memberships (admixture or gom), or a .Q file of another admixture program, all of the same individuals.
    Runs are stacked by their number of components; matching components have one colour. Runs that agree are drawn once.

    Populations come in the order of their leading component, or in --order; individuals within them by their leading component.
    Above 2000 individuals a bar is the mean of several.
    Populations come from --data or --population, otherwise from the dataset of a model. PLOT ends in .png, .pdf
    or .svg. Needs Matplotlib.
    """
    if data is not None and population is not None:
        raise click.UsageError("--data and --population both give the populations; pass one of them.")
    from dfact.export.row_files import MEMBERSHIPS
    from dfact.genetics.admixture_files import read_memberships
    from dfact.genetics.structure_plot import (
        dataset_populations,
        largest_populations,
        own_names,
        read_populations,
        run_memberships,
        stated_populations,
        structure_figure,
    )
    from dfact.models.persistence import load_model
    from dfact.report.plots import save_figure
    from dfact.report.selection import check_plot

    check_plot(out, overwrite=overwrite)
    loaded = [read_memberships(run) if Path(run).suffix in (MEMBERSHIPS, ".gz") else load_model(run) for run in runs]
    memberships = [run_memberships(run) for run in loaded]
    populations: Any = stated_populations(loaded) if population is None else read_populations(population)
    if data is not None:
        populations = dataset_populations(read_dataset(data))
    if order and populations is None:
        raise click.UsageError("--order names populations, which nothing states; pass --population or --data.")
    figure = structure_figure(memberships, populations, population_order=order, means=means, names=names or own_names(loaded))
    save_figure(figure, out, overwrite=overwrite)
    click.echo(f"{out}: {len(runs)} run{'s' * (len(runs) > 1)} of {len(memberships[0])} individuals")
    if names and populations is not None:  # as names in another order than the components would go unnoticed
        click.echo(largest_populations(memberships, populations, names))
