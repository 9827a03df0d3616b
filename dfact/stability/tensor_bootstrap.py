"""Stability of CP decompositions: refits to bootstrap resamples of mode 1, their components matched with the model's."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.engine.requests import Solver
from dfact.errors import ParameterError, warn
from dfact.models.cp.base import CPModel
from dfact.models.cp.factor_match import match_components
from dfact.models.cp.refit import Vectors, fit_vectors
from dfact.models.fit_task import FitTask
from dfact.models.provenance import TensorStability
from dfact.parameters import describe_value
from dfact.progress import Iteration
from dfact.selection.cross_validation.folds import resolve_strata
from dfact.selection.running.estimators import fitted_dataset, with_parameters
from dfact.selection.running.results_store import ResultsStore, describe_model
from dfact.selection.running.scheduler import run_fits
from dfact.stability.refits import Refits
from dfact.stability.resamples import ALL_ROWS, Refit, RefittedLoadings, ResampleFits

_SAME_COMPONENT = 0.95
_MAX_ITER = 2000
_SHARE_OF_VARIATION = 2e-3  # distance from the limit at which refits stop, relative to what the objective varies by sampling
_LEAST_TOL = 1e-7  # below which single precision has no digits


@dataclass(frozen=True, eq=False)
class TensorFits(ResampleFits):
    """Fits of an ElasticCP to resamples of mode 1, which keep a row for each component: whether the fit converged, its weight, and
    its vectors of modes 2 to N at unit length, one after the other: those without penalties, then those with them.
    """

    def _refit(self, model: Any, task: FitTask[Any], keep: Callable[[Refit], None]) -> Solver[None]:
        keep(RefittedLoadings(_pack((yield from fit_vectors(model, task, model.max_iter, model.tol))), None))


def _pack(vectors: Vectors) -> NDArray[np.float64]:
    units = []
    for A in (*vectors.others, *vectors.penalized):
        lengths = np.linalg.norm(A, axis=1, keepdims=True)
        units.append(np.divide(A, lengths, out=np.zeros_like(A), where=lengths > 0))
    return np.hstack([np.full((len(vectors.weights), 1), float(vectors.converged)), vectors.weights[:, None], *units])


def bootstrap_tensor(
    model: CPModel,
    X: Any,
    n_resamples: int,
    *,
    level: float,
    warm_start: bool,
    stratify: Any,
    random_state: Any,
    callbacks: Sequence[Callable[[Iteration], None]],
    checkpoint: str | PathLike[str] | None,
) -> TensorStability:
    """Refit a CP decomposition to resamples of mode 1; ``bootstrap`` describes it, and has checked the arguments.

    The refits of both models are fits of :class:`dfact.ElasticCP` by passes, on any executor: for CPALS with λ = 0, which is its
    objective. Missing entries are filled in by the model, whatever the parameter ``missing`` is, which does not change the objective.
    """
    rank = model.rank_
    if rank == 0:
        raise ParameterError("the model has no component left, expected at least one; fit it with a smaller lam")
    dataset = fitted_dataset(model, as_dataset(X))
    strata = resolve_strata(stratify, None, dataset.shape[0])
    others = [np.asarray(A, np.float64).T for A in model.factors_[1:]]
    described = f"{describe_model(model)}, factors {describe_value(others)}, warm_start={bool(warm_start)}"
    settings = {"strata": None if strata is None else describe_value(strata)}
    store = ResultsStore.of_fits(checkpoint, dataset, described, random_state, **settings)
    warm = _make_fits(model, dataset, store.seed, strata)
    estimate = _Matching([A[:rank] for A in others]).match(_fit_all(warm, model))
    if estimate.similarity.min() < _SAME_COMPONENT:
        name = model.get_feature_names_out()[estimate.similarity.argmin()]
        moved = f"its similarity to the converged {name} is {estimate.similarity.min():.2f}"
        warn(f"the model has not converged: {moved}, expected at least {_SAME_COMPONENT}; fit it with a smaller tol")
    fits = _starting_from(warm, estimate) if warm_start else _from_own_start(warm, model)
    refits = Refits(store, range(n_resamples), callbacks)
    if refits.pending:
        run_fits(fits, refits.pending, refits.keep, model.executor, model.memory_limit)
    return _summarize(model, estimate, refits.loadings(), level)


def _make_fits(model: Any, dataset: Dataset, seed: int, strata: NDArray[Any] | None) -> TensorFits:
    """Return fits that start from the model."""
    size = model.rank_ * sum(model.slice_shape_)
    # An objective of N observed entries varies by about size/N of its value with the sample.
    tol = max(min(model.tol, _SHARE_OF_VARIATION * size / max(int(dataset.statistics.observed.sum()), 1)), _LEAST_TOL)
    changes = {"init": [np.asarray(A, np.float64) for A in model.factors_], "tol": tol, "max_iter": max(_MAX_ITER, model.max_iter)}
    fitted = model.fitted_by_passes(**changes)
    unlabelled = replace(dataset, path=None, labels=None, stored_fingerprint=None)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
        return TensorFits.make(fitted, unlabelled, seed=seed, strata=strata)


def _fit_all(fits: TensorFits, model: CPModel) -> NDArray[np.float64]:
    """Return what a fit to all rows keeps."""
    found: list[Refit] = []
    run_fits(fits, [ALL_ROWS], lambda _, refit: found.append(refit), model.executor, model.memory_limit)
    [fit] = found
    assert isinstance(fit, RefittedLoadings), "fits of tensors raise no DataError"
    return np.asarray(fit.components, np.float64)


def _starting_from(fits: TensorFits, estimate: "_Matched") -> TensorFits:
    """Return fits that start from the estimate, with the scales and signs of the present start, to which mode 1 belongs."""
    first, *others = fits.model.init
    moved = [A.copy() for A in others]
    for A, units in zip(moved, estimate.penalized, strict=True):
        A[:, : len(units)] = units.T * np.linalg.norm(A[:, : len(units)], axis=0)
    return replace(fits, model=with_parameters(fits.model, init=[first, *moved]))


def _from_own_start(fits: TensorFits, model: Any) -> TensorFits:
    own = with_parameters(fits.model, init=model.init)
    return TensorFits.make(own, fits.task.dataset, seed=fits.seed, strata=fits.strata)


@dataclass(frozen=True, eq=False)
class _Matched:
    """Components of a fit in the order and with the signs of others. Vectors are 0 where the fit has lost a component."""

    similarity: NDArray[np.float64]
    """(R,)"""
    weights: NDArray[np.float64]
    """(R,)"""
    penalized: list[NDArray[np.float64]]
    """Unit vectors of modes 2 to N of the model (R, I_n)."""
    units: NDArray[np.float64]
    """Those without penalties and constraints, one after the other (R, ΣI_n)."""
    converged: bool


@dataclass(frozen=True, eq=False)
class _Matching:
    """Matching of what refits keep with vectors (R, I_n) of modes 2 to N, by the vectors of the model."""

    vectors: list[NDArray[np.float64]]

    def match(self, packed: NDArray[Any]) -> _Matched:
        sizes = [A.shape[1] for A in self.vectors]
        _, *parts = np.split(np.asarray(packed, np.float64), np.cumsum([2, *sizes, *sizes])[:-1], axis=1)
        units, penalized = parts[: len(sizes)], parts[len(sizes) :]
        found = match_components(self.vectors, penalized)
        free, kept = (
            [A[found.columns] * signs[:, None] for A, signs in zip(modes, found.signs, strict=True)] for modes in (units, penalized)
        )
        return _Matched(found.similarity, packed[found.columns, 1], kept, np.hstack(free), bool(packed[0, 0]))


def _summarize(model: CPModel, estimate: _Matched, refits: Sequence[RefittedLoadings | None], level: float) -> TensorStability:
    matching = _Matching(estimate.penalized)
    matched = [matching.match(refit.components) for refit in refits if refit is not None]
    slow = sum(not one.converged for one in matched)
    if slow:
        message = f"{slow} of {len(matched)} refits have not converged in {max(_MAX_ITER, model.max_iter)} iterations"
        warn(f"{message}; their intervals may be too narrow: try fewer components")
    ends = [(1 - level) / 2, (1 + level) / 2]
    samples, weights = (np.stack([getattr(one, name) for one in matched]) for name in ("units", "weights"))
    selected = np.stack([np.hstack(one.penalized) != 0 for one in matched]).mean(axis=0)
    kept = (weights > 0).mean(axis=0) >= ends[1]  # else a tail would be the share of refits that have lost the component
    low, high = np.where(kept[:, None], _quantiles(samples, ends), np.nan)
    weight_low, weight_high = np.where(kept, _quantiles(weights, ends), np.nan)
    lost = len(model.weights_) - len(estimate.weights)

    def padded(values: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
        """Append NaN for the components that the model has lost."""
        return np.pad(values, [(0, lost if i == axis else 0) for i in range(values.ndim)], constant_values=np.nan)

    return TensorStability(
        similarity=padded(np.stack([one.similarity for one in matched]), axis=1),
        estimate=padded(estimate.units),
        low=padded(low),
        high=padded(high),
        selected=padded(selected),
        weight=padded(estimate.weights),
        weight_low=padded(weight_low),
        weight_high=padded(weight_high),
        level=float(level),
    )


def _quantiles(samples: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """Return quantiles over the first axis of B samples, at the ranks share · (B + 1), which a further draw exceeds at these rates."""
    return np.asarray(np.quantile(samples, shares, axis=0, method="weibull"))
