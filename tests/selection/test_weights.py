"""Weights and strata in resampling and cross-validation, and the effects of confounders over refits."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dfact
from dfact.data.coerce import as_dataset
from dfact.linalg.anchor import anchor
from dfact.models.provenance import Stability
from dfact.report.presenters.base import model_text
from dfact.selection import block_cross_validate, bootstrap
from dfact.selection.cross_validation.squared_errors import sum_squared_errors
from dfact.selection.running.scheduler import run_fits
from dfact.stability.resamples import RefittedLoadings, ResampleFits
from tests.models.test_weights import models, survey
from tests.stability.test_bootstrap import drawn_rows

pytestmark = pytest.mark.filterwarnings("ignore:the uniqueness of", "ignore:.*more parameters", "ignore:the model has not converged")
EFFECTS = ("confounder_mean", "confounder_low", "confounder_high", "confounder_se")
IMPACT = ("impact_mean", "impact_low", "impact_high", "impact_se")


def same(first: Stability, second: Stability) -> bool:
    for name, value in vars(first).items():
        other = getattr(second, name)
        if not (np.array_equal(value, other, equal_nan=True) if isinstance(value, np.ndarray) else value == other):
            return False
    return True


# Resamples.
@pytest.mark.parametrize("name", models())
def test_a_weighted_refit_is_a_fit_to_the_drawn_rows_with_their_weights(name: str) -> None:
    M, w = survey(1)
    # The penalty of the loadings refers to the weights of all rows, not to those of the drawn ones: 0, or comparing directions.
    model = models()[name].set_params(dtype="float64", executor="inline", **({"beta": 0.0} if name == "icqf" else {}))
    found: list[Any] = []
    run_fits(ResampleFits.make(model, as_dataset(M).with_weights(w), seed=3), [0], lambda _, refit: found.append(refit), "inline", None)
    assert isinstance(found[0], RefittedLoadings)
    rows = np.repeat(np.arange(len(M)), drawn_rows(M.shape, 3, 0))
    again, plain = (model.fit(M[rows], sample_weight=weights).components_ for weights in (w[rows], None))
    refit, again, plain = (H / np.linalg.norm(H, axis=1, keepdims=True) for H in (found[0].components, again, plain))
    assert_allclose(refit, again, atol=2e-3)
    assert not np.allclose(refit, plain, atol=5e-3)


@pytest.mark.further
@pytest.mark.parametrize("name", models())
def test_shared_reads_give_the_same_stability_of_a_weighted_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    M, w = survey(2)
    model = models()[name].fit(M, sample_weight=w)
    in_memory = bootstrap(model, M, 3, sample_weight=w, random_state=0)
    assert same(in_memory, bootstrap(model, as_dataset(M).with_weights(w), 3, random_state=0))
    assert not same(in_memory, bootstrap(models()[name].fit(M), M, 3, random_state=0))
    monkeypatch.setattr(ResampleFits, "fits_in_memory", lambda *_: False)
    assert same(in_memory, bootstrap(model, M, 3, sample_weight=w, random_state=0))


@pytest.mark.needs("questionnaires")
def test_a_bootstrap_needs_the_weights_of_the_fit() -> None:
    M, w = survey(3)
    weighted, plain = (dfact.FactorAnalysis(2).fit(M, sample_weight=weights) for weights in (w, None))
    with pytest.raises(dfact.DataError, match="the model was fitted with weights; pass those of its 400 rows"):
        bootstrap(weighted, M, 3)
    with pytest.raises(dfact.DataError, match="the model was fitted without weights; leave out sample_weight"):
        bootstrap(plain, M, 3, sample_weight=w)
    assert same(bootstrap(plain, as_dataset(M).with_weights(w), 3, random_state=1), bootstrap(plain, M, 3, random_state=1))


@pytest.mark.parametrize("n", [70, 5000])
def test_strata_keep_their_sizes(n: int) -> None:
    strata = np.random.default_rng(0).integers(0, 3, n)
    draws = np.stack([drawn_rows((n, 4), 1, number, strata) for number in range(100)])
    for stratum in range(3):
        assert (draws[:, strata == stratum].sum(axis=1) == (strata == stratum).sum()).all()
    assert_allclose(draws.mean(), 1)
    assert_allclose((draws == 0).mean(), np.exp(-1), atol=0.03)
    assert_array_equal(draws[2], drawn_rows((n, 4), 1, 2, strata))


def test_a_stratified_bootstrap_fits_every_level() -> None:
    M, _ = survey(4)
    group = np.where(np.arange(len(M)) < 3, "rare", "common")  # 3 of 400 rows: absent from one resample in 20 without strata
    model = dfact.ICQF(2, bounds=(0, 4), q_max=4).fit(M, confounders={"group": group})
    settings: dict[str, Any] = {"confounders": {"group": group}, "random_state": 0}
    first, second = (bootstrap(model, M, 3, stratify=group, **settings) for _ in range(2))
    assert same(first, second)
    assert not same(first, bootstrap(model, M, 3, **settings))


@pytest.mark.needs("questionnaires")
def test_a_checkpoint_of_other_strata_is_refused(tmp_path: Path) -> None:
    M, _ = survey(5)
    model, group = dfact.FactorAnalysis(2).fit(M), np.arange(len(M)) % 2
    first = bootstrap(model, M, 3, stratify=group, random_state=0, checkpoint=tmp_path / "c")
    assert same(first, bootstrap(model, M, 3, stratify=group, random_state=0, checkpoint=tmp_path / "c"))
    with pytest.raises(dfact.DfactError, match="strata"):
        bootstrap(model, M, 3, random_state=0, checkpoint=tmp_path / "c")


# Effects of confounders.
def planted_effect(seed: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Answers of which item 3 is a point higher in group b, confounders with an age without effect."""
    M, _ = survey(seed, n=600, missing=0)
    rng = np.random.default_rng(seed)
    groups = pd.DataFrame({"group": rng.choice(["a", "b", "c"], 600, p=[0.4, 0.3, 0.3]), "age": rng.uniform(20, 70, 600)})
    M = np.minimum(M, 3)
    M[:, 3] += groups["group"] == "b"
    return M, groups


