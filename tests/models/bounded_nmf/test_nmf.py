"""NMF: scikit-learn's objective and optima, optimality, planted factors and topics, missing entries, sparse data, weights."""

from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF

import dfact
from dfact.data.sources import sparse
from dfact.engine import passes
from dfact.kernels.divergence import descend_dense, descend_stored
from dfact.kernels.sparse_products import times, transposed_times
from dfact.report.presenters.base import model_text
from tests.cases import exhaustive_unless
from tests.conftest import CutRows, planted_answers
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
LOSSES = ("frobenius", "kullback-leibler")


def planted_counts(n: int, m: int, k: int, seed: int, mean: float = 2.0) -> tuple[Array, Array]:
    """Poisson counts (n, m) of sparse factors, and their loadings (k, m)."""
    rng = np.random.default_rng(seed)
    Q = rng.gamma(0.5, mean, (k, m))
    return rng.poisson(rng.gamma(0.5, 1.0, (n, k)) @ Q).astype(float), Q


def loss_of(M: Array, R: Array, loss: str) -> float:
    """The loss over the observed entries."""
    seen = ~np.isnan(M)
    x, r = M[seen], R[seen].astype(np.float64)
    if loss == "frobenius":
        return float(0.5 * ((x - r) ** 2).sum())
    positive = x > 0
    return float((r - x).sum() + (x[positive] * np.log(x[positive] / r[positive])).sum())


def objective(model: Any, M: Array) -> float:
    """Scikit-learn's objective of a fitted model."""
    W, Q = np.asarray(model.factors_, np.float64), model.components_.astype(np.float64)
    alphas = model.alpha_W * M.shape[1], (model.alpha_W if model.alpha_H == "same" else model.alpha_H) * M.shape[0]
    penalties = [
        alpha * (model.l1_ratio * X.sum() + 0.5 * (1 - model.l1_ratio) * (X**2).sum()) for alpha, X in zip(alphas, (W, Q), strict=True)
    ]
    return loss_of(M, W @ Q, model.loss) + sum(penalties)


def peer_objective(M: Array, k: int, loss: str, **settings: Any) -> float:
    """Scikit-learn's lowest objective."""
    solver = {"solver": "mu", "beta_loss": loss} if loss == "kullback-leibler" else {}
    peer = NMF(k, **{"max_iter": 1000, "tol": 1e-6, **solver, **settings})
    W, Q = peer.fit_transform(M), peer.components_
    found = dfact.NMF(k, loss=loss, alpha_W=peer.alpha_W, alpha_H=peer.alpha_H, l1_ratio=peer.l1_ratio)
    found.factors_, found.components_ = W, Q
    return objective(found, M)


DATA = {
    "digits": lambda: (load_digits().data[:400][:, load_digits().data[:400].sum(axis=0) > 0], 6),
    "counts": lambda: (planted_counts(300, 40, 4, 1)[0], 4),
    "sparse counts": lambda: (planted_counts(600, 80, 4, 2, 0.1)[0], 4),
}


@pytest.mark.further
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "loss"), exhaustive_unless({("digits", "frobenius"), ("counts", "kullback-leibler")}.__contains__, product(DATA, LOSSES))
)
def test_the_best_of_some_starts_is_as_low_as_the_best_of_scikit_learn(name: str, loss: str) -> None:
    M, k = DATA[name]()
    starts = [{"init": "nndsvd"}, *({"init": "random", "random_state": seed} for seed in range(3))]
    ours = min(dfact.NMF(k, loss=loss, max_iter=1000, tol=1e-6, **start).fit(M).objective_history_[-1] for start in starts)
    peers = min(
        peer_objective(M, k, loss, **({"init": "nndsvda"} | start if start["init"] == "random" else {"init": "nndsvda"}))
        for start in starts
    )
    assert ours <= 1.001 * peers


