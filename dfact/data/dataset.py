"""Dataset: values with labels, missing code, valid ranges and confounders, in memory or in a Zarr store."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

from dfact.data.dask_rows import DaskRows
from dfact.data.places import Place, place_of
from dfact.data.source import Layout, RowSource, absent_of, read_rows, reads
from dfact.data.statistics import ColumnStatistics
from dfact.data.store import attributes, open_group, read_labels, read_numbers, store_kind, write_array, write_labels
from dfact.data.values import open_values, whole_array
from dfact.errors import DfactError, StoreError

KIND = "dataset"
_PLAIN = re.compile(r"\w[\w .+-]{0,60}(?<![ .])", re.ASCII)
"""What a folder may be called on every system, behind ``confounder_``."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """What every estimator fits: an array of rows (participants) with all that is known of it.

    Made by :func:`dfact.import_table`, :func:`dfact.import_array` and :func:`dfact.open_dataset`,
    and from arrays in memory by the estimators themselves.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> dataset = dfact.import_array(np.array([[1.0, 2.0], [3.0, np.nan]]), "answers.zarr", row_labels=["Ada", "Ben"])
    >>> dataset.shape, dataset.missing_rate, list(dataset.row_labels)
    ((2, 2), 0.25, ['Ada', 'Ben'])
    """

    source: RowSource
    missing_code: int | None
    column_labels: NDArray[Any]
    valid_range: NDArray[np.float64]  # (columns, 2), in stored units
    offset: NDArray[np.float64]  # (columns,): stored value + offset = value in the file
    statistics: ColumnStatistics
    confounders: pd.DataFrame | None = None
    path: Place | None = None
    dropped_rows: int = 0  # rows without any answer that the import left out
    labels: NDArray[Any] | None = field(default=None, repr=False)
    stored_fingerprint: str | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def missing_rate(self) -> float:
        """Share of the entries that are missing."""
        return self.statistics.missing_rate

    @cached_property
    def row_labels(self) -> "pd.Index[Any]":
        """Labels of the rows; 0, 1, … where none were given."""
        labels: Any = self.label_source
        if isinstance(labels, zarr.Array) and self.path is not None:
            labels = read_labels(open_group(self.path, KIND), "row", self.shape[0])
        index: pd.Index[Any] = pd.RangeIndex(self.shape[0], name="row") if labels is None else pd.Index(labels, name="row")
        return index

    @property
    def label_source(self) -> NDArray[Any] | zarr.Array[Any] | None:
        """The given row labels, in memory or as they lie in the store: there may be too many to hold."""
        # The path may be that of a bare Zarr array.
        if self.labels is not None or self.path is None or store_kind(self.path) != KIND:
            return self.labels
        labels = open_group(self.path, KIND).get("row")
        return labels if isinstance(labels, zarr.Array) else None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the values and of everything that gives them meaning; independent of chunking and place.

        That of a dask array on a cluster is made of its blocks' digests: another than that of the same values elsewhere.
        """
        if self.stored_fingerprint is not None:
            return self.stored_fingerprint
        digest = Fingerprint(self.shape[1:], self.dtype, absent_of(self.source))
        if isinstance(self.source, DaskRows):  # its rows do not leave the workers
            digest.update(np.frombuffer(self.source.digests(), np.uint8))
            return digest.finish(self)
        for rows in reads(self.source, Layout.of(self.shape)):
            digest.update(read_rows(self.source, rows.start, rows.stop))
        return digest.finish(self)

    def with_confounders(self, confounders: pd.DataFrame | None) -> "Dataset":
        return replace(self, confounders=confounders, stored_fingerprint=None)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.shape))
        where = f" at {self.path}" if self.path else ""
        return f"<Dataset {size} {self.dtype}, {self.missing_rate:.2%} missing{where}>"


