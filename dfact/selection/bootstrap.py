"""How far loadings are those of these very participants: refits on resampled rows."""

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.utils.validation import check_is_fitted

from dfact.data.coerce import as_dataset
from dfact.data.confounders import ConfounderEncoding
from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.models.estimator import Factorization
from dfact.models.parameters import describe_value, is_in_range
from dfact.models.provenance import Stability
from dfact.progress import Iteration, TimeLeft
from dfact.selection.fitted_data import fitted_dataset
from dfact.selection.folds import resolve_random_state
from dfact.selection.refits import takes_weights, with_parameters
from dfact.selection.resamples import ALL_ROWS, Refit, Resamples
from dfact.selection.results_store import ResultsStore, model_text

SAME = 0.95
"""The similarity from which factors count as the same."""
_TOLERANCE = 2e-5  # of warm refits, whose loadings then have gone 90 to 98 % of their way on eqsq, big5, sd3 and ecr


def bootstrap(
    model: Factorization,
    X: Any,
    n_resamples: int = 100,
    *,
    level: float = 0.95,
    warm_start: bool = True,
    confounders: Any = None,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    checkpoint: str | PathLike[str] | None = None,
) -> Stability:
    """How a fitted model varies from sample to sample: refits to resampled participants, and intervals of the loadings.

    Of the n participants n are drawn with replacement, each with its answers and confounders, and the model is
    fitted to them with its own parameters; so n_resamples times. The factors of each refit are matched with the model's, one to one,
    so that the sum of their similarities

        s = |hᵀh'| / ‖h‖‖h'‖   of the loadings h and h',

    Tucker's congruence, is the largest; where it is negative the refit's factor is turned round. What cannot be negative has no signs
    to be turned, and classes (:class:`dfact.GradeOfMembership`) are compared by how their expected responses differ from the
    mean of the classes. The interval of each loading is that of the percentiles of the matched loadings, as they are:
    refits are not scaled. From 0.95 on factors count as the same, below 0.85 as different (Lorenzo-Seva & ten Berge).

    With ``warm_start`` refits start from the model's loadings, where a model can start from some. They then stay by its optimum:
    what they tell is how that varies with the sample, not whether another sample would have led to another one. So near
    to it an objective falls slowly, and refits that stopped as early as most fits do would hardly move: they, and before them the
    model itself on all rows, go on to a ``tol`` of 2e-5, or the model's if that is less. ``warm_start=False`` refits as the model was
    fitted,
    with its own start (``init``) and ``tol``: that adds what start and end have to do with it, and takes more passes.
    Grade of membership and factor analysis need no start. What is drawn at random in a fit has another seed in each refit.

    Where the model determines its factors up to a rotation alone and takes the one of the singular vectors (expectile
    factorization), those with nearly the same singular value turn among one another from sample to sample, and are told to be unstable.
    Intervals of penalised and of bounded loadings are of the estimates, which the penalty draws to 0, not of what they estimate:
    one that is 0 in nearly every refit has an interval without width.

    Parameters
    ----------
    model : fitted estimator
        Such as :class:`dfact.ICQF`; not one of tensors. It is left as it is; its ``executor`` and ``memory_limit`` say where refits run.
    X : array (n, m) of any kind, path or Dataset
        What the model was fitted to. What does not fit in memory is read by many refits together.
    n_resamples : int
        At least 2. Those of a smaller number are the first of a larger one.
    level : float
        Share of the refits' loadings that an interval holds.
    warm_start : bool
        Whether refits start from the model's loadings.
    confounders : table of n rows, optional
        As they were given to ``model.fit``; a Dataset or path brings its own.
    random_state : int, RandomState or None
        Seed of all that is drawn; the result is the same wherever it is computed.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` whenever a refit is finished, such as ``dfact.Progress("refits")``.
    checkpoint : path, optional
        A folder that keeps the refits that are finished. The same call goes on from there; another one is refused.

    Returns
    -------
    Stability
        Set it as ``model.stability_``, and the model is saved and reported with it.

    Raises
    ------
    ParameterError
        A model of tensors; fewer than 2 resamples; a level that is none; a checkpoint of something else.
    DataError
        Data that the model was not fitted to, as far as can be seen; or fewer than 2 resamples could be fitted.
    MemoryPlanError
        As ``model.fit`` does.

    Warns
    -----
    UserWarning
        Resamples that the model could not be fitted to, as when an item does not vary in them; their similarities are NaN.
        A model that becomes another one when its fit goes on: fit it with a smaller ``tol``.

    References
    ----------
    Efron & Tibshirani (1993), "An introduction to the bootstrap", chapter 13; Lorenzo-Seva & ten Berge (2006), "Tucker's
    congruence coefficient as a meaningful index of factor similarity".

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.normal(size=(500, 2)) @ np.kron(np.eye(2), np.ones(6)) + rng.normal(size=(500, 12))
    >>> model = dfact.FactorAnalysis(n_components=2).fit(answers)
    >>> model.stability_ = dfact.selection.bootstrap(model, answers, random_state=0)
    >>> model.stability_.similarity.shape, bool(np.median(model.stability_.similarity) > 0.95)
    ((100, 2), True)
    """
    _check(model, n_resamples, level)
    dataset = fitted_dataset(model, as_dataset(X, confounders))
    fingerprint = None if checkpoint is None else dataset.fingerprint
    kept = ResultsStore(checkpoint, {"data": fingerprint, "model": _text(model, warm_start), "seed": resolve_random_state(random_state)})
    resamples, matching = _resamples(model, dataset, confounders, kept.seed), _Matching.of(model)
    refits = _Refits(kept, n_resamples, callbacks)
    if refits.waiting:
        if warm_start and "init" in model.get_params(deep=False):
            resamples = _settled(model, resamples, refits, matching)
        resamples.run(refits.waiting, refits.keep, model.executor, model.memory_limit)
    return _stability(matching, refits.found(), level)


