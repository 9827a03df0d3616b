"""Base class of all factorizations: scikit-learn's contract, checks of the data, memory plan, executor, row factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from os import PathLike
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dfact.catalogue import find_part
from dfact.data.codebook import Codebook, compare_items
from dfact.data.coerce import as_dataset
from dfact.data.confounders import ConfounderEncoding, warn_implausible
from dfact.data.dataset import WORDS, Dataset, Kind, kind_of, population_texts
from dfact.data.sources.array import axis_labels
from dfact.data.sources.base import RowSource
from dfact.data.sources.entrance import as_arrays, as_column
from dfact.data.sources.frames import frame_codebook, is_dask_frame
from dfact.data.validation import (
    require_finite,
    require_magnitude,
    require_no_empty_columns,
    require_observed,
    require_variation,
    warn_unobserved_rows,
)
from dfact.data.weights import WeightSummary
from dfact.engine.environment import Environment
from dfact.engine.executors import data_client
from dfact.engine.memory_plan import Footprint, Plan
from dfact.engine.requests import Solver, drive, read_environments
from dfact.engine.session import Session
from dfact.errors import DataError, ParameterError
from dfact.lazy import is_data_frame, is_sparse, pd
from dfact.models.docstrings import with_shared_entries
from dfact.models.fit_task import RUNTIME_PARAMETERS, FitTask, end_callbacks, fitted_attributes, log_end, warn_unconverged
from dfact.models.fitted_schema import OPTIONAL, Shape, Size, row_attributes
from dfact.models.reconstruction import ScoreInterface
from dfact.models.scikit_learn import TransformerInterface, check_is_fitted, checked_array, set_feature_count
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.parameters import check_magnitudes, check_parameters, random_generator
from dfact.progress import Iteration
from dfact.text import html_view


@dataclass(frozen=True, eq=False)
class Variants:
    """The variants of genotypes, an array of m values for each column of a .bim file; the genotypes count A2."""

    chromosome: Annotated[NDArray[Any], Shape(("m",), "texts")]
    name: Annotated[NDArray[Any], Shape(("m",), "texts")]
    position: Annotated[NDArray[Any], Shape(("m",), "integers")]
    A1: Annotated[NDArray[Any], Shape(("m",), "texts")]
    A2: Annotated[NDArray[Any], Shape(("m",), "texts")]
    frequency: Annotated[NDArray[Any], Shape(("m",), finite=False)] | None = None
    """Frequencies of A2 in the data, NaN without any genotype; None for data of versions that did not store them."""

    @classmethod
    def of(cls, table: pd.DataFrame | None) -> Variants | None:
        """Return the variants of a dataset's table; None without one."""
        if table is None:
            return None
        texts = {name: table[name].to_numpy(object) for name in ("chromosome", "name", "A1", "A2")}
        frequency = table["frequency"].to_numpy(np.float64) if "frequency" in table else None
        return cls(position=table["position"].to_numpy(np.int64), frequency=frequency, **texts)

    @classmethod
    def upgrade(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of any version as today's."""
        return {"frequency": None} | saved


MODELS: dict[str, type[Factorization]] = {}
"""All imported factorizations by name. A saved model names its class; see :func:`dfact.models.persistence.load_model`."""
_ANNOTATIONS = ("selection_", "stability_", "comparison_", "sites_")  # attributes that any model may have besides its fitted ones
_OF_GROWTH = ("sums_", "growth_")  # sums and records of models that grow
SAVED_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in (Environment, Variants)}
"""Dataclasses by name that fitted attributes may hold."""


def add_saved_types(*kinds: type[Any]) -> None:
    """Let fitted attributes hold these dataclasses, which a saved model names without their modules."""
    for kind in kinds:
        known = SAVED_TYPES.setdefault(kind.__name__, kind)
        assert known.__module__ == kind.__module__, f"{known.__module__} and {kind.__module__} both name a saved type {kind.__name__}"
        SAVED_TYPES[kind.__name__] = kind


