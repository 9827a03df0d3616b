"""Polychoric correlations by passes: published figures, planted correlations, tiles of items, levels nobody took."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import multivariate_normal

from dfact.data.coerce import as_dataset
from dfact.engine.executors import InlineExecutor
from dfact.engine.memory_plan import Footprint, make_plan
from dfact.engine.partitions import partitions
from dfact.engine.requests import drive
from dfact.questionnaires import polychoric
from dfact.questionnaires.polychoric import Levels, Tabulated, grouping_information, level_moments, tabulate
from tests.conftest import CutRows
from tests.questionnaires import FOLDER, bfi, oracle, psychometrics

Array = NDArray[Any]
FLOAT64 = np.dtype(np.float64)

# LSAT section 7 (Bock & Lieberman 1970): numbers of 1000 people with each pattern of right answers to 5 items, item 1 the highest bit.
LSAT7 = [12, 19, 1, 7, 3, 19, 3, 17, 10, 5, 3, 7, 7, 23, 8, 28, 7, 39, 11, 34, 14, 51, 15, 90, 6, 25, 7, 35, 18, 136, 32, 308]
TETRACHORIC = [0.226559, 0.290611, 0.432105, 0.296153, 0.203580, 0.275848, 0.286162, 0.135650, 0.264923, 0.160252]


def lsat7() -> Array:
    patterns = np.repeat(np.arange(32), LSAT7)
    return (patterns[:, None] >> np.arange(4, -1, -1) & 1).astype(np.uint8)


def estimate(
    X: Array, tiles: int = 1, threads: int = 1, complete_only: bool = False, weights: Array | None = None
) -> tuple[Tabulated, Levels]:
    source = as_dataset(X).source
    plan = make_plan(source, FLOAT64, Footprint(1000, 1000, 1000, 0), InlineExecutor().workers(None))
    levels = Levels.between(np.nanmin(X, axis=0).astype(float), np.nanmax(X, axis=0).astype(float))
    settings: dict[str, Any] = {"complete_only": complete_only, "threads": threads, "weighted": weights is not None}
    with InlineExecutor().open(partitions(source, None, None if weights is None else weights[:, None] / weights.max()), plan) as session:
        return drive(tabulate(levels, tiles, len(X), FLOAT64, **settings), session), levels


def graded(n: int, R: Array, n_levels: int, seed: int, missing: float = 0.0, cuts: Array | None = None) -> Array:
    """Ordered answers from 1 with normal variables of these correlations behind them, cut at random by default."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, len(R))) @ np.linalg.cholesky(R).T
    cuts = np.sort(rng.normal(size=(len(R), n_levels - 1)) * 0.8, axis=1) if cuts is None else cuts
    X = (Z[:, :, None] > cuts).sum(axis=2) + 1.0
    return np.where(rng.random(X.shape) < missing, np.nan, X)


def one_factor(m: int) -> Array:
    loadings = np.linspace(0.3, 0.9, m)[:, None]
    return loadings @ loadings.T + np.diag(1 - (loadings**2).ravel())


