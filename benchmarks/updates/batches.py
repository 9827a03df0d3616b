"""Updates: ten batches against the complete fit, the estimated gain against the true one, and the time of an update.

    python -m benchmarks.updates.batches [--rows 200000] [--columns 200] [--data sd3,big5,planted,genotypes,hapmap3]

The first three are fitted by ICQF, the others by Admixture: ``genotypes`` are planted, with a tenth of the rows and ten times the columns.
The rows are put in random order and added in ten batches of a tenth. Afterwards one percent of the rows, drawn again, is added: its time
is compared with that of the complete fit, without the compilation of kernels.
"""

import argparse
import sys
import time
import warnings
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.admixture.projection import genotypes
from benchmarks.common import answers, exit_code, report
from dfact.data.synthetic import PlantedAdmixture
from dfact.kernels.binomial import EDGE

BATCHES = 10
SIZES = {"sd3": 4, "big5": 5, "planted": 6, "genotypes": 4, "hapmap3": 3}
"""Number of factors or populations for each dataset."""
GENOTYPES = ("genotypes", "hapmap3")
PLANTED = ("planted", "genotypes")


def planted(n: int, m: int, seed: int = 0) -> NDArray[np.float32]:
    """Return answers from 0 to 5 by six sparse factors with noise."""
    rng = np.random.default_rng(seed)
    W = rng.beta(0.5, 0.5, (n, 6)) * (rng.random((n, 6)) < 0.6)
    Q = 2 * rng.gamma(1, 1, (6, m)) * (rng.random((6, m)) < 0.3)
    return np.clip(np.rint(W @ Q + rng.normal(1, 0.7, (n, m))), 0, 5).astype(np.float32)


def objective(model: Any, M: NDArray[np.float32]) -> float:
    """Return the objective of all rows, each at its optimum given the loadings of the model."""
    W, Q, problem = model.transform(M), model.components_, model.problem_
    loss = sum(float(np.nansum((M[rows] - W[rows] @ Q).astype(np.float64) ** 2)) for rows in np.array_split(np.arange(len(M)), 20))
    gamma = len(M) / M.shape[1] * problem.q_max
    return 0.5 * loss + problem.beta * float(W.sum(dtype=np.float64) + (gamma * Q.sum(axis=0, dtype=np.float64)).sum())


def compare(name: str, M: NDArray[np.float32]) -> dict[str, Any]:
    """Fit all rows and ten batches, and add one percent."""
    M = M[np.random.default_rng(1).permutation(len(M))]
    bounds = (0.0, float(np.nanmax(M)))
    model = dfact.ICQF(SIZES[name], bounds=bounds)
    dfact.ICQF(SIZES[name], bounds=bounds).fit(M[:1000]).partial_fit(M[1000:2000])  # compiles
    began = time.perf_counter()
    complete = dfact.ICQF(SIZES[name], bounds=bounds).fit(M)
    fit_seconds = time.perf_counter() - began
    for rows in np.array_split(np.arange(len(M)), BATCHES):
        model.partial_fit(M[rows])
    reached, best = objective(model, M), objective(complete, M)
    refit = dfact.ICQF(SIZES[name], bounds=bounds, init=model.components_).fit(M)
    few = M[: len(M) // 100]
    began = time.perf_counter()
    complete.partial_fit(few)
    update_seconds = time.perf_counter() - began
    return {
        "data": name,
        "shape": f"{len(M)} × {M.shape[1]}",
        "excess_%": 100 * (reached / best - 1),
        "gain_%": 100 * max(1 - objective(refit, M) / reached, 0.0),
        "estimated_%": 100 * model.growth_.gain.share,
        "error_%": 100 * model.growth_.gain.error,
        "fit_s": fit_seconds,
        "update_s": update_seconds,
        "update_share_%": 100 * update_seconds / fit_seconds,
    }


def deviance(model: dfact.Admixture, G: NDArray[np.float32]) -> float:
    """Return minus the log-likelihood of all rows, each at its maximum given the frequencies of the model."""
    plain = copy(model)
    plain.projection_frequencies_ = None
    P, total = np.clip(model.allele_frequencies_.astype(np.float64), EDGE, 1 - EDGE), 0.0
    for rows in np.array_split(np.arange(len(G)), max(1, len(G) // 500)):
        g, F = G[rows], np.asarray(plain.transform(G[rows]), np.float64) @ P
        total -= float(np.nansum(g * np.log(F) + (2 - g) * np.log1p(-F)))
    return total


def compare_genotypes(name: str, G: NDArray[np.float32]) -> dict[str, Any]:
    """Fit all individuals and ten batches, and add one percent."""
    G = G[np.random.default_rng(1).permutation(len(G))]
    k = SIZES[name]
    dfact.Admixture(k).fit(G[:100]).partial_fit(G[100:200])  # compiles
    began = time.perf_counter()
    complete = dfact.Admixture(k).fit(G)
    fit_seconds = time.perf_counter() - began
    model = dfact.Admixture(k)
    for rows in np.array_split(np.arange(len(G)), BATCHES):
        model.partial_fit(G[rows])
    reached, best = deviance(model, G), deviance(complete, G)
    began = time.perf_counter()
    complete.partial_fit(G[: len(G) // 100])
    update_seconds = time.perf_counter() - began
    return {
        "data": name,
        "shape": f"{len(G)} × {G.shape[1]}",
        "excess_%": 100 * (reached / best - 1),
        "gain_%": 100 * max(1 - best / reached, 0.0),
        "estimated_%": 100 * model.growth_.gain.share,
        "error_%": 100 * model.growth_.gain.error,
        "fit_s": fit_seconds,
        "update_s": update_seconds,
        "update_share_%": 100 * update_seconds / fit_seconds,
    }


def run(name: str, n: int, m: int) -> dict[str, Any]:
    """Compare on a dataset; planted ones have n rows and m columns."""
    if name == "genotypes":
        n, m = n // BATCHES, m * BATCHES
        return compare_genotypes(name, np.concatenate(list(PlantedAdmixture(n, m, SIZES[name]).blocks())).astype(np.float32))
    if name in GENOTYPES:
        return compare_genotypes(name, genotypes(name)[0])
    return compare(name, planted(n, m) if name == "planted" else answers(name))


def exactness() -> float:
    """Return the largest difference of a factor analysis of ten batches from that of all rows."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(5000, 3)) @ np.kron(np.eye(3), np.full(8, 0.8)) + rng.normal(size=(5000, 24))
    X[rng.random(X.shape) < 0.1] = np.nan
    complete, grown = dfact.FactorAnalysis(3).fit(X), dfact.FactorAnalysis(3)
    for rows in np.array_split(np.arange(len(X)), BATCHES):
        grown.partial_fit(X[rows])
    names = ("components_", "correlations_", "uniquenesses_", "factor_correlations_", "mean_", "scale_")
    return max(float(np.abs(getattr(grown, name) - getattr(complete, name)).max()) for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--data", default=",".join(SIZES))
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [run(name, arguments.rows, arguments.columns) for name in arguments.data.split(",")]
        difference = exactness()
    thresholds = [(f"{row['data']}: ten batches end within 0.2% of the complete fit", row["excess_%"] <= 0.2) for row in rows]
    thresholds += [
        (f"{row['data']}: an update by 1% of the rows takes at most 3% of a fit", row["update_share_%"] <= 3)
        for row in rows
        if row["data"] in PLANTED
    ]
    thresholds.append((f"factor analysis: all figures within 1e-10 of the fit of all rows ({difference:.1e})", difference <= 1e-10))
    report("updates_batches", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
