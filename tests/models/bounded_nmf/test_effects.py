"""Impact and effects of confounders: the regressions behind them, their anchor, and the warnings."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.linalg.anchor import anchor
from dfact.models.bounded_nmf.effects import anchor_items, group_effects, split_differences

Array = NDArray[np.float64]


def survey(seed: int, n: int = 300, m: int = 12, missing: float = 0.0) -> tuple[Array, pd.DataFrame]:
    """Return answers from 0 to 4 on two factors, and confounders of three kinds, some values of which are missing."""
    rng = np.random.default_rng(seed)
    sites = rng.permutation(np.repeat(["a", "b", "c"], [n - 2 * (n * 3 // 10), n * 3 // 10, n * 3 // 10]))
    sexes = rng.permutation(np.where(np.arange(n) < n * 11 // 20, "f", "m"))  # "a" and "f" are the commonest
    known = pd.DataFrame({"site": sites, "age": rng.uniform(20, 70, n), "sex": sexes})
    W = rng.beta(1, 2, (n, 2))
    W[:, 0] = np.clip(W[:, 0] + 0.2 * (known["sex"] == "m"), 0, 1)
    Q = np.kron(np.eye(2), np.ones((m // 2, 1))) * rng.uniform(2, 3, (m, 1))
    answers = np.clip(np.rint(W @ Q.T + 0.5 + rng.normal(0, 0.5, (n, m))), 0, 4)
    answers[rng.random(answers.shape) < missing] = np.nan
    known.loc[:9, "age"] = np.nan
    return answers, known


def model_of(X: Array, confounders: Any, **settings: Any) -> dfact.ICQF:
    return dfact.ICQF(2, bounds=(0, 4), q_max=4, dtype="float64").fit(X, confounders=confounders, **settings)


def regression(A: Array, values: Array, weights: Array) -> Array:
    """Return the coefficients of the columns of values, NaN where missing, on A (n, p) without those of its last column."""
    found = np.empty((A.shape[1], values.shape[1]))
    for j, column in enumerate(values.T):
        rows = ~np.isnan(column)
        root = np.sqrt(weights[rows])
        found[:, j] = np.linalg.lstsq(A[rows] * root[:, None], column[rows] * root, rcond=None)[0]
    return found[:-1]


def design(model: Any, known: pd.DataFrame) -> Array:
    return np.asarray(model.confounder_encoding_.encode(known)[:, list(model.confounder_encoding_.contrast_columns())])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_differences_are_those_of_weighted_regressions(seed: int, weighted: bool) -> None:
    X, known = survey(seed, missing=0.2)
    w = np.random.default_rng(seed).gamma(2, 1, len(X)) if weighted else np.ones(len(X))
    model = model_of(X, known, sample_weight=w if weighted else None)
    A, C = design(model, known), model.confounder_encoding_.encode(known)
    residuals = X - model.factors_ @ model.components_ - C @ model.confounder_components_
    assert list(model.confounder_effects_) == ["site=b − site=a", "site=c − site=a", "age", "sex=m − sex=f"]
    assert_allclose(model.differences_.factors, regression(A, model.factors_, w), atol=1e-9)
    assert_allclose(model.differences_.residuals, regression(A, residuals, w), atol=1e-9)
    mean = np.nansum(w[:, None] * X, axis=0) / (w[:, None] * ~np.isnan(X)).sum(axis=0)
    variance = np.nansum(w[:, None] * (X - mean) ** 2, axis=0) / (w[:, None] * ~np.isnan(X)).sum(axis=0)
    assert_allclose(model.differences_.item_sd, np.sqrt(variance), atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_split_is_that_of_the_mean_answers(seed: int) -> None:
    X, known = survey(seed)
    model = model_of(X, known)
    _, matrix = model.confounder_encoding_.differences()
    shrunken = matrix @ model.confounder_components_
    impact, effects = split_differences(model.components_, shrunken, model.differences_, model.differences_.item_sd)
    means = regression(design(model, known), X, np.ones(len(X)))
    for row, mean in enumerate(means):
        expected = anchor(mean, model.components_.T, X.std(axis=0))
        assert_allclose(effects[row], expected.effects, atol=1e-7)
        assert_allclose(impact[row], expected.shift, atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_the_pair_does_not_depend_on_how_the_fit_splits_it(seed: int) -> None:
    """With W + C Aᵀ and Qc − Qr A, the model is the same for any A (k, c)."""
    X, known = survey(seed, missing=0.1)
    model = model_of(X, known)
    names, matrix = model.confounder_encoding_.differences()
    A = np.random.default_rng(seed).normal(size=(2, matrix.shape[1]))
    moved = dfact.ICQF(2)
    vars(moved).update(vars(model))
    moved.confounder_components_ = model.confounder_components_ - A.T @ model.components_
    moved.differences_ = replace(model.differences_, factors=model.differences_.factors + matrix @ A.T)
    assert_allclose(moved.confounder_effects_, model.confounder_effects_, atol=1e-7)
    assert_allclose(moved.confounder_impact_, model.confounder_impact_, atol=1e-7)
    C, W = model.confounder_encoding_.encode(known), np.asarray(model.factors_)
    assert_allclose(regression(design(model, known), W + C @ A.T, np.ones(len(X))), moved.differences_.factors, atol=1e-9)
    assert list(moved.confounder_impact_) == list(names)


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_impact_and_effects_are_found(seed: int) -> None:
    X, known = survey(seed, n=2000)
    X[:, 3] = np.minimum(X[:, 3] + (known["sex"] == "m"), 5)
    model = dfact.ICQF(2, bounds=(0, 5), q_max=5).fit(X, confounders=known)
    effects, impact = model.confounder_effects_["sex=m − sex=f"], model.confounder_impact_["sex=m − sex=f"].to_numpy()
    factor = model.components_[:, :6].mean(axis=1).argmax()
    assert effects.iloc[3] > 0.7
    assert effects.drop(effects.index[3]).abs().max() < 0.2
    assert 0.12 < impact[factor] < 0.3
    assert abs(impact[1 - factor]) < 0.05


def test_integer_weights_are_copies() -> None:
    X, known = survey(2, n=200, missing=0.1)
    known["age"] = known["age"].fillna(40)  # a missing value would be the mean of the people, not of their copies
    w = np.random.default_rng(2).integers(1, 4, 200)
    rows = np.repeat(np.arange(200), w)
    assert [*known.iloc[rows][["site", "sex"]].mode().iloc[0]] == ["a", "f"], "the commonest are those of the copies"
    weighted = model_of(X, known, sample_weight=w)
    copied = model_of(X[rows], known.iloc[rows].reset_index(drop=True))
    assert_allclose(weighted.confounder_effects_, copied.confounder_effects_, atol=1e-4)
    assert_allclose(weighted.confounder_impact_, copied.confounder_impact_, atol=1e-4)
    assert_allclose(weighted.differences_.item_sd, copied.differences_.item_sd, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_commonest_level_is_the_reference_and_people_are_counted(seed: int, tmp_path: Path) -> None:
    """One person of a level that comes first in order would be the reference of all others. No difference of this person is given."""
    X, known = survey(seed)
    known.loc[17, "sex"] = "d"
    counts = known["sex"].value_counts()
    model = model_of(X, known[["sex"]])
    assert model.confounder_effects_["sex=d − sex=f"].isna().all()
    assert model.confounder_impact_["sex=d − sex=f"].isna().all()
    names = ["sex=d − sex=f", "sex=m − sex=f"]
    assert list(model.confounder_effects_) == list(model.confounder_impact_) == names
    assert model.confounder_encoding_.difference_sizes() == [(1, counts["f"]), (counts["m"], counts["f"])]
    A = np.column_stack([known["sex"] == "d", known["sex"] == "m", np.ones(len(X))]).astype(float)
    assert_allclose(model.differences_.factors, regression(A, model.factors_, np.ones(len(X))), atol=1e-9)
    text = dfact.report.text(model)
    assert f"sex=d − sex=f (1 and {counts['f']} participants): not given, as fewer than 50 participants are on one side" in text
    assert f"sex=m − sex=f ({counts['m']} and {counts['f']} participants): " in text
    dfact.write_report(model, tmp_path / "r.html")
    assert f"sex=m − sex=f ({counts['m']} and {counts['f']} participants): " in (tmp_path / "r.html").read_text()
    dfact.save_model(model, tmp_path / "new.model")
    assert dfact.report.text(dfact.load_model(tmp_path / "new.model")) == text


def test_models_without_confounders_have_empty_tables() -> None:
    model = dfact.ICQF(2).fit(survey(0)[0])
    assert model.confounder_effects_.shape == (12, 0)
    assert model.confounder_impact_.shape == (2, 0)
    assert model.differences_ is None
    assert len(anchor_items(model)) == 0


def test_confounders_that_determine_one_another_have_no_effects() -> None:
    X, known = survey(1)
    known["again"] = known["sex"].map({"f": "x", "m": "y"})
    with pytest.warns(UserWarning, match="sex=m − sex=f, again=y − again=x are NaN, as the confounders determine one another"):
        model = model_of(X, known)
    for table in (model.confounder_effects_, model.confounder_impact_):
        assert table[["sex=m − sex=f", "again=y − again=x"]].isna().to_numpy().all()
        assert table[["site=b − site=a", "age"]].notna().to_numpy().all()


def test_an_item_answered_in_one_group_only_has_no_effect() -> None:
    X, known = survey(1)
    X[known["sex"] == "m", 4] = np.nan
    with pytest.warns(UserWarning, match="the effect of sex=m − sex=f on 4 is NaN, as the answers are of one group only"):
        model = model_of(X, known)
    assert model.confounder_effects_["sex=m − sex=f"].isna().to_numpy().tolist() == [j == 4 for j in range(12)]
    assert model.confounder_impact_["sex=m − sex=f"].notna().all()


def test_a_weak_anchor_is_reported() -> None:
    X, known = survey(3, n=1000)
    known = known[["sex"]]
    X[:, :4] += np.linspace(0.8, 2.4, 4) * (known["sex"].to_numpy() == "m")[:, None]
    with pytest.warns(UserWarning, match=r"of 6 items of F\d carry the anchor of sex=m − sex=f, expected at least half"):
        model = dfact.ICQF(2, bounds=(0, 7), q_max=7).fit(X, confounders=known)
    assert anchor_items(model)["weak"].sum() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not anchor_items(model_of(*survey(3, n=1000)))["weak"].any()


def test_the_split_is_computed_once_and_again_for_other_loadings() -> None:
    model = model_of(*survey(0))
    assert group_effects(model) is group_effects(model)
    before = model.confounder_effects_
    model.confounder_components_ = 2 * model.confounder_components_
    assert not np.allclose(model.confounder_effects_, before)


@pytest.mark.parametrize("seed", range(2))
def test_a_small_group_is_not_given_the_effects_of_another(seed: int) -> None:
    """Group c is a sample of group a, and group b answers four items lower: the effects of c are 0 up to their standard errors."""
    rng, sizes, m = np.random.default_rng(seed), (500, 500, 60), 24
    groups = np.repeat(["a", "b", "c"], sizes)
    Q = np.kron(np.eye(3), np.ones(8)) * rng.uniform(1.5, 3, m)
    latent = rng.beta(0.8, 0.8, (len(groups), 3)) @ Q + 0.8 + 0.6 * rng.normal(size=(len(groups), m))
    lower = [0, 8, 16, 20]
    latent[np.ix_(groups == "b", lower)] -= 0.7
    model = dfact.ICQF(3, bounds=(0, 4)).fit(np.clip(np.rint(latent), 0, 4), confounders=pd.DataFrame({"group": groups}))
    effects, errors = model.confounder_effects_, model.confounder_errors_
    of_b, of_c = list(effects)
    assert (effects[of_b].iloc[lower] < -8 * errors[of_b].iloc[lower]).all()
    assert (effects[of_b].iloc[lower] < -0.4).all()
    z = effects[of_c] / errors[of_c]
    assert (z.abs() < 4.5).all()
    assert 0.6 < z.std() < 1.4
    assert abs(effects[of_c].iloc[lower].mean()) < 3 * errors[of_c].iloc[lower].mean() / 2
