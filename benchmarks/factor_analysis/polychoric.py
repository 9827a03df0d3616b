"""Polychoric correlations: time compared with psych's on the same answers, 1,000 items within the plan, planted correlations.

python -m benchmarks.factor_analysis.polychoric [--rows 100000] [--items 1000]
python -m benchmarks.factor_analysis.polychoric --rows 500000 --limit 4GiB --large

With --large a complete factor analysis of the rows on disk is fitted, with scores, and nothing else. Its threshold is the plan; seconds
are reported. With --weights the rows have weights; with --pearson Pearson's correlations are computed.

bfi is read from the folder of shared data; without it, answers of its shape are simulated. The time of R's psych is the recorded one:
4.59 CPU seconds for psych 2.5.3 on one core.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report
from dfact.text import format_bytes

Thresholds = list[tuple[str, bool]]
BFI = Path(__file__).resolve().parents[3] / "shared" / "data" / "psychometrics" / "bfi.csv"
PSYCH_SECONDS, RATIO = 4.589, 100
SECONDS, N_LEVELS = 20, 5
PLANTED, PLANTED_ROWS, SAMPLES = (0.0, 0.5, -0.5, 0.9, 0.99), 2000, 100
CUTS = np.array([-1.2, -0.4, 0.3, 1.1])


def graded(Z: NDArray[Any]) -> NDArray[np.uint8]:
    """Answers of 0 to 4 that have these normal variables behind them."""
    answers = np.zeros(Z.shape, np.uint8)
    for cut in CUTS:
        answers += np.greater(Z, cut)
    return answers


def one_factor(n: int, m: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Answers to m items with loadings from 0.3 to 0.8 on a factor."""
    loadings = np.linspace(0.3, 0.8, m, dtype=np.float32)
    factor, noise = (rng.standard_normal((n, columns), np.float32) for columns in (1, m))
    return graded(factor * loadings + noise * np.sqrt(1 - loadings**2))


def beside_psych() -> tuple[dict[str, Any], Thresholds]:
    answers: Any = pd.read_csv(BFI).iloc[:, 1:26] if BFI.exists() else one_factor(2800, 25, np.random.default_rng(0))
    model = dfact.FactorAnalysis(5, correlation="polychoric", rotation="oblimin", executor="inline")
    model.correlate(answers)  # compiles
    seconds = []
    for _ in range(7):
        start = time.process_time()
        model.correlate(answers)
        seconds.append(time.process_time() - start)
    median = float(np.median(seconds))
    text = f"bfi, 2800 × 25: {median:.4f} CPU s, psych's recorded {PSYCH_SECONDS} s: {PSYCH_SECONDS / median:.0f} times (threshold {RATIO})"
    return {"data": "bfi" if BFI.exists() else "simulated", "seconds": median}, [(text, PSYCH_SECONDS / median >= RATIO)]


def import_one_factor(folder: str, n: int, m: int, *, weighted: bool = False) -> str:
    """Import answers to the items in parts, so that the peak belongs to the estimation; returns the path."""
    path, rng = f"{folder}/answers.zarr", np.random.default_rng(1)
    answers = np.lib.format.open_memmap(f"{folder}/answers.npy", "w+", np.uint8, (n, m))
    for start_row in range(0, n, 4096):
        answers[start_row : start_row + 4096] = one_factor(min(4096, n - start_row), m, rng)
    dfact.import_array(answers, path, weights=rng.gamma(2, 1, n) if weighted else None)
    return path


