"""Delimited text: csv, tsv and txt files, plain or compressed. Arrow parses the cells; after an error, Python's parser locates the line."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dfact.errors import DataError, ParameterError
from dfact.imports.readers.base import Format, ReadOptions, Table, TablePart, TextInNumbersError, Variable
from dfact.imports.readers.number_marks import NumberMarks, is_number
from dfact.imports.readers.text.text_files import COMPRESSED, Record, TextFile, is_decoded, open_text
from dfact.storage.input_files import InputFile

_BLOCK_BYTES = 1 << 20
_PART_BYTES = 1 << 23
_SAMPLED_ROWS = 100
_SAMPLED_CELLS = 1 << 17
"""Cells of the first rows that are looked at, of which there are fewer in a wide table, and one at least."""
_SHOWN_ROWS = 20
_QUALTRICS_LINES = 3
_RESPONSE = "Response"
"""Cell of the second header line of survey services, below the text of a question with one answer."""


@dataclass(frozen=True)
class _Layout:
    """A text and the columns of its rows."""

    text: TextFile
    marks: NumberMarks
    columns: tuple[str, ...]
    header_records: int
    """Number of records before the first row, empty lines included."""
    header_lines: int
    skipped: tuple[int, int]
    """Numbers of lines and of records above the column names."""
    bytes_: frozenset[str]
    """Columns whose first numbers are whole and fit into one byte."""
    hint: str
    """Remedy for text in the first row."""

    @cached_property
    def index(self) -> dict[str, int]:
        """Numbers of the columns by name; of the first one where several have it."""
        return {name: j for j, name in reversed([*enumerate(self.columns)])}


@dataclass(frozen=True)
class _Rows:
    """Rows of a layout, complete or a part, for the parsers of Arrow and of Python."""

    layout: _Layout
    open: Callable[[], AbstractContextManager[Any]]
    """Opens a stream for Arrow."""
    records: Callable[[], Iterator[Record]]
    """Yields the rows with the numbers of their lines, without empty lines."""
    skipped: tuple[int, int]
    """Numbers of lines of notes in the stream, and of records between them and the first row."""
    encoding: str
    quoted: bool
    """Whether there may be quotation marks."""
    hexadecimal: bool
    """Whether there may be cells such as 0x1F, which Arrow takes for a whole number, but not for a number."""
    first: bool
    """Whether these rows begin with the first row of the file."""

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Numbers are read as whole numbers of one byte where the first rows suggest it, which takes Arrow the least time. What
        that cannot parse is read as floating-point numbers, and then as text with spaces around it.
        """
        names, n_read = [*numbers, *texts], 0
        attempts = [dict.fromkeys(numbers, pa.string())]
        if not self.layout.marks.thousands:
            attempts.insert(0, dict.fromkeys(numbers, pa.float64()))
        if len(attempts) > 1 and not self.hexadecimal and not self.layout.bytes_.isdisjoint(numbers):
            attempts.insert(0, {name: pa.int8() if name in self.layout.bytes_ else pa.float64() for name in numbers})
        for types in attempts:
            last, unread = types is attempts[-1], n_read
            try:
                for complete in self._parse(names, types, missing):
                    batch = complete.slice(min(unread, complete.num_rows)) if unread else complete
                    unread -= complete.num_rows - batch.num_rows
                    if batch.num_rows:
                        columns = batch.columns
                        if last:  # the numbers are texts still
                            columns[: len(numbers)] = [self._to_numbers(column, missing) for column in columns[: len(numbers)]]
                        n_read += batch.num_rows
                        yield pa.record_batch(columns, names)
                return
            except (pa.ArrowException, UnicodeError) as error:
                if last:
                    raise self._locate_error(error, n_read, numbers, texts, missing) from error

    def _parse(self, names: Sequence[str], types: dict[str, Any], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns in this order, by position: their names may not be unique."""
        layout = self.layout
        columns = [str(layout.index[name]) for name in names]
        convert = pa.csv.ConvertOptions(
            include_columns=columns,
            column_types={column: types.get(name, pa.string()) for name, column in zip(names, columns, strict=True)},
            null_values=["", *missing],
            decimal_point=layout.marks.decimal,
        )
        # A block must hold a row; the text of a number rarely exceeds ten times the length of its column name.
        block = max(_BLOCK_BYTES, 16 * sum(len(name) + 1 for name in layout.columns))
        read = pa.csv.ReadOptions(
            use_threads=False,  # parts are read side by side
            block_size=block,
            column_names=[str(j) for j in range(len(layout.columns))],
            skip_rows=self.skipped[0],
            skip_rows_after_names=self.skipped[1],
            encoding=self.encoding,
        )
        quote: Any = '"' if self.quoted else False
        parse = pa.csv.ParseOptions(delimiter=layout.text.delimiter, quote_char=quote, newlines_in_values=self.quoted)
        with self.open() as stream, pa.csv.open_csv(stream, read, parse, convert) as reader:
            yield from reader

    def _to_numbers(self, cells: pa.Array, missing: Sequence[str]) -> pa.Array:
        cells = pc.utf8_trim_whitespace(cells)
        cells = pc.if_else(pc.is_in(cells, pa.array(["", *missing])), None, cells)
        return self.layout.marks.plain_cells(cells).cast(pa.float64())

    def _locate_error(
        self, error: Exception, n_read: int, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]
    ) -> DataError:
        """Find the line and the cell that Arrow could not parse after the first ``n_read`` rows."""
        layout, absent = self.layout, {"", *missing}
        name = layout.text.file.name
        for row, (line, record) in enumerate(self.records()):
            if len(record) != len(layout.columns):
                return DataError(
                    f"{name}: line {line} has {len(record)} cells, expected {len(layout.columns)} as in the header; "
                    "quote cells that hold the separator, such as a decimal comma, or remove separators at the ends of lines"
                )
            if row < n_read:
                continue
            if not all(is_decoded(record[layout.index[column]]) for column in (*numbers, *texts)):
                return layout.text.undecodable()
            for column in numbers:
                cell = record[layout.index[column]]
                if absent.isdisjoint((cell, cell.strip())) and not is_number(layout.marks.plain(cell.strip())):
                    return self._not_a_number(f"{name}: line {line}", column, cell, first=self.first and row == 0)
        return DataError(f"{name} cannot be read: {error}; check for an unclosed quotation mark")

    def _not_a_number(self, position: str, column: str, cell: str, *, first: bool) -> DataError:
        found = f"{position}, column {column!r} holds the text {cell!r}, expected a number"
        others = (record[self.layout.index[column]] for _, record in self.records() if len(record) == len(self.layout.columns))
        if remedy := self.layout.marks.remedy(cell, others):
            return DataError(f"{found}; {remedy}")
        return DataError(f"{found}; {self.layout.hint}") if first and self.layout.hint else TextInNumbersError(position, column, cell)


@dataclass(frozen=True)
class _Part(TablePart):
    """The rows in a range of bytes."""

    layout: _Layout
    start: int
    stop: int
    first: bool

    @property
    def name(self) -> str:  # type: ignore[override]  # a value there
        return self.layout.text.file.name

    @property
    def n_bytes(self) -> int:  # type: ignore[override]  # a value of the class there
        return self.stop - self.start

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        content = self._content()
        hexadecimal = any(mark in content and b"0" + mark in content for mark in (b"x", b"X"))  # one byte is found faster than two
        rows = _Rows(
            self.layout,
            lambda: nullcontext(pa.BufferReader(content)),
            partial(self._records, content),
            (0, 0),
            "utf8",
            b'"' in content,
            hexadecimal,
            self.first,
        )
        # Arrow compares cells with all missing texts; leave out those whose first byte, which is found fast, does not occur.
        occurring = [each for each in missing if each.encode()[:1] in content]
        yield from rows.record_batches(numbers, texts, occurring)

    def position(self, row: int) -> str:
        return f"{self.name}: line {next(islice(self._records(self._content()), row, None))[0]}"

    def _content(self) -> bytes:
        return self.layout.text.read_lines(self.start, self.stop)

    def _records(self, content: bytes) -> Iterator[Record]:
        text = self.layout.text
        lines = io.StringIO(content.decode("utf-8", "surrogateescape"), newline="")
        return _without_empty(text.parse_records(lines, text.count_lines(self.start) + 1))


class DelimitedTable(Table):
    """A table of delimited text, whose parts are ranges of bytes."""

    def __init__(self, layout: _Layout, notes: list[str], wordings: Mapping[str, str], first_rows: list[Record]) -> None:
        self.name, self.columns, self.notes = layout.text.file.name, list(layout.columns), notes
        self.marks, self.first_rows, self._wordings = layout.marks, first_rows, wordings
        self._layout = layout

    @property
    def variables(self) -> Mapping[str, Variable]:
        return {name: Variable(name, wording=wording) for name, wording in self._wordings.items()}

    @cached_property
    def _cuts(self) -> list[int] | None:
        return self._layout.text.cut(self._layout.header_lines, _PART_BYTES)

    def parts(self) -> Sequence[TablePart]:
        if self._cuts is None:
            return [self]
        ranges = zip(self._cuts[:-1], self._cuts[1:], strict=True)
        return [_Part(self._layout, start, stop, first=i == 0) for i, (start, stop) in enumerate(ranges)]

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        layout = self._layout
        if not layout.text.file.is_remote and self._cuts is not None:  # remote files would be read once more for the cuts
            for part in self.parts():
                yield from part.record_batches(numbers, texts, missing)
            return
        # Arrow drops the mark of UTF-8 itself, and reads UTF-8 without a decoder of Python in between.
        encoding = "utf8" if layout.text.is_utf8 else layout.text.encoding
        lines, records = layout.skipped
        skipped = lines, layout.header_records - records
        rows = _Rows(layout, self._open, self._records, skipped, encoding, quoted=True, hexadecimal=True, first=True)
        yield from rows.record_batches(numbers, texts, missing)

    def row_position(self, row: int) -> str:
        line = next(islice(self._line_numbers(), row, None), None)
        return f"row {row} (counted from 0)" if line is None else f"line {line}"

    def _line_numbers(self) -> Iterator[int]:
        if self._cuts is None:
            yield from (line for line, _ in self._records())
            return
        with self._layout.text.open() as stream:  # the lines are the records, which take Python's parser more time
            for number, line in islice(enumerate(stream, start=1), self._layout.header_lines, None):
                if line.rstrip(b"\r\n"):
                    yield number

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with self._layout.text.open() as stream, pa.PythonFile(stream, "r") as source:
            yield source

    def _records(self) -> Iterator[Record]:
        return _without_empty(islice(self._layout.text.records(), self._layout.header_records, None))


def _without_empty(records: Iterator[Record]) -> Iterator[Record]:
    """Leave out empty lines, as Arrow does."""
    return ((line, record) for line, record in records if record)


def _open(file: InputFile, options: ReadOptions) -> DelimitedTable:
    marks, n_headers = NumberMarks.of_options(options.decimal, options.thousands), options.header_rows or 1
    if options.header_rows is not None and options.header_rows < 1:
        raise ParameterError(f"header_rows is {options.header_rows}, expected 1 or more")
    text, notes, n_lines = open_text(file, options)
    n_records, n_above, headers, rows = 0, 0, list[list[str]](), list[Record]()
    for number, (line, record) in enumerate(text.records()):
        if line <= n_lines:
            n_above = number + 1
        elif record and len(headers) < n_headers:
            headers.append(record)
            n_records = number + 1
        elif record:
            rows.append((line, record))
            if options.header_rows is None and _is_imported(record) and n_headers + len(rows) <= _QUALTRICS_LINES:
                n_headers, n_records = n_headers + len(rows), number + 1
                headers, rows = [*headers, *(cells for _, cells in rows)], []
                notes.append(f"{file.name}: line {line} holds the ImportIds of Qualtrics: the header has {n_headers} lines")
            elif len(rows) == _SAMPLED_ROWS or len(rows) * len(record) >= _SAMPLED_CELLS:
                break
    wordings: list[str] = []
    if len(headers) > 1 and _is_imported(headers[-1]):
        wordings, headers, n_headers = headers[1] if len(headers) > 2 else [], headers[:1], 1  # names, wordings, ids
    columns = _column_names(text, headers, n_headers)
    if not rows:
        raise DataError(f"{file} has a header but no rows, expected at least one row")
    hint = _header_hint([record for _, record in rows]) if n_headers == 1 else ""
    line, cells = rows[0]
    if n_headers == 1 and _RESPONSE in cells and not cells[0]:
        hint = "say --header-rows 2"
        notes.append(f"{file.name}: line {line} holds {_RESPONSE!r} below questions, as a second line of column names does; {hint}")
    # Empty lines between header and rows are not records.
    header_lines = next(islice(text.records(), n_records, None))[0] - 1
    layout = _Layout(
        text, marks, tuple(columns), n_records, header_lines, (n_lines, n_above), _bytes(columns, [cells for _, cells in rows]), hint
    )
    return DelimitedTable(layout, notes, dict(zip(columns, wordings, strict=False)), rows[:_SHOWN_ROWS])


def _header_hint(rows: list[list[str]]) -> str:
    """Return the remedy for texts above columns of numbers, which may be further lines of column names; "" without any."""
    n = next((i for i, cells in enumerate(rows) if any(map(is_number, cells))), 0)
    if not 0 < n <= _QUALTRICS_LINES or 2 * sum(map(is_number, rows[n])) < len(rows[n]):
        return ""
    return f"if the texts above the numbers are names of columns, too, say --header-rows {n + 1}"


def _is_imported(record: list[str]) -> bool:
    """Check whether cells are the ids by which Qualtrics imports a table, as its second or third line holds them."""
    return all(cell.startswith('{"ImportId"') for cell in record)


def _column_names(text: TextFile, headers: list[list[str]], n_headers: int) -> list[str]:
    """Return the names of the columns; those of several lines are joined and made unique."""
    if len(headers) < n_headers:
        raise DataError(f"{text.file} is empty, expected a header with column names, then rows")
    if not all(is_decoded(cell) for header in headers for cell in header):
        raise text.undecodable()
    if any("\0" in cell for cell in headers[0]):
        raise DataError(f"{text.file.name}: the column names hold NUL characters, expected text; say --encoding utf-16-le or utf-16-be")
    if n_headers == 1:
        return headers[0]
    for header in headers[1:]:
        if len(header) != len(headers[0]):
            raise DataError(f"{text.file.name}: the header lines have {len(headers[0])} and {len(header)} cells, expected as many in each")
    names, counts = [], dict[str, int]()
    questions = [""] * (n_headers - 1)
    for j, cells in enumerate(zip(*headers, strict=True), start=1):
        # A question stands above the first of its columns.
        above = next((i for i, cell in enumerate(cells[:-1]) if cell), n_headers)
        questions = [cell if i >= above else question for i, (cell, question) in enumerate(zip(cells[:-1], questions, strict=True))]
        last = "" if cells[-1] == _RESPONSE else cells[-1]
        name = ": ".join(filter(None, (*questions, last))) if any(cells) else f"column {j}"
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return names


def _bytes(columns: list[str], rows: list[list[str]]) -> frozenset[str]:
    """Return the columns whose numbers are whole and fit into one byte."""
    others = {
        name
        for record in rows
        for name, cell in zip(columns, record, strict=False)
        if is_number(cell) and not (re.fullmatch(r"-?\d{1,3}", cell.strip()) and -128 <= int(cell) <= 127)
    }
    return frozenset(columns) - others


FORMATS = (
    Format(
        "delimited text",
        tuple(f"{suffix}{packed}" for packed in ("", *COMPRESSED) for suffix in (".csv", ".tsv", ".txt")),
        _open,
        options=("delimiter", "encoding", "decimal", "thousands", "header_rows", "skip_rows"),
    ),
)
