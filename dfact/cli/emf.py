"""``dfact fit emf`` and ``dfact select emf``."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.fit import check_model, run_fit
from dfact.cli.options import (
    checkpoint_options,
    computing_options,
    example,
    executor_for,
    option_group,
    overwrite_option,
    plan_option,
    plot_option,
    read_dataset,
    results_checkpoint_option,
)
from dfact.cli.types import counts_type, location_type, numbers_type
from dfact.jobs.job_file import with_omega
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.expectile.estimator import ExpectileMF

_iteration_options = option_group(
    click.option(
        "--solver",
        type=click.Choice(["exact", "surrogate"]),
        help="Solver of the rows; both reach the same minimum.",
        show_default="exact up to 40 % observed",
    ),
    click.option("--max-iter", type=int, default=200, help="Maximum number of iterations."),
    click.option(
        "--tol",
        type=float,
        default=1e-4,
        help="Stop when the estimated relative distance of the objective from its limit falls below this value.",
    ),
)


@click.command("emf", epilog=example("dfact fit emf times.zarr times.model -k 10 --omega 0.1,0.5,0.9", "    --ridge 0.1"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Number of components; dfact select emf chooses it.")
@click.option(
    "--omega",
    "omegas",
    default="0.5",
    metavar="NUMBERS",
    type=numbers_type,
    help="Expectiles between 0 and 1; one model is fitted for each.",
)
@click.option("--ridge", type=float, default=1e-8, help="Weight of the factors' squares; noisy data with few entries need more.")
@click.option("--init", type=click.Choice(["svd", "random"]), default="svd", help="Initial factors.")
@click.option("--seed", "random_state", type=int, help="Seed of random initial factors.")
@_iteration_options
@computing_options
@checkpoint_options
@plan_option
@plot_option
@overwrite_option
def fit_emf(
    data: Location,
    model: Location | None,
    omegas: list[float],
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Expectile matrix factorization.

    For skewed, partly observed data: components of rows and columns predict the expectile at omega of each entry. The
    expectile at 0.5 is the mean; lower values move the model to the dense, lower side of data that are skewed to the right.

    Several omegas are fitted on the same reads of the data. The name of each model, and of each plot, then contains its omega:
    times-0.1.model for times.model. Confounders are not used.
    """
    check_model(model, plan_only)
    if len(omegas) > 1 and parameters["checkpoint"] is not None:
        raise click.UsageError(f"--checkpoint is given with {len(omegas)} values of --omega, expected one value; run a command for each.")
    from dfact.models.expectile.estimator import ExpectileMF

    with executor_for(executor, scheduler) as resolved:
        dataset, path = read_dataset(data), None if plan_only else model
        estimator = ExpectileMF(**parameters, omega=omegas[0], executor=resolved)
        if len(omegas) == 1:
            run_fit(estimator, dataset, path, plot, overwrite)
        else:
            _run_fits(estimator, dataset, omegas, path, plot, overwrite)


def _run_fits(
    estimator: "ExpectileMF", dataset: "Dataset", omegas: list[float], path: Location | None, plot: Path | None, overwrite: bool
) -> None:
    """Fit and write a model for each ω, on the same reads of the data."""
    from dfact.cli.model_output import model_output
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text

    planned = estimator.prepare(dataset).times(len(omegas)).plan()
    if path is None or planned.spilled:
        click.echo(planned)
    planned.check()
    if path is None:
        return
    paths = [(with_omega(path, omega), None if plot is None else Path(with_omega(plot, omega))) for omega in omegas]
    with ExitStack() as stack:
        writes = [stack.enter_context(model_output(*outputs, overwrite=overwrite)) for outputs in paths]
        with closing(Progress("fit")) as progress:
            models = estimator.set_params(callbacks=[progress]).fit_each(dataset, omegas)
        for write, fitted in zip(writes, models, strict=True):
            write(fitted)
    click.echo("\n\n".join(f"{output}\n{model_text(fitted)}" for (output, _), fitted in zip(paths, models, strict=True)))


@click.command(
    "emf",
    epilog=example(
        "dfact select emf times.zarr times.model -k 2-10", "    --ridge 0.01,0.1,1 --omega 0.1,0.5 --bins 0,0.3,3.1,20 --seed 0"
    ),
)
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option(
    "-k", "--components", "n_components", default="2-10", metavar="NUMBERS", type=counts_type, help="Candidate numbers of components."
)
@click.option("--ridge", default="0.01,0.1,1", metavar="NUMBERS", type=numbers_type, help="Candidate weights of the factors' squares.")
@click.option("--omega", default="0.5", metavar="NUMBERS", type=numbers_type, help="Candidate expectiles between 0 and 1.")
@click.option("--holdout-fraction", type=float, default=0.1, help="Fraction of the observed entries to hold out.")
@click.option("--error", type=click.Choice(["relative", "absolute"]), default="relative", help="Error of a held-out entry.")
@click.option(
    "--bins", metavar="NUMBERS", type=numbers_type, help="Edges of bins of the true value; the table adds the median error of each."
)
@click.option("--repeats", type=int, default=1, help="Number of times entries are drawn and held out.")
@click.option("--seed", "random_state", type=int, help="Seed of the held-out entries.")
@results_checkpoint_option
@_iteration_options
@computing_options
@plot_option
@overwrite_option
def select_emf(
    data: Location,
    model: Location | None,
    n_components: list[int],
    ridge: list[float],
    omega: list[float],
    executor: str | None,
    scheduler: str | None,
    plot: Path | None,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Expectile matrix factorization: components, ridge, expectile.

    Chooses the parameters with the lowest median error of held-out entries, which are drawn at random. All candidates are
    fitted to the other entries on the same reads of the data. A model with the chosen parameters is fitted to all entries and
    written to MODEL, if that is given.
    """
    from dfact.cli.model_output import model_output
    from dfact.models.expectile.estimator import ExpectileMF
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import selection_text
    from dfact.selection.held_out_entries import select_by_held_out

    parameters = {name: settings.pop(name) for name in ("solver", "max_iter", "tol", "dtype", "memory_limit")}
    grid = {"n_components": n_components, "ridge": ridge, "omega": omega}
    with executor_for(executor, scheduler) as resolved:
        dataset = read_dataset(data)
        with model_output(model, plot, overwrite=overwrite) as write:
            with closing(Progress("select")) as progress:
                estimator = ExpectileMF(**parameters, executor=resolved)
                selection = select_by_held_out(estimator, dataset, grid, **settings, callbacks=[progress])
            write(selection.model)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
