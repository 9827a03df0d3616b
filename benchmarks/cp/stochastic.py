"""ElasticCP's stochastic solver against block coordinate descent: objective, bytes, seconds, scaling, the paper's table 3.

python -m benchmarks.cp.stochastic [--parts disk workers table_3] [--runs 30] [--folder FOLDER] [--picture]

Both solvers run on threads, without a cache for values between passes. Bytes count the decoded chunks.
Simulated workers wait for the time of their steps. All parts take about an hour on two cores.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import exit_code, report
from benchmarks.cp.speed import make
from benchmarks.engine.idle_workers import IdleCluster, WaitingSteps
from benchmarks.readme_figures import save
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.base import ZarrSource
from dfact.data.synthetic import elastic_cp_simulation
from dfact.engine.executors import LocalSession, ThreadsExecutor
from dfact.engine.memory_plan import Plan
from dfact.engine.partitions import Partitions
from dfact.engine.passes import PartialSums, RunPass
from dfact.models.cp.path import default_lambdas
from dfact.models.cp.samples import AdamaxState, seeded, spread_partitions
from dfact.progress import Iteration

Thresholds = list[tuple[str, bool]]
P = TypeVar("P", bound=PartialSums)


class CountedSource(ZarrSource):
    """Counts the bytes that are read of a source and of its slices."""

    bytes_read: ClassVar[int] = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        values = super().read(start, stop)
        CountedSource.bytes_read += values.nbytes
        return values

    def slice(self, rows: slice) -> "CountedSource":
        part = super().slice(rows)
        return CountedSource(part.array, part.offset, part.n)


def counted(path: Path) -> Dataset:
    dataset = dfact.open_dataset(path)
    assert isinstance(dataset.source, ZarrSource)
    return replace(dataset, source=CountedSource(dataset.source.array))


class TimedSession(LocalSession):
    """A session that records the seconds of passes by their names."""

    def run(self, request: RunPass[P]) -> P:
        began = time.perf_counter()
        sums = super().run(request)
        Forgetful.seconds[type(request.pass_).__name__] += time.perf_counter() - began
        return sums


class Forgetful(ThreadsExecutor):
    """An executor that caches no values between passes, as if there were no memory for them."""

    seconds: ClassVar[Counter[str]] = Counter()

    def open(self, partitions: Partitions, plan: Plan) -> LocalSession:
        return TimedSession(partitions, replace(plan, resident_values=0), self.threads)


@dataclass
class Run:
    """A fit and its cost."""

    model: dfact.ElasticCP
    bytes: int
    seconds: float
    watching: float
    """The share of the time in which the objective was watched."""
    curve: list[tuple[float, int, float]]
    """Seconds, bytes and objective after each iteration."""


def fit(dataset: Dataset, **parameters: Any) -> Run:
    """Fit without a cache for values."""
    CountedSource.bytes_read, curve = 0, list[tuple[float, int, float]]()
    Forgetful.seconds.clear()
    began = time.perf_counter()

    def note(iteration: Iteration) -> None:
        curve.append((time.perf_counter() - began, CountedSource.bytes_read, iteration.objective))

    model = dfact.ElasticCP(executor=Forgetful(), callbacks=[note], **parameters).fit(dataset)
    seconds = time.perf_counter() - began
    return Run(model, CountedSource.bytes_read, seconds, Forgetful.seconds["MonitorPass"] / seconds, curve)


def disk(folder: Path, shapes: list[tuple[int, int, int]], shares: list[float], rank: int, *, picture: bool = False) -> Thresholds:
    """Run both solvers on planted answers of which a share is missing."""
    rows, thresholds = [], []
    for shape in shapes:
        for share in shares:
            dataset = counted(make(folder, shape, rank, share))
            size = float(np.prod(shape)) * dataset.dtype.itemsize
            runs = {solver: fit(dataset, n_components=rank, lam=1.0, solver=solver, random_state=0) for solver in ("bcd", "stochastic")}
            for solver, run in runs.items():
                rows.append(
                    {
                        "shape": "×".join(map(str, shape)),
                        "missing": share,
                        "solver": solver,
                        "objective": float(run.model.objective_history_[-1]),
                        "iterations": run.model.n_iter_,
                        "converged": run.model.converged_,
                        "times the data read": run.bytes / size,
                        "seconds": run.seconds,
                        "watching": run.watching,
                    }
                )
            print(rows[-2:], flush=True)
            thresholds += compared(f"{rows[-1]['shape']}, {share:.0%} missing", runs["bcd"], runs["stochastic"])
            if picture and shape == shapes[0] and share == shares[0]:
                draw(runs)
    report("elastic_cp_stochastic_disk", rows, thresholds)
    return thresholds


def compared(data: str, exact: Run, sampled: Run) -> Thresholds:
    excess = 100 * (sampled.model.objective_history_[-1] / exact.model.objective_history_[-1] - 1)
    read, time_share = sampled.bytes / exact.bytes, sampled.seconds / exact.seconds
    return [
        (f"{data}: {excess:+.2f}% of the objective of block coordinate descent (threshold 1%)", excess <= 1),
        (f"{data}: having read {read:.3f} of its bytes (threshold 0.25)", read <= 0.25),
        (f"{data}: in {time_share:.2f} of its time (threshold 0.5)", time_share <= 0.5),
        (f"{data}: watching the objective takes {sampled.watching:.1%} of the time (threshold 5%)", sampled.watching < 0.05),
    ]


def draw(runs: dict[str, Run]) -> None:
    """Draw the objective against seconds and against bytes, side by side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    best = min(run.model.objective_history_.min() for run in runs.values())
    labels = {"bcd": "block coordinate descent", "stochastic": "stochastic"}
    for i, (axis, (name, scale)) in enumerate(zip(figure.subplots(1, 2, sharey=True), (("seconds", 1.0), ("GB read", 1e-9)), strict=True)):
        for solver, run in runs.items():
            points = np.array([(point[i] * scale, point[2] / best - 1) for point in run.curve])
            axis.loglog(*points[points[:, 1] > 0].T, label=labels[solver])
        axis.axhline(0.01, color="grey", linestyle=":", linewidth=1)
        axis.set_xlabel(name)
        axis.xaxis.set_minor_formatter(NullFormatter())  # labels of single digits would overlap
    figure.axes[0].set_ylabel("objective above the lowest")
    figure.axes[0].legend(frameon=False)
    content = BytesIO()
    figure.savefig(content, dpi=130)
    save(content.getvalue(), "stochastic")


