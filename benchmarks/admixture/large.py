"""A fit of an admixture to 10¹⁰ genotypes within a small part of their size, and the time of a larger one on a cluster.

    python -m benchmarks.admixture.large [--persons 100000] [--variants 100000] [-k 8] [--limit 4GiB] [--threads 2]
    python -m benchmarks.admixture.large --wide [--persons 2000] [--variants 1000000]

Simulated genotypes are written to TMPDIR, a quarter of a byte each, and stay there for the next run. The fit is a process of its own.
With ``--wide`` its workers are, too, and the peak of each is compared with the plan.
The time of 500,000 × 800,000 on workers of one thread is predicted from the nanoseconds of a genotype measured here and the bytes that
a read sends, over the network of benchmarks.engine.cost_model.
"""

import argparse
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import dfact
from benchmarks.admixture.simulation import root_mean_square_error, write_dataset
from benchmarks.common import call_in_new_process, exit_code, peak_bytes, report
from benchmarks.engine.cost_model import NETWORK
from dfact.data.layout import Layout
from dfact.data.synthetic import PlantedAdmixture
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.tiles import n_groups

_ROWS = 128
_LEVELS = 1 << 16  # of uniform numbers: probabilities are rounded to 1.5e-5
_CLUSTER = 500_000, 800_000
_WORKERS = 64, 256
_GENOTYPE_NANOSECONDS = 20


class PlantedLarge(PlantedAdmixture):
    """The same planted model, whose genotypes are drawn on threads, as two alleles from numbers of 16 bits."""

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the genotypes, 128 people at a time; the same ones each time."""
        P = self.P.astype(np.float32) * _LEVELS

        def draw(start: int) -> NDArray[np.uint8]:
            thresholds = (self.Q[start : start + _ROWS].astype(np.float32) @ P).astype(np.uint16)
            rng = np.random.default_rng([self.seed, start])
            genotypes = np.zeros(thresholds.shape, np.uint8)
            for _ in range(2):
                genotypes += rng.integers(0, _LEVELS, thresholds.shape, np.uint16) < thresholds
            return genotypes

        drawn: deque[Future[NDArray[np.uint8]]] = deque()
        with ThreadPoolExecutor(2) as pool:
            for start in range(0, self.n, _ROWS):
                drawn.append(pool.submit(draw, start))
                if len(drawn) > 4:
                    yield drawn.popleft().result()
            while drawn:
                yield drawn.popleft().result()


def write(path: str, n: int, m: int, k: int) -> None:
    """Write the genotypes; called in a new process."""
    write_dataset(PlantedLarge(n, m, k), Path(path))


def fit(path: str, k: int, limit: str, threads: int, processes: bool) -> list[dict[str, Any]]:
    """Fit on threads, or on as many processes of one; return the figures of each process. Called in a new process, the driver."""
    data, seconds, cpu = dfact.open_dataset(path), list[float](), list[float]()
    n, m = data.shape
    with ExitStack() as stack:
        executor: Any = stack.enter_context(_cluster(threads)) if processes else ThreadsExecutor(threads)
        callbacks = [lambda step: seconds.append(step.seconds), lambda _: cpu.append(time.process_time())]
        model = dfact.Admixture(k, executor=executor, memory_limit=limit, callbacks=callbacks)
        plan = dfact.plan(model, data)
        began = time.perf_counter()
        model.fit(data)
        total = time.perf_counter() - began
        peaks = {"driver": peak_bytes()}
        if processes:
            peaks |= {f"worker {number}": peak for number, peak in enumerate(executor.run(peak_bytes).values())}
    read = seconds[-1] / model.n_iter_
    figures: dict[str, Any] = {
        "shape": f"{n:,} × {m:,}",
        "limit": limit,
        "threads": threads,
        "start_seconds": total - seconds[-1],
        "reads": model.n_iter_,
        "read_seconds": read,
        "wall_ns": 1e9 * read / (n * m),
        "thread_ns": 1e9 * read * threads / (n * m),
        "driver_cpu_ns": 1e9 * (cpu[-1] - cpu[0]) / max(1, len(cpu) - 1) / (n * m),
        "log_likelihood": model.log_likelihood_,
        "rmse": root_mean_square_error(np.asarray(model.memberships_, np.float64), PlantedAdmixture(n, m, k).Q),
    }
    return [{"process": name, "planned_MiB": plan.peak / 2**20, "peak_MiB": peak / 2**20, **figures} for name, peak in peaks.items()]


@contextmanager
def _cluster(workers: int) -> Iterator[Client]:
    local = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address="127.0.0.1:0")
    with local, Client(local, set_as_default=False) as client:
        yield client


def read_seconds(thread_ns: float, k: int, workers: int) -> float:
    """Return the seconds of a read of 500,000 × 800,000 on one-thread workers, each with its own network connection.

    The busiest worker has its groups of partitions to process, receives P, and gives and takes the tiles' sums of its groups, which
    are formed on the way. The driver gives P to the first worker; it sends and receives the state of the tiles twice.
    """
    n, m = _CLUSTER
    groups = n_groups(Layout.of(_CLUSTER))
    busiest = -(-groups // workers) / groups
    width = 2 * k + k * (k + 1) // 2
    arithmetic = busiest * n * m * thread_ns / 1e9
    nodes = max(1, -(-groups // workers)).bit_length()  # sums that one worker holds at the end
    sums = 2 * nodes * 8 * width * m / NETWORK
    broadcast = 2 * max(1, workers.bit_length()) * 4 * k * m / NETWORK
    states = 2 * 2 * 10 * 8 * k * m / NETWORK
    return arithmetic + sums + broadcast + states


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wide", action="store_true", help="2,000 × 1,000,000, on workers that are processes")
    parser.add_argument("--persons", type=int)
    parser.add_argument("--variants", type=int)
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--limit", default="4GiB")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    wide, k, module = options.wide, options.k, "benchmarks.admixture.large"
    n, m = options.persons or (2_000 if wide else 100_000), options.variants or (1_000_000 if wide else 100_000)
    path = Path(tempfile.gettempdir()) / f"dfact-admixture-{n}-{m}-{k}.zarr"
    if not path.exists():
        call_in_new_process(module, "write", str(path), n, m, k)
    rows = call_in_new_process(module, "fit", str(path), k, options.limit, options.threads, wide)
    thresholds = [(f"the peak of {row['process']} is within the plan", row["peak_MiB"] <= row["planned_MiB"]) for row in rows]
    if not wide:
        [row] = rows
        for workers in _WORKERS:
            row[f"{workers} workers, minutes"] = row["reads"] * read_seconds(row["thread_ns"], k, workers) / 60
        found = f"a genotype takes {row['wall_ns']:.1f} ns of a read on {options.threads} threads"
        thresholds.append((f"{found} (threshold {_GENOTYPE_NANOSECONDS})", row["wall_ns"] <= _GENOTYPE_NANOSECONDS))
    report("admixture_wide" if wide else "admixture_large", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
