"""Expectile matrix factorization: recovery, descent, both solvers, executors, measurements, errors."""

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.models.expectile import alternation as emf_solver
from dfact.models.expectile import sampled_entries
from dfact.models.expectile.alternation import balance
from tests.conftest import CutRows
from tests.suites.estimator import EstimatorSuite

TAUS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]


def planted(seed: int, n: int = 150, m: int = 110, k: int = 3, observed: float = 0.5, noise: float = 0.0) -> Any:
    """Return M of rank k, and its observed entries with skewed noise, NaN elsewhere."""
    rng = np.random.default_rng(seed)
    M = rng.random((n, k)) @ rng.random((m, k)).T
    V = M + noise * rng.chisquare(3, (n, m))
    return M, np.where(rng.random((n, m)) < observed, V, np.nan)


def losses(r: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    return np.nan_to_num(r) ** 2 * np.abs(tau - (r < 0))


def as_sparse(V: NDArray[np.float64]) -> Any:
    places = np.nonzero(~np.isnan(V))
    return sp.csr_array((V[places], places), shape=V.shape)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize(("solver", "observed"), [("exact", 0.4), ("surrogate", 0.8)])
def test_noiseless_matrices_are_recovered(tau: float, solver: str, observed: float) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        M = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 90))
        V = np.where(rng.random(M.shape) < observed, M, np.nan)
        model = dfact.ExpectileMF(3, tau=tau, solver=solver, max_iter=1000, tol=1e-13).fit(V)
        R = model.inverse_transform(model.row_factors_)
        assert np.linalg.norm(R - M) <= 1e-6 * np.linalg.norm(M)


@pytest.mark.parametrize("tau", TAUS)
def test_noiseless_measurements_are_recovered(tau: float) -> None:
    rng = np.random.default_rng(1)
    M = rng.standard_normal((14, 2)) @ rng.standard_normal((2, 11))
    A = rng.standard_normal((130, 14, 11))
    b = np.einsum("pij,ij->p", A, M)
    model = dfact.ExpectileMF(2, tau=tau, max_iter=500, tol=1e-13).fit_measurements(A, b, (14, 11))
    assert np.linalg.norm(model.row_factors_ @ model.components_ - M) <= 1e-6 * np.linalg.norm(M)
    assert (np.diff(model.objective_history_) <= 1e-10 * model.objective_history_[0]).all()
    np.testing.assert_allclose(model.predict_entries([3, 0], 5), M[[3, 0], 5], atol=1e-5)


