"""Data frames as tables: of pandas, polars, pyarrow, DuckDB, or of anything else with ``__arrow_c_stream__``."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import pyarrow as pa

from dfact.errors import DataError
from dfact.imports.readers.base import Table
from dfact.imports.readers.columnar.columns import MemoryTable, describe_columns, without_views
from dfact.storage.remote_files import Signature


@runtime_checkable
class ArrowStream(Protocol):
    """A data frame, or another source of Arrow record batches."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule of Arrow's stream interface."""
        ...


@dataclass(frozen=True)
class InputFrame:
    """A data frame that is read as a file is."""

    frame: ArrowStream
    name: str = "data frame"

    def signature(self) -> Signature:
        """Return the same signature always: the table holds the columns of the frame."""
        return 0, 0

    def __str__(self) -> str:
        return self.name


def open_frame(source: InputFrame) -> Table:
    """Open a data frame. The index of pandas is a column if it has a name, and holds the ids if it is text.

    Raises DataError for a column of several types, for two columns of one name, and for a frame without rows.
    """
    frame, row_names = _with_row_names(source.frame)
    try:
        if isinstance(frame, pd.DataFrame):
            rows = pa.Table.from_pandas(frame, preserve_index=all(name is not None for name in frame.index.names))
        else:
            rows = pa.table(frame)
        rows = pa.Table.from_batches([without_views(batch) for batch in rows.to_batches()]) if rows.num_rows else rows
    except (pa.ArrowException, TypeError, ValueError) as error:  # pyarrow reports columns of several types by the first two
        raise DataError(f"{source.name} cannot be read: {error}; give each column one type and a name of its own") from error
    described = describe_columns(rows.schema, lambda names: rows.select(names).to_batches())
    if row_names is not None:
        described[row_names] = replace(described[row_names], excluded="holds the names of the rows")
    table = MemoryTable(source.name, list(zip(rows.column_names, rows.columns, strict=True)), described)
    table.row_names = row_names
    return table


def _with_row_names(frame: Any) -> tuple[Any, str | None]:
    """Return a frame of pandas with its index of texts as a column, and its name, if the index has none and no label twice."""
    if not isinstance(frame, pd.DataFrame) or frame.index.nlevels > 1 or frame.index.name is not None or not len(frame.columns):
        return frame, None
    if not pd.api.types.is_string_dtype(frame.index) or frame.index.has_duplicates or frame.index.hasnans or frame.columns.nlevels > 1:
        return frame, None
    name = "index"
    while name in frame.columns:
        name += "_"
    return frame.rename_axis(name), name
