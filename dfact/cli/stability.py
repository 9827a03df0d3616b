"""``dfact stability``."""

from contextlib import closing
from copy import copy
from typing import Any

import click

from dfact.catalogue import find_part
from dfact.cli.options import (
    choose_fitted_weights,
    clusters_option,
    example,
    executor_for,
    executor_option,
    fitted_weights_option,
    json_option,
    memory_option,
    read_dataset,
    results_checkpoint_option,
    scheduler_option,
    wants_json,
)
from dfact.cli.types import InputLocation, UpdatedLocation
from dfact.storage.location import Location


@click.command(epilog=example("dfact stability dfact-demo/factors4.model dfact-demo/answers.zarr --seed 0"))
@click.argument("model", type=UpdatedLocation())
@click.argument("data", type=InputLocation())
@click.option("--resamples", "n_resamples", type=int, default=100, help="Number of refits.")
@click.option("--level", type=float, default=0.95, help="Coverage of the intervals.")
@click.option(
    "--halves",
    is_flag=True,
    help="Refit to random halves of the rows instead of bootstrap samples, for the bound on falsely selected loadings.",
)
@click.option(
    "--reselect",
    is_flag=True,
    help="Repeat in each resample the selection that chose the size and the parameters of MODEL; each one takes as long as that selection.",
)
@click.option("--reselect-folds", type=click.IntRange(2), default=5, help="Number of folds of a repeated cross-validation.")
@click.option("--cold-start", is_flag=True, help="Start each refit from the model's own start, not from its loadings; takes longer.")
@click.option(
    "--snp-blocks",
    "n_blocks",
    type=int,
    help="Resample this number of blocks of consecutive SNPs instead of individuals, for standard errors of the memberships of an "
    "admixture; 100 suit human genotypes.",
)
@click.option("--seed", "random_state", type=int, help="Seed of the resamples.")
@fitted_weights_option
@clusters_option
@results_checkpoint_option
@memory_option
@executor_option
@scheduler_option
@json_option
def stability(
    model: Location,
    data: Location,
    n_resamples: int,
    level: float,
    halves: bool,
    reselect: bool,
    reselect_folds: int,
    cold_start: bool,
    n_blocks: int | None,
    random_state: int | None,
    weighted: bool | None,
    clusters: str | None,
    checkpoint: Location | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
) -> None:
    """Measure how a model varies between samples.

    Refits MODEL to bootstrap samples: as many rows as in the dataset DATA, drawn from it with replacement. The
    factors of the refits are matched with the model's. Their similarities, the intervals of the loadings and their selection
    frequencies are stored in MODEL and appear in its report. The table lists for each factor the median and the 5th percentile
    of the similarities: 1 is identical, and for loadings with signs, below 0.85 is a different factor. It has the numbers of
    loadings that are selected (not 0 in at least 90% of the refits), that have an interval, and whose interval excludes 0.
    Loadings at a bound or set to 0 by a penalty have no interval.

    With --reselect, each resample repeats the selection recorded in MODEL, whose choice was made on the same data. The output then
    lists how often each size was chosen.

    Weights are used if MODEL was fitted with them. If the dataset has replicate weights, the refits are with these instead of
    resamples, and standard errors take the strata and clusters of the survey into account.

    For a tensor, the slices of its first mode are drawn, and the components are matched by their vectors of the other modes. The table
    also has the weights of the components with their intervals. Write the intervals of all entries with dfact export --table
    stability.

    With --snp-blocks, refits an admixture to resamples of its SNPs. The standard errors of the memberships are stored in MODEL, and
    the table lists their mean for each population.
    """
    from dfact.export.stability import remarks, resamples_text
    from dfact.models.persistence import annotate_model, load_model
    from dfact.progress import Progress
    from dfact.stability.bootstrap import bootstrap

    if halves and reselect:
        raise click.UsageError("--reselect repeats the selection in bootstrap samples, not --halves; remove one of them.")
    given = click.get_current_context().get_parameter_source
    if n_blocks is not None and click.core.ParameterSource.COMMANDLINE in map(
        given, ("level", "cold_start", "halves", "reselect", "clusters")
    ):
        concern = "--level, --halves, --reselect, --clusters and --cold-start concern resampled rows"
        raise click.UsageError(f"{concern}; remove them, or --snp-blocks.")
    estimator = load_model(model)
    dataset = choose_fitted_weights(read_dataset(data), weighted, estimator, model)
    with executor_for(executor, scheduler) as resolved, closing(Progress("refits")) as progress:
        template = copy(estimator).set_params(executor=resolved, memory_limit=memory_limit)
        shared: dict[str, Any] = {"random_state": random_state, "callbacks": [progress], "checkpoint": checkpoint}
        if n_blocks is not None:
            blocks = find_part("block_bootstrap", "--snp-blocks")
            estimator.memberships_se_ = blocks.block_bootstrap(template, dataset, n_resamples, n_blocks=n_blocks, **shared)
        else:
            shared |= {"resampling": "halves"} if halves else {}
            shared |= {"reselect": reselect_folds, "resampling": "bootstrap"} if reselect else {}
            estimator.stability_ = bootstrap(
                template, dataset, n_resamples, level=level, warm_start=not cold_start, clusters=clusters, **shared
            )
    annotate_model(model, estimator, "stability_" if n_blocks is None else "memberships_se_")
    if n_blocks is not None:
        table = find_part("population_sizes", "--snp-blocks").size_table(estimator)[["size", "standard error"]]
        if wants_json():
            _print_document({"n_refits": n_resamples, "n_blocks": n_blocks, "components": table})
            return
        click.echo(f"{model}: {n_resamples} refits to resamples of {n_blocks} blocks\n\n{table.to_string(float_format='{:.4f}'.format)}")
        return
    if wants_json():
        from dfact.export.documents import stability_document

        _print_document(stability_document(estimator))
        return
    result = estimator.stability_
    table = result.summary(estimator.get_feature_names_out())
    heading = f"{model}: {resamples_text(result, estimator.vocabulary.rows)}, intervals of {100 * level:g}%"
    click.echo("\n\n".join([heading, table.to_string(float_format="{:.3f}".format), "\n".join(remarks(estimator))]))


def _print_document(document: dict[str, Any]) -> None:
    from dfact.export.documents import to_json

    click.echo(to_json("stability", document))
