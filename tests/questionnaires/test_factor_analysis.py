"""Factor analysis: optimality, published and peers' figures, planted loadings, rotations, missing answers, parity, invalid input."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from scipy.stats import ortho_group

import dfact
from dfact.cli.main import main
from dfact.data.examples import ipip_ascado
from dfact.data.synthetic import icqf_simulation
from dfact.errors import DataError
from dfact.export.tables import largest_items
from dfact.linalg.correlation import smoothed
from dfact.linalg.parallel_analysis import parallel_analysis
from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors
from dfact.questionnaires.factor_analysis.presenter import factor_correlations
from dfact.questionnaires.minres import LOWEST, minres, principal, residual
from dfact.questionnaires.retention import bic, minimum_average_partial
from dfact.questionnaires.rotation import explained, ordered, promax, promax_spss, varimax
from dfact.report.plots import signed_heatmap
from dfact.report.presenters.base import model_text, rows_text
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
heywood_may_be = pytest.mark.filterwarnings("ignore:the uniqueness of")


def symmetric(rows: list[list[float]]) -> Array:
    R = np.eye(len(rows) + 1)
    for i, row in enumerate(rows, 1):
        R[i, :i] = R[:i, i] = row
    return R


PHYSICAL = symmetric(
    [  # Harman (1976), eight physical variables of 305 girls
        [0.846],
        [0.805, 0.881],
        [0.859, 0.826, 0.801],
        [0.473, 0.376, 0.380, 0.436],
        [0.398, 0.326, 0.319, 0.329, 0.762],
        [0.301, 0.277, 0.237, 0.327, 0.730, 0.583],
        [0.382, 0.415, 0.345, 0.365, 0.629, 0.577, 0.539],
    ]
)


def planted(n: int, seed: int, k: int = 3, per_factor: int = 6) -> tuple[Array, Array, Array]:
    """Data (n, m), simple-structure loadings (m, k), and factor correlations of 0.3."""
    rng = np.random.default_rng(seed)
    loadings = (
        np.kron(np.eye(k), np.ones((per_factor, 1)))
        * rng.uniform(0.5, 0.9, (k * per_factor, 1))
        * rng.choice([1, 1, 1, -1], (k * per_factor, 1))
    )
    Phi = np.full((k, k), 0.3) + 0.7 * np.eye(k)
    F = rng.standard_normal((n, k)) @ np.linalg.cholesky(Phi).T
    X = F @ loadings.T + rng.standard_normal((n, len(loadings))) * np.sqrt(1 - (loadings**2).sum(axis=1))
    return 2 * X + 5, loadings, Phi


def matched(loadings: Array, target: Array) -> Array:
    """Return the loadings with the order and the signs of the target's factors."""
    c = loadings.T @ target
    best = np.abs(c).argmax(axis=0)
    assert len(set(best)) == target.shape[1]
    return np.asarray(loadings[:, best] * np.sign(c[best, range(target.shape[1])]))


def holed(X: Array, share: float, seed: int) -> Array:
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def complete_answers() -> Array:
    """The packaged questionnaire, participants who answered all items."""
    X = pd.read_csv(ipip_ascado()).iloc[:, :40].to_numpy(np.float64)
    return X[(X > 0).all(axis=1)]


def test_the_published_minres_solution() -> None:
    """Harman (1976), chapter 9."""
    pattern, _ = ordered(minres(PHYSICAL, 2).loadings, np.eye(2))
    published = [
        [0.856, -0.324],
        [0.848, -0.412],
        [0.808, -0.409],
        [0.831, -0.342],
        [0.750, 0.571],
        [0.631, 0.492],
        [0.569, 0.510],
        [0.607, 0.351],
    ]
    np.testing.assert_allclose(pattern, published, atol=1.2e-3)


def test_published_principal_factors() -> None:
    """SAS PROC FACTOR's principal factors of the same data with these communalities: variances explained."""
    communalities = np.array([0.854, 0.897, 0.833, 0.783, 0.870, 0.687, 0.521, 0.579])
    np.testing.assert_allclose((principal(1 - communalities, PHYSICAL, 2) ** 2).sum(axis=0), [4.455751, 1.512747], atol=1e-5)


