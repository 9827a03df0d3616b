"""Branch coverage of the tests by room, for each tier: ``python -m benchmarks.suite.coverage run FOLDER``, then ``report FOLDER``.

``run`` records which test covers which branch, in all processes; arguments after the folder go to pytest. ``report`` prints the coverage of
the default tests, and of the default and further ones. ``--before OTHER`` adds a column: the default tests of an earlier version,
recorded in the folder OTHER by the same command in its checkout.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import coverage
import pandas as pd

from benchmarks.suite.covered import TEST

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """
[run]
branch = true
source = {root}/dfact
data_file = {folder}/data
parallel = true
sigterm = true
context = ${{{test}}}
concurrency = thread, multiprocessing
patch = _exit
disable_warnings = no-data-collected, module-not-measured, already-imported, dynamic-conflict
"""


def run(folder: Path, arguments: list[str]) -> int:
    """Run the tests, and combine what their processes recorded."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(root=ROOT, folder=folder, test=TEST))
    starts = folder / "starts"
    starts.mkdir(exist_ok=True)
    (starts / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    environment = os.environ | {"COVERAGE_PROCESS_START": str(settings), TEST: "", "PYTHONPATH": f"{starts}:{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-p", "benchmarks.suite.covered", "--timeout", "1500", *arguments]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    measured = coverage.Coverage(config_file=str(settings))
    measured.combine([str(folder)])
    measured.save()
    return status


def by_test(record: Path) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Return the branches that each test covers in each file; those that no test covers alone, such as imports, under an empty name."""
    found: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    query = "SELECT context, path, fromno, tono FROM arc JOIN context ON context_id = context.id JOIN file ON file_id = file.id"
    with closing(sqlite3.connect(record)) as data:  # coverage.py's own interface asks for one context at a time, which takes minutes
        for context, path, first, last in data.execute(query):
            found[context.rpartition("|")[2] or context.rstrip("|")][path].append((first, last))
    return found


def room(path: str) -> str:
    parts = path.partition("/dfact/")[2].split("/")
    return parts[0] if len(parts) > 1 else "(root)"


def percentages(covered: dict[str, set[tuple[int, int]]], measured: coverage.Coverage) -> dict[str, float]:
    """Return the percentage of statements and branches of each room that these arcs cover, as coverage.py counts them."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    subset = coverage.CoverageData(no_disk=True)
    subset.add_arcs({file: sorted(arcs) for file, arcs in covered.items()})
    reader = coverage.Coverage(data_file=None, branch=True, config_file=False)
    reader._data = subset  # the data of chosen tests, of which coverage.py's own filter would need a pattern of thousands of names
    for file in measured.get_data().measured_files():
        if not Path(file).exists():
            continue
        numbers = reader._analyze(file).numbers
        for key in (room(file), "all"):
            counts[key][0] += numbers.n_executed + numbers.n_executed_branches
            counts[key][1] += numbers.n_statements + numbers.n_branches
    return {key: 100 * done / total for key, (done, total) in counts.items()}


def union(found: dict[str, dict[str, list[tuple[int, int]]]], tests: set[str] | None) -> dict[str, set[tuple[int, int]]]:
    covered: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for name, files in found.items():
        if name == "" or tests is None or name in tests:
            for file, arcs in files.items():
                covered[file].update(arcs)
    return covered


def collected(*options: str) -> set[str]:
    """Return the tests that a command runs."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in lines if "::" in line}


def load(folder: Path) -> tuple[coverage.Coverage, dict[str, dict[str, list[tuple[int, int]]]]]:
    measured = coverage.Coverage(config_file=str(folder / "coveragerc"), data_file=str(folder / "data"))
    measured.load()
    return measured, by_test(folder / "data")


def report(folder: Path, before: Path | None) -> str:
    measured, found = load(folder)
    columns = {"default": percentages(union(found, collected()), measured), "and further": percentages(union(found, None), measured)}
    if before is not None:
        earlier, arcs = load(before)
        columns["before"] = percentages(union(arcs, None), earlier)
    table = pd.DataFrame(columns).sort_index(key=lambda rooms: rooms.where(rooms != "all", "~"))
    return table.to_string(float_format="{:.1f}".format)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, help="a folder with the record of an earlier version")
    options, rest = parser.parse_known_args()
    folder = options.folder.resolve()
    if options.action == "run":
        return run(folder, rest)
    print(report(folder, options.before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
