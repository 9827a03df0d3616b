"""Lowest objectives of NMF and of scikit-learn's, each the best of ten starts: digits, planted counts, and a sparse matrix, both losses.

Threshold: at most 0.1% above scikit-learn's after 1,000 iterations. The starts are NNDSVD (of scikit-learn NNDSVDa, as zeros stay zeros in
its multiplicative updates) and random ones. The objective of dfact's default start is printed beside.

    python -m benchmarks.nmf.reference [--data digits counts sparse] [--loss frobenius kullback-leibler] [--starts 10] [--iterations 1000]
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from sklearn.datasets import load_digits
from sklearn.decomposition import NMF
from threadpoolctl import threadpool_limits

import dfact
from benchmarks.common import exit_code, report
from benchmarks.nmf.speed import dense_counts, objective_of, sparse_counts

_LOSSES = ("frobenius", "kullback-leibler")
_MARGIN = 1.001

DATA: dict[str, Callable[[], tuple[Any, int]]] = {
    "digits": lambda: (load_digits().data, 10),
    "counts": lambda: (dense_counts(2000, 100, 6), 6),
    "sparse": lambda: (sparse_counts(20_000, 5_000, 10), 10),
}


def ours(X: Any, k: int, loss: str, start: int, iterations: int) -> float:
    """Return the objective of dfact from the start with this number."""
    model = dfact.NMF(k, loss=loss, init="random" if start else "nndsvd", random_state=start, max_iter=iterations, tol=1e-7)
    return float(model.fit(X).objective_history_[-1])


def peers(X: Any, k: int, loss: str, start: int, iterations: int) -> float:
    """Return the objective of scikit-learn from the start with this number."""
    solver = {"solver": "mu", "beta_loss": loss} if loss == "kullback-leibler" else {}
    model = NMF(k, init="random" if start else "nndsvda", random_state=start, max_iter=iterations, tol=0, **solver)
    W = model.fit_transform(X)
    return objective_of(X, W, model.components_, loss)


def compare(name: str, X: Any, k: int, loss: str, starts: int, iterations: int) -> dict[str, Any]:
    """Return the lowest objectives over the starts, and the seconds of all starts."""
    row: dict[str, Any] = {"data": f"{name} {X.shape[0]} × {X.shape[1]}", "loss": loss, "k": k, "starts": starts}
    with warnings.catch_warnings(), threadpool_limits(2):
        warnings.simplefilter("ignore")
        for program, fit in (("dfact", ours), ("sklearn", peers)):
            began = time.perf_counter()
            objectives = [fit(X, k, loss, start, iterations) for start in range(starts)]
            row |= {f"{program}_default": objectives[0], f"{program}_lowest": min(objectives), f"{program}_s": time.perf_counter() - began}
    row["excess_default"], row["excess"] = (row[f"dfact_{kind}"] / row["sklearn_lowest"] - 1 for kind in ("default", "lowest"))
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(DATA), nargs="*", default=list(DATA))
    parser.add_argument("--loss", choices=_LOSSES, nargs="*", default=list(_LOSSES))
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=1000)
    options = parser.parse_args()
    rows = [compare(name, *DATA[name](), loss, options.starts, options.iterations) for name in options.data for loss in options.loss]
    thresholds = [
        (
            f"{row['data']}, {row['loss']}: {100 * row['excess']:.3f}% above scikit-learn's lowest objective (threshold 0.1%)",
            row["dfact_lowest"] <= _MARGIN * row["sklearn_lowest"],
        )
        for row in rows
    ]
    report("nmf_reference", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
