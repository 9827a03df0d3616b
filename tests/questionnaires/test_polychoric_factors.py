"""Factor analysis of ordered answers: published figures, storage, limits, refused answers, the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

import dfact
from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors
from dfact.questionnaires.fit_indices import fit_indices
from dfact.questionnaires.minres import minres
from dfact.report.presenters.base import model_text
from tests.conftest import CutRows
from tests.questionnaires import bfi, factors, oracle, psychometrics

Array = NDArray[Any]


def answers(n: int, seed: int) -> Array:
    """Answers of 1 to 4 to 5 items of each of two factors."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 2)) @ np.kron(np.eye(2), np.ones((1, 5))) + rng.standard_normal((n, 10))
    return ((Z[:, :, None] > [-1.5, 0.0, 1.2]).sum(axis=2) + 1).astype(np.float32)


def polychoric(k: int = 2, **parameters: Any) -> dfact.FactorAnalysis:
    return dfact.FactorAnalysis(k, **{"correlation": "polychoric", "rotation": "oblimin"} | parameters)


@pytest.mark.parametrize("limit", [None, "tiles"])
def test_stored_and_tiled_answers_give_the_same_bits(limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = answers(700, 0)
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    expected = polychoric().fit(X)
    if limit:  # as if only one item's tables were within the memory limit
        monkeypatch.setattr("dfact.engine.memory_plan.Plan.fits", property(lambda _: False))
        monkeypatch.setattr("dfact.engine.memory_plan.Plan.check", lambda _: None)
        assert polychoric().prepare(X).problem.tiles == 16
    for executor in ("inline", "threads"):
        found = polychoric(executor=executor).fit(dfact.import_array(X, tmp_path / f"{executor}.zarr"))
        for name in ("correlations_", "components_", "factors_", "mean_", "scale_"):
            np.testing.assert_array_equal(np.asarray(getattr(found, name)), np.asarray(getattr(expected, name)), err_msg=name)
        assert found.thresholds_ == expected.thresholds_


@pytest.mark.further
@pytest.mark.cluster
@pytest.mark.parametrize("weighted", [False, True])
def test_neither_executors_nor_partitions_change_a_bit(weighted: bool, client: Any, tmp_path: Path, cut_rows: CutRows) -> None:
    X = answers(2000, 4)
    X[np.random.default_rng(4).random(X.shape) < 0.1] = np.nan
    w = np.random.default_rng(5).gamma(2, 1, len(X)) if weighted else None
    expected, counts = None, set()
    cut_rows(block_entries=1 << 10)
    for entries in (1 << 10, 10 << 10, 1 << 20):
        cut_rows(partition_entries=entries, small_partition_entries=entries)
        dataset = dfact.import_array(X, tmp_path / f"{entries}.zarr", weights=w)
        counts.add(dfact.plan(polychoric(), dataset).n_partitions)
        for executor in ("inline", "threads", client):
            found = polychoric(executor=executor).fit(dataset)
            expected = expected or found
            for name in ("correlations_", "components_", "factors_", "mean_", "scale_", "n_effective_", "thresholds_"):
                np.testing.assert_array_equal(np.asarray(getattr(found, name)), np.asarray(getattr(expected, name)), err_msg=name)
    assert {1, 2} < counts
    assert max(counts) > 8


@pytest.mark.further
def test_weights_of_people_count_in_all_figures() -> None:
    X, w = answers(3000, 6), np.random.default_rng(6).gamma(1, 1, 3000)
    w[:1000] = 0
    model = polychoric().fit(X, sample_weight=w)
    assert model.n_observations_ == 2000
    assert model.n_effective_ == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-9)
    np.testing.assert_allclose(model.correlations_, polychoric().fit(X[1000:], sample_weight=w[1000:]).correlations_, atol=1e-9)
    shares = [w[X[:, 0] <= level].sum() / w.sum() for level in (1, 2, 3)]
    assert model.thresholds_[0] == pytest.approx(ndtri(shares), abs=1e-9)
    loadings = minres(model.correlations_, 2).loadings
    expected = fit_indices(model.correlations_, loadings, model.uniquenesses_, model.n_effective_)
    assert model.fit_["chi_square"] == pytest.approx(expected["chi_square"], rel=1e-4)
    few, many = (number_of_factors(polychoric(), X, [1, 2], sample_weight=v).parallel_analysis.reference for v in (w, None))
    assert few is not None
    assert many is not None
    assert few[0] > many[0]


