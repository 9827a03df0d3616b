"""ElasticCP's stochastic solver: a step, what its samples stand for, seeds, executors, bytes read, the objective reached, the path."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client

import dfact
from benchmarks.elastic_cp_stochastic import CountedSource, counted, fit, score
from dfact.data.inputs import as_dataset
from dfact.data.synthetic import elastic_cp_simulation
from dfact.engine.partition import partitions
from dfact.engine.passes import Block
from dfact.kernels.adamax import adamax_updates
from dfact.models.cp_passes import Start
from dfact.models.cp_problem import ElasticNet, Prior, RowPrior
from dfact.models.elastic_cp_stochastic import StochasticSolver, aside_rows, batch_sizes_of, samples
from tests.test_elastic_cp import SHAPES, Array, answers, assert_same, many_partitions, model_of, objective, planted, variances_of

__all__ = ["many_partitions"]


def solver(Z: Array, others: list[Array], *, batch_sizes: tuple[int, ...], seed: int = 0) -> StochasticSolver:
    """One whose steps are taken by hand, without a session; the others' factors (R, I_n)."""
    prior, begin = Prior(RowPrior("none"), tuple(np.ones(size) for size in Z.shape[1:])), Start(len(others[0]), seed, False)
    session: Any = None
    return StochasticSolver(session, as_dataset(Z), None, prior, begin, np.dtype(np.float64), others, batch_sizes, 0.3)


def block_of(Z: Array) -> Block:
    return next(partitions(as_dataset(Z).source, None, None).blocks(np.dtype(np.float64)))


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adamax_moves_as_printed_towards_the_sample_s_solution(seed: int, nonnegative: bool) -> None:
    rng = np.random.default_rng(seed)
    k, n, l1, step = 3, 7, 0.8, 0.3
    A, ridge, shares = np.abs(rng.standard_normal((k, n))), rng.uniform(0.1, 1, n), rng.uniform(0.2, 1, k)
    M, S, Z = np.zeros((k, n)), np.zeros(k), np.zeros((k, n))
    a, m, s, z = A.copy(), M.copy(), S.copy(), Z.copy()
    for t in range(1, 8):
        B = rng.standard_normal((k, 5))
        U, G = rng.standard_normal((k, n)) * 2, B @ B.T
        adamax_updates(A, U, G, ridge, l1, shares, nonnegative, step, t, M, S, Z)
        for r in np.flatnonzero(a.any(axis=1)):
            u = U[r] - G[r] @ a + G[r, r] * a[r]
            soft = np.maximum(u - shares[r] * l1, 0) - (0 if nonnegative else np.maximum(-u - shares[r] * l1, 0))
            solution = soft / (G[r, r] + shares[r] * ridge)
            g = a[r] - solution
            m[r], s[r] = 0.9 * m[r] + 0.1 * g, max(0.9999 * s[r], np.linalg.norm(g))
            z[r] = 0.9 * z[r] + 0.1 * (solution == 0)
            a[r] = a[r] - min(1, step * np.linalg.norm(a[r]) / s[r]) * m[r] / (1 - 0.9**t)
            a[r] = np.where(z[r] > 0.5 * (1 - 0.9**t), 0, np.maximum(a[r], 0) if nonnegative else a[r])
        np.testing.assert_allclose(A, a, atol=1e-12)
        np.testing.assert_allclose(S, s)


