"""Kernels of principal components against plain NumPy."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from dfact.kernels.principal import (
    column_moments,
    count_observed,
    expected_scores,
    mark_observed,
    posterior_rows,
    regress_columns,
    standardize,
)

Array = NDArray[Any]


def packed(S: Array) -> Array:
    first, second = np.tril_indices(S.shape[-1])
    return np.ascontiguousarray(S[..., first, second])


def entries(seed: int, dtype: str) -> tuple[Array, float, Array]:
    """Raw entries, their missing code, and whether each is observed."""
    rng = np.random.default_rng(seed)
    if dtype == "uint8":
        raw = rng.integers(0, 4, (60, 7)).astype(np.uint8)
        return raw, 3.0, raw != 3
    raw = rng.normal(5, 2, (60, 7)).astype(dtype)
    raw[rng.random(raw.shape) < 0.3] = np.nan
    return raw, np.nan, ~np.isnan(raw)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_entries_are_counted_centred_and_scaled(dtype: str, seed: int) -> None:
    raw, missing, observed = entries(seed, dtype)
    shift, factor = np.linspace(0, 6, 7), np.linspace(0.5, 2, 7)
    moments, out, marks, counts = np.zeros((3, 7)), np.empty((60, 7)), np.empty((60, 7)), np.empty(60, np.int64)
    column_moments(raw, missing, shift, moments)
    standardize(raw, missing, shift, factor, out)
    mark_observed(raw, missing, marks)
    count_observed(raw, missing, counts)
    centred = np.where(observed, raw.astype(float) - shift, 0)
    np.testing.assert_allclose(moments, [observed.sum(axis=0), centred.sum(axis=0), (centred**2).sum(axis=0)], rtol=1e-12)
    np.testing.assert_allclose(out, centred * factor, rtol=1e-12)
    np.testing.assert_array_equal(marks, observed)
    np.testing.assert_array_equal(counts, observed.sum(axis=1))


@pytest.mark.parametrize("seed", range(3))
def test_posteriors_are_those_of_the_normal_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m, k, noise = 30, 9, 3, 0.4
    W, a, X, observed = rng.normal(size=(k, m)), rng.normal(size=m), rng.normal(size=(n, m)), rng.random((n, m)) < 0.6
    observed[0] = False
    grams = np.einsum("rj,sj,ij->irs", W, W, observed)
    centred = np.where(observed, X - a, 0)
    moments, likelihoods = np.empty((n, (k + 1) * (k + 2) // 2)), np.empty(n)
    posterior_rows(packed(grams), centred @ W.T, (centred**2).sum(axis=1), observed.sum(axis=1), noise, moments, likelihoods)
    assert not moments[0].any()
    assert likelihoods[0] == 0
    for i in range(1, n):
        o = observed[i]
        S = W[:, o].T @ W[:, o] + noise * np.eye(o.sum())
        z = np.append(W[:, o] @ np.linalg.solve(S, (X[i] - a)[o]), 1)
        E = np.outer(z, z)
        E[:k, :k] += np.eye(k) - W[:, o] @ np.linalg.solve(S, W[:, o].T)
        np.testing.assert_allclose(moments[i], packed(E), atol=1e-10)
        assert likelihoods[i] == pytest.approx(multivariate_normal(a[o], S).logpdf(X[i, o]))


@pytest.mark.parametrize("seed", range(3))
def test_columns_solve_their_normal_equations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(12, 4, 6))
    S, cross, out = A @ A.transpose(0, 2, 1), rng.normal(size=(4, 12)), np.empty((4, 12))
    regress_columns(np.ascontiguousarray(packed(S).T), cross, out)
    np.testing.assert_allclose(out, np.linalg.solve(S, cross.T[:, :, None])[:, :, 0].T, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_rows_completed_by_their_expectation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m, k, noise = 20, 10, 3, 0.3
    U, weights, X, observed = (
        np.linalg.qr(rng.normal(size=(m, k)))[0].T,
        np.array([3.0, 1, 0]),
        rng.normal(size=(n, m)),
        rng.random((n, m)) < 0.6,
    )
    grams, products, out = np.einsum("rj,sj,ij->irs", U, U, observed), np.where(observed, X, 0) @ U.T, np.empty((n, k))
    expected_scores(packed(grams), products, weights, noise, out)
    S = (U.T * weights**2) @ U + noise * np.eye(m)
    for x, o, found in zip(X, observed, out, strict=True):
        completed = np.where(o, x, S[:, o] @ np.linalg.solve(S[np.ix_(o, o)], x[o]))
        np.testing.assert_allclose(found, U @ completed, atol=1e-10)
