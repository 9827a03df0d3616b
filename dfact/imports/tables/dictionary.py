"""The use of a dictionary by an import: which one describes a table, and what follows for ids, boxes and reversed items."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from os import PathLike

from dfact.errors import DataError, ParameterError
from dfact.imports.coding.answers import AnswerCoding
from dfact.imports.dictionaries.base import Dictionary
from dfact.imports.dictionaries.kinds import open_dictionary, recognize_dictionary
from dfact.imports.readers.base import Table, Variable
from dfact.imports.readers.columnar.columns import read_texts
from dfact.imports.readers.number_marks import is_number

_SEARCHED_COLUMNS, _SEARCHED_ROWS = 50, 100


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
    """Return the column with the ids that the dictionary or the table knows, unless it is taken for something else."""
    column = table.row_names if dictionary is None else dictionary.id_column(table.columns)
    return None if column is None or column in taken else column


def holds_labels(table: Table, variables: Mapping[str, Variable]) -> bool:
    """Check whether a column of the first rows of a table holds labels alone, in place of codes."""
    labelled = [name for name, variable in variables.items() if variable.labels and name in table.columns][:_SEARCHED_COLUMNS]
    if not labelled or len({*table.columns}) < len(table.columns):
        return False
    rows = next(read_texts(table, labelled), None)
    columns = {} if rows is None else rows.slice(0, _SEARCHED_ROWS).to_pydict()
    filled = {name: {cell.strip() for cell in column if cell is not None and cell.strip()} for name, column in columns.items()}
    return any(cells and cells <= {*variables[name].labels.values()} and not any(map(is_number, cells)) for name, cells in filled.items())


def with_labels_as_texts(variable: Variable) -> Variable:
    """Return the variable whose cells may be the labels of its codes, as exports with labels have them."""
    if not variable.labels:
        return variable
    count = Counter(variable.labels.values())
    codes = {label: code for code, label in variable.labels.items() if count[label] == 1 and not is_number(label)}
    missing = tuple(label for label, code in codes.items() if code in variable.missing)
    texts = {label: code for label, code in codes.items() if label not in missing}
    return replace(
        variable, texts=texts | dict(variable.texts), missing=replace(variable.missing, values=(*variable.missing.values, *missing))
    )


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