def test_nothing_moves_what_is_gone_or_what_a_sample_does_not_show() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 4))
    A[0] = 0
    before, M, Z = A.copy(), np.zeros((3, 4)), np.zeros((3, 4))
    adamax_updates(A, rng.standard_normal((3, 4)), np.eye(3), np.ones(4), 0.0, np.array([1.0, 0.0, 1.0]), False, 0.5, 1, M, np.zeros(3), Z)
    np.testing.assert_array_equal(A[:2], before[:2])
    assert (A[2] != before[2]).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_step_on_everything_is_the_exact_update(missing: float) -> None:
    """With all slices in the sample: rows at their optimum, then the whole way to each column's solution on the filled tensor."""
    rng = np.random.default_rng(3)
    Z, net = planted((12, 6, 5), 2, seed=3, missing=missing), ElasticNet(0.7, 0.3)
    others = [rng.standard_normal((2, size)) for size in Z.shape[1:]]
    stochastic = solver(Z, others, batch_sizes=Z.shape)
    stochastic._begin_again(net)
    stochastic._step = 1e9  # the whole way
    stochastic._move(block_of(Z), net, rng)
    rows = np.zeros((2, 12))
    H = np.einsum("rj,rk->rjk", *others).reshape(2, -1)
    for i, row in enumerate(Z.reshape(12, -1)):
        seen = ~np.isnan(row)
        for _ in range(2000):
            for r in range(2):
                u = H[r, seen] @ (row[seen] - rows[:, i] @ H[:, seen] + rows[r, i] * H[r, seen])
                rows[r, i] = np.sign(u) * max(abs(u) - 0.21, 0) / (H[r, seen] @ H[r, seen] + 0.49)
    factors = [rows, *(A.copy() for A in others)]
    for n in (1, 2):
        filled = np.where(np.isnan(Z), model_of([A.T for A in factors]), Z)
        X = np.moveaxis(filled, n, 0).reshape(Z.shape[n], -1)
        h = np.stack([model_of([A[[r]].T for i, A in enumerate(factors) if i != n]).ravel() for r in range(2)])
        for r in range(2):
            u = (X - factors[n].T @ h + np.outer(factors[n][r], h[r])) @ h[r]
            factors[n][r] = np.sign(u) * np.maximum(np.abs(u) - 0.21, 0) / (h[r] @ h[r] + 0.49)
    for found, expected in zip(stochastic.others, factors[1:], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_samples_stand_for_the_whole() -> None:
    """Over all draws their u and their shares are those of the whole: exactly over the rows, on average over the other modes."""
    rng = np.random.default_rng(0)
    Z = planted((30, 8, 6), 2, seed=5, missing=0.2)
    X, others = rng.standard_normal((2, 30)), [rng.standard_normal((2, size)) for size in (8, 6)]
    stochastic = solver(Z, others, batch_sizes=(10, 8, 6))
    stochastic._squares = np.square(X).sum(axis=1)
    everything = [np.arange(8), np.arange(6)]
    U, _, shares = stochastic._subproblem(0, Z, X, everything)
    np.testing.assert_allclose(shares, 1)
    parts = [stochastic._subproblem(0, Z[rows], X[:, rows], everything) for rows in np.array_split(rng.permutation(30), 3)]
    np.testing.assert_allclose(sum(part[0] for part in parts), U)
    np.testing.assert_allclose(sum(part[2] for part in parts), 1)
    draws = [stochastic._subproblem(0, Z, X, [everything[0], rng.choice(6, 3, replace=False)]) for _ in range(4000)]
    means = [np.mean([draw[i] for draw in draws], axis=0) * 2 for i in (0, 2)]
    errors = [2 * np.std([draw[i] for draw in draws], axis=0) / np.sqrt(4000) for i in (0, 2)]
    assert (np.abs(means[0] - U) <= 5 * errors[0] + 1e-12).all()
    assert (np.abs(means[1] - 1) <= 5 * errors[1] + 1e-12).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_comes_within_one_percent_of_block_coordinate_descent(shape: tuple[int, ...], seed: int) -> None:
    Z = planted((6 * shape[0], *shape[1:]), 3, seed, missing=0.2)
    settings: dict[str, Any] = {"lam": 2.0, "init": "nvecs", "random_state": seed}
    exact = dfact.ElasticCP(3, max_iter=2000, tol=1e-10, **settings).fit(Z)
    model = dfact.ElasticCP(3, solver="stochastic", **settings).fit(Z)
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]
    assert model.objective_history_[-1] == pytest.approx(objective(Z, model, variances_of(Z, 3)), rel=1e-9)
    assert model.objective_history_[-1] <= 1.01 * model.objective_history_.min()
    assert model.rank_ == exact.rank_
    assert model.converged_
    np.testing.assert_allclose(model.transform(Z), model.factors_[0], atol=1e-12)


