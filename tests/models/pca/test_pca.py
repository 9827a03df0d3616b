"""Principal components: scikit-learn's figures, EM written out, wide and tiled columns, scales, executors, errors."""

import re
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.preprocessing import StandardScaler

import dfact
from dfact import DataError, ParameterError
from dfact.cli.main import main
from dfact.linalg import svd
from tests.conftest import planted_answers
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
Reference = decomposition.PCA


def planted(seed: int, n: int = 400, m: int = 20, k: int = 4, missing: float = 0.0, noise: float = 0.5) -> Array:
    """Data of k components, whose columns have different means, with NaN where missing."""
    rng = np.random.default_rng(seed)
    loadings = np.linalg.qr(rng.normal(size=(m, k)))[0].T * np.linspace(4, 2, k)[:, None] * np.sqrt(m / 20)
    X = rng.normal(size=(n, k)) @ loadings + noise * rng.normal(size=(n, m)) + rng.normal(0, 10, m)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def assert_equal_components(model: dfact.PCA, reference: Any, *, values: float, angle: float) -> None:
    np.testing.assert_allclose(model.singular_values_, reference.singular_values_, rtol=values)
    np.testing.assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=3 * values)
    np.testing.assert_allclose(model.explained_variance_ratio_, reference.explained_variance_ratio_, rtol=3 * values)
    np.testing.assert_allclose(model.noise_variance_, reference.noise_variance_, rtol=100 * values)
    assert subspace_angles(model.components_.T.astype(float), reference.components_.T).max() < angle
    signs = (model.components_ * reference.components_).sum(axis=1)
    assert (signs > 0).all()


# Complete data


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "m"), [(400, 20), (300, 700), (30, 80)])
def test_complete_data_has_the_components_of_scikit_learn(n: int, m: int, seed: int) -> None:
    X = planted(seed, n, m)
    reference = Reference(4, svd_solver="full").fit(X)
    double, single = dfact.PCA(4).fit(X), dfact.PCA(4).fit(X.astype(np.float32))
    assert_equal_components(double, reference, values=1e-6, angle=1e-5)
    assert_equal_components(single, reference, values=1e-4, angle=1e-3)
    np.testing.assert_allclose(double.mean_, reference.mean_, rtol=1e-12)
    np.testing.assert_allclose(double.factors_, reference.transform(X), atol=1e-4)
    np.testing.assert_allclose(double.inverse_transform(double.factors_), reference.inverse_transform(reference.transform(X)), atol=1e-4)
    np.testing.assert_allclose(double.score_samples(X), reference.score_samples(X), rtol=1e-6)
    assert double.score(X) == pytest.approx(reference.score(X), rel=1e-8)
    assert double.converged_
    assert double.components_[np.arange(4), np.abs(double.components_).argmax(axis=1)].min() > 0


def test_means_far_from_zero_and_outliers_do_not_blur_single_precision() -> None:
    X = planted(0)
    X += 1e4
    X[7] += 100
    X = X.astype(np.float32)
    assert_equal_components(dfact.PCA(4).fit(X), Reference(4, svd_solver="full").fit(X.astype(float)), values=1e-4, angle=1e-3)


def test_tiled_columns_have_the_components_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "_BASIS_ENTRIES", 10)
    X = planted(1, 200, 600)
    model = dfact.PCA(4).fit(X)
    assert_equal_components(model, Reference(4, svd_solver="full").fit(X), values=1e-6, angle=1e-5)


@pytest.mark.parametrize("whiten", [False, True])
def test_whitened_scores_have_variance_one_and_give_the_data_again(whiten: bool) -> None:
    X = planted(2)
    model, reference = dfact.PCA(20, whiten=whiten).fit(X), Reference(20, whiten=whiten, svd_solver="full").fit(X)
    np.testing.assert_allclose(model.factors_, reference.transform(X), atol=1e-8)
    np.testing.assert_allclose(model.inverse_transform(model.factors_), X, atol=1e-8)
    assert model.noise_variance_ == 0
    # scikit-learn's own likelihood changes with whitening, which changes no density.
    assert model.score(X) == pytest.approx(Reference(20, svd_solver="full").fit(X).score(X), rel=1e-6)


