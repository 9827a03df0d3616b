"""``dfact update``."""

from contextlib import closing
from typing import Any

import click

from dfact.cli.options import (
    choose_fitted_weights,
    clusters_option,
    example,
    executor_for,
    executor_option,
    fitted_weights_option,
    json_option,
    memory_option,
    overwrite_option,
    read_dataset,
    scheduler_option,
    wants_json,
)
from dfact.cli.types import InputLocation, OutputLocation, UpdatedLocation
from dfact.errors import ParameterError
from dfact.storage.location import Location

DRIFT = 3
"""Exit code of ``--check`` if new rows differ from those that the model has seen."""


@click.command(epilog=example("dfact update dfact-demo/growing.model dfact-demo/wave3.zarr --check"))
@click.argument("model", type=UpdatedLocation())
@click.argument("data", type=InputLocation())
@click.option("--check", is_flag=True, help="Compare the new rows with those that MODEL has seen, and change nothing.")
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05, help="Familywise error rate of drift.")
@click.option("--output", type=OutputLocation(), help="Location of the updated model, in place of MODEL.")
@fitted_weights_option
@clusters_option
@memory_option
@executor_option
@scheduler_option
@json_option
@overwrite_option
def update(
    model: Location,
    data: Location,
    check: bool,
    level: float,
    output: Location | None,
    weighted: bool | None,
    clusters: str | None,
    memory_limit: str | None,
    executor: str | None,
    scheduler: str | None,
    overwrite: bool,
) -> None:
    """Add new rows to a model.

    Adds the rows of the dataset DATA to MODEL, without the rows that it has seen. The rows are compared with those: each item by its
    mean residual and its missing share, each factor by its mean and variance. The table lists what differs.

    The updated model replaces MODEL once it is complete; an update that is interrupted leaves MODEL as it was, and so does one that
    ends after another one has changed MODEL. The output states how many rows were added since the last complete fit, and what a
    complete fit would gain.

    With --check, nothing is changed, and the exit code is 3 if the new rows differ.
    """
    from dfact.models.growth.estimator import Growing
    from dfact.models.persistence import load_model
    from dfact.progress import Progress

    if check and (output is not None or overwrite):
        raise click.UsageError("--check changes nothing; remove --output and --overwrite, or --check.")
    if clusters is not None and not check:
        raise click.UsageError("--clusters is of the tests of --check; add --check, or remove --clusters.")
    target = model if output is None else output
    estimator = load_model(model)
    if not isinstance(estimator, Growing):
        reason = estimator.traits.cannot_grow
        raise ParameterError(f"{model} is a {type(estimator).__name__}, to which rows cannot be added: {reason}; fit all rows again")
    parameters = {name: getattr(estimator, name) for name in ("memory_limit",)}
    with executor_for(executor, scheduler) as resolved, closing(Progress("update")) as progress:
        estimator.set_params(executor=resolved, memory_limit=memory_limit, callbacks=[progress])
        dataset = choose_fitted_weights(read_dataset(data), weighted, estimator, model)
        if check:
            found: Any = estimator.drift(dataset, level=level, clusters=clusters)
        else:
            estimator.update_prepared(estimator.prepare_update(dataset), level=level)
            found = estimator.growth_.drift
    if not check:
        _save(estimator.set_params(**parameters), target, overwrite=overwrite or output is None)
    _print(estimator, found, model if check else target, check)
    if check and found.found:
        raise click.exceptions.Exit(DRIFT)


def _save(estimator: Any, target: Location, *, overwrite: bool) -> None:
    """Write the updated model in place of an earlier one, which stays until this one is complete."""
    from dfact.models.persistence import save_model
    from dfact.signals import finish_before_stop

    with finish_before_stop():
        save_model(estimator, target, overwrite=overwrite)


def _print(estimator: Any, found: Any, location: Location, check: bool) -> None:
    from dfact.export.growth import drift_document, drift_text, growth_document

    if wants_json():
        from dfact.export.documents import to_json

        growth = {} if check else growth_document(estimator)
        click.echo(to_json("drift" if check else "update", {"location": location} | growth | drift_document(estimator, found)))
        return
    state = "unchanged" if check else estimator.growth_.describe()
    click.echo(f"{location}: {state}\n\n{drift_text(estimator, found)}")
