"""The codebook of a dataset: wordings, levels and missing codes of its items."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dfact.errors import DataError, StoreError
from dfact.storage.input_files import open_input_file
from dfact.storage.location import Location


@dataclass(frozen=True)
class MissingCount:
    """A code that was taken as missing in an item, with its label and the number of its answers."""

    code: str
    label: str
    count: int


@dataclass(frozen=True)
class Item:
    """A column of answers."""

    name: str
    wording: str = ""
    levels: tuple[tuple[float, str], ...] = ()
    """Codes in the units of the file (after recoding and reversal) with their labels, ascending; without missing codes."""
    missing: tuple[MissingCount, ...] = ()
    n_empty: int = 0
    """Number of answers that are missing without a code."""
    changes: tuple[str, ...] = ()
    """Changes that the import made to the answers: "reversed", "95 recoded to 0"."""
    source: str = ""
    """Name and format of the file."""

    @property
    def text(self) -> str:
        """Wording for people, which notes a reversal."""
        return f"{self.wording} (reversed)" if self.wording and "reversed" in self.changes else self.wording


@dataclass(frozen=True)
class Codebook:
    """The items of a dataset, one for each of its columns."""

    items: tuple[Item, ...]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def texts(self) -> Mapping[str, str]:
        """Wordings by item, of the items that have one."""
        return {item.name: item.text for item in self.items if item.wording}

    @property
    def fingerprint(self) -> str:
        """Digest of the levels and the wordings; the same from every format."""
        known = [[item.name, item.text, [[float(code), label] for code, label in item.levels]] for item in self.items]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()

    def to_json(self) -> list[dict[str, Any]]:
        """Return the items as JSON values, without empty fields."""
        return [{name: value for name, value in asdict(item).items() if value} for item in self.items]

    @classmethod
    def from_json(cls, items: Sequence[Mapping[str, Any]]) -> "Codebook":
        """Return the codebook that :meth:`to_json` wrote."""
        return cls(tuple(_item(**entry) for entry in items))


def _item(
    *, levels: Sequence[Sequence[Any]] = (), missing: Sequence[Mapping[str, Any]] = (), changes: Sequence[str] = (), **fields: Any
) -> Item:
    return Item(
        levels=tuple((float(code), str(label)) for code, label in levels),
        missing=tuple(MissingCount(**count) for count in missing),
        changes=tuple(changes),
        **fields,
    )


def read_items(path: Location) -> tuple[dict[str, str], dict[str, str]]:
    """Read the texts and the groups of items, by item, from a csv file; empty cells are left out.

    Raises DataError unless the file has a column ``item`` and a column ``text`` or ``group``.
    """
    try:
        with io.TextIOWrapper(open_input_file(path).open(), "utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, StoreError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}; expected a csv file with columns item and text, group or both") from error
    columns = list(rows[0]) if rows else []
    if "item" not in columns or not {"text", "group"} & set(columns):
        raise DataError(f"{path} has columns {columns}, expected item and text, group or both")
    texts, groups = ({row["item"]: row[name] for row in rows if row.get(name)} for name in ("text", "group"))
    return texts, groups
