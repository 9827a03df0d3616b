"""What every reader of arrays keeps to: the same array gives the same dataset from every format, and damaged files an error of dfact."""

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from dfact.data.sources.array import LabelledArray
from dfact.imports.readers.base import ReadOptions
from dfact.imports.readers.formats import open_array

Labels = Sequence[Sequence[str] | None]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Draw an array without empty rows or columns; floats hold NaN."""
    values = rng.integers(0, 9, shape).astype(dtype)
    if values.dtype.kind == "f":
        values += rng.random(shape).astype(dtype)
        values[rng.random(shape) < 0.1] = np.nan
        values[:, 0] = 1
        values[0] = 2
    return values


def draw_sparse(rng: np.random.Generator, n: int, m: int) -> sp.csr_array:
    """Draw a matrix of counts with an entry in each row and column."""
    stored = rng.random((n, m)) < 0.2
    stored[np.arange(n), np.arange(n) % m] = True
    return sp.csr_array(np.where(stored, rng.integers(1, 50, (n, m)), 0).astype(np.float32))


def damage(data: bytes, rng: random.Random) -> bytes:
    """Cut the bytes, or overwrite a few of them."""
    out = bytearray(data)
    if rng.random() < 0.3:
        return bytes(out[: rng.randrange(len(out))])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        out[at : at + 4] = rng.choice([bytes(4), b"\xff" * 4, rng.randbytes(4)])[: len(out) - at]
    return bytes(out)


_EXPECTED: dict[bytes, str] = {}


def expected(X: Any, folder: Path, **options: Any) -> str:
    """Import an array from memory and return its fingerprint; one that several formats hold is imported once."""
    key = pickle.dumps((X, options))
    if key not in _EXPECTED:
        _EXPECTED[key] = dfact.import_array(X, folder / "expected.zarr", overwrite=True, **options).fingerprint
    return _EXPECTED[key]


class _ArrayFiles:
    """Tests of dense and sparse arrays."""

    name: str
    """Name of the file, whose suffix chooses the reader."""
    holds_labels = True
    holds_several = True
    detects_foreign = True

    def write(self, arrays: dict[str, Any], path: Path, labels: Labels = ()) -> None:
        """Write arrays by name; the labels are those of the modes of all."""
        raise NotImplementedError

    def example(self, seed: int) -> Any:
        raise NotImplementedError

    def open(self, array: Any, folder: Path, labels: Labels = ()) -> LabelledArray:
        self.write({"X": array}, folder / self.name, labels)
        return open_array(folder / self.name)

    @pytest.mark.parametrize("seed", range(2))
    def test_array_gives_the_same_dataset(self, seed: int, tmp_path: Path) -> None:
        X = self.example(seed)
        found = dfact.import_array(self.open(X, tmp_path), tmp_path / "found.zarr")
        assert found.fingerprint == expected(X, tmp_path)

    @pytest.mark.further
    def test_labels_are_those_of_the_file(self, tmp_path: Path) -> None:
        if not self.holds_labels:
            pytest.skip(f"{self.name} holds no labels")
        X = self.example(0)
        labels = [[f"{'rcs'[mode]}{i} é" for i in range(size)] for mode, size in enumerate(X.shape)]
        found = dfact.import_array(self.open(X, tmp_path, labels), tmp_path / "found.zarr")
        assert [list(found.row_labels), list(found.column_labels), *map(list, found.mode_labels)] == labels
        assert found.fingerprint == expected(X, tmp_path, row_labels=labels[0], column_labels=labels[1], mode_labels=labels[2:])
        plain = expected(X, tmp_path, row_labels=labels[0], column_labels=labels[1])
        assert (plain == found.fingerprint) == (len(labels) == 2)

    @pytest.mark.further
    def test_transposed_array(self, tmp_path: Path) -> None:
        X = self.example(0)
        found = dfact.import_array(self.open(X, tmp_path).transpose(), tmp_path / "found.zarr", empty_rows="drop")
        assert found.fingerprint == expected(X.T, tmp_path, empty_rows="drop")

    @pytest.mark.further
    def test_one_of_several_arrays_is_named(self, tmp_path: Path) -> None:
        if not self.holds_several:
            pytest.skip(f"{self.name} holds one array")
        X = self.example(0)
        self.write({"X": X, "Other": X[:3]}, tmp_path / self.name)
        shape = "×".join(map(str, X.shape))
        with pytest.raises(
            dfact.ParameterError, match=rf"holds 2 arrays \(.*X {shape}.*\), expected one; choose one with object \(--object\)"
        ):
            open_array(tmp_path / self.name)
        with pytest.raises(dfact.ParameterError, match=rf"{self.name} has no array 'Y', expected one of .*X {shape}"):
            open_array(tmp_path / self.name, ReadOptions(object="Y"))
        found = dfact.import_array(open_array(tmp_path / self.name, ReadOptions(object="X")), tmp_path / "found.zarr")
        assert found.fingerprint == expected(X, tmp_path)

    def test_other_content_is_refused(self, tmp_path: Path) -> None:
        for content in (b"", b"a,b\n1,2\n", b"PK\x03\x04" + bytes(300), b"\x1f\x8b" + bytes(100)):
            (tmp_path / self.name).write_bytes(content)
            with pytest.raises(dfact.DfactError, match=self.name):
                open_array(tmp_path / self.name)

    @pytest.mark.further
    @pytest.mark.faults
    @pytest.mark.parametrize("seed", range(2))
    def test_damaged_files_give_errors_of_dfact(self, seed: int, tmp_path: Path) -> None:
        path, X, rng = tmp_path / self.name, self.example(seed), random.Random(seed)
        self.write({"X": X}, path)
        data = path.read_bytes()
        refused = 0
        for number in range(6):
            path.write_bytes(damage(data, rng))
            try:
                dfact.import_array(open_array(path), tmp_path / f"{number}.zarr", empty_rows="drop")
            except dfact.DfactError:
                refused += 1
                assert not (tmp_path / f"{number}.zarr").exists()
        assert refused


class ArrayFileSuite(_ArrayFiles):
    """A subclass writes files of dense arrays."""

    shape: tuple[int, ...] = (30, 6, 5)
    dtype: Any = np.float64

    def example(self, seed: int) -> Any:
        return draw(np.random.default_rng(seed), self.shape, self.dtype)


class SparseFileSuite(_ArrayFiles):
    """A subclass writes files of sparse matrices."""

    def example(self, seed: int) -> Any:
        return draw_sparse(np.random.default_rng(seed), 40, 9)

    @pytest.mark.further
    def test_entries_that_are_not_stored_are_zero_or_missing(self, tmp_path: Path) -> None:
        X = self.example(0)
        for implicit in ("zero", "missing"):
            found = dfact.import_array(self.open(X, tmp_path), tmp_path / f"{implicit}.zarr", implicit=implicit)
            assert found.source.is_sparse
            assert found.fingerprint == expected(X, tmp_path, implicit=implicit)
            assert (found.missing_rate > 0.5) == (implicit == "missing")
