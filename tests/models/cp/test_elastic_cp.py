"""ElasticCP: descent, optimality, recovery, the solution path, missing entries, parity of inputs and executors, invalid input."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from dfact.data.synthetic import elastic_cp_simulation
from dfact.engine.passes import Block
from dfact.errors import ParameterError
from dfact.models.cp import block_descent as elastic_cp_solvers
from dfact.models.cp.passes import FillPass, Point, RowStart, Sums, extrapolate
from dfact.models.cp.path import default_lambdas
from dfact.models.cp.problem import ElasticNet, RowPrior
from dfact.report.presenters.base import items_plot, model_text, rows_text
from tests.cases import exhaustive_unless
from tests.conftest import REAL_DATA, CutRows, planted_answers
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
SHAPES = [(40, 15), (30, 14, 9), (20, 9, 6, 5)]


def planted(shape: tuple[int, ...], rank: int, seed: int, *, missing: float = 0.0, noise: float = 0.1) -> Array:
    """A tensor of this rank with normal noise, NaN where missing."""
    rng = np.random.default_rng(seed)
    Z = model_of([rng.standard_normal((size, rank)) for size in shape])
    Z = Z + noise * Z.std() * rng.standard_normal(shape)
    Z[rng.random(shape) < missing] = np.nan
    return Z


def model_of(factors: list[Array]) -> Array:
    total = 0.0
    for r in range(factors[0].shape[1]):
        product = np.asarray(factors[0], np.float64)[:, r]
        for A in factors[1:]:
            product = np.multiply.outer(product, np.asarray(A, np.float64)[:, r])
        total = total + product
    return np.asarray(total)


def variances_of(Z: Array, rank: int) -> list[Array]:
    """The estimated prior, by its definition: the missing entries of a slice count as much as its observed ones on average."""
    theta = (np.nanmean(Z**2) * Z.size / rank) ** (1 / Z.ndim)
    found = []
    for n in range(Z.ndim):
        axes = tuple(m for m in range(Z.ndim) if m != n)
        squares = np.nanmean(Z**2, axis=axes)
        found.append(np.maximum(theta * squares / squares.sum(), 1e-8))
    return found


def objective(Z: Array, model: dfact.ElasticCP, variances: list[Array]) -> float:
    factors = [np.asarray(A, np.float64) for A in model.factors_]
    penalty = sum(
        (1 - model.l1_ratio) / 2 * (A**2 / v[:, None]).sum() + model.l1_ratio * np.abs(A).sum()
        for A, v in zip(factors, variances, strict=True)
    )
    return float(0.5 * np.nansum((Z - model_of(factors)) ** 2) + model.lam * penalty)


def score(truth: list[Array], found: list[Array]) -> float:
    """Equation 57, components matched, averaged over the true ones."""
    cosines = 1.0
    for A, B in zip(truth, map(np.asarray, found), strict=True):
        cosines = cosines * ((A / np.linalg.norm(A, axis=0)).T @ (B / np.maximum(np.linalg.norm(B, axis=0), 1e-300)))
    rows, columns = linear_sum_assignment(-cosines)
    return float(np.asarray(cosines)[rows, columns].sum() / truth[0].shape[1])


@pytest.mark.parametrize(
    ("shape", "update", "missing"),
    exhaustive_unless(
        lambda case: case[0] == SHAPES[0] or case[1:] == ("exact", 0.3), itertools.product(SHAPES, ("fill", "exact"), (0.0, 0.3))
    ),
)
@pytest.mark.filterwarnings("ignore:the penalty sets all")
def test_the_objective_is_the_documented_one_and_never_increases(shape: tuple[int, ...], update: str, missing: float) -> None:
    Z = planted(shape, 3, seed=len(shape), missing=missing)
    for lam, alpha, nonnegative, init in ((0.0, 0.2, False, "random"), (2.0, 0.2, False, "svd"), (30.0, 0.9, True, "random")):
        model = dfact.ElasticCP(
            4, lam=lam, l1_ratio=alpha, nonnegative=nonnegative, missing=update, init=init, max_iter=40, tol=0, random_state=1
        ).fit(Z)
        history = model.objective_history_
        assert len(history) == 41
        assert (np.diff(history) <= 1e-12 * history[:-1]).all()
        assert history[-1] == pytest.approx(objective(Z, model, variances_of(Z, 4)), rel=1e-9)
        assert (np.diff(model.weights_) <= 0).all()
        assert not nonnegative or min(A.min() for A in model.factors_) >= 0
        np.testing.assert_allclose(model.reconstruct(), model_of(model.factors_), atol=1e-10)


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_extrapolation_saves_iterations(seed: int, missing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of all positive entries are nearly collinear, so that updates without extrapolation converge slowly."""
    rng = np.random.default_rng(seed)
    Z = model_of([rng.random((size, 4)) for size in (60, 20, 10)]) + 0.1 * rng.standard_normal((60, 20, 10))
    Z[rng.random(Z.shape) < missing] = np.nan
    settings: dict[str, Any] = {"lam": 0.01, "missing": "fill", "max_iter": 5000, "tol": 1e-7, "random_state": seed}
    fast = dfact.ElasticCP(4, **settings).fit(Z)
    monkeypatch.setattr(elastic_cp_solvers, "_MAX_MOMENTUM", 0.0)
    plain = dfact.ElasticCP(4, **settings).fit(Z)
    assert fast.converged_
    assert fast.objective_history_[-1] <= plain.objective_history_[-1] * (1 + 1e-5)
    assert fast.n_iter_ < 0.7 * plain.n_iter_


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["fast", "collinear", "slow"])
def test_a_fit_stops_near_its_limit(kind: str, seed: int) -> None:
    """The slow data is mostly missing, and its vectors are nearly collinear."""
    rng = np.random.default_rng(seed)
    Z, init = planted((60, 20, 10), 4, seed, missing=0.1), "svd" if kind == "fast" else "random"
    if kind != "fast":
        Z = model_of([rng.random((size, 4)) for size in (60, 20, 10)]) + 0.1 * rng.standard_normal((60, 20, 10))
        Z[rng.random(Z.shape) < (0.7 if kind == "slow" else 0.0)] = np.nan
    tols = (1e-3, 1e-4, 1e-5, 1e-12)
    *fits, end = (dfact.ElasticCP(4, lam=0.1, init=init, tol=tol, max_iter=5000, random_state=seed).fit(Z) for tol in tols)
    for tol, found in zip(tols[:-1], fits, strict=True):
        assert found.converged_
        assert found.remaining_ < tol
        assert found.objective_history_[-1] < (1 + 2 * tol) * end.objective_history_[-1]
        assert kind != "slow" or found.n_iter_ > 50


