"""Answers as numbers: texts by their levels, codes recoded, missing codes masked and counted, levels checked, items reversed."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.codebook import REVERSED, Codebook, Item, Key, MissingCount
from dfact.data.validation import invalid_value
from dfact.errors import DataError
from dfact.imports.dictionaries.base import UntouchedBoxes
from dfact.imports.readers.base import MissingCodes, TextInNumbersError
from dfact.imports.readers.columnar.columns import Cells
from dfact.imports.readers.number_marks import PLAIN, NumberMarks, is_number
from dfact.kernels.entries import first_invalid, mask_listed

DEFAULT_MISSING = ("NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", ".")
"""Texts that stand for no answer; in columns of numbers, so does "None"."""

_OPPOSITE: dict[Key, Key] = {1: -1, 0: 0, -1: 1}
_LISTED = 20
"""Number of doubtful codes that a question lists."""
UNOPENED = "form not opened"
"""Code under which boxes of forms that were not opened are counted."""


def code_text(code: float | str) -> str:
    """Return a code as people write it: 9 for 9.0."""
    return f"{code:.15g}" if isinstance(code, float) else str(code)


@dataclass(frozen=True)
class ItemCoding:
    """The rules by which the cells of one item become numbers."""

    name: str
    wording: str = ""
    scale: str = ""
    key: Key = 0
    """Direction in which the answers count in the scale before reversal."""
    texts: Mapping[str, float] | None = None
    """Numbers of the texts, for an item whose cells are read as text; None for one that is read as numbers."""
    accepts_numbers: bool = False
    """Whether cells that are read as text may be numbers, too."""
    marks: NumberMarks = PLAIN
    recode: Mapping[float, float] = field(default_factory=dict)
    missing: MissingCodes = field(default_factory=MissingCodes)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of all codes as text, also of missing ones and of tags."""
    levels: tuple[tuple[float, str], ...] = ()
    """Valid codes with their labels, ascending, before reversal."""
    doubtful: MissingCodes = field(default_factory=MissingCodes)
    """Codes, and ranges of whole numbers, that nothing declares missing or valid: their labels sound like no answer, or are not known."""
    limits: tuple[float, float] = (-np.inf, np.inf)
    """Lowest and highest valid value, infinite if not declared."""
    reversed: bool = False
    closed: bool = False
    """Whether values that are none of the levels are errors."""
    answers: tuple[float, ...] = ()
    """Codes that the user calls answers."""
    empty: float | None = None
    """Answer that an empty cell is, such as 0 for a box that is not ticked; None if empty cells are missing."""
    is_explained: bool = False
    """Whether far codes are answers, as the description of the item names those that are none."""

    def number(self, text: str) -> float:
        """Return the number of a cell that is read as text, NaN for missing; raise KeyError for one that has none."""
        trimmed, numbers = text.strip(), self.texts or {}
        if not trimmed:
            return np.nan if self.empty is None else self.empty
        if trimmed in self.missing.values:
            return np.nan
        if text in numbers:
            return numbers[text]
        plain = self.marks.plain(trimmed)
        if self.accepts_numbers and is_number(plain):
            return float(plain)
        raise KeyError(text)

    def is_in_doubt(self, code: str) -> bool:
        """Check whether a code that is counted is in doubt; the others are missing."""
        try:
            number = float(code)
        except ValueError:
            return False
        return number in self.doubtful and number not in self.missing

    def shown(self, code: str) -> tuple[str, str]:
        """Return the cell that has a code, and its label; they are the same for answers in words."""
        label = self.labels.get(code, "")
        cell = next((text for text, number in (self.texts or {}).items() if code_text(number) == code and not self.accepts_numbers), code)
        return cell, label if label != cell else ""

    def shown_level(self, code: float) -> str:
        """Return the label of a level, "" without one."""
        return dict(self.levels).get(code, "")

    def described(self, counts: Mapping[str, int], n_empty: int, source: str) -> Item:
        """Return the item as the dataset keeps it."""
        low, high = self.limits
        levels = ((low + high - code, label) for code, label in self.levels) if self.reversed else self.levels
        empty = (
            []
            if self.empty is None
            else [f"empty cells are {' '.join(filter(None, (code_text(self.empty), self.shown_level(self.empty))))}"]
        )
        changes = [f"{code_text(old)} recoded to {code_text(new)}" for old, new in self.recode.items()]
        missing = (MissingCount(code, self.labels.get(code, ""), count) for code, count in sorted(counts.items()) if count)
        return Item(
            self.name,
            self.wording,
            levels=tuple(sorted(levels)),
            valid_range=self.limits if np.isfinite(self.limits).all() else None,
            missing=tuple(missing),
            n_empty=n_empty,
            changes=(*empty, *changes, *([REVERSED] if self.reversed else [])),
            source=source,
            scale=self.scale,
            key=_OPPOSITE[self.key] if self.reversed else self.key,
        )


