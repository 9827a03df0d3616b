"""Fits across sites have the bits of the fit to the concatenated data, and each site keeps the factors of its own rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import dfact
from dfact.data.coerce import as_dataset
from dfact.sites.contract import read_contract, write_contract
from dfact.sites.in_process import InProcessSites
from dfact.sites.ledger import Ledger
from dfact.sites.policy import Policy
from dfact.sites.row_sets import deal_rows
from dfact.sites.sessions import CoordinatorSession, Steps
from tests.cases import further_unless
from tests.sites.conftest import NAMES, SIZES, stored_sites

OPEN = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)
MODELS: dict[str, Any] = {
    "icqf": lambda: dfact.ICQF(4, max_iter=5),
    "admm": lambda: dfact.ICQF(3, solver="admm", max_iter=5),
    "nmf": lambda: dfact.NMF(3, max_iter=5),
    "kl": lambda: dfact.NMF(3, loss="kullback-leibler", max_iter=5),
    "fa": lambda: dfact.FactorAnalysis(2, rotation=None),
    "fa, polychoric": lambda: dfact.FactorAnalysis(2, rotation=None, correlation="polychoric"),
    "emf": lambda: dfact.ExpectileMF(3, ridge=0.1, max_iter=5),
    "pca": lambda: dfact.PCA(3),
    "pca of means": lambda: dfact.PCA(3, missing="mean"),
    "admixture": lambda: dfact.Admixture(3, ploidy=3, max_iter=5, init="random", random_state=1),
    "cp": lambda: dfact.ElasticCP(3, lam=0.5, max_iter=5, random_state=0),
}

pytestmark = pytest.mark.filterwarnings(
    "ignore:the uniqueness of",
    "ignore:the correlation with the rest",
    "ignore:.*has no observed entry",
    "ignore:.* negative eigenvalues",
    "ignore:.*confounder",
)


def shared(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a model that do not belong to rows."""
    arrays = {name: value for name, value in vars(model).items() if name.endswith("_") and isinstance(value, np.ndarray)}
    return {name: value for name, value in arrays.items() if len(value) not in {0, sum(SIZES), *SIZES}}


@pytest.mark.parametrize("name", further_unless({"icqf", "emf", "admixture", "cp"}.__contains__, MODELS))
def test_a_fit_has_the_bits_of_the_concatenated_data(name: str, tmp_path: Path) -> None:
    data = stored_sites(tmp_path)
    pooled: Any = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))
    with InProcessSites(data, policy=OPEN) as sites:
        found: Any = sites.fit(MODELS[name]())
        assert sites.failures == {}
    assert shared(found).keys() == shared(pooled).keys() != set()
    np.testing.assert_array_equal(found.components_, pooled.components_)
    for key, expected in shared(pooled).items():
        np.testing.assert_array_equal(shared(found)[key], expected, key)
    assert len(found.row_factors()) == 0
    dfact.save_model(found, tmp_path / "coordinator.model")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "coordinator.model").components_, pooled.components_)
    rows = [np.asarray(sites.results[site].row_factors()) for site in NAMES]
    assert [len(part) for part in rows] == [data[site].shape[0] for site in NAMES]
    np.testing.assert_array_equal(np.concatenate(rows), np.asarray(pooled.row_factors()))


def test_the_coordinator_computes_with_one_thread_of_blas() -> None:
    with CoordinatorSession(Any, {}, Steps(), Any, 3):  # type: ignore[arg-type]  # runs no pass
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}


