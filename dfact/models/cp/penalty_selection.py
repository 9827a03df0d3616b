"""Penalty, and with it the number of components, of a CP decomposition along its solution path."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.data.validation import require_observed
from dfact.errors import DataError, ParameterError
from dfact.kernels.cp import fill_missing
from dfact.models.cp.elastic import ElasticCP
from dfact.models.cp.factor_match import match_components
from dfact.models.cp.path import PathStep, SolutionPath, checked_lambdas, relative_error
from dfact.models.cp.problem import khatri_rao
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.models.provenance import SelectionRecord
from dfact.parameters import describe_value, is_in_range
from dfact.selection.cross_validation.masks import EntryMask, masked
from dfact.selection.result import Selection, choose
from dfact.selection.running.estimators import check_estimator, require_method, restrict_to_rows, with_parameters
from dfact.selection.running.results_store import ResultsStore, resolve_random_state
from dfact.storage.location import parse_location

CRITERIA = ("held_out", "bic", "split_half")
RULES = ("min", "knee")
_SAME_COMPONENT = 0.95  # congruence from which two components count as the same


def select_penalty(
    model: ElasticCP,
    X: Any,
    criterion: str = "held_out",
    lambdas: Sequence[float] | None = None,
    *,
    l1_ratios: Sequence[float] | None = None,
    rule: str = "min",
    holdout_fraction: float = 0.1,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """Choose λ, and the number of components that it leaves, among the refined solutions of a path.

    ``held_out``: each observed entry is held out with probability ``holdout_fraction``. The path is computed from the
    others, and the score of a step is ‖Δ_h∘(Z − X)‖/‖Δ_h∘Z‖ of its refined solution X on the held-out entries Δ_h.
    Noise cannot be predicted, but any structure can, including baselines and scatter in measurements.
    ``bic``: n log(‖Δ∘(Z − X)‖²/‖Δ∘Z‖²) + d log n, with n observed entries. The degrees of freedom d are the nonzero entries
    of X's factors, less N − 1 for each component, whose scale can move from mode to mode.
    ``split_half``: paths are computed from two random halves of the rows. The score of a step is the lowest similarity of
    the matched components of both, from the vectors of modes 2 to N: |Π_n cos|, matched so that the sum is
    largest. It is 0 if the halves and the complete data differ in the number of components. It measures which components
    recur in other rows, not how well they fit, and needs enough rows in each half to estimate them.

    For ``held_out`` and ``bic`` the rule ``min`` chooses the lowest score. ``knee`` chooses the number of components at
    which the curve of the lowest score for each number lies furthest below the line from the smallest number to the number
    with the lowest score, and of its steps the one with the lowest score. It omits components that improve the score little,
    such as scatter. On planted tensors it chooses too few components, where ``min`` is right (guide "evidence"); use it only
    where a part of what can be predicted is not wanted. For ``split_half`` the largest number is chosen whose steps have a median
    score of at least 0.95, and of its steps the one with the highest score; without such a number, the highest score of all.

    Parameters
    ----------
    model : ElasticCP
        A model with more components than expected. It is not changed. Its seed is used for all starts.
    X : array (I_1, …, I_N) of any kind, path or Dataset
        NaN is missing.
    criterion : "held_out", "bic" or "split_half"
        The score of a step, see above.
    lambdas : increasing numbers, optional
        Values of λ; by default as in :meth:`dfact.ElasticCP.path`.
    l1_ratios : numbers from 0 to 1, optional
        Candidates for the share α of the ℓ1 penalty. A path is computed for each, and the rule chooses among the steps of all. The
        same entries, or halves, serve all. By default the model's.
    rule : "min" or "knee"
        The rule for ``held_out`` and ``bic``.
    holdout_fraction : float
        Probability of each observed entry to be held out, between 0 and 1.
    random_state : int, RandomState or None
        Seed of the held-out entries or of the halves.
    checkpoint : path, optional
        Store (folder or URL) for the checkpoints of all paths, as in :meth:`dfact.ElasticCP.path`. After an interruption the
        same call resumes from it with bit-identical results. A checkpoint with other data, parameters, lambdas, holdout
        fraction or seed is refused. A call with another criterion or rule reuses the path of the complete data.

    Returns
    -------
    Selection
        ``table`` with a row for each λ, or each (α, λ): the ``rank`` and the ``zeros`` of the solution of the complete data, the
        ``relative_error`` of the refined one, and the score, named after the criterion (NaN if a path of a part of the data
        ended earlier); ``best_params``; and as ``model`` the refined solution of the complete data. A path may skip numbers of
        components, as several can vanish at one λ. ``skipped_ranks`` has the numbers without a score; :func:`replicability` scores
        each number, and closer ``lambdas`` may find them.

    Raises
    ------
    ParameterError
        An unknown criterion or rule; no ElasticCP; an invalid holdout fraction; a checkpoint of another call.
    DataError
        Too few rows or entries for the criterion; and the same conditions as for ``model.fit``.

    References
    ----------
    Schwarz (1978) and Zou et al. (2007) on BIC; Harshman & DeSarbo (1984) on split halves; Lorenzo-Seva & ten Berge (2006) on 0.95.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (30, 20, 10))
    >>> Z = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.5 * rng.standard_normal((30, 20, 10))
    >>> selection = dfact.selection.select_penalty(dfact.ElasticCP(4, random_state=0), Z, random_state=0)
    >>> selection.model.rank_
    2
    """
    _check(model, criterion, rule, holdout_fraction)
    check_estimator(model)
    ratios = _checked_ratios(model, l1_ratios)
    dataset, grid = as_dataset(X), checked_lambdas(lambdas)
    seed = resolve_random_state(random_state)
    tables, fulls = [], list[SolutionPath]()
    for ratio in ratios:
        part = "" if l1_ratios is None else f"/l1_ratio-{ratio:g}"
        of_ratio = None if checkpoint is None else parse_location(f"{parse_location(checkpoint)}{part}")
        paths = _Paths.make(with_parameters(model, l1_ratio=ratio), dataset, grid, holdout_fraction, seed, of_ratio)
        seed = paths.store.seed  # the same entries are held out for all ratios
        fulls.append(paths.compute("all", dataset))
        tables.append(_scored(paths, fulls[-1], criterion))
    table = tables[0] if l1_ratios is None else pd.concat(tables, keys=ratios, names=["l1_ratio", "lam"])
    best = _best_stable(table) if criterion == "split_half" else _best_by_rule(table, criterion, rule)
    full, number = [(full, number) for full in fulls for number in range(len(full.steps))][best]
    fitted: Any = full.at(number, refined=full.steps[number].refined is not None)
    fitted.selection_ = SelectionRecord.from_table(table, best, criterion, "stable" if criterion == "split_half" else rule)
    chosen = {"lam": full.steps[number].lam}
    return Selection(table, chosen if l1_ratios is None else {"l1_ratio": fitted.l1_ratio} | chosen, fitted)


def _scored(paths: "_Paths", full: SolutionPath, criterion: str) -> pd.DataFrame:
    """Return the table of a path with the criterion's scores."""
    table = full.table.set_index("lambda")
    table = table.rename_axis("lam")[["rank", "zeros"]].assign(relative_error=[_refined(step)[1] for step in full.steps])
    table[criterion] = _SCORES[criterion](paths, full)
    return table


