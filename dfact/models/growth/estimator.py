"""Base class of the estimators that grow: ``partial_fit``, the check for drift, and the record of what was added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from itertools import chain
from types import MethodType
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.clusters import resolve_clusters
from dfact.data.dataset import Dataset, population_texts
from dfact.data.sources.base import SelectedColumns
from dfact.engine.requests import Solver, drive, read_environments
from dfact.engine.session import StateRows
from dfact.errors import DataError, ParameterError, warn
from dfact.linalg.congruence import congruence, match
from dfact.models.docstrings import with_shared_entries
from dfact.models.estimator import Factorization, add_saved_types
from dfact.models.fit_task import FitTask, end_callbacks, fitted_attributes
from dfact.models.fitted_schema import OPTIONAL
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.cluster_parts import measure_parts
from dfact.models.growth.drift import LEVEL, Drift
from dfact.models.growth.record import EXACT, SAVED, Gain, Growth
from dfact.models.row_factors import gather_rows
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import TooManyComponentsError

_OF_EARLIER_LOADINGS = ("stability_", "comparison_", "sites_")  # annotations that an update makes untrue
_NAMED = 3  # labels in a message
add_saved_types(*SAVED)


class _if_it_grows:  # noqa: N801  # used as a decorator
    """Decorator of a method that a model has unless its parameters exclude growth, as scikit-learn expects."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    def __get__(self, model: Any, owner: type[Any]) -> Any:
        if model is None:
            return self._method
        if reason := model._never_grows():
            raise AttributeError(reason)
        return MethodType(self._method, model)


@dataclass(frozen=True, eq=False)
class Axes:
    """The change from the axes of earlier factors to those of a later model."""

    matrix: NDArray[np.float64]
    """Coordinates of each earlier axis (k, k)."""
    shift: NDArray[np.float64]
    """Coordinates of the earlier origin (k,)."""

    def of(self, factors: NDArray[Any]) -> NDArray[Any]:
        """Return factors (n, k) on the new axes."""
        moved = np.tile(self.shift, (len(factors), 1))
        for column, axis in zip(factors.T.astype(np.float64), self.matrix, strict=True):  # a row's rounding does not depend on its chunk
            moved += column[:, None] * axis
        return moved.astype(factors.dtype)


@dataclass(frozen=True)
class Added:
    """Rows that a model has added to its sums."""

    factors: StateRows
    """Their factors, with the new loadings."""
    baseline: Baseline
    """Their figures, with the new loadings."""
    gain: Gain = EXACT
    """Estimated gain of a complete fit."""
    scales: NDArray[np.float64] | None = None
    """Scales (k,) by which the earlier rows' factors are multiplied, of an update that keeps the order of the factors; None for one
    that may change their order and signs."""
    axes: Axes | None = None
    """Change of the axes to which the earlier rows' factors refer; None if they stay."""


