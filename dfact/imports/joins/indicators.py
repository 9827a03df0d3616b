"""expand_categories: replace nominal items by an indicator column for each of their categories."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.codebook import Codebook, Item
from dfact.data.dataset import Dataset, Genotypes
from dfact.data.layout import Layout
from dfact.data.statistics import as_float
from dfact.data.stored_dataset import open_dataset
from dfact.errors import DataError, ParameterError
from dfact.imports.joins.join import DatasetLike
from dfact.imports.writing.storage_types import missing_code_for, storage_type
from dfact.imports.writing.writer import Participants, Progress, dataset_writer
from dfact.storage.groups import ensure_absent
from dfact.storage.location import parse_location

_MAX_CATEGORIES = 100


def expand_categories(
    dataset: DatasetLike,
    path: str | PathLike[str],
    *,
    items: Sequence[str] | None = None,
    like: DatasetLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write a dataset with a column of 0 and 1 for each category of its nominal items, and its other items as they are.

    The column ``Q3=2`` is 1 for participants whose answer to Q3 is 2, else 0, and missing where the answer is. Models of counts or
    of ordered answers, such as :class:`dfact.GradeOfMembership`, then describe each category separately. An answer of 0 is a
    category like others, so that everyone who answered has a response. The rows keep labels, confounders and weights. The dataset is read
    twice, and memory holds one chunk of it.

    Parameters
    ----------
    dataset : Dataset or path
        A dense dataset (n, m) of two modes.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    items : sequence of names or patterns, optional
        The nominal items; by default all.
    like : Dataset or path, optional
        A dataset that this function wrote, whose categories are used, for rows that a model fitted to it is to transform. Items that
        it has unchanged stay unchanged; ``items`` is not given then.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (rows written, total rows).

    Returns
    -------
    Dataset
        The new dataset (n, number of columns), opened from ``path``. Columns are in the order of the items and, within an
        item, of the codes. The codebook has the labels of the categories.

    Raises
    ------
    DataError
        Answers that are not whole numbers, an item with more than 100 categories, a category that ``like`` does not have, sparse
        values, more than two modes.
    ParameterError
        Items that the dataset does not have; both ``items`` and ``like``.
    StoreError
        ``path`` exists, or cannot be written; no partial dataset is left.

    References
    ----------
    Woodbury et al. (1978): a probability for each category of an item.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> dataset = dfact.import_array(np.array([[0, 3], [2, 1], [1, 3]]), "answers.zarr", column_labels=["colour", "age"])
    >>> nominal = dfact.expand_categories(dataset, "nominal.zarr", items=["colour"])
    >>> [str(label) for label in nominal.column_labels]
    ['colour=0', 'colour=1', 'colour=2', 'age']
    """
    source, location = _open(dataset), parse_location(path)
    ensure_absent(location, overwrite=overwrite)
    if like is not None and items is not None:
        raise ParameterError("items and like are both given, expected one of them; like has the items of its dataset")
    expansion = _expansion(source, _nominal(source, items)) if like is None else _expansion_like(source, _open(like))
    dtype = _stored_type(source, expansion)
    code = missing_code_for(dtype)
    shape = (source.shape[0], len(expansion.labels))
    with dataset_writer(
        location, shape, dtype, missing_code=code, column_labels=expansion.labels, name="the dataset", empty="keep", overwrite=overwrite
    ) as writer:
        expanded = (expansion.expand(values, source.offset) for _, values in _read(source, Layout.of(shape)))
        rows = ((each if code is None else np.where(np.isnan(each), code, each)).astype(dtype) for each in expanded)
        writer.finish(
            writer.write(rows, progress=progress),
            Participants(
                None if source.label_source is None else source.row_labels.to_numpy(dtype=object),
                source.confounders,
                source.confounder_ranges,
                source.weights,
                genotypes=Genotypes(source.genotypes.population),
            ),
            valid_range=expansion.gather(source.valid_range, [0, 1]),
            offset=expansion.gather(source.offset, 0),
            dropped_rows=source.dropped_rows,
            codebook=None if source.codebook is None else Codebook(tuple(expansion.describe(source.codebook))),
        )
    return open_dataset(path)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """Columns of the expanded dataset: an item of the source each, and the code that a 1 stands for."""

    labels: NDArray[Any]
    """Labels of the columns (c,)."""
    sources: NDArray[np.intp]
    """Column of the source (c,)."""
    codes: NDArray[np.float64]
    """The code in original units (c,); NaN for a column that is as in the source."""

    @property
    def indicators(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.codes)

    def expand(self, values: NDArray[Any], offset: NDArray[Any]) -> NDArray[Any]:
        """Return the columns (rows, c) of values (rows, m) in stored units, NaN where missing."""
        V = values[:, self.sources]
        indicators = self.indicators
        # A comparison with NaN is False, and the mask of missing entries is added to it.
        matches = (V[:, indicators] == (self.codes - offset[self.sources])[indicators]).astype(V.dtype)
        matches[np.isnan(V[:, indicators])] = np.nan
        V[:, indicators] = matches
        return V

    def gather(self, per_item: NDArray[Any], indicator: Any) -> NDArray[Any]:
        """Return an attribute (m, …) of the items for each column; it is ``indicator`` for indicators."""
        values = per_item[self.sources].copy()
        values[self.indicators] = indicator
        return values

    def describe(self, codebook: Codebook) -> list[Item]:
        """Return an item of the codebook for each column."""
        items: list[Item] = []
        for label, j, code in zip(self.labels, self.sources, self.codes, strict=True):
            item = codebook.items[j]
            if np.isnan(code):
                items.append(item)
                continue
            category = dict(item.levels).get(float(code), f"{code:g}")
            items.append(
                Item(str(label), f"{item.text or item.name}: {category}", valid_range=(0, 1), source=item.source, scale=item.scale)
            )
        return items


