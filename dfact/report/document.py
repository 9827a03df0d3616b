"""The contents of a report, independent of HTML: sections of text, definitions, cards, tables and drawings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADES = 6
_LONG = 24  # characters beyond which a text may take several lines


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class DefinitionList:
    """Names and their definitions."""

    facts: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Card:
    """A component with its items: numbers, names and texts."""

    title: str
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Cards:
    """A card for each component."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn, with its alternative text and its caption."""

    draw: "Callable[[], Figure]"
    alt: str
    caption: str


@dataclass(frozen=True)
class Heading:
    """The heading of a column."""

    text: str
    numeric: bool


@dataclass(frozen=True)
class Cell:
    """A text with its style: n number, p1-p6 and m1-m6 shades of positive and negative numbers, s text, t long text.

    A cell without a style is a small number among shaded ones. Most cells of a large table are, and styling them would enlarge
    the file by a sixth.
    """

    text: str
    style: str = ""


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by any column; the first cell of a row is its name."""

    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    kind: ClassVar[str] = "table"


Block = Text | DefinitionList | Cards | Drawing | Table


@dataclass(frozen=True)
class Section:
    """A section of a report; ``name`` is its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A report on a model of the class ``kind``."""

    kind: str
    title: str
    sections: Sequence[Section]


def make_table(frame: pd.DataFrame, caption: str, *, shaded: Sequence[Any] = (), formats: Mapping[str, str] | None = None) -> Table:
    """Convert a data frame, with its index as names of the rows.

    The ``shaded`` columns share a scale of background shades and a number of decimals. ``formats`` replace the number format
    of other columns, by name. NaN becomes a dash.
    """
    shaded_names = list(shaded)
    numbered = is_numeric_dtype(frame.index)
    labels = [f"{label:g}" if numbered else str(label) for label in frame.index]
    columns: list[list[Cell]] = [[Cell(label, "n" if numbered else _text_style(labels)) for label in labels]]
    headings = [Heading(str(frame.index.name or "name"), numbered)]
    scale = frame[shaded_names].to_numpy(np.float64) if shaded_names else np.empty(0)
    largest = float(np.abs(scale[np.isfinite(scale)]).max(initial=0))
    for position, name in enumerate(frame):
        values = frame.iloc[:, position]
        numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
        headings.append(Heading(str(name), numeric))
        if not numeric:
            texts = [str(value) for value in values]
            columns.append([Cell(text, _text_style(texts)) for text in texts])
            continue
        numbers = values.to_numpy(np.float64)
        style = (formats or {}).get(str(name)) or (number_format(scale) if name in shaded_names else _column_format(values))
        columns.append(
            [Cell(_number(value, style), _shade_class(value, largest) if name in shaded_names else "n") for value in numbers.tolist()]
        )
    return Table(caption, headings, list(zip(*columns, strict=True)))


def with_intervals(table: Table, low: pd.DataFrame, high: pd.DataFrame, style: str) -> Table:
    """Append the ends of an interval to each of the last cells of a row, which are numbers; NaN ends are "not determined"."""
    rows = []
    first = len(table.headings) - low.shape[1]
    for row, *ends in zip(table.rows, low.to_numpy().tolist(), high.to_numpy().tolist(), strict=True):
        intervals = ("not determined" if np.isnan(a) else f"[{_number(a, style)}, {_number(b, style)}]" for a, b in zip(*ends, strict=True))
        cells = (Cell(f"{cell.text} {interval}", cell.style) for cell, interval in zip(row[first:], intervals, strict=True))
        rows.append([*row[:first], *cells])
    return replace(table, rows=rows)


def number_format(values: NDArray[Any]) -> str:
    """Choose the number of decimals by the largest of the numbers."""
    finite = np.abs(values[np.isfinite(values)])
    largest = float(finite.max()) if finite.size else 0.0
    if largest == 0:
        return "{:.2f}"
    if 1e-3 <= largest < 1e6:
        return f"{{:.{0 if largest >= 1e4 else 1 if largest >= 1e3 else 2 if largest >= 0.5 else 3 if largest >= 0.05 else 4}f}}"
    return "{:.3g}"


def _column_format(values: "pd.Series[Any]") -> str:
    numbers = values.dropna().to_numpy(np.float64)
    return "{:.0f}" if len(numbers) and (np.trunc(numbers) == numbers).all() and numbers.any() else number_format(numbers)


def _number(value: float, style: str) -> str:
    """Format a number; drop the sign of one that rounds to 0."""
    if np.isnan(value):
        return "–"
    text = style.format(value)
    return text[1:] if text.startswith("-") and not text.strip("-0.%") else text


def _text_style(texts: Sequence[str]) -> str:
    return "t" if max(map(len, texts), default=0) > _LONG else "s"


def _shade_class(value: float, largest: float) -> str:
    if not np.isfinite(value) or largest == 0:
        return ""
    step = int(np.ceil(abs(value) / largest * (_SHADES + 1))) - 1
    if step < 1:
        return ""
    return f"{'p' if value > 0 else 'm'}{step}"
