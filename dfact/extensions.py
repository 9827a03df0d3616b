"""Extensions: estimators, readers and commands of other packages, found by entry points where a name is unknown here."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from dfact.errors import DependencyError

Group = Literal["dfact.estimators", "dfact.readers", "dfact.commands"]
"""Groups of entry points: classes of models by their names; tuples of formats; commands, or specifications named ``fit.NAME``."""


def extensions(group: Group) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted; nothing is imported."""
    return {found.name: found for found in sorted(entry_points(group=group), key=lambda each: each.name)}


def load_extension(found: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises
    ------
    DependencyError
        Its package cannot be imported, or has no such name.
    """
    try:
        return found.load()
    except Exception as error:  # code of another package may raise anything
        package = "its package" if found.dist is None else found.dist.name
        remedy = f"repair or uninstall {package}"
        raise DependencyError(
            f"the extension {found.name!r} ({found.value}) cannot be loaded: {error or type(error).__name__}; {remedy}"
        ) from error


def load_extensions(group: Group) -> Iterator[tuple[str, Any]]:
    """Yield all names of a group with what they name."""
    for name, found in extensions(group).items():
        yield name, load_extension(found)


def package_of(found: EntryPoint) -> str:
    """Return the name of the package that an entry point belongs to."""
    return "another package" if found.dist is None else f"{found.dist.name} {found.dist.version}"
