"""What CP hands to its user: the factors in their order, the share explained, and a word on slices that are not at their optimum."""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.models.base import gather_rows
from dfact.models.elastic_cp_problem import Factors


def gathered(
    rows: Iterable[NDArray[Any]], others: Factors, weights: NDArray[np.float64], dataset: Dataset, dtype: np.dtype[Any]
) -> list[Any]:
    """The factors (I_n, R), heaviest component first."""
    order = np.argsort(-weights, kind="stable")
    shape = (dataset.shape[0], len(order))
    first = gather_rows((part[:, order] for part in rows), shape, dtype, stored=dataset.path is not None)
    return [first, *(np.ascontiguousarray(A[order].T, dtype) for A in others)]


def explained_share(squares: float, norm: float) -> float:
    """1 − ‖Δ∘(Z − X)‖²/‖Δ∘Z‖²; NaN where there is nothing to explain."""
    return 1 - squares / norm if norm > 0 else float("nan")


def report_unfinished(rows: int) -> None:
    """Warn, from within a method of the model, of slices that are not at their optimum."""
    if rows:
        message = f"{rows} slices are not at their optimum to rounding: the other modes' components are all but collinear"
        warnings.warn(message, UserWarning, stacklevel=3)