@pytest.mark.parametrize("l1_ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_penalties_are_those_of_scikit_learn(loss: str, l1_ratio: float) -> None:
    M = planted_counts(120, 20, 3, 3)[0] + 0.1
    settings: dict[str, Any] = {"alpha_W": 0.02, "alpha_H": 0.01, "l1_ratio": l1_ratio}
    model = dfact.NMF(3, loss=loss, max_iter=3000, tol=1e-9, **settings).fit(M)
    assert model.objective_history_[-1] == pytest.approx(objective(model, M), rel=1e-9)
    expected = peer_objective(M, 3, loss, init="nndsvda", max_iter=3000, **settings)
    # Multiplicative updates with a penalty are not a descent to the exact optimum: ours may be lower.
    assert model.objective_history_[-1] <= 1.0005 * expected
    assert model.objective_history_[-1] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_solution_satisfies_the_optimality_conditions(loss: str, missing: float) -> None:
    """Karush, Kuhn, Tucker: the gradient is 0 where a factor is positive, and not negative where it is 0."""
    M = planted_counts(150, 20, 3, 5)[0]
    M[np.random.default_rng(0).random(M.shape) < missing] = np.nan
    model = dfact.NMF(3, loss=loss, alpha_W=0.01, l1_ratio=0.5, max_iter=5000, tol=1e-13, dtype="float64").fit(M)
    W, Q = model.factors_, model.components_
    assert model.objective_history_[-1] == pytest.approx(objective(model, M), rel=1e-9)
    R = W @ Q
    residual = np.nan_to_num(R - M if loss == "frobenius" else 1 - M / np.maximum(R, 1e-12))
    for X, products, alpha in ((W, residual @ Q.T, 0.01 * 20), (Q, W.T @ residual, 0.01 * 150)):
        gradient = products + alpha * (0.5 + 0.5 * X)
        scale = np.abs(gradient).max() + np.abs(products).mean()
        positive = 1e-4 * X.max() < X
        assert np.abs((X * gradient)[positive]).max() <= 2e-3 * scale * X.max()
        assert gradient[~positive].min(initial=0) >= -2e-3 * scale


@pytest.mark.parametrize("loss", LOSSES)
def test_planted_components_are_recovered(loss: str) -> None:
    M, Q = planted_counts(1500, 40, 4, 7, mean=20.0)
    model = dfact.NMF(4, loss=loss, max_iter=1000, tol=1e-6).fit(M)
    similarity = np.corrcoef(Q, model.components_)[:4, 4:]
    assert similarity[linear_sum_assignment(-similarity)].min() >= 0.98


@pytest.mark.further
def test_topics_of_documents_are_found() -> None:
    """Words of 5 topics, 12 each, in documents of one or two topics."""
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(5), rng.dirichlet(np.ones(12)))
    shares = rng.dirichlet(np.full(5, 0.2), 800)
    documents = sp.csr_array(rng.poisson(20 * shares @ topics))
    model = dfact.NMF(5, loss="kullback-leibler").fit(documents)
    found = model.components_ / model.components_.sum(axis=1, keepdims=True)
    rows, columns = linear_sum_assignment(-topics @ found.T)
    np.testing.assert_allclose(found[columns], topics[rows], atol=0.02)


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_data_has_the_fit_of_the_same_dense_data(loss: str) -> None:
    M = planted_counts(300, 40, 3, 4, 0.2)[0]
    dense, sparse = (dfact.NMF(3, loss=loss, dtype="float64", max_iter=60).fit(X) for X in (M, sp.csr_array(M)))
    np.testing.assert_allclose(sparse.objective_history_, dense.objective_history_, rtol=1e-6)
    assert sparse.explained_share_ == pytest.approx(dense.explained_share_, rel=1e-6)
    np.testing.assert_allclose(sparse.transform(M), sparse.factors_, atol=1e-3)


