"""ElasticCP's stochastic solver: its kernels, its samples, equal bits on all executors, the objective reached, the path."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client, LocalCluster

import dfact
from benchmarks.cp.stochastic import counted, fit, score
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.data.sources.base import ArraySource, ZarrSource
from dfact.data.synthetic import elastic_cp_simulation
from dfact.engine.block_state import BlockState
from dfact.engine.executors import ThreadsExecutor
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, Workspace
from dfact.kernels.adamax import adamax_updates
from dfact.kernels.samples import contracted_slices, optimal_slices, residual_squares, subproblem
from dfact.models.cp.problem import ElasticNet, Prior, RowPrior
from dfact.models.cp.samples import AdamaxState, LocalStepsPass, Sample, _LocalSteps, monitor_rows, seeded, spread_partitions
from dfact.models.cp.stochastic import progress, resolve_batch_sizes
from tests.cases import exhaustive_after
from tests.models.cp.test_elastic_cp import SHAPES, Array, answers, assert_same, many_partitions, model_of, objective, planted, variances_of

__all__ = ["many_partitions"]


def block_of(Z: Array) -> Block:
    return next(partitions(as_dataset(Z).source, None, None).blocks(np.dtype(np.float64)))


def steps(Z: Array, net: ElasticNet, *, exact: bool, batch_sizes: tuple[int, ...] | None = None, count: int = 1) -> LocalStepsPass:
    """Local steps on the only block of Z."""
    prior = Prior(RowPrior("none"), tuple(np.ones(size) for size in Z.shape[1:]))
    return LocalStepsPass(
        number=0,
        steps=count,
        batch_sizes=batch_sizes or Z.shape,
        net=net,
        prior=prior,
        seed=0,
        shape=Z.shape,
        exact=exact,
        dtype=np.dtype(np.float64),
    )


def packed(G: Array) -> Array:
    """The lower triangles of Gram matrices (R, R, I), row by row."""
    low, high = np.tril_indices(len(G))
    return G[low, high]


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adamax_moves_as_documented_towards_the_sample_s_solution(seed: int, nonnegative: bool, common: bool) -> None:
    rng = np.random.default_rng(seed)
    k, n, l1, step = 3, 7, 0.8, 0.3
    A, ridge, shares = np.abs(rng.standard_normal((k, n))), rng.uniform(0.1, 1, n), rng.uniform(0.2, 1, k)
    M, S, Z = np.zeros((k, n)), np.zeros(k), np.zeros((k, n))
    a, m, s, z = A.copy(), M.copy(), S.copy(), Z.copy()
    for t in range(1, 8):
        B = rng.standard_normal((k, 5, 1 if common else n)) * np.linspace(0.1, 1, 1 if common else n)
        U, G = rng.standard_normal((k, n)) * 2, np.einsum("rji,qji->rqi", B, B)
        adamax_updates(A, U, packed(G), ridge, l1, shares, nonnegative, step, t, M, S, Z)
        for r in np.flatnonzero(a.any(axis=1)):
            d = np.maximum(G[r, r], G[r, r].mean() / 4)
            u = U[r] - (G[r] * a).sum(axis=0) + d * a[r]
            soft = np.maximum(u - shares[r] * l1, 0) - (0 if nonnegative else np.maximum(-u - shares[r] * l1, 0))
            solution = soft / (d + shares[r] * ridge)
            g = a[r] - solution
            m[r], s[r] = 0.9 * m[r] + 0.1 * g, max(0.9999 * s[r], np.linalg.norm(g))
            z[r] = 0.9 * z[r] + 0.1 * (solution == 0)
            a[r] = a[r] - min(1, step * np.linalg.norm(a[r]) / s[r]) * m[r] / (1 - 0.9**t)
            a[r] = np.where(z[r] > 0.5 * (1 - 0.9**t), 0, np.maximum(a[r], 0) if nonnegative else a[r])
        np.testing.assert_allclose(A, a, atol=1e-12)
        np.testing.assert_allclose(S, s)


def test_zero_components_and_entries_outside_the_sample_do_not_move() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((3, 4))
    A[0] = 0
    before, M, Z = A.copy(), np.zeros((3, 4)), np.zeros((3, 4))
    G, shares = packed(np.eye(3)[:, :, None]), np.array([1.0, 0.0, 1.0])
    adamax_updates(A, rng.standard_normal((3, 4)), G, np.ones(4), 0.0, shares, False, 0.5, 1, M, np.zeros(3), Z)
    np.testing.assert_array_equal(A[:2], before[:2])
    assert (A[2] != before[2]).all()


def sample(shape: tuple[int, ...], seed: int, missing: float, scale: float) -> tuple[Array, Array, list[Array], Array]:
    """Values with NaN (b, I_2⋯I_N), factors of the slices (R, b) and of the other modes, and products of the latter (R, m)."""
    rng, k = np.random.default_rng(seed), 3
    V = rng.standard_normal((shape[0], prod(shape[1:]))) * scale
    V[rng.random(V.shape) < missing] = np.nan
    others = [rng.standard_normal((k, size)) * scale for size in shape[1:]]
    H = others[0]
    for A in others[1:]:
        H = np.einsum("ra,rb->rab", H, A).reshape(k, -1)
    return V, rng.standard_normal((k, shape[0])), others, H


def as_taken(V: Array) -> tuple[Array, Any]:
    """Values and mask as the kernels take them."""
    observed = (~np.isnan(V)).astype(np.float32)
    return np.nan_to_num(V), observed if (observed == 0).any() else observed[:0, :0]


@pytest.mark.parametrize("scale", [1.0, 1e12])
@pytest.mark.parametrize("missing", [0.0, 0.6])
@pytest.mark.parametrize("shape", [(9, 8), (9, 6, 5), (7, 4, 3, 5), (6, 5, 1)])
def test_slices_are_at_their_optimum(shape: tuple[int, ...], missing: float, scale: float) -> None:
    V, _, others, H = sample(shape, 1, missing, scale)
    (values, observed), sizes = as_taken(V), np.array(shape[1:])
    l1, ridge = 0.3 * np.abs(H).max() * scale, np.full(len(V), 0.1) * (H**2).max()
    X = optimal_slices(values, observed, np.hstack(others), sizes, ridge, l1, False, 1e-12)
    for i, row in enumerate(V):
        seen = ~np.isnan(row)
        h, x = H[:, seen], X[:, i]
        gradient = h @ (x @ h - row[seen]) + ridge[i] * x
        size = np.abs(h) @ np.abs(row[seen]) + l1
        at_rest = np.where(x == 0, np.abs(gradient) <= l1 + 1e-6 * size, np.abs(gradient + np.sign(x) * l1) <= 1e-6 * size)
        assert at_rest.all()
    expected = np.nansum((V - X.T @ H) ** 2)
    assert residual_squares(X, values, observed, np.hstack(others), sizes) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 1e12])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.6])
@pytest.mark.parametrize("shape", [(9, 8), (9, 6, 5), (7, 4, 3, 5), (6, 5, 1)])
def test_subproblems_are_those_of_the_slices_of_each_mode(shape: tuple[int, ...], missing: float, exact: bool, scale: float) -> None:
    V, X, others, H = sample(shape, 2, missing, scale)
    (values, observed), A, sizes = as_taken(V), np.hstack(others), np.array(shape[1:])
    C, P = contracted_slices(X, values, observed, A, sizes, exact)
    masked = exact and missing > 0
    Z = np.where(np.isnan(V), 0 if masked else X.T @ H, V).reshape(shape)
    mask = (~np.isnan(V)).reshape(shape) if masked else np.ones(shape)
    for n in range(len(others)):
        design = np.ones((3, 1))  # of all modes but n, the slices' first
        for B in (X, *(B for i, B in enumerate(others) if i != n)):
            design = np.einsum("ra,rb->rab", design, B).reshape(3, -1)
        unfolding, seen = (np.moveaxis(T, n + 1, 0).reshape(shape[n + 1], -1) for T in (Z, mask))
        U, G = subproblem(n, X, C, P, A, sizes)
        np.testing.assert_allclose(U, design @ unfolding.T, rtol=1e-9, atol=1e-9 * np.abs(U).max())
        expected = packed(np.einsum("rj,qj,ij->rqi", design, design, seen))
        expected = expected if masked else expected[:, :1]
        np.testing.assert_allclose(G, expected, rtol=1e-4, atol=1e-5 * np.abs(G).max())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_step_on_all_slices_is_the_exact_update(missing: float, exact: bool) -> None:
    """With all slices in the sample: rows at their optimum, then a full step to each column's solution."""
    rng = np.random.default_rng(3)
    Z, net = planted((12, 6, 5), 2, seed=3, missing=missing), ElasticNet(0.7, 0.3)
    others = [rng.standard_normal((2, size)) for size in Z.shape[1:]]
    reached = steps(Z, net, exact=exact).step(block_of(Z), BlockState(), (AdamaxState.initial(others), 1e9, 0))[1]
    reached = reached.scaled(1 / float(reached.weight))
    rows = np.zeros((2, 12))
    H = np.einsum("rj,rk->rjk", *others).reshape(2, -1)
    for i, row in enumerate(Z.reshape(12, -1)):
        seen = ~np.isnan(row)
        for _ in range(300):
            for r in range(2):
                u = H[r, seen] @ (row[seen] - rows[:, i] @ H[:, seen] + rows[r, i] * H[r, seen])
                rows[r, i] = np.sign(u) * max(abs(u) - 0.21, 0) / (H[r, seen] @ H[r, seen] + 0.49)
    factors = [rows, *(A.copy() for A in others)]
    filled = np.where(np.isnan(Z), model_of([A.T for A in factors]), Z)  # once, from where the step begins
    for n in (1, 2):
        X = np.moveaxis(Z if exact else filled, n, 0).reshape(Z.shape[n], -1)
        seen = ~np.isnan(X)
        h = np.stack([model_of([A[[r]].T for i, A in enumerate(factors) if i != n]).ravel() for r in range(2)])
        for r in range(2):
            residual = np.where(seen, X - factors[n].T @ h + np.outer(factors[n][r], h[r]), 0)
            u = residual @ h[r]
            factors[n][r] = np.sign(u) * np.maximum(np.abs(u) - 0.21, 0) / (seen @ h[r] ** 2 + 0.49)
    np.testing.assert_allclose(reached.factors, np.hstack(factors[1:]), atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_samples_of_columns_are_unbiased(exact: bool) -> None:
    """Averaged over all draws, the linear terms and the shares are those of all columns."""
    rng = np.random.default_rng(0)
    Z, net = planted((30, 8, 6), 2, seed=5, missing=0.2), ElasticNet(0.1, 0.3)
    pass_ = steps(Z, net, exact=exact, batch_sizes=(30, 8, 3))
    V, X = Z.reshape(30, -1), rng.standard_normal((2, 30))
    local = _LocalSteps(
        pass_, AdamaxState.initial([rng.standard_normal((2, size)) for size in (8, 6)]), Sample(V, np.ones(30), Workspace())
    )
    batch = local._sample.batch(np.arange(30))

    def drawn(columns: Any) -> tuple[Array, Array]:
        some, sizes = local._take_factors(columns)
        products = contracted_slices(X, *local._entries(batch, columns), some, sizes, exact)
        share = local._columns_share(columns) if columns[1] is not None else np.ones(2)
        return subproblem(0, X, *products, some, sizes)[0], share

    U, _ = drawn([None, None])
    draws = [drawn([None, np.sort(rng.choice(6, 3, replace=False))]) for _ in range(4000)]
    for i, expected in ((0, U), (1, np.ones(2))):
        values = np.array([draw[i] for draw in draws]) * 2
        assert (np.abs(values.mean(axis=0) - expected) <= 5 * values.std(axis=0) / np.sqrt(4000) + 1e-12).all()


def test_the_mean_of_blocks_is_weighted_by_their_slices() -> None:
    rng = np.random.default_rng(1)
    begin = AdamaxState.initial([rng.standard_normal((2, size)) for size in (6, 5)])
    parts = [replace(begin.scaled(weight), squares=np.full(2, weight)) for weight in (2.0, 6.0)]
    for order in ((0, 1), (1, 0)):
        total = parts[order[0]].accumulator()
        total.add(parts[order[1]])
        mean = total.scaled(1 / float(total.weight))
        np.testing.assert_allclose(mean.factors, begin.factors)
        np.testing.assert_allclose(mean.squares, 1)
        assert mean.weight == 1
    np.testing.assert_allclose(parts[0].factors, 2 * begin.factors)  # the summand is not changed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_partitions_are_spread_evenly(seed: int) -> None:
    for n in (1, 20, 32, 313, 5000):
        drawn = spread_partitions(n, seeded(seed, n))
        assert len(drawn) == min(n, max(16, -(-n // 32)))
        edges = [n * i / len(drawn) for i in range(len(drawn) + 1)]
        assert all(a - 1 < number < b for number, (a, b) in zip(drawn, pairwise(edges), strict=True))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_end_of_a_noisy_history_is_seen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    falling = list(100 + 50 * 0.7 ** np.arange(8) + 0.01 * rng.standard_normal(8))
    assert np.isnan(progress(falling[:5]))
    assert progress(falling) > 0.01
    assert progress([*falling, *([100.0] * 6)]) == 0
    flat = [progress(list(100 + rng.standard_normal(6))) for _ in range(400)]
    # A difference of zero mean exceeds its standard error in about a sixth of the cases.
    assert 0.1 < np.mean(np.array(flat) > 0) < 0.3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_approaches_block_coordinate_descent(shape: tuple[int, ...], seed: int) -> None:
    Z = planted((6 * shape[0], *shape[1:]), 3, seed, missing=0.2)
    settings: dict[str, Any] = {"lam": 2.0, "init": "svd", "random_state": seed}
    exact = dfact.ElasticCP(3, **settings).fit(Z)
    model = dfact.ElasticCP(3, solver="stochastic", **settings).fit(Z)
    assert model.objective_history_[-1] <= 1.015 * exact.objective_history_[-1]
    assert model.objective_history_[-1] == pytest.approx(objective(Z, model, variances_of(Z, 3)), rel=1e-9)
    assert model.objective_history_[-1] <= 1.01 * model.objective_history_.min()
    assert model.rank_ == exact.rank_
    assert model.converged_
    np.testing.assert_allclose(model.transform(Z), model.factors_[0], atol=1e-12)


@pytest.mark.further
def test_nonnegative_given_priors_and_precision() -> None:
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 3)) * (rng.random((size, 3)) < 0.7) for size in (200, 20, 8)]
    Z = model_of(factors) + 0.05 * rng.standard_normal((200, 20, 8))
    Z[rng.random(Z.shape) < 0.2] = np.nan
    variances = [rng.uniform(0.5, 2, size) for size in Z.shape]
    for prior, expected in ((variances, variances), (None, [np.ones(size) for size in Z.shape])):
        settings: dict[str, Any] = {"lam": 0.5, "nonnegative": True, "slice_variances": prior, "random_state": 1, "init": "svd"}
        exact = dfact.ElasticCP(3, **settings).fit(Z)
        model = dfact.ElasticCP(3, solver="stochastic", **settings).fit(Z)
        assert min(A.min() for A in model.factors_) >= 0
        assert model.objective_history_[-1] == pytest.approx(objective(Z, model, expected), rel=1e-9)
        assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]
        single = dfact.ElasticCP(3, solver="stochastic", dtype="float32", **settings).fit(Z)
        assert all(A.dtype == np.float32 for A in single.factors_)
        assert single.objective_history_[-1] == pytest.approx(model.objective_history_[-1], rel=1e-2)


