"""The penalty, and with it the number of components, of a CP decomposition along its solution path."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.errors import DataError, ParameterError
from dfact.kernels.cp import fill_missing
from dfact.models.cp.elastic import ElasticCP
from dfact.models.cp.path import PathStep, SolutionPath, increasing, relative_error
from dfact.models.cp.problem import khatri_rao
from dfact.models.estimator import RUNTIME_PARAMETERS
from dfact.models.parameters import describe_value, is_in_range
from dfact.models.provenance import SelectionRecord
from dfact.selection.folds import resolve_random_state
from dfact.selection.grid import check_estimator
from dfact.selection.masks import EntryMask, masked
from dfact.selection.refits import with_parameters
from dfact.selection.result import Selection, choose
from dfact.selection.results_store import FinishedResults

CRITERIA = ("held_out", "bic", "split_half")
RULES = ("lowest", "knee")
_SAME = 0.95  # the congruence from which components count as the same


def select_on_path(
    model: ElasticCP,
    X: Any,
    criterion: str = "held_out",
    lambdas: Sequence[float] | None = None,
    *,
    rule: str = "lowest",
    holdout_fraction: float = 0.1,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """Choose λ, and the number of components that it leaves, among the refined solutions of a path.

    ``held_out``: each observed entry is hidden with the chance ``holdout_fraction``; the path is followed on the others, and the
    score of a step is ‖Δ_h∘(Z − X)‖/‖Δ_h∘Z‖ of its refined solution X on the hidden ones Δ_h. What no
    fit has seen cannot be fitted by chance, but it is told by whatever has structure: also by baselines and
    scatter, where a measurement has them.
    ``bic``: n log(‖Δ∘(Z − X)‖²/‖Δ∘Z‖²) + d log n, with n observed entries. The degrees of freedom d are the entries
    of X's factors that are not 0, less N − 1 for each component, whose scale may go from mode to mode.
    ``split_half``: paths are followed on two random halves of the rows; the score of a step is the worst match of
    its components in both, of which the vectors of modes 2 to N are compared: |Π_n cos|, matched so that the sum is
    largest. It is 0 where the halves and the whole do not have as many components. It asks which components are there
    again in other rows, not how well they fit, and needs rows enough for either half to tell them.

    Of ``held_out`` and ``bic`` the rule ``lowest`` takes the lowest score. ``knee`` takes the number of components where the
    curve of the lowest scores of each lies furthest below the line from none to the number with the lowest, and of its steps
    that with the lowest: it leaves what little further components gain, such as scatter, and may leave weak components.
    Of ``split_half`` that number is taken, the largest, whose steps have a median score of at least 0.95, and of its
    steps the one with the highest; the highest of all if no number has it.

    Parameters
    ----------
    model : ElasticCP
        With more components than there may be; it is left as it is. Its seed is that of all starts.
    X : array (I_1, …, I_N) of any kind, path or Dataset
        NaN is missing.
    criterion : "held_out", "bic" or "split_half"
        As above.
    lambdas : increasing numbers, optional
        By default those of :meth:`ElasticCP.path`.
    rule : "lowest" or "knee"
        How ``held_out`` and ``bic`` choose.
    holdout_fraction : float
        Of the entries that are held out.
    random_state : int, RandomState or None
        Seed of what is hidden, or of the halves.
    checkpoint : path, optional
        A store, a folder or the URL of one, that keeps every path as :meth:`ElasticCP.path` does: after an interruption the
        same call goes on from there, and ends with the same bits. One of other data, parameters, lambdas, share or seed is
        refused; another criterion or rule finds the path on all the data there.

    Returns
    -------
    Selection
        ``table`` with a row for each λ: the ``rank`` and the ``zeros`` of the solution on all the data, its ``relative_error``
        once refined, and the score, named as the criterion (NaN where a path of a part of the data had ended before);
        ``best_params``; and as ``model`` the refined solution on all the data.

    Raises
    ------
    ParameterError
        Another model, criterion or rule; a share that is none; a checkpoint of something else.
    DataError
        Too few rows or entries for the criterion; and as ``model.fit`` does.

    References
    ----------
    Schwarz (1978), "Estimating the dimension of a model"; Zou, Hastie, Tibshirani (2007), "On the 'degrees of freedom' of the
    lasso"; Harshman & DeSarbo (1984), "An application of PARAFAC to a small sample problem", on split halves; Lorenzo-Seva &
    ten Berge (2006), "Tucker's congruence coefficient as a meaningful index of factor similarity", on 0.95.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((size, 2)) for size in (30, 20, 10))
    >>> Z = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.5 * rng.standard_normal((30, 20, 10))
    >>> selection = dfact.selection.select_on_path(dfact.ElasticCP(4, random_state=0), Z, random_state=0)
    >>> selection.model.rank_
    2
    """
    _check(model, criterion, rule, holdout_fraction)
    check_estimator(model)
    dataset = as_dataset(X)
    task = _Task.of(with_parameters(model), dataset, increasing(lambdas), holdout_fraction, resolve_random_state(random_state), checkpoint)
    whole = task.path("whole", dataset)
    table = whole.table.set_index("lambda")
    table = table.rename_axis("lam")[["rank", "zeros"]].assign(relative_error=[_best(step)[1] for step in whole.steps])
    table[criterion] = _SCORES[criterion](task, whole)
    place = _stable(table) if criterion == "split_half" else _lowest(table, criterion, rule)
    step = whole.steps[place]
    fitted: Any = whole.at(place, refined=step.refined is not None)
    fitted.selection_ = SelectionRecord.of_table(table, place, criterion, "stable" if criterion == "split_half" else rule)
    return Selection(table, {"lam": step.lam}, fitted)


def _check(model: Any, criterion: Any, rule: Any, holdout_fraction: Any) -> None:
    if not isinstance(model, ElasticCP):
        raise ParameterError(f"model is a {type(model).__name__}, expected an ElasticCP, which has a solution path")
    if criterion not in CRITERIA:
        raise ParameterError(f"criterion is {criterion!r}, expected one of {', '.join(map(repr, CRITERIA))}")
    if rule not in RULES:
        raise ParameterError(f"rule is {rule!r}, expected one of {', '.join(map(repr, RULES))}")
    if not is_in_range(holdout_fraction, 0, 1) or holdout_fraction == 0:
        raise ParameterError(f"share is {holdout_fraction!r}, expected a number between 0 and 1, such as 0.1")


@dataclass(frozen=True, eq=False)
class _Task:
    """What is to be chosen, and from what."""

    model: ElasticCP
    dataset: Dataset
    lambdas: list[float]
    holdout_fraction: float
    generator: np.random.Generator
    kept: FinishedResults
    """With the seed."""

    @classmethod
    def of(
        cls,
        model: ElasticCP,
        dataset: Dataset,
        lambdas: list[float],
        holdout_fraction: float,
        seed: int | None,
        checkpoint: str | PathLike[str] | None,
    ) -> "_Task":
        with _quiet():
            with_parameters(model)._begin(dataset)  # refuses what has no path before anything is kept of it
        what: dict[str, Any] = {"data": None if checkpoint is None else dataset.fingerprint}
        what |= {name: describe_value(value) for name, value in model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
        what |= {"lambdas": describe_value(lambdas), "share": float(holdout_fraction), "seed": seed}
        kept = FinishedResults(checkpoint, what)
        return cls(model, dataset, lambdas, holdout_fraction, np.random.default_rng(kept.seed), kept)

    def path(self, name: str, dataset: Dataset, model: ElasticCP | None = None) -> SolutionPath:
        return (model or self.model).path(dataset, self.lambdas, checkpoint=self.kept.place(name))

    def part(self, name: str, dataset: Dataset, model: ElasticCP | None = None) -> tuple[PathStep, ...]:
        """The path of a part of the data."""
        with _quiet():
            return self.path(name, dataset, model).steps


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a word of empty slices: those of a part may not be so in the whole, and of the whole its own path tells."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* no observed entry", UserWarning)
        yield


def _best(step: PathStep) -> tuple[list[Any], float]:
    """The refined factors and their relative error; where nothing is left to refine, the step's own."""
    return (step.factors, step.relative_error) if step.refined is None else (step.refined, step.refined_error)


