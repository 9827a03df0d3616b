"""Estimate what a job takes: memory from the plan, time from trial fits on the first rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any

import click

from dfact.batch.job_file import Step
from dfact.cli.types import FittingCommand
from dfact.errors import DfactError

if TYPE_CHECKING:
    from distributed import Client

    from dfact.data.dataset import Dataset
    from dfact.models.estimator import Factorization

Connect = Callable[[str | None], AbstractContextManager["Client | None"]]
"""Connects to the scheduler at an address; without an address the client is None."""
_TRIAL_ITERATIONS = 4
_FOLDS = 10  # of a selection whose number of folds depends on other options


def print_estimate(steps: Sequence[Step], todo: Mapping[int, str], connect: Connect) -> bool:
    """Print what each step would do and take. Returns False if a step is certain to fail."""
    from dfact.storage.groups import exists

    written: set[str] = set()
    success = True
    for step in steps:
        click.echo(f"{step.title}: {todo.get(step.number, 'already done')}, writes {', '.join(map(str, step.outputs))}")
        if step.number in todo and isinstance(step.command, FittingCommand):
            data = step.parameters["data"]
            if str(data) in written or not exists(data):
                click.echo(f"  memory and time can be estimated once {data} exists")
            else:
                success &= _print_fit(step, data, connect)
        if step.number in todo:
            written |= {str(output) for output in step.outputs}
    return success


def _print_fit(step: Step, data: Any, connect: Connect) -> bool:
    """Print the plan and the estimated time of a step that fits, or why it fails."""
    from dfact.data.stored_dataset import open_dataset
    from dfact.models.estimator import plan

    failure = "fails"
    try:
        with connect(step.parameters.get("scheduler")) as client:
            dataset = open_dataset(data)
            model, n_fits = largest_estimator(step)
            model.set_params(executor=client or step.parameters.get("executor"))
            planned = plan(model, dataset)
            planned.check()
            failure = "fails in a trial on the first rows"
            seconds = n_fits * estimate_seconds(model, dataset) / (planned.workers.processes * planned.workers.threads)
    except (DfactError, click.ClickException) as error:  # the errors that a run reports as a failed step
        click.echo(f"  {failure}: {error.format_message() if isinstance(error, click.ClickException) else error}")
        return False
    click.echo("\n".join(f"  {line}" for line in str(planned).splitlines()))
    fits = f", {n_fits} fits one after the other" if n_fits > 1 else ""
    click.echo(f"  {'time':<22}at most about {format_duration(seconds)}{fits}, from a trial on the first rows")
    return True


def largest_estimator(step: Step) -> "tuple[Factorization, int]":
    """Return the largest model that a step fits, and the number of its fits."""
    command, parameters = step.command, step.parameters
    assert isinstance(command, FittingCommand), "only commands that fit are planned"
    model: Callable[..., Factorization] = command.load()
    accepted = signature(model).parameters
    arguments = {name: value for name, value in parameters.items() if name in accepted and name != "checkpoint"}
    candidates = {name: value for name, value in arguments.items() if isinstance(value, list)}
    arguments |= {name: max(values) if name == "n_components" else values[0] for name, values in candidates.items()}
    n_fits = 1 if command.one_fit else prod(len(values) for values in candidates.values())
    n_folds = parameters.get("n_folds", 1) or _FOLDS
    return model(**arguments), n_fits * n_folds * parameters.get("n_repeats", 1)


def estimate_seconds(model: "Factorization", dataset: "Dataset") -> float:
    """Extrapolate the seconds of a fit of all iterations in one thread from trial fits on the first rows."""
    import numpy as np

    from dfact.data.coerce import as_dataset
    from dfact.data.layout import Layout
    from dfact.data.statistics import as_float
    from dfact.engine.threads import single_threaded
    from dfact.models.fit_task import RUNTIME_PARAMETERS

    layout = Layout.of(dataset.shape)
    n = min(dataset.shape[0], layout.chunk_rows)
    values = as_float(dataset.source.read(0, n), dataset.missing_code, np.dtype(np.float64)).reshape(n, *dataset.shape[1:])
    observed = ~np.isnan(values).reshape(n, values.shape[1], -1).all(axis=(0, 2))
    sample = np.ascontiguousarray(values[:, observed])
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
    iterates = "max_iter" in parameters

    def seconds(iterations: int, rows: int) -> float:
        trial = {**parameters, "executor": "inline"} | ({"max_iter": iterations, "tol": 0} if iterates else {})
        start = time.perf_counter()
        with single_threaded():
            type(model)(**trial).fit(as_dataset(sample[:rows]))  # raises the errors that the stored dataset would raise
        return time.perf_counter() - start

    seconds(1, n)  # compile the kernels
    first = seconds(1, n)
    each = max(0.0, seconds(1 + _TRIAL_ITERATIONS, n) - first) / _TRIAL_ITERATIONS if iterates else 0.0
    return dataset.shape[0] / n * (first + each * (parameters["max_iter"] - 1 if iterates else 0))


def format_duration(seconds: float) -> str:
    """Round a duration to its largest unit."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "a second"
