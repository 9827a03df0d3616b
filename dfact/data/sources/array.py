"""Arrays of any kind as row sources, with their labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.sources.base import ArraySource, LazySource, RowSource, ZarrSource
from dfact.data.sources.dask import dask_array
from dfact.data.sources.frames import index_texts, is_dask_frame
from dfact.data.sources.hidden import visible, visible_chunks
from dfact.data.sources.sparse import CSRSource
from dfact.errors import DataError
from dfact.lazy import is_data_frame, is_sparse, pd, sp

_POSITIONS = np.dtype(np.int32)  # of stored entries


@dataclass(frozen=True)
class LabelledArray:
    """An array with the labels of its modes."""

    values: Any
    """NumPy array, SciPy sparse array, or a source that is read by rows; all have ``T``. The first mode holds the rows."""
    labels: tuple[NDArray[Any] | None, ...] = ()
    """Labels of each mode, None for a mode without labels; modes beyond the tuple have none."""
    missing: tuple[float, ...] = ()
    """Codes that the file declares as missing."""
    undeclared: tuple[float, ...] = ()
    """Codes that mark missing entries in this format, but that the file does not declare: an entry with one is an error."""
    name: str = "X"
    """Name in messages."""
    notes: tuple[str, ...] = ()
    """Sentences about the file for the user."""

    def __post_init__(self) -> None:
        for mode, (labels, size) in enumerate(zip(self.labels, self.values.shape, strict=False), start=1):
            if labels is not None and len(labels) != size:
                raise DataError(f"{self.name} has {len(labels)} labels of mode {mode}, expected {size}; the file is damaged")

    def transpose(self) -> LabelledArray:
        """Return the array with its modes in reverse order."""
        labels = (*self.labels, *[None] * (len(self.values.shape) - len(self.labels)))
        return replace(self, values=self.values.T, labels=labels[::-1])


def array_source(X: Any) -> RowSource:
    """Return a source that reads an array of any kind by rows, without a second copy in memory."""
    if isinstance(X, LabelledArray):
        X = X.values
    if isinstance(X, RowSource):
        return X
    if isinstance(X, zarr.Array):
        return ZarrSource(X)
    if is_sparse(X):
        return CSRSource(_canonical(X))
    if is_data_frame(X):
        return ArraySource(np.ascontiguousarray(frame_values(X)))
    if hasattr(X, "dask") or hasattr(X, "dims"):
        lazy = dask_array(X)
        return LazySource(visible_chunks(lazy) if lazy is not None else X.data if hasattr(X, "dims") else X)
    return ArraySource(np.ascontiguousarray(visible(np.asanyarray(X))))


def _canonical(X: Any) -> sp.csr_array:
    """Return a sparse matrix by rows, with ascending column numbers without duplicates, in 32 bits if these hold them.

    It is a copy unless it has that form; copies of the positions alone share the entries.
    """
    matrix = sp.csr_array(X)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if matrix.indices.dtype.itemsize > _POSITIONS.itemsize and max(*matrix.shape, matrix.nnz) <= np.iinfo(_POSITIONS).max:
        positions = matrix.indices.astype(_POSITIONS), matrix.indptr.astype(_POSITIONS)  # every pass reads them
        matrix = sp.csr_array((matrix.data, *positions), shape=matrix.shape)
    return matrix


def frame_values(frame: pd.DataFrame) -> NDArray[Any]:
    """Return a table's values in their common type; pandas alone would convert columns of nullable types to objects."""
    if frame.empty or not all(pd.api.types.is_numeric_dtype(dtype) for dtype in frame.dtypes):
        return frame.to_numpy()
    dtype = np.result_type(*(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)) for dtype in frame.dtypes))
    if not frame.isna().to_numpy().any():
        return frame.to_numpy(dtype)
    return frame.to_numpy(np.result_type(dtype, np.float32), na_value=np.nan)


def axis_labels(X: Any, axis: int) -> NDArray[Any] | None:
    """Return the labels that a data frame of pandas or Dask, an xarray DataArray or an array of a file has along an axis."""
    if isinstance(X, LabelledArray):
        return X.labels[axis] if axis < len(X.labels) else None
    if is_data_frame(X):
        index = (X.index, X.columns)[axis]
        return None if isinstance(index, pd.RangeIndex) else index_texts(index)
    if is_dask_frame(X):
        return np.asarray([str(name) for name in X.columns], dtype=object) if axis else None
    if hasattr(X, "dims") and X.dims[axis] in X.coords:
        return np.asarray(X.coords[X.dims[axis]].values).astype(str).astype(object)
    return None
