"""import_array: values, labels, codes, types, errors for every kind of array."""

import tracemalloc

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import dfact
from dfact import DataError, ParameterError, StoreError, import_array
from dfact.data import stored_dataset
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.data.sources import sparse as sparse_module
from dfact.data.sources.base import ArraySource, ZarrSource
from dfact.data.sources.sparse import CSRSource, StoredCSRSource
from dfact.data.statistics import ColumnStatistics, as_float

SEEDS = [0, 1]


def in_zarr(tmp_path, array, chunks):
    stored = zarr.create_array(tmp_path / "raw.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype)
    stored[...] = array
    return zarr.open_array(tmp_path / "raw.zarr", mode="r")


def kinds_of(array, tmp_path, seed):
    """The array as every kind that is taken, with random chunks."""
    rng = np.random.default_rng(seed)
    chunks = tuple(int(rng.integers(1, size + 1)) for size in array.shape)
    yield "numpy", array
    yield "fortran", np.asfortranarray(array)
    yield "read-only", np.lib.stride_tricks.as_strided(array, writeable=False)
    yield "big-endian", array.astype(array.dtype.newbyteorder(">"))
    yield "dask", da.from_array(array, chunks=chunks)
    yield "xarray", xr.DataArray(array)
    yield "xarray of dask", xr.DataArray(da.from_array(array, chunks=chunks))
    yield "zarr", in_zarr(tmp_path, array, chunks)
    if array.ndim == 2:
        yield "csr", sp.csr_array(array)
        yield "coo", sp.coo_matrix(array)
        yield "csc", sp.csc_array(array)
        yield "pandas", pd.DataFrame(array)


@pytest.mark.further
@pytest.mark.parametrize(
    ("seed", "shape", "dtype"), [(0, (57, 7), "uint8"), (1, (57, 7), "float64"), (2, (23, 5, 4), "uint8"), (3, (11, 3, 4, 2), "float64")]
)
def test_all_kinds_of_arrays_give_the_same_dataset(tmp_path, seed, shape, dtype):
    array = np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)
    prints = {}
    for name, X in kinds_of(array, tmp_path, seed):
        ds = import_array(X, tmp_path / "d.zarr", overwrite=True)
        assert (ds.shape, ds.dtype) == (shape, dtype)
        np.testing.assert_array_equal(ds.source.read(0, shape[0]), array)
        prints[name] = ds.fingerprint
    for kinds in ({"csr", "coo", "csc"}, prints.keys() - {"csr", "coo", "csc"}):
        assert len({prints[name] for name in kinds & prints.keys()}) <= 1, prints


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_many_chunks(tmp_path, seed):
    """More rows than a chunk holds, fed in batches that fit none of its borders."""
    n, m = 3 * Layout.of((40_000, 300)).chunk_rows + 7, 300
    array = np.random.default_rng(seed).integers(0, 200, (n, m), dtype=np.uint8)
    done = []
    X = da.from_array(array, chunks=(4999 + seed, 100))
    ds = import_array(X, tmp_path / "d.zarr", progress=lambda *at: done.append(at))
    assert ds.source.array.nchunks == 4
    np.testing.assert_array_equal(ds.source.read(0, n), array)
    assert [at for at, _ in done] == [*range(4999 + seed, n, 4999 + seed), n]
    assert {total for _, total in done} == {n}
    assert ds.fingerprint == import_array(array, tmp_path / "e.zarr").fingerprint


@pytest.mark.parametrize("seed", SEEDS)
def test_statistics(tmp_path, seed):
    rng = np.random.default_rng(seed)
    array = rng.normal(size=(500, 8)).astype(np.float32)
    array[rng.random((500, 8)) < 0.4] = np.nan
    array[:, 0] = 1
    ds = import_array(array, tmp_path / "d.zarr")
    np.testing.assert_array_equal(ds.statistics.observed, np.isfinite(array).sum(axis=0))
    np.testing.assert_array_equal(ds.statistics.minimum, np.nanmin(array, axis=0))
    np.testing.assert_array_equal(ds.statistics.maximum, np.nanmax(array, axis=0))
    np.testing.assert_array_equal(ds.valid_range, [[np.nanmin(array), np.nanmax(array)]] * 8)
    assert ds.missing_rate == pytest.approx(np.isnan(array).mean())
    again = ColumnStatistics.of_source(ZarrSource(ds.source.array, 100, 300))
    np.testing.assert_array_equal(again.observed, np.isfinite(array[100:400]).sum(axis=0))


