"""Singular vectors, vertex hunting and K-means by passes, each against a plain NumPy or scikit-learn one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import subspace_angles
from sklearn.cluster import KMeans
from sklearn.svm import OneClassSVM
from threadpoolctl import threadpool_limits

from dfact.data.coerce import as_dataset
from dfact.engine import tiles
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import RunPass, Workspace
from dfact.engine.requests import Solver, drive
from dfact.engine.session import Session
from dfact.errors import DataError
from dfact.linalg import kmeans as kmeans_module
from dfact.linalg import svd
from dfact.linalg.kmeans import kmeans, nearest_rows
from dfact.linalg.parallel_analysis import parallel_analysis
from dfact.linalg.row_points import Coordinates, DataRows, EmbedPass, take
from dfact.linalg.svd import right_singular, zero_filled
from dfact.linalg.vertex_hunting import cone_normal, cone_vertices, least_distance, successive_projection
from tests.conftest import CutRows

FLOAT64 = np.dtype(np.float64)


@contextmanager
def session(X: Any, dtype: np.dtype[Any] = FLOAT64) -> Iterator[Session]:
    source = as_dataset(X).source
    plan = make_plan(source, dtype, Footprint(1000, 1000, 1000, 0), InlineExecutor().workers(None))
    with InlineExecutor().open(partitions(source, None, None), plan) as opened:
        yield opened


@contextmanager
def embedded(Y: NDArray[np.float64]) -> Iterator[Session]:
    """A session whose state holds Y (n, k) as the coordinates of its rows."""
    with session(Y) as opened:
        opened.run(RunPass(EmbedPass(FLOAT64, zero_filled), np.eye(Y.shape[1])))
        yield opened


@pytest.fixture(autouse=True)
def small_sizes(cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data has many blocks and partitions, and from 101 columns on it is decomposed iteratively."""

    monkeypatch.setattr(svd, "_GRAM_COLUMNS", 100)
    cut_rows(block_entries=1 << 9, partition_entries=1 << 12)


def low_rank(n: int, m: int, k: int, noise: float, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.random((n, k)) @ (rng.random((k, m)) * 2.0 ** -np.arange(k)[:, None]) + noise * rng.standard_normal((n, m))


def assert_leading_singular(V: NDArray[np.float64], sigma: NDArray[np.float64], X: NDArray[np.float64]) -> None:
    _, expected, Vt = np.linalg.svd(X, full_matrices=False)
    np.testing.assert_allclose(sigma, expected[:4], rtol=1e-8)
    assert np.sin(subspace_angles(V, Vt[:4].T).max()) < 1e-4
    np.testing.assert_allclose(V.T @ V, np.eye(4), atol=1e-10)
    assert (V[np.abs(V).argmax(axis=0), range(4)] > 0).all()


@pytest.mark.parametrize("m", [40, 150])
@pytest.mark.parametrize("seed", range(2))
def test_right_singular_vectors_are_those_of_numpy(m: int, seed: int) -> None:
    X = low_rank(500, m, 4, 0.03, seed)
    with session(X) as opened:
        V, sigma = drive(right_singular(m, 4, FLOAT64, tolerance=1e-6), opened)
    assert_leading_singular(V, sigma, X)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_right_singular_vectors_of_many_columns_are_those_of_numpy(seed: int, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "_BASIS_ENTRIES", 0)
    monkeypatch.setattr(tiles, "_TILE_COLUMNS", 60)
    X = low_rank(500, 150, 4, 0.03, seed)
    with session(sp.csr_array(X) if sparse else X) as opened:
        V, sigma = drive(right_singular(150, 4, FLOAT64, tolerance=1e-6), opened)
    assert_leading_singular(V, sigma, X)


@pytest.mark.parametrize("k", [2, 5])
def test_many_columns_need_about_as_many_passes_as_a_full_basis(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X = low_rank(500, 250, k, 0.2, 0)
    passes = []
    for entries in (1 << 26, 0):
        monkeypatch.setattr(svd, "_BASIS_ENTRIES", entries)
        requests = []
        solver = right_singular(250, k, FLOAT64, tolerance=1e-3)
        with session(X) as opened:
            drive(recorded(solver, requests), opened)
        passes.append(sum(isinstance(request, RunPass) for request in requests))
    assert passes[1] <= passes[0] + 2


def recorded(solver: Solver[Any], requests: list[Any]) -> Solver[Any]:
    """The same solver, whose requests are noted."""
    reply = None
    while True:
        try:
            requests.append(solver.send(reply))
        except StopIteration as end:
            return end.value
        reply = yield requests[-1]


def test_many_columns_and_a_rank_below_the_number_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "_BASIS_ENTRIES", 0)
    X = low_rank(150, 300, 3, 0.0, 2)
    with session(X) as opened:
        _, sigma = drive(right_singular(300, 5, FLOAT64), opened)
    np.testing.assert_allclose(sigma[:3], np.linalg.svd(X)[1][:3], rtol=1e-8)
    assert sigma[3] < 1e-6 * sigma[0]


@pytest.mark.parametrize("m", [40, 150])
def test_sparse_rows_give_the_singular_vectors_of_the_dense_ones(m: int) -> None:
    X = low_rank(300, m, 3, 0.0, 0) * (np.random.default_rng(1).random((300, m)) < 0.2)
    X[3, 5] = np.nan
    found = []
    for matrix in (X, sp.csr_array(X)):
        with session(matrix) as opened:
            found.append(drive(right_singular(m, 3, FLOAT64, tolerance=1e-8), opened))
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-10)
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-7)


