"""Description of items and scales of a planted questionnaire on disk, within a memory limit.

    python -m benchmarks.factor_analysis.describe [--rows 50000] [--columns 1000] [--limit 1GiB] [--folder DIR]

Scales have 20 items each. A run in a new process reports seconds, planned and peak memory, for each treatment of missing answers and each
kind of correlation.
"""

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import dfact
from benchmarks.bounded_nmf.out_of_core import make
from benchmarks.common import Peak, call_in_new_process, exit_code, report
from dfact.data.memory_limit import parse_bytes
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.questionnaires.description import plan_description

ITEMS = 20
"""Number of items of a scale."""
VARIANTS = (("pearson", "pairwise", 1), ("pearson", "listwise", 1), ("polychoric", "pairwise", 2))
"""Correlation, treatment of missing answers, and the multiple of the limit that it may use: tables of all pairs are larger."""


def describe(path: str, limit: int, correlation: str, missing: str) -> dict[str, Any]:
    """Describe a dataset and return the time and the memory that it took."""
    dataset = dfact.open_dataset(path)
    labels = [str(label) for label in dataset.column_labels]
    scales = {f"scale {start // ITEMS}": labels[start : start + ITEMS] for start in range(0, len(labels), ITEMS)}
    settings: dict[str, Any] = {"scales": scales, "correlation": correlation, "missing": missing, "memory_limit": limit}
    plan = plan_description(dataset, **settings)
    began = time.perf_counter()
    with Peak() as peak, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # planted scales have items of all directions
        description = dfact.describe(dataset, **settings)
    return {
        "correlation": correlation,
        "missing": missing,
        "limit_GiB": limit / 2**30,
        "seconds": time.perf_counter() - began,
        "planned_GiB": plan.peak / 2**30,
        "peak_GiB": peak.bytes / 2**30,
        "n": description.n,
        "kmo": description.kmo,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--limit", default="1GiB")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--variants", type=int, default=len(VARIANTS), help="number of variants, from the first")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "planted.zarr"
        make(path, PlantedQuestionnaire(arguments.rows, arguments.columns, 8, seed=0, missing=0.0005))
        limit, module = parse_bytes(arguments.limit), "benchmarks.factor_analysis.describe"
        rows = [
            call_in_new_process(module, "describe", str(path), times * limit, correlation, missing)
            for correlation, missing, times in VARIANTS[: arguments.variants]
        ]
    thresholds = [
        (
            f"{row['correlation']}, {row['missing']}: peak {row['peak_GiB']:.2f} GiB (threshold {row['planned_GiB']:.2f}, as planned)",
            row["peak_GiB"] <= row["planned_GiB"] <= row["limit_GiB"],
        )
        for row in rows
    ]
    report("describe", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