# ---------------------------------------------------------------- labels


def test_lists_and_names(tmp_path):
    ds = import_array([[1, 2], [3, 4]], tmp_path / "d.zarr")
    assert (ds.dtype, ds.source.read(1, 2).tolist()) == (np.int32, [[3, 4]])


def test_labels(tmp_path):
    array = np.arange(6).reshape(3, 2)
    frame = pd.DataFrame(array, index=["a", "b", "c"], columns=["x", "y"])
    lazy = xr.DataArray(array, dims=["who", "what"], coords={"who": ["a", "b", "c"], "what": ["x", "y"]})
    for X in (frame, lazy):
        ds = import_array(X, tmp_path / "d.zarr", overwrite=True)
        assert (ds.row_labels.tolist(), ds.column_labels.tolist()) == (["a", "b", "c"], ["x", "y"])
        ds = import_array(X, tmp_path / "d.zarr", row_labels=[7, 8, 9], column_labels="pq", overwrite=True)
        assert (ds.row_labels.tolist(), ds.column_labels.tolist()) == (["7", "8", "9"], ["p", "q"])
    ds = import_array(array, tmp_path / "d.zarr", overwrite=True)
    assert (ds.row_labels.tolist(), ds.column_labels.tolist()) == ([0, 1, 2], ["0", "1"])


@pytest.mark.parametrize(("name", "count"), [("row_labels", 3), ("column_labels", 2)])
def test_wrong_number_of_labels(tmp_path, name, count):
    with pytest.raises(DataError, match=rf"{name} has 4 entries, expected {count}, one for each"):
        import_array(np.ones((3, 2)), tmp_path / "d.zarr", **{name: "abcd"})


# ---------------------------------------------------------------- missing codes and types


def decoded(ds):
    return as_float(ds.source.read(0, ds.shape[0]), ds.missing_code, np.dtype(np.float64))