def _open(dataset: DatasetLike) -> Dataset:
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if len(opened.shape) != 2:
        raise DataError(f"the dataset has shape {opened.shape}, expected two modes, participants × items")
    if opened.source.is_sparse:
        raise DataError("the dataset is sparse, expected a dense one: import it from a dense array")
    return opened


def _nominal(dataset: Dataset, patterns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the items that the patterns name."""
    names = [str(label) for label in dataset.column_labels]
    if patterns is None:
        return list(range(len(names)))
    chosen: set[int] = set()
    for pattern in patterns:
        found = [j for j, name in enumerate(names) if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            raise ParameterError(f"items has {pattern!r}, which is not an item of the dataset; expected some of {', '.join(names[:5])}, …")
        chosen.update(found)
    return sorted(chosen)


def _read(dataset: Dataset, layout: Layout) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield blocks of the layout with their ranges of rows, in stored units, NaN where missing; each chunk is decoded once."""
    dtype = np.result_type(dataset.dtype, np.float32)
    for chunk in dataset.source.read_ranges(layout):
        stored = dataset.source.read(chunk.start, chunk.stop)
        for start in range(0, len(stored), layout.block_rows):
            block = as_float(stored[start : start + layout.block_rows], dataset.missing_code, dtype)
            yield slice(chunk.start + start, chunk.start + start + len(block)), block


def _expansion(dataset: Dataset, nominal: Sequence[int]) -> _Expansion:
    """Find the categories that occur, in a read of the dataset."""
    found: dict[int, set[float]] = {j: set() for j in nominal}
    for rows, values in _read(dataset, Layout.of(dataset.shape)):
        for j in nominal:
            present = np.unique(values[:, j])
            present = present[~np.isnan(present)]
            if (present != np.round(present)).any():
                fraction = present[present != np.round(present)][0]
                at = int(np.flatnonzero(values[:, j] == fraction)[0])
                where = f"row {dataset.row_labels[rows.start + at]!r}, column {str(dataset.column_labels[j])!r} holds {fraction:g}"
                raise DataError(f"{where}, expected the code of a category, a whole number; leave the item out of items (--items)")
            found[j].update((present + dataset.offset[j]).tolist())
            if len(found[j]) > _MAX_CATEGORIES:
                name = str(dataset.column_labels[j])
                raise DataError(
                    f"item {name!r} has more than {_MAX_CATEGORIES} categories, expected fewer; leave it out of items (--items)"
                )
    return _columns(dataset, found)


def _expansion_like(dataset: Dataset, like: Dataset) -> _Expansion:
    """Return the expansion that made ``like``, after a check that it has all categories of the dataset."""
    names, columns = [str(label) for label in dataset.column_labels], [str(label) for label in like.column_labels]
    categories: dict[int, set[float]] = {}
    for j, name in enumerate(names):
        codes = {float(column.removeprefix(f"{name}=")) for column in columns if _is_category_of(column, name)}
        if name not in columns:
            categories[j] = codes
    expansion = _columns(dataset, categories)
    if list(expansion.labels) != columns:
        missing = next((column for column in columns if column not in expansion.labels), columns[0])
        raise DataError(f"column {missing!r} of like comes from no item of the dataset, expected the items of like in their order")
    occurring = _expansion(dataset, list(categories))
    unknown = [str(label) for label in occurring.labels if label not in expansion.labels]
    if unknown:
        raise DataError(
            f"the dataset has the category {unknown[0]!r} ({len(unknown)} in total), expected those of like; recode the answers"
        )
    return expansion


def _is_category_of(column: str, name: str) -> bool:
    code = column.removeprefix(f"{name}=")
    return code != column and code.lstrip("-").isdecimal()


def _columns(dataset: Dataset, categories: Mapping[int, set[float]]) -> _Expansion:
    labels: list[str] = []
    sources: list[int] = []
    codes: list[float] = []
    for j, name in enumerate(dataset.column_labels):
        each = sorted(categories[j]) if j in categories else [np.nan]
        labels += [str(name) if np.isnan(code) else f"{name}={code:.0f}" for code in each]
        sources += [j] * len(each)
        codes += each
    if len(set(labels)) < len(labels):
        duplicate = next(label for label in labels if labels.count(label) > 1)
        raise DataError(f"two columns would have the label {duplicate!r}, expected unique ones; rename the item of that name")
    return _Expansion(np.asarray(labels, dtype=object), np.asarray(sources, np.intp), np.asarray(codes, np.float64))


def _stored_type(dataset: Dataset, expansion: _Expansion) -> np.dtype[Any]:
    """Return the smallest type that holds 0, 1, and the items that stay."""
    kept = expansion.sources[~expansion.indicators]
    if len(kept) and dataset.dtype.kind == "f":
        return dataset.dtype
    low, high = dataset.statistics.minimum[kept].min(initial=0), dataset.statistics.maximum[kept].max(initial=1)
    return storage_type(float(low), float(high), integers=True)
