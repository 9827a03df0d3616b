"""Job files: steps in TOML, each a command with its options by name, all checked before the first one runs."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from dfact.cli.types import InputLocation, InputPath, OutputLocation, UpdatedLocation
from dfact.errors import DfactError, ParameterError
from dfact.storage.location import Location

_RUN = "run"
_RENAMED = {"hunt": "vertex-hunting", "share": "holdout-fraction", "fresh": "cold-start", "what": "table"}
"""Keys whose successors are spelled too differently for a close match."""


@dataclass(frozen=True)
class Step:
    """A command with all its parameters."""

    number: int
    line: int
    name: str
    command: click.Command
    settings: Mapping[str, Any]
    """Values as written in the file, in the step or in [job]."""
    parameters: Mapping[str, Any]
    """Arguments for the function of the command."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Values that the callbacks of its options store in click's context."""

    @property
    def inputs(self) -> list[Location]:
        """Files and stores that the step reads, a dataset before the model that it is applied to."""
        return [path for paths in reversed(self._locations(InputLocation, InputPath, UpdatedLocation)) for path in paths]

    @property
    def created(self) -> list[Location]:
        """Files and stores that the step creates or replaces."""
        return [path for paths in self._locations(OutputLocation) for path in paths]

    @property
    def outputs(self) -> list[Location]:
        """Files and stores that the step creates, replaces or updates."""
        return [path for paths in self._locations(OutputLocation, UpdatedLocation) for path in paths]

    @property
    def is_resumable(self) -> bool:
        """Whether the step can have a checkpoint: its command has one, and it does not write an output for each of several values."""
        return "checkpoint" in self.parameters and all(len(paths) == 1 for paths in self._locations(OutputLocation))

    def _locations(self, *kinds: type[object]) -> list[Sequence[Location]]:
        """Return the locations of each parameter of these types that has a value."""
        found: list[Sequence[Location]] = []
        for parameter in self.command.params:
            value = self.parameters.get(parameter.name or "")
            if value is not None and isinstance(parameter.type, OutputLocation):
                value = parameter.type.outputs(value, self.parameters)
            if value is not None and isinstance(parameter.type, kinds):
                found.append([value] if isinstance(value, (Path, str)) else value)
        return found

    @property
    def title(self) -> str:
        """Number and command, for messages."""
        return f"step {self.number} ({self.name})"


@dataclass(frozen=True)
class Problem:
    """A mistake in a job file, with its line."""

    line: int
    text: str


class JobError(ParameterError):
    """A job file that cannot be run, with all its problems."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        super().__init__(path, tuple(problems))

    def __str__(self) -> str:
        path, problems = self.args
        return "\n".join(f"{path}:{problem.line}: {problem.text}" for problem in sorted(problems, key=lambda problem: problem.line))


def read_job(path: Path, commands: click.Group) -> tuple[list[Step], Mapping[str, Any]]:
    """Read the steps of a job file and its table ``[job]``; a JobError lists every problem found."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read {path}: {error}; expected a job file, see dfact run --help") from error
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        raise JobError(path, [Problem(int(match[1]) if match else text.count("\n") + 1, f"invalid TOML: {error}")]) from error
    except RecursionError as error:
        raise JobError(path, [Problem(1, "invalid TOML: it is nested too deeply; expected tables [job] and [[step]]")]) from error
    lines = _LineIndex(text)
    foreign = [name for name in document if name not in ("job", "step")]
    problems = [Problem(lines.find(None, name), f"{name!r} is not part of a job; expected [job] and [[step]]") for name in foreign]
    job, tables = document.get("job", {}), document.get("step", [])
    if not isinstance(job, dict) or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise JobError(path, [Problem(1, "expected a table [job] and tables [[step]]")])
    if not tables:
        problems.append(Problem(1, "there is no [[step]]; expected at least one"))
    with chdir(path.absolute().parent):  # relative paths in the file start from its folder
        parsed = [_parse_step(number, table, job, lines, commands, problems) for number, table in enumerate(tables, start=1)]
        steps = [step for step in parsed if step is not None]
        problems += _find_conflicts(steps)
    if len(steps) == len(tables):  # else an unknown key of [job] may belong to a step that could not be parsed
        settings = {name for step in steps for name in _settings(step.command)} | {"state"}
        problems += [Problem(lines.find(0, name), _unknown_key(name, settings)) for name in job if name not in settings]
    if problems:
        raise JobError(path, problems)
    return steps, job


