"""The codebook of a dataset: wordings, levels and missing codes of its items."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfact.errors import DataError

Key = Literal[-1, 0, 1]
"""Direction in which the answers to an item count in its scale; 0 where nothing states it."""
REVERSED = "reversed"
"""Change of an item whose answers the import reversed."""


@dataclass(frozen=True)
class MissingCount:
    """A code that was taken as missing in an item, with its label and the number of its answers.

    Examples
    --------
    >>> import dfact
    >>> dfact.Item("Q1", missing=(dfact.MissingCount("9", "refused", 12),), n_empty=3).missing_text
    '9 refused (12), empty (3)'
    """

    code: str
    """The code as it stands in the file."""
    label: str
    """Its label in the file; empty without one."""
    count: int
    """Number of answers with this code."""


@dataclass(frozen=True)
class Item:
    """A column of answers.

    Examples
    --------
    >>> import dfact
    >>> dfact.Item("Q1", "I sleep badly", levels=((1, "never"), (5, "always")), changes=("reversed",)).text
    'I sleep badly (reversed)'
    """

    name: str
    """Name of the column."""
    wording: str = ""
    """Wording of the item; empty if it is not known."""
    levels: tuple[tuple[float, str], ...] = ()
    """Codes in the units of the file (after recoding and reversal) with their labels, ascending; without missing codes."""
    valid_range: tuple[float, float] | None = None
    """Lowest and highest valid answer as declared, in the same units; None where the range is that of the data."""
    missing: tuple[MissingCount, ...] = ()
    """Codes that were taken as missing."""
    n_empty: int = 0
    """Number of answers that are missing without a code."""
    changes: tuple[str, ...] = ()
    """Changes that the import made to the answers: "reversed", "95 recoded to 0"."""
    source: str = ""
    """Name and format of the file."""
    scale: str = ""
    """Scale that the item belongs to."""
    key: Key = 0
    """Direction in which the answers, as they are stored, count in the scale."""

    @property
    def is_reversed(self) -> bool:
        """Whether the import reversed the answers."""
        return REVERSED in self.changes

    @property
    def text(self) -> str:
        """Wording for people, which notes a reversal."""
        return f"{self.wording} ({REVERSED})" if self.wording and self.is_reversed else self.wording

    @property
    def levels_text(self) -> str:
        """Codes with their labels, as one line."""
        return ", ".join(f"{code:g} {label}".rstrip() for code, label in self.levels)

    @property
    def missing_text(self) -> str:
        """Missing codes with their labels and counts, and the number of empty answers, as one line."""
        codes = [f"{count.code} {count.label}".rstrip() + f" ({count.count})" for count in self.missing]
        return ", ".join(codes + [f"empty ({self.n_empty})"] * (self.n_empty > 0))

    def level_near(self, answer: float) -> str:
        """Return the label of the level closest to an answer; an empty text without levels.

        Parameters
        ----------
        answer : float
            An answer in the units of the dataset.

        Returns
        -------
        str
            The label.
        """
        return min(self.levels, key=lambda level: abs(level[0] - answer))[1] if self.levels else ""


class Difference(NamedTuple):
    """Difference between two items of one name, as predicates of both, and the parameter of an import that removes it."""

    first: str
    second: str
    remedy: str


def compare_items(first: Item, second: Item) -> Difference | None:
    """Compare the direction, the levels and the range of two items; what only one of them states is not a difference."""
    if Item(first.name) == first or Item(second.name) == second:  # nothing is known of it
        return None
    if first.is_reversed != second.is_reversed:
        found, remedy = [f"is {'' if item.is_reversed else 'not '}{REVERSED}" for item in (first, second)], "reverse= (--reverse)"
    elif first.levels and second.levels and _levels(first) != _levels(second):
        found, remedy = [f"has the levels {item.levels_text}" for item in (first, second)], "levels= or recode= (--levels, --recode)"
    elif first.valid_range and second.valid_range and first.valid_range != second.valid_range:
        ranges = (first.valid_range, second.valid_range)
        found, remedy = [f"has the range {low:g} to {high:g}" for low, high in ranges], "valid_range= (--valid-range)"
    else:
        return None
    return Difference(found[0], found[1], remedy)


def _levels(item: Item) -> dict[float, str]:
    """Return the levels with labels in which case and spaces do not count."""
    return {code: " ".join(label.casefold().split()) for code, label in item.levels}


@dataclass(frozen=True)
class Codebook:
    """The items of a dataset, one for each of its columns.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> items = [dfact.Item("Q1", "I worry a lot", levels=((0, "never"), (1, "always"))), dfact.Item("Q2", "I sleep well")]
    >>> answers = np.array([[0, 1], [1, 0]])
    >>> codebook = dfact.Codebook(tuple(items))
    >>> dataset = dfact.import_array(answers, "answers.zarr", column_labels=["Q1", "Q2"], codebook=codebook)
    >>> dataset.codebook["Q1"].levels_text
    '0 never, 1 always'
    """

    items: tuple[Item, ...]
    """One item for each column, in their order."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, name: str) -> Item:
        return self._by_name[name]

    def get(self, name: str) -> Item | None:
        """Return the item of this name, None if there is none.

        Parameters
        ----------
        name : str
            Name of the item, which is that of its column.

        Returns
        -------
        Item or None
            The item.
        """
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Item]:
        return {item.name: item for item in self.items}

    @property
    def texts(self) -> Mapping[str, str]:
        """Wordings by item, of the items that have one."""
        return {item.name: item.text for item in self.items if item.wording}

    @property
    def scales(self) -> Mapping[str, str]:
        """Scales by item, of the items that belong to one."""
        return {item.name: item.scale for item in self.items if item.scale}

    @property
    def fingerprint(self) -> str:
        """Digest of the levels and the wordings; the same from every format."""
        known = [[item.name, item.text, [[float(code), label] for code, label in item.levels]] for item in self.items]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=16).hexdigest()

    def for_columns(self, labels: Iterable[Any]) -> "Codebook":
        """Return the items of these columns in their order; a column that is not in the codebook gets an item without a wording.

        Parameters
        ----------
        labels : iterable
            Names of the columns (m,).

        Returns
        -------
        Codebook
            One item for each column.

        Raises
        ------
        DataError
            An item is none of the columns, is there twice, or has a field of another type.
        """
        names = list(map(str, labels))
        known = set(names)
        unknown = [item.name for item in self.items if item.name not in known]
        if unknown:
            raise DataError(f"the codebook describes {unknown[0]!r}, expected names of columns such as {names[0]!r}; remove it")
        if len(self._by_name) < len(self.items):
            name = next(name for name, count in Counter(item.name for item in self.items).items() if count > 1)
            raise DataError(f"the codebook describes {name!r} twice, expected each column once; remove one")
        chosen = Codebook(tuple(self._by_name.get(name, Item(name)) for name in names))
        try:
            return Codebook.from_texts(chosen.to_texts(), names)
        except UnicodeEncodeError:  # the writer names the label
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"{error}; correct the item") from error

    def to_texts(self) -> NDArray[Any]:
        """Return a JSON text for each item (m,), without empty fields.

        Returns
        -------
        array (m,) of str
            One text for each item, in their order.
        """
        entries = ({key: value for key, value in asdict(item).items() if value or key == "name"} for item in self.items)
        # NumPy's numbers have ``item``.
        texts = [json.dumps(entry, ensure_ascii=False, default=lambda number: number.item()) for entry in entries]
        return np.array(texts, dtype=object)

    @classmethod
    def from_texts(cls, texts: Iterable[str], labels: Iterable[Any]) -> "Codebook":
        """Return the codebook of these columns that :meth:`to_texts` wrote.

        Parameters
        ----------
        texts : iterable of str
            JSON texts (m,), as :meth:`to_texts` returns them.
        labels : iterable
            Names of the columns (m,).

        Returns
        -------
        Codebook
            The same items.

        Raises
        ------
        ValueError
            A text is not what :meth:`to_texts` writes.
        """
        items = tuple(_parse_item(json.loads(text)) for text in texts)
        for item, label in zip(items, labels, strict=True):
            _expect(item.name == str(label), f"the item of column {str(label)!r}", item.name)
        return cls(items)


