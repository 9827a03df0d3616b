"""Covariances and precisions of the columns by a PCA."""

import numpy as np
import pytest
from sklearn import decomposition

import dfact
from dfact.errors import DataError


@pytest.mark.parametrize("seed", [0, 1])
def test_covariances_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 3)) @ rng.normal(size=(3, 9)) + rng.normal(size=(120, 9))
    ours, theirs = dfact.PCA(3).fit(X), decomposition.PCA(3).fit(X)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("scale", [None, "standard"])
@pytest.mark.parametrize("whiten", [False, True])
def test_covariances_have_the_units_of_the_columns(scale: str | None, whiten: bool) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 5)) * [1, 2, 5, 10, 0.1] @ rng.normal(size=(5, 5))
    model = dfact.PCA(5, scale=scale, whiten=whiten).fit(X)
    np.testing.assert_allclose(model.get_covariance(), np.cov(X.T), rtol=1e-7, atol=1e-9)
    fewer = dfact.PCA(2, scale=scale, whiten=whiten).fit(X)
    np.testing.assert_allclose(fewer.get_covariance() @ fewer.get_precision(), np.eye(5), atol=1e-7)


def test_covariances_without_noise_have_no_inverse() -> None:
    X = np.random.default_rng(3).normal(size=(50, 4))
    with pytest.raises(DataError, match=r"the covariances of 4 columns have no inverse.*fit fewer"):
        dfact.PCA(4).fit(X).get_precision()
