"""Commands of other packages, from the entry points of the group ``dfact.commands``."""

from collections.abc import Callable
from typing import TypeVar

import click

from dfact.cli.model_commands import ModelSpec, fit_command, select_command
from dfact.errors import DependencyError
from dfact.extensions import extensions, load_extension, package_of

T = TypeVar("T")
MODEL_PREFIX = "fit."
"""Beginning of the name of an entry point that is the specification of a model: ``fit.counts`` makes ``dfact fit counts``."""


def extension_command(name: str) -> click.Command | None:
    """Return the command ``dfact NAME`` of another package; None if there is none."""
    return _load(name, click.Command) if "." not in name else None


def extension_model_command(group: str, name: str) -> click.Command | None:
    """Return the command ``fit NAME`` or ``select NAME`` of a model of another package; None if there is none."""
    spec = _load(f"{MODEL_PREFIX}{name}", ModelSpec)
    if spec is None:
        return None
    if group == "fit":
        return fit_command(spec)
    return None if spec.select is None else select_command(spec, spec.select)


def _load(name: str, kind: type[T]) -> T | None:
    found = extensions("dfact.commands").get(name)
    if found is None:
        return None
    value = load_extension(found)
    if not isinstance(value, kind):
        expected = f"expected a {kind.__module__.partition('.')[0]} {kind.__name__}"
        raise DependencyError(f"the extension {name!r} ({found.value}) is a {type(value).__name__}, {expected}; correct its entry point")
    return value


def list_extensions(formatter: click.HelpFormatter, listed: Callable[[str], bool]) -> None:
    """Add the commands of other packages, whose names are ``listed``, to a help text; nothing is imported."""
    rows = [(name.removeprefix(MODEL_PREFIX), package_of(found)) for name, found in extensions("dfact.commands").items() if listed(name)]
    if rows:
        with formatter.section("Commands of other packages"):
            formatter.write_dl(rows)
