"""The contract of a table: columns read as record batches of Arrow, what the file says of them, and positions of rows.

A format is a module of this folder with a tuple ``FORMATS``; ``formats`` chooses one by the suffix. A format of tables
opens a :class:`Table`, a format of arrays a :class:`LabelledArray`, a format of genotypes a ``GenotypeFile``.
"""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import pyarrow as pa

from dfact.data.codebook import Key
from dfact.errors import DataError, ParameterError
from dfact.imports.readers.number_marks import PLAIN, NumberMarks, is_number
from dfact.storage.input_files import InputFile, InputFolder

CellType = Literal["number", "text", "date"]
Content = Literal["table", "array", "genotypes"]


@dataclass(frozen=True)
class MissingCodes:
    """The codes that a file declares as missing: values or texts, and ranges of values, both ends included."""

    values: tuple[float | str, ...] = ()
    ranges: tuple[tuple[float, float], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.ranges)

    def __contains__(self, code: float | str) -> bool:
        return code in self.values or (not isinstance(code, str) and any(low <= code <= high for low, high in self.ranges))


@dataclass(frozen=True)
class Variable:
    """The description of a column by its file, or by the dictionary next to it."""

    name: str
    type: CellType | None = None
    """Type of the cells; None where the file does not say, as in a csv file. Dates are read as text and are not answers."""
    wording: str = ""
    """Text of the question."""
    labels: Mapping[float, str] = field(default_factory=dict)
    """Labels of numeric codes, in the order of the file, also of codes that are declared missing."""
    categories: tuple[str, ...] = ()
    """All texts of a column of text answers, in the order of the file (levels of a factor, values of a dictionary)."""
    text_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of texts, where the cells are codes that are texts, such as N for never."""
    ordered: bool = False
    """Whether the file declares the order of ``categories``."""
    missing: MissingCodes = field(default_factory=MissingCodes)
    doubtful: MissingCodes = field(default_factory=MissingCodes)
    """Codes, and ranges of whole numbers, of which nothing says whether they stand for no answer; those that occur are asked about."""
    is_explained: bool = False
    """Whether the description says of each code what it means, so that its sign and its distance from others say nothing."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Labels of tagged missing values (".a" of Stata and SAS), by tag without its point."""
    limits: tuple[float, float] | None = None
    """Lowest and highest valid value, of a column whose values have no labels."""
    measure: Literal["nominal", "ordinal", "scale"] | None = None
    marks: NumberMarks | None = None
    """Marks in the numbers of this column, where they differ from the file's."""
    texts: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the texts that stand for numbers in this column, such as TRUE for 1."""
    scale: str = ""
    """Scale that the item belongs to."""
    key: Key = 0
    excluded: str = ""
    """Reason why the column holds no answers, as a predicate: "is marked as an identifier"."""


def describe_text(name: str, wording: str, labels: Mapping[str, str], missing: MissingCodes, **stated: Any) -> Variable:
    """Describe a column of texts with labels: they are codes, which may be numbers written as text."""
    if labels and all(map(is_number, labels)):
        numbers = tuple(float(value) for value in missing.values if isinstance(value, str) and is_number(value))
        missing = MissingCodes((*missing.values, *numbers), missing.ranges)
        return Variable(name, "text", wording, {float(text): label for text, label in labels.items()}, missing=missing, **stated)
    texts = tuple(text for text in labels if text not in missing.values)
    return Variable(name, "text", wording, categories=texts, text_labels=labels, missing=missing, **stated)


class TablePart(ABC):
    """Consecutive rows of a table, which one task reads; can be pickled."""

    name: str
    """Name in messages."""
    n_bytes: int = 0
    """Size in the file, for progress; 0 if unknown."""

    @abstractmethod
    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order: the columns ``numbers``, then the columns ``texts``, in the types of the file.

        A file of text has no types: it returns ``numbers`` as numbers. Its empty cells and the texts ``missing``, without the spaces
        around them, are null there; other text raises DataError with its position. Where a format has several kinds of missing
        numbers, the metadata of a field counts them (:func:`with_tags`).
        """

    @abstractmethod
    def position(self, row: int) -> str:
        """Describe the position of a row of this part (counted from 0), with the name of the file."""