def _held_out(task: _Task, whole: SolutionPath) -> list[float]:
    veil = EntryMask(task.holdout_fraction, int(task.generator.integers(2**31)), 0, hidden=False)
    steps = task.part("seen", masked(task.dataset, veil))
    hidden = masked(task.dataset, replace(veil, hidden=True))
    if not hidden.statistics.observed.any():
        observed = int(task.dataset.statistics.observed.sum())
        raise DataError(f"no entry is hidden: a share of {task.holdout_fraction:g} of {observed} entries; expected a larger one")
    return _padded(_errors(hidden, steps), len(whole.steps))


def _padded(scores: list[float], count: int) -> list[float]:
    """As many scores as there are steps."""
    return (scores + [float("nan")] * count)[:count]


def _errors(hidden: Dataset, steps: Sequence[PathStep]) -> list[float]:
    """‖Δ∘(Z − X)‖/‖Δ∘Z‖ of the refined solutions on a data set, in one read; those of steps that share one are computed once."""
    distinct = {id(factors): factors for factors, _ in map(_best, steps)}
    squares, norm = dict.fromkeys(distinct, 0.0), 0.0
    layout = Layout.of(hidden.shape)
    for chunk in hidden.source.read_ranges(layout):
        for start in range(chunk.start, chunk.stop, layout.block_rows):
            rows = slice(start, min(start + layout.block_rows, chunk.stop))
            V = np.asarray(hidden.source.read(rows.start, rows.stop), np.float64).reshape(rows.stop - rows.start, -1)
            norm += fill_missing(V, np.zeros_like(V))
            for key, (A, *others) in distinct.items():
                H = khatri_rao([np.asarray(B, np.float64).T for B in others])
                squares[key] += fill_missing(V, np.asarray(A[rows], np.float64) @ H)
    return [relative_error(squares[id(_best(step)[0])], norm) for step in steps]


