"""Growth of grades of membership: batches against the complete fit, and models that do not grow."""

from typing import Any

import numpy as np
import pytest
from scipy.special import xlog1py, xlogy

import dfact
from dfact.errors import DataError


def test_a_grade_of_membership_by_likelihood_grows() -> None:
    rng = np.random.default_rng(10)
    Pi, Theta = rng.dirichlet(np.full(3, 0.4), 600), 4 * rng.beta(0.5, 0.5, (3, 30))
    X = rng.binomial(4, np.clip(Pi @ Theta / 4, 0, 1)).astype(float)
    X[rng.random(X.shape) < 0.05] = np.nan
    settings = {"likelihood": "binomial", "max_response": 4, "random_state": 0}
    complete = dfact.GradeOfMembership(3, **settings).fit(X)
    grown = dfact.GradeOfMembership(3, **settings)
    for rows in np.split(np.arange(600), 3):
        grown.partial_fit(X[rows])

    def reached(model: Any) -> float:
        F, g = np.asarray(model.transform(X), np.float64) @ np.clip(model.components_ / 4, 1e-5, 1 - 1e-5), np.nan_to_num(X)
        return float((~np.isnan(X) * (xlogy(g, F) + xlog1py(4 - g, -F))).sum())

    assert reached(grown) >= reached(complete) * 1.002
    assert not grown.growth_.gain.worth_a_fit
    R, held = np.nan_to_num(X), grown.memberships_
    cross, d = R.T @ held, R.sum(axis=0)
    expected = ((cross**2).sum() - ((held.T @ (R @ d)) ** 2).sum() / (d @ d)) / (d @ d)
    assert grown.modularity_ == pytest.approx(expected)
    assert grown.highly_pure_share_ == pytest.approx((held.max(axis=1) >= 0.9).mean())
    np.testing.assert_allclose(grown.item_parameters_, complete.item_parameters_, atol=0.5)


def test_a_spectral_grade_of_membership_does_not_grow() -> None:
    X = np.random.default_rng(11).integers(0, 5, (100, 8))
    model = dfact.GradeOfMembership(2).fit(X)
    assert not hasattr(model, "partial_fit")
    with pytest.raises(DataError, match=r"singular vectors of all rows, .* expected likelihood='binomial' to add rows"):
        model.prepare_update(X)
