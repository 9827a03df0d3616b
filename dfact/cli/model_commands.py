"""The commands ``fit`` and ``select`` of each model, built from its specification.

A specification imports no model, so that ``dfact fit --help`` is fast. The options of a model's parameters follow from its source.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from inspect import signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from dfact.catalogue import CATALOGUE, Entry, find_part
from dfact.cli.estimator_options import estimator_options
from dfact.cli.options import (
    Option,
    checkpoint_options,
    choose_weights,
    computing_options,
    example,
    executor_for,
    json_option,
    option_group,
    overwrite_option,
    plan_option,
    print_plan,
    read_dataset,
    require_no_options,
    results_checkpoint_option,
    sites_option,
    wants_json,
    weights_option,
)
from dfact.cli.types import FittingCommand, InputLocation, OutputLocation, with_value
from dfact.errors import DataError
from dfact.storage.location import Location

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dfact.data.dataset import Dataset
    from dfact.engine.memory_plan import Plan
    from dfact.models.estimator import Factorization
    from dfact.models.fit_task import FitTask
    from dfact.selection.result import Selection


@dataclass(frozen=True)
class SelectSpec:
    """The specification of a ``select`` command."""

    search: str
    """Function that chooses the parameters, such as ``dfact.models.gom.modularity:select_by_modularity``."""
    help: str
    options: Sequence[Option]
    """The options of the search, and those in place of the model's own, which follow. The search gets those that it has, else the model."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of options of the model's parameters, by name, that differ from those of ``fit``."""
    example: Sequence[str] = ()
    grid: Sequence[str] = ()
    """Parameters whose candidates are the ``grid`` of the search."""
    each: tuple[str, str, str] | None = None
    """Parameter of which the command takes several values; the function that chooses a model for each; its parameter with the values."""
    for_both: Sequence[str] = ()
    """Parameters that the model gets as well as the search."""
    plot: tuple[str, str] | None = None
    """Function that plots the selection, and what it plots, for the help; by default the items of the chosen model are plotted."""
    checkpoint: bool = True
    """Whether the search has checkpoints."""
    one_fit: bool = False
    """Whether all candidates take about as long as the fit of the largest."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the model and the search without an option, with the reason."""


@dataclass(frozen=True)
class ModelSpec:
    """The specification of the commands of a model."""

    entry: Entry
    help: str
    options: Sequence[Option] = ()
    """Options of ``fit`` in place of those that follow from the estimator's source."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the latter options, by parameter, that the source does not declare; see :mod:`dfact.cli.estimator_options`."""
    select: SelectSpec | None = None
    example: Sequence[str] = ()
    checkpoint: bool = True
    """Whether the model has checkpoints."""
    confounders: bool = False
    """Whether the model uses confounders."""
    plot: str = "the loadings of the items"
    """Words for the subject of the plot of ``fit``, for its help."""
    weights: bool = False
    """Whether the model takes weights of the rows."""
    each: str | None = None
    """Parameter of which ``fit`` takes several values: the estimator's ``fit_each`` fits a model for each."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the model without an option, with the reason."""
    other_data: tuple[Sequence[str], str] | None = None
    """Names of those ``options`` that describe another kind of data, and the function that prepares its fit with them."""


_confounders_option = click.option("--no-confounders", is_flag=True, help="Ignore the confounders of the dataset.")


def _plot_option(subject: str, each: str | None = None) -> Option:
    kind = OutputLocation("dfact.report.plots:FORMATS", each=each)
    return click.option("--plot", metavar="FILE", type=kind, help=f"Plot {subject} to a .png, .pdf or .svg file; needs Matplotlib.")


def model_specs() -> Iterator[ModelSpec]:
    """Yield the specifications of the models in the catalogue, family by family."""
    for module in dict.fromkeys(entry.specs for entry in CATALOGUE if entry.specs):
        yield from import_module(module).SPECS


