"""Components of tensors: intervals of loadings and weights, factor match scores, and rules for the number of components."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.evidence.calibration import COVERAGE, Counts, Experiment, Statement
from dfact.models.cp.factor_match import match_components

TITLE = "Components of tensors"
INTRODUCTION = """
Tensors Σ_r a_r∘b_r∘c_r plus normal noise, with 20% of the entries missing at random. The row factors a_r of mode 1 are drawn again for
each tensor; the vectors b_r and c_r of the other modes are what the intervals are for.

Intervals: two components of 10 × 6 slices, 79 refits of `dfact stability`, normal row factors, noise of standard deviation 1.5
(CPALS) or 1 (ElasticCP, `lam=2`, `l1_ratio=0.5`). Both models get intervals of loadings and weights from least-squares refits.
Intervals of vectors on the support that the penalties leave are not offered: they covered 91% at 50 slices, because the same
data choose the support. The similarity of refits and model is on average about as large as the similarity of model and truth.

Rules: three components of 12 × 10 slices with noise of 0.7 standard deviations, normal vectors in all modes, and ElasticCP with
`l1_ratio=0.1`. Paths start from six components; replicability tries one to six. `knee` is the rule of the guide's and the help's first
example until now. It chooses too few components where they differ in size, and is left for data with scatter that can be predicted but is
not wanted.
"""

MISSING, REFITS = 0.2, 79
SLICES = ("50 slices", "100 slices", "200 slices")
RANK, STD = 2, np.array([6.0, 4.5])
"""Number of components, and the standard deviations of their row factors."""


@dataclass(frozen=True)
class Planted:
    """A tensor whose components are known."""

    Z: NDArray[np.float64]
    others: list[NDArray[np.float64]]
    """Unit vectors of modes 2 and 3 (R, I_n)."""
    weights: NDArray[np.float64]
    """Root mean square of the row factors in the population, as least squares estimates them, times √n (R,)."""


def plant(n: int, seed: int, *, noise: float, sparse: bool) -> Planted:
    """Draw a tensor with n slices."""
    rng = np.random.default_rng([seed, n, sparse])
    B, C = rng.normal(size=(RANK, 10)), np.abs(rng.normal(size=(RANK, 6))) + 0.2
    if sparse:
        B[rng.random(B.shape) < 0.4] = 0
        B[:, :2] += np.eye(2)  # no component is 0
    others = [A / np.linalg.norm(A, axis=1, keepdims=True) for A in (B, C)]
    Z = np.einsum("ir,rj,rk->ijk", rng.normal(size=(n, RANK)) * STD, *others) + noise * rng.normal(size=(n, 10, 6))
    Z[rng.random(Z.shape) < MISSING] = np.nan
    # The error of a row factor has the variance noise² (H_Δ H_Δᵀ)⁻¹, on average over the observed entries Δ of a row.
    H = np.einsum("rj,rk->rjk", *others).reshape(RANK, -1)
    masks = np.random.default_rng(0).random((200, H.shape[1])) >= MISSING
    errors = np.mean([np.linalg.inv(H[:, mask] @ H[:, mask].T).diagonal() for mask in masks], axis=0)
    return Planted(Z, others, np.sqrt(n * (STD**2 + noise**2 * errors)))


LOADING, SPARSE_LOADING, WEIGHT = (
    Statement(name, estimand, "coverage", 0.95, COVERAGE)
    for name, estimand in (
        ("Interval of a loading, CPALS", "The entry of the component's vector in mode 2 or 3, at length 1, in the population of slices."),
        ("Interval of a loading, ElasticCP", "The same, which the refits estimate without penalties; 40% of the entries of mode 2 are 0."),
        ("Interval of a weight", "√n times the root mean square of the component's row factors as least squares estimates them."),
    )
)
ZERO, NONZERO = (
    Statement(f"Selection frequency of a {kind}", f"The share of penalized refits in which a loading is not 0, {where}.", "mean frequency")
    for kind, where in (("planted 0", "where the truth is 0"), ("planted loading", "where it is not"))
)
REFIT_SCORE = Statement(
    "Factor match score of refits", "Mean product of the cosines of matched vectors, refits and model.", "mean score", is_share=False
)
TRUE_SCORE = Statement("Factor match score of the model", "The same of the model and the truth.", "mean score", is_share=False)


def _cover(found: Any, planted: Planted, loading: Statement) -> dict[str, tuple[float, float]]:
    """Count the loadings in their intervals, and the weights, and sum selection frequencies and scores."""
    left = len(planted.weights)
    match = match_components(planted.others, np.split(found.estimate[:left], [10], axis=1))
    own = np.argsort(match.columns)  # the planted component of each of the model's
    truth = np.hstack([(A * signs[:, None])[own] for A, signs in zip(planted.others, match.signs, strict=True)])
    low, high, selected = (part[:left] for part in (found.low, found.high, found.selected))
    weights = planted.weights[own]
    covered = (found.weight_low[:left] <= weights) & (weights <= found.weight_high[:left])
    return {
        loading.name: (float(((low <= truth) & (truth <= high)).sum()), float((~np.isnan(low)).sum())),
        WEIGHT.name: (float(covered.sum()), left),
        ZERO.name: (float(selected[truth == 0].sum()), float((truth == 0).sum())),
        NONZERO.name: (float(selected[truth != 0].sum()), float((truth != 0).sum())),
        REFIT_SCORE.name: (float(found.factor_match_scores.sum()), found.n_refits),
        TRUE_SCORE.name: (match.score, 1),
    }


def _slices(condition: str) -> int:
    return int(condition.split(maxsplit=1)[0])


def least_squares(condition: str, seed: int) -> Counts:
    """Cover loadings and weights of CPALS."""
    planted = plant(_slices(condition), seed, noise=1.5, sparse=False)
    model = dfact.CPALS(RANK, random_state=0).fit(planted.Z)
    return _cover(dfact.selection.bootstrap(model, planted.Z, REFITS, random_state=seed), planted, LOADING)


def elastic_net(condition: str, seed: int) -> Counts:
    """Cover loadings of ElasticCP, whose model is shrunken and sparse."""
    planted = plant(_slices(condition), seed, noise=1.0, sparse=True)
    model = dfact.ElasticCP(RANK, lam=2.0, l1_ratio=0.5, init="svd", random_state=0, max_iter=2000).fit(planted.Z)
    if model.rank_ < RANK:
        return {}
    return _cover(dfact.selection.bootstrap(model, planted.Z, REFITS, random_state=seed), planted, SPARSE_LOADING)


TRUE_RANK, START = 3, 6
RULES = (("held_out", "min"), ("bic", "min"), ("split_half", "stable"), ("held_out", "knee"), ("bic", "knee"))
GOOD = (0.8, 1.0)


def _rule_name(criterion: str, rule: str) -> str:
    return criterion if rule == "stable" else f"{criterion}, {'lowest' if rule == 'min' else rule}"


PATH_RULES = {
    key: Statement(f"Number of components: {_rule_name(*key)}", "The planted rank.", "correct sizes", bar=GOOD if key[1] == "min" else None)
    for key in RULES
}
REPLICABLE = Statement("Number of components: replicability", "The planted rank.", "correct sizes", bar=GOOD)
CURVE = {
    k: Statement(
        f"Replicability of {k} components", "Median FMS of fits without one of five folds, three planted.", "mean score", is_share=False
    )
    for k in range(1, START + 1)
}


def _tensor(n: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([seed, n])
    X = np.einsum("ir,jr,kr->ijk", *(rng.normal(size=(size, TRUE_RANK)) for size in (n, 12, 10)))
    Z = X + 0.7 * X.std() * rng.normal(size=X.shape)
    Z[rng.random(Z.shape) < MISSING] = np.nan
    return np.asarray(Z)


def rules(condition: str, seed: int) -> Counts:
    """Choose the number of components by each rule along the path."""
    Z, counts = _tensor(_slices(condition), seed), {}
    lambdas = [10.0**e for e in range(-2, 1)] + [digit * 10.0**e for e in (0, 1, 2, 3) for digit in (2, 4, 6, 8, 10)]
    for (criterion, rule), statement in PATH_RULES.items():
        model = dfact.ElasticCP(START, l1_ratio=0.1, random_state=seed)
        settings = {} if rule == "stable" else {"rule": rule}
        chosen: Any = dfact.selection.select_penalty(model, Z, criterion, lambdas, random_state=seed, **settings)
        counts[statement.name] = (float(chosen.model.rank_ == TRUE_RANK), 1.0)
    return counts


def replicable(condition: str, seed: int) -> Counts:
    """Choose the number of components by replicability."""
    Z, model = _tensor(_slices(condition), seed), dfact.ElasticCP(lam=1e-8, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = dfact.selection.replicability(model, Z, range(1, START + 1), n_folds=5, n_starts=2, random_state=seed)
    curve = {statement.name: (float(found.table.at[k, "fms"]), 1.0) for k, statement in CURVE.items()}
    return {REPLICABLE.name: (float(found.best_params["n_components"] == TRUE_RANK), 1.0)} | curve


EXPERIMENTS = [
    Experiment([LOADING, WEIGHT, REFIT_SCORE, TRUE_SCORE], SLICES, least_squares, 60),
    Experiment([SPARSE_LOADING, ZERO, NONZERO], SLICES, elastic_net, 40),
    Experiment(list(PATH_RULES.values()), ("30 slices", "60 slices", "120 slices"), rules, 20),
    Experiment([REPLICABLE, *CURVE.values()], ("30 slices", "60 slices", "120 slices"), replicable, 20),
]
