"""Reliability and adequacy against their definitions on complete answers, and omega of correlations made of known factors."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from dfact.questionnaires.reliability import (
    alpha,
    alpha_if_dropped,
    alpha_interval,
    average_correlation,
    bartlett,
    item_rest_correlations,
    lambda6,
    n_group_factors,
    omega,
    sampling_adequacy,
    schmid_leiman,
)
from tests.conftest import REAL_DATA

Array = NDArray[np.float64]


def answers(seed: int, n: int = 300, m: int = 6) -> Array:
    rng = np.random.default_rng(seed)
    return np.asarray(np.rint(rng.normal(size=(n, 1)) + rng.normal(size=(n, m)) + 3), np.float64)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_alpha_is_that_of_the_sum(seed: int) -> None:
    X = answers(seed)
    m = X.shape[1]
    expected = m / (m - 1) * (1 - X.var(axis=0, ddof=1).sum() / X.sum(axis=1).var(ddof=1))
    assert alpha(np.cov(X.T)) == pytest.approx(expected, rel=1e-12)
    dropped = [alpha(np.cov(np.delete(X, j, axis=1).T)) for j in range(m)]
    np.testing.assert_allclose(alpha_if_dropped(np.cov(X.T)), dropped, rtol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_item_rest_correlations_are_those_with_the_sum_of_the_others(seed: int) -> None:
    X = answers(seed)
    expected = [np.corrcoef(X[:, j], np.delete(X, j, axis=1).sum(axis=1))[0, 1] for j in range(X.shape[1])]
    np.testing.assert_allclose(item_rest_correlations(np.cov(X.T)), expected, rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adequacy_is_that_of_residuals(seed: int) -> None:
    X = answers(seed)
    R, m = np.corrcoef(X.T), X.shape[1]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    unexplained = np.empty(m)
    partial = np.zeros((m, m))
    for i in range(m):
        others = np.delete(Z, i, axis=1)
        unexplained[i] = (Z[:, i] - others @ np.linalg.lstsq(others, Z[:, i])[0]).var()
        for j in set(range(m)) - {i}:
            rest = np.delete(Z, [i, j], axis=1)
            residuals = Z[:, [i, j]] - rest @ np.linalg.lstsq(rest, Z[:, [i, j]])[0]
            partial[i, j] = np.corrcoef(residuals.T)[0, 1]
    assert lambda6(R) == pytest.approx(1 - unexplained.sum() / R.sum(), rel=1e-10)
    r, p = R**2 - np.eye(m), partial**2
    kmo, items = sampling_adequacy(R)
    assert kmo == pytest.approx(r.sum() / (r.sum() + p.sum()), rel=1e-10)
    np.testing.assert_allclose(items, r.sum(axis=0) / (r.sum(axis=0) + p.sum(axis=0)), rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_and_tests_have_their_levels(seed: int) -> None:
    """Of parallel items with a known alpha, the interval covers it as often as it says; unrelated items are rejected in 5%."""
    rng = np.random.default_rng(seed)
    m, n, repeats, true = 5, 60, 400, 5 * 0.5 / (1 + 4 * 0.5)
    covered, rejected = 0, 0
    for _ in range(repeats):
        E = rng.normal(size=(n, m))
        low, high = alpha_interval(alpha(np.cov((rng.normal(size=(n, 1)) + E).T)), n, m)
        covered += low < true < high
        rejected += bartlett(np.corrcoef(E.T), n).p < 0.05
    assert abs(covered / repeats - 0.95) < 4 * np.sqrt(0.05 * 0.95 / repeats)
    assert abs(rejected / repeats - 0.05) < 4 * np.sqrt(0.05 * 0.95 / repeats)


def test_bartlett_is_the_likelihood_ratio_with_his_factor() -> None:
    R = np.full((3, 3), 0.3) + 0.7 * np.eye(3)
    test = bartlett(R, 100)
    statistic = -(99 - 11 / 6) * np.log(np.linalg.det(R))
    assert (test.chi_square, test.df, test.p) == (pytest.approx(statistic), 3, pytest.approx(chi2.sf(statistic, 3)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_omega_of_one_factor_is_recovered(seed: int) -> None:
    loadings = np.random.default_rng(seed).uniform(0.3, 0.9, 6)
    R = np.outer(loadings, loadings)
    np.fill_diagonal(R, 1)
    expected = loadings.sum() ** 2 / R.sum()
    split = schmid_leiman(R, 1)
    assert omega(R) == pytest.approx(expected, abs=1e-8)
    assert (split.omega_hierarchical, split.omega_total) == (pytest.approx(expected, abs=1e-8), pytest.approx(expected, abs=1e-8))
    assert split.ecv == 1


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_general_factor_is_recovered_and_no_item_is_reversed(seed: int, k: int) -> None:
    """Group factors with simple structure that one factor relates are split as they were made, of the sum of the items as keyed."""
    rng = np.random.default_rng(seed)
    pattern = np.kron(np.eye(k), np.ones((4, 1))) * rng.uniform(0.5, 0.9, (4 * k, 1))
    gamma = np.full(2, 0.7) if k == 2 else rng.uniform(0.5, 0.8, k)
    Phi = np.outer(gamma, gamma)
    np.fill_diagonal(Phi, 1)
    R = pattern @ Phi @ pattern.T
    np.fill_diagonal(R, 1)
    keys = rng.choice([-1.0, 1.0], 4 * k)
    R *= np.outer(keys, keys)
    general, total = pattern @ gamma * keys, R.sum()
    split = schmid_leiman(R, k)
    np.testing.assert_allclose(split.loadings, general * (1.0 if general.sum() > 0 else -1.0), atol=1e-6)
    assert split.omega_hierarchical < split.omega_total < 1
    assert split.omega_hierarchical == pytest.approx(general.sum() ** 2 / total, abs=1e-6)
    assert split.omega_total == pytest.approx(1 - (1 - (pattern**2).sum(axis=1)).sum() / total, abs=1e-6)
    assert split.ecv == pytest.approx((general**2).sum() / (pattern**2).sum(), abs=1e-6)


def test_thurstone_as_psych_computes_it() -> None:
    folder = REAL_DATA / "psychometrics"
    if not folder.is_dir():
        pytest.skip("the psychometric data is not next to the project")
    expected = json.loads((folder / "oracles" / "omega_hierarchical.json").read_text())["thurstone"]
    R = np.array(expected["R"], np.float64)
    split = schmid_leiman(R, 3)
    assert split.omega_hierarchical == pytest.approx(expected["omega_h"], abs=1e-4)
    assert split.omega_total == pytest.approx(expected["omega_total"], abs=1e-4)
    assert split.ecv == pytest.approx(expected["ECV"], abs=1e-4)
    assert (alpha(R), lambda6(R)) == (pytest.approx(expected["alpha_std"], abs=1e-6), pytest.approx(expected["lambda6"], abs=1e-6))
    np.testing.assert_allclose(split.loadings, np.array(expected["sl"])[:, 0], atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_omega_of_an_unkeyed_scale_is_that_of_its_sum(seed: int) -> None:
    """Of items that were not reversed, the general factor explains less of the sum than all factors do, as in the population."""
    rng = np.random.default_rng(seed)
    keys = np.array([1.0, -1.0] * 5 + [1.0, 1.0])
    common = rng.standard_normal((2000, 1)) + 0.7 * np.repeat(rng.standard_normal((2000, 3)), 4, axis=1)
    R = np.corrcoef((common + rng.standard_normal((2000, 12))) * keys, rowvar=False)
    split, keyed = schmid_leiman(R, 3), schmid_leiman(R * np.outer(keys, keys), 3)
    assert 0 <= split.omega_hierarchical < split.omega_total < keyed.omega_total
    assert split.omega_hierarchical < 0.3
    assert keyed.omega_hierarchical > 0.6
    np.testing.assert_allclose(np.abs(split.loadings), keyed.loadings, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2])
def test_sum_without_variance_has_no_omega_of_its_factors(k: int) -> None:
    """Two items and their reverses."""
    R = np.kron(np.array([[1.0, -1.0], [-1.0, 1.0]]), np.array([[1.0, 0.3], [0.3, 1.0]]))
    split = schmid_leiman(R, k)
    assert np.isnan([split.omega_hierarchical, split.omega_total]).all()


def test_few_items_have_few_figures() -> None:
    one, two = np.ones((1, 1)), np.array([[1.0, 0.4], [0.4, 1.0]])
    assert np.isnan([alpha(one), average_correlation(one), omega(one), *alpha_interval(0.5, 100, 1)]).all()
    assert np.isnan(alpha_if_dropped(two)).all()
    assert omega(two) == pytest.approx(alpha(two), abs=1e-8)
    assert [n_group_factors(m, 3) for m in (2, 3, 4, 5, 6, 25)] == [1, 1, 1, 2, 3, 3]
    assert n_group_factors(25, 5) == 5
