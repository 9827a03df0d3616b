"""The rules of the answers: what the file says of its items, and what the user says about them."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from dfact.data.validation import column_limits
from dfact.errors import DataError, ParameterError, warn
from dfact.imports.coding.answers import DEFAULT_MISSING, AnswerCoding, ItemCoding, code_text
from dfact.imports.coding.doubtful_codes import doubtful_labels
from dfact.imports.coding.no_answer import is_denial, labels_of_no_answer, words_of_no_answer
from dfact.imports.readers.base import MissingCodes, Table, Variable
from dfact.imports.readers.columnar.columns import read_texts
from dfact.imports.readers.number_marks import PLAIN, NumberMarks, is_number, looks_like_number
from dfact.imports.tables.items import is_pattern, valid_levels

T = TypeVar("T")
_LISTED = 20
"""Number of texts that a message lists."""

Codes = float | str | Sequence[float | str]
Levels = str | Sequence[str] | Mapping[str, float]
"""The order of text answers: "a<b<c", the texts in their order, or the number of each text."""
Range = tuple[float, float]
Unlabelled = Literal["error", "keep"]


@dataclass(frozen=True)
class Statements:
    """The statements of a user about answers; each mapping is from the name or pattern of items."""

    levels: Levels | Mapping[str, Levels] | None = None
    recode: Mapping[str, Mapping[float, float]] | None = None
    missing: Codes | Mapping[str, Codes] = ()
    not_missing: Mapping[str, Codes] | None = None
    """Codes that are answers, although the file or their labels suggest that they are missing."""
    default_missing: bool = True
    reverse: str | Sequence[str] = ()
    valid_range: Range | Mapping[str, Range] | Any = None
    unlabelled: Unlabelled = "error"
    empty_cells: float | str | Mapping[str, float | str] | None = None
    """Answer of empty cells, a number or a text."""
    marks: NumberMarks = PLAIN
    """Marks in the numbers of the file."""


class ParsedCodes(NamedTuple):
    """Codes that are numbers, and codes that are texts."""

    numbers: tuple[float, ...]
    texts: tuple[str, ...]


def parse_codes(codes: Codes) -> ParsedCodes:
    """Return the codes that are numbers, and the texts: 9, 9.0 and "9" are the same code."""
    numbers: list[float] = []
    texts: list[str] = []
    for code in [codes] if isinstance(codes, (str, int, float)) else codes:
        try:
            numbers.append(float(code))
        except ValueError:
            if any("\ud800" <= character <= "\udfff" for character in str(code)):
                raise ParameterError(f"the code {str(code)!r} is not valid text, expected UTF-8") from None
            texts.append(str(code))
        except TypeError:
            raise ParameterError(f"the code for a missing value is {code!r}, expected a number or a text") from None
    return ParsedCodes(tuple(numbers), tuple(texts))


def plan_coding(table: Table, variables: Mapping[str, Variable], names: Sequence[str], user_rules: Statements) -> AnswerCoding:
    """Return the coding of the items ``names`` of a table, from its description of them and from the user's statements.

    Raises
    ------
    DataError
        A statement names no item; text answers have no known order; the range of an item to reverse is not known.
    """
    if user_rules.unlabelled not in ("error", "keep"):
        raise ParameterError(f"unlabelled is {user_rules.unlabelled!r}, expected 'error' or 'keep'")
    everywhere, by_item = ((), user_rules.missing) if isinstance(user_rules.missing, Mapping) else (user_rules.missing, {})
    numbers, texts = parse_codes(everywhere)
    levels = _levels_by_item(table, names, user_rules.levels)
    missing = {name: parse_codes(codes) for name, codes in _codes_by_item(table, names, by_item, "missing").items()}
    no_codes = ParsedCodes((), ())
    common = (*texts, *set.intersection(*(set(missing.get(name, no_codes).texts) for name in names)))
    answers = _codes_by_item(table, names, user_rules.not_missing or {}, "not_missing")
    recode = _by_item(table, names, user_rules.recode or {}, "recode")
    ranges = _declared_ranges(table, names, user_rules.valid_range)
    empty = user_rules.empty_cells
    empties = {} if empty is None else _by_item(table, names, empty if isinstance(empty, Mapping) else {"*": empty}, "empty_cells")
    turned = set(_reversed_items(table, names, user_rules.reverse))
    items = []
    without = {name: {*texts, *missing.get(name, no_codes).texts} for name in names}
    variables = {name: _without_texts(variables[name], without[name]) for name in names if name in variables}
    _require_orders(table, [variable for name, variable in variables.items() if name not in levels])
    for name in names:
        variable = variables.get(name, Variable(name))
        own = missing.get(name, no_codes)
        declared = MissingCodes((*variable.missing.values, *numbers, *texts, *own.numbers, *own.texts), variable.missing.ranges)
        own_answers = parse_codes(answers.get(name, ()))
        words = {*own.texts, *(code for code in variable.missing.values if isinstance(code, str))}
        variable = replace(variable, missing=_without(declared, own_answers))
        item = _item(table.name, variable, levels.get(name), user_rules, own_answers, in_text=not words <= {*common})
        item = _with_empty(table.name, variable, item, empties.get(name))
        item = replace(
            item,
            scale=variable.scale,
            key=variable.key,
            recode=dict(recode.get(name, {})),
            limits=ranges.get(name, item.limits),
        )
        if name in turned and not np.isfinite(item.limits).all():
            raise DataError(
                f"{table.name}: the range of {name!r} is not known, expected one for an item to reverse; "
                f"say valid_range={{{name!r}: (low, high)}} (--valid-range)"
            )
        items.append(replace(item, reversed=name in turned))
    _warn_of_alphabetical_labels(table, items)
    default = ("", *DEFAULT_MISSING, "None") if user_rules.default_missing else ("",)
    return AnswerCoding(tuple(items), missing_texts=(*default, *sorted(set(common))))


def _item(
    table: str, variable: Variable, levels: Mapping[str, float] | None, user_rules: Statements, answers: ParsedCodes, *, in_text: bool
) -> ItemCoding:
    """Return the coding of an item by its description and, for text answers, the levels that the user gave.

    Labelled codes in doubt are neither levels nor ends of the range until the user says that they are ``answers``. ``in_text`` has
    numbers read as text, as some texts are missing in this item alone.
    """
    defaults = DEFAULT_MISSING if user_rules.default_missing else ()
    has_numbers = all(map(is_number, variable.categories))  # or no categories
    if (levels is not None and variable.type != "number") or not has_numbers:
        return _words(table, variable, levels, MissingCodes((*variable.missing.values, *defaults)), answers)
    in_text = in_text or bool(variable.texts) or variable.marks is not None or variable.type == "text" or bool(variable.categories)
    labelled = dict(valid_levels(replace(variable, categories=())))
    doubtful = tuple(labels_of_no_answer(labelled)) if variable.is_explained else doubtful_labels(labelled)
    unsettled = _without(MissingCodes((*doubtful, *variable.doubtful.values), variable.doubtful.ranges), answers)
    sure = tuple((code, label) for code, label in labelled.items() if code not in unsettled.values)
    declared = sure if len(sure) >= 2 else ()
    closed = bool(declared) and user_rules.unlabelled == "error"
    labels = {code_text(code): label for code, label in variable.labels.items()}
    labels |= {f".{tag}": label for tag, label in variable.tags.items()}
    return ItemCoding(
        variable.name,
        variable.wording,
        texts=dict(variable.texts) if in_text else None,
        accepts_numbers=in_text,
        marks=variable.marks or user_rules.marks,
        missing=replace(variable.missing, values=(*variable.missing.values, *defaults, "None")) if in_text else variable.missing,
        labels=labels,
        levels=declared,
        doubtful=unsettled,
        limits=(declared[0][0], declared[-1][0]) if closed else variable.limits or (-np.inf, np.inf),
        closed=closed,
        is_explained=variable.is_explained,
        answers=answers.numbers,
    )


def _with_empty(table: str, variable: Variable, item: ItemCoding, empty: float | str | None) -> ItemCoding:
    """Return the item with the answer of its empty cells, a number, or a text that is one of its levels; unchanged for None."""
    if empty is None:
        return item
    text = code_text(empty).strip()
    words = {} if item.accepts_numbers else item.texts or {}
    number = words.get(text, float(text) if is_number(text) else None)
    labelled = {label.casefold(): code for code, label in item.levels}
    number = labelled.get(text.casefold()) if number is None else number
    if number is None or (item.closed and number not in dict(item.levels)):
        expected = f"one of its levels, {', '.join(label for _, label in item.levels)}" if item.levels else "a number"
        raise DataError(f"{table}: empty_cells is {empty!r} for {item.name!r}, expected {expected}; correct it (--empty-cells)")
    if item.texts is None and variable.type != "number":  # a cell NA of a text file is missing, and not empty
        return replace(
            item,
            texts={},
            accepts_numbers=True,
            missing=replace(item.missing, values=(*item.missing.values, *DEFAULT_MISSING, "None")),
            empty=number,
        )
    return replace(item, empty=number)


def _words(table: str, variable: Variable, levels: Mapping[str, float] | None, missing: MissingCodes, answers: ParsedCodes) -> ItemCoding:
    """Return the coding of an item with answers in words, whose levels the user gave or the file declares; words in doubt come last."""
    labels = {text: variable.text_labels.get(text, text) for text in levels or (text for _, text in valid_levels(variable))}
    doubtful = labels_of_no_answer(labels) - {*answers.texts} if levels is None else set[str]()
    if levels is None:
        texts = sorted((text for text in labels if text not in missing.values), key=lambda text: text in doubtful)
        levels = {text: float(number) for number, text in enumerate(texts, start=1)}
    own = {text: code for text, code in levels.items() if text not in missing.values}
    declared = tuple(sorted((code, labels[text]) for text, code in own.items() if text not in doubtful))
    if not declared:
        raise DataError(f"{table}: all levels of {variable.name!r} are declared missing, expected at least one; correct missing=")
    return ItemCoding(
        variable.name,
        variable.wording,
        texts=own,
        missing=missing,
        labels={**variable.text_labels, **{code_text(code): labels[text] for text, code in own.items()}},
        levels=declared,
        doubtful=MissingCodes(tuple(own[text] for text in doubtful if text in own)),
        limits=(declared[0][0], declared[-1][0]),
    )


def _without_texts(variable: Variable, missing: Collection[str]) -> Variable:
    """Return a variable whose codes are numbers, with their labels, if its other texts are missing."""
    rest = tuple(text for text in variable.categories if text not in missing)
    if rest == variable.categories or not rest or not all(map(is_number, rest)):
        return variable
    return replace(variable, categories=(), labels={float(text): label for text, label in variable.text_labels.items() if text in rest})


def _require_orders(table: Table, variables: Iterable[Variable]) -> None:
    """Raise DataError if an item has texts whose order its file does not declare, or if items declare other orders of the same texts.

    An order that is not declared may be that in which a program met the texts.
    """
    described = [variable for variable in variables if not all(map(is_number, variable.categories))]
    unordered = [variable for variable in described if not variable.ordered]
    if unordered:
        alike = [each.name for each in unordered if {*each.categories} == {*unordered[0].categories}]
        raise unordered_texts(table, unordered[0].name, alike, unordered[0].text_labels)
    names: dict[tuple[str, ...], list[str]] = {}
    for variable in described:
        names.setdefault(tuple(text for _, text in valid_levels(variable)), []).append(variable.name)
    for first, second in combinations(names, 2):
        orders = [[text for text in one if text in other] for one, other in ((first, second), (second, first))]
        if orders[0] != orders[1]:
            found = " and ".join(f"{'<'.join(order)} in {names[texts][0]!r}" for order, texts in zip(orders, (first, second), strict=True))
            lines = {texts: f'--levels "{",".join(names[texts])}: {"<".join(texts)}"' for texts in (first, second)}
            if {*first} == {*second}:
                lines = {first: f'--levels "{",".join([*names[first], *names[second]])}: {"<".join(first)}"'}
            remedy = f"give them from the lowest to the highest in levels=, or say {' '.join(lines.values())} in their order"
            raise DataError(f"{table.name}: the file declares other orders of the same texts: {found}; {remedy}")


def unordered_texts(table: Table, name: str, alike: Sequence[str] = (), labels: Mapping[str, str] | None = None) -> DataError:
    """Return the error for text answers without a known order, with their counts, and a remedy for all items that are ``alike``.

    Texts that say that there is no answer, by the ``labels`` of the file or as they are, have no place in the order.
    """
    counts = count_texts(table, [name])[name]
    shown = ", ".join(f"{text!r} ({count})" for text, count in sorted(counts.items())[:_LISTED])
    more = f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else ""
    names = ",".join(alike or [name])
    marked = [text for text in counts if not is_number(text.strip())]
    if marked and all(map(looks_like_number, marked)):
        remedy = "write them as numbers such as -1234.5; in a text file, --decimal and --thousands name marks in numbers"
        return DataError(f"{table.name}: column {name!r} holds numbers in another notation: {shown}{more}; {remedy}")
    found = f"{table.name}: column {name!r} holds texts, whose order is not known: {shown}{more}"
    if len(counts) == 1 and not is_number(text := next(iter(counts))):  # a box that is ticked or not
        empty = "No" if text != "No" else "Yes"
        line = f'--empty-cells "{names}={empty}" --levels "{names}: {empty}<{text}"'
        return DataError(
            f"{found}; if an empty cell is an answer, as for boxes that are ticked or not, say {line}, or leave the column out"
        )
    absent = sorted(words_of_no_answer({text: (labels or {}).get(text, text) for text in counts}))
    declared = " ".join(f"--missing {shlex.quote(text)}" for text in absent)
    answers = sorted((text for text in counts if text not in absent), key=lambda text: (not is_denial(text), *_natural(text)))
    if all(map(is_number, answers)):
        return DataError(f"{found}; if {', '.join(map(repr, absent))} stands for a missing answer, say {declared}")
    line = f'--levels "{names}: {"<".join(answers[:_LISTED])}" in their order'
    if any("<" in text for text in answers):
        line = "--levels FILE.csv with a table that has the columns text and code"
    order = f"give them from the lowest to the highest in levels=, or say {line}"
    return DataError(f"{found}; {order}{f', with {declared} if that stands for no answer' if absent else ''}")


def _natural(text: str) -> tuple[bool, float, str]:
    """Return a key that sorts texts by the number that they begin with, such as 5-17 before 18-24, and others by the alphabet."""
    number = re.match(r"\d+([.]\d+)?", text)
    return number is None, float(number[0]) if number else 0.0, text


def count_texts(table: Table, names: Sequence[str]) -> dict[str, Counter[str]]:
    """Count the distinct texts of columns, without those that stand for no answer."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for texts in read_texts(table, names):
        for name, found in counts.items():
            for entry in texts[name].value_counts().to_pylist():
                if entry["values"] is not None and entry["values"].strip() not in ("", *DEFAULT_MISSING):
                    found[entry["values"]] += entry["counts"]
    return counts