class Doubt(NamedTuple):
    """Cells of a column that may or may not stand for no answer."""

    column: str
    cell: str
    label: str
    n: int
    others: str = ""
    """Description of the other cells of the column, with which the phrase ends."""


def doubt_error(name: str, doubts: Sequence[Doubt], what: str, missing: str, not_missing: str) -> DataError:
    """Return the question whether cells stand for no answer, with the options that answer it; ``what`` are the cells."""
    cells = [f"{each.cell} {each.label!r}" if each.label else each.cell for each in doubts]
    cases = [f"{each.column}: {each.n} {what} are {cell}{each.others}" for each, cell in zip(doubts, cells, strict=True)]
    listed = "; ".join(cases[:_LISTED]) + (f"; and {len(cases) - _LISTED} more" if len(cases) > _LISTED else "")
    by_column: dict[str, list[str]] = {}
    for each in doubts[:_LISTED]:
        by_column.setdefault(each.column, []).append(each.cell)
    python = "{" + ", ".join(f"{column!r}: {_python(codes)}" for column, codes in by_column.items()) + "}"
    arguments = [_quoted(f"{column}={','.join(codes)}") for column, codes in by_column.items()]
    options = [" ".join(f"--{name.replace('_', '-')} {argument}" for argument in arguments) for name in (missing, not_missing)]
    remedy = f"say {missing}={python} if they stand for no answer, {not_missing}= if they are answers ({options[0]}, or {options[1]})"
    return DataError(f"{name}: {listed}, which nothing declares as missing; {remedy}")


def _quoted(argument: str) -> str:
    """Return an argument of a command as it is typed."""
    return f'"{argument}"' if set(argument) & set(" '<>&|;()*?[]$!#~`") else argument


def _python(cells: Sequence[str]) -> str:
    """Return codes as they are written in Python."""
    codes = [cell if is_number(cell) else repr(cell) for cell in cells]
    return codes[0] if len(codes) == 1 else f"[{', '.join(codes)}]"


class Problem(NamedTuple):
    """The first cell of some rows that is not a valid answer, or the first row without any answer, whose ``item`` is None."""

    row: int
    item: int | None
    cell: float | str = np.nan


class CodedRows(NamedTuple):
    """Rows as numbers."""

    values: NDArray[np.float64]
    """Answers (n, m), NaN for missing."""
    texts: pa.RecordBatch
    """The columns of ids and confounders."""
    counts: Counter[tuple[int, str]]
    """Numbers of missing and of doubtful answers, by item and code."""
    problem: Problem | None


