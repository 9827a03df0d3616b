"""A fitted expectile matrix factorization on disk, and as text."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import dfact
from dfact.models.expectile.presenter import component_norms
from dfact.report.presenters.base import items_plot, model_text, rows_text
from tests.models.test_persistence import assert_same


def skewed(seed: int, n: int = 90, m: int = 30, k: int = 2) -> np.ndarray:
    """A planted matrix with χ² noise, half of it missing."""
    rng = np.random.default_rng(seed)
    M = rng.random((n, k)) @ rng.random((k, m)) + 0.1 * rng.chisquare(3, (n, m))
    return np.where(rng.random((n, m)) < 0.5, M, np.nan)


@pytest.mark.parametrize("stored", [False, True])
def test_round_trip(stored: bool, tmp_path: Path) -> None:
    M = skewed(0)
    X = dfact.import_array(M, tmp_path / "a.zarr", row_labels=[f"r{i}" for i in range(len(M))]) if stored else M
    model = dfact.ExpectileMF(2, tau=0.2, ridge=0.1).fit(X)
    dfact.save_model(model, tmp_path / "a.model")
    loaded = dfact.load_model(tmp_path / "a.model")
    assert_same(model, loaded)
    assert loaded.get_params() == model.get_params()
    assert isinstance(loaded.row_factors_, zarr.Array) is stored
    np.testing.assert_array_equal(np.asarray(loaded.transform(X)), np.asarray(model.transform(X)))
    rows, columns = np.random.default_rng(1).integers(0, (90, 30), (50, 2)).T
    np.testing.assert_array_equal(loaded.predict_entries(rows, columns), model.predict_entries(rows, columns))


def test_round_trip_of_measurements(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    A = rng.standard_normal((60, 6, 5))
    model = dfact.ExpectileMF(1).fit_measurements(A, np.einsum("pij,i,j->p", A, np.arange(6.0), np.ones(5)), (6, 5))
    dfact.save_model(model, tmp_path / "b.model")
    assert_same(model, dfact.load_model(tmp_path / "b.model"))


@pytest.mark.parametrize("seed", range(3))
def test_norms_are_those_of_the_components(seed: int) -> None:
    model = dfact.ExpectileMF(2, ridge=0.1).fit(skewed(seed))
    expected = [np.linalg.norm(np.outer(model.row_factors_[:, a], model.column_factors_[:, a])) for a in range(2)]
    np.testing.assert_allclose(component_norms(model), expected)


def test_text_and_plot() -> None:
    model = dfact.ExpectileMF(2, tau=0.1, ridge=0.1).fit(sp.csr_array(np.nan_to_num(skewed(0))))
    text = model_text(model, top=1)
    assert "ExpectileMF, 2 components of 90 rows × 30 columns" in text
    assert "expectiles at tau 0.1, ridge 0.1" in text
    assert f"converged after {model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}" in text
    largest = np.abs(model.column_factors_[:, 1]).argmax()
    assert f"F2: norm {component_norms(model).iloc[1]:.4g}\n  {largest}  {model.column_factors_[largest, 1]:.2f}" in text
    assert rows_text(model, 7) == "2 components of 7 rows"
    assert items_plot(model).axes[0].get_ylabel() == "item"
