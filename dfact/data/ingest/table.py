"""import_table: a table on disk becomes a dataset, read twice and never held in memory."""

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.confounders import Kind, is_categorical, normalize
from dfact.data.dataset import Dataset
from dfact.data.ingest.writer import dataset_writer, missing_code_for, storage_type
from dfact.data.readers.base import Table, open_table
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import (
    EmptyRows,
    check_empty_rows,
    column_limits,
    empty_row,
    invalid_value,
    require_observed_columns,
    stored_limits,
)
from dfact.errors import DataError, ParameterError
from dfact.kernels.entries import all_whole, mask_codes
from dfact.storage.groups import ensure_absent
from dfact.storage.location import parse_location

Codes = float | str | Sequence[float | str]
Range = tuple[float, float]


def import_table(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    items: str | Sequence[str],
    id_column: str | None = None,
    confounders: Sequence[str] | Mapping[str, Kind | None] = (),
    missing: Codes = (),
    confounder_missing: Codes = (),
    shift: bool = True,
    valid_range: Range | Mapping[str, Range] | None = None,
    empty_rows: EmptyRows = "error",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    delimiter: str | None = None,
) -> Dataset:
    """Write the answers of a table as a dataset, a batch of rows at a time.

    The table is read twice: first all of it is checked, then it is written. So an error leaves
    nothing behind, and memory does not grow with the number of rows, but for the ids and the
    confounders; a parquet file with large row groups takes up to 2 MB for each column. Whole numbers
    are stored in the smallest of uint8, int16 and int32 that holds them (float64 if none does),
    anything else in single precision.

    Parameters
    ----------
    source : str or path
        A csv, tsv or txt file (tsv and txt with tabs), each also with .gz, or a parquet file. Text is
        UTF-8 with the column names in its first line.
    path : str or path
        Where the dataset goes (a folder, usually ``*.zarr``, or an address such as ``s3://bucket/a.zarr``).
    items : name or pattern, or several
        The columns with the answers. A pattern such as "Q*" stands for all columns that match it, in
        the file's order, but for the id and the confounders.
    id_column : name
        The column with the participants' labels, every one unique.
    confounders : names, or dict from name to "categorical", "continuous" or None (find out)
        Columns; by default text, and whole numbers with at most ten distinct values, are categories.
    missing : numbers or texts
        Codes for a missing answer. Empty cells and NaN are always missing.
    confounder_missing : numbers or texts
        The same for the confounders.
    shift : bool
        Store the answers from 0 up: the lowest valid value of each column is subtracted and kept as
        the dataset's ``offset``.
    valid_range : pair of numbers, or dict from name or pattern to such a pair
        Lowest and highest valid answer, as in the file; a value outside is an error. By default the
        range of the data, one for all columns.
    empty_rows : {"error", "drop"}
        Refuse a row without any answer, or leave it out; ``Dataset.dropped_rows`` counts them.
    overwrite : bool
        Replace the dataset that is there.
    progress : function
        Called with (rows done, rows in all) while the dataset is written, after the check.
    delimiter : character
        What separates the cells, where the file's ending does not tell.

    Returns
    -------
    Dataset
        Opened from ``path``.

    Raises
    ------
    DataError
        An unknown column, text that is no number, a value outside the valid range or infinite, an empty
        row or column, a row of the wrong length, a missing or repeated id; with the line in the file
        (the header is line 1), or the row of a parquet file, counted from 0.
    ParameterError
        An argument that is not one of those above.
    StoreError
        ``source`` cannot be read; ``path`` exists, or cannot be written. Nothing is left behind.

    Examples
    --------
    >>> import dfact
    >>> from dfact.data.examples import ipip_ascado
    >>> dfact.import_table(
    ...     ipip_ascado(), "ipip.zarr", items=["AS*", "SC*", "AD*", "DO*"], confounders=["age", "gender"], missing=0, empty_rows="drop"
    ... )
    <Dataset 1004×40 uint8, 0.60% missing at ipip.zarr>
    """
    path = parse_location(path)
    check_empty_rows(empty_rows)
    ensure_absent(path, overwrite=overwrite)
    table = open_table(source, delimiter)
    kinds = _kinds(confounders)
    before = file_signature(source)
    request = _request(table, items, id_column, list(kinds), MissingCodes.of(missing), valid_range)
    scan = _scan(table, request, empty_rows)
    frame = _confounder_frame(table, scan.texts, kinds, MissingCodes.of(confounder_missing))
    ids = None if id_column is None else _ids(table, scan.texts[id_column], id_column)
    limits = _completed(request.limits, scan.statistics)
    offset = limits[:, 0] if shift else np.zeros(len(limits))
    low, high = (scan.statistics.minimum - offset).min(), (scan.statistics.maximum - offset).max()
    dtype = storage_type(low, high, whole=scan.whole and np.array_equal(offset, np.floor(offset)))
    code = missing_code_for(dtype)
    labels = np.asarray(request.items, dtype=object)
    n, done = scan.statistics.n_rows, 0
    shape = (n, len(labels))
    with dataset_writer(
        path, shape, dtype, missing_code=code, column_labels=labels, name=table.name, empty=empty_rows, overwrite=overwrite
    ) as writer:
        for values, _ in _answers(table, request, texts=False):
            writer.append(_stored(values, offset, dtype, code))
            done += len(values)
            if progress is not None:
                progress(done, n)
        require_unchanged(source, before)
        valid = stored_limits(limits - offset[:, None], dtype)
        writer.finish(valid_range=valid, offset=offset, confounders=frame, row_labels=ids)
    pa.default_memory_pool().release_unused()  # Arrow keeps what it has freed
    return open_dataset(path)


