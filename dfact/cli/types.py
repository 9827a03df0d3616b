"""Types of option values."""

from pathlib import Path
from typing import Any

import click

from dfact.cli.declarations import ParameterType
from dfact.errors import ParameterError

path_type = click.Path(path_type=Path)


_MOST_COUNTS = 10_000
_MOST_DIGITS = 18
_LEAST_POD = 1 << 30  # scheduler and driver share a pod


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


class Numbers(ParameterType):
    """Numbers separated by commas; duplicates are dropped."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            return list(dict.fromkeys(float(entry) for entry in value.split(",")))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers, expected such as 0.05,0.1,0.2", param, ctx)


class Counts(ParameterType):
    """Integers and ranges separated by commas: "2-5,8" is 2, 3, 4, 5 and 8; duplicates are dropped."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        counts: list[int] = []
        for entry in value.split(","):
            first, dash, last = (part.strip() for part in entry.partition("-"))
            if not _is_count(first) or (dash and not _is_count(last)):
                self.fail(f"{entry.strip()[:80]!r} is not a number or a range, expected such as 2-10 or 2,3,5", param, ctx)
            numbers = range(int(first), int(last if dash else first) + 1)
            if len(numbers) > _MOST_COUNTS:
                self.fail(f"{entry.strip()!r} are {len(numbers)} numbers, expected at most {_MOST_COUNTS}", param, ctx)
            if not numbers:
                self.fail(f"{entry.strip()!r} is an empty range, expected such as 2-10", param, ctx)
            counts += numbers
        return list(dict.fromkeys(counts))


class MatrixShape(ParameterType):
    """Numbers of rows and columns, such as 1000x300."""

    name = "shape"
    expected = "a shape, expected such as 1000x300"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        rows, _, columns = (part.strip() for part in value.lower().replace("×", "x").partition("x"))
        if not _is_count(rows) or not _is_count(columns):
            self.fail(f"{value[:80]!r} is not {self.expected}", param, ctx)
        return int(rows), int(columns)


class BlockShape(MatrixShape):
    """Numbers of row blocks and column blocks, such as 10x10."""

    name = "rowsxcolumns"
    expected = "a number of row blocks and one of column blocks, expected such as 10x10"


class PodSize(ParameterType):
    """Bytes of memory or disk of a pod, such as 8GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from dfact.data.memory_limit import parse_bytes

        if isinstance(value, int):
            return value
        try:
            size = parse_bytes(value)
        except ParameterError:
            self.fail(f"{value[:80]!r} is not a size, expected such as 8GiB", param, ctx)
        if size < _LEAST_POD:
            self.fail(f"{value!r} is too little for a pod, expected 1GiB or more", param, ctx)
        return size


class NumberOrWord(ParameterType):
    """A number, or a word such as ``adaptive``."""

    name = "number"

    def __init__(self, word: str) -> None:
        self.word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        if value == self.word:
            return self.word
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not valid, expected a number or {self.word!r}", param, ctx)
