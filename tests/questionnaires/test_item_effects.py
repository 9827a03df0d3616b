"""Tests of items in a comparison: continuous answers, other confounders, reasons why there are none, and warnings."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.models.provenance import Comparison
from dfact.questionnaires.groups.item_effects import anchored_tests
from dfact.questionnaires.groups.mantel_test import Groups, make_strata, mantel_figures
from dfact.report.comparison import comparison_text, describe_dif
from dfact.selection import compare_groups

Array = NDArray[np.float64]


def continuous(seed: int, n: int = 600, m: int = 12, effects: int = 1) -> tuple[Array, NDArray[np.int64]]:
    """Return answers to items of one trait, in which group b is half a standard deviation higher; the first items favour it."""
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 2
    answers = (rng.normal(size=n) + 0.5 * group)[:, None] * rng.uniform(0.7, 1.3, m) + rng.normal(size=(n, m))
    answers[:, :effects] += 1.0 * group[:, None]
    return answers, group


def letters(group: NDArray[np.int64]) -> pd.Series:
    return pd.Series(np.where(group == 1, "b", "a"), name="group")


def compared(model: Any, answers: Array, by: Any, frame: pd.DataFrame | None = None) -> Comparison:
    """Compare the items alone, without refits for the factors."""
    dataset = as_dataset(answers, frame)
    groups = Groups.of(by, dataset, None)
    tests, untested = anchored_tests(model, dataset, frame, groups)
    scales, mantel, unscreened = mantel_figures(model, dataset, groups, *make_strata(model, dataset, groups, None, None))
    factors = np.ones((len(groups.levels) - 1, len(model.components_)))
    labels = [str(label) for label in model.column_labels_]
    sizes = np.bincount(groups.labels)
    of_items = labels, scales, tests, untested, mantel, unscreened
    return Comparison(groups.by, list(groups.levels), sizes, *[factors] * 4, 0.95, 30, factors, None, factors, "", *of_items)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:item '0' has")
def test_continuous_items_are_tested_and_the_impact_is_no_finding(seed: int) -> None:
    answers, group = continuous(seed)
    found = compared(dfact.FactorAnalysis(1, executor="inline").fit(answers), answers, letters(group))
    assert list(found.dif_items.index) == [("b − a", "0")]
    assert found.mantel_tests is None
    impact = found.impact(["trait"])
    assert impact is not None
    low, high = impact.loc[("b − a", "trait"), ["low", "high"]]
    assert abs(low) < abs(high) < 1 or abs(high) < abs(low) < 1
    text = comparison_text(found, ["trait"])
    assert "Differential functioning (DIF) was found in 1 of 12 items: an effect of 0.17 standard deviations (SD) or more" in text
    assert "11 of 12 items show no significant difference (the largest estimate among them is" in text
    assert "An item is listed if it differs with 1 and 2 factors" in text
    [line] = [line for line in text.splitlines() if line.lstrip().startswith("group")][-1:]
    assert line.split() == ["group", "item"] or "effect (points)" in text
    assert {"se", "p_adjusted"} <= {*found.dif_items}
    assert "Mantel's test was not possible, because" in text
    assert "impact" in text


@pytest.mark.parametrize("seed", range(2))
def test_other_confounders_of_the_model_are_held_equal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, group = 800, np.arange(800) % 2
    age = np.clip(rng.normal(0.4 + 0.2 * group, 0.15), 0, 1)
    trait = rng.beta(1.2, 1.8, n)[:, None]
    answers = np.clip(np.rint(trait * rng.uniform(1.5, 2.5, 12) + 0.6 + rng.normal(0, 0.6, (n, 12))), 0, 4)
    answers[:, 0] = np.clip(np.rint(answers[:, 0] + 2.5 * age), 0, 4)  # an item of the old; several would share a factor
    frame = pd.DataFrame({"group": letters(group), "age": age})
    found = []
    for part in (frame, frame[["group"]]):
        model = dfact.ICQF(1, tol=1e-3, executor="inline").fit(answers, confounders=part)
        found.append(compared(model, answers, "group", as_dataset(answers, part).confounders))
    held, ignored = found
    assert held.item_tests is not None
    assert ignored.item_tests is not None
    assert not held.item_tests.flagged.any()
    assert ignored.item_tests.flagged[0, 0]
    assert np.abs(held.item_tests.effect[0, 0]) < np.abs(ignored.item_tests.effect[0, 0]) / 2


@pytest.mark.filterwarnings("ignore")  # a model with more parameters than correlations
def test_the_reason_is_given_where_no_test_is_possible() -> None:
    answers, group = continuous(0, m=4)
    found = compared(dfact.FactorAnalysis(2, executor="inline").fit(answers), answers, letters(group))
    assert found.effects is None
    assert found.impact(["one", "two"]) is None
    assert len(found.dif_items) == 0
    assert "Not tested: the items at equal factors, because 4 items do not determine 2 factors within the groups" in describe_dif(found)
    answers, group = continuous(0)
    frame = as_dataset(answers, pd.DataFrame({"group": letters(group), "again": letters(group)})).confounders
    positive = answers - answers.min()
    model = dfact.ICQF(1, max_iter=20, executor="inline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compared(model.fit(positive, confounders=frame), positive, "group", frame)
    assert "because the other confounders of the model determine the groups" in describe_dif(found)


@pytest.mark.filterwarnings("ignore:item '0' has")
def test_a_model_with_fewer_factors_than_the_items_states_what_was_not_tested() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(800) % 2
    traits = rng.normal(size=(800, 2)) + 0.6 * group[:, None] * [1, 0]
    answers = traits @ np.kron(np.eye(2), np.ones(6)) + rng.normal(size=(800, 12))
    found = compared(dfact.FactorAnalysis(1, executor="inline").fit(answers), answers, letters(group))
    text = comparison_text(found, ["F1"])
    assert "Not tested: the impact on the model's factors, because the items ask for 2 factors within the groups" in text
    assert "in standard deviations within the groups" not in text  # no table of the impact
    assert len(found.dif_items) == 0
    assert found.item_tests is not None
    [numbers] = found.item_tests.of_numbers(found.items)
    assert (numbers["model"], numbers["asked"], numbers["tested"]) == (1, 2, [1, 2])
    assert len({int(item) // 6 for item in numbers["pair"]}) == 1  # two items of the factor that is lacking


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore:item '0' has")
def test_standard_errors_of_clusters_are_those_of_their_means(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters, size = np.repeat(np.arange(40), 25), 12
    group = clusters % 2
    answers = rng.normal(size=(1000, 1)) * rng.uniform(0.7, 1.3, size) + rng.normal(size=(1000, size))
    answers += 0.4 * rng.normal(size=(40, size))[clusters]  # schools differ in items
    model = dfact.FactorAnalysis(1, executor="inline").fit(answers)
    dataset = as_dataset(answers)
    groups = Groups.of(letters(group), dataset, None)
    rows, _ = anchored_tests(model, dataset, None, groups)
    whole, _ = anchored_tests(model, dataset, None, groups, clusters)
    again, _ = anchored_tests(model, dataset, None, groups, rng.permutation(40)[clusters])
    assert rows is not None
    assert whole is not None
    assert again is not None
    assert whole.df == 19  # each group has 20 clusters
    means = np.stack([answers[clusters == c].mean(axis=0) for c in range(40)])
    expected = np.sqrt(means[::2].var(axis=0, ddof=1) / 20 + means[1::2].var(axis=0, ddof=1) / 20)
    assert 0.6 < np.median(whole.se) / np.median(expected) < 1.2  # the factor explains a part
    assert np.median(whole.se) > 1.5 * np.median(rows.se)
    assert 0.8 < np.median(again.se) / np.median(whole.se) < 1.25


@pytest.mark.filterwarnings("ignore:item '0' has")
def test_a_factor_of_few_items_or_few_anchors_has_a_warning_by_name() -> None:
    answers, group = continuous(1, m=12, effects=0)
    rng = np.random.default_rng(0)
    second = rng.normal(size=(600, 1)) + rng.normal(0, 0.7, (600, 3))
    model = dfact.FactorAnalysis(2, executor="inline").fit(np.hstack([answers, second]))
    with pytest.warns(UserWarning, match="the anchor of F[12] has 3 of its 3 items for group=b, expected at least four"):
        compared(model, np.hstack([answers, second]), letters(group))


def test_sums_by_tiles_within_a_memory_limit_give_the_same_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, group = continuous(2)
    model = dfact.FactorAnalysis(1, executor="inline").fit(answers)
    dataset = as_dataset(answers)
    groups = Groups.of(letters(group), dataset, None)
    whole, _ = anchored_tests(model, dataset, None, groups)
    planned: list[int] = []

    class Plan:
        def __init__(self, fits: bool) -> None:
            self.fits = fits

    def plan(*_: Any, footprint: Any, **__: Any) -> Plan:
        planned.append(footprint.summed)
        return Plan(len(planned) > 3)

    monkeypatch.setattr(type(model), "plan_session", plan)
    tiled, _ = anchored_tests(model, dataset, None, groups)
    assert planned == sorted(planned, reverse=True)
    assert len(planned) == 4
    assert whole is not None
    assert tiled is not None
    assert_allclose(tiled.effect, whole.effect, atol=1e-10)
    assert_allclose(tiled.se, whole.se, atol=1e-10)


@pytest.mark.further
def test_a_comparison_does_not_depend_on_the_seed_in_its_items() -> None:
    answers, group = continuous(3, 300)
    model = dfact.FactorAnalysis(1, executor="inline").fit(answers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (compare_groups(model, answers, letters(group), n_resamples=30, test=False, random_state=s) for s in (0, 1))
    assert one.effects is not None
    pd.testing.assert_frame_equal(one.effects, two.effects)
