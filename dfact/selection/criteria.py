"""Number of components by criteria of fits to all the data: an information criterion, and the consensus of random starts."""

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
from dfact.parameters import check_count, random_generator
from dfact.selection.cross_validation.squared_errors import sum_squared_errors
from dfact.selection.grid import expand
from dfact.selection.result import Selection
from dfact.selection.running.estimators import check_estimator, is_tensor_model
from dfact.selection.running.restarts import fit_starts, lowest_objective

_MAX_ROWS = 5000  # a consensus matrix n × n in double precision takes 200 MB
_RESTARTS = 10


def select_by_criterion(
    model: Any,
    X: Any,
    n_components: Iterable[int] = range(2, 11),
    criterion: str = "bic1",
    *,
    n_restarts: int | None = None,
    confounders: Any = None,
    random_state: Any = None,
) -> Selection:
    """Choose the number of components by a criterion of fits to all the data.

    ``bic1``, to be minimized, of M (n, m) and the model R:

        BIC1(k) = log‖M − R‖² + k (m + n)/(m n) log(m n / (m + n)),

    where missing entries count like the observed ones on average: ‖M − R‖² is m n times the mean squared
    error of the answers, with R not clipped. For the other criteria the model is fitted from each random start, and
    each row belongs to the cluster of its largest factor. C_ij is the share of the fits in which rows i
    and j are in one cluster. Rows whose factors are all 0 belong to none.
    ``ccc``, to be maximized: the correlation of 1 − C with the cophenetic distances of its average linkage.
    ``dispersion``, to be maximized: the mean over all i, j of 4 (C_ij − ½)².

    Parameters
    ----------
    model : estimator
        An estimator with ``factors_`` and ``components_``, such as :class:`dfact.ICQF`; ``ccc`` and ``dispersion`` also
        need ``init`` and ``random_state``. It is not changed.
    X : array (n, m) of any kind, path or Dataset
        At most 5000 rows for ``ccc`` and ``dispersion``.
    n_components : numbers
        Candidates.
    criterion : "bic1", "ccc" or "dispersion"
        The criterion. Among candidates with equal scores the first is chosen.
    n_restarts : int, optional
        Number of random starts of each candidate: by default 10 for ``ccc`` and ``dispersion``, and 5 for ``bic1``, besides
        the model's own start. The lowest objective counts, so that a local optimum does not disqualify a candidate.
    confounders : table of n rows, optional
        The confounders passed to ``model.fit``.
    random_state : int, RandomState or None
        Seed of the random starts.

    Returns
    -------
    Selection
        ``table`` with a column named after the criterion, ``best_params``, and the fitted ``model``: among the fits with
        the best number, the one with the lowest objective.

    Raises
    ------
    ParameterError
        A model of tensors; an unknown criterion, or fewer than two restarts for a consensus.
    DataError
        More rows than a consensus matrix allows; and the same conditions as for ``model.fit``.

    References
    ----------
    Lam et al. (2023), table 1; Brunet et al. (2004); Kim & Park (2007).

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> loadings = np.kron(np.eye(3), np.full(8, 4.0))  # each factor has eight items
    >>> answers = np.clip(np.rint(rng.random((200, 3)) @ loadings + rng.normal(0, 0.5, (200, 24))), 0, 5)
    >>> dfact.selection.select_by_criterion(dfact.ICQF(), answers, range(2, 6)).best_params
    {'n_components': 3}
    """
    check_estimator(model)
    if is_tensor_model(model):
        remedy = "use select_penalty for ElasticCP, or replicability"
        raise ParameterError(f"model is a {type(model).__name__} of tensors, expected one of matrices; {remedy}")
    if criterion not in _CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, _CRITERIA))}")
    chosen = _CRITERIA[criterion]
    n_restarts = chosen.restarts if n_restarts is None else n_restarts
    check_count("n_restarts", n_restarts, chosen.least_restarts, 1000)
    candidates = [c["n_components"] for c in expand(model, {"n_components": list(n_components)})]
    dataset = as_dataset(X, confounders)
    if chosen.least_restarts and dataset.shape[0] > _MAX_ROWS:
        remedy = "pass a sample of the rows, or choose by 'bic1' or block_cross_validate"
        raise DataError(
            f"X has {dataset.shape[0]} rows, expected at most {_MAX_ROWS} for {criterion!r}, which compares all pairs; {remedy}"
        )
    scores: list[float] = []
    best: Any = None
    best_k = candidates[0]
    for k in candidates:
        seeds = np.random.SeedSequence(int(random_generator(random_state).randint(2**31))).generate_state(n_restarts)
        fits = fit_starts(model, {"n_components": k}, seeds, X, confounders, own=not chosen.least_restarts)
        scores.append(chosen.score(fits, dataset))
        if best is None or scores[-1] * chosen.sign > scores[candidates.index(best_k)] * chosen.sign:
            best, best_k = lowest_objective(fits), k
    table = pd.DataFrame({criterion: scores}, index=pd.Index(candidates, name="n_components"))
    best.selection_ = SelectionRecord.from_table(table, candidates.index(best_k), criterion, "min" if chosen.sign < 0 else "max")
    return Selection(table, {"n_components": best_k}, best)


