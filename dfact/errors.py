"""Errors: every exception that dfact raises on purpose.

A message names what was found and where (file, column, row), what was expected, and the remedy. Each class is also the
built-in kind that a caller would catch without knowing dfact.
"""


class DfactError(Exception):
    """Base of all errors raised on purpose by dfact."""


class DataError(DfactError, ValueError):
    """The data does not hold what was promised (range, type, missing entries, shape, labels)."""


class ParameterError(DfactError, ValueError):
    """A parameter is outside what it may be."""


class StoreError(DfactError, OSError):
    """A dataset or a model on disk cannot be read or written."""


class MemoryPlanError(DfactError, MemoryError):
    """The work needs more memory than the limit; the message says how much."""


class ClusterError(DfactError, RuntimeError):
    """The Dask cluster cannot go on with the work: its workers or its scheduler are gone, or nothing moves."""


class StoppedError(BaseException):
    """A signal asked to stop.

    No ``Exception``, as KeyboardInterrupt is none: what reads a store would take it for damage there.
    """

    def __init__(self, signal: int, text: str) -> None:
        super().__init__(signal, text)
        self.signal = signal

    def __str__(self) -> str:
        return str(self.args[1])
