"""Job files: the steps of a job, each a command with its options by name, checked as a whole before any of them runs."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dfact.errors import DfactError, ParameterError
from dfact.storage.location import Location

if TYPE_CHECKING:
    pass


def with_omega(path: Location, omega: float) -> Location:
    """The path with ω before the ending of its name."""
    if isinstance(path, str):
        parent, _, name = path.rpartition("/")
        return f"{parent}/{with_omega(Path(name), omega)}"
    return path.with_name(f"{path.stem}-{omega}{path.suffix}")


_OUTPUTS = ("destination", "out", "model", "plot")
"""Parameters that name what a command writes; a model is read where a command writes something else."""
_READERS = ("transform", "report", "export", "stability")
"""Commands whose model is there already."""
_INPUTS = ("source", "data", "datasets", "items")
_RUN = "run"


@dataclass(frozen=True)
class Step:
    """A command and all its parameters."""

    number: int
    line: int
    name: str
    command: click.Command
    given: Mapping[str, Any]
    """As in the file, there or for all steps."""
    parameters: Mapping[str, Any]
    """As the command's function takes them."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What its options leave in click's context."""

    @property
    def inputs(self) -> list[Location]:
        names = (*_INPUTS, "model") if self.name in _READERS else _INPUTS
        found = [self.parameters.get(name) for name in names if name != "items" or self.name == "report"]
        return [place for entry in found if entry is not None for place in (entry if isinstance(entry, tuple) else (entry,))]

    @property
    def outputs(self) -> list[Location]:
        if self.name == "stability":
            return [self.parameters["model"]]
        omegas = self.parameters.get("omegas")
        places = [self.parameters.get(name) for name in _OUTPUTS if name != "model" or self.name not in _READERS]
        if self.name == "fit emf" and omegas is not None and len(omegas) > 1:
            return [with_omega(place, omega) for place in places if place is not None for omega in omegas]
        return [place for place in places if place is not None]

    @property
    def title(self) -> str:
        return f"step {self.number} ({self.name})"


@dataclass(frozen=True)
class Problem:
    """What is wrong with a job, and where."""

    line: int
    text: str


class JobError(ParameterError):
    """A job file that cannot be run."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        super().__init__(path, tuple(problems))

    def __str__(self) -> str:
        path, problems = self.args
        return "\n".join(f"{path}:{problem.line}: {problem.text}" for problem in sorted(problems, key=lambda problem: problem.line))


def read_job(path: Path, commands: click.Group) -> tuple[list[Step], Mapping[str, Any]]:
    """The steps of a job file, and its table ``[job]``; JobError tells of everything that is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read {path}: {error}; expected a job file, see dfact run --help") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        raise JobError(path, [Problem(int(found[1]) if found else text.count("\n") + 1, f"no TOML: {error}")]) from error
    lines = _LineIndex(text)
    foreign = [name for name in document if name not in ("job", "step")]
    problems = [Problem(lines.of(None, name), f"{name!r} is no part of a job; expected [job] and [[step]]") for name in foreign]
    job, tables = document.get("job", {}), document.get("step", [])
    if not isinstance(job, dict) or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise JobError(path, [Problem(1, "expected a table [job] and tables [[step]]")])
    if not tables:
        problems.append(Problem(1, "there is no [[step]]; expected at least one"))
    with chdir(path.absolute().parent):  # from which its paths are seen
        made = [_step(number, table, job, lines, commands, problems) for number, table in enumerate(tables, start=1)]
        steps = [step for step in made if step is not None]
        problems += _conflicts(steps)
    known = {name for step in steps for name in _settings(step.command)} | {"state"}
    problems += [Problem(lines.of(0, name), _unknown(name, known)) for name in job if name not in known and len(steps) == len(tables)]
    if problems:
        raise JobError(path, problems)
    return steps, job


def _step(
    number: int, table: Mapping[str, Any], job: Mapping[str, Any], lines: "_LineIndex", commands: click.Group, problems: list[Problem]
) -> Step | None:
    """The step, if its command is known; what is wrong with it is added to the problems."""
    line, name = lines.of(number, None), table.get(_RUN)
    command = _command(commands, str(name))
    if command is None:
        commands_known = list(_names(commands))
        close = difflib.get_close_matches(str(name), commands_known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(commands_known)}"
        what = f"a step lacks {_RUN!r}" if name is None else f"{_RUN} = {name!r} is no command"
        problems.append(Problem(line if name is None else lines.of(number, _RUN), what + hint))
        return None
    names = _settings(command)
    problems += [Problem(lines.of(number, key), _unknown(key, names)) for key in table if key not in names and key != _RUN]
    # What a file says is click's default map: it is checked as if it had been typed.
    values: dict[str, Any] = {}
    places: dict[str | None, int] = {}
    found: list[Problem] = []
    for at, part in ((job, 0), (table, number)):
        for key in (key for key in names if key in at):
            places[names[key].name] = lines.of(part, key)
            try:
                values[names[key].name or key] = _plain(at[key], names[key])
            except click.UsageError as error:
                found.append(Problem(lines.of(part, key), f"{name}: {key}: {error.message}"))
    context = click.Context(command, info_name=str(name), default_map=values)
    wrong = {names[key].name for at in (job, table) for key in names if key in at} - set(values)
    read = sorted(command.params, key=lambda parameter: not parameter.is_eager)  # as click does: others may follow from eager ones
    for parameter in (parameter for parameter in read if parameter.name not in wrong):
        try:
            parameter.handle_parse_result(context, {}, [])
        except (click.UsageError, DfactError) as error:
            found.append(Problem(places.get(parameter.name, line), f"{name}: {_message(error, parameter)}"))
    problems += found
    if found:
        return None
    context = command.make_context(str(name), [], default_map=values)
    given = {key: at[key] for at in (job, table) for key in (_RUN, *names) if key in at}
    return Step(number, line, str(name), command, given, dict(context.params), dict(context.meta))


def _settings(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters that a job may give a command; a plan alone is no step."""
    return {key: parameter for parameter in command.params if parameter.name != "plan_only" for key in setting_names(parameter)}