@pytest.mark.parametrize(
    ("missing", "dtypes"),
    [
        (None, ["int64", "float32"]),
        (0, ["uint8", "float32"]),
        ([9], ["int8", "float32"]),
        ([0, 9], ["int16", "uint8"]),
        ([9, 8, 0, 300], ["uint8", "int64"]),
        ([np.nan, 9], ["int16", "float32"]),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_missing_codes(tmp_path, seed, missing, dtypes):
    dtype = dtypes[seed]
    array = np.random.default_rng(seed).integers(0, 10, (60, 5)).astype(dtype)
    array[:, 0] = 1
    codes = [] if missing is None else np.atleast_1d(missing)
    expected = np.where(np.isin(array, codes), np.nan, array.astype(float))
    ds = import_array(array, tmp_path / "d.zarr", missing=missing)
    np.testing.assert_array_equal(decoded(ds), expected)
    assert ds.dtype == {"int64": "int32"}.get(dtype, dtype)
    assert ds.missing_rate == pytest.approx(np.isnan(expected).mean())


def test_codes_beyond_32_bits(tmp_path):
    array = np.array([[1, -(2**40)], [2, 3]])
    ds = import_array(array, tmp_path / "d.zarr", missing=-(2**40))
    np.testing.assert_array_equal(decoded(ds), [[1, np.nan], [2, 3]])
    with pytest.raises(DataError, match="beyond 32 bits"):
        import_array(array, tmp_path / "e.zarr", missing=-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_nan_is_always_missing(tmp_path, seed):
    array = np.random.default_rng(seed).integers(0, 5, (40, 4)).astype(float)
    array[::3, 1] = np.nan
    array[:, 0] = 1
    ds = import_array(array, tmp_path / "d.zarr", missing=[4])
    np.testing.assert_array_equal(decoded(ds), np.where(array == 4, np.nan, array))
    assert ds.missing_code is None


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("bool", "uint8"), ("float16", "float32"), ("longdouble", "float64"), (">i2", "int16"), ("uint64", "int32"), ("uint32", "uint32")],
)
def test_stored_types(tmp_path, dtype, stored):
    array = np.array([[1, 0], [0, 1]]).astype(dtype)
    ds = import_array(array, tmp_path / "d.zarr")
    assert ds.dtype == stored
    np.testing.assert_array_equal(decoded(ds), array.astype(float))


@pytest.mark.further
@pytest.mark.parametrize(
    ("columns", "stored"),
    [
        ({"a": "Int8", "b": "int16"}, "int16"),
        ({"a": "boolean", "b": "uint8"}, "uint8"),
        ({"a": "bool", "b": "float32"}, "float32"),
        ({"a": "int64", "b": "Float64"}, "float64"),
    ],
)
def test_tables_of_mixed_types(tmp_path, columns, stored):
    frame = pd.DataFrame({name: pd.Series([1, 0, 1]).astype(kind) for name, kind in columns.items()})
    assert import_array(frame, tmp_path / "d.zarr").dtype == stored
    frame["c"] = pd.array([1, None, 0], "Int8")
    ds = import_array(frame, tmp_path / "e.zarr")
    np.testing.assert_array_equal(decoded(ds), [[1, 1, 1], [0, 0, np.nan], [1, 1, 0]])


# ---------------------------------------------------------------- ranges, empty rows, confounders


def test_valid_range(tmp_path):
    array = np.array([[1, 2], [3, 4]], np.uint8)
    ds = import_array(array, tmp_path / "d.zarr", valid_range=(0, 4))
    np.testing.assert_array_equal(ds.valid_range, [[0, 4], [0, 4]])
    ds = import_array(array, tmp_path / "e.zarr", valid_range=[(1, 3), (2, 9)])
    np.testing.assert_array_equal(ds.valid_range, [[1, 3], [2, 9]])
    with pytest.raises(DataError, match=r"row 1, column '1' holds 4, expected the valid range 0 to 3"):
        import_array(array, tmp_path / "f.zarr", valid_range=[(0, 3), (0, 3)])
    assert not list(tmp_path.glob("f.zarr*"))


def test_valid_range_in_single_precision(tmp_path):
    ds = import_array(np.array([[0.1, 0.7]], np.float32), tmp_path / "d.zarr", valid_range=(0.1, 0.7))
    assert (ds.source.read(0, 1) <= ds.valid_range[:, 1]).all()


def test_valid_range_of_a_tensor(tmp_path):
    array = np.zeros((3, 2, 4))
    array[2, 1, 3] = 5
    with pytest.raises(DataError, match=r"row 2, column 'q', index 3 holds 5"):
        import_array(array, tmp_path / "d.zarr", valid_range=(0, 1), column_labels="pq")


@pytest.mark.parametrize("seed", SEEDS)
def test_empty_rows(tmp_path, seed):
    rng = np.random.default_rng(seed)
    array = rng.integers(1, 5, (50, 4))
    empty = np.sort(rng.choice(50, 3, replace=False))
    array[empty] = 0
    with pytest.raises(DataError, match=rf"X: row {empty[0]} has no answer"):
        import_array(array, tmp_path / "d.zarr", missing=0)
    ages = rng.normal(size=50)
    ds = import_array(array, tmp_path / "d.zarr", missing=0, empty_rows="drop", confounders={"age": ages})
    kept = np.delete(np.arange(50), empty)
    assert ds.dropped_rows == 3
    np.testing.assert_array_equal(ds.source.read(0, 47), array[kept])
    np.testing.assert_array_equal(ds.confounders["age"], ages[kept])
    assert ds.row_labels.tolist() == [str(i) for i in kept]
    assert ds.missing_rate == 0


def test_first_chunk_of_rows_all_dropped(tmp_path):
    array = np.zeros((9000, 500), np.uint8)
    array[8999] = 3
    ds = import_array(da.from_array(array, chunks=(3000, 500)), tmp_path / "d.zarr", missing=0, empty_rows="drop")
    assert ds.shape == (1, 500)
    assert dfact.open_dataset(tmp_path / "d.zarr").dropped_rows == 8999


@pytest.mark.parametrize(
    ("X", "options", "match"),
    [
        (np.ones(3), {}, r"shape \(3,\)"),
        (np.ones((0, 3)), {}, r"shape \(0, 3\)"),
        (np.array([["a", "b"]]), {}, "expected integers or floats"),
        (np.ones((2, 2), complex), {}, "expected real numbers"),
        (pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), {}, "column 'b' of X holds text"),
        (np.array([[1.0, np.inf]]), {}, "row 0, column '1' is infinite"),
        (np.array([[1.0, np.nan], [2.0, np.nan]]), {"column_labels": "pq"}, "column 'q' has no answer"),
        (np.full((2, 2), np.nan), {"empty_rows": "drop"}, "no rows"),
        (np.ones((2, 2)), {"valid_range": (1, 0)}, "valid_range"),
        (np.ones((2, 2)), {"valid_range": (0, 1, 2)}, "valid_range"),
        (np.ones((2, 2)), {"confounders": {"age": [1, 2, 3]}}, "3 rows"),
        (np.ones((2, 2)), {"confounders": {"age": [1.5, np.inf]}}, "'age' is infinite in row 1"),
        (np.ones((2, 2)), {"empty_rows": "keep"}, "empty_rows"),
    ],
)
def test_invalid_arrays_are_refused(tmp_path, X, options, match):
    with pytest.raises(ParameterError if "keep" in options.values() else DataError, match=match):
        import_array(X, tmp_path / "d.zarr", **options)
    assert not list(tmp_path.iterdir())