def test_published_tetrachoric_correlations() -> None:
    found, _ = estimate(lsat7().astype(float))
    assert found.correlations.R[np.tril_indices(5, -1)] == pytest.approx(TETRACHORIC, abs=1e-6)
    assert [item[0] for item in found.categories.by_item] == pytest.approx(
        [-0.946291, -0.407011, -0.745450, -0.268909, -1.006864], abs=1e-6
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_neither_tiles_nor_threads_nor_blocks_change_a_bit(
    seed: int, weighted: bool, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = graded(3000, one_factor(9), 4, seed, missing=0.1)
    w = np.random.default_rng(seed).gamma(2, 1, len(X)) if weighted else None
    first, levels = estimate(X, weights=w)
    others = [estimate(X, tiles=tiles, threads=2, weights=w)[0] for tiles in (2, 4, 9, 64)]
    cut_rows(block_entries=1 << 9, small_partition_entries=1 << 10, partition_entries=1 << 11)
    monkeypatch.setattr(polychoric, "GATHERED_ROWS", 320)
    monkeypatch.setattr(polychoric, "_THREADED", 1)
    others += [estimate(X, threads=3, weights=w)[0], estimate(X, tiles=3, weights=w)[0]]
    for other in others:
        np.testing.assert_array_equal(other.correlations.R, first.correlations.R)
        np.testing.assert_array_equal(other.correlations.errors, first.correlations.errors)
        np.testing.assert_array_equal(other.totals, first.totals)
        assert other.categories.by_item == first.categories.by_item
        assert (other.rows, other.effective_rows) == (first.rows, first.effective_rows)
    mean, scale = level_moments(levels, first.totals)
    expected = [weighted_mean_and_deviation(x, np.ones(len(X)) if w is None else w) for x in X.T]
    np.testing.assert_allclose(np.transpose([mean, scale]), expected, rtol=1e-9)
    seen = (~np.isnan(X)).astype(float)
    off = ~np.eye(9, dtype=bool)
    np.testing.assert_array_equal(first.correlations.counts[off], (seen.T @ seen)[off])
    rows = ~np.isnan(X).any(axis=1)
    complete, alone = estimate(X, complete_only=True, weights=w)[0], estimate(X[rows], weights=None if w is None else w[rows])[0]
    np.testing.assert_allclose(complete.correlations.R, alone.correlations.R, rtol=0, atol=0 if w is None else 1e-9)
    assert complete.effective_rows == pytest.approx(alone.effective_rows, rel=1e-9)


def weighted_mean_and_deviation(x: Array, w: Array) -> tuple[float, float]:
    """Weighted mean of the answers, and the deviation with the factor n/(n − 1) of Kish's n."""
    x, p = x[~np.isnan(x)], w[~np.isnan(x)] / w[~np.isnan(x)].sum()
    return float(p @ x), float(np.sqrt(p @ (x - p @ x) ** 2 / (1 - p @ p)))


@pytest.mark.parametrize("seed", [0, 1])
def test_weighted_correlations_maximise_the_weighted_likelihood(seed: int) -> None:
    X = graded(400, one_factor(3), 3, seed, missing=0.1)
    w = np.random.default_rng(seed).gamma(1, 1, len(X))
    w[::9] = 0
    found = estimate(X, weights=w)[0]
    answered = ~np.isnan(X).all(axis=1) & (w > 0)
    assert found.rows == answered.sum()
    assert found.effective_rows == pytest.approx(w[answered].sum() ** 2 / (w[answered] ** 2).sum(), rel=1e-9)
    thresholds = []
    for x, item in zip(X.T, found.categories.by_item, strict=True):
        total = w[~np.isnan(x)].sum()
        thresholds.append(ndtri([w[x <= level].sum() / total for level in (1, 2)]))
        assert item == pytest.approx(thresholds[-1], abs=1e-9)
    for i, j in ((1, 0), (2, 0), (2, 1)):
        both = ~np.isnan(X[:, [i, j]]).any(axis=1) & (w > 0)
        effective = w[both].sum() ** 2 / (w[both] ** 2).sum()
        table = np.array([[w[(X[:, i] == a) & (X[:, j] == b)].sum() for b in (1, 2, 3)] for a in (1, 2, 3)])
        corners = [np.concatenate([[-9], thresholds[item], [9]]) for item in (i, j)]

        def probabilities(rho: float, corners: list[Array] = corners) -> Array:
            F = multivariate_normal.cdf(np.stack(np.meshgrid(*corners, indexing="ij"), axis=-1), cov=[[1, rho], [rho, 1]])
            return np.diff(np.diff(F, axis=0), axis=1)

        rho, step = found.correlations.R[i, j], 1e-4
        slopes = (probabilities(rho + step) - probabilities(rho - step)) / (2 * step)
        score = float((table / table.sum() * slopes / probabilities(rho)).sum())
        information = float((slopes**2 / probabilities(rho)).sum())
        assert abs(score / information) < 1e-6
        assert found.correlations.errors[i, j] == pytest.approx((effective * information) ** -0.5, rel=1e-5)
        assert found.correlations.counts[i, j] == found.correlations.counts[j, i] == both.sum()


@pytest.mark.parametrize("n_levels", [2, 4])
@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_equal_weights_have_the_bits_of_none(n_levels: int, weight: float) -> None:
    X = graded(300, one_factor(5), n_levels, 3, missing=0.2)
    X[:2, 0] = [1, 2]
    plain, weighted = estimate(X)[0], estimate(X, weights=np.full(len(X), weight))[0]
    for name in ("R", "errors"):
        np.testing.assert_array_equal(getattr(weighted.correlations, name), getattr(plain.correlations, name))
    np.testing.assert_array_equal(weighted.totals, plain.totals)
    assert (weighted.categories.by_item, weighted.effective_rows) == (plain.categories.by_item, plain.rows)


def test_tiles_cover_all_items() -> None:
    for sizes in ([2] * 7, [5, 2, 9, 3], [4] * 100):
        levels = Levels.between(np.zeros(len(sizes)), np.array(sizes) - 1.0)
        for count in (1, 2, 3, 8, 200):
            tiles = levels.tiles(count)
            assert [j for a, b in tiles for j in range(a, b)] == list(range(len(sizes)))
    areas = [levels.starts[b] ** 2 - levels.starts[a] ** 2 for a, b in levels.tiles(4)]
    assert max(areas) < 1.1 * sum(areas) / 4


@pytest.mark.parametrize("rho", [0.0, 0.5, -0.5, 0.9, 0.99])
def test_planted_correlations_are_recovered_within_their_standard_errors(rho: float) -> None:
    z, cuts = [], np.array([[-0.9, 0.1, 0.8], [-0.6, 0.2, 1.1]])
    for seed in range(40):
        found = estimate(graded(2000, np.array([[1, rho], [rho, 1]]), 4, seed, cuts=cuts))[0].correlations
        z.append((found.R[0, 1] - rho) / found.errors[0, 1])
    assert abs(np.mean(z)) < 3 / np.sqrt(len(z))
    assert 0.6 < np.std(z) < 1.5
    assert np.abs(z).max() < 4.5


def test_levels_that_nobody_took_are_no_category() -> None:
    X = graded(500, one_factor(4), 3, 0)
    spread = X.copy()
    spread[:, 1] = 2 * X[:, 1] + 3
    plain, gaps = estimate(X)[0], estimate(spread)[0]
    np.testing.assert_array_equal(gaps.correlations.R, plain.correlations.R)
    assert gaps.categories.by_item == plain.categories.by_item
    assert plain.categories.by_item[0] == pytest.approx(ndtri([(X[:, 0] <= level).mean() for level in (1, 2)]))


def test_fractions_are_counted_and_copies_reach_the_limit() -> None:
    X = graded(400, one_factor(3), 4, 1)
    copied = estimate(np.column_stack([X, X[:, 1]]))[0].correlations
    assert copied.at_limit.tolist() == [[3, 1]]
    assert np.isnan(copied.errors[3, 1])
    X[7, 2] += 0.5
    np.testing.assert_array_equal(estimate(X)[0].fractions, [0, 0, 1])


def test_information_of_grouping() -> None:
    assert grouping_information([[0.0]]) == pytest.approx([2 / np.pi])
    fine = ndtri(np.linspace(0, 1, 400)[1:-1]).tolist()
    assert grouping_information([fine]) == pytest.approx([1], abs=0.01)


@psychometrics
def test_matrices_by_r() -> None:
    found = estimate(bfi().to_numpy())[0]
    np.testing.assert_allclose(found.correlations.R, oracle("polychoric_bfi.csv"), atol=1e-6)
    np.testing.assert_allclose(found.categories.by_item, oracle("thresholds_bfi.csv"), atol=1e-7)
    complete = estimate(bfi().to_numpy(), complete_only=True)[0]
    assert complete.rows == 2436
    np.testing.assert_allclose(complete.correlations.R, oracle("polychoric_bfi_complete.csv"), atol=1e-6)
    np.testing.assert_allclose(complete.categories.by_item, oracle("thresholds_bfi_complete.csv"), atol=1e-7)
    lsat = estimate(pd.read_csv(FOLDER / "lsat7.csv").to_numpy(float))[0]
    np.testing.assert_allclose(lsat.correlations.R, oracle("tetrachoric_lsat7.csv"), atol=1e-6)
