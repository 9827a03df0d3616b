"""Rules that choose the number of factors or components, and the expectile loss, on planted data."""

import warnings
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainc

import dfact
from benchmarks.evidence.calibration import Counts, Experiment, Statement
from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors
from dfact.selection.result import Selection, choose

TITLE = "Numbers of factors and components"
INTRODUCTION = """\
A rule is right if it chooses the planted number. No bar is set, as the rate depends on the data: these are hard on purpose. The
questionnaires have 24 items of four factors with answers from 0 to 4. Each item belongs to one factor and a few to others, and the
noise is large.

*Blocks of answers.* `lowest` (`--rule min`) is right most often. `1se`, which wants a reason for every factor, and `knee`, which looks
for a bend, choose too few factors in most of these datasets, and more often with fewer people and answers. `1se` used to take the
standard error
of the lowest error alone, divided by the root of the number of folds in all repeats. So repeats, which add no data, moved its choice to
the choice of `lowest`: compare "1se before as lowest" with one repeat and with six. With the standard error of the paired difference,
averaged over repeats, it does not move there. `bic1` and the consensus of restarts fail on noisy answers: do not rely on them alone.

*Factor analysis.* The factors correlate by .3, with loadings from .4 to .7. Parallel analysis is reliable from 200 people on, also with
missing and with ordinal answers. MAP and BIC need 500 people, and choose too few factors below that.

*Expectiles.* Entries of a matrix of rank 3 are multiplied by noise of a gamma distribution, so that each expectile has rank 3,
too. Components and ridge are chosen for a given τ. The expectile loss finds the rank at least as often as the median relative error,
which it replaced. The share of the distances below the predictions should be τ, and the share of entries below them should equal the
noise's; both are measured on new entries. The mean is predicted too low (40 to 47% of the distances in place of 50%), because
the ridge draws predictions to 0, and the lower expectile slightly too high. This is why the selection prints the coverage.
"""

N_FACTORS, N_ITEMS, CANDIDATES = 4, 24, range(2, 7)
REPEATS = 6


def questionnaire(seed: int, n: int, missing: float = 0.0, noise: float = 1.3) -> NDArray[np.float64]:
    """Draw answers (n, 24) from 0 to 4: non-negative factors, of which each item has one of its own, and some weaker ones."""
    rng = np.random.default_rng(seed)
    W = rng.random((n, N_FACTORS)) * (rng.random((n, N_FACTORS)) < 0.6)
    own = np.arange(N_ITEMS) % N_FACTORS == np.arange(N_FACTORS)[:, None]
    other = rng.uniform(0.3, 1.2, own.shape) * (rng.random(own.shape) < 0.15)
    Q = np.where(own, rng.uniform(1.5, 3.5, own.shape), other)
    M = np.rint(np.clip(W @ Q + rng.normal(0, noise, (n, N_ITEMS)), 0, 4))
    M[rng.random(M.shape) < missing] = np.nan
    return M


_QUESTIONNAIRES: dict[str, dict[str, float]] = {
    "100 people": {"n": 100},
    "200 people": {"n": 200},
    "500 people": {"n": 500},
    "200 people, 20% missing": {"n": 200, "missing": 0.2},
}
_BLOCKS = "the number of factors, by the error on held-out blocks of answers"
_LARGE = f"more factors than needed are avoided: {_BLOCKS}"


def _rule(name: str, estimand: str, measured: str = "correct sizes") -> Statement:
    return Statement(name, estimand[0].upper() + estimand[1:] + ".", measured)


BLOCK_RULES = [
    _rule("lowest", _BLOCKS),
    _rule("lowest, six repeats", _BLOCKS),
    _rule("1se", _LARGE),
    _rule("1se, six repeats", _LARGE),
    _rule("1se before, one repeat", f"{_LARGE}; standard error of the lowest error, which was replaced"),
    _rule("1se before, six repeats", f"{_LARGE}; standard error of the lowest error, which was replaced"),
    _rule("1se as lowest", "whether 1se chooses what lowest does, with one repeat", "as lowest"),
    _rule("1se as lowest, six repeats", "whether 1se chooses what lowest does, with six repeats", "as lowest"),
    _rule("1se before as lowest", "whether the replaced 1se chooses what lowest does, with one repeat", "as lowest"),
    _rule("1se before as lowest, six repeats", "whether the replaced 1se chooses what lowest does, with six repeats", "as lowest"),
    _rule("knee", "the number of factors at which the error on held-out blocks stops falling steeply"),
    _rule("bic1", "the number of factors, by a penalized fit to all answers, from the default start"),
]
CONSENSUS_RULES = [
    _rule("ccc", "the number of factors in whose clusters five random starts agree, by the cophenetic correlation"),
    _rule("dispersion", "the number of factors in whose clusters five random starts agree, by the dispersion"),
]


