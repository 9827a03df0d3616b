"""What all factorizations share: scikit-learn's contract, input, memory plan, executor, row factors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted, validate_data

from dfact.data.coerce import as_dataset
from dfact.data.confounders import ConfounderEncoding
from dfact.data.dataset import Dataset
from dfact.data.ingest.array import axis_labels
from dfact.data.layout import Layout
from dfact.data.lazy_results import compute_chunks
from dfact.data.sources.base import RowSource
from dfact.data.sources.dask import dask_array
from dfact.data.validation import require_no_empty_columns, warn_unobserved_rows
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.executors import resolve_executor
from dfact.engine.memory_plan import Footprint, Plan, make_plan
from dfact.engine.partitions import partitions, rechunk_rows
from dfact.engine.session import CheckpointableSession, Executor, Session, StateRows
from dfact.errors import DataError, ParameterError
from dfact.models.fitted_schema import OPTIONAL, Shape, Size, of_rows
from dfact.models.parameters import COUNT, check, describe_value, is_count
from dfact.models.traits import ModelTraits
from dfact.progress import Iteration
from dfact.storage.files import TemporaryFolder
from dfact.storage.groups import WRITE_EMPTY_CHUNKS, compressor, create_array, open_store, write_chunk

MODELS: dict[str, type["Factorization"]] = {}
"""All factorizations by name: a model is stored, and found again, as one of these."""
SAVED_TYPES: dict[str, type[Any]] = {}
"""The dataclasses among their fitted attributes."""
RUNTIME_PARAMETERS = ("executor", "memory_limit", "callbacks", "checkpoint", "checkpoint_every")
"""Parameters that change nothing of a model."""


class Factorization(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the estimators. A subclass says what it holds (``_footprint``) and brings fit and transform."""

    executor: Any
    memory_limit: int | str | None
    checkpoint: str | PathLike[str] | None
    checkpoint_every: int
    callbacks: Sequence[Callable[[Iteration], None]]
    dtype: Any
    components_: Annotated[NDArray[Any], Shape(("k", "m"))]
    factors_: Any
    n_features_in_: Annotated[int, Size("m")]
    feature_names_in_: Annotated[NDArray[Any], Shape(("m",), "texts"), OPTIONAL]
    column_labels_: Annotated[NDArray[Any], Shape(("m",), "texts")]
    row_labels_: Annotated[Any, Shape(("n",), "texts", rows=True)] | None
    offset_: Annotated[NDArray[Any], Shape(("m",))] | None
    fingerprint_: str | None
    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False), OPTIONAL]
    n_iter_: Annotated[int, OPTIONAL]
    converged_: Annotated[bool, OPTIONAL]
    explained_share_: Annotated[float, OPTIONAL]
    traits: ClassVar[ModelTraits] = ModelTraits()
    """Whether negative values are refused."""
    _parts: tuple[type[Any], ...] = ()
    """Dataclasses among the fitted attributes."""
    # What is fitted is declared by its type; here what all have, and what a subclass may have without a word.

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        MODELS[cls.__name__] = cls
        SAVED_TYPES.update({part.__name__: part for part in cls._parts})

    def fit(self, X: Any, y: None = None) -> Self:
        """Fit the data X."""
        raise NotImplementedError  # each model's own

    def fit_transform(self, X: Any, y: None = None, **known: Any) -> Any:
        """Fit, and return the factors of the same rows; further arguments are those of ``fit``."""
        return self.fit(X, y, **known)._row_factors

    @property
    def _row_factors(self) -> Any:
        """What ``transform`` of the fitted rows gives."""
        return self.factors_

    @property
    def loadings_(self) -> pd.DataFrame:
        """Items × components."""
        items: pd.Index[Any] = pd.Index(self.column_labels_, name="item")
        return pd.DataFrame(self.components_.T, index=items, columns=self.get_feature_names_out())

    def _dataset(self, X: Any, confounders: Any, *, reset: bool) -> Dataset:
        """X as a dataset; sets (``reset``) or checks the number and the names of its columns."""
        if isinstance(X, (np.ndarray, pd.DataFrame, list, tuple)) or sp.issparse(X):
            checked = validate_data(
                self, X, reset=reset, dtype="numeric", accept_sparse="csr", ensure_all_finite="allow-nan", allow_nd=self.traits.tensor
            )
            dataset = as_dataset(checked, confounders)
            if isinstance(X, pd.DataFrame):
                columns = np.asarray(X.columns.astype(str), dtype=object)
                dataset = replace(dataset, column_labels=columns, labels=axis_labels(X, 0))
        else:
            dataset = as_dataset(X, confounders, self._client(X))
            if reset:
                _check_n_features(self, _Shaped(dataset), reset=True)
                _check_feature_names(self, _Shaped(dataset), reset=True)
        self._check_modes(dataset)
        # What an import subtracted from the answers; of an array nobody knows.
        offset = dataset.offset if isinstance(X, (str, PathLike, Dataset)) else None
        if reset:
            for told in ("selection_", "stability_"):  # of an earlier fit
                self.__dict__.pop(told, None)
            self.column_labels_ = np.asarray(dataset.column_labels, dtype=object)
            self.offset_ = offset
            self.row_labels_ = dataset.label_source
            self.fingerprint_ = dataset.stored_fingerprint
        else:
            self._check_columns(dataset, offset)
        self._check_observed(dataset, reset=reset)
        return dataset

    def _client(self, X: Any) -> Any:
        """The client of the cluster on which a dask array stays; None where passes over it run in this process, or of other data."""
        array = dask_array(X)
        if array is None or not array.ndim:
            return None
        return getattr(resolve_executor(self.executor, Layout.of(array.shape).n_partitions), "client", None)

    def _check_modes(self, dataset: Dataset) -> None:
        if len(dataset.shape) != 2 and not self.traits.tensor:
            raise DataError(f"X has {len(dataset.shape)} modes, expected rows (participants) and columns (items)")

    def _check_shape(self, dataset: Dataset) -> None:
        """Refuse new rows of other columns than the fitted ones, whatever they hold."""
        self._check_modes(dataset)
        self._check_columns(dataset, None)

    def _known_of_rows(self, n: int) -> dict[str, Any]:
        """What ``transform`` is told of n rows, checked: tables and arrays by name, of which each chunk of a dask array gets its rows."""
        return {}

    def _for_new_rows(self) -> Self:
        """A copy to be sent to where rows are transformed: without what the fitted rows have of their own."""
        left = {*RUNTIME_PARAMETERS, "prior"}  # what a process there may use is its own affair
        parameters = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in left and (name != "init" or isinstance(value, str))
        }
        light = type(self)(**parameters | {"executor": "inline"})
        light.set_output(transform="default")
        left = {"selection_", "stability_", *of_rows(type(self))}
        for name, value in vars(self).items():
            if name.endswith("_") and not name.startswith("_") and name not in left and not name.endswith("_history_"):
                setattr(light, name, value)
        return light

    def _computed(self, lazy: Any, X: Any, out: str | PathLike[str]) -> NDArray[Any] | zarr.Array[Any]:
        """A dask array of the rows' factors, written to ``out``."""
        return gather_rows(compute_chunks(lazy, self._client(X)), lazy.shape, lazy.dtype, stored=False, out=out)

    def _check_observed(self, dataset: Dataset, *, reset: bool) -> None:
        """What becomes of columns and rows without any observed entry."""
        if reset:
            require_no_empty_columns(dataset)
        warn_unobserved_rows(dataset)

    def _check_columns(self, dataset: Dataset, offset: NDArray[np.float64] | None) -> None:
        """Refuse other columns than the fitted ones: in another order, or shifted otherwise, they would go unnoticed."""
        fitted, found = ([str(label) for label in labels] for labels in (self.column_labels_, dataset.column_labels))
        if len(found) != len(fitted):
            raise DataError(f"X has {len(found)} items, the model was fitted on {len(fitted)}; pass those items alone")
        unnamed = [str(j) for j in range(len(found))]
        if found != fitted and unnamed not in (found, fitted):
            j = next(j for j in range(len(found)) if found[j] != fitted[j])
            raise DataError(f"column {j} of X is {found[j]!r}, of the fitted data {fitted[j]!r}; pass the fitted items in their order")
        if offset is not None and self.offset_ is not None and not np.array_equal(offset, self.offset_):
            j = int(np.flatnonzero(offset != self.offset_)[0])
            where = f"answers of {found[j]!r} begin at {offset[j]:g} in X, at {self.offset_[j]:g} in the fitted data"
            raise DataError(f"{where}; import X with the valid_range of the fitted data")

    def _working_dtype(self, dataset: Dataset | RowSource) -> np.dtype[Any]:
        """``dtype`` or, by default, float32 for answers and float32 data, float64 for what does not fit in it."""
        if self.dtype is not None:
            dtype: np.dtype[Any] = np.dtype(self.dtype)
            if dtype not in (np.float32, np.float64):
                raise ParameterError(f"dtype is {dtype}, expected float32 or float64")
            return dtype
        return np.dtype("float32" if np.can_cast(dataset.dtype, np.float32) else "float64")

    def _covariate_columns(self, dataset: Dataset) -> int:
        """Number of encoded confounder columns, c."""
        return 0 if dataset.confounders is None else len(ConfounderEncoding.fit(dataset.confounders).columns)

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        raise NotImplementedError  # each model's own

    def _plan(self, dataset: Dataset, footprint: Footprint, memory_limit: int | str | None = None) -> tuple[Executor, Plan]:
        executor = resolve_executor(self.executor, Layout.of(dataset.shape).n_partitions)
        workers = executor.workers(self.memory_limit if memory_limit is None else memory_limit)
        return executor, make_plan(dataset.source, self._working_dtype(dataset), footprint, workers)

    def _open(self, dataset: Dataset, covariates: NDArray[Any] | None, footprint: Footprint) -> CheckpointableSession:
        """A session on the dataset's partitions, refused if the memory plan says so."""
        executor, plan = self._plan(dataset, footprint)
        plan.check()
        return executor.open(partitions(dataset.source, dataset.missing_code, covariates), plan)

    def _open_to_fit(
        self,
        dataset: Dataset,
        covariates: NDArray[Any] | None,
        footprint: Footprint,
        checkpoint: str | PathLike[str] | None = None,
        **further: Any,
    ) -> Session:
        """The same for a fit, which a checkpoint keeps; ``further`` is what it follows from beside data and parameters."""
        session, path = self._open(dataset, covariates, footprint), self.checkpoint if checkpoint is None else checkpoint
        if path is None:
            return session
        check(self, {"checkpoint_every": (is_count(self.checkpoint_every), COUNT)})
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
        dtype = self._working_dtype(dataset).name
        known = {"model": type(self).__name__, "data": dataset.fingerprint, "dtype": dtype, "covariates": covariates}
        identity = {name: describe_value(value) for name, value in (known | parameters | further | known).items()}
        return CheckpointedSession(session, path, self.checkpoint_every, identity)

    def _check_parameters(self) -> None:
        """Refuse parameters that cannot be, whatever the data."""

    def _check_loaded(self) -> None:
        """Refuse what was loaded where it cannot be, though its attributes are what the class declares."""
        self._check_parameters()

    def _as_factors(self, factors: Any) -> NDArray[Any]:
        """What ``inverse_transform`` was given, as an array (n, k)."""
        check_is_fitted(self)
        found = np.asarray(factors)
        if found.ndim != 2 or found.shape[1] != self._n_features_out:
            raise DataError(f"the factors have shape {found.shape}, expected (n, {self._n_features_out})")
        return found

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self.traits.nonnegative
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class _Shaped:
    """The shape of a dataset as scikit-learn's checks want to see it."""

    def __init__(self, dataset: Dataset) -> None:
        self.shape = dataset.shape


