"""import_table: write a table on disk as a dataset, reading it once, in parallel, without loading it into memory."""

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.confounders import Kind, is_categorical, normalize
from dfact.data.dataset import Dataset
from dfact.data.ingest.parallel import Request, Spooled, spool, write
from dfact.data.ingest.tasks import open_pool
from dfact.data.ingest.writer import dataset_writer, missing_code_for, storage_type
from dfact.data.readers.base import Batch, Input, ReadOptions, Table
from dfact.data.readers.formats import open_table
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import (
    EmptyRows,
    check_empty_rows,
    column_limits,
    require_observed_columns,
    stored_limits,
)
from dfact.errors import DataError, ParameterError
from dfact.kernels.entries import mask_codes
from dfact.storage.groups import ensure_absent, scratch_store
from dfact.storage.input_files import open_input
from dfact.storage.location import parse_location
from dfact.storage.remote_files import Signature

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distributed import Client

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
    n_jobs: int | None = None,
    executor: "str | Executor | Client | None" = None,
) -> Dataset:
    """Write the answers of a table as a dataset, several parts of the table at a time.

    The table is read once. Its rows wait in compressed form beside ``path`` until the type of the stored values
    is known. An error leaves nothing of them and no partial dataset. Only the ids and the confounders need memory that grows
    with the number of rows; each task needs some 50 MB, and a parquet file with large row groups up to 2 MB for each column.
    The dataset does not depend on the number of tasks or on where they run. Whole numbers
    are stored in the smallest of uint8, int16 and int32 that holds them (float64 if none does),
    all other numbers in single precision.

    Parameters
    ----------
    source : str or path
        A csv, tsv or txt file (tsv and txt with tabs), each also with .gz, or a parquet file. Text is
        UTF-8 with the column names in its first line.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    items : name or pattern, or several
        The columns with the answers. A pattern such as "Q*" selects all matching columns, in
        the file's order, except the id and the confounders.
    id_column : name
        The column with the participants' labels, which must be unique.
    confounders : names, or dict from name to "categorical", "continuous" or None (inferred)
        Columns of confounders. Text, and whole numbers with at most ten distinct values, are categorical by default.
    missing : numbers or texts
        Codes for a missing answer. Empty cells and NaN are always missing.
    confounder_missing : numbers or texts
        Codes for a missing value of a confounder.
    shift : bool
        Store the answers from 0 up: the lowest valid value of each column is subtracted and stored as
        the dataset's ``offset``.
    valid_range : pair of numbers, or dict from name or pattern to such a pair
        Lowest and highest valid answer, in the file's units; a value outside raises an error. By default the
        range of the data, one for all columns.
    empty_rows : {"error", "drop"}
        Treatment of a row without any answer: raise an error, or drop it. ``Dataset.dropped_rows`` counts dropped rows.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (bytes read, total bytes) while the table is read, if its format knows them, then with (rows written,
        total rows).
    delimiter : character
        Separator of the cells, for files whose suffix does not determine it.
    n_jobs : int
        Number of tasks side by side; by default one for each core of this machine, or each worker of the executor.
    executor : None, "inline", "threads", concurrent.futures.Executor or distributed.Client
        Place where the tasks run, by default threads of this process. Processes on other machines must reach ``source`` and
        ``path`` under the same names.

    Returns
    -------
    Dataset
        The new dataset, opened from ``path``.

    Raises
    ------
    DataError
        An unknown column, text in place of a number, a value outside the valid range or infinite, an empty
        row or column, a row of the wrong length, a missing or duplicate id; with the line in the file
        (the header is line 1), or the row of a parquet file, counted from 0.
    ParameterError
        An invalid argument.
    StoreError
        ``source`` cannot be read; ``path`` exists, or cannot be written. No partial dataset is left.

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
    file = open_input(source)
    table = open_table(file, ReadOptions(delimiter=delimiter))
    kinds = _confounder_kinds(confounders)
    before = file.signature()
    selection = _select_columns(table, items, id_column, list(kinds), MissingCodes.of(missing), valid_range)
    coding = _MaskCodes(selection.missing.numbers)
    request = Request(selection.items, selection.text_columns, selection.missing.texts, coding, selection.limits, empty_rows)
    with scratch_store(path) as scratch, open_pool(executor, n_jobs, scratch) as pool:
        rows = spool(table, request, pool, progress)
        require_unchanged(file, before)
        require_observed_columns(table.name, selection.items, rows.statistics.observed)
        frame = _confounder_frame(table, rows.texts, kinds, MissingCodes.of(confounder_missing))
        ids = None if id_column is None else _check_ids(table, rows.texts[id_column], id_column)
        limits = _fill_limits(selection.limits, rows.statistics)
        offset = limits[:, 0] if shift else np.zeros(len(limits))
        dtype = _stored_type(table, rows, offset)
        code = missing_code_for(dtype)
        labels = np.asarray(selection.items, dtype=object)
        shape = (rows.n_kept, len(labels))
        with dataset_writer(
            path, shape, dtype, missing_code=code, column_labels=labels, name=table.name, empty=empty_rows, overwrite=overwrite
        ) as writer:
            write(rows, writer, offset, dtype, pool, progress)
            valid = stored_limits(limits - offset[:, None], dtype)
            writer.finish(valid_range=valid, offset=offset, confounders=frame, row_labels=ids)
    pa.default_memory_pool().release_unused()  # otherwise Arrow's pool retains freed memory
    return open_dataset(path)


def require_unchanged(source: Input, before: Signature | tuple[Signature, ...]) -> None:
    """Raise DataError if the file has changed since it had the signature ``before``."""
    if source.signature() != before:
        raise DataError(f"{source} changed while it was read; import it again")


@dataclass(frozen=True)
class MissingCodes:
    """The codes for a missing value: 9, 9.0 and "9" are the same code."""

    numbers: NDArray[np.float64]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, codes: Codes) -> "MissingCodes":
        """Parse a code or several codes."""
        numbers, texts = [], []
        for code in [codes] if isinstance(codes, (str, int, float)) else codes:
            try:
                numbers.append(float(code))
            except ValueError:
                texts.append(str(code))
            except TypeError:
                raise ParameterError(f"the code for a missing value is {code!r}, expected a number or a text") from None
        return cls(np.asarray(numbers, np.float64), tuple(texts))


@dataclass(frozen=True)
class _Selection:
    """The columns to read from the table, and the limits of the items (m, 2) in the file's units, infinite if not declared."""

    items: list[str]
    text_columns: list[str]  # the id and the confounders
    missing: MissingCodes
    limits: NDArray[np.float64]