# Python's factor_analyzer 0.5.1, FactorAnalyzer(4, rotation=…, method="minres"); its rotation stops at 1e-5.
PEER_UNIQUENESSES = [0.487055, 0.459406, 0.46245, 0.584404, 0.608184, 0.566539, 0.520783, 0.730656]
PEER = {
    "promax": ([[0.48147, -0.12825, 0.1261, 0.43208], [0.12797, 0.12079, 0.10535, 0.62907], [0.04459, 0.18691, 0.09095, 0.63184]], 1e-3),
    "varimax": ([[0.55392, 0.0503, -0.05769, 0.44751], [0.30658, 0.30884, -0.05942, 0.58965], [0.2374, 0.36499, -0.06019, 0.58681]], 2e-3),
    None: ([[0.615692, -0.099067, 0.313045, -0.161421], [0.654254, 0.174022, 0.070988, -0.277891]], 5e-6),
}


@pytest.mark.parametrize("rotation", PEER)
def test_loadings_of_a_peer_on_the_packaged_questionnaire(rotation: str | None) -> None:
    X = complete_answers()
    model = dfact.FactorAnalysis(4, rotation=rotation).fit(X)
    expected, tolerance = np.array(PEER[rotation][0]), PEER[rotation][1]
    found = model.components_.T[: len(expected)]
    # The order and the signs of factors are conventions: compare quantities that do not depend on them.
    np.testing.assert_allclose(np.sort(np.abs(found), axis=1), np.sort(np.abs(expected), axis=1), atol=tolerance)
    np.testing.assert_allclose(model.uniquenesses_[:8], PEER_UNIQUENESSES, atol=3e-6)
    off = np.sort(np.abs(model.factor_correlations_[np.tril_indices(4, -1)]))
    peer = [0.10637, 0.25732, 0.37436, 0.37528, 0.45618, 0.54643] if rotation == "promax" else np.zeros(6)
    np.testing.assert_allclose(off, peer, atol=1e-3)
    assert model.explained_.variance.sum() == pytest.approx((1 - model.uniquenesses_).sum())
    assert model.explained_.cumulative.iloc[-1] == pytest.approx(model.explained_share_)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_extraction_is_at_its_minimum(seed: int) -> None:
    R = np.corrcoef(planted(400, seed)[0], rowvar=False)
    found = minres(R, 3)
    assert found.converged
    value, gradient = residual(found.uniquenesses, R, 3)
    assert np.abs(gradient).max() < 1e-5
    point = np.random.default_rng(seed).uniform(0.2, 0.8, len(R))
    value, gradient = residual(point, R, 3)
    np.testing.assert_allclose(gradient, approx_fprime(point, lambda psi: residual(psi, R, 3)[0], 1e-7), atol=1e-5)
    assert value > found.objective
    # The squares off the diagonal, as a function of the loadings, do not fall either way.
    off = ~np.eye(len(R), dtype=bool)

    def squares(flat: Array) -> float:
        return float(((R - flat.reshape(-1, 3) @ flat.reshape(-1, 3).T)[off] ** 2).sum())

    assert np.abs(approx_fprime(found.loadings.ravel(), squares, 1e-7)).max() < 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_loadings_and_correlations_are_recovered(seed: int) -> None:
    X, loadings, Phi = planted(5000, seed)
    model = dfact.FactorAnalysis(3).fit(X)
    assert np.abs(matched(model.components_.T, loadings) - loadings).max() < 0.08
    assert np.abs(np.abs(model.factor_correlations_) - Phi).max() < 0.08
    np.testing.assert_allclose(model.uniquenesses_, 1 - (loadings**2).sum(axis=1), atol=0.08)
    assert (model.components_.sum(axis=1) > 0).all()
    assert (np.diff(model.explained_.variance) <= 0).all()
    assert model.rmsr_ < 0.02
    table = model.loadings_
    np.testing.assert_allclose(table.to_numpy(), model.components_.T)


@pytest.mark.parametrize("seed", [0, 1])
def test_promax_of_spss_is_fitted_saved_and_named(seed: int, tmp_path: Path) -> None:
    X = planted(200, seed)[0]
    model, usual = (dfact.FactorAnalysis(3, rotation=rotation).fit(X) for rotation in ("promax-spss", "promax"))
    unrotated = dfact.FactorAnalysis(3, rotation=None).fit(X).components_.T
    pattern, Phi = ordered(*promax_spss(unrotated))
    np.testing.assert_allclose(model.components_, pattern.T, atol=1e-6)
    np.testing.assert_allclose(model.factor_correlations_, Phi, atol=1e-6)
    np.testing.assert_allclose(model.communalities_, usual.communalities_, atol=1e-9)
    assert "promax rotation (as in SPSS)" in model_text(model, 2)
    assert "promax rotation (as in psych)" in model_text(usual, 2)
    dfact.save_model(model, tmp_path / "model")
    assert dfact.load_model(tmp_path / "model").rotation == "promax-spss"


