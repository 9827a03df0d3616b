"""``dfact fit``."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.gom import gom_options
from dfact.cli.options import (
    checkpoint_options,
    computing_options,
    example,
    executor_for,
    overwrite_option,
    plan_option,
    plot_option,
    read_dataset,
)
from dfact.cli.types import NumberOrAdaptive, location_type
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.estimator import Factorization


@click.group()
def fit() -> None:
    """Fit a model to a dataset."""


@fit.command(epilog=example("dfact fit icqf survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=8, help="Number of factors.")
@click.option("--beta", type=float, default=0.1, help="Weight of the penalties on factors and loadings.")
@click.option("--penalty", type=click.Choice(["l1", "l2"]), default="l1", help="l1 for sparse factors and loadings, l2 for small ones.")
@click.option(
    "--solver",
    type=click.Choice(["splitless", "admm"]),
    default="splitless",
    help="Optimization method: MM on the augmented Lagrangian (splitless), or the paper's admm, which needs more passes.",
)
@click.option(
    "--inner",
    type=click.Choice(["cd", "fista"]),
    default="cd",
    help="Solver of the subproblems: coordinate descent or accelerated proximal gradient.",
)
@click.option(
    "--rho",
    default="3",
    metavar="NUMBER",
    type=NumberOrAdaptive(),
    help="Penalty parameter of the augmented Lagrangian; admm also takes 'adaptive'.",
)
@click.option("--max-iter", type=int, default=200, help="Maximum number of iterations.")
@click.option(
    "--tol",
    type=float,
    default=1e-4,
    help="Stop when the estimated relative distance of the objective from its limit falls below this value.",
)
@click.option("--init", type=click.Choice(["nndsvd", "random"]), default="nndsvd", help="Initial loadings.")
@click.option("--seed", "random_state", type=int, help="Seed of random initial loadings.")
@click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="highest answer")
@click.option("--w-max", type=float, default=1.0, help="Upper bound of the factors.")
@click.option(
    "--bounds",
    type=float,
    nargs=2,
    metavar="LOW HIGH",
    help="Lowest and highest value of the reconstructed answers.",
    show_default="0 and the highest answer",
)
@computing_options
@checkpoint_options
@click.option("--no-confounders", is_flag=True, help="Ignore the confounders of the dataset.")
@plan_option
@plot_option
@overwrite_option
def icqf(
    data: Location,
    model: Location | None,
    executor: str | None,
    scheduler: str | None,
    no_confounders: bool,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Interpretability-constrained factors.

    Interpretability-constrained questionnaire factorization: factors between 0 and 1, non-negative loadings and confounder
    effects, and sparsity penalties on all of them.
    """
    check_model(model, plan_only)
    from dfact.models.bounded_nmf.icqf import ICQF

    with executor_for(executor, scheduler) as resolved:
        dataset = read_dataset(data)
        estimator = ICQF(**parameters, executor=resolved)
        run_fit(estimator, dataset.with_confounders(None) if no_confounders else dataset, None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit gom survey.zarr survey.model -k 3"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=3, help="Number of classes; dfact select gom chooses it.")
@checkpoint_options
@plan_option
@gom_options
def gom(
    data: Location,
    model: Location | None,
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Grade of membership in classes.

    For categorical answers: each participant has memberships in latent classes that sum to 1, and each class has expected
    responses. Responses of 0 and missing entries count as no response. Confounders are not used.
    """
    check_model(model, plan_only)
    from dfact.models.gom.estimator import GradeOfMembership

    with executor_for(executor, scheduler) as resolved:
        run_fit(GradeOfMembership(**parameters, executor=resolved), read_dataset(data), None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit l1nmf survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=8, help="Number of factors.")
@click.option("--beta", type=float, default=0.1, help="Weight of the sparsity penalties.")
@click.option("--max-iter", type=int, default=200, help="Maximum number of iterations.")
@click.option(
    "--tol",
    type=float,
    default=1e-4,
    help="Stop when the estimated relative distance of the objective from its limit falls below this value.",
)
@click.option("--init", type=click.Choice(["nndsvd", "random"]), default="nndsvd", help="Initial loadings.")
@click.option("--seed", "random_state", type=int, help="Seed of random initial loadings.")
@computing_options
@checkpoint_options
@plan_option
@plot_option
@overwrite_option
def l1nmf(
    data: Location,
    model: Location | None,
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Sparse non-negative factors.

    A baseline for icqf: non-negative factors and loadings with sparsity penalties and without upper bounds. Confounders are
    not used.
    """
    check_model(model, plan_only)
    from dfact.models.bounded_nmf.l1nmf import L1NMF

    with executor_for(executor, scheduler) as resolved:
        run_fit(L1NMF(**parameters, executor=resolved), read_dataset(data), None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit fa survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=3, help="Number of factors.")
@click.option(
    "--rotation",
    type=click.Choice(["promax", "varimax", "none"]),
    default="promax",
    help="Rotation of the factors: promax for correlated, varimax for uncorrelated factors.",
)
@click.option("--kappa", type=float, default=4.0, help="Power to which promax raises the loadings.")
@click.option(
    "--missing",
    type=click.Choice(["pairwise", "listwise"]),
    default="pairwise",
    help="Correlations from participants who answered both items (pairwise) or all items (listwise).",
)
@computing_options
@plan_option
@plot_option
@overwrite_option
def fa(
    data: Location,
    model: Location | None,
    rotation: str,
    executor: str | None,
    scheduler: str | None,
    plan_only: bool,
    plot: Path | None,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Factor analysis.

    A baseline for icqf: factors that explain the correlations of the items, by minimum residuals, with a rotation. Confounders
    are not used.
    """
    check_model(model, plan_only)
    from dfact.models.factor_analysis.estimator import FactorAnalysis

    with executor_for(executor, scheduler) as resolved:
        estimator = FactorAnalysis(**parameters, rotation=None if rotation == "none" else rotation, executor=resolved)
        run_fit(estimator, read_dataset(data), None if plan_only else model, plot, overwrite)


def check_model(model: Location | None, plan_only: bool) -> None:
    """Require a path for the model unless only the plan is printed."""
    if model is None and not plan_only:
        raise click.UsageError("Missing argument 'MODEL': the path of the fitted model.")


def run_fit(model: "Factorization", dataset: "Dataset", path: Location | None, plot: Path | None, overwrite: bool) -> None:
    """Fit the model and write it to ``path``; without a path, only print the plan."""
    from dfact.cli.model_output import model_output
    from dfact.engine.checkpoint import resume_point
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.signals import shield
    from dfact.storage.groups import remove

    task = model.prepare(dataset)
    planned = task.plan()
    if path is None or planned.spilled:
        click.echo(planned)
    planned.check()
    if path is None:
        return
    checkpoint = getattr(model, "checkpoint", None)
    if checkpoint is not None and (done := resume_point(checkpoint)):
        click.echo(f"Resuming from step {done} of {checkpoint}.", err=True)
    with ExitStack() as stack:
        with model_output(path, plot, overwrite=overwrite) as write:
            with closing(Progress("fit")) as progress:
                model.set_params(callbacks=[progress]).fit_prepared(task)
            stack.enter_context(shield())  # a command stopped after the model exists would be refused when it is run again
            write(model)
        if checkpoint is not None:
            remove(checkpoint)
        click.echo(model_text(model))
