"""TODO dfact.data.stored_dataset"""

import re
from collections import Counter
from collections.abc import Iterable
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr

from dfact.data.dataset import KIND, Dataset, confounder_codes
from dfact.data.sources.base import RowSource
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_values import complete_array, open_values
from dfact.errors import DataError, DfactError, StoreError
from dfact.storage.groups import attributes, open_group, read_labels, read_numbers, write_array, write_labels
from dfact.storage.location import Location, parse_location

_PLAIN = re.compile(r"\w[\w .+-]{0,60}(?<![ .])", re.ASCII)
"""What a folder may be called on every system, behind ``confounder_``."""


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


def _check_values(source: RowSource, info: dict[str, Any], path: Location) -> None:
    """Refuse values of another shape or type than were written; the first stores do not say."""
    found, written = [[*source.shape], source.dtype.str], [info.get("shape", [*source.shape]), info.get("dtype", source.dtype.str)]
    if found != written:
        raise StoreError(f"{path}: its values are {found[0]} of {found[1]}, {written[0]} of {written[1]} were written; import it again")


def open_dataset(path: str | PathLike[str]) -> Dataset:
    """Open a dataset that :func:`import_table` or :func:`import_array` wrote.

    Raises StoreError if there is none at ``path``, if its import was interrupted, or if anything of it is gone
    or does not fit the rest.
    """
    path = parse_location(path)
    if isinstance(path, Path) and path.is_file():
        raise DataError(f"{path} is a file, expected a dataset; import it: dfact import {path} {path.stem}.zarr --items 'Q*'")
    try:
        return _read_dataset(open_group(path, KIND), path)
    except DfactError:
        raise
    except Exception as error:  # attributes that no import writes
        raise StoreError(f"{path} is damaged: {error or type(error).__name__}; import it again") from error


def _read_dataset(group: zarr.Group, path: Location) -> Dataset:
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
    if info.get("row_labels", "row" in group) and complete_array(group, "row", path).shape != (n,):
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
