"""Concatenated datasets: their rows and statistics, segments with partitions of their own, and what keeps datasets apart."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.partitions import partitions
from tests.cases import every, further_unless
from tests.conftest import CutRows, planted_answers

SIZES = (700, 90, 311)


def stored(folder: Path, sizes: tuple[int, ...] = SIZES, m: int = 40, seed: int = 0, **settings: Any) -> list[Dataset]:
    values = np.where(np.isnan(X := planted_answers(sum(sizes), m, 4, seed, 0.1)), 9, X).astype(np.uint8)
    parts = np.split(values, np.cumsum(sizes)[:-1])
    settings = {"missing": 9, "valid_range": (0, 3), "empty_rows": "drop"} | settings
    return [dfact.import_array(part, folder / f"{number}.zarr", **settings) for number, part in enumerate(parts)]


@every(sizes=[(5,), (64, 1), (1, 64, 129), (2048, 7, 3000)], m=[3, 40, 5000])
def test_segments_cut_all_rows_into_partitions_and_blocks(sizes: tuple[int, ...], m: int) -> None:
    n = sum(sizes)
    layout = Layout.of((n, m)).with_segments(sizes)
    ranges, edges = layout.partition_ranges, np.cumsum([0, *sizes]).tolist()
    assert [i for each in ranges for i in each] == list(range(layout.n_partitions))
    assert [layout.rows(each[0], each.stop) for each in ranges] == [slice(a, b) for a, b in pairwise(edges)]
    starts = layout.block_starts
    assert set(edges[:-1]) <= set(starts)
    assert max(np.diff([*starts, n])) <= layout.block_rows
    assert [layout.block_of(row) for row in range(n)] == (np.searchsorted(starts, np.arange(n), side="right") - 1).tolist()
    for partition in range(layout.n_partitions):
        rows = layout.rows(partition, partition + 1)
        assert 0 < rows.stop - rows.start <= layout.partition_rows
        assert {layout.partition_of(row) for row in (rows.start, rows.stop - 1)} == {partition}
        assert starts[layout.first_block(partition)] == rows.start


def test_rows_labels_and_statistics_are_those_of_all_datasets(tmp_path: Path) -> None:
    parts = stored(tmp_path)
    labelled = replace(parts[0], labels=np.array([f"n{i}" for i in range(SIZES[0])], object))
    dataset = dfact.concatenate([labelled, *parts[1:]])
    whole = np.concatenate([part.source.read(0, part.shape[0]) for part in parts])
    assert dataset.shape == whole.shape
    for rows in (slice(0, 3), slice(650, 720), slice(699, 1101), slice(790, 790)):
        np.testing.assert_array_equal(dataset.source.read(rows.start, rows.stop), whole[rows])
        np.testing.assert_array_equal(dataset.source.slice(rows).read(0, rows.stop - rows.start), whole[rows])
    pooled = dfact.import_array(whole, tmp_path / "pooled.zarr", missing=9, valid_range=(0, 3), empty_rows="drop")
    for name in ("observed", "minimum", "maximum", "n_rows", "n_empty_rows"):
        np.testing.assert_array_equal(getattr(dataset.statistics, name), getattr(pooled.statistics, name))
    assert list(dataset.row_labels[[0, 699, 700, 1100]]) == ["n0", "n699", "0", "310"]
    assert dataset.fingerprint != dfact.concatenate(parts[::-1]).fingerprint


def test_sparse_rows_stay_sparse() -> None:
    rng = np.random.default_rng(0)
    parts = [sp.csr_array(np.where(rng.random((n, 30)) < 0.2, rng.random((n, 30)), 0)) for n in (100, 1, 57)]
    dataset = dfact.concatenate(parts)
    whole = sp.csr_array(sp.vstack(parts))
    assert dataset.source.is_sparse
    for rows in (slice(0, 158), slice(99, 102), slice(3, 20)):
        found = dataset.source.read_native(rows.start, rows.stop)
        assert (found != whole[rows]).nnz == 0
        np.testing.assert_array_equal(dataset.source.indptr(rows.start, rows.stop), whole[rows].indptr)  # type: ignore[attr-defined]


def test_blocks_do_not_cross_from_one_dataset_to_the_next(tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(small_partition_entries=1 << 10)
    dataset = dfact.concatenate(stored(tmp_path))
    layout = dataset.source.layout
    blocks = list(partitions(dataset.source, 9, None).blocks(np.dtype(np.float32)))
    assert [block.start for block in blocks] == layout.block_starts
    assert [block.index for block in blocks] == list(range(len(blocks)))
    np.testing.assert_array_equal(np.concatenate([block.stored for block in blocks]), dataset.source.read(0, dataset.shape[0]))


MODELS = {
    "icqf": lambda: dfact.ICQF(4, max_iter=5),
    "fa": lambda: dfact.FactorAnalysis(2, rotation=None),
    "fa, polychoric": lambda: dfact.FactorAnalysis(2, rotation=None, correlation="polychoric"),
    "emf": lambda: dfact.ExpectileMF(3, ridge=0.1, max_iter=5),
    "pca": lambda: dfact.PCA(3),
    "kl": lambda: dfact.NMF(3, loss="kullback-leibler", max_iter=5),
    "admixture": lambda: dfact.Admixture(3, ploidy=3, max_iter=5),
    "gom": lambda: dfact.GradeOfMembership(3, random_state=0),
    "cp": lambda: dfact.ElasticCP(3, lam=0.5, max_iter=5, random_state=0),
}


@pytest.mark.filterwarnings(
    "ignore:the uniqueness of",
    "ignore:row .* has no observed entry",
    "ignore:.* subjects have no response",
    "ignore:.* negative eigenvalues",
)
@pytest.mark.parametrize("name", further_unless({"icqf"}.__contains__, MODELS))
def test_fits_have_the_same_bits_in_memory_on_threads_and_from_stores(name: str, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(small_partition_entries=1 << 10)
    parts = stored(tmp_path)
    in_memory = [np.where((X := part.source.read(0, part.shape[0])) == 9, np.nan, X).astype(np.float32) for part in parts]
    expected: Any = MODELS[name]().set_params(executor="inline").fit(dfact.concatenate(parts))
    for data, executor in ((dfact.concatenate(parts), "threads"), (dfact.concatenate(in_memory), "inline")):
        found: Any = MODELS[name]().set_params(executor=executor).fit(data)
        np.testing.assert_array_equal(found.components_, expected.components_)
        np.testing.assert_array_equal(found.row_factors(), expected.row_factors())
    pooled: Any = MODELS[name]().fit(np.concatenate(in_memory))
    np.testing.assert_allclose(pooled.components_, expected.components_, atol=0.05 * np.abs(expected.components_).max())


@pytest.mark.further
def test_a_cluster_gives_the_same_bits(client: Client, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(small_partition_entries=1 << 10)
    dataset = dfact.concatenate(stored(tmp_path))
    for make in (lambda: dfact.ICQF(4, max_iter=5), lambda: dfact.GradeOfMembership(3, likelihood="binomial", max_iter=5)):
        expected, found = (make().set_params(executor=executor).fit(dataset) for executor in ("inline", client))
        np.testing.assert_array_equal(found.components_, expected.components_)
        np.testing.assert_array_equal(found.row_factors(), expected.row_factors())


def questionnaire(**changes: Any) -> Dataset:
    frame = pd.DataFrame({"Q1": [1, 2, 1], "Q2": [0, 1, 2], "age": [30.0, 40, 50], "sex": ["f", "m", "f"]}).rename(
        columns=changes.pop("names", {})
    )
    settings = {"items": ["Q*"], "confounders": ["age", "sex"], "valid_range": (0, 2)} | changes
    return dfact.import_table(frame, settings.pop("path"), **settings)


def test_confounders_and_weights_are_concatenated(tmp_path: Path) -> None:
    parts = [questionnaire(path=tmp_path / f"{i}.zarr").with_weights([1, 2, i + 1]) for i in range(2)]
    dataset = dfact.concatenate(parts)
    assert dataset.confounders is not None
    assert dataset.weights is not None
    assert list(dataset.weights) == [1, 2, 1, 1, 2, 2]
    assert list(dataset.confounders["sex"].cat.categories) == ["f", "m"]
    pd.testing.assert_frame_equal(dataset.confounders.iloc[3:].reset_index(drop=True), parts[1].confounders)


@pytest.mark.further
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": {"Q2": "Q3"}}, "column 1 is 'Q3', expected 'Q2'"),
        ({"confounders": ["age"]}, "confounders .*'age'.*, expected .*'sex'"),
        ({"valid_range": (-1, 2)}, "begin at -1, expected 0"),
    ],
    ids=["columns", "confounders", "offset"],
)
def test_datasets_that_differ_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    first, other = questionnaire(path=tmp_path / "a.zarr"), questionnaire(path=tmp_path / "b.zarr", **changes)
    with pytest.raises(dfact.DataError, match=f"dataset 1 differs from dataset 0: .*{message}"):
        dfact.concatenate([first, other])


def test_levels_that_differ_are_refused() -> None:
    X = np.array([[0, 1], [1, 0]])
    levels = [((0, "never"), (1, "always")), ((0, "always"), (1, "never"))]
    books = [dfact.Codebook(tuple(dfact.Item(name, levels=each) for name in ("Q1", "Q2"))) for each in levels]
    parts = [replace(as_dataset(X), codebook=book) for book in books]
    with pytest.raises(dfact.DataError, match="'Q1' has the levels 0 always, 1 never, expected that it has the levels 0 never, 1 always"):
        dfact.concatenate(parts)


def test_other_inputs_are_refused() -> None:
    X: NDArray[Any] = np.ones((4, 3))
    for other, message in ((np.ones((4, 2)), "modes after the first"), (np.ones((4, 3), np.uint8), "type"), (sp.csr_array(X), "sparse")):
        with pytest.raises(dfact.DataError, match=message):
            dfact.concatenate([X, other])
    with pytest.raises(dfact.DataError, match="at least one"):
        dfact.concatenate([])
