"""Replicability of 1 to 6 components of three real tensors, of which amino has three known components.

    python -m benchmarks.cp.replicability FOLDER [--tensors amino kinetic il2] [--starts 3] [--models elastic als]

FOLDER holds amino.npz, kinetic.npz and il2.npz, each with an array X, NaN where missing. Fits are without shrinkage (λ = 1e-8), in
ten folds of the slices of mode 1, or as many as there are slices.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report

KNOWN = {"amino": 3}
MODELS = {"elastic": lambda: dfact.ElasticCP(lam=1e-8, max_iter=300), "als": dfact.CPALS}


def curve(X: NDArray[Any], model: Any, starts: int, largest: int = 6) -> dict[int, dict[str, float]]:
    """Return the row of the selection's table for each number of components, and the chosen number as ``chosen``."""
    found = dfact.selection.replicability(model, X, range(1, largest + 1), n_starts=starts, random_state=0)
    chosen = found.best_params["n_components"]
    return {int(k): {**row, "chosen": float(k == chosen)} for k, row in found.table.to_dict("index").items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensors", nargs="*", default=["amino", "kinetic", "il2"])
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=["elastic"])
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    thresholds: list[tuple[str, bool]] = []
    for name in options.tensors:
        X = np.load(options.folder / f"{name}.npz")["X"].astype(np.float64)
        for kind in options.models:
            began = time.perf_counter()
            table = curve(X, MODELS[kind](), options.starts)
            seconds = time.perf_counter() - began
            rows += [{"tensor": name, "model": kind, "components": k, **row, "seconds": seconds} for k, row in table.items()]
            if name in KNOWN:
                known, chosen = KNOWN[name], next(k for k, row in table.items() if row["chosen"])
                fall = table[known]["fms_low"] - table[known + 1]["fms_low"]
                thresholds.append((f"{name}, {kind}: {chosen} components are replicable (threshold: the known {known})", chosen == known))
                thresholds.append((f"{name}, {kind}: the low FMS falls by {fall:.2f} after them (threshold 0.1)", fall > 0.1))
    report("elastic_cp_replicability", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
