"""``dfact select``."""

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dfact.cli.gom import gom_options
from dfact.cli.options import (
    computing_options,
    example,
    executor_for,
    overwrite_option,
    plot_ending,
    read_dataset,
    results_checkpoint_option,
)
from dfact.cli.types import BlockShape, counts_type, location_type, numbers_type
from dfact.storage.location import Location


@click.group()
def select() -> None:
    """Choose the parameters of a model by the data."""


@select.command(epilog=example("dfact select gom survey.zarr survey.model --components 2-10"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option(
    "-k", "--components", "n_components", default="2-10", metavar="NUMBERS", type=counts_type, help="Candidate numbers of classes."
)
@results_checkpoint_option
@gom_options
def gom(
    data: Location,
    model: Location | None,
    n_components: list[int],
    checkpoint: Location | None,
    executor: str | None,
    scheduler: str | None,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Grade of membership: the number of classes.

    Chooses the number of classes whose memberships separate the participants best, by fuzzy modularity. The model with that
    number of classes is written to MODEL, if that is given.
    """
    from dfact.cli.model_output import model_output
    from dfact.models.gom.estimator import GradeOfMembership
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import selection_text
    from dfact.selection.modularity import select_by_modularity

    with executor_for(executor, scheduler) as resolved:
        dataset = read_dataset(data)
        with model_output(model, plot, overwrite=overwrite) as write:
            with closing(Progress("select")) as progress:
                estimator = GradeOfMembership(**parameters, executor=resolved, callbacks=[progress])
                selection = select_by_modularity(estimator, dataset, n_components, checkpoint=checkpoint)
            write(selection.model)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")


@select.command(
    epilog=example(
        "dfact select icqf survey.zarr survey.model -k 2-10",
        "    --beta 0.05,0.1,0.2 --rule 1se --seed 0 --plot errors.png",
    )
)
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option(
    "-k", "--components", "n_components", default="2-10", metavar="NUMBERS", type=counts_type, help="Candidate numbers of factors."
)
@click.option("--beta", default="0.1", metavar="NUMBERS", type=numbers_type, help="Candidate weights of the sparsity penalties.")
@click.option(
    "--rule",
    type=click.Choice(["lowest", "1se", "knee"]),
    default="lowest",
    help="The lowest error, the fewest factors within one standard error of it, or the number where the error stops falling "
    "steeply (the knee).",
)
@click.option("--blocks", "n_blocks", default="10x10", metavar="ROWSxCOLUMNS", type=BlockShape(), help="Numbers of row and column blocks.")
@click.option("--folds", "n_folds", type=int, default=10, help="Number of folds to which the blocks are assigned.")
@click.option("--repeats", type=int, default=1, help="Number of times the blocks are assigned to folds.")
@click.option("--restarts", type=int, default=0, help="Number of random starts of each fit, beside the default start.")
@click.option("--seed", "random_state", type=int, help="Seed of the folds and of the random starts.")
@click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="highest answer")
@click.option("--w-max", type=float, default=1.0, help="Upper bound of the factors.")
@click.option("--tol", type=float, default=1e-4, help="Stop when the relative change of the objective falls below this value.")
@results_checkpoint_option
@computing_options
@click.option("--no-confounders", is_flag=True, help="Ignore the confounders of the dataset.")
@click.option(
    "--plot",
    metavar="FILE",
    type=location_type,
    callback=plot_ending,
    help="Plot the error over the number of factors to a .png, .pdf or .svg file; needs Matplotlib.",
)
@overwrite_option
def icqf(
    data: Location,
    model: Location | None,
    executor: str | None,
    scheduler: str | None,
    no_confounders: bool,
    plot: Path | None,
    overwrite: bool,
    n_components: list[int],
    beta: list[float],
    **settings: Any,
) -> None:
    """Interpretability-constrained factors: their number and sparsity.

    Chooses the parameters whose models predict held-out answers best. Blocks of participants and items are held out in turn,
    and the model is fitted to the other blocks. The model with the chosen parameters is written to MODEL, if that is given.
    """
    from dfact.cli.model_output import model_output
    from dfact.models.bounded_nmf.icqf import ICQF
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import check_plot, error_plot, selection_text
    from dfact.selection.block_cross_validation import block_cross_validate

    parameters = {name: settings.pop(name) for name in ("q_max", "w_max", "tol", "dtype", "memory_limit")}
    with executor_for(executor, scheduler) as resolved:
        dataset = read_dataset(data)
        dataset = dataset.with_confounders(None) if no_confounders else dataset
        if plot is not None:
            check_plot(plot, overwrite=overwrite)
        with model_output(model, None, overwrite=overwrite) as write:
            with closing(Progress("select")) as progress:
                estimator = ICQF(**parameters, executor=resolved)
                grid = {"n_components": n_components, "beta": beta}
                selection = block_cross_validate(estimator, dataset, grid, **settings, callbacks=[progress])
            write(selection.model)
    if plot is not None:
        save_figure(error_plot(selection), plot)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