def _checked_ratios(model: ElasticCP, l1_ratios: Sequence[float] | None) -> list[float]:
    ratios = [model.l1_ratio] if l1_ratios is None else list(l1_ratios)
    if not ratios or not all(is_in_range(ratio, 0) and ratio <= 1 for ratio in ratios) or len(set(ratios)) < len(ratios):
        raise ParameterError(f"l1_ratios are {l1_ratios!r}, expected different numbers from 0 to 1, such as [0, 0.2, 0.8]")
    return ratios if l1_ratios is None else [float(ratio) for ratio in ratios]


def _check(model: Any, criterion: Any, rule: Any, holdout_fraction: Any) -> None:
    require_method(model, "path", "an ElasticCP, which has a solution path")
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, CRITERIA))}")
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    if not is_in_range(holdout_fraction, 0, 1) or holdout_fraction == 0:
        raise ParameterError(f"holdout_fraction is {holdout_fraction!r}, expected a number between 0 and 1, such as 0.1")


@dataclass(frozen=True, eq=False)
class _Paths:
    """The solution paths of a dataset and of its parts, with their checkpoints."""

    model: ElasticCP
    dataset: Dataset
    lambdas: list[float]
    holdout_fraction: float
    generator: np.random.Generator
    store: ResultsStore

    @classmethod
    def make(
        cls,
        model: ElasticCP,
        dataset: Dataset,
        lambdas: list[float],
        holdout_fraction: float,
        seed: int | None,
        checkpoint: str | PathLike[str] | None,
    ) -> "_Paths":
        with _ignore_empty_slices():
            model.prepare(dataset)  # raises before a checkpoint is created for an invalid call
        identity: dict[str, Any] = {"data": None if checkpoint is None else dataset.fingerprint}
        parameters = model.get_params(deep=False).items()
        identity |= {name: describe_value(value) for name, value in parameters if name not in RUNTIME_PARAMETERS}
        identity |= {"lambdas": describe_value(lambdas), "holdout_fraction": float(holdout_fraction), "seed": seed}
        store = ResultsStore(checkpoint, identity)
        return cls(model, dataset, lambdas, holdout_fraction, np.random.default_rng(store.seed), store)

    def compute(self, name: str, dataset: Dataset, model: ElasticCP | None = None) -> SolutionPath:
        """Compute the path of a dataset, with a checkpoint under this name."""
        return (model or self.model).path(dataset, self.lambdas, checkpoint=self.store.checkpoint(name))

    def compute_part(self, name: str, dataset: Dataset, model: ElasticCP | None = None) -> tuple[PathStep, ...]:
        """Compute the path of a part of the data."""
        with _ignore_empty_slices():
            return self.compute(name, dataset, model).steps


