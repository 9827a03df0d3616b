"""``dfact compare``."""

from contextlib import closing
from copy import copy

import click

from dfact.cli.options import (
    choose_fitted_weights,
    clusters_option,
    example,
    executor_for,
    executor_option,
    fitted_weights_option,
    items_option,
    json_option,
    list_option,
    memory_option,
    read_dataset,
    results_checkpoint_option,
    scheduler_option,
    wants_json,
)
from dfact.cli.types import InputLocation, UpdatedLocation
from dfact.storage.location import Location


@click.command(
    epilog=example(
        "dfact compare dfact-demo/factors4.model dfact-demo/answers.zarr", "    --by gender --groups 1,2 --resamples 30 --no-test --seed 0"
    )
)
@click.argument("model", type=UpdatedLocation())
@click.argument("data", type=InputLocation())
@click.option("--by", required=True, metavar="NAME", help="Confounder of DATA with the groups.")
@list_option("--groups", "Groups to compare, the reference first; by default all, the commonest first. Others are left out.")
@click.option(
    "--resamples",
    "n_resamples",
    type=int,
    help="Number of draws, at least 30, and 20 for each factor and group that is tested; by default 200, or as many as these.",
)
@click.option("--test/--no-test", "test", default=True, help="Whether to test that the factors of the groups have equal loadings.")
@click.option("--level", type=float, default=0.95, help="Coverage of the intervals of the congruences and the impact.")
@items_option("scale and key (-1 reverses an item), in place of those in DATA.")
@click.option("--seed", "random_state", type=int, help="Seed of the draws.")
@fitted_weights_option
@clusters_option
@results_checkpoint_option
@memory_option
@executor_option
@scheduler_option
@json_option
def compare(
    model: Location,
    data: Location,
    by: str,
    groups: list[str],
    n_resamples: int | None,
    test: bool,
    level: float,
    items: Location | None,
    random_state: int | None,
    weighted: bool | None,
    clusters: str | None,
    checkpoint: Location | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
) -> None:
    """Compare groups of participants.

    Fits MODEL separately to each group of the dataset DATA. The first table compares each factor with the reference
    group's. It has their congruence, where 1 is identical, before and after rotation to the same factors. It also has the congruence
    in the two populations with its interval, and a p value of equal loadings, adjusted by Holm. Differences in means, variances or
    missing answers do not affect p.

    The second table has the difference of the groups in each factor, in standard deviations. The third lists the items with
    differential functioning (DIF): the groups differ in them at equal factors. An item is listed if two tests flag it. The first one
    estimates the difference in the factors from most of the items. The second is Mantel's test (classes B and C of ETS), for ordered
    answers within scales. Confounders of
    MODEL are held equal. The results are stored in MODEL and appear in its report. Weights are used if MODEL was fitted with them.
    """
    from dfact.models.persistence import annotate_model, load_model
    from dfact.progress import Progress
    from dfact.questionnaires.groups.comparison import compare_groups
    from dfact.report.comparison import comparison_text

    estimator = load_model(model)
    replaced = getattr(estimator, "comparison_", None)
    dataset = choose_fitted_weights(read_dataset(data), weighted, estimator, model)
    with executor_for(executor, scheduler) as resolved, closing(Progress("refits")) as progress:
        template = copy(estimator).set_params(executor=resolved, memory_limit=memory_limit)
        estimator.comparison_ = compare_groups(
            template,
            dataset,
            by,
            groups=groups or None,
            n_resamples=n_resamples,
            test=test,
            level=level,
            scales=items,
            clusters=clusters,
            random_state=random_state,
            callbacks=[progress],
            checkpoint=checkpoint,
        )
    if replaced is not None:
        click.echo(f"{model}: replaces the comparison by {replaced.by}", err=True)
    annotate_model(model, estimator, "comparison_")
    if wants_json():
        from dfact.export.documents import comparison_document, to_json

        click.echo(to_json("comparison", comparison_document(estimator.comparison_, estimator)))
        return
    click.echo(f"{model}: {comparison_text(estimator.comparison_, list(estimator.get_feature_names_out()))}")
