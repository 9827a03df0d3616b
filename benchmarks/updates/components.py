"""Updates of principal components: ten batches against the complete fit, and the time of an update by one percent of the rows.

    python -m benchmarks.updates.components [--rows 100000]

Planted components in noise of variance 1, of which the weakest has ten times the variance of the noise's strongest direction in the data
of all rows, or ("weak") twice. Errors are the largest relative one of the singular values, and the largest angle between the subspaces, in
radians; with missing entries also the share by which the log-likelihood of all rows falls short.
"""

import argparse
import sys
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

import dfact
from benchmarks.common import exit_code, report

BATCHES, COMPONENTS, UPDATES = 10, 5, 3
"""Updates by one percent, of which the median time counts."""


def planted(n: int, m: int, missing: float, strength: float) -> NDArray[np.float64]:
    """Return n rows of five components, the weakest ``strength`` times as strong as the noise."""
    rng = np.random.default_rng(0)
    edge = (1 + np.sqrt(m / n)) ** 2
    loadings = np.linalg.qr(rng.standard_normal((m, COMPONENTS)))[0].T * np.sqrt(strength * edge * np.geomspace(10, 1, COMPONENTS))[:, None]
    X = rng.standard_normal((n, COMPONENTS)) @ loadings + rng.standard_normal((n, m)) + 3
    X[rng.random(X.shape) < missing] = np.nan
    return X


def compare(name: str, X: NDArray[np.float64], **parameters: Any) -> dict[str, Any]:
    """Fit all rows and ten batches, and add one percent."""
    dfact.PCA(COMPONENTS, **parameters).fit(X[:2000]).partial_fit(X[2000:3000])  # compiles
    began = time.perf_counter()
    complete = dfact.PCA(COMPONENTS, **parameters).fit(X)
    fit_seconds = time.perf_counter() - began
    grown = dfact.PCA(COMPONENTS, **parameters)
    for rows in np.array_split(X, BATCHES):
        grown.partial_fit(rows)
    row = {
        "data": name,
        "shape": f"{len(X)} × {X.shape[1]}",
        "singular_values": float(np.abs(grown.singular_values_ / complete.singular_values_ - 1).max()),
        "angle": float(subspace_angles(grown.components_.T, complete.components_.T).max()),
        "noise": float(abs(grown.noise_variance_ / complete.noise_variance_ - 1)),
        "likelihood": float(1 - complete.score(X) / grown.score(X)),
    }
    few, seconds = X[: len(X) // 100], []
    for _ in range(UPDATES):
        began = time.perf_counter()
        complete.partial_fit(few)
        seconds.append(time.perf_counter() - began)
    update_seconds = float(np.median(seconds))
    return row | {"fit_s": fit_seconds, "update_s": update_seconds, "update_share_%": 100 * update_seconds / fit_seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    n = parser.parse_args().rows
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, shape, missing, strength, parameters in (
            ("complete", (n, 400), 0, 10, {}),
            ("complete, standard", (n, 400), 0, 10, {"scale": "standard"}),
            ("means", (n, 400), 0.1, 10, {"missing": "mean"}),
            ("expected", (n, 400), 0.1, 10, {}),
            ("wide", (n // 5, 2000), 0, 10, {}),
            ("wide, weak", (n // 5, 2000), 0, 2, {}),
        ):
            rows.append(compare(name, planted(*shape, missing, strength), **parameters))
    thresholds = []
    for row in rows:
        errors = max(row["singular_values"], row["angle"], row["noise"])
        if row["data"] == "expected":
            thresholds.append((f"{row['data']}: likelihood within 0.2% of the complete fit's", row["likelihood"] <= 0.002))
        elif not row["data"].startswith("wide"):
            thresholds.append((f"{row['data']}: within 1e-10 of the complete fit ({errors:.1e})", errors <= 1e-10))
        thresholds.append((f"{row['data']}: an update by 1% of the rows takes at most 3% of a fit", row["update_share_%"] <= 3))
    report("updates_components", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
