"""Errors: every exception that dfact raises on purpose.

A message states what was found, where (file, column, row), what was expected, and the remedy.
Each class also derives from the built-in exception that a caller would catch without knowing dfact.
:func:`warn` warns where dfact was called.
"""

import sys
import warnings


class DfactError(Exception):
    """Base class of all errors that dfact raises on purpose."""


class DataError(DfactError, ValueError):
    """Invalid data: range, type, missing entries, shape or labels."""


class ParameterError(DfactError, ValueError):
    """A parameter outside its permitted values."""


class StoreError(DfactError, OSError):
    """A dataset, a model or a checkpoint that cannot be read or written."""


class MemoryPlanError(DfactError, MemoryError):
    """Work that needs more memory than its limit; the message states how much."""


class ClusterError(DfactError, RuntimeError):
    """A Dask cluster that cannot continue the work: its workers or its scheduler are lost, or it makes no progress."""


class FederationError(DfactError, RuntimeError):
    """A fit across sites that cannot continue: a site refuses, is lost, or sends an unexpected message."""


class DependencyError(DfactError, ImportError):
    """A release of another library that lacks what dfact uses of it."""


class ConvergenceWarning(UserWarning):
    """A fit that stopped at its limit of iterations. Once scikit-learn is imported, its ConvergenceWarning, too.

    Examples
    --------
    >>> import dfact, numpy as np, warnings
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", dfact.ConvergenceWarning)
    ...     model = dfact.ICQF(n_components=3, max_iter=2).fit(answers)
    >>> issubclass(caught[0].category, dfact.ConvergenceWarning), str(caught[0].message)[:40]
    (True, 'ICQF did not converge in 2 iterations; i')
    """


class StoppedError(BaseException):
    """A stop requested by a signal.

    It derives from BaseException, as KeyboardInterrupt does: code that reads a store treats any Exception as damage.
    """

    def __init__(self, signal: int, text: str) -> None:
        super().__init__(signal, text)
        self.signal = signal

    def __str__(self) -> str:
        return str(self.args[1])


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the nearest caller that is not dfact, where it is of use."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "dfact":
        frame = frame.f_back
        level += "importlib._bootstrap" not in frame.f_code.co_filename  # such frames are not counted
    warnings.warn(message, category, stacklevel=level)
