"""Faults planted in the sources, and how many of them the tests notice: ``python -m benchmarks.suite.mutants FOLDER``.

A mutant differs from the source by one operator, comparison, constant, condition, update or call. FOLDER is a record of
``benchmarks.suite.coverage``, which says which tests reach a line; those of a kernel are the tests that reach its callers. A mutant is
killed by the default tests, by the further ones alone, or by none. The survivors are printed, to be read.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from benchmarks.suite.coverage import ROOT, collected, load

ROOMS = {
    "kernels": "dfact/kernels/*.py",
    "passes": "dfact/engine/passes.py",
    "reduction": "dfact/engine/partitions.py",
    "checkpoint": "dfact/engine/checkpoint.py",
    "persistence": "dfact/models/persistence.py",
}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARISONS |= {"is not": "is", "is": "is not", "not in": "in", "in": "not in"}
OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "+", "**": "*", "&": "|", "|": "&", "<<": ">>", ">>": "<<"}
FIRST = 30
"""Tests that are tried first, the cheapest: they notice most mutants."""
LONGEST = 240.0
"""Seconds until a batch of tests counts as one that does not end, which is noticed as well."""


class Mutant(NamedTuple):
    room: str
    path: Path
    line: int
    start: int
    end: int
    new: str

    def text(self) -> str:
        source = self.path.read_bytes()
        old = source[self.start : self.end].decode()
        return f"{self.path.relative_to(ROOT)}:{self.line}: {old!r} → {self.new!r} in {source.splitlines()[self.line - 1].decode().strip()}"


def mutants(room: str, path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module, except for those of annotations, docstrings, messages of errors and declarations."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, changes: dict[str, str]) -> Iterator[tuple[int, int, int, str]]:
        first = place(left.end_lineno or 0, left.end_col_offset or 0)
        text = source[first : place(right.lineno, right.col_offset)].decode()
        pattern = "|".join(re.escape(key) for key in sorted(changes, key=len, reverse=True))
        if found := re.search(pattern, text):
            yield left.end_lineno or 0, first + found.start(), first + found.end(), changes[found.group()]

    def visit(node: ast.AST) -> Iterator[tuple[int, int, int, str]]:
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.AnnAssign) and not getattr(node, "value", None):
            return
        if isinstance(node, ast.Compare):
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from between(left, right, COMPARISONS)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, OPERATORS)
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], {"and": "or", "or": "and"})
        elif isinstance(node, ast.AugAssign):
            yield from between(node.target, node.value, {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="})
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            test = node.test
            first, last = place(test.lineno, test.col_offset), place(test.end_lineno or 0, test.end_col_offset or 0)
            if not isinstance(node, ast.While):
                yield test.lineno, first, last, f"(not ({source[first:last].decode()}))"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool, float):
            new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield node.lineno, place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0), new
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.lineno, place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0), "pass"
        elif isinstance(node, ast.Continue | ast.Break):
            new = "break" if isinstance(node, ast.Continue) else "continue"
            yield node.lineno, place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0), new
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "type_params"}:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child)

    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for line, start, end, new in visit(statement):
                yield Mutant(room, path, line, start, end, new)


class Reach(NamedTuple):
    """What calls the functions of a kernel's line: lines of dfact outside the kernels, and files of tests."""

    lines: set[tuple[str, int]]
    files: set[str]


def callers() -> dict[Path, dict[int, Reach]]:
    """Return what calls the kernels that contain each line of the kernels' modules, directly or through other kernels."""
    functions = {file: [node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef)] for file in KERNELS}
    names = {function.name for found in functions.values() for function in found}
    users: dict[str, set[str]] = defaultdict(set)  # kernels that contain a function
    for function in (function for found in functions.values() for function in found):
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in names:
                users[node.id].add(function.name)
    lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
    files: dict[str, set[str]] = defaultdict(set)
    for file in [*(ROOT / "dfact").rglob("*.py"), *(ROOT / "tests").rglob("test_*.py")]:
        for node in ast.walk(ast.parse(file.read_bytes())) if file not in KERNELS else ():
            if isinstance(node, ast.Name) and node.id in names:
                if file.is_relative_to(ROOT / "tests"):
                    files[node.id].add(str(file.relative_to(ROOT)))
                else:
                    lines[node.id].add((str(file), node.lineno))
    out: dict[Path, dict[int, Reach]] = {}
    for path, found in functions.items():
        out[path] = {}
        for function in found:
            reached: set[str] = set()
            queue = [function.name]
            while queue:
                if (name := queue.pop()) not in reached:
                    reached.add(name)
                    queue.extend(users[name])
            reach = Reach(set().union(*(lines[name] for name in reached)), set().union(*(files[name] for name in reached)))
            out[path] |= dict.fromkeys(range(function.lineno, (function.end_lineno or 0) + 1), reach)
    return out