def test_nonnegative_given_priors_and_precision() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 3)) * (rng.random((size, 3)) < 0.7) for size in (200, 20, 8)]
    Z = model_of(factors) + 0.05 * rng.standard_normal((200, 20, 8))
    Z[rng.random(Z.shape) < 0.2] = np.nan
    variances = [rng.uniform(0.5, 2, size) for size in Z.shape]
    for prior, expected in ((variances, variances), (None, [np.ones(size) for size in Z.shape])):
        settings: dict[str, Any] = {"lam": 0.5, "nonnegative": True, "prior": prior, "random_state": 1, "init": "nvecs"}
        exact = dfact.ElasticCP(3, **settings).fit(Z)
        model = dfact.ElasticCP(3, solver="stochastic", **settings).fit(Z)
        assert min(A.min() for A in model.factors_) >= 0
        assert model.objective_history_[-1] == pytest.approx(objective(Z, model, expected), rel=1e-9)
        assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]
        single = dfact.ElasticCP(3, solver="stochastic", dtype="float32", **settings).fit(Z)
        assert all(A.dtype == np.float32 for A in single.factors_)
        assert single.objective_history_[-1] == pytest.approx(model.objective_history_[-1], rel=1e-2)


def test_row_compressed_data_is_its_dense_form() -> None:
    Z = np.random.default_rng(0).poisson(0.3, (300, 20)).astype(float)
    dense, sparse = (dfact.ElasticCP(3, solver="stochastic", max_iter=5, random_state=0).fit(X) for X in (Z, sp.csr_array(Z)))
    for A, B in zip(dense.factors_, sparse.factors_, strict=True):
        np.testing.assert_allclose(A, B, atol=1e-9)


@pytest.mark.usefixtures("many_partitions")
def test_the_seed_alone_decides(client: Client, tmp_path: Path) -> None:
    X = answers(8000, 3).astype(np.float32)
    dataset = dfact.import_array(np.where(np.isnan(X), 255, X).astype(np.uint8), tmp_path / "d.zarr", missing=255)
    settings: dict[str, Any] = {"solver": "stochastic", "max_iter": 4, "lam": 3.0, "batch_sizes": [50, 6, 2]}
    reference = dfact.ElasticCP(3, executor="inline", random_state=4, **settings).fit(dataset)
    for executor, data in (("inline", dataset), ("threads", dataset), (client, dataset), (None, X)):
        assert_same(reference, dfact.ElasticCP(3, executor=executor, random_state=4, **settings).fit(data))
    other = dfact.ElasticCP(3, executor="inline", random_state=5, **settings).fit(dataset)
    assert not np.array_equal(other.factors_[1], reference.factors_[1])


@pytest.mark.usefixtures("many_partitions")
def test_it_reads_a_third_of_what_block_coordinate_descent_reads(tmp_path: Path) -> None:
    X = answers(30_000, 3)
    dfact.import_array(np.where(np.isnan(X), 255, X).astype(np.uint8), tmp_path / "d.zarr", missing=255)
    dataset = counted(tmp_path / "d.zarr")
    settings: dict[str, Any] = {"n_components": 3, "lam": 3.0, "random_state": 1}
    exact, all_bytes, _ = fit(dataset, **settings)
    model, few_bytes, _ = fit(dataset, solver="stochastic", **settings)
    assert all_bytes >= 10 * X.size  # there is no room to keep much of it
    assert few_bytes <= all_bytes / 3
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]


@pytest.mark.parametrize("seed", [1, 3])
def test_no_component_is_given_up_before_it_has_been_fitted(seed: int) -> None:
    """Rows at their optimum would do without one that has not found its place yet, and then it would never."""
    X = answers(6000, 3)
    exact = dfact.ElasticCP(3, lam=3.0, random_state=seed).fit(X)
    model = dfact.ElasticCP(3, lam=3.0, solver="stochastic", random_state=seed).fit(X)
    assert model.rank_ == exact.rank_ == 3
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]


