"""Confounders and weights of the participants of several datasets, which must agree, as those of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.confounders import Kind, as_levels, normalize
from dfact.data.dataset import Dataset
from dfact.errors import DataError


def join_confounders(
    datasets: Sequence[tuple[str, Dataset]], positions: list[NDArray[np.intp]], labels: "pd.Index[Any]"
) -> pd.DataFrame | None:
    """Join the confounders of all datasets, given with their names, with one row for each label.

    ``positions`` are the numbers of these rows in each dataset, −1 for none.
    """
    reported: dict[str, list[_Reported]] = {}
    for (dataset_name, dataset), rows in zip(datasets, positions, strict=True):
        if dataset.confounders is None:
            continue
        for name, values in dataset.confounders.items():
            categorical = isinstance(values.dtype, pd.CategoricalDtype)
            plain = as_levels(values) if categorical else values
            kind: Kind = "categorical" if categorical else "continuous"
            reported.setdefault(str(name), []).append(_Reported.of(dataset_name, kind, plain, rows))
    if not reported:
        return None
    columns = {name: _reconciled(f"confounder {name!r}", name, reports, labels) for name, reports in reported.items()}
    return normalize(pd.DataFrame(columns), {name: reports[0].kind for name, reports in reported.items()})


def join_weights(
    datasets: Sequence[tuple[str, Dataset]], positions: list[NDArray[np.intp]], labels: "pd.Index[Any]"
) -> "pd.Series[float] | None":
    """Join the weights of all datasets, as :func:`join_confounders`; raise DataError if a participant has none, and others have one."""
    series = [(name, dataset.weights, rows) for (name, dataset), rows in zip(datasets, positions, strict=True)]
    reports = [_Reported.of(name, "continuous", weights, rows) for name, weights, rows in series if weights is not None]
    if not reports:
        return None
    weights = _reconciled("the weight", "weight", reports, labels)
    missing = np.flatnonzero(weights.isna())
    if missing.size:
        found = f"participant {labels[missing[0]]!r} has no weight ({missing.size} such participant(s) in all)"
        expected = f"expected one for each, as {reports[0].dataset} has weights"
        raise DataError(
            f"{found}, {expected}; import all datasets with weights (--weight), or keep participants in all of them (--how inner)"
        )
    names = {str(weights.name) for _, weights, _ in series if weights is not None}
    return weights.rename(names.pop() if len(names) == 1 else "weight")


@dataclass(frozen=True)
class _Reported:
    """The values of a confounder, or the weights, in one dataset, one for each row of the result."""

    dataset: str
    kind: Kind
    values: "pd.Series[Any]"

    @classmethod
    def of(cls, dataset: str, kind: Kind, values: "pd.Series[Any]", rows: NDArray[np.intp]) -> "_Reported":
        """Return the values of these rows of a dataset, missing for −1, the position of participants who are not in it."""
        return cls(dataset, kind, values.reset_index(drop=True).reindex(rows).reset_index(drop=True))


def _reconciled(what: str, name: str, reports: list[_Reported], labels: "pd.Index[Any]") -> "pd.Series[Any]":
    """Return the first value of each participant; raise DataError if datasets report different ones."""
    first, *rest = reports
    values = first.values
    for report in rest:
        if report.kind != first.kind:
            remedy = f"import both with confounders={{{name!r}: …}} (--confounder NAME:KIND) of the same kind"
            raise DataError(f"{what} is {first.kind} in {first.dataset} and {report.kind} in {report.dataset}, expected one kind; {remedy}")
        differ = np.flatnonzero(values.notna() & report.values.notna() & (values != report.values))
        if differ.size:
            row = differ[0]
            source = next(earlier.dataset for earlier in reports if earlier.values.notna().iloc[row])
            texts = [f"{value:g}" if first.kind == "continuous" else repr(value) for value in (values.iloc[row], report.values.iloc[row])]
            conflict = f"{what} of participant {labels[row]!r} is {texts[0]} in {source} and {texts[1]} in {report.dataset}"
            raise DataError(
                f"{conflict} ({differ.size} participant(s) differ), expected one value; correct it, or import one dataset without it"
            )
        values = values.where(values.notna(), report.values)
    return values
