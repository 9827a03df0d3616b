"""Projections without shrinkage: the expected frequencies against their formula, and the error of new individuals."""

from pathlib import Path

import numpy as np
import pytest

import dfact
from dfact.models.binomial.shrinkage import contrast_basis
from tests.genetics.test_admixture import planted, rmse


def test_expected_frequencies_are_those_of_the_formula() -> None:
    _, _, X = planted(0, 120, 90)
    model = dfact.Admixture(3, dtype="float64").fit(X)
    P, m = model.allele_frequencies_, X.shape[1]
    C = np.empty((m, 3, 3))
    first, second = np.tril_indices(3)
    C[:, first, second] = C[:, second, first] = model.sums_.curvature.T
    mean, basis = P.mean(axis=0), contrast_basis(3)
    np.testing.assert_allclose(
        np.vstack([basis.T, np.full(3, 3**-0.5)]) @ np.column_stack([basis, np.full(3, 3**-0.5)]), np.eye(3), atol=1e-12
    )
    u, spread = P.T @ basis, mean * (1 - mean)
    W = np.stack([basis.T @ np.linalg.inv(each) @ basis for each in C])
    Phi = (u.T @ u - W.sum(axis=0)) / spread.sum()
    assert (np.linalg.eigvalsh(Phi) > 0).all()
    expected = [mean[j] + basis @ (v * Phi) @ np.linalg.inv(v * Phi + W[j]) @ u[j] for j, v in enumerate(spread)]
    np.testing.assert_allclose(model.projection_frequencies_, np.clip(np.transpose(expected), 1e-5, 1 - 1e-5), atol=1e-7)
    np.testing.assert_allclose(model.projection_frequencies_.mean(axis=0), mean, atol=1e-7)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(2, marks=pytest.mark.exhaustive)])
def test_new_individuals_are_not_pulled_to_the_middle(seed: int, tmp_path: Path) -> None:
    Q, _, X = planted(seed, 400, 600)
    model = dfact.Admixture(3).fit(X[:80])
    corrected = np.asarray(model.transform(X[80:]), np.float64)
    dfact.save_model(model, tmp_path / "a.model")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "a.model").transform(X[80:]), corrected)
    model.projection_frequencies_ = None
    plain = np.asarray(model.transform(X[80:]), np.float64)
    assert rmse(corrected, Q[80:]) < 0.9 * rmse(plain, Q[80:])
    assert plain.max(axis=1).mean() < corrected.max(axis=1).mean() <= Q[80:].max(axis=1).mean() + 0.02


def test_one_population_is_projected_on_its_frequencies() -> None:
    _, _, X = planted(3, 50, 20)
    model = dfact.Admixture(1).fit(X)
    np.testing.assert_array_equal(model.projection_frequencies_, model.allele_frequencies_)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_more_than_errors_projections_are_on_the_estimates(seed: int) -> None:
    """Few people and rare alleles: the correction would place everybody in the middle."""
    rng = np.random.default_rng(seed)
    base = rng.beta(0.2, 3, 2_000)
    P = rng.beta(np.maximum(60 * base, 1e-3), np.maximum(60 * (1 - base), 1e-3), (3, 2_000))
    X = rng.binomial(2, np.clip(rng.dirichlet([0.3] * 3, 30) @ P, 0, 1)).astype(float)
    X = X[:, X.std(axis=0) > 0]
    with pytest.warns(UserWarning, match="errors of the allele frequencies exceed the differences between populations, so that transform"):
        model = dfact.Admixture(3, random_state=0, max_iter=300).fit(X)
    assert model.projection_frequencies_ is None
    np.testing.assert_allclose(model.transform(X), model.memberships_, atol=1e-6)
