"""Readers of arrays, one for each format: each keeps to the suite of all array files."""

import gzip
import re
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import xarray as xr
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.sources.base import RowSource
from dfact.data.statistics import as_float
from dfact.formats import file_source
from dfact.formats.hdf5_arrays import HDF5CSCSource, HDF5CSRSource, HDF5Source
from dfact.formats.isolation import parsers, server
from dfact.formats.netcdf import NetCDFSource
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_array, open_labels
from tests.conftest import REAL_DATA
from tests.suites.array_file import ArrayFileSuite, Labels, SparseFileSuite, draw, draw_sparse
from tests.suites.row_source import RowSourceSuite

# ---------------------------------------------------------------- how test files are written


def write_hdf5(arrays: dict[str, Any], path: Path, labels: Labels = (), **storage: Any) -> None:
    with h5py.File(path, "w") as file:
        scales = [None if each is None else file.create_dataset(f"axis{mode}", data=list(each)) for mode, each in enumerate(labels)]
        for name, values in arrays.items():
            dataset = file.create_dataset(name, data=values, **storage)
            for mode, scale in enumerate(scales):
                if scale is not None:
                    scale.make_scale()
                    dataset.dims[mode].attach_scale(scale)


def write_matlab_73(arrays: dict[str, Any], path: Path) -> None:
    """Write arrays as MATLAB does with -v7.3: after 512 bytes of its own, with the axes in reverse order."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in arrays.items():
            if sp.issparse(values):
                columns = sp.csc_array(values)
                group = file.create_group(name)
                group.attrs.update({"MATLAB_class": np.bytes_(b"double"), "MATLAB_sparse": np.uint64(columns.shape[0])})
                group.create_dataset("data", data=columns.data)
                group.create_dataset("ir", data=columns.indices.astype(np.uint64))
                group.create_dataset("jc", data=columns.indptr.astype(np.uint64))
            else:
                file.create_dataset(name, data=values.T, chunks=True, compression="gzip")
                file[name].attrs["MATLAB_class"] = np.bytes_(b"double")
    data = path.read_bytes()
    path.write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64 HDF5 schema 1.00 .".ljust(124) + b"\x00\x02IM" + data[128:])


def write_netcdf(arrays: dict[str, Any], path: Path, labels: Labels = (), *, engine: str, **attributes: Any) -> None:
    dims = ["row", "column", *(f"mode{i}" for i in range(3, 9))]
    coordinates = {dims[mode]: list(each) for mode, each in enumerate(labels) if each is not None}
    variables = {}
    for name, values in arrays.items():
        own = [f"{name}_row" if len(arrays) > 1 else "row", *dims[1 : values.ndim]]
        variables[name] = (own, values, attributes)
    encoding = {name: {"_FillValue": None} for name in variables}
    xr.Dataset(variables, coordinates).to_netcdf(path, engine=engine, encoding=encoding)  # type: ignore[call-overload]  # any engine


def write_annotated(arrays: dict[str, Any], path: Path, labels: Labels = (), *, kind: str = "array") -> None:
    """Write X and layers with the layout of AnnData 0.2."""
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, values in arrays.items():
            key = name if name == "X" else f"layers/{name}"
            if kind == "array":
                file.create_dataset(key, data=values)
                continue
            matrix = sp.csr_array(values) if kind == "csr" else sp.csc_array(values)
            group = file.create_group(key)
            group.attrs.update({"encoding-type": f"{kind}_matrix", "encoding-version": "0.1.0", "shape": matrix.shape})
            for member in ("data", "indices", "indptr"):
                group.create_dataset(member, data=getattr(matrix, member), chunks=True, compression="gzip")
        for table, texts in zip(("obs", "var"), labels, strict=False):
            group = file.create_group(table)
            group.attrs.update({"_index": "_index", "encoding-type": "dataframe"})
            group.create_dataset("_index", data=list(texts or ()))


# ---------------------------------------------------------------- formats


class TestNpy(ArrayFileSuite):
    name = "x.npy"
    holds_labels = holds_several = False

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        np.save(path, arrays["X"])


class TestNpz(TestNpy):
    name = "x.npz"
    holds_several = True

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        np.savez_compressed(path, **arrays)


class TestHDF5(ArrayFileSuite):
    name = "x.h5"

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_hdf5(arrays, path, labels)


@pytest.mark.further
class TestHDF5InChunks(ArrayFileSuite):
    name = "x.hdf5"
    dtype = np.int16

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_hdf5(arrays, path, labels, chunks=(2, 3, 4), compression="gzip", shuffle=True)


@pytest.mark.further
class TestHDF5BigEndian(TestHDF5):
    dtype = ">f4"


class TestAnnData(ArrayFileSuite):
    name = "x.h5ad"
    shape = (30, 6)
    dtype = np.float32
    holds_several = False  # X is taken

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_annotated(arrays, path, labels)


class TestAnnDataByRows(SparseFileSuite):
    name = "x.h5ad"
    holds_several = False

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_annotated(arrays, path, labels, kind="csr")


class TestAnnDataByColumns(SparseFileSuite):
    name = "x.h5"
    holds_several = False

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_annotated(arrays, path, labels, kind="csc")


class TestMatlab(ArrayFileSuite):
    name = "x.mat"
    holds_labels = False

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.savemat(path, arrays, do_compression=True)


class TestMatlab4(TestMatlab):
    shape = (30, 6)

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.savemat(path, arrays, format="4")


class TestMatlab73(TestMatlab):
    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_matlab_73(arrays, path)


class TestSparseMatlab(SparseFileSuite):
    name = "x.mat"
    holds_labels = False

    def example(self, seed: int) -> Any:
        return super().example(seed).astype(np.float64)  # MATLAB has sparse matrices of this type alone

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.savemat(path, arrays)


@pytest.mark.further
class TestSparseMatlab4(TestSparseMatlab):
    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.savemat(path, arrays, format="4")


class TestSparseMatlab73(TestSparseMatlab):
    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_matlab_73(arrays, path)


class TestNetCDF(ArrayFileSuite):
    name = "x.nc"

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_netcdf(arrays, path, labels, engine="scipy")


class TestNetCDF4(ArrayFileSuite):
    name = "x.nc4"
    dtype = np.float32

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        write_netcdf(arrays, path, labels, engine="h5netcdf")


@pytest.mark.further
class TestNetCDFWithTheSuffixOfHDF5(TestNetCDF4):
    name = "x.h5"


class TestMatrixMarket(SparseFileSuite):
    name = "matrix.mtx"
    holds_several = False

    def example(self, seed: int) -> Any:
        return super().example(seed).astype(np.float64)

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.mmwrite(path.with_name("x.mtx"), arrays["X"])
        data = path.with_name("x.mtx").read_bytes()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        for name, texts in zip(("features.tsv", "barcodes.tsv"), labels, strict=False):
            lines = "".join(f"{text}\t{text} name\tkind\n" for text in texts or ())
            path.with_name(name).write_text(lines)


class TestGzippedMatrixMarket(TestMatrixMarket):
    name = "matrix.mtx.gz"


class TestDenseMatrixMarket(ArrayFileSuite):
    name = "x.mtx"
    shape = (30, 6)
    holds_labels = holds_several = False

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        scipy.io.mmwrite(path, arrays["X"], precision=17)


# ---------------------------------------------------------------- reading by rows


def matrix(*tail: int) -> NDArray[Any]:
    return np.random.default_rng(1).integers(0, 9, (150, *(tail or (7,)))).astype(np.float32)


class TestHDF5Source(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return matrix(3, 4)

    def open(self, folder: Path) -> RowSource:
        write_hdf5({"X": self.rows()}, folder / "x.h5", chunks=(32, 2, 4))
        values = open_array(folder / "x.h5").values
        assert isinstance(values, HDF5Source)
        return values


class TestReversedHDF5Source(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return matrix(3, 4)

    def open(self, folder: Path) -> RowSource:
        write_hdf5({"X": self.rows().T}, folder / "x.h5")
        values: RowSource = open_array(folder / "x.h5").transpose().values
        return values


class TestNetCDFSource(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return matrix()

    def open(self, folder: Path) -> RowSource:
        write_netcdf({"X": self.rows()}, folder / "x.nc", engine="scipy")
        values = open_array(folder / "x.nc").values
        assert isinstance(values, NetCDFSource)
        return values


class TestHDF5CSRSource(RowSourceSuite):
    decodes_chunks = False

    def rows(self) -> NDArray[Any]:
        return draw_sparse(np.random.default_rng(1), 150, 7).toarray()

    def open(self, folder: Path) -> RowSource:
        write_annotated({"X": self.rows()}, folder / "x.h5ad", kind="csr")
        values = open_array(folder / "x.h5ad").values
        assert isinstance(values, HDF5CSRSource)
        return values


class TestHDF5CSCSource(RowSourceSuite):
    def rows(self) -> NDArray[Any]:
        return draw_sparse(np.random.default_rng(1), 150, 7).toarray()

    def open(self, folder: Path) -> RowSource:
        write_annotated({"X": self.rows()}, folder / "x.h5ad", kind="csc")
        values = open_array(folder / "x.h5ad").values
        assert isinstance(values, HDF5CSCSource)
        return values


@pytest.mark.parametrize("storage", [{}, {"chunks": (100, 50), "compression": "gzip"}, {"chunks": (40_000, 1)}])
def test_memory_is_bounded_by_the_rows_that_are_read(storage: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "is_child", True)  # so that the memory of this process counts
    monkeypatch.setattr(file_source, "_READ_BYTES", 1 << 17)
    monkeypatch.setattr(file_source, "_MAX_READ_BYTES", 1 << 19)
    write_hdf5({"X": np.ones((40_000, 50))}, tmp_path / "x.h5", **storage)
    tracemalloc.start()
    try:
        source = open_array(tmp_path / "x.h5").values
        rows = source.chunk_rows or 300
        assert rows < 2000
        for start in range(0, 10 * rows, rows):
            assert source.read(start, start + rows).all()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # of 16 MB


def test_rows_that_do_not_fit_in_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {"X": np.ones((100, 100))})
    scipy.io.mmwrite(tmp_path / "x.mtx", sp.eye_array(100))
    write_annotated({"X": np.eye(100)}, tmp_path / "x.h5ad", kind="csc")
    monkeypatch.setattr(server, "is_child", True)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    for name in ("x.mat", "x.mtx", "x.h5ad"):
        with pytest.raises(dfact.MemoryPlanError, match=rf"{name} takes .* GiB of memory, expected at most half of .*; \w+"):
            dfact.import_array(open_array(tmp_path / name), tmp_path / "d.zarr")


# ---------------------------------------------------------------- forged headers


def test_forged_headers_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "shape.h5", "w") as file:
        file.create_dataset("X", shape=(1 << 40, 50), chunks=(100, 50), dtype="f8")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("X", shape=(1 << 28, 1), chunks=(1 << 28, 1), dtype="f8")
    with h5py.File(tmp_path / "sparse.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": [3, 1 << 50]})
        for name, data in (("data", [1.0]), ("indices", [0]), ("indptr", [0, 1, 1, 1])):
            group.create_dataset(name, data=data)
    banner = "%%MatrixMarket matrix coordinate real general\n"
    (tmp_path / "entries.mtx").write_text(banner + "3 3 100000000000\n1 1 1\n")
    (tmp_path / "rows.mtx").write_text(banner + "100000000000 3 1\n1 1 1\n")
    for name, message in {
        "shape.h5": "declares the shape 1099511627776×50, most of which was never written",
        "chunk.h5": "has chunks of 2.0 GiB, expected at most 1 GiB",
        "sparse.h5ad": "declares the shape 3×1125899906842624, for which the .* bytes of the file are too few",
        "entries.mtx": "declares 100000000000 entries, for which the file is too short",
        "rows.mtx": "declares the shape 100000000000×3, for which the",
    }.items():
        with pytest.raises(dfact.DataError, match=f"{name}.* {message}"):
            open_array(tmp_path / name)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("2 2 3.6E", "Line 4|expected numbers"),
        ("2 2 3.6\0\0\n", r"line 4 is b'2 2 3.6\\x00\\x00', expected numbers"),
        ("2 2 2\x7f", "line 4 is"),
        ("9 2 2\n", "Row index out of bounds"),
        ("", "Truncated file"),
        ("1 " * (1 << 20), "line 4 is longer than"),
    ],
)
def test_lines_that_end_the_parser_are_refused(last: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 2\n" + last)
    with pytest.raises(dfact.DataError, match=f"x.mtx cannot be read as Matrix Market: .*({message})"):
        open_array(tmp_path / "x.mtx")


@pytest.mark.parametrize("kind", [8, 200, 1 << 15])
def test_unknown_types_in_matlab_files_are_refused(kind: int, tmp_path: Path) -> None:
    """SciPy looks up the type of an element beyond its table, which ends its process."""
    scipy.io.savemat(tmp_path / "x.mat", {"X": np.ones((3, 4))})
    data = bytearray((tmp_path / "x.mat").read_bytes())
    tag = data.index(np.array([9, 96], "<u4").tobytes())
    data[tag : tag + 4] = np.array([kind], "<u4").tobytes()
    (tmp_path / "x.mat").write_bytes(data)
    with pytest.raises(dfact.DataError, match=r"x\.mat cannot be read"):
        open_array(tmp_path / "x.mat")


@pytest.mark.parametrize("last", [0, 2])
def test_positions_that_descend_in_sparse_matlab_files_are_refused(last: int, tmp_path: Path) -> None:
    """SciPy would convert them, and read beyond the entries."""
    matrix = sp.csc_array(np.eye(4))
    scipy.io.savemat(tmp_path / "x.mat", {"X": matrix})
    positions = matrix.indptr.astype("<i4")
    forged = np.append(positions[:-1], last).astype("<i4")
    data = (tmp_path / "x.mat").read_bytes()
    assert data.count(positions.tobytes()) == 1
    (tmp_path / "x.mat").write_bytes(data.replace(positions.tobytes(), forged.tobytes()))
    with pytest.raises(dfact.DataError, match=r"X of x\.mat has positions of columns that descend; the file is damaged"):
        open_array(tmp_path / "x.mat")


@pytest.mark.further
def test_heaps_that_never_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 would walk a free space of size 0 forever."""
    write_annotated({"X": np.eye(3)}, tmp_path / "x.h5ad", ["abc", "xyz"])
    data = bytearray((tmp_path / "x.h5ad").read_bytes())
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 32] = bytes(16)
    (tmp_path / "x.h5ad").write_bytes(data)
    monkeypatch.setattr(parsers, "_SECONDS", 1)
    with pytest.raises(dfact.DataError, match=r"x.h5ad cannot be read: its parser HDF5 does not end within 1 s of computation"):
        open_array(tmp_path / "x.h5ad")