def _bic(task: _Task, whole: SolutionPath) -> list[float]:
    count = int(task.dataset.statistics.observed.sum())
    if not count:
        raise DataError("X has no observed entry, expected some")
    sizes = sum(task.dataset.shape)
    modes = len(task.dataset.shape)
    scores = []
    for step in whole.steps:
        freedom = step.rank * (sizes - modes + 1) - step.zeros
        squares = max(_best(step)[1] ** 2, np.finfo(float).tiny)
        scores.append(float(count * np.log(squares) + freedom * np.log(count)))
    return scores


def _split_half(task: _Task, whole: SolutionPath) -> list[float]:
    n = task.dataset.shape[0]
    if n < 4:
        raise DataError(f"X has {n} rows, expected at least 4, of which either half has 2; choose by 'held_out' or 'bic'")
    order = task.generator.permutation(n)
    halves = [np.sort(order[: n // 2]), np.sort(order[n // 2 :])]
    first, second = (task.part(f"half-{i}", task.dataset.take_rows(rows), _of_rows(task.model, rows)) for i, rows in enumerate(halves, 1))
    scores = [stability(a, b) if a.rank == b.rank == step.rank else 0.0 for a, b, step in zip(first, second, whole.steps, strict=False)]
    if np.isnan(scores).all():
        raise DataError("no component is left in either half at any lambda, expected some to compare; begin with smaller lambdas")
    return _padded(scores, len(whole.steps))


def _of_rows(model: ElasticCP, rows: NDArray[np.intp]) -> ElasticCP:
    """The model with what it is given of these rows alone."""
    given = {name: value for name, value in (("prior", model.prior), ("init", model.init)) if isinstance(value, (list, tuple))}
    parts: ElasticCP = with_parameters(model, **{name: [np.asarray(value[0])[rows], *value[1:]] for name, value in given.items()})
    return parts


def stability(first: PathStep, second: PathStep) -> float:
    """The worst |Π_n cos| of the matched components of two refined steps of the same rank, over modes 2 to N; NaN without any.

    A component that has vanished in the refinement is like no other.
    """
    if first.rank == 0:
        return float("nan")
    products = np.ones((first.rank, first.rank))
    for A, B in zip(_best(first)[0][1:], _best(second)[0][1:], strict=True):
        U, V = (np.asarray(C[:, : first.rank], np.float64) for C in (A, B))
        lengths = np.outer(np.linalg.norm(U, axis=0), np.linalg.norm(V, axis=0))
        products *= np.divide(U.T @ V, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    rows, columns = linear_sum_assignment(-np.abs(products))
    return float(np.abs(products)[rows, columns].min())


def _lowest(table: pd.DataFrame, criterion: str, rule: str) -> int:
    """The place of the step that the rule takes."""
    scores, ranks = table[criterion], table["rank"]
    if rule == "knee":
        curve = scores.groupby(ranks).min().dropna()
        frame = pd.DataFrame({"error": curve, "se": 0.0}).rename_axis("n_components")
        scores = scores.where(ranks == choose(frame, "knee")["n_components"])
    return int(np.nanargmin(scores))


def _stable(table: pd.DataFrame) -> int:
    """The place of the best step of the largest number of components that is stable."""
    scores, ranks = table["split_half"], table["rank"]
    medians = scores.groupby(ranks).median()
    stable = medians.index[medians >= _SAME]
    return int(np.nanargmax(scores.where(ranks == stable.max()) if len(stable) else scores))


_SCORES: dict[str, Callable[[_Task, SolutionPath], list[float]]] = {"held_out": _held_out, "bic": _bic, "split_half": _split_half}
