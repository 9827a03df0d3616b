"""Default fits to data in several connected parts against the best of five random starts.

    python -m benchmarks.versions.disconnected [--models NMF ...]

The data are two and three booklets that share neither people nor items, three with a common item, or people who answer two of them,
chains of booklets that few people link, and ratings with strangers.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report

_PEOPLE, _ITEMS, _WORSE, _FIRST_SEED = 60, 10, 1.001, 50

Array = NDArray[np.float64]


def booklets(blocks: int, seed: int) -> Array:
    """Answers to booklets that share neither people nor items, of rank 2 each."""
    rng = np.random.default_rng(seed)
    X = np.full((blocks * _PEOPLE, blocks * _ITEMS), np.nan)
    for b in range(blocks):
        part = rng.random((_PEOPLE, 2)) @ rng.random((2, _ITEMS)) * 3 + 0.1 * rng.normal(size=(_PEOPLE, _ITEMS))
        X[b * _PEOPLE : (b + 1) * _PEOPLE, b * _ITEMS : (b + 1) * _ITEMS] = part.clip(0)
    return X


def chain(blocks: int, seed: int) -> Array:
    """The same with three people between two booklets each, who answer three items of both."""
    rng, X = np.random.default_rng(seed), booklets(blocks, seed)
    linking = np.full((3 * (blocks - 1), X.shape[1]), np.nan)
    for i, row in enumerate(linking):
        for b in (i // 3, i // 3 + 1):
            row[b * _ITEMS + rng.choice(_ITEMS, 3, replace=False)] = 3 * rng.random(3)
    return np.vstack([X, linking])


def common_item(seed: int) -> Array:
    """Three booklets and an item that everyone answers."""
    X = booklets(3, seed)
    return np.hstack([X, 3 * np.random.default_rng(seed).random((len(X), 1))])


def linked(seed: int) -> Array:
    """Three booklets, and 30 people who answer two of them."""
    rng, X = np.random.default_rng(seed), booklets(3, seed)
    more = (rng.random((30, 2)) @ rng.random((2, X.shape[1])) * 3 + 0.1 * rng.normal(size=(30, X.shape[1]))).clip(0)
    for i, row in enumerate(more):
        row[i % 3 * _ITEMS : (i % 3 + 1) * _ITEMS] = np.nan
    return np.vstack([X, more])


def ratings_with_strangers(extra: int = 10) -> Array:
    """Ratings of which 5% are known, and people who rated two films that nobody else did."""
    rng = np.random.default_rng(0)
    n, m = 400, 200
    rows, columns = np.nonzero(rng.random((n, m)) < 0.05)
    ratings = np.full((n + extra, m + 2 * extra), np.nan)
    ratings[rows, columns] = np.clip(np.round(3.5 + rng.normal(size=len(rows)) + 0.4 * rng.normal(size=n)[rows]), 1, 5)
    for i in range(extra):
        ratings[n + i, m + 2 * i : m + 2 * i + 2] = 4, 5
    return ratings


MODELS: dict[str, Callable[..., Any]] = {
    "ExpectileMF": lambda init, seed: dfact.ExpectileMF(2, ridge=0.01, init=init or "svd", random_state=seed),
    "NMF": lambda init, seed: dfact.NMF(2, init=init or "nndsvd", random_state=seed),
    "Kullback-Leibler": lambda init, seed: dfact.NMF(2, loss="kullback-leibler", init=init or "nndsvd", random_state=seed),
    "ICQF": lambda init, seed: dfact.ICQF(2, beta=0.01, init=init or "nndsvd", random_state=seed),
    "Admixture": lambda init, seed: dfact.Admixture(2, init=init or "spectral", random_state=seed),
    "CPALS": lambda init, seed: dfact.CPALS(2, init=init or "svd", random_state=seed),
    "ElasticCP": lambda init, seed: dfact.ElasticCP(2, lam=1e-3, init=init or "svd", n_init=1, random_state=seed),
}


def data_of(name: str, X: Array) -> Array:
    """Return the data in the form that a model takes: whole answers, or a tensor of two occasions."""
    if name == "ICQF":
        return np.where(np.isfinite(X), np.clip(np.round(X), 0, 5), np.nan)
    if name == "Admixture":
        return np.where(np.isfinite(X), np.clip(np.round(X), 0, 2), np.nan)
    if name in ("CPALS", "ElasticCP"):
        noise = 0.05 * np.random.default_rng(0).normal(size=(*X.shape, 2))
        return X[:, :, None] * np.array([1, 1.5]) + noise
    return X


def objectives(name: str, X: Array, seeds: int = 5) -> tuple[float, float]:
    """Return the objective of the default start, and the lowest of random ones, none of which the default tries itself."""
    data, make = data_of(name, X), MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of slow convergence, and of components that cancel each other
        default = _end(make(None, 0).fit(data))
        return default, min(_end(make("random", seed).fit(data)) for seed in range(_FIRST_SEED, _FIRST_SEED + seeds))


def _end(model: Any) -> float:
    return float(-model.log_likelihood_ if hasattr(model, "log_likelihood_") else model.objective_history_[-1])


DATA: dict[str, Array] = {
    "two booklets": booklets(2, 0),
    "three booklets": booklets(3, 1),
    "three booklets, a common item": common_item(5),
    "three booklets, people with two": linked(6),
    "chain of three": chain(3, 2),
    "chain of four": chain(4, 4),
    "ratings with strangers": ratings_with_strangers(),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args()
    rows, thresholds = [], []
    for name in options.models:
        for kind, X in DATA.items():
            default, random = objectives(name, X)
            rows.append({"model": name, "data": kind, "default": default, "best of random": random, "ratio": default / random})
            print(f"  {name}, {kind}: {default:.6g}, {random:.6g}", flush=True)
        worst = max(row["ratio"] for row in rows if row["model"] == name)
        thresholds.append((f"{name} ends at most at {_WORSE} times the best of five random starts: {worst:.4f}", worst <= _WORSE))
    report("disconnected", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
