"""Reference results of ICQF: the paper's objectives, proposition 1, planted factors, agreement of both precisions.

python -m benchmarks.bounded_nmf.reference [--iterations 1500] [--data-sets 10]
"""

import argparse
import sys
import time
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import QUESTIONNAIRES, answers, exit_code, report
from dfact.data.synthetic import icqf_simulation

Thresholds = list[tuple[str, bool]]


def objectives(iterations: int) -> Thresholds:
    rows: list[dict[str, Any]] = []
    for name, (*_, k, top, reference) in QUESTIONNAIRES.items():
        M = answers(name)
        for dtype in ("float32", "float64"):
            began = time.perf_counter()
            model = dfact.ICQF(k, solver="admm", bounds=(0, top), max_iter=iterations, tol=1e-8, dtype=dtype).fit(M)
            seconds = time.perf_counter() - began
            early = dfact.ICQF(k, solver="admm", bounds=(0, top), dtype=dtype, max_iter=iterations).fit(M)
            W, Q = np.asarray(model.factors_, np.float64), model.components_.astype(np.float64)
            objective = 0.5 * np.nansum((M - W @ Q) ** 2) + 0.1 * W.sum() + 0.1 * len(M) / M.shape[1] * top * Q.sum()
            rows.append(
                {
                    "data": name,
                    "dtype": dtype,
                    "iterations": model.n_iter_,
                    "objective": objective,
                    "reference": reference,
                    "ratio": objective / reference,
                    "above_bound": max(0.0, (W @ Q).max() - top),
                    "iterations_1e-4": early.n_iter_,
                    "objective_1e-4": early.objective_history_[-1],
                    "seconds": seconds,
                }
            )
    worst = max(row["ratio"] for row in rows)
    pairs = zip(rows[::2], rows[1::2], strict=True)
    gap = max(abs(a["objective_1e-4"] / b["objective_1e-4"] - 1) for a, b in pairs)
    thresholds = [
        (f"objective at most {worst:.5f} × the paper's implementation's (threshold 1.0005)", worst <= 1.0005),
        (f"float32 and float64 stop within {gap:.1e} of each other (threshold 1e-4)", gap <= 1e-4),
    ]
    report("icqf_objectives", rows, thresholds)
    return thresholds


def simulation(n_data_sets: int) -> Thresholds:
    rows = []
    for noise in (0.1, 0.2, 0.3):
        for rho in (2**0.5, 3.0):
            rises, similarities = [], []
            for seed in range(n_data_sets):
                planted = icqf_simulation(noise, seed)
                model = dfact.ICQF(10, solver="admm", bounds=(0, 100), rho=rho, max_iter=500, tol=1e-6).fit(planted.M)
                history = model.lagrangian_history_[1:]
                rises.append(np.diff(history).max() / history[0])
                similarity = np.corrcoef(planted.Q.T, model.components_)[:10, 10:]
                similarities.append(similarity[linear_sum_assignment(-similarity)].mean())
            rows.append(
                {
                    "noise": noise,
                    "rho": rho,
                    "largest_rise_of_L": max(rises),
                    "loadings_r": np.mean(similarities),
                    "worst_r": min(similarities),
                }
            )
    rise = max(max(0.0, row["largest_rise_of_L"]) for row in rows)
    recovered = min(row["loadings_r"] for row in rows if row["noise"] == 0.1)
    thresholds = [
        (
            f"the augmented Lagrangian rises by at most {rise:.1e} of its start (below 1e-6, see tests/models/bounded_nmf/test_icqf.py)",
            rise <= 1e-6,
        ),
        (f"planted loadings recovered with mean correlation {recovered:.3f} at noise 0.1 (threshold 0.95)", recovered >= 0.95),
    ]
    report("icqf_simulation", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--data-sets", type=int, default=10)
    options = parser.parse_args()
    return exit_code(objectives(options.iterations) + simulation(options.data_sets))


if __name__ == "__main__":
    sys.exit(main())
