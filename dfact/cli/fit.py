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
    location_type,
    overwrite_option,
    plan_option,
    plot_option,
    read_dataset,
)
from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.estimator import Factorization


def number_or_adaptive(_: click.Context, __: click.Parameter, value: str) -> float | str:
    """A number, or the word."""
    if value == "adaptive":
        return value
    try:
        return float(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number, nor 'adaptive'") from error


@click.group()
def fit() -> None:
    """Fit a model to a dataset."""


@fit.command(epilog=example("dfact fit icqf survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=8, help="Number of factors.")
@click.option("--beta", type=float, default=0.1, help="Weight of the penalties.")
@click.option("--penalty", type=click.Choice(["l1", "l2"]), default="l1", help="Sparse factors and loadings, or small ones.")
@click.option("--solver", type=click.Choice(["splitless", "admm"]), default="splitless", help="admm is the paper's; it needs more passes.")
@click.option("--inner", type=click.Choice(["cd", "fista"]), default="cd", help="Coordinate descent, or accelerated gradient.")
@click.option(
    "--rho", default="3", metavar="NUMBER", callback=number_or_adaptive, help="Penalty parameter; with --solver admm also 'adaptive'."
)
@click.option("--max-iter", type=int, default=200, help="Most iterations.")
@click.option("--tol", type=float, default=1e-4, help="Stop when the objective is estimated to be this near its end, relatively.")
@click.option("--init", type=click.Choice(["nndsvd", "random"]), default="nndsvd", help="Start of the loadings.")
@click.option("--seed", "random_state", type=int, help="Seed of the random start.")
@click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="the highest answer")
@click.option("--w-max", type=float, default=1.0, help="Upper bound of the factors.")
@click.option(
    "--bounds", type=float, nargs=2, metavar="LOW HIGH", help="Range of the reconstructed answers.", show_default="0 to the highest answer"
)
@computing_options
@checkpoint_options
@click.option("--no-confounders", is_flag=True, help="Leave the dataset's confounders out.")
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

    Factors between 0 and 1, loadings and confounder effects of at least 0, and sparse where they can be:
    interpretability-constrained questionnaire factorization.
    """
    check_model(model, plan_only)
    from dfact.models.bounded_nmf.icqf import ICQF

    with executor_for(executor, scheduler) as place:
        dataset = read_dataset(data)
        estimator = ICQF(**parameters, executor=place)
        run_fit(estimator, dataset.with_confounders(None) if no_confounders else dataset, None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit gom survey.zarr survey.model -k 3"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=3, help="Number of classes; see dfact select gom.")
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

    Each participant belongs to latent classes by shares that sum to 1, each class has its expected
    responses: for categorical answers. Responses of 0, and missing ones, are no response. Confounders
    are not used.
    """
    check_model(model, plan_only)
    from dfact.models.gom.estimator import GradeOfMembership

    with executor_for(executor, scheduler) as place:
        run_fit(GradeOfMembership(**parameters, executor=place), read_dataset(data), None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit l1nmf survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=8, help="Number of factors.")
@click.option("--beta", type=float, default=0.1, help="Weight of the sparsity penalties.")
@click.option("--max-iter", type=int, default=200, help="Most iterations.")
@click.option("--tol", type=float, default=1e-4, help="Stop when the objective is estimated to be this near its end, relatively.")
@click.option("--init", type=click.Choice(["nndsvd", "random"]), default="nndsvd", help="Start of the loadings.")
@click.option("--seed", "random_state", type=int, help="Seed of the random start.")
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

    Factors and loadings of at least 0 with sparsity penalties, and no upper bounds: a baseline for icqf.
    Confounders are not used.
    """
    check_model(model, plan_only)
    from dfact.models.bounded_nmf.l1nmf import L1NMF

    with executor_for(executor, scheduler) as place:
        run_fit(L1NMF(**parameters, executor=place), read_dataset(data), None if plan_only else model, plot, overwrite)


@fit.command(epilog=example("dfact fit fa survey.zarr survey.model -k 6"))
@click.argument("data", type=location_type)
@click.argument("model", type=location_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=3, help="Number of factors.")
@click.option(
    "--rotation", type=click.Choice(["promax", "varimax", "none"]), default="promax", help="promax lets the factors be correlated."
)
@click.option("--kappa", type=float, default=4.0, help="Power of promax.")
@click.option(
    "--missing",
    type=click.Choice(["pairwise", "listwise"]),
    default="pairwise",
    help="Correlations from those who answered both items, or all items.",
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

    Factors behind the correlations of the items, by minimum residuals, and rotated: a baseline for icqf.
    Confounders are not used.
    """
    check_model(model, plan_only)
    from dfact.models.factor_analysis.estimator import FactorAnalysis

    with executor_for(executor, scheduler) as place:
        estimator = FactorAnalysis(**parameters, rotation=None if rotation == "none" else rotation, executor=place)
        run_fit(estimator, read_dataset(data), None if plan_only else model, plot, overwrite)


def check_model(model: Location | None, plan_only: bool) -> None:
    """A model goes somewhere."""
    if model is None and not plan_only:
        raise click.UsageError("Missing argument 'MODEL': where the model goes.")


def run_fit(model: "Factorization", dataset: "Dataset", path: Location | None, plot: Path | None, overwrite: bool) -> None:
    """Fit the model and write it to ``path``; without one, only tell the plan."""
    from dfact.cli.results import places
    from dfact.engine.checkpoint import resume_point
    from dfact.models.estimator import plan
    from dfact.progress import Progress
    from dfact.report.presenters.base import model_text
    from dfact.signals import shield
    from dfact.storage.groups import remove

    planned = plan(model, dataset)
    if path is None or planned.spilled:
        click.echo(planned)
    planned.check()
    if path is None:
        return
    checkpoint = getattr(model, "checkpoint", None)
    if checkpoint is not None and (done := resume_point(checkpoint)):
        click.echo(f"Going on from step {done} of {checkpoint}.", err=True)
    with ExitStack() as rest:
        with places(path, plot, overwrite=overwrite) as keep:
            with closing(Progress("fit")) as progress:
                model.set_params(callbacks=[progress]).fit(dataset)
            rest.enter_context(shield())  # stopped behind the model, the same command would be refused
            keep(model)
        if checkpoint is not None:
            remove(checkpoint)
        click.echo(model_text(model))
