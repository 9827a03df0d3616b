"""The use of a dictionary by an import: which one describes a table, and what follows for ids, boxes and reversed items."""

from collections.abc import Container, Sequence
from dataclasses import replace
from os import PathLike

from dfact.data.dictionaries.base import Dictionary
from dfact.data.dictionaries.kinds import open_dictionary, recognize_dictionary
from dfact.data.ingest.coding.answers import AnswerCoding
from dfact.data.readers.base import Table
from dfact.errors import DataError, ParameterError


def find_dictionary(
    table: Table, path: str | PathLike[str] | None, codings: str | PathLike[str] | Sequence[str | PathLike[str]]
) -> Dictionary | None:
    """Return the dictionary in a file, or what the names of the columns of a table say without one.

    Raises DataError if the dictionary describes no column of the table.
    """
    if path is None:
        if codings:
            raise ParameterError(f"codings is {codings!r} without a dictionary, expected both; pass dictionary= (--dictionary), too")
        return recognize_dictionary(table.columns)
    found = open_dictionary(path, codings)
    if not found.variables(table.columns):
        raise DataError(f"{found.name} describes no column of {table.name}, expected its dictionary; pass the one that belongs to it")
    return found


def default_id(table: Table, dictionary: Dictionary | None, taken: Container[str]) -> str | None:
    """Return the column with the ids that the dictionary knows, unless it is taken for something else."""
    column = None if dictionary is None else dictionary.id_column(table.columns)
    return None if column is None or column in taken else column


def reversed_by_keying(dictionary: Dictionary | None, keying: str, names: Sequence[str]) -> list[str]:
    """Return the items that a column of the dictionary marks as reversed."""
    if dictionary is None:
        raise ParameterError(f"reverse is '@{keying}', a column of a dictionary, expected one; pass dictionary= (--dictionary), too")
    return dictionary.reversed_items(names, keying)


def with_forms(coding: AnswerCoding, dictionary: Dictionary | None, table: Table) -> AnswerCoding:
    """Return the coding that takes boxes of forms that were not opened as missing; check that the items can stand side by side."""
    if dictionary is None:
        return coding
    names = [item.name for item in coding.items]
    dictionary.check_items(names)
    return replace(coding, forms=dictionary.untouched_boxes(table.columns, names))
