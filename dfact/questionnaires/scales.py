"""The scales of a questionnaire: which items belong to each, and in which direction they count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.imports.dictionaries.table import ItemTable, read_items

ALL_ITEMS = "all"
"""Name of the scale of all items, where nothing says which belong together."""


@dataclass(frozen=True)
class Scale:
    """Items that measure the same."""

    name: str
    columns: NDArray[np.intp]
    """Positions of its items in the data, ascending."""


@dataclass(frozen=True)
class Scales:
    """The scales of a dataset, in the order of their first items."""

    scales: tuple[Scale, ...]
    keys: NDArray[np.float64]
    """Direction in which each column (m) counts in its scale: 1 or −1."""
    texts: Mapping[str, str]
    """Wordings by item, of the items that have one."""


def resolve_scales(
    dataset: Dataset, scales: Mapping[str, Sequence[str]] | str | PathLike[str] | None, keys: Mapping[str, int] | None
) -> Scales:
    """Return the scales, keys and wordings of the items of a dataset.

    ``scales`` are items by scale, or the path of a csv file with a column item and columns scale, key or both. What is None comes
    from the codebook of the dataset. Without scales, all items are one. Keys that nothing states are 1.

    Raises DataError for items that the data does not have or that are in two scales, and for keys other than 1 and −1.
    """
    names = [str(label) for label in dataset.column_labels]
    codebook = dataset.codebook or ()
    texts = {} if dataset.codebook is None else dict(dataset.codebook.texts)
    signs: Mapping[str, int] = {item.name: item.key for item in codebook if item.key}
    if scales is None:
        by_item = {} if dataset.codebook is None else dict(dataset.codebook.scales)
    else:
        table = as_item_table(scales)
        by_item, signs = dict(table.scales), table.keys or signs
        texts |= table.texts
        if isinstance(scales, Mapping):
            _require_known(list(by_item), names, "scales=")
    if keys is not None:
        signs = _checked(keys)
        _require_known(list(signs), names, "keys=")
    sign = np.array([signs.get(name, 1) for name in names], np.float64)
    members: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        if name in by_item:
            members.setdefault(by_item[name], []).append(position)
    if by_item and not members:
        raise DataError(f"scales name none of the items, such as {names[0]!r}; pass scales of this data")
    if not members:
        members[ALL_ITEMS] = list(range(len(names)))
    return Scales(tuple(Scale(name, np.array(columns, np.intp)) for name, columns in members.items()), sign, texts)


def as_item_table(scales: Mapping[str, Sequence[str]] | str | PathLike[str]) -> ItemTable:
    """Return the scales by item, and what else the csv file at a path says of the items; a mapping holds items by scale."""
    return ItemTable({}, _by_item(scales), {}) if isinstance(scales, Mapping) else read_items(scales)


def _by_item(scales: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the scale of each item."""
    by_item: dict[str, str] = {}
    for scale, items in scales.items():
        if isinstance(items, str) or not items:
            raise ParameterError(f"scales[{scale!r}] is {items!r}, expected a list of items; pass the items of each scale")
        for item in map(str, items):
            if by_item.setdefault(item, str(scale)) != str(scale):
                found = f"item {item!r} is in the scales {by_item[item]!r} and {str(scale)!r}"
                raise DataError(f"{found}, expected one; pass one scale after the other")
    return by_item


def _checked(keys: Mapping[str, int]) -> Mapping[str, int]:
    for item, key in keys.items():
        if key not in (1, -1):
            raise ParameterError(f"keys[{item!r}] is {key!r}, expected 1 or -1 (reversed)")
    return {str(item): int(key) for item, key in keys.items()}


def _require_known(items: Sequence[str], names: Sequence[str], parameter: str) -> None:
    """Raise DataError for an item that is not a column."""
    known = set(names)
    unknown = [item for item in items if item not in known]
    if unknown:
        raise DataError(f"{parameter} has the item {unknown[0]!r}, expected names of columns such as {names[0]!r}; correct it")
