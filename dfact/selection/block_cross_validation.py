"""Block cross-validation."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from hashlib import blake2b
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.confounders import ConfounderEncoding
from dfact.data.dataset import Dataset
from dfact.engine.executors import resolve_executor
from dfact.engine.partitions import partitions
from dfact.errors import DataError, MemoryPlanError, ParameterError
from dfact.models.provenance import SelectionRecord
from dfact.progress import Iteration, TimeLeft
from dfact.selection.folds import Folds, assign_all_folds, check_blocks, resolve_random_state, resolve_strata
from dfact.selection.grid import Parameters, best_fit, check_estimator, expand, index_of, most_components, plan_fits
from dfact.selection.refits import takes_confounders, with_parameters
from dfact.selection.result import RULES, Selection, choose
from dfact.selection.results_store import ResultsStore, model_text, parameters_text
from dfact.selection.scheduler import FoldTask, GroupResult, WarmStarts, fits_in_memory, run_in_memory, shared_reads


def block_cross_validate(
    model: Any,
    X: Any,
    grid: Mapping[str, Any],
    n_blocks: tuple[int, int] = (10, 10),
    n_folds: int = 10,
    repeats: int = 1,
    rule: str = "lowest",
    *,
    confounders: Any = None,
    stratify: Any = None,
    restarts: int = 0,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
    in_memory: bool | None = None,
) -> Selection:
    """Choose parameters, such as the number of components, by how well hidden answers are rebuilt.

    Rows and columns are shuffled and cut into blocks, the blocks dealt into folds. For each
    configuration and fold the fold's entries are hidden, the model is fitted to the others, and

        error = Σ (M − clip(R))² / number,   over the hidden answers M and the model R of them.

    ICQF and L1NMF are fitted by the splitless solver from the NNDSVD, whatever the model's own solver
    and start. The fits of a fold follow one another: each starts from the loadings of the one before,
    further components from the NNDSVD, and stops at five times the model's ``tol`` (at twice ``tol``
    those that differ from the one before in β alone). Bounds that the model takes from the data are
    those of all the data.

    Parameters
    ----------
    model : estimator
        An :class:`dfact.ICQF` or another estimator that fits data with NaN and rebuilds it by
        ``inverse_transform`` of its ``factors_``; it is left as it is.
    X : array (n, m) of any kind, path or Dataset
        NaN is missing. What does not fit in memory is read by all fits together.
    grid : dict of lists
        Values to try of each parameter, such as ``{"n_components": range(2, 11), "beta": [0.05, 0.1, 0.2]}``; all combinations are.
    n_blocks : (int, int)
        Number of blocks of the rows and of the columns.
    n_folds, repeats : int
        Number of folds, and how often all is shuffled and dealt anew.
    rule : "lowest", "1se" or "knee"
        See :func:`dfact.selection.result.choose`.
    confounders : table of n rows, optional
        As for ``model.fit``; a model that takes none has its rows stratified by them all the same.
    stratify : labels (n,) or a table of n rows, optional
        Each row block gets the same share of the rows of each level; by default of the confounders'.
        Of numbers that are no levels, quarters count as levels.
    restarts : int
        Random starts beside the usual one for each number of components, of which the lowest objective is taken.
    random_state : int, RandomState or None
        Seed of the folds and the random starts.
    checkpoint : path, optional
        A folder that keeps what is finished. The same call goes on from there; another one is refused.
    callbacks : sequence of callables
        Called with an :class:`dfact.progress.Iteration` whenever a fold has finished a number of components, such
        as ``dfact.Progress("select")``.
    in_memory : bool, optional
        Whether the data is held in memory, a copy for each thread; by default if it fits in ``model.memory_limit``.

    Returns
    -------
    Selection
        ``table`` with the ``error`` of each configuration over all hidden answers, its standard error ``se`` over
        folds and repeats, ``seconds`` and ``passes`` of its fits; ``folds`` with the error of each fold;
        ``best_params``; and the ``model`` fitted with them on all the data.

    Raises
    ------
    ParameterError
        A grid, numbers of blocks or folds, or a checkpoint that do not go with the model or the data.
    DataError, MemoryPlanError
        As ``model.fit`` does, with the most components.

    References
    ----------
    Lam et al., "Interpretability-constrained questionnaire factorization", section 3;
    Kanagal & Sindhwani (2010), "Rank selection in low-rank matrix approximations".

    Examples
    --------
    >>> import dfact
    >>> from dfact.data.synthetic import icqf_simulation
    >>> M = icqf_simulation(0.1, 0).M
    >>> model = dfact.ICQF(bounds=(0, 100))
    >>> dfact.selection.block_cross_validate(model, M, {"n_components": [8, 10, 12]}, random_state=0).best_params
    {'n_components': 10}
    """
    check_estimator(model)
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    for name, value, least in (("repeats", repeats, 1), ("restarts", restarts, 0)):
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ParameterError(f"{name} is {value!r}, expected an integer of at least {least}")
    configurations = expand(model, grid)
    dataset = as_dataset(X, confounders)
    if len(dataset.shape) != 2:
        raise DataError(f"X has {len(dataset.shape)} modes, expected rows (participants) and columns (items)")
    shape = (dataset.shape[0], dataset.shape[1])
    blocks = check_blocks(shape, n_blocks, n_folds)
    strata = resolve_strata(stratify, dataset.confounders, shape[0])
    what = {"grid": [parameters_text(c) for c in configurations], "n_blocks": blocks, "n_folds": int(n_folds), "repeats": int(repeats)}
    what |= {"restarts": int(restarts), "strata": None if strata is None else blake2b(strata.tobytes(), digest_size=8).hexdigest()}
    fingerprint = None if checkpoint is None else dataset.fingerprint
    kept = ResultsStore(checkpoint, {"data": fingerprint, "model": model_text(model), "seed": resolve_random_state(random_state), **what})
    folds = assign_all_folds(shape, blocks, n_folds, repeats, kept.seed, strata)
    _check_size(most_components(model, configurations), folds)
    members = _run(model, dataset, configurations, folds, kept, restarts, callbacks, in_memory)
    table, of_folds = _tables(configurations, members, kept)
    best = choose(table, rule)
    fitted: Any = best_fit(model, best, X, confounders, restarts, kept.seed)
    fitted.selection_ = SelectionRecord.of_table(table, configurations.index(best), "error", rule, "se")
    return Selection(table, best, fitted, of_folds)


def _run(
    model: Any,
    dataset: Dataset,
    configurations: list[Parameters],
    folds: list[Folds],
    kept: ResultsStore,
    restarts: int,
    callbacks: Sequence[Callable[[Iteration], None]],
    in_memory: bool | None,
) -> list[tuple[int, ...]]:
    """Compute what is not yet kept; returns the numbers of the configurations in each group."""
    covariates = _covariates(model, dataset)
    n_covariates = 0 if covariates is None else covariates.shape[1]
    fits = plan_fits(model, configurations, dataset, n_covariates, restarts, kept.seed)
    members: list[tuple[int, ...]] = [(i,) for i in range(len(configurations))]
    if isinstance(fits, WarmStarts):
        members = [group.configurations for group in fits.groups]
    chains = [FoldTask(repeat, fold, *kept.done(repeat, fold)) for repeat, of in enumerate(folds) for fold in range(of.n_folds)]
    chains = [chain for chain in chains if chain.n_done < len(members)]
    progress = _Progress(configurations, members, kept, len(folds) * folds[0].n_folds, callbacks)
    dtype = model._working_dtype(dataset) if hasattr(model, "_working_dtype") else np.dtype("float64")
    C = None if covariates is None else covariates.astype(dtype)
    parts = partitions(dataset.source, dataset.missing_code, C)
    # Several fits at once, though the data be a single partition.
    executor = resolve_executor(getattr(model, "executor", None), max(2, len(parts)))
    memory_limit = getattr(model, "memory_limit", None)
    if in_memory is None:
        in_memory = fits_in_memory(dataset.shape, dtype, executor.workers(memory_limit))
        if not in_memory and not isinstance(fits, WarmStarts):
            raise MemoryPlanError(
                f"{type(model).__name__} is fitted anew for each fold, which needs the data in memory; raise memory_limit"
            )
    if not chains:
        return members
    if in_memory or not isinstance(fits, WarmStarts):
        run_in_memory(fits, parts, dtype, folds, chains, progress.keep, executor)
        return members
    largest = with_parameters(model, n_components=most_components(model, configurations))
    footprint = largest._footprint(dataset.shape, n_covariates, dtype)
    executor = resolve_executor(model.executor, len(parts))
    shared_reads(fits, dataset.source, parts, footprint, folds, chains, progress.keep, executor, memory_limit)
    return members


def _covariates(model: Any, dataset: Dataset) -> NDArray[np.float64] | None:
    """The encoded confounders (n, c), if the model takes any."""
    if dataset.confounders is None or not takes_confounders(model):
        return None
    return ConfounderEncoding.fit(dataset.confounders).encode(dataset.confounders)


def _check_size(k: int, folds: list[Folds]) -> None:
    least = min(min(of.smallest_training_shape) for of in folds)
    if k > least:
        raise ParameterError(
            f"n_components={k} in the grid is larger than the data without a fold allows: {least} rows or columns are left"
        )


class _Progress:
    """Keeps what is finished, and tells of it."""

    def __init__(
        self,
        configurations: list[Parameters],
        members: list[tuple[int, ...]],
        kept: ResultsStore,
        n_chains: int,
        callbacks: Sequence[Callable[[Iteration], None]],
    ) -> None:
        self._configurations, self._members, self._kept, self._callbacks = configurations, members, kept, callbacks
        self._limit = n_chains * len(configurations)
        self._weights = [sum(float(configurations[i].get("n_components", 1)) for i in numbers) for numbers in members]
        self._left, self._began = TimeLeft(n_chains * sum(self._weights)), time.perf_counter()
        self._lock = threading.Lock()

    def keep(self, chain: FoldTask, done: GroupResult) -> None:
        """What a fold has finished; the threads of several folds may call."""
        group, scores, loadings = done
        with self._lock:
            self._kept.add((chain.repeat, chain.fold, group), scores, loadings)
            self._tell(chain, group)

    def _tell(self, chain: FoldTask, group: int) -> None:
        seconds = time.perf_counter() - self._began
        # A fit takes longer the more components it has.
        finished = sum(self._weights[entry[2]] for entry in self._kept.entries)
        parameters = parameters_text(self._configurations[self._members[group][0]])
        step = ", ".join(filter(None, [f"fold {chain.fold + 1}", parameters, self._left.text(finished)]))
        number = sum(len(self._members[entry[2]]) for entry in self._kept.entries)
        for callback in self._callbacks:
            callback(Iteration(number, self._limit, float("nan"), float("nan"), seconds, step))


def _tables(configurations: list[Parameters], members: list[tuple[int, ...]], kept: ResultsStore) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The error of each configuration, and of each of its folds."""
    chains = sorted({entry[:2] for entry in kept.entries})
    found = np.empty((len(configurations), len(chains), 4))
    for (repeat, fold, group), (scores, _) in kept.entries.items():
        found[list(members[group]), chains.index((repeat, fold))] = [astuple(score) for score in scores]
    squares, count, seconds, passes = np.moveaxis(found, 2, 0)
    if not count.any(axis=0).sum() > 0:
        raise DataError("no fold hides any answer, expected data with answers")
    errors = np.where(count > 0, squares / np.where(count > 0, count, 1), np.nan)
    n_scored = (~np.isnan(errors)).sum(axis=1)
    spread = np.nanstd(errors, axis=1, ddof=1) / np.sqrt(n_scored) if n_scored.min() > 1 else np.full(len(errors), np.nan)
    columns = {"error": squares.sum(axis=1) / count.sum(axis=1), "se": spread}
    columns |= {"seconds": seconds.sum(axis=1), "passes": passes.sum(axis=1).astype(int)}
    index = index_of(configurations)
    folds = pd.MultiIndex.from_tuples(chains, names=["repeat", "fold"])
    return pd.DataFrame(columns, index=index), pd.DataFrame(errors, index=index, columns=folds)