def _without(codes: MissingCodes, answers: ParsedCodes) -> MissingCodes:
    """Return the codes without those that are answers."""
    values = tuple(code for code in codes.values if code not in answers.numbers and code not in answers.texts)
    ranges = list(codes.ranges)
    for code in answers.numbers:
        ranges = [part for low, high in ranges for part in _cut(low, high, code)]
    return MissingCodes(values, tuple(ranges))


def _cut(low: float, high: float, code: float) -> list[tuple[float, float]]:
    """Cut a code out of a range."""
    if not low <= code <= high:
        return [(low, high)]
    parts = [(low, float(np.nextafter(code, -np.inf))), (float(np.nextafter(code, np.inf)), high)]
    return [(first, last) for first, last in parts if first <= last]


def _by_item(table: Table, names: Sequence[str], given: Mapping[str, T], option: str) -> dict[str, T]:
    """Return the statement about each item; one that names an item takes precedence over one with a pattern."""
    out: dict[str, T] = {}
    for name, value in sorted(given.items(), key=lambda entry: entry[0] in names):
        out |= dict.fromkeys(_matching(table, names, name, option), value)
    return out


def _codes_by_item(table: Table, names: Sequence[str], given: Mapping[str, Codes], option: str) -> dict[str, list[float | str]]:
    """Return all codes of each item: those of its name and of all patterns that it matches."""
    out: dict[str, list[float | str]] = {}
    for name, codes in given.items():
        for item in _matching(table, names, name, option):
            out.setdefault(item, []).extend([codes] if isinstance(codes, (str, int, float)) else codes)
    return out