def setting_names(parameter: click.Parameter) -> list[str]:
    """What a job may call a parameter: as on the command line without dashes, an argument as its help does."""
    if isinstance(parameter, click.Argument):
        return [(parameter.metavar or parameter.name or "").split()[0].lower()]
    return [option.lstrip("-") for option in parameter.opts if option.startswith("--")]


def _plain(value: Any, parameter: click.Parameter) -> Any:
    """A value of the file as click takes it from a command line."""
    if isinstance(value, bool):
        if not getattr(parameter, "is_flag", False):
            raise click.BadParameter(f"{str(value).lower()} is no value here.")
        return value
    if isinstance(value, list):
        if any(isinstance(entry, (bool, list, dict)) for entry in value):
            raise click.BadParameter("expected a list of texts or numbers.")
        several = parameter.multiple or parameter.nargs != 1 if isinstance(parameter, click.Option) else parameter.nargs != 1
        return tuple(str(entry) for entry in value) if several else ",".join(map(str, value))
    if isinstance(value, dict):
        raise click.BadParameter("a table is no value here.")
    if getattr(parameter, "is_flag", False):
        raise click.BadParameter("expected true or false.")
    return (str(value),) if getattr(parameter, "multiple", False) else str(value)


def _message(error: click.UsageError | DfactError, parameter: click.Parameter) -> str:
    if isinstance(error, click.MissingParameter):
        return f"{setting_names(parameter)[0]!r} is missing"
    return f"{setting_names(parameter)[0]}: {error.message if isinstance(error, click.UsageError) else error}"


def _unknown(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"{name!r} is unknown" + (f"; did you mean {close[0]!r}?" if close else f"; expected some of {', '.join(sorted(known))}")


def _command(commands: click.Group, name: str) -> click.Command | None:
    found: click.Command | None = commands
    for word in name.split():
        found = found.commands.get(word) if isinstance(found, click.Group) else None
    return None if isinstance(found, click.Group) or name not in _names(commands) else found


def _names(commands: click.Group, before: str = "") -> Iterator[str]:
    """Commands that make a step: those that write something."""
    for name, command in commands.commands.items():
        if isinstance(command, click.Group):
            yield from _names(command, f"{before}{name} ")
        elif any(parameter.name in _OUTPUTS for parameter in command.params) and name != "info":
            yield before + name


def job_path(place: Location) -> str:
    """The same of all ways to write a path; in the job's folder the path from there, which it keeps when that is moved."""
    if isinstance(place, str):
        return place
    path = Path(os.path.abspath(place))  # noqa: PTH100  # resolve would follow links, to where a path does not say
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _conflicts(steps: Sequence[Step]) -> list[Problem]:
    """Steps that write the same, or into what they or another step reads or writes, and that read what only a later one writes."""
    problems, written = [], dict[str, Step]()
    later = {job_path(place): step for step in reversed(steps) for place in step.outputs}
    for step in steps:
        read = [job_path(place) for place in step.inputs]
        if not step.outputs:
            problems.append(Problem(step.line, f"{step.name}: 'model' is missing: where the model goes"))
        for place, name in zip(step.inputs, read, strict=True):
            first = later.get(name)
            if name not in written and first is not None and first.number > step.number:
                problems.append(Problem(step.line, f"{step.title} reads {place}, which {first.title} writes after it"))
        for place in step.outputs if step.name != "stability" else ():
            name = job_path(place)
            if name in read:
                problems.append(Problem(step.line, f"{step.title} writes {place}, which it reads"))
            elif name in written:
                problems.append(Problem(step.line, f"{step.title} writes {place}, as {written[name].title} does"))
            around = next((other for other in (*read, *written) if _is_inside(name, other) or _is_inside(other, name)), None)
            if around is not None:
                problems.append(Problem(step.line, f"{step.title} writes {place}, and of that and {around} one lies within the other"))
            written.setdefault(name, step)
        written |= {name: step for name in map(job_path, step.outputs) if name not in written}
    return problems


def _is_inside(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/")


class _LineIndex:
    """In which lines of the file steps and names stand, which no TOML reader tells."""

    def __init__(self, text: str) -> None:
        self._places: dict[tuple[int | None, str | None], int] = {}
        part: int | None = None
        steps, quotes = 0, ""
        for number, line in enumerate(text.split("\n"), start=1):
            if quotes:
                quotes = "" if quotes in line else quotes
                continue
            if re.match(r"\s*\[\[\s*step\s*\]\]", line):
                steps += 1
                part = steps
                self._places[part, None] = number
            elif re.match(r"\s*\[\s*job\s*\]", line):
                part = 0
            elif found := re.match(r"""\s*\[?\[?\s*["']?([\w-]+)["']?\s*(?:=|\])""", line):
                self._places.setdefault((part if "=" in line else None, found[1]), number)
            for mark in ('"""', "'''"):
                if line.count(mark) % 2:
                    quotes = mark

    def of(self, part: int | None, name: str | None) -> int:
        """The line of a name in a step, in [job] (0) or outside (None); of the step itself without a name."""
        return self._places.get((part, name), self._places.get((part, None), 1))
