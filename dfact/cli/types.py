"""Types of option values, and what commands declare by them to batch jobs: locations to read, create or update, and fits to plan."""

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


path_type = click.Path(path_type=Path)


_MOST_COUNTS = 10_000
_MOST_DIGITS = 18
_LEAST_POD = 1 << 30  # scheduler and driver share a pod


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


class Numbers(ParameterType):
    """Numbers separated by commas; duplicates are dropped."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            return list(dict.fromkeys(float(entry) for entry in value.split(",")))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers, expected such as 0.05,0.1,0.2", param, ctx)


class Counts(ParameterType):
    """Integers and ranges separated by commas: "2-5,8" is 2, 3, 4, 5 and 8; duplicates are dropped."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        counts: list[int] = []
        for entry in value.split(","):
            first, dash, last = (part.strip() for part in entry.partition("-"))
            if not _is_count(first) or (dash and not _is_count(last)):
                self.fail(f"{entry.strip()[:80]!r} is not a number or a range, expected such as 2-10 or 2,3,5", param, ctx)
            numbers = range(int(first), int(last if dash else first) + 1)
            if len(numbers) > _MOST_COUNTS:
                self.fail(f"{entry.strip()!r} are {len(numbers)} numbers, expected at most {_MOST_COUNTS}", param, ctx)
            if not numbers:
                self.fail(f"{entry.strip()!r} is an empty range, expected such as 2-10", param, ctx)
            counts += numbers
        return list(dict.fromkeys(counts))


class CountsOrAll(Counts):
    """Integers and ranges, or "all": None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int] | None:  # type: ignore[override]
        return None if value == "all" else super().convert(value, param, ctx)


class MatrixShape(ParameterType):
    """Numbers of rows and columns, such as 1000x300."""

    name = "shape"
    expected = "a shape, expected such as 1000x300"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        rows, _, columns = (part.strip() for part in value.lower().replace("×", "x").partition("x"))
        if not _is_count(rows) or not _is_count(columns):
            self.fail(f"{value[:80]!r} is not {self.expected}", param, ctx)
        return int(rows), int(columns)


class BlockShape(MatrixShape):
    """Numbers of row blocks and column blocks, such as 10x10."""

    name = "rowsxcolumns"
    expected = "a number of row blocks and one of column blocks, expected such as 10x10"


class PodSize(ParameterType):
    """Bytes of memory or disk of a pod, such as 8GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from dfact.data.memory_limit import parse_bytes

        if isinstance(value, int):
            return value
        try:
            size = parse_bytes(value)
        except ParameterError:
            self.fail(f"{value[:80]!r} is not a size, expected such as 8GiB", param, ctx)
        if size < _LEAST_POD:
            self.fail(f"{value!r} is too little for a pod, expected 1GiB or more", param, ctx)
        return size


class NamedOrNumbers(ParameterType):
    """One of some names, or two numbers separated by a comma."""

    name = "name"

    def __init__(self, *names: str) -> None:
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[float, float]:
        if value in self.names or isinstance(value, tuple):
            return value  # type: ignore[no-any-return]  # click hands over any value
        try:
            first, second = (float(number) for number in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not valid, expected {', '.join(self.names)} or two numbers such as 2,1", param, ctx)
        return first, second


class NumberOrWord(ParameterType):
    """A number, or a word such as ``adaptive``."""

    name = "number"

    def __init__(self, word: str) -> None:
        self.word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == self.word:
            return self.word
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not valid, expected a number or {self.word!r}", param, ctx)
