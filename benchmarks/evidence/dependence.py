"""Rows that are not independent, and models with fewer factors than the items: tests of items, and of drift."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.evidence.calibration import LEVEL_OF_TESTS, Counts, Experiment, Statement
from benchmarks.evidence.items import compare, letters

TITLE = "Clusters of people, and factors that a model lacks"
INTRODUCTION = """\
Pupils of the same school are alike. In the first experiment 1,200 people in 40 clusters of 30 answer 24 items of three factors, from 0
to 4; factors and single items have the same intraclass correlation. Whole clusters belong to a group, half of them to each, and the groups
differ by half a standard deviation in the first factor. No item favours a group; in the rows on power two do by 0.3 standard
deviations. `compare` takes people as independent, or is given their clusters (`--clusters`). With clusters of 3 to 100 people and 24
clusters in all the test is measured, too.

In the second experiment people are independent, and the model has one to four factors. Each item is tested with the model's number, with
one more, and with the number that parallel analysis finds within the groups; it is a finding if all of them reject. An earlier
version tested with the model's number alone: in 30 datasets each it rejected for 13.3 ± 2.7% of items with two of three factors, for
25.4 ± 2.7% with one, and for 3.3 ± 0.7% with four. If parallel analysis asks for more factors than the model has, `compare` says so,
and there is no impact.

