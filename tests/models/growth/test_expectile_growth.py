"""Growth of ExpectileMF: the surrogate of earlier rows, nearness to the fit of all rows, scales of factors, equal bits, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dask.distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError
from dfact.kernels.expectile import stored_residual_sums
from dfact.models.expectile import growth
from dfact.models.expectile.growth import ColumnSurrogate, GrowingAlternation
from dfact.models.expectile.passes import Loss
from tests.conftest import CutRows
from tests.models.expectile.test_emf import as_sparse, losses, planted

Array = NDArray[Any]


def objective(model: dfact.ExpectileMF, V: Array) -> float:
    """The objective of all rows, each at its minimum given the columns' factors of the model."""
    X, Y = np.asarray(model.transform(V), np.float64), model.column_factors_.astype(np.float64)
    return float(losses(V - X @ Y.T, model.tau).sum() + model.ridge * ((X**2).sum() + (Y**2).sum()))


def test_figures_of_stored_entries_are_sums_of_residuals() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(2, 12)), rng.normal(size=(5, 2))
    V = as_sparse(planted(1, 12, 5, 2, 0.6, 0.3)[1])
    out = np.ones((5, 5))
    stored_residual_sums(V.indptr, V.indices, V.data, Y, X, out)
    R = np.where(V.toarray() != 0, V.toarray() - (Y @ X).T, np.nan)
    seen = (~np.isnan(R)).sum(axis=0)
    np.testing.assert_allclose(out - 1, [seen, seen, *(np.nansum(R**power, axis=0) for power in (1, 2, 3))], atol=1e-12)


def test_a_surrogate_is_the_loss_with_the_weights_of_the_last_residuals() -> None:
    rng = np.random.default_rng(1)
    V, tau = planted(2, 200, 8, 2, 0.7, 0.5)[1], 0.2
    first, second = (dfact.ExpectileMF(2, tau=tau, ridge=0.1, max_iter=20).fit(part) for part in (V[:120], V[120:]))
    X, Y = (np.asarray(part, np.float64) for part in (first.row_factors_, first.column_factors_))
    R = V[:120] - X @ Y.T
    W = np.abs(tau - (R < 0))
    at = Y + 0.3 * rng.normal(size=Y.shape)
    loss, gradient = first.sums_.at(at)
    fixed = V[:120] - X @ at.T
    np.testing.assert_allclose(loss, np.nansum(W * fixed**2, axis=0), rtol=1e-9)
    np.testing.assert_allclose(gradient, np.nan_to_num(W * fixed).T @ X, atol=1e-9)
    scales = np.array([2.0, 0.5])
    np.testing.assert_allclose(first.sums_.scaled(scales).at(at / scales)[0], loss, rtol=1e-9)
    # Sums of both parts are those of one surrogate.
    sums = growth.GrowthSums(
        **second.growth_.baseline.figures(),
        loss=second.sums_.at(at)[0],
        gram=second.sums_.gram,
        gradient=second.sums_.at(at)[1],
        curvature=second.sums_.curvature,
    )
    both = ColumnSurrogate.of(sums, at, first.sums_)
    np.testing.assert_allclose(both.at(Y)[0], first.sums_.at(Y)[0] + second.sums_.at(Y)[0], rtol=1e-9)


@pytest.mark.parametrize("orthogonalize", [True, False])
def test_components_are_scaled_to_the_least_ridge(orthogonalize: bool) -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(3, 40)) * [[1], [5], [0]], rng.normal(size=(7, 3))
    zeros = np.zeros((7, 3)), np.zeros(7), np.zeros((7, 3)), np.zeros((7, 6)), np.zeros((3, 3))
    alternation = GrowingAlternation(Loss(0.5, 1.0), Y, np.dtype(np.float64), ColumnSurrogate(*zeros), orthogonalize=orthogonalize)
    right, left = alternation._balance(X @ X.T, Y)
    np.testing.assert_allclose((left @ X).T @ (Y @ right).T, X.T @ Y.T)
    lengths = np.linalg.norm(left @ X, axis=1), np.linalg.norm(Y @ right, axis=0)
    assert np.allclose(lengths[0][:2], lengths[1][:2]) == orthogonalize


@pytest.mark.further
@pytest.mark.parametrize(
    ("tau", "ridge", "observed", "most"),
    [(0.1, 1e-8, 0.6, 0.001), (0.5, 0.3, 1.0, 0.001), pytest.param(0.8, 0.1, 0.5, 0.006, marks=pytest.mark.exhaustive)],
)
def test_ten_batches_end_near_the_complete_fit(tau: float, ridge: float, observed: float, most: float) -> None:
    """The long tail of the noise lies above: an expectile there has more to gain, as the earlier rows keep their factors."""
    V = planted(3, 3000, 40, 3, observed, 0.1)[1]
    settings: Any = {"n_components": 3, "tau": tau, "ridge": ridge}
    complete, grown = dfact.ExpectileMF(**settings).fit(V), dfact.ExpectileMF(**settings)
    for rows in np.array_split(np.arange(len(V)), 10):
        grown.partial_fit(V[rows])
    reached, best = objective(grown, V), objective(complete, V)
    excess, gain = reached / best - 1, grown.growth_.gain
    assert excess <= most
    assert excess <= gain.share + 3 * gain.error
    assert reached * 0.999 <= grown.objective_history_[-1] <= 1.01 * reached
    assert not gain.worth_a_fit
    assert (grown.growth_.n_rows, grown.growth_.added_rows, grown.row_factors_.shape) == (3000, 2700, (3000, 3))
    # Earlier rows keep to the scale of the components: they are near their minimum with the columns' factors of today.
    # They are 0.01 to 0.06 away; with the scales of their time, 0.8 to 1.
    predicted = [np.asarray(rows) @ grown.column_factors_.T for rows in (grown.row_factors_, grown.transform(V))]
    assert np.sqrt(np.mean((predicted[0] - predicted[1]) ** 2)) < 0.1 * predicted[1].std()
    if ridge > 1e-3:
        np.testing.assert_allclose(np.linalg.norm(grown.row_factors_, axis=0), np.linalg.norm(grown.column_factors_, axis=0), rtol=0.05)


