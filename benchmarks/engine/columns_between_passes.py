"""Time of the problems that are solved between passes, relative to a pass: items of ICQF, columns of ExpectileMF, modes of ElasticCP.

    python -m benchmarks.engine.columns_between_passes

Both are seconds of one thread. A pass over more rows takes proportionally longer, unlike what comes between passes. So the table gives
its share of a pass over 20,000 rows on 1 and on 16 workers. The items' problems are also solved all at once, and on two processes.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine import column_map
from dfact.engine.cluster.session import ClusterSession
from dfact.engine.executors import LocalSession

ROWS = 20_000
K = 20
SETTINGS = {"max_iter": 12, "tol": 0, "random_state": 0}


def answers(rows: int, items: int) -> NDArray[np.float32]:
    """Return planted answers, NaN where missing."""
    planted = PlantedQuestionnaire(rows, items, K, top=4, missing=0.1)
    [codes] = planted.chunks(rows)
    return np.where(codes == planted.MISSING_CODE, np.float32(np.nan), codes.astype(np.float32))


def between_passes(model: Any, X: Any) -> tuple[float, float]:
    """Return the median seconds of a thread between two passes over all rows, and of such a pass."""
    times: list[tuple[float, float]] = []
    original = LocalSession.run

    def timed(self: LocalSession, request: Any) -> Any:
        began = time.thread_time()
        sums = original(self, request)
        if request.sample is None:
            times.append((began, time.thread_time()))
        return sums

    with patch.object(LocalSession, "run", timed):
        model.set_params(executor="inline").fit(X)
    began, ended = np.array(times[2:-1]).T  # without the start and the last pass, which differ
    return float(np.median(began[1:] - ended[:-1])), float(np.median(ended - began))


def shares(sample: int, widths: list[int]) -> list[dict[str, Any]]:
    """Measure each model on some rows."""
    rng, table = np.random.default_rng(0), []
    for m in widths:
        cases: list[tuple[str, Any, Any]] = [
            (f"ICQF({K})", dfact.ICQF(K, init="random", **SETTINGS), answers(sample, m)),
            ("ExpectileMF(10), 10%", dfact.ExpectileMF(10, ridge=1, **SETTINGS), sp.random_array((sample, m), density=0.1, rng=rng)),
            ("ElasticCP(8)", dfact.ElasticCP(8, lam=0.1, **SETTINGS), rng.random((sample, m // 50, 50))),
        ]
        for name, model, X in cases:
            between, one = between_passes(model, X)
            of_pass = one * ROWS / sample
            row = {"model": name, "columns": m, "between_ms": between * 1e3, "pass_ms": of_pass * 1e3}
            table.append(row | {f"share, {workers} workers": between * workers / of_pass for workers in (1, 16)})
    return table


def update_of_loadings(X: Any, session: type[Any], clock: Callable[[], float], executor: Any) -> tuple[float, NDArray[Any]]:
    """Return the median seconds of an update of ICQF's loadings, and the components."""
    seconds: list[float] = []
    original = session.map_columns

    def timed(self: Any, request: Any) -> Any:
        began = clock()
        result = original(self, request)
        seconds.append(clock() - began)
        return result

    with patch.object(session, "map_columns", timed):
        components = dfact.ICQF(K, init="random", executor=executor, **SETTINGS).fit(X).components_
    return float(np.median(seconds)), components


def loadings(sample: int, widths: list[int]) -> tuple[list[dict[str, Any]], list[tuple[str, bool]]]:
    """Time the update of the loadings at once, by tiles, and on two processes."""
    rows, thresholds = [], []
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**settings) as cluster, Client(cluster, set_as_default=False) as client:
        for m in widths:
            X = answers(sample, m)
            with patch.object(column_map, "_TILE_COLUMNS", 1 << 40):
                whole, _ = update_of_loadings(X, LocalSession, time.thread_time, "inline")
            tiled, expected = update_of_loadings(X, LocalSession, time.thread_time, "inline")
            shared, found = update_of_loadings(X, ClusterSession, time.perf_counter, client)
            rows.append({"items": m, "at_once_ms": whole * 1e3, "tiles_ms": tiled * 1e3, "two_processes_ms": shared * 1e3})
            thresholds.append((f"{m} items: bit-identical on two processes", bool(np.array_equal(expected, found))))
            text = f"{m} items: by tiles {tiled / whole:.2f} of the time of all at once (threshold 0.8)"
            thresholds.append((text, tiled <= 0.8 * whole))
    return rows, thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=600, help="rows that are measured")
    parser.add_argument("--columns", type=int, nargs="+", default=[1_000, 5_000, 20_000])
    options = parser.parse_args()
    report("columns_between_passes", shares(options.sample, options.columns))
    rows, thresholds = loadings(options.sample, options.columns)
    report("loadings_between_passes", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