def test_a_rank_below_the_number_of_vectors_is_seen_in_the_values() -> None:
    X = low_rank(150, 300, 3, 0.0, 2)
    with session(X) as opened:
        _, sigma = drive(right_singular(300, 5, FLOAT64), opened)
    np.testing.assert_allclose(sigma[:3], np.linalg.svd(X)[1][:3], rtol=1e-8)
    assert sigma[3] < 1e-6 * sigma[0]


def plain_successive_projection(Y: NDArray[np.float64], k: int) -> list[int]:
    Y, found = Y.copy(), []
    for _ in range(k):
        i = int(np.argmax((Y**2).sum(axis=1)))
        u = Y[i] / np.linalg.norm(Y[i])
        Y -= np.outer(Y @ u, u)
        found.append(i)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_successive_projection_selects_the_rows_of_a_reference_implementation(seed: int) -> None:
    Y = np.random.default_rng(seed).standard_normal((700, 6))
    with embedded(Y) as opened:
        found = drive(successive_projection([Coordinates(k) for k in (2, 4, 6)], [2, 4, 6]), opened)
        for k, rows in zip((2, 4, 6), found, strict=True):
            assert rows.tolist() == plain_successive_projection(Y[:, :k], k)
        for matrix in (Y, sp.csr_array(Y)):
            with session(matrix) as data:
                rows = drive(successive_projection([DataRows(FLOAT64, zero_filled)], [5]), data)[0]
            assert rows.tolist() == plain_successive_projection(Y, 5)


def test_successive_projection_reports_a_rank_that_is_too_low() -> None:
    with embedded(low_rank(300, 5, 2, 0.0, 0)) as opened, pytest.raises(DataError, match="span 2 dimensions, expected 4"):
        drive(successive_projection([Coordinates(5)], [4]), opened)


def clustered(n: int, k: int, seed: int) -> NDArray[np.float64]:
    """Directions about k axes of the positive orthant, longer and shorter, and a few points without any."""
    rng = np.random.default_rng(seed)
    Y = np.abs(np.eye(k)[rng.integers(0, k, n)] + 0.15 * rng.standard_normal((n, k))) * rng.uniform(0.5, 2, (n, 1))
    Y[::97] = 0
    return Y


