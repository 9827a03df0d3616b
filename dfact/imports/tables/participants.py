"""The columns of a table that describe participants: their ids, which are unique, confounders, and weights."""

import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.confounders import FEW_LEVELS, RANGE_REMEDY, Kind, PlausibleRange, apply_ranges, is_categorical, normalize, warn_implausible
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.weights import check_weights
from dfact.errors import DataError, ParameterError, warn
from dfact.imports.coding.answers import DEFAULT_MISSING, Doubt, code_text, doubt_error
from dfact.imports.coding.doubtful_codes import USUAL, doubtful_labels, far_of_counts
from dfact.imports.coding.no_answer import labels_of_no_answer, words_of_no_answer
from dfact.imports.coding.rules import Codes, ParsedCodes, parse_codes
from dfact.imports.readers.base import Table, Variable
from dfact.imports.readers.number_marks import PLAIN, NumberMarks, is_number
from dfact.imports.tables.items import valid_levels
from dfact.imports.writing.writer import Participants

_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T].*)?")
_WRITTEN = re.compile(r"\w")
_PARSED_ROWS = 1 << 20  # rows whose texts are parsed at once: pandas makes an object of each


def confounder_kinds(confounders: Sequence[str] | Mapping[str, Kind | None]) -> dict[str, Kind | None]:
    """Return the kind of each confounder, None where it is inferred."""
    if not isinstance(confounders, Mapping):
        return dict.fromkeys([confounders] if isinstance(confounders, str) else confounders)
    for name, kind in confounders.items():
        if kind is not None and kind not in get_args(Kind):
            raise ParameterError(f"confounder {name!r} is declared {kind!r}, expected 'categorical', 'continuous' or None")
    return dict(confounders)


