"""Number of classes of a grade-of-membership model by fuzzy modularity."""

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
    """Choose the number of classes with the highest fuzzy modularity of the memberships, and return the model fitted with it.

    All candidates share one singular value decomposition, and one pass over the data scores them
    all. Among candidates with equal scores the first is chosen.

    Parameters
    ----------
    model : GradeOfMembership
        The fits use all of its parameters but ``n_components``. It is not changed.
    X : array (N, J) of any kind, path or Dataset
        Responses.
    n_components : numbers
        Candidates.
    checkpoint : path, optional
        Store (folder or URL) for the progress, written every ``model.checkpoint_every`` passes. After an interruption the
        same call resumes from it with bit-identical results; a different call is refused.

    Returns
    -------
    Selection
        ``table`` with the column ``modularity`` for each ``n_components``, ``best_params``, and the fitted ``model``.

    Raises
    ------
    DataError, ParameterError, MemoryPlanError
        The same conditions as for ``model.fit`` with the largest candidate.

    References
    ----------
    Qing (2023), section 6.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.binomial(4, np.eye(3)[rng.integers(0, 3, 300)] @ rng.random((3, 30)))
    >>> dfact.selection.select_by_modularity(dfact.GradeOfMembership(random_state=0), answers, range(2, 6)).best_params
    {'n_components': 3}
    """
    if not isinstance(model, GradeOfMembership):
        raise ParameterError(f"model is a {type(model).__name__}, expected a GradeOfMembership, as modularity rates memberships")
    candidates = list(n_components)
    if not candidates:
        raise ParameterError("n_components has no candidates, expected at least one number of classes")
    fitted = GradeOfMembership(**model.get_params(deep=False))
    scores = fitted.fit_candidates(X, candidates, checkpoint=checkpoint)
    best = len(fitted.components_)
    table = pd.DataFrame({"modularity": scores}, index=pd.Index(candidates, name="n_components"))
    fitted.set_params(n_components=best).selection_ = SelectionRecord.from_table(table, candidates.index(best), "modularity", "highest")
    return Selection(table, {"n_components": best}, fitted)
