"""Import of tables with many columns.

    python -m benchmarks.inputs.many_columns [--folder DIR]

A new process imports 300 × 20,000 answers as csv, and 300 × 5,000 labelled answers as an SPSS file: CPU seconds with its start and with
those of the process that parses the file.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import call_in_new_process, exit_code, report

ROWS = 300
MOST_SECONDS = {"wide.csv": (20_000, 20.0), "wide.sav": (5_000, 5.0)}
"""Columns of each file, and CPU seconds of its import."""


def write(folder: str, name: str, columns: int) -> None:
    """Write a table of answers."""
    import pyreadstat

    path = Path(folder) / name
    frame = pd.DataFrame(np.random.default_rng(0).integers(1, 6, (ROWS, columns)), columns=[f"Q{j}" for j in range(columns)])
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
        return
    labels = dict(enumerate(["never", "rarely", "sometimes", "often", "always"], start=1))
    pyreadstat.write_sav(frame.astype(np.float64), str(path), variable_value_labels=dict.fromkeys(frame, labels))


def read(path: str) -> dict[str, Any]:
    """Import a file, and return the shape of the dataset and the CPU seconds of this process and of those that it started."""
    import psutil

    from dfact.imports.tables.table import import_table

    dataset = import_table(path, f"{path}.zarr", items="Q*")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    running = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    seconds = sum(each.ru_utime + each.ru_stime for each in used) + sum(each.user + each.system for each in running)
    return {"shape": list(dataset.shape), "cpu_seconds": seconds}


def measure(folder: Path) -> list[tuple[str, bool]]:
    measured, thresholds = [], []
    for name, (columns, most) in MOST_SECONDS.items():
        call_in_new_process(__spec__.name, "write", str(folder), name, columns)
        measured.append({"file": name} | call_in_new_process(__spec__.name, "read", str(folder / name)))
        thresholds.append((f"{name}: {columns} columns", measured[-1]["shape"] == [ROWS, columns]))
        thresholds.append((f"{name} within {most:g} CPU seconds", measured[-1]["cpu_seconds"] <= most))
    report("inputs_many_columns", measured, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        return exit_code(measure(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
