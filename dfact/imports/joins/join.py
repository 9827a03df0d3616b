"""join_datasets: join several questionnaires with overlapping participants into one dataset."""

import re
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import reduce
from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.codebook import Codebook, Item, compare_items
from dfact.data.dataset import KIND, Dataset
from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.statistics import as_float
from dfact.data.stored_dataset import open_dataset
from dfact.errors import DataError, ParameterError, warn
from dfact.imports.joins.participants import join_confounders, join_weights
from dfact.imports.writing.bucket_file import BucketFile
from dfact.imports.writing.storage_types import missing_code_for, storage_type
from dfact.imports.writing.writer import Participants, Progress, dataset_writer
from dfact.storage.groups import attributes, ensure_absent, open_group
from dfact.storage.location import parse_location, stem

How = Literal["outer", "inner"]
DatasetLike = Dataset | str | PathLike[str]
_Rows = Generator[NDArray[Any], None, None]

_MAX_READS = 2  # average number of reads of each chunk; sorting the rows in a file costs a read, a write and a read
_EXACT = 1 << 24  # whole numbers up to here are exact in single precision


def join_datasets(
    datasets: Mapping[str, DatasetLike] | Sequence[DatasetLike],
    path: str | PathLike[str],
    *,
    how: How = "outer",
    prefix: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Dataset:
    """Join the columns of several datasets, with rows matched by the participants' labels.

    The answers of a participant who is not in a dataset are missing in its columns. The rows are those of the first
    dataset in their order, then the new ones of the second, and so on; with ``how="inner"`` those of the first that
    are in all others. Each column keeps its valid range and its offset.

    Memory holds the labels, the confounders, one chunk of the result and one of each dataset, never all
    answers. If the order of the result requires more than two reads of a dataset's chunks on average, its rows are
    first sorted in a temporary file (in TMPDIR, as large as its values uncompressed): one read
    of the dataset, one write, one read.

    Parameters
    ----------
    datasets : dict from name to dataset, or sequence of datasets
        Two or more dense datasets (n_d, m_d) of two modes or their paths, with row labels.
        In a sequence, the name of a dataset is the name of its folder, without the suffix.
    path : str or path
        Location of the joined dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    how : {"outer", "inner"}
        Keep the participants in any of the datasets, or those in all of them.
    prefix : bool
        Put the dataset's name before each column label, as in "phq.Q1"; otherwise only before labels
        that occur in several datasets.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (rows written, total rows).
    note : function
        Called with a sentence about the participants of each dataset: how many there are, and how many are in all and in no other.

    Warns
    -----
    UserWarning
        A dataset has no participant in common with the others, or labels that differ from those of others by case, spaces, leading
        zeros or a decimal point alone.

    Returns
    -------
    Dataset
        The joined dataset (n, m_1 + m_2 + …), opened from ``path``. Whole numbers are stored in the smallest of uint8,
        int16 and int32 that holds all valid ranges and a code for missing. If a dataset holds
        floats, or none of these types suffices, all values are stored in the float type that holds them exactly. The
        confounders, the weights and the items of the codebook come from all datasets; ``dropped_rows`` is the sum of theirs.

    Raises
    ------
    DataError
        Row labels that are missing or not unique, a confounder with different values for
        one participant or of different kinds, a participant with two weights or with none where others have one, items of one
        name with other levels, another direction or another range in their codebooks (unless ``prefix``), no participant in
        common (inner), a column without any answer, column labels that are not unique, sparse values, more than two modes.
    ParameterError
        Fewer than two datasets, two of the same name, an invalid ``how``.
    StoreError
        A dataset cannot be read; ``path`` exists, or cannot be written. No partial dataset is left.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> phq = dfact.import_array(np.array([[0, 3], [1, 2]]), "phq.zarr", row_labels=["Ada", "Ben"])
    >>> gad = dfact.import_array(np.array([[2], [1]]), "gad.zarr", row_labels=["Ben", "Eve"])
    >>> joined = dfact.join_datasets([phq, gad], "joined.zarr", prefix=True)
    >>> [str(label) for label in joined.column_labels]
    ['phq.0', 'phq.1', 'gad.0']
    >>> list(joined.row_labels)
    ['Ada', 'Ben', 'Eve']
    """
    path = parse_location(path)
    if how not in get_args(How):
        raise ParameterError(f"how is {how!r}, expected 'outer' or 'inner'")
    ensure_absent(path, overwrite=overwrite)
    inputs = _open_inputs(datasets)
    surveys = [input_.name for input_ in inputs if input_.dataset.replicate_weights is not None]
    if surveys:
        found = f"{surveys[0]} has replicate weights, which a join leaves out"
        raise DataError(f"{found}, expected datasets without any; join the tables and import them with --replicate-weights")
    labels = _participants(inputs, how)
    positions = [input_.labels.get_indexer(labels) for input_ in inputs]
    for sentence in _overlap(inputs, _participants(inputs, "outer") if how == "inner" else labels):
        if note is not None:
            note(sentence)
    named = [(input_.name, input_.dataset) for input_ in inputs]
    confounders, weights = join_confounders(named, positions, labels), join_weights(named, positions, labels)
    columns = _column_labels(inputs, prefix=prefix)
    codebook = _join_codebooks(inputs, columns, prefix=prefix)
    dtype = _stored_type(inputs)
    code = missing_code_for(dtype)
    shape = (len(labels), len(columns))
    with dataset_writer(
        path, shape, dtype, missing_code=code, column_labels=columns, name="the joined dataset", overwrite=overwrite
    ) as writer:
        writer.finish(
            writer.write(_join_rows(inputs, positions, shape, dtype), progress=progress),
            Participants(labels.to_numpy(dtype=object), confounders, weights=weights),
            valid_range=np.concatenate([input_.dataset.valid_range for input_ in inputs]),
            offset=np.concatenate([input_.dataset.offset for input_ in inputs]),
            dropped_rows=sum(input_.dataset.dropped_rows for input_ in inputs),
            codebook=codebook,
        )
    return open_dataset(path)


@dataclass(frozen=True)
class _Input:
    """One of the datasets to join."""

    name: str
    dataset: Dataset
    labels: "pd.Index[Any]"  # unique row labels


def _open_inputs(datasets: Mapping[str, DatasetLike] | Sequence[DatasetLike]) -> list[_Input]:
    if isinstance(datasets, (str, PathLike, Dataset)):
        raise ParameterError("datasets is a single dataset, expected two or more, in a list or a dict from name to dataset")
    named = isinstance(datasets, Mapping)
    items = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
    if len(items) < 2:
        raise ParameterError(f"datasets holds {len(items)} dataset(s), expected two or more")
    opened = [dataset if isinstance(dataset, Dataset) else open_dataset(dataset) for dataset in items]
    names = list(map(str, datasets)) if named else [stem(d.path) if d.path else f"dataset{i}" for i, d in enumerate(opened, 1)]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ParameterError(
            f"two datasets have the name {duplicate!r}, expected unique names; rename a folder, or pass a dict from name to dataset"
        )
    return [_check_input(name, dataset) for name, dataset in zip(names, opened, strict=True)]


def _check_input(name: str, dataset: Dataset) -> _Input:
    if dataset.source.is_sparse:
        raise DataError(f"{name} is sparse, expected a dense dataset; import it from a dense array")
    if len(dataset.shape) != 2:
        raise DataError(f"{name} has shape {dataset.shape}, expected two modes, participants × items")
    if dataset.label_source is None or _is_numbered(dataset):
        raise DataError(
            f"{name} has no row labels, expected labels of its participants; import it with id_column= (--id-column), "
            "or row_labels= for an array"
        )
    labels = dataset.row_labels
    duplicates = labels[labels.duplicated()].unique()
    if len(duplicates):
        first, second = np.flatnonzero(labels == duplicates[0])[:2]
        listed = ", ".join(repr(label) for label in duplicates[:3]) + (", …" if len(duplicates) > 3 else "")
        rows = f"rows {first} and {second} are both {duplicates[0]!r}"
        raise DataError(f"{name} has duplicate row labels {listed} ({rows}), expected unique ones; give every participant its own label")
    return _Input(name, dataset, labels)


def _is_numbered(dataset: Dataset) -> bool:
    """Check whether the row labels are merely the rows' numbers from before some rows were dropped."""
    return dataset.labels is None and dataset.path is not None and bool(attributes(open_group(dataset.path, KIND)).get("numbered_rows"))


def _participants(inputs: list[_Input], how: How) -> "pd.Index[Any]":
    """Return the row labels of the result, in their order."""
    labels = inputs[0].labels
    for input_ in inputs[1:]:
        # get_indexer, as pandas' isin takes ten times as long for text.
        if how == "outer":
            labels = labels.append(input_.labels[labels.get_indexer(input_.labels) < 0])
        else:
            labels = labels[input_.labels.get_indexer(labels) >= 0]
    if len(labels) == 0:
        examples = "; ".join(f"{input_.name}: {', '.join(map(repr, input_.labels[:3]))}, …" for input_ in inputs)
        raise DataError(f"no participant is in all datasets, expected at least one; write labels the same way in each ({examples})")
    return labels.rename("row")


def _overlap(inputs: list[_Input], labels: "pd.Index[Any]") -> Iterator[str]:
    """Yield a sentence about the participants of each dataset, given all labels; warn of datasets without common participants."""
    is_in = np.stack([input_.labels.get_indexer(labels) >= 0 for input_ in inputs])
    n = is_in.sum(axis=0)
    plain: dict[str, Any] = {}
    lonely: dict[str, str] = {}
    remedy = "write the labels the same way in all datasets"
    for input_, own in zip(inputs, is_in, strict=True):
        alone = labels[own & (n == 1)]
        yield f"{input_.name}: {own.sum()} participants, {(n[own] == len(inputs)).sum()} of them in all datasets, {len(alone)} in no other"
        texts = {_plain(label): label for label in alone if isinstance(label, str)}
        alike = [(plain[text], label) for text, label in texts.items() if text in plain]
        plain |= texts
        if alike:
            found = f"{len(alike)} participant(s) of {input_.name} have labels that differ from others by case, spaces or zeros alone"
            warn(f"{found}, such as {alike[0][1]!r} and {alike[0][0]!r}; {remedy}")
        elif len(alone) == own.sum():
            lonely[input_.name] = ", ".join(map(repr, alone[:3])) + (", …" if len(alone) > 3 else "")
    if lonely:
        found = " and ".join(f"{name} ({shown})" for name, shown in lonely.items())
        warn(f"no participant in common with other datasets: {found}; {remedy}")


def _plain(label: str) -> str:
    """Return a label without what programs and people write in several ways: P1 for "p001 ", 1 for 1.0."""
    text = unicodedata.normalize("NFKC", label).strip().casefold()
    return re.sub(r"(?<!\d)0+(?=\d)", "", re.sub(r"^(\d+)[.]0+$", r"\1", text))


def _column_labels(inputs: list[_Input], *, prefix: bool) -> NDArray[Any]:
    labels_by_input = [[str(label) for label in input_.dataset.column_labels] for input_ in inputs]
    n_inputs = pd.Series([label for labels in labels_by_input for label in set(labels)]).value_counts()
    joined = [
        f"{input_.name}.{label}" if prefix or n_inputs[label] > 1 else label
        for input_, labels in zip(inputs, labels_by_input, strict=True)
        for label in labels
    ]
    duplicates = pd.Index(joined)[pd.Index(joined).duplicated()]
    if len(duplicates):
        raise DataError(
            f"the joined dataset would have two columns {duplicates[0]!r}, expected unique labels; rename one, or one of the datasets"
        )
    return np.asarray(joined, dtype=object)


def _join_codebooks(inputs: list[_Input], columns: NDArray[Any], *, prefix: bool) -> Codebook | None:
    """Return the items of all columns; without ``prefix``, raise DataError for items of one name with answers of other meanings."""
    codebooks = [(input_.name, input_.dataset.codebook) for input_ in inputs if input_.dataset.codebook is not None]
    seen: dict[str, tuple[str, Item]] = {}
    for name, item in ((name, item) for name, codebook in codebooks for item in codebook if not prefix):
        earlier_name, earlier = seen.setdefault(item.name, (name, item))
        difference = compare_items(earlier, item)
        if difference is not None:
            found = f"item {item.name!r} {difference.first} in {earlier_name} and {difference.second} in {name}"
            remedy = f"import both with the same {difference.remedy}, or keep them apart with prefix=True (--prefix)"
            raise DataError(f"{found}, expected the same answers; {remedy}")
    items = [item for input_ in inputs for item in input_.dataset.codebook or map(Item, map(str, input_.dataset.column_labels))]
    return Codebook(tuple(replace(item, name=name) for item, name in zip(items, columns, strict=True))) if codebooks else None


def _stored_type(inputs: list[_Input]) -> np.dtype[Any]:
    """Choose the type that holds the values of all datasets exactly; integers reserve one number for missing."""
    dtypes = [input_.dataset.dtype for input_ in inputs]
    integer_ranges = [input_.dataset.valid_range for input_ in inputs if input_.dataset.dtype.kind in "iu"]
    low = min((limits.min() for limits in integer_ranges), default=0.0)
    high = max((limits.max() for limits in integer_ranges), default=0.0)
    if all(dtype.kind in "iu" for dtype in dtypes):
        return storage_type(low, high, integers=True)
    exact = max(-low, high) <= _EXACT
    return reduce(np.promote_types, [dtype for dtype in dtypes if dtype.kind == "f"], np.dtype(np.float32 if exact else np.float64))


def _join_rows(
    inputs: list[_Input], positions: list[NDArray[np.intp]], shape: tuple[int, int], dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """Yield the rows of the result in stored units, by chunks; ``positions`` are their row numbers in each dataset, −1 for none."""
    n, step = shape[0], Layout.of(shape).chunk_rows
    code = missing_code_for(dtype)
    starts = range(0, n, step)
    with ExitStack() as stack:
        readers = []
        for input_, rows in zip(inputs, positions, strict=True):
            by_chunk = [rows[start : start + step] for start in starts]
            wanted = [chunk[chunk >= 0] for chunk in by_chunk]
            readers.append((input_.dataset, by_chunk, stack.enter_context(closing(_rows_in_order(input_.dataset.source, wanted)))))
        for i, start in enumerate(starts):
            out = np.full((min(step, n - start), shape[1]), np.nan if code is None else code, dtype)
            column = 0
            for dataset, by_chunk, values in readers:
                width = dataset.shape[1]
                out[by_chunk[i] >= 0, column : column + width] = _recoded(next(values), dataset.missing_code, dtype, code)
                column += width
            yield out


def _recoded(values: NDArray[Any], missing_code: int | None, dtype: np.dtype[Any], new_code: int | None) -> NDArray[Any]:
    if new_code is None:
        floats: NDArray[Any] = as_float(values, missing_code, dtype)
        return floats
    out = values.astype(dtype)
    if missing_code is not None:
        out[values == missing_code] = new_code
    return out


def _rows_in_order(source: RowSource, wanted: list[NDArray[np.intp]]) -> _Rows:
    """Yield the ``wanted`` rows of each chunk of the result, in their order there."""
    ranges = list(source.read_ranges(Layout.of(source.shape)))
    direct = _count_reads(ranges, wanted) <= _MAX_READS * len(ranges)
    return (_from_chunks if direct else _from_sorted_file)(source, ranges, wanted)


def _chunk_numbers(rows: NDArray[np.intp], ranges: list[slice]) -> NDArray[np.intp]:
    following: NDArray[np.intp] = np.searchsorted([chunk.start for chunk in ranges], rows, side="right")
    return following - 1


def _count_reads(ranges: list[slice], wanted: list[NDArray[np.intp]]) -> int:
    """Count the chunks that :func:`_from_chunks` would read."""
    cached, count = -1, 0
    for rows in wanted:
        chunks = np.unique(_chunk_numbers(rows, ranges))
        if chunks.size:
            count += chunks.size - int(cached in chunks)
            cached = _cached_chunk_first(chunks, cached)[-1]
    return count


def _cached_chunk_first(chunks: NDArray[np.intp], cached: int) -> list[int]:
    return sorted(chunks.tolist(), key=lambda chunk: chunk != cached)


def _from_chunks(source: RowSource, ranges: list[slice], wanted: list[NDArray[np.intp]]) -> _Rows:
    """Read each chunk of the source when it is needed; cache the last one, in which the next chunk of the result usually begins."""
    cached, values = -1, np.empty((0, *source.shape[1:]), source.dtype)
    for rows in wanted:
        out = np.empty((len(rows), *source.shape[1:]), source.dtype)
        chunks = _chunk_numbers(rows, ranges)
        for chunk in _cached_chunk_first(np.unique(chunks), cached):
            if chunk != cached:
                cached, values = chunk, source.read(ranges[chunk].start, ranges[chunk].stop)
            selected = chunks == chunk
            out[selected] = values[rows[selected] - ranges[chunk].start]
        yield out


def _from_sorted_file(source: RowSource, ranges: list[slice], wanted: list[NDArray[np.intp]]) -> _Rows:
    """Read each chunk of the source once and distribute its rows in a file by chunk of the result, ascending within each."""
    targets = np.full(source.shape[0], -1, np.int32)
    for i, rows in enumerate(wanted):
        targets[rows] = i
    sizes = np.array([len(rows) for rows in wanted], np.int64)
    with BucketFile(sizes, source.dtype, source.shape[1:], purpose="join", what="rows") as buckets:
        for chunk in ranges:
            buckets.add(targets[chunk], source.read(chunk.start, chunk.stop))
        for i, rows in enumerate(wanted):
            yield buckets.read(i)[np.argsort(np.argsort(rows))]
