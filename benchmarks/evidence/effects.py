"""Impact and effects of confounders of an ICQF: the anchor, and the intervals over refits."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dfact
from benchmarks.evidence.calibration import COVERAGE, Counts, Experiment, Statement
from dfact.linalg.anchor import anchor

TITLE = "Impact and effects of confounders"
INTRODUCTION = """\
Answers are made of factors between 0 and 1, each item loading on one, rounded to whole numbers. Two groups differ by 0.2 in one factor
before it is cut at 1, and in no item of the first experiment. *Before* is what the loadings on the levels and the factors themselves
show, which depends on the penalty; *after* is `confounder_effects_` and `confounder_impact_`. A fitted factor has units of its own, as
the penalty and the bounds alone determine its scale: the planted impact is converted to them by the loadings.

In the second experiment 24 items from 0 to 4 measure four factors, and the intervals come from `dfact stability` with 100 refits.
Where there are effects, four items are half a point higher in one group. The true effect of an item is the difference of its mean answers
between the groups at equal factors. The true impact is the difference of the means of a factor, in the units of the fitted factor.
With a continuous confounder, the two groups differ in age, too: one factor rises with age and no item does.

The intervals are the estimate minus its bias over the refits ± t standard errors. Two others were measured first, on 40 of the same
datasets. Percentiles of the refits covered the effect 0 in 97.2 to 98.5% of items, an effect in 93.1 to 96.9%, and the impact in 95.0 to
98.1%. Basic bootstrap intervals covered 95.1 to 97.8%, 90.6 to 94.4% and 91.2 to 95.0%. None of the three meets the bar in all
conditions. The current intervals are too short with 500 people of whom answers are missing, and, for the impact, with groups of 4 : 1.
They cover 90 to 92%, and have no bar there.
"""
_NEGLIGIBLE = 0.1  # points, as in the trials before anchoring
_REFITS = 100
_POPULATION = 200_000
Array = NDArray[np.float64]

BEFORE = Statement("Items before", "Items whose loadings on the two levels differ by 0.1 points or more.", "share of items")
AFTER = Statement("Items after", "Items with an effect of 0.1 points or more at equal factors; no item has any.", "share of items")
GAP = Statement("Impact before", "Difference of the factor's mean between the groups, in its own units.", "mean", is_share=False)
IMPACT = Statement("Impact after", "The same, with the anchor's shift.", "mean", is_share=False)
SHOWN_BEFORE = Statement("Planted impact before", "Impact before, in units of the planted factor.", "share of the planted impact", 1.0)
SHOWN = Statement("Planted impact after", "Impact after, in the same units.", "share of the planted impact", 1.0, (0.8, 1.2))
INVARIANCE = Statement(
    "Invariance",
    "Effects are the same to 6 decimals if any shift moves differences from the factors to the items.",
    "share of datasets",
    1.0,
    (1.0, 1.0),
)
NO_EFFECT = Statement("Interval, no effect", "The effect, 0, of an item that favours no group.", "coverage", 0.95, COVERAGE)
EFFECT = Statement("Interval, effect", "The effect of an item that favours a group.", "coverage", 0.95, COVERAGE)
FACTORS = Statement("Interval, impact", "The difference of each factor between the groups.", "coverage", 0.95, COVERAGE)


@dataclass(frozen=True)
class Questionnaire:
    """Items that load on one factor each."""

    loadings: Array
    """(m, k)."""
    intercept: Array
    """(m,)."""
    top: int
    """Highest answer."""

    @classmethod
    def draw(cls, rng: np.random.Generator, m: int, k: int, top: int) -> "Questionnaire":
        loadings = np.zeros((m, k))
        loadings[np.arange(m), np.arange(m) % k] = rng.uniform(0.375, 0.75, m) * top
        return cls(loadings, rng.uniform(0.08, 0.3, m) * top, top)

    def answer(self, W: Array, rng: np.random.Generator, effects: Array | float = 0.0) -> Array:
        """Return the answers of people with factors W (n, k), and effects (n, m) on the items."""
        expected = W @ self.loadings.T + self.intercept + effects
        answers: Array = np.clip(np.rint(expected + rng.normal(0, 0.175 * self.top, expected.shape)), 0, self.top)
        return answers


def people(rng: np.random.Generator, n: int, k: int, shift: Array) -> Array:
    """Return the factors W (n, k) of people, the first one shifted by (n,)."""
    W: Array = rng.beta(1.2, 1.8, (n, k)) * rng.binomial(1, 0.8, (n, k))
    W[:, 0] = np.clip(W[:, 0] + shift, 0, 1)
    return W


SIZES = {
    "40 items of 0–4, 4 factors": (40, 4, 4, 0.1),
    "100 items of 0–2, 10 factors": (100, 10, 2, 0.1),
    "120 items of 0–3, 12 factors": (120, 12, 3, 0.1),
    "100 items of 0–2, 10 factors, β = 0.5": (100, 10, 2, 0.5),
}


def simulate_anchor(condition: str, seed: int) -> Counts:
    """Fit groups that differ in one factor and in no item."""
    m, k, top, beta = SIZES[condition]
    rng = np.random.default_rng(seed)
    groups = np.arange(500) % 2
    questionnaire = Questionnaire.draw(rng, m, k, top)
    answers = questionnaire.answer(people(rng, 500, k, 0.2 * groups), rng)
    model = dfact.ICQF(k, beta=beta, bounds=(0, top), q_max=top).fit(answers, confounders={"group": np.where(groups, "b", "a")})
    loadings, effects, Q = model.confounder_loadings_, model.confounder_effects_.iloc[:, 0].to_numpy(), model.loadings_.to_numpy(np.float64)
    raw = (loadings["group=b"] - loadings["group=a"]).to_numpy(np.float64)
    factor = _first_factor(Q, questionnaire)
    W = np.asarray(model.factors_)[:, factor]
    gap, impact = float(W[groups == 1].mean() - W[groups == 0].mean()), float(model.confounder_impact_.iloc[factor, 0])
    planted = float(_true_impact(model, questionnaire, population_gaps(False))[0, factor])
    moved = anchor(raw - Q @ rng.normal(0, 0.2, k), Q, answers.std(axis=0)).effects
    return {
        BEFORE.name: (float((np.abs(raw) >= _NEGLIGIBLE).sum()), m),
        AFTER.name: (float((np.abs(effects) >= _NEGLIGIBLE).sum()), m),
        GAP.name: (gap, 1),
        IMPACT.name: (impact, 1),
        SHOWN_BEFORE.name: (gap, planted),
        SHOWN.name: (impact, planted),
        INVARIANCE.name: (float(np.abs(moved - effects).max() < 1e-6), 1),
    }


@dataclass(frozen=True)
class Condition:
    n: int
    share: float = 0.5
    """Of the second group."""
    missing: float = 0.0
    n_effects: int = 0
    aged: bool = False
    """Whether age is a further confounder."""


CONDITIONS = {
    "n = 200": Condition(200),
    "n = 500, effects, 20% missing": Condition(500, missing=0.2, n_effects=4),
    "n = 1,000": Condition(1000),
    "n = 1,000, effects, groups 4 : 1": Condition(1000, share=0.2, n_effects=4),
    "n = 1,000, effects, half of one group's answers missing": Condition(1000, missing=-0.5, n_effects=4),
    "n = 500, group and age": Condition(500, aged=True),
}


@cache
def population_gaps(aged: bool) -> Array:
    """Return the differences of the first factor: between the groups, and from the lowest to the highest age."""
    rng = np.random.default_rng(0)
    groups, age = np.arange(_POPULATION) % 2, rng.random(_POPULATION)
    age = _ages(rng, groups) if aged else age
    W = people(rng, _POPULATION, 1, 0.2 * (age if aged else groups))[:, 0]
    A = np.column_stack([groups, *([age] if aged else []), np.ones(_POPULATION)])
    coefficients: Array = np.linalg.lstsq(A, W, rcond=None)[0][:-1]
    return coefficients


def _ages(rng: np.random.Generator, groups: NDArray[Any]) -> Array:
    return 0.7 * rng.random(len(groups)) + 0.3 * groups


def simulate_intervals(name: str, seed: int) -> Counts:
    """Compute the stability of a fit, and count the intervals that contain the true values."""
    condition, k, top = CONDITIONS[name], 4, 4
    rng = np.random.default_rng(seed)
    questionnaire = Questionnaire.draw(rng, 24, k, top)
    groups = (np.arange(condition.n) < condition.share * condition.n).astype(int)
    confounders = {"group": np.where(groups, "b", "a")}
    shift = 0.2 * groups
    if condition.aged:
        age = _ages(rng, groups)
        confounders, shift = {**confounders, "age": age}, 0.2 * age
    favoured = np.zeros(24)
    favoured[[0, 1, 6, 11][: condition.n_effects]] = 0.5
    answers = questionnaire.answer(people(rng, condition.n, k, shift), rng, np.outer(groups, favoured))
    missing = np.where(groups == 1, -condition.missing, 0.0) if condition.missing < 0 else np.full(condition.n, condition.missing)
    answers[rng.random(answers.shape) < missing[:, None]] = np.nan
    frame = pd.DataFrame(confounders)
    model = dfact.ICQF(k, bounds=(0, top), q_max=top).fit(answers, confounders=frame)
    found = dfact.selection.bootstrap(model, answers, _REFITS, confounders=frame, random_state=seed)
    assert found.confounder_low is not None
    assert found.confounder_high is not None
    assert found.impact_low is not None
    assert found.impact_high is not None
    effects = np.zeros(found.confounder_low.shape)
    effects[0] = _true_effects(questionnaire, favoured, seed)
    impact = _true_impact(model, questionnaire, population_gaps(condition.aged))
    covered = (found.confounder_low <= effects) & (effects <= found.confounder_high)
    met = (found.impact_low <= impact) & (impact <= found.impact_high)
    none = effects == 0
    counts = {NO_EFFECT.name: (float(covered[none].sum()), float(none.sum())), FACTORS.name: (float(met.sum()), float(met.size))}
    return counts | ({EFFECT.name: (float(covered[~none].sum()), float((~none).sum()))} if condition.n_effects else {})


def _true_effects(questionnaire: Questionnaire, favoured: Array, seed: int) -> Array:
    """Return the differences of the mean answers of many people with and without the effects, as rounding and bounds shrink them."""
    if not favoured.any():
        return favoured
    W = people(np.random.default_rng(seed), 20_000, questionnaire.loadings.shape[1], 0.1 * np.ones(20_000))
    with_effects, without = (questionnaire.answer(W, np.random.default_rng(seed), values).mean(axis=0) for values in (favoured, 0.0))
    return np.where(favoured > 0, with_effects - without, 0.0)


def _first_factor(Q: Array, questionnaire: Questionnaire) -> int:
    """Return the number of the fitted factor with loadings Q (m, k) that matches the first planted one."""
    return int((questionnaire.loadings[:, 0] @ Q / np.linalg.norm(Q, axis=0)).argmax())


def _true_impact(model: Any, questionnaire: Questionnaire, gaps: Array) -> Array:
    """Return the true impact (q, k) in the units of the fitted factors, of which one is matched with the first true one."""
    Q, first = model.loadings_.to_numpy(np.float64), questionnaire.loadings[:, 0]
    factor = _first_factor(Q, questionnaire)
    impact = np.zeros((len(gaps), Q.shape[1]))
    impact[:, factor] = gaps * (first @ Q[:, factor]) / (Q[:, factor] @ Q[:, factor])
    return impact


_SHORT = [
    (EFFECT.name, "n = 500, effects, 20% missing"),
    (FACTORS.name, "n = 500, effects, 20% missing"),
    (FACTORS.name, "n = 1,000, effects, groups 4 : 1"),
]
"""Intervals that are known to miss their level, in conditions without a bar."""
EXPERIMENTS = [
    Experiment([BEFORE, AFTER, GAP, IMPACT, SHOWN_BEFORE, SHOWN, INVARIANCE], list(SIZES), simulate_anchor, 20),
    Experiment([NO_EFFECT, EFFECT, FACTORS], list(CONDITIONS), simulate_intervals, 60, _SHORT),
]
