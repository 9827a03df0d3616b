"""NMF with ℓ1 penalties: scikit-learn's objective, optimality, planted recovery, missing answers, parity of inputs, invalid input."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, nnls
from sklearn.decomposition import NMF

import dfact
from dfact.cli.main import main
from dfact.data.synthetic import icqf_simulation
from dfact.models.bounded_nmf.presenter import answer_shares
from dfact.report.presenters.base import items_plot, model_text, rows_text
from tests.conftest import planted_answers

Array = NDArray[Any]


def objective(M: Array, W: Array, Q: Array, beta: float) -> float:
    """½‖O∘(M − WQ)‖² + β‖W‖₁ + β‖Q‖₁ with Q (k, m)."""
    W, Q = np.asarray(W, np.float64), np.asarray(Q, np.float64)
    return float(0.5 * np.nansum((M - W @ Q) ** 2) + beta * W.sum() + beta * Q.sum())


def penalized(M: Array, k: int, beta: float = 0.1, **parameters: Any) -> dfact.NMF:
    """Return a model with the weight β of both ℓ1 norms, whatever the shape of the data."""
    n, m = M.shape
    return dfact.NMF(k, **{"alpha_W": beta / m, "alpha_H": beta / n, "l1_ratio": 1, **parameters})


@pytest.mark.parametrize("beta", [0.1, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_objective_of_scikit_learn_on_complete_data(seed: int, beta: float) -> None:
    M = planted_answers(300, 20, 3, seed)
    n, m = M.shape
    model = penalized(M, 3, beta=beta, max_iter=3000, tol=1e-10).fit(M)
    peer = NMF(3, init="nndsvd", alpha_W=beta / m, alpha_H=beta / n, l1_ratio=1, max_iter=10_000, tol=1e-8)
    W = peer.fit_transform(M)
    expected = objective(M, W, peer.components_, beta)
    assert model.objective_history_[-1] == pytest.approx(expected, rel=1e-6)
    assert objective(M, model.factors_, model.components_, beta) == pytest.approx(model.objective_history_[-1], rel=1e-10)
    # With weights on both sides alike, the scale of each factor converges to equal penalties.
    np.testing.assert_allclose(model.factors_.sum(axis=0), model.components_.sum(axis=1), rtol=0.01)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_early_stop_comes_close_to_scikit_learn_on_the_simulation(seed: int) -> None:
    M = icqf_simulation(0.2, seed).M
    n, m = M.shape
    model = penalized(M, 10).fit(M)
    peer = NMF(10, init="nndsvd", alpha_W=0.1 / m, alpha_H=0.1 / n, l1_ratio=1, max_iter=2000, tol=1e-4)
    W = peer.fit_transform(M)
    assert model.converged_
    assert model.objective_history_[-1] <= 1.001 * objective(M, W, peer.components_, 0.1)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_the_solution_satisfies_the_optimality_conditions(beta: float, missing: float) -> None:
    """Karush, Kuhn, Tucker: the gradient is 0 where a coordinate is positive, and not negative where it is 0."""
    M = planted_answers(300, 20, 3, seed=5, missing=missing)
    model = penalized(M, 3, beta=beta, max_iter=5000, tol=1e-13).fit(M)
    W, Q = model.factors_, model.components_
    assert W.min() >= 0
    assert Q.min() >= 0
    residual = np.nan_to_num(W @ Q - M)
    for X, gradient in ((W, residual @ Q.T + beta), (Q, W.T @ residual + beta)):
        scale = np.abs(gradient).max()
        assert np.abs(gradient[X > 1e-6]).max() <= 2e-4 * scale
        assert gradient[X <= 1e-6].min(initial=0) >= -2e-4 * scale
    assert (W == 0).any()
    assert (Q == 0).any()


def test_each_row_is_at_its_optimum() -> None:
    """A non-negative Lasso is a non-negative least-squares problem: ‖m − Qᵀw‖² + 2βΣw."""
    M = planted_answers(60, 15, 3, seed=1, missing=0.2)
    model = penalized(M, 3, beta=1.5).fit(M)
    Q = model.components_
    new = planted_answers(40, 15, 3, seed=2, missing=0.2)
    for answers, found in ((M, model.factors_), (new, model.transform(new))):
        for row, w in zip(answers, found, strict=True):
            seen = ~np.isnan(row)
            G, h = Q[:, seen] @ Q[:, seen].T, Q[:, seen] @ row[seen] - 1.5
            L = np.linalg.cholesky(G)
            expected, _ = nnls(L.T, np.linalg.solve(L, h))
            np.testing.assert_allclose(w, expected, atol=1e-4)
    np.testing.assert_allclose(model.transform(M[:1]), model.factors_[:1], atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_planted_loadings_are_recovered(seed: int) -> None:
    planted = icqf_simulation(0.1, seed)
    model = penalized(planted.M, 10, max_iter=500, tol=1e-5).fit(planted.M)
    similarity = np.corrcoef(planted.Q.T, model.components_)[:10, 10:]
    rows, columns = linear_sum_assignment(-similarity)
    assert similarity[rows, columns].min() >= 0.85


def test_a_large_penalty_sets_all_factors_to_0() -> None:
    M = planted_answers(200, 12, 3, 0, missing=0.1)
    model = penalized(M, 3, beta=1e6).fit(M)
    assert not model.components_.any()
    assert not model.factors_.any()
    assert model.objective_history_[-1] == pytest.approx(0.5 * np.nansum(M**2))
    assert "0% of the answers" in model_text(model)


def test_the_objective_descends_and_a_penalty_makes_sparse() -> None:
    M = planted_answers(400, 30, 4, 0, missing=0.1)
    zeros = []
    for beta in (0.0, 1.0, 20.0):
        model = penalized(M, 4, beta=beta, max_iter=100).fit(M)
        assert model.objective_history_[-1] <= model.objective_history_[0]
        assert np.diff(model.objective_history_).max() <= 1e-3 * model.objective_history_[0]
        zeros.append((model.components_ == 0).mean() + (model.factors_ == 0).mean())
    assert zeros[2] > zeros[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_missing_answers_never_influence_the_result(seed: int, tmp_path: Path) -> None:
    M = planted_answers(200, 12, 3, seed, missing=0.2)
    models = []
    for code, name in ((200, "a.zarr"), (255, "b.zarr")):
        codes = np.where(np.isnan(M), code, M).astype(np.uint8)
        models.append(penalized(M, 3).fit(dfact.import_array(codes, tmp_path / name, missing=code)))
    np.testing.assert_array_equal(models[0].components_, models[1].components_)
    np.testing.assert_array_equal(models[0].factors_, models[1].factors_)


def test_without_a_penalty_it_is_non_negative_factorization() -> None:
    M = planted_answers(200, 20, 3, 0)
    found = penalized(M, 3, beta=0, max_iter=2000, tol=1e-9).fit(M).objective_history_[-1]
    peer = NMF(3, init="nndsvd", max_iter=4000, tol=1e-8)
    W = peer.fit_transform(M)
    assert found == pytest.approx(objective(M, W, peer.components_, 0), rel=1e-4)


def assert_same_bits(first: dfact.NMF, second: dfact.NMF) -> None:
    np.testing.assert_array_equal(first.components_, second.components_)
    np.testing.assert_array_equal(np.asarray(first.factors_), np.asarray(second.factors_))
    np.testing.assert_array_equal(first.objective_history_, second.objective_history_)


def test_single_precision_agrees_with_double() -> None:
    M = planted_answers(500, 20, 3, 0, missing=0.1)
    single, double = (penalized(M, 3, dtype=dtype, tol=1e-6).fit(M) for dtype in ("float32", "float64"))
    assert single.components_.dtype == single.factors_.dtype == np.float32
    assert single.objective_history_[-1] == pytest.approx(double.objective_history_[-1], rel=1e-4)


def test_all_starts_reach_a_solution() -> None:
    M = planted_answers(200, 12, 3, 0)
    first, second, other = (penalized(M, 3, init="random", random_state=seed).fit(M) for seed in (1, 1, 2))
    assert_same_bits(first, second)
    assert not np.array_equal(first.components_, other.components_)
    best = penalized(M, 3, max_iter=2000, tol=1e-9).fit(M)
    again = penalized(M, 3, init=best.components_, max_iter=5).fit(M)
    assert again.objective_history_[-1] == pytest.approx(best.objective_history_[-1], rel=1e-5)
    assert first.objective_history_[-1] <= 1.2 * best.objective_history_[-1]


def test_confounders_of_a_dataset_are_not_used(tmp_path: Path) -> None:
    M = planted_answers(200, 12, 3, 0).astype(np.uint8)
    ages = pd.DataFrame({"age": np.random.default_rng(0).normal(40, 9, 200)})
    with_ages = dfact.import_array(M, tmp_path / "a.zarr", confounders=ages)
    assert_same_bits(penalized(M, 3).fit(with_ages), penalized(M, 3).fit(dfact.import_array(M, tmp_path / "b.zarr")))


def test_report_of_a_model() -> None:
    M = planted_answers(200, 12, 3, 0)
    model = penalized(M, 3).fit(pd.DataFrame(M, columns=[f"Q{j}" for j in range(12)]))
    text = model_text(model, 2)
    assert "NMF, 3 factors of 200 participants × 12 items" in text
    assert "F1" in text
    assert rows_text(model, 5) == "3 factors of 5 participants"
    table = answer_shares(model)
    assert table.share.sum() == pytest.approx(1)
    np.testing.assert_allclose(table["zero"], (model.factors_ == 0).mean(axis=0))
    assert items_plot(model).axes[0].images[0].get_array().shape == (12, 3)
    pd.testing.assert_frame_equal(model.loadings_, pd.DataFrame(model.components_.T, model.loadings_.index, model.loadings_.columns))
    np.testing.assert_allclose(model.inverse_transform(model.factors_), model.factors_ @ model.components_)
    with pytest.raises(dfact.DataError, match=r"factors have shape \(5, 2\)"):
        model.inverse_transform(np.zeros((5, 2)))


def test_callbacks_receive_every_iteration() -> None:
    seen: list[Any] = []
    model = dfact.NMF(2, l1_ratio=1, callbacks=[seen.append]).fit(planted_answers(100, 10, 2, 0))
    assert len(seen) == model.n_iter_


def test_a_row_without_answers_has_no_factors() -> None:
    M = planted_answers(60, 8, 2, seed=0)
    M[4] = np.nan
    with pytest.warns(UserWarning, match=r"row 4 has no observed entry .* its factors are 0"):
        model = penalized(M, 2).fit(M)
    assert (model.factors_[4] == 0).all()


@pytest.mark.further
def test_commands_fit_and_transform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    M = planted_answers(300, 12, 3, 0, missing=0.1)
    data, fitted, factors = (str(tmp_path / name) for name in ("d.zarr", "m.model", "w.csv"))
    dataset = dfact.import_array(M, data)
    assert main(["fit", "nmf", data, fitted, "-k", "3", "--alpha-w", "0.04", "--l1-ratio", "1", "--plot", str(tmp_path / "q.png")]) == 0
    assert "NMF, 3 factors of 300 participants" in capsys.readouterr().out
    assert main(["transform", fitted, data, factors]) == 0
    assert main(["fit", "nmf", data, "--plan"]) == 0
    expected = dfact.NMF(3, alpha_W=0.04, l1_ratio=1).fit(dataset)
    found = pd.read_csv(factors)[list(expected.get_feature_names_out())]  # a table has its own order of factors
    np.testing.assert_allclose(found, expected.factors_, rtol=1e-6)


GOOD = planted_answers(60, 8, 2, seed=0)


def entry(value: float) -> pd.DataFrame:
    M = pd.DataFrame(GOOD, columns=[f"Q{j}" for j in range(8)])
    M.iloc[17, 3] = value
    return M


@pytest.mark.parametrize(
    ("X", "parameters", "message"),
    [
        (entry(-1), {}, r"Negative values in data passed to NMF: row 17, column 'Q3' holds -1"),
        (entry(np.inf), {}, r"(?i)infinity"),
        (entry(0).assign(Q2=np.nan), {}, r"column 'Q2' has no observed entry"),
        (GOOD, {"n_components": 9}, r"n_components=9 is larger.*n_features=8"),
        (GOOD, {"n_components": 0}, r"n_components is 0, expected an integer"),
        (GOOD, {"alpha_W": -1}, r"alpha_W is -1"),
        (GOOD, {"tol": -1}, r"tol is -1"),
        (GOOD, {"init": "magic"}, r"init is 'magic'"),
        (GOOD, {"init": np.ones((3, 8))}, r"init has shape \(3, 8\), expected .* \(2, 8\)"),
        (GOOD, {"dtype": "float16"}, r"float16, expected float32 or float64"),
        (GOOD, {"memory_limit": "1MB"}, r"needs at least"),
    ],
)
def test_invalid_input_is_refused(X: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, dfact.MemoryPlanError), match=message):
        dfact.NMF(**{"l1_ratio": 1, "n_components": 2, **parameters}).fit(X)
    if parameters == {} and not np.isnan(np.asarray(X)).any():
        with pytest.raises(ValueError, match=message):
            dfact.NMF(2).fit(pd.DataFrame(GOOD, columns=X.columns)).transform(X)
