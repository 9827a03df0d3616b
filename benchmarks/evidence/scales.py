"""Reliability of scales, Bartlett's test, and the fit of a factor analysis."""

import warnings
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2

import dfact
from benchmarks.evidence.calibration import COVERAGE, LEVEL_OF_TESTS, Counts, Experiment, Statement

TITLE = "Scales and their correlations"
INTRODUCTION = """
`dfact describe` prints Cronbach's alpha with an interval, and a test that no items are correlated. A factor analysis has the RMSEA
with an interval of 90%. Three scales of six items have loadings from 0.5 to 0.8 on a trait each. "Skewed" items have four
categories, the lowest of which 73% choose, as with symptoms. Answers are missing completely at random.

Two rules were replaced. Feldt's interval assumes normal items: it stays as `--interval feldt`. Alpha's interval and Bartlett's
test took for n everyone who answered anything, as other programs do; with missing answers that is too many. Feldt's interval now
takes the harmonic mean, over pairs of items, of the number of people who answered both. With missing answers Steiger's test replaces
Bartlett's: each correlation has the number of its own people. The RMSEA's interval
assumes complete, normal answers. It misses its level with ordinal and with missing answers, whatever is taken for n, and outputs say
so.
"""

_LOADINGS = np.array([0.8, 0.8, 0.7, 0.6, 0.6, 0.5])
_THRESHOLDS = {"ordinal": (-0.5, 0.5, 1.3, 2.0), "skewed": (0.6, 1.2, 1.7)}
_LARGE = 1_000_000

ALPHA = Statement("Interval of alpha", "Cronbach's alpha of the items in the population.", "coverage", 0.95, COVERAGE)
FELDT = Statement("Feldt's interval of alpha (on request)", "Cronbach's alpha of the items in the population.", "coverage", 0.95, COVERAGE)
BARTLETT = Statement(
    "Test of sphericity (Bartlett's; Steiger's with missing answers)",
    "No two items are correlated in the population.",
    "false rejections",
    0.05,
    LEVEL_OF_TESTS,
)
BARTLETT_ALL = Statement(
    "Bartlett's test with everyone who answered anything (replaced)",
    "No two items are correlated in the population.",
    "false rejections",
    0.05,
    LEVEL_OF_TESTS,
)
RMSEA = Statement(
    "Interval of the RMSEA, 90%",
    "The RMSEA of the best model of two factors for the correlations in the population.",
    "coverage",
    0.9,
    (0.87, 0.93),
)


def _conditions(sizes: tuple[int, ...], kinds: tuple[str, ...], missing: float) -> list[str]:
    return [f"n = {n}, {kind}{suffix}" for kind in kinds for suffix in ("", f", {missing:.0%} missing") for n in sizes]


def _parse(condition: str) -> tuple[int, str, float]:
    size, kind, *missing = condition.split(", ")
    return int(size.removeprefix("n = ")), kind, float(missing[0].split("%")[0]) / 100 if missing else 0.0


def _answers(latent: NDArray[np.float64], kind: str, missing: float, rng: np.random.Generator) -> NDArray[np.float64]:
    X = np.digitize(latent, _THRESHOLDS[kind]).astype(np.float64) if kind in _THRESHOLDS else latent.copy()
    X[rng.random(X.shape) < missing] = np.nan
    return X


def _scale(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Normal answers to the items of one scale."""
    return rng.normal(size=(n, 1)) * _LOADINGS + rng.normal(size=(n, len(_LOADINGS))) * np.sqrt(1 - _LOADINGS**2)


@lru_cache
def _alpha(kind: str) -> float:
    rng = np.random.default_rng(10**6)
    C = np.cov(_answers(_scale(_LARGE, rng), kind, 0.0, rng).T)
    return float(len(C) / (len(C) - 1) * (1 - np.trace(C) / C.sum()))


def alphas(condition: str, seed: int) -> Counts:
    """Describe a questionnaire of three scales, and compare the intervals with alpha in the population."""
    n, kind, missing = _parse(condition)
    rng = np.random.default_rng(seed)
    X = np.hstack([_answers(_scale(n, rng), kind, missing, rng) for _ in range(3)])
    scales, counts = {f"scale {s}": [str(j) for j in range(6 * s, 6 * s + 6)] for s in range(3)}, {}
    for statement, interval in ((ALPHA, "jackknife"), (FELDT, "feldt")):
        table = dfact.describe(X, scales=scales, interval=interval, group_factors=1, executor="inline").scales
        counts[statement.name] = (float(((table["ci_low"] <= _alpha(kind)) & (_alpha(kind) <= table["ci_high"])).sum()), 3.0)
    return counts


def unrelated(condition: str, seed: int) -> Counts:
    """Test unrelated items."""
    n, kind, missing = _parse(condition)
    rng = np.random.default_rng(seed)
    X = _answers(rng.normal(size=(n, 10)), kind, missing, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # items that correlate negatively, which unrelated ones do
        found = dfact.describe(X, group_factors=1, executor="inline")
    R, everyone = pd.DataFrame(X).corr().to_numpy(), found.n - 1 - 25 / 6
    replaced = chi2.sf(-everyone * np.linalg.slogdet(R)[1], 45)
    return {BARTLETT.name: (float(found.bartlett["p"] < 0.05), 1.0), BARTLETT_ALL.name: (float(replaced < 0.05), 1.0)}


def _two_factors(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Normal answers to 12 items of two factors and a weak third one, which the model leaves out."""
    pattern = np.zeros((12, 3))
    pattern[:6, 0], pattern[6:, 1], pattern[::3, 2] = 0.7, 0.6, 0.35
    return rng.normal(size=(n, 3)) @ pattern.T + rng.normal(size=(n, 12)) * np.sqrt(1 - (pattern**2).sum(axis=1))


@lru_cache
def _rmsea(kind: str) -> float:
    rng = np.random.default_rng(10**6)
    X = _answers(_two_factors(200_000, rng), kind, 0.0, rng)
    return float(dfact.FactorAnalysis(2, executor="inline").fit(X).fit_["rmsea"])


def fit(condition: str, seed: int) -> Counts:
    """Fit two factors, and compare the interval of the RMSEA with its value in the population."""
    n, kind, missing = _parse(condition)
    rng = np.random.default_rng(seed)
    found = dfact.FactorAnalysis(2, executor="inline").fit(_answers(_two_factors(n, rng), kind, missing, rng)).fit_
    return {RMSEA.name: (float(found["rmsea_low"] <= _rmsea(kind) <= found["rmsea_high"]), 1.0)}


_OF_ALPHA = _conditions((100, 300, 1000), ("normal", "ordinal", "skewed"), 0.2)
_OF_BARTLETT = _conditions((100, 300, 1000), ("normal", "ordinal"), 0.3)
_OF_RMSEA = _conditions((200, 500, 1000), ("normal", "ordinal"), 0.2)
EXPERIMENTS = [
    Experiment([ALPHA, FELDT], _OF_ALPHA, alphas, 200, [(FELDT.name, condition) for condition in _OF_ALPHA]),
    Experiment([BARTLETT, BARTLETT_ALL], _OF_BARTLETT, unrelated, 800, [(BARTLETT_ALL.name, condition) for condition in _OF_BARTLETT]),
    Experiment([RMSEA], _OF_RMSEA, fit, 400, [(RMSEA.name, condition) for condition in _OF_RMSEA if not condition.endswith("normal")]),
]
