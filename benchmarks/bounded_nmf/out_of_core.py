"""ICQF on a planted questionnaire on disk, within a memory limit.

    python -m benchmarks.bounded_nmf.out_of_core [--rows 500000] [--columns 1000] [--folder DIR] [--tables]

The data is streamed to disk. For each solver and memory limit a fit in a new process reports
the plan, the cost of a pass and the peak memory; the last limit also times a complete fit to a relative change
of 1e-4. With --tables the same answers are also written as csv and parquet and imported from them.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import dfact
from benchmarks.common import Peak, call_in_new_process, exit_code, report
from dfact.data.memory_limit import parse_bytes
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.imports.writing.writer import dataset_writer

PASSES = 8


def make(path: Path, planted: PlantedQuestionnaire) -> None:
    """Return the planted answers as a dataset."""
    labels = np.asarray([f"Q{j}" for j in range(planted.m)], dtype=object)
    shape = (planted.n, planted.m)
    with dataset_writer(path, shape, np.dtype(np.uint8), missing_code=255, column_labels=labels, name="planted") as writer:
        writer.finish(writer.write(planted.chunks(10_000)))


def make_tables(folder: Path, planted: PlantedQuestionnaire) -> None:
    """Write the planted answers as csv (missing: empty) and parquet (missing: null)."""
    schema = pa.schema([(f"Q{j}", pa.uint8()) for j in range(planted.m)])
    with (
        pyarrow.csv.CSVWriter(folder / "answers.csv", schema) as text,
        pyarrow.parquet.ParquetWriter(folder / "answers.parquet", schema) as columns,
    ):
        for chunk in planted.chunks(5_000):
            arrays = [pa.array(chunk[:, j], mask=chunk[:, j] == planted.MISSING_CODE) for j in range(planted.m)]
            batch = pa.record_batch(arrays, schema=schema)
            text.write_batch(batch)
            columns.write_batch(batch)


@dataclass
class Clock:
    """A callback that records when iterations end, except passes over a sample."""

    times: list[float]

    def __call__(self, iteration: Any) -> None:
        if iteration.number:
            self.times.append(iteration.seconds)


def fit(path: str, k: int, limit: str, solver: str, passes: int = PASSES, tol: float = 0) -> dict[str, Any]:
    dataset = dfact.open_dataset(path)
    clock = Clock([])
    model = dfact.ICQF(k, solver=solver, q_max=3, bounds=(0, 3), max_iter=passes, tol=tol, memory_limit=limit, callbacks=[clock])
    plan = dfact.plan(model, dataset)
    began = time.perf_counter()
    with Peak() as peak:
        model.fit(dataset)
    seconds = float(np.median([b - a for a, b in pairwise(clock.times)][1:]))  # the first passes also read and compile
    return {
        "solver": solver,
        "memory_limit": limit,
        "planned_GiB": plan.peak / 2**30,
        "peak_GiB": peak.bytes / 2**30,
        "spilled_GiB": plan.spilled / 2**30,
        "planned_spill_s": plan.spill_seconds,
        "pass_s": seconds,
        "ns_per_entry": seconds * 1e9 / (dataset.shape[0] * dataset.shape[1]),
        "passes": model.n_iter_,
        "fit_s": time.perf_counter() - began,
        "objective": float(model.objective_history_[-1]),
    }


def import_file(source: str, destination: str) -> dict[str, Any]:
    began = time.perf_counter()
    with Peak() as peak:
        dataset = dfact.import_table(source, destination, items="Q*", shift=False, overwrite=True)
    return {
        "file": Path(source).name,
        "file_GiB": Path(source).stat().st_size / 2**30,
        "import_s": time.perf_counter() - began,
        "peak_GiB": peak.bytes / 2**30,
        "fingerprint": dataset.fingerprint,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--limits", nargs="*", default=["4GiB", "1GiB"])
    parser.add_argument("--tables", action="store_true", help="also import the answers from csv and parquet")
    options = parser.parse_args()
    planted = PlantedQuestionnaire(options.rows, options.columns, options.components)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"planted-{options.rows}x{options.columns}.zarr"
        if not path.exists():
            make(path, planted)
        this = "benchmarks.bounded_nmf.out_of_core"
        runs = [("mm", limit) for limit in options.limits] + [("admm", options.limits[0])]
        rows = [call_in_new_process(this, "fit", str(path), options.components, limit, solver) for solver, limit in runs]
        whole = call_in_new_process(this, "fit", str(path), options.components, options.limits[-1], "mm", 1000, 1e-4)
        thresholds = [
            (
                f"{r['solver']}: peak {r['peak_GiB']:.2f} GiB within {r['memory_limit']}",
                r["peak_GiB"] * 2**30 <= parse_bytes(r["memory_limit"]),
            )
            for r in [*rows, whole]
        ]
        thresholds += [
            (
                f"{r['solver']}: {r['ns_per_entry']:.2f} ns per entry and pass at {r['memory_limit']} (threshold {threshold})",
                r["ns_per_entry"] <= threshold,
            )
            for r in rows
            for threshold in [2 if r["solver"] == "mm" else 3]
        ]
        thresholds.append(("mm: the same objective at every limit", len({r["objective"] for r in rows[:-1]}) == 1))
        thresholds.append(
            (f"the whole fit to 1e-4 takes {whole['fit_s']:.0f} s, {whole['passes']} passes (threshold 180 s)", whole["fit_s"] <= 180)
        )
        rows.append(whole)
        report("icqf_out_of_core", rows, thresholds)
        if options.tables:
            make_tables(folder, planted)
            tables = [
                call_in_new_process(this, "import_file", str(folder / f"answers.{e}"), str(folder / "imported.zarr"))
                for e in ("csv", "parquet")
            ]
            expected = dfact.open_dataset(path).fingerprint
            more = [(f"{r['file']}: peak {r['peak_GiB']:.2f} GiB (threshold 1)", r["peak_GiB"] <= 1) for r in tables]
            more.append(("both files give the same dataset", all(r["fingerprint"] == expected for r in tables)))
            report("import_tables", tables, more)
            thresholds += more
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