def test_csr_data_equals_its_dense_form() -> None:
    Z = np.random.default_rng(0).poisson(0.3, (300, 20)).astype(float)
    dense, sparse = (dfact.ElasticCP(3, solver="stochastic", max_iter=5, random_state=0).fit(X) for X in (Z, sp.csr_array(Z)))
    for A, B in zip(dense.factors_, sparse.factors_, strict=True):
        np.testing.assert_allclose(A, B, atol=1e-9)


@pytest.fixture(scope="module")
def eight() -> Iterator[LocalCluster]:
    """Eight workers in this process."""
    with LocalCluster(n_workers=8, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions")
@pytest.mark.filterwarnings("ignore:components 1 and 2 cancel")
@pytest.mark.parametrize(("missing", "workers"), exhaustive_after(1, [("fill", 2), ("fill", 8), ("exact", 8)]))
def test_the_result_depends_on_the_seed_alone(
    missing: str, workers: int, request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfact.models.cp.stochastic.LEAST_ENTRIES", 6)  # the samples are small, so that they differ
    X = answers(4000, 3).astype(np.float32)
    coded = np.where(np.isnan(X), 255, X).astype(np.uint8)
    dataset = dfact.import_array(coded, tmp_path / "d.zarr", missing=255)
    assert Layout.of(X.shape).n_partitions >= 3
    settings: dict[str, Any] = {
        "solver": "stochastic",
        "n_init": 2,
        "missing": missing,
        "max_iter": 4,
        "lam": 3.0,
        "batch_sizes": [50, 9, 2],
    }
    reference = dfact.ElasticCP(3, executor="inline", random_state=4, **settings).fit(dataset)
    with Client(cluster if workers == 2 else request.getfixturevalue("eight"), set_as_default=False) as client:
        for executor, data in ((ThreadsExecutor(2), dataset), (client, dataset), (None, X)):
            assert_same(reference, dfact.ElasticCP(3, executor=executor, random_state=4, **settings).fit(data))
    rows = {"fill": 37, "exact": 3001}[missing]
    other_chunks = zarr.create_array(tmp_path / "chunks.zarr", shape=coded.shape, chunks=(rows, 12, 3), dtype="u1")
    other_chunks[:] = coded
    again = replace(dataset, source=ZarrSource(other_chunks))
    assert_same(reference, dfact.ElasticCP(3, executor="inline", random_state=4, **settings).fit(again))
    changed = dfact.ElasticCP(3, executor="inline", random_state=5, **settings).fit(dataset)
    assert not np.array_equal(changed.factors_[1], reference.factors_[1])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("many_partitions")
def test_it_reads_less_than_block_coordinate_descent(tmp_path: Path) -> None:
    X = answers(15_000, 3)
    dfact.import_array(np.where(np.isnan(X), 255, X).astype(np.uint8), tmp_path / "d.zarr", missing=255)
    dataset = counted(tmp_path / "d.zarr")
    settings: dict[str, Any] = {"n_components": 3, "lam": 3.0, "random_state": 1}
    exact_run, run = fit(dataset, **settings), fit(dataset, solver="stochastic", **settings)
    (exact, all_bytes), (model, few_bytes) = (exact_run.model, exact_run.bytes), (run.model, run.bytes)
    assert all_bytes >= 10 * X.size  # memory holds a small part of it
    assert few_bytes <= 0.8 * all_bytes  # of nine partitions, an iteration visits all
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]
    # Two more passes read all data, for the prior and for the rows at the end; then the samples of the starts and of the objective.
    assert model.n_epochs_ * X.size <= few_bytes - 2 * X.size <= (model.n_epochs_ + 2) * X.size
    assert not hasattr(exact, "n_epochs_")


def test_n_epochs_counts_the_rows_of_decoded_chunks(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(105, 2), chunks=(10, 2), dtype="u1")
    assert ZarrSource(array).rows_decoded([slice(3, 5), slice(8, 9)]) == 10
    assert ZarrSource(array).rows_decoded([slice(9, 11), slice(103, 105)]) == 25
    assert ZarrSource(array, 3, 90).rows_decoded([slice(0, 1), slice(80, 90)]) == 7 + 10 + 3
    assert ArraySource(np.empty((105, 2))).rows_decoded([slice(3, 5), slice(8, 9)]) == 3


@pytest.mark.further
@pytest.mark.parametrize("share", [0.5, 0.85])
def test_any_share_may_be_missing(share: float) -> None:
    rng = np.random.default_rng(2)
    Z = planted((300, 20, 15), 3, seed=2, noise=0.1)
    Z[rng.random(Z.shape) < share] = np.nan
    settings: dict[str, Any] = {"lam": 0.5, "init": "svd", "random_state": 1}
    exact = dfact.ElasticCP(3, missing="fill", max_iter=1000, **settings).fit(Z)
    model = dfact.ElasticCP(3, solver="stochastic", **settings).fit(Z)
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]
    assert model.rank_ == exact.rank_ == 3


