"""Checks that a library has the names that dfact uses."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from dfact.errors import DependencyError


def require(library: str, *paths: str) -> list[Any]:
    """Import the objects at these paths, such as ``numba.core.caching:IndexDataCacheFile.save``; raise DependencyError without one."""
    found, missing = [], []
    for path in paths:
        module, _, attributes = path.partition(":")
        try:
            value: Any = import_module(module)
            for attribute in filter(None, attributes.split(".")):
                value = getattr(value, attribute)
        except (ImportError, AttributeError):
            missing.append(path.replace(":", "."))
        else:
            found.append(value)
    if missing:
        raise missing_names_error(library, missing)
    return found


def require_attributes(library: str, value: object, *names: str) -> None:
    """Raise DependencyError unless an object has attributes of these names; nested ones are written with dots."""
    missing = []
    for name in names:
        part: Any = value
        try:
            for attribute in name.split("."):
                part = getattr(part, attribute)
        except AttributeError:
            missing.append(f"{type(value).__name__}.{name}")
    if missing:
        raise missing_names_error(library, missing)


def missing_names_error(library: str, names: list[str]) -> DependencyError:
    """Return the error of a library without these names."""
    return DependencyError(
        f"{library} {version(library)} lacks {', '.join(names)}, which dfact {version('dfact')} uses; install another release of "
        f"{library}, or a later one of dfact"
    )