def test_standardized_columns_are_those_of_a_scaler() -> None:
    X = planted(3) * np.geomspace(1e-3, 1e3, 20)
    X[:, 4] = 7
    model, reference = dfact.PCA(4, scale="standard").fit(X), Reference(4, svd_solver="full").fit(StandardScaler().fit_transform(X))
    assert_equal_components(model, reference, values=1e-6, angle=1e-5)
    assert model.scale_[4] == 1
    assert np.abs(model.components_[:, 4]).max() < 1e-12
    np.testing.assert_allclose(model.inverse_transform(model.factors_)[:, 4], 7)


def _covariance(model: dfact.PCA) -> Array:
    P, noise = model.components_, model.noise_variance_
    return (P.T * (model.explained_variance_ - noise)) @ P + noise * np.eye(P.shape[1])


def test_genotypes_are_divided_by_their_binomial_deviation() -> None:
    rng = np.random.default_rng(0)
    p = np.where(rng.random((2, 60)) < 0.5, 0.2, 0.8)
    G = rng.binomial(2, p[rng.integers(0, 2, 150)]).astype(np.uint8)
    G[:, 3] = 2
    frequency = G.mean(axis=0) / 2
    deviation = np.sqrt(2 * frequency * (1 - frequency))
    Z = np.divide(G - G.mean(axis=0), deviation, out=np.zeros(G.shape), where=deviation > 0)
    model = dfact.PCA(2, scale="binomial", dtype="float64").fit(G)
    assert_equal_components(model, Reference(2, svd_solver="full").fit(Z), values=1e-6, angle=1e-5)
    with pytest.raises(DataError, match=r"entries from 0 to 3, expected genotypes from 0 to 2"):
        dfact.PCA(2, scale="binomial").fit(np.vstack([G, np.full((1, 60), 3)]))


def test_sparse_data_are_their_dense_values() -> None:
    X = np.random.default_rng(0).poisson(0.3, (200, 15)).astype(float)
    np.testing.assert_array_equal(dfact.PCA(3).fit(sp.csr_array(X)).components_, dfact.PCA(3).fit(X).components_)


def test_the_sums_give_the_covariances() -> None:
    X = planted(4)
    model = dfact.PCA(4, scale="standard").fit(X)
    np.testing.assert_allclose(model.sums_.cross, np.cov(X.T) * (len(X) - 1), rtol=1e-9, atol=1e-8)


# Missing entries


def expectation_maximization(X: Array, k: int, n_iter: int) -> tuple[Array, Array, float, list[float]]:
    """Tipping and Bishop's algorithm: covariance WᵀW + σ²I (m, m), mean, σ², log-likelihood before each step."""
    m = X.shape[1]
    observed = ~np.isnan(X)
    seen, filled = observed.astype(float), np.nan_to_num(X)
    mean = np.nanmean(X, axis=0)
    W, noise, history = np.random.default_rng(0).normal(size=(k, m)), 1.0, []
    for _ in range(n_iter):
        residuals = seen * (filled - mean)
        C = noise * np.eye(k) + np.einsum("ij,rj,sj->irs", seen, W, W)
        inverse = np.linalg.inv(C)
        covariance = seen[:, :, None] * (W.T @ W) * seen[:, None, :] + np.where(seen[:, :, None] * np.eye(m), noise, np.eye(m))
        mahalanobis = np.einsum("ij,ijl,il->i", residuals, np.linalg.inv(covariance), residuals)
        history.append(-0.5 * (mahalanobis + np.linalg.slogdet(covariance)[1] + np.log(2 * np.pi) * seen.sum(axis=1)).sum())
        z = np.column_stack([np.einsum("irs,is->ir", inverse, residuals @ W.T), np.ones(len(X))])
        E = z[:, :, None] * z[:, None, :]
        E[:, :k, :k] += noise * inverse
        S, b = np.einsum("ij,irs->jrs", seen, E), filled.T @ z
        A = np.linalg.solve(S, b[:, :, None])[:, :, 0]
        squares = (seen * (filled**2 - 2 * filled * (z @ A.T) + np.einsum("jr,irs,js->ij", A, E, A))).sum()
        W, mean, noise = A[:, :k].T, A[:, k], squares / observed.sum()
    return W.T @ W + noise * np.eye(m), mean, noise, history


