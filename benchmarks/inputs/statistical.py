"""Import of SPSS, Stata and SAS files.

    python -m benchmarks.inputs.statistical [--rows 200000] [--columns 300] [--folder DIR]

The same answers, of which 3% are missing, are written in each format. A new process imports them: seconds, CPU seconds and peak
memory, all with its start.
"""

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import call_in_new_process, exit_code, report

MOST_MIB = 450


def answers(rows: int, columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    values = rng.integers(1, 6, (rows, columns)).astype(np.float64)
    values[rng.random(values.shape, dtype=np.float32) < 0.03] = np.nan
    return pd.DataFrame(values, columns=[f"q{j}" for j in range(columns)])


def write(folder: str, rows: int, columns: int) -> None:
    """Write the answers in each format."""
    import pyreadstat

    frame = answers(rows, columns)
    writers: dict[str, Callable[..., None]] = {
        "plain.sav": pyreadstat.write_sav,
        "compressed.sav": lambda data, path: pyreadstat.write_sav(data, path, row_compress=True),
        "blocks.zsav": lambda data, path: pyreadstat.write_sav(data, path, compress=True),
        "stata.dta": pyreadstat.write_dta,
        "transport.xpt": lambda data, path: pyreadstat.write_xport(data, path, file_format_version=5),
    }
    for name, write_file in writers.items():
        write_file(frame, str(Path(folder) / name))


def read(path: str) -> dict[str, Any]:
    """Import a file, and return what the dataset holds and what it cost this process."""
    from dfact.imports.tables.table import import_table

    began = time.perf_counter()
    target = f"{path}.zarr"
    dataset = import_table(path, target, items="*")
    used = resource.getrusage(resource.RUSAGE_SELF)
    cost = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
    }
    values = dataset.source.read(0, dataset.shape[0])
    return {"rows": dataset.shape[0], "digest": hashlib.blake2b(values.data, digest_size=8).hexdigest()} | cost


def measure(rows: int, columns: int, folder: Path) -> list[tuple[str, bool]]:
    call_in_new_process(__spec__.name, "write", str(folder), rows, columns)
    files = sorted(path for path in folder.iterdir() if path.suffix in (".sav", ".zsav", ".dta", ".xpt"))
    measured = [
        {"file": path.name, "mib": path.stat().st_size / 2**20} | call_in_new_process(__spec__.name, "read", str(path)) for path in files
    ]
    thresholds = [(f"{each['file']} within {MOST_MIB} MiB", each["peak_mib"] <= MOST_MIB) for each in measured]
    held = {(each["rows"], each["digest"]) for each in measured}
    thresholds.append(("the same answers from all formats", len(held) == 1 and measured[0]["rows"] == rows))
    report("inputs_statistical", measured, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        return exit_code(measure(arguments.rows, arguments.columns, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