The third experiment checks 600 new people in 20 clusters for drift (`update --check`) in a factor analysis of 6,000, by tests of 24
items and three factors with a familywise error rate of 5%. No distribution differs.
"""
_ROWS = "The item's mean differs between the groups at equal factors, people taken as independent; p value before adjustment."
ROWS = Statement("Test at equal factors, people independent", _ROWS, "false rejections", 0.05)
CLUSTERS = Statement(
    "Test at equal factors, with clusters",
    "The item's mean differs between the groups at equal factors, clusters taken as independent; p value before adjustment.",
    "false rejections",
    0.05,
    LEVEL_OF_TESTS,
)
POWER_ROWS = Statement("Power, people independent", "An item favours a group by 0.3 standard deviations; p below 0.05.", "power")
POWER = Statement("Power, with clusters", "An item favours a group by 0.3 standard deviations; p below 0.05.", "power")
LACKING = Statement(
    "Test at equal factors, other numbers",
    "The item's mean differs between the groups at equal factors, with each number of factors that is tested.",
    "false rejections",
    0.05,
    LEVEL_OF_TESTS,
)
LACKING_POWER = Statement("Power, other numbers", "An item favours a group by 0.3 standard deviations; p below 0.05.", "power")
DRIFT_ROWS = Statement("Drift, people independent", "Any item or factor of the new people differs.", "false alarms", 0.05)
DRIFT = Statement("Drift, with clusters", "Any item or factor of the new people differs.", "false alarms", 0.05, (0.0, 0.05))
_M, _K = 24, 3


@dataclass(frozen=True)
class Condition:
    """Answers of three factors."""

    icc: float = 0.0
    clusters: int = 40
    uneven: bool = False
    fitted: int = _K
    dif: float = 0.0


CLUSTERED = {
    "intraclass correlation 0.05": Condition(0.05),
    "intraclass correlation 0.10": Condition(0.10),
    "0.10, clusters of 3 to 100": Condition(0.10, uneven=True),
    "0.10, 24 clusters": Condition(0.10, 24),
}
POWERS = {"intraclass correlation 0.05": Condition(0.05, dif=0.3), "intraclass correlation 0.10": Condition(0.10, dif=0.3)}
NUMBERS = {f"{k} of 3 factors": Condition(fitted=k) for k in (1, 2, 3, 4)}
NUMBERS_POWER = {f"{k} of 3 factors": Condition(fitted=k, dif=0.3) for k in (1, 2, 3, 4)}


def answers(
    rng: np.random.Generator, c: Condition, clusters: NDArray[np.intp], group: NDArray[np.intp], items: np.random.Generator
) -> NDArray[np.float64]:
    """Return answers from 0 to 4 (n, m) of people in clusters; ``items`` draws what belongs to the items."""
    count, n = int(clusters.max()) + 1, len(clusters)

    def mixed(own: NDArray[np.float64], spread: float, size: int) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(1 - c.icc) * own + np.sqrt(c.icc) * spread * rng.normal(size=(count, size))[clusters])

    factors = mixed(rng.normal(size=(n, _K)), 1.0, _K)
    factors[:, 0] += 0.5 * group
    loadings = (np.arange(_M)[:, None] % _K == np.arange(_K)) * items.uniform(0.8, 2.2, (_M, 1))
    sd = np.sqrt((loadings**2).sum(axis=1) + np.pi**2 / 3)
    latent = factors @ loadings.T + mixed(rng.logistic(size=(n, _M)), np.pi / np.sqrt(3), _M)
    latent[:, :2] += c.dif * sd[:2] * group[:, None]
    thresholds = (np.linspace(-1.25, 1.25, 4) + items.normal(0, 0.6, (_M, 1))) * sd[:, None]
    return (latent[:, :, None] > thresholds).sum(axis=2).astype(float)


def _compared(c: Condition, seed: int) -> tuple[Any, Any]:
    """Return the tests of all items with people and with clusters as independent; the latter are None without clusters."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.geometric(1 / 30, c.clusters), 3, 100) if c.uneven else np.full(c.clusters, 30)
    clusters = np.repeat(np.arange(c.clusters), sizes)
    group = rng.permutation(c.clusters)[clusters] % 2
    X = answers(rng, c, clusters, group, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dfact.FactorAnalysis(c.fitted, executor="inline").fit(X)
    rows = compare(model, X, letters(group), groups=["a", "b"]).effects
    return rows, compare(model, X, letters(group), groups=["a", "b"], clusters=clusters).effects if c.icc else None


def simulate_clusters(name: str, seed: int) -> Counts:
    rows, clusters = _compared(CLUSTERED[name], seed)
    return {ROWS.name: (float((rows["p"] < 0.05).sum()), _M), CLUSTERS.name: (float((clusters["p"] < 0.05).sum()), _M)}


def simulate_power(name: str, seed: int) -> Counts:
    rows, clusters = _compared(POWERS[name], 1000 + seed)
    return {POWER_ROWS.name: (float((rows["p"][:2] < 0.05).sum()), 2), POWER.name: (float((clusters["p"][:2] < 0.05).sum()), 2)}


def simulate_numbers(name: str, seed: int) -> Counts:
    null, _ = _compared(NUMBERS[name], 2000 + seed)
    planted, _ = _compared(NUMBERS_POWER[name], 3000 + seed)
    return {LACKING.name: (float((null["p"] < 0.05).sum()), _M), LACKING_POWER.name: (float((planted["p"][:2] < 0.05).sum()), 2)}


def simulate_drift(name: str, seed: int) -> Counts:
    c, rng = CLUSTERED[name], np.random.default_rng(4000 + seed)
    items = np.random.default_rng(seed)
    state = items.bit_generator.state
    seen, new = np.repeat(np.arange(200), 30), np.repeat(np.arange(20), 30)
    model = dfact.FactorAnalysis(_K, executor="inline").fit(answers(rng, c, seen, 0 * seen, items))
    items.bit_generator.state = state  # the same items
    X = answers(rng, c, new, 0 * new, items)
    return {DRIFT_ROWS.name: (float(model.drift(X).found), 1.0), DRIFT.name: (float(model.drift(X, clusters=new).found), 1.0)}


_PLAIN = ["intraclass correlation 0.05", "intraclass correlation 0.10"]
EXPERIMENTS = [
    Experiment([ROWS, CLUSTERS], list(CLUSTERED), simulate_clusters, 36),
    Experiment([POWER_ROWS, POWER], list(POWERS), simulate_power, 24),
    Experiment([LACKING, LACKING_POWER], list(NUMBERS), simulate_numbers, 24),
    Experiment([DRIFT_ROWS, DRIFT], _PLAIN, simulate_drift, 50),
]
