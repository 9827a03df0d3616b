"""import_array: write an array, in memory or lazy, as a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dfact.data.codebook import Codebook
from dfact.data.confounders import RANGE_REMEDY, apply_ranges, as_frame, check_ranges, warn_implausible
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.array import LabelledArray, array_source, axis_labels
from dfact.data.sources.base import RowSource
from dfact.data.sources.entrance import as_arrays, as_labels, as_numbers
from dfact.data.sources.frames import frame_codebook, is_dask_frame
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import EmptyRows, check_empty_rows, column_limits, stored_limits
from dfact.data.weights import check_weights, weight_series
from dfact.errors import DataError, ParameterError
from dfact.imports.writing.storage_types import missing_code_for
from dfact.imports.writing.writer import Participants, Progress, dataset_writer
from dfact.lazy import sp
from dfact.storage.location import parse_location

Implicit = Literal["zero", "missing"]


def _stored_type(dtype: np.dtype[Any], codes: Sequence[float], name: str) -> tuple[np.dtype[Any], int | None]:
    """Choose the stored dtype and missing code for values of this dtype with these missing codes."""
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    if dtype.kind == "f":
        return np.dtype(np.float32 if dtype.itemsize <= 4 else np.float64), None
    if dtype.kind not in "iu":
        raise DataError(f"{name} holds {dtype}, expected integers or floats; encode text as numbers first")
    possible = _representable(codes, dtype)
    stored = np.dtype(np.int32) if dtype.itemsize == 8 else dtype.newbyteorder("=")
    fitting = _representable(possible, stored)
    return stored, fitting[0] if fitting else missing_code_for(stored) if possible else None


def _representable(codes: Sequence[float], dtype: np.dtype[Any]) -> list[int]:
    limits = np.iinfo(dtype)
    return [int(code) for code in codes if float(code).is_integer() and limits.min <= code <= limits.max]


def import_array(
    X: ArrayLike | Any,
    path: str | PathLike[str],
    *,
    missing: float | Sequence[float] | None = None,
    row_labels: Sequence[Any] | None = None,
    column_labels: Sequence[Any] | None = None,
    mode_labels: Sequence[Sequence[Any] | None] | None = None,
    valid_range: tuple[float, float] | ArrayLike | None = None,
    confounders: Any = None,
    confounder_ranges: Mapping[str, tuple[float, float]] | None = None,
    weights: ArrayLike | None = None,
    codebook: Codebook | None = None,
    empty_rows: EmptyRows = "error",
    implicit: Implicit = "zero",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Write an array as a dataset, a chunk of rows at a time.

    Parameters
    ----------
    X : array of two or more modes, rows (participants) first
        NumPy, SciPy sparse, dask, xarray or Zarr, a data frame of any library, or an array of a file (``LabelledArray``) with
        its labels and missing codes. A sparse matrix is stored in CSR format, with its explicit zeros.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    missing : number or numbers
        Codes of missing entries; NaN is always missing. 0 is not allowed if implicit entries are zeros.
    row_labels, column_labels : sequences
        Names; by default the labels of X, else 0, 1, ….
    mode_labels : sequence of sequences
        Names along the third and further modes, None for a mode without; by default the labels of X.
    valid_range : pair of numbers, or one for every column
        Lowest and highest valid value; a value outside raises an error. By default the range of the data.
    confounders : table with a row for each row of X
        See :mod:`dfact.data.confounders`.
    confounder_ranges : dict from name to pair of numbers
        Lowest and highest plausible value of continuous confounders; a value outside is missing. Without a range, values far
        from all others draw a warning.
    weights : numbers, one for each row of X
        Weights of the rows, such as survey weights: finite, at least 0, and some above 0. A dropped row needs none.
    codebook : Codebook
        Wording, levels and missing codes of some or all columns, which reports and exports show.
    empty_rows : {"error", "drop"}
        Treatment of a row without any entry: raise an error, or drop it. ``Dataset.dropped_rows`` counts dropped rows.
    implicit : {"zero", "missing"}
        Meaning of the entries that a sparse matrix does not store.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (rows written, total rows).

    Returns
    -------
    Dataset
        The new dataset, opened from ``path``.

    Raises
    ------
    DataError
        Text, infinite values, values outside ``valid_range``, an empty row or column, wrong numbers of labels,
        an invalid weight.
    ParameterError
        An invalid ``empty_rows``, ``implicit`` or ``confounder_ranges``; implicit entries in an array that is not sparse.
    StoreError
        ``path`` exists, or cannot be written; no partial dataset is left.

    Examples
    --------
    >>> import dfact, pandas as pd
    >>> answers = pd.DataFrame({"Q1": [0, 3, 9], "Q2": [1, 2, 0]}, index=["Ada", "Ben", "Eve"])
    >>> dfact.import_array(answers, "answers.zarr", missing=9, valid_range=(0, 3))
    <Dataset 3×2 int32, 16.67% missing at answers.zarr>
    """
    if isinstance(X, (str, PathLike)):
        raise DataError(f"X is the path {str(X)!r}, expected an array; open the file first, such as zarr.open({str(X)!r})")
    if column_labels is None and is_dask_frame(X):
        names: Any = axis_labels(X, 1)
        column_labels = names
    X = as_arrays(X)
    codebook = frame_codebook(X) if codebook is None else codebook
    source = array_source(X)
    name = X.name if isinstance(X, LabelledArray) else "X"
    if len(source.shape) < 2 or 0 in source.shape:
        raise DataError(f"{name} has shape {source.shape}, expected at least one row and one column (rows first, then columns)")
    codes = [] if missing is None else np.atleast_1d(as_numbers("missing", missing, "codes of missing entries")).tolist()
    codes += [code for code in X.missing if code not in codes] if isinstance(X, LabelledArray) else []
    check_empty_rows(empty_rows)
    _check_implicit(implicit, codes, sparse=source.is_sparse)
    dtype, missing_code = _stored_type(source.dtype, codes, name)
    columns = _labels(column_labels, axis_labels(X, 1), source.shape[1], "column")
    people = _participants(X, source.shape[0], row_labels, confounders, confounder_ranges or {}, weights, drop=empty_rows == "drop")
    modes = _mode_labels(mode_labels, X, source.shape)
    limits = None if valid_range is None else stored_limits(column_limits(valid_range, source.shape[1]), dtype)
    with dataset_writer(
        parse_location(path),
        source.shape,
        dtype,
        missing_code=missing_code,
        column_labels=columns,
        name=name,
        empty=empty_rows,
        sparse=source.is_sparse,
        implicit_value=np.nan if implicit == "missing" else 0.0,
        overwrite=overwrite,
    ) as writer:
        rows = writer.write(_read_rows(source, X, dtype, codes, missing_code), limits=limits, progress=progress)
        writer.finish(rows, people, valid_range=limits, mode_labels=modes, codebook=codebook)
    return open_dataset(path)


