"""Selection of k and β of ICQF by block cross-validation: speed against cold starts, and the paper's table 1."""

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dfact
from benchmarks.common import answers, exit_code, report
from dfact.data.synthetic import icqf_simulation
from dfact.selection.cross_validation.block_cross_validation import block_cross_validate
from dfact.selection.cross_validation.folds import assign_all_folds
from dfact.selection.running.results_store import resolve_random_state

Thresholds = list[tuple[str, bool]]

BLOCKS = (10, 10)
BETAS = (0.05, 0.1, 0.2)
TABLE_1 = {0.1: 0.2, 0.2: 0.2, 0.3: 0.4}  # noise: maximum of mean |k − 10|; in the paper 0.10, 0.11, 0.77


def cold(M: NDArray[np.float32], ks: Sequence[int], betas: Sequence[float], n_folds: int, random_state: int) -> pd.DataFrame:
    """Return the error of each configuration on the same folds, with every fit by ``ICQF.fit`` from a cold start."""
    (folds,) = assign_all_folds(M.shape, BLOCKS, n_folds, 1, resolve_random_state(random_state) or 0)
    squares = pd.DataFrame(0.0, index=pd.Index(ks, name="n_components"), columns=list(betas))
    count, passes = 0, 0
    for fold in range(n_folds):
        held_out = folds.held_out(fold)[folds.rows]
        test = held_out & ~np.isnan(M)
        training = np.where(held_out, np.float32(np.nan), M)
        count += int(test.sum())
        for k in ks:
            for beta in betas:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "row .* no observed entry", UserWarning)  # a fold may hold out all of a row
                    model = dfact.ICQF(k, beta=beta).fit(training)
                errors = (M - model.inverse_transform(model.factors_))[test]
                squares.loc[k, beta] += float(np.square(errors, dtype=np.float64).sum())
                passes += model.n_iter_
    squares.attrs["passes"] = passes
    return squares / count


def speed(M: NDArray[np.float32], ks: Sequence[int], betas: Sequence[float], n_folds: int, threshold: float = 5.0) -> Thresholds:
    """Compare selection with cold starts on the same folds and configurations; once each, as one takes a minute."""
    grid = {"n_components": list(ks), "beta": list(betas)}
    block_cross_validate(dfact.ICQF(), M[:500], {"n_components": [2, 3]}, n_folds=2, random_state=0)  # compile
    dfact.ICQF(2, max_iter=2).fit(M[:500])
    began = time.perf_counter()
    selection = block_cross_validate(dfact.ICQF(), M, grid, BLOCKS, n_folds, random_state=0)
    warm_seconds = time.perf_counter() - began
    began = time.perf_counter()
    reference = cold(M, ks, betas, n_folds, 0)
    cold_seconds = time.perf_counter() - began
    best = tuple(selection.best_params.values())
    cold_best = reference.stack().idxmin()
    table = selection.table["error"].unstack()
    rows: list[dict[str, Any]] = [
        {"k": k} | {f"β={b}": table.loc[k, b] for b in betas} | {f"cold β={b}": reference.loc[k, b] for b in betas} for k in ks
    ]
    figures = {"seconds": warm_seconds, "cold seconds": cold_seconds, "ratio": cold_seconds / warm_seconds}
    figures |= {"passes": int(selection.table["passes"].sum()), "cold passes": reference.attrs["passes"]}
    print(figures)
    thresholds = [
        (
            f"{len(ks) * len(betas) * n_folds} fits at least {threshold} × as fast as from cold starts ({figures['ratio']:.1f})",
            figures["ratio"] >= threshold,
        ),
        (f"the same choice: {best}, from cold starts {(int(cold_best[0]), float(cold_best[1]))}", best == cold_best),
    ]
    report("icqf_selection_speed", [*rows, figures], thresholds)
    return thresholds


def table_1(n_sets: int, ks: Sequence[int] = range(2, 21), restarts: int = 0) -> Thresholds:
    """Compute the mean |k − 10| of the lowest error over simulated datasets."""
    rows = []
    for noise, most in TABLE_1.items():
        began = time.perf_counter()
        found = []
        for seed in range(n_sets):
            model, M = dfact.ICQF(bounds=(0, 100)), icqf_simulation(noise, seed).M
            selection = block_cross_validate(model, M, {"n_components": ks}, BLOCKS, 10, n_restarts=restarts, random_state=seed)
            found.append(selection.best_params["n_components"])
        off = np.abs(np.array(found) - 10)
        seconds = (time.perf_counter() - began) / n_sets
        spread = float(off.std()) / n_sets**0.5
        rows.append({"noise": noise, "mean |k-10|": off.mean(), "se": spread, "most": most, "sets": n_sets, "seconds a set": seconds})
    thresholds = [(f"noise {row['noise']}: mean |k − 10| at most {row['most']}", row["mean |k-10|"] <= row["most"]) for row in rows]
    report("icqf_selection_table_1", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--components", type=int, nargs=2, default=(4, 12), metavar=("LOW", "HIGH"), help="numbers of factors on eqsq")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--table1", type=int, default=0, metavar="N", help="instead, the paper's table 1 with N datasets a noise level")
    arguments = parser.parse_args()
    if arguments.table1:
        return exit_code(table_1(arguments.table1))
    low, high = arguments.components
    return exit_code(speed(answers("eqsq"), range(low, high + 1), BETAS, arguments.folds))


if __name__ == "__main__":
    sys.exit(main())