def test_missing_entries_are_those_of_the_em_algorithm_written_out() -> None:
    X = planted(0, 80, 8, 2, missing=0.25)
    covariance, mean, noise, history = expectation_maximization(X, 2, 400)
    model = dfact.PCA(2, tol=0, max_iter=300).fit(X)
    n = len(X)
    np.testing.assert_allclose(_covariance(model) * (n - 1) / n, covariance, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-6)
    assert model.noise_variance_ * (n - 1) / n == pytest.approx(noise, rel=1e-6)
    assert model.log_likelihood_history_[-1] * (~np.isnan(X)).sum() == pytest.approx(history[-1], rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [None, "standard"])
def test_the_likelihood_never_falls_and_is_that_of_the_observed_entries(scale: str | None, seed: int) -> None:
    X = planted(seed, missing=0.3)
    model = dfact.PCA(4, scale=scale, tol=1e-10).fit(X)
    assert model.converged_
    assert np.diff(model.log_likelihood_history_).min() >= -1e-12
    of_rows = [
        multivariate_normal(model.mean_[o], (_covariance(model) * np.outer(model.scale_, model.scale_))[np.ix_(o, o)]).logpdf(x[o])
        for x, o in zip(X, ~np.isnan(X), strict=True)
    ]
    np.testing.assert_allclose(model.score_samples(X), of_rows, rtol=1e-8)
    assert model.score(X) == pytest.approx(np.mean(of_rows))


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_rows_whose_missing_entries_are_expected(seed: int) -> None:
    X = planted(seed, missing=0.2)
    model = dfact.PCA(3, scale="standard").fit(X)
    S = _covariance(model) * np.outer(model.scale_, model.scale_)
    completed = X.copy()
    for x in completed:
        o = ~np.isnan(x)
        x[~o] = (model.mean_ + S[:, o] @ np.linalg.solve(S[np.ix_(o, o)], (x - model.mean_)[o]))[~o]
    expected = ((completed - model.mean_) / model.scale_) @ model.components_.T
    np.testing.assert_allclose(model.factors_, expected, atol=1e-9)
    np.testing.assert_allclose(model.transform(X), model.factors_, atol=1e-12)
    np.testing.assert_allclose(
        dfact.PCA(3).fit(X).transform(completed), (completed - dfact.PCA(3).fit(X).mean_) @ dfact.PCA(3).fit(X).components_.T
    )


@pytest.mark.parametrize("seed", range(3))
def test_expectations_recover_the_components_better_than_means(seed: int) -> None:
    X, gaps = planted(seed, 1000, noise=0.3), np.random.default_rng(seed + 9).random((1000, 20)) < 0.4
    truth, holed = Reference(4).fit(X), np.where(gaps, np.nan, X)
    angles = {
        missing: subspace_angles(dfact.PCA(4, missing=missing).fit(holed).components_.T, truth.components_.T).max()
        for missing in ("em", "mean")
    }
    assert angles["em"] < 0.05
    assert angles["em"] < angles["mean"] / 2
    model = dfact.PCA(4).fit(holed)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=0.1)
    assert np.sqrt(np.mean((model.inverse_transform(model.factors_) - X)[gaps] ** 2)) < 0.5


