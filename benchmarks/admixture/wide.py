"""A fit of an admixture to a million SNPs on two processes: reads, seconds, and peak memory beside the plan.

    python -m benchmarks.admixture.wide [--persons 2000] [--variants 1000000] [-k 8] [--limit 4GiB] [--folder DIR]

Simulated genotypes are written to disk, a quarter of a byte each. The driver and each worker are processes of their own.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import dfact
from benchmarks.admixture.simulation import root_mean_square_error, write_dataset
from benchmarks.common import call_in_new_process, exit_code, peak_bytes, report
from dfact.data.synthetic import PlantedAdmixture

WORKERS = 2


def write(path: str, n: int, m: int, k: int) -> None:
    """Write simulated genotypes; called in a new process."""
    write_dataset(PlantedAdmixture(n, m, k), Path(path))


def fit(path: str, k: int, limit: str) -> list[dict[str, Any]]:
    """Fit on a cluster; return the figures of each process. Called in a new process, which is the driver."""
    data, seconds = dfact.open_dataset(path), list[float]()
    n, m = data.shape
    cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address="127.0.0.1:0")
    with cluster, Client(cluster, set_as_default=False) as client:
        model = dfact.Admixture(k, executor=client, memory_limit=limit, callbacks=[lambda step: seconds.append(step.seconds)])
        plan = dfact.plan(model, data)
        began = time.perf_counter()
        model.fit(data)
        total = time.perf_counter() - began
        peaks = {"driver": peak_bytes()}
        peaks |= {f"worker {number}": peak for number, peak in enumerate(client.run(peak_bytes).values())}
    read = seconds[-1] / model.n_iter_
    figures: dict[str, Any] = {
        "start_seconds": total - seconds[-1],
        "reads": model.n_iter_,
        "read_seconds": read,
        "thread_ns": 1e9 * read * WORKERS / (n * m),
        "log_likelihood": model.log_likelihood_,
        "rmse": root_mean_square_error(np.asarray(model.memberships_, np.float64), PlantedAdmixture(n, m, k).Q),
    }
    return [{"process": name, "planned_MiB": plan.peak / 2**20, "peak_MiB": peak / 2**20, **figures} for name, peak in peaks.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--persons", type=int, default=2_000)
    parser.add_argument("--variants", type=int, default=1_000_000)
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--limit", default="4GiB")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path, module = f"{folder}/genotypes.zarr", "benchmarks.admixture.wide"
        call_in_new_process(module, "write", path, options.persons, options.variants, options.k)
        rows = call_in_new_process(module, "fit", path, options.k, options.limit)
    thresholds = [(f"the peak of {row['process']} is within the plan", row["peak_MiB"] <= row["planned_MiB"]) for row in rows]
    report("admixture_wide", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
