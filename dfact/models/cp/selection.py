"""Number of components of a tensor by any criterion: along the solution path, or by replicability."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from dfact.errors import ParameterError
from dfact.models.cp.elastic import ElasticCP
from dfact.models.cp.penalty_selection import select_penalty
from dfact.models.cp.replicability import CONSISTENT, SAME, replicability
from dfact.selection.result import Selection
from dfact.selection.running.estimators import with_parameters

_WITHOUT_SHRINKAGE = 1e-8  # λ of refined solutions


def select_components(
    model: ElasticCP,
    X: Any,
    criterion: str = "replicability",
    lambdas: Sequence[float] | None = None,
    *,
    l1_ratios: Sequence[float] | None = None,
    rule: str = "min",
    holdout_fraction: float = 0.1,
    n_folds: int | None = None,
    n_repeats: int | None = None,
    n_starts: int = 3,
    threshold: float = SAME,
    least_consistency: float | None = CONSISTENT,
    random_state: Any = None,
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """Choose for the criterion "replicability" by :func:`replicability`, and for others by :func:`select_penalty`.

    The former compares 1 to ``model.n_components`` components, without shrinkage (λ = 1e-8); ``lambdas``, ``l1_ratios`` and ``rule``
    do not apply. ``n_folds``, ``n_repeats``, ``n_starts``, ``threshold`` and ``least_consistency`` apply to it alone.

    Raises
    ------
    ParameterError
        ``lambdas``, ``l1_ratios`` or another rule given for "replicability"; and the same conditions as for these functions.
    DataError
        The same conditions as for these functions.
    """
    if criterion != "replicability":
        settings: dict[str, Any] = {"l1_ratios": l1_ratios, "rule": rule, "holdout_fraction": holdout_fraction}
        return select_penalty(model, X, criterion, lambdas, **settings, random_state=random_state, checkpoint=checkpoint)
    if lambdas is not None or l1_ratios is not None or rule != "min":
        found = "criterion is 'replicability', which has no path, expected no lambdas, l1_ratios or rule"
        raise ParameterError(f"{found}; leave them out, or choose along a path: criterion='held_out' (--criterion held_out)")
    shared: dict[str, Any] = {"random_state": random_state, "checkpoint": checkpoint, "callbacks": model.callbacks}
    least_squares = with_parameters(model, lam=_WITHOUT_SHRINKAGE, callbacks=())
    numbers = range(1, model.n_components + 1)
    shared |= {"n_folds": n_folds, "n_repeats": n_repeats, "n_starts": n_starts}
    return replicability(least_squares, X, numbers, threshold=threshold, least_consistency=least_consistency, **shared)