def _matching(table: Table, names: Sequence[str], name: str, option: str) -> list[str]:
    pattern = is_pattern(name, names)
    matching = [item for item in names if item == name or (pattern and fnmatchcase(item, name))]
    if not matching:
        raise DataError(f"{table.name}: {option} names {name!r}, expected names or patterns of items")
    return matching


def _levels_by_item(table: Table, names: Sequence[str], levels: Any) -> dict[str, Mapping[str, float]]:
    if levels is None:
        return {}
    if isinstance(levels, Mapping) and not all(isinstance(value, (int, float)) for value in levels.values()):
        return {name: parse_levels(value) for name, value in _by_item(table, names, levels, "levels").items()}
    parsed = parse_levels(levels)
    return dict.fromkeys(names, parsed)


def parse_levels(levels: Levels) -> dict[str, float]:
    """Return the number of each text: 1 for the first one of "a<b<c"."""
    if isinstance(levels, Mapping):
        numbers = {str(text): float(code) for text, code in levels.items()}
        if not numbers or not np.isfinite(list(numbers.values())).all():
            raise ParameterError(f"levels is {levels!r}, expected a finite number for each text")
        return numbers
    texts = [text.strip() for text in levels.split("<")] if isinstance(levels, str) else [str(text) for text in levels]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None or "" in texts or not texts:
        found = f"names {twice!r} twice" if twice else f"is {levels!r}"
        raise ParameterError(f"levels {found}, expected different texts from the lowest to the highest, such as 'never<sometimes<often'")
    return {text: float(number) for number, text in enumerate(texts, 1)}


