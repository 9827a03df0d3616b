"""Sums that few rows carry, or that one row dominates, stay at the site."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.confounders import PlausibleRange
from dfact.errors import FederationError
from dfact.sites.carriers import Carriers, carriers_of_entries, carriers_of_weights
from dfact.sites.in_process import InProcessSites
from dfact.sites.policy import Policy, words_that_leave

Array = np.ndarray[Any, Any]
FEW = "few rows carry the factors"


def answers(n: int = 400, m: int = 40) -> Array:
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(n, 2)) @ rng.normal(size=(2, m)) * 0.5
    return np.clip(np.rint(3 + latent + rng.normal(size=(n, m))), 0, 6).astype(np.float32)


def with_one_other_person(M: Array) -> Array:
    """One row whose answers are extreme in a pattern of its own. None of its answers is rare."""
    M = M.copy()
    M[123] = np.where(np.random.default_rng(1).random(M.shape[1]) < 0.5, 12, 0)
    return M


def refusal(data: Any, model: Any, policy: Policy) -> str:
    with InProcessSites({"north": data}, policy=policy) as sites:
        try:
            sites.fit(model)
        except FederationError as error:
            return str(error)
    return ""


MODELS: dict[str, Any] = {
    "nmf": lambda: dfact.NMF(4, max_iter=40, random_state=0),
    "divergence": lambda: dfact.NMF(4, loss="kullback-leibler", max_iter=40, random_state=0),
    "pca": lambda: dfact.PCA(4),
    "emf": lambda: dfact.ExpectileMF(4, ridge=0.1, max_iter=20, random_state=0),
    "cp": lambda: dfact.ElasticCP(4, lam=0.1, n_init=1, max_iter=20, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_factors_of_one_row_stay(name: str) -> None:
    policy = Policy(extremes=True, max_share=0.3, min_rows=5, max_numbers=1e9)
    assert refusal(answers(), MODELS[name](), policy) == ""
    assert FEW in refusal(with_one_other_person(answers()), MODELS[name](), policy)


def test_effective_rows_and_shares() -> None:
    weights = np.array([[1.0] * 10, [0.0] * 9 + [3.0], [0.0] * 10, [-1.0] * 5 + [np.nan] * 5])
    parts = Carriers.of(weights[:, :4])
    parts.add(Carriers.of(weights[:, 4:]))
    np.testing.assert_allclose(parts.effective, [10, 1, np.inf, 5])
    np.testing.assert_allclose(parts.shares, [0.1, 1, 0, 0.2])


def test_carriers_of_entries_are_those_of_a_plain_computation() -> None:
    M = answers(90, 7)
    M[3, 2] = np.nan
    found = carriers_of_entries(as_dataset(M))
    centred = M - np.nanmean(M, axis=0, dtype=np.float64)
    plain = [Carriers.of((M - np.nanmin(M, axis=0)).T), Carriers.of((M - np.nanmax(M, axis=0)).T)]
    np.testing.assert_allclose(found.effective[:14], np.concatenate([each.effective for each in plain]), rtol=1e-6)
    np.testing.assert_allclose(found.shares, np.concatenate([each.shares for each in (*plain, Carriers.of(centred.T))]), rtol=1e-6)


def test_an_item_that_one_person_answered_differently_is_refused_before_anything_leaves() -> None:
    for common, rare in ((0, 1), (3, 0), (2, 3)):
        M = answers()
        M[:, 5] = common
        M[77, 5] = rare
        with pytest.raises(FederationError) as error:
            Policy().check_data(as_dataset(M))
        assert words_that_leave(error.value).startswith("a column is the same for all but a few rows")
        assert "'5' has 1.0 effective rows" in str(error.value) or "100.0% of the squares" in str(error.value)


@pytest.mark.parametrize("usual", [0.0, 365.0, 30.0])
def test_a_confounder_that_one_person_has_is_refused(usual: float) -> None:
    """Its products with the answers, and those of 1 − x, are the answers of that person."""
    days = np.full(400, usual)
    days[77] = 200.5  # no whole number, which would be a level
    data = replace(as_dataset(answers(), pd.DataFrame({"days": days})), confounder_ranges={"days": PlausibleRange(0.0, 365.0)})
    with pytest.raises(FederationError) as error:
        Policy().check_data(data)
    assert words_that_leave(error.value).startswith("few rows decide a continuous confounder")


def test_carriers_of_weights_are_those_of_weights_less_each_of_their_values() -> None:
    weights = np.random.default_rng(0).choice([1.0, 1.5, 4.0], 200, p=[0.5, 0.4, 0.1])
    found = carriers_of_weights(weights)
    plain = Carriers.of(np.stack([weights - value for value in np.unique(weights)]))
    np.testing.assert_allclose(found.effective, plain.effective, rtol=1e-9)
    np.testing.assert_allclose(found.shares, plain.shares, rtol=1e-9)
    assert carriers_of_weights(np.full(60, 0.3)).effective == np.inf
