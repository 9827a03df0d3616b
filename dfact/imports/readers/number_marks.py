"""Numbers that are text, and the marks in them: the decimal mark, and the mark between thousands."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dfact.errors import ParameterError

_SPACES = " \u00a0\u202f\u2009"
"""Space, and the spaces that do not break a line."""
_NAMED = {"space": _SPACES, "comma": ",", "point": ".", "apostrophe": "'’"}
_MARKS = {mark: marks for marks in _NAMED.values() for mark in marks}


def is_number(cell: str) -> bool:
    """Check whether Arrow parses the cell as a number; Python also accepts 1_000 and digits of other scripts."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.strip().isascii()


@dataclass(frozen=True)
class NumberMarks:
    """The marks in the numbers of a file; can be pickled."""

    decimal: str = "."
    thousands: str = ""
    """Characters between thousands; "" for none."""

    @classmethod
    def of_options(cls, decimal: str | None, thousands: str | None) -> "NumberMarks":
        """Return the marks that a user names; raise ParameterError for others."""
        decimal = decimal or "."
        if decimal not in (".", ","):
            raise ParameterError(f"decimal is {decimal!r}, expected '.' or ','")
        if thousands is None:
            return cls(decimal)
        marks = _NAMED.get(thousands) or _MARKS.get(thousands)
        if marks is None or decimal in marks:
            expected = "expected another one: ',', '.', 'space' or 'apostrophe'"
            raise ParameterError(f"thousands is {thousands!r} with the decimal mark {decimal!r}, {expected}")
        return cls(decimal, marks)

    @property
    def are_plain(self) -> bool:
        """Whether numbers have a decimal point and no other marks, as programs read them."""
        return self.decimal == "." and not self.thousands

    @cached_property
    def _grouped(self) -> str:
        mark, decimal = f"[{re.escape(self.thousands)}]", re.escape(self.decimal)
        indian = rf"[1-9]\d?(?:{mark}\d{{2}})+{mark}\d{{3}}"
        return rf"^[+-]?(?:[1-9]\d{{0,2}}(?:{mark}\d{{3}})+|{indian})(?:{decimal}\d*)?$"

    def plain(self, cell: str) -> str:
        """Return a cell without spaces around it as a number with a decimal point; a mark in a wrong place makes it no number."""
        if self.thousands and re.match(self._grouped, cell):
            cell = cell.translate(dict.fromkeys(map(ord, self.thousands)))
        return cell if self.decimal == "." else cell.replace(".", "x").replace(self.decimal, ".")

    def plain_cells(self, cells: pa.Array) -> pa.Array:
        """Return cells without spaces around them as :meth:`plain` does."""
        if self.thousands:
            bare: Any = pc.replace_substring_regex(cells, f"[{re.escape(self.thousands)}]", "")
            cells = pc.if_else(pc.match_substring_regex(cells, self._grouped), bare, cells)
        return cells if self.decimal == "." else pc.replace_substring(pc.replace_substring(cells, ".", "x"), self.decimal, ".")

    def remedy(self, cell: str, others: Iterable[str] = ()) -> str | None:
        """Return the options by which a cell is a number, given the ``others`` of its column; None if none do.

        A comma before three digits may be either mark. Other cells tell which one it is: 1,5 has a decimal comma, 1,234,567 and 1,234.5
        have not. Otherwise both readings are named.
        """
        cells = {each.strip() for each in others}
        numbers = {each for each in cells if is_number(each) or any(is_number(marks.plain(each)) for marks in _READINGS.values())}
        fitting = {
            option: marks
            for option, marks in _READINGS.items()
            if (self.are_plain or (self.decimal == marks.decimal and not self.thousands and marks.thousands))
            and is_number(marks.plain(cell.strip()))
            and all(is_number(marks.plain(each)) for each in numbers)
        }
        if {*_COMMA} <= {*fitting}:
            decimal, thousands = (f"{float(fitting[option].plain(cell.strip())):.15g}" for option in _COMMA)
            return f"say {_COMMA[1]} if the comma separates thousands, so that {cell!r} is {thousands}, or {_COMMA[0]} if it is {decimal}"
        return f"say {next(iter(fitting))}" if fitting else None


def looks_like_number(cell: str) -> bool:
    """Check whether a text is a number in another notation, such as 1,5 and 30%: no range such as 18-24, and no date."""
    return bool(_NOTATION.fullmatch(cell.strip())) and not _DATE.fullmatch(cell.strip())


_NOTATION = re.compile(rf"[-+\u2212\u2013'(]?[$€£¥]?[{_SPACES}]*[-+]?\d[\d.,'’{_SPACES}]*[%‰$€£¥]?[-)]?")
_DATE = re.compile(r"\d{1,4}[.]\d{1,2}[.](\d{2}|\d{4})?")
PLAIN = NumberMarks()
"""Numbers with a decimal point and without other marks."""
_READINGS = {
    "--decimal ,": NumberMarks(","),
    "--thousands ,": NumberMarks(".", ","),
    "--decimal , --thousands .": NumberMarks(",", "."),
    "--thousands space": NumberMarks(".", _SPACES),
    "--decimal , --thousands space": NumberMarks(",", _SPACES),
    "--thousands apostrophe": NumberMarks(".", _NAMED["apostrophe"]),
}
_COMMA = ("--decimal ,", "--thousands ,")
