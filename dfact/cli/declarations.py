"""Declarations of commands to batch jobs: parameters whose locations they read, create or update, and fits that can be planned."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from dfact.errors import ParameterError
from dfact.storage.location import Location, check_ending, parse_location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization


class ParameterType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and dfact runs with 8.2
    """Base of the parameter types."""


class LocationType(ParameterType):
    """A local path or an object-store URL."""

    name = "location"
    web = False
    """Whether the location may be on a web server."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        try:
            return parse_location(value, web=self.web)
        except ParameterError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete paths."""
        return [CompletionItem(incomplete, type="file")]


class InputLocation(LocationType):
    """A location that the command reads."""


class InputPath(LocationType):
    """A file or a folder of files that the command reads: a local path, or a URL in an object store or on a web server."""

    name = "path"
    web = True


class UpdatedLocation(LocationType):
    """A store that the command reads and changes."""


class OutputLocation(LocationType):
    """A location that the command creates or replaces.

    ``formats`` names the endings it may have, such as ``dfact.report.plots:FORMATS``. They are checked while parameters are
    parsed, so that a job fails before its first step. If the parameter ``each`` has several values, there is an output for each.
    """

    def __init__(self, formats: str | Callable[[Any], str] | None = None, *, each: str | None = None) -> None:
        self._formats, self._each = formats, each

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        location = super().convert(value, param, ctx)
        if self._formats is not None:
            check_ending(location, resolve_name(self._formats(ctx) if callable(self._formats) else self._formats))
        return location

    def outputs(self, location: Location, parameters: Mapping[str, Any]) -> Sequence[Location]:
        """Return the locations that the command writes, by all its parameters."""
        values = parameters[self._each] if self._each else ()
        return [with_value(location, value) for value in values] if len(values) > 1 else [location]


def with_value(location: Location, value: float) -> Location:
    """Insert a value before the suffix: ``times-0.1.model`` for ``times.model``."""
    if isinstance(location, str):
        parent, _, name = location.rpartition("/")
        return f"{parent}/{with_value(Path(name), value)}"
    return location.with_name(f"{location.stem}-{value}{location.suffix}")


class FittingCommand(click.Command):
    """A command that fits a model to the dataset of its parameter ``data``, with parameters of the model's names."""

    def __init__(self, *arguments: Any, load: "Callable[[], type[Factorization]]", one_fit: bool = False, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.load = load
        """Imports the class of the model."""
        self.one_fit = one_fit
        """Whether several numbers of components take about as long as the fit with the most."""
