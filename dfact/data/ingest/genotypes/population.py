"""The populations of persons: a .pop file, a column of a table, or a sequence of names."""

from collections.abc import Sequence
from os import PathLike

import pandas as pd

from dfact.data.readers.base import Table
from dfact.data.readers.columnar.columns import read_texts
from dfact.data.readers.formats import open_table
from dfact.data.readers.genetics.genotypes import FAM_COLUMNS, GenotypeFile, read_fields, sibling
from dfact.data.sources.entrance import known_labels
from dfact.errors import DataError, ParameterError
from dfact.storage.input_files import InputFile, open_input_file

_UNKNOWN = ("", "-")
_LISTS = (".fam", ".psam")


def read_population(
    file: GenotypeFile, population: str | PathLike[str] | Sequence[str] | None, column: str | None, id_column: str | None
) -> pd.Categorical | None:
    """Return the population of each person, missing where unknown; None if nothing states populations.

    Raises
    ------
    DataError
        The number of names differs from the number of persons, or no person is in the table.
    ParameterError
        The table has no such column.
    """
    if population is None:
        beside = None if file.file is None else sibling(file.file, (".pop",), required=False)
        if beside is None and column is not None:
            raise ParameterError(f"population_column is {column!r} and population is None, expected the file with this column; pass both")
        return None if beside is None else _read_pop(file, beside)
    if not isinstance(population, (str, PathLike)):
        return _to_categorical("population", ["" if each is None else str(each) for each in known_labels(population)], len(file.labels))
    found = open_input_file(population)
    if found.name.lower().endswith(".pop"):
        return _read_pop(file, found)
    by_person = _read_table(found, column, id_column)
    names = [by_person.get(label, by_person.get(person, "")) for label, person in zip(file.labels, file.persons, strict=True)]
    if not any(names):
        raise DataError(f"{found.name} names no population of the persons of {file.name}, such as {file.persons[0]!r}; check id_column")
    return _to_categorical(found.name, names, len(file.labels))


def _read_pop(file: GenotypeFile, pop: InputFile) -> pd.Categorical:
    try:
        with pop.open() as stream:
            lines = stream.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{pop.name} is not UTF-8 ({error}), expected a line for each person; save it as UTF-8") from error
    return _to_categorical(pop.name, [line.strip() for line in lines], len(file.labels))


def _to_categorical(name: str, names: Sequence[str], n: int) -> pd.Categorical:
    if len(names) != n:
        raise DataError(f"{name} has {len(names)} populations, expected {n}, one for each person")
    return pd.Categorical([None if each in _UNKNOWN else each for each in names])


def _read_table(found: InputFile, column: str | None, id_column: str | None) -> dict[str, str]:
    """Read the populations by person."""
    if found.name.lower().endswith(_LISTS):
        frame = read_fields(found, FAM_COLUMNS, "a list of persons")
        named: list[str]
        defaults: tuple[str, ...]
        named, defaults = [str(name) for name in frame], ("IID", str(frame.columns[-1])) if "IID" in frame else ("person", "phenotype")
    else:
        table = open_table(found)
        named, defaults = table.columns, (table.columns[0], (table.columns * 2)[1])
    persons, populations = id_column or defaults[0], column or defaults[1]
    for option, name in (("id_column", persons), ("population_column", populations)):
        if name not in named:
            raise ParameterError(f"{option} is {name!r}, expected one of the columns {', '.join(map(str, named))} of {found.name}")
    if not found.name.lower().endswith(_LISTS):
        frame = _read_texts(table, list(dict.fromkeys([persons, populations])))
    repeated = frame[persons].duplicated()
    if repeated.any():
        raise DataError(f"{found.name} holds the person {frame[persons][repeated].iloc[0]!r} twice, expected a row for each person")
    return dict(zip(frame[persons].astype(str), frame[populations].astype(str), strict=True))


def _read_texts(table: Table, columns: list[str]) -> pd.DataFrame:
    """Read these columns of a table as texts."""
    batches = [texts for part in table.parts() for texts in read_texts(part, columns)]
    return pd.DataFrame({name: [text or "" for batch in batches for text in batch.column(name).to_pylist()] for name in columns})