def test_missing_entries_as_means_are_scikit_learns_of_filled_data() -> None:
    X = planted(5, missing=0.2)
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    model, reference = dfact.PCA(4, missing="mean").fit(X), Reference(4, svd_solver="full").fit(filled)
    assert_equal_components(model, reference, values=1e-6, angle=1e-5)
    np.testing.assert_allclose(model.factors_, reference.transform(filled), atol=1e-8)


def test_rows_without_entries_have_no_scores_and_do_not_count() -> None:
    X = planted(6)
    empty = np.vstack([X, np.full((3, 20), np.nan)])
    with pytest.warns(UserWarning, match="3 of 403 rows have no observed entry"):
        model = dfact.PCA(4).fit(empty)
    assert_equal_components(model, Reference(4, svd_solver="full").fit(X), values=1e-6, angle=1e-5)
    assert np.isnan(model.factors_[400:]).all()
    assert model.n_samples_ == 400
    assert model.score(empty) == pytest.approx(dfact.PCA(4).fit(X).score(X))


def test_data_of_low_rank_with_missing_entries_are_completed() -> None:
    X, gaps = planted(7, noise=0), np.random.default_rng(0).random((400, 20)) < 0.1
    model = dfact.PCA(4, max_iter=500).fit(np.where(gaps, np.nan, X))
    assert np.abs(model.inverse_transform(model.factors_) - X)[gaps].max() < 1e-2


def test_what_the_data_do_not_allow_is_refused() -> None:
    X = planted(8)
    for parameters, data, found in (
        ({"n_components": 21}, X, "n_components=21 is larger than the data allows: n_samples=400, n_features=20"),
        ({"n_components": 20}, np.where(X.max() - 1 < X, np.nan, X), "n_components is 20, expected fewer than the 20 columns"),
        ({"scale": "robust"}, X, "scale is 'robust', expected"),
        ({"missing": "zero"}, X, "missing is 'zero', expected"),
    ):
        with pytest.raises(ParameterError, match=re.escape(found)):
            dfact.PCA(**parameters).fit(data)
    with pytest.raises(DataError, match="n_samples=1 and n_features=20, expected at least 2 rows"):
        dfact.PCA(1).fit(X[:1])


def test_a_fit_that_does_not_converge_says_so() -> None:
    X = planted(9, missing=0.3)
    with pytest.warns(dfact.ConvergenceWarning, match="PCA did not converge in 3 iterations; increase max_iter"):
        model = dfact.PCA(4, max_iter=2).fit(X)
    assert not model.converged_


def test_data_that_an_import_shifted_are_taken_as_they_were(tmp_path: Path) -> None:
    X = planted(0, missing=0.1)
    frame = pd.DataFrame(X, columns=[f"q{j}" for j in range(20)])
    stored = [dfact.import_table(rows, tmp_path / name, items="q*") for name, rows in (("a.zarr", frame), ("b.zarr", frame[:50]))]
    assert (stored[0].offset != stored[1].offset).any()
    model, reference = dfact.PCA(3, dtype="float64").fit(stored[0]), dfact.PCA(3).fit(X)
    np.testing.assert_allclose(model.mean_, reference.mean_, atol=1e-4)
    np.testing.assert_allclose(np.asarray(model.transform(stored[1])), reference.factors_[:50], atol=1e-3)
    assert model.score(stored[1]) == pytest.approx(reference.score(X[:50]), rel=1e-4)


# New rows