def _parse_step(
    number: int, table: Mapping[str, Any], job: Mapping[str, Any], lines: "_LineIndex", commands: click.Group, problems: list[Problem]
) -> Step | None:
    """Parse a step; add its mistakes to ``problems`` and return None if there are any."""
    line, name = lines.find(number, None), table.get(_RUN)
    try:
        command = _find_command(commands, str(name))
    except click.UsageError as error:  # a part of dfact that is not installed
        problems.append(Problem(lines.find(number, _RUN), error.message))
        return None
    if command is None:
        names = list(_command_names(commands))
        close = difflib.get_close_matches(str(name), names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(names)}"
        mistake = f"a step lacks {_RUN!r}" if name is None else f"{_RUN} = {name!r} is not a command"
        problems.append(Problem(line if name is None else lines.find(number, _RUN), mistake + hint))
        return None
    settings = _settings(command)
    problems += [Problem(lines.find(number, key), _unknown_key(key, settings)) for key in table if key not in settings and key != _RUN]
    # The values become click's default map, so that they are checked as if typed on the command line.
    values: dict[str, Any] = {}
    value_lines: dict[str | None, int] = {}
    mistakes: list[Problem] = []
    for source, part in ((job, 0), (table, number)):
        for key in (key for key in settings if key in source):
            value_lines[settings[key].name] = lines.find(part, key)
            try:
                values[settings[key].name or key] = _to_click(source[key], settings[key])
            except click.UsageError as error:
                mistakes.append(Problem(lines.find(part, key), f"{name}: {key}: {error.message}"))
    context = click.Context(command, info_name=str(name), default_map=values)
    invalid = {settings[key].name for source in (job, table) for key in settings if key in source} - set(values)
    ordered = sorted(command.params, key=lambda parameter: not parameter.is_eager)  # in click's order: checks may depend on eager ones
    for parameter in (parameter for parameter in ordered if parameter.name not in invalid):
        try:
            parameter.handle_parse_result(context, {}, [])
        except (click.UsageError, DfactError) as error:
            mistakes.append(Problem(value_lines.get(parameter.name, line), f"{name}: {_message(error, parameter)}"))
    problems += mistakes
    if mistakes:
        return None
    context = command.make_context(str(name), [], default_map=values)
    written = {key: source[key] for source in (job, table) for key in (_RUN, *settings) if key in source}
    return Step(number, line, str(name), command, written, dict(context.params), dict(context.meta))


def _settings(command: click.Command) -> dict[str, click.Parameter]:
    """Return the parameters that a job may set, by key; ``--plan`` is left out, as it writes nothing."""
    return {key: parameter for parameter in command.params if parameter.name != "plan_only" for key in setting_names(parameter)}


def setting_names(parameter: click.Parameter) -> list[str]:
    """Return the keys of a parameter in job files: option names without dashes, the lower-case metavar of an argument."""
    if isinstance(parameter, click.Argument):
        return [(parameter.metavar or parameter.name or "").split()[0].lower()]
    return [option.lstrip("-") for option in parameter.opts if option.startswith("--")]


def _to_click(value: Any, parameter: click.Parameter) -> Any:
    """Convert a TOML value to the form that click takes from a command line."""
    if isinstance(value, bool):
        if not getattr(parameter, "is_flag", False):
            raise click.BadParameter(f"{str(value).lower()} is not a valid value.")
        return value
    if _holds_nul(value):
        raise click.BadParameter(f"{value!r} holds a NUL character, which no command line can; remove it.")
    if isinstance(value, list):
        if isinstance(parameter, click.Option) and parameter.multiple and parameter.nargs != 1:
            entries = value if all(isinstance(entry, list) for entry in value) else [value]
            return tuple(tuple(map(str, entry)) for entry in entries)
        if any(isinstance(entry, (bool, list, dict)) for entry in value):
            raise click.BadParameter("expected a list of strings or numbers.")
        repeatable = parameter.multiple or parameter.nargs != 1 if isinstance(parameter, click.Option) else parameter.nargs != 1
        return tuple(str(entry) for entry in value) if repeatable else ",".join(map(str, value))
    if isinstance(value, dict):
        raise click.BadParameter("a table is not a valid value.")
    if getattr(parameter, "is_flag", False):
        raise click.BadParameter("expected true or false.")
    several = getattr(parameter, "multiple", False) or (isinstance(parameter, click.Argument) and parameter.nargs == -1)
    return (str(value),) if several else str(value)