@pytest.mark.further
@pytest.mark.parametrize(("seed", "missing"), [(0, 0.3), (1, 0.0)])
def test_by_default_a_fit_reaches_the_objective_of_many_iterations(seed: int, missing: float) -> None:
    Z = planted_answers(1500, 200, 5, seed, missing).reshape(1500, 50, 4)
    found, end = (dfact.ElasticCP(5, random_state=seed, **settings).fit(Z) for settings in ({}, {"tol": 0, "max_iter": 300}))
    assert found.n_iter_ < 200
    assert found.objective_history_[-1] < 1.001 * end.objective_history_[-1]  # seed 1 pauses near a saddle, 0.09% above


@pytest.mark.parametrize("update", ["fill", "exact"])
def test_a_fit_of_a_path_that_starts_at_its_solution_takes_two_iterations(update: str) -> None:
    Z = planted((30, 14, 9), 3, 0, missing=0.1)
    init = [np.random.default_rng(n).standard_normal((size, 3)) for n, size in enumerate(Z.shape)]
    path = dfact.ElasticCP(3, missing=update, init=init, tol=1e-5).path(Z, [1e-3, 1.0001e-3], refine=False)
    assert len(path.steps[0].objectives) > 2
    assert len(path.steps[1].objectives) == 2
    assert path.steps[1].converged
    assert np.isnan(path.at(1).remaining_)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_pass_returns_to_the_point_before_the_extrapolation(nonnegative: bool, missing: float) -> None:
    rng = np.random.default_rng(0)
    Z, H, scales = planted((30, 8, 5), 3, 0, missing=missing), rng.standard_normal((3, 40)), np.array([0.5, 2.0, 1.0])
    pass_ = FillPass(
        ElasticNet(1.0, 0.2, nonnegative), RowPrior("none"), RowStart(3, ElasticNet(1.0, 0.2, nonnegative), H), np.dtype(np.float64)
    )
    block = Block(Z, None, 0, 0)

    def after(*points: Point) -> tuple[dict[str, Array], Sums]:
        state = pass_.start(block)
        for point in points:
            state, sums = pass_.step(block, state, point)
        return {name: array.copy() for name, array in state.arrays().items()}, sums

    first, plain = Point(H, H @ H.T, np.ones(3)), Point(H, H @ H.T, scales)
    expected, found = after(first, plain), after(first, replace(plain, weight=0.7), replace(first, back=True))
    for name, array in expected[0].items():
        np.testing.assert_array_equal(found[0][name], array)
    for name in ("gram", "cross", "squares", "sizes"):
        np.testing.assert_array_equal(getattr(found[1], name), getattr(expected[1], name))
    (begun, _), (moved, _) = after(first), after(first, replace(plain, weight=0.7))
    step = scales[:, None] * begun["factors"] - begun["previous"]
    np.testing.assert_allclose(moved["previous"], scales[:, None] * begun["factors"])
    extrapolated = extrapolate(moved["previous"], begun["previous"], 0.7, nonnegative=nonnegative)
    free = (extrapolated != 0) & (moved["previous"] != 0)
    np.testing.assert_allclose(extrapolated[free], (moved["previous"] + 0.7 * step)[free])
    assert not extrapolated[moved["previous"] == 0].any()