class Fingerprint:
    """BLAKE2b over the rows in order, then over the metadata.

    Of row-compressed rows the lengths, the column numbers and the values have a digest each, so that
    it does not matter how many rows come at once.
    """

    def __init__(self, tail: tuple[int, ...], dtype: np.dtype[Any], absent: float) -> None:
        others = " absent: missing" if np.isnan(absent) else ""
        self._hash = hashlib.blake2b(f"{tail} {dtype.str}{others}".encode(), digest_size=16)
        self._compressed: list[Any] = []

    def update(self, rows: NDArray[Any] | sp.csr_array) -> None:
        if isinstance(rows, np.ndarray):
            self._hash.update(np.ascontiguousarray(rows).data)
            return
        self._compressed = self._compressed or [hashlib.blake2b(digest_size=16) for _ in range(3)]
        parts = np.diff(rows.indptr).astype(np.int64), rows.indices.astype(np.int32, copy=False), rows.data
        for digest, part in zip(self._compressed, parts, strict=True):
            digest.update(np.ascontiguousarray(part).data)

    def finish(self, dataset: Dataset) -> str:
        for digest in self._compressed:
            self._hash.update(digest.digest())
        labels = [str(label) for label in dataset.column_labels]
        ranges = [dataset.valid_range.tolist(), dataset.offset.tolist()]
        self._hash.update(json.dumps([dataset.missing_code, labels, ranges]).encode())
        if not isinstance(dataset.row_labels, pd.RangeIndex):
            self._hash.update("\0".join(map(str, dataset.row_labels)).encode())
        if dataset.confounders is not None:
            for name, values in dataset.confounders.items():
                codes, levels = confounder_codes(values)
                self._hash.update(json.dumps([str(name), levels]).encode())
                self._hash.update(np.ascontiguousarray(codes).data)
        return self._hash.hexdigest()