@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale is negative")
@pytest.mark.parametrize("seed", [0, 1])
def test_omegas_of_the_sum_of_all_items(seed: int) -> None:
    """omega total has the factors of the model, omega a single one, and describe() computes the same of these items.

    Reversed answers give the same values, and are named.
    """
    X, signs = planted(400, seed)[0], np.where(np.arange(planted(400, seed)[0].shape[1]) % 5 == seed, -1.0, 1.0)
    model = dfact.FactorAnalysis(3, tol=1e-10).fit(X)
    turned = dfact.FactorAnalysis(3, tol=1e-10).fit(X * signs)
    keys = np.where(np.isin(model.column_labels_, model.reversed_items_), -1.0, 1.0)
    R, pattern = model.correlations_ * np.outer(keys, keys), keys[:, None] * model.components_.T
    common = pattern @ model.factor_correlations_ @ pattern.T
    assert model.omega_["omega_total"] == pytest.approx(1 - (len(R) - np.trace(common)) / R.sum(), abs=1e-6)
    np.testing.assert_allclose(turned.omega_, model.omega_, atol=1e-6)
    np.testing.assert_array_equal(np.where(np.isin(turned.column_labels_, turned.reversed_items_), -1.0, 1.0), keys * signs)
    scales = dfact.describe(X * keys, group_factors=3).scales.loc["all"]
    np.testing.assert_allclose(model.omega_, scales[["omega", "omega_total"]].astype(float), atol=1e-5)
    assert f"ω total {model.omega_.omega_total:.2f} of the sum of all items (" in model_text(turned, 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_rotations_keep_the_common_part(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(20, 4))
    rotated, T = varimax(loadings)
    np.testing.assert_allclose(T.T @ T, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(rotated, loadings @ T, atol=1e-12)
    pattern, Phi = promax(loadings)
    np.testing.assert_allclose(pattern @ Phi @ pattern.T, loadings @ loadings.T, atol=1e-10)
    np.testing.assert_allclose(Phi.diagonal(), 1, atol=1e-12)
    assert explained(pattern, Phi).sum() == pytest.approx((loadings**2).sum())
    turned, turned_correlations = ordered(pattern, Phi)
    np.testing.assert_allclose(turned @ turned_correlations @ turned.T, loadings @ loadings.T, atol=1e-10)


def criterion(loadings: Array) -> float:
    lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
    return float(((loadings / lengths) ** 2).var(axis=0).sum())


@pytest.mark.parametrize("seed", [0, 1])
def test_varimax_is_at_its_maximum_and_finds_simple_structure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    simple = np.kron(np.eye(3), np.ones((5, 1))) * rng.uniform(0.4, 0.9, (15, 1))
    mixed = simple @ ortho_group.rvs(3, random_state=seed)
    rotated, _ = varimax(mixed)
    np.testing.assert_allclose(matched(rotated, simple), simple, atol=1e-5)
    noisy, _ = varimax(mixed + 0.1 * rng.normal(size=mixed.shape))
    best = criterion(noisy)
    for _ in range(20):
        small = rng.normal(size=(3, 3)) * 0.02
        turn = np.linalg.qr(np.eye(3) + small - small.T)[0]
        assert criterion(noisy @ turn) <= best + 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_correlations_are_those_of_pandas(dtype: str) -> None:
    X = holed(planted(800, 0)[0], 0.2, 1)
    model = dfact.FactorAnalysis(3, dtype=dtype).fit(X)
    frame = pd.DataFrame(X)
    np.testing.assert_allclose(model.correlations_, frame.corr().to_numpy(), atol=1e-12 if dtype == "float64" else 1e-5)
    np.testing.assert_allclose(model.mean_, frame.mean(), rtol=1e-6)
    np.testing.assert_allclose(model.scale_, frame.std(), rtol=1e-5)
    assert model.n_observations_ == 800
    with pytest.warns(UserWarning, match="10 participants are too few for 18 items"):
        listwise = dfact.FactorAnalysis(3, dtype=dtype, missing="listwise").fit(X)
    complete = frame.dropna()
    np.testing.assert_allclose(listwise.correlations_, complete.corr().to_numpy(), atol=1e-12 if dtype == "float64" else 1e-5)
    assert listwise.n_observations_ == len(complete)


def test_pairwise_and_listwise_agree_on_complete_data() -> None:
    X = planted(500, 3)[0]
    pairwise, listwise = (dfact.FactorAnalysis(3, missing=missing).fit(X) for missing in ("pairwise", "listwise"))
    np.testing.assert_array_equal(pairwise.components_, listwise.components_)
    np.testing.assert_array_equal(pairwise.factors_, listwise.factors_)


def test_scores_are_the_regression_of_the_factors_on_the_answered_items() -> None:
    X = holed(planted(300, 4)[0], 0.3, 0)
    X[7] = np.nan
    with pytest.warns(UserWarning, match="1 of 300 rows have no answer"):
        model = dfact.FactorAnalysis(3).fit(X)
    L, Phi, psi = model.components_.T, model.factor_correlations_, model.uniquenesses_
    Z = (X - model.mean_) / model.scale_
    Sigma = L @ Phi @ L.T + np.diag(psi)
    for i in (0, 1, 50, 299):
        o = ~np.isnan(X[i])
        expected = Phi @ L[o].T @ np.linalg.solve(Sigma[np.ix_(o, o)], Z[i, o])
        np.testing.assert_allclose(model.factors_[i], expected, atol=1e-10)
    assert np.isnan(model.factors_[7]).all()
    assert not np.isnan(np.delete(model.factors_, 7, axis=0)).any()
    rows = np.delete(np.arange(300), 7)
    np.testing.assert_allclose(model.transform(X[rows]), model.factors_[rows], atol=1e-12)


def test_scores_are_near_psychs_and_give_back_the_answers_expected() -> None:
    X = complete_answers()
    model = dfact.FactorAnalysis(4).fit(X)
    Z = (X - model.mean_) / model.scale_
    # Thurstone's with the correlations found instead of those the model expects, as psych has them.
    psych = Z @ np.linalg.solve(model.correlations_, model.components_.T @ model.factor_correlations_)
    for r in range(4):
        assert np.corrcoef(model.factors_[:, r], psych[:, r])[0, 1] > 0.998
    expected = model.inverse_transform(model.factors_)
    share = 1 - ((X - expected) ** 2).sum(axis=0) / ((X - X.mean(axis=0)) ** 2).sum(axis=0)
    assert (share > 0).all()
    assert share.mean() == pytest.approx(model.explained_share_, abs=0.12)


@heywood_may_be
def test_singular_correlations_are_reported() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="9 participants are too few for 20 items.*fit_ and score_reliability_ are NaN, apart from srmr"):
        few = dfact.FactorAnalysis(2).fit(rng.integers(1, 6, (9, 20)))
    assert {*few.fit_.index[few.fit_.notna()]} >= {"srmr"}
    answers = np.clip(np.round(rng.normal(size=(500, 1)) + rng.normal(size=(500, 6)) + 3), 1, 5)
    with pytest.warns(UserWarning, match="'0', '6' determine one another"):
        dfact.FactorAnalysis(2).fit(np.c_[answers, answers[:, 0]])


@pytest.mark.parametrize("rounding", [0.0, 1e-9])
def test_correlations_are_no_answers(rounding: float) -> None:
    R = np.corrcoef(planted(400, 0)[0].T)
    with pytest.raises(DataError, match="18 × 18 with 1 on its diagonal, as correlations are, expected the answers"):
        dfact.FactorAnalysis(2).fit(R - rounding)
    with pytest.warns(UserWarning, match="18 participants are too few for 18 items"):
        dfact.FactorAnalysis(2).fit(R + np.triu(np.full(R.shape, 1e-3), 1))  # another matrix


@heywood_may_be
def test_indefinite_correlations_are_smoothed_with_a_warning() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((90, 3))
    X = np.full((90, 3), np.nan)
    X[:30, 0], X[:30, 1] = z[:30, 0], z[:30, 0] + 0.1 * z[:30, 1]
    X[30:60, 1], X[30:60, 2] = z[30:60, 0], z[30:60, 0] + 0.1 * z[30:60, 1]
    X[60:, 0], X[60:, 2] = z[60:, 0], -z[60:, 0] + 0.1 * z[60:, 1]
    with pytest.warns(UserWarning, match="negative eigenvalues and were smoothed"):
        model = dfact.FactorAnalysis(1, rotation=None).fit(X)
    assert model.smoothed_
    assert np.linalg.eigvalsh(pd.DataFrame(X).corr().to_numpy())[0] < -0.1
    assert np.linalg.eigvalsh(model.correlations_)[0] > 0
    np.testing.assert_allclose(model.correlations_.diagonal(), 1)
    np.testing.assert_allclose(smoothed(PHYSICAL), PHYSICAL, atol=1e-12)


def test_a_heywood_case_is_reported() -> None:
    socioeconomic = symmetric([[0.00975], [0.97245, 0.15428], [0.43887, 0.69141, 0.51472], [0.02241, 0.86307, 0.12193, 0.77765]])
    assert minres(socioeconomic, 2).uniquenesses.min() == LOWEST
    X = np.random.default_rng(0).multivariate_normal(np.zeros(5), socioeconomic, 50_000)
    with pytest.warns(UserWarning, match=r"uniqueness of '0' is at its limit 0.005 \(Heywood case\)"):
        dfact.FactorAnalysis(2).fit(X)


@heywood_may_be
def test_more_parameters_than_correlations_are_reported() -> None:
    message = "4 factors of 6 items have more parameters than there are correlations"
    with pytest.warns(UserWarning, match=message):
        dfact.FactorAnalysis(4).fit(planted(200, 0, k=2, per_factor=3)[0])


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_number_of_planted_factors_is_found(seed: int, missing: float) -> None:
    X = holed(planted(1500, seed, k=4)[0], missing, seed)
    model = dfact.FactorAnalysis()
    found = number_of_factors(model, X, range(1, 9))
    assert not any(name.endswith("_") for name in vars(model))
    assert found.table().to_dict() == dict.fromkeys(("PA", "PA-factors", "MAP", "BIC"), 4)
    assert found.parallel_analysis.reference is not None
    mean = number_of_factors(dfact.FactorAnalysis(), X, range(1, 9), quantile=None).parallel_analysis
    assert mean.n_factors == 4
    assert mean.reference is not None
    assert (mean.reference <= found.parallel_analysis.reference).all()


def test_the_papers_simulation() -> None:
    R = np.corrcoef(icqf_simulation(0.1, 0).M, rowvar=False)
    assert parallel_analysis(R, 200).n_factors == minimum_average_partial(R).n_factors == 10


def test_random_eigenvalues_are_those_of_random_data() -> None:
    """The Wishart draws against correlations of normal data, and a fixed seed."""
    rng = np.random.default_rng(5)
    direct = np.mean([np.linalg.eigvalsh(np.corrcoef(rng.standard_normal((60, 12)), rowvar=False))[::-1] for _ in range(400)], axis=0)
    drawn = parallel_analysis(np.eye(12), 60, quantile=None, repeats=400)
    assert drawn.reference is not None
    np.testing.assert_allclose(drawn.reference, direct, atol=0.03)
    again = parallel_analysis(np.eye(12), 60, quantile=None, repeats=400)
    np.testing.assert_array_equal(drawn.reference, again.reference)
    assert drawn.n_factors == 0
    few_rows = parallel_analysis(np.eye(12), 8, repeats=5)
    assert few_rows.reference is not None
    assert few_rows.reference[8:] == pytest.approx(0, abs=1e-10)


def test_map_follows_its_definition() -> None:
    """Partial correlations by regression on the leading principal components."""
    R = np.corrcoef(planted(300, 0)[0], rowvar=False)
    found = minimum_average_partial(R)
    values, V = np.linalg.eigh(R)
    for k in (0, 2, 5):
        rest = R - V[:, len(R) - k :] @ np.diag(values[len(R) - k :]) @ V[:, len(R) - k :].T
        partial = rest / np.sqrt(np.outer(rest.diagonal(), rest.diagonal()))
        assert found.values[k] == pytest.approx((partial[~np.eye(len(R), dtype=bool)] ** 2).mean())


def test_bic_needs_a_regular_matrix_and_degrees_of_freedom() -> None:
    with pytest.raises(dfact.DataError, match="singular"):
        bic(np.ones((8, 8)), 100, [1])
    with pytest.raises(dfact.ParameterError, match="no degrees of freedom"):
        bic(np.eye(3), 100, [2])
    few = planted(15, 0)[0]
    assert list(number_of_factors(dfact.FactorAnalysis(), few).table().index) == ["PA", "PA-factors", "MAP"]


class TestEstimator(EstimatorSuite):
    model = dfact.FactorAnalysis
    parameters: ClassVar = {"n_components": 3}
    derived = ("loadings_", "explained_", "fit_", "omega_", "score_reliability_")

    @pytest.fixture(scope="class", params=["promax", "varimax", "polychoric"])
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {"correlation": "polychoric", "rotation": "oblimin"} if request.param == "polychoric" else {"rotation": request.param}

    def data(self) -> Array:
        X = np.clip(np.rint(planted(5_000, 3)[0]), 0, 9)
        return np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X).astype(np.float32)


