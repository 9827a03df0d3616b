"""Criteria for the number of components that hide nothing: an information criterion, and how alike the clusters of restarts are."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.sources.sparse import to_dense
from dfact.data.statistics import as_float
from dfact.errors import DataError, ParameterError
from dfact.models.provenance import SelectionRecord
from dfact.selection.folds import resolve_random_state
from dfact.selection.grid import check_estimator, expand
from dfact.selection.held_out_errors import clipped_errors
from dfact.selection.refits import with_parameters
from dfact.selection.result import Selection

_MOST_ROWS = 5000  # of a consensus matrix, n × n in double precision: 200 MB
_RESTARTS = 10


@dataclass(frozen=True)
class _Fitted:
    """What a criterion rates: the fits with one number of components, and that with the lowest objective."""

    fits: list[Any]
    lowest: Any
    dataset: Dataset


def select_by_criterion(
    model: Any,
    X: Any,
    n_components: Iterable[int] = range(2, 11),
    criterion: str = "bic1",
    *,
    restarts: int | None = None,
    confounders: Any = None,
    random_state: Any = None,
) -> Selection:
    """The number of components by a criterion on fits to all the data.

    ``bic1``, the least, of M (n, m) and the model R:

        BIC1(k) = log‖M − R‖² + k (m + n)/(m n) log(m n / (m + n)),

    where missing entries count as the observed ones do on average: ‖M − R‖² is m n times the mean squared
    error of the answers, R not clipped. For the others a model is fitted from each random start, and
    each row belongs to the cluster of its largest factor; C_ij is the share of the fits in which rows i
    and j are in one cluster. Rows whose factors are all 0 belong to none.
    ``ccc``, the largest: the correlation of 1 − C with the cophenetic distances of its average linkage.
    ``dispersion``, the largest: the mean over all i, j of 4 (C_ij − ½)².

    Parameters
    ----------
    model : estimator
        With ``factors_`` and ``components_``, such as :class:`dfact.ICQF`, and for ``ccc`` and ``dispersion`` with
        ``init`` and ``random_state``; it is left as it is.
    X : array (n, m) of any kind, path or Dataset
        For ``ccc`` and ``dispersion`` with at most 5000 rows.
    n_components : numbers
        The candidates.
    criterion : "bic1", "ccc" or "dispersion"
        Of candidates that score the same the first is taken.
    restarts : int, optional
        Random starts of each candidate: by default 10 for ``ccc`` and ``dispersion``. For ``bic1`` by default 5 beside
        the model's own start, of which the lowest objective counts: a local optimum would count as a bad number.
    confounders : table of n rows, optional
        As for ``model.fit``.
    random_state : int, RandomState or None
        Seed of the random starts.

    Returns
    -------
    Selection
        ``table`` with a column named as the criterion, ``best_params``, and the fitted ``model``; of several fits with
        the best number the one with the lowest objective.

    Raises
    ------
    ParameterError
        An unknown criterion, or fewer than two restarts for a consensus.
    DataError
        More rows than a consensus matrix may have, or as ``model.fit`` does.

    References
    ----------
    Lam et al., "Interpretability-constrained questionnaire factorization", table 1; Brunet et al. (2004),
    "Metagenes and molecular pattern discovery using matrix factorization"; Kim & Park (2007), "Sparse
    non-negative matrix factorizations via alternating non-negativity-constrained least squares".

    Examples
    --------
    >>> import dfact
    >>> from dfact.data.synthetic import icqf_simulation
    >>> M = icqf_simulation(0.1, 0).M
    >>> dfact.selection.select_by_criterion(dfact.ICQF(bounds=(0, 100)), M, range(8, 13)).best_params
    {'n_components': 10}
    """
    check_estimator(model)
    if criterion not in _CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, _CRITERIA))}")
    rated = _CRITERIA[criterion]
    restarts = rated.restarts if restarts is None else restarts
    if restarts < rated.least_restarts:
        raise ParameterError(f"restarts is {restarts}, expected at least {rated.least_restarts} for {criterion!r}")
    candidates = [c["n_components"] for c in expand(model, {"n_components": list(n_components)})]
    dataset = as_dataset(X, confounders)
    if rated.least_restarts and dataset.shape[0] > _MOST_ROWS:
        remedy = "pass a sample of the rows, or choose by 'bic1' or block_cross_validate"
        raise DataError(f"X has {dataset.shape[0]} rows, {criterion!r} compares all pairs of at most {_MOST_ROWS}; {remedy}")
    given = {} if confounders is None else {"confounders": confounders}
    scores: list[float] = []
    best: Any = None
    best_k = candidates[0]
    for k in candidates:
        fits = [
            start.fit(X, **given) for start in _starts(model, k, restarts, resolve_random_state(random_state), rated.least_restarts > 0)
        ]
        lowest = min(fits, key=lambda fit: float(fit.objective_history_[-1]))
        scores.append(rated.score(_Fitted(fits, lowest, dataset)))
        if best is None or scores[-1] * rated.sign > scores[candidates.index(best_k)] * rated.sign:
            best, best_k = lowest, k
    table = pd.DataFrame({criterion: scores}, index=pd.Index(candidates, name="n_components"))
    best.selection_ = SelectionRecord.from_table(table, candidates.index(best_k), criterion, "lowest" if rated.sign < 0 else "highest")
    return Selection(table, {"n_components": best_k}, best)


def _starts(model: Any, k: int, restarts: int, seed: int | None, only_random: bool) -> list[Any]:
    """The estimators to fit: with the model's own start, unless all are to be random, and with random ones."""
    own = [] if only_random else [with_parameters(model, n_components=k)]
    seeds = np.random.SeedSequence(seed).generate_state(restarts) % 2**31
    return own + [with_parameters(model, n_components=k, init="random", random_state=int(number)) for number in seeds]