@pytest.mark.further
@pytest.mark.parametrize("seed", [1, 2])
def test_no_component_vanishes_before_it_has_been_fitted(seed: int) -> None:
    """Rows at their optimum would not use a component that has not formed yet, and it would never form."""
    X = answers(3000, 5)
    exact = dfact.ElasticCP(3, lam=3.0, random_state=seed).fit(X)
    model = dfact.ElasticCP(3, lam=3.0, solver="stochastic", random_state=seed).fit(X)
    assert model.rank_ == exact.rank_ == 3
    assert model.objective_history_[-1] <= 1.01 * exact.objective_history_[-1]


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
    # With all slices in a step, the monitoring sample holds all: the estimate is exact, too.
    assert monitor_rows(Z.shape, 300) == 300
    fitted = replace(as_dataset(Z), stored_fingerprint=None)
    again = dfact.ElasticCP(2, solver="stochastic", batch_sizes=Z.shape, init=model.factors_, max_iter=1, random_state=0).fit(fitted)
    assert again.objective_history_[0] == pytest.approx(model.objective_history_[-1], rel=1e-9)
    wide = dfact.import_array(answers(20_000, 0), tmp_path / "d.zarr")
    plans = [dfact.plan(dfact.ElasticCP(3, solver=solver, missing="fill"), wide).driver for solver in ("bcd", "stochastic")]
    assert plans[1] >= plans[0] + 8 * 36 * monitor_rows(wide.shape, 64)


