"""Projections without shrinkage: the expected frequencies against their formula, and the error of new individuals."""

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dfact
from dfact.kernels.binomial import EDGE
from dfact.models.binomial.shrinkage import Place
from tests.genetics.test_admixture import planted, rmse


def expected_information(Q: np.ndarray, P: np.ndarray, observed: np.ndarray, trials: int) -> np.ndarray:
    weights = observed * trials / ((Q @ P) * (1 - Q @ P))
    return np.einsum("ij,ik,il->jkl", weights, Q, Q)


def test_places_are_those_of_the_formula() -> None:
    _, _, X = planted(0, 120, 90)
    model = dfact.Admixture(3, dtype="float64").fit(X)
    P, Q = model.allele_frequencies_, np.asarray(model.memberships_)
    V = np.linalg.inv(expected_information(Q, P, ~np.isnan(X), 2))
    share = np.clip((Q**4).sum(axis=0) / (Q**3).sum(axis=0), 2 / 3, 0.95)
    moved, points = np.empty((3, 3)), np.empty((3, 3))
    for k in range(3):
        points[k] = q = np.where(np.arange(3) == k, share[k], (1 - share[k]) / 2)
        S, H = np.zeros(3), np.zeros((3, 3))
        for p, v in zip(P.T, V, strict=True):
            f = q @ p
            S += 2 * (p * (q @ v @ q) * (1 - 2 * f) / (f * (1 - f)) ** 2 - v @ q / (f * (1 - f)))
            H += 2 * np.outer(p, p) / (f * (1 - f))
        steps = np.linalg.solve(np.block([[H, np.ones((3, 1))], [np.ones((1, 3)), np.zeros((1, 1))]]), np.append(S, 0.0))
        moved[k] = q + steps[:3]
    T = np.linalg.solve(points, moved)
    np.testing.assert_allclose(T.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(model.projection_frequencies_, np.clip(T @ P, 1e-5, 1 - 1e-5), atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_places_are_where_errors_move_new_rows(seed: int) -> None:
    """Known memberships, and frequencies with binomial errors: the likelihood of many new rows is highest at their places."""
    rng, n, m = np.random.default_rng(seed), 25, 40_000
    true = np.clip(rng.beta(0.4, 1.2, (2, m)), 1e-3, 1 - 1e-3)
    P = np.clip(rng.binomial(2 * n, true) / (2 * n), EDGE, 1 - EDGE)
    information = 2 * n / (P * (1 - P))
    sums = {"information": np.stack([information[0], np.zeros(m), information[1]])}
    points = np.array([[0.9, 0.1], [0.1, 0.9]])
    _, found = Place(points, 2, expected=True)(SimpleNamespace(state={"P": P}, sums=sums))
    for q, slope, curvature in zip(points, found.slope, found.curvature, strict=True):
        f = q @ true
        mixtures = np.linspace(0, 1, 4001)[1:-1]
        logs = [(f * np.log(g := s * P[0] + (1 - s) * P[1]) + (1 - f) * np.log(1 - g)).sum() for s in mixtures[::10]]
        share = mixtures[::10][int(np.argmax(logs))]
        contrast = np.array([1.0, -1.0])
        step = contrast @ slope / (contrast @ curvature @ contrast)
        assert q[0] + step == pytest.approx(share, abs=0.4 * abs(share - q[0]))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(2, marks=pytest.mark.exhaustive)])
def test_new_individuals_are_not_pulled_to_the_middle(seed: int, tmp_path: Path) -> None:
    Q, _, X = planted(seed, 400, 600)
    model = dfact.Admixture(3).fit(X[:80])
    corrected = np.asarray(model.transform(X[80:]), np.float64)
    dfact.save_model(model, tmp_path / "a.model")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "a.model").transform(X[80:]), corrected)
    plain = np.asarray(model.set_params(unshrink=False).transform(X[80:]), np.float64)
    assert rmse(corrected, Q[80:]) < 0.9 * rmse(plain, Q[80:])
    assert plain.max(axis=1).mean() < corrected.max(axis=1).mean() <= Q[80:].max(axis=1).mean() + 0.02


def test_one_population_is_projected_on_its_frequencies() -> None:
    _, _, X = planted(3, 50, 20)
    model = dfact.Admixture(1).fit(X)
    np.testing.assert_array_equal(model.projection_frequencies_, model.allele_frequencies_)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_correction_from_few_people_and_rare_alleles_does_not_harm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.beta(0.2, 3, 2_000)
    P = rng.beta(np.maximum(60 * base, 1e-3), np.maximum(60 * (1 - base), 1e-3), (3, 2_000))
    Q = rng.dirichlet([0.3] * 3, 130)
    X = rng.binomial(2, np.clip(Q @ P, 0, 1)).astype(float)
    X = X[:, X[:30].std(axis=0) > 0]
    model = dfact.Admixture(3, random_state=0, max_iter=300).fit(X[:30])
    errors = []
    for unshrink in (True, False):
        found = np.asarray(model.set_params(unshrink=unshrink).transform(X[30:]), np.float64)
        errors.append(min(rmse(found[:, list(order)], Q[30:]) for order in permutations(range(3))))
    assert errors[0] < 1.03 * errors[1]