def check_ids(table: Table, column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    """Return the ids without spaces around them; raise DataError if one is missing, damaged or not unique."""
    ids = column.to_pandas().str.strip()
    missing = np.flatnonzero(ids.isna() | (ids == ""))
    if missing.size:
        row = f"{table.name}: {table.row_position(int(missing[0]))}"
        raise DataError(f"{row} has no id in column {name!r}, expected one in every row; add it, or leave out id_column")
    damaged = np.flatnonzero(ids.str.contains("\0", regex=False))
    if damaged.size:
        row = f"{table.name}: {table.row_position(int(damaged[0]))}"
        raise DataError(f"{row} has an id with a NUL character in column {name!r}, expected text; export the file again")
    duplicates = np.flatnonzero(ids.duplicated())
    if duplicates.size:
        label = ids.iloc[duplicates[0]]
        first, second = (table.row_position(int(row)) for row in np.flatnonzero(ids == label)[:2])
        raise DataError(
            f"{table.name}: the id {label!r} in column {name!r} is at {first} and {second}, expected unique ids; correct one of them"
        )
    return np.asarray(ids, dtype=object)


def match_names(columns: Sequence[str], names: str | Sequence[str], what: str) -> list[str]:
    """Return the columns with these names or patterns, in the order of the table; raise DataError for one that matches none."""
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not any(fnmatchcase(column, pattern) for column in columns):
            raise DataError(f"no column matches {pattern!r}, expected the names of {what} or a pattern such as 'RW*'")
    return [column for column in columns if any(fnmatchcase(column, pattern) for pattern in patterns)]


@dataclass(frozen=True)
class ParticipantColumns:
    """The columns of a table that describe its participants, and how they are read."""

    id: str | None
    kinds: Mapping[str, Kind | None]
    """Kind of each confounder, None where it is inferred."""
    ranges: Mapping[str, PlausibleRange]
    """Declared ranges of confounders."""
    missing: Codes | Mapping[str, Codes] | None
    """Codes for a missing value of confounders, of all or by name."""
    answers: Mapping[str, Codes]
    """Codes that are values, although their labels, sign or distance suggest that they are missing."""
    default_missing: bool
    """Whether texts such as NA are missing, too."""
    weight: str | None
    replicates: Sequence[str]
    """Columns with replicate weights."""
    method: str | None
    """Method by which the survey made the replicate weights; ``fay`` and ``scales`` belong to it."""
    fay: float | None
    scales: float | Sequence[float] | None
    marks: NumberMarks = PLAIN
    """Marks in the numbers of the file."""

    @property
    def names(self) -> list[str]:
        """All these columns, which are read as text."""
        return [*([] if self.id is None else [self.id]), *self.kinds, *([] if self.weight is None else [self.weight]), *self.replicates]

    def read(self, table: Table, texts: pa.Table, variables: Mapping[str, Variable], dropped: NDArray[np.intp]) -> Participants:
        """Return the facts about all rows, given the texts of these columns and the numbers of the rows that are dropped.

        Raises DataError for an id that is missing or not unique, an invalid value of a confounder, or an invalid weight of a row that
        is not dropped; ParameterError for replicate weights without a weight, or a method without replicate weights.
        """
        frame, ranges = self._confounders(table, texts, variables), dict(self.ranges)
        if frame is not None:
            frame, ranges = apply_ranges(frame, ranges)
            warn_implausible(frame, ranges, RANGE_REMEDY)
        ids = None if self.id is None else check_ids(table, texts[self.id], self.id)
        weights = None if self.weight is None else self._weights(table, texts, self.weight, variables, dropped)
        return Participants(ids, frame, ranges, weights, self._replicate_weights(table, texts, variables, dropped))

    def _variable(self, name: str, variables: Mapping[str, Variable]) -> Variable:
        """Return what is known of a column, with the marks of the file unless the dictionary states others."""
        variable = variables.get(name, Variable(name))
        return variable if variable.marks is not None else replace(variable, marks=self.marks)

    def _confounders(self, table: Table, texts: pa.Table, variables: Mapping[str, Variable]) -> pd.DataFrame | None:
        """Return numbers, or texts with the labels that the file gives to their codes; None without confounders."""
        if not self.kinds:
            return None
        by_name = self.missing if isinstance(self.missing, Mapping) else {"*": () if self.missing is None else self.missing}
        unknown = next((name for name in by_name if name not in (*self.kinds, "*")), None)
        if unknown is not None:
            raise ParameterError(f"confounder_missing names {unknown!r}, expected confounders, {', '.join(map(repr, self.kinds))}")
        columns, doubts = {}, list[Doubt]()
        for name, kind in self.kinds.items():
            numbers, words = map(operator.add, parse_codes(by_name.get("*", ())), parse_codes(by_name.get(name, ())))
            variable = self._variable(name, variables)
            cells = _Cells.read(texts[name].to_pandas(), variable, numbers, (*words, *(DEFAULT_MISSING if self.default_missing else ())))
            doubts += cells.doubts(variable, parse_codes(self.answers.get(name, ())), self.ranges.get(name))
            columns[name] = _confounder(table, cells, variable, kind)
        if doubts:
            raise doubt_error(table.name, doubts, "value(s)", "confounder_missing", "not_missing")
        return normalize(pd.DataFrame(columns), {name: kind for name, kind in self.kinds.items() if kind is not None})

    def _weights(
        self, table: Table, texts: pa.Table, name: str, variables: Mapping[str, Variable], dropped: NDArray[np.intp]
    ) -> "pd.Series[float]":
        """Return the weights of all rows in a column; raise DataError for an invalid one that is not of a dropped row."""
        text, variable = texts[name].to_pandas(), self._variable(name, variables)
        cells = _Cells.read(text, variable, (), DEFAULT_MISSING if self.default_missing else ())
        numbers, is_missing = cells.numbers, cells.is_missing
        doubts = cells.doubts(variable, parse_codes(self.answers.get(name, ())), None)
        if doubts := [each for each in doubts if not each.cell.startswith("-")]:  # the check below refuses negative weights
            found = ", ".join(f"{each.n} value(s) are {each.cell} {each.label}".rstrip() for each in doubts)
            raise DataError(
                f"{table.name}: weight {name!r}: {found}, expected weights; clear these cells, or say not_missing= (--not-missing)"
            )
        kept = np.delete(np.arange(len(text)), dropped)
        words = kept[(numbers.isna() & ~is_missing).to_numpy()[kept]]
        if words.size:
            row = f"{table.name}: {table.row_position(int(words[0]))}, weight {name!r}"
            remedy = _marks_remedy(text.iloc[words[0]], text, variable) or "correct it"
            raise DataError(f"{row} holds {text.iloc[words[0]].strip()!r}, expected a finite number of at least 0; {remedy}")
        weights = numbers.mask(is_missing).rename(name)
        named = weights.iloc[kept].rename(f"{table.name}: the weight {name!r}")
        check_weights(named, lambda i: table.row_position(int(kept[i])))
        return weights

    def _replicate_weights(
        self, table: Table, texts: pa.Table, variables: Mapping[str, Variable], dropped: NDArray[np.intp]
    ) -> ReplicateWeights | None:
        method: dict[str, Any] = {"method": self.method, "fay": self.fay, "scales": self.scales}
        if not self.replicates:
            if any(value is not None for value in method.values()):
                raise ParameterError("a method of replicate weights is given and no column, expected their names (--replicate-weights)")
            return None
        if self.weight is None:
            found = "replicate weights are given and no weight"
            raise ParameterError(f"{found}, expected the column of the main weights, too (--weight)")
        columns = [self._weights(table, texts, name, variables, dropped) for name in self.replicates]
        values = np.column_stack([np.asarray(column, np.float64) for column in columns])
        values[dropped] = 0.0
        return ReplicateWeights.of(values, len(values), names=self.replicates, **method)


@dataclass(frozen=True)
class _Cells:
    """The cells of a column that describes participants."""

    text: "pd.Series[Any]"
    numbers: "pd.Series[float]"
    """NaN for texts."""
    is_missing: "pd.Series[bool]"
    """Whether each cell is missing, by the codes of the file and those of the user."""

    @classmethod
    def read(cls, text: "pd.Series[Any]", variable: Variable, numbers: Sequence[float], words: Sequence[str]) -> "_Cells":
        """Parse texts, of which these numbers and words are missing."""
        return cls(text, *_parse_numbers(text, variable, numbers, words))

    def doubts(self, variable: Variable, answers: ParsedCodes, limits: PlausibleRange | None) -> list[Doubt]:
        """Return the values that may or may not stand for no answer, as those of an item: by label, sign and distance."""
        counts = {float(value): n for value, n in Counter(self.numbers[~self.is_missing].dropna().tolist()).items()}
        words = Counter[str](self.text[~self.is_missing & self.numbers.isna()].str.strip().tolist())
        labels = dict(valid_levels(replace(variable, categories=()))) if variable.labels else {}
        found = set(labels_of_no_answer(labels) if variable.is_explained else doubtful_labels(labels))
        found |= {code for code in counts if code in variable.doubtful and code == np.floor(code)}
        if limits is not None:
            found = {code for code in found if limits.low <= code <= limits.high}
        elif not variable.is_explained:
            found |= far_of_counts(counts) - {*labels}
            if 0 < sum(counts.values()) < words.total() and np.isin([*counts], USUAL).all():  # numbers among words
                found |= {*counts}
        doubts = [Doubt(variable.name, code_text(code), labels.get(code, ""), counts[code]) for code in sorted(found) if code in counts]
        labels_of_words = {word: variable.text_labels.get(word, word) for word in words}
        in_doubt = words_of_no_answer(labels_of_words)
        if not variable.is_explained and (counts or any(map(_WRITTEN.search, words))):  # + and - alone are answers
            in_doubt |= {word for word in words if not _WRITTEN.search(word)}
        doubts += [
            Doubt(variable.name, word, label if (label := labels_of_words[word]) != word else "", words[word]) for word in sorted(in_doubt)
        ]
        known = {*answers.texts, *map(code_text, answers.numbers)}
        return [doubt for doubt in doubts if doubt.cell not in known]


def _parse_numbers(
    text: "pd.Series[Any]", variable: Variable, missing_numbers: Sequence[float], missing_texts: Sequence[str]
) -> tuple["pd.Series[float]", "pd.Series[bool]"]:
    """Return the cells as numbers, NaN for texts, and whether each is missing, by the codes of the file and those given."""
    declared = variable.missing
    words, codes = {*missing_texts, *map(str, declared.values)}, [*missing_numbers, *(c for c in declared.values if not isinstance(c, str))]
    numbers, is_missing = np.empty(len(text)), np.empty(len(text), np.bool_)
    for start in range(0, len(text), _PARSED_ROWS):
        part = slice(start, start + _PARSED_ROWS)
        cells = text.iloc[part].str.strip()
        plain = cells
        if variable.marks is not None and not variable.marks.are_plain:
            plain = cells.map(variable.marks.plain, na_action="ignore")
        values = pd.to_numeric(plain, errors="coerce").astype(np.float64)
        missing = cells.isna() | (cells == "") | (cells.str.lower() == "nan") | cells.isin(words) | values.isin(codes)
        for low, high in declared.ranges:
            missing |= (values >= low) & (values <= high)
        numbers[part], is_missing[part] = values, missing
    return pd.Series(numbers, text.index), pd.Series(is_missing, text.index)


def _confounder(table: Table, cells: _Cells, variable: Variable, kind: Kind | None) -> "pd.Series[Any]":
    """Return numbers if all values are, otherwise the text."""
    name, text, numbers, is_missing = variable.name, cells.text, cells.numbers, cells.is_missing
    if is_missing.all():
        raise DataError(f"{table.name}: confounder {name!r} has no value, expected at least one; leave it out")
    numbers = numbers.mask(is_missing)
    labels = dict(valid_levels(variable)) if variable.labels else {}
    if len(labels) >= 2 and kind != "continuous" and numbers.dropna().isin(list(labels)).all():
        return numbers.map(labels).astype(object).where(~is_missing, None)
    nonnumeric = np.flatnonzero((numbers.isna() | np.isinf(numbers)) & ~is_missing)
    if nonnumeric.size == 0:
        return numbers
    words = text.str.strip().mask(is_missing)
    n_levels, n_values = words.nunique(), int((~is_missing).sum())
    years = None if kind == "categorical" else _years(words)
    if years is not None and kind == "continuous":
        return years
    if years is not None and n_levels > FEW_LEVELS:
        found = f"{table.name}: confounder {name!r} holds {n_levels} dates, such as {words.dropna().iloc[0]!r}, expected numbers or levels"
        option = f"confounders={{{name!r}: 'continuous'}} (--confounder {name}:continuous)"
        remedy = f"pass the age in place of it, or take the dates as years: {option}"
        raise DataError(f"{found}; {remedy}")
    if kind == "continuous" or (kind is None and not is_categorical(numbers)):
        row = f"{table.name}: {table.row_position(int(nonnumeric[0]))}, confounder {name!r}"
        remedy = f"declare it in confounder_missing=, or the kind with confounders={{{name!r}: 'categorical'}}"
        remedy = _marks_remedy(text.iloc[nonnumeric[0]], text, variable) or remedy
        raise DataError(f"{row} holds {text.iloc[nonnumeric[0]].strip()!r}, expected a finite number; {remedy}")
    if n_levels > FEW_LEVELS and n_values < 2 * n_levels:
        example = words.dropna().iloc[0]
        found = f"{table.name}: confounder {name!r} has {n_levels} levels in {n_values} participants, such as {example!r}"
        remedy = "pass groups or numbers in place of it, or leave it out; dates are written as 1980-12-31"
        remedy = _marks_remedy(example, words, variable) or remedy
        raise DataError(f"{found}, expected levels that many participants share; {remedy}")
    if kind is None:
        _warn_of_marks(f"{table.name}: confounder {name!r}", words.dropna(), variable)
    return words.map(lambda word: variable.text_labels.get(word, word), na_action="ignore")


def _years(words: "pd.Series[Any]") -> "pd.Series[float] | None":
    """Return dates such as 1980-12-31, with or without a time, as years (NaN for missing), and None for other texts."""
    texts = words.dropna()
    if not texts.map(lambda text: bool(_DATE.fullmatch(text))).all():
        return None
    try:
        days = texts.map(lambda text: np.datetime64(text[:10], "D"))
    except ValueError:  # such as the 30th of February
        return None
    dates = np.array(days.to_list(), "datetime64[D]")
    first, following = dates.astype("datetime64[Y]"), dates.astype("datetime64[Y]") + 1
    share = (dates - first.astype("datetime64[D]")) / (following.astype("datetime64[D]") - first.astype("datetime64[D]"))
    return pd.Series(first.astype(np.int64) + 1970 + share, texts.index).reindex(words.index)


def _marks_remedy(cell: str, cells: "pd.Series[Any]", variable: Variable) -> str | None:
    """Return the remedy for a cell of a column such as 1,5 in a file whose decimal mark is a point; None for other cells."""
    return (variable.marks or PLAIN).remedy(cell, cells.dropna().unique())


def _warn_of_marks(what: str, words: "pd.Series[Any]", variable: Variable) -> None:
    """Warn of a confounder whose texts are all numbers with marks, so that each of them becomes a level."""
    marked = next((word for word in words if not is_number(word)), None)
    remedy = None if marked is None else _marks_remedy(marked, words, variable)
    if remedy is None or not all(any(character.isdigit() for character in word) and not any(map(str.isalpha, word)) for word in words):
        return
    found = f"{what} holds {marked!r} and becomes categorical with {words.nunique()} levels"
    warn(f"{found}, expected numbers; {remedy}, or declare the kind: categorical")
