"""Files of statistical programs, which the library ReadStat reads through pyreadstat: SPSS, Stata and SAS.

The library parses whole files in one call, so a table is read in chunks of rows, each in a call of its own that skips the rows before.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dfact.errors import DataError
from dfact.formats.isolation.parsers import Parser, parse_rows
from dfact.imports.readers.arrays.array_files import require_stored
from dfact.imports.readers.base import MissingCodes, Table, TablePart, Variable, describe_text
from dfact.imports.readers.columnar.columns import with_tags
from dfact.storage.input_files import InputFile

READSTAT = Parser("ReadStat", ("dfact.internals.pyreadstat",))
_BATCH_ENTRIES = 1 << 21
"""Entries in a chunk: the library parses the dictionary of the file again for each."""
_PART_ENTRIES = 1 << 23
"""Entries in a part of a table, some two seconds of work."""
_COLUMNS_OF_UNKNOWN_LENGTH = 50
"""Columns in a call where the file does not declare its number of rows: the library then allocates 100,000 rows of each."""

Labels = Mapping[str, Mapping[float | str, str]]
"""Labels of codes, by column or by format; the letter of a tagged missing value is a code."""


class Dates(NamedTuple):
    """The meaning of the numbers in a column of dates: multiples of ``step`` since ``origin``."""

    origin: str
    """Date in ISO format; empty for a time of day, whose numbers count from midnight."""
    step: str
    """Unit of NumPy's datetime64."""
    precision: str
    """Unit to which the text is written."""
    multiple: int = 1

    def to_text(self, values: NDArray[np.float64]) -> pa.Array:
        """Write dates in ISO format, and times as hours, minutes and seconds; NaN becomes null."""
        steps = values * self.multiple
        valid = np.abs(steps) < 2**53  # false for NaN
        steps = np.floor(np.where(valid, steps, 0)).astype(np.int64)
        if self.step == "W":
            weeks = steps + 52 * int(self.origin)  # a year of Stata has 52 weeks, the last of eight or nine days
            texts = [f"{week // 52:04d}w{week % 52 + 1}" for week in weeks.tolist()]
        elif self.origin:
            dates = np.array(self.origin, f"datetime64[{self.step}]") + steps.astype(f"timedelta64[{self.step}]")
            texts = [text.replace("T", " ") for text in np.datetime_as_string(dates.astype(f"datetime64[{self.precision}]")).tolist()]
        else:
            seconds = steps.astype(f"timedelta64[{self.step}]").astype("timedelta64[s]").astype(np.int64).tolist()
            texts = [f"{'-' * (s < 0)}{abs(s) // 3600:02d}:{abs(s) // 60 % 60:02d}:{abs(s) % 60:02d}" for s in seconds]
        return pa.array(texts, pa.string(), mask=~valid)