def large(n: int, m: int, limit: str | None, correlation: str, *, weighted: bool) -> tuple[dict[str, Any], Thresholds]:
    """A factor analysis of answers on disk, within the plan's memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = import_one_factor(folder, n, m, weighted=weighted)
        model = dfact.FactorAnalysis(1, correlation=correlation, executor="threads", memory_limit=limit)
        task = model.prepare(path)
        planned = task.plan()
        print(planned, flush=True)
        start = time.perf_counter()
        model.fit(path)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        error = np.abs(model.components_[0] - np.linspace(0.3, 0.8, m)).max() if correlation == "polychoric" else np.nan
        row = {"data": f"{n} × {m}, {correlation}", "seconds": seconds, "peak": peak, "planned": planned.peak}
        thresholds = [(f"peak {format_bytes(peak)} (threshold {format_bytes(planned.peak)}, the plan's)", peak <= planned.peak)]
        if correlation == "polychoric":
            thresholds.append((f"largest error of a loading {error:.4f} (threshold {7 / np.sqrt(n):.4f}, 7/√n)", error <= 7 / np.sqrt(n)))
        return row | {"tiles": getattr(task.problem, "tiles", 1), "largest gap": error}, thresholds


def out_of_core(n: int, m: int) -> tuple[dict[str, Any], Thresholds]:
    with tempfile.TemporaryDirectory() as folder:
        path = import_one_factor(folder, n, m)
        model = dfact.FactorAnalysis(1, correlation="polychoric", executor="threads")
        task = model.prepare(path, least=1)
        planned = task.plan()
        start = time.perf_counter()
        found = model.correlate(path)
        seconds = time.perf_counter() - start
    loadings = np.linspace(0.3, 0.8, m)
    gap = np.abs(found.R - np.outer(loadings, loadings))[~np.eye(m, dtype=bool)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    row = {"data": f"{n} × {m}", "seconds": seconds, "peak": peak, "planned": planned.peak, "tiles": task.problem.tiles}
    return row | {"largest gap": gap.max()}, [
        (f"{n} × {m} in {N_LEVELS} levels: {seconds:.1f} s (threshold {SECONDS})", seconds <= SECONDS),
        (f"peak {format_bytes(peak)} (threshold {format_bytes(planned.peak)}, the plan's)", peak <= planned.peak),
        (f"largest error {gap.max():.4f} (threshold {7 / np.sqrt(n):.4f}, 7/√n)", gap.max() <= 7 / np.sqrt(n)),
    ]


def planted(rho: float) -> tuple[dict[str, Any], Thresholds]:
    """Pairs of items with planted correlations, all samples side by side as items."""
    rng = np.random.default_rng(2)
    found = []
    model = dfact.FactorAnalysis(1, correlation="polychoric", executor="inline")
    for _ in range(SAMPLES):
        z = rng.standard_normal((PLANTED_ROWS, 2))
        z[:, 1] = rho * z[:, 0] + np.sqrt(1 - rho**2) * z[:, 1]
        found.append(model.correlate(graded(z)).R[0, 1])
    error = float(np.std(found, ddof=1) / np.sqrt(SAMPLES))
    bias = abs(float(np.mean(found)) - rho)
    text = f"ρ = {rho}: mean of {SAMPLES} estimates {np.mean(found):.5f}, {bias / error:.1f} standard errors away (threshold 3)"
    return {"data": f"planted {rho}", "mean": np.mean(found), "sd": np.std(found, ddof=1)}, [(text, bias <= 3 * error)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--large", action="store_true", help="fit a factor analysis of answers on disk, and nothing else")
    parser.add_argument("--limit", help="memory limit of this fit")
    parser.add_argument("--weights", action="store_true", help="weights of its rows")
    parser.add_argument("--pearson", action="store_true", help="Pearson's correlations in this fit")
    arguments = parser.parse_args()
    if arguments.large:
        correlation = "pearson" if arguments.pearson else "polychoric"
        parts = [large(arguments.rows, arguments.items, arguments.limit, correlation, weighted=arguments.weights)]
    else:
        parts = [beside_psych(), *(planted(rho) for rho in PLANTED), out_of_core(arguments.rows, arguments.items)]
    thresholds = [threshold for _, found in parts for threshold in found]
    report("polychoric", [row for row, _ in parts], thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