@contextmanager
def _ignore_empty_slices() -> Iterator[None]:
    """Ignore warnings about empty slices: a part of the data may have more of them, and the path of all data warns again."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* no observed entry", UserWarning)
        yield


def _refined(step: PathStep) -> tuple[list[Any], float]:
    """Return the refined factors and their relative error; the step's own if it has nothing to refine."""
    return (step.factors, step.relative_error) if step.refined is None else (step.refined, step.refined_error)


def _held_out(paths: _Paths, full: SolutionPath) -> list[float]:
    mask = EntryMask(paths.holdout_fraction, int(paths.generator.integers(2**31)), 0, held_out=False)
    steps = paths.compute_part("training", masked(paths.dataset, mask))
    test = masked(paths.dataset, replace(mask, held_out=True))
    if not test.statistics.observed.any():
        observed = int(paths.dataset.statistics.observed.sum())
        raise DataError(
            f"no entry is held out: holdout_fraction is {paths.holdout_fraction:g} of {observed} entries, expected a larger one"
        )
    return _pad(_relative_errors(test, steps), len(full.steps))


def _pad(scores: list[float], count: int) -> list[float]:
    """Return one score for each of ``count`` steps; the path of a part may have more or fewer."""
    return (scores + [float("nan")] * count)[:count]


