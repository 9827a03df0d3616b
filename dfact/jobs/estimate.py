"""What a job would take: memory by the plan, time by a trial on the first rows."""

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any

import click

from dfact.errors import DfactError
from dfact.jobs.job_file import Step

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset
    from dfact.models.estimator import Factorization

_TRIAL_ITERATIONS = 4
_GRIDS = ("n_components", "beta", "ridge", "omega")
"""Parameters of which a selection tries several values."""


def tell(steps: Sequence[Step], todo: Mapping[int, str]) -> bool:
    """Print what would be done. Returns whether no step is seen to fail."""
    from dfact.storage.groups import exists

    made: set[str] = set()
    good = True
    for step in steps:
        click.echo(f"{step.title}: {todo.get(step.number, 'done already')}, writes {', '.join(map(str, step.outputs))}")
        if step.number in todo and step.name.startswith(("fit ", "select ")):
            data = step.parameters["data"]
            if str(data) in made or not exists(data):
                click.echo(f"  memory and time are known once {data} is there")
            else:
                good &= _tell_fit(step, data)
        if step.number in todo:
            made |= {str(place) for place in step.outputs}
    return good


def _tell_fit(step: Step, data: Any) -> bool:
    """What a fit takes, or why it fails."""
    from dfact.cli.options import cluster, read_dataset
    from dfact.models.estimator import plan

    fails = "fails"
    try:
        with cluster(step.parameters.get("scheduler")) as client:
            dataset = read_dataset(data)
            model, fits = estimator_of(step)
            model.set_params(executor=client or step.parameters.get("executor"))
            planned = plan(model, dataset)
            planned.check()
            fails = "fails in a trial on the first rows"
            seconds = fits * seconds_of(model, dataset) / (planned.workers.processes * planned.workers.threads)
    except (DfactError, click.ClickException) as error:  # as a step fails of them in a run
        click.echo(f"  {fails}: {error.format_message() if isinstance(error, click.ClickException) else error}")
        return False
    click.echo("\n".join(f"  {line}" for line in str(planned).splitlines()))
    many = f", {fits} fits one after the other" if fits > 1 else ""
    click.echo(f"  {'time':<22}at most about {format_duration(seconds)}{many}, by a trial on the first rows")
    return True


def estimator_of(step: Step) -> "tuple[Factorization, int]":
    """The largest model that a step fits, and how many fits it makes."""
    from dfact.models.catalogue import BY_COMMAND

    model: Callable[..., Any] = BY_COMMAND[step.name.split()[1]].load()
    taken = dict(step.parameters)
    if "omegas" in taken:
        taken["omega"] = taken.pop("omegas")
    grids = {name: value for name in _GRIDS if isinstance(value := taken.get(name), list)}
    taken |= {name: max(values) if name == "n_components" else values[0] for name, values in grids.items()}
    known = signature(model).parameters
    parameters = {name: value for name, value in taken.items() if name in known and value is not None and name != "checkpoint"}
    if parameters.get("rotation") == "none":
        parameters["rotation"] = None
    fits = 1 if step.name == "select gom" else prod(len(values) for values in grids.values())
    if step.name.startswith("select "):
        fits *= int(step.parameters.get("n_folds") or 1) * int(step.parameters.get("repeats") or 1)
    return model(**parameters), fits


def seconds_of(model: "Factorization", dataset: "Dataset") -> float:
    """How long a fit of all iterations would take one thread, by the first rows."""
    import numpy as np

    from dfact.data.coerce import as_dataset
    from dfact.data.layout import Layout
    from dfact.data.statistics import as_float
    from dfact.engine.threads import single_threaded
    from dfact.models.estimator import RUNTIME_PARAMETERS

    layout = Layout.of(dataset.shape)
    n = min(dataset.shape[0], layout.chunk_rows)
    values = as_float(dataset.source.read(0, n), dataset.missing_code, np.dtype(np.float64)).reshape(n, *dataset.shape[1:])
    seen = ~np.isnan(values).reshape(n, values.shape[1], -1).all(axis=(0, 2))
    sample = np.ascontiguousarray(values[:, seen])
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
    iterates = "max_iter" in parameters

    def seconds(iterations: int, rows: int) -> float:
        trial = {**parameters, "executor": "inline"} | ({"max_iter": iterations, "tol": 0} if iterates else {})
        since = time.perf_counter()
        with single_threaded():
            type(model)(**trial).fit(as_dataset(sample[:rows]))  # what it refuses it refuses as it would a stored dataset
        return time.perf_counter() - since

    seconds(1, n)  # kernels are compiled
    first = seconds(1, n)
    each = max(0.0, seconds(1 + _TRIAL_ITERATIONS, n) - first) / _TRIAL_ITERATIONS if iterates else 0.0
    return dataset.shape[0] / n * (first + each * (parameters["max_iter"] - 1 if iterates else 0))


def format_duration(seconds: float) -> str:
    """A time for people."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "a second"