def confounder_codes(values: "pd.Series[Any]") -> tuple[NDArray[Any], list[str] | None]:
    """The stored form: level numbers (−1 = missing) with the levels, or floats with None."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(np.int32), [str(level) for level in values.cat.categories]
    return values.to_numpy(np.float64), None


def write_metadata(group: zarr.Group, dataset: Dataset) -> None:
    """Everything of the dataset but its values."""
    write_labels(group, "column", dataset.column_labels, "column")
    if dataset.labels is not None:
        write_labels(group, "row", dataset.labels, "row")
    for name, data in (
        ("valid_minimum", dataset.valid_range[:, 0]),
        ("valid_maximum", dataset.valid_range[:, 1]),
        ("offset", dataset.offset),
    ):
        write_array(group, name, data, ("column",))
    statistics = dataset.statistics
    entries = "column" if len(dataset.shape) == 2 else "entry"
    write_array(group, "observed", statistics.observed, (entries,))
    write_array(group, "minimum", statistics.minimum, (entries,))
    write_array(group, "maximum", statistics.maximum, (entries,))
    if dataset.confounders is not None:
        names = confounder_arrays(dataset.confounders.columns)
        for name, (_, values) in zip(names, dataset.confounders.items(), strict=True):
            codes, levels = confounder_codes(values)
            extra = {"levels": levels, "_FillValue": -1} if levels is not None else {}
            write_array(group, name, codes, ("row",), **extra)


def confounder_arrays(names: Iterable[Any]) -> list[str]:
    """What the arrays of the confounders are called: their names, or numbers where no folder on every system can be called so.

    Two names that differ in their case alone are one folder on some systems, "a/b" is two on all.
    """
    plain = [str(name) for name in names]
    cases = Counter(map(str.casefold, plain))
    return [
        f"confounder_{name}" if _PLAIN.fullmatch(name) and cases[name.casefold()] == 1 else f"confounder-{i}"
        for i, name in enumerate(plain)
    ]


def _check_values(source: RowSource, info: dict[str, Any], path: Place) -> None:
    """Refuse values of another shape or type than were written; the first stores do not say."""
    found, written = [[*source.shape], source.dtype.str], [info.get("shape", [*source.shape]), info.get("dtype", source.dtype.str)]
    if found != written:
        raise StoreError(f"{path}: its values are {found[0]} of {found[1]}, {written[0]} of {written[1]} were written; import it again")


def open_dataset(path: str | PathLike[str]) -> Dataset:
    """Open a dataset that :func:`import_table` or :func:`import_array` wrote.

    Raises StoreError if there is none at ``path``, if its import was interrupted, or if anything of it is gone
    or does not fit the rest.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> imported = dfact.import_array(np.array([[1, 2], [3, 0]]), "answers.zarr", missing=0)
    >>> dfact.open_dataset("answers.zarr").fingerprint == imported.fingerprint
    True
    """
    path = place_of(path)
    try:
        return _read_dataset(open_group(path, KIND), path)
    except DfactError:
        raise
    except Exception as error:  # attributes that no import writes
        raise StoreError(f"{path} is damaged: {error or type(error).__name__}; import it again") from error


def _read_dataset(group: zarr.Group, path: Place) -> Dataset:
    info = attributes(group)
    source = open_values(group, path)
    _check_values(source, info, path)
    n, m = source.shape[:2]
    n_entries = prod(source.shape[1:])
    statistics = ColumnStatistics(
        read_numbers(group, "observed", n_entries),
        read_numbers(group, "minimum", n_entries),
        read_numbers(group, "maximum", n_entries),
        n,
        info.get("empty_rows", []),
        info.get("n_empty_rows", 0),
    )
    dataset = Dataset(
        source=source,
        missing_code=info["missing_code"],
        column_labels=read_labels(group, "column", m),
        valid_range=np.stack([read_numbers(group, "valid_minimum", m), read_numbers(group, "valid_maximum", m)], axis=1),
        offset=read_numbers(group, "offset", m),
        statistics=statistics,
        confounders=_read_confounders(group, info, n),
        path=path,
        dropped_rows=info["dropped_rows"],
        stored_fingerprint=info["fingerprint"],
    )
    if info.get("row_labels", "row" in group) and whole_array(group, "row", path).shape != (n,):
        raise StoreError(f"{path} has not as many row labels as rows; import it again")
    _check(dataset)
    return dataset


def _read_confounders(group: zarr.Group, info: dict[str, Any], n: int) -> pd.DataFrame | None:
    names = info["confounders"]
    arrays = info.get("confounder_arrays") or [f"confounder_{name}" for name in names]  # the first stores do not say
    columns = {}
    for name, array in zip(names, arrays, strict=True):
        codes = read_numbers(group, array, n)
        levels: Any = group[array].attrs.get("levels")
        columns[name] = codes if levels is None else pd.Categorical.from_codes(codes.tolist(), categories=pd.Index(levels, dtype="str"))
    return pd.DataFrame(columns) if columns else None


def _check(dataset: Dataset) -> None:
    """Refuse what no import writes: what computes with a dataset takes it for granted."""
    n, statistics, code = dataset.shape[0], dataset.statistics, dataset.missing_code
    low, high = dataset.valid_range.T
    seen = statistics.observed > 0
    counts = [dataset.dropped_rows, statistics.n_empty_rows, *statistics.empty_rows]
    fits = code is None or (
        type(code) is int and dataset.dtype.kind in "iu" and np.iinfo(dataset.dtype).min <= code <= np.iinfo(dataset.dtype).max
    )
    checks = {
        "missing_code": fits,
        "valid_minimum, valid_maximum": bool((np.isfinite(low) & np.isfinite(high) & (low <= high)).all()),
        "offset": bool(np.isfinite(dataset.offset).all()),
        "observed": statistics.observed.dtype.kind in "iu" and bool(((statistics.observed >= 0) & (statistics.observed <= n)).all()),
        "minimum, maximum": bool((statistics.minimum <= statistics.maximum)[seen].all()),
        "dropped_rows, n_empty_rows, empty_rows": all(type(count) is int and count >= 0 for count in counts),
        "empty_rows": statistics.n_empty_rows <= n and all(row < n for row in statistics.empty_rows),
        "fingerprint": isinstance(dataset.stored_fingerprint, str),
    }
    wrong = [name for name, good in checks.items() if not good]
    if wrong:
        raise StoreError(f"{dataset.path} is damaged: its {wrong[0]} make no sense; import it again")
