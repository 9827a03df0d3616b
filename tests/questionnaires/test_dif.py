"""Anchored tests of items against least squares, planted effects, and a jackknife done by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import drive
from dfact.errors import DataError
from dfact.questionnaires.groups.dif import N_PARTS, Design, DifTest, anchored_dif, weak_factors

Array = NDArray[np.float64]


def planted(seed: int, n: int = 1200, dif: float = 0.5, spread: float = 1.0) -> tuple[Array, NDArray[np.int64], Array]:
    """Return continuous answers to 16 items of 2 factors, groups that differ by (0.6, −0.3) in them, and loadings.

    Items 0 and 3 have an effect.
    """
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 2
    loadings = np.zeros((2, 16))
    loadings[np.arange(16) % 2, np.arange(16)] = rng.uniform(0.6, 1.2, 16)
    factors = rng.normal(size=(n, 2)) * np.where(group == 1, spread, 1.0)[:, None] + group[:, None] * [0.6, -0.3]
    answers = factors @ loadings + rng.normal(0, 0.8, (n, 16)) + 3
    answers[:, [0, 3]] += dif * group[:, None]
    return answers, group, loadings


def dif_of(
    X: Any, group: NDArray[Any], loadings: Array, weights: Any = 1.0, others: Any = None, executor: str = "inline", tiles: int = 1
) -> list[DifTest]:
    dataset, size = as_dataset(X), int(group.max()) + 1
    Z = np.column_stack([np.ones(len(group)), group[:, None] == np.arange(1, size), *([] if others is None else [others])])
    parts = np.zeros(len(group))
    for label in range(size):
        rows = np.flatnonzero(group == label)
        parts[rows] = np.random.default_rng(0).permutation(len(rows)) % N_PARTS
    covariates = np.column_stack([group, parts, np.broadcast_to(weights, group.shape), Z]).astype(float)
    model = dfact.FactorAnalysis(1, executor=executor)
    dtype, complete = np.dtype("float64"), bool((dataset.statistics.observed == len(group)).all())
    with model.open_session(dataset, covariates=covariates, footprint=Footprint(0, 0, 1 << 20, 0), dtype=dtype) as session:
        design = Design(size, Z.shape[1], tuple(np.bincount(group[group >= 0]).astype(float)))
        solver = anchored_dif(design, np.full(X.shape[1], 3.0), loadings, complete=complete, tiles=tiles, dtype=dtype)
        return drive(solver, session)


@pytest.mark.parametrize("seed", range(3))
def test_planted_effects_leave_the_anchor_and_the_impact_is_that_of_the_factors(seed: int) -> None:
    X, group, loadings = planted(seed)
    [test] = dif_of(X, group, loadings)
    assert not test.anchors[[0, 3]].any()
    assert test.anchors.sum() >= 12
    assert (np.abs(test.effect[[0, 3]] - 0.5) < 4 * test.se[[0, 3]]).all()
    assert (np.abs(np.delete(test.effect, [0, 3])) < 4 * np.delete(test.se, [0, 3])).all()
    assert (np.abs(test.impact - [0.6, -0.3]) < 4 * test.impact_se).all()
    assert_allclose(test.difference, X[group == 1].mean(axis=0) - X[group == 0].mean(axis=0), atol=1e-10)
    within = np.sqrt((X[group == 0].var(axis=0) + X[group == 1].var(axis=0)) / 2)
    assert_allclose(test.sd, within, rtol=1e-10)


def test_standard_errors_are_the_spread_of_samples() -> None:
    effects, errors, impacts, impact_errors = [], [], [], []
    _, group, loadings = planted(0, 300)
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        factors = rng.normal(size=(300, 2)) + group[:, None] * [0.6, -0.3]
        X = factors @ loadings + rng.normal(0, 0.8, (300, 16))
        [test] = dif_of(X, group, loadings)
        effects.append(test.effect)
        errors.append(test.se)
        impacts.append(test.impact)
        impact_errors.append(test.impact_se)
    assert_allclose(np.mean(errors), np.std(effects, axis=0).mean(), rtol=0.1)
    assert_allclose(np.mean(impact_errors), np.std(impacts, axis=0).mean(), rtol=0.25)


@pytest.mark.parametrize("seed", range(2))
def test_other_confounders_are_held_equal_by_least_squares_of_the_rows_with_an_answer(seed: int) -> None:
    X, group, loadings = planted(seed, 500)
    rng = np.random.default_rng(seed)
    age = rng.normal(size=500) + group
    X = X + np.outer(age, np.linspace(-1, 1, 16))
    X[rng.random(X.shape) < 0.2] = np.nan
    weights = rng.uniform(0.2, 1, 500)
    [test] = dif_of(X, group, loadings, weights, age)
    Z = np.column_stack([np.ones(500), group, age])
    for j in (0, 7):
        rows = ~np.isnan(X[:, j])
        root = np.sqrt(weights[rows])
        expected = np.linalg.lstsq(Z[rows] * root[:, None], X[rows, j] * root, rcond=None)[0][1]
        assert_allclose(test.difference[j], expected, atol=1e-9)
    assert (np.abs(np.delete(test.effect, [0, 3])) < 4.5 * np.delete(test.se, [0, 3])).all()


def test_several_groups_are_tested_each_against_the_first_and_rows_of_none_are_left_out() -> None:
    X, group, loadings = planted(5, 1800)
    three = np.where(group == 0, 0, 1 + np.arange(len(group)) % 4 // 2)
    both = dif_of(X, three, loadings)
    for contrast in (1, 2):
        rows = np.isin(three, (0, contrast))
        [alone] = dif_of(X[rows], (three[rows] > 0).astype(int), loadings)
        assert_allclose(both[contrast - 1].effect, alone.effect, atol=1e-8)
    none = three.copy()
    none[three == 2] = -1
    [alone] = dif_of(X, none, loadings)
    assert_allclose(alone.effect, both[0].effect, atol=1e-8)


def test_units_and_signs_of_items_do_not_matter() -> None:
    X, group, loadings = planted(2)
    units = np.where(np.arange(16) % 3, 1.0, -10.0)
    [plain], [scaled] = dif_of(X, group, loadings), dif_of(3 + (X - 3) * units, group, loadings * units)
    assert_allclose(scaled.effect, plain.effect * units, rtol=1e-4, atol=1e-5)
    assert_allclose(scaled.se, plain.se * np.abs(units), rtol=1e-3)
    assert_allclose(scaled.impact, plain.impact, rtol=1e-4)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_tiles_executors_and_storage_do_not_matter(missing: float, tmp_path: Any) -> None:
    X, group, loadings = planted(3, 5000)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    [expected] = dif_of(X, group, loadings)
    stored = dfact.import_array(X, tmp_path / "x.zarr")
    [threads] = dif_of(stored, group, loadings, executor="threads")
    [tiled] = dif_of(X, group, loadings, tiles=7)
    for name, value in vars(expected).items():
        assert_array_equal(getattr(threads, name), value)
        assert_allclose(getattr(tiled, name), value, atol=1e-9)


def test_groups_that_other_confounders_determine_are_refused() -> None:
    X, group, loadings = planted(0, 300)
    with pytest.raises(DataError, match="the other confounders of the model determine the groups"):
        dif_of(X, group, loadings, others=2.0 * group)
    with pytest.raises(DataError, match="16 items do not determine 12 factors"):
        dif_of(X, group, np.ones((12, 16)))
    X[group == 1, 0] = np.nan
    X[group == 1, 0] = np.where(np.arange(150) < 75, 3.0, np.nan)
    X[group == 1, 1] = np.where(np.arange(150) < 75, np.nan, X[group == 1, 1])
    with pytest.raises(DataError, match="some items share no answers within a group"):
        dif_of(X, group, loadings)


def test_more_factors_than_there_are_leave_a_test_of_the_planted_items() -> None:
    X, group, loadings = planted(1)
    [test] = dif_of(X, group, np.vstack([loadings, np.zeros((2, 16))]))
    assert np.isnan(test.impact[2:]).all()  # of factors without loadings
    assert np.isfinite(test.effect).all()
    assert np.abs(test.effect / test.se).argsort()[-2:].tolist() in ([0, 3], [3, 0])


@pytest.mark.parametrize("seed", range(2))
def test_a_factor_that_the_model_lacks_makes_no_effects_and_leaves_the_impact_untested(seed: int) -> None:
    X, group, loadings = planted(seed, dif=0.0)
    [test] = dif_of(X, group, loadings.sum(axis=0, keepdims=True))
    assert (test.asked, test.n_factors) == (2, 2)
    assert np.isnan(test.impact).all()
    assert (np.abs(test.effect) < 4 * test.se).all()
    assert np.abs(np.triu(test.residual, 1)).max() > 0.2  # correlations that one factor leaves
    [whole] = dif_of(X, group, loadings)
    assert whole.n_factors == 3  # one more than the model has
    for found in (test, whole):
        assert (np.abs(found.least) <= np.abs(found.effect / found.se) + 1e-12).all()


def test_anchors_of_few_items_or_of_a_minority_are_weak() -> None:
    factor = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    anchors = np.ones(12, bool)
    assert weak_factors(anchors, factor) == {0: (3, 3)}
    anchors[-5:] = False
    assert weak_factors(anchors, factor) == {0: (3, 3), 1: (4, 9)}


@pytest.mark.parametrize("seed", range(2))
def test_unequal_variances_of_binary_answers_do_not_flag_items(seed: int) -> None:
    X, group, loadings = planted(seed, 4000, dif=0.0, spread=1.5)
    binary = (np.linspace(1.8, 4.6, 16) < X).astype(float)
    [test] = dif_of(binary, group, loadings)
    assert (np.abs(test.effect) < 4 * test.se).all()
    naive = pd.Series(test.difference / test.sd)
    assert naive.abs().max() > 0.2  # the impact itself is large