@pytest.mark.further
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(70, 30, 7), (40, 90, 70)])
def test_a_pass_is_one_of_dense_products(shape: tuple[int, ...], dtype: type, missing: float) -> None:
    """Wide slices are multiplied by groups of columns."""
    rng = np.random.default_rng(len(shape))
    Z, H = planted(shape, 3, 0, missing=missing).astype(dtype), rng.standard_normal((6, shape[1] * shape[2])).astype(dtype)
    pass_ = FillPass(ElasticNet(1.0, 0.2), RowPrior("none"), RowStart(6, ElasticNet(1.0, 0.2), H.astype(np.float64)), np.dtype(dtype))
    block, V = Block(Z, None, 0, 0), Z.reshape(len(Z), -1)
    state = pass_.start(block)
    model = state.factors.T.astype(np.float64) @ H
    target = np.where(np.isnan(V), model, V)
    state, sums = pass_.step(block, state, Point(H, H @ H.T, np.ones(6, dtype)))
    rtol = 1e-4 if dtype is np.float32 else 1e-12
    assert sums.squares == pytest.approx(((target - model) ** 2).sum(), rel=rtol)
    cross = state.factors @ target
    np.testing.assert_allclose(sums.cross, cross, atol=rtol * np.abs(cross).max())


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("update", ["fill", "exact"])
def test_optimality_at_convergence(update: str, nonnegative: bool, alpha: float) -> None:
    """Karush, Kuhn, Tucker in every mode: a subgradient of the objective is 0."""
    Z, rank, lam = planted((20, 12, 8), 3, seed=2, missing=0.2), 3, 20.0
    model = dfact.ElasticCP(
        rank, lam=lam, l1_ratio=alpha, nonnegative=nonnegative, missing=update, max_iter=20_000, tol=1e-15, random_state=0
    ).fit(Z)
    error = np.nan_to_num(model_of(model.factors_) - Z)
    for n, (A, v) in enumerate(zip(model.factors_, variances_of(Z, rank), strict=True)):
        others = [B for m, B in enumerate(model.factors_) if m != n]
        H = np.stack([model_of([B[:, [r]] for B in others]).ravel() for r in range(rank)])
        gradient = np.moveaxis(error, n, 0).reshape(len(A), -1) @ H.T + lam * (1 - alpha) * A / v[:, None]
        scale = np.abs(np.nan_to_num(np.moveaxis(Z, n, 0).reshape(len(A), -1)) @ H.T).max() + lam
        moving = A != 0
        assert np.abs(gradient[moving] + lam * alpha * np.sign(A[moving])).max(initial=0) <= 1e-5 * scale
        resting = -gradient[~moving] if nonnegative else np.abs(gradient[~moving])
        assert resting.max(initial=-np.inf) <= lam * alpha + 1e-5 * scale


