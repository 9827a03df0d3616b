"""Base class of the CP models: factors of every mode, reconstruction, and the factors of new slices."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod
from os import PathLike
from typing import Annotated, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.validation import warn_unobserved_rows
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import Solver, run, state_rows
from dfact.engine.session import StateRows
from dfact.errors import DataError, warn
from dfact.models.cp.growth import LARGEST, GrowthPass, GrowthSums, SliceSurrogate, grow_modes, pairs_size
from dfact.models.cp.passes import FACTORS, GRAM_COLUMNS, RowsPass, RowSums
from dfact.models.cp.problem import (
    ElasticNet,
    Factors,
    Prior,
    RowPrior,
    check_size,
    component_weights,
    find_unobserved,
    khatri_rao,
    nonzero,
)
from dfact.models.fit_task import FitTask
from dfact.models.fitted_schema import OPTIONAL, Shape
from dfact.models.growth.baseline import Baseline
from dfact.models.growth.estimator import Added, Growing
from dfact.models.growth.halves import ROUNDS
from dfact.models.scikit_learn import check_is_fitted
from dfact.models.traits import ModelTraits, Vocabulary
from dfact.progress import Reporter

_SMALL = 1e-4  # weight, relative to the largest, up to which a component cancels no other: 1e-8 of the sum of squares
_CANCELLING = -0.8  # cosine of two components at which a degenerate decomposition is reported


class CPModel(Growing):
    """Base of the models Σ_r a_r⁽¹⁾∘…∘a_r⁽ᴺ⁾ of a tensor (I_1, …, I_N), N ≥ 2. The slices of mode 1 are the rows."""

    traits = ModelTraits(
        Vocabulary("component", "components", "slices of mode 1", "slices", "Vectors of the modes", "entry", "entries"), tensor=True
    )
    objective_history_: Annotated[NDArray[Any], Shape((None,), finite=False)]
    n_iter_: int
    converged_: bool
    remaining_: float
    explained_share_: float
    rank_: int
    factors_: list[Annotated[Any, Shape((None, "k"), rows=True)]]
    """Factors (I_n, R) of each mode, largest component first. Those of mode 1 are a Zarr array if the data is stored."""
    weights_: Annotated[NDArray[np.float64], Shape(("k",))]
    component_cosines_: Annotated[NDArray[np.float64], Shape(("k", "k")), OPTIONAL]
    """Π_n cos(a_q⁽ⁿ⁾, a_r⁽ⁿ⁾) (R, R); −1 for two components that cancel each other."""
    slice_shape_: tuple[int, ...]
    mode_labels_: list[Annotated[NDArray[Any], Shape((None,), "texts")] | None]
    """Labels of modes 3 to N, None for a mode without labels."""
    sums_: Annotated[SliceSurrogate, OPTIONAL]
    saved_sums = (SliceSurrogate,)

    def _check_loaded(self) -> None:
        super()._check_loaded()
        first, *others = self.factors_ or [np.empty((0, 0))]
        if len(self.slice_shape_) < 1 or self.slice_shape_[0] != self.n_features_in_ or min(self.slice_shape_) < 1:
            raise DataError(f"slice_shape_ is {self.slice_shape_}, expected {self.n_features_in_} items first")
        if [A.shape[0] for A in others] != list(self.slice_shape_) or not all(isinstance(A, np.ndarray) for A in others):
            raise DataError(f"factors_ have {[A.shape[0] for A in others]} rows in modes 2 to N, expected {self.slice_shape_}, as arrays")
        if not all(np.isfinite(A).all() for A in others):
            raise DataError("factors_ hold infinity or NaN in modes 2 to N, expected finite numbers")
        sizes = [None if labels is None else len(labels) for labels in self.mode_labels_]
        if len(sizes) != len(others) - 1 or any(n not in (None, size) for n, size in zip(sizes, self.slice_shape_[1:], strict=True)):
            raise DataError(f"mode_labels_ holds {sizes} labels of modes 3 to N, expected as many as slices, {self.slice_shape_[1:]}")
        if self.row_labels_ is not None and self.row_labels_.shape[0] != first.shape[0]:
            raise DataError(f"row_labels_ holds {self.row_labels_.shape[0]} labels, expected one for each of {first.shape[0]} rows")

    def fit_prepared(self, task: FitTask[Any], *, checkpoint: str | PathLike[str] | None = None) -> Self:
        super().fit_prepared(task, checkpoint=checkpoint)
        self._warn_cancelling()
        if self.rank_ == 0 and not np.isnan(self.explained_share_):  # NaN for data of zeros
            found = f"the penalty sets all {len(self.weights_)} components to 0, expected one that leaves some"
            remedy = "use a smaller lam (--lam), whose size depends on the entries, or let dfact select cp --criterion held_out choose it"
            warn(f"{found}; {remedy}")
        return self

    def _warn_cancelling(self) -> None:
        """Warn of two components that nearly cancel each other. In matrices components may be rotated, so their cosines mean nothing."""
        if len(self.factors_) == 2:
            return
        cosines = cosines_of_pairs(self.component_cosines_, self.weights_)
        second, first = np.unravel_index(cosines.argmin(), cosines.shape)
        if cosines.min() <= _CANCELLING:
            found = f"components {first + 1} and {second + 1} cancel each other: their cosine is {cosines.min():.2f}"
            remedy = "the decomposition may be degenerate; try fewer components, or ElasticCP with a larger lam or nonnegative=True"
            warn(f"{found}, so {remedy}")

    def inverse_transform(self, factors: Any) -> NDArray[Any]:
        """Return the model's slices (n, I_2, …, I_N) for factors A⁽¹⁾ (n, R)."""
        A, H = self._as_factors(factors), self.components_
        slices: NDArray[Any] = (A @ H.reshape(len(H), -1)).reshape(len(A), *H.shape[1:])
        return slices

    def reconstruct(self) -> NDArray[Any]:
        """Return the model Σ_r a_r⁽¹⁾∘…∘a_r⁽ᴺ⁾ (I_1, …, I_N)."""
        check_is_fitted(self)
        return self.inverse_transform(self.factors_[0])

    @property
    def components_(self) -> NDArray[Any]:  # type: ignore[override]  # follows from the factors
        """a_r⁽²⁾∘…∘a_r⁽ᴺ⁾ (R, I_2, …, I_N)."""
        others = [A.T for A in self.factors_[1:]]
        return khatri_rao(others).reshape(len(others[0]), *self.slice_shape_)

    @property
    def loadings_(self) -> pd.DataFrame:
        """Unit vectors u_r⁽ⁿ⁾ = a_r⁽ⁿ⁾/‖a_r⁽ⁿ⁾‖ as a table, slices of modes 2, …, N × components.

        Slices of mode 2 have the column labels, those of other modes their mode and their label, or number.
        """
        names = [str(label) for label in self.column_labels_]
        names += [f"mode {n}: {label}" for n in range(3, len(self.factors_) + 1) for label in self.slice_names(n)]
        # Scaled by powers of two first, which is exact, so that no square overflows.
        scaled = [np.ldexp(A, -np.frexp(np.abs(A).max(axis=0))[1]) for A in self.factors_[1:]]
        lengths = (np.linalg.norm(A, axis=0) for A in scaled)
        units = np.vstack([A / np.where(length > 0, length, 1) for A, length in zip(scaled, lengths, strict=True)])
        return pd.DataFrame(units, index=pd.Index(names, name="slice"), columns=self.get_feature_names_out())

    def slice_names(self, mode: int) -> list[str]:
        """Return the labels of the slices of a mode from the second on; numbers from 0 for a mode without labels."""
        labels = self.column_labels_ if mode == 2 else self.mode_labels_[mode - 3]
        return [str(label) for label in (range(self.slice_shape_[mode - 2]) if labels is None else labels)]

    def row_factors(self) -> Any:
        return self.factors_[0]

    def _as_slices(self, X: Any, *, reset: bool) -> Dataset:
        """Return the data as slices of a tensor. Set the shape of a slice (``reset``), or check it."""
        dataset = self._dataset(X, None, reset=reset)
        if 0 in dataset.shape:
            raise DataError(f"X has shape {dataset.shape}, expected at least one slice of every mode")
        if reset:
            self.slice_shape_ = tuple(int(size) for size in dataset.shape[1:])
            self.mode_labels_ = list(dataset.mode_labels)
        self._check_slices(dataset)
        return dataset

    def _check_shape(self, dataset: Dataset) -> None:
        super()._check_shape(dataset)
        self._check_slices(dataset)

    def _check_slices(self, dataset: Dataset) -> None:
        """Refuse slices of another shape, or with other labels, than the fitted ones."""
        check_size(dataset, self.slice_shape_)
        for mode, (labels, fitted) in enumerate(zip(dataset.mode_labels, self.mode_labels_, strict=False), start=3):
            pairs = [] if labels is None or fitted is None else [(str(a), str(b)) for a, b in zip(labels, fitted, strict=True)]
            k = next((k for k, (found, expected) in enumerate(pairs) if found != expected), None)
            if k is not None:
                found = f"slice {k} of mode {mode} of X is {pairs[k][0]!r}, of the fitted data {pairs[k][1]!r}"
                raise DataError(f"{found}; pass the fitted slices in their order")

    def fitted_by_passes(self, **parameters: Any) -> "CPModel":
        """Return an unfitted model with the same objective and these parameters, whose fits fill missing entries and share reads."""
        raise NotImplementedError  # each model's own

    def _copy_for_transform(self) -> Self:
        light = super()._copy_for_transform()
        first, *others = self.factors_
        light.factors_ = [np.empty((0, first.shape[1]), first.dtype), *others]
        return light

    def _rows(self, dataset: Dataset, net: ElasticNet, prior: RowPrior, variances: Any, out: str | PathLike[str] | None) -> Any:
        """Return A⁽¹⁾ (n, R) of the dataset's slices given the other modes, each at its optimum.

        ``variances`` (n, 1) are the slices' variances if ``prior`` takes given ones.
        """
        task = self._task(dataset, covariates=variances)
        H = khatri_rao([np.asarray(A, np.float64).T for A in self.factors_[1:]])
        sums, A = task.compute_rows(RowsPass(net, prior, task.dtype), H, len(H), out)
        warn_unconverged(int(sums.unconverged))
        return A

    def _penalties(self) -> tuple[ElasticNet, Prior]:
        """Return the penalties of the fitted model."""
        raise NotImplementedError  # each model's own

    def _last_pass(self, task: FitTask[Any], net: ElasticNet, prior: RowPrior) -> RowsPass | GrowthPass:
        """Return the last pass of a fit over the rows, with the sums from which the model grows if it can."""
        rows, missing = RowsPass(net, prior, task.dtype), task.dataset.missing_rate > 0
        if not task.wants_rows or prior.kind == "given" or (missing and self._too_many_pairs(task.dataset.shape)):
            return rows
        return GrowthPass(rows, task.dataset.shape[1], missing)

    def _keep_sums(self, task: FitTask[Any], sums: RowSums, others: Factors, weights: NDArray[np.float64]) -> None:
        """Keep the sums of the last pass, if the model can grow from them, with the components as ``gather_factors`` arranges them."""
        if isinstance(sums, GrowthSums):
            order, negative = _arrangement(others, weights)
            signs = np.where(np.logical_xor.reduce(negative), -1.0, 1.0)
            self.sums_ = SliceSurrogate.of(sums, task.dataset).arranged(order, signs)
            self._begin_growth(task, sums.arranged(order, signs))

    def _too_many_pairs(self, shape: tuple[int, ...]) -> str:
        """Return why slices of this shape with missing entries have no sums; nothing if they have."""
        size = pairs_size(shape, self.n_components)
        found = f"with missing entries the sums hold {size} numbers, a Gram matrix for each entry of a slice, expected at most {LARGEST}"
        return f"{found}; fit all slices again" if size > LARGEST else ""

    def _no_sums(self) -> str:
        return self._too_many_pairs((1, *self.slice_shape_)) or super()._no_sums()

    def _prepare_update(self, X: Any) -> FitTask[None]:
        dataset = self._as_slices(X, reset=False)
        if dataset.missing_rate > 0 and (reason := self._too_many_pairs(dataset.shape)):
            raise DataError(reason)
        return self._task(dataset)

    def _measure(self, task: FitTask[None]) -> Solver[Baseline]:
        net, prior = self._penalties()
        pass_ = GrowthPass(RowsPass(net, prior.rows, task.dtype), task.dataset.shape[1], by_entry=False)
        return (yield from run(pass_, khatri_rao(self._other_modes())))

    def _other_modes(self) -> Factors:
        return [np.ascontiguousarray(A.T, np.float64) for A in self.factors_[1:]]

    def _grow(self, task: FitTask[None]) -> Solver[Added]:
        report = Reporter(self.callbacks, ROUNDS)
        update = yield from grow_modes(self.sums_, self.growth_.n_rows, task, *self._penalties(), self._other_modes(), report)
        others = [np.ascontiguousarray(A.T, B.dtype) for A, B in zip(update.others, self.factors_[1:], strict=True)]
        self.factors_, self.sums_ = [self.factors_[0], *others], update.surrogate
        self._set_grown_prior(update.prior)
        self.objective_history_ = np.asarray([*self.objective_history_, *update.objectives])
        self.explained_share_ = explained_share(2 * update.loss, update.surrogate.norm)
        self.component_cosines_ = component_cosines(update.surrogate.gram, update.others)
        self.weights_ = component_weights(update.surrogate.gram, update.others)
        self.rank_ = int(nonzero(self.weights_).sum())
        warn_unconverged(int(update.sums.unconverged))
        return Added((yield from state_rows(FACTORS)), update.sums, update.gain, update.scales)

    def _set_grown_prior(self, prior: Prior) -> None:
        """Store the prior of all slices after an update; by default there is none."""

    def _set_row_factors(self, factors: Any) -> None:
        self.factors_ = [factors, *self.factors_[1:]]

    def _check_observed(self, dataset: Dataset, *, reset: bool) -> None:
        """Warn of slices without any observed entry, whose factors are 0."""
        warn_unobserved_rows(dataset)
        if not reset:
            return
        for n, empty in enumerate(find_unobserved(dataset), start=2):
            if empty.any():
                i = int(np.flatnonzero(empty)[0])
                labels = (dataset.column_labels, *dataset.mode_labels)[n - 2]
                label = i if labels is None else repr(str(labels[i]))
                name = f"column {label}" if n == 2 else f"slice {label} of mode {n}"
                text = f"{name} has no observed entry ({int(empty.sum())} in all of mode {n}): its factors are 0"
                warn(text)

    def _set_weights(self, weights: NDArray[np.float64]) -> None:
        """Store the components' weights γ_r = Π_n ‖a_r⁽ⁿ⁾‖ in decreasing order, and the rank."""
        self.weights_ = np.sort(weights)[::-1]
        self.rank_ = int(nonzero(weights).sum())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def rows_footprint(shape: tuple[int, ...], k: int, dtype: np.dtype[Any]) -> Footprint:
    """Return the footprint of a pass that solves the rows to their optimum, with their factors as the only state."""
    size, m, pairs = dtype.itemsize, prod(shape[1:]), pairs_size(shape, k)
    growing = m + (pairs if pairs <= LARGEST else 0)  # sums from which the model grows
    return Footprint(
        state_per_row=size * k,
        work_per_row=(2 * 8 + size + 2) * m + 8 * (2 * k * k + 4 * k) + 8 * GRAM_COLUMNS,
        broadcast=8 * (4 * k * m + k * k + 2 * k * k * GRAM_COLUMNS + growing),
        result_per_row=size * k,
    )