class Factorization(ScoreInterface, TransformerInterface):
    """Base of the estimators.

    A subclass defines ``_prepare``, which checks the parameters and the data, ``_solve``, a generator of passes that stores the
    solution, ``transform``, and its memory footprint (``_footprint``).
    Fitted attributes are declared by their types; :mod:`dfact.models.fitted_schema` checks a loaded model against them.

    Subclasses need not describe the following parameters and attributes: their docstrings get these entries.

    Parameters
    ----------
    executor : None, "inline", "threads", "distributed", address of a Dask scheduler, distributed.Client or cluster
        Executor of the passes; see :func:`dfact.engine.executors.resolve_executor`. It does not affect the result. If it is a
        client, a pickled model keeps the address of its scheduler, and a clone the client itself.
    memory_limit : int or str, optional
        Bytes that a process may use ("4GiB"). ``dfact.plan`` reports beforehand what a fit needs, and how much of its state it spills
        to disk, in TMPDIR.
    checkpoint : path, optional
        Path or URL of a store for the progress of the fit. After an interruption the same fit resumes from it and
        gives bit-identical results. See :mod:`dfact.engine.checkpoint`.
    checkpoint_every : int
        Number of passes between two checkpoint versions.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` after each iteration, such as ``dfact.Progress("fit")``.
    dtype : "float32" or "float64", optional
        Working precision; by default float32 for data that it can hold exactly, such as stored answers, else float64.

    Attributes
    ----------
    column_labels_, row_labels_, offset_, n_features_in_, fingerprint_
        Description of the fitted data. Row labels and fingerprint come from a stored dataset; otherwise they are None.
    variants_ : Variants or None
        ``chromosome``, ``name``, ``position``, ``A1`` and ``A2`` of the SNPs (m,) of a dataset of genotypes, which count A2, and the
        ``frequency`` of A2. Other genotypes are matched with them by name or position, alleles and strand.
    data_kind_ : "genotypes", "answers", "measurements" or None
        Kind of the fitted dataset, which decides the words for its parts; None for arrays.
    row_populations_ : array (n,) or None
        Name of the population that a dataset of genotypes states for each individual, "" where unknown; for tables, plots and reports.
    """

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
    codebook_: Codebook | None
    variants_: Variants | None
    data_kind_: Kind | None
    row_populations_: Annotated[Any, Shape(("n",), "texts", rows=True)] | None
    fingerprint_: str | None
    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False), OPTIONAL]
    n_iter_: Annotated[int, OPTIONAL]
    converged_: Annotated[bool, OPTIONAL]
    explained_share_: Annotated[float, OPTIONAL]
    n_effective_: Annotated[float, OPTIONAL]
    weighted_: Annotated[bool, OPTIONAL]
    environments_: Annotated[tuple[Environment, ...], OPTIONAL]
    traits: ClassVar[ModelTraits] = ModelTraits()
    saved_types: ClassVar[tuple[type[Any], ...]] = ()
    """Dataclasses among the fitted attributes."""

    def __init_subclass__(cls, *, registered: bool = True, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if not registered:
            return
        MODELS[cls.__name__] = cls
        cls.__doc__ = with_shared_entries(cls, Factorization)
        add_saved_types(*cls.saved_types)

    def prepare(self, X: Any, **fit_inputs: Any) -> FitTask[Any]:
        """Check the parameters and the data, and plan the fit; nothing runs, and the model does not change.

        Further arguments are those of ``fit``. :meth:`fit_prepared` runs the fit.
        """
        fitted = type(self)(**self.get_params(deep=False))
        fitted._check_parameters()
        return fitted._prepare(X, **fit_inputs)

    def _prepare(self, X: Any) -> FitTask[Any]:
        """Check the data, set the attributes that describe it, and return the task. The parameters have been checked."""
        raise NotImplementedError  # each model's own

    def solve(self, task: FitTask[Any]) -> Solver[Any]:
        """Solve the task's problem: yield requests for passes, and end by setting all fitted attributes."""
        fitted = type(self)(**self.get_params(deep=False))
        fitted.__dict__.update(fitted_attributes(task.model))
        result = yield from fitted._solve(task)
        fitted.environments_ = tuple((yield from read_environments()))
        for name in fitted_attributes(self):
            delattr(self, name)  # of an earlier fit
        self.__dict__.update(fitted_attributes(fitted))
        return result

    def _solve(self, task: FitTask[Any]) -> Solver[Any]:
        """Yield requests for passes, then set the attributes of the solution. Those that describe the data are set already."""
        raise NotImplementedError  # each model's own

    def fit(self, X: Any, y: None = None, *, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Fit the data X: any array, path or Dataset; NaN is missing. ``checkpoint`` overrides the parameter."""
        del y
        return self.fit_prepared(self.prepare(X), checkpoint=checkpoint)

    def fit_prepared(self, task: FitTask[Any], *, checkpoint: str | PathLike[str] | None = None) -> Self:
        """Run the fit that ``prepare`` returned. ``checkpoint`` overrides the parameter."""
        try:
            with task.open(checkpoint) as session:
                drive(self.solve(task), session)
        finally:
            end_callbacks(self)
        log_end(self)
        warn_unconverged(self)
        return self

    def fit_transform(self, X: Any, y: None = None, **fit_inputs: Any) -> Any:
        """Fit, and return the factors of the same rows. Further arguments are those of ``fit``."""
        return self.fit(X, y, **fit_inputs).row_factors()

    def row_factors(self) -> Any:
        """Return the factors of the fitted rows, equal to their ``transform``."""
        return self.factors_

    @property
    def loadings_(self) -> pd.DataFrame:
        """Loadings as a table, items × components."""
        return pd.DataFrame(self.components_.T, index=self._items, columns=self.get_feature_names_out())

    @property
    def vocabulary(self) -> Vocabulary:
        """Words for the parts of the model and of its data, whose kind decides; without a dataset, and for tensors, the model's own."""
        words, kind = self.traits.vocabulary, getattr(self, "data_kind_", None)
        if kind is None or self.traits.tensor or (kind == "answers" and words.rows != "rows"):
            return words
        return replace(words, rows=WORDS[kind].rows, items=WORDS[kind].columns, entries=WORDS[kind].entries)

    def _fitted_html(self) -> str:
        return model_html(self)

    @property
    def _items(self) -> pd.Index[Any]:
        """Labels of the columns as an index, named as the model calls a column."""
        items: pd.Index[Any] = pd.Index(self.column_labels_, name=self.vocabulary.item)
        return items

    def _dataset(self, X: Any, confounders: Any, sample_weight: Any = None, *, reset: bool) -> Dataset:
        """Return X as a dataset, with these confounders and weights if they are given.

        Set the number and the names of its columns (``reset``), or check them.
        """
        imported = isinstance(X, (str, PathLike, Dataset))
        if not imported and not is_dask_frame(X):  # whose names as_dataset keeps
            X = as_arrays(X)
        if not imported and (isinstance(X, (np.ndarray, list, tuple)) or is_data_frame(X) or is_sparse(X)):
            dataset = as_dataset(checked_array(self, X, reset=reset, tensor=self.traits.tensor), confounders)
            if is_data_frame(X):
                columns = np.asarray(X.columns.astype(str), dtype=object)
                dataset = replace(dataset, column_labels=columns, labels=axis_labels(X, 0), codebook=frame_codebook(X))
        else:
            dataset = as_dataset(X, confounders, None if imported else self._client(X))
            if reset:
                set_feature_count(self, dataset.shape[1])
        self._check_modes(dataset)
        if not reset:
            dataset = self._by_fitted_columns(dataset)
        # The values that an import subtracted from the answers are not known for arrays.
        offset = dataset.offset if imported else None
        if reset:
            for annotation in _ANNOTATIONS:  # they describe an earlier fit
                self.__dict__.pop(annotation, None)
            self.column_labels_ = np.asarray(dataset.column_labels, dtype=object)
            self.offset_ = offset
            self.row_labels_ = dataset.label_source
            self.fingerprint_ = dataset.stored_fingerprint
            self.codebook_ = dataset.codebook
            self.variants_ = Variants.of(dataset.genotypes.variants)
            self.data_kind_ = None if (kind := kind_of(dataset)) == "values" else kind
            self.row_populations_ = population_texts(dataset.genotypes.population)
            if confounders is not None and dataset.confounders is not None:
                remedy = "set the implausible values of {name} to NaN"
                warn_implausible(dataset.confounders, (), remedy)
        else:
            self._check_columns(dataset, offset)
        if reset:
            require_observed(dataset)
        self._check_observed(dataset, reset=reset)
        if reset and self.data_kind_ == "answers":
            require_variation(dataset)
        require_finite(dataset)
        dtype = self._working_dtype(dataset)
        require_magnitude(dataset, dtype, fitted=reset)
        if reset:
            check_magnitudes(self, self.traits.limited_parameters, dtype)
            random_generator(getattr(self, "random_state", None))  # refused even where no number is drawn
        return dataset if sample_weight is None else dataset.with_weights(sample_weight)

    def _weight_summary(self, dataset: Dataset) -> WeightSummary | None:
        """Return the summary of the weights for a fit that takes some, None without; set the attributes that describe them."""
        weights = dataset.weight_summary()
        self.weighted_ = weights is not None
        self.n_effective_ = float(dataset.shape[0]) if weights is None else weights.effective
        return weights

    def _client(self, X: Any) -> Any:
        """Return the client of the cluster that computes a Dask array; None for other data, and where passes run in this process."""
        return data_client(X, self.executor)

    def _check_modes(self, dataset: Dataset) -> None:
        if len(dataset.shape) != 2 and not self.traits.tensor:
            raise DataError(f"X has {len(dataset.shape)} modes, expected two: rows and columns")

    def _check_shape(self, dataset: Dataset) -> None:
        """Refuse new rows whose columns differ from the fitted ones; values are not read."""
        self._check_modes(dataset)
        self._check_columns(dataset, None)

    def _row_inputs(self, n: int) -> dict[str, Any]:
        """Check the further arguments of ``transform`` for n rows. Return tables and arrays by name, split by rows among the chunks."""
        return {}

    def _copy_for_transform(self) -> Self:
        """Copy the model without attributes that have a value for each fitted row, for workers that transform chunks of rows."""
        parameters = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in RUNTIME_PARAMETERS and (name != "init" or isinstance(value, str))  # a worker has limits of its own
        }
        light = type(self)(**parameters | {"executor": "inline"})
        light.set_output(transform="default")
        omitted = {*_ANNOTATIONS, *_OF_GROWTH, *row_attributes(type(self))}
        for name, value in fitted_attributes(self).items():
            if name not in omitted and not name.endswith("_history_"):
                setattr(light, name, value)
        light.variants_ = None
        light.codebook_ = None  # checked against that of the rows before they are split into chunks
        return light

    def _check_observed(self, dataset: Dataset, *, reset: bool) -> None:
        """Refuse columns without any observed entry in a fit, and warn of such rows."""
        if reset:
            require_no_empty_columns(dataset)
        if not self.traits.counts_empty_rows:
            warn_unobserved_rows(dataset)

    def _by_fitted_columns(self, dataset: Dataset) -> Dataset:
        """Return genotypes with the fitted SNPs: in their order, counting their alleles, missing where X lacks one. Others stay."""
        ours, theirs = self.variants_, Variants.of(dataset.genotypes.variants)
        if (ours is None or theirs is None) and not self.traits.matches_labels:
            return dataset
        fitted = [str(label) for label in self.column_labels_]
        view: Dataset = find_part("variants", "the match of SNPs").view_of(dataset, fitted, ours, theirs)
        return view

    def _check_columns(self, dataset: Dataset, offset: NDArray[np.float64] | None) -> None:
        """Refuse columns other than the fitted ones: a change of their order or of their offset would give wrong factors silently."""
        fitted, labels = ([str(label) for label in labels] for labels in (self.column_labels_, dataset.column_labels))
        if len(labels) != len(fitted):
            raise DataError(f"X has {len(labels)} {self.vocabulary.items}, the model was fitted on {len(fitted)}; pass those alone")
        unnamed = [str(j) for j in range(len(labels))]
        if labels != fitted and unnamed not in (labels, fitted):
            j = next(j for j in range(len(labels)) if labels[j] != fitted[j])
            found = f"column {j} of X is {labels[j]!r}, of the fitted data {fitted[j]!r}"
            raise DataError(f"{found}; pass the fitted {self.vocabulary.items} in their order")
        if offset is not None and self.offset_ is not None and not np.array_equal(offset, self.offset_):
            j = int(np.flatnonzero(offset != self.offset_)[0])
            found = f"{self.vocabulary.entries} of {labels[j]!r} begin at {offset[j]:g} in X, at {self.offset_[j]:g} in the fitted data"
            raise DataError(f"{found}; import X with the valid_range of the fitted data")
        self._check_items(dataset)

    def _check_items(self, dataset: Dataset) -> None:
        """Refuse items whose answers have another meaning than in the fitted data."""
        if dataset.codebook is None or self.codebook_ is None:
            return
        for item, fitted in zip(dataset.codebook, self.codebook_, strict=True):
            difference = compare_items(item, fitted) if item.name == fitted.name else None  # columns without names match any
            if difference is not None:
                found = f"item {item.name!r} {difference.first} in X and {difference.second} in the fitted data"
                raise DataError(f"{found}, expected the same answers; import X with the same {difference.remedy}")

    def _working_dtype(self, dataset: Dataset | RowSource) -> np.dtype[Any]:
        """Return ``dtype`` or, by default, float32 for data whose type it can hold, else float64."""
        if self.dtype is not None:
            dtype: np.dtype[Any] = np.dtype(self.dtype)
            if dtype not in (np.float32, np.float64):
                raise ParameterError(f"dtype is {dtype}, expected float32 or float64")
            return dtype
        return np.dtype("float32" if np.can_cast(dataset.dtype, np.float32) else "float64")

    def _footprint(self, shape: tuple[int, ...], n_covariates: int, dtype: np.dtype[Any]) -> Footprint:
        raise NotImplementedError  # each model's own

    def _task(
        self,
        dataset: Dataset,
        problem: Any = None,
        *,
        covariates: NDArray[Any] | None = None,
        n_covariates: int = 0,
        footprint: Footprint | None = None,
        dtype: np.dtype[Any] | None = None,
        **identity: Any,
    ) -> FitTask[Any]:
        """Return the task of a fit.

        ``covariates`` (n, …) go with the rows; ``n_covariates`` of them count in the model's footprint. ``identity`` is
        whatever determines the fit besides data and parameters.
        """
        dtype = self._working_dtype(dataset) if dtype is None else dtype
        footprint = self._footprint(dataset.shape, n_covariates, dtype) if footprint is None else footprint
        return FitTask(self, dataset, problem, dtype, footprint, covariates, identity)

    def open_session(self, dataset: Dataset, **settings: Any) -> Session:
        """Open a session on the data for a transform or the like, if the memory plan allows it."""
        return self._task(dataset, **settings).open_session()

    def plan_session(self, dataset: Dataset, **settings: Any) -> Plan:
        """Plan the memory of :meth:`open_session` with the same settings; nothing is run."""
        return self._task(dataset, **settings).plan()

    def _check_parameters(self) -> None:
        """Refuse parameters that are invalid for any data: values that the signature does not declare, and contradictions."""
        check_parameters(self)

    def _check_loaded(self) -> None:
        """Refuse a loaded model whose attributes contradict one another. Their types have been checked."""
        self._check_parameters()

    def _as_factors(self, factors: Any) -> NDArray[Any]:
        """Return the argument of ``inverse_transform`` as an array (n, k)."""
        check_is_fitted(self)
        array = np.asarray(as_column(factors, "factors"))
        if array.ndim != 2 or array.shape[1] != self._n_features_out:
            raise DataError(f"the factors have shape {array.shape}, expected (n, {self._n_features_out})")
        return array

    @property
    def n_components_(self) -> int:
        """Number of components of the fit, as scikit-learn calls it."""
        return self._n_features_out

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


def plan(model: Factorization, data: Any, memory_limit: int | str | None = None) -> Plan:
    """Plan the memory and disk space of a fit of the model to the data; nothing is run.

    Parameters
    ----------
    model : estimator
        It need not be fitted.
    data : array, path or Dataset
        The data of the fit. A lazy array, of dask or xarray, is planned by its shape and type, and never computed. Its numbers of
        floating type may be missing, and it is planned as the dataset that :func:`dfact.import_array` writes of it, which a fit needs
        of one that is larger than memory.
    memory_limit : int or str, optional
        Bytes that a process may use ("4GiB"), in place of the model's.

    Returns
    -------
    Plan
        ``print`` shows it as a table, and ``fits`` is True if the fit would start.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> dfact.plan(dfact.ICQF(n_components=3), answers, memory_limit="2GiB").fits
    True
    """
    dataset = as_dataset(data, reads=False)
    n_covariates = 0 if dataset.confounders is None else len(ConfounderEncoding.of(dataset.confounder_summaries()).columns)
    if memory_limit is not None:
        model = copy(model)
        model.memory_limit = memory_limit
    return model._task(dataset, n_covariates=n_covariates).plan()


_LEADING = 5
_MOST_COMPONENTS = 20
_MOST_ITEMS = 100_000  # to sort more would delay the cell


def model_html(model: Any) -> str:
    """Return the HTML that a notebook shows below a fitted model. Labels are escaped."""
    words, k = model.vocabulary, len(model.get_feature_names_out())
    title = f"{k} {words.components} of {model.n_features_in_} {words.items}"
    lines = []
    if (share := getattr(model, "explained_share_", None)) is not None:
        lines.append(("explained", f"{share:.1%}"))
    if (iterations := getattr(model, "n_iter_", None)) is not None:
        lines.append(("iterations", f"{iterations}{'' if getattr(model, 'converged_', True) else ', stopped before it converged'}"))
    if model.n_features_in_ > _MOST_ITEMS:
        return html_view(title, lines)
    leading = leading_items(model.loadings_).head(_MOST_COMPONENTS).rename_axis(words.component).to_frame(f"leading {words.items}")
    return html_view(title, lines, {f"{words.loadings} of the largest size": leading})


def leading_items(loadings: pd.DataFrame, count: int = _LEADING) -> pd.Series[Any]:
    """Return for each component the items with its largest loadings by size, as a text, with the loadings; those of 0 are left out."""
    texts = {}
    for name, values in loadings.items():
        numbers = values.to_numpy()
        sizes = np.nan_to_num(np.abs(numbers))
        largest = np.argsort(-sizes, kind="stable")[:count]
        texts[str(name)] = ", ".join(f"{_label(loadings.index[j])} {numbers[j]:.2f}" for j in largest if sizes[j] > 0) or "none"
    return pd.Series(texts)


def _label(label: Any) -> str:
    return " ".join(map(str, label)) if isinstance(label, tuple) else str(label)
