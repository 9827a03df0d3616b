"""Shrinkage of the scores of new rows: what a PCA estimates against what held-out rows show, and the error with the correction.

    python -m benchmarks.pca.shrinkage [--rows 200] [--runs 10]

Three components in noise that is equal and unrelated, or correlated between neighbouring columns, for 0.1, 1 and 5 columns per row. The
measured shrinkage is the root mean square of new rows' scores, divided by the standard deviation of those of the fitted rows. Errors are
squared differences from the scores that the new rows have if they are fitted with the others, relative to the variance of the component.
"""

import argparse
import sys
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report

NEW, REFITTED = 2000, 20
VARIANCES = np.array([12.0, 6.0, 3.0])
"""Of the components, in units of 1 + √(columns/rows), the variance at which the noise hides them."""


def rows_of(n: int, m: int, correlation: float, loadings: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return rows of the components, with correlated noise of variance 1."""
    noise = rng.standard_normal((n, m))
    for j in range(1, m):
        noise[:, j] = correlation * noise[:, j - 1] + np.sqrt(1 - correlation**2) * noise[:, j]
    found: NDArray[np.float64] = rng.standard_normal((n, len(VARIANCES))) @ loadings + noise
    return found


def run(n: int, m: int, correlation: float, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return measured and estimated shrinkage, and the errors without and with the correction, of each component."""
    rng = np.random.default_rng(seed)
    loadings = np.linalg.qr(rng.standard_normal((m, 3)))[0].T * np.sqrt((1 + np.sqrt(m / n)) * VARIANCES)[:, None]
    X, new = rows_of(n, m, correlation, loadings, rng), rows_of(NEW, m, correlation, loadings, rng)
    model = dfact.PCA(3).fit(X)
    corrected = copy(model).set_params(unshrink=True)
    measured = np.sqrt(np.square(model.transform(new)).mean(axis=0) / model.explained_variance_)
    errors = []
    for row in new[:REFITTED]:
        fitted = dfact.PCA(3).fit(np.vstack([X, row]))
        scores = fitted.factors_[-1] * np.sign((fitted.components_ * model.components_).sum(axis=1))
        errors.append([(found.transform(row[None])[0] - scores) ** 2 / model.explained_variance_ for found in (model, corrected)])
    plain, unshrunk = np.mean(errors, axis=0)
    return {"measured": measured, "estimated": model.shrinkage_, "error": plain, "corrected_error": unshrunk}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for correlation in (0.0, 0.8):
        for ratio in (0.1, 1.0, 5.0):
            runs = [run(arguments.rows, round(ratio * arguments.rows), correlation, seed) for seed in range(arguments.runs)]
            means = {name: np.mean([each[name] for each in runs], axis=0) for name in runs[0]}
            for component in range(3):
                figures = {name: float(values[component]) for name, values in means.items()}
                rows.append({"noise": correlation, "columns_per_row": ratio, "component": component + 1} | figures)
    thresholds = [
        (
            f"noise {row['noise']}, {row['columns_per_row']:g} columns per row, PC{row['component']}: the correction lowers the error",
            row["corrected_error"] <= row["error"],
        )
        for row in rows
        if row["columns_per_row"] >= 1
    ]
    report("pca_shrinkage", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
