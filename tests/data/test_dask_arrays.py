"""Dask arrays: rows that stay on the cluster, and lazy transforms."""

import gc
import itertools
import json
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from dask.sizeof import sizeof
from distributed import Client

import dfact
from benchmarks.faults.fits import in_forked_process
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources import dask as dask_rows
from dfact.data.sources.base import ArraySource
from dfact.data.sources.dask import Chunk, DaskRows, _chunk_rows, rechunk_rows
from dfact.data.statistics import ColumnStatistics
from dfact.data.validation import locate_outside
from tests.cases import further_unless
from tests.conftest import CutRows, planted_answers

N, M = 6_500, 11  # four blocks, the last one a short one


def chunks_of(n: int, rng: np.random.Generator) -> tuple[int, ...]:
    edges = np.unique(np.r_[0, rng.integers(1, n, rng.integers(0, 8)), n])
    return tuple(int(size) for size in np.diff(edges))


def local_rows(X: np.ndarray, sizes: tuple[int, ...]) -> tuple[DaskRows, dict[Any, np.ndarray]]:
    edges = np.r_[0, np.cumsum(sizes)].tolist()
    chunks = tuple(Chunk(a, b, ("x", i, 0)) for i, (a, b) in enumerate(itertools.pairwise(edges)))
    return DaskRows(chunks, X.dtype, X.shape[1:], 0, len(X)), {chunk.key: X[chunk.start : chunk.stop] for chunk in chunks}


@pytest.mark.parametrize("seed", range(6))
def test_slices_equal_those_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = np.asarray(rng.random((int(rng.integers(5, 200)), 3, 2)), rng.choice(["f4", "f8"]), order=rng.choice(["C", "F"]))
    source, values = local_rows(X, chunks_of(len(X), rng))
    for _ in range(40):
        first, second = np.sort(rng.integers(0, len(X) + 1, 2)).tolist()
        part = source.slice(slice(first, second))
        a, b = np.sort(rng.integers(0, second - first + 1, 2)).tolist()
        for found, expected in ((part, X[first:second]), (part.slice(slice(a, b)), X[first:second][a:b])):
            assert found.shape == expected.shape
            assert found.dtype == X.dtype
            sent = pickle.loads(pickle.dumps(found))
            loaded = sent.loaded({key: values[key] for key in sent.keys})  # of a source, not of a dict
            np.testing.assert_array_equal(loaded.values, expected)
            assert loaded.values.flags.c_contiguous
            assert loaded.dtype == X.dtype
            assert len(sent.chunks) == sum(c.start < found.stop and c.stop > found.start for c in source.chunks if expected.size)


def test_rows_within_a_chunk_are_a_view() -> None:
    X = np.random.default_rng(0).random((50, 4))
    source, values = local_rows(X, (20, 30))
    assert np.shares_memory(source.slice(slice(22, 40)).loaded(values).values, X)
    assert not np.shares_memory(source.slice(slice(18, 40)).loaded(values).values, X)


def test_pickled_rows_hold_no_values() -> None:
    source = pickle.loads(pickle.dumps(local_rows(np.ones((9, 2)), (4, 5))[0]))
    with pytest.raises(dfact.DataError, match=r"rows 2 to 3 .* from a pickled source"):
        source.read(2, 3)


@pytest.mark.parametrize("seed", range(20))
def test_chunks_are_multiples_of_the_unit_near_the_given_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, unit = int(rng.integers(1, 5000)), int(rng.integers(1, 300))
    most = unit * int(rng.integers(1, 6))
    least = int(rng.integers(1, most + 1))
    runs = _chunk_rows(chunks_of(n, rng) if n > 1 else (1,), unit, least, most)
    assert sum(runs) == n
    assert all(run % unit == 0 and 0 < run <= most for run in runs[:-1])
    assert 0 < runs[-1] <= most


