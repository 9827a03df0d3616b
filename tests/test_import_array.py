"""Arrays of every kind become the same dataset: values, labels, codes, types, errors."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import dfact
from dfact import DataError, ParameterError, StoreError, import_array
from dfact.data.source import Layout, ZarrSource
from dfact.data.statistics import ColumnStatistics, as_floating

SEEDS = [0, 1, 2]


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


@pytest.mark.parametrize(("seed", "shape"), list(enumerate([(57, 7), (23, 5, 4), (11, 3, 4, 2)])))
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_all_kinds_of_arrays_give_one_dataset(tmp_path, seed, shape, dtype):
    array = np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)
    prints = {}
    for name, X in kinds_of(array, tmp_path, seed):
        ds = import_array(X, tmp_path / "d.zarr", overwrite=True)
        assert (ds.shape, ds.dtype) == (shape, dtype)
        np.testing.assert_array_equal(ds.source.read(0, shape[0]), array)
        prints[name] = ds.fingerprint
    assert len(set(prints.values())) == 1, prints


@pytest.mark.parametrize("seed", SEEDS)
def test_many_chunks(tmp_path, seed):
    """More rows than a chunk holds, fed in pieces that fit none of its borders."""
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
    with pytest.raises(DataError, match=rf"{name} has 4 entries, X has {count}"):
        import_array(np.ones((3, 2)), tmp_path / "d.zarr", **{name: "abcd"})


# ---------------------------------------------------------------- missing codes and types


def decoded(ds):
    return as_floating(ds.source.read(0, ds.shape[0]), ds.missing_code, np.dtype(np.float64))


@pytest.mark.parametrize(("seed", "dtype"), list(enumerate(["uint8", "int8", "int16", "int64", "float32"])))
@pytest.mark.parametrize("missing", [None, 0, [9], [0, 9], [9, 8, 0, 300], [np.nan, 9]])
def test_missing_codes(tmp_path, seed, dtype, missing):
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
def test_nan_is_missing_whatever_else_is(tmp_path, seed):
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
    with pytest.raises(DataError, match=r"row 1, column '1' holds 4, outside the valid range 0 to 3"):
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
        (np.ones((2, 2), complex), {}, "expected integers or floats"),
        (pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), {}, "expected integers or floats"),
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
def test_refused(tmp_path, X, options, match):
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
    with pytest.raises(StoreError, match="no dfact store"):
        import_array(np.zeros((3, 2)), tmp_path / "notes", overwrite=True)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "notes"]