@dataclass(frozen=True)
class Waits:
    """Seconds that a core takes for a partition of a dataset, and how many passes reach 0.1% (``benchmarks.cp.time_to_objective``)."""

    shape: tuple[int, int, int]
    pass_seconds: float
    """Of a pass of block coordinate descent."""
    steps_seconds: float
    """Of the local steps of the stochastic solver."""
    passes: float
    """Of block coordinate descent, those on samples by their share, the start of all slices as five."""
    iterations: int
    """Of the stochastic solver; both read all data once before, for the prior."""


def workers(data: Sequence[Waits], counts: tuple[int, ...], repeats: int, rank: int = 10) -> Thresholds:
    """Time passes of both solvers on one-thread workers that wait for the time that a core takes for each partition."""
    rng, rows, thresholds = np.random.default_rng(0), list[dict[str, Any]](), []
    for waits in data:
        state, name = AdamaxState.initial([rng.standard_normal((rank, n)) for n in waits.shape[1:]]), "×".join(map(str, waits.shape))
        n_partitions = Layout.of(waits.shape).n_partitions
        drawn = [spread_partitions(n_partitions, seeded(0, i)) for i in range(repeats + 2)]
        with IdleCluster() as cluster:
            for count in counts:
                cluster.grow(count, 4)
                times: dict[str, list[float]] = {"bcd": [], "stochastic": []}
                with cluster.session(n_partitions) as session:
                    for partitions in drawn:
                        for solver, seconds, sample in (("bcd", waits.pass_seconds, None), ("stochastic", waits.steps_seconds, partitions)):
                            began = time.perf_counter()
                            session.run(RunPass(WaitingSteps(seconds), (state, 1.0, 0), sample=sample))
                            times[solver].append(time.perf_counter() - began)
                full, part = (statistics.median(seconds[2:]) for seconds in times.values())
                ideal = len(drawn[0]) * waits.steps_seconds / min(count, len(drawn[0]))
                row: dict[str, Any] = {"shape": name, "workers": count, "pass, s": full, "iteration, s": part, "efficiency": ideal / part}
                row |= {"bcd to 0.1%, s": (1 + waits.passes) * full, "stochastic to 0.1%, s": full + waits.iterations * part}
                rows.append(row)
        own = [row for row in rows if row["shape"] == name]
        slower = [row["workers"] for row in own if row["stochastic to 0.1%, s"] >= row["bcd to 0.1%, s"]]
        thresholds.append((f"{name}: the stochastic solver is faster on all numbers of workers but {slower} (threshold: none)", not slower))
        eight = next(row for row in own if row["workers"] == 8)
        text = f"{name}: an iteration on 8 workers has an efficiency of {eight['efficiency']:.0%} (threshold 75%)"
        thresholds.append((text, eight["efficiency"] >= 0.75))
    report("elastic_cp_stochastic_workers", rows, thresholds)
    return thresholds


