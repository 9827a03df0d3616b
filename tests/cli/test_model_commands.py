"""The commands built from specifications: their options against the estimators and the searches, both ways."""

from inspect import Parameter, Signature, signature
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import click
import pytest

from dfact.catalogue import BY_COMMAND
from dfact.cli.estimator_options import estimator_options
from dfact.cli.model_commands import ModelSpec, SelectSpec, fit_command, model_specs, select_command

SPECS = list(model_specs())
SELECTIONS = [(spec, spec.select) for spec in SPECS if spec.select]
NOT_OF_THE_MODEL = {"data", "model", "scheduler", "plan_only", "no_confounders", "weighted", "plot", "overwrite", "sites"}
"""Parameters of a command that it keeps to itself."""


def values(command: click.Command) -> dict[str, Any]:
    """The values that the command passes on if no option is given."""
    with command.make_context(str(command.name), ["data", "model"]) as context:
        return {name: value for name, value in context.params.items() if name not in NOT_OF_THE_MODEL}


def defaults(function: Signature) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in function.parameters.items()}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.entry.command)
def test_options_of_fit_are_the_parameters_of_the_estimator(spec: ModelSpec) -> None:
    given, expected = values(fit_command(spec)), defaults(signature(spec.entry.load()))
    if spec.each:
        expected[spec.each] = [expected[spec.each]]
    given = {name: value for name, value in given.items() if name not in (spec.other_data or ((),))[0]}
    assert given == {name: value for name, value in expected.items() if name in given}
    assert set(expected) - set(given) == {"callbacks", *spec.left_out}  # the command has a progress bar
    assert all(spec.left_out.values())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.entry.command)
def test_options_accept_the_names_that_the_signature_declares_and_have_help(spec: ModelSpec) -> None:
    options = {option.name: option for option in fit_command(spec).params if isinstance(option, click.Option)}
    for name, parameter in signature(spec.entry.load()).parameters.items():
        if name in options and name not in ("executor", "dtype"):
            names = literals(parameter.annotation)
            kind = options[name].type
            assert [choice for choice in kind.choices if choice != "none"] == names if isinstance(kind, click.Choice) else not names
            text = options[name].help
            assert text
            assert text.endswith(".")
            assert not {"`", '"', ":func:"} & set(text.split())


def literals(annotation: Any) -> list[str]:
    """The names in the ``Literal`` of an annotation, without "none", in order."""
    if get_origin(annotation) is Literal:
        return [name for name in get_args(annotation) if name != "none"]
    return [name for part in get_args(annotation) for name in literals(part)]


def test_changes_of_unknown_parameters_are_refused() -> None:
    with pytest.raises(KeyError, match="betta"):
        estimator_options(BY_COMMAND["icqf"], [], {"betta": {"type": float}}, {})


@pytest.mark.parametrize(("spec", "select"), SELECTIONS, ids=lambda part: part.entry.command if isinstance(part, ModelSpec) else "")
def test_options_of_select_are_the_parameters_of_the_search_and_the_estimator(spec: ModelSpec, select: SelectSpec) -> None:
    given = values(select_command(spec, select))
    model, search = defaults(signature(spec.entry.load())), defaults(signature(resolve_name(select.search)))
    expected = {name: list(value) if isinstance(value, range) else value for name, value in {**model, **search}.items()}
    if select.each:
        name, search_each, targets = select.each
        expected[name] = [expected[name]]
        assert signature(resolve_name(search_each)).parameters.keys() - {targets} == search.keys()
    assert {name: given[name] for name in given if name not in select.grid} == {
        name: value for name, value in expected.items() if name in given and name not in select.grid
    }
    assert all(isinstance(given[name], list) for name in select.grid)
    assert set(select.grid) <= set(model) - set(search)
    assert set(select.for_both) <= set(model) & set(search)
    assert all(given[name] == model[name] for name in select.for_both)
    # The data and the model are arguments; the fits of a selection have the selection's checkpoint.
    own = {"model", "X", "grid", "callbacks", "checkpoint_every"}
    assert {*model, *search} - set(given) - own == set(select.left_out)
    assert all(select.left_out.values())
    required = {name for name, value in search.items() if value is Parameter.empty}
    assert required <= {"model", "X", "grid"}
    assert ("grid" in search) == bool(select.grid)
