"""Number of classes of a grade-of-membership model by fuzzy modularity."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.engine.requests import Solver
from dfact.errors import DataError, ParameterError, warn
from dfact.models.fit_task import FitTask
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.provenance import SelectionRecord
from dfact.parameters import check_count
from dfact.progress import Reporter, TimeLeft
from dfact.selection.result import RESAMPLED, Selection
from dfact.selection.running.estimators import require_method, with_parameters
from dfact.selection.running.results_store import ResultsStore, describe_model
from dfact.selection.running.scheduler import run_fits
from dfact.stability.refits import refit_inputs
from dfact.stability.resamples import ResampleFits

_SIZES_DIFFER = 1.5
"""Ratio of the largest class to the smallest from which their sizes differ."""
_ROWS = 1 << 16
"""Rows of the memberships that are summed at once."""


def select_by_modularity(
    model: GradeOfMembership,
    X: Any,
    n_components: Iterable[int] | None = range(2, 11),
    *,
    n_resamples: int = 0,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """Choose the number of classes with the highest fuzzy modularity of the memberships, and return the model fitted with it.

    All candidates share one singular value decomposition, and one pass over the data scores them
    all. Among candidates with equal scores the first is chosen.

    Modularity rates how well the classes are separated. Where sizes differ, memberships are mixed or classes are alike, it is highest
    for fewer classes than there are, often for two: take its choice as a lower limit, and look at the classes of larger numbers.
    :func:`select_number_of_classes` chooses by held-out answers, which finds small classes. The modularity of one class is 0.

    With ``n_resamples`` all candidates are also fitted to that many bootstrap resamples of the subjects. They show how much
    the scores vary with the sample. Modularity counts each subject's similarity to itself, and resamples hold subjects twice, so
    their scores are too high on average: their range is not a confidence interval of the score of the population.

    Parameters
    ----------
    model : GradeOfMembership
        The fits use all of its parameters but ``n_components``. It is not changed.
    X : array (N, J) of any kind, path or Dataset
        Responses.
    n_components : numbers, optional
        Candidates; None for those of the paper, 1 to min(N, J).
    n_resamples : int
        Number of resamples of the subjects, each of which costs about as much as the selection without any; 0 for none.
    random_state : int, RandomState or None
        Seed of the resamples.
    checkpoint : path, optional
        Store (folder or URL) for the progress, written every ``model.checkpoint_every`` passes, and for the finished resamples. After an
        interruption the same call resumes from it with bit-identical results; a different call is refused.

    Returns
    -------
    Selection
        ``table`` with the column ``modularity`` for each ``n_components``, ``best_params``, and the fitted ``model``. With resamples
        the table also has ``resampled_2.5%`` and ``resampled_97.5%``, quantiles of the resamples' scores, and ``chosen``, the share
        of resamples in which the number of classes has the highest score. ``rule`` has the sizes of the classes.

    Raises
    ------
    DataError, ParameterError, MemoryPlanError
        The same conditions as for ``model.fit`` with the largest candidate; fewer than two resamples that can be fitted.

    Warns
    -----
    UserWarning
        Some resamples cannot be fitted.

    References
    ----------
    Qing (2023), section 6; Good et al. (2010): modularity merges classes.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.binomial(4, np.eye(3)[rng.integers(0, 3, 300)] @ rng.random((3, 30)))
    >>> dfact.selection.select_by_modularity(dfact.GradeOfMembership(random_state=0), answers, range(2, 6)).best_params
    {'n_components': 3}
    """
    require_method(model, "fit_candidates", "a GradeOfMembership, as modularity rates memberships")
    X = as_dataset(X) if n_components is None else X
    candidates = candidate_numbers(n_components, getattr(X, "shape", ()))
    if n_resamples != 0:
        check_count("n_resamples", n_resamples, 2, 100_000)
    fitted = type(model)(**model.get_params(deep=False))
    table = pd.DataFrame(index=pd.Index(candidates, name="n_components"))
    if n_resamples:
        dataset = as_dataset(X)
        store = ResultsStore.of_fits(checkpoint, dataset, describe_model(model), random_state, n_components=candidates)
        table["modularity"] = fitted.fit_candidates(X, candidates, checkpoint=store.checkpoint("model"))
        scores = _resampled_scores(model, dataset, candidates, n_resamples, store)
        for name, share in RESAMPLED.items():
            table[name] = np.quantile(scores, share, axis=0)
        table["chosen"] = np.bincount(scores.argmax(axis=1), minlength=len(candidates)) / len(scores)
    else:
        table["modularity"] = fitted.fit_candidates(X, candidates, checkpoint=checkpoint)
    best = len(fitted.components_)
    chosen: Any = fitted.set_params(n_components=best)
    chosen.selection_ = SelectionRecord.from_table(table, candidates.index(best), "modularity", "max")
    notes = [describe_sizes(fitted, lower_limit=True)]
    if n_resamples:
        names = " and ".join(RESAMPLED)
        notes.append(f"{names} are quantiles of the resamples' scores, which are too high on average: they are not confidence limits.")
    return Selection(table, {"n_components": best}, fitted, rule="\n".join(notes))


def candidate_numbers(n_components: Iterable[int] | None, shape: Sequence[int]) -> list[int]:
    """Return the candidate numbers of classes; for None those of the paper, 1 to min(N, J)."""
    candidates = list(range(1, min(shape) + 1)) if n_components is None else list(dict.fromkeys(n_components))
    if not candidates:
        raise ParameterError("n_components has no candidates, expected at least one number of classes")
    return candidates


def describe_sizes(model: GradeOfMembership, *, lower_limit: bool = False) -> str:
    """Return a sentence with the sizes of the classes, and, if they differ and ``lower_limit``, that their number is one."""
    n, sizes = model.memberships_.shape[0], np.zeros(len(model.components_))
    for start in range(0, n, _ROWS):
        sizes += np.nansum(np.asarray(model.memberships_[start : start + _ROWS], np.float64), axis=0)
    listed = ", ".join(f"{share:.0%}" for share in sizes / sizes.sum())
    text = f"Sizes of the classes, in shares of the memberships: {listed}."
    if lower_limit and sizes.max() >= _SIZES_DIFFER * sizes.min():
        text += f" The number of classes, {len(sizes)}, is a lower limit when sizes differ, as here: modularity merges small classes."
    return text


@dataclass(frozen=True, eq=False)
class _ModularityFits(ResampleFits):
    """Fits of all candidates to resamples of the subjects, of which the scores are kept."""

    def _refit(self, model: Any, task: FitTask[Any], keep: Callable[[Any], None]) -> Solver[None]:
        try:
            scores = yield from model.solve(task)
        except DataError as error:
            keep(error)
            return
        keep(np.asarray(scores, np.float64))


def _resampled_scores(
    model: GradeOfMembership, dataset: Dataset, candidates: Sequence[int], n_resamples: int, store: ResultsStore
) -> NDArray[np.float64]:
    """Return the modularity (resamples, candidates) of each resample that can be fitted; the store holds those that are finished."""
    # The likelihood is maximized after the classes have been scored.
    refit, unlabelled = refit_inputs(with_parameters(model, likelihood="none"), dataset, None)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
        fits = _ModularityFits(refit, refit.prepare(unlabelled, n_components=candidates).without_rows(), store.seed)
    pending = [number for number in range(n_resamples) if (number,) not in store.entries]
    reporter, left, failed = Reporter(model.callbacks, n_resamples), TimeLeft(n_resamples), list[DataError]()

    def keep(number: int, result: Any) -> None:
        if isinstance(result, DataError):
            failed.append(result)
        else:
            store.add((number,), [result])
        done = sum((number,) in store.entries for number in range(n_resamples)) + len(failed)
        reporter.reached(done, left.text(done))

    if pending:
        run_fits(fits, pending, keep, model.executor, model.memory_limit)
    found = [store.entries[number,][0] for number in range(n_resamples) if (number,) in store.entries]
    if failed:
        text = f"{len(failed)} of {n_resamples} resamples could not be fitted, such as one in which {failed[0]}"
        if len(found) < 2:
            raise DataError(f"{text}; expected at least 2 that can be fitted: leave out the largest numbers of classes")
        warn(text)
    return np.stack([np.asarray(scores, np.float64) for scores in found])