def test_measurements_of_single_entries_equal_completion() -> None:
    """Completion by fit and by fit_measurements has one minimum; sparse matrices A_i give results bit-identical to dense ones."""
    _, V = planted(3, 20, 16, 2, 0.7, 0.2)
    i, j = np.nonzero(~np.isnan(V))
    A = sp.csr_array((np.ones(len(i)), (np.arange(len(i)), i * 16 + j)), shape=(len(i), 20 * 16))
    settings: Any = {"tau": 0.2, "ridge": 1e-3, "max_iter": 5000, "tol": 1e-13}
    measured = dfact.ExpectileMF(2, **settings).fit_measurements(A, V[i, j], V.shape)
    completed = dfact.ExpectileMF(2, **settings, solver="exact").fit(V)
    np.testing.assert_allclose(measured.objective_history_[-1], completed.objective_history_[-1], rtol=1e-6)
    dense = dfact.ExpectileMF(2, **settings).fit_measurements(A.toarray(), V[i, j], V.shape)
    np.testing.assert_allclose(dense.row_factors_ @ dense.components_, measured.row_factors_ @ measured.components_, atol=1e-6)


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
@pytest.mark.parametrize("tau", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("orthogonalize", [True, False])
def test_the_objective_never_rises_and_is_what_is_reported(solver: str, tau: float, orthogonalize: bool) -> None:
    for seed in range(3):
        _, V = planted(seed, noise=0.5)
        ridge = 10.0**-seed
        model = dfact.ExpectileMF(5, tau=tau, ridge=ridge, solver=solver, orthogonalize=orthogonalize, max_iter=40, tol=0).fit(V)
        history = model.objective_history_
        assert (np.diff(history) <= 1e-12 * history[0]).all()
        X, Y = model.row_factors_, model.column_factors_
        expected = losses(V - X @ Y.T, tau).sum() + ridge * (np.sum(X**2) + np.sum(Y**2))
        np.testing.assert_allclose(history[-1], expected, rtol=1e-10)


@pytest.mark.further
@pytest.mark.parametrize(("seed", "orthogonalize"), [(0, True), (1, False)])
def test_long_alternations_are_accelerated(seed: int, orthogonalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They descend as without momentum, and come as near to the limit in fewer than half of the iterations."""
    _, V = planted(seed, k=3, observed=0.3, noise=0.2)
    settings: Any = {
        "tau": 0.9,
        "ridge": 0.1,
        "tol": 0,
        "orthogonalize": orthogonalize,
        "init": np.random.default_rng(seed).random((4, 110)),
    }
    whole, model = (dfact.ExpectileMF(4, max_iter=max_iter, **settings).fit(V) for max_iter in (1000, 200))
    monkeypatch.setattr(emf_solver, "_PLAIN_ITERATIONS", np.inf)
    plain = dfact.ExpectileMF(4, max_iter=400, **settings).fit(V)
    for fitted in (whole, model):
        assert (np.diff(fitted.objective_history_) <= 1e-12 * fitted.objective_history_[0]).all()
    distances = [fitted.objective_history_[-1] / whole.objective_history_[-1] - 1 for fitted in (model, plain)]
    assert distances[0] < distances[1]


@pytest.mark.parametrize("tau", [0.1, 0.9])
def test_rejected_steps_are_not_repeated(tau: float) -> None:
    """Columns for which the shared curvature is inaccurate begin with shorter steps in the next pass."""
    _, V = planted(2, noise=0.5)
    model = dfact.ExpectileMF(5, tau=tau, ridge=1e-2, solver="surrogate", max_iter=400, tol=0).fit(V)
    assert len(model.objective_history_) // 2 >= 0.7 * 400


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.9])
def test_both_solvers_reach_the_same_objective(tau: float) -> None:
    for seed in range(3):
        _, V = planted(seed, 300, 80, 2, 0.75, 0.1)
        settings: Any = {"tau": tau, "ridge": 1e-2, "max_iter": 3000, "tol": 1e-12}
        exact, surrogate = (dfact.ExpectileMF(2, solver=solver, **settings).fit(V) for solver in ("exact", "surrogate"))
        np.testing.assert_allclose(surrogate.objective_history_[-1], exact.objective_history_[-1], rtol=1e-6)
        # Stationary: each side is at its minimum given the other.
        X, Y = exact.row_factors_, exact.column_factors_
        r = V - X @ Y.T
        gradient = 1e-2 * Y - np.nan_to_num(np.abs(tau - (r < 0)) * r).T @ X
        assert np.abs(gradient).max() <= 1e-4 * np.nansum(np.abs(V)) / V.shape[1]


def test_tau_one_half_is_alternating_least_squares() -> None:
    """The same iterates as ALS of the observed entries in NumPy, each half-step to its minimum."""
    _, V = planted(5, 60, 40, 3, 0.6, 0.3)
    ridge, Y = 0.1, np.random.default_rng(0).standard_normal((40, 3))
    seen = ~np.isnan(V)
    model = dfact.ExpectileMF(3, tau=0.5, ridge=ridge, solver="exact", init=Y.T, orthogonalize=False, max_iter=5, tol=0).fit(V)

    def half_step(V: NDArray[np.float64], seen: NDArray[np.bool_], F: NDArray[np.float64]) -> NDArray[np.float64]:
        normal = [(F[s].T @ F[s] / 2 + ridge * np.eye(3), F[s].T @ v[s] / 2) for v, s in zip(V, seen, strict=True)]
        return np.array([np.linalg.solve(*pair) for pair in normal])

    for _ in range(5):
        X = half_step(V, seen, Y)
        Y = half_step(V.T, seen.T, X)
    np.testing.assert_allclose(model.column_factors_, Y, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.row_factors_, half_step(V, seen, Y), rtol=1e-7, atol=1e-9)


def test_each_half_step_of_the_rows_is_exact() -> None:
    """Given the columns' factors no row can be improved: its gradient is 0."""
    _, V = planted(2, noise=1.0)
    model = dfact.ExpectileMF(4, tau=0.15, ridge=0.5, max_iter=3, tol=0).fit(V)
    X, Y = model.row_factors_, model.column_factors_
    r = V - X @ Y.T
    np.testing.assert_allclose(np.nan_to_num(np.abs(0.15 - (r < 0)) * r) @ Y, 0.5 * X, atol=1e-10)
    np.testing.assert_allclose(model.transform(V), X, atol=1e-10)


def test_factors_are_a_singular_value_decomposition() -> None:
    _, V = planted(4, observed=0.3, noise=0.5)
    model = dfact.ExpectileMF(4, tau=0.3, ridge=0.1, max_iter=2000, tol=1e-12).fit(V)
    X, Y = (factors.T @ factors for factors in (model.row_factors_, model.column_factors_))
    np.testing.assert_allclose(X, Y, atol=1e-4 * X.max())
    assert (np.abs(X - np.diag(np.diag(X))) <= 1e-4 * X.max()).all()
    assert (np.diff(np.diag(Y)) <= 0).all()
    assert (model.loadings_.max() >= -model.loadings_.min()).all()


@pytest.mark.parametrize("rank", [2, 4])
def test_balancing_keeps_the_product_and_never_adds_to_the_ridge(rank: int) -> None:
    rng = np.random.default_rng(rank)
    X, Y = rng.standard_normal((30, rank)) @ rng.standard_normal((rank, 4)), rng.standard_normal((20, 4))
    turn, turn_rows = balance(X.T @ X, Y)
    XS, YT = X @ turn_rows.T, Y @ turn
    np.testing.assert_allclose(XS @ YT.T, X @ Y.T, atol=1e-6)
    assert np.sum(XS**2) + np.sum(YT**2) <= np.sum(X**2) + np.sum(Y**2)


class TestEstimator(EstimatorSuite):
    model = dfact.ExpectileMF
    parameters: ClassVar = {"n_components": 2, "tau": 0.2, "ridge": 0.1, "max_iter": 4, "tol": 0}
    rows = "row_factors_"
    codes = False
    tolerance = 1e-3
    derived = ("loadings_",)

    def data(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        V = (rng.random((1_400, 2)) @ rng.random((2, 60)) + rng.exponential(0.3, (1_400, 60))).astype(np.float32)
        V[rng.random(V.shape) > 0.8] = np.nan
        return V


@pytest.mark.further
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_executors_and_chunks_give_the_same_result(
    kind: str, client: Client, tmp_path: Path, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several partitions: threads, processes and other chunks of the store give equal bits, as partitions depend on the shape alone."""
    monkeypatch.setattr(emf_solver, "_PLAIN_ITERATIONS", 1)
    cut_rows(block_entries=1 << 12, chunk_entries=1 << 14, partition_entries=1 << 15)
    rng = np.random.default_rng(0)
    n, m, observed = (2000, 60, 0.8) if kind == "dense" else (2000, 400, 0.04)
    V = (rng.random((n, 2)) @ rng.random((2, m)) + rng.exponential(0.3, (n, m))).astype(np.float32)
    V[rng.random((n, m)) > observed] = np.nan
    data: Any = V if kind == "dense" else as_sparse(V)
    settings: Any = {"tau": 0.2, "max_iter": 4, "tol": 0}
    inline = dfact.ExpectileMF(2, **settings, executor="inline").fit(data)
    stored = dfact.import_array(data, tmp_path / "stored.zarr")
    assert dfact.plan(dfact.ExpectileMF(2), stored).n_partitions > 2
    models = [dfact.ExpectileMF(2, **settings, executor=executor).fit(stored) for executor in ("threads", client)]
    for model in models:
        np.testing.assert_array_equal(model.objective_history_, inline.objective_history_)
        np.testing.assert_array_equal(np.asarray(model.row_factors_), inline.row_factors_)
        np.testing.assert_array_equal(model.column_factors_, inline.column_factors_)


@pytest.mark.filterwarnings("ignore:the model.s entries have a root mean square:UserWarning")  # noise without a ridge
def test_dense_and_sparse_data_and_missing_codes_are_equivalent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    V = rng.integers(0, 9, (80, 30)).astype(float)
    V[rng.random(V.shape) < 0.7] = np.nan
    codes = np.where(np.isnan(V), 99, V).astype(np.uint8)
    inputs: list[Any] = [V, as_sparse(V), dfact.import_array(as_sparse(V), tmp_path / "a.zarr")]
    inputs += [dfact.import_array(codes, tmp_path / "b.zarr", missing=99)]
    fits = [dfact.ExpectileMF(2, tau=0.3, dtype="float64", max_iter=20).fit(data) for data in inputs]
    for model in fits[1:]:
        np.testing.assert_allclose(model.objective_history_, fits[0].objective_history_, rtol=1e-9)
    zeros = as_sparse(np.where(V == 0, 0.0, V))
    assert zeros.nnz == (~np.isnan(V)).sum()  # stored zeros are observed


@pytest.mark.exhaustive
def test_entries_are_in_original_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = tmp_path / "table.csv"
    V = rng.integers(3, 9, (60, 8))
    table.write_text(",".join(f"q{j}" for j in range(8)) + "\n" + "\n".join(",".join(map(str, row)) for row in V) + "\n")
    stored = dfact.import_table(table, tmp_path / "t.zarr", items="q*")
    assert stored.offset.any()
    model, direct = (dfact.ExpectileMF(2, tau=0.4, dtype="float64", max_iter=50).fit(data) for data in (stored, V.astype(float)))
    np.testing.assert_allclose(model.predict_entries(5, np.arange(8)), direct.predict_entries(5, np.arange(8)), rtol=1e-6)


def test_several_taus_share_the_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One read of each block serves all fits; each model has the bits of a separate fit."""
    from dfact.engine import partitions as partition

    _, V = planted(1, noise=0.5, observed=0.9)
    stored = dfact.import_array(V, tmp_path / "v.zarr")
    visits = []
    blocks = partition.Partitions.blocks
    monkeypatch.setattr(partition.Partitions, "blocks", lambda self, dtype, work=None: visits.append(dtype) or blocks(self, dtype, work))
    settings: Any = {"max_iter": 7, "tol": 0}
    singles = [dfact.ExpectileMF(3, tau=tau, **settings).fit(stored) for tau in (0.1, 0.5, 0.9)]
    one = len(visits) // 3
    together = dfact.ExpectileMF(3, **settings).fit_each(stored, [0.1, 0.5, 0.9])
    assert len(visits) == 4 * one
    for single, model in zip(singles, together, strict=True):
        assert model.tau == single.tau
        np.testing.assert_array_equal(model.objective_history_, single.objective_history_)
        np.testing.assert_array_equal(np.asarray(model.row_factors_), np.asarray(single.row_factors_))
    assert together[0].predict_entries(0, 0) < together[1].predict_entries(0, 0) < together[2].predict_entries(0, 0)


def test_columns_and_rows_without_entries_have_factors_0() -> None:
    _, V = planted(0, noise=0.2)
    V[7], V[:, 4] = np.nan, np.nan
    with (
        pytest.warns(UserWarning, match=r"row 7 has no observed entry \(1 in total\)"),
        pytest.warns(UserWarning, match="column '4' has no"),
    ):
        model = dfact.ExpectileMF(3, max_iter=20).fit(V)
    np.testing.assert_allclose(model.row_factors_[7], 0, atol=1e-6)
    np.testing.assert_allclose(model.column_factors_[4], 0, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.transform(np.where(np.isnan(V), np.nanmean(V), V)[:3])  # columns may be observed by then


@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_more_components_than_the_rank(solver: str) -> None:
    """Superfluous components, and rows with fewer entries than components: the ridge determines their factors."""
    _, V = planted(6, 60, 30, 2, 0.6)
    model = dfact.ExpectileMF(8, tau=0.3, solver=solver, max_iter=300, tol=1e-10).fit(V)
    assert np.isfinite(model.row_factors_).all()
    assert losses(V - model.inverse_transform(model.row_factors_), 0.3).sum() <= 1e-5 * np.nansum(V**2)
    wide = dfact.ExpectileMF(40, solver=solver, max_iter=3, tol=0).fit(V)  # more than columns
    assert wide.components_.shape == (40, 30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["exact", "surrogate"])
def test_precision(dtype: str, solver: str) -> None:
    _, V = planted(8, noise=0.3)
    model = dfact.ExpectileMF(3, tau=0.2, solver=solver, dtype=dtype, max_iter=30, tol=0).fit(V)
    other = dfact.ExpectileMF(3, tau=0.2, solver=solver, max_iter=30, tol=0).fit(V)
    assert model.row_factors_.dtype == model.column_factors_.dtype == np.dtype(dtype)
    np.testing.assert_allclose(model.objective_history_[-1], other.objective_history_[-1], rtol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_entries_that_run_away_are_warned_of(seed: int, tmp_path: Path) -> None:
    """Noise in few entries needs a ridge; the same fit has no warning with one, or without noise."""
    rng = np.random.default_rng(seed)
    noisy = np.where(rng.random((150, 60)) < 0.1, rng.integers(1, 6, (150, 60)), np.nan)
    noisy[:, 0] = 3
    warning = r"root mean square of .*, and the largest of the data is 5: 4 components fit the noise .* ridge of 1e-08; choose the ridge"
    with pytest.warns(UserWarning, match=warning):
        model = dfact.ExpectileMF(4, max_iter=20).fit(noisy)
    assert np.abs(model.row_factors_ @ model.components_).max() > 10
    with pytest.warns(UserWarning, match=warning):
        dfact.ExpectileMF(4, max_iter=20).fit(dfact.import_array(noisy, tmp_path / "noisy.zarr"))
    dfact.ExpectileMF(4, max_iter=20, ridge=1.0).fit(noisy)
    dfact.ExpectileMF(3, max_iter=20).fit(planted(seed, observed=0.3)[1])


@pytest.mark.parametrize("seed", range(2))
def test_crossings_of_several_expectiles_are_recorded(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    V = planted(seed, 60, 40, noise=0.4)[1]
    models = dfact.ExpectileMF(4, ridge=0.1, max_iter=20).fit_each(V, [0.5, 0.4, 0.9])
    entries = [model.row_factors_ @ model.components_ for model in models]
    shares = [(entries[1] > entries[0]).mean(), (entries[0] > entries[2]).mean()]
    assert 0 < shares[0] < 0.5
    np.testing.assert_allclose(models[0].crossed_, shares, atol=1e-3)
    np.testing.assert_array_equal(models[0].taus_, [0.4, 0.9])
    assert models[1].crossed_[0] == models[0].crossed_[0]
    dfact.save_model(models[0], tmp_path / "model")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "model").crossed_, models[0].crossed_)
    # Evenly spaced rows stand for all of them, in memory and in a store.
    monkeypatch.setattr(sampled_entries, "_SAMPLE", 15 * 40)
    monkeypatch.setattr(sampled_entries, "_CHUNK", 4 * 40)
    stored = dfact.ExpectileMF(4, ridge=0.1, max_iter=20).fit_each(dfact.import_array(V, tmp_path / "v.zarr"), [0.5, 0.4])
    expected = (entries[1] > entries[0])[::4].mean()
    assert stored[0].crossed_ == pytest.approx([expected], abs=1e-3)


def test_predict_accepts_indices_of_any_shape(tmp_path: Path) -> None:
    _, V = planted(0)
    model = dfact.ExpectileMF(2, max_iter=5).fit(dfact.import_array(V, tmp_path / "v.zarr"))
    R = model.inverse_transform(np.asarray(model.row_factors_))
    rows, columns = np.array([[3], [140], [3]]), np.array([0, 109])
    np.testing.assert_allclose(model.predict_entries(rows, columns), R[rows, columns])
    assert model.predict_entries(1, 2).shape == ()
    assert model.predict_entries([], []).shape == (0,)
    for wrong, message in (([150], "rows hold .* from 0 to 149"), ([-1], "rows hold"), ([0.5], "rows hold")):
        with pytest.raises(dfact.DataError, match=message):
            model.predict_entries(wrong, [0])
    with pytest.raises(dfact.DataError, match="columns hold"):
        model.predict_entries([0], [110])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"tau": 0}, "tau is 0, expected a number between 1e-6 and 1 - 1e-6"),
        ({"tau": 1.0}, "tau is 1.0"),
        ({"tau": [0.1, 0.5]}, "tau is"),
        ({"ridge": 0}, "ridge is 0, expected a number above 0"),
        ({"ridge": np.nan}, "ridge is nan"),
        ({"ridge": np.inf}, "ridge is inf"),
        ({"n_components": 0}, "n_components is 0"),
        ({"solver": "newton"}, "solver is 'newton'"),
        ({"init": "pca"}, "init is 'pca'"),
        ({"init": np.ones((3, 3))}, r"init has shape \(3, 3\)"),
        ({"init": np.full((2, 110), np.nan)}, "init holds NaN"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1}, "tol is -1"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        dfact.ExpectileMF(**{"n_components": 2} | parameters).fit(planted(0)[1])


def test_invalid_data_is_refused() -> None:
    _, V = planted(0, 20, 9)
    model = dfact.ExpectileMF(2)
    with pytest.raises(dfact.DataError, match="no observed entry"):
        model.fit(np.full((4, 3), np.nan))
    with pytest.raises(dfact.DataError, match="no observed entry"):
        model.fit(sp.csr_array((4, 3)))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(np.isnan(V), np.inf, V))
    for taus in ([], 0.5):
        with pytest.raises(dfact.ParameterError, match=r"taus is .* at least one number"):
            model.fit_each(V, taus)  # type: ignore[arg-type]  # what is tested
    for huge, dtype in ((1e25, "float32"), (1e39, "float32"), (1e160, "float64")):
        with pytest.raises(dfact.DataError, match=f"X holds large entries: row .* holds .* as {dtype} overflows"):
            dfact.ExpectileMF(2, dtype=dtype).fit(np.where(np.arange(9) == 4, huge, V))
    with pytest.raises(dfact.ParameterError, match="shape is 6"):
        model.fit_measurements(np.ones((3, 6)), np.ones(3), 6)  # type: ignore[arg-type]  # as above
    for A, b, message in (
        (np.ones((3, 5)), np.ones(3), r"A has shape \(3, 5\), expected \(p, 2, 3\) or \(p, 6\)"),
        (np.ones((3, 6)), np.ones(2), r"b has shape \(2,\)"),
        (np.ones((3, 6)), np.array([1, np.nan, 1]), "NaN or infinity"),
    ):
        with pytest.raises(dfact.DataError, match=message):
            model.fit_measurements(A, b, (2, 3))


def test_the_objective_of_measurements_is_what_is_reported() -> None:
    rng = np.random.default_rng(3)
    A, b = rng.standard_normal((60, 6, 5)), rng.exponential(1, 60)
    model = dfact.ExpectileMF(2, tau=0.2, ridge=0.5, max_iter=7, tol=0).fit_measurements(A, b, (6, 5))
    X, Y = model.row_factors_, model.column_factors_
    expected = losses(b - np.einsum("pij,ij->p", A, X @ Y.T), 0.2).sum() + 0.5 * (np.sum(X**2) + np.sum(Y**2))
    np.testing.assert_allclose(model.objective_history_[-1], expected)
    assert len(model.objective_history_) == 1 + 2 * 7 + 1
    assert (np.diff(model.objective_history_) <= 1e-12 * expected).all()


def test_measurements_without_information_give_0() -> None:
    A = np.random.default_rng(0).random((20, 6, 5))
    for matrices, b in ((A, np.zeros(20)), (0 * A, np.ones(20))):
        model = dfact.ExpectileMF(2).fit_measurements(matrices, b, (6, 5))
        np.testing.assert_array_equal(model.predict_entries(np.arange(6), 2), 0)


def test_fit_each_does_not_change_the_model() -> None:
    _, V = planted(0, 40, 30)
    model = dfact.ExpectileMF(2, max_iter=3)
    fitted = model.fit_each(V[:, :20], [0.1, 0.1])
    assert not [name for name in vars(model) if name.endswith("_")]
    np.testing.assert_array_equal(fitted[0].row_factors_, fitted[1].row_factors_)
    model.fit(V).fit_each(V[:, :20], [0.3])
    assert model.n_features_in_ == len(model.column_labels_) == 30
    assert model.transform(V).shape == (40, 2)
