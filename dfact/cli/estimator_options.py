"""Options for the parameters of an estimator, from its source: defaults, types, choices, and help from the docstring.

Importing the estimator would take seconds, as Numba and scikit-learn come with it.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import click

from dfact.catalogue import Entry
from dfact.cli.options import Option
from dfact.text import section_entries

_NOT_OPTIONS = ("executor", "memory_limit", "checkpoint", "checkpoint_every", "callbacks", "dtype")
"""Parameters for which commands have options of their own, or none."""
_FLAGS = {"n_components": ("-k", "--components"), "n_init": ("--n-init",), "random_state": ("--seed",)}
_TYPES = {"int": int, "float": float}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an estimator."""

    name: str
    default: Any
    types: frozenset[str]
    """Names of types in its annotation, ``None`` among them."""
    choices: tuple[str, ...]
    """Names that it accepts, if it accepts names."""
    help: str
    """The first sentence of its description."""

    def option(self, **changes: Any) -> Option:
        """Return its option. ``changes`` are settings of the option that the source does not declare, or declares for Python alone."""
        flags, settings = self._flags, {"default": self.default, "help": self.help}
        if self.name == "random_state":
            settings["type"] = int
        elif self.choices:
            # Without a default, None stands for a choice that the data decides.
            none = ["none"] if "None" in self.types and self.default is not None else []
            settings |= {"type": click.Choice([*self.choices, *none]), "callback": _none if none else None}
        elif self.types >= {"bool", "None"}:
            flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}",)
        elif "bool" in self.types:
            settings["is_flag"] = True
        elif self.default is None and "type" not in changes:
            [settings["type"]] = (_TYPES[name] for name in self.types - {"None"})
        return click.option(*flags, self.name, **settings | changes)

    @property
    def _flags(self) -> tuple[str, ...]:
        return _FLAGS.get(self.name, (f"--{self.name.removeprefix('n_').replace('_', '-').lower()}",))


def _none(_: click.Context, __: click.Parameter, value: str) -> str | None:
    return None if value == "none" else value


def estimator_options(
    entry: Entry, options: Sequence[Option], changes: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str]
) -> list[Option]:
    """Return the options and, after them, those of the estimator's other parameters, in the order of its signature.

    ``changes`` are settings of these by the parameter's name. A name that is not a parameter raises KeyError.
    """

    @click.command()
    def own() -> None: ...

    for option in options:
        own = option(own)
    taken = {parameter.name for parameter in own.params}
    parameters = {parameter.name: parameter for parameter in read_parameters(entry)}
    changed = {name: parameters[name].option(**settings) for name, settings in changes.items()}
    wanted = [name for name in parameters if name not in taken and name not in left_out]
    return [*options, *(changed.get(name) or parameters[name].option() for name in wanted)]


def read_parameters(entry: Entry) -> Iterator[Parameter]:
    """Yield the parameters of an estimator that differ between fits, in the order of its signature."""
    package, *folders, module = entry.module.split(".")
    source = files(package).joinpath(*folders, f"{module}.py").read_text("utf-8")
    # The class up to the first assignment of __init__: parsing the module would take 10 ms for each model.
    start = source.index(f"\nclass {entry.name}(")
    [found] = ast.parse(source[start : source.index("\n        self.", start)] + "\n        pass").body
    assert isinstance(found, ast.ClassDef), "the text begins with the class"
    [init] = [part for part in found.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    entries = section_entries(ast.get_docstring(found) or "", "Parameters")
    first, values = init.args.args[1:], init.args.defaults
    for argument, value in [*zip(first, values, strict=True), *zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)]:
        if argument.arg not in _NOT_OPTIONS:
            assert argument.annotation is not None, "parameters of estimators have types"
            assert value is not None, "and defaults"
            yield Parameter(argument.arg, ast.literal_eval(value), *_read_annotation(argument.annotation), _summary(entries, argument.arg))


def _read_annotation(annotation: ast.expr) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of the types in an annotation, and the names in its ``Literal``."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple), "Annotated has a type and a constraint"
        annotation = annotation.slice.elts[0]
    types, choices = set[str](), list[str]()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            types.add(node.id)
        elif isinstance(node, ast.Constant):
            types |= {"None"} if node.value is None else set()
            choices += [node.value] if isinstance(node.value, str) else []
    return frozenset(types), tuple(choices)


def _summary(entries: Mapping[str, str], name: str) -> str:
    """Return the first sentence of a parameter's description in a docstring, without its markup."""
    _, *lines = entries.get(name, name).split("\n")
    sentence = re.split(r"(?<=\.)(?<!\bal\.) (?![a-z])", " ".join(map(str.strip, lines)))[0]
    return re.sub(r"\bNone\b", "none", re.sub(r'``|"', "", sentence))