def _bic1(fitted: _Fitted) -> float:
    lowest, dataset = fitted.lowest, fitted.dataset
    n, m, k = *dataset.shape, len(lowest.components_)
    squares, count = 0.0, 0
    dtype = np.dtype(lowest.components_.dtype)
    encoding = getattr(lowest, "confounder_encoding_", None)
    C = None if encoding is None else encoding.encode(dataset.confounders)
    for rows in dataset.source.read_ranges(Layout.of(dataset.shape)):
        values: Any = as_float(dataset.source.read_native(rows.start, rows.stop), dataset.missing_code, dtype)
        R = np.asarray(lowest.factors_[rows]) @ lowest.components_
        if C is not None:
            R += C[rows] @ lowest.confounder_components_
        more, answers = clipped_errors(
            values if isinstance(values, np.ndarray) else to_dense(values, dataset.source.implicit_value), R, -np.inf, np.inf
        )
        squares, count = squares + more, count + answers
    size = n * m
    return float(np.log(max(squares, np.finfo(float).tiny) * size / count) + k * (m + n) / size * np.log(size / (m + n)))


def consensus(fits: list[Any]) -> NDArray[np.float64]:
    """C (n, n): the share of the fits in which two rows have the same largest factor; a row without any is alone."""
    n = fits[0].factors_.shape[0]
    total = np.zeros((n, n))
    for fit in fits:
        W = np.asarray(fit.factors_)
        member = (W.argmax(axis=1)[:, None] == np.arange(W.shape[1])) & (W.max(axis=1) > 0)[:, None]
        together = member.astype(np.float32) @ member.T.astype(np.float32)
        np.fill_diagonal(together, 1)
        total += together
    return total / len(fits)


def _ccc(fitted: _Fitted) -> float:
    distances = squareform(1 - consensus(fitted.fits), checks=False)
    tree = linkage(distances, "average")
    if np.ptp(distances) == 0:
        return 1.0  # nothing tells rows apart, and the tree says so
    return float(cophenet(tree, distances)[0])


def _dispersion(fitted: _Fitted) -> float:
    return float(np.mean(4 * (consensus(fitted.fits) - 0.5) ** 2))


@dataclass(frozen=True)
class _Criterion:
    score: Callable[[_Fitted], float]
    sign: int
    """1 where more is better, −1 where less is."""
    restarts: int
    least_restarts: int


_CRITERIA = {
    "bic1": _Criterion(_bic1, -1, _RESTARTS // 2, 0),
    "ccc": _Criterion(_ccc, 1, _RESTARTS, 2),
    "dispersion": _Criterion(_dispersion, 1, _RESTARTS, 2),
}
