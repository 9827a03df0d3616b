"""The end of a fit: callbacks are closed, and a fit that did not converge is reported."""

import logging
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from dfact.errors import ConvergenceWarning, warn
from dfact.monitoring.logs import event_fields

_HISTORIES = ("objective_history_", "log_likelihood_history_")
_log = logging.getLogger(__name__)


def end_callbacks(model: Any) -> None:
    """Close the callbacks that can be closed, such as a progress bar, whose last line appears then."""
    for callback in getattr(model, "callbacks", ()):
        close = getattr(callback, "close", None)
        if callable(close):
            close()


def log_end(model: Any) -> None:
    """Log the end of a fit, with its iterations and its last objective if it has them."""
    n_iter = getattr(model, "n_iter_", None)
    history: Sequence[float] = getattr(model, "objective_history_", [])
    objective = float(history[-1]) if len(history) else float("nan")
    steps = "" if n_iter is None else f" after {n_iter} iterations"
    reached = f", objective {objective:.6g}" if len(history) else ""
    fields = event_fields("fit_finished", model=type(model).__name__, iteration=n_iter, objective=objective)
    _log.info(f"{type(model).__name__}: fit finished{steps}{reached}", extra=fields)


def warn_unconverged(model: Any) -> None:
    """Warn of a fit that stopped at its limit of iterations before it converged."""
    if getattr(model, "converged_", True):
        return
    limit, n_iter = getattr(model, "max_iter", None), getattr(model, "n_iter_", None)
    steps = "" if n_iter is None else f" in {n_iter} iterations"
    remedy = "start from other values (random_state)" if limit is None or n_iter is None or n_iter < limit else "increase max_iter or tol"
    histories = [name for name in _HISTORIES if hasattr(model, name)]
    compare = f", and compare {histories[0]}" if histories else ""
    message = f"{type(model).__name__} did not converge{steps}; {remedy}{compare}"
    warn(message, warning_class())


def warning_class() -> type[ConvergenceWarning]:
    """Return dfact's ConvergenceWarning; once scikit-learn's is imported, a class that is both.

    A filter of either class then applies, and a fit need not import scikit-learn: whoever filters its class has imported it.
    """
    return _shared_class() if "sklearn.exceptions" in sys.modules else ConvergenceWarning


@cache
def _shared_class() -> type[ConvergenceWarning]:
    from sklearn.exceptions import ConvergenceWarning as Other

    return type(ConvergenceWarning.__name__, (ConvergenceWarning, Other), {"__module__": ConvergenceWarning.__module__})