def assert_same_bits(first: dfact.FactorAnalysis, second: dfact.FactorAnalysis) -> None:
    for name in ("components_", "factors_", "factor_correlations_", "correlations_", "mean_", "scale_", "uniquenesses_"):
        np.testing.assert_array_equal(np.asarray(getattr(first, name)), np.asarray(getattr(second, name)), err_msg=name)


def test_report_of_a_model() -> None:
    X = planted(400, 0)[0]
    model = dfact.FactorAnalysis(3).fit(pd.DataFrame(X, columns=[f"Q{j}" for j in range(X.shape[1])]))
    text = model_text(model, 2)
    assert "FactorAnalysis, 3 factors of 400 participants × 18 items" in text
    assert "promax rotation" in text
    assert "correlations of the factors" in text
    assert rows_text(model, 5) == "scores of 5 participants on 3 factors"
    assert "correlations of the factors" not in model_text(dfact.FactorAnalysis(3, rotation="varimax").fit(X), 2)
    items = largest_items(model, model.loadings_, 2, {"Q0": "first"})
    assert len(items) == 6
    assert (items.loading.abs() > 0.4).all()
    assert factor_correlations(model).to_numpy().diagonal() == pytest.approx(1)
    image = signed_heatmap(model).axes[0].images[0]
    low, high = image.get_clim()
    assert low == -high
    assert high == pytest.approx(np.abs(model.components_).max())