def plan(model: Factorization, data: Any, memory_limit: int | str | None = None) -> Plan:
    """What fitting the model to the data would hold in memory and on disk, before anything runs.

    ``print(dfact.plan(model, data))`` shows it as a table; ``plan.fits`` says whether fit would start.
    ``memory_limit`` replaces the model's.
    """
    dataset = as_dataset(data, client=model._client(data))
    covariates = model._covariate_columns(dataset)
    return model._plan(dataset, model._footprint(dataset.shape, covariates, model._working_dtype(dataset)), memory_limit)[1]


def gather_rows(
    parts: Iterable[NDArray[Any]], shape: tuple[int, int], dtype: np.dtype[Any], *, stored: bool, out: str | PathLike[str] | None = None
) -> NDArray[Any] | zarr.Array[Any]:
    """Row factors (n, k) from the partitions: an array, or where the data is ``stored`` a Zarr array.

    The Zarr array is at ``out``, a folder or an address, whole or not at all; without ``out`` it lies in a temporary folder
    that goes when the array does. Workers of a cluster that reach the place write their rows themselves.
    """
    if not stored and out is None:
        result = np.empty(shape, dtype)
        _write_rows(parts, result)
        return result
    settings: dict[str, Any] = {
        "shape": shape,
        "chunks": (min(Layout.of(shape).chunk_rows, shape[0]), shape[1]),
        "dtype": dtype,
        "compressors": compressor(dtype),
        "dimension_names": ("row", "component"),
    }
    if out is not None:
        with create_array(out, "rows", **settings) as array:
            _write_rows(parts, array)
        return zarr.open_array(open_store(out, read_only=True), mode="r")
    folder = TemporaryFolder("factors")
    place = folder.path / "factors.zarr"
    written = zarr.create_array(place, config=WRITE_EMPTY_CHUNKS, **settings)
    try:
        _write_rows(parts, written)
    except BaseException:
        folder.remove()
        raise
    array = zarr.open_array(open_store(place, read_only=True), mode="r")
    folder.remove_with(array)
    return array


def columns_of(rows: NDArray[Any], columns: slice | NDArray[np.intp]) -> NDArray[Any]:
    """Some of the columns, as what becomes of rows that workers write."""
    return rows[:, columns]


def _write_rows(parts: Iterable[NDArray[Any]], target: Any) -> None:
    if isinstance(target, zarr.Array):
        if isinstance(parts, StateRows) and parts.write(target):
            return
        parts = rechunk_rows(parts, target.chunks[0])  # type: ignore[assignment]  # arrays in, arrays out
    start = 0
    for rows in parts:
        write_chunk(target, start, rows)
        start += len(rows)
