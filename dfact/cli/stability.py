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
from dfact.cli.types import InputLocation, Numbers, OutputLocation, UpdatedLocation
from dfact.storage.location import Location

_DRAWS = 10  # of rows for each share


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
@click.option(
    "--shares",
    metavar="PERCENTS",
    type=Numbers(),
    help="Refit to these shares of the rows instead, such as 20,40,60,80,100, and correlate the loadings with the model's. --resamples is "
    "the number of draws, by default 10.",
)
@click.option("--versus", multiple=True, type=InputLocation(), metavar="MODEL", help="With --shares: another model of the same data.")
@click.option(
    "--plot",
    metavar="FILE",
    type=OutputLocation("dfact.report.plots:FORMATS"),
    help="With --shares: plot the correlations over the shares to a .png, .pdf or .svg file; needs Matplotlib.",
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
    shares: list[float] | None,
    versus: tuple[Location, ...],
    plot: Location | None,
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

    With --shares, MODEL is refitted to parts of the rows from its own start, and nothing is stored in it. The table lists the mean and the
    standard deviation, over the draws, of the Pearson correlation of matched loadings with those of MODEL. With --versus the same rows
    serve the other models, and Wilcoxon's signed-rank tests follow, whose p values are adjusted by Benjamini and Hochberg.
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
    if shares is None and (versus or plot is not None):
        raise click.UsageError("--versus and --plot go with --shares; add it.")
    if shares is not None:
        own = ("level", "cold_start", "halves", "reselect", "n_blocks", "checkpoint", "weighted", "clusters")
        if click.core.ParameterSource.COMMANDLINE in map(given, own):
            refused = "--level, --halves, --reselect, --cold-start, --snp-blocks, --clusters, --checkpoint and options for weights"
            raise click.UsageError(f"--shares takes --resamples, --versus, --plot and --seed alone; remove {refused}.")
        repeats = n_resamples if given("n_resamples") == click.core.ParameterSource.COMMANDLINE else _DRAWS
        settings = {"memory_limit": memory_limit}
        with executor_for(executor, scheduler) as resolved:
            _print_shares([model, *versus], data, shares, repeats, random_state, plot, settings | {"executor": resolved})
        return
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
            _print_document("stability", {"n_refits": n_resamples, "n_blocks": n_blocks, "components": table})
            return
        click.echo(f"{model}: {n_resamples} refits to resamples of {n_blocks} blocks\n\n{table.to_string(float_format='{:.4f}'.format)}")
        return
    if wants_json():
        from dfact.export.documents import stability_document

        _print_document("stability", stability_document(estimator))
        return
    result = estimator.stability_
    table = result.summary(estimator.get_feature_names_out())
    heading = f"{model}: {resamples_text(result, estimator.vocabulary.rows)}, intervals of {100 * level:g}%"
    click.echo("\n\n".join([heading, table.to_string(float_format="{:.3f}".format), "\n".join(remarks(estimator))]))


def _print_shares(
    paths: list[Location],
    data: Location,
    percents: list[float],
    n_repeats: int,
    random_state: int | None,
    plot: Location | None,
    settings: dict[str, Any],
) -> None:
    """Refit the models to shares of the rows; print their correlations and the tests of the first model, and plot them."""
    from dfact.models.persistence import load_model
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.selection import check_plot, shares_plot
    from dfact.stability.shares import refit_shares

    if plot is not None:
        check_plot(plot, overwrite=False)
    models = {str(path): load_model(path).set_params(**settings) for path in paths}
    if len(models) < len(paths):
        raise click.UsageError(f"--versus names a model twice: {', '.join(map(str, paths))}.")
    dataset = read_dataset(data)
    with closing(Progress("refits")) as progress:
        shares = [percent / 100 for percent in percents]
        result = refit_shares(models, dataset, shares, n_repeats, random_state=random_state, callbacks=[progress])
    summary, tests = result.summary(), result.tests()
    if wants_json():
        flat = summary.set_axis([" ".join(column) for column in summary.columns.to_flat_index()], axis=1)
        _print_document("shares", {"n_draws": n_repeats, "correlations": flat.reset_index(), "tests": tests})
    else:
        form = "{:.3f}".format
        parts = [f"Correlations of the loadings with those of all rows, {n_repeats} draws", summary.to_string(float_format=form)]
        remark = "The draws share rows: the p values compare the models on these rows, not on other samples."
        click.echo("\n\n".join([*parts, *([tests.to_string(index=False, float_format="{:.4g}".format), remark] if len(paths) > 1 else [])]))
    if plot is not None:
        save_figure(shares_plot(result), plot)


def _print_document(kind: str, document: dict[str, Any]) -> None:
    from dfact.export.documents import to_json

    click.echo(to_json(kind, document))