@pytest.mark.usefixtures("many_partitions")
def test_chunks_come_once_before_any_comes_again(tmp_path: Path) -> None:
    X = answers(8000, 3)
    path = tmp_path / "d.zarr"
    dfact.import_array(X, path)
    stochastic = solver(X, [np.ones((1, 12)), np.ones((1, 3))], batch_sizes=(50, 12, 3))
    chunks, seed = stochastic._chunks, np.random.SeedSequence(5)
    visits = chunks.visits(50, 0)
    n = len(chunks._runs)
    assert n >= 5
    epochs = [[next(visits)[2][1].start for _ in range(n)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [run.start for run in chunks._runs]
    assert epochs[0] != epochs[1]
    # From any sample on they are the same.
    whole = [block.values for block in islice(samples(chunks, 50, seed), 400)]
    for skip in (1, 37, 399):
        assert np.array_equal(next(samples(chunks, 50, seed, skip)).values, whole[skip], equal_nan=True)
    # One chunk is many steps.
    dataset, before = counted(path), CountedSource.bytes_read
    stochastic = solver(X, [np.ones((1, 12)), np.ones((1, 3))], batch_sizes=(50, 12, 3))
    stochastic._chunks._source = dataset.source
    for _ in islice(samples(stochastic._chunks, 50, seed), 30):
        pass
    chunk = dataset.source.chunk_rows or 0
    assert CountedSource.bytes_read - before <= 3 * chunk * 36 * dataset.dtype.itemsize


@pytest.mark.parametrize("seed", [0, 1])
def test_the_path_finds_the_rank_and_the_factors(seed: int) -> None:
    """Table 3's setting, smaller."""
    sim = elastic_cp_simulation(30, 4, seed, snr=20, missing=0.25)
    lambdas = [1e-3, 1.0, 100.0, 300.0, 1000.0, 2000.0, 4000.0]
    path = dfact.ElasticCP(5, l1_ratio=0.8, solver="stochastic", random_state=seed).path(sim.Z, lambdas)
    table = path.table
    assert (table["rank"].diff().dropna() <= 0).all()
    right = table[(table["rank"] == 4) & (table["zeros"] <= sim.zeros)]
    assert score(sim.factors, path.at(right.index[-1], refined=True).factors_) >= 0.999
    assert path.at(0).solver == "stochastic"


def test_callbacks_history_and_plan(tmp_path: Path) -> None:
    Z, heard = planted((300, 10, 6), 2, seed=1), []
    model = dfact.ElasticCP(2, solver="stochastic", max_iter=5, tol=0, random_state=0, callbacks=[heard.append]).fit(Z)
    assert [iteration.number for iteration in heard] == [1, 2, 3, 4, 5]
    assert len(model.objective_history_) == 6
    # The slices kept aside are all of these: the estimate is exact, too.
    assert aside_rows(Z.shape) == 300
    fitted = replace(as_dataset(Z), stored_fingerprint=None)
    again = dfact.ElasticCP(2, solver="stochastic", init=model.factors_, max_iter=1, random_state=0).fit(fitted)
    assert again.objective_history_[0] == pytest.approx(model.objective_history_[-1], rel=1e-9)
    wide = dfact.import_array(answers(20_000, 0), tmp_path / "d.zarr")
    plans = [dfact.plan(dfact.ElasticCP(3, solver=solver, missing="fill"), wide).driver for solver in ("bcd", "stochastic")]
    assert plans[1] >= plans[0] + 8 * 36 * aside_rows(wide.shape)


def test_default_batches() -> None:
    assert batch_sizes_of(None, (200_000, 300, 5), 10) == (64, 150, 5)
    assert batch_sizes_of(None, (50, 50, 50), 10) == (25, 25, 25)
    assert batch_sizes_of(None, (1000, 40), 30) == (120, 40)
    assert batch_sizes_of([10, 99], (1000, 40), 3) == (10, 40)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batch_sizes": [4, 4]}, "expected 3 numbers, one for each mode"),
        ({"batch_sizes": [4, 0, 4]}, "batch_sizes"),
        ({"batch_sizes": 8}, "batch_sizes"),
        ({"step_size": 0}, "step_size"),
        ({"step_size": 1.5}, "step_size"),
        ({"missing": "exact"}, "'auto' or 'fill' for solver='stochastic'"),
    ],
)
def test_parameters_that_cannot_be(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        dfact.ElasticCP(2, solver="stochastic", **parameters).fit(planted((8, 6, 4), 2, 0))
