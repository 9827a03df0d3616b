"""The contract of a dictionary: descriptions of the columns of a table, and the columns that records and events are in."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.imports.dictionaries.text_rows import Records
from dfact.imports.readers.base import Variable

_UNTICKED = pa.array(["", "0", "FALSE", "False", "false"])
Paths = Sequence[str | PathLike[str]]


@dataclass(frozen=True)
class EventColumns:
    """The columns of a long table, in which each row is a record at an event or a repetition of a form."""

    record: str
    event: str | None = None
    form: str | None = None
    """Column with the repeated form, empty in other rows."""
    repetition: str | None = None
    """Column with the number of the repetition, empty in other rows."""
    order: tuple[str, ...] = ()
    """Events in their order, as far as it is known."""

    @property
    def slots(self) -> list[str]:
        """The columns that together name the event of a row."""
        return [column for column in (self.event, self.form, self.repetition) if column is not None]


@dataclass(frozen=True)
class UntouchedBoxes:
    """The boxes of a form, which are 0 both when unticked and when the form was never opened."""

    status: str
    """Column with the status of the form."""
    boxes: tuple[str, ...]
    """Columns of all boxes of the form."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read as text."""
        return (self.status, *self.boxes)

    def rows(self, texts: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return the rows whose boxes are missing: the status is 0 or empty, and no box is ticked."""
        untouched = np.ones(texts.num_rows, bool)
        for column in self.columns:
            trimmed = pc.utf8_trim_whitespace(pc.fill_null(texts[column], ""))
            untouched &= pc.is_in(trimmed, _UNTICKED).to_numpy(zero_copy_only=False)
        return untouched


class Dictionary(ABC):
    """A description of the columns of a table, in a file next to it."""

    kind: ClassVar[str]
    """Name in messages."""
    header: ClassVar[str]
    """Description of the columns that make a file a dictionary of this kind, for messages."""
    signs_are_meaningless: ClassVar[bool] = False
    """Whether negative codes may be answers among other codes, so that those that are answers are reported."""
    name: str = ""
    """Name of the file; "" for a kind that is recognized by the columns of the table alone."""

    @classmethod
    @abstractmethod
    def open(cls, records: Records, codings: Paths) -> Self | None:
        """Return the dictionary in a file; None if its header belongs to another kind."""

    @classmethod
    def recognize(cls, columns: Sequence[str]) -> Self | None:
        """Return the dictionary without fields of a table with these columns, if their names tell its kind; None for others."""
        del columns
        return None

    @abstractmethod
    def variables(self, columns: Sequence[str]) -> dict[str, Variable]:
        """Return the descriptions of those columns that the dictionary describes."""

    def default_items(self, columns: Sequence[str]) -> list[str] | None:
        """Return the columns that are items unless the user names others; None without an opinion."""
        return None

    def id_column(self, columns: Sequence[str]) -> str | None:
        """Return the column with the ids of the participants, if the dictionary knows it."""
        return None

    def expand(self, name: str, columns: Sequence[str]) -> list[str]:
        """Return the columns that a name stands for which is not a column itself: the boxes or the instances of a field."""
        return []

    def check_items(self, items: Sequence[str]) -> None:
        """Raise DataError on items that cannot stand side by side."""
        return

    def reversed_items(self, columns: Sequence[str], keying: str) -> list[str]:
        """Return the columns that the column ``keying`` of the dictionary marks as reversed.

        Raises ParameterError if the dictionary has no such column.
        """
        raise ParameterError(f"{self.name or self.kind} has no column {keying!r} with the keying of items; name the items themselves")

    def instances(self, columns: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return the item and the instance of each column that is one of several instances."""
        return {}

    def event_columns(self, columns: Sequence[str]) -> EventColumns | None:
        """Return the columns that hold records and events; None for a table with one row for each participant."""
        return None

    def untouched_boxes(self, columns: Sequence[str], items: Sequence[str]) -> tuple[UntouchedBoxes, ...]:
        """Return the forms with a box among the items whose status is known."""
        return ()


def describe(variables: Mapping[str, Variable], dictionary: Dictionary | None, columns: Sequence[str]) -> dict[str, Variable]:
    """Return the descriptions of columns by their file, overridden by what the dictionary says."""
    described = dict(variables)
    for name, variable in ({} if dictionary is None else dictionary.variables(columns)).items():
        stated = {each.name: value for each in fields(Variable) if (value := getattr(variable, each.name))}
        described[name] = replace(described.get(name, variable), **stated)
    return described
