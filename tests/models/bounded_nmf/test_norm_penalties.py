"""ICQF with the L2,1 norm and other norms as penalty: stationarity, executors, weights, masks, confounders, files, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.cli.main import main
from tests.conftest import planted_answers
from tests.kernels.test_norms import phi, violation

SETTINGS: dict[str, Any] = {"bounds": (0, 100), "q_max": 3, "max_iter": 3000, "tol": 1e-12, "dtype": "float64"}
norms = pytest.mark.parametrize(("penalty", "beta"), [("l2,1", 1.0), ((1.5, 2), 0.5), ((3, 1), 1.0), ((1, 3), 0.05)])


def exponents(penalty: Any) -> tuple[float, float]:
    return (2.0, 1.0) if isinstance(penalty, str) else (float(penalty[0]), float(penalty[1]))


def value(model: Any, M: Any, gamma: float) -> float:
    (p, q), W, Q = exponents(model.penalty), np.asarray(model.factors_, float), model.components_.astype(float)
    penalties = sum(phi(w, p, q) for w in W) + gamma * sum(phi(item, p, q) for item in Q.T)
    return float(0.5 * np.nansum((M - W @ Q) ** 2) + model.beta * penalties)


@norms
@pytest.mark.parametrize("solver", ["mm", "admm"])
def test_the_solution_is_stationary(penalty: Any, beta: float, solver: str) -> None:
    """Each row of W, and of Q, fulfils the optimality conditions given the other factor."""
    M = planted_answers(120, 15, 3, seed=5, missing=0.1)
    model = dfact.ICQF(3, penalty=penalty, beta=beta, solver=solver, **SETTINGS).fit(M)
    W, Q, gamma, (p, q) = np.asarray(model.factors_), model.components_, 120 / 15 * 3, exponents(penalty)
    assert model.objective_history_[-1] == pytest.approx(value(model, M, gamma), rel=1e-9)
    residual = np.nan_to_num(W @ Q - M)
    for X, slopes, strength, top in ((W, residual @ Q.T, beta, 1.0), (Q.T, (W.T @ residual).T, beta * gamma, 3.0)):
        worst = max(violation(x, slope, strength, top, p, q, 1e-6) for x, slope in zip(X, slopes, strict=True))
        assert worst <= 2e-3 * np.abs(slopes).max()


def test_a_norm_of_rows_sets_complete_rows_to_0_and_l1_single_entries() -> None:
    M = planted_answers(200, 15, 3, seed=2)
    M[:20] = np.where(np.random.default_rng(0).random((20, 15)) < 0.07, 1.0, 0.0)  # participants with hardly a trait
    M[0] = 0
    l21, l1 = (np.asarray(dfact.ICQF(3, penalty=penalty, beta=0.8).fit(M).factors_) for penalty in ("l2,1", "l1"))
    zero = (l21 == 0).all(axis=1)
    assert zero[0]
    assert (l21[~zero] == 0).mean() < (l1[~zero] == 0).mean()
    rates = [(np.asarray(dfact.ICQF(3, penalty="l2,1", beta=beta).fit(M).factors_) == 0).all(axis=1).mean() for beta in (0.1, 2.0)]
    assert rates[0] < rates[1]


@pytest.mark.parametrize(("penalty", "same"), [((1, 1), "l1"), ((2, 2), "l2"), ((2, 1), "l2,1")])
def test_pairs_with_a_name_equal_it(penalty: Any, same: str) -> None:
    M = planted_answers(100, 12, 2, seed=1, missing=0.1)
    pair, named = (dfact.ICQF(2, penalty=each, max_iter=30).fit(M) for each in (penalty, same))
    np.testing.assert_array_equal(pair.objective_history_, named.objective_history_)
    np.testing.assert_array_equal(pair.factors_, named.factors_)


@pytest.mark.parametrize("solver", ["mm", "admm"])
def test_results_are_bit_identical_for_executors_stores_and_resumed_files(solver: str, tmp_path: Path, cut_rows: Any) -> None:
    cut_rows(block_entries=1 << 9, chunk_entries=1 << 10, partition_entries=1 << 10)
    M = planted_answers(300, 14, 3, seed=3, missing=0.1).astype(np.float32)
    C = pd.DataFrame({"age": np.linspace(20, 60, 300), "sex": ["f", "m"] * 150})
    dataset = dfact.import_array(M, tmp_path / "d.zarr", confounders=C)
    settings: dict[str, Any] = {"penalty": "l2,1", "beta": 0.5, "solver": solver, "bounds": (0, 3), "max_iter": 25}
    memory = dfact.ICQF(3, executor="inline", **settings).fit(M, confounders=C)
    stored = dfact.ICQF(3, executor="threads", **settings).fit(dataset)
    np.testing.assert_array_equal(stored.components_, memory.components_)
    np.testing.assert_array_equal(np.asarray(stored.factors_), memory.factors_)
    np.testing.assert_allclose(memory.transform(M, confounders=C), memory.factors_, atol=1e-6)
    R = np.hstack([memory.factors_, memory.confounder_encoding_.encode(C)]) @ np.vstack([memory.components_, memory.confounder_components_])
    assert R.max() <= 3 + 1e-3
    dfact.save_model(memory, tmp_path / "m.model")
    loaded = dfact.load_model(tmp_path / "m.model")
    assert loaded.penalty == "l2,1"
    np.testing.assert_array_equal(loaded.transform(M, confounders=C), memory.transform(M, confounders=C))


def test_integer_weights_equal_repeated_rows() -> None:
    M = planted_answers(150, 12, 2, seed=3, missing=0.1)
    weights = np.random.default_rng(0).integers(0, 4, 150)
    weights[:2] = 1
    settings: dict[str, Any] = {"penalty": "l2,1", "beta": 0.5, "bounds": (0, 3), "max_iter": 60, "tol": 0, "dtype": "float64"}
    weighted = dfact.ICQF(2, **settings).fit(M, sample_weight=weights)
    rows = np.repeat(np.arange(150), weights)
    repeated = dfact.ICQF(2, **settings).fit(M[rows])
    np.testing.assert_allclose(weighted.objective_history_, repeated.objective_history_, rtol=1e-7)
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=1e-5)


def test_new_rows_update_a_model() -> None:
    M = planted_answers(400, 14, 3, seed=4)
    model = dfact.ICQF(3, penalty="l2,1", beta=0.5, bounds=(0, 3)).fit(M[:300])
    model.partial_fit(M[300:])
    complete = dfact.ICQF(3, penalty="l2,1", beta=0.5, bounds=(0, 3)).fit(M)
    assert model.objective_history_[-1] <= 1.02 * complete.objective_history_[-1]


@pytest.mark.parametrize("penalty", ["l0", "2,1", (0.5, 1), (1, 0.9), (2, np.inf), (21, 1), (1, 2, 3), 2, (True, 1), ("a", 1)])
def test_norms_that_are_not_convex_are_refused(penalty: Any) -> None:
    with pytest.raises(dfact.errors.ParameterError, match=r"penalty is .*, expected 'l1', 'l2', 'l2,1' or \(p, q\)"):
        dfact.ICQF(2, penalty=penalty).fit(planted_answers(50, 8, 2, seed=0))
    with pytest.raises(dfact.errors.ParameterError, match="subproblem_solver is 'fista', expected 'cd'"):
        dfact.ICQF(2, penalty="l2,1", subproblem_solver="fista").fit(planted_answers(50, 8, 2, seed=0))


def test_the_command_takes_names_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, path = tmp_path / "d.zarr", tmp_path / "m.model"
    dataset = dfact.import_array(planted_answers(80, 8, 2, seed=0), data)
    for text, penalty in (("l2,1", "l2,1"), ("1.5,2", (1.5, 2.0))):
        assert main(["fit", "icqf", str(data), str(path), "-k", "2", "--penalty", text, "--overwrite"]) == 0
        model = dfact.load_model(path)
        assert model.penalty == penalty
        np.testing.assert_array_equal(model.components_, dfact.ICQF(2, penalty=penalty).fit(dataset).components_)
    assert main(["fit", "icqf", str(data), str(tmp_path / "n.model"), "--penalty", "l3"]) == 2
    assert "'l3' is not valid, expected l1, l2, l2,1 or two numbers such as 2,1" in capsys.readouterr().err