def test_least_squares_descend_above_the_objective() -> None:
    V = planted(4, 400, 30, 3, 0.6, 0.2)[1]
    model = dfact.ExpectileMF(3, tau=0.5, ridge=0.2).fit(V[:300])
    known = len(model.objective_history_)
    model.partial_fit(V[300:])
    history = model.objective_history_[known:]
    assert (np.diff(history) <= 1e-9 * history[0]).all()
    assert objective(model, V) <= history[-1] * (1 + 1e-6)


@pytest.mark.further
def test_executors_give_the_same_result(client: Client, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 12, chunk_entries=1 << 14, partition_entries=1 << 14)
    V = planted(5, 1400, 60, 2, 0.7, 0.3)[1].astype(np.float32)
    stored = dfact.import_array(V[300:], tmp_path / "new.zarr")
    assert dfact.plan(dfact.ExpectileMF(2), stored).n_partitions > 2
    dfact.save_model(dfact.ExpectileMF(2, tau=0.2, ridge=0.1, max_iter=15, tol=1e-3).fit(V[:300]), tmp_path / "a.model")
    models = [
        dfact.load_model(tmp_path / "a.model").set_params(executor=kind).partial_fit(stored) for kind in ("inline", "threads", client)
    ]
    for model in models[1:]:
        for name in ("objective_history_", "row_factors_", "column_factors_"):
            np.testing.assert_array_equal(np.asarray(getattr(model, name)), np.asarray(getattr(models[0], name)), err_msg=name)
        for name in ("loss", "gradient", "curvature", "gram"):
            np.testing.assert_array_equal(getattr(model.sums_, name), getattr(models[0].sums_, name), err_msg=name)
    assert models[0].growth_.drift is not None


def test_dense_and_sparse_rows_in_original_units_are_equivalent(tmp_path: Path) -> None:
    V = np.clip(np.rint(3 * planted(6, 300, 20, 2, 0.5, 0.3)[1]) + 1, 1, 9)
    parts: list[list[Any]] = [[V[:200], V[200:]], [as_sparse(V[:200]), as_sparse(V[200:])], []]
    for i, rows in enumerate((V[:200], V[200:])):
        frame = pd.DataFrame(rows, columns=[f"q{j}" for j in range(20)])
        parts[2].append(dfact.import_table(frame, tmp_path / f"{i}.zarr", items="q*", valid_range=(1, 9)))
    assert parts[2][0].offset.any()
    settings: Any = {"tau": 0.3, "ridge": 0.1, "dtype": "float64", "solver": "exact"}
    models = [dfact.ExpectileMF(2, **settings).fit(old).partial_fit(new) for old, new in parts]
    for model in models[1:]:
        np.testing.assert_allclose(model.objective_history_, models[0].objective_history_, rtol=1e-7)
        np.testing.assert_allclose(model.growth_.baseline.items, models[0].growth_.baseline.items, rtol=1e-5, atol=1e-5)


def test_an_interrupted_update_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    V = planted(7, 300, 20, 2, 0.6, 0.2)[1]
    model = dfact.ExpectileMF(2, ridge=0.1).fit_each(V[:200], [0.2, 0.8])[0]
    before = dict(vars(model))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(growth.ColumnSurrogate, "of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(V[200:])
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    assert hasattr(model, "crossed_")
    assert not hasattr(model.partial_fit(V[200:]), "crossed_")  # it compared fits of the same rows


def test_models_of_measurements_do_not_grow() -> None:
    rng = np.random.default_rng(8)
    model = dfact.ExpectileMF(1, ridge=0.1).fit(rng.random((20, 5))).fit_measurements(rng.random((30, 4, 5)), rng.random(30), (4, 5))
    with pytest.raises(DataError, match="fitted to linear measurements"):
        model.partial_fit(rng.random((6, 5)))


@pytest.mark.further
def test_the_command_updates_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    V = planted(9, 500, 15, 2, 0.8, 0.2)[1]
    for name, part in (("new", V[300:]), ("moved", V[300:] + np.where(np.arange(15) == 4, 1.0, 0.0))):
        dfact.import_array(part, tmp_path / f"{name}.zarr")
    model, new, moved = (str(tmp_path / name) for name in ("a.model", "new.zarr", "moved.zarr"))
    dfact.save_model(dfact.ExpectileMF(2, tau=0.3, ridge=0.1).fit(V[:300]), model)
    assert main(["update", model, moved, "--check"]) == 3
    assert "4 mean residual" in capsys.readouterr().out
    assert main(["update", model, new]) == 0
    assert "200 of 500 rows were added" in capsys.readouterr().out
    assert dfact.load_model(model).row_factors_.shape == (500, 2)
