"""Refits of a fitted model to resampled rows: their common start, their results in a store, and the matching of their factors."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.confounders import ConfounderEncoding
from dfact.data.dataset import Dataset
from dfact.errors import DataError, warn
from dfact.linalg.congruence import congruence, match
from dfact.models.bounded_nmf.effects import AdjustedDifferences
from dfact.models.estimator import Factorization
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.running.estimators import with_parameters
from dfact.selection.running.results_store import ResultsStore
from dfact.selection.running.scheduler import run_fits
from dfact.stability.resamples import ALL_ROWS, Refit, RefittedLoadings, ResampleFits

F = TypeVar("F", bound=ResampleFits)
_SAME_FACTOR = 0.95  # similarity from which two factors count as the same
_TOLERANCE = 2e-5  # of warm-started refits; their loadings then have moved 90 to 98% of the way on eqsq, big5, sd3 and ecr


def fitted_weights(model: Any, dataset: Dataset, sample_weight: Any) -> Dataset:
    """Return the dataset with weights if the model was fitted with any, else without."""
    weighted = getattr(model, "weighted_", False)
    if sample_weight is not None and not weighted:
        raise DataError("the model was fitted without weights; leave out sample_weight")
    dataset = dataset if sample_weight is None else dataset.with_weights(sample_weight)
    if weighted and dataset.weights is None:
        raise DataError(f"the model was fitted with weights; pass those of its {dataset.shape[0]} rows in sample_weight")
    return dataset if weighted else dataset.with_weights(None)


def fitted_confounders(model: Any, dataset: Dataset, confounders: Any) -> pd.DataFrame | None:
    """Return the confounders of the dataset if the model was fitted with them, None if it was fitted without any."""
    encoding = getattr(model, "confounder_encoding_", None)
    if encoding is None and confounders is not None:
        raise DataError("the model was fitted without confounders; leave them out")
    if encoding is not None and dataset.confounders is None:
        raise DataError(f"the model was fitted with confounders {list(encoding.names)}; pass those of its {dataset.shape[0]} rows")
    frame = None if encoding is None else dataset.confounders
    if frame is not None and ConfounderEncoding.fit(frame) != encoding:
        raise DataError(f"the confounders {list(frame.columns)} are not those that the model was fitted with; pass those")
    return frame


def refit_inputs(model: Any, dataset: Dataset, confounders: pd.DataFrame | None) -> tuple[Any, Dataset]:
    """Return the unfitted model and the dataset of refits, with these confounders.

    Their row factors are discarded, so they need neither labels nor a store.
    """
    unlabelled = replace(dataset, confounder_source=confounders, path=None, labels=None, stored_fingerprint=None)
    return with_parameters(model, executor=None, memory_limit=None, callbacks=()), unlabelled


def converged_start(model: Any, fits: F, matching: "Matching", store: ResultsStore | None = None) -> F:
    """Fit the model further to all rows, and return the fits with its loadings as their common start, which a ``store`` keeps."""
    warm = with_parameters(fits.model, init=np.asarray(model.components_, np.float64), tol=min(_TOLERANCE, model.tol))
    fits = replace(fits, model=warm)
    if store is not None and (ALL_ROWS,) in store.entries:
        [components] = store.entries[ALL_ROWS,]
        return replace(fits, model=with_parameters(warm, init=components.astype(np.float64)))
    found: list[Refit] = []
    run_fits(fits, [ALL_ROWS], lambda _, refit: found.append(refit), model.executor, model.memory_limit)
    [start] = found
    if isinstance(start, DataError):
        raise start
    if store is not None:
        store.add((ALL_ROWS,), [start.components])
    nonzero = matching.loadings.any(axis=1)  # a penalty may have left a factor without loadings
    similarity = np.where(nonzero, matching.match(start.components)[0], 1.0)
    if similarity.min() < _SAME_FACTOR:
        moved = f"its similarity to the converged {model.get_feature_names_out()[similarity.argmin()]} is {similarity.min():.2f}"
        warn(f"the model has not converged: {moved}, expected at least {_SAME_FACTOR}; fit it with a smaller tol")
    return replace(fits, model=with_parameters(warm, init=start.components.astype(np.float64)))


class Refits:
    """The finished refits; stores them and reports progress. Thread-safe."""

    def __init__(
        self,
        store: ResultsStore,
        numbers: Sequence[int],
        callbacks: Sequence[Callable[[Iteration], None]],
        describe: Callable[[int], str] = lambda number: f"number {number + 1}",
    ) -> None:
        self._store, self._numbers, self._describe = store, numbers, describe
        self.failed: dict[int, DataError] = {}
        """The errors of refits by number."""
        self.pending = [number for number in numbers if (number,) not in store.entries]
        self._done = len(numbers) - len(self.pending)
        self._lock, self._left, self._reporter = threading.Lock(), TimeLeft(len(numbers)), Reporter(callbacks, len(numbers))

    def keep(self, number: int, refit: Refit) -> None:
        """Store a finished refit and report it."""
        with self._lock:
            if isinstance(refit, DataError):
                self.failed[number] = refit
            else:
                differences = refit.differences
                adjusted = [] if differences is None else [getattr(differences, field.name) for field in fields(differences)]
                arrays = [refit.components, refit.scale, refit.confounders, *adjusted]
                self._store.add((number,), [array for array in arrays if array is not None])
            self._done += 1
            self._reporter.reached(self._done, self._left.text(self._done))

    def loadings(self) -> list[RefittedLoadings | None]:
        """Return the loadings of each refit, None for those that failed."""
        first = min(self.failed, default=None)
        if first is not None:
            example = f"{self._describe(first)}: {self.failed[first]}"
            failed = f"{len(self.failed)} of {len(self._numbers)} refits failed, such as {example}"
            if len(self._numbers) - len(self.failed) < 2:
                raise DataError(f"{failed}; expected at least 2 that succeed")
            warn(failed)
        return [None if i in self.failed else self._stored(i) for i in self._numbers]

    def stored(self, numbers: Sequence[int]) -> list[RefittedLoadings]:
        """Return the loadings of these refits, which have succeeded."""
        return [self._stored(number) for number in numbers]

    def _stored(self, number: int) -> RefittedLoadings:
        components, *others = self._store.entries[number,]
        assert components is not None, "every refit has loadings"
        if others and others[0].ndim == 1:
            return RefittedLoadings(components, None, scale=others[0])
        return RefittedLoadings(components, others[0], AdjustedDifferences(*others[1:])) if others else RefittedLoadings(components, None)


@dataclass(frozen=True, eq=False)
class Matching:
    """Matching of the factors of refits with those of a model."""

    loadings: NDArray[np.float64]
    """(k, m)."""
    centre: NDArray[np.float64]
    """(m,): subtracted before factors are compared."""
    signed: bool
    """Whether the sign of a factor may be flipped."""

    @classmethod
    def of(cls, model: Factorization) -> "Matching":
        H = np.asarray(model.components_, np.float64)
        centred = model.traits.centred_matching and len(H) > 1
        return cls(H, H.mean(axis=0) if centred else np.zeros(H.shape[1]), not model.traits.nonnegative)

    def match(self, loadings: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the similarities of the matched factors (k,), and their loadings (k, m) in the order of the model's."""
        refit = loadings.astype(np.float64)
        similarity, columns, signs = self.assign(refit)
        return similarity, refit[columns] * signs[:, None]

    def assign(self, refit: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64]]:
        """Return for each factor of the model the similarity of the matched factor of the refit, its number, and its sign."""
        cosines = congruence(self.loadings - self.centre, refit - self.centre)
        scores = np.abs(cosines) if self.signed else cosines
        rows, columns = match(scores)
        return scores[rows, columns], columns, np.where(self.signed & (cosines[rows, columns] < 0), -1.0, 1.0)
