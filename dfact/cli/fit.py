"""``dfact fit``."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.options import cluster, example, memory_option, overwrite_option, path_type, read_dataset, scheduler_option

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.base import Factorization


@click.group()
def fit() -> None:
    """Fit a model to a dataset."""


@fit.command(epilog=example("dfact fit icqf survey.zarr survey.model -k 6"))
@click.argument("data", type=path_type)
@click.argument("model", type=path_type, required=False)
@click.option("-k", "--components", "n_components", type=int, default=8, help="Number of factors.")
@click.option("--beta", type=float, default=0.1, help="Weight of the sparsity penalties.")
@click.option("--rho", type=float, default=3.0, help="Penalty parameter of the ADMM.")
@click.option("--max-iter", type=int, default=200, help="Most iterations.")
@click.option("--tol", type=float, default=1e-4, help="Stop when an iteration changes the objective by less, relatively.")
@click.option("--init", type=click.Choice(["nndsvd", "random"]), default="nndsvd", help="Start of the loadings.")
@click.option("--seed", "random_state", type=int, help="Seed of the random start.")
@click.option("--q-max", type=float, help="Upper bound of the loadings.", show_default="the highest answer")
@click.option("--w-max", type=float, default=1.0, help="Upper bound of the factors.")
@click.option(
    "--bounds", type=float, nargs=2, metavar="LOW HIGH", help="Range of the reconstructed answers.", show_default="0 to the highest answer"
)
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Working precision.", show_default="float32 for answers")
@memory_option
@click.option(
    "--executor",
    type=click.Choice(["inline", "threads"]),
    help="Run in one thread or on all cores.",
    show_default="by the size of the data",
)
@scheduler_option
@click.option("--no-confounders", is_flag=True, help="Leave the dataset's confounders out.")
@click.option("--plan", "plan_only", is_flag=True, help="Print what the fit would hold in memory, and stop.")
@overwrite_option
def icqf(
    data: Path,
    model: Path | None,
    executor: str | None,
    scheduler: str | None,
    no_confounders: bool,
    plan_only: bool,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """Interpretability-constrained factors.

    Factors between 0 and 1, loadings and confounder effects of at least 0, and sparse where they can be:
    interpretability-constrained questionnaire factorization.
    """
    if model is None and not plan_only:
        raise click.UsageError("Missing argument 'MODEL': where the model goes.")
    if executor and scheduler:
        raise click.UsageError("--executor is for this machine alone; leave it out with --scheduler.")
    from dfact.models.icqf import ICQF

    with cluster(scheduler) as client:
        estimator = ICQF(**parameters, executor=client or executor)
        dataset = read_dataset(data)
        _run(estimator, dataset.with_confounders(None) if no_confounders else dataset, None if plan_only else model, overwrite)


def _run(model: "Factorization", dataset: "Dataset", path: Path | None, overwrite: bool) -> None:
    """Fit the model and write it to ``path``; without one, only tell the plan."""
    from dfact.data.store import create_group
    from dfact.engine.progress import Progress
    from dfact.models.base import plan
    from dfact.models.persistence import KIND, write_model
    from dfact.report.tables import confounders_text, factors_text, summary_text

    planned = plan(model, dataset)
    if path is None or planned.spilled:
        click.echo(planned)
    planned.check()
    if path is None:
        return
    # The place is made before the work, so that a model that cannot be written is known at once.
    with create_group(path, KIND, overwrite=overwrite) as group:
        with closing(Progress("fit")) as progress:
            model.set_params(callbacks=[progress]).fit(dataset)
        write_model(group, model)
    click.echo(f"{summary_text(model)}\n\n{factors_text(model)}")
    if dataset.confounders is not None:
        click.echo(f"\n{confounders_text(model)}")