def directions_of(Y: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    leading = Y[Y[:, :k].any(axis=1), :k]
    return leading / np.linalg.norm(leading, axis=1, keepdims=True)


def squared_distances(X: NDArray[np.float64], centers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.square(X[:, None] - centers).sum(axis=2)


@pytest.mark.parametrize("sample", [300, 5000])
@pytest.mark.parametrize("seed", range(2))
def test_kmeans_by_passes_reaches_scikit_learns(seed: int, sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans_module, "_SAMPLE", sample)
    Y = clustered(3000, 4, seed)
    widths = [4, 1, 3]
    with embedded(Y) as opened:
        centers = drive(kmeans(widths, len(Y), seed), opened)
        rows = drive(nearest_rows(centers), opened)
    for k, found, nearest in zip(widths, centers, rows, strict=True):
        X = directions_of(Y, k)
        distances = squared_distances(X, found)
        with threadpool_limits(1):
            peer = KMeans(k, n_init=10, random_state=0).fit(X)
        assert distances.min(axis=1).sum() <= 1.01 * peer.inertia_ + 1e-9
        distances[distances.argmin(axis=1)[:, None] != np.arange(k)] = np.inf
        if k > 1:
            assert nearest.tolist() == np.flatnonzero(Y[:, :k].any(axis=1))[distances.argmin(axis=0)].tolist()


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_as_good_clusters_as_many_starts(seed: int) -> None:
    k = 8
    rng = np.random.default_rng(seed)
    X = directions_of(rng.standard_normal((1500, k)) + 3 * rng.standard_normal((12, k))[rng.integers(0, 12, 1500)], k)
    solutions = kmeans_module.search(X.T.copy(), seed, Workspace())
    inertia = [solution[0] for solution in solutions]
    assert inertia == sorted(inertia)
    for found, centers in solutions:
        # The sums alone give the squared distances from the means of the clusters: the centres' own, except for a last step.
        assert squared_distances(X, centers).min(axis=1).sum() == pytest.approx(found, rel=1e-3)
    with threadpool_limits(1):  # the threads of so small a fit would mostly wait for each other
        assert inertia[0] <= 1.001 * KMeans(k, n_init=30, random_state=seed).fit(X).inertia_


def test_a_search_needs_as_many_rows_as_clusters() -> None:
    with pytest.raises(DataError, match="2 of 50 sampled rows have a direction, expected at least 3"):
        kmeans_module.search(np.eye(3, 50) * [[1], [1], [0]], 0, Workspace())


@pytest.mark.parametrize("seed", range(4))
def test_the_cones_normal_is_the_hard_margin_of_the_one_class_svm(seed: int) -> None:
    Y = clustered(400, 3, seed)
    with embedded(Y) as opened:
        w = drive(cone_normal(Coordinates(3, unit=True), 1e-10), opened)
    Y = Y[Y.any(axis=1)]
    X = Y / np.linalg.norm(Y, axis=1, keepdims=True)
    assert (X @ w).min() == pytest.approx(1, abs=1e-9)
    # With at most one point outside the margin and a tiny tolerance the peer's margin is hard; its w is scaled to the offset 1.
    peer = OneClassSVM(kernel="linear", nu=1 / (2 * len(X)), tol=1e-12).fit(X)
    np.testing.assert_allclose(w, peer.coef_[0] / -peer.intercept_[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_least_distance_is_optimal(seed: int) -> None:
    X = np.random.default_rng(seed).random((200, 4)) + 0.1
    w = least_distance(X)
    slack = X @ w - 1
    assert slack.min() > -1e-9
    # w is a non-negative combination of the rows on the margin.
    on_margin = X[slack < 1e-8]
    multipliers = np.linalg.lstsq(on_margin.T, w, rcond=None)[0]
    np.testing.assert_allclose(on_margin.T @ multipliers, w, atol=1e-8)
    assert multipliers.min() > -1e-8


def test_rows_on_all_sides_are_no_cone() -> None:
    with pytest.raises(DataError, match="expected a cone"):
        least_distance(np.array([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1], [0.0, 1.0], [0.0, -1.0]]))


@pytest.mark.parametrize("seed", range(3))
def test_the_cones_corners_are_its_pure_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    corners = np.abs(np.eye(3) + 0.2 * rng.random((3, 3)))
    mixed = rng.dirichlet([1, 1, 1], 500)
    Y = np.vstack([mixed, np.eye(3)[[0, 1, 2, 1]]]) @ corners * rng.uniform(0.5, 2, (504, 1))
    with embedded(Y) as opened:
        rows = drive(cone_vertices(Coordinates(3, unit=True), len(Y), 1e-12, seed), opened)
        np.testing.assert_array_equal(drive(take(Coordinates(3), rows), opened), Y[rows])
    assert {frozenset({500}), frozenset({501, 503}), frozenset({502})} == {
        next(group for group in (frozenset({500}), frozenset({501, 503}), frozenset({502})) if row in group) for row in rows.tolist()
    }


def _incomplete_correlations(seed: int, loadings: np.ndarray, missing: float) -> tuple[np.ndarray, np.ndarray]:
    """Return pairwise correlations of 300 rows with these loadings (k, m), and the shares of rows that pairs have."""
    rng = np.random.default_rng(seed)
    k, m = loadings.shape
    X = rng.normal(size=(300, k)) @ loadings + rng.normal(size=(300, m)) * np.sqrt(1 - (loadings**2).sum(axis=0))
    X[rng.random(X.shape) < missing] = np.nan
    observed = (~np.isnan(X)).astype(float)
    return pd.DataFrame(X).corr().to_numpy(), observed.T @ observed / len(X)


@pytest.mark.parametrize("missing", [0.0, 0.2, 0.4])
def test_parallel_analysis_of_incomplete_columns_finds_weak_factors_and_none_in_noise(missing: float) -> None:
    weak = np.kron(np.eye(4), np.ones(7)) * np.repeat(np.linspace(0.75, 0.5, 4), 7)
    found = []
    for loadings in (weak, np.zeros((1, 28))):
        drawn = [_incomplete_correlations(seed, loadings, missing) for seed in range(12)]
        found.append([parallel_analysis(R, 300, shares=shares, repeats=40).n_factors for R, shares in drawn])
    assert found[0].count(4) >= 10
    assert found[1].count(0) >= 10


def test_parallel_analysis_warns_of_few_rows_for_a_pair_of_columns() -> None:
    R, shares = _incomplete_correlations(0, np.zeros((1, 28)), 0.6)
    with pytest.warns(UserWarning, match="on average (4|5). rows have both of two of the 28 columns, expected 3 for each column"):
        parallel_analysis(R, 300, shares=shares, repeats=2)


def test_a_few_missing_entries_hardly_move_the_random_eigenvalues() -> None:
    """The reference of nearly complete columns is that of complete ones."""
    R, _ = _incomplete_correlations(0, np.zeros((1, 12)), 0)
    one = np.ones_like(R)
    complete, nearly = (parallel_analysis(R, 300, shares=shares).reference for shares in (one, one - 1e-6))
    np.testing.assert_allclose(nearly, complete, rtol=1e-5)