def test_invalid_positions_of_a_sparse_matrix_are_refused(tmp_path: Path) -> None:
    for member, values in (("indptr", [0, 9, 2, 3]), ("indices", [0, 1, 7])):
        write_annotated({"X": np.eye(3)}, tmp_path / "x.h5ad", kind="csr")
        with h5py.File(tmp_path / "x.h5ad", "a") as file:
            file[f"X/{member}"][:] = values
        with pytest.raises(dfact.DataError, match=r"X of x\.h5ad has (invalid positions|numbers of columns beyond)"):
            dfact.import_array(open_array(tmp_path / "x.h5ad"), tmp_path / "d.zarr")


def test_values_in_other_files_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", shape=(8, 8), dtype="u1", external=[(str(tmp_path / "secret"), 0, 64)])
    with pytest.raises(dfact.DataError, match="keeps its values in other files"):
        open_array(tmp_path / "x.h5")


# ---------------------------------------------------------------- missing values


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf"])
def test_fill_values_are_missing(engine: Any, tmp_path: Path) -> None:
    X = draw(np.random.default_rng(0), (20, 5), np.int32)
    expected = np.where(X == 3, np.nan, X)
    write_netcdf({"X": X}, tmp_path / "x.nc", engine=engine, missing_value=np.int32(3))
    found = dfact.import_array(open_array(tmp_path / "x.nc"), tmp_path / "d.zarr")
    np.testing.assert_array_equal(as_float(found.source.read(0, 20), found.missing_code, np.dtype(float)), expected)
    assert found.fingerprint == dfact.import_array(X, tmp_path / "e.zarr", missing=3).fingerprint