def _participants(
    X: Any, n: int, row_labels: Any, confounders: Any, ranges: Mapping[str, tuple[float, float]], weights: Any, *, drop: bool
) -> Participants:
    """Return the facts about the n rows of X; raise DataError on invalid ones, except weights of rows that may be dropped."""
    own = axis_labels(X, 0)
    labels = None if row_labels is None and own is None else _labels(row_labels, own, n, "row")
    frame = None if confounders is None else as_frame(confounders, n, ranges)
    plausible = check_ranges(ranges, {} if frame is None else dict.fromkeys(map(str, frame)))
    if frame is not None:
        frame, plausible = apply_ranges(frame, plausible)
        warn_implausible(frame, plausible, RANGE_REMEDY)
    series = None if weights is None else weight_series(weights, n)
    if series is not None and not drop:
        check_weights(series)
    return Participants(labels, frame, plausible, series)


def _read_rows(
    source: RowSource, X: Any, dtype: np.dtype[Any], codes: Sequence[float], missing_code: int | None
) -> Iterator[NDArray[Any] | sp.csr_array]:
    """Yield the rows as they are stored, a chunk at a time."""
    for rows in source.read_ranges(Layout.of(source.shape)):
        values = source.read_native(rows.start, rows.stop)
        _refuse_undeclared(X, values, codes)
        yield _to_stored(values, dtype, codes, missing_code)