def fit_command(spec: ModelSpec) -> click.Command:
    """Build the command ``fit`` of a model."""

    def run(
        data: Location,
        model: Location | None,
        executor: str | None,
        scheduler: str | None,
        plan_only: bool,
        plot: Location | None,
        overwrite: bool,
        sites: bool,
        no_confounders: bool = False,
        weighted: bool | None = None,
        **parameters: Any,
    ) -> None:
        if model is None and not plan_only:
            raise click.UsageError("Missing argument 'MODEL': the path of the fitted model.")
        values = parameters[spec.each] if spec.each else []
        if len(values) > 1 and parameters["checkpoint"] is not None:
            raise click.UsageError(
                f"--checkpoint is given with {len(values)} values of --{spec.each}, expected one value; run a command for each."
            )
        parameters |= {spec.each: values[0]} if spec.each else {}
        path = None if plan_only else model
        names, function = spec.other_data or ((), "")
        other = {name: parameters.pop(name) for name in names}
        prepare = partial(resolve_name(function), **other) if any(value is not None for value in other.values()) else None
        if prepare is not None and (sites or len(values) > 1):
            raise click.UsageError(f"--{names[0]} goes with one value of --{spec.each} and without --sites.")
        if sites:
            several = len(values) > 1
            require_no_options(
                plan=plan_only, executor=executor, scheduler=scheduler, no_confounders=no_confounders, several_values=several
            )
            run_fit_across_sites(spec.entry.load()(**parameters), data, path, plot, overwrite, weighted)
            return
        with executor_for(executor, scheduler) as resolved:
            dataset = _read(data, no_confounders, weighted, spec)
            estimator: Any = spec.entry.load()(**parameters, executor=resolved)
            if len(values) > 1:
                run_fits(estimator, dataset, values, path, plot, overwrite)
            else:
                run_fit(estimator, dataset, path, plot, overwrite, prepare)

    shared = [computing_options, *([checkpoint_options] if spec.checkpoint else ()), *_row_options(spec)]
    shared += [plan_option, json_option, _plot_option(spec.plot, each=spec.each), overwrite_option, sites_option]
    return _command(spec, spec, run, shared, spec.each)


def select_command(spec: ModelSpec, select: SelectSpec) -> click.Command:
    """Build the command ``select`` of a model."""

    def run(
        data: Location,
        model: Location | None,
        executor: str | None,
        scheduler: str | None,
        plot: Location | None,
        overwrite: bool,
        sites: bool,
        no_confounders: bool = False,
        weighted: bool | None = None,
        **parameters: Any,
    ) -> None:
        from dfact.progress import Progress
        from dfact.report.presenters.base import model_text
        from dfact.report.selection import selection_text

        values = parameters[select.each[0]] if select.each else []
        search = resolve_name(select.each[1] if select.each and len(values) > 1 else select.search)
        accepted = signature(search).parameters
        settings: dict[str, Any] = {"grid": {name: parameters.pop(name) for name in select.grid}} if select.grid else {}
        settings |= {name: parameters.pop(name) for name in list(parameters) if name in accepted}
        parameters |= {name: settings[name] for name in select.for_both}
        if select.each:
            parameters[select.each[0]] = values[0]
            settings |= {select.each[2]: values} if len(values) > 1 else {}
        outputs = _outputs(model, plot, values)
        with executor_for(executor, scheduler) as resolved, ExitStack() as stack:
            dataset = None if sites else _read(data, no_confounders, weighted, spec)
            writes = [stack.enter_context(model_output(*output, overwrite=overwrite)) for output in outputs]
            with closing(Progress("select")) as progress:
                (settings if "callbacks" in accepted else parameters)["callbacks"] = [progress]
                found: Any
                if sites:
                    require_no_options(executor=executor, scheduler=scheduler, no_confounders=no_confounders)
                    across_sites = find_part("across_sites", "--sites")
                    found = across_sites.select_across_sites(
                        data, spec.entry.load()(**parameters), select.search, settings | {"weights": weighted}
                    )
                else:
                    found = search(spec.entry.load()(**parameters, executor=resolved), dataset, **settings)
            selections = found if len(outputs) > 1 else [found]
            for write, selection, (path, _) in zip(writes, selections, outputs, strict=True):
                _require_choice(selection, path)
                write(selection.model, partial(resolve_name(select.plot[0]), selection) if select.plot else None)
        if wants_json():
            _print_selections(selections, outputs)
            return
        texts = ["\n\n".join([selection_text(each), *([] if each.model is None else [model_text(each.model)])]) for each in selections]
        if len(outputs) > 1 and model is not None:
            texts = [f"{path}\n{text}" for (path, _), text in zip(outputs, texts, strict=True)]
        click.echo("\n\n".join(texts))

    shared = [*([results_checkpoint_option] if select.checkpoint else ()), computing_options, *_row_options(spec)]
    each = select.each[0] if select.each else None
    shared += [json_option, _plot_option(select.plot[1] if select.plot else spec.plot, each=each), overwrite_option, sites_option]
    return _command(spec, select, run, shared, each, one_fit=select.one_fit)


