"""The layers of the package, its folders and modules, and what each may import: the table that a move of modules edits."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dfact

ROOT = Path(dfact.__file__).parent
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "lazy", "settings"),
    ("catalogue", "internals"),
    ("signals", "text", "code_cache", "extensions"),
    ("monitoring",),
    ("progress",),
    ("kernels",),
    ("storage",),
    ("data",),
    ("engine", "imports"),
    ("parameters",),
    ("linalg",),
    ("models",),
    ("selection",),
    ("stability",),
    ("export",),
    ("report",),
    ("cli",),
    ("__main__",),
    ("batch", "formats", "genetics", "questionnaires", "sites"),
)
"""Layers from the lowest level to the highest. A layer imports itself and the levels below it, no other layer of its own level."""
LIBRARIES: dict[str, set[str]] = {"kernels": {"numpy", "numba", "collections", "typing"}}
"""Everything besides dfact that a layer may import, for layers that may not import what they like."""
FORBIDDEN: dict[str, set[str]] = {"models": {"dask", "distributed"}}
"""Libraries that a layer must not import."""
ABOVE_MODELS = {
    "commands": "cli",
    "presenter": "report",
    "plots": "report",
    "tables": "report",
    "modularity": "stability",
    "held_out_entries": "selection",
    "number_of_classes": "stability",
    "number_of_components": "selection",
    "penalty_selection": "selection",
    "replicability": "selection",
    "selection": "selection",
}
"""Modules of families that stand above ``models``, with the layer on whose level they stand: how a family's model is chosen, shown and
called. Such a module may import what that layer may. Only the catalogue reaches it, by name, and other such modules of the same family: no
estimator, pass or solver imports it, nor does any other room."""
PUBLIC = {"report/__init__.py", "selection/__init__.py"}
"""Lists of public names. They import on first use, also from rooms above them, and name these modules for type checkers."""
SHARED = {"binomial", "growth"}
"""Folders of ``models`` that are not families: several of these use them."""
IMPORT_FAMILIES = {"models/persistence.py"}
"""Modules of ``models`` that may import every family."""


def modules() -> dict[str, Path]:
    """All modules of the package by their paths within it, without the package's own ``__init__``."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def above_models(path: Path) -> bool:
    """Return whether a module lies in a family of models, and stands above it."""
    return layer(path) == "models" and family(path) is not None and path.stem in ABOVE_MODELS


def stands_on(path: Path) -> str:
    """Return the layer on whose level a module stands: its folder, or a higher one for some modules of families."""
    return ABOVE_MODELS[path.stem] if above_models(path) else layer(path)


def level(name: str) -> int:
    return next(i for i, layers in enumerate(LEVELS) if name in layers)


def family(path: Path) -> str | None:
    """Return the family of models that a module of ``models`` belongs to: its folder. Modules without one serve all models."""
    parts = path.relative_to(ROOT / "models").parts
    return parts[0] if len(parts) > 1 and parts[0] not in SHARED else None


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax of a module, found once for all tests of a process."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imported(path: Path) -> frozenset[str]:
    """Dotted names of everything that a module imports, anywhere in it; of dfact, the names of modules."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, expected an absolute one"
            assert node.module
            yield node.module
            for alias in node.names:  # ``from dfact.engine import threads`` imports a module
                if file_of(name := f"{node.module}.{alias.name}"):
                    yield name
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def file_of(name: str) -> Path | None:
    """Return the file of a module of dfact by its dotted name; None for other names."""
    if not name.startswith("dfact."):
        return None
    base = ROOT.joinpath(*name.split(".")[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imported_modules(path: Path) -> set[Path]:
    """The files of dfact that a module imports."""
    return {found for name in imported(path) if (found := file_of(name))}