def _parse_item(entry: Any) -> Item:
    """Return the item of a JSON object; raise ValueError unless every field has its type."""
    _expect(isinstance(entry, dict) and set(entry) <= {field.name for field in fields(Item)}, "an item", entry)
    json.dumps(entry, ensure_ascii=False).encode()  # JSON may hold lone surrogates, which no output can encode
    texts = [entry.get(name, "") for name in ("name", "wording", "source", "scale")] + _list(entry, "changes")
    _expect("name" in entry and all(isinstance(text, str) for text in texts), "texts", texts)
    levels = tuple((_number(code), label) for code, label in _list(entry, "levels"))
    _expect(all(isinstance(label, str) for _, label in levels), "labels of levels", levels)
    _expect(all(low < high for (low, _), (high, _) in pairwise(levels)), "ascending levels", levels)
    limits = entry.get("valid_range")
    low_high = None if limits is None else tuple(map(_number, _list(entry, "valid_range")))
    _expect(low_high is None or (len(low_high) == 2 and low_high[0] <= low_high[1]), "a range", limits)
    missing = tuple(MissingCount(**count) for count in _list(entry, "missing"))
    _expect(all(isinstance(count.code, str) and isinstance(count.label, str) for count in missing), "missing codes", missing)
    _expect(entry.get("key", 0) in (-1, 0, 1), "a key of 1 or -1", entry.get("key"))
    counts = [entry.get("n_empty", 0), *(count.count for count in missing)]
    _expect(all(type(count) is int and count >= 0 for count in counts), "counts", counts)
    changes = tuple(_list(entry, "changes"))
    return Item(**entry | {"levels": levels, "valid_range": low_high, "missing": missing, "changes": changes})


def _list(entry: Mapping[str, Any], name: str) -> list[Any]:
    values = entry.get(name, [])
    _expect(isinstance(values, list), "a list", values)
    return list(values)


def _number(value: Any) -> float:
    _expect(type(value) in (int, float) and isfinite(value), "a finite number", value)
    return float(value)


def _expect(valid: bool, expected: str, found: Any) -> None:
    if not valid:
        raise ValueError(f"the codebook holds {str(found)[:80]!r}, expected {expected}")