def test_packed_values_are_unpacked(tmp_path: Path) -> None:
    X = draw(np.random.default_rng(0), (20, 5), np.int16)
    attributes = {"scale_factor": 0.5, "add_offset": 10.0, "missing_value": np.int16(3)}
    write_netcdf({"X": X}, tmp_path / "x.nc", engine="h5netcdf", **attributes)
    found = dfact.import_array(open_array(tmp_path / "x.nc"), tmp_path / "d.zarr")
    np.testing.assert_array_equal(found.source.read(0, 20), np.where(X == 3, np.nan, 10 + 0.5 * X))


@pytest.mark.parametrize(("dtype", "text"), [(np.float32, "9.96921e+36"), (np.float64, "9.969209968386869e+36"), (np.int16, "-32767")])
def test_default_fill_value_must_be_declared(dtype: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = draw(np.random.default_rng(0), (20, 5), dtype)
    X[7, 3] = dtype(float(text))
    write_netcdf({"X": X}, tmp_path / "x.nc", engine="scipy")
    command = ["import-array", str(tmp_path / "x.nc"), str(tmp_path / "d.zarr")]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert f"X of x.nc holds {text}, the value of entries that were never written, which the file does not declare" in message
    assert f"--missing {text}" in message
    assert not (tmp_path / "d.zarr").exists()
    assert main([*command, "--missing", text]) == 0
    found = dfact.open_dataset(tmp_path / "d.zarr")
    expected = X.astype(float)
    expected[7, 3] = np.nan
    np.testing.assert_array_equal(as_float(found.source.read(0, 20), found.missing_code, np.dtype(float)), expected)


# ---------------------------------------------------------------- labels, names and options


def test_labels_from_other_arrays_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = draw(np.random.default_rng(0), (4, 3), np.float64)
    write_annotated({"X": X}, tmp_path / "x.h5ad", ["abcd", "xyz"])
    with h5py.File(tmp_path / "x.h5ad", "a") as file:
        group = file.create_group("obs/kind")
        group.attrs["encoding-type"] = "categorical"
        group["codes"], group["categories"] = np.array([1, 0, -1, 1], np.int8), ["first", "second"]
        file["obs/number"] = [7, 8, 9, 10]
    command = ["import-array", str(tmp_path / "x.h5ad"), str(tmp_path / "d.zarr"), "--overwrite"]
    for name, labels in {"obs/kind": ["second", "first", "", "second"], "obs/number": ["7", "8", "9", "10"]}.items():
        assert main([*command, "--row-labels", name]) == 0
        found = dfact.open_dataset(tmp_path / "d.zarr")
        assert (list(found.row_labels), list(found.column_labels)) == (labels, ["x", "y", "z"])
    scipy.io.savemat(
        tmp_path / "x.mat", {"X": X, "names": np.array(["ä", "bb", "c", "d"]), "cells": np.array(["ä", "bb", "c", "d"], object)}
    )
    for name in ("names", "cells"):
        assert open_labels(tmp_path / "x.mat", name) == ["ä", "bb", "c", "d"]
    assert open_array(tmp_path / "x.mat").values.shape == (4, 3)
    capsys.readouterr()
    assert main([*command[:2], str(tmp_path / "e.zarr"), "--row-labels", "obs/none"]) == 1
    assert "has no array 'obs/none', expected one of X 4×3" in capsys.readouterr().err


@pytest.mark.further
def test_third_mode_is_printed_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = draw(np.random.default_rng(0), (6, 3, 2), np.float64)
    write_netcdf({"X": X}, tmp_path / "x.nc", [None, None, ["before", "after"]], engine="h5netcdf")
    assert main(["import-array", str(tmp_path / "x.nc"), str(tmp_path / "d.zarr")]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^mode 3 +before, after$", out, re.MULTILINE)
    assert "X: row (6) × column (3) × mode3 (2)" in err
    assert [list(labels) for labels in dfact.open_dataset(tmp_path / "d.zarr").mode_labels if labels is not None] == [["before", "after"]]
    with pytest.raises(dfact.DataError, match=r"mode_labels has \[3\] labels, expected as many .* \[2\]"):
        dfact.import_array(X, tmp_path / "e.zarr", mode_labels=["abc"])


def test_times_are_dates(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w"):
        pass
    days = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
    xr.Dataset({"X": (["day", "item"], np.ones((2, 3)))}, {"day": days}).to_netcdf(tmp_path / "x.nc", engine="scipy")
    labels = open_array(tmp_path / "x.nc").labels[0]
    assert labels is not None
    assert list(labels) == ["2020-01-01", "2020-01-02"]


def test_cells_and_structs_are_refused(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {"s": {"field": np.ones((2, 2))}, "c": np.array([np.ones(2), "text"], object)})
    with pytest.raises(dfact.DataError, match=r"x.mat holds no arrays of numbers \(s struct, c cell\), expected one"):
        open_array(tmp_path / "x.mat")
    with pytest.raises(dfact.DataError, match=r"s of x.mat is a struct, expected an array of numbers; save the field"):
        open_array(tmp_path / "x.mat", ReadOptions(object="s"))
    with pytest.raises(dfact.DataError, match=r"c of x.mat is a cell array of other things than texts"):
        open_array(tmp_path / "x.mat", ReadOptions(object="c"))
    scipy.io.savemat(tmp_path / "z.mat", {"z": np.ones((2, 2)) * 1j})
    with pytest.raises(dfact.DataError, match=r"z of z.mat holds complex numbers"):
        open_array(tmp_path / "z.mat")


def test_labels_of_another_matrix_are_refused(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "s1_matrix.mtx", sp.eye_array(3))
    (tmp_path / "barcodes.tsv").write_text("other sample\n")
    (tmp_path / "s1_barcodes.tsv").write_text("a\nb\nc\n")
    labels = open_array(tmp_path / "s1_matrix.mtx").labels[1]
    assert labels is not None
    assert list(labels) == ["a", "b", "c"]
    (tmp_path / "s1_genes.tsv").write_text("a\n")
    with pytest.raises(dfact.DataError, match=r"s1_genes.tsv has 1 lines, expected 3, one for each label of s1_matrix.mtx"):
        open_array(tmp_path / "s1_matrix.mtx")


def test_matrix_of_cell_ranger(tmp_path: Path) -> None:
    X = draw_sparse(np.random.default_rng(0), 5, 8)  # genes × cells
    columns = sp.csc_array(X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in ("data", "indices", "indptr"):
            file[f"matrix/{name}"] = getattr(columns, name)
        file["matrix/shape"] = [5, 8]
        file["matrix/barcodes"], file["matrix/features/id"] = [f"cell{i}" for i in range(8)], [f"gene{i}" for i in range(5)]
    opened = open_array(tmp_path / "x.h5").transpose()
    assert isinstance(opened.values, HDF5CSRSource)
    found = dfact.import_array(opened, tmp_path / "d.zarr")
    cells, genes = [f"cell{i}" for i in range(8)], [f"gene{i}" for i in range(5)]
    assert found.fingerprint == dfact.import_array(X.T, tmp_path / "e.zarr", row_labels=cells, column_labels=genes).fingerprint


def test_early_layout_of_anndata(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file["X"] = np.arange(6.0).reshape(3, 2)
        file["obs"] = np.array([(b"a", 1), (b"b", 2), (b"c", 3)], [("index", "S1"), ("n", "i4")])
        group = file.create_group("var")
        group.attrs["_index"] = "gene"
        group["gene"] = np.array([1, 0], np.int8)
        group["__categories/gene"] = ["g0", "g1"]
        group["gene"].attrs["categories"] = group["__categories/gene"].ref
    found = dfact.import_array(open_array(tmp_path / "x.h5ad"), tmp_path / "d.zarr")
    assert (list(found.row_labels), list(found.column_labels)) == (["a", "b", "c"], ["g1", "g0"])


# ---------------------------------------------------------------- shared files

INPUTS = REAL_DATA / "inputs"


@pytest.fixture
def inputs() -> Path:
    if not INPUTS.is_dir():
        pytest.skip("the files of users are not next to the project")
    return INPUTS


def imported(path: Path, folder: Path, *, name: str | None = None, **settings: Any) -> dfact.Dataset:
    return dfact.import_array(open_array(path, ReadOptions(object=name)), folder / "d.zarr", overwrite=True, **settings)


def test_spectra_of_matlab_equal_those_of_numpy(inputs: Path, tmp_path: Path) -> None:
    found = imported(inputs / "mat/amino.mat", tmp_path, name="X")
    assert found.shape == (5, 201, 61)
    assert (found.statistics.minimum.min(), found.statistics.maximum.max()) == (pytest.approx(-6.204), pytest.approx(938.499))
    archive = REAL_DATA / "tensors" / "amino.npz"
    if archive.exists():
        assert found.fingerprint == imported(archive, tmp_path, name="X").fingerprint


def test_small_files_of_matlab(inputs: Path, tmp_path: Path) -> None:
    old, new = (imported(inputs / f"mat/test{name}_7.4_GLNX86.mat", tmp_path) for name in ("double", "hdf5"))
    assert old.shape == new.shape == (1, 9)
    assert old.fingerprint == new.fingerprint
    four, seven = (imported(inputs / f"mat/testsparse_{name}.mat", tmp_path) for name in ("4.2c_SOL2", "7.4_GLNX86"))
    assert four.shape == seven.shape == (3, 5)
    assert four.source.is_sparse
    assert four.fingerprint == seven.fingerprint
    with pytest.raises(dfact.ParameterError, match=r"holds 2 arrays \(a 3×5, theta 1×9\)"):
        open_array(inputs / "mat/testmulti_7.4_GLNX86.mat")


def test_matrices_of_cells(inputs: Path, tmp_path: Path) -> None:
    found = imported(inputs / "mtx/10x/matrix.mtx.gz", tmp_path)
    values: Any = found.source.read_native(0, 507)
    assert (found.shape, values.nnz, values.sum(), values.max()) == ((507, 1107), 23866, 41549, 36)
    assert (found.row_labels[0], found.column_labels[0]) == ("ENSG00000279493", "AAACCCAAGGAGAGTA-1")
    cells = dfact.import_array(open_array(inputs / "mtx/10x/matrix.mtx.gz").transpose(), tmp_path / "t.zarr")
    assert (cells.shape, cells.row_labels[0]) == ((1107, 507), "AAACCCAAGGAGAGTA-1")
    small = imported(inputs / "mtx/small/matrix.mtx", tmp_path)
    assert (small.shape, small.source.read_native(0, 6).sum(), small.row_labels[0]) == ((6, 5), 8, "574405")


@pytest.mark.further
def test_annotated_data(inputs: Path, tmp_path: Path) -> None:
    path = inputs / "h5ad/adata_v0.7.8.h5ad"
    found = imported(path, tmp_path)
    values: Any = found.source.read_native(0, 30)
    assert (found.shape, values.nnz, values.sum(), values.max()) == ((30, 20), 239, 302, 4)
    assert (list(found.row_labels[:2]), found.column_labels[0]) == (["cell0", "cell1"], "gene0")
    assert [imported(path, tmp_path, name=f"layers/{name}").shape for name in ("array", "sparse")] == [(30, 20)] * 2
    assert len(open_labels(path, "obs/obs_cat")) == 30
    with pytest.raises(dfact.DataError, match=r"adata_v0.11.4.h5ad has no X, expected a matrix of observations × variables"):
        open_array(inputs / "h5ad/adata_v0.11.4.h5ad")


@pytest.mark.further
def test_weather(inputs: Path, tmp_path: Path) -> None:
    path = inputs / "netcdf/example_1.nc"
    with pytest.raises(dfact.ParameterError, match=r"holds 2 arrays \(temp 1×4×5×10, rh 1×5×10\)"):
        open_array(path)
    with pytest.raises(dfact.DataError, match=r"temp of example_1.nc holds 9.96921e\+36"):
        imported(path, tmp_path, name="temp")
    with pytest.raises(dfact.DataError, match=r"row 0 has no answer"):
        imported(path, tmp_path, name="temp", missing=9.96921e36)
    found = imported(path, tmp_path, name="rh")
    assert (found.shape, found.statistics.minimum.min(), found.statistics.maximum.max()) == ((1, 5, 10), 0, np.float32(0.9))
    assert (list(found.row_labels), list(found.column_labels)) == (["1996-01-01T12:00"], ["20", "30", "40", "50", "60"])
    bears = imported(inputs / "netcdf/bears.nc", tmp_path, name="shot")
    assert (bears.shape, list(bears.row_labels)) == ((2, 3), ["10", "20"])
