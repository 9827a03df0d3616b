"""Cross-validation of an NMF with a choice of hold-outs: bi-cross-validation against its definition, entries, the command, errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import nnls

import dfact
from dfact.cli.main import main
from dfact.selection import block_cross_validate, cross_validate_entries, select_by_hold_out
from dfact.selection.cross_validation.folds import assign_all_folds
from dfact.selection.running.results_store import resolve_random_state
from tests.models.bounded_nmf.test_nmf import planted_counts

GRID = {"n_components": [1, 3, 5]}


@pytest.fixture(scope="module")
def counts() -> NDArray[np.float64]:
    return np.asarray(planted_counts(120, 30, 3, 5, mean=4.0)[0], np.float64)


def rows_of(A: NDArray[np.float64], B: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-negative least-squares solutions of the rows of B, given A."""
    return np.stack([nnls(A, row)[0] for row in B])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_block_is_predicted_from_other_rows_and_columns(counts: NDArray[np.float64], weighted: bool) -> None:
    weights = np.random.default_rng(1).integers(1, 4, len(counts)).astype(float)
    given = {"sample_weight": weights} if weighted else {}
    found = block_cross_validate(dfact.NMF(), counts, {"n_components": [2, 3]}, (2, 2), training="disjoint", random_state=0, **given)
    (folds,) = assign_all_folds(counts.shape, (2, 2), 4, 1, resolve_random_state(0) or 0)
    [(i, j)] = np.argwhere(folds.fold_of_block == 1)
    rows, columns = folds.rows == i, folds.columns == j
    own = {"sample_weight": weights[~rows]} if weighted else {}
    fitted = dfact.NMF(3).fit(counts[np.ix_(~rows, ~columns)], **own)
    W = rows_of(fitted.components_.T, counts[np.ix_(rows, ~columns)])
    root = np.sqrt(weights[~rows])[:, None] if weighted else 1.0
    Q = rows_of(root * fitted.factors_, (root * counts[np.ix_(~rows, columns)]).T)
    errors = np.square(W @ Q.T - counts[np.ix_(rows, columns)]).mean(axis=1)
    assert found.folds is not None
    assert found.folds.loc[3, (0, 1)] == pytest.approx(np.average(errors, weights=weights[rows] if weighted else None), rel=1e-3)
    assert found.best_params == {"n_components": 3}


@pytest.mark.further
@pytest.mark.parametrize("loss", ["frobenius", "kullback-leibler"])
def test_sparse_data_has_the_errors_of_the_same_dense_data(counts: NDArray[np.float64], loss: str) -> None:
    model = dfact.NMF(loss=loss, max_iter=20, dtype="float64")
    dense, sparse = (
        select_by_hold_out(model, X, {"n_components": [1, 3]}, "gabriel", random_state=0) for X in (counts, sp.csr_array(counts))
    )
    assert dense.folds is not None
    np.testing.assert_allclose(dense.folds, sparse.folds, rtol=1e-4)
    assert dense.folds.shape == (2, 4)
    assert sparse.best_params == {"n_components": 3}


def test_loadings_of_other_columns_are_at_their_optimum(counts: NDArray[np.float64]) -> None:
    """Gradients of the divergence with a penalty are 0 where a loading is positive, and at least 0 elsewhere."""
    model = dfact.NMF(3, loss="kullback-leibler", alpha_W=0.001, alpha_H=0.02, l1_ratio=0.5, max_iter=100, dtype="float64").fit(
        counts[:, :20]
    )
    M, W = counts[:, 20:], model.factors_
    Q = model.column_loadings(M)
    ratio = np.divide(M, W @ Q.T, out=np.zeros_like(M), where=M > 0)
    gradient = W.sum(axis=0) - ratio.T @ W + len(M) * 0.02 * (0.5 + 0.5 * Q)
    scale = W.sum(axis=0).max()
    assert Q.shape == (10, 3)
    assert (np.abs(gradient[Q > 0]) < 1e-4 * scale).all()
    assert (gradient[Q == 0] > -1e-4 * scale).all()


def test_entries_are_those_of_cross_validate_entries(counts: NDArray[np.float64], tmp_path: Path) -> None:
    model = dfact.NMF(loss="kullback-leibler", max_iter=15)
    expected = cross_validate_entries(model, counts, [1, 3], n_folds=2, random_state=0)
    grid = {"n_components": [1, 3], "alpha_W": [0.0, 0.01]}
    first, again = (
        select_by_hold_out(model, counts, grid, "entries", n_folds=2, random_state=0, rule="1se", checkpoint=tmp_path / "cv")
        for _ in range(2)
    )
    pd.testing.assert_series_equal(first.table["deviance"].xs(0.0, level="alpha_W"), expected.table["deviance"], rtol=1e-12)
    pd.testing.assert_frame_equal(first.table, again.table, rtol=0, atol=0)
    assert first.best_params["n_components"] == 3
    assert first.model.selection_.rule == "1se"


@pytest.mark.further
@pytest.mark.parametrize(("hold_out", "score"), [("gabriel", "error"), ("entries", "deviance")])
def test_command(counts: NDArray[np.float64], hold_out: str, score: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, plot = (tmp_path / name for name in ("counts.zarr", "a.model", "errors.svg"))
    dfact.import_array(counts, data)
    options = ["-k", "1,3", "--hold-out", hold_out, "--tol", "1e-3", "--seed", "0", "--plot", str(plot)]
    assert main(["select", "nmf", str(data), str(model), *options]) == 0
    printed = capsys.readouterr().out
    assert score in printed
    assert "best" in next(line for line in printed.splitlines() if line.split()[:1] == ["3"])
    assert dfact.load_model(model).selection_.criterion == score
    assert plot.stat().st_size


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hold_out": "rows"}, "hold_out is 'rows', expected one of 'blocks', 'entries', 'gabriel'"),
        ({"hold_out": "entries", "n_blocks": (2, 2)}, r"n_blocks is \(2, 2\) with hold_out='entries'"),
        ({"hold_out": "entries", "n_repeats": 2}, "n_repeats is 2 with hold_out='entries'"),
        ({"hold_out": "entries", "rule": "first"}, "rule is 'first'"),
        ({"hold_out": "gabriel", "n_folds": 3}, "n_folds is 3, expected 4"),
        ({"hold_out": "gabriel", "n_blocks": (1, 4)}, r"n_blocks is \(1, 4\), expected at least 2"),
        ({"hold_out": "gabriel", "grid": {"n_components": [20]}}, "n_components is 20 in the grid, expected at most 15"),
        ({"hold_out": "gabriel", "model": dfact.ICQF()}, "model is a ICQF, expected an NMF"),
    ],
)
def test_invalid_arguments_are_refused(counts: NDArray[np.float64], settings: dict[str, Any], message: str) -> None:
    given = {"model": dfact.NMF(), "grid": GRID, "random_state": 0} | settings
    with pytest.raises(dfact.ParameterError, match=message):
        select_by_hold_out(given.pop("model"), counts, given.pop("grid"), **given)