def test_items_answered_only_with_weight_0_are_named() -> None:
    X, w = answers(300, 8), np.ones(300)
    X[:250, 4], w[250:] = np.nan, 0
    with pytest.raises(dfact.DataError, match=r"items '0' and '4' do not vary together in the 0 rows"):
        polychoric().fit(X, sample_weight=w)


def test_plan_counts_the_sums_of_weights() -> None:
    X = answers(3000, 7)
    plain, weighted = (polychoric().prepare(X, sample_weight=w).plan() for w in (None, np.ones(len(X))))
    assert weighted.working > plain.working


def test_repeated_items_and_invalid_answers_are_named() -> None:
    X = answers(300, 0)
    with pytest.warns(UserWarning, match=r"polychoric correlation is at its limit for 1 pairs of items \('10' and '3'\)"):
        found = polychoric().correlate(np.column_stack([X, X[:, 3]]))
    assert found.R[10, 3] == 0.9999
    wide = X.copy()
    wide[5, 2] = 40
    with pytest.raises(dfact.DataError, match=r"item '2' has answers from 1 to 40, more than 10 levels \(1 such items\)"):
        polychoric().fit(wide)
    fraction = X.copy()
    fraction[5, 2] = 2.5
    with pytest.raises(dfact.DataError, match="item '2' has 1 answers that are not whole numbers, expected ordered categories"):
        polychoric().fit(fraction)


def test_fit_is_described() -> None:
    X = answers(500, 2)
    text = model_text(polychoric().fit(X), 2)
    assert "oblimin rotation" in text
    assert "polychoric, of 500 participants (pairwise)" in text
    assert "all but SRMR are descriptive" in text
    pearson = dfact.FactorAnalysis(2).fit(X)
    assert pearson.thresholds_ is None
    assert "descriptive" not in model_text(pearson, 2)
    assert pearson.fit_.rmsea < 0.05
    assert (pearson.score_reliability_ < 1).all()
    pearson.smoothed_ = True
    assert "undefined, as the correlations were smoothed" in model_text(pearson, 2)


def test_kaisers_normalization_is_that_of_the_rotation_by_default() -> None:
    X = answers(400, 3) + np.linspace(0, 1, 400)[:, None].round()
    for rotation, default in (("promax", True), ("varimax", True), ("oblimin", False)):
        fits = {kaiser: dfact.FactorAnalysis(2, rotation=rotation, kaiser=kaiser).fit(X).components_ for kaiser in (None, True, False)}
        np.testing.assert_array_equal(fits[None], fits[default])
        assert np.abs(fits[True] - fits[False]).max() > 1e-6


@psychometrics
def test_five_factors_of_bfi() -> None:
    model = polychoric(5, tol=1e-9).fit(bfi())
    np.testing.assert_allclose(model.correlations_, oracle("polychoric_bfi.csv"), atol=1e-6)
    np.testing.assert_allclose(model.thresholds_, oracle("thresholds_bfi.csv"), atol=1e-7)
    np.testing.assert_allclose(model.components_.T, factors("loadings_bfi.csv", "polychoric", "oblimin"), atol=1e-5)
    fit = model.fit_
    assert fit[["rmsea", "rmsea_low", "rmsea_high"]].to_list() == pytest.approx([0.068231, 0.065928, 0.070586], abs=1e-6)
    assert fit[["cfi", "tli", "srmr"]].to_list() == pytest.approx([0.905830, 0.847107, 0.030056], abs=1e-6)
    assert fit.chi_square == pytest.approx(2596.571, abs=2e-3)
    assert model.score_reliability_.to_list() == pytest.approx([0.8775, 0.8270, 0.8061, 0.8071, 0.7610], abs=1e-4)
