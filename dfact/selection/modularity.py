"""The number of classes by fuzzy modularity."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

import pandas as pd

from dfact.errors import ParameterError
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.provenance import SelectionRecord
from dfact.selection.result import Selection


def select_by_modularity(
    model: GradeOfMembership,
    X: Any,
    n_components: Iterable[int] = range(2, 11),
    *,
    checkpoint: str | PathLike[str] | None = None,
) -> Selection:
    """The number of classes whose memberships have the highest fuzzy modularity, and the model fitted with it.

    One singular value decomposition serves all candidates, and one pass over the data scores them
    all. Of candidates that score the same the first is taken.

    Parameters
    ----------
    model : GradeOfMembership
        Its parameters but ``n_components`` are those of the fits; it is left as it is.
    X : array (N, J) of any kind, path or Dataset
        The responses.
    n_components : numbers
        The candidates.
    checkpoint : path, optional
        A store, a folder or the URL of one, that keeps what is done, every ``model.checkpoint_every`` passes: after an
        interruption the same call goes on from there, and ends with the same bits; another one is refused.

    Returns
    -------
    Selection
        ``table`` with the column ``modularity`` for each ``n_components``, ``best_params``, and the fitted ``model``.

    Raises
    ------
    DataError, ParameterError, MemoryPlanError
        As ``model.fit`` does, with the largest candidate.

    References
    ----------
    Qing, "Mixed membership estimation for categorical data with polytomous responses", section 6.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.binomial(4, np.eye(3)[rng.integers(0, 3, 300)] @ rng.random((3, 30)))
    >>> dfact.selection.select_by_modularity(dfact.GradeOfMembership(random_state=0), answers, range(2, 6)).best_params
    {'n_components': 3}
    """
    if not isinstance(model, GradeOfMembership):
        raise ParameterError(f"model is a {type(model).__name__}, expected a GradeOfMembership; modularity rates memberships")
    candidates = list(n_components)
    if not candidates:
        raise ParameterError("n_components has no candidates, expected at least one number of classes")
    fitted = GradeOfMembership(**model.get_params(deep=False))
    scores = fitted.fit_candidates(X, candidates, checkpoint=checkpoint)
    best = len(fitted.components_)
    table = pd.DataFrame({"modularity": scores}, index=pd.Index(candidates, name="n_components"))
    fitted.set_params(n_components=best).selection_ = SelectionRecord.from_table(table, candidates.index(best), "modularity", "highest")
    return Selection(table, {"n_components": best}, fitted)