@pytest.mark.parametrize("shape", [(25, 12, 10), (16, 8, 6, 5)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_treatments_of_missing_entries_reach_the_same_objective(seed: int, shape: tuple[int, ...]) -> None:
    Z = planted(shape, 3, seed, missing=0.25)
    settings: dict[str, Any] = {"lam": 3.0, "l1_ratio": 0.3, "max_iter": 20_000, "tol": 1e-13, "random_state": seed, "init": "svd"}
    filled, exact = (dfact.ElasticCP(3, missing=missing, **settings).fit(Z) for missing in ("fill", "exact"))
    assert filled.objective_history_[-1] == pytest.approx(exact.objective_history_[-1], rel=1e-6)
    assert filled.rank_ == exact.rank_
    assert np.linalg.norm(filled.reconstruct() - exact.reconstruct()) < 1e-4 * np.linalg.norm(exact.reconstruct())


@pytest.mark.parametrize("update", ["fill", "exact"])
@pytest.mark.parametrize("init", ["random", "svd"])
def test_a_start_larger_than_the_data_is_scaled_down(init: str, update: str) -> None:
    Z = planted((20, 8, 6), 2, 1, missing=0.2)
    fits = {}
    for unit in (1.0, 1e-3):
        model = dfact.ElasticCP(2, lam=1e-6 * unit ** (4 / 3), missing=update, init=init, random_state=0, max_iter=1000)
        fits[unit] = model.fit(unit * Z).explained_share_
    assert min(fits.values()) > 0.97, fits


@pytest.mark.parametrize("update", ["fill", "exact"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fixed_support_keeps_its_zeros_and_descends(seed: int, update: str) -> None:
    Z = elastic_cp_simulation(12, 3, seed, snr=20, missing=0.1).Z
    path = dfact.ElasticCP(4, missing=update, random_state=seed).path(Z, lambdas=[1.0, 100.0, 1000.0])
    for step in path.steps:
        assert step.refined is not None
        assert step.refined_iterations == 0 or step.refined_error <= step.relative_error * (1 + 1e-9)
        for shrunk, refined in zip(step.factors, step.refined, strict=True):
            assert sorted((shrunk == 0).sum(axis=0)) == sorted((refined == 0).sum(axis=0))
        shrunk, refined = path.at(0), path.at(0, refined=True)
        assert np.linalg.norm(np.nan_to_num(Z - shrunk.reconstruct())) == pytest.approx(
            path.steps[0].relative_error * np.linalg.norm(np.nan_to_num(Z)), rel=1e-9
        )
        squares = np.nansum((Z - refined.reconstruct()) ** 2)
        assert refined.explained_share_ == pytest.approx(1 - squares / np.nansum(Z**2))
        assert refined.objective_history_[-1] == pytest.approx(squares / 2, rel=1e-3)


@pytest.mark.skipif(not (REAL_DATA / "tensors" / "amino.npz").exists(), reason="the real tensors are not next to the project")
@pytest.mark.parametrize("update", ["fill", "exact"])
def test_amino_acids(update: str) -> None:
    """Three amino acids explain 99.94%; samples 1-3 hold one each."""
    X = np.load(REAL_DATA / "tensors" / "amino.npz")["X"]
    limits = {"max_iter": 2000, "tol": 1e-9} if update == "fill" else {"max_iter": 150, "tol": 1e-9}
    model = dfact.ElasticCP(3, lam=1e-6, l1_ratio=0.0, missing=update, init="svd", random_state=0, **limits).fit(X)
    assert model.explained_share_ == pytest.approx(0.9994, abs=1e-4)
    assert model.explained_share_ == pytest.approx(1 - ((X - model.reconstruct()) ** 2).sum() / (X**2).sum(), abs=1e-9)
    amounts = np.abs(model.factors_[0][:3] / np.abs(model.factors_[0]).max(axis=0))
    pure = amounts / amounts.max(axis=1, keepdims=True)
    assert sorted(pure.argmax(axis=1)) == [0, 1, 2]
    assert np.sort(pure, axis=1)[:, 1].max() < 0.02


def test_default_lambdas_are_the_papers() -> None:
    grid = default_lambdas()
    assert (np.diff(grid) > 0).all()
    np.testing.assert_allclose(grid[[0, 9, 10, 11, 12, 19, 20, 21, -1]], [1e-10, 0.1, 1, 10, 20, 90, 100, 200, 1e10])


@pytest.mark.parametrize("seed", [6, 9])
def test_the_path_of_table_1(seed: int) -> None:
    """6×6×6, rank 2 with 12 zeros, from rank 3: the rank falls to 0, all zeros are found, and the refined solution has no error."""
    factors = elastic_cp_simulation(6, 2, seed).factors
    sizes = [np.abs(A / np.abs(A).max(axis=0)) for A in factors]
    twelfth = np.sort(np.concatenate([size.ravel() for size in sizes]))[11]
    factors = [np.where(size <= twelfth, 0.0, A) for A, size in zip(factors, sizes, strict=True)]
    path = dfact.ElasticCP(3, l1_ratio=0.2, random_state=seed, tol=1e-8).path(model_of(factors))
    table = path.table
    assert table["rank"].drop_duplicates().tolist() == [3, 2, 1, 0]
    found = table[(table["rank"] == 2) & (table["zeros"] == 12) & (table["refined_error"] < 1e-5)]
    assert len(found) >= 3
    assert (found["relative_error"] > 100 * found["refined_error"]).all()
    refined = path.at(found.index[-1], refined=True)
    assert refined.rank_ == 2
    order = np.argsort(-np.prod([np.linalg.norm(A, axis=0) for A in factors], axis=0))
    for truth, A in zip(factors, refined.factors_, strict=True):
        np.testing.assert_array_equal(truth[:, order] == 0, A[:, :2] == 0)
    assert table.iloc[-1]["relative_error"] == 1
    assert not any(A.any() for A in path.at(len(table) - 1).factors_)


@pytest.mark.parametrize("seed", range(2))
def test_the_path_falls_in_rank_and_rises_in_error(seed: int) -> None:
    sim = elastic_cp_simulation(6, 2, seed)
    table = dfact.ElasticCP(3, l1_ratio=0.2, random_state=seed).path(sim.Z).table
    assert (table["rank"].diff().dropna() <= 0).all()
    assert table["rank"].iloc[-1] == 0
    late = table[table["lambda"] >= 10]
    assert (late["relative_error"].diff().dropna() > -1e-6).all()


@pytest.mark.further
@pytest.mark.parametrize(("size", "rank", "start", "missing", "alpha"), [(20, 10, 10, 0.0, 0.2), (30, 5, 6, 0.25, 0.8)])
def test_the_refined_path_recovers_planted_factors(size: int, rank: int, start: int, missing: float, alpha: float) -> None:
    """Tables 2 and 3, the step chosen as there (section 7.1.2)."""
    scores = []
    for seed in range(3):
        sim = elastic_cp_simulation(size, rank, seed, snr=20, missing=missing)
        lambdas = [lam for lam in default_lambdas() if lam >= 1e-4]
        path = dfact.ElasticCP(start, l1_ratio=alpha, random_state=seed).path(sim.Z, lambdas)
        table = path.table
        table = table[table["rank"] == table["rank"][table["rank"] >= rank].min()]
        assert table["rank"].iloc[0] == rank
        sparse = table[table["zeros"] <= sim.zeros]
        scores.append(score(sim.factors, path.at(sparse.index[-1], refined=True).factors_))
    assert np.mean(scores) >= 0.95


def test_transform_gives_the_fitted_rows_and_each_row_depends_on_itself_alone() -> None:
    Z = planted((30, 12, 7), 3, seed=4, missing=0.2)
    for nonnegative in (False, True):
        model = dfact.ElasticCP(3, lam=2.0, nonnegative=nonnegative, random_state=0).fit(Z)
        np.testing.assert_allclose(model.transform(Z), model.factors_[0], atol=1e-12)
        np.testing.assert_allclose(model.transform(Z[5:9]), model.factors_[0][5:9], atol=1e-12)
        np.testing.assert_allclose(model.inverse_transform(model.transform(Z)), model.reconstruct())
        H, variances = model.components_.reshape(3, -1), variances_of(Z, 3)[0]
        for z, a, v in zip(Z.reshape(30, -1), model.factors_[0], variances, strict=True):
            seen = ~np.isnan(z)
            gradient = H[:, seen] @ (a @ H[:, seen] - z[seen]) + 2.0 * 0.8 * a / v
            scale = np.abs(H[:, seen] @ z[seen]).max()
            assert np.abs(gradient[a != 0] + 0.4 * np.sign(a[a != 0])).max(initial=0) <= 1e-9 * scale


def test_two_modes_are_a_matrix_factorization() -> None:
    """With ℓ2 penalties alone its optimum equals the optimum with the nuclear norm: singular values minus λ."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((40, 25))
    model = dfact.ElasticCP(25, lam=6.0, l1_ratio=0.0, slice_variances=None, max_iter=5000, tol=1e-13, random_state=0).fit(M)
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    np.testing.assert_allclose(model.reconstruct(), (U * np.maximum(s - 6, 0)) @ Vt, atol=1e-4)
    assert model.components_.shape == (25, 25)


def test_priors() -> None:
    Z = planted((20, 10, 6), 2, seed=1, missing=0.1)
    rng = np.random.default_rng(0)
    variances = [rng.uniform(0.5, 2, size) for size in Z.shape]
    given = dfact.ElasticCP(2, lam=5.0, slice_variances=variances, random_state=0).fit(Z)
    assert given.objective_history_[-1] == pytest.approx(objective(Z, given, variances), rel=1e-10)
    np.testing.assert_allclose(given.transform(Z, slice_variances=variances[0]), given.factors_[0], atol=1e-12)
    mean = np.full(20, variances[0].mean())
    np.testing.assert_array_equal(given.transform(Z), given.transform(Z, slice_variances=mean))
    ones = dfact.ElasticCP(2, lam=5.0, slice_variances=None, random_state=0).fit(Z)
    assert ones.objective_history_[-1] == pytest.approx(objective(Z, ones, [np.ones(size) for size in Z.shape]), rel=1e-10)
    # Entries missing at random do not change the estimate on average.
    whole = planted((60, 40, 30), 2, seed=1)
    gaps = np.where(rng.random(whole.shape) < 0.4, np.nan, whole)
    a, b = (dfact.ElasticCP(2, max_iter=1, random_state=0).fit(X).slice_variances_ for X in (whole, gaps))
    for first, second in zip(a.others, b.others, strict=True):
        np.testing.assert_allclose(first, second, rtol=0.25)
        assert abs(np.mean(second / first) - 1) < 0.02


def test_given_factors_are_the_start() -> None:
    Z = planted((20, 10, 6), 2, seed=1)
    rng = np.random.default_rng(0)
    init = [rng.standard_normal((size, 2)) for size in Z.shape]
    for update in ("fill", "exact"):
        model = dfact.ElasticCP(2, init=init, missing=update, max_iter=1, tol=0).fit(Z)
        penalty = sum(0.4 * (A**2 / v[:, None]).sum() + 0.2 * np.abs(A).sum() for A, v in zip(init, variances_of(Z, 2), strict=True))
        assert model.objective_history_[0] == pytest.approx(0.5 * ((Z - model_of(init)) ** 2).sum() + penalty, rel=1e-10)


@pytest.mark.parametrize("update", ["fill", "exact"])
def test_slices_without_an_entry_have_factors_0_and_are_reported(update: str) -> None:
    Z = planted((20, 10, 6), 2, seed=1, missing=0.1)
    Z[3], Z[:, 7], Z[:, :, 2] = np.nan, np.nan, np.nan
    with pytest.warns(UserWarning, match="no observed entry") as caught:
        model = dfact.ElasticCP(2, missing=update, random_state=0).fit(Z)
    text = " ".join(str(warning.message) for warning in caught)
    assert all(name in text for name in ("row 3", "column '7'", "slice 2 of mode 3"))
    for A, i in zip(model.factors_, (3, 7, 2), strict=True):
        assert not A[i].any()
        assert np.delete(A, i, axis=0).any(axis=1).all()
    assert np.isfinite(model.objective_history_).all()


@pytest.fixture
def many_partitions(cut_rows: CutRows) -> None:

    cut_rows(block_entries=1 << 13, chunk_entries=1 << 15, partition_entries=1 << 16)


def answers(n: int, seed: int) -> Array:
    """Answers 0 … 3 of n participants to 12 items in 3 waves, NaN where missing."""
    return np.stack([planted_answers(n, 12, 2, seed, missing=0.2) for _ in range(3)], axis=2)


def assert_same(first: dfact.ElasticCP, second: dfact.ElasticCP) -> None:
    for A, B in zip(first.factors_, second.factors_, strict=True):
        np.testing.assert_array_equal(np.asarray(A), np.asarray(B))
    np.testing.assert_array_equal(first.objective_history_, second.objective_history_)


class TestEstimator(EstimatorSuite):
    model = dfact.ElasticCP
    parameters: ClassVar = {"n_components": 3, "random_state": 4, "max_iter": 6, "lam": 3.0, "n_init": 2}
    tolerance = 1e-5
    derived = ("loadings_",)

    @pytest.fixture(scope="class", params=["random", "svd"])
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        return {"init": request.param}

    def data(self) -> Array:
        return answers(2_500, 3).astype(np.float32)


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions")
def test_a_path_is_the_same_on_every_executor(client: Client, tmp_path: Path) -> None:
    X = answers(2000, 5)
    dataset = dfact.import_array(X, tmp_path / "d.zarr")
    lambdas = [1.0, 30.0]
    paths = [
        dfact.ElasticCP(3, n_init=2, random_state=1, max_iter=4, executor=executor).path(data, lambdas)
        for executor, data in (("inline", X), ("threads", dataset), (client, dataset))
    ]
    for path in paths[1:]:
        assert path.table.equals(paths[0].table)
        for i in range(len(path.steps)):
            assert_same(paths[0].at(i), path.at(i))
            assert path.steps[i].refined is not None
    assert isinstance(paths[1].steps[0].factors[0], zarr.Array)


def test_partitions_change_the_sums_by_rounding_alone(cut_rows: CutRows) -> None:

    X = answers(4000, 1)
    whole = dfact.ElasticCP(3, random_state=1, max_iter=10, init="svd").fit(X)
    cut_rows(partition_entries=1 << 15)
    parts = dfact.ElasticCP(3, random_state=1, max_iter=10, init="svd").fit(X)
    np.testing.assert_allclose(parts.objective_history_, whole.objective_history_, rtol=1e-10)
    for A, B in zip(parts.factors_, whole.factors_, strict=True):
        np.testing.assert_allclose(A, B, atol=1e-8 * np.abs(B).max())


def test_single_precision_agrees_with_double() -> None:
    Z = planted((60, 20, 8), 3, seed=0, missing=0.2)
    single, double = (dfact.ElasticCP(3, dtype=dtype, random_state=0).fit(Z) for dtype in ("float32", "float64"))
    assert all(A.dtype == np.float32 for A in single.factors_)
    assert single.objective_history_[-1] == pytest.approx(double.objective_history_[-1], rel=1e-4)
    assert dfact.ElasticCP(2, max_iter=2).fit(Z.astype(np.float32)).factors_[0].dtype == np.float32


def test_the_plan_reports_the_memory_of_a_fit_and_refuses(tmp_path: Path) -> None:
    dataset = dfact.import_array(answers(20_000, 0), tmp_path / "d.zarr")
    assert dfact.plan(dfact.ElasticCP(3), dataset).fits
    with pytest.raises(dfact.MemoryPlanError, match="needs at least"):
        dfact.ElasticCP(3, memory_limit="100MB").fit(dataset)
    init = [np.zeros((size, 3)) for size in (20_000, 12, 3)]  # without a sample for short starts
    fill, exact = (dfact.plan(dfact.ElasticCP(3, missing=missing, init=init), dataset).driver for missing in ("fill", "exact"))
    assert exact > fill + 8 * 20_000 * 36
    wide = np.zeros((100, 3000, 2), np.float32)
    random, svd = (dfact.plan(dfact.ElasticCP(3, init=init, executor="inline"), wide) for init in ("random", "svd"))
    assert svd.working > 2 * 3000**2 * 4, "the Gram matrix of mode 2"
    assert svd.peak > random.peak


@pytest.mark.further
@pytest.mark.parametrize("stored", [False, True])
def test_a_saved_model_is_the_same(stored: bool, tmp_path: Path) -> None:
    X = answers(300, 2)
    data = dfact.import_array(X, tmp_path / "d.zarr") if stored else X
    rng = np.random.default_rng(0)
    for prior in ("estimate", [rng.uniform(1, 2, size) for size in X.shape]):
        model = dfact.ElasticCP(2, random_state=0, slice_variances=prior).fit(data)
        dfact.save_model(model, tmp_path / "cp.model", overwrite=True)
        loaded = dfact.load_model(tmp_path / "cp.model")
        assert_same(model, loaded)
        assert isinstance(loaded.factors_[0], zarr.Array) == stored
        np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
        np.testing.assert_array_equal(loaded.components_, model.components_)


def test_report_of_a_model() -> None:
    model = dfact.ElasticCP(4, lam=2.0, random_state=0).fit(planted((20, 5, 4), 2, seed=2))
    assert model.rank_ == 2
    np.testing.assert_allclose((model.loadings_.iloc[:5] ** 2).sum(), [1, 1, 0, 0])
    assert list(model.loadings_.index[4:7]) == ["4", "mode 3: 0", "mode 3: 1"]
    text = model_text(model, top=3)
    assert "2 of 4 components left, of a tensor 20×5×4" in text
    assert "F2: weight" in text
    assert "F3" not in text
    assert rows_text(model, 7) == "weights of 7 slices in 4 components"
    assert [axes.get_title() for axes in items_plot(model).axes] == ["mode 1", "mode 2", "mode 3"]


@pytest.mark.further
@pytest.mark.parametrize("stored", [False, True])
def test_a_model_keeps_the_labels_of_further_modes(stored: bool, tmp_path: Path) -> None:
    Z, visits = planted((20, 5, 4, 2), 2, seed=2), ["baseline", "week 6", "week 12", "end"]
    if stored:
        X: Any = dfact.import_array(Z, tmp_path / "d.zarr", mode_labels=[visits, None])
        reversed_visits: Any = dfact.import_array(Z, tmp_path / "e.zarr", mode_labels=[visits[::-1], None])
    else:
        X = xr.DataArray(Z, dims=["person", "item", "visit", "rater"], coords={"visit": visits})
        reversed_visits = X.isel(visit=slice(None, None, -1))
    model = dfact.ElasticCP(2, max_iter=3, random_state=0).fit(X)
    dfact.save_model(model, tmp_path / "cp.model")
    loaded = dfact.load_model(tmp_path / "cp.model")
    assert_same(model, loaded)
    for each in (model, loaded):
        assert [None if labels is None else list(labels) for labels in each.mode_labels_] == [visits, None]
        assert list(each.loadings_.index[5:]) == [f"mode 3: {visit}" for visit in visits] + ["mode 4: 0", "mode 4: 1"]
    np.testing.assert_array_equal(loaded.transform(Z), model.transform(X))
    assert "mode 3     baseline, week 6, week 12, end\n" in model_text(loaded)
    assert "mode 4  " not in model_text(loaded)
    with pytest.raises(dfact.DataError, match="slice 0 of mode 3 of X is 'end', of the fitted data 'baseline'; pass the fitted slices"):
        loaded.transform(reversed_visits)
    loaded.mode_labels_ = [loaded.mode_labels_[0][:3], None]
    with pytest.raises(
        dfact.DataError, match=r"mode_labels_ holds \[3, None\] labels of modes 3 to N, expected as many as slices, \(4, 2\)"
    ):
        loaded._check_loaded()


def test_a_slice_without_an_entry_is_reported_by_its_label() -> None:
    Z = planted((20, 5, 4), 2, seed=1)
    Z[:, :, 2] = np.nan
    data = xr.DataArray(Z, dims=["person", "item", "visit"], coords={"visit": ["w0", "w6", "w12", "w24"]})
    with pytest.warns(UserWarning, match="slice 'w12' of mode 3 has no observed entry"):
        dfact.ElasticCP(2, max_iter=2, random_state=0).fit(data)


def test_callbacks_receive_iterations_and_steps() -> None:
    Z, heard = planted((20, 10, 6), 2, seed=1), []
    model = dfact.ElasticCP(2, max_iter=5, tol=0, random_state=0, callbacks=[heard.append])
    model.fit(Z)
    assert [iteration.number for iteration in heard] == [1, 2, 3, 4, 5]
    heard.clear()
    model.path(Z, [1.0, 10.0])
    assert [iteration.step.split(",")[0] for iteration in heard] == ["λ = 1", "λ = 10"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 0}, "n_components"),
        ({"lam": -1.0}, "lam"),
        ({"l1_ratio": 1.5}, "l1_ratio"),
        ({"solver": "sgd"}, "solver"),
        ({"missing": "drop"}, "missing"),
        ({"slice_variances": "flat"}, "slice_variances"),
        ({"slice_variances": [np.ones(3)]}, "slice_variances has shapes"),
        ({"slice_variances": [np.ones(8), np.ones(6), np.zeros(4)]}, "above 0"),
        ({"init": "nndsvd"}, "init"),
        ({"init": [np.ones((8, 1))]}, "init has shapes"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1}, "tol"),
        ({"lam": "1"}, "lam is '1', expected a finite number"),
        ({"lam": [1.0, 2.0]}, "lam is"),
        ({"lam": np.inf}, "lam is inf"),
        ({"l1_ratio": None}, "l1_ratio is None"),
        ({"tol": "a"}, "tol is 'a'"),
        ({"step_size": None}, "step_size is None"),
        ({"init": ["a", "b", "c"]}, "init is not a list of arrays"),
        ({"init": [np.ones((8, 2)), np.full((6, 2), np.nan), np.ones((4, 2))]}, "init holds factors that are not finite"),
        ({"slice_variances": ["a", "b", "c"]}, "slice_variances is not a list of arrays"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        dfact.ElasticCP(**{"n_components": 2, **parameters}).fit(planted((8, 6, 4), 2, 0))


def test_invalid_data_is_refused(tmp_path: Path) -> None:
    Z = planted((8, 6, 4), 2, 0)
    with pytest.raises(ValueError, match=r"2D|rows"):
        dfact.ElasticCP(2).fit(Z[:, 0, 0])
    empty = pytest.raises(dfact.DataError, match=r"X has shape \(8, 6, 0\), expected at least one slice")
    with empty, pytest.warns(UserWarning, match="no observed entry"):
        dfact.ElasticCP(2).fit(Z[:, :, :0])
    infinite = zarr.create_array(tmp_path / "z.zarr", shape=Z.shape, dtype=np.float64)
    infinite[:] = np.where(Z[2, 3, 1] == Z, np.inf, Z)
    with pytest.raises(dfact.DataError, match="row 2, column '3' holds inf"):
        dfact.ElasticCP(2).fit(infinite)
    model = dfact.ElasticCP(2, random_state=0).fit(Z)
    with pytest.raises(ValueError, match="6 features"):
        model.transform(Z[:, :5])
    with pytest.raises(dfact.DataError, match="slices of X are 6×3, those the model was fitted on 6×4"):
        model.transform(Z[:, :, :3])
    with pytest.raises(dfact.DataError, match="expected"):
        model.inverse_transform(np.ones((3, 5)))
    with pytest.raises(dfact.ParameterError, match="takes slice_variances only"):
        model.transform(Z, slice_variances=np.ones(8))
    for lambdas in ([], [2.0, 1.0], [-1.0, 1.0]):
        with pytest.raises(dfact.ParameterError, match="increasing"):
            model.path(Z, lambdas)
    path = model.path(Z, [1.0], refine=False)
    with pytest.raises(dfact.ParameterError, match="not refined"):
        path.at(0, refined=True)


@pytest.mark.parametrize("scale", [2.0**-600, 1.0, 2.0**600])
def test_loadings_of_any_magnitude_have_unit_length(scale: float) -> None:
    model = dfact.ElasticCP(2, lam=0.1, random_state=0, max_iter=5).fit(np.random.default_rng(0).standard_normal((20, 6, 4)))
    expected = [A / np.linalg.norm(A, axis=0) for A in model.factors_[1:]]
    model.factors_ = [model.factors_[0], model.factors_[1] * scale, model.factors_[2]]
    np.testing.assert_array_equal(model.loadings_, np.vstack(expected))


# The paper's parameters and statements.
def small(seed: int, *, noise: float = 0.3) -> Array:
    rng = np.random.default_rng(seed)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (12, 8, 6)))
    return np.asarray(Z + noise * rng.standard_normal(Z.shape))


@pytest.mark.parametrize(("variance", "rate"), [(0.5, 0.0), (0.5, 0.25), (2.0, 9.0)])
def test_noise_variance_and_laplace_rate_are_lambda_and_alpha(variance: float, rate: float) -> None:
    settings = {"random_state": 0, "max_iter": 30}
    by_prior = dfact.ElasticCP(3, noise_variance=variance, laplace_rate=rate, **settings).fit(small(0))
    by_penalty = dfact.ElasticCP(3, lam=variance * (1 + rate), l1_ratio=rate / (1 + rate), **settings).fit(small(0))
    for A, B in zip(by_prior.factors_, by_penalty.factors_, strict=True):
        np.testing.assert_array_equal(A, B)
    np.testing.assert_array_equal(by_prior.transform(small(1)), by_penalty.transform(small(1)))


@pytest.mark.parametrize("seed", [0, 1])
def test_objective_is_the_variance_times_the_negative_log_posterior(seed: int) -> None:
    """Equations 3 to 7: ‖Δ∘(Z − X)‖²/2σ² + Σ [aᵀR⁻¹a/2 + μ‖a‖₁] is the objective over σ²."""
    Z, variance, rate = small(seed), 0.4, 0.7
    variances = [np.random.default_rng(n).uniform(0.5, 2, size) for n, size in enumerate(Z.shape)]
    model: Any = dfact.ElasticCP(2, noise_variance=variance, laplace_rate=rate, slice_variances=variances, random_state=seed).fit(Z)
    posterior = np.square(Z - model.reconstruct()).sum() / (2 * variance)
    for A, R in zip(model.factors_, variances, strict=True):
        posterior += (np.square(A) / R[:, None]).sum() / 2 + rate * np.abs(A).sum()
    assert model.objective_history_[-1] == pytest.approx(variance * posterior)


def test_both_ways_to_set_the_penalties_are_refused() -> None:
    for settings, message in (
        ({"noise_variance": 1.0}, "expected both or neither"),
        ({"noise_variance": 1.0, "laplace_rate": 1.0, "lam": 2.0}, "lam=2.0 and l1_ratio=0.2 are given with"),
        ({"noise_variance": 1.0, "laplace_rate": 1.0, "l1_ratio": 0.0}, "expected only one pair"),
        ({"noise_variance": -1.0, "laplace_rate": 1.0}, "noise_variance is -1.0"),
        ({"noise_variance": 1.0, "laplace_rate": np.inf}, "laplace_rate is inf"),
    ):
        with pytest.raises(ParameterError, match=message):
            dfact.ElasticCP(2, **settings).fit(small(0))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"varies along a path.*l1_ratio=0.5"):
        dfact.ElasticCP(2, noise_variance=1.0, laplace_rate=1.0).path(small(0))


@pytest.mark.parametrize(("lam", "seed"), [(0.5, 0), (5.0, 1), (20.0, 2)])
def test_proposition_2_the_ridge_is_a_penalty_of_the_weights(lam: float, seed: int) -> None:
    """At a solution for α = 0 all modes of a component have one norm, ‖R_n^(−½)a_r⁽ⁿ⁾‖ = γ̃_r^(1/N), and the penalty is λN/2 Σ γ̃_r^(2/N)."""
    Z = small(seed)
    variances = [np.random.default_rng(n).uniform(0.5, 2, size) for n, size in enumerate(Z.shape)]
    model: Any = dfact.ElasticCP(3, lam=lam, l1_ratio=0.0, slice_variances=variances, random_state=seed, max_iter=5000, tol=1e-14).fit(Z)
    norms = np.stack([np.linalg.norm(np.asarray(A) / np.sqrt(R)[:, None], axis=0) for A, R in zip(model.factors_, variances, strict=True)])
    weights = norms.prod(axis=0)
    np.testing.assert_allclose(norms, np.broadcast_to(weights ** (1 / 3), norms.shape), rtol=1e-4, atol=1e-4)
    squares = np.square(Z - model.reconstruct()).sum()
    assert model.objective_history_[-1] == pytest.approx(squares / 2 + lam * 3 / 2 * (weights ** (2 / 3)).sum(), rel=1e-6)
    assert model.rank_ == np.count_nonzero(weights > 1e-6)


@pytest.mark.parametrize("name", ["bcd", "stochastic", "als"])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_largest_entries_of_the_vectors_are_positive(name: str, shape: tuple[int, ...]) -> None:
    Z = planted(shape, 3, seed=len(shape))
    models = {"bcd": dfact.ElasticCP(3, lam=0.1, random_state=1), "als": dfact.CPALS(3, random_state=1)}
    models["stochastic"] = dfact.ElasticCP(3, lam=0.1, solver="stochastic", max_iter=8, random_state=1)
    model = models[name].fit(Z)
    for A in model.factors_[1:]:
        assert (A[np.abs(A).argmax(axis=0), range(3)] > 0).all()
    assert np.sign(model.factors_[0]).min() < 0  # mode 1 carries the sign
    np.testing.assert_allclose(model.transform(Z), model.factors_[0], rtol=1e-6, atol=1e-9)
    residual = Z - model.reconstruct()
    assert 1 - (residual**2).sum() / (Z**2).sum() == pytest.approx(model.explained_share_, abs=1e-6)


def test_a_penalty_that_sets_all_components_to_0_is_reported() -> None:
    Z = planted((30, 14, 9), 3, seed=0)
    with pytest.warns(
        UserWarning, match=r"the penalty sets all 3 components to 0, .*; use a smaller lam \(--lam\), .* or let dfact select cp"
    ):
        model = dfact.ElasticCP(3, random_state=0).fit(0.01 * Z)
    assert model.rank_ == 0
    assert dfact.ElasticCP(3, lam=1e-4, random_state=0).fit(0.01 * Z).rank_ == 3


@pytest.mark.further
@pytest.mark.parametrize(
    ("slice_variances", "l1_ratio", "power"), [("estimate", 0, 2), (None, 0, 2 - 2 / 3), ("estimate", 1, 2 - 1 / 3), (None, 1, 2 - 1 / 3)]
)
def test_the_penalty_scales_with_the_entries(slice_variances: str | None, l1_ratio: float, power: float) -> None:
    """The guide's rule for λ: entries times c need λ times this power of c for the same components."""
    Z, c = planted((30, 12, 9), 3, seed=5, noise=0.3), 7.0
    settings: dict[str, Any] = {"l1_ratio": l1_ratio, "slice_variances": slice_variances, "random_state": 0, "tol": 1e-9, "max_iter": 2000}
    one = dfact.ElasticCP(3, lam=2.0, **settings).fit(Z)
    scaled = dfact.ElasticCP(3, lam=2.0 * c**power, **settings).fit(c * Z)
    np.testing.assert_allclose(scaled.reconstruct(), c * one.reconstruct(), rtol=1e-6, atol=1e-6)
    assert scaled.objective_history_[-1] == pytest.approx(c**2 * one.objective_history_[-1], rel=1e-9)
