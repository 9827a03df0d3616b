"""Parameters of any model by block cross-validation."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from hashlib import blake2b
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.data.sources.sparse import SparseSource, to_dense
from dfact.data.statistics import as_float
from dfact.engine.memory_plan import WorkerResources
from dfact.errors import DataError, ParameterError
from dfact.linalg.svd import Matrix
from dfact.models.bounded_nmf.nmf import NMF
from dfact.models.provenance import SelectionRecord
from dfact.parameters import check_count
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.cross_validation.fold_fits import EstimatorFits, FoldTask, GroupResult, Score, WarmStarts
from dfact.selection.cross_validation.folds import (
    Folds,
    assign_all_folds,
    check_blocks,
    resolve_folds,
    resolve_groups,
    resolve_strata,
)
from dfact.selection.cross_validation.squared_errors import sum_squared_errors
from dfact.selection.grid import Parameters, best_fit, expand, make_index, most_components, plan_fits
from dfact.selection.result import RULES, Selection, choose, fold_errors
from dfact.selection.running.estimators import check_estimator, require_method, weighted_dataset, with_parameters
from dfact.selection.running.results_store import ResultsStore, describe_model, describe_parameters
from dfact.selection.running.scheduler import run_fits


def block_cross_validate(
    model: Any,
    X: Any,
    grid: Mapping[str, Any],
    n_blocks: tuple[int, int] = (10, 10),
    n_folds: int | None = None,
    n_repeats: int = 1,
    rule: str = "min",
    *,
    training: str = "others",
    confounders: Any = None,
    sample_weight: Any = None,
    stratify: Any = None,
    groups: Any = None,
    n_restarts: int = 0,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    in_memory: bool | None = None,
) -> Selection:
    """Choose parameters, such as the number of components, by the error on held-out blocks of answers.

    Rows and columns are shuffled and cut into blocks, and the blocks are assigned to folds. For each
    configuration and fold the model is fitted without the fold's entries, and

        error = Σ (M − clip(R))² / number,   over the held-out answers M and the model R of them.

    ICQF, and NMF by its squared loss, are fitted by the solver "mm" from the NNDSVD, whatever the model's own solver
    and start. Within a fold each fit starts from the loadings of the previous one, further components
    from the NNDSVD, and stops when the relative change of the objective in a pass falls below five times the
    model's ``tol`` (twice ``tol`` if it differs from the previous fit in β alone). The final fit stops as ``model.fit`` does.
    Bounds that the model takes from the data come from the complete data.

    With ``training="disjoint"``, this is the bi-cross-validation of Owen & Perry (2009) for an NMF: each block is held out in a fold
    of its own, and the model is fitted to the rows and columns that are outside of it. The factors of the block's rows follow from
    their other columns, the loadings of its columns from the other rows, and their product predicts the block. No entry is masked, so
    that sparse data stays sparse, and every fit has fewer rows and columns.

    Parameters
    ----------
    model : estimator
        An :class:`dfact.ICQF` or another estimator that accepts NaN and rebuilds data by
        ``inverse_transform`` of its ``factors_``. It is not changed.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing. If the data does not fit in memory, the fits share their reads.
    grid : dict of lists
        Values to try for each parameter, in all combinations, such as ``{"n_components": range(2, 11), "beta": [0.05, 0.1, 0.2]}``.
    n_blocks : (int, int)
        Number of blocks of the rows and of the columns.
    n_folds : int
        Number of folds; by default 10, or with ``training="disjoint"`` the number of blocks, which it must be.
    n_repeats : int
        Number of times that rows and columns are shuffled and the blocks assigned to folds, at most 1000.
    rule : "min", "1se" or "knee"
        See :func:`dfact.selection.result.choose`.
    training : "others" or "disjoint"
        Entries that a fit sees: all others (Wold's hold-out, by blocks), or those in other rows and other columns (Gabriel's).
    confounders : table of n rows, optional
        The confounders passed to ``model.fit``. If the model takes none, they still stratify the rows.
    sample_weight : numbers (n,), optional
        The weights passed to ``model.fit``, if it takes any; a Dataset or path brings its own. The errors of held-out answers are
        weighted, too.
    stratify : labels (n,) or a table of n rows, optional
        Each row block gets the same share of the rows of each level; by default of the confounders' levels.
        Continuous numbers are cut into quarters.
    groups : labels (n,), optional
        Rows with the same label, such as copies of a row or members of a household, are in the same row block, so that none is
        predicted from the others.
    n_restarts : int
        Number of random starts for each number of components, at most 1000, besides the default one; the lowest objective counts.
    random_state : int, RandomState or None
        Seed of the folds and the random starts.
    checkpoint : path, optional
        Folder for the finished fits. The same call resumes from it; a different call is refused.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` whenever a fold finishes a number of components, such
        as ``dfact.Progress("select")``.
    in_memory : bool, optional
        Whether the data is held in memory, with a copy for each thread; by default if it fits in ``model.memory_limit``.

    Returns
    -------
    Selection
        ``table`` with the ``error`` of each configuration over all held-out answers, its standard error ``se`` over the
        folds, the standard error ``se_difference`` of its difference from the lowest error (see
        :func:`dfact.selection.result.fold_errors`), ``seconds`` and ``passes`` of its fits; ``folds`` with the error of each fold;
        ``best_params``; and the ``model`` fitted with them to the complete data.

    Raises
    ------
    ParameterError
        A grid, numbers of blocks or folds, or a checkpoint that do not match the model or the data.
    DataError, MemoryPlanError
        The same conditions as for ``model.fit`` with the largest number of components.

    References
    ----------
    Lam et al. (2023), section 3; Kanagal & Sindhwani (2010): both hold-outs for NMF; Owen & Perry (2009), doi:10.1214/08-AOAS227.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> loadings = np.kron(np.eye(3), np.full(8, 4.0))  # each factor has eight items
    >>> answers = np.clip(np.rint(rng.random((200, 3)) @ loadings + rng.normal(0, 0.5, (200, 24))), 0, 5)
    >>> grid = {"n_components": [2, 3, 4]}
    >>> dfact.selection.block_cross_validate(dfact.ICQF(), answers, grid, random_state=0).best_params
    {'n_components': 3}
    """
    check_estimator(model)
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    check_count("n_repeats", n_repeats, 1, 1000)
    check_count("n_restarts", n_restarts, 0, 1000)
    configurations = expand(model, grid)
    dataset = weighted_dataset(model, as_dataset(X, confounders), sample_weight)
    if len(dataset.shape) != 2:
        raise DataError(f"X has {len(dataset.shape)} modes, expected two: rows and columns")
    shape = (dataset.shape[0], dataset.shape[1])
    grouped = resolve_groups(groups, shape[0])
    disjoint = _check_training(model, training, n_restarts)
    n_folds = resolve_folds(n_blocks, n_folds, disjoint=disjoint)
    blocks = check_blocks((shape[0] if grouped is None else int(grouped.max()) + 1, shape[1]), n_blocks, n_folds)
    strata = resolve_strata(stratify, dataset.confounders, shape[0])
    settings: dict[str, Any] = {
        "grid": [describe_parameters(c) for c in configurations],
        "n_blocks": blocks,
        "n_folds": int(n_folds),
    }
    settings |= {"repeats": int(n_repeats), "restarts": int(n_restarts)}
    settings |= {"strata": None if strata is None else blake2b(strata.tobytes(), digest_size=8).hexdigest()}
    settings |= {"training": training} if disjoint else {}
    settings |= {} if grouped is None else {"groups": blake2b(grouped.tobytes(), digest_size=8).hexdigest()}
    store = ResultsStore.of_fits(checkpoint, dataset, describe_model(model), random_state, **settings)
    folds = assign_all_folds(shape, blocks, n_folds, n_repeats, store.seed, strata, grouped)
    _check_size(most_components(model, configurations), folds, disjoint=disjoint)
    fits: WarmStarts | EstimatorFits = plan_fits(model, configurations, dataset, folds, n_restarts, store.seed)
    if disjoint:
        fits = DisjointFits(fits.task, folds, model, tuple(configurations))
    groups = _run(model, fits, configurations, folds, store, callbacks, in_memory)
    table, fold_errors = _tabulate(configurations, groups, store)
    best = choose(table, rule)
    fitted: Any = best_fit(model, best, X, confounders, sample_weight, n_restarts, store.seed)
    fitted.selection_ = SelectionRecord.from_table(table, configurations.index(best), "error", rule, "se")
    return Selection(table, best, fitted, fold_errors)


def _run(
    model: Any,
    fits: WarmStarts | EstimatorFits,
    configurations: list[Parameters],
    folds: list[Folds],
    store: ResultsStore,
    callbacks: Sequence[Callable[[Iteration], None]],
    in_memory: bool | None,
) -> list[tuple[int, ...]]:
    """Compute the results that are not stored yet; return the numbers of the configurations in each group."""
    groups: list[tuple[int, ...]] = [(i,) for i in range(len(configurations))]
    if isinstance(fits, WarmStarts):
        groups = [group.configurations for group in fits.groups]
    tasks = [
        FoldTask(repeat, fold, *_finished_groups(store, repeat, fold))
        for repeat, repeat_folds in enumerate(folds)
        for fold in range(repeat_folds.n_folds)
    ]
    tasks = [task for task in tasks if task.n_done < len(groups)]
    progress = _Progress(configurations, groups, store, len(folds) * folds[0].n_folds, callbacks)
    if in_memory is not None and isinstance(fits, EstimatorFits):
        in_memory = True  # the estimator's own fit takes an array, whatever the caller prefers
    if tasks:
        run_fits(fits, tasks, progress.keep, getattr(model, "executor", None), getattr(model, "memory_limit", None), in_memory=in_memory)
    return groups


def _finished_groups(store: ResultsStore, repeat: int, fold: int) -> tuple[int, NDArray[Any] | None]:
    """Return the number of the fold's groups finished without a gap, and the loadings of the last."""
    number = store.n_finished(repeat, fold)
    return number, store.entries[repeat, fold, number - 1][1] if number else None


def _check_training(model: Any, training: str, n_restarts: int) -> bool:
    """Return whether the fits see no row and no column of the held-out block."""
    if training not in ("others", "disjoint"):
        raise ParameterError(f"training is {training!r}, expected 'others' or 'disjoint'")
    if training == "others":
        return False
    require_method(model, "column_loadings", "an NMF for training='disjoint', which solves loadings given factors")
    if n_restarts:
        raise ParameterError(f"n_restarts is {n_restarts}, expected 0 with training='disjoint': each fit has its own start alone")
    return True


def _check_size(k: int, folds: list[Folds], *, disjoint: bool) -> None:
    shapes = [of_repeat.smallest_disjoint_shape if disjoint else of_repeat.smallest_training_shape for of_repeat in folds]
    smallest = min(map(min, shapes))
    if k > smallest:
        raise ParameterError(
            f"n_components is {k} in the grid, expected at most {smallest}, the rows or columns without a fold; leave out larger numbers"
        )


class _Progress:
    """Stores the results of all folds and reports their combined progress. Thread-safe."""

    def __init__(
        self,
        configurations: list[Parameters],
        groups: list[tuple[int, ...]],
        store: ResultsStore,
        n_tasks: int,
        callbacks: Sequence[Callable[[Iteration], None]],
    ) -> None:
        self._configurations, self._groups, self._store = configurations, groups, store
        self._weights = [sum(float(configurations[i].get("n_components", 1)) for i in numbers) for numbers in groups]
        self._left, self._reporter = TimeLeft(n_tasks * sum(self._weights)), Reporter(callbacks, n_tasks * len(configurations))
        self._lock = threading.Lock()

    def keep(self, task: FoldTask, result: GroupResult) -> None:
        """Store a result of a fold and report it."""
        group, scores, loadings = result
        parameters = describe_parameters(self._configurations[self._groups[group][0]])
        with self._lock:
            self._store.add((task.repeat, task.fold, group), [np.asarray([astuple(score) for score in scores], float), loadings])
            finished = [key[2] for key in self._store.entries]
            # The time of a fit grows with its number of components.
            left = self._left.text(sum(self._weights[number] for number in finished))
            step = ", ".join(filter(None, [f"fold {task.fold + 1}", parameters, left]))
            self._reporter.reached(sum(len(self._groups[number]) for number in finished), step)


def _tabulate(configurations: list[Parameters], groups: list[tuple[int, ...]], store: ResultsStore) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a table with the error of each configuration, and one with the errors of each of its folds."""
    columns = sorted({key[:2] for key in store.entries})
    scores = np.empty((len(configurations), len(columns), 4))
    for (repeat, fold, group), (group_scores, _) in store.entries.items():
        scores[list(groups[group]), columns.index((repeat, fold))] = group_scores
    squares, count, seconds, passes = np.moveaxis(scores, 2, 0)
    if not count.any(axis=0).sum() > 0:
        raise DataError("no fold holds out an answer, expected data with answers")
    errors = np.where(count > 0, squares / np.where(count > 0, count, 1), np.nan)
    n_repeats = len({repeat for repeat, _ in columns})
    squares, count = (figures.reshape(len(figures), n_repeats, -1) for figures in (squares, count))
    totals: dict[str, Any] = dict(fold_errors(squares, count))
    totals |= {"seconds": seconds.sum(axis=1), "passes": passes.sum(axis=1).astype(int)}
    index = make_index(configurations)
    folds = pd.MultiIndex.from_tuples(columns, names=["repeat", "fold"])
    return pd.DataFrame(totals, index=index), pd.DataFrame(errors, index=index, columns=folds)


_POSITION_BYTES = 8  # of a stored entry


@dataclass(frozen=True, eq=False)
class DisjointFits(EstimatorFits):
    """Fits of an NMF to the rows and columns outside of each block. Sparse data stays sparse, as no entry of a fit is masked."""

    def fits_in_memory(self, count: int, workers: WorkerResources) -> bool:
        source = self.task.dataset.source
        if not isinstance(source, SparseSource) or source.implicit_value != 0:
            return super().fits_in_memory(count, workers)
        size = source.n_stored * (self.task.dtype.itemsize + _POSITION_BYTES)
        return workers.baseline + size * (1 + 2 * workers.threads) <= workers.limit

    def prepare_in_memory(self) -> Callable[[FoldTask], Iterator[GroupResult]]:
        """Load the values; return the function that fits to a part of them."""
        dataset = self.task.dataset
        weights = None if dataset.weights is None else dataset.weights.to_numpy()
        M: Matrix = as_float(dataset.source.to_memory().read_native(0, dataset.shape[0]), dataset.missing_code, self.task.dtype)
        if not isinstance(M, np.ndarray) and dataset.source.implicit_value != 0:
            M = to_dense(M, dataset.source.implicit_value)
        return partial(_fit_fold, M, weights, self.folds, self.model, self.configurations)


def _fit_fold(
    M: Matrix,
    weights: NDArray[Any] | None,
    folds: Sequence[Folds],
    model: NMF,
    configurations: tuple[Mapping[str, Any], ...],
    which: FoldTask,
) -> Iterator[GroupResult]:
    """Fit to the rows and columns outside of the fold's block. Columns without an entry there predict nothing."""
    of_repeat = folds[which.repeat]
    [(row_block, column_block)] = np.argwhere(of_repeat.fold_of_block == which.fold)
    rows, columns = of_repeat.rows == row_block, of_repeat.columns == column_block
    inside, training, beside = M[rows], M[~rows][:, ~columns], M[~rows][:, columns]
    kept = ~np.isnan(training).all(axis=0) if isinstance(training, np.ndarray) else np.ones(training.shape[1], bool)
    above = inside[:, ~columns][:, kept]
    for number in range(which.n_done, len(configurations)):
        began = time.perf_counter()
        fitted = with_parameters(model, **configurations[number], executor="inline", callbacks=())
        fitted.fit(_contiguous(training[:, kept]), sample_weight=None if weights is None else weights[~rows])
        Q = fitted.column_loadings(_contiguous(beside), sample_weight=None if weights is None else weights[~rows])
        W = np.asarray(fitted.transform(_contiguous(above)))
        squares, count = _squared_errors(inside[:, columns], W, Q, None if weights is None else weights[rows])
        yield number, [Score(squares, count, time.perf_counter() - began, fitted.n_iter_)], np.empty(0)


def _squared_errors(M: Matrix, W: NDArray[Any], Q: NDArray[Any], weights: NDArray[Any] | None) -> tuple[float, float]:
    """Return the squared errors of the model of the factors W (n, k) and the loadings Q (m, k), block by block, and their number."""
    parts, step = [], Layout.of((len(W), len(Q))).block_rows
    for start in range(0, len(W), step):
        part = slice(start, start + step)
        values = M[part] if isinstance(M, np.ndarray) else to_dense(M[part], 0.0)
        parts.append(sum_squared_errors(values, W[part] @ Q.T, -np.inf, np.inf, None if weights is None else weights[part]))
    return sum(squares for squares, _ in parts), sum(count for _, count in parts)


def _contiguous(M: Matrix) -> Matrix:
    return np.ascontiguousarray(M) if isinstance(M, np.ndarray) else M
