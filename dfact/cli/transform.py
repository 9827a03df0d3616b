"""``dfact transform``."""

from contextlib import closing

import click

from dfact.cli.options import cluster, example, memory_option, metrics_server, overwrite_option, read_dataset, scheduler_option
from dfact.cli.types import InputLocation, OutputLocation
from dfact.errors import ParameterError
from dfact.storage.location import Location


@click.command(epilog=example("dfact transform dfact-demo/factors4.model dfact-demo/answers.zarr factors.csv"))
@click.argument("model", type=InputLocation())
@click.argument("data", type=InputLocation())
@click.argument("out", type=OutputLocation("dfact.export.files:ROW_FORMATS"))
@click.option(
    "--unshrink/--no-unshrink",
    default=None,
    help="Correct the shrinkage of rows that were not fitted: an admixture does by default, a PCA divides the scores by its estimate.",
)
@memory_option
@scheduler_option
@overwrite_option
def transform(
    model: Location, data: Location, out: Location, unshrink: bool | None, memory_limit: str | None, scheduler: str | None, overwrite: bool
) -> None:
    """Compute the factors, scores or memberships of rows: participants, individuals.

    Computes them for all rows of the dataset DATA with the loadings of MODEL, and writes them to OUT, which ends in
    .csv, .parquet or .zarr, for memberships also in .Q. Genotypes are matched with the SNPs of MODEL by name or position, alleles and
    strand.
    """
    from dfact.data.dataset import population_texts
    from dfact.export.files import ROW_FORMATS, check_destination, require_numbers, write_factors
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.presenters.base import rows_text

    check_destination(out, overwrite=overwrite, formats=ROW_FORMATS)
    estimator = load_model(model)
    require_numbers(estimator, out)
    if unshrink is not None:
        if "unshrink" not in estimator.get_params():
            option = "--unshrink" if unshrink else "--no-unshrink"
            found = f"{option} is given, and {model} is a {type(estimator).__name__}"
            raise ParameterError(f"{found}, expected a PCA or an Admixture; leave it out")
        estimator.set_params(unshrink=unshrink)
    dataset = read_dataset(data)
    with metrics_server(), cluster(scheduler) as client:
        # For stored data the factors are in a temporary Zarr array, so they need not fit in memory.
        factors = estimator.set_params(executor=client, memory_limit=memory_limit).transform(dataset)
    columns, labels = list(map(str, estimator.get_feature_names_out())), dataset.label_source
    with closing(Progress("write")) as progress:
        populations = population_texts(dataset.genotypes.population)
        write_factors(out, factors, columns, labels, populations=populations, overwrite=overwrite, progress=progress.update)
    click.echo(f"{out}: {rows_text(estimator, dataset.shape[0])}")
