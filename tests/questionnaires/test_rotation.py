"""Oblimin: optimality, planted structure, invariances, and the rotated factors of GPArotation."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ortho_group

from dfact.questionnaires.minres import minres
from dfact.questionnaires.rotation import oblimin, ordered, promax, promax_spss, varimax
from tests.questionnaires import bfi, factors, oracle, psychometrics

Array = NDArray[Any]


def quartimin(pattern: Array) -> float:
    """¼ Σ_{r≠s} Σ_j λ_jr² λ_js², term by term."""
    k = pattern.shape[1]
    return sum(float((pattern[:, r] ** 2 * pattern[:, s] ** 2).sum()) for r in range(k) for s in range(k) if r != s) / 4


def mixed(seed: int) -> tuple[Array, Array, Array]:
    """Orthogonally mixed loadings of a simple structure, the structure, and the correlations of its factors."""
    rng = np.random.default_rng(seed)
    simple = np.kron(np.eye(3), np.ones((5, 1))) * rng.uniform(0.4, 0.9, (15, 1))
    Phi = 0.7 * np.eye(3) + 0.3
    return simple @ np.linalg.cholesky(Phi) @ ortho_group.rvs(3, random_state=seed), simple, Phi


@pytest.mark.parametrize("kaiser", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_simple_structure_is_found(seed: int, kaiser: bool) -> None:
    loadings, simple, Phi = mixed(seed)
    found = oblimin(loadings, kaiser=kaiser)
    assert found.criterion == pytest.approx(0, abs=1e-12)
    best = np.abs(found.pattern.T @ simple).argmax(axis=0)
    sign = np.sign(found.pattern[:, best].sum(axis=0))
    np.testing.assert_allclose(found.pattern[:, best] * sign, simple, atol=1e-6)
    np.testing.assert_allclose(found.correlations[np.ix_(best, best)] * np.outer(sign, sign), Phi, atol=1e-6)


@pytest.mark.parametrize("kappa", [2.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_promax_of_spss_is_its_published_algebra(seed: int, kappa: float) -> None:
    """The steps of SPSS's manual of algorithms for FACTOR, with its symbols."""
    loadings = mixed(seed)[0] + 0.1 * np.random.default_rng(seed).normal(size=(15, 3))
    varied, _ = varimax(loadings)
    lengths = np.linalg.norm(varied, axis=1, keepdims=True)
    P = np.abs(varied / lengths) ** (kappa + 1) * lengths / varied
    L = np.linalg.inv(varied.T @ varied) @ varied.T @ P
    Q = L @ np.diag(1 / np.sqrt(np.diag(L.T @ L)))
    C = np.diag(1 / np.sqrt(np.diag(np.linalg.inv(Q.T @ Q))))
    pattern, Phi = promax_spss(loadings, kappa)
    np.testing.assert_allclose(pattern, varied @ Q @ np.linalg.inv(C), atol=1e-10)
    np.testing.assert_allclose(Phi, C @ np.linalg.inv(Q.T @ Q) @ C, atol=1e-10)
    np.testing.assert_allclose(pattern @ Phi @ pattern.T, loadings @ loadings.T, atol=1e-10)
    assert np.abs(promax(loadings, kappa)[1] - Phi).max() > 1e-3


