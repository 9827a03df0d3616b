"""Share of planted tensors whose number of components is found by replicability, core consistency, and both.

    python -m benchmarks.cp.planted_ranks [--seeds 1] [--ranks 2 3 4 5 6] [--folds 5] [--starts 2]

Tensors of 30 × 14 × 10 with noise of 5, 20 and 40% of their norm: normal vectors, with a fifth of the entries missing, with cosines of
0.6 between all vectors of a mode, or non-negative. Each number from 1 to two more than the planted one is tried.
"""

import argparse
import sys
import time
import warnings
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report

SIZES, NOISES = (30, 14, 10), (0.05, 0.2, 0.4)
KINDS = ("normal", "missing", "collinear", "non-negative")
MISSING, COSINE = 0.2, 0.6
REPLICABLE, CONSISTENT = 0.9, 50.0


def plant(rank: int, noise: float, kind: str, seed: int, sizes: tuple[int, ...] = SIZES) -> NDArray[np.float64]:
    """Return a tensor of this many components."""
    rng = np.random.default_rng([seed, rank])
    factors = [rng.random((size, rank)) if kind == "non-negative" else rng.normal(size=(size, rank)) for size in sizes]
    if kind == "collinear":
        cosines = np.full((rank, rank), COSINE) + (1 - COSINE) * np.eye(rank)
        factors = [np.linalg.qr(A)[0] @ np.linalg.cholesky(cosines).T for A in factors]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    E = rng.normal(size=X.shape)
    Z = X + noise * np.linalg.norm(X) / np.linalg.norm(E) * E
    if kind == "missing":
        Z[rng.random(Z.shape) < MISSING] = np.nan
    return np.asarray(Z)


def choices(Z: NDArray[np.float64], largest: int, folds: int, starts: int, seed: int) -> dict[str, int]:
    """Return the number that each rule chooses."""
    model, settings = dfact.ElasticCP(lam=1e-8, max_iter=300), {"n_folds": folds, "n_starts": starts, "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = dfact.selection.replicability(model, Z, range(1, largest + 1), **settings)
    table = found.table
    replicable = table.index[table["replicability"] >= REPLICABLE]
    return {
        "both": int(found.best_params["n_components"]),
        "replicability": int(replicable[-1] if len(replicable) else table["replicability"].idxmax()),
        "core consistency": int(table.index[table["core_consistency"] >= CONSISTENT][-1]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 5, 6])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=2)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed, rank, noise, kind in product(range(options.seeds), options.ranks, NOISES, KINDS):
        began = time.perf_counter()
        chosen = choices(plant(rank, noise, kind, seed), rank + 2, options.folds, options.starts, seed)
        rows.append({"rank": rank, "noise": noise, "kind": kind, "seed": seed, **chosen, "seconds": time.perf_counter() - began})
    table = pd.DataFrame(rows)
    right = table[["both", "replicability", "core consistency"]].eq(table["rank"], axis=0).mean()
    thresholds = [(f"both: {right['both']:.0%} of {len(table)} tensors are right (threshold 90%)", bool(right["both"] >= 0.9))]
    for name in ("replicability", "core consistency"):
        print(f"{name} alone: {right[name]:.0%}")
    report("planted_ranks", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
