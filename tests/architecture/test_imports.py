"""Imports only go down, without cycles, and no family of models imports another."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.architecture.layers import (
    ABOVE_MODELS,
    FORBIDDEN,
    IMPORT_FAMILIES,
    LEVELS,
    LIBRARIES,
    PUBLIC,
    ROOT,
    above_models,
    family,
    file_of,
    imported,
    imported_modules,
    layer,
    level,
    modules,
    nodes,
    stands_on,
)


def test_every_module_lies_in_a_layer() -> None:
    assert {layer(path) for path in modules().values()} <= {name for layers in LEVELS for name in layers}


def test_imports_only_go_down() -> None:
    offenders = [
        f"{name} imports {target}"
        for name, path in modules().items()
        if name not in PUBLIC
        for target in sorted(imported(path))
        if target.startswith("dfact.")
        if not (stands_on(path) == (other := _stands_on(target)) or level(other) < level(stands_on(path)))
    ]
    assert offenders == []


def _stands_on(name: str) -> str:
    """Return the layer on whose level a module or a name of one stands."""
    path = file_of(name) or file_of(name.rpartition(".")[0])
    return name.split(".")[1] if path is None else stands_on(path)


def test_only_a_family_imports_its_modules_above_models() -> None:
    """The choice, the presenter and the commands of a family are reached by their names in the catalogue."""
    offenders = [
        f"{name} imports {target.relative_to(ROOT).as_posix()}"
        for name, path in modules().items()
        if name not in PUBLIC
        for target in imported_modules(path)
        if above_models(target) and not (above_models(path) and path.parent == target.parent)
    ]
    assert offenders == []


def test_modules_above_models_are_there() -> None:
    assert {path.stem for path in modules().values() if above_models(path)} == set(ABOVE_MODELS)


def test_layers_import_no_other_libraries_than_theirs() -> None:
    offenders = []
    for name, path in modules().items():
        libraries = {target.split(".")[0] for target in imported(path)} - {"dfact"}
        allowed = LIBRARIES.get(layer(path), libraries)
        offenders += [
            f"{name} imports {library}" for library in sorted((libraries - allowed) | (libraries & FORBIDDEN.get(layer(path), set())))
        ]
    assert offenders == []


def test_no_family_of_models_imports_another() -> None:
    offenders = []
    for name, path in modules().items():
        if layer(path) == "models" and name not in IMPORT_FAMILIES:
            others = {target: family(target) for target in imported_modules(path) if layer(target) == "models"}
            offenders += [
                f"{name} imports {target.name} of {other}" for target, other in others.items() if other not in {None, family(path)}
            ]
    assert offenders == []


def test_selection_asks_no_model_for_its_family() -> None:
    """Selection reaches what a family does through methods and traits of its estimators."""
    offenders = []
    for name, path in modules().items():
        if layer(path) == "selection":
            imports = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
            families = {
                alias.asname or alias.name
                for node in imports
                for alias in node.names
                if (node.module or "").startswith("dfact.models.") and (node.module or "").count(".") > 2
            }
            calls = [node for node in nodes(path) if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
            asked = {part.id for call in calls for part in ast.walk(call.args[1]) if isinstance(part, ast.Name)}
            offenders += [f"{name} asks for {kind}" for kind in sorted(asked & families)]
    assert offenders == []


def cycles() -> set[frozenset[str]]:
    """The sets of modules that import each other in a circle, packages' own ``__init__`` aside."""
    names = {path: name for name, path in modules().items() if path.name != "__init__.py"}
    below: dict[Path, set[Path]] = {path: imported_modules(path) & names.keys() for path in names}
    reached = {path: {path} for path in names}
    for path in names:
        pending = [path]
        while pending:
            new = below[pending.pop()] - reached[path]
            reached[path] |= new
            pending += new
    return {
        frozenset(names[other] for other in circle)
        for path in names
        if len(circle := {other for other in reached[path] if path in reached[other]}) > 1
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert [sorted(circle) for circle in cycles()] == []


def private_names(path: Path) -> set[str]:
    """The private functions, classes, attributes and variables that a module defines."""
    names = set()
    for node in nodes(path):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def _of_itself(node: ast.expr) -> bool:
    """Whether an expression is ``self`` or ``super()``: a model of a slice uses what its base class has for its subclasses."""
    return ast.unparse(node) in ("self", "super()")


def test_no_layer_uses_private_names_of_another() -> None:
    """A model of a slice inherits those of the base of all models, as one of another package does, and uses them of itself alone."""
    defined: dict[str, set[str]] = defaultdict(set)
    for path in modules().values():
        defined[stands_on(path)] |= private_names(path)
    offenders = []
    for name, path in modules().items():
        of_others = set().union(*(names for other, names in defined.items() if other != stands_on(path))) - defined[stands_on(path)]
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in of_others and not _of_itself(node.value):
                offenders.append(f"{name} line {node.lineno}: {node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dfact"):
                offenders += [f"{name} line {node.lineno}: imports {alias.name}" for alias in node.names if alias.name.startswith("_")]
    assert offenders == []


def _is_inherited(path: Path, node: ast.Attribute) -> bool:
    of_models = layer(path) in LEVELS[-1] and any(name.startswith("dfact.models.") for name in imported(path))
    return of_models and isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in _private_names_of_models()


@cache
def _private_names_of_models() -> set[str]:
    return set().union(*(private_names(path) for path in modules().values() if layer(path) == "models"))


def test_subroutines_of_a_module_serve_at_most_one_other() -> None:
    """As :mod:`dfact.kernels.jit` states: kernels of several modules would compile copies, which may differ by rounding."""
    kernels = {name: path for name, path in modules().items() if name.startswith("kernels/")}
    importers = defaultdict[str, set[str]](set)
    for name, path in kernels.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dfact.kernels."):
                home = f"{node.module.removeprefix('dfact.').replace('.', '/')}.py"
                if {alias.name for alias in node.names} & _subroutines(kernels[home]):
                    importers[home].add(name)
    assert importers
    assert {home: names for home, names in importers.items() if len(names) > 1} == {}


def _subroutines(path: Path) -> set[str]:
    functions = (node for node in nodes(path) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if any(isinstance(one, ast.Name) and one.id == "subroutine" for one in node.decorator_list)}