def gather_factors(rows: Iterable[NDArray[Any]], others: Factors, weights: NDArray[np.float64], task: FitTask[Any]) -> list[Any]:
    """Return the factors (I_n, R), largest component first.

    In each mode from the second on, the entry of largest magnitude of a vector is positive. The vectors of mode 1 take the sign that
    leaves the component unchanged.
    """
    order, negative = _arrangement(others, weights)
    columns = [A[order].T for A in others]
    arrange = partial(_arranged, columns=order, negative=np.logical_xor.reduce(negative))
    arranged = replace(rows, convert=arrange) if isinstance(rows, StateRows) else map(arrange, rows)
    signed = (np.ascontiguousarray(_negated(A, signs), task.dtype) for A, signs in zip(columns, negative, strict=True))
    return [task.gather(arranged, len(order)), *signed]


def _arrangement(others: Factors, weights: NDArray[np.float64]) -> tuple[NDArray[np.intp], list[NDArray[np.bool_]]]:
    """Return the order of the components, and for each of the other modes (R, I_n) which of them, in this order, are negated."""
    order = np.argsort(-weights, kind="stable")
    largest = (np.take_along_axis(A, np.abs(A).argmax(axis=1)[:, None], axis=1)[:, 0] for A in others)
    return order, [values[order] < 0 for values in largest]