@dataclass(frozen=True)
class AnswerCoding:
    """The coding of all items, which tasks apply to batches; can be pickled."""

    items: tuple[ItemCoding, ...]
    text_columns: tuple[str, ...] = ()
    """The columns of ids and confounders, which stay text."""
    missing_texts: tuple[str, ...] = ()
    """Texts that are missing in columns of numbers."""
    forms: tuple[UntouchedBoxes, ...] = ()
    """Forms whose boxes are missing in rows in which the form was not opened."""

    @cached_property
    def numbers(self) -> list[str]:
        """Columns to read as numbers."""
        return [item.name for item in self.items if item.texts is None]

    @cached_property
    def texts(self) -> list[str]:
        """Columns to read as text."""
        items = (item.name for item in self.items if item.texts is not None)
        return list(dict.fromkeys([*items, *self.text_columns, *(column for form in self.forms for column in form.columns)]))

    @cached_property
    def _codes(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Missing codes of all items, and the position of the first one of each."""
        return _by_column([[code for code in item.missing.values if not isinstance(code, str)] for item in self.items])

    @cached_property
    def _levels(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Codes of the levels of all closed items, and the position of the first one of each."""
        return _by_column([[code for code, _ in item.levels] if item.closed else [] for item in self.items])

    @cached_property
    def limits(self) -> NDArray[np.float64]:
        """Declared limits (m, 2), infinite where there are none."""
        return np.array([item.limits for item in self.items], np.float64).reshape(-1, 2)

    def __call__(self, batch: Cells) -> CodedRows:
        """Code the rows of a batch, whose numbers may be overwritten."""
        counts: Counter[tuple[int, str]] = Counter()
        problems: list[Problem] = []
        values = self._place(batch, counts, problems)
        for form in self.forms:
            unopened = form.rows(batch.texts)
            for j, item in enumerate(self.items):
                if item.name in form.boxes:
                    counts[j, UNOPENED] += int(np.count_nonzero(unopened & ~np.isnan(values[:, j])))
                    values[unopened, j] = np.nan
        for j, item in enumerate(self.items):
            if item.empty is not None and item.texts is None:
                if tags := batch.tagged.get(item.name):
                    found = f"item {item.name!r} holds missing values of several kinds, .{', .'.join(sorted(tags))}"
                    raise DataError(f"{found}, expected empty cells alone; leave it out of empty_cells= (--empty-cells)")
                values[np.isnan(values[:, j]), j] = item.empty
            if item.recode:
                values[:, j] = _recode(values[:, j], item.recode)
            for tag, count in batch.tagged.get(item.name, {}).items():
                counts[j, f".{tag}"] += count
        self._mask(values, counts)
        answers = self._without_doubtful(values, counts)
        largest = np.finfo(np.float64).max
        low, high = np.clip(self.limits, -largest, largest).T
        invalid = first_invalid(answers, low, high, *self._levels)
        if invalid >= 0:
            i, j = divmod(invalid, values.shape[1])
            problems.append(Problem(i, j, float(values[i, j])))
        for j, item in enumerate(self.items):
            if item.reversed:
                values[:, j] = sum(item.limits) - values[:, j]
        return CodedRows(
            values, batch.texts.select(list(self.text_columns)), counts, min(problems, key=lambda problem: problem.row, default=None)
        )

    def _place(self, batch: Cells, counts: Counter[tuple[int, str]], problems: list[Problem]) -> NDArray[np.float64]:
        """Return the matrix of all items in their order, with texts as numbers."""
        if all(item.texts is None for item in self.items):
            return batch.numbers
        values = np.empty((batch.texts.num_rows, len(self.items)), np.float64)
        values[:, [j for j, item in enumerate(self.items) if item.texts is None]] = batch.numbers
        for j, item in enumerate(self.items):
            if item.texts is not None:
                values[:, j] = self._code_texts(j, item, batch.texts[item.name], counts, problems)
        return values

    def _code_texts(
        self, j: int, item: ItemCoding, column: Any, counts: Counter[tuple[int, str]], problems: list[Problem]
    ) -> NDArray[np.float64]:
        distinct = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        cells = distinct.dictionary.to_pylist()
        index = distinct.indices.to_numpy(zero_copy_only=False)
        index = np.where(np.isnan(index), len(cells), index).astype(np.intp)
        numbers = np.full(len(cells) + 1, np.nan if item.empty is None else item.empty)
        frequency = np.bincount(index, minlength=len(cells) + 1)
        unknown = []
        for k, cell in enumerate(cells):
            try:
                numbers[k] = item.number(cell or "")
            except KeyError:
                unknown.append(k)
            if np.isnan(numbers[k]) and cell is not None and cell.strip() in item.missing.values:
                counts[j, cell.strip()] += int(frequency[k])
        at = np.flatnonzero(np.isin(index, unknown))
        if at.size:
            problems.append(Problem(int(at[0]), j, cells[index[at[0]]]))
        coded: NDArray[np.float64] = numbers[index]
        return coded

    def _mask(self, values: NDArray[np.float64], counts: Counter[tuple[int, str]]) -> None:
        """Set missing codes and ranges to NaN, and count them."""
        starts, codes = self._codes
        if codes.size:
            hits = np.zeros(codes.size, np.int64)
            mask_listed(values, starts, codes, hits)
            for k in np.flatnonzero(hits):
                counts[int(np.searchsorted(starts, k, side="right")) - 1, code_text(float(codes[k]))] += int(hits[k])
        for j, item in enumerate(self.items):
            for low, high in item.missing.ranges:
                column = values[:, j]
                inside = (column >= low) & (column <= high)
                for code, count in zip(*np.unique(column[inside], return_counts=True), strict=True):
                    counts[j, code_text(float(code))] += int(count)
                column[inside] = np.nan

    def _without_doubtful(self, values: NDArray[np.float64], counts: Counter[tuple[int, str]]) -> NDArray[np.float64]:
        """Count the codes in doubt, which are not answers yet, and return the values with NaN for them: the same array without any."""
        answers = values
        for j, item in enumerate(self.items):
            if not item.doubtful:
                continue
            column = values[:, j]
            inside = np.isin(column, item.doubtful.values)
            for low, high in item.doubtful.ranges:
                inside |= (column >= low) & (column <= high) & (column == np.floor(column))
            if inside.any():
                answers = values.copy() if answers is values else answers
                answers[inside, j] = np.nan
                for code, count in zip(*np.unique(column[inside], return_counts=True), strict=True):
                    counts[j, code_text(float(code))] += int(count)
        return answers

    def error(self, problem: Problem, name: str, position: str) -> DataError:
        """Return the error for a cell at a position of the file."""
        item = self.items[problem.item or 0]
        if isinstance(problem.cell, str) and not item.texts:
            return TextInNumbersError(f"{name}: {position}", item.name, problem.cell)
        if isinstance(problem.cell, str):
            known = list(item.texts or ())
            close = difflib.get_close_matches(problem.cell, known, 1)
            expected = f"the closest is {close[0]!r}" if close else f"the levels are {', '.join(map(repr, known[:20]))}"
            found = f"{name}: {position}, column {item.name!r} holds {problem.cell!r}, which is none of the levels; {expected}"
            return DataError(f"{found}. Correct it, or declare it with levels= or missing= (--levels, --missing)")
        codes = [code for code, _ in item.levels]
        low, high = item.limits
        entry = f"{name}: {position}, column {item.name!r}"
        if item.closed and problem.cell not in codes and np.isfinite(problem.cell):
            shown = ", ".join(f"{code_text(number)} {text!r}" for number, text in item.levels[:20])
            remedy = "declare it in missing= (--missing), or pass unlabelled='keep' (--unlabelled keep)"
            return DataError(f"{entry} holds {problem.cell:g}, which has no label, expected one of {shown}; {remedy}")
        return invalid_value(entry, problem.cell, low, high)

    def doubts(self, counts: Mapping[tuple[int, str], int]) -> Counter[tuple[int, str]]:
        """Return the numbers of answers with codes that may or may not stand for no answer, by item and code."""
        return Counter({(j, code): count for (j, code), count in counts.items() if count and self.items[j].is_in_doubt(code)})

    def require_no_doubt(self, name: str, doubts: Mapping[tuple[int, str], int], others: Mapping[int, str] | None = None) -> None:
        """Raise DataError on answers with codes that may or may not stand for no answer; ``others`` says what the other answers are."""
        by_item = sorted(doubts.items(), key=lambda doubt: (doubt[0][0], float(doubt[0][1])))
        others = others or {}
        cases = [Doubt(self.items[j].name, *self.items[j].shown(code), count, others.get(j, "")) for (j, code), count in by_item]
        if cases:
            raise doubt_error(name, cases, "answer(s)", "missing", "not_missing")

    def codebook(self, counts: Mapping[tuple[int, str], int], n_missing: Iterable[int], source: str) -> Codebook:
        """Return the codebook, given the number of missing answers of every item."""
        coded: list[dict[str, int]] = [{} for _ in self.items]
        for (j, code), count in counts.items():
            coded[j][code] = count
        items = []
        for item, by_code, missing in zip(self.items, coded, n_missing, strict=True):
            missed = {code: count for code, count in by_code.items() if not item.is_in_doubt(code)}
            items.append(item.described(missed, int(missing) - sum(missed.values()), source))
        return Codebook(tuple(items))


def _by_column(codes: Sequence[Sequence[float]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    starts = np.concatenate([[0], np.cumsum([len(column) for column in codes])]).astype(np.int64)
    return starts, np.array([code for column in codes for code in column], np.float64)


def _recode(column: NDArray[np.float64], recode: Mapping[float, float]) -> NDArray[np.float64]:
    """Replace codes at once, so that 1 → 2 and 2 → 1 exchange them."""
    out = column.copy()
    for old, new in recode.items():
        out[column == old] = new
    return out
