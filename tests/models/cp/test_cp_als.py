"""CPALS: its objective, least squares, recovery, missing entries, inputs, storage, report, invalid input."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from distributed import Client

import dfact
from dfact.models.cp.penalty_selection import select_penalty
from dfact.models.cp.problem import khatri_rao
from dfact.report.presenters.base import items_plot, model_text, rows_text
from dfact.selection import core_consistency
from tests.conftest import REAL_DATA
from tests.models.cp.test_elastic_cp import Array, model_of, planted, score
from tests.suites.estimator import EstimatorSuite


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("shape", [(30, 12), (25, 12, 9), (15, 8, 6, 5)])
def test_the_objective_is_the_documented_one_and_falls(shape: tuple[int, ...], init: str, missing: float) -> None:
    Z = planted(shape, 2, seed=len(shape), missing=missing)
    model = dfact.CPALS(2, init=init, random_state=0, max_iter=60).fit(Z)
    history = model.objective_history_
    assert len(history) == model.n_iter_ + 2
    assert history[-1] == pytest.approx(0.5 * np.nansum((Z - model_of(model.factors_)) ** 2), rel=1e-9)
    # The first iteration is left out: it fills in no missing entries.
    assert (np.diff(history[1:]) <= 1e-9 * history[0]).all()
    assert model.explained_share_ == pytest.approx(1 - 2 * history[-1] / np.nansum(Z**2))
    assert (np.diff(model.weights_) <= 0).all()
    assert model.components_.shape == (2, *shape[1:])
    np.testing.assert_allclose(model.reconstruct(), model_of(model.factors_))


@pytest.mark.parametrize("seed", range(3))
def test_it_is_least_squares_in_every_mode(seed: int) -> None:
    Z = planted((20, 12, 8), 3, seed, missing=0.1)
    model = dfact.CPALS(3, tol=1e-13, max_iter=3000, random_state=seed).fit(Z)
    error = np.nan_to_num(model_of(model.factors_) - Z)
    for n in range(3):
        others = [A for m, A in enumerate(model.factors_) if m != n]
        H = np.stack([model_of([A[:, [r]] for A in others]).ravel() for r in range(3)])
        gradient = np.moveaxis(error, n, 0).reshape(Z.shape[n], -1) @ H.T
        assert np.abs(gradient).max() < 1e-4 * np.abs(np.nan_to_num(np.moveaxis(Z, n, 0)).reshape(Z.shape[n], -1) @ H.T).max()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("slow", [False, True])
def test_a_fit_stops_near_its_limit(seed: int, slow: bool) -> None:
    rng = np.random.default_rng(seed)
    draw = rng.random if slow else rng.standard_normal  # vectors of all positive entries are nearly collinear
    Z = model_of([draw((size, 4)) for size in (40, 20, 10)]) + 0.1 * rng.standard_normal((40, 20, 10))
    Z[rng.random(Z.shape) < 0.1 * slow] = np.nan
    tols = (1e-3, 1e-5, 1e-10)
    *fits, end = (dfact.CPALS(4, tol=tol, max_iter=3000, random_state=seed).fit(Z) for tol in tols)
    for tol, found in zip(tols[:-1], fits, strict=True):
        assert found.converged_
        assert found.remaining_ < tol
        assert found.objective_history_[-1] < (1 + 2 * tol) * end.objective_history_[-1]
        assert not slow or found.n_iter_ > 20


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(2))
def test_planted_factors_are_found(seed: int, missing: float) -> None:
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, 3)) for size in (30, 20, 10)]
    Z = model_of(factors)
    Z[rng.random(Z.shape) < missing] = np.nan
    model = dfact.CPALS(3, tol=1e-10, random_state=seed).fit(Z)
    assert score(factors, model.factors_) > 0.99
    assert model.explained_share_ > 0.999
    assert core_consistency(model, Z) > 99


@pytest.mark.skipif(not (REAL_DATA / "tensors" / "amino.npz").exists(), reason="the real tensors are not next to the project")
def test_amino_acids() -> None:
    X = np.load(REAL_DATA / "tensors" / "amino.npz")["X"]
    shares = [dfact.CPALS(rank, tol=1e-8, max_iter=2000, random_state=0).fit(X).explained_share_ for rank in (2, 3)]
    np.testing.assert_allclose(shares, [0.868, 0.9994], atol=1e-3)


def test_without_penalties_it_reaches_what_elastic_cp_does() -> None:
    Z = planted((30, 14, 9), 3, seed=5, missing=0.1)
    als = dfact.CPALS(3, tol=1e-12, max_iter=2000, random_state=0).fit(Z)
    free = dfact.ElasticCP(3, lam=0.0, tol=1e-12, max_iter=5000, init="svd", random_state=0).fit(Z)
    assert als.objective_history_[-1] == pytest.approx(free.objective_history_[-1], rel=1e-5)


def test_transform_and_tables(tmp_path: Path, client: Client) -> None:
    Z = planted((30, 12, 7), 2, seed=4, missing=0.2)
    model = dfact.CPALS(2, random_state=0).fit(Z)
    np.testing.assert_allclose(model.transform(Z), model.factors_[0], atol=1e-12)
    np.testing.assert_allclose(model.transform(Z[3:9]), model.factors_[0][3:9], atol=1e-12)
    np.testing.assert_allclose(model.inverse_transform(model.factors_[0]), model.reconstruct())
    np.testing.assert_allclose(model.fit_transform(Z), model.factors_[0])
    np.testing.assert_allclose(np.square(model.loadings_.iloc[:12]).sum(), 1)
    assert list(model.loadings_) == ["F1", "F2"]
    dataset = dfact.import_array(Z, tmp_path / "z.zarr")
    stored = dfact.CPALS(2, random_state=0, executor=client).fit(dataset)
    np.testing.assert_array_equal(stored.components_, model.components_)
    np.testing.assert_array_equal(stored.factors_[0], model.factors_[0])


@pytest.mark.further
class TestEstimator(EstimatorSuite):
    model = dfact.CPALS
    parameters: ClassVar = {"n_components": 2, "init": "random", "random_state": 0, "max_iter": 5}
    sizes: ClassVar = {"block_entries": 1 << 9, "chunk_entries": 1 << 11, "partition_entries": 1 << 12}
    codes = False
    stores_rows = False
    tolerance = 1e-5
    derived = ("loadings_",)

    def data(self) -> Array:
        return planted((300, 12, 7), 2, seed=4, missing=0.2).astype(np.float32)


def test_products_of_loadings_lie_by_rows_however_the_factors_do() -> None:
    """So that BLAS sums in one order, here and on a worker."""
    B, C = np.random.default_rng(0).standard_normal((2, 7, 3))
    for factors in ([B.T, C.T], [B.T.copy(), C.T.copy()], [B.T.copy(), C.T]):
        for H, expected in ((khatri_rao(factors), [np.kron(b, c) for b, c in zip(B.T, C.T, strict=True)]), (khatri_rao(factors[:1]), B.T)):
            assert H.flags.c_contiguous
            np.testing.assert_allclose(H, expected)


def test_model_is_saved_and_reported(tmp_path: Path) -> None:
    Z = planted((20, 8, 5), 2, seed=1)
    heard: list[Any] = []
    model = dfact.CPALS(2, random_state=0, callbacks=[heard.append]).fit(Z)
    assert [iteration.number for iteration in heard] == list(range(1, model.n_iter_ + 1))
    dfact.save_model(model, tmp_path / "als.model")
    loaded = dfact.load_model(tmp_path / "als.model")
    np.testing.assert_array_equal(loaded.transform(Z), model.transform(Z))
    assert loaded.n_iter_ == model.n_iter_
    text = model_text(model, top=2)
    assert "CPALS, 2 of 2 components left, of a tensor 20×8×5" in text
    assert f"{model.n_iter_} iterations, objective {model.objective_history_[-1]:.6g}, estimated within " in text
    assert "penalty" not in text
    assert rows_text(model, 7) == "weights of 7 slices in 2 components"
    assert len(items_plot(model).axes) == 3


def test_invalid_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = planted((12, 6, 5), 2, seed=0)
    for settings, message in (
        ({"n_components": 0}, "n_components is 0, expected an integer of at least 1"),
        ({"init": "nvecs"}, "init is 'nvecs', expected 'svd' or 'random'"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
    ):
        with pytest.raises(dfact.ParameterError, match=message):
            dfact.CPALS(**settings).fit(Z)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="infinity"):
        dfact.CPALS(2).fit(np.where(Z > 2, np.inf, Z))
    with pytest.raises(dfact.MemoryPlanError):
        dfact.CPALS(2, memory_limit=1000).fit(Z)
    with pytest.raises(dfact.DataError, match="the slices of X are 6×4"):
        dfact.CPALS(2, random_state=0).fit(Z).transform(Z[:, :, :4])
    with pytest.raises(dfact.ParameterError, match="model is a CPALS, expected an ElasticCP"):
        select_penalty(dfact.CPALS(2), Z)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tensorly.decomposition", None)
    with pytest.raises(dfact.DfactError, match=r"CPALS needs TensorLy, .* pip install 'dfact\[tensor\]'"):
        dfact.CPALS(2).fit(Z)


def test_a_slice_without_entries_has_factors_0() -> None:
    Z = planted((20, 8, 5), 2, seed=1)
    Z[:, 3] = np.nan
    Z[4] = np.nan
    with pytest.warns(UserWarning, match="no observed entry"):
        model = dfact.CPALS(2, random_state=0).fit(Z)
    assert not model.factors_[0][4].any()
    assert model.explained_share_ > 0.95


def test_more_components_than_singular_vectors() -> None:
    Z = planted((20, 8, 3), 2, seed=1)
    assert dfact.CPALS(5, random_state=0, max_iter=20).fit(Z).explained_share_ > 0.95