def _arranged(rows: NDArray[Any], columns: NDArray[np.intp], negative: NDArray[np.bool_]) -> NDArray[Any]:
    """Return some columns, the negative ones negated; a function of its own, as workers unpickle it to convert the rows that they write."""
    return _negated(rows[:, columns], negative)


def _negated(columns: NDArray[Any], negative: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the columns, the negative ones negated; a zero stays positive."""
    return np.where(negative, 0 - columns, columns)


def explained_share(squares: float, norm: float) -> float:
    """Return 1 − ‖Δ∘(Z − X)‖²/‖Δ∘Z‖²; NaN if the data is 0."""
    return 1 - squares / norm if norm > 0 else float("nan")


def component_cosines(gram: NDArray[np.float64], others: Factors) -> NDArray[np.float64]:
    """Return the cosines Π_n cos(a_q⁽ⁿ⁾, a_r⁽ⁿ⁾) of the components (R, R) from A⁽¹⁾ᵀA⁽¹⁾ and the others (R, I_n)."""
    cosines = np.ones_like(gram)
    for product in (gram, *(A @ A.T for A in others)):
        lengths = np.sqrt(product.diagonal())
        scale = np.multiply.outer(lengths, lengths)
        cosines *= np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    return cosines


def ordered_cosines(gram: NDArray[np.float64], others: Factors) -> NDArray[np.float64]:
    """Return the cosines of the components, largest first."""
    order = np.argsort(-component_weights(gram, others), kind="stable")
    return np.ascontiguousarray(component_cosines(gram, others)[np.ix_(order, order)])


def cosines_of_pairs(cosines: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosines (R, R) of components, largest first, below the diagonal, and 0 elsewhere.

    It is also 0 for components so small that the model is the same without them: their directions are those of rounding errors.
    """
    large = weights > _SMALL * weights[0]
    return np.where(np.tri(len(weights), k=-1, dtype=bool) & np.outer(large, large), cosines, 0.0)


def warn_unconverged(rows: int) -> None:
    """Warn, from within a method of the model, of slices that are not at their optimum."""
    if rows:
        message = f"{rows} slices are not at their optimum to rounding: the other modes' components are nearly collinear"
        warn(message)
