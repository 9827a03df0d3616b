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
    location_type,
    option_group,
    overwrite_option,
    plan_option,
    plot_option,
    read_dataset,
    results_checkpoint_option,
)
from dfact.cli.select import counts, numbers
from dfact.jobs.job_file import with_omega
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.expectile.estimator import ExpectileMF


def edges(context: click.Context, parameter: click.Parameter, value: str | None) -> list[float] | None:
    """Numbers separated by commas, if there are any."""
    return None if value is None else numbers(context, parameter, value)


_iteration_options = option_group(
    click.option(
        "--solver",
        type=click.Choice(["exact", "surrogate"]),
        help="How rows are solved; both have the same minimum.",
        show_default="exact up to 40 % observed",
    ),
    click.option("--max-iter", type=int, default=200, help="Most iterations."),
    click.option("--tol", type=float, default=1e-4, help="Stop when the objective is estimated to be this near its end, relatively."),
)


@click.command("emf", epilog=example("dfact fit emf times.zarr times.model -k 10 --omega 0.1,0.5,0.9", "    --ridge 0.1"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Number of components; see dfact select emf.")
@click.option("--omega", "omegas", default="0.5", metavar="NUMBERS", callback=numbers, help="Which expectile, between 0 and 1, or several.")
@click.option("--ridge", type=float, default=1e-8, help="Weight of the factors' squares; noisy data with few entries want more.")
@click.option("--init", type=click.Choice(["svd", "random"]), default="svd", help="Start of the factors.")
@click.option("--seed", "random_state", type=int, help="Seed of the random start.")
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

    For skewed, partly observed data: an entry's expectile at omega is told by components of rows and columns.
    0.5 is the mean; below, the model is drawn to the dense, lower side of data that is skewed to the right.

    Several omegas are fitted on the same reads of the data. Each model, and each plot, has its omega
    before the ending of its name then: times-0.1.model for times.model. Confounders are not used.
    """
    check_model(model, plan_only)
    if len(omegas) > 1 and parameters["checkpoint"] is not None:
        raise click.UsageError("--checkpoint is for a single --omega; fit each by a command of its own.")
    from dfact.models.expectile.estimator import ExpectileMF

    with executor_for(executor, scheduler) as place:
        dataset, path = read_dataset(data), None if plan_only else model
        estimator = ExpectileMF(**parameters, omega=omegas[0], executor=place)
        if len(omegas) == 1:
            run_fit(estimator, dataset, path, plot, overwrite)
        else:
            _run_each(estimator, dataset, omegas, path, plot, overwrite)


def _run_each(
    estimator: "ExpectileMF", dataset: "Dataset", omegas: list[float], path: Location | None, plot: Path | None, overwrite: bool
) -> None:
    """``run_fit`` for several ω."""
    from dfact.cli.results import places
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text

    one = estimator._footprint(dataset.shape, 0, estimator._working_dtype(dataset))
    planned = estimator._plan(dataset, one.scaled(len(omegas)))[1]
    if path is None or planned.spilled:
        click.echo(planned)
    planned.check()
    if path is None:
        return
    paths = [(with_omega(path, omega), None if plot is None else Path(with_omega(plot, omega))) for omega in omegas]
    with ExitStack() as stack:
        keeps = [stack.enter_context(places(*pair, overwrite=overwrite)) for pair in paths]
        with closing(Progress("fit")) as progress:
            models = estimator.set_params(callbacks=[progress]).fit_each(dataset, omegas)
        for keep, fitted in zip(keeps, models, strict=True):
            keep(fitted)
    click.echo("\n\n".join(f"{place}\n{model_text(fitted)}" for (place, _), fitted in zip(paths, models, strict=True)))


@click.command(
    "emf",
    epilog=example(
        "dfact select emf times.zarr times.model -k 2-10", "    --ridge 0.01,0.1,1 --omega 0.1,0.5 --bins 0,0.3,3.1,20 --seed 0"
    ),
)
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option(
    "-k", "--components", "n_components", default="2-10", metavar="NUMBERS", callback=counts, help="Numbers of components to try."
)
@click.option("--ridge", default="0.01,0.1,1", metavar="NUMBERS", callback=numbers, help="Weights of the factors' squares to try.")
@click.option("--omega", default="0.5", metavar="NUMBERS", callback=numbers, help="Expectiles to try.")
@click.option("--holdout-fraction", type=float, default=0.1, help="Share of the observed entries to hide.")
@click.option("--error", type=click.Choice(["relative", "absolute"]), default="relative", help="Error of a hidden entry.")
@click.option("--bins", metavar="NUMBERS", callback=edges, help="Edges of bins of the true value, to tell the median of each.")
@click.option("--repeats", type=int, default=1, help="How often entries are drawn anew.")
@click.option("--seed", "random_state", type=int, help="Seed of the hidden entries.")
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

    Those that tell hidden entries best: a share of the entries is hidden at random, all models are fitted to the
    others on the same reads of the data, and the lowest median of the errors wins. The model with the chosen
    parameters, of all entries, is written to MODEL, if that is given.
    """
    from dfact.cli.results import places
    from dfact.models.expectile.estimator import ExpectileMF
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import selection_text
    from dfact.selection.held_out_entries import select_by_held_out

    parameters = {name: settings.pop(name) for name in ("solver", "max_iter", "tol", "dtype", "memory_limit")}
    grid = {"n_components": n_components, "ridge": ridge, "omega": omega}
    with executor_for(executor, scheduler) as place:
        dataset = read_dataset(data)
        with places(model, plot, overwrite=overwrite) as keep:
            with closing(Progress("select")) as progress:
                estimator = ExpectileMF(**parameters, executor=place)
                selection = select_by_held_out(estimator, dataset, grid, **settings, callbacks=[progress])
            keep(selection.model)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
