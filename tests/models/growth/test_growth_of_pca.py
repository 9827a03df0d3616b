"""Principal components that grow: equality with the fit of all rows, the leading part of many columns, drift, refusals."""

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

import dfact
from dfact.cli.main import main
from dfact.errors import DataError, ParameterError
from dfact.linalg import svd
from dfact.models.growth.estimator import Axes
from dfact.models.pca import footprint
from dfact.models.pca.expectation import Expectations
from dfact.models.pca.growth import LatentSums, ProductSums

Array = NDArray[Any]
FIGURES = (
    *("components_", "singular_values_", "explained_variance_", "explained_variance_ratio_", "explained_share_"),
    *("mean_", "scale_", "noise_variance_", "n_samples_"),
)


def planted(seed: int, n: int = 600, m: int = 15, noise: float = 0.5, missing: float = 0.0) -> Array:
    """Rows of four components, which do not depend on the seed, with NaN where missing."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    loadings = np.linalg.qr(fixed.normal(size=(m, 4)))[0].T * np.linspace(4, 2, 4)[:, None] * np.sqrt(m / 20)
    X = rng.normal(size=(n, 4)) @ loadings + noise * rng.normal(size=(n, m)) + fixed.normal(0, 10, m)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def grown(model: dfact.PCA, X: Array, count: int = 5) -> dfact.PCA:
    for rows in np.array_split(X, count):
        model.partial_fit(rows)
    return model


@pytest.mark.parametrize(
    ("parameters", "missing"),
    [({}, 0.0), ({"scale": "standard", "whiten": True}, 0.0), ({"missing": "mean"}, 0.2), ({"missing": "mean", "scale": "standard"}, 0.2)],
    ids=["plain", "standard", "mean", "mean, standard"],
)
def test_components_of_batches_are_those_of_all_rows(parameters: dict[str, Any], missing: float) -> None:
    X = planted(1, missing=missing)
    X[:150, 3] = X[0, 3] if missing == 0 else 7.0  # constant in the first batch
    complete, model = dfact.PCA(4, **parameters).fit(X), grown(dfact.PCA(4, **parameters), X)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(model, name), getattr(complete, name), rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(model.transform(X), complete.factors_, atol=1e-10)
    assert (model.growth_.n_rows, model.growth_.added_rows, model.factors_.shape) == (600, 480, (600, 4))
    assert "equals a complete fit" in model.growth_.describe()


def test_genotypes_follow_the_frequencies_of_all_rows() -> None:
    rng = np.random.default_rng(2)
    p = np.where(rng.random((2, 40)) < 0.5, 0.2, 0.7)
    G = rng.binomial(2, p[rng.integers(0, 2, 300)]).astype(float)
    complete, model = dfact.PCA(2, scale="binomial").fit(G), grown(dfact.PCA(2, scale="binomial"), G, 3)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(model, name), getattr(complete, name), rtol=0, atol=1e-10, err_msg=name)
    with pytest.raises(DataError, match="entries from 1 to 3, expected genotypes"):
        model.partial_fit(G + 1)


def test_rows_without_entries_add_nothing() -> None:
    X = planted(3)
    model = dfact.PCA(4).fit(X[:300])
    with pytest.warns(UserWarning, match="2 of 302 rows have no observed entry"):
        model.partial_fit(np.vstack([X[300:], np.full((2, 15), np.nan)]))
    np.testing.assert_allclose(model.components_, dfact.PCA(4).fit(X).components_, atol=1e-10)
    assert model.n_samples_ == 600


def test_many_columns_of_low_rank_lose_nothing() -> None:
    X = planted(4, 200, 600, noise=0)
    complete, model = dfact.PCA(3).fit(X), grown(dfact.PCA(3), X)  # of rank 4, and 3 + 10 vectors are kept
    np.testing.assert_allclose(model.singular_values_, complete.singular_values_, rtol=1e-6)
    assert subspace_angles(model.components_.T, complete.components_.T).max() < 1e-5
    np.testing.assert_allclose(model.mean_, complete.mean_, rtol=1e-12)


@pytest.mark.parametrize("scale", [None, "standard"])
def test_many_columns_end_near_the_complete_fit(scale: Any) -> None:
    X = planted(5, 800, 600, noise=1)
    complete, model = dfact.PCA(4, scale=scale).fit(X), grown(dfact.PCA(4, scale=scale), X, 4)
    np.testing.assert_allclose(model.singular_values_, complete.singular_values_, rtol=1e-3)
    assert (model.singular_values_ <= complete.singular_values_ * (1 + 1e-6)).all()  # what is lost is never negative
    assert subspace_angles(model.components_.T, complete.components_.T).max() < 0.02
    total = [found.explained_variance_[0] / found.explained_variance_ratio_[0] for found in (model, complete)]
    assert total[0] == pytest.approx(total[1], rel=1e-10)
    assert "is not known" in model.growth_.describe()


@pytest.mark.parametrize(("scale", "complete_first"), [(None, False), ("standard", False), (None, True)])
def test_batches_with_missing_entries_end_near_the_complete_fit(scale: Any, complete_first: bool) -> None:
    X = planted(14, 1000, missing=0.2)
    if complete_first:
        X[:250] = planted(14, 1000)[:250]
    complete, model = dfact.PCA(4, scale=scale).fit(X), dfact.PCA(4, scale=scale).fit(X[:250])
    assert type(model.sums_) is (ProductSums if complete_first else LatentSums)
    before = model.score(X)
    for rows in np.array_split(X[250:], 5):
        model.partial_fit(rows)
    best = complete.score(X)
    assert best - 0.002 * abs(best) < model.score(X)
    assert best - model.score(X) < 0.1 * (best - before)
    np.testing.assert_allclose(model.singular_values_, complete.singular_values_, rtol=5e-3)
    np.testing.assert_allclose(model.noise_variance_, complete.noise_variance_, rtol=2e-2)
    assert subspace_angles(model.components_.T, complete.components_.T).max() < 0.02
    assert np.abs(model.mean_ - complete.mean_).max() < 0.02


def test_expectations_of_another_number_of_components_are_refused(tmp_path: Path) -> None:
    models = [dfact.PCA(k).fit(planted(17, 100, missing=0.1)) for k in (2, 3)]
    models[0].sums_ = models[1].sums_
    dfact.save_model(models[0], tmp_path / "a.model")
    with pytest.raises(dfact.StoreError, match="expectations of 3 components, expected 2"):
        dfact.load_model(tmp_path / "a.model")


def test_rows_that_were_seen_move_nothing() -> None:
    X = planted(15, missing=0.2)
    model = dfact.PCA(3, scale="standard", tol=1e-10, max_iter=500).fit(X)
    again = copy(model).partial_fit(X.copy())
    for name in ("components_", "mean_", "scale_"):
        np.testing.assert_allclose(getattr(again, name), getattr(model, name), atol=1e-5, err_msg=name)
    assert again.noise_variance_ * 1199 / 1200 == pytest.approx(model.noise_variance_ * 599 / 600, rel=1e-5)


def test_expectations_of_moved_scores_and_entries() -> None:
    rng = np.random.default_rng(16)
    z, x, observed = np.column_stack([rng.normal(size=(30, 2)), np.ones(30)]), rng.normal(size=(30, 4)), rng.random((30, 4)) < 0.7
    A, mean, scale = np.vstack([rng.normal(size=(2, 3)), [0, 0, 1]]), rng.normal(size=4), rng.random(4) + 1

    def sums(z: Array, x: Array) -> Expectations:
        packed = (z[:, :, None] * z[:, None, :])[:, *np.tril_indices(3)]
        return Expectations(packed.T @ observed, z.T @ (x * observed), packed.sum(axis=0))

    found, expected = sums(z, x).moved(A).centred(mean, scale), sums(z @ A.T, (x - mean) / scale)
    for name in ("grams", "cross", "total"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-12)


def test_figures_are_those_of_residuals_and_scores() -> None:
    X = planted(6, missing=0.1)
    X[5] = np.nan
    with pytest.warns(UserWarning, match="1 of 600"):
        model = dfact.PCA(2, missing="mean", whiten=True).fit(X)
    baseline = model.growth_.baseline
    R = X - model.inverse_transform(model.factors_)
    R[5] = np.nan
    T = model.factors_ * np.sqrt(model.explained_variance_)
    np.testing.assert_allclose(baseline.items[[0, 2, 3]], [(~np.isnan(R)).sum(0), np.nansum(R, 0), np.nansum(R**2, 0)], atol=1e-9)
    np.testing.assert_allclose(baseline.factors, [np.nansum(T**power, axis=0) for power in (1, 2, 3, 4)], rtol=1e-9, atol=1e-9)
    assert baseline.rows[0] == 599


def test_drift_is_found_and_named() -> None:
    model, new = dfact.PCA(4).fit(planted(7, 2000)), planted(8, 1000)
    assert not model.drift(new, level=0.01).found
    new[:, 11] += 0.3 * new[:, 11].std()
    assert model.drift(new).adjusted["residual"][11] <= 0.05


@pytest.mark.further
def test_an_update_continues_after_saving_on_threads_and_from_other_imports(tmp_path: Path) -> None:
    X = planted(9, 400)
    frames = [pd.DataFrame(rows, columns=[f"q{j}" for j in range(15)]) for rows in (X[:200], X[200:])]
    parts = [dfact.import_table(frame, tmp_path / f"{i}.zarr", items="q*") for i, frame in enumerate(frames)]
    assert (parts[0].offset != parts[1].offset).any()
    model = dfact.PCA(3, dtype="float64").fit(parts[0])
    dfact.save_model(model, tmp_path / "a.model")
    loaded = dfact.load_model(tmp_path / "a.model")
    loaded.set_params(executor="threads").partial_fit(parts[1])
    model.partial_fit(parts[1])
    for name in FIGURES:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name), err_msg=name)
    np.testing.assert_allclose(model.components_, dfact.PCA(3).fit(X).components_, atol=1e-5)  # stored in single precision
    np.testing.assert_allclose(model.mean_, X.mean(axis=0), atol=1e-5)


def test_what_cannot_grow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X, gaps = planted(10, 100), planted(11, 50, missing=0.1)
    wide, wide_gaps = planted(12, 50, 600), planted(12, 50, 600, missing=0.1)
    with pytest.raises(DataError, match=r"the new rows have missing entries and the fitted ones, of 600 columns, none.*use missing='mean'"):
        dfact.PCA(2).fit(wide).partial_fit(wide_gaps)
    with pytest.raises(ParameterError, match="n_components is 15, expected fewer than the 15 columns"):
        dfact.PCA(15).fit(X).partial_fit(gaps)
    monkeypatch.setattr(footprint, "KEPT_BYTES", 1000)
    with pytest.raises(DataError, match="15 columns are too many for the sums of an update"):
        dfact.PCA(2).fit(gaps).partial_fit(X)
    monkeypatch.setattr(svd, "_BASIS_ENTRIES", 10)
    with pytest.raises(DataError, match="600 columns are too many for the sums of an update"):
        dfact.PCA(2).fit(wide).partial_fit(wide)


@pytest.mark.further
def test_the_commands_check_and_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = planted(13, 500)
    moved = X[300:] + np.where(np.arange(15) == 4, 2, 0)
    for name, rows in (("old", X[:300]), ("new", X[300:]), ("moved", moved)):
        dfact.import_array(rows, tmp_path / f"{name}.zarr")
    model, old, new, moved_path = (str(tmp_path / name) for name in ("a.model", "old.zarr", "new.zarr", "moved.zarr"))
    assert main(["fit", "pca", old, model, "-k", "3", "--scale", "standard"]) == 0
    assert main(["update", model, new, "--check"]) == 0
    assert main(["update", model, moved_path, "--check"]) == 3
    assert main(["update", model, new]) == 0
    assert "200 of 500 rows were added" in capsys.readouterr().out
    np.testing.assert_allclose(dfact.load_model(model).components_, dfact.PCA(3, scale="standard").fit(X).components_, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("parameters", [{}, {"scale": "standard", "whiten": True}], ids=["plain", "standard, whitened"])
def test_scores_of_earlier_rows_are_turned_to_the_new_axes(parameters: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(250, 3)) @ rng.normal(size=(3, 12)) + rng.normal(size=(250, 12))
    X[150:] += 0.5
    model = dfact.PCA(3, **parameters).fit(X[:150])
    stale, known = model.factors_, model.inverse_transform(model.factors_)
    scores = model.partial_fit(X[150:]).transform(X)
    np.testing.assert_array_equal(model.factors_[150:], scores[150:])
    np.testing.assert_allclose(model.factors_[:150], model.transform(known), atol=1e-12)  # all that the earlier components say
    assert np.abs(model.factors_[:150] - scores[:150]).max() < 0.35 * np.abs(stale - scores[:150]).max()


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_turned_scores_are_the_same_for_stored_rows(missing: float, tmp_path: Path) -> None:
    X = planted(7, 200, missing=missing).astype(np.float32)
    expected = dfact.PCA(3).fit(X[:120]).partial_fit(X[120:])
    assert np.isfinite(expected.factors_).all()
    first, second = (dfact.import_array(rows, tmp_path / f"{number}.zarr") for number, rows in enumerate((X[:120], X[120:])))
    np.testing.assert_array_equal(dfact.PCA(3).fit(first).partial_fit(second).factors_[:], expected.factors_)


def test_turned_scores_have_the_same_bits_in_any_chunks() -> None:
    rng = np.random.default_rng(8)
    axes, T = Axes(rng.normal(size=(7, 7)), rng.normal(size=7)), rng.normal(size=(101, 7))
    for rows in (1, 2, 8, 33):
        chunks = [axes.of(T[start : start + rows]) for start in range(0, len(T), rows)]
        np.testing.assert_array_equal(np.concatenate(chunks), axes.of(T))


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_new_rows_that_are_shrunken_are_no_drift(seed: int) -> None:
    """With many columns, rows that were not fitted have smaller scores: variances of 0.8 of those of the fitted rows and less."""
    rng, m = np.random.default_rng(seed), 400
    L = rng.normal(size=(4, m)) * np.sqrt(10 / m) * np.linspace(1.2, 0.6, 4)[:, None]
    X = rng.normal(size=(1000, 4)) @ L + rng.normal(size=(1000, m))
    model = dfact.PCA(4).fit(X[:500])
    found = model.drift(X[500:])
    assert not (found.adjusted["variance"] <= 0.05).any()
    spread = rng.normal(size=(500, 4)) * [1.5, 1, 1, 1] @ L + rng.normal(size=(500, m))
    assert model.drift(spread).adjusted["variance"][0] <= 0.05