def file_signature(source: str | PathLike[str]) -> tuple[int, int]:
    """What changes when the file does."""
    status = Path(source).stat()
    return status.st_size, status.st_mtime_ns


def require_unchanged(source: str | PathLike[str], before: tuple[int, int]) -> None:
    """Refuse a file that is no longer what it was at an earlier :func:`file_signature`."""
    if file_signature(source) != before:
        raise DataError(f"{source} changed while it was read; import it again")


@dataclass(frozen=True)
class MissingCodes:
    """The codes for a missing value: 9, 9.0 and "9" are the same one."""

    numbers: NDArray[np.float64]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, codes: Codes) -> "MissingCodes":
        numbers, texts = [], []
        for code in [codes] if isinstance(codes, (str, int, float)) else codes:
            try:
                numbers.append(float(code))
            except ValueError:
                texts.append(str(code))
            except TypeError:
                raise ParameterError(f"{code!r} is no code for a missing value, expected a number or a text") from None
        return cls(np.asarray(numbers, np.float64), tuple(texts))


@dataclass(frozen=True)
class _Selection:
    """What is read of the table, and the limits of the items (m, 2) in the file's units, infinite where none are declared."""

    items: list[str]
    others: list[str]
    missing: MissingCodes
    limits: NDArray[np.float64]


def _request(
    table: Table,
    items: str | Sequence[str],
    id_column: str | None,
    confounders: list[str],
    missing: MissingCodes,
    valid_range: Any,
) -> _Selection:
    others = ([] if id_column is None else [id_column]) + confounders
    check_columns(table, others)
    columns = _matches(table, [items] if isinstance(items, str) else items, others)
    check_columns(table, columns)
    repeated = next((name for name in others if others.count(name) > 1 or name in columns), None)
    if repeated is not None:
        raise ParameterError(f"column {repeated!r} is asked for twice; it is either an item, the id or a confounder")
    return _Selection(columns, others, missing, _declared_limits(table, columns, valid_range))


def check_columns(table: Table, names: Sequence[str]) -> None:
    """Refuse names that no column of the table has, or several have."""
    count = Counter(table.columns)
    for name in names:
        if name not in count:
            raise _unknown(table, name)
        if count[name] > 1:
            raise DataError(f"{table.name} has {count[name]} columns named {name!r}; give each its own name")


