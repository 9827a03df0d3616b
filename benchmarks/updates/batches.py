"""Updates: ten batches against the complete fit, the estimated gain against the true one, and the time of an update.

    python -m benchmarks.updates.batches [--rows 200000] [--columns 200] [--data sd3,big5,planted,skewed,tensor,genotypes,hapmap3]

ICQF is fitted to answers, ExpectileMF to skewed entries of which 70% are missing, ElasticCP to slices with a tenth of the columns in ten
waves, of which 20% of the entries are missing, and Admixture to genotypes, of which the planted ones have a tenth of the rows and ten
times the columns. The rows are put in random order and added in ten batches of a tenth. Afterwards one percent of the rows, drawn again,
is added: its time is compared with that of the complete fit, without the compilation of kernels.
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
SIZES = {"sd3": 4, "big5": 5, "planted": 6, "skewed": 6, "tensor": 4, "genotypes": 4, "hapmap3": 3}
"""Number of factors or populations for each dataset."""
SIMULATED = ("planted", "skewed", "tensor", "genotypes")
Array = NDArray[Any]


def planted(n: int, m: int, seed: int = 0) -> NDArray[np.float32]:
    """Return answers from 0 to 5 by six sparse factors with noise."""
    rng = np.random.default_rng(seed)
    W = rng.beta(0.5, 0.5, (n, 6)) * (rng.random((n, 6)) < 0.6)
    Q = 2 * rng.gamma(1, 1, (6, m)) * (rng.random((6, m)) < 0.3)
    return np.clip(np.rint(W @ Q + rng.normal(1, 0.7, (n, m))), 0, 5).astype(np.float32)


def skewed(n: int, m: int, seed: int = 0) -> NDArray[np.float32]:
    """Return entries of rank 6 with noise that is skewed to the right, 70% of them missing."""
    rng = np.random.default_rng(seed)
    M = (rng.random((n, 6)) @ rng.random((6, m)) + rng.exponential(0.2, (n, m))).astype(np.float32)
    M[rng.random((n, m), np.float32) < 0.7] = np.nan
    return M


def tensor(n: int, m: int, seed: int = 0) -> NDArray[np.float32]:
    """Return slices (m/10, 10) of rank 4 with normal noise, 20% of the entries missing."""
    rng = np.random.default_rng(seed)
    A, H = rng.normal(size=(n, 4)), np.einsum("jr,kr->rjk", rng.normal(size=(m // 10, 4)), rng.normal(size=(10, 4)))
    Z = (A @ H.reshape(4, -1) + rng.normal(0, 1, (n, m // 10 * 10))).astype(np.float32)
    Z[rng.random(Z.shape, np.float32) < 0.2] = np.nan
    return Z.reshape(n, m // 10, 10)


def load(name: str, n: int, m: int) -> Array:
    """Return a dataset; simulated ones have n rows and m columns."""
    if name == "genotypes":
        blocks = PlantedAdmixture(n // BATCHES, m * BATCHES, SIZES[name]).blocks()
        return np.concatenate(list(blocks)).astype(np.float32)
    if name == "hapmap3":
        return genotypes(name)[0]
    simulated = {"planted": planted, "skewed": skewed, "tensor": tensor}
    return simulated[name](n, m) if name in simulated else answers(name)


def make(name: str, M: Array) -> Any:
    """Return the unfitted model of a dataset."""
    if name in ("genotypes", "hapmap3"):
        return dfact.Admixture(SIZES[name])
    if name == "skewed":
        return dfact.ExpectileMF(SIZES[name], tau=0.2, ridge=0.1)
    if name == "tensor":
        return dfact.ElasticCP(SIZES[name], slice_variances=None, random_state=0)
    return dfact.ICQF(SIZES[name], bounds=(0.0, float(np.nanmax(M))))


def deviance(model: dfact.Admixture, G: NDArray[np.float32]) -> float:
    """Return minus the log-likelihood of all rows, each at its maximum given the frequencies of the model."""
    plain = copy(model)
    plain.projection_frequencies_ = None
    P, total = np.clip(model.allele_frequencies_.astype(np.float64), EDGE, 1 - EDGE), 0.0
    for rows in np.array_split(np.arange(len(G)), max(1, len(G) // 500)):
        g, F = G[rows], np.asarray(plain.transform(G[rows]), np.float64) @ P
        total -= float(np.nansum(g * np.log(F) + (2 - g) * np.log1p(-F)))
    return total


def objective(model: Any, M: Array) -> float:
    """Return the objective of all rows, each at its optimum given the loadings of the model."""
    if isinstance(model, dfact.Admixture):
        return deviance(model, M)
    W = np.asarray(model.transform(M))
    loss, parts = 0.0, np.array_split(np.arange(len(M)), 20)
    for rows in parts:
        R = (M[rows] - model.inverse_transform(W[rows])).astype(np.float64)
        weight = 0.5 if not isinstance(model, dfact.ExpectileMF) else np.abs(model.tau - (R < 0))
        loss += float(np.nansum(weight * R**2))
    if isinstance(model, dfact.ExpectileMF):
        return loss + model.ridge * float((W.astype(np.float64) ** 2).sum() + (model.column_factors_.astype(np.float64) ** 2).sum())
    if isinstance(model, dfact.ElasticCP):
        net, factors = model.elastic_net(), [np.asarray(A, np.float64) for A in (W, *model.factors_[1:])]
        return loss + net.penalty(np.array([[(A**2).sum() for A in factors], [np.abs(A).sum() for A in factors]]))
    problem = model.problem_
    gamma = len(M) / M.shape[1] * problem.q_max
    return loss + problem.beta * float(W.sum(dtype=np.float64) + (gamma * model.components_.sum(axis=0, dtype=np.float64)).sum())


def compare(name: str, M: Array) -> dict[str, Any]:
    """Fit all rows and ten batches, and add one percent."""
    M = M[np.random.default_rng(1).permutation(len(M))]
    few = M[: min(1000, len(M) // 10)]
    make(name, M).fit(few).partial_fit(M[len(few) : 2 * len(few)])  # compiles
    began = time.perf_counter()
    complete = make(name, M).fit(M)
    fit_seconds = time.perf_counter() - began
    model = make(name, M)
    for rows in np.array_split(np.arange(len(M)), BATCHES):
        model.partial_fit(M[rows])
    reached, best = objective(model, M), objective(complete, M)
    refit = complete  # Admixture takes no initial frequencies
    if not isinstance(model, dfact.Admixture):
        refit = make(name, M).set_params(init=model.factors_ if name == "tensor" else model.components_).fit(M)
    after = objective(refit, M)
    few = M[: len(M) // 100]
    began = time.perf_counter()
    complete.partial_fit(few)
    update_seconds = time.perf_counter() - began
    return {
        "data": name,
        "model": type(model).__name__,
        "shape": " × ".join(map(str, M.shape)),
        "excess_%": 100 * (reached / best - 1),
        "gain_%": 100 * max(1 - after / reached, 0.0),
        "estimated_%": 100 * model.growth_.gain.share,
        "error_%": 100 * model.growth_.gain.error,
        "fit_s": fit_seconds,
        "update_s": update_seconds,
        "update_share_%": 100 * update_seconds / fit_seconds,
    }


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
        rows = [compare(name, load(name, arguments.rows, arguments.columns)) for name in arguments.data.split(",")]
        difference = exactness()
    thresholds = [(f"{row['data']}: ten batches end within 0.2% of the complete fit", row["excess_%"] <= 0.2) for row in rows]
    thresholds += [
        (f"{row['data']}: an update by 1% of the rows takes at most 3% of a fit", row["update_share_%"] <= 3)
        for row in rows
        if row["data"] in SIMULATED
    ]
    thresholds.append((f"factor analysis: all figures within 1e-10 of the fit of all rows ({difference:.1e})", difference <= 1e-10))
    report("updates_batches", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