def score(truth: list[NDArray[np.float64]], found: list[Any]) -> float:
    """Return equation 57 of matched components, averaged over the true ones."""
    cosines = 1.0
    for A, B in zip(truth, map(np.asarray, found), strict=True):
        cosines = cosines * ((A / np.linalg.norm(A, axis=0)).T @ (B / np.maximum(np.linalg.norm(B, axis=0), 1e-300)))
    rows, columns = linear_sum_assignment(-cosines)
    return float(np.asarray(cosines)[rows, columns].sum() / truth[0].shape[1])


def table_3(size: int, rank: int, seeds: range, alphas: tuple[float, ...]) -> Thresholds:
    """Compute table 3: 20 dB, a quarter missing, from a rank one too high; the step is chosen as in section 7.1.2."""
    lambdas = [lam for lam in default_lambdas() if lam >= 1e-4]
    runs, rows = len(seeds), []
    for seed in seeds:
        alpha = alphas[seed % len(alphas)]
        sim = elastic_cp_simulation(size, rank, seed, snr=20, missing=0.25)
        began = time.perf_counter()
        path = dfact.ElasticCP(rank + 1, l1_ratio=alpha, solver="stochastic", random_state=seed).path(sim.Z, lambdas)
        seconds, table = time.perf_counter() - began, path.table
        table = table[table["rank"] == table["rank"][table["rank"] >= rank].min()]
        sparse = table[table["zeros"] <= sim.zeros]
        step = sparse.index[-1] if len(sparse) else table.index[0]
        rows.append(
            {
                "seed": seed,
                "alpha": alpha,
                "rank": int(table["rank"].iloc[0]),
                "score": score(sim.factors, path.at(step, refined=True).factors_),
                "zeros": int(table["zeros"][step]) / sim.zeros,
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)
    right, mean = sum(row["rank"] == rank for row in rows), float(np.mean([row["score"] for row in rows]))
    slowest = max(row["seconds"] for row in rows)
    thresholds = [
        (f"the true rank in {right} of {runs} runs (threshold: all)", right == runs),
        (f"a mean score of {mean:.5f} (threshold 0.999)", mean >= 0.999),
        (f"a path takes {slowest:.1f} s at most (threshold 30; the paper 459 to 542)", slowest <= 30),
    ]
    report("elastic_cp_stochastic_table_3", rows, thresholds)
    return thresholds


WAITS = (Waits((20_480, 200, 50), 0.005, 0.013, 6.4, 2), Waits((200_000, 300, 5), 0.004, 0.03, 6.4, 3))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["disk", "workers", "table_3"]
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    parser.add_argument("--missing", nargs="*", type=float, default=[0.5, 0.2, 0.8], help="shares that are missing, for the part disk")
    parser.add_argument("--picture", action="store_true", help="draw the objectives on the first data of the part disk")
    parser.add_argument("--runs", type=int, default=30, help="simulations of table 3, the values of α in turn")
    parser.add_argument("--first", type=int, default=0, help="the first of them, to share them among processes")
    options = parser.parse_args()
    thresholds: Thresholds = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if "disk" in options.parts:
            thresholds += disk(folder, [(20_000, 200, 50), (200_000, 300, 5)], options.missing, 10, picture=options.picture)
        if "workers" in options.parts:
            thresholds += workers(WAITS, (1, 2, 4, 8, 16, 32, 64), 5)
        if "table_3" in options.parts:
            thresholds += table_3(50, 9, range(options.first, options.first + options.runs), (0.2, 0.8, 0.98))
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
