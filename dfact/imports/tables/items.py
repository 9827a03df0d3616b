"""The choice of items: the columns that a user names, or those that the file describes as one battery."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from dfact.errors import DataError, ParameterError, warn
from dfact.imports.readers.base import Table, Variable

_LISTED = 20
"""Number of columns that a message lists."""
_IDENTIFIER = re.compile(r"(^|[_.\s-])(p?id|uid)$|^(subject|participant|person|respondent)", re.IGNORECASE)
"""Names of columns that a message does not propose as items."""


def check_columns(table: Table, names: Sequence[str]) -> None:
    """Raise DataError unless each name belongs to exactly one column."""
    count = Counter(table.columns)
    for name in names:
        if name not in count:
            raise unknown_column(table, name)
        if count[name] > 1:
            raise DataError(f"{table.name} has {count[name]} columns named {name!r}, expected one; give each its own name")


def match_columns(table: Table, variables: Mapping[str, Variable], names: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return the columns that the names and patterns select, each once.

    Patterns leave out the ``excluded`` columns and those that hold no answers; a name of such a column raises DataError.
    """
    matches: dict[str, None] = {}
    columns = set(table.columns)
    candidates = [column for column in table.columns if column not in excluded]
    for name in names:
        if not is_pattern(name, columns):
            if name not in columns:
                raise unknown_column(table, name)
            reason = no_answers(variables.get(name))
            if reason:
                raise DataError(f"{table.name}: column {name!r} {reason}, expected answers; leave it out of items= (--items)")
            matches[name] = None
            continue
        matching = [column for column in candidates if fnmatchcase(column, name)]
        if not matching:
            raise unknown_column(table, name)
        matches |= dict.fromkeys(column for column in matching if not no_answers(variables.get(column)))
        dates = [column for column in matching if column in variables and variables[column].type == "date"]
        if dates and len(dates) < len(matching) and name.strip("*"):
            listed = ", ".join(dates[:_LISTED]) + (", …" if len(dates) > _LISTED else "")
            warn(f"{table.name}: {len(dates)} column(s) of {name!r} hold dates and are left out: {listed}")
    if not matches and names:
        reasons = [f"{column!r} {reason}" for column in candidates if (reason := no_answers(variables.get(column)))]
        raise DataError(f"{table.name}: items matches no column with answers: {', '.join(reasons[:_LISTED])}; name others (--items)")
    if not matches:
        raise ParameterError("items is empty, expected names or patterns such as 'Q*'")
    return list(matches)


def join_parts(names: Sequence[str], columns: Collection[str]) -> list[str]:
    """Return the names with those joined that are one column: the parts of a name with commas, at which a command line cuts it."""
    known = {",".join(part.strip() for part in column.split(",")): column for column in columns if "," in column}
    joined: list[str] = []
    i = 0
    while i < len(names):
        stops = range(len(names) if known else i + 1, i, -1)
        stop = next((stop for stop in stops if names[i] not in columns and ",".join(names[i:stop]).removeprefix("-") in known), i + 1)
        text = ",".join(names[i:stop])
        joined.append(
            names[i] if stop == i + 1 and text.removeprefix("-") not in known else "-" * (text[:1] == "-") + known[text.removeprefix("-")]
        )
        i = stop
    return joined


def no_answers(variable: Variable | None) -> str:
    """Return the reason why a column cannot hold answers, as a predicate; "" if it can."""
    if variable is None:
        return ""
    return variable.excluded or ("is a date" if variable.type == "date" else "")


def is_pattern(name: str, columns: Collection[str]) -> bool:
    """Check whether a name is a pattern such as "Q*"."""
    return name not in columns and any(character in name for character in "*?[")


