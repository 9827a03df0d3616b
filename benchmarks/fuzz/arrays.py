"""Targets: files of arrays."""

# ruff: noqa: ARG001  # every reader takes the same arguments
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

import dfact
from benchmarks.fuzz.mutations import mutate_bytes, mutate_file
from benchmarks.fuzz.target import M, N, Target, read_values


def numpy_target(name: str, save: Callable[[Path, Any], None]) -> Target:
    def make(folder: Path) -> None:
        save(folder / name, _tensor())

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = _imported(folder / name, out)
        loaded = np.load(folder / name, allow_pickle=False)
        _compare(dataset, loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]])

    return Target(make, mutate_file(name, mutate_bytes), read)


def array_target(name: str, save: Callable[[Path, Any], None], *, matrix: bool = False) -> Target:
    """Return a target in a format without checksums: a mutated file that can be read may hold any values."""
    original = sp.random_array((N, M), density=0.4, rng=1) if matrix else _tensor()

    def make(folder: Path) -> None:
        save(folder / name, original)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = _imported(folder / name, out)
        if same:
            _compare(dataset, original.toarray() if matrix else original)

    return Target(make, mutate_file(name, mutate_bytes), read)


def _tensor() -> Any:
    values = np.random.default_rng(1).random((N, M, 3))
    values[0, 0, 0] = np.nan
    return values


def _imported(path: Path, out: Path) -> dfact.Dataset:
    from dfact.imports.readers.formats import open_array

    return dfact.import_array(open_array(path), out / "d.zarr", empty_rows="drop")


def _compare(dataset: dfact.Dataset, values: Any) -> None:
    kept = ~np.isnan(values).reshape(len(values), -1).all(axis=1)
    np.testing.assert_allclose(read_values(dataset), values[kept], rtol=1e-6)


def save_hdf5(path: Path, values: Any) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=values, chunks=True, compression="gzip")


def save_annotated(path: Path, values: Any) -> None:
    import h5py

    matrix = sp.csr_array(values)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": matrix.shape})
        for member in ("data", "indices", "indptr"):
            group[member] = getattr(matrix, member)


def save_netcdf(path: Path, values: Any, engine: Any) -> None:
    import xarray as xr

    xr.Dataset({"X": (("row", "column", "time"), values)}).to_netcdf(path, engine=engine)


ARRAY_TARGETS = {
    "npy": numpy_target("x.npy", np.save),
    "npz": numpy_target("x.npz", lambda path, values: np.savez_compressed(path, x=values)),
    "h5": array_target("x.h5", save_hdf5),
    "h5ad": array_target("x.h5ad", save_annotated, matrix=True),
    "mat": array_target("x.mat", lambda path, values: scipy.io.savemat(path, {"X": values}, do_compression=True)),
    "sparse mat": array_target("x.mat", lambda path, values: scipy.io.savemat(path, {"X": values}), matrix=True),
    "mat 4": array_target("x.mat", lambda path, values: scipy.io.savemat(path, {"X": values}, format="4"), matrix=True),
    "nc": array_target("x.nc", lambda path, values: save_netcdf(path, values, "scipy")),
    "nc4": array_target("x.nc4", lambda path, values: save_netcdf(path, values, "h5netcdf")),
    "mtx": array_target("x.mtx", scipy.io.mmwrite, matrix=True),
}