def _matches(table: Table, names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The columns that the names and patterns stand for, each once."""
    found: dict[str, None] = {}
    known = set(table.columns)
    free = [column for column in table.columns if column not in taken]
    for name in names:
        matching = [column for column in free if fnmatchcase(column, name)] if _is_pattern(name, known) else [name]
        if not matching or matching[0] not in known:
            raise _unknown(table, name)
        found |= dict.fromkeys(matching)
    if not found:
        raise ParameterError("items names no column; expected names or patterns such as 'Q*'")
    return list(found)


def _is_pattern(name: str, columns: Collection[str]) -> bool:
    return name not in columns and any(character in name for character in "*?[")


def _unknown(table: Table, name: str) -> DataError:
    if len(table.columns) == 1 and any(mark in table.columns[0] for mark in ",;|\t"):
        return DataError(f"{table.name} has no column {name!r}: its whole header is one column, {table.columns[0][:80]!r}; pass delimiter=")
    close = difflib.get_close_matches(name, table.columns)
    shown = ", ".join(close or table.columns[:20]) + (", …" if not close and len(table.columns) > 20 else "")
    what = "no column matches" if _is_pattern(name, table.columns) else "there is no column"
    return DataError(f"{table.name}: {what} {name!r}; {'the closest are' if close else 'its columns are'} {shown}")


def _declared_limits(table: Table, columns: list[str], valid_range: Any) -> NDArray[np.float64]:
    if valid_range is not None and not isinstance(valid_range, Mapping):
        return column_limits(valid_range, len(columns))
    limits = np.tile([-np.inf, np.inf], (len(columns), 1))
    # Names after patterns, so that they win.
    for name, pair in sorted((valid_range or {}).items(), key=lambda entry: entry[0] in columns):
        matching = [j for j, column in enumerate(columns) if column == name or (_is_pattern(name, columns) and fnmatchcase(column, name))]
        if not matching:
            raise DataError(f"{table.name}: valid_range names {name!r}, which is none of the items")
        limits[matching] = column_limits(pair, 1)
    return limits


def _kinds(confounders: Sequence[str] | Mapping[str, Kind | None]) -> dict[str, Kind | None]:
    if not isinstance(confounders, Mapping):
        return dict.fromkeys([confounders] if isinstance(confounders, str) else confounders)
    for name, kind in confounders.items():
        if kind is not None and kind not in get_args(Kind):
            raise ParameterError(f"confounder {name!r} is declared {kind!r}, expected 'categorical', 'continuous' or None")
    return dict(confounders)


def _answers(table: Table, request: _Selection, *, texts: bool) -> Iterator[tuple[NDArray[np.float64], pa.RecordBatch]]:
    """The batches with NaN for every missing answer."""
    for values, others in table.batches(request.items, request.others if texts else [], request.missing.texts):
        mask_codes(values, request.missing.numbers)
        yield values, others


@dataclass(frozen=True)
class _FirstPass:
    """What the first reading found."""

    statistics: ColumnStatistics
    whole: bool  # every answer is a whole number
    texts: pa.Table  # the id and the confounders of every row


def _scan(table: Table, request: _Selection, empty_rows: EmptyRows) -> _FirstPass:
    statistics = ColumnStatistics.of_columns(len(request.items))
    whole, texts = True, []
    for values, others in _answers(table, request, texts=True):
        first = statistics.n_rows
        statistics.update(values)
        _check_values(table, request, values, statistics, first)
        if statistics.n_empty_rows and empty_rows == "error":
            raise empty_row(table.name, table.place(statistics.empty_rows[0]))
        whole = whole and all_whole(values)
        texts.append(others)
    require_observed_columns(table.name, request.items, statistics.observed)
    return _FirstPass(statistics, whole, pa.Table.from_batches(texts))


def _check_values(table: Table, request: _Selection, values: NDArray[np.float64], statistics: ColumnStatistics, first: int) -> None:
    """Refuse infinite values and those outside the declared limits."""
    largest = np.finfo(np.float64).max
    low, high = np.clip(request.limits, -largest, largest).T
    if (statistics.minimum >= low).all() and (statistics.maximum <= high).all():
        return
    i, j = np.argwhere((values < low) | (values > high))[0]
    raise invalid_value(f"{table.name}: {table.place(first + i)}, column {request.items[j]!r}", values[i, j], *request.limits[j])


def _completed(declared: NDArray[np.float64], statistics: ColumnStatistics) -> NDArray[np.float64]:
    """The limits of every column: as declared, the others with one range, that of their answers."""
    limits = declared.copy()
    free = np.isinf(declared[:, 0])
    if free.any():
        limits[free] = statistics.minimum[free].min(), statistics.maximum[free].max()
    return limits


def _stored(values: NDArray[np.float64], offset: NDArray[np.float64], dtype: np.dtype[Any], missing_code: int | None) -> NDArray[Any]:
    values -= offset
    if missing_code is not None:
        values[np.isnan(values)] = missing_code
    return values.astype(dtype)


def _ids(table: Table, column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    ids = column.to_pandas()
    absent = np.flatnonzero(ids.isna() | (ids.str.strip() == ""))
    if absent.size:
        where = f"{table.name}: {table.place(int(absent[0]))}"
        raise DataError(f"{where} has no id in column {name!r}; every row needs one, or leave out id_column")
    repeated = np.flatnonzero(ids.duplicated())
    if repeated.size:
        label = ids.iloc[repeated[0]]
        first, again = (table.place(int(row)) for row in np.flatnonzero(ids == label)[:2])
        raise DataError(f"{table.name}: the id {label!r} in column {name!r} is at {first} and again at {again}; every row needs its own")
    return np.asarray(ids, dtype=object)


def _confounder_frame(table: Table, texts: pa.Table, kinds: Mapping[str, Kind | None], missing: MissingCodes) -> pd.DataFrame | None:
    if not kinds:
        return None
    columns = {name: _confounder(table, texts[name].to_pandas(), name, kind, missing) for name, kind in kinds.items()}
    return normalize(pd.DataFrame(columns), {name: kind for name, kind in kinds.items() if kind is not None})


def _confounder(table: Table, text: "pd.Series[Any]", name: str, kind: Kind | None, missing: MissingCodes) -> "pd.Series[Any]":
    """Numbers where all values are, else the text."""
    text = text.str.strip()
    numbers = pd.to_numeric(text, errors="coerce").astype(np.float64)
    absent = text.isna() | (text == "") | (text.str.lower() == "nan") | text.isin(missing.texts) | numbers.isin(missing.numbers)
    if absent.all():
        raise DataError(f"{table.name}: confounder {name!r} has no value at all; leave it out")
    numbers = numbers.mask(absent)
    odd = np.flatnonzero((numbers.isna() | np.isinf(numbers)) & ~absent)
    if odd.size == 0:
        return numbers
    if kind == "continuous" or (kind is None and not is_categorical(numbers)):
        where = f"{table.name}: {table.place(int(odd[0]))}, confounder {name!r}"
        remedy = f"declare it in confounder_missing=, or the kind with confounders={{{name!r}: 'categorical'}}"
        raise DataError(f"{where} holds {text.iloc[odd[0]]!r}, expected a finite number; {remedy}")
    return text.mask(absent)