def simulate_blocks(condition: str, seed: int) -> Counts:
    """Choose the number of factors of one questionnaire by all rules of block cross-validation, with one repeat and with six."""
    M = questionnaire(seed, **_QUESTIONNAIRES[condition])  # type: ignore[arg-type]  # n is whole
    model = dfact.ICQF(max_iter=50, executor="inline")
    chosen: dict[str, int] = {}
    for repeats, suffix in ((1, ""), (REPEATS, ", six repeats")):
        selection = dfact.selection.block_cross_validate(
            model, M, {"n_components": CANDIDATES}, (5, 4), 5, repeats, rule="1se", random_state=seed
        )
        chosen |= {f"lowest{suffix}": choose(selection.table, "min")["n_components"]}
        chosen |= {f"1se{suffix}": selection.best_params["n_components"]}
        chosen |= {f"1se before, {'one' if repeats == 1 else 'six'} repeat{'' if repeats == 1 else 's'}": _previous_rule(selection)}
        chosen |= {"knee": choose(selection.table, "knee")["n_components"]} if repeats == 1 else {}
    chosen["bic1"] = dfact.selection.select_by_criterion(model, M, CANDIDATES, n_restarts=0).best_params["n_components"]
    counts = {name: (float(k == N_FACTORS), 1.0) for name, k in chosen.items()}
    for name, before, suffix in (
        ("1se", "1se before, one repeat", ""),
        (f"1se{', six repeats'}", "1se before, six repeats", ", six repeats"),
    ):
        counts[f"1se as lowest{suffix}"] = (float(chosen[name] == chosen[f"lowest{suffix}"]), 1.0)
        counts[f"1se before as lowest{suffix}"] = (float(chosen[before] == chosen[f"lowest{suffix}"]), 1.0)
    return counts


def _previous_rule(selection: Selection) -> int:
    """Return the fewest factors within the standard error of the lowest error over all folds of all repeats."""
    assert selection.folds is not None
    errors = selection.table["error"]
    lowest = errors.idxmin()
    spread = selection.folds.loc[lowest].std() / np.sqrt(selection.folds.shape[1])
    return int(min(errors.index[errors <= errors[lowest] + spread]))


def simulate_consensus(condition: str, seed: int) -> Counts:
    """Choose the number of factors of one questionnaire by the agreement of random starts."""
    M = questionnaire(seed, **_QUESTIONNAIRES[condition])  # type: ignore[arg-type]  # n is whole
    model = dfact.ICQF(max_iter=50, executor="inline")
    counts: dict[str, tuple[float, float]] = {}
    for criterion in ("ccc", "dispersion"):
        found = dfact.selection.select_by_criterion(model, M, CANDIDATES, criterion, n_restarts=5, random_state=seed).best_params
        counts[criterion] = (float(found["n_components"] == N_FACTORS), 1.0)
    return counts


FACTOR_RULES = [
    _rule(
        "parallel analysis",
        "the number of components whose eigenvalue exceeds the 95th percentile of the same eigenvalue of unrelated items",
    ),
    _rule("MAP", "the number of components after which the average squared partial correlation is lowest"),
    _rule("BIC", "the number of factors whose model by minimum residuals has the lowest BIC"),
]
_ANALYSES: dict[str, tuple[int, float, bool]] = {
    "100 people": (100, 0.0, False),
    "200 people": (200, 0.0, False),
    "500 people": (500, 0.0, False),
    "200 people, 20% missing": (200, 0.2, False),
    "200 people, ordinal": (200, 0.0, True),
}