class Table(TablePart):
    """A file of rows under named columns."""

    columns: list[str]
    format: str = ""
    """Name of the format, which ``open_table`` sets."""
    marks: NumberMarks = PLAIN
    """Marks in the numbers of a file of text."""
    row_names: str | None = None
    """Column with the names of the rows, which are the ids unless a user names others."""
    first_rows: Sequence[tuple[int, Sequence[str]]] = ()
    """Numbers and cells of the first rows, one of which may be the header, if notes stand above it."""
    notes: Sequence[str] = ()
    """Remarks for the user on how the file is read, a sentence each."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Descriptions of columns by the file; a column may be absent."""
        return {}

    def parts(self) -> Sequence[TablePart]:
        """Return the parts in the order of their rows, for tasks that run side by side; by default the table itself."""
        return [self]

    def position(self, row: int) -> str:
        return f"{self.name}: {self.row_position(row)}"

    def row_position(self, row: int) -> str:
        """Describe the position in the file of a row (counted from 0)."""
        return f"row {row} (counted from 0)"


@dataclass(frozen=True)
class ReadOptions:
    """Statements of a user about a file; None for each that was not made."""

    delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    header_rows: int | None = None
    skip_rows: int | None = None
    """Number of lines or rows above the column names."""
    sheet: str | None = None
    object: str | None = None
    """Name of the array, data frame or group in a file of several."""
    labels: str | None = None
    """Path of the file with the value labels of a SAS file."""


@dataclass(frozen=True)
class Format:
    """A file format: the suffixes that choose it, and the function that opens its files."""

    name: str
    """Name in messages, such as "SPSS"."""
    suffixes: tuple[str, ...]
    """Suffixes in lower case; ".csv.gz" comes before ".gz"."""
    open: Callable[[Any, ReadOptions], Any]
    """Open an :class:`InputFile` (an :class:`InputFolder` where ``folders``) as what the format ``holds``."""
    options: tuple[str, ...] = ()
    """Fields of :class:`ReadOptions` that the format knows; others raise an error."""
    signatures: tuple[tuple[int, bytes], ...] = ()
    """First bytes of a file with their offset; a file must have one of them. Empty for formats without a signature."""
    extra: str | None = None
    """Extra of dfact that installs the libraries of the format."""
    modules: tuple[str, ...] = ()
    """Modules that the extra provides and that the format imports."""
    holds: Content = "table"
    folders: bool = False


Input = InputFile | InputFolder


def require_modules(name: str, modules: Sequence[str], extra: str | None) -> None:
    """Raise ParameterError, with the command that installs them, if modules that read the file ``name`` are not installed."""
    lacking = [module for module in modules if find_spec(module) is None]
    if lacking:
        raise ParameterError(f"{name} needs {', '.join(lacking)}; install it with: pip install 'dfact[{extra}]'")


class TextInNumbersError(DataError):
    """The error for text in a column of numbers."""

    def __init__(self, position: str, column: str, cell: str) -> None:
        absent = f"declare it in missing= (--missing {shlex.quote(cell.strip())})"
        remedy = f"{absent}, or name other columns: items= (--items), or those of triplets"
        if any(map(str.isdigit, cell)) and not any(map(str.isalpha, cell)):  # a number in another notation, such as (3), 30% or −3
            remedy = f"write it as a number such as -1234.5, or {absent} if it stands for a missing answer"
        super().__init__(f"{position}, column {column!r} holds the text {cell!r}, expected a number; {remedy}")
        self.position, self.column, self.cell = position, column, cell

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.position, self.column, self.cell)