def _select_columns(
    table: Table,
    items: str | Sequence[str],
    id_column: str | None,
    confounders: list[str],
    missing: MissingCodes,
    valid_range: Any,
) -> _Selection:
    text_columns = ([] if id_column is None else [id_column]) + confounders
    check_columns(table, text_columns)
    columns = _match_columns(table, [items] if isinstance(items, str) else items, text_columns)
    check_columns(table, columns)
    duplicate = next((name for name in text_columns if text_columns.count(name) > 1 or name in columns), None)
    if duplicate is not None:
        raise ParameterError(f"column {duplicate!r} is named twice, expected once: as an item, the id or a confounder")
    return _Selection(columns, text_columns, missing, _declared_limits(table, columns, valid_range))


def check_columns(table: Table, names: Sequence[str]) -> None:
    """Raise DataError unless each name is that of exactly one column."""
    count = Counter(table.columns)
    for name in names:
        if name not in count:
            raise _unknown_column(table, name)
        if count[name] > 1:
            raise DataError(f"{table.name} has {count[name]} columns named {name!r}, expected one; give each its own name")


def _match_columns(table: Table, names: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return the columns that match the names and patterns, each once."""
    matches: dict[str, None] = {}
    columns = set(table.columns)
    candidates = [column for column in table.columns if column not in excluded]
    for name in names:
        matching = [column for column in candidates if fnmatchcase(column, name)] if _is_pattern(name, columns) else [name]
        if not matching or matching[0] not in columns:
            raise _unknown_column(table, name)
        matches |= dict.fromkeys(matching)
    if not matches:
        raise ParameterError("items is empty, expected names or patterns such as 'Q*'")
    return list(matches)


def _is_pattern(name: str, columns: Collection[str]) -> bool:
    return name not in columns and any(character in name for character in "*?[")


def _unknown_column(table: Table, name: str) -> DataError:
    if len(table.columns) == 1 and any(separator in table.columns[0] for separator in ",;|\t"):
        return DataError(
            f"{table.name} has no column {name!r}: its entire header is one column, {table.columns[0][:80]!r}; pass delimiter="
        )
    close = difflib.get_close_matches(name, table.columns)
    listed = ", ".join(close or table.columns[:20]) + (", …" if not close and len(table.columns) > 20 else "")
    mismatch = "no column matches" if _is_pattern(name, table.columns) else "there is no column"
    return DataError(f"{table.name}: {mismatch} {name!r}; {'the closest are' if close else 'its columns are'} {listed}")


def _declared_limits(table: Table, columns: list[str], valid_range: Any) -> NDArray[np.float64]:
    if valid_range is not None and not isinstance(valid_range, Mapping):
        return column_limits(valid_range, len(columns))
    limits = np.tile([-np.inf, np.inf], (len(columns), 1))
    # Patterns before names, so that names take precedence.
    for name, pair in sorted((valid_range or {}).items(), key=lambda entry: entry[0] in columns):
        matching = [j for j, column in enumerate(columns) if column == name or (_is_pattern(name, columns) and fnmatchcase(column, name))]
        if not matching:
            raise DataError(f"{table.name}: valid_range names {name!r}, expected names or patterns of items")
        limits[matching] = column_limits(pair, 1)
    return limits


def _confounder_kinds(confounders: Sequence[str] | Mapping[str, Kind | None]) -> dict[str, Kind | None]:
    if not isinstance(confounders, Mapping):
        return dict.fromkeys([confounders] if isinstance(confounders, str) else confounders)
    for name, kind in confounders.items():
        if kind is not None and kind not in get_args(Kind):
            raise ParameterError(f"confounder {name!r} is declared {kind!r}, expected 'categorical', 'continuous' or None")
    return dict(confounders)


@dataclass(frozen=True)
class _MaskCodes:
    """The coding that replaces the codes of missing answers by NaN."""

    codes: NDArray[np.float64]

    def __call__(self, batch: Batch) -> NDArray[np.float64]:
        mask_codes(batch.numbers, self.codes)
        return batch.numbers

    def merge(self, following: "_MaskCodes") -> None:
        """Add nothing: this coding counts nothing."""


def _stored_type(table: Table, rows: Spooled, offset: NDArray[np.float64]) -> np.dtype[Any]:
    """Return the smallest type that holds the answers minus the offset."""
    with np.errstate(over="ignore"):
        low, high = (rows.statistics.minimum - offset).min(), (rows.statistics.maximum - offset).max()
    if np.isinf(high):
        found = f"{rows.statistics.minimum.min():g} to {rows.statistics.maximum.max():g}"
        raise DataError(f"{table.name}: the answers range from {found}, expected a difference below 1.8e308; pass shift=False (--no-shift)")
    return storage_type(low, high, integers=rows.integers and np.array_equal(offset, np.floor(offset)))


def _fill_limits(declared: NDArray[np.float64], statistics: ColumnStatistics) -> NDArray[np.float64]:
    """Return the declared limits, and the common range of their answers for all columns without declared limits."""
    limits = declared.copy()
    undeclared = np.isinf(declared[:, 0])
    if undeclared.any():
        limits[undeclared] = statistics.minimum[undeclared].min(), statistics.maximum[undeclared].max()
    return limits


def _check_ids(table: Table, column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    ids = column.to_pandas()
    missing = np.flatnonzero(ids.isna() | (ids.str.strip() == ""))
    if missing.size:
        row = f"{table.name}: {table.row_position(int(missing[0]))}"
        raise DataError(f"{row} has no id in column {name!r}, expected one in every row; add it, or leave out id_column")
    duplicates = np.flatnonzero(ids.duplicated())
    if duplicates.size:
        label = ids.iloc[duplicates[0]]
        first, second = (table.row_position(int(row)) for row in np.flatnonzero(ids == label)[:2])
        raise DataError(
            f"{table.name}: the id {label!r} in column {name!r} is at {first} and {second}, expected unique ids; correct one of them"
        )
    return np.asarray(ids, dtype=object)


def _confounder_frame(table: Table, texts: pa.Table, kinds: Mapping[str, Kind | None], missing: MissingCodes) -> pd.DataFrame | None:
    if not kinds:
        return None
    columns = {name: _confounder(table, texts[name].to_pandas(), name, kind, missing) for name, kind in kinds.items()}
    return normalize(pd.DataFrame(columns), {name: kind for name, kind in kinds.items() if kind is not None})


def _confounder(table: Table, text: "pd.Series[Any]", name: str, kind: Kind | None, missing: MissingCodes) -> "pd.Series[Any]":
    """Return numbers if all values are, otherwise the text."""
    text = text.str.strip()
    numbers = pd.to_numeric(text, errors="coerce").astype(np.float64)
    is_missing = text.isna() | (text == "") | (text.str.lower() == "nan") | text.isin(missing.texts) | numbers.isin(missing.numbers)
    if is_missing.all():
        raise DataError(f"{table.name}: confounder {name!r} has no value, expected at least one; leave it out")
    numbers = numbers.mask(is_missing)
    nonnumeric = np.flatnonzero((numbers.isna() | np.isinf(numbers)) & ~is_missing)
    if nonnumeric.size == 0:
        return numbers
    if kind == "continuous" or (kind is None and not is_categorical(numbers)):
        row = f"{table.name}: {table.row_position(int(nonnumeric[0]))}, confounder {name!r}"
        remedy = f"declare it in confounder_missing=, or the kind with confounders={{{name!r}: 'categorical'}}"
        raise DataError(f"{row} holds {text.iloc[nonnumeric[0]]!r}, expected a finite number; {remedy}")
    return text.mask(is_missing)
