"""A fit in one process imports no cluster and no reader, and small commands only what they use."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np

import dfact

_FIT = """
import sys
import numpy as np
import dfact
dfact.ICQF(2, max_iter=2).fit(np.random.default_rng(0).integers(0, 5, (200, 12)).astype(float))
print(sorted(sys.modules))
"""
_INFO = """
import sys
from dfact.cli.main import main
assert main(["info", sys.argv[1]]) == 0
print(sorted(sys.modules))
"""
_SLOW = {"dask", "distributed", "matplotlib", "pandas", "pyarrow", "scipy.optimize", "scipy.sparse", "scipy.stats", "sklearn", "tqdm"}
_OWN = {"dfact.engine.cluster", "dfact.imports", "dfact.batch", "dfact.report"}


def imported(code: str, *arguments: str) -> set[str]:
    """Return the modules that a program imports."""
    shown = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True).stdout
    return set(ast.literal_eval(shown.splitlines()[-1]))


def test_a_fit_of_an_array_imports_no_cluster_and_no_reader() -> None:
    assert not imported(_FIT) & (_SLOW | _OWN)


def test_a_summary_of_a_dataset_imports_no_compiler_and_no_pandas(tmp_path: Path) -> None:
    dfact.import_array(np.array([[1.0, 2.0], [3.0, np.nan]]), tmp_path / "answers.zarr", confounders={"age": [20, 30], "site": ["a", "b"]})
    assert not imported(_INFO, str(tmp_path / "answers.zarr")) & (_SLOW | {"numba", "scipy"})
