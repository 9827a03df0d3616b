"""Time to import and to read datasets with and without a seal, in turn.

python -m benchmarks.inputs.seals [--rows 200000] [--columns 300] [--repeats 15] [--folder DIR]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report, side_by_side
from dfact.data.stored_dataset import verify_dataset
from dfact.imports.writing import writer

_SMALL = 200, 20
_MOST = 1.1
"""Largest ratio of the times of large imports and passes with a seal to those without."""


def _import(X: NDArray[Any], path: Path, *, sealed: bool) -> None:
    if sealed:
        dfact.import_array(X, path, overwrite=True)
        return
    with patch.object(writer, "seal"), patch.object(writer, "update_attributes"):
        dfact.import_array(X, path, overwrite=True)


def _read(path: Path) -> None:
    source = dfact.open_dataset(path).source
    for rows in source.read_ranges(source.layout):
        source.read(rows.start, rows.stop)


def _fit(path: Path) -> None:
    dfact.NMF(5, max_iter=3, random_state=0, tol=0).fit(path)


def measure(rows: int, columns: int, repeats: int, folder: Path) -> list[tuple[str, bool]]:
    rng = np.random.default_rng(0)
    data = {"large": rng.integers(0, 5, (rows, columns), np.uint8), "small": rng.integers(0, 5, _SMALL, np.uint8)}
    measured, thresholds = [], []
    for size, X in data.items():
        sealed, plain = folder / f"{size}-sealed.zarr", folder / f"{size}-plain.zarr"

        tasks: dict[str, dict[str, Callable[[], object]]] = {
            "import": {"sealed": partial(_import, X, sealed, sealed=True), "plain": partial(_import, X, plain, sealed=False)},
            "open and read": {"sealed": partial(_read, sealed), "plain": partial(_read, plain)},
            "fit, 3 iterations": {"sealed": partial(_fit, sealed), "plain": partial(_fit, plain)},
            "verify": {"sealed": partial(verify_dataset, sealed), "plain": partial(verify_dataset, plain)},
        }
        for task, functions in tasks.items():
            seconds = side_by_side(functions, repeats)
            ratio = seconds["sealed"] / seconds["plain"]
            measured.append({"size": "×".join(map(str, X.shape)), "task": task} | seconds | {"ratio": ratio})
            if size == "large" and task != "verify":  # without a seal it also computes the fingerprint
                thresholds.append((f"{task}: at most {_MOST} times as long with a seal", ratio <= _MOST))
        has_seal = ["seal" in json.loads((path / "zarr.json").read_text())["attributes"]["dfact"] for path in (sealed, plain)]
        thresholds.append((f"{size}: one of the two has a seal", has_seal == [True, False]))
    report("inputs_seals", measured, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        return exit_code(measure(arguments.rows, arguments.columns, arguments.repeats, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