def _declared_ranges(table: Table, names: Sequence[str], valid_range: Any) -> dict[str, tuple[float, float]]:
    if valid_range is None:
        return {}
    if not isinstance(valid_range, Mapping):
        limits = column_limits(valid_range, len(names))
        return {name: (float(low), float(high)) for name, (low, high) in zip(names, limits, strict=True)}
    pairs = {name: column_limits(pair, 1)[0] for name, pair in _by_item(table, names, valid_range, "valid_range").items()}
    return {name: (float(low), float(high)) for name, (low, high) in pairs.items()}


def _reversed_items(table: Table, names: Sequence[str], reverse: str | Sequence[str]) -> list[str]:
    given = [reverse] if isinstance(reverse, str) else list(reverse)
    return list(_by_item(table, names, dict.fromkeys((name.removeprefix("-") for name in given), True), "reverse"))


def _warn_of_alphabetical_labels(table: Table, items: Sequence[ItemCoding]) -> None:
    """Warn of labels whose codes follow the alphabet, as a program may have numbered them."""
    for item in items:
        labels = [label.casefold() for _, label in item.levels]
        if all(re.match(rf"\W*{re.escape(code_text(code))}(?!\w)", label) for code, label in item.levels):
            continue  # the labels begin with their codes
        if item.texts is None and len(labels) >= 3 and labels == sorted(labels) and not any(map(is_number, labels)):
            shown = ", ".join(f"{code_text(code)} {label!r}" for code, label in item.levels[:7])
            found = f"{table.name}: the codes of {item.name!r} follow the alphabet: {shown}"
            remedy = "a program may have numbered them so; check their order, and correct it with recode= (--recode)"
            warn(f"{found}; {remedy}")
            return
