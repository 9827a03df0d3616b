"""Parallel analysis of incomplete answers: noise, and planted factors, with answers missing in four ways."""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import dfact
from benchmarks.evidence.calibration import LEVEL_OF_TESTS, Counts, Experiment, Statement
from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors

TITLE = "Numbers of factors of incomplete answers"
INTRODUCTION = """\
Parallel analysis of correlations over the rows that have both items. There are 28 items and 300 people, 450 where each of three
booklets lacks a quarter of the items. Of the noise, columns are unrelated, and a factor that is found is a false one. Four factors
that correlate by .3 have loadings from .45 to .8, and answers from 0 to 4 with many zeros. Answers are missing at random, or at random
given the first item: people with a high answer to it skip more of the others.

With 60% missing, two items have 48 rows in common: no rule for pairwise correlations that was tried finds the number in more than half
of the samples, and dfact warns. Lognormal noise with missing answers exceeds the level, too: a few large answers make correlations
vary more than those of normal variables.
"""

ITEMS = 28
Array = NDArray[np.float64]


def _skewed_answers(rng: np.random.Generator, n: int) -> Array:
    loadings = np.kron(np.eye(4), np.ones(ITEMS // 4)) * np.repeat(np.linspace(0.8, 0.45, 4), ITEMS // 4) * rng.uniform(0.85, 1.1, ITEMS)
    F = rng.normal(size=(n, 4)) @ np.linalg.cholesky(0.3 + 0.7 * np.eye(4)).T
    latent = F @ loadings + rng.normal(size=(n, ITEMS)) * np.sqrt(1 - (loadings**2).sum(axis=0))
    thresholds = rng.uniform(0.1, 0.6, ITEMS)[:, None] + np.array([0, 0.5, 1, 1.5])
    return np.asarray((latent[:, :, None] > thresholds).sum(axis=2), np.float64)


_DRAW: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "four factors": _skewed_answers,
    "normal noise": lambda rng, n: rng.normal(size=(n, ITEMS)),
    "lognormal noise": lambda rng, n: np.exp(1.2 * rng.normal(size=(n, ITEMS))),
    "noise of t with 3 df": lambda rng, n: rng.standard_t(3, (n, ITEMS)),
    "rare noise": lambda rng, n: np.asarray(rng.random((n, ITEMS)) < 0.05, np.float64),
}


def _remove(X: Array, how: str, rng: np.random.Generator) -> Array:
    """Remove answers: ``40% missing``, ``40% given the first item``, or ``booklets``."""
    if how == "complete":
        return X
    if how == "booklets":
        booklet, part = rng.integers(3, size=len(X)), np.arange(ITEMS) % 4
        gone = booklet[:, None] == part
    else:
        share = float(how.partition("%")[0]) / 100
        rates = np.full(len(X), share)
        if "given" in how:
            rates = expit(1.5 * (X[:, 0] - X[:, 0].mean()) / X[:, 0].std())
            rates = np.minimum(rates * share / rates.mean(), 0.95)
        gone = rng.random(X.shape) < rates[:, None]
        gone[:, 0] &= "given" not in how
    return np.where(gone, np.nan, X)


def simulate(condition: str, seed: int) -> Counts:
    """Count the factors of one dataset."""
    kind, how = condition.split(", ")
    rng = np.random.default_rng(seed)
    X = _remove(_DRAW[kind](rng, 450 if how == "booklets" else 300), how, rng)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "on average .* rows have both")
        found = number_of_factors(dfact.FactorAnalysis(executor="inline"), X, [1], random_state=seed).parallel_analysis.n_factors
    return {"factors in noise": (float(found > 0), 1.0), "four factors": (float(found == 4), 1.0)}


MISSING = ("complete", "20% missing", "40% missing", "60% missing", "20% given the first item", "40% given the first item", "booklets")
NOISE = Statement("factors in noise", "Whether there is a factor at all.", "false rejections", nominal=0.05, bar=LEVEL_OF_TESTS)
FACTORS = Statement("four factors", "The number of factors.", "correct sizes")
OTHER = [f"{kind}, {how}" for kind in list(_DRAW)[2:] for how in ("complete", "40% missing")]
EXPERIMENTS = [
    Experiment(
        [NOISE],
        [*(f"normal noise, {how}" for how in MISSING), *OTHER],
        simulate,
        runs=300,
        unjudged=[("factors in noise", "lognormal noise, 40% missing")],
    ),
    Experiment([FACTORS], [f"four factors, {how}" for how in MISSING], simulate, runs=100),
]