def _check(model: Any, n_resamples: Any, level: Any) -> None:
    if not isinstance(model, Factorization) or model.traits.tensor:
        named = "the class" if isinstance(model, type) else f"a {type(model).__name__},"
        remedy = "of tensors select_on_path(criterion='split_half') tells which components are there again in other rows"
        raise ParameterError(f"model is {named} whose rows cannot be resampled; expected a fitted model such as ICQF(); {remedy}")
    check_is_fitted(model)
    if not isinstance(n_resamples, (int, np.integer)) or isinstance(n_resamples, bool) or n_resamples < 2:
        raise ParameterError(f"n_resamples is {n_resamples!r}, expected an integer of at least 2")
    if not is_in_range(level, 0, 1) or level == 0:
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")


def _text(model: Factorization, warm_start: bool) -> str:
    """What the refits follow from beside the data."""
    return f"{model_text(model)}, components {describe_value(np.asarray(model.components_))}, warm={bool(warm_start)}"


def _resamples(model: Any, dataset: Dataset, confounders: Any, seed: int) -> Resamples:
    known = getattr(model, "confounder_encoding_", None)
    if known is None and confounders is not None:
        raise DataError("the model was fitted without confounders; leave them out")
    if known is not None and dataset.confounders is None:
        raise DataError(f"the model was fitted with confounders {list(known.names)}; pass those of its {dataset.shape[0]} rows")
    frame = None if known is None else dataset.confounders
    if frame is not None and ConfounderEncoding.fit(frame) != known:
        raise DataError(f"the confounders {list(frame.columns)} are not those that the model was fitted with; pass these")
    # The refits' rows go nowhere, so nothing of them is labelled, or lies in a store.
    plain = replace(dataset, confounders=frame, path=None, labels=None, stored_fingerprint=None)
    refit = with_parameters(model, executor=None, memory_limit=None, callbacks=())
    encoded = None if frame is None else ConfounderEncoding.fit(frame).encode(frame)
    return Resamples(refit, plain, encoded, takes_weights(model), seed)


def _settled(model: Any, resamples: Resamples, refits: "_Refits", matching: "_Matching") -> Resamples:
    """With the start that all refits share: the model once its fit has gone on."""
    warm_start = with_parameters(resamples.model, init=np.asarray(model.components_, np.float64), tol=min(_TOLERANCE, model.tol))
    resamples = replace(resamples, model=warm_start)
    resamples.run([ALL_ROWS], refits.keep, model.executor, model.memory_limit)
    start = refits.start()
    present = matching.loadings.any(axis=1)  # a penalty may have left a factor without loadings
    similarity = np.where(present, matching.match(start)[0], 1.0)
    if similarity.min() < SAME:
        moved = f"{model.get_feature_names_out()[similarity.argmin()]} has then a similarity of {similarity.min():.2f} to what it was"
        warnings.warn(f"the model has not settled, its fit goes on: {moved}; fit it with a smaller tol", UserWarning, stacklevel=3)
    return replace(resamples, model=with_parameters(warm_start, init=start.astype(np.float64)))