def _refuse_undeclared(X: Any, values: NDArray[Any] | sp.csr_array, codes: Sequence[float]) -> None:
    """Raise DataError if the values hold a code that their format uses for missing entries but that nothing declares."""
    for code in X.undeclared if isinstance(X, LabelledArray) else ():
        stored = np.asarray(values if isinstance(values, np.ndarray) else values.data)
        held = stored[stored == code][:1]
        if held.size and not any(held[0] == each for each in codes):  # compared in the type of the values, which may round the code
            text = f"{held[0]!s}"
            remedy = f"declare it as missing with missing={text} (--missing {text}), or with the attribute _FillValue in the file"
            raise DataError(
                f"{X.name} holds {text}, the value of entries that were never written, which the file does not declare; {remedy}"
            )


def _check_implicit(implicit: str, codes: Sequence[float], *, sparse: bool) -> None:
    """Raise ParameterError or DataError on an invalid meaning of implicit entries, given the codes of missing ones."""
    if implicit not in get_args(Implicit):
        raise ParameterError(f"implicit (--implicit) is {implicit!r}, expected 'zero' or 'missing'")
    if implicit == "missing" and not sparse:
        raise ParameterError(
            "implicit (--implicit) is 'missing' and X is dense, expected a sparse X; mark missing entries with NaN or missing="
        )
    if sparse and implicit == "zero" and 0 in codes:
        remedy = "leave out 0, pass implicit='missing', or import X.toarray()"
        raise DataError(f"missing contains 0, the value of all implicit entries of the sparse X, expected other codes; {remedy}")


def _labels(explicit: Sequence[Any] | None, labels_of_X: NDArray[Any] | None, n: int, kind: str) -> NDArray[Any]:
    if explicit is None:
        return labels_of_X if labels_of_X is not None else np.arange(n).astype(str).astype(object)
    labels = np.asarray([str(label) for label in as_labels(f"{kind}_labels", explicit)], dtype=object)
    if len(labels) != n:
        raise DataError(f"{kind}_labels has {len(labels)} entries, expected {n}, one for each {kind} of X")
    return labels


def _mode_labels(explicit: Sequence[Sequence[Any] | None] | None, X: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any] | None, ...]:
    """Return the labels of the third and further modes."""
    if explicit is None:
        found = [axis_labels(X, axis) for axis in range(2, len(shape))]
    else:
        named = [None if each is None else as_labels(f"mode_labels of mode {mode}", each) for mode, each in enumerate(explicit, start=3)]
        found = [None if each is None else np.asarray([str(label) for label in each], dtype=object) for each in named]
    sizes = [None if each is None else len(each) for each in found]
    if len(found) != len(shape) - 2 or any(size not in (None, expected) for size, expected in zip(sizes, shape[2:], strict=True)):
        raise DataError(
            f"mode_labels has {sizes} labels, expected as many as X has slices in its modes from the third on, {list(shape[2:])}"
        )
    return tuple(found)


def _to_stored(
    values: NDArray[Any] | sp.csr_array, dtype: np.dtype[Any], codes: Sequence[float], missing_code: int | None
) -> NDArray[Any] | sp.csr_array:
    """Convert the values to their stored dtype and all missing codes to the stored one."""
    if isinstance(values, np.ndarray):
        return _convert(values, dtype, codes, missing_code)
    return sp.csr_array((_convert(values.data, dtype, codes, missing_code), values.indices, values.indptr), shape=values.shape)


def _convert(values: NDArray[Any], dtype: np.dtype[Any], codes: Sequence[float], missing_code: int | None) -> NDArray[Any]:
    out = values.astype(dtype)
    if values.dtype.itemsize == 8 and dtype == np.int32 and not np.isin(values[out != values], codes).all():
        raise DataError("X holds integers beyond 32 bits, expected at most 32 bits; convert it to float64 first")
    for code in codes:
        missing = np.nan if dtype.kind == "f" else missing_code
        if missing is not None and missing != code:
            out[values == code] = missing
    return out