def spiked(n: int, m: int, seed: int, n_new: int) -> tuple[Array, Array]:
    """Rows of three components, barely above noise that is correlated between neighbouring columns, and new rows."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n + n_new, m))
    for j in range(1, m):
        noise[:, j] = 0.6 * noise[:, j - 1] + 0.8 * noise[:, j]
    variances = (1 + np.sqrt(m / n)) * np.array([40, 20, 10])
    loadings = np.linalg.qr(rng.normal(size=(m, 3)))[0] * np.sqrt(variances)
    X = rng.normal(size=(n + n_new, 3)) @ loadings.T + noise
    return X[:n], X[n:]


@pytest.mark.parametrize(("n", "m", "scale"), [(120, 24, None), (120, 120, "standard"), (120, 600, None)])
def test_the_shrinkage_of_new_rows_is_estimated(n: int, m: int, scale: Any) -> None:
    ratios, estimates = [], []
    for seed in range(4):
        X, new = spiked(n, m, seed, 300)
        model = dfact.PCA(3, scale=scale).fit(X)
        ratios.append(np.sqrt((model.transform(new) ** 2).mean(axis=0) / model.explained_variance_))
        estimates.append(model.shrinkage_)
    np.testing.assert_allclose(np.mean(estimates, axis=0), np.mean(ratios, axis=0), atol=0.08)


def test_unshrunk_scores_are_nearer_to_those_of_fitted_rows() -> None:
    X, new = spiked(120, 600, 7, 8)
    model = dfact.PCA(3).fit(X)
    other = copy(model).set_params(unshrink=True)
    np.testing.assert_allclose(other.transform(new) * model.shrinkage_, model.transform(new))
    errors = []
    for row in new:
        fitted = dfact.PCA(3).fit(np.vstack([X, row]))
        score = fitted.factors_[-1] * np.sign((fitted.components_ * model.components_).sum(axis=1))
        errors.append([(found.transform(row[None])[0] - score) ** 2 for found in (model, other)])
    plain, unshrunk = np.mean(errors, axis=0)
    assert (unshrunk < plain / 4).all()


# One result everywhere


@pytest.mark.filterwarnings("ignore:.*did not converge")
class TestEstimator(EstimatorSuite):
    model = dfact.PCA
    parameters: ClassVar = {"n_components": 3, "max_iter": 6}
    derived = ("loadings_", "explained_")

    @pytest.fixture(scope="class", params=[{}, {"missing": "mean"}, {"scale": "standard", "whiten": True}], ids=["em", "mean", "standard"])
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        found: dict[str, Any] = request.param
        return found

    def data(self) -> Array:
        return planted_answers(2_500, 30, 3, seed=3, missing=0.1).astype(np.float32)


@pytest.mark.filterwarnings("ignore:.*did not converge")
@pytest.mark.further
class TestManyColumns(EstimatorSuite):
    model = dfact.PCA
    parameters: ClassVar = {"n_components": 3, "max_iter": 4}
    sizes: ClassVar = {"block_entries": 1 << 15, "chunk_entries": 1 << 16, "partition_entries": 1 << 17}

    def data(self) -> Array:
        return planted_answers(500, 600, 3, seed=3).astype(np.float32)


# Commands


@pytest.mark.further
def test_the_command_fits_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = tmp_path / "d.zarr", tmp_path / "x.model"
    dfact.import_array(planted(0, missing=0.1), data)
    assert main(["fit", "pca", str(data), str(model), "-k", "3", "--scale", "standard"]) == 0
    printed = capsys.readouterr().out
    assert "PCA, 3 components of 400 rows × 20 columns" in printed
    assert "probabilistic, converged" in printed
    assert "PC1: explains" in printed
    assert main(["report", str(model), str(tmp_path / "r.html"), "--data", str(data)]) == 0
    html = (tmp_path / "r.html").read_text()
    assert "Explained variance" in html
    for options in ([], ["--unshrink"]):
        assert main(["transform", str(model), str(data), str(tmp_path / f"scores{len(options)}.csv"), *options]) == 0
    plain, unshrunk = (pd.read_csv(tmp_path / f"scores{i}.csv", index_col=0) for i in (0, 1))
    np.testing.assert_allclose(unshrunk * dfact.load_model(model).shrinkage_, plain, rtol=1e-4)
    assert main(["fit", "pca", str(data), str(tmp_path / "y.model"), "-k", "3", "--plan"]) == 0