def test_suitable_chunks_stay() -> None:
    X = da.zeros((6144, 40), chunks=((2048, 4096), -1))
    assert rechunk_rows(X, 2048).name == X.name
    assert rechunk_rows(da.zeros((0, 4)), 2048).chunks == ((0,), (4,))
    assert rechunk_rows(da.zeros((5000, 40), chunks=(10, 7)), 2048).chunks == ((2048, 2048, 904), (40,))
    wide = rechunk_rows(da.zeros((1 << 16, 1 << 12), chunks=(1 << 16, 1)), 64)
    assert set(wide.chunks[0]) == {2048}  # 64 MiB
    huge = rechunk_rows(da.zeros((128, 1 << 20), chunks=(100, 1 << 20)), 64)
    assert huge.chunks[0] == (64, 64)  # a unit, which has more


def test_statistics_are_merged_in_the_order_of_rows() -> None:
    X = planted_answers(60, 5, 2, 0, missing=0.1)
    X[[3, 20, 21, 22, 40, 41, 55]] = np.nan
    whole, total = ColumnStatistics.of_source(ArraySource(X)), ColumnStatistics.of_columns(5)
    for start in range(0, 60, 7):
        total.merge(ColumnStatistics.of_source(ArraySource(X[start : start + 7])))
    assert_same(total, whole)
    assert total.empty_rows == [3, 20, 21, 22, 40]
    assert total.n_empty_rows == 7


