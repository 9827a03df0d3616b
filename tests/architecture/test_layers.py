"""Imports run one way: cli, report, selection, models, linalg, engine, data, kernels, errors."""

import ast
from pathlib import Path

import pytest

import dfact

ROOT = Path(dfact.__file__).parent
ORDER = ["errors", "kernels", "data", "engine", "linalg", "models", "selection", "report", "cli"]
MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_go_down(path: Path) -> None:
    level = ORDER.index(room(path))
    for name in imported(path):
        if name.startswith("dfact."):
            assert ORDER.index(name.split(".")[1]) <= level, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) == "kernels"], ids=lambda p: p.name)
def test_kernels_know_arrays_only(path: Path) -> None:
    allowed = {"numpy", "numba", "dfact", "collections", "typing"}
    assert {name.split(".")[0] for name in imported(path)} <= allowed


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) == "models"], ids=lambda p: p.name)
def test_models_know_no_dask(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & {"dask", "distributed"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


SHARED = ("base", "declared", "parameters", "bounded_nmf", "cp")  # what several models stand on


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) == "models" and p.stem != "persistence"], ids=lambda p: p.name)
def test_no_model_imports_another(path: Path) -> None:
    models = [p.stem for p in MODULES if room(p) == "models"]
    family = max((name for name in models if path.stem == name or path.stem.startswith(f"{name}_")), key=lambda name: -len(name))
    for name in imported(path):
        if name.startswith("dfact.models."):
            other = name.split(".")[2]
            assert other == family or other.startswith((f"{family}_", *SHARED)), f"{path.name} imports {name}"