def test_promax_is_that_of_spss_or_of_psych() -> None:
    """Output of SPSS 27 for six variables and three factors ("case_1a" of Grieder & Steiner 2022), whose varimax stops at about 1e-5."""
    extracted = [[0.495859, 0.309188, 0.0916], [0.534238, 0.212007, 0.214533], [0.607813, -0.404491, 0.081358]]
    extracted += [[0.509885, -0.262838, 0.006043], [0.569392, 0.076858, -0.221802], [0.519125, 0.133943, -0.166188]]
    of_spss = [[-0.08877, 0.523232, 0.143764], [0.086831, 0.609511, -0.059281], [0.747326, 0.008836, -0.028664]]
    of_spss += [[0.516239, -0.008469, 0.094641], [0.070718, 0.000149, 0.570449], [0.008609, 0.091584, 0.486088]]
    correlations = [0.494774, 0.604407, 0.724074]  # of factors 1 and 2, 1 and 3, 2 and 3
    gaps = []
    for rotate in (promax_spss, promax):
        pattern, Phi = rotate(np.array(extracted))
        order = np.abs(pattern).argmax(axis=0).argsort()[[1, 0, 2]]  # SPSS has items 3, 2 and 5 first
        pattern, Phi = pattern[:, order], Phi[np.ix_(order, order)]
        sign = np.sign(pattern.sum(axis=0))
        gaps.append(
            [np.abs(pattern * sign - of_spss).max(), np.abs((Phi * np.outer(sign, sign))[[0, 0, 1], [1, 2, 2]] - correlations).max()]
        )
    assert max(gaps[0]) < 5e-5
    assert min(gaps[1]) > 0.01


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_common_part_is_kept_at_a_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loadings = mixed(seed)[0] + 0.1 * rng.normal(size=(15, 3))
    found = oblimin(loadings)
    np.testing.assert_allclose(found.pattern @ found.correlations @ found.pattern.T, loadings @ loadings.T, atol=1e-10)
    np.testing.assert_allclose(found.correlations.diagonal(), 1, atol=1e-12)
    assert found.criterion == pytest.approx(quartimin(found.pattern))
    T = np.linalg.lstsq(found.pattern, loadings, rcond=None)[0].T  # loadings = ΛTᵀ
    for _ in range(20):
        near = T + 1e-3 * rng.normal(size=T.shape)
        near /= np.linalg.norm(near, axis=0)
        assert quartimin(np.linalg.solve(near, loadings.T).T) >= found.criterion - 1e-12


def test_the_minimum_does_not_depend_on_the_starts() -> None:
    loadings = mixed(3)[0] + 0.1 * np.random.default_rng(3).normal(size=(15, 3))
    values = [oblimin(loadings @ ortho_group.rvs(3, random_state=seed), seed=seed).criterion for seed in range(4)]
    assert values == pytest.approx([oblimin(loadings).criterion] * 4, rel=1e-9)
    np.testing.assert_array_equal(oblimin(loadings).pattern, oblimin(loadings).pattern)


def test_one_factor_and_items_without_communality_are_kept() -> None:
    alone = oblimin(np.array([[0.5], [0.7]]))
    np.testing.assert_array_equal(alone.pattern, [[0.5], [0.7]])
    np.testing.assert_array_equal(alone.correlations, [[1.0]])
    loadings = mixed(0)[0]
    loadings[4] = 0
    np.testing.assert_array_equal(oblimin(loadings, kaiser=True).pattern[4], 0)


@psychometrics
@pytest.mark.parametrize(("correlation", "criteria"), [("pearson", (0.206568, 1.419051)), ("polychoric", (0.273952, 1.404549))])
def test_factors_of_gparotation(correlation: str, criteria: tuple[float, float]) -> None:
    R = bfi().corr().to_numpy() if correlation == "pearson" else oracle("polychoric_bfi.csv")
    extraction = minres(R, 5, tol=1e-9)
    for kaiser, criterion in zip((False, True), criteria, strict=True):
        found, name = oblimin(extraction.loadings, kaiser=kaiser), "oblimin_kaiser" if kaiser else "oblimin"
        assert found.criterion == pytest.approx(criterion, abs=1e-6)
        pattern, Phi = ordered(found.pattern, found.correlations)
        np.testing.assert_allclose(pattern, factors("loadings_bfi.csv", correlation, name), atol=1e-6)
        np.testing.assert_allclose(Phi, factors("factor_correlations_bfi.csv", correlation, name), atol=1e-6)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("seed", range(2))
def test_varimax_leaves_the_saddle_of_equal_factors(k: int, seed: int) -> None:
    """Unrotated loadings of clear factors of equal strength are a saddle, as their correlations have equal eigenvalues."""
    simple = np.kron(np.eye(k), np.full((6, 1), 0.7))
    general = np.full((k, k), 0.2) + 0.8 * np.eye(k)
    values, vectors = np.linalg.eigh(simple @ general @ simple.T)
    unrotated = vectors[:, -k:] * np.sqrt(values[-k:])
    rotated = varimax(unrotated)[0]
    again = varimax(unrotated @ np.linalg.qr(np.random.default_rng(seed).normal(size=(k, k)))[0])[0]

    def criterion(loadings: NDArray[np.float64]) -> float:
        scaled = loadings**2 / (loadings**2).sum(axis=1, keepdims=True)
        return float(scaled.var(axis=0).sum())

    assert criterion(rotated) == pytest.approx(criterion(again), rel=1e-9)
    assert np.sort((rotated**2).sum(axis=0)) == pytest.approx(np.full(k, (rotated**2).sum() / k))