def simulate_factors(condition: str, seed: int) -> Counts:
    """Choose the number of four correlated factors."""
    n, missing, ordinal = _ANALYSES[condition]
    rng = np.random.default_rng(seed)
    F = rng.multivariate_normal(np.zeros(N_FACTORS), 0.7 * np.eye(N_FACTORS) + 0.3, n)
    loadings = rng.uniform(0.4, 0.7, N_ITEMS)
    X = F[:, np.arange(N_ITEMS) % N_FACTORS] * loadings + rng.normal(size=(n, N_ITEMS)) * np.sqrt(1 - loadings**2)
    X = np.digitize(X, [-1.2, -0.2, 0.6, 1.3]).astype(float) if ordinal else X
    X[rng.random(X.shape) < missing] = np.nan
    counts = number_of_factors(dfact.FactorAnalysis(executor="inline"), X, range(1, 9), random_state=seed)
    chosen = {"parallel analysis": counts.parallel_analysis, "MAP": counts.minimum_average_partial, "BIC": counts.bic}
    return {name: (float(count is not None and count.n_factors == N_FACTORS), 1.0) for name, count in chosen.items()}


RANK, TAUS = 3, (0.1, 0.5)
SHAPE = 8.0  # of the gamma distribution of the noise


@cache
def share_below(tau: float) -> float:
    """Return the probability of noise below its τ-expectile."""

    def balance(e: float) -> float:
        # E(e − b)₊ = e F(e) − E(b; b < e), and E(b − e)₊ = E(b) − e + E(e − b)₊; b has the mean 1.
        below = e * gammainc(SHAPE, SHAPE * e) - gammainc(SHAPE + 1, SHAPE * e)
        return float((1 - tau) * below - tau * (1 - e + below))

    return float(gammainc(SHAPE, SHAPE * brentq(balance, 1e-6, 50)))


_MATRICES = {"100 × 50, 60% observed": (100, 0.6), "300 × 50, 60% observed": (300, 0.6), "300 × 50, 30% observed": (300, 0.3)}
EXPECTILE_RULES = [
    *(_rule(f"components by expectile loss, τ = {tau}", "the rank of the matrix of expectiles") for tau in TAUS),
    *(_rule(f"components by relative error, τ = {tau}", "the rank; the score that was replaced") for tau in TAUS),
    *(
        Statement(
            f"distances below, τ = {tau}", "Share of Σ|b − b̂| over new entries b that those below b̂ contribute.", "share", nominal=tau
        )
        for tau in TAUS
    ),
    *(
        Statement(f"entries below, τ = {tau}", "Share of new entries b below the expectile b̂.", "share", nominal=round(share_below(tau), 3))
        for tau in TAUS
    ),
]


def simulate_expectiles(condition: str, seed: int) -> Counts:
    """Choose components and ridge for each τ, and compare the model with entries that were not observed."""
    n, share = _MATRICES[condition]
    rng = np.random.default_rng(seed)
    M = rng.gamma(1.0, 1.0, (n, RANK)) @ rng.gamma(1.0, 1.0, (RANK, 50))
    X = M * rng.gamma(SHAPE, 1 / SHAPE, M.shape)
    observed = rng.random(M.shape) < share
    data = np.where(observed, X, np.nan)
    model, grid = dfact.ExpectileMF(max_iter=60, executor="inline"), {"n_components": range(1, 6), "ridge": [0.1, 0.5, 2.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of entries that run away for a candidate
        selections = dfact.selection.select_each_by_held_out(model, data, grid, TAUS, n_repeats=2, random_state=seed)
    counts: dict[str, tuple[float, float]] = {}
    for tau, selection in zip(TAUS, selections, strict=True):
        by_error = selection.table["median"].idxmin()[0]
        counts[f"components by expectile loss, τ = {tau}"] = (float(selection.best_params["n_components"] == RANK), 1.0)
        counts[f"components by relative error, τ = {tau}"] = (float(by_error == RANK), 1.0)
        fitted = selection.model
        distances = (np.asarray(fitted.factors_) @ fitted.components_ - X)[~observed]
        counts[f"distances below, τ = {tau}"] = (float(np.maximum(distances, 0).sum()), float(np.abs(distances).sum()))
        counts[f"entries below, τ = {tau}"] = (float((distances > 0).sum()), float(distances.size))
    return counts


EXPERIMENTS = [
    Experiment(BLOCK_RULES, list(_QUESTIONNAIRES), simulate_blocks, runs=50),
    Experiment(CONSENSUS_RULES, ["200 people"], simulate_consensus, runs=30),
    Experiment(FACTOR_RULES, list(_ANALYSES), simulate_factors, runs=100),
    Experiment(EXPECTILE_RULES, list(_MATRICES), simulate_expectiles, runs=50),
]