def _bic1(fits: list[Any], dataset: Dataset) -> float:
    lowest = lowest_objective(fits)
    n, m, k = *dataset.shape, len(lowest.components_)
    squares, count = 0.0, 0.0
    weights = dataset.weights if getattr(lowest, "weighted_", False) else None
    dtype = np.dtype(lowest.components_.dtype)
    encoding = getattr(lowest, "confounder_encoding_", None)
    C = None if encoding is None else encoding.encode(dataset.confounders)
    for rows in dataset.source.read_ranges(Layout.of(dataset.shape)):
        values: Any = as_float(dataset.source.read_native(rows.start, rows.stop), dataset.missing_code, dtype)
        R = np.asarray(lowest.factors_[rows]) @ lowest.components_
        if C is not None:
            R += C[rows] @ lowest.confounder_components_
        block_squares, block_count = sum_squared_errors(
            values if isinstance(values, np.ndarray) else to_dense(values, dataset.source.implicit_value),
            R,
            -np.inf,
            np.inf,
            None if weights is None else weights.to_numpy()[rows],
        )
        squares, count = squares + block_squares, count + block_count
    size = n * m
    return float(np.log(max(squares, np.finfo(float).tiny) * size / count) + k * (m + n) / size * np.log(size / (m + n)))


def consensus(fits: list[Any]) -> NDArray[np.float64]:
    """Return C (n, n), the share of the fits in which two rows have the same largest factor; a row without factors is alone."""
    n = fits[0].factors_.shape[0]
    total = np.zeros((n, n))
    for fit in fits:
        W = np.asarray(fit.factors_)
        member = (W.argmax(axis=1)[:, None] == np.arange(W.shape[1])) & (W.max(axis=1) > 0)[:, None]
        together = member.astype(np.float32) @ member.T.astype(np.float32)
        np.fill_diagonal(together, 1)
        total += together
    return total / len(fits)


def _ccc(fits: list[Any], _: Dataset) -> float:
    distances = squareform(1 - consensus(fits), checks=False)
    tree = linkage(distances, "average")
    if np.ptp(distances) == 0:
        return 1.0  # all pairs of rows are equally distant, which the tree reproduces
    return float(cophenet(tree, distances)[0])


def _dispersion(fits: list[Any], _: Dataset) -> float:
    return float(np.mean(4 * (consensus(fits) - 0.5) ** 2))


@dataclass(frozen=True)
class _Criterion:
    """A score and the random starts it needs."""

    score: Callable[[list[Any], Dataset], float]
    sign: int
    """1 if the score is maximized, −1 if it is minimized."""
    restarts: int
    """Default number of random starts."""
    least_restarts: int


_CRITERIA = {
    "bic1": _Criterion(_bic1, -1, _RESTARTS // 2, 0),
    "ccc": _Criterion(_ccc, 1, _RESTARTS, 2),
    "dispersion": _Criterion(_dispersion, 1, _RESTARTS, 2),
}
