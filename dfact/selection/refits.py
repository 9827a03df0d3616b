"""The fits of one fold by an estimator's own ``fit``, each from its own start."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.selection.fold_fits import Score
from dfact.selection.folds import Folds
from dfact.selection.held_out_errors import clipped_errors


def with_parameters(model: Any, **parameters: Any) -> Any:
    """The estimator with other parameters, and without a checkpoint, which belongs to one fit.

    scikit-learn's ``clone`` would copy the Dask client among them.
    """
    known = model.get_params(deep=False)
    return type(model)(**known | {name: None for name in ("checkpoint",) if name in known} | parameters)


def takes_confounders(model: Any) -> bool:
    return "confounders" in signature(model.fit).parameters


def takes_weights(model: Any) -> bool:
    return "sample_weight" in signature(model.fit).parameters


@dataclass(frozen=True, eq=False)
class Refits:
    """For estimators that fit data with NaN and rebuild it by ``inverse_transform`` of their ``factors_``."""

    model: Any
    configurations: tuple[Mapping[str, Any], ...]

    def run(self, M: NDArray[Any], C: NDArray[Any] | None, folds: Folds, chain: Any) -> Iterator[tuple[int, list[Score], NDArray[Any]]]:
        """Columns of which the fold hides every answer are left out of the fit, and the model of their answers is 0."""
        hidden = folds.hidden(chain.fold)[folds.rows]
        seen = np.where(hidden, np.nan, M).astype(M.dtype)
        given = ~np.isnan(seen).all(axis=0)
        held = np.where(hidden, M, np.nan)
        for number in range(chain.n_done, len(self.configurations)):
            began = time.perf_counter()
            inline = {"executor": "inline"} if "executor" in self.model.get_params(deep=False) else {}
            model = with_parameters(self.model, **self.configurations[number], **inline)
            model.fit(np.ascontiguousarray(seen[:, given]))
            if not hasattr(model, "factors_"):
                raise ParameterError(
                    f"a {type(model).__name__} has no factors_ once fitted, expected an estimator that has, such as ICQF()"
                )
            R = np.zeros(M.shape, M.dtype)
            R[:, given] = model.inverse_transform(np.asarray(model.factors_))
            squares, count = clipped_errors(held, R, -np.inf, np.inf)
            yield number, [Score(squares, count, time.perf_counter() - began, getattr(model, "n_iter_", 0))], np.empty(0)