@pytest.mark.parametrize("seed", [0, 1])
def test_effects_of_confounders_have_intervals(seed: int, tmp_path: Path) -> None:
    M, groups = planted_effect(seed)
    model = dfact.ICQF(2, bounds=(0, 4), q_max=4).fit(M, confounders=groups)
    assert list(model.confounder_effects_) == ["group=b − group=a", "group=c − group=a", "age"]
    found = bootstrap(model, M, 12, confounders=groups, random_state=seed, checkpoint=tmp_path / "c")
    assert found.confounder_mean is not None
    assert found.confounder_low is not None
    assert found.confounder_high is not None
    assert found.confounder_se is not None
    for name in EFFECTS:
        assert getattr(found, name).shape == (3, M.shape[1])
    for name in IMPACT:
        assert getattr(found, name).shape == (3, 2)
    assert (found.confounder_low <= found.confounder_high + 1e-12).all()
    z = model.confounder_effects_.to_numpy().T / np.maximum(found.confounder_se, 1e-3)
    assert z[0].argmax() == 3
    assert found.confounder_low[0, 3] > 0.5
    assert same(found, bootstrap(model, M, 12, confounders=groups, random_state=seed, checkpoint=tmp_path / "c"))
    model.stability_ = found
    dfact.save_model(model, tmp_path / "m.model")
    loaded = dfact.load_model(tmp_path / "m.model").stability_
    assert same(loaded, found)
    assert loaded.confounder_se is not None
    dfact.write_report(model, tmp_path / "r.html")
    assert "Mean effect of the confounders" in (tmp_path / "r.html").read_text()


def test_standard_errors_are_those_of_the_anchored_refits() -> None:
    M, groups = planted_effect(2)
    model = dfact.ICQF(2, bounds=(0, 4), q_max=4).fit(M, confounders=groups)
    found = bootstrap(model, M, 4, confounders=groups, random_state=5, warm_start=False)
    refits: dict[int, Any] = {}
    fits = ResampleFits.make(model, as_dataset(M, groups), seed=int(np.random.RandomState(5).randint(2**31)))
    run_fits(fits, range(4), refits.__setitem__, "inline", None)
    effects, impacts = [], []
    for i in range(4):  # the first difference: b − a
        shrunken = refits[i].confounders[1].astype(float) - refits[i].confounders[0]
        Q = refits[i].components.T.astype(float)
        shift, left = anchor(shrunken + refits[i].differences.residuals[0], Q, M.std(axis=0))
        effects.append(left)
        order = [np.argmax([np.corrcoef(h, q)[0, 1] for q in Q.T]) for h in model.components_]
        impacts.append((refits[i].differences.factors[0] + shift)[order])
    assert found.confounder_mean is not None
    assert found.confounder_se is not None
    assert_allclose(found.confounder_mean[0], np.mean(effects, axis=0), atol=1e-6)
    assert_allclose(found.confounder_se[0], np.std(effects, axis=0, ddof=1), atol=1e-6)
    assert found.impact_mean is not None
    assert_allclose(found.impact_mean[0], np.mean(impacts, axis=0), atol=1e-6)


