"""Indices of fit: their definitions, and the figures of psych and lavaan."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ncx2, norm

from dfact.questionnaires.fit_indices import FIT_INDICES, fit_indices, noncentrality, score_reliability
from dfact.questionnaires.minres import minres
from dfact.questionnaires.rotation import oblimin, ordered
from tests.questionnaires import FOLDER, bfi, oracle, psychometrics


def one_factor(m: int = 6) -> tuple[np.ndarray, np.ndarray]:
    loadings = np.linspace(0.4, 0.8, m)[:, None]
    return loadings, loadings @ loadings.T + np.diag(1 - (loadings**2).ravel())


def test_a_perfect_fit() -> None:
    loadings, R = one_factor()
    fit = fit_indices(R, loadings, 1 - (loadings**2).ravel(), 300)
    assert tuple(fit.index) == FIT_INDICES
    assert fit.drop(["p", "tli", "bic"]).to_dict() == pytest.approx(
        {"chi_square": 0, "df": 9, "rmsea": 0, "rmsea_low": 0, "rmsea_high": 0, "cfi": 1, "srmr": 0}, abs=1e-9
    )
    assert fit.p == pytest.approx(1)
    assert fit.tli > 1
    assert fit.bic == pytest.approx(-9 * np.log(300))


def test_without_loadings_the_fit_is_that_of_the_null_model() -> None:
    R = one_factor()[1]
    fit = fit_indices(R, np.zeros((6, 1)), np.ones(6), 300)
    assert fit.chi_square == pytest.approx(-(299 - 17 / 6 - 2 / 3) * np.log(np.linalg.det(R)))
    assert fit.srmr == pytest.approx(np.sqrt((R[np.tril_indices(6, -1)] ** 2).sum() / 21))


@pytest.mark.parametrize("probability", [0.05, 0.95])
@pytest.mark.parametrize(("chi_square", "df"), [(1808.9, 185), (30.0, 9), (26000.0, 300), (4e5, 1000)])
def test_noncentrality_inverts_the_distribution(chi_square: float, df: float, probability: float) -> None:
    found = noncentrality(chi_square, df, probability)
    assert ncx2.cdf(chi_square, df, found) == pytest.approx(probability, abs=1e-6)
    assert noncentrality(df / 2, df, 0.95) == 0


@pytest.mark.parametrize("probability", [0.05, 0.95])
def test_noncentrality_of_a_large_statistic_follows_the_normal_distribution(probability: float) -> None:
    below, above = (noncentrality(chi_square, 9, probability) for chi_square in (1e9 - 1, 1e9 + 1))
    assert above - below == pytest.approx(2, abs=3)  # of 1e9
    found = noncentrality(1e12, 9, probability)
    assert (1e12 - found - 9) / np.sqrt(2 * (9 + 2 * found)) == pytest.approx(norm.ppf(probability), abs=1e-3)


def test_undefined_indices_are_nan() -> None:
    loadings, R = one_factor()
    psi = 1 - (loadings**2).ravel()
    for fit in (fit_indices(R, loadings, psi, 300, regular=False), fit_indices(np.ones((6, 6)), loadings, psi, 300)):
        assert set(fit.index[fit.notna()]) == {"df", "srmr"}
    saturated = fit_indices(R[:3, :3], loadings[:3], psi[:3], 300)
    assert saturated.df == 0
    assert set(saturated.index[saturated.isna()]) == {"p", "rmsea", "rmsea_low", "rmsea_high", "tli"}
    assert np.isnan(fit_indices(R[:2, :2], loadings[:2], psi[:2], 300).chi_square)


@pytest.mark.parametrize("seed", [0, 1])
def test_score_reliability_is_the_squared_correlation_of_scores_and_factors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loadings, R = one_factor(8)
    F = rng.standard_normal((200_000, 1))
    X = F @ loadings.T + rng.standard_normal((200_000, 8)) * np.sqrt(1 - (loadings**2).ravel())
    scores = X @ np.linalg.solve(R, loadings)
    expected = np.corrcoef(F[:, 0], scores[:, 0])[0, 1] ** 2
    assert score_reliability(R, loadings, np.eye(1)) == pytest.approx([expected], abs=3e-3)


@psychometrics
@pytest.mark.parametrize("correlation", ["pearson", "polychoric"])
def test_figures_of_psych(correlation: str) -> None:
    R = bfi().corr().to_numpy() if correlation == "pearson" else oracle("polychoric_bfi.csv")
    expected = json.loads((FOLDER / "oracles" / "fit_bfi.json").read_text())[correlation]
    extraction = minres(R, 5, tol=1e-9)
    fit = fit_indices(R, extraction.loadings, 1 - (extraction.loadings**2).sum(axis=1), 2800)
    rmsea = expected["rmsea"]
    peer = {
        "chi_square": expected["chi2"],
        "df": 185,
        "rmsea": rmsea["RMSEA"],
        "rmsea_low": rmsea["lower"],
        "rmsea_high": rmsea["upper"],
        "cfi": expected["cfi"],
        "tli": expected["tli"],
        "srmr": expected["rms"] * np.sqrt(24 / 26),
    }
    pd.testing.assert_series_equal(fit.drop(["p", "bic"]), pd.Series(peer), rtol=1e-6, check_names=False)
    assert fit.bic == pytest.approx(expected["bic"], abs=1e-3)
    assert fit.p < 1e-12
    rotated = oblimin(extraction.loadings)
    pattern, Phi = ordered(rotated.pattern, rotated.correlations)
    assert score_reliability(R, pattern, Phi) == pytest.approx(expected["score_R2"], abs=1e-5)


def test_reliability_of_scores_by_a_singular_matrix_is_nan() -> None:
    assert np.isnan(score_reliability(np.ones((4, 4)), np.full((4, 1), 0.9), np.eye(1))).all()
