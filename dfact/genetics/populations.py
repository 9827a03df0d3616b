"""The populations of individuals: a text with a line for each individual, a column of a table, or a sequence of names."""

from collections.abc import Callable, Sequence
from os import PathLike

import pandas as pd

from dfact.data.sources.entrance import known_labels
from dfact.errors import DataError, ParameterError, warn
from dfact.genetics.genotype_file import FAM_COLUMNS, GenotypeFile, read_fields, sibling
from dfact.imports.readers.base import Table
from dfact.imports.readers.columnar.columns import read_texts
from dfact.imports.readers.formats import formats, open_table
from dfact.storage.input_files import InputFile, open_input_file

_UNKNOWN = ("", "-")
_CODES = ("-9", "NA", "N/A", "NaN", "nan", ".")
"""Texts of PLINK and of other programs for an unknown population."""
_LISTS = (".fam", ".psam")
_TEXT = (".txt", ".txt.gz")
_NAMES = ("pop", "population", "populations", "pop_id", "population_id", "ancestry")
"""Names of columns, in lower case, that are taken for the populations."""
_OF_LISTS = ("fid", "iid", "sid", "pat", "mat", "sex", *FAM_COLUMNS)
"""Columns of .psam and .fam files that are not taken for populations, unless the family is."""
_SHOWN = 3


def read_population(
    file: GenotypeFile,
    population: str | PathLike[str] | Sequence[str] | None,
    column: str | None,
    id_column: str | None,
    note: Callable[[str], object] | None = None,
) -> pd.Categorical | None:
    """Return the population of each individual, missing where unknown; None if nothing states populations.

    ``note`` is called with a sentence about the column that was taken.

    Raises
    ------
    DataError
        The number of names differs from the number of individuals, or no individual is in the table.
    ParameterError
        The table has no such column, or several that may hold the populations.

    Warns
    -----
    UserWarning
        The table lacks individuals.
    """
    if population is None:
        beside = None if file.file is None else sibling(file.file, (".pop",), required=False)
        if beside is None and column is not None:
            raise ParameterError(f"population_column is {column!r} and population is None, expected the file with this column; pass both")
        return None if beside is None else _to_categorical(beside.name, _read_lines(beside), len(file.labels), note)
    if not isinstance(population, (str, PathLike)):
        return _to_categorical(
            "population", ["" if each is None else str(each) for each in known_labels(population)], len(file.labels), note
        )
    found = open_input_file(population)
    frame = _read(found, [*file.labels, *file.persons])
    if frame.shape[1] == 1 and column is None and id_column is None:
        return _to_categorical(found.name, [*frame.iloc[:, 0]], len(file.labels), note)
    ids = _id_column(file, found.name, frame, id_column)
    taken = _population_column(file, found.name, frame, column, ids)
    repeated = frame[ids].duplicated()
    if repeated.any():
        raise DataError(f"{found.name} holds the individual {frame[ids][repeated].iloc[0]!r} twice, expected a row for each individual")
    by_person = dict(zip(frame[ids], frame[taken], strict=True))
    names = [by_person.get(label, by_person.get(person)) for label, person in zip(file.labels, file.persons, strict=True)]
    _compare(file, found.name, ids, names, by_person)
    if note is not None:
        note(f"populations: the column {taken!r} of {found.name}, by the ids in {ids!r}")
    return _to_categorical(found.name, [name or "" for name in names], len(file.labels), note)


def _compare(file: GenotypeFile, name: str, ids: str, names: Sequence[str | None], by_person: dict[str, str]) -> None:
    """Raise DataError if the table has no individual of the file, and warn if it has only some."""
    lacking = [str(label) for label, found in zip(file.labels, names, strict=True) if found is None]
    if not any(names):
        found = f"{name} names no population of the individuals of {file.name}, such as {file.persons[0]!r}"
        raise DataError(f"{found}; check id_column ({ids!r} was taken)")
    if not lacking:
        return
    others = [each for each in by_person if each not in {*file.labels, *file.persons}]
    text = f"{name} lacks {len(lacking)} of {len(names)} individuals of {file.name}, whose populations are unknown: {_some(lacking)}"
    text += f"; {len(others)} of its rows are of other individuals: {_some(others)}" if others else ""
    warn(f"{text}; compare the ids")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _read_lines(file: InputFile) -> list[str]:
    try:
        with file.open() as stream:
            return [line.strip() for line in stream.read().decode().splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name} is not UTF-8 ({error}), expected a line for each individual; save it as UTF-8") from error


