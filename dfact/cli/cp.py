"""``dfact fit cp`` and ``dfact select cp``."""

from contextlib import closing
from pathlib import Path
from typing import Any

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
    plot_ending,
    plot_option,
    read_dataset,
    results_checkpoint_option,
)
from dfact.cli.select import numbers
from dfact.storage.location import Location


def make_prior(_: click.Context, __: click.Parameter, value: str) -> str | None:
    """``estimate``, or nothing."""
    return None if value == "none" else value


def penalties(context: click.Context, parameter: click.Parameter, value: str | None) -> list[float] | None:
    """Numbers separated by commas, rising, if there are any."""
    return None if value is None else sorted(numbers(context, parameter, value))


_problem_options = option_group(
    click.option("--l1-ratio", type=float, default=0.2, help="Share of the l1 penalty: 0 finds the rank alone, 1 zeros alone."),
    click.option("--nonnegative", is_flag=True, help="All factors at least 0."),
    click.option(
        "--prior",
        type=click.Choice(["estimate", "none"]),
        default="estimate",
        callback=make_prior,
        help="Variances of the slices in the l2 penalty, estimated or all 1.",
    ),
    click.option(
        "--init",
        type=click.Choice(["random", "nvecs"]),
        default="random",
        help="Start: random, or singular vectors of the unfoldings.",
    ),
    click.option("--max-iter", type=int, default=200, help="Most iterations, of each lambda."),
    click.option(
        "--tol",
        type=float,
        default=3e-5,
        help="Stop when the objective is estimated to be this near its end, relatively; in a selection, when it changes by less.",
    ),
)


@click.command("cp", epilog=example("dfact fit cp amino.zarr amino.model -k 3 --lam 1e-6 --init nvecs"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Number of components to start from.")
@click.option("--lam", type=float, default=1.0, help="Weight of the penalties; see dfact select cp.")
@_problem_options
@click.option("--solver", type=click.Choice(["bcd", "stochastic"]), default="bcd", help="Block coordinate descent, or steps on samples.")
@click.option(
    "--missing",
    type=click.Choice(["auto", "fill", "exact"]),
    default="auto",
    help="Missing entries: filled in by the model in each pass, or reckoned with in each update, in memory.",
)
@click.option("--seed", "random_state", type=int, help="Seed of the start.")
@computing_options
@checkpoint_options
@plan_option
@plot_option
@overwrite_option
def fit_cp(
    data: Location,
    model: Location | None,
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Sparse low-rank components of a tensor.

    PARAFAC (CP) with the elastic net: components that are not needed shrink to nothing, and single entries
    of the others to zero. For tensors of any number of modes, with missing entries. Confounders are not used.
    """
    check_model(model, plan_only)
    from dfact.models.cp.elastic import ElasticCP

    with executor_for(executor, scheduler) as place:
        run_fit(ElasticCP(**parameters, executor=place), read_dataset(data), None if plan_only else model, plot, overwrite)


@click.command("cp", epilog=example("dfact select cp amino.zarr amino.model -k 8 --l1-ratio 0", "    --rule knee --seed 0 --plot path.png"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Number of components to start from.")
@click.option(
    "--criterion",
    type=click.Choice(["held_out", "bic", "split_half"]),
    default="held_out",
    help="The error of hidden entries; the Bayesian information criterion; or which components are there again in other rows.",
)
@click.option(
    "--rule",
    type=click.Choice(["lowest", "knee"]),
    default="lowest",
    help="The lowest score, or where more components stop to lower it much; not with split_half.",
)
@click.option("--lambdas", metavar="NUMBERS", callback=penalties, help="Weights of the penalties to try.", show_default="1e-10 to 1e10")
@click.option("--holdout-fraction", type=float, default=0.1, help="Share of the observed entries to hide.")
@click.option("--seed", "random_state", type=int, help="Seed of the start and of what is hidden.")
@results_checkpoint_option
@_problem_options
@computing_options
@click.option(
    "--plot", metavar="FILE", type=location_type, callback=plot_ending, help="Draw rank, zeros and score over lambda: .png, .pdf or .svg."
)
@overwrite_option
def select_cp(
    data: Location,
    model: Location | None,
    criterion: str,
    rule: str,
    lambdas: list[float] | None,
    holdout_fraction: float,
    random_state: int | None,
    checkpoint: Location | None,
    executor: str | None,
    scheduler: str | None,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Components of a tensor: their number and sparsity.

    Solutions are followed along increasing penalties, which leave fewer and fewer components; the criterion says
    which to take. That solution, without its shrinkage, is written to MODEL, if that is given.
    """
    from dfact.cli.results import places
    from dfact.models.cp.elastic import ElasticCP
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import model_text
    from dfact.report.presenters.cp.plots import path_plot
    from dfact.report.selection import check_plot, selection_text
    from dfact.selection.solution_path import select_on_path

    with executor_for(executor, scheduler) as place:
        dataset = read_dataset(data)
        if plot is not None:
            check_plot(plot, overwrite=overwrite)
        with places(model, None, overwrite=overwrite) as keep:
            with closing(Progress("select")) as progress:
                estimator = ElasticCP(**parameters, random_state=random_state, executor=place, callbacks=[progress])
                settings: dict[str, Any] = {"rule": rule, "share": holdout_fraction, "random_state": random_state, "checkpoint": checkpoint}
                selection = select_on_path(estimator, dataset, criterion, lambdas, **settings)
            keep(selection.model)
    if plot is not None:
        save_figure(path_plot(selection), plot)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
