"""Targets: NumPy files."""

# ruff: noqa: ARG001  # every reader takes the same arguments
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.fuzz.mutations import mutate_bytes, mutate_file
from benchmarks.fuzz.target import M, N, Target, read_values


def array_target(name: str, save: Callable[[Path, Any], None]) -> Target:
    def make(folder: Path) -> None:
        values = np.random.default_rng(1).random((N, M, 3))
        values[0, 0, 0] = np.nan
        save(folder / name, values)

    def read(folder: Path, out: Path, same: bool) -> None:
        from dfact.data.readers.numpy_files import read_array_file

        dataset = dfact.import_array(read_array_file(folder / name), out / "d.zarr", empty_rows="drop")
        loaded = np.load(folder / name, allow_pickle=False)
        values = loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]
        kept = ~np.isnan(values).reshape(len(values), -1).all(axis=1)
        np.testing.assert_allclose(read_values(dataset), values[kept], rtol=1e-6)

    return Target(make, mutate_file(name, mutate_bytes), read)