def _holds_nul(value: Any) -> bool:
    return "\0" in value if isinstance(value, str) else isinstance(value, list) and any(map(_holds_nul, value))


def _message(error: click.UsageError | DfactError, parameter: click.Parameter) -> str:
    if isinstance(error, click.MissingParameter):
        return f"{setting_names(parameter)[0]!r} is missing"
    return f"{setting_names(parameter)[0]}: {error.message if isinstance(error, click.UsageError) else error}"


def _unknown_key(name: str, keys: Any) -> str:
    renamed = [key for key in [_RENAMED.get(name)] if key in keys]
    close = renamed or difflib.get_close_matches(name, list(keys), 1)
    return f"{name!r} is unknown" + (f"; did you mean {close[0]!r}?" if close else f"; expected some of {', '.join(sorted(keys))}")


def _find_command(commands: click.Group, name: str) -> click.Command | None:
    command: click.Command | None = commands
    for word in name.split():
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    return None if command is None or isinstance(command, click.Group) or not _writes(command) else command


def _command_names(commands: click.Group, prefix: str = "") -> Iterator[str]:
    """Yield the commands that can be steps: those that write something."""
    for name, command in commands.commands.items():
        if isinstance(command, click.Group):
            yield from _command_names(command, f"{prefix}{name} ")
        elif _writes(command):
            yield prefix + name


def _writes(command: click.Command) -> bool:
    return any(isinstance(parameter.type, (OutputLocation, UpdatedLocation)) for parameter in command.params)


def job_path(location: Location) -> str:
    """Normalize a path, so that spellings of one path compare equal; inside the job's folder it is relative, so the folder can move."""
    if isinstance(location, str):
        return location
    path = Path(os.path.abspath(location))  # noqa: PTH100  # resolve would follow links, and their target may change
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _find_conflicts(steps: Sequence[Step]) -> list[Problem]:
    """Find steps that write the same output, write inside another input or output, or read an output of a later step."""
    problems, written = [], dict[str, Step]()
    writers = {job_path(output): step for step in reversed(steps) for output in step.outputs}
    for step in steps:
        inputs = [job_path(path) for path in step.inputs]
        if not step.outputs:
            problems.append(Problem(step.line, f"{step.name}: 'model' is missing, expected a path for the fitted model"))
        for path, name in zip(step.inputs, inputs, strict=True):
            writer = writers.get(name)
            if name not in written and writer is not None and writer.number > step.number:
                problems.append(Problem(step.line, f"{step.title} reads {path}, which {writer.title} writes after it"))
        for path in step.created:
            name = job_path(path)
            if name in inputs:
                problems.append(Problem(step.line, f"{step.title} writes {path}, which it also reads"))
            elif name in written:
                problems.append(Problem(step.line, f"{step.title} writes {path}, as {written[name].title} does"))
            nested = next((other for other in (*inputs, *written) if _is_inside(name, other) or _is_inside(other, name)), None)
            if nested is not None:
                problems.append(Problem(step.line, f"{step.title} writes {path}; one of {path} and {nested} lies inside the other"))
            written.setdefault(name, step)
        written |= {name: step for name in map(job_path, step.outputs) if name not in written}
    return problems


def _is_inside(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/")


class _LineIndex:
    """Line numbers of steps and keys, which no TOML parser reports."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[int | None, str | None], int] = {}
        part: int | None = None
        steps, quotes = 0, ""
        for number, line in enumerate(text.split("\n"), start=1):
            if quotes:
                quotes = "" if quotes in line else quotes
                continue
            if re.match(r"\s*\[\[\s*step\s*\]\]", line):
                steps += 1
                part = steps
                self._lines[part, None] = number
            elif re.match(r"\s*\[\s*job\s*\]", line):
                part = 0
            elif match := re.match(r"""\s*\[?\[?\s*["']?([\w-]+)["']?\s*(?:=|\])""", line):
                self._lines.setdefault((part if "=" in line else None, match[1]), number)
            for mark in ('"""', "'''"):
                if line.count(mark) % 2:
                    quotes = mark

    def find(self, part: int | None, name: str | None) -> int:
        """Return the line of a key in a step (its number), in [job] (0) or outside (None); without a key, the line of the step."""
        return self._lines.get((part, name), self._lines.get((part, None), 1))