def _require_choice(selection: "Selection", path: Location | None) -> None:
    """Print a selection without a choice and raise DataError if its model is to be written."""
    from dfact.report.selection import selection_text

    if selection.model is None and path is not None:
        click.echo(selection_text(selection))
        names = ", ".join(selection.best_params)
        raise DataError(f"{path} is not written: the rule chooses none of the candidates for {names}; see the table, and fit a chosen one")


def _row_options(spec: ModelSpec) -> list[Option]:
    """Return the options about what the dataset knows of its rows, as far as the model uses it."""
    return [*([_confounders_option] if spec.confounders else ()), *([weights_option] if spec.weights else ())]


def _command(
    spec: ModelSpec,
    part: ModelSpec | SelectSpec,
    function: Callable[..., None],
    shared: Sequence[Option],
    each: str | None = None,
    **settings: Any,
) -> click.Command:
    data = click.argument("data", type=InputLocation())
    model = click.argument("model", type=OutputLocation(each=each), required=False)
    options = [*estimator_options(spec.entry, part.options, {**spec.changes, **part.changes}, part.left_out), *shared]
    settings |= {"epilog": example(*part.example)} if part.example else {}
    command = click.command(spec.entry.command, cls=FittingCommand, load=spec.entry.load, help=part.help, **settings)
    return command(option_group(data, model, *options)(function))


def _read(data: Location, no_confounders: bool, weighted: bool | None, spec: ModelSpec) -> "Dataset":
    dataset = choose_weights(read_dataset(data), weighted, taken=spec.weights)
    return dataset.with_confounders(None) if no_confounders else dataset


def run_fit(
    model: "Factorization",
    dataset: "Dataset",
    path: Location | None,
    plot: Location | None,
    overwrite: bool,
    prepare: "Callable[[Factorization, Dataset], FitTask[Any]] | None" = None,
) -> None:
    """Fit the model and write it to ``path``; without a path, only print the plan. ``prepare`` is by default the model's own."""
    from dfact.engine.checkpoint import resume_point
    from dfact.models.persistence import is_result_of, load_model
    from dfact.progress import Progress
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import items_plot
    from dfact.signals import finish_before_stop
    from dfact.storage.groups import exists, remove

    task = model.prepare(dataset) if prepare is None else prepare(model, dataset)
    _check_plan(task.plan(), path)
    if path is None:
        return
    checkpoint = getattr(model, "checkpoint", None)
    if checkpoint is not None and (done := resume_point(checkpoint)):
        if is_result_of(path, task.identity()):
            # An earlier command was killed after it had written the model.
            finished = load_model(path)
            if plot is not None and not exists(plot):
                save_figure(items_plot(finished), plot)
            remove(checkpoint)
            click.echo(f"{path} is the result of checkpoint {checkpoint} already.", err=True)
            _print_models([(path, finished)])
            return
        click.echo(f"Resuming from step {done} of {checkpoint}; an iteration takes one step or more.", err=True)
    with ExitStack() as stack:
        with model_output(path, plot, overwrite=overwrite) as write:
            with closing(Progress("fit")) as progress:
                model.set_params(callbacks=[progress]).fit_prepared(task)
            stack.enter_context(finish_before_stop())  # a command stopped after the model exists would be refused when it is run again
            write(model, identity=task.identity())
        if checkpoint is not None:
            remove(checkpoint)
        _print_models([(path, model)])