def _relative_errors(dataset: Dataset, steps: Sequence[PathStep]) -> list[float]:
    """Return ‖Δ∘(Z − X)‖/‖Δ∘Z‖ of the refined solutions on a dataset, in one read; steps may share a solution."""
    distinct = {id(factors): factors for factors, _ in map(_refined, steps)}
    squares, norm = dict.fromkeys(distinct, 0.0), 0.0
    layout = Layout.of(dataset.shape)
    for chunk in dataset.source.read_ranges(layout):
        for start in range(chunk.start, chunk.stop, layout.block_rows):
            rows = slice(start, min(start + layout.block_rows, chunk.stop))
            V = np.asarray(dataset.source.read(rows.start, rows.stop), np.float64).reshape(rows.stop - rows.start, -1)
            norm += fill_missing(V, np.zeros_like(V))
            for key, (A, *others) in distinct.items():
                H = khatri_rao([np.asarray(B, np.float64).T for B in others])
                squares[key] += fill_missing(V, np.asarray(A[rows], np.float64) @ H)
    return [relative_error(squares[id(_refined(step)[0])], norm) for step in steps]


def _bic(paths: _Paths, full: SolutionPath) -> list[float]:
    count = int(paths.dataset.statistics.observed.sum())
    require_observed(paths.dataset)
    sizes = sum(paths.dataset.shape)
    modes = len(paths.dataset.shape)
    scores = []
    for step in full.steps:
        freedom = step.rank * (sizes - modes + 1) - step.zeros
        squares = max(_refined(step)[1] ** 2, np.finfo(float).tiny)
        scores.append(float(count * np.log(squares) + freedom * np.log(count)))
    return scores


def _split_half(paths: _Paths, full: SolutionPath) -> list[float]:
    n = paths.dataset.shape[0]
    if n < 4:
        raise DataError(f"X has {n} rows, expected at least 4, two in each half; choose by 'held_out' or 'bic'")
    order = paths.generator.permutation(n)
    halves = [np.sort(order[: n // 2]), np.sort(order[n // 2 :])]
    first, second = (
        paths.compute_part(f"half-{i}", paths.dataset.take_rows(rows), restrict_to_rows(paths.model, rows))
        for i, rows in enumerate(halves, 1)
    )
    scores = [
        split_half_similarity(a, b) if a.rank == b.rank == step.rank else 0.0 for a, b, step in zip(first, second, full.steps, strict=False)
    ]
    if np.isnan(scores).all():
        raise DataError("no component is left in either half at any lambda, expected some to compare; begin with smaller lambdas")
    return _pad(scores, len(full.steps))


def split_half_similarity(first: PathStep, second: PathStep) -> float:
    """Return the lowest |Π_n cos| of the matched components of two refined steps of the same rank, over modes 2 to N; NaN without any.

    The similarity of a component that vanished in the refinement is 0.
    """
    if first.rank == 0:
        return float("nan")
    vectors = [[np.asarray(A)[:, : first.rank].T for A in _refined(step)[0][1:]] for step in (first, second)]
    return float(match_components(*vectors).similarity.min())


def _best_by_rule(table: pd.DataFrame, criterion: str, rule: str) -> int:
    """Return the number of the step that the rule chooses."""
    scores, ranks = table[criterion], table["rank"]
    if rule == "knee":
        curve = scores.groupby(ranks).min().dropna()
        frame = pd.DataFrame({"error": curve}).rename_axis("n_components")
        scores = scores.where(ranks == choose(frame, "knee")["n_components"])
    return int(np.nanargmin(scores))


def _best_stable(table: pd.DataFrame) -> int:
    """Return the number of the best step among those with the largest stable number of components."""
    scores, ranks = table["split_half"], table["rank"]
    medians = scores.groupby(ranks).median()
    stable = medians.index[medians >= _SAME_COMPONENT]
    return int(np.nanargmax(scores.where(ranks == stable.max()) if len(stable) else scores))


_SCORES: dict[str, Callable[[_Paths, SolutionPath], list[float]]] = {"held_out": _held_out, "bic": _bic, "split_half": _split_half}
