"""The size of the package, and the way of a fit through it: ``python -m benchmarks.suite.house FOLDER``, for any checkout FOLDER.

Files are visited by calls of functions in the main thread, except while modules are imported; a change of file is a call in another
file than the last one. The first kernel is the first call of a function that Numba compiles.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORTS = {
    "dfact.PCA().fit(array)": "import dfact, numpy as np; dfact.PCA(2).fit(np.random.default_rng(0).normal(size=(50, 6)))",
    "dfact.ICQF().fit(array)": "import dfact, numpy as np; dfact.ICQF(2).fit(np.random.default_rng(0).integers(0, 4, (50, 6)))",
    "from dfact.selection import block_cross_validate": "from dfact.selection import block_cross_validate",
}
WRITE = "import dfact, numpy as np; dfact.import_array(np.random.default_rng(0).integers(0, 5, (600, 12)), 'X.zarr')"
COUNT = """
import sys
files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "dfact"]
print(len(files), sum(len(open(file).readlines()) for file in files))
"""
TRACE = """
import sys, threading
from collections import Counter
import dfact
from dfact.cli.main import main
root = dfact.__file__.removesuffix("__init__.py")
files, calls, state = {}, Counter(), {"changes": 0, "last": None, "importing": 0, "kernel": None}
def watch(frame, event, _):
    code = frame.f_code
    if code.co_name == "<module>":
        state["importing"] += (event == "call") - (event == "return")
    elif event == "call" and not state["importing"]:
        if code.co_name == "_compile_for_args" and state["kernel"] is None:
            state["kernel"] = len(files), state["changes"]
        if code.co_filename.startswith(root):
            file = code.co_filename
            files[file] = None
            calls[f"{file.removeprefix(root)} {code.co_qualname}"] += 1
            state["changes"] += file != state["last"]
            state["last"] = file
sys.argv = ["dfact", *"fit icqf X.zarr out.model -k 3 --executor inline --max-iter 5".split()]
sys.setprofile(watch)
try:
    main()
except SystemExit as error:
    assert not error.code, error.code
finally:
    sys.setprofile(None)
print("MEASURED")
print("files and changes of file before the first kernel, and in all:", *state["kernel"], len(files), state["changes"])
for name in %r:
    print(sum(count for call, count in calls.items() if call.endswith(name)), name)
"""
COUNTED = (" make_plan", " ICQF.__init__", " Layout.of", " ZarrSource.shape")


def size(root: Path) -> None:
    """Print the size of a package: its modules, and how many of them exactly one other imports."""
    paths = sorted(root.rglob("*.py"))
    lines, code, imports, importers = {}, 0, 0, dict[str, set[Path]]()
    for path in paths:
        text = path.read_text()
        lines[path] = len(text.splitlines())
        docstrings = set[int]()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += (node.end_lineno or 0) - node.lineno + 1
                named = [alias.name for alias in node.names]
                for name in (
                    [node.module or "", *(f"{node.module}.{each}" for each in named)] if isinstance(node, ast.ImportFrom) else named
                ):
                    importers.setdefault(name, set()).add(path)
        written = [i for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")]
        code += len(set(written) - docstrings)
    names = {path: ".".join(path.relative_to(root.parent).with_suffix("").parts) for path in paths if path.stem != "__init__"}
    single = {path for path, name in names.items() if len(importers.get(name, ())) == 1}
    print(f"{sum(lines.values())} lines in {len(paths)} modules: mean {statistics.mean(lines.values()):.0f}, ", end="")
    print(f"median {statistics.median(lines.values()):.0f}; imports are {imports / code:.1%} of {code} lines of code")
    print(f"{len(single)} modules have one importer, {sum(lines[path] < 100 for path in single)} of them below 100 lines")


def main() -> None:
    """Measure a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    root: Path = parser.parse_args().folder.resolve()
    size(root / "dfact")
    with tempfile.TemporaryDirectory() as folder:

        def run(program: str) -> str:
            environment = os.environ | {"PYTHONPATH": str(root)}
            return subprocess.run(
                [sys.executable, "-W", "ignore", "-c", program], cwd=folder, env=environment, check=True, capture_output=True, text=True
            ).stdout

        for name, program in IMPORTS.items():
            modules, code = run(program + COUNT).split()
            print(f"{name}: {modules} modules, {code} lines")
        run(WRITE)
        *_, visited = run(TRACE % (COUNTED,)).partition("MEASURED\n")
        print(visited, end="")


if __name__ == "__main__":
    main()