@pytest.mark.further
@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_data_has_the_same_bits_from_memory_and_from_a_store_on_any_executor(
    loss: str, tmp_path: Path, client: Client, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows(small_partition_entries=1 << 10)
    X = sp.csr_array(planted_counts(3000, 30, 3, 8, 0.1)[0].astype(np.float32))
    stored = dfact.import_array(X, tmp_path / "X.zarr")
    monkeypatch.setattr(sparse, "_READ_ENTRIES", 1000)
    task = dfact.NMF(3).prepare(X)
    assert task.layout.n_partitions > 8
    assert task.layout == dfact.NMF(3).prepare(stored).layout
    given = {"loss": loss, "max_iter": 4}
    first, *others = (
        dfact.NMF(3, executor=executor, **given).fit(data)
        for executor, data in (("inline", X), ("threads", X), ("threads", stored), (client, stored))
    )
    for other in others:
        np.testing.assert_array_equal(first.components_, other.components_)
        np.testing.assert_array_equal(first.factors_, other.factors_)
        np.testing.assert_array_equal(first.objective_history_, other.objective_history_)


def test_passes_over_sparse_data_make_no_block_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.csr_array(planted_counts(300, 40, 3, 4, 0.1)[0])
    monkeypatch.setattr(passes, "to_dense", None)
    for settings in ({}, {"loss": "kullback-leibler"}, {"init": "random", "random_state": 0}):
        dfact.NMF(3, max_iter=3, **settings).fit(X, sample_weight=np.arange(300.0)).transform(X)


@pytest.mark.parametrize("loss", LOSSES)
def test_whole_weights_are_copies_of_the_rows(loss: str) -> None:
    M = planted_counts(80, 12, 2, 6)[0]
    weights = 1 + np.arange(80) % 3
    settings: dict[str, Any] = {"loss": loss, "alpha_W": 0.01, "alpha_H": 0.02, "l1_ratio": 0.5, "tol": 1e-11, "max_iter": 3000}
    weighted = dfact.NMF(2, dtype="float64", **settings).fit(M, sample_weight=weights)
    copies = dfact.NMF(2, dtype="float64", **settings).fit(np.repeat(M, weights, axis=0))
    assert weighted.objective_history_[-1] * weights.mean() == pytest.approx(copies.objective_history_[-1], rel=1e-6)
    np.testing.assert_allclose(weighted.components_, copies.components_, atol=1e-2 * copies.components_.max())


@pytest.mark.parametrize("seed", [0, 1])
def test_kernels_take_the_steps_of_the_formula(seed: int) -> None:
    """One sweep of Newton steps in each row, dense and sparse, against NumPy."""
    rng = np.random.default_rng(seed)
    M, H, W = rng.poisson(1.0, (30, 9)).astype(float), rng.gamma(1, 1, (3, 9)), rng.gamma(1, 1, (30, 3))
    M[3] = 0
    dense = M.copy()
    dense[rng.random(M.shape) < 0.2] = np.nan
    l1, l2 = 0.1, 0.2
    for X in (dense, M):
        expected = W.copy()
        for w, row in zip(expected, X, strict=True):
            seen = ~np.isnan(row)
            for r in range(3):
                x, h, R = row[seen], H[:, seen], w @ H[:, seen]
                demand, supply = h[r].sum() + l1 + l2 * w[r], (x * h[r] / R).sum()
                curvature = (x * h[r] ** 2 / R**2).sum() + l2
                g = demand - supply
                decrement = g / np.sqrt(curvature) / np.sqrt(x[x > 0].min()) if (x > 0).any() else 0.0
                new = w[r] - g / curvature
                if decrement > 0.683802:
                    new = min(w[r] - g / curvature / (1 + decrement), w[r] * supply / demand)
                w[r] = max(new, 0)
        found, ratio = W.copy(), np.empty(X.shape)
        divergences = descend_dense(X, found, H, H.sum(axis=1), l1, l2, 1, 0.0, ratio)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
        R = np.maximum(found @ H, 1e-9 * np.nan_to_num(X))
        np.testing.assert_allclose(ratio, np.nan_to_num(X) / np.where(R > 0, R, 1), rtol=1e-8)
        logs = np.where(np.nan_to_num(X) > 0, X * np.log(np.where(X > 0, X, 1) / np.where(R > 0, R, 1)), 0)
        np.testing.assert_allclose(divergences, np.nansum(np.where(np.isnan(X), 0, logs - X + R), axis=1), rtol=1e-6)
    stored, again = sp.csr_array(M), W.copy()
    entries = np.empty_like(stored.data)
    found_of_stored = descend_stored(stored.data, stored.indices, stored.indptr, again, H, H.sum(axis=1), l1, l2, 1, 0.0, entries)
    np.testing.assert_allclose(again, found, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(found_of_stored, divergences, rtol=1e-8)


def test_products_of_sparse_rows_are_those_of_dense_ones() -> None:
    rng = np.random.default_rng(0)
    M = sp.random_array((20, 9), density=0.3, format="csr", rng=rng)
    B, C, left, right = rng.random((9, 3)), rng.random((20, 3)), np.empty((20, 3)), np.empty((9, 3))
    times(M.data, M.indices, M.indptr, B, left)
    transposed_times(M.data, M.indices, M.indptr, C, right)
    np.testing.assert_allclose(left, M.toarray() @ B)
    np.testing.assert_allclose(right, M.toarray().T @ C)


def test_a_divergence_never_rises_by_a_sweep_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    for scale in (1e-3, 1.0, 1e3):
        M, H = rng.poisson(0.7, (50, 20)) * scale, rng.gamma(0.3, 1, (5, 20)) + 1e-3
        W, ratio, previous = rng.gamma(1, 10 * scale, (50, 5)), np.empty(M.shape), np.full(50, np.inf)
        for _ in range(10):
            current = descend_dense(M, W, H, H.sum(axis=1), 0.0, 0.0, 1, 0.0, ratio)
            assert (current <= previous + 1e-9 * scale).all()
            previous = current


def test_text_of_a_model_names_the_deviance() -> None:
    M = pd.DataFrame(planted_counts(60, 8, 2, 0)[0], columns=[f"w{j}" for j in range(8)])
    assert "of the deviance of the answers" in model_text(dfact.NMF(2, loss="kullback-leibler").fit(M), 2)


@pytest.mark.further
@pytest.mark.parametrize("loss", LOSSES)
def test_held_out_entries_choose_the_planted_number_of_components(loss: str) -> None:
    M = planted_counts(200, 40, 3, 2, mean=4.0)[0]
    for X in (M, sp.csr_array(M)):
        model = dfact.NMF(loss=loss, max_iter=100)
        selection = dfact.selection.cross_validate_entries(model, X, range(1, 6), n_folds=3, random_state=0)
        assert selection.best_params == {"n_components": 3}
    table = selection.table
    whole = loss_of(M, selection.model.factors_ @ selection.model.components_, loss) / M.size
    assert table["deviance"].min() > whole  # an error on entries that the fit has not seen
    blocks = dfact.selection.block_cross_validate(dfact.NMF(loss=loss, max_iter=50), M, {"n_components": [1, 3]}, (3, 3), 3, random_state=0)
    assert blocks.best_params == {"n_components": 3}


class TestEstimator(EstimatorSuite):
    model = dfact.NMF
    parameters: ClassVar = {"n_components": 3, "random_state": 4, "max_iter": 6, "alpha_W": 0.001, "l1_ratio": 0.5}
    derived = ("loadings_",)

    @pytest.fixture(scope="class", params=LOSSES)
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {"loss": request.param}

    def data(self) -> Array:
        return planted_answers(2_500, 30, 3, seed=3, missing=0.1).astype(np.float32)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha_H": "other"}, "alpha_H is 'other', expected a finite number of at least 0, or 'same'"),
        ({"alpha_W": -1}, "alpha_W is -1"),
        ({"l1_ratio": 1.5}, "l1_ratio is 1.5, expected a number from 0 to 1"),
        ({"loss": "itakura-saito"}, "loss is 'itakura-saito'"),
        ({"n_components": 9}, "n_components=9 is larger"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        dfact.NMF(**{"n_components": 2, **parameters}).fit(planted_answers(60, 8, 2, seed=0))