def test_overwrite(tmp_path):
    first = import_array(np.ones((3, 2)), tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="exists already"):
        import_array(np.zeros((3, 2)), tmp_path / "d.zarr")
    with pytest.raises(DataError):
        import_array(np.full((3, 2), np.inf), tmp_path / "d.zarr", overwrite=True)
    assert dfact.open_dataset(tmp_path / "d.zarr").fingerprint == first.fingerprint
    assert import_array(np.zeros((3, 2)), tmp_path / "d.zarr", overwrite=True).statistics.maximum.max() == 0
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(StoreError, match="not a dfact store"):
        import_array(np.zeros((3, 2)), tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "notes"]


# ---------------------------------------------------------------- sparse


def sparse(seed, shape=(300, 11), dtype="uint8", density=0.3):
    """A matrix with empty rows, stored zeros and, by its type, stored NaN or nines to be called missing."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 10, shape).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        dense[dense == 9] = np.nan
    kept = rng.random(shape) < density
    kept[rng.choice(shape[0], shape[0] // 10, replace=False)] = False
    kept[:, 0] = False  # a column of zeros alone
    kept[:, 1] = True  # a full one
    matrix = sp.csr_array(np.where(kept, dense, 0).astype(dtype))
    matrix.data[matrix.data == 1] = 0
    return matrix


@pytest.fixture
def small_chunks(monkeypatch):
    """Small data in many chunks and reads."""
    monkeypatch.setattr(sparse_module, "_READ_ENTRIES", 100)
    monkeypatch.setattr(stored_dataset, "_CHUNK_ENTRIES", 64)
    monkeypatch.setattr(stored_dataset, "_INDPTR_CHUNK", 16)


def assert_same_matrix(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize(("seed", "dtype"), list(enumerate(["uint8", "int8", "int16", "int64", "float32", "float64"])))
def test_sparse_dataset_equals_the_dense_one(tmp_path, seed, dtype, request):
    if seed % 2:
        request.getfixturevalue("small_chunks")
    X = sparse(seed, dtype=dtype)
    options = {"missing": [9, 8], "valid_range": (0, 9), "confounders": {"age": np.arange(300)}, "row_labels": range(1000, 1300)}
    ds, dense = (import_array(Y, tmp_path / name, **options) for Y, name in ((X, "s.zarr"), (X.toarray(), "d.zarr")))
    assert isinstance(ds.source, StoredCSRSource)
    assert (ds.shape, ds.dtype, ds.missing_code) == (dense.shape, dense.dtype, dense.missing_code)
    np.testing.assert_array_equal(decoded(ds), decoded(dense))
    stored = ds.source.read_native(0, 300)
    np.testing.assert_array_equal(stored.indptr, X.indptr)
    np.testing.assert_array_equal(stored.indices, X.indices)
    for name in ("observed", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(ds.statistics, name), getattr(dense.statistics, name))
    np.testing.assert_array_equal(ds.valid_range, dense.valid_range)
    assert ds.missing_rate == dense.missing_rate > 0
    assert ds.row_labels.tolist() == dense.row_labels.tolist()
    np.testing.assert_array_equal(ds.confounders["age"], np.arange(300))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entries", [1, 37, 1000])
def test_statistics_of_sparse_matrices(monkeypatch, seed, entries):
    monkeypatch.setattr(sparse_module, "_READ_ENTRIES", entries)
    X = sparse(seed, (83, 7), "float32", density=0.6)
    X.data[X.indptr[5] : X.indptr[6]] = np.nan
    full = sp.csr_array(np.full((2, 7), np.nan, np.float32))
    X = sp.csr_array(sp.vstack([X, full]))
    found, expected = ColumnStatistics.of_source(CSRSource(X)), ColumnStatistics.of_source(ArraySource(X.toarray()))
    for name in ("observed", "minimum", "maximum", "n_rows", "empty_rows", "n_empty_rows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.empty_rows == [83, 84]


def test_a_column_without_zeros_or_answers():
    X = sp.csr_array(np.array([[np.nan, 3.0, -2.0], [np.nan, 5.0, -7.0]]))
    found = ColumnStatistics.of_source(CSRSource(X))
    assert found.observed.tolist() == [0, 2, 2]
    assert found.minimum.tolist() == [np.inf, 3, -7]
    assert found.maximum.tolist() == [-np.inf, 5, -2]


@pytest.mark.further
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", SEEDS)
def test_sparse_dataset_is_independent_of_the_batches(tmp_path, seed, monkeypatch):
    """Small reads and chunks give the same matrix."""
    X, done = sparse(seed, (500, 13)), []
    ds = import_array(X, tmp_path / "d.zarr", progress=lambda *at: done.append(at))
    assert ds.source.data.nchunks == -(-X.nnz // 64)
    assert ds.source.positions.nchunks == -(-501 // 16)
    assert len(done) > 5
    assert done[-1] == (500, 500)
    assert_same_matrix(ds.source.read_native(0, 500), X)
    for a, b in np.sort(np.random.default_rng(seed).integers(0, 501, (10, 2))):
        assert_same_matrix(ds.source.read_native(a, b), X[a:b])
        part = ds.source.slice(slice(a, b))
        assert part.shape == (b - a, 13)
        np.testing.assert_array_equal(part.read(0, b - a), X[a:b].toarray())
        assert_same_matrix(part.slice(slice((b - a) // 2, None)).read_native(0, b - a - (b - a) // 2), X[a + (b - a) // 2 : b])
    prints = {ds.fingerprint, ds.with_confounders(None).fingerprint, as_dataset(ds.path).fingerprint}
    monkeypatch.undo()
    prints |= {import_array(X, tmp_path / "e.zarr").fingerprint, ds.with_confounders(None).fingerprint}
    assert len(prints) == 1
    assert len({as_dataset(X).fingerprint, as_dataset(X.tocoo()).fingerprint}) == 1


def test_unsorted_matrix_with_duplicates_is_sorted_and_summed(tmp_path):
    """The user's matrix stays unchanged."""
    X = sp.csr_array((np.array([1, 2, 3, 4]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    ds = import_array(X, tmp_path / "d.zarr")
    stored = ds.source.read_native(0, 2)
    assert (stored.data.tolist(), stored.indices.tolist(), stored.indptr.tolist()) == ([2, 4, 4], [0, 2, 1], [0, 2, 3])
    assert X.indices.tolist() == [2, 0, 2, 1]
    assert as_dataset(X).statistics.maximum.tolist() == [2, 4, 4]


def test_matrix_without_entries(tmp_path):
    ds = import_array(sp.csr_array((4, 3), dtype=np.float32), tmp_path / "d.zarr")
    np.testing.assert_array_equal(ds.source.read(1, 4), np.zeros((3, 3)))
    assert ds.statistics.observed.tolist() == [4, 4, 4]
    assert list(ds.source.read_ranges()) == [slice(0, 4)]


def test_empty_rows_of_sparse_matrices(tmp_path):
    """Zeros that are not stored are answers; only a row of stored missing entries has none."""
    X = sp.csr_array(np.array([[9, 9, 9], [0, 0, 0], [0, 9, 9], [9, 9, 9], [1, 2, 3]], np.uint8))
    with pytest.raises(DataError, match="row 0 has no answer"):
        import_array(X, tmp_path / "d.zarr", missing=9)
    ds = import_array(X, tmp_path / "d.zarr", missing=9, empty_rows="drop", confounders={"age": np.arange(5)})
    assert (ds.dropped_rows, ds.shape) == (2, (3, 3))
    np.testing.assert_array_equal(decoded(ds), [[0, 0, 0], [0, np.nan, np.nan], [1, 2, 3]])
    assert ds.row_labels.tolist() == ["1", "2", "4"]
    assert ds.confounders.shape == (3, 1)
    with pytest.raises(DataError, match="no rows with answers"):
        import_array(X[:1], tmp_path / "e.zarr", missing=9, empty_rows="drop")


@pytest.mark.parametrize(
    ("array", "options", "match"),
    [
        ([[0, 2**40], [2, 3]], {}, "beyond 32 bits"),
        ([[0, 1], [2, 3]], {"missing": [9, 0]}, "missing contains 0"),
        ([[0.0, 1], [np.inf, 3]], {}, "row 1, column '0' is infinite"),
        ([[0, 1], [2, 3]], {"valid_range": (0, 2)}, r"row 1, column '1' holds 3, expected the valid range 0 to 2"),
        ([[2, 1], [0, 3]], {"valid_range": (1, 5)}, r"row 1, column '0' holds 0, expected the valid range 1 to 5"),
        ([[0.0, np.nan], [1, np.nan]], {"column_labels": "pq"}, "column 'q' has no answer"),
        ([[0j, 1j]], {}, "expected integers or floats"),
    ],
)
def test_invalid_sparse_arrays_are_refused(tmp_path, array, options, match):
    with pytest.raises(DataError, match=match):
        import_array(sp.csr_array(np.array(array)), tmp_path / "d.zarr", **options)
    assert not list(tmp_path.iterdir())


def test_implicit_zeros_may_be_outside_the_range_of_other_columns(tmp_path):
    X = sp.csr_array(np.array([[4, 0], [5, 1]]))
    ds = import_array(X, tmp_path / "d.zarr", valid_range=[(4, 5), (0, 1)])
    np.testing.assert_array_equal(ds.valid_range, [[4, 5], [0, 1]])


@pytest.mark.further
def test_wide_sparse_data_costs_its_entries(tmp_path):
    """The dense array would take 13 GB."""
    rng = np.random.default_rng(0)
    n, m, entries = 40_000, 40_000, 120_000
    X = sp.coo_array((rng.random(entries), (rng.integers(0, n, entries), rng.integers(0, m, entries))), shape=(n, m)).tocsr()
    tracemalloc.start()
    ds = import_array(X, tmp_path / "d.zarr")
    in_memory = as_dataset(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6
    np.testing.assert_array_equal(ds.statistics.maximum, in_memory.statistics.maximum)
    assert_same_matrix(ds.source.read_native(20_000, 20_100), X[20_000:20_100])


@pytest.mark.further
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", SEEDS)
def test_fit_of_sparse_data_gives_the_bits_of_dense_data(tmp_path, seed, cut_rows):
    cut_rows(partition_entries=1 << 11, block_entries=1 << 9)
    X = sparse(seed, (600, 12))
    assert Layout.of(X.shape).n_partitions > 2
    fits = []
    for Y, name in ((X.toarray(), "d.zarr"), (X, "s.zarr")):
        ds = import_array(Y, tmp_path / name, missing=9, confounders={"age": np.arange(600.0)})
        # A start from singular vectors may add up a sparse product in another order.
        fits.append(dfact.ICQF(3, init="random", random_state=seed, max_iter=15, executor="threads").fit(ds))
    for name in ("loadings_", "factors_"):
        np.testing.assert_array_equal(*(np.asarray(getattr(fit, name)[:]) for fit in fits))
    assert fits[0].fingerprint_ != fits[1].fingerprint_


@pytest.mark.parametrize("seed", SEEDS)
def test_fit_of_stored_sparse_data_gives_the_bits_of_the_matrix_in_memory(tmp_path, seed):
    X = sparse(seed, (300, 12), "float32")
    stored = import_array(X, tmp_path / "s.zarr")
    fits = [dfact.ICQF(3, max_iter=15).fit(Y) for Y in (X, stored)]
    for name in ("loadings_", "factors_"):
        np.testing.assert_array_equal(*(np.asarray(getattr(fit, name)[:]) for fit in fits))
    np.testing.assert_array_equal(fits[0].transform(stored)[:], fits[0].transform(X))
