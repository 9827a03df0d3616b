"""join_datasets: several questionnaires over partly the same participants become one dataset."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from tempfile import TemporaryFile, gettempdir
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.confounders import Kind, as_levels, normalize
from dfact.data.dataset import KIND, Dataset
from dfact.data.ingest.writer import dataset_writer, missing_code_for, smallest_integer
from dfact.data.layout import Layout
from dfact.data.sources.base import RowSource
from dfact.data.statistics import as_float
from dfact.data.stored_dataset import open_dataset
from dfact.errors import DataError, ParameterError, StoreError
from dfact.storage.groups import attributes, ensure_absent, ensure_not_source, open_group
from dfact.storage.location import parse_location, stem

How = Literal["outer", "inner"]
DatasetLike = Dataset | str | PathLike[str]
_Rows = Generator[NDArray[Any], None, None]

_MAX_READS = 2  # of each chunk on average; putting the rows in order in a file costs a read, a write and a read
_EXACT = 1 << 24  # whole numbers up to here are exact in single precision


def join_datasets(
    datasets: Mapping[str, DatasetLike] | Sequence[DatasetLike],
    path: str | PathLike[str],
    *,
    how: How = "outer",
    prefix: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Write several datasets side by side as one, their rows matched by the participants' labels.

    Whoever is not in a dataset misses all its answers. The rows are those of the first dataset in their
    order, then those of the second that are new, and so on; with ``how="inner"`` those of the first that
    are in all others. Each column keeps its valid range and its offset.

    Memory holds the labels, the confounders, one chunk of the result and one of each dataset, never all
    answers. A dataset whose chunks the order of the result would have read more than twice on average is
    first put in that order in a temporary file (in TMPDIR, as large as its values uncompressed): one read
    of the dataset, one write, one read.

    Parameters
    ----------
    datasets : dict from name to dataset, or sequence of datasets
        Two or more datasets (n_d, m_d) of two modes or their paths, with row labels; not row-compressed
        ones. In a sequence a dataset's name is that of its folder, without the ending.
    path : str or path
        Where the joined dataset goes (a folder, usually ``*.zarr``, or an address such as ``s3://bucket/a.zarr``).
    how : {"outer", "inner"}
        Keep whoever is in any of the datasets, or in all of them.
    prefix : bool
        Put the dataset's name before each column label, as in "phq.Q1"; otherwise only before those
        that several datasets have.
    overwrite : bool
        Replace the dataset that is there.
    progress : function
        Called with (rows written, rows in all).

    Returns
    -------
    Dataset
        (n, m_1 + m_2 + …), opened from ``path``. Whole numbers are stored in the smallest of uint8,
        int16 and int32 that holds all valid ranges and a code for missing; where a dataset holds
        floats, or none of these do, in the float type that holds all of them exactly. Its confounders
        are those of all datasets, its ``dropped_rows`` the sum of theirs.

    Raises
    ------
    DataError
        Row labels that are not there or not unique, a confounder that two datasets tell differently of
        one participant or hold as different kinds, no participant in common (inner), a column without
        any answer, column labels that are not unique, row-compressed values, more than two modes.
    ParameterError
        Fewer than two datasets, two of the same name, another ``how``.
    StoreError
        A dataset cannot be read; ``path`` exists, or cannot be written. Nothing is left behind.

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
    members = _members(datasets)
    ensure_not_source(path, [member.dataset.path for member in members])
    labels = _participants(members, how)
    positions = [member.labels.get_indexer(labels) for member in members]
    confounders = _confounders(members, positions, labels)
    columns = _column_labels(members, prefix=prefix)
    dtype = _storage(members)
    code = missing_code_for(dtype)
    shape = (len(labels), len(columns))
    with dataset_writer(
        path, shape, dtype, missing_code=code, column_labels=columns, name="the joined dataset", overwrite=overwrite
    ) as writer:
        done = 0
        for rows in _joined(members, positions, shape, dtype):
            writer.append(rows)
            done += len(rows)
            if progress is not None:
                progress(done, len(labels))
        writer.finish(
            valid_range=np.concatenate([member.dataset.valid_range for member in members]),
            offset=np.concatenate([member.dataset.offset for member in members]),
            confounders=confounders,
            row_labels=labels.to_numpy(dtype=object),
            dropped_before=sum(member.dataset.dropped_rows for member in members),
        )
    return open_dataset(path)


@dataclass(frozen=True)
class _Input:
    """One of the datasets that are joined."""

    name: str
    dataset: Dataset
    labels: "pd.Index[Any]"  # of its rows, each unique


def _members(datasets: Mapping[str, DatasetLike] | Sequence[DatasetLike]) -> list[_Input]:
    if isinstance(datasets, (str, PathLike, Dataset)):
        raise ParameterError("datasets is a single dataset, expected two or more, in a list or a dict from name to dataset")
    named = isinstance(datasets, Mapping)
    given = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
    if len(given) < 2:
        raise ParameterError(f"datasets holds {len(given)} dataset(s), expected two or more")
    opened = [dataset if isinstance(dataset, Dataset) else open_dataset(dataset) for dataset in given]
    names = list(map(str, datasets)) if named else [stem(d.path) if d.path else f"dataset{i}" for i, d in enumerate(opened, 1)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ParameterError(f"two datasets have the name {repeated!r}; rename the folder of one, or pass a dict from name to dataset")
    return [_member(name, dataset) for name, dataset in zip(names, opened, strict=True)]


def _member(name: str, dataset: Dataset) -> _Input:
    if dataset.source.is_sparse:
        raise DataError(f"{name} is row-compressed, which join_datasets does not take; import it from a dense array")
    if len(dataset.shape) != 2:
        raise DataError(f"{name} has shape {dataset.shape}, expected two modes, participants × items")
    if dataset.label_source is None or _is_numbered(dataset):
        raise DataError(
            f"{name} has no row labels to match its participants by; import it with id_column= (--id-column), or row_labels= for an array"
        )
    labels = dataset.row_labels
    repeated = labels[labels.duplicated()].unique()
    if len(repeated):
        first, again = np.flatnonzero(labels == repeated[0])[:2]
        shown = ", ".join(repr(label) for label in repeated[:3]) + (", …" if len(repeated) > 3 else "")
        where = f"{repeated[0]!r} labels row {first} and again row {again}"
        raise DataError(f"{name} has row labels that are not unique: {shown} ({where}); every participant needs its own")
    return _Input(name, dataset, labels)


def _is_numbered(dataset: Dataset) -> bool:
    """Whether the row labels are but the numbers that the rows had before some were dropped."""
    return dataset.labels is None and dataset.path is not None and bool(attributes(open_group(dataset.path, KIND)).get("numbered_rows"))


def _participants(members: list[_Input], how: How) -> "pd.Index[Any]":
    """The row labels of the result, in their order."""
    labels = members[0].labels
    for member in members[1:]:
        # By get_indexer: pandas' isin takes ten times as long for text.
        if how == "outer":
            labels = labels.append(member.labels[labels.get_indexer(member.labels) < 0])
        else:
            labels = labels[member.labels.get_indexer(labels) >= 0]
    if len(labels) == 0:
        examples = "; ".join(f"{member.name}: {', '.join(map(repr, member.labels[:3]))}, …" for member in members)
        raise DataError(f"no participant is in all datasets; labels must be written the same in each ({examples})")
    return labels.rename("row")


def _column_labels(members: list[_Input], *, prefix: bool) -> NDArray[Any]:
    own = [[str(label) for label in member.dataset.column_labels] for member in members]
    holders = pd.Series([label for labels in own for label in set(labels)]).value_counts()
    joined = [
        f"{member.name}.{label}" if prefix or holders[label] > 1 else label
        for member, labels in zip(members, own, strict=True)
        for label in labels
    ]
    repeated = pd.Index(joined)[pd.Index(joined).duplicated()]
    if len(repeated):
        raise DataError(f"the joined dataset would have two columns {repeated[0]!r}; give each its own label, or each dataset another name")
    return np.asarray(joined, dtype=object)


def _storage(members: list[_Input]) -> np.dtype[Any]:
    """The type that holds the values of all datasets exactly; integers keep one number free for missing."""
    dtypes = [member.dataset.dtype for member in members]
    whole = [member.dataset.valid_range for member in members if member.dataset.dtype.kind in "iu"]
    low, high = (min((limits.min() for limits in whole), default=0.0), max((limits.max() for limits in whole), default=0.0))
    if all(dtype.kind in "iu" for dtype in dtypes):
        return smallest_integer(low, high) or np.dtype(np.float64)
    exact = max(-low, high) <= _EXACT
    return reduce(np.promote_types, [dtype for dtype in dtypes if dtype.kind == "f"], np.dtype(np.float32 if exact else np.float64))


def _confounders(members: list[_Input], positions: list[NDArray[np.intp]], labels: "pd.Index[Any]") -> pd.DataFrame | None:
    """The confounders of all datasets, a row for each label."""
    given: dict[str, list[_Reported]] = {}
    for member, rows in zip(members, positions, strict=True):
        if member.dataset.confounders is None:
            continue
        for name, values in member.dataset.confounders.items():
            categorical = isinstance(values.dtype, pd.CategoricalDtype)
            plain = (as_levels(values) if categorical else values).reset_index(drop=True)
            # −1 stands for who is not there, and is no row either.
            taken = plain.reindex(rows).reset_index(drop=True)
            given.setdefault(str(name), []).append(_Reported(member.name, "categorical" if categorical else "continuous", taken))
    if not given:
        return None
    columns = {name: _reconciled(name, parts, labels) for name, parts in given.items()}
    return normalize(pd.DataFrame(columns), {name: parts[0].kind for name, parts in given.items()})


@dataclass(frozen=True)
class _Reported:
    """What one dataset says of a confounder, a value for each row of the result."""

    dataset: str
    kind: Kind
    values: "pd.Series[Any]"


def _reconciled(name: str, parts: list[_Reported], labels: "pd.Index[Any]") -> "pd.Series[Any]":
    """The first value that a dataset gives of each participant; all that give one must give the same."""
    first, *others = parts
    values = first.values
    for other in others:
        if other.kind != first.kind:
            remedy = f"import both with confounders={{{name!r}: …}} (--confounder NAME:KIND) of the same kind"
            raise DataError(f"confounder {name!r} is {first.kind} in {first.dataset} and {other.kind} in {other.dataset}; {remedy}")
        differ = np.flatnonzero(values.notna() & other.values.notna() & (values != other.values))
        if differ.size:
            row = differ[0]
            source = next(part.dataset for part in parts if part.values.notna().iloc[row])
            shown = [f"{value:g}" if first.kind == "continuous" else repr(value) for value in (values.iloc[row], other.values.iloc[row])]
            what = f"participant {labels[row]!r} has the confounder {name!r} {shown[0]} in {source} and {shown[1]} in {other.dataset}"
            raise DataError(f"{what} ({differ.size} participant(s) differ); correct one, or import one dataset without it")
        values = values.where(values.notna(), other.values)
    return values


def _joined(
    members: list[_Input], positions: list[NDArray[np.intp]], shape: tuple[int, int], dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """The rows of the result in stored units, a chunk at a time; ``positions`` are where each lies in a dataset, −1 for nowhere."""
    n, step = shape[0], Layout.of(shape).chunk_rows
    code = missing_code_for(dtype)
    starts = range(0, n, step)
    with ExitStack() as stack:
        found = []
        for member, rows in zip(members, positions, strict=True):
            runs = [rows[start : start + step] for start in starts]
            wanted = [run[run >= 0] for run in runs]
            found.append((member.dataset, runs, stack.enter_context(closing(_rows_in_order(member.dataset.source, wanted)))))
        for i, start in enumerate(starts):
            out = np.full((min(step, n - start), shape[1]), np.nan if code is None else code, dtype)
            column = 0
            for dataset, runs, values in found:
                width = dataset.shape[1]
                out[runs[i] >= 0, column : column + width] = _recoded(next(values), dataset.missing_code, dtype, code)
                column += width
            yield out


def _recoded(values: NDArray[Any], missing_code: int | None, dtype: np.dtype[Any], new_code: int | None) -> NDArray[Any]:
    if new_code is None:
        floating: NDArray[Any] = as_float(values, missing_code, dtype)
        return floating
    out = values.astype(dtype)
    if missing_code is not None:
        out[values == missing_code] = new_code
    return out


def _rows_in_order(source: RowSource, wanted: list[NDArray[np.intp]]) -> _Rows:
    """The wanted rows of each run of the result, in their order there."""
    runs = list(source.read_ranges(Layout.of(source.shape)))
    direct = _count_reads(runs, wanted) <= _MAX_READS * len(runs)
    return (_from_chunks if direct else _from_sorted_file)(source, runs, wanted)


def _chunks_of(rows: NDArray[np.intp], runs: list[slice]) -> NDArray[np.intp]:
    first: NDArray[np.intp] = np.searchsorted([run.start for run in runs], rows, side="right")
    return first - 1


def _count_reads(runs: list[slice], wanted: list[NDArray[np.intp]]) -> int:
    """How many chunks :func:`_from_chunks` would read."""
    held, count = -1, 0
    for rows in wanted:
        chunks = np.unique(_chunks_of(rows, runs))
        if chunks.size:
            count += chunks.size - int(held in chunks)
            held = _cached_chunk_first(chunks, held)[-1]
    return count


def _cached_chunk_first(chunks: NDArray[np.intp], held: int) -> list[int]:
    return sorted(chunks.tolist(), key=lambda chunk: chunk != held)


def _from_chunks(source: RowSource, runs: list[slice], wanted: list[NDArray[np.intp]]) -> _Rows:
    """Each chunk read as it is needed; the last one stays for the next run, which mostly begins in it."""
    held, values = -1, np.empty((0, *source.shape[1:]), source.dtype)
    for rows in wanted:
        out = np.empty((len(rows), *source.shape[1:]), source.dtype)
        chunks = _chunks_of(rows, runs)
        for chunk in _cached_chunk_first(np.unique(chunks), held):
            if chunk != held:
                held, values = chunk, source.read(runs[chunk].start, runs[chunk].stop)
            mine = chunks == chunk
            out[mine] = values[rows[mine] - runs[chunk].start]
        yield out


def _from_sorted_file(source: RowSource, runs: list[slice], wanted: list[NDArray[np.intp]]) -> _Rows:
    """Each chunk read once, its rows dealt out to the runs of the result in a file, each run's in ascending order."""
    row_bytes = source.shape[1] * source.dtype.itemsize
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in wanted])])
    run_of = np.full(source.shape[0], -1, np.int32)
    for i, rows in enumerate(wanted):
        run_of[rows] = i
    try:
        with TemporaryFile(prefix="dfact-join-") as file:
            filled = starts[:-1].copy()
            for run in runs:
                values, target = source.read(run.start, run.stop), run_of[run]
                order = np.argsort(target, kind="stable")
                values = values[order]
                edges = np.searchsorted(target[order], np.arange(len(wanted) + 1))
                for i in np.flatnonzero(np.diff(edges)).tolist():
                    part = values[edges[i] : edges[i + 1]]
                    file.seek(int(filled[i]) * row_bytes)
                    file.write(part.data)
                    filled[i] += len(part)
            for i, rows in enumerate(wanted):
                file.seek(int(starts[i]) * row_bytes)
                ascending = np.frombuffer(file.read(len(rows) * row_bytes), source.dtype).reshape(len(rows), source.shape[1])
                yield ascending[np.argsort(np.argsort(rows))]
    except StoreError:
        raise
    except OSError as error:
        size = f"{source.shape[0] * row_bytes / 2**30:.2g} GiB"
        raise StoreError(f"cannot put rows in order in {gettempdir()}: {error.strerror}; set TMPDIR to a disk with {size} free") from error
