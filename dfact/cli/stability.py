"""``dfact stability``."""

from contextlib import closing
from copy import copy

import click

from dfact.cli.options import (
    choose_fitted_weights,
    example,
    executor_for,
    executor_option,
    memory_option,
    read_dataset,
    results_checkpoint_option,
    scheduler_option,
    weights_option,
)
from dfact.jobs.declarations import InputLocation, UpdatedLocation
from dfact.storage.location import Location


@click.command(epilog=example("dfact stability survey.model survey.zarr --seed 0"))
@click.argument("model", type=UpdatedLocation())
@click.argument("data", type=InputLocation())
@click.option("--resamples", "n_resamples", type=int, default=100, help="Number of refits.")
@click.option("--level", type=float, default=0.95, help="Coverage of the intervals, a fraction of the refits.")
@click.option("--cold-start", is_flag=True, help="Start each refit from the model's own start, not from its loadings; takes longer.")
@click.option("--seed", "random_state", type=int, help="Seed of the resamples.")
@weights_option
@results_checkpoint_option
@memory_option
@executor_option
@scheduler_option
def stability(
    model: Location,
    data: Location,
    n_resamples: int,
    level: float,
    cold_start: bool,
    random_state: int | None,
    weighted: bool | None,
    checkpoint: Location | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
) -> None:
    """Measure how a model varies between samples.

    Refits MODEL to bootstrap samples: as many participants as in the dataset DATA, drawn from it with replacement. The
    factors of the refits are matched with the model's. Their similarities and the intervals of the loadings are stored in
    MODEL and appear in its report. The table lists for each factor the median and the 5th percentile of the similarities,
    where 1 is identical and below 0.85 a different factor, and the number of loadings whose interval excludes 0.
    Weights are used if MODEL was fitted with them.
    """
    from dfact.models.persistence import check_replaceable, load_model, save_model
    from dfact.progress import Progress
    from dfact.selection.bootstrap import bootstrap

    estimator = load_model(model)
    check_replaceable(estimator, model)
    dataset = choose_fitted_weights(read_dataset(data), weighted, estimator, model)
    with executor_for(executor, scheduler) as resolved, closing(Progress("refits")) as progress:
        template = copy(estimator).set_params(executor=resolved, memory_limit=memory_limit)
        estimator.stability_ = result = bootstrap(
            template,
            dataset,
            n_resamples,
            level=level,
            warm_start=not cold_start,
            random_state=random_state,
            callbacks=[progress],
            checkpoint=checkpoint,
        )
    save_model(estimator, model, overwrite=True)
    table = result.summary(estimator.get_feature_names_out())
    click.echo(f"{model}: {result.n_refits} refits, intervals of {100 * level:g}%\n\n{table.to_string(float_format='{:.3f}'.format)}")
