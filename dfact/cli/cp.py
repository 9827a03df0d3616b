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
    option_group,
    overwrite_option,
    plan_option,
    plot_ending,
    plot_option,
    read_dataset,
    results_checkpoint_option,
)
from dfact.cli.types import location_type, numbers_type
from dfact.storage.location import Location


def _parse_prior(_: click.Context, __: click.Parameter, value: str) -> str | None:
    return None if value == "none" else value


_problem_options = option_group(
    click.option(
        "--l1-ratio", type=float, default=0.2, help="Share of the l1 penalty, from 0 (selects components) to 1 (selects single entries)."
    ),
    click.option("--nonnegative", is_flag=True, help="Constrain all factors to be at least 0."),
    click.option(
        "--prior",
        type=click.Choice(["estimate", "none"]),
        default="estimate",
        callback=_parse_prior,
        help="Variances of the slices in the l2 penalty: estimated, or all 1 (none).",
    ),
    click.option(
        "--init",
        type=click.Choice(["random", "nvecs"]),
        default="random",
        help="Initial factors: random, or singular vectors of the unfoldings.",
    ),
    click.option("--max-iter", type=int, default=200, help="Maximum number of iterations for each lambda."),
    click.option(
        "--tol",
        type=float,
        default=3e-5,
        help="Stop when the estimated relative distance of the objective from its limit falls below this value; "
        "in a selection, when its relative change does.",
    ),
)


@click.command("cp", epilog=example("dfact fit cp amino.zarr amino.model -k 3 --lam 1e-6 --init nvecs"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Initial number of components.")
@click.option("--lam", type=float, default=1.0, help="Weight of the penalties; dfact select cp chooses it.")
@_problem_options
@click.option(
    "--solver", type=click.Choice(["bcd", "stochastic"]), default="bcd", help="Block coordinate descent, or stochastic steps on samples."
)
@click.option(
    "--missing",
    type=click.Choice(["auto", "fill", "exact"]),
    default="auto",
    help="Missing entries: imputed by the model in each pass (fill), or excluded from each update, in memory (exact).",
)
@click.option("--seed", "random_state", type=int, help="Seed of the initial factors.")
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

    PARAFAC (CP) with the elastic net: components that are not needed shrink to zero, as do single entries of the others.
    For tensors with any number of modes and with missing entries. Confounders are not used.
    """
    check_model(model, plan_only)
    from dfact.models.cp.elastic import ElasticCP

    with executor_for(executor, scheduler) as resolved:
        run_fit(ElasticCP(**parameters, executor=resolved), read_dataset(data), None if plan_only else model, plot, overwrite)


@click.command("cp", epilog=example("dfact select cp amino.zarr amino.model -k 8 --l1-ratio 0", "    --rule knee --seed 0 --plot path.png"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=10, help="Initial number of components.")
@click.option(
    "--criterion",
    type=click.Choice(["held_out", "bic", "split_half"]),
    default="held_out",
    help="Error of held-out entries, Bayesian information criterion, or components that recur in both halves of the rows.",
)
@click.option(
    "--rule",
    type=click.Choice(["lowest", "knee"]),
    default="lowest",
    help="The lowest score, or the number of components where it stops falling steeply (the knee); not with split_half.",
)
@click.option("--lambdas", metavar="NUMBERS", type=numbers_type, help="Candidate weights of the penalties.", show_default="1e-10 to 1e10")
@click.option("--holdout-fraction", type=float, default=0.1, help="Fraction of the observed entries to hold out.")
@click.option("--seed", "random_state", type=int, help="Seed of the initial factors and of the held-out entries.")
@results_checkpoint_option
@_problem_options
@computing_options
@click.option(
    "--plot",
    metavar="FILE",
    type=location_type,
    callback=plot_ending,
    help="Plot rank, zeros and score over lambda to a .png, .pdf or .svg file; needs Matplotlib.",
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

    Solutions are computed along increasing penalties, which leave fewer and fewer components, and the criterion chooses one
    of them. That solution, without its shrinkage, is written to MODEL, if that is given.
    """
    from dfact.cli.model_output import model_output
    from dfact.models.cp.elastic import ElasticCP
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import model_text
    from dfact.report.presenters.cp.plots import path_plot
    from dfact.report.selection import check_plot, selection_text
    from dfact.selection.solution_path import select_on_path

    with executor_for(executor, scheduler) as resolved:
        dataset = read_dataset(data)
        if plot is not None:
            check_plot(plot, overwrite=overwrite)
        with model_output(model, None, overwrite=overwrite) as write:
            with closing(Progress("select")) as progress:
                estimator = ElasticCP(**parameters, random_state=random_state, executor=resolved, callbacks=[progress])
                selection = select_on_path(
                    estimator,
                    dataset,
                    criterion,
                    None if lambdas is None else sorted(lambdas),
                    rule=rule,
                    holdout_fraction=holdout_fraction,
                    random_state=random_state,
                    checkpoint=checkpoint,
                )
            write(selection.model)
    if plot is not None:
        save_figure(path_plot(selection), plot)
    click.echo(f"{selection_text(selection)}\n\n{model_text(selection.model)}")
