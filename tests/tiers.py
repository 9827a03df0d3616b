"""Which tests run: the default ones, the further ones that a change touches, or all.

- The *default* tests have no marker of a tier. They cover every field and one representative of each mechanism.
- The *further* tests repeat a mechanism for another fault, process, deployment or page. ``--further`` runs them too, and so does naming
  their file or folder. ``--touched COMMIT`` runs those that the changes since a commit touch.
- The *exhaustive* cases are further seeds and variants and whole matrices. They are built with ``--exhaustive`` alone, which runs all.
"""

import ast
import json
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dfact.catalogue import SLICES

ROOT = Path(__file__).resolve().parents[1]
MARKERS = ("further", "exhaustive", "cluster", "process", "faults", "object_store", "browser", "root")
SECONDS = Path(__file__).parent / "seconds.json"
"""Processor seconds of the default and of the further tests of each file, as ``python -m tests.cpu_seconds --record FILE`` found them."""
BUDGET = 240.0
"""Processor seconds of further tests that ``--touched`` runs at most, by that record."""
PUBLIC = {name.rpartition(".")[2]: module for each in SLICES for name, module in each.names.items()}
PUBLIC |= {entry.name: entry.module for each in SLICES for entry in each.models}
"""The modules of slices by their public names, by which tests ask for them: ``dfact.Admixture``."""
FOLDERS = ("dfact", "tests", "benchmarks", "deploy")
READERS = {
    "README.md": "tests/documentation",
    ".github": "tests/documentation",
    "dfact/guides": "tests/documentation",
    "dfact/*/guides": "tests/documentation",
    "deploy": "tests/batch",
    "dfact/batch/manifests": "tests/batch",
    "pyproject.toml": "tests",
}
"""Folders of tests that read files which are not modules."""


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules of the checkout, by their names."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def slice_of(path: Path) -> str | None:
    """Return the slice in whose folder a file is; None elsewhere."""
    return next((each.name for each in SLICES if path.is_relative_to(ROOT / "dfact" / each.name)), None)


@cache
def modules_of_core() -> dict[str, Path]:
    """Return the files of the modules outside slices, by their names."""
    return {name: path for name, path in modules().items() if slice_of(path) is None}


def imports(path: Path) -> Iterator[Path]:
    """Yield the files of the modules that a module imports, anywhere in it, and those it names in text, as commands and patches do.

    The core names modules of slices in the catalogue and for types alone, and would lead from each slice to everything. A test also asks
    for modules of slices by their public names.
    """
    is_core = path.is_relative_to(ROOT / "dfact") and slice_of(path) is None
    known = modules_of_core() if is_core else modules()
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("dfact."):
            names = [node.value, node.value.rpartition(".")[0]]
        elif isinstance(node, ast.Attribute) and node.attr in PUBLIC and path.name.startswith("test_"):
            names = [PUBLIC[node.attr]]
        elif isinstance(node, ast.Constant) and node.value == "dfact":  # the command
            names = ["dfact.cli.main"]
        yield from {known[name] for name in names if name in known}


def changed(commit: str) -> set[Path] | None:
    """Return the files that differ between a commit and the work tree; None if the commit is not in this clone."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", "--no-renames", commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    new = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True)
    return {ROOT / name for name in (done.stdout + new.stdout).split("\n") if name}


@cache
def users() -> dict[Path, set[Path]]:
    """Return the modules that import each module, and the tests that use each conftest."""
    found = defaultdict(set)
    for path in modules().values():
        for imported in imports(path):
            found[imported].add(path)
        if path.name == "conftest.py":
            found[path].update(path.parent.rglob("test_*.py"))
    return found


def distances(files: Iterable[Path]) -> dict[Path, int]:
    """Return all files that these files touch, with the number of imports between.

    A slice also touches its tests that run it as a program, and those of the guides, which follow after the others.
    """
    files = list(files)
    reached, queue = dict[Path, int](), deque((path, 0) for path in files)
    while queue:
        path, distance = queue.popleft()
        if path in reached:
            continue
        reached[path] = distance
        queue.extend((user, distance + 1) for user in users().get(path, ()))
        if path.suffix != ".py":
            queue.extend((reader, distance + 1) for reader in readers(path))
    folders = {folder for path in files if (name := slice_of(path)) is not None for folder in (name, "documentation")}
    last = 1 + max(reached.values(), default=0)
    return dict.fromkeys((test for each in folders for test in (ROOT / "tests" / each).rglob("test_*.py")), last) | reached


def readers(path: Path) -> Iterator[Path]:
    """Yield the files that read a file which is not a module: tests by ``READERS``, and the modules beside it, or above it if none are."""
    for place, folder in READERS.items():
        if any(path.is_relative_to(found) for found in ROOT.glob(place)):
            yield from (ROOT / folder).rglob("test_*.py")
    for folder in path.relative_to(ROOT).parents[:-1]:
        if beside := list((ROOT / folder).glob("*.py")):
            yield from beside
            return


def seconds() -> dict[str, tuple[float, float]]:
    """Return the recorded processor seconds of the default and the further tests of each file."""
    return {name: (default, further) for name, (default, further) in json.loads(SECONDS.read_text()).items()}


class Touched(NamedTuple):
    """Files whose further tests a change touches, by their paths from the top folder."""

    chosen: Sequence[str] = ()
    left: Sequence[str] = ()
    """Those that do not fit in the budget."""


def touched(commit: str) -> Touched:
    """Return the files whose further tests the changes since a commit touch, the nearest first.

    If this clone does not have the commit, all of them count as touched and equally near.
    """
    costs, files = seconds(), changed(commit)
    reached = dict.fromkeys(modules().values(), 1) if files is None else distances(files)
    near = sorted((distance, str(path.relative_to(ROOT))) for path, distance in reached.items() if path.name.startswith("test_"))
    chosen, left, spent = [], [], 0.0
    for distance, name in near:
        _, cost = costs.get(name, (0.0, 0.0))
        if distance and spent + cost > BUDGET:  # a changed file of tests always runs
            left.append(name)
        elif distance == 0 or cost or name not in costs:
            spent += cost
            chosen.append(name)
    return Touched(chosen, left)
