"""Time and peak memory of the import of a csv and of a parquet file, with this version and with an earlier one.

    python -m benchmarks.inputs.parallel_import --against FOLDER [--rows 100000] [--columns 1000] [--repeats 3] [--folder DIR]

FOLDER is a checkout of the earlier version, made for instance by ``git worktree add FOLDER COMMIT``. The two versions import in
turn, each time in a new process and after a small import that compiles the kernels. Both must write the same values.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import exit_code, report

_SHARE = 0.5
_PEAK_MIB = 400
_BLOCK = 5000  # rows that are written at once
_GROUP_ROWS = 10_000
_IMPORT = """
import json, re, sys, time
from hashlib import blake2b
from pathlib import Path
import dfact
small, source, target = sys.argv[1:]
dfact.import_table(small, target, items="Q*")
began = time.perf_counter()
dataset = dfact.import_table(source, target, items="Q*", overwrite=True)
seconds = time.perf_counter() - began
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
digest = blake2b(digest_size=16)
for start in range(0, dataset.shape[0], 4096):
    digest.update(dataset.source.read(start, min(start + 4096, dataset.shape[0])).data)
print(json.dumps([seconds, peak, digest.hexdigest()]))
"""


def write_tables(folder: Path, name: str, n_rows: int, n_columns: int) -> dict[str, Path]:
    """Write answers from 1 to 5, a twentieth of them missing, as csv and as parquet with row groups of 10,000 rows."""
    rng = np.random.default_rng(0)
    header = [f"Q{j}" for j in range(n_columns)]
    paths = {ending: folder / f"{name}.{ending}" for ending in ("csv", "parquet")}
    schema = pa.schema([(column, pa.int64()) for column in header])
    cells = np.array([b",", b"1,", b"2,", b"3,", b"4,", b"5,"], dtype=object)
    with paths["csv"].open("wb") as csv, pq.ParquetWriter(paths["parquet"], schema) as parquet:
        csv.write(",".join(header).encode() + b"\n")
        for start in range(0, n_rows, _GROUP_ROWS):
            values = rng.integers(1, 6, (min(_GROUP_ROWS, n_rows - start), n_columns))
            values[rng.random(values.shape) < 0.05] = 0
            for block in range(0, len(values), _BLOCK):
                csv.write(b"".join(b"".join(row)[:-1] + b"\n" for row in cells[values[block : block + _BLOCK]]))
            columns = [pa.array(column, mask=column == 0) for column in np.ascontiguousarray(values.T)]
            parquet.write_table(pa.table(columns, schema=schema), row_group_size=_GROUP_ROWS)
    return paths


def run(root: Path, small: Path, source: Path) -> tuple[float, float, str]:
    """Import with the version at ``root``; return seconds, peak MiB and a digest of the stored values."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        arguments = [str(small), str(source), str(Path(folder) / "d.zarr")]
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT, *arguments],
            env=os.environ | {"PYTHONPATH": str(root)},
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
        )
    seconds, peak, digest = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak, digest


def compare(kind: str, small: Path, source: Path, versions: Mapping[str, Path], repeats: int) -> list[dict[str, Any]]:
    """Return a row for each version: median seconds, and the highest peak."""
    runs: dict[str, list[tuple[float, float, str]]] = {name: [] for name in versions}
    for _ in range(repeats):
        for name, root in versions.items():
            runs[name].append(run(root, small, source))
    digests = {digest for each in runs.values() for _, _, digest in each}
    return [
        {
            "file": kind,
            "version": name,
            "seconds": statistics.median(seconds for seconds, _, _ in each),
            "peak_mib": max(peak for _, peak, _ in each),
            "same_values": len(digests) == 1,
        }
        for name, each in runs.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    versions = {"before": options.against.resolve(), "now": Path(__file__).resolve().parents[2]}
    rows, thresholds = [], []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        small = write_tables(Path(folder), "small", 200, options.columns)
        for kind, source in write_tables(Path(folder), "big", options.rows, options.columns).items():
            before, now = compare(kind, small[kind], source, versions, options.repeats)
            rows += [before, now]
            share = now["seconds"] / before["seconds"]
            thresholds += [
                (f"{kind}: {share:.0%} of the time before (threshold {_SHARE:.0%})", share <= _SHARE),
                (f"{kind}: peak {now['peak_mib']:.0f} MiB (threshold {_PEAK_MIB} MiB)", now["peak_mib"] <= _PEAK_MIB),
                (f"{kind}: the values are the same", now["same_values"]),
            ]
    report("parallel_import", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