def test_callbacks_receive_every_step() -> None:
    seen: list[Any] = []
    dfact.FactorAnalysis(2, callbacks=[seen.append]).fit(planted(100, 0, k=2)[0])
    assert [s.number for s in seen] == [1, 2, 3]


@pytest.mark.further
def test_commands_fit_and_transform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, fitted, scores = (str(tmp_path / name) for name in ("d.zarr", "m.model", "f.csv"))
    dataset = dfact.import_array(holed(planted(300, 0)[0], 0.1, 0), data)
    assert main(["fit", "fa", data, fitted, "-k", "3", "--plot", str(tmp_path / "loadings.png")]) == 0
    assert "FactorAnalysis, 3 factors of 300 participants" in capsys.readouterr().out
    assert main(["transform", fitted, data, scores]) == 0
    assert main(["info", fitted]) == 0
    assert "promax rotation" in capsys.readouterr().out
    assert main(["fit", "fa", data, fitted, "--rotation", "none", "--missing", "listwise", "--overwrite"]) == 0
    assert "no rotation" in capsys.readouterr().out
    np.testing.assert_allclose(pd.read_csv(scores).iloc[:, 1:], dfact.FactorAnalysis(3).fit(dataset).factors_, rtol=1e-6)


GOOD = planted(60, 0, k=2, per_factor=4)[0]