def _to_categorical(name: str, names: Sequence[str], n: int, note: Callable[[str], object] | None) -> pd.Categorical:
    if len(names) != n:
        raise DataError(f"{name} has {len(names)} populations, expected {n}, one for each individual")
    codes = [each for each in names if each in _CODES]
    if codes and note is not None:
        note(f"populations: {len(codes)} individual(s) with {', '.join(sorted({*codes}))} are of unknown population")
    return pd.Categorical([None if each in (*_UNKNOWN, *_CODES) else each for each in names])


def _read(file: InputFile, persons: Sequence[str]) -> pd.DataFrame:
    """Read a file as texts: a list of individuals, a table of a known format, or else lines of fields, with names if the first has some."""
    ending = file.name.lower()
    if ending.endswith(_LISTS):
        return read_fields(file, FAM_COLUMNS, "a list of individuals").astype(str)
    tables = [suffix for each in formats() for suffix in each.suffixes if each.holds == "table" and suffix not in _TEXT]
    if ending.endswith(tuple(tables)):
        return _read_texts(open_table(file))
    lines = _read_lines(file)
    separator = "\t" if lines and "\t" in lines[0] else None
    rows = [line.split(separator) for line in lines]
    if ending.endswith(".pop") or {len(row) for row in rows} == {1}:
        return pd.DataFrame({"1": lines})
    rows = [row for row in rows if row]
    if not rows:
        raise DataError(f"{file.name} is empty, expected the populations of {len(persons)} individuals, or a table of them")
    if len({len(row) for row in rows}) != 1:
        j = next(j for j, row in enumerate(rows) if len(row) != len(rows[0]))
        raise DataError(f"line {j + 1} of {file.name} has {len(rows[j])} fields, expected {len(rows[0])} as in the first line")
    known = {*map(str, persons)}
    named = not known.intersection(rows[0]) and any(known.intersection(row) for row in rows[1:])
    columns = rows.pop(0) if named else [str(number) for number in range(1, len(rows[0]) + 1)]
    return pd.DataFrame(rows, columns=pd.Index(columns), dtype=str)


def _read_texts(table: Table) -> pd.DataFrame:
    """Read a table as texts."""
    batches = [texts for part in table.parts() for texts in read_texts(part, table.columns)]
    return pd.DataFrame({name: [text or "" for batch in batches for text in batch.column(name).to_pylist()] for name in table.columns})


def _id_column(file: GenotypeFile, name: str, frame: pd.DataFrame, column: str | None) -> str:
    """Return the column with the ids of the individuals: that which holds most of them, of several the one whose name is usual."""
    if column is not None:
        return _require(name, frame, "id_column", column)
    persons = {*map(str, file.labels), *map(str, file.persons)}
    matched = {str(each): int(frame[each].isin(persons).sum()) for each in frame}
    best = [each for each, count in matched.items() if count == max(matched.values())]
    usual = [each for each in best if each.lower() in ("iid", "person", "id", "sample")]
    return (usual or best)[0]


def _population_column(file: GenotypeFile, name: str, frame: pd.DataFrame, column: str | None, ids: str) -> str:
    """Return the column with the populations: by its usual name, the family of a .fam file, or the only one that is left.

    Raises ParameterError, with the columns, if there are several.
    """
    if column is not None:
        return _require(name, frame, "population_column", column)
    others = [str(each) for each in frame if each != ids]
    usual = [each for each in others if each.lower() in _NAMES]
    if name.lower().endswith(_LISTS):
        family = [each for each in others if each.lower() in ("fid", "family") and 1 < frame[each].nunique() < len(frame)]
        others = [each for each in others if each.lower() not in _OF_LISTS] or family
    for candidates in (usual, others):
        if len(candidates) == 1:
            return candidates[0]
    counts = [f"{each} ({frame[each].nunique()} values, such as {frame[each].iloc[0]!r})" for each in map(str, frame) if each != ids]
    found = f"{name} has the columns {', '.join(counts)}, expected one with the populations of the individuals of {file.name}"
    raise ParameterError(f"{found}; name it: population_column= (--population-column)")


def _require(name: str, frame: pd.DataFrame, option: str, column: str) -> str:
    if column not in frame:
        raise ParameterError(f"{option} is {column!r}, expected one of the columns {', '.join(map(str, frame))} of {name}")
    return column
