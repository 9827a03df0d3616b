"""``dfact stability``."""

from contextlib import closing
from copy import copy

import click

from dfact.cli.options import (
    example,
    executor_for,
    executor_option,
    location_type,
    memory_option,
    read_dataset,
    results_checkpoint_option,
    scheduler_option,
)
from dfact.storage.location import Location


@click.command(epilog=example("dfact stability survey.model survey.zarr --seed 0"))
@click.argument("model", type=location_type)
@click.argument("data", type=location_type)
@click.option("--resamples", "n_resamples", type=int, default=100, help="Number of refits.")
@click.option("--level", type=float, default=0.95, help="Share of the refits that an interval holds.")
@click.option("--cold-start", is_flag=True, help="Begin each refit as the model says, not with its loadings; takes longer.")
@click.option("--seed", "random_state", type=int, help="Seed of the resamples.")
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
    checkpoint: Location | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
) -> None:
    """Tell how a model varies from sample to sample.

    The fitted MODEL is refitted to participants of the dataset DATA drawn with replacement, so many times as are in
    the data. The factors of the refits are matched with the model's; how alike they are, and the intervals of the
    loadings, become part of MODEL, and of its report. The table tells of each factor the median and the 5th
    percentile of the similarities, of which 1 is the same and below 0.85 another factor, and how many loadings have an
    interval without 0.
    """
    from dfact.models.persistence import check_replaceable, load_model, save_model
    from dfact.progress import Progress
    from dfact.selection.bootstrap import bootstrap

    estimator = load_model(model)
    check_replaceable(estimator, model)
    dataset = read_dataset(data)
    with executor_for(executor, scheduler) as place, closing(Progress("refits")) as progress:
        there = copy(estimator).set_params(executor=place, memory_limit=memory_limit)
        estimator.stability_ = found = bootstrap(
            there,
            dataset,
            n_resamples,
            level=level,
            warm_start=not cold_start,
            random_state=random_state,
            callbacks=[progress],
            checkpoint=checkpoint,
        )
    save_model(estimator, model, overwrite=True)
    table = found.summary(estimator.get_feature_names_out())
    click.echo(f"{model}: {found.n_refits} refits, intervals of {100 * level:g}%\n\n{table.to_string(float_format='{:.3f}'.format)}")