def changed(rows: Any, column: int, value: float) -> pd.DataFrame:
    X = pd.DataFrame(GOOD, columns=[f"Q{j}" for j in range(8)])
    X.iloc[rows, column] = value
    return X


def never_together() -> Array:
    X = GOOD.copy()
    X[:30, 0] = X[30:, 1] = np.nan
    return X


@pytest.mark.parametrize(
    ("X", "parameters", "message"),
    [
        (
            changed(slice(None), 3, 2.0),
            {},
            r"item 'Q3' holds 2 in every row \(1 such items in all\), expected items that vary; leave it out",
        ),
        (changed(slice(None), 3, np.nan), {}, r"column 'Q3' has no observed entry"),
        (changed(17, 3, np.inf), {}, r"(?i)infinity"),
        (never_together(), {}, r"items '0' and '1' do not vary together in the 0 rows"),
        (
            changed(slice(None, None, 2), 3, np.nan).assign(Q4=np.where(np.arange(60) % 2, np.nan, GOOD[:, 4])),
            {"missing": "listwise"},
            r"0 of 60 rows have all answers",
        ),
        (GOOD, {"n_components": 9}, r"n_components=9 is larger.*n_features=8"),
        (GOOD, {"n_components": 0}, r"n_components is 0, expected an integer"),
        (GOOD, {"method": "ml"}, r"method is 'ml', expected 'minres'"),
        (GOOD, {"rotation": "quartimax"}, r"rotation is 'quartimax'"),
        (GOOD, {"rotation": "promax-spss", "kaiser": False}, r"kaiser is False, expected True or None for rotation 'promax-spss'"),
        (GOOD, {"kaiser": 1}, r"kaiser is 1, expected True or False, or None"),
        (GOOD, {"correlation": "spearman"}, r"correlation is 'spearman', expected 'pearson' or 'polychoric'"),
        (GOOD, {"correlation": "polychoric"}, r"item '0' has answers from .* not whole numbers \(8 such items\), expected at most 10"),
        (GOOD, {"kappa": 0.5}, r"kappa is 0.5"),
        (GOOD, {"missing": "drop"}, r"missing is 'drop'"),
        (GOOD, {"tol": -1}, r"tol is -1"),
        (GOOD, {"max_iter": 0}, r"max_iter is 0"),
        (GOOD, {"memory_limit": "1MB"}, r"needs at least"),
        (GOOD[:1], {}, r"n_samples=1"),
        (GOOD[:, :1], {"n_components": 1}, r"n_features=1"),
    ],
)
def test_invalid_input_is_refused(X: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, dfact.MemoryPlanError), match=message):
        dfact.FactorAnalysis(**{"n_components": 2, **parameters}).fit(X)


