"""The docstring of a folder lists its modules."""

import ast
import re

import pytest

from tests.architecture.layers import ROOT

LISTED = ("imports", "imports/writing", "engine", "kernels", "linalg", "models/gom", "storage")
"""Folders whose docstrings list all modules, in lines such as ``    files    what is in it``."""


@pytest.mark.parametrize("folder", LISTED)
def test_docstrings_list_all_modules(folder: str) -> None:
    path = ROOT / folder / "__init__.py"
    lines = re.findall(r"^ {4}(\w+(?:, \w+)*) +\S", ast.get_docstring(ast.parse(path.read_text())) or "", re.MULTILINE)
    listed = {name for line in lines for name in line.split(", ")}
    modules = {each.stem for each in path.parent.glob("*.py")} | {each.parent.name for each in path.parent.glob("*/__init__.py")}
    assert sorted(modules - listed) == ["__init__"]
