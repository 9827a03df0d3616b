"""Peak memory of the driver while a large dask array is fitted on a cluster.

python -m benchmarks.engine.dask_arrays            8 GiB, generated chunk by chunk, on two workers
python -m benchmarks.engine.dask_arrays --small    a hundredth of that
"""

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import call_in_new_process, exit_code, peak_bytes, report

COLUMNS = 1024
CHUNK = 16_384
ITERATIONS = 3


def answers(rows: tuple[int, int]) -> NDArray[np.float32]:
    """Return a chunk of answers 0 to 3 with some structure, a twentieth missing."""
    rng = np.random.default_rng(rows[0])
    loadings = np.random.default_rng(0).random((8, COLUMNS), np.float32)
    X = np.rint(np.clip(rng.random((rows[1] - rows[0], 8), np.float32) @ loadings - 0.5, 0, 3))
    X[rng.random(X.shape, np.float32) < 0.05] = np.nan
    return X.astype(np.float32)


def generated(n: int) -> Any:
    """Return a lazy array (n, COLUMNS)."""
    import dask.array as da
    from dask import delayed

    chunk = delayed(answers, pure=True)
    edges = [*range(0, n, CHUNK), n]
    parts = [da.from_delayed(chunk((a, b)), (b - a, COLUMNS), np.float32) for a, b in pairwise(edges)]
    return da.concatenate(parts)


def fit(n: int) -> dict[str, Any]:
    """Fit and transform on a cluster of two workers; return the peaks of driver and workers."""
    from dask import config
    from distributed import Client, LocalCluster

    import dfact

    X = generated(n)
    limit = max(2 << 30, int(X.nbytes * 0.95))
    with (
        config.set({"distributed.worker.multiprocessing-method": "forkserver"}),  # which imports once for both
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        began = time.perf_counter()
        model = dfact.ICQF(8, q_max=3, bounds=(0, 3), max_iter=ITERATIONS, tol=0, random_state=0).fit(X)
        seconds = time.perf_counter() - began
        factors = model.transform(X[:2048])
        lazy = type(factors).__module__.startswith("dask")
        same = bool((factors.compute() == model.transform(X[:2048].compute())).all())
        workers = list(client.run(peak_bytes).values())
    return {
        "GiB": X.nbytes / 2**30,
        "seconds": seconds,
        "driver GiB": peak_bytes() / 2**30,
        "factors GiB": model.factors_.nbytes / 2**30,
        "workers GiB": sum(workers) / 2**30,
        "transform lazy": lazy,
        "same bits": same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the data")
    n = (8 << 30) // (4 * COLUMNS) // (100 if parser.parse_args().small else 1)
    row = call_in_new_process("benchmarks.engine.dask_arrays", "fit", n)
    thresholds = [
        (f"the driver's peak is {row['driver GiB']:.2f} GiB, at most 1", row["driver GiB"] < 1),
        ("transform of a dask array is lazy and gives the bits of that in memory", row["transform lazy"] and row["same bits"]),
    ]
    report("dask_arrays", [row], thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
