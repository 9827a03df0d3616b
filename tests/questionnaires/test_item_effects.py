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
    assert "Of 12 items, 1 have differential functioning (DIF): the test at equal factors flags 1, 11 of 12 differences are anchors" in text
    assert "Mantel's test was not possible, because" in text
    assert "impact" in text


@pytest.mark.parametrize("seed", range(2))
def test_other_confounders_of_the_model_are_held_equal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, group = 800, np.arange(800) % 2
    age = np.clip(rng.normal(0.4 + 0.2 * group, 0.15), 0, 1)
    trait = rng.beta(1.2, 1.8, n)[:, None]
    answers = np.clip(np.rint(trait * rng.uniform(1.5, 2.5, 12) + 0.6 + rng.normal(0, 0.6, (n, 12))), 0, 4)
    answers[:, :3] = np.clip(np.rint(answers[:, :3] + 1.5 * age[:, None]), 0, 4)  # items of the old, not of a group
    frame = pd.DataFrame({"group": letters(group), "age": age})
    found = []
    for part in (frame, frame[["group"]]):
        model = dfact.ICQF(1, tol=1e-3, executor="inline").fit(answers, confounders=part)
        found.append(compared(model, answers, "group", as_dataset(answers, part).confounders))
    held, ignored = found
    assert held.item_tests is not None
    assert ignored.item_tests is not None
    assert not held.item_tests.flagged.any()
    assert ignored.item_tests.flagged[0, :3].any()
    assert np.abs(held.item_tests.effect[0, :3]).mean() < np.abs(ignored.item_tests.effect[0, :3]).mean() / 2


@pytest.mark.filterwarnings("ignore")  # a model with more parameters than correlations
def test_the_reason_is_given_where_no_test_is_possible() -> None:
    answers, group = continuous(0, m=4)
    found = compared(dfact.FactorAnalysis(2, executor="inline").fit(answers), answers, letters(group))
    assert found.effects is None
    assert found.impact(["one", "two"]) is None
    assert len(found.dif_items) == 0
    assert "No test of items was possible, because 4 items do not determine 2 factors within the groups" in describe_dif(found)
    answers, group = continuous(0)
    frame = as_dataset(answers, pd.DataFrame({"group": letters(group), "again": letters(group)})).confounders
    positive = answers - answers.min()
    model = dfact.ICQF(1, max_iter=20, executor="inline")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compared(model.fit(positive, confounders=frame), positive, "group", frame)
    assert "because the other confounders of the model determine the groups" in describe_dif(found)


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