def test_models_without_confounders_have_no_effects(tmp_path: Path) -> None:
    M, _ = survey(6)
    model = dfact.ICQF(2, bounds=(0, 4), q_max=4).fit(M)
    assert model.confounder_effects_.shape == (M.shape[1], 0)
    model.stability_ = bootstrap(model, M, 3, random_state=0)
    dfact.save_model(model, tmp_path / "m.model")
    for stability in (model.stability_, dfact.load_model(tmp_path / "m.model").stability_):
        assert all(getattr(stability, name) is None for name in EFFECTS + IMPACT)


# Cross-validation.
def test_held_out_errors_are_weighted_by_row() -> None:
    rng = np.random.default_rng(0)
    M, R, w = rng.normal(size=(20, 5)), rng.normal(size=(20, 5)), rng.gamma(2, 1, 20)
    M[rng.random(M.shape) < 0.3] = np.nan
    squares, count = sum_squared_errors(M, R, -0.5, 0.5, w)
    assert squares == pytest.approx(np.nansum(w[:, None] * (M - np.clip(R, -0.5, 0.5)) ** 2))
    assert count == pytest.approx((w[:, None] * ~np.isnan(M)).sum())


@pytest.mark.further
@pytest.mark.parametrize("name", models())
def test_cross_validation_weights_fits_and_errors(name: str) -> None:
    M, w = survey(7)
    settings: dict[str, Any] = {"grid": {"n_components": [1, 2]}, "n_blocks": (5, 5), "n_folds": 5, "random_state": 0}
    model = models()[name].set_params(max_iter=50)
    found = block_cross_validate(model, M, **settings, sample_weight=w)
    assert found.model.weighted_
    plain, ones = (block_cross_validate(model, M, **settings, sample_weight=weights) for weights in (None, np.ones(len(M))))
    assert_allclose(ones.table["error"], plain.table["error"], rtol=1e-3)
    assert not np.allclose(found.table["error"], plain.table["error"], rtol=1e-3)
    own = block_cross_validate(model, as_dataset(M).with_weights(w), **settings)
    assert_array_equal(own.table["error"], found.table["error"])
    if name != "fa":
        shared = block_cross_validate(model, M, **settings, sample_weight=w, in_memory=False)
        assert_allclose(shared.table["error"], found.table["error"], rtol=1e-5)


def test_weights_of_a_dataset_are_ignored_by_models_without_weights() -> None:
    M, w = survey(8)
    model, settings = dfact.ExpectileMF(2, max_iter=20), {"grid": {"n_components": [1, 2]}, "n_blocks": (4, 4), "n_folds": 4}
    X = np.nan_to_num(M)
    found = block_cross_validate(model, as_dataset(X).with_weights(w), **settings, random_state=0)  # type: ignore[arg-type]  # a dict
    assert_array_equal(found.table["error"], block_cross_validate(model, X, **settings, random_state=0).table["error"])  # type: ignore[arg-type]  # a dict
    with pytest.raises(dfact.ParameterError, match="ExpectileMF takes no weights"):
        block_cross_validate(model, X, **settings, sample_weight=w)  # type: ignore[arg-type]  # a dict


def test_the_criterion_of_a_weighted_model_is_weighted() -> None:
    M, w = survey(9)
    select = dfact.selection.select_by_criterion
    model = models()["icqf"]
    found = select(model, as_dataset(M).with_weights(w), [1, 2], n_restarts=0, random_state=0)
    assert found.model.weighted_
    assert not np.allclose(found.table.to_numpy(), select(model, M, [1, 2], n_restarts=0, random_state=0).table.to_numpy(), rtol=1e-4)
    assert "weighted (Kish's effective n" in model_text(found.model)