@dataclass(frozen=True)
class StatisticalFile:
    """A file that the library reads, with its name of the format; can be pickled."""

    file: InputFile
    parser: str
    format: str
    """Name of the format in messages."""
    encoding: str | None = None
    declares_length: bool = True
    """Whether the file declares its number of rows."""

    def dictionary(self) -> Any:
        """Read what the file says about its columns, without its rows."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metadata = self._parse(self.content, metadataonly=True)[1]
        if caught:
            raise DataError(f"{self.file.name}: {caught[0].message}; give each column its own name")
        return metadata

    def content(self) -> Any:
        """Return what the library opens: a path, or a stream where the file is not on this machine."""
        return self.file.path if isinstance(self.file.location, Path) else self.file.open()

    def read(self, columns: Sequence[str], start: int, n_rows: int) -> pd.DataFrame:
        """Read at most ``n_rows`` rows of these columns."""
        return self.read_columns(self.content, columns, row_offset=start, row_limit=n_rows)

    def read_columns(self, content: Callable[[], Any], columns: Sequence[str], **rows: int) -> pd.DataFrame:
        """Read columns of a content, as many in a call as memory permits."""
        at_once = max(1, len(columns)) if self.declares_length else _COLUMNS_OF_UNKNOWN_LENGTH
        groups = [list(columns[i : i + at_once]) for i in range(0, len(columns), at_once)]
        frames = [self._parse(content, usecols=group, **rows)[0] for group in groups]
        return frames[0] if len(frames) == 1 else pd.concat(frames, axis=1)

    def _parse(self, open_content: Callable[[], Any], **keywords: Any) -> tuple[pd.DataFrame, Any]:
        from dfact.internals.pyreadstat import parser_entry_point

        content = open_content()
        try:
            with self._errors():
                frame, metadata = parser_entry_point(
                    content, self.parser, encoding=self.encoding, user_missing=True, disable_datetime_conversion=True, **keywords
                )
        finally:
            if not isinstance(content, Path):
                content.close()
        return frame, metadata

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise DataError for every exception of the library, which raises many types on damaged files."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            raise self.damaged(str(error) or type(error).__name__) from error

    def damaged(self, found: str) -> DataError:
        """Return the error for content that cannot be read."""
        remedy = "the file is damaged or incomplete: export it again"
        if isinstance(found, str) and ("convert string" in found or "character set" in found or "codec" in found):
            remedy = f"its encoding is not {self.encoding}: pass another" if self.encoding else "pass encoding=, such as windows-1252"
        return DataError(f"{self.file.name} cannot be read in the format {self.format}: {found}; {remedy}")


@dataclass(frozen=True)
class _Rows(TablePart):
    """Consecutive rows of a table; to the end of the file if ``stop`` is None."""

    source: StatisticalFile
    types: Mapping[str, str]
    dates: Mapping[str, Dates]
    start: int
    stop: int | None
    n_bytes: int = 0

    @property
    def name(self) -> str:  # type: ignore[override]  # a value there
        return self.source.file.name

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        size = max(1, _BATCH_ENTRIES // max(1, len({*numbers, *texts})))
        return parse_rows(self.source.file, READSTAT, self._parse, numbers, texts, size)

    def _parse(self, numbers: Sequence[str], texts: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
        """Parse the rows in chunks of a size."""
        columns, start = list(dict.fromkeys([*numbers, *texts])), self.start
        while self.stop is None or start < self.stop:
            n_rows = size if self.stop is None else min(size, self.stop - start)
            frame = self.source.read(columns, start, n_rows)
            n_read = len(frame)
            if self.stop is not None and n_read != n_rows:
                raise self.source.damaged(f"it holds {start + n_read} rows, expected {self.stop}")
            if n_read:
                batch = self._batch(frame, numbers, texts)
                del frame  # before the next chunk is read
                yield batch
                del batch
            if n_read < n_rows:
                return
            start += n_rows

    def _batch(self, frame: pd.DataFrame, numbers: Sequence[str], texts: Sequence[str]) -> pa.RecordBatch:
        values = {name: _split_tags(frame[name]) for name in map(str, frame) if self.types[name] != "string"}
        strings = {name: pa.array(frame[name], pa.string(), from_pandas=True) for name in map(str, frame) if name not in values}
        cells = {name: pa.array(array, from_pandas=True) for name, (array, _) in values.items()}
        cells |= {name: pc.if_else(pc.equal(each, ""), pa.scalar(None, pa.string()), each) for name, each in strings.items()}
        written = cells | {name: self.dates[name].to_text(values[name][0]) for name in texts if name in self.dates}
        fields = [with_tags(pa.field(name, cells[name].type), values[name][1] if name in values else {}) for name in numbers]
        fields += [pa.field(name, written[name].type) for name in texts]
        return pa.record_batch([*(cells[name] for name in numbers), *(written[name] for name in texts)], pa.schema(fields))

    def position(self, row: int) -> str:
        return f"{self.name}: row {self.start + row} (counted from 0)"


class StatisticalTable(Table):
    """A table of SPSS, Stata or SAS. Its parts skip the rows before them, which costs little compared with reading rows."""

    def __init__(
        self,
        source: StatisticalFile,
        dictionary: Any,
        find_dates: Callable[[str], Dates | None],
        *,
        n_rows: int | None,
        n_bytes: int = 0,
        labels: Labels | None = None,
    ) -> None:
        self.name = source.file.name
        self.columns = list(dictionary.column_names)
        if not self.columns or not all(self.columns):
            raise source.damaged("it has columns without names" if self.columns else "it has no columns")
        if n_rows == 0 or (n_rows is None and source.read(self.columns[:1], 0, 1).empty):
            raise DataError(f"{self.name} has columns but no rows, expected at least one row")
        if n_rows is not None:
            require_stored(self.name, (n_rows, len(self.columns)), n_rows * len(self.columns), n_bytes)
        formats = {name: find_dates(text or "") for name, text in dictionary.original_variable_types.items()}
        self._source, self._n_rows, self._n_bytes = source, n_rows, n_bytes
        self._types = dict(dictionary.readstat_variable_types)
        self._dates = {name: dates for name, dates in formats.items() if dates is not None and self._types[name] != "string"}
        labels = labels or dictionary.variable_value_labels
        self._variables = {name: _describe(dictionary, name, labels.get(name, {}), name in self._dates) for name in self.columns}

    @property
    def variables(self) -> Mapping[str, Variable]:
        return self._variables

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self._rows(0, self._n_rows).record_batches(numbers, texts, missing)

    def parts(self) -> Sequence[TablePart]:
        if self._n_rows is None:
            return [self]
        size = max(1, _PART_ENTRIES // len(self.columns))
        return [self._rows(start, min(start + size, self._n_rows)) for start in range(0, self._n_rows, size)]

    def _rows(self, start: int, stop: int | None) -> _Rows:
        n_bytes = 0 if self._n_rows is None or stop is None else self._n_bytes * (stop - start) // self._n_rows
        return _Rows(self._source, self._types, self._dates, start, stop, n_bytes)


def _describe(dictionary: Any, name: str, labels: Mapping[float | str, str], is_date: bool) -> Variable:
    is_text = dictionary.readstat_variable_types[name] == "string"
    measure = dictionary.variable_measure.get(name)
    missing = _missing_codes(dictionary.missing_ranges.get(name, []))
    measured = measure if measure in ("nominal", "ordinal", "scale") else None
    wording = dictionary.column_names_to_labels.get(name) or ""
    keys = {key: label for key, label in labels.items() if isinstance(key, str)}
    if is_text:
        return describe_text(name, wording, {key.strip(): label for key, label in keys.items()}, missing, measure=measured)
    return Variable(
        name,
        type="date" if is_date else "number",
        wording=wording,
        labels={float(key): label for key, label in labels.items() if not isinstance(key, str)},
        missing=missing,
        tags=keys,
        measure=measured,
    )


def _missing_codes(ranges: Sequence[Mapping[str, Any]]) -> MissingCodes:
    pairs = [(each["lo"], each["hi"]) for each in ranges]
    values = tuple(low.rstrip() if isinstance(low, str) else low for low, high in pairs if low == high)
    return MissingCodes(values, tuple((low, high) for low, high in pairs if low != high))


def _split_tags(column: "pd.Series[Any]") -> tuple[NDArray[np.float64], Mapping[str, int]]:
    """Return the numbers, and counts of the tagged missing values, which the library returns as letters among them."""
    if column.dtype.kind in "fi":
        return column.to_numpy(np.float64), {}
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    tags = Counter(tag for tag in column[np.isnan(numbers)] if isinstance(tag, str))
    return numbers, dict(sorted(tags.items()))