def run_fit_across_sites(
    model: Any, data: Location, path: Location | None, plot: Location | None, overwrite: bool, weighted: bool | None
) -> None:
    """Fit the model to the rows of the sites that the file ``data`` names, and write it to ``path``."""
    from dfact.progress import Progress
    from dfact.storage.groups import remove

    checkpoint = getattr(model, "checkpoint", None)
    with ExitStack() as stack:
        with model_output(path, plot, overwrite=overwrite) as write:
            sites = stack.enter_context(
                find_part("across_sites", "--sites").open_sites(data)
            )  # which keep their checkpoints until the model is there
            with closing(Progress("fit")) as progress:
                settings = {} if checkpoint is None else {"checkpoint": checkpoint, "checkpoint_every": model.checkpoint_every}
                sites.fit(model.set_params(callbacks=[progress]), weights=weighted, **settings)
            write(model)
        if checkpoint is not None:
            remove(checkpoint)
        _print_models([(path, model)])


def run_fits(
    estimator: Any, dataset: "Dataset", values: Sequence[float], path: Location | None, plot: Location | None, overwrite: bool
) -> None:
    """Fit and write a model for each value, on the same reads of the data; without a path, only print the plan."""
    from dfact.progress import Progress

    _check_plan(estimator.prepare(dataset).times(len(values)).plan(), path)
    if path is None:
        return
    paths = _outputs(path, plot, values)
    with ExitStack() as stack:
        writes = [stack.enter_context(model_output(*outputs, overwrite=overwrite)) for outputs in paths]
        with closing(Progress("fit")) as progress:
            models = estimator.set_params(callbacks=[progress]).fit_each(dataset, values)
        for write, fitted in zip(writes, models, strict=True):
            write(fitted)
    _print_models([(output, fitted) for (output, _), fitted in zip(paths, models, strict=True)])


def _print_models(models: "Sequence[tuple[Location | None, Factorization]]") -> None:
    """Print fitted models, as text or as JSON: a single one, or several with their locations."""
    if wants_json():
        from dfact.export.documents import model_document, to_json

        documents = [{"location": path} | model_document(model) for path, model in models]
        click.echo(to_json("model", documents[0]) if len(documents) == 1 else to_json("models", {"models": documents}))
        return
    from dfact.report.presenters.base import model_text

    texts = [f"{path}\n{model_text(model)}" if len(models) > 1 else model_text(model) for path, model in models]
    click.echo("\n\n".join(texts))


def _print_selections(selections: "Sequence[Selection]", outputs: Sequence[tuple[Location | None, Location | None]]) -> None:
    """Print selections as JSON: a single one, or several with the locations of their models."""
    from dfact.export.documents import selection_document, to_json

    documents = [{"location": path} | selection_document(selection) for (path, _), selection in zip(outputs, selections, strict=True)]
    click.echo(to_json("selection", documents[0]) if len(documents) == 1 else to_json("selections", {"selections": documents}))


def _outputs(model: Location | None, plot: Location | None, values: Sequence[float]) -> list[tuple[Location | None, Location | None]]:
    """Return the locations of the model and the plot for each value; those given if there is one value or none."""
    if len(values) < 2:
        return [(model, plot)]
    return [(None if model is None else with_value(model, value), None if plot is None else with_value(plot, value)) for value in values]


def _check_plan(plan: "Plan", path: Location | None) -> None:
    """Raise MemoryPlanError if the plan does not fit. Print it if nothing else is wanted, or if it writes to disk."""
    if path is None or (plan.spilled and not wants_json()):
        print_plan(plan)
    plan.check()


@contextmanager
def model_output(model: Location | None, plot: Location | None, *, overwrite: bool) -> Iterator[Callable[..., None]]:
    """Create the outputs before the work, so that errors in their paths appear at once; yield a function that writes the fitted model.

    That function also takes one that draws the plot, by default of the model's items.
    """
    from dfact.catalogue import KIND
    from dfact.models.persistence import record_fit, write_model
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import items_plot
    from dfact.report.selection import check_plot
    from dfact.storage.groups import create_group

    if plot is not None:
        check_plot(plot, overwrite=overwrite)
    drawings: list[Callable[[], Figure]] = []
    with nullcontext() if model is None else create_group(model, KIND, overwrite=overwrite) as group:

        def write(fitted: "Factorization", draw: "Callable[[], Figure] | None" = None, identity: Mapping[str, str] | None = None) -> None:
            drawings.append(draw or partial(items_plot, fitted))
            if group is not None:
                write_model(group, fitted)
                if identity is not None:
                    record_fit(group, identity)

        yield write
    if plot is not None:  # after the model is complete, which a failing plot must not remove
        save_figure(drawings[0](), plot, overwrite=overwrite)