class Growing(Factorization, registered=False):
    """Base of the estimators to which rows can be added without those that they have seen.

    A subclass stores in ``sums_`` what it needs of the rows that it has seen, calls ``_begin_growth`` at the end of a fit, and
    defines ``_prepare_update``, ``_measure`` and ``_grow``.

    Attributes
    ----------
    growth_ : Growth
        Numbers of rows that the last complete fit and updates since have seen, the estimated gain of a complete fit, and the
        :class:`dfact.models.growth.drift.Drift` of the last update.
    sums_
        Sums over all these rows, from which ``partial_fit`` continues; the guide ``security`` states what they disclose.
    """

    growth_: Annotated[Growth, OPTIONAL]
    rows_attribute: ClassVar[str] = "factors_"
    """Name of the attribute with the factors of all rows."""
    saved_sums: ClassVar[tuple[type[Any], ...]] = ()
    """Dataclasses of ``sums_``."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if settings.get("registered", True):
            cls.__doc__ = with_shared_entries(cls, Growing)
            add_saved_types(*cls.saved_sums)

    @_if_it_grows
    def partial_fit(self, X: Any, y: None = None, **fit_inputs: Any) -> Self:
        """Add the rows X (n, m) to the model, without those that it has seen; an unfitted model is fitted to X.

        The rows are solved, their sums are added to ``sums_``, and the loadings are updated. ``factors_`` gets their factors; those
        of earlier rows stay as they were, or, of a PCA, are turned to the new axes without what the earlier components left out:
        ``transform`` computes them with the new loadings. ``growth_`` records the update, and
        whether the new rows differ from the earlier ones. An update that is interrupted leaves the model as it was. Further
        arguments are those of ``fit``.
        """
        del y
        if not fitted_attributes(self):
            try:
                return self.fit(X, **fit_inputs)
            except TooManyComponentsError as error:
                found = f"the first batch has {error.n_rows} rows and {error.n_columns} columns"
                remedy = f"begin with at least {error.n_components} of each; later batches may have any number of rows"
                raise ParameterError(f"{found}, too few for n_components={error.n_components}; {remedy}") from error
        return self.update_prepared(self.prepare_update(X, **fit_inputs))

    def prepare_update(self, X: Any, **fit_inputs: Any) -> FitTask[Any]:
        """Check the rows to be added, and plan the update; nothing runs, and the model does not change."""
        check_is_fitted(self)
        if getattr(self, "growth_", None) is None or getattr(self, "sums_", None) is None:
            raise DataError(self._no_sums())
        task = copy(self)._prepare_update(X, **fit_inputs)
        source = task.dataset.source
        if isinstance(source, SelectedColumns) and source.n_absent:
            found = f"{source.n_absent} of the model's {len(source.columns)} SNPs cannot be taken from X"
            raise DataError(f"{found}, expected all of them in an update; fit all individuals with the shared SNPs, of one strand")
        model, texts = cast(Self, task.model), self._population_texts(task.dataset, fit_inputs.get("populations"))
        model.row_populations_ = self._joined_populations(texts, task.dataset.shape[0])
        fingerprint = task.dataset.stored_fingerprint
        if fingerprint is not None and fingerprint in (self.fingerprint_, *self.growth_.batches):
            found = f"the dataset with fingerprint {fingerprint} is part of the model already"
            raise DataError(f"{found}, expected new rows; import those that are new")
        return task

    def _population_texts(self, dataset: Dataset, populations: Any = None) -> NDArray[np.object_] | None:
        """Return the name of the population of each new row, "" where unknown; None without any. Only some models take ``populations``."""
        del populations
        return population_texts(dataset.genotypes.population)

    def _joined_populations(self, added: NDArray[np.object_] | None, n: int) -> NDArray[np.object_] | None:
        """Return the populations of the rows seen and of n new ones, "" where unknown; None if none is known."""
        if self.row_populations_ is None and added is None:
            return None
        seen = (
            np.full(self.row_factors().shape[0], "", object) if self.row_populations_ is None else np.asarray(self.row_populations_, object)
        )
        return np.concatenate([seen, np.full(n, "", object) if added is None else added])

    def update_prepared(self, task: FitTask[Any], *, level: float = LEVEL) -> Self:
        """Run the update that ``prepare_update`` returned. ``level`` is the familywise error rate of the tests for drift."""
        try:
            with task.open_session() as session:
                drive(self.grow(task, level), session)
        finally:
            end_callbacks(self)
        return self

    def grow(self, task: FitTask[Any], level: float = LEVEL) -> Solver[None]:
        """Add the rows of the task: yield requests for passes, and end by setting all fitted attributes."""
        grown = type(self)(**self.get_params(deep=False))
        grown.__dict__.update(fitted_attributes(task.model))
        current = grown.growth_
        found = Drift.between(grown._expected_figures(), (yield from grown._measure(task)), level)
        before, rows = grown.components_, grown.row_factors()
        added = yield from grown._grow(task)
        order, scales = np.arange(len(before)), added.scales
        if scales is None:
            order, scales = _match_factors(before, grown.components_, signed=not self.traits.nonnegative)
        dataset = task.dataset
        grown.growth_ = current.grown(
            dataset.shape[0],
            grown._total_weight(dataset),
            [*current.batches, *(each for each in (grown.fingerprint_, dataset.stored_fingerprint) if each is not None)],
            current.baseline.merged(added.baseline, order, scales),
            found,
            added.gain,
        )
        new = yield from read_environments()
        grown.environments_ = (*grown.environments_, *(each for each in new if each not in grown.environments_))
        grown._set_row_factors(_append_factors(rows, added, task, current.n_rows))
        grown.row_labels_ = _append_labels(grown.row_labels_, dataset, current.n_rows)
        grown.fingerprint_ = None
        for name in (*fitted_attributes(self), *_OF_EARLIER_LOADINGS):
            self.__dict__.pop(name, None)
        self.__dict__.update({name: value for name, value in fitted_attributes(grown).items() if name not in _OF_EARLIER_LOADINGS})

    def drift(self, X: Any, *, level: float = LEVEL, clusters: Any = None, **fit_inputs: Any) -> Drift:
        """Compare the rows X (n, m) with those that the model has seen; the model does not change. Further arguments are those of ``fit``.

        Parameters
        ----------
        X : array (n, m) of any kind, path or Dataset
            New rows.
        level : float
            Probability that any test rejects although the rows come from the same population.
        clusters : str, or labels (n,), optional
            Name of a confounder of X, or the cluster of each row, such as its school. The tests then take the new clusters as
            independent, at least ten, and those of the earlier rows as of the same kind. Genotypes have none: individuals must be
            unrelated.
        **fit_inputs
            Further arguments of ``fit``, such as ``sample_weight``.

        Returns
        -------
        Drift
            Tests of items and factors.
        """
        task = self.prepare_update(X, **fit_inputs)
        model: Any = task.model  # a copy of this one
        numbers = resolve_clusters(clusters, task.dataset)
        if numbers is not None:
            return Drift.between_clusters(self._expected_figures(), measure_parts(task, numbers), int(numbers.max()) + 1, level)
        with task.open_session() as session:
            return Drift.between(self._expected_figures(), drive(model._measure(task), session), level)

    def _begin_growth(self, task: FitTask[Any], sums: Baseline) -> None:
        """Record a complete fit, with the sums of its last pass over the rows."""
        self.growth_ = Growth.begun(task.dataset.shape[0], self._total_weight(task.dataset), sums)

    def _total_weight(self, dataset: Dataset) -> float:
        """Return the sum of the weights of the rows; their number for a model without weights."""
        return total_weight(dataset) if getattr(self, "weighted_", False) else float(dataset.shape[0])

    def _set_row_factors(self, factors: Any) -> None:
        """Store the factors of all rows."""
        setattr(self, self.rows_attribute, factors)

    def _never_grows(self) -> str:
        """Return why no rows can be added with these parameters; an empty text if they can."""
        return ""

    def _no_sums(self) -> str:
        """Return why a fitted model without sums cannot grow."""
        return (
            self._never_grows()
            or f"this {type(self).__name__} was saved by a version that kept no sums of its rows, expected some to add rows; fit again"
        )

    def _prepare_update(self, X: Any) -> FitTask[Any]:
        """Check new rows, and return the task of adding them to this model."""
        raise NotImplementedError  # each model's own

    def _expected_figures(self) -> Baseline:
        """Return the figures with which those of new rows are compared. Some models give rows that were fitted larger factors."""
        return self.growth_.baseline

    def _measure(self, task: FitTask[Any]) -> Solver[Baseline]:
        """Yield requests that solve the new rows with the current loadings. Returns their figures."""
        raise NotImplementedError  # each model's own

    def _grow(self, task: FitTask[Any]) -> Solver[Added]:
        """Yield requests for passes over the new rows, then set the attributes of the solution, except those of the rows."""
        raise NotImplementedError  # each model's own

    def _new_rows(self, X: Any, confounders: Any = None, sample_weight: Any = None) -> Dataset:
        """Return the new rows as a dataset with the fitted columns, weighted if the fitted rows were."""
        dataset = self._dataset(X, confounders, sample_weight, reset=False)
        if (dataset.weights is not None) != self.weighted_:
            found = (
                f"the new rows have {'no ' if self.weighted_ else ''}weights, the fitted ones have {'some' if self.weighted_ else 'none'}"
            )
            raise DataError(f"{found}; pass sample_weight, or Dataset.with_weights(None)")
        return dataset


def total_weight(dataset: Dataset) -> float:
    """Return the sum of the weights of the rows; without weights their number."""
    weights = dataset.weight_summary()
    return float(dataset.shape[0]) if weights is None else weights.total


def _match_factors(before: NDArray[Any], after: NDArray[Any], *, signed: bool) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return for each factor (k, m) after an update its number before, and its sign relative to that."""
    similarity = congruence(after.astype(np.float64), before.astype(np.float64))
    _, order = match(np.abs(similarity) if signed else similarity)
    chosen = similarity[np.arange(len(after)), order]
    return order, np.where(chosen < 0, -1.0, 1.0) if signed else np.ones(len(after))