@pytest.mark.further
def test_models_name_the_sites_and_share_a_digest(tmp_path: Path) -> None:
    data = stored_sites(tmp_path)
    with InProcessSites(data, policy=OPEN) as sites:
        model: Any = sites.fit(dfact.NMF(3, max_iter=3))
    assert (model.sites_.names, model.sites_.rows) == (list(NAMES), list(SIZES))
    assert {each.sites_.loadings for each in sites.results.values()} == {model.sites_.loadings}
    dfact.save_model(sites.results["north"], tmp_path / "north.model")
    north: Any = dfact.load_model(tmp_path / "north.model")
    assert north.sites_.describe() == model.sites_.describe()
    assert "east (700 rows), north (190 rows), south (211 rows); digest of the loadings" in dfact.report.text(north)
    north.partial_fit(data["south"])
    assert not hasattr(north, "sites_")


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_selections_and_descriptions_have_the_same_bits(tmp_path: Path) -> None:
    data = stored_sites(tmp_path)
    whole, model = dfact.concatenate(list(data.values())), dfact.ICQF(max_iter=5, random_state=0, executor="inline")
    settings: Any = {"grid": {"n_components": [2, 3]}, "n_blocks": (3, 3), "n_folds": 3, "random_state": 3}
    logs = {name: tmp_path / f"{name}.jsonl" for name in NAMES}
    with InProcessSites(data, policy=OPEN, logs=logs) as sites:
        found = sites.select(dfact.ICQF(max_iter=5, random_state=0), **settings)
        described = sites.describe()
    blocks = [deal_rows(data[name].row_labels, Ledger(logs[name]).key, 3) for name in NAMES]
    drawn = {"groups": np.concatenate(blocks), "stratify": np.zeros(sum(SIZES))}
    expected = dfact.selection.block_cross_validate(model, whole, **settings, **drawn, in_memory=False)
    assert found.table.drop(columns="seconds").equals(expected.table.drop(columns="seconds"))
    assert described.items.equals(dfact.describe(whole, executor="inline").items)


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("name", ["icqf", "nmf", "kl", "fa"])
def test_weighted_rows_have_the_bits_of_the_concatenated_data(name: str) -> None:
    rng = np.random.default_rng(4)
    data = {
        site: as_dataset(rng.integers(0, 4, (n, 12)).astype(np.float32)).with_weights(rng.gamma(2, scale, n))
        for site, n, scale in zip(NAMES, (200, 90, 80), (1.0, 7.0, 0.3), strict=True)
    }
    pooled: Any = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(list(data.values())))
    with InProcessSites(data, policy=OPEN) as sites:
        found: Any = sites.fit(MODELS[name]())
        assert sites.failures == {}
        rows = [np.asarray(sites.results[site].row_factors()) for site in NAMES]
        np.testing.assert_array_equal(np.concatenate(rows), np.asarray(pooled.row_factors()))
        for run in (sites.describe, lambda: sites.fit(MODELS["fa, polychoric"]())):
            with pytest.raises(dfact.FederationError, match=r"weights.* do not tell how many rows"):
                run()
        unweighted: Any = sites.fit(MODELS[name](), weights=False)
        described = sites.describe(weights=False)
    np.testing.assert_array_equal(found.components_, pooled.components_)
    assert found.n_effective_ == pooled.n_effective_ < sum(each.shape[0] for each in data.values())
    whole = dfact.concatenate(list(data.values())).with_weights(None)
    np.testing.assert_array_equal(unweighted.components_, MODELS[name]().set_params(executor="inline").fit(whole).components_)
    assert described.items.equals(dfact.describe(whole, executor="inline").items)


def test_weights_that_no_site_has_are_missed() -> None:
    parts = {name: np.random.default_rng(5).integers(0, 4, (80, 12)).astype(np.float32) for name in NAMES}
    with InProcessSites(parts, policy=OPEN) as sites, pytest.raises(dfact.FederationError, match="has no weights, expected some"):
        sites.fit(dfact.NMF(2), weights=True)


@pytest.mark.further
def test_twenty_sites() -> None:
    rng = np.random.default_rng(1)
    parts = {f"site{number:02d}": rng.integers(0, 4, (60 + number, 12)).astype(np.float32) for number in range(20)}
    pooled = dfact.ICQF(2, max_iter=4, executor="inline").fit(dfact.concatenate(list(parts.values())))
    with InProcessSites(parts, policy=OPEN) as sites:
        found = sites.fit(dfact.ICQF(2, max_iter=4))
    np.testing.assert_array_equal(found.components_, pooled.components_)


def test_ranges_of_the_contract_take_the_place_of_lowest_and_highest_answers(tmp_path: Path) -> None:
    """By default a site does not state them."""
    data = {name: each.with_confounders(None) for name, each in stored_sites(tmp_path).items()}
    write_contract(data["east"], tmp_path / "contract.json")
    contract = read_contract(tmp_path / "contract.json")
    pooled = dfact.ICQF(3, max_iter=4, executor="inline").fit(dfact.concatenate(list(data.values())))
    with InProcessSites(
        data, policy=Policy(min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9), contract=contract, keep_bytes=True
    ) as sites:
        found = sites.fit(dfact.ICQF(3, max_iter=4))
        assert sites.failures == {}
    np.testing.assert_array_equal(found.components_, pooled.components_)


@pytest.mark.parametrize("name", further_unless({"nmf"}.__contains__, ["icqf", "nmf", "emf", "pca"]))
def test_booklets_of_different_sites_are_connected_by_no_row(name: str) -> None:
    """Each site gives another booklet, so that the columns are in as many parts as there are sites."""
    rng = np.random.default_rng(3)
    parts = {each: np.full((80, 6 * len(NAMES)), np.nan, np.float32) for each in NAMES}
    for i, each in enumerate(NAMES):
        parts[each][:, 6 * i : 6 * i + 6] = rng.integers(0, 4, (80, 6))
    pooled = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(list(parts.values())))
    with InProcessSites(parts, policy=OPEN) as sites:
        found: Any = sites.fit(MODELS[name]())
        assert sites.failures == {}
    assert np.abs(found.components_).max(axis=0).min() > 0
    np.testing.assert_array_equal(found.components_, pooled.components_)


def test_rows_without_answers_are_counted_without_their_labels() -> None:
    rng = np.random.default_rng(2)
    parts = {name: rng.integers(0, 4, (80, 12)).astype(np.float32) for name in NAMES}
    parts["north"][:12] = np.nan
    with (
        InProcessSites(parts, policy=Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)) as sites,
        pytest.warns(UserWarning, match="12 rows have no observed"),
    ):
        sites.fit(dfact.ICQF(2, max_iter=2))