class _Refits:
    """Keeps the refits that are finished, and tells of it; the threads of several may call."""

    def __init__(self, kept: ResultsStore, count: int, callbacks: Sequence[Callable[[Iteration], None]]) -> None:
        self._kept, self._count, self._callbacks = kept, count, callbacks
        self._failed: dict[int, DataError] = {}
        self._lock, self._began = threading.Lock(), time.perf_counter()
        self.waiting = [number for number in range(count) if (number, 0, 0) not in kept.entries]
        self._done, self._left = 0, TimeLeft(count)
        self._start: Refit | None = None

    def start(self) -> NDArray[Any]:
        """The loadings of all rows as they are."""
        assert self._start is not None, "they were fitted"
        if isinstance(self._start, DataError):
            raise self._start
        return self._start

    def keep(self, number: int, refit: Refit) -> None:
        """A refit is finished."""
        if number == ALL_ROWS:
            self._start = refit
            return
        with self._lock:
            if isinstance(refit, DataError):
                self._failed[number] = refit
            else:
                self._kept.add((number, 0, 0), [], refit)
            self._done += 1
            done, seconds = self._count - len(self.waiting) + self._done, time.perf_counter() - self._began
            step = self._left.text(done)
            for callback in self._callbacks:
                callback(Iteration(done, self._count, float("nan"), float("nan"), seconds, step))

    def found(self) -> list[NDArray[Any] | None]:
        """The loadings of each; None where there are none."""
        first = min(self._failed, default=None)
        if first is not None:
            failed = (
                f"{len(self._failed)} of {self._count} resamples could not be fitted, such as number {first + 1}: {self._failed[first]}"
            )
            if self._count - len(self._failed) < 2:
                raise DataError(f"{failed}; expected at least 2 that can")
            warnings.warn(failed, UserWarning, stacklevel=3)
        return [None if i in self._failed else self._kept.entries[i, 0, 0][1] for i in range(self._count)]


@dataclass(frozen=True, eq=False)
class _Matching:
    """Of the factors of refits with those of a model."""

    loadings: NDArray[np.float64]
    """(k, m)."""
    centre: NDArray[np.float64]
    """(m,): what all factors share, and is not compared."""
    signed: bool
    """Whether a factor may be turned round."""

    @classmethod
    def of(cls, model: Factorization) -> "_Matching":
        H = np.asarray(model.components_, np.float64)
        broadcast = model.traits.centred_matching and len(H) > 1
        return cls(H, H.mean(axis=0) if broadcast else np.zeros(H.shape[1]), not model.traits.nonnegative)

    def match(self, loadings: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The similarity of the factor that goes with each of the model's (k,), and these factors' loadings (k, m)."""
        other = loadings.astype(np.float64)
        A, B = self.loadings - self.centre, other - self.centre
        lengths = np.outer(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=1))
        cosines = np.divide(A @ B.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        scores = np.abs(cosines) if self.signed else cosines
        rows, columns = linear_sum_assignment(-scores)  # the rows are those of A in order
        signs = np.where(self.signed & (cosines[rows, columns] < 0), -1.0, 1.0)
        return scores[rows, columns], other[columns] * signs[:, None]


def _stability(matching: _Matching, refits: Sequence[NDArray[Any] | None], level: float) -> Stability:
    k, m = matching.loadings.shape
    similarity = np.full((len(refits), k), np.nan)
    matched: list[NDArray[np.float64]] = []
    for number, refit in enumerate(refits):
        if refit is not None:
            similarity[number], loadings = matching.match(refit)
            matched.append(loadings)
    mean, low, high, selected = (np.empty((k, m)) for _ in range(4))
    for factor in range(k):  # a copy of one factor's at a time
        found = np.stack([loadings[factor] for loadings in matched])
        mean[factor], selected[factor] = found.mean(axis=0), (found != 0).mean(axis=0)
        low[factor], high[factor] = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Stability(similarity, mean, low, high, float(level), selected)
