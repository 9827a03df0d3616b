"""Data whose columns are in several connected parts: starts from singular vectors must not leave out the smaller ones."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from benchmarks.versions.disconnected import MODELS, booklets, chain, common_item, objectives, ratings_with_strangers
from dfact.kernels.parts import join_dense, join_labels, join_stored
from dfact.linalg.parts import PartLabels, Parts, PartsPass, _is_loose


@pytest.mark.parametrize("blocks", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_default_starts_reach_all_booklets(name: str, blocks: int) -> None:
    default, random = objectives(name, booklets(blocks, seed=blocks - 2))
    assert default <= 1.002 * random


@pytest.mark.parametrize("name", ["ExpectileMF", "NMF", "Kullback-Leibler", "ICQF", "Admixture"])
def test_default_starts_reach_the_ends_of_a_chain(name: str) -> None:
    default, random = objectives(name, chain(4, seed=4))
    assert default <= 1.05 * random  # the default start of old ended up to 1.8 times as high


def test_known_ratings_of_strangers_are_predicted() -> None:
    X = ratings_with_strangers()
    model = dfact.ExpectileMF(3, ridge=0.1).fit(X)
    rows, columns = np.repeat(np.arange(400, 410), 2), np.arange(200, 220)
    assert np.abs(model.predict_entries(rows, columns) - X[rows, columns]).max() < 0.3


def test_principal_components_of_booklets() -> None:
    """Each booklet has components of its own, whose variances are those of the booklet alone."""
    X = booklets(3, seed=1)
    model = dfact.PCA(2, max_iter=500).fit(X)
    assert np.abs(model.components_).max(axis=0).min() > 0
    expected = model.inverse_transform(model.transform(X))
    assert np.sqrt(np.nanmean((X - expected) ** 2)) < 0.15


def test_many_columns_have_the_parts_of_few() -> None:
    """Beyond 512 columns the singular vectors come from block Krylov iteration; both give the same start."""
    rng = np.random.default_rng(3)
    X = np.full((240, 700), np.nan)
    for part in range(2):
        X[part * 120 : part * 120 + 120, part * 340 : part * 340 + 340] = rng.random((120, 2)) @ rng.random((2, 340)) + 0.01 * rng.random(
            (120, 340)
        )
    for i in range(10):
        X[i * 20, 680 + 2 * i : 682 + 2 * i] = np.nan
    X = np.vstack([X, np.full((10, 700), np.nan)])
    for i in range(10):
        X[240 + i, 680 + 2 * i : 682 + 2 * i] = 0.5, 0.7
    model = dfact.NMF(2).fit(X)
    fitted = model.inverse_transform(model.factors_)
    assert np.sqrt(np.nanmean((X - fitted) ** 2)) < 0.02


@pytest.mark.parametrize("sparse", [False, True])
def test_parts_follow_from_common_entries(sparse: bool) -> None:
    X = np.array([[1, np.nan, 2, np.nan, np.nan], [np.nan, 3, np.nan, np.nan, 0.0], [np.nan, np.nan, np.nan, 1, np.nan]])
    parent = np.arange(5)
    if sparse:
        stored = sp.csr_array(np.nan_to_num(np.where(X == 0, 9.0, X)))
        join_stored(stored.data, stored.indices.astype(np.int32), stored.indptr.astype(np.int32), parent)
    else:
        join_dense(X, parent)
    assert parent.tolist() == [0, 1, 0, 3, 1]
    assert [part.tolist() for part in Parts(parent).columns] == [[0, 2], [1, 4], [3]]


def linked_by(rows: int, share: float, seed: int) -> NDArray[np.float64]:
    """Three booklets of ten items each, of which each of 90 people answers one, and further people answer a share of all items."""
    rng = np.random.default_rng(seed)
    X = rng.random((90 + rows, 2)) @ rng.random((2, 30))
    mask = rng.random(X.shape) < share
    mask[:90] = np.repeat(np.arange(30) // 10 == np.arange(3)[:, None], 30, axis=0)
    return np.where(mask, X, np.nan)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sparse", [False, True])
def test_booklets_that_few_people_link_are_loose(sparse: bool, seed: int) -> None:
    def is_loose(X: NDArray[np.float64]) -> bool:
        pass_, common = PartsPass(np.dtype(np.float64), counts=True), np.zeros((30, 30))
        for rows in np.array_split(np.arange(len(X)), 4):
            observed = np.isfinite(X[rows])
            stored = sp.csr_array((X[rows][observed], np.nonzero(observed)), observed.shape)
            block: Any = SimpleNamespace(matrix=stored if sparse else X[rows], values=X[rows], implicit_value=np.nan)
            state: Any = None
            common += pass_.step(block, state, None)[1].common
        assert np.array_equal(common, np.isfinite(X).T.astype(float) @ np.isfinite(X))
        return _is_loose(common)

    assert is_loose(linked_by(9, 1.0, seed))
    assert not is_loose(linked_by(120, 1.0, seed))
    scattered = np.random.default_rng(seed).random((100, 30))
    assert not is_loose(np.where(scattered < 0.2, scattered, np.nan))


@pytest.mark.parametrize("seed", [1, 4])
@pytest.mark.parametrize("name", ["NMF", "ICQF", "ExpectileMF", "Admixture"])
def test_default_starts_suit_booklets_with_a_common_item(name: str, seed: int) -> None:
    """A common item connects all columns; the default start of old ended up to 1.16 times as high as the best of random ones."""
    default, random = objectives(name, common_item(seed))
    assert default <= 1.05 * random


def test_parts_of_blocks_are_joined_in_any_order() -> None:
    rng = np.random.default_rng(0)
    blocks = [np.where(rng.random((4, 40)) < 0.04, 1.0, np.nan) for _ in range(8)]
    together = np.arange(40)
    join_dense(np.vstack(blocks), together)

    def labels(block: NDArray[np.float64]) -> PartLabels:
        parent = np.arange(40)
        join_dense(block, parent)
        return PartLabels(parent)

    for order in (range(8), rng.permutation(8)):
        total = labels(blocks[order[0]]).accumulator()
        for i in order[1:]:
            total.add(labels(blocks[i]))
        assert total.labels.tolist() == together.tolist()
    assert len(set(together.tolist())) > 5


def test_labels_name_the_first_column() -> None:
    parent = np.arange(4)
    join_labels(np.array([0.0, 0.0, 2.0, 1.0]), parent)
    assert parent.tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("chunk", [16, 64])
def test_parts_do_not_depend_on_chunks(chunk: int, linked: bool) -> None:
    import dask.array as da

    X = linked_by(9, 1.0, seed=0) if linked else booklets(2, seed=0)
    one = dfact.NMF(2, executor="inline", max_iter=20).fit(X)
    other = dfact.NMF(2, executor="threads", max_iter=20).fit(da.from_array(X, chunks=(chunk, -1)))
    assert np.array_equal(one.components_, other.components_)