def test_scores_of_another_shape_are_refused() -> None:
    model = dfact.FactorAnalysis(2).fit(GOOD)
    with pytest.raises(dfact.DataError, match=r"factors have shape \(5, 3\), expected \(n, 2\)"):
        model.inverse_transform(np.zeros((5, 3)))
    with pytest.raises(dfact.DataError, match="infinity"):
        model.transform(zarr.array(np.where(np.arange(8) == 2, np.inf, GOOD[:4])))


def test_confounders_of_a_dataset_are_not_used(tmp_path: Path) -> None:
    X = np.clip(np.rint(planted(200, 0)[0]), 0, 9).astype(np.uint8)
    ages = pd.DataFrame({"age": np.random.default_rng(0).normal(40, 9, 200)})
    with_ages = dfact.import_array(X, tmp_path / "a.zarr", confounders=ages)
    assert_same_bits(dfact.FactorAnalysis(3).fit(with_ages), dfact.FactorAnalysis(3).fit(dfact.import_array(X, tmp_path / "b.zarr")))


@pytest.mark.parametrize("name", ["scale_", "uniquenesses_"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_that_would_divide_by_zero_is_refused(name: str, dtype: type, tmp_path: Path) -> None:
    model = dfact.FactorAnalysis(2).fit(GOOD)
    values = getattr(model, name)
    values[1] = 0
    setattr(model, name, values.astype(dtype))
    with pytest.raises(dfact.DataError, match=name):
        dfact.save_model(model, tmp_path / "m.model")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("factor_correlations_", -0.99, "smallest eigenvalue"),
        ("correlations_", 1e30, r"values from .* to 1e\+30, expected a symmetric matrix with diagonal 1"),
    ],
)
def test_a_loaded_model_has_correlations(name: str, value: float, message: str) -> None:
    model = dfact.FactorAnalysis(3).fit(planted(200, 1)[0])
    model._check_loaded()
    forged = getattr(model, name).copy()
    forged[0, 1:] = forged[1:, 0] = value
    setattr(model, name, forged)
    with pytest.raises(dfact.DataError, match=message):
        model._check_loaded()
