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
    location_type,
    overwrite_option,
    plot_ending,
    read_dataset,
    results_checkpoint_option,
)
from dfact.storage.location import Location


def counts(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    """Numbers and ranges of them, each once: "2-5,8" are 2, 3, 4, 5 and 8."""
    found: list[int] = []
    for entry in value.split(","):
        first, dash, last = (part.strip() for part in entry.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{entry.strip()!r} is not a number or a range; expected such as 2-10 or 2,3,5")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers:
            raise click.BadParameter(f"{entry.strip()!r} is an empty range; expected such as 2-10")
        found += numbers
    return list(dict.fromkeys(found))


def numbers(_: click.Context, __: click.Parameter, value: str) -> list[float]:
    """Numbers separated by commas, each once."""
    try:
        return list(dict.fromkeys(float(entry) for entry in value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} are not numbers; expected such as 0.05,0.1,0.2") from error


def pair(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    """Two numbers, such as 10x10."""
    parts = [part.strip() for part in value.replace("×", "x").split("x")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{value!r} is not a number of row blocks and one of column blocks; expected such as 10x10")
    return int(parts[0]), int(parts[1])


@click.group()
def select() -> None:
    """Choose the size of a model by what the data say."""


@select.command(epilog=example("dfact select gom survey.zarr survey.model --components 2-10"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", default="2-10", metavar="NUMBERS", callback=counts, help="Numbers of classes to try.")
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

    The one whose memberships part the participants best, by fuzzy modularity. The model with so many
    classes is written to MODEL, if that is given.
    """
    from dfact.cli.results import places
    from dfact.models.gom.estimator import GradeOfMembership
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import selection_text
    from dfact.selection.modularity import select_by_modularity

    with executor_for(executor, scheduler) as place:
        dataset = read_dataset(data)
        with places(model, plot, overwrite=overwrite) as keep:
            with closing(Progress("select")) as progress:
                estimator = GradeOfMembership(**parameters, executor=place, callbacks=[progress])
                selection = select_by_modularity(estimator, dataset, n_components, checkpoint=checkpoint)
            keep(selection.model)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")


@select.command(
    epilog=example(
        "dfact select icqf survey.zarr survey.model -k 2-10",
        "    --beta 0.05,0.1,0.2 --rule 1se --seed 0 --plot errors.png",
    )
)
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", default="2-10", metavar="NUMBERS", callback=counts, help="Numbers of factors to try.")
@click.option("--beta", default="0.1", metavar="NUMBERS", callback=numbers, help="Weights of the sparsity penalties to try.")
@click.option(
    "--rule",
    type=click.Choice(["lowest", "1se", "knee"]),
    default="lowest",
    help="The lowest error; the fewest factors within a standard error of it; or where the error stops to fall steeply.",
)
@click.option("--blocks", "n_blocks", default="10x10", metavar="ROWSxCOLUMNS", callback=pair, help="Blocks of rows and of columns.")
@click.option("--folds", "n_folds", type=int, default=10, help="Folds into which the blocks are dealt.")
@click.option("--repeats", type=int, default=1, help="How often all is dealt anew.")
@click.option("--restarts", type=int, default=0, help="Random starts beside the usual one.")
@click.option("--seed", "random_state", type=int, help="Seed of the folds and the random starts.")
@click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="the highest answer")
@click.option("--w-max", type=float, default=1.0, help="Upper bound of the factors.")
@click.option("--tol", type=float, default=1e-4, help="Stop when an iteration changes the objective by less, relatively.")
@results_checkpoint_option
@computing_options
@click.option("--no-confounders", is_flag=True, help="Leave the dataset's confounders out.")
@click.option(
    "--plot",
    metavar="FILE",
    type=location_type,
    callback=plot_ending,
    help="Draw the error against the number of factors: .png, .pdf or .svg.",
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

    Those that rebuild hidden answers best: blocks of participants and items are hidden in turn, and the
    model is fitted to the others. The model with the chosen parameters is written to MODEL, if that is given.
    """
    from dfact.cli.results import places
    from dfact.models.bounded_nmf.icqf import ICQF
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import model_text
    from dfact.report.selection import check_plot, error_plot, selection_text
    from dfact.selection.block_cross_validation import block_cross_validate

    parameters = {name: settings.pop(name) for name in ("q_max", "w_max", "tol", "dtype", "memory_limit")}
    with executor_for(executor, scheduler) as place:
        dataset = read_dataset(data)
        dataset = dataset.with_confounders(None) if no_confounders else dataset
        if plot is not None:
            check_plot(plot, overwrite=overwrite)
        with places(model, None, overwrite=overwrite) as keep:
            with closing(Progress("select")) as progress:
                estimator = ICQF(**parameters, executor=place)
                grid = {"n_components": n_components, "beta": beta}
                selection = block_cross_validate(estimator, dataset, grid, **settings, callbacks=[progress])
            keep(selection.model)
    if plot is not None:
        save_figure(error_plot(selection), plot)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