def assert_same(found: ColumnStatistics, expected: ColumnStatistics) -> None:
    for name in ("observed", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("n_rows", "empty_rows", "n_empty_rows"):
        assert getattr(found, name) == getattr(expected, name)


# ---- on a cluster


@pytest.fixture
def fetched(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of what the driver fetches."""
    sizes: list[int] = []
    gather = client._gather_remote

    async def counted(*args: Any, **settings: Any) -> Any:
        response = await gather(*args, **settings)
        sizes.append(sum(map(sizeof, response.get("data", {}).values())))
        return response

    monkeypatch.setattr(client, "_gather_remote", counted)
    return sizes


@pytest.fixture
def many_partitions(cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Partitions of one block, and a chunk for each."""
    cut_rows(partition_entries=1 << 12)
    monkeypatch.setattr(dask_rows, "_CHUNK_BYTES", (1, 1))
    return


def answers() -> np.ndarray:
    X = planted_answers(N, M, 3, 1, missing=0.1)
    X[[0, 2047, 2048, 5000, 6001, 6499]] = np.nan
    return X


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions")
@pytest.mark.parametrize("chunks", [(1000, 4), (N, M), (2048, M), ((1, 2047, 4452), (5, 6))])
def test_arrays_stay_on_the_cluster(client: Client, fetched: list[int], chunks: Any) -> None:
    X = answers()
    dataset = as_dataset(da.from_array(X, chunks=chunks), client=client)
    expected = as_dataset(X)
    assert_same(dataset.statistics, expected.statistics)
    np.testing.assert_array_equal(dataset.valid_range, expected.valid_range)
    assert (dataset.shape, dataset.dtype, dataset.path) == (X.shape, X.dtype, None)
    assert list(dataset.column_labels) == list(expected.column_labels)
    source = dataset.source
    assert isinstance(source, DaskRows)
    assert all(chunk.start % Layout.of(X.shape).partition_rows == 0 for chunk in source.chunks)
    assert len(source.chunks) == 4
    assert sum(fetched) < 5_000
    assert len(pickle.dumps(source)) < 2_000
    held = {key for keys in client.has_what().values() for key in keys}
    assert set(source.keys) <= held
    values = {key: source.futures[key].result() for key in source.keys} if source.futures else {}
    np.testing.assert_array_equal(source.slice(slice(1000, 4100)).loaded(values).values, X[1000:4100])


@pytest.mark.usefixtures("many_partitions")
def test_rows_for_messages_are_fetched_alone(client: Client, fetched: list[int]) -> None:
    X = answers()
    X[4711, 3] = -2
    dataset = as_dataset(da.from_array(X, chunks=(1000, M)), client=client)
    del fetched[:]
    np.testing.assert_array_equal(dataset.source.read(2000, 2100), X[2000:2100])
    np.testing.assert_array_equal(dataset.source.read(5, 5), X[5:5])
    assert sum(fetched) < 2 * X[:100].nbytes
    assert locate_outside(dataset, 0, np.inf) == "row 4711, column '3' holds -2"


@pytest.mark.further
@pytest.mark.usefixtures("many_partitions")
def test_chunks_are_released_with_the_data(client: Client) -> None:
    dataset: Dataset | None = as_dataset(da.from_array(answers(), chunks=(1000, M)), client=client)
    assert dataset is not None
    part = dataset.source.slice(slice(0, 10))
    dataset = None
    gc.collect()
    assert len(part.read(0, 10)) == 10
    del part
    gc.collect()
    for _ in range(100):
        if not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            break
        time.sleep(0.05)
    assert not client.futures


@pytest.mark.usefixtures("many_partitions")
def test_persisted_arrays_are_taken_as_they_are(client: Client) -> None:
    kept = client.persist(da.from_array(answers(), chunks=(2048, M)))
    dataset = as_dataset(kept, client=client)
    assert isinstance(dataset.source, DaskRows)
    assert dataset.source.keys == [(kept.name, i, 0) for i in range(4)]


@pytest.mark.usefixtures("many_partitions")
def test_fingerprints_are_those_of_the_values(client: Client, fetched: list[int]) -> None:
    X = answers()
    found = {as_dataset(da.from_array(X, chunks=chunks), client=client).fingerprint for chunks in ((1000, 4), (2048, M), (N, M))}
    assert found == {as_dataset(X).fingerprint}
    assert sum(fetched) < 10_000
    other = X.copy()
    other[6100, 2] += 1
    names = xr.DataArray(da.from_array(X), dims=("row", "item"), coords={"item": [f"Q{j}" for j in range(M)]})
    for different in (da.from_array(other), da.from_array(X).astype("f4"), names):
        assert as_dataset(different, client=client).fingerprint not in found


def test_xarray_labels_are_kept(client: Client) -> None:
    names, rows = [f"Q{j}" for j in range(M)], [f"r{i}" for i in range(N)]
    X = xr.DataArray(da.from_array(answers()), dims=("row", "item"), coords={"row": rows, "item": names})
    dataset = as_dataset(X, {"age": np.arange(N)}, client)
    assert isinstance(dataset.source, DaskRows)
    assert list(dataset.column_labels) == names
    assert list(dataset.row_labels) == rows
    assert dataset.confounders is not None


def test_tensors_and_integers(client: Client) -> None:
    X = np.random.default_rng(0).integers(0, 5, (300, 4, 3), dtype=np.int16)
    dataset = as_dataset(da.from_array(X, chunks=(100, 2, 2)), client=client)
    assert_same(dataset.statistics, as_dataset(X).statistics)
    np.testing.assert_array_equal(dataset.source.read(0, 300), X)


def broken(chunk: np.ndarray, block_info: Any = None) -> np.ndarray:
    if block_info and block_info[0]["chunk-location"][0] == 2:
        raise ZeroDivisionError("in the user's own function")
    return chunk


@pytest.mark.further
def test_errors_of_the_graph_are_raised_unchanged(client: Client) -> None:
    X = da.from_array(answers(), chunks=(1000, M)).map_blocks(broken, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(ZeroDivisionError, match="in the user's own function"):
        as_dataset(X, client=client)


def test_invalid_dask_arrays_are_refused(client: Client) -> None:
    X = da.from_array(answers(), chunks=(1000, M))
    for origin in (client, None):
        with pytest.raises(dfact.DataError, match=r"unknown sizes, expected known sizes; call X\.compute_chunk_sizes"):
            as_dataset(X[X[:, 0] > 0], client=origin)
        with pytest.raises(dfact.DataError, match=r"X holds <U1"):
            as_dataset(da.from_array(np.full((4, 3), "a")), client=origin)
        with pytest.raises(dfact.DataError, match="expected two modes or more"):
            as_dataset(X[:, 0], client=origin)
    with pytest.raises(dfact.DataError, match=r"chunks of scipy\.sparse\.\w*\.?csr_matrix"):
        as_dataset(X.map_blocks(sp.csr_matrix, meta=sp.csr_matrix((0, 0))), client=client)
    with pytest.raises(dfact.DataError, match=r"of float32, expected .* of float64 as declared"):
        as_dataset(X.map_blocks(np.float32, dtype=float, meta=np.empty((0, 0))), client=client)
    with pytest.raises(dfact.DataError, match=r"of 3725\.3 GiB, expected at most the 2\.4 GiB that the 2 workers hold before they spill"):
        as_dataset(da.zeros((10**9, 500)), client=client)


def test_client_and_executor_choose_the_cluster(client: Client) -> None:
    X = da.from_array(answers())
    assert dfact.NMF(executor=client)._client(X) is client
    for executor in (None, "inline", "threads"):
        assert dfact.NMF(executor=executor)._client(X) is None
    assert dfact.NMF(executor=client)._client(answers()) is None
    with pytest.raises(dfact.ParameterError, match="expected an active"):
        dfact.NMF(executor="distributed").fit(X)
    with client.as_current():
        large = da.zeros((1 << 20, 64))
        assert dfact.NMF()._client(large) is client
        assert dfact.NMF()._client(X) is None  # one partition: no matter for a cluster
        assert dfact.NMF(executor="distributed")._client(X) is client


# ---- transform


def groups() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    return pd.DataFrame({"age": rng.integers(18, 80, N).astype(float), "group": rng.choice(["a", "b", "c"], N)})


def complete() -> np.ndarray:
    return np.nan_to_num(answers())


def tensor() -> np.ndarray:
    rng = np.random.default_rng(3)
    A, B, C, D = (rng.random((size, 2)) for size in (N, 4, 3, 2))
    X = np.einsum("ir,jr,kr,lr->ijkl", A, B, C, D)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[5000:5003] = np.nan
    return X


Case = tuple[Callable[[], Any], Callable[[], np.ndarray], dict[str, Any]]
CASES: dict[str, Case] = {
    "ICQF": (lambda: dfact.ICQF(3, max_iter=3), answers, {}),
    "ICQF with confounders": (lambda: dfact.ICQF(3, max_iter=3), answers, {"confounders": groups()}),
    "NMF": (lambda: dfact.NMF(3, max_iter=3), answers, {}),
    "GradeOfMembership": (lambda: dfact.GradeOfMembership(2, random_state=0), complete, {}),
    "ExpectileMF": (lambda: dfact.ExpectileMF(3, tau=0.3, max_iter=3), answers, {}),
    "PCA": (lambda: dfact.PCA(2, max_iter=2), answers, {}),
    "FactorAnalysis": (lambda: dfact.FactorAnalysis(2), answers, {}),
    "ElasticCP": (lambda: dfact.ElasticCP(3, lam=0.1, random_state=0, max_iter=3), tensor, {}),
    "CPALS": (lambda: dfact.CPALS(2, random_state=0, max_iter=3), lambda: tensor()[:, :, :, 0], {}),
    "ElasticCP with variances": (
        lambda: dfact.ElasticCP(
            3, lam=0.1, slice_variances=[np.linspace(1, 2, N), np.ones(4), np.ones(3), np.ones(2)], random_state=0, max_iter=3
        ),
        tensor,
        {"slice_variances": np.linspace(0.5, 3, N)},
    ),
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(no observed entry|no response|no answer|more parameters|only the subject that|uniqueness)"
)


@pytest.fixture(scope="module")
def fitted() -> Callable[[str], tuple[Any, np.ndarray, dict[str, Any], np.ndarray]]:
    """A fitted model, new data, what is known of it, and what transform makes of both."""
    known: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in known:
            make, data, inputs = CASES[name]
            X = data()
            model = make().fit(X, **{key: value for key, value in inputs.items() if key == "confounders"})
            new = X[::-1].copy()
            new[2048:4096] = np.nan  # a chunk in which nobody has answered
            new = np.nan_to_num(new) if name == "GradeOfMembership" else new
            known[name] = model, new, inputs, model.transform(new, **inputs)
        return known[name]

    return get


Fitted = Callable[[str], tuple[Any, np.ndarray, dict[str, Any], np.ndarray]]


@pytest.mark.parametrize("name", further_unless({"ICQF with confounders", "ElasticCP"}.__contains__, CASES))
@pytest.mark.parametrize("rows", [500, 3000, N])
def test_transform_is_lazy_and_gives_the_same_bits(fitted: Fitted, name: str, rows: int) -> None:
    model, X, inputs, expected = fitted(name)
    lazy = da.from_array(X, chunks=(rows, *(2 for _ in X.shape[1:])))
    calls: list[int] = []
    counted = lazy.map_blocks(lambda block: calls.append(1) or block, dtype=lazy.dtype, meta=lazy._meta)
    found = model.transform(counted, **inputs)
    assert not calls
    assert isinstance(found, da.Array)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.chunks[0] == lazy.chunks[0], "those of the array"
    np.testing.assert_array_equal(found.compute(scheduler="threads", num_workers=2), expected)
    assert len(calls) == lazy.npartitions
    np.testing.assert_array_equal(found[4000:4100].compute(scheduler="sync"), expected[4000:4100])


@pytest.mark.further
@pytest.mark.parametrize("name", CASES)
def test_transform_on_a_cluster(client: Client, fitted: Fitted, name: str) -> None:
    model, X, inputs, expected = fitted(name)
    found = model.transform(client.persist(da.from_array(X, chunks=(1500, *X.shape[1:]))), **inputs)
    np.testing.assert_array_equal(client.compute(found).result(), expected)


@pytest.mark.parametrize("name", CASES)
def test_pickled_model_holds_no_rows(fitted: Fitted, name: str) -> None:
    model = fitted(name)[0]
    assert len(pickle.dumps(model._copy_for_transform())) < 10_000 < len(pickle.dumps(model))
    assert model.row_factors().shape[0] == N  # the model has them still


@pytest.mark.further
@pytest.mark.parametrize("name", ["NMF", "ElasticCP with variances"])
@pytest.mark.parametrize("origin", ["here", "active", "given"])
def test_transform_to_a_store(client: Client, fitted: Fitted, tmp_path: Path, name: str, origin: str) -> None:
    model, X, inputs, expected = fitted(name)
    model = pickle.loads(pickle.dumps(model)).set_params(executor=client if origin == "given" else None)
    lazy = da.from_array(X, chunks=(1500, *X.shape[1:]))
    if origin == "active":
        with client.as_current():
            found = model.transform(lazy, out=tmp_path / "W.zarr", **inputs)
    else:
        found = model.transform(lazy, out=tmp_path / "W.zarr", **inputs)
    assert isinstance(found, zarr.Array)
    np.testing.assert_array_equal(found[:], expected)
    with pytest.raises(dfact.StoreError, match="exists"):
        model.transform(lazy, out=tmp_path / "W.zarr", **inputs)


def test_transform_of_xarray_and_of_stored_models(fitted: Fitted, tmp_path: Path) -> None:
    model, X, inputs, expected = fitted("ICQF with confounders")
    dfact.save_model(model, tmp_path / "model")
    again = dfact.load_model(tmp_path / "model").set_output(transform="default")
    labelled = xr.DataArray(da.from_array(X, chunks=(1500, M)), dims=("row", "item"), coords={"row": [f"r{i}" for i in range(N)]})
    np.testing.assert_array_equal(again.transform(labelled, **inputs).compute(), expected)


def test_a_chunk_without_rows(fitted: Fitted) -> None:
    model, X, _, expected = fitted("NMF")
    nobody = model.transform(da.from_array(X)[:0])
    assert nobody.compute().shape == (0, 3)
    both = da.concatenate([da.from_array(X)[:0], da.from_array(X, chunks=(3000, M))])
    np.testing.assert_array_equal(model.transform(both).compute(), expected)


def test_errors_of_shape_are_raised_at_once(fitted: Fitted) -> None:
    model, X, inputs, _ = fitted("ICQF with confounders")
    lazy = da.from_array(X)
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (lazy[:, 1:], inputs, "X has 10 items, the model was fitted on 11"),
        (lazy[:, :, None], inputs, "X has 3 modes"),
        (lazy[:, 0], inputs, "expected two modes or more"),
        (lazy.astype("U3"), inputs, "X holds <U3"),
        (lazy[lazy[:, 0] > 0], inputs, "unknown sizes"),
        (lazy, {}, "the model was fitted with confounders"),
        (lazy, {"confounders": groups()[:5]}, "confounders have 5 rows"),
        (lazy, {"confounders": groups()[["age"]]}, r"pass also \['group'\]"),
    ]
    for data, given, message in refused:
        with pytest.raises(dfact.DataError, match=message):
            model.transform(data, **given)
    with pytest.raises(TypeError, match="'slice_variances'"):
        model.transform(lazy, slice_variances=3)
    named, names = pd.DataFrame(X[:, :3], columns=["a", "b", "c"]), {"item": ["a", "c", "b"]}
    model = dfact.NMF(2, max_iter=2).fit(named)
    with pytest.raises(dfact.DataError, match="column 1 of X is 'c', of the fitted data 'b'"):
        model.transform(xr.DataArray(lazy[:, :3], dims=("row", "item"), coords=names))
    model = fitted("ElasticCP")[0]
    with pytest.raises(dfact.DataError, match="slices of X are 4×3×5, those the model was fitted on 4×3×2"):
        model.transform(da.zeros((10, 4, 3, 5)))
    with pytest.raises(dfact.ParameterError, match="slice_variances only"):
        model.transform(da.zeros((10, 4, 3, 2)), slice_variances=np.ones(10))
    with pytest.raises(ValueError, match="not fitted"):
        dfact.NMF().transform(lazy)


def test_errors_of_values_name_their_row(fitted: Fitted) -> None:
    model, X, _, _ = fitted("NMF")
    X = X.copy()
    X[4711, 3] = -1
    found = model.transform(da.from_array(X, chunks=(1000, M)))
    with pytest.raises(dfact.DataError, match="row 4711, column '3' holds -1"):
        found.compute()
    labelled = xr.DataArray(da.from_array(X), dims=("row", "item"), coords={"row": [f"r{i}" for i in range(N)]})
    with pytest.raises(dfact.DataError, match="row 'r4711', column '3' holds -1"):
        model.transform(labelled).compute()


def test_fit_without_a_cluster_loads_the_array() -> None:
    X = answers()
    with dask.config.set(num_workers=2):
        found = dfact.NMF(3, max_iter=3).fit_transform(da.from_array(X, chunks=(1000, 4)))
    np.testing.assert_array_equal(found, dfact.NMF(3, max_iter=3).fit_transform(X))


def test_tables_with_names_of_dasks_attributes() -> None:
    X = pd.DataFrame(np.random.default_rng(0).random((30, 4)), columns=["dask", "chunks", "dims", "data"])
    assert dfact.NMF(2, max_iter=2).fit(X).transform(X).shape == (30, 2)


@pytest.mark.process
def test_dask_is_imported_for_dask_arrays_alone() -> None:
    assert json.loads(in_forked_process("tests.data.forked", "modules_of_dask", "[]")) == [False, False]