def test_default_batch_sizes() -> None:
    assert resolve_batch_sizes(None, (200_000, 300, 5), 10) == (43, 300, 5)
    assert resolve_batch_sizes(None, (20_000, 200, 50), 10) == (16, 200, 50)
    assert resolve_batch_sizes(None, (50, 50, 50), 10) == (25, 50, 50)
    assert resolve_batch_sizes(None, (10_000, 5000), 30) == (120, 5000)
    assert resolve_batch_sizes(None, (10_000, 5000, 10), 3) == (16, 1250, 10)
    assert resolve_batch_sizes([10, 99], (1000, 40), 3) == (10, 40)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"batch_sizes": [4, 4]}, "expected 3 numbers, one for each mode"),
        ({"batch_sizes": [4, 0, 4]}, "batch_sizes"),
        ({"batch_sizes": 8}, "batch_sizes"),
        ({"step_size": 0}, "step_size"),
        ({"step_size": 1.5}, "step_size"),
        ({"missing": "some"}, "missing"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        dfact.ElasticCP(2, solver="stochastic", **parameters).fit(planted((40, 6, 4), 2, 0))


@pytest.mark.parametrize(
    ("shape", "batch_sizes", "message"),
    [
        ((29, 6, 5), None, r"X has 29 slices in mode 1, expected at least 30 .*; use solver='bcd'"),
        ((29, 6, 5), [28, 6, 5], r"X has 29 slices in mode 1"),
        (
            (60, 12, 10),
            [32, 5, 7],
            r"batch_sizes=\[32, 5, 7\] draws 35 entries of a slice of mode 1 for 2 components, expected at least 40",
        ),
        ((29, 6, 5), [29, 6, 5], None),  # all entries
        ((60, 12, 10), [32, 8, 5], None),
        ((60, 5, 4), [32, 5, 4], None),
    ],
)
def test_samples_too_small_for_the_optimum_are_refused(shape: tuple[int, ...], batch_sizes: list[int] | None, message: str | None) -> None:
    model = dfact.ElasticCP(2, solver="stochastic", batch_sizes=batch_sizes)
    if message is None:
        model.prepare(planted(shape, 2, 0))
        return
    with pytest.raises(dfact.ParameterError, match=message):
        model.prepare(planted(shape, 2, 0))


def distance_from_block_optima(Z: Array, model: Any, variances: list[Array]) -> float:
    """Return the largest distance of a vector from the minimizer of the objective in it (equations 22 to 24), relative to its length."""
    factors, distances = [np.asarray(A, np.float64) for A in model.factors_], []
    residual = Z - np.einsum("ir,jr,kr->ijk", *factors)
    for r in range(factors[0].shape[1]):
        W = residual + np.einsum("i,j,k->ijk", *(A[:, r] for A in factors))
        for n, A in enumerate(factors):
            others = [B[:, r] for m, B in enumerate(factors) if m != n]
            h = np.multiply.outer(*others).ravel()
            u = np.moveaxis(W, n, 0).reshape(len(A), -1) @ h
            best = np.sign(u) * np.maximum(np.abs(u) - model.lam * model.l1_ratio, 0)
            best /= h @ h + model.lam * (1 - model.l1_ratio) / variances[n]
            distances.append(np.linalg.norm(A[:, r] - best) / max(np.linalg.norm(A[:, r]), 1e-12))
    return max(distances)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_conjecture_3_bounded_iterates_approach_a_critical_point(seed: int) -> None:
    """The paper conjectures it without a proof. At a critical point each vector is the minimizer of the objective given the others."""
    rng = np.random.default_rng(seed)
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (400, 8, 6))) + 0.3 * rng.standard_normal((400, 8, 6))
    variances, init = [np.ones(size) for size in Z.shape], [rng.standard_normal((size, 2)) for size in Z.shape]
    distances = []
    for iterations in (4, 60):
        settings = {
            "lam": 2.0,
            "l1_ratio": 0.3,
            "slice_variances": variances,
            "init": init,
            "random_state": seed,
            "max_iter": iterations,
            "tol": 0.0,
        }
        model = dfact.ElasticCP(2, solver="stochastic", **settings).fit(Z)
        assert all(np.abs(np.asarray(A)).max() < 100 for A in model.factors_)
        distances.append(distance_from_block_optima(Z, model, variances))
    assert distances[1] < 0.02
    assert distances[1] < 0.5 * distances[0]