def _append_factors(earlier: Any, added: Added, task: FitTask[Any], n: int) -> Any:
    """Return the factors of all rows: an array, or a Zarr array if those of the earlier n rows or the new rows are stored."""
    if earlier.shape[0] != n:  # of a model fitted without rows
        return earlier
    stored = isinstance(earlier, zarr.Array) or task.dataset.path is not None
    new = (part.astype(earlier.dtype, copy=False) for part in added.factors)
    parts: Iterable[NDArray[Any]] = chain(_chunks(earlier, added), new)
    shape = n + task.dataset.shape[0], earlier.shape[1]
    return gather_rows(parts, shape, np.dtype(earlier.dtype), stored=stored)


def _chunks(rows: Any, added: Added) -> Iterable[NDArray[Any]]:
    scales, axes = added.scales, added.axes
    step = rows.chunks[0] if isinstance(rows, zarr.Array) else len(rows)
    chunks = (np.asarray(rows[start : start + step]) for start in range(0, rows.shape[0], step))
    if axes is not None:
        return map(axes.of, chunks)
    return chunks if scales is None else ((chunk * scales).astype(chunk.dtype) for chunk in chunks)


def _append_labels(earlier: Any, dataset: Dataset, n: int) -> NDArray[Any] | None:
    """Return the labels of all rows, those without labels by their numbers; None if no row has one. Warn of labels that repeat."""
    new = dataset.label_source
    if earlier is None and new is None:
        return None
    known = np.arange(n).astype(str) if earlier is None else np.asarray(earlier)[:n]
    added = np.arange(n, n + dataset.shape[0]).astype(str) if new is None else np.asarray(new)
    if earlier is not None and new is not None:
        repeated = sorted(set(map(str, known)).intersection(map(str, added)))
        if repeated:
            names = ", ".join(repeated[:_NAMED]) + (", …" if len(repeated) > _NAMED else "")
            message = f"{len(repeated)} of the new rows have labels that the model has seen ({names}); add each row once"
            warn(message)
    return np.concatenate([known.astype(object), added.astype(object)])
