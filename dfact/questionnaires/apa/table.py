"""The contents of a table in APA style, independent of its format, and numbers as the style prints them.

Titles, headings and notes are dfact's own, with italics between asterisks; cells and labels are plain text, which may be of any
origin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

UNDEFINED = "—"
_MINUS = "−"
ANSWERED = {"pairwise": "both items of a pair (pairwise)", "listwise": "all items (listwise)"}
"""Descriptions of the answers behind a correlation."""


@dataclass(frozen=True)
class Cell:
    """A text, bold where it stands out."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Group:
    """Rows under a common heading; "" for none. The first cell of a row is its name."""

    heading: str
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class ApaTable:
    """A table with a title above and a note below."""

    title: str
    headings: Sequence[str]
    groups: Sequence[Group]
    note: str
    spanner: str = ""
    """Heading above ``spanned`` columns from the second on."""
    spanned: int = 0


def number(value: Any, decimals: int = 2, *, bounded: bool = False) -> str:
    """Format a number, with a dash for NaN and without a zero before the point if it is ``bounded`` by 1 (APA 7, section 6.36)."""
    if np.isnan(value):
        return UNDEFINED
    text = f"{abs(value):,.{decimals}f}"
    negative = value < 0 and text.strip("0.,")  # a number that rounds to 0 has no sign
    return f"{_MINUS if negative else ''}{text.removeprefix('0') if bounded and decimals else text}"


def level_of_significance(p: float) -> str:
    """Format a p-value with its relation, such as "= .023"."""
    return "< .001" if p < 0.001 else f"= {number(p, 3, bounded=True)}"


def described(label: Any, text: str) -> Cell:
    """Return the name of a row: the label of an item and its wording."""
    return Cell(f"{label}. {text}" if text else str(label))