KERNELS = sorted((ROOT / "dfact" / "kernels").glob("*.py"))


def reaching(found: dict[str, dict[str, list[tuple[int, int]]]]) -> dict[tuple[str, int], set[str]]:
    """Return the tests that reach each line, by the paths of the record's own checkout."""
    tests: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name, files in found.items():
        for file, arcs in files.items():
            own = str(ROOT / "dfact" / file.partition("/dfact/")[2])
            for arc in arcs:
                for line in arc:
                    tests[own, abs(line)].add(name)
    return tests


class Copy:
    """A checkout of its own, in which mutants are tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", ".git", "results", "*.egg-info")
        shutil.copytree(ROOT, folder, ignore=ignored)

    def notices(self, tests: list[str]) -> bool:
        """Whether one of these tests fails."""
        names = self.folder / "tests.txt"
        names.write_text("\n".join(tests))
        kernels = self.folder.parent / f"{self.folder.name}-kernels"
        environment = os.environ | {"PYTHONPATH": str(self.folder), "NUMBA_CACHE_DIR": str(kernels), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "--exhaustive", f"@{names}"]
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=LONGEST + 10 * len(tests))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return True
        shutil.rmtree(kernels, ignore_errors=True)
        if process.returncode not in (0, 1, 2):  # failures, or modules that cannot be imported
            raise RuntimeError(output[-3000:])
        return process.returncode != 0

    def killed_by(self, mutant: Mutant, default: list[str], further: list[str]) -> str:
        path = self.folder / mutant.path.relative_to(ROOT)
        source = path.read_bytes()
        path.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        try:
            for tier, tests in (("default", default), ("further", further)):
                for batch in (tests[:FIRST], tests[FIRST : 8 * FIRST], tests[8 * FIRST :]):
                    if batch and self.notices(batch):
                        return tier
            return "none"
        finally:
            path.write_bytes(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--each", type=int, default=30, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=Path, help="what --cpu-seconds of pytest wrote: the order of the tests")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    _, found = load(options.folder.resolve())
    lines, default = reaching(found), collected()
    costs = {}
    if options.seconds:
        costs = {test: seconds for test, _, seconds in map(json.loads, options.seconds.read_text().splitlines())}
    chosen: list[Mutant] = []
    for name in options.rooms:
        every = [mutant for path in sorted(ROOT.glob(ROOMS[name])) for mutant in mutants(name, path)]
        chosen += rng.sample(every, min(options.each, len(every)))
    called = callers()
    results: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        copies: Queue[Copy] = Queue()
        for number in range(2):
            copies.put(Copy(Path(folder) / str(number)))

        def attempt(mutant: Mutant) -> None:
            reach = Reach({(str(mutant.path), mutant.line)}, set())
            if mutant.path in called:
                reach = called[mutant.path].get(mutant.line, Reach(set(), set()))
            tests = set().union(*(lines[place] for place in reach.lines)) - {""}
            direct = {test for test in default | set(found) if test.partition("::")[0] in reach.files}
            order = sorted(tests | direct, key=lambda test: (test not in direct, costs.get(test, 1.0), test))
            copy = copies.get()
            try:
                by = copy.killed_by(mutant, [t for t in order if t in default], [t for t in order if t not in default])
            finally:
                copies.put(copy)
            results[mutant.room].append(by)
            print(f"{by:8} {len(order):5} tests  {mutant.text()}", flush=True)

        list(pool.map(attempt, chosen))
    print("| room | mutants | killed by the default tests | by the further ones alone | by none |\n|---|--:|--:|--:|--:|")
    for name, killed in results.items():
        counts = [killed.count(tier) for tier in ("default", "further", "none")]
        print(f"| {name} | {len(killed)} | {' | '.join(f'{count} ({100 * count / len(killed):.0f}%)' for count in counts)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