def unknown_column(table: Table, name: str) -> DataError:
    """Return the error for a name or a pattern without a column."""
    if len(table.columns) == 1 and any(separator in table.columns[0] for separator in ",;|\t"):
        found = f"{table.name} has no column {name!r}: its entire header is one column, {table.columns[0][:80]!r}"
        return DataError(f"{found}; name the separator: delimiter= (--delimiter)")
    header = next((i for i, cells in table.first_rows if name in cells), None)
    if header is not None:
        found = f"{table.name}: there is no column {name!r} in its header, but a cell of row {header}"
        return DataError(f"{found}; if the column names stand there, say skip_rows={header - 1} (--skip-rows {header - 1})")
    close = difflib.get_close_matches(name, table.columns)
    listed = ", ".join(close or table.columns[:_LISTED]) + (", …" if not close and len(table.columns) > _LISTED else "")
    mismatch = "no column matches" if is_pattern(name, table.columns) else "there is no column"
    return DataError(f"{table.name}: {mismatch} {name!r}; {'the closest are' if close else 'its columns are'} {listed}")


def infer_items(table: Table, variables: Mapping[str, Variable], excluded: Sequence[str]) -> list[str]:
    """Return the columns that the file describes as one battery of items.

    Candidates have at least two labelled values that are not missing, and are neither nominal nor dates. They are a battery if
    they are three or more with the same levels, or three or more that are declared ordinal and whose names begin alike.

    Raises DataError otherwise, with the groups of columns that have the same levels.
    """
    levels = dict(_candidates(table, variables, excluded))
    if len(levels) >= 3 and len(set(levels.values())) == 1:
        return list(levels)
    ordinal = [name for name in levels if variables[name].measure == "ordinal" or variables[name].ordered]
    if len(ordinal) >= 3 and len(_common_start(ordinal)) >= 2:
        return ordinal
    raise _which_items(table, variables, levels)


def _candidates(
    table: Table, variables: Mapping[str, Variable], excluded: Sequence[str]
) -> Iterator[tuple[str, tuple[tuple[float, str], ...]]]:
    """Yield the columns that may be items, with their levels."""
    for name in table.columns:
        variable = variables.get(name)
        if variable is None or name in excluded or no_answers(variable) or variable.measure == "nominal":
            continue
        levels = valid_levels(variable)
        if len(levels) >= 2:
            yield name, levels


def valid_levels(variable: Variable) -> tuple[tuple[float, str], ...]:
    """Return the labelled codes that are not missing, ascending; for text answers, their numbers from 1 with the texts."""
    if variable.categories:
        texts = (text for text in variable.categories if text not in variable.missing.values)
        return tuple((float(number), text) for number, text in enumerate(texts, 1))
    return tuple(sorted((code, label) for code, label in variable.labels.items() if code not in variable.missing))


def _common_start(names: Sequence[str]) -> str:
    """Return the characters with which all names begin."""
    first, last = min(names), max(names)
    return first[: next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))]


def _which_items(table: Table, variables: Mapping[str, Variable], levels: Mapping[str, tuple[tuple[float, str], ...]]) -> DataError:
    question = f"{table.name}: which of its {len(table.columns)} columns are items?"
    groups: dict[tuple[tuple[float, str], ...], list[str]] = {}
    for name, each in levels.items():
        groups.setdefault(each, []).append(name)
    battery, names = max(groups.items(), key=lambda group: len(group[1]), default=((), []))
    if len(names) < 2:
        described = "columns with labels" if levels else "columns"
        candidates = list(levels) or [name for name in table.columns if not no_answers(variables.get(name))]
        listed = ", ".join(candidates[:_LISTED]) + (", …" if len(candidates) > _LISTED else "")
        answered = [name for name in candidates if not _IDENTIFIER.search(name)] or candidates
        line = f'--items "{",".join(answered[:3])}"'
        return DataError(f"{question} Its {described} are {listed}; name the items with items= (--items), such as {line}")
    answers = ", ".join(f"{code:g} {label}" for code, label in battery[:7]) + (", …" if len(battery) > 7 else "")
    others = [name for name in levels if name not in names]
    rest = f". Others with labels: {', '.join(others[:_LISTED])}{', …' if len(others) > _LISTED else ''}" if others else ""
    line = f'--items "{",".join(names)}"'
    return DataError(f"{question} With the same answers: {', '.join(names)} ({answers}){rest}; name them with items=, or say {line}")
