"""Statistics of a fitted model as tables at full precision: communalities, correlations, the fit, and groups in the factors."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dfact.errors import DataError, ParameterError
from dfact.export.files import LABELLED_FORMATS, check_destination
from dfact.export.row_files import open_table
from dfact.export.spreadsheets import FORMATS as WORKBOOKS
from dfact.export.spreadsheets import write_workbook
from dfact.export.tables import item_texts
from dfact.models.estimator import Factorization

_FIGURES = ("explained_share_", "n_iter_", "converged_", "remaining_", "rmsr_", "n_observations_", "n_effective_", "rank_")


def communalities(model: Any) -> pd.DataFrame:
    """Return the communality h² and the uniqueness of each item; raise ParameterError for a model without them."""
    _require(model, "communalities_", "communalities")
    return pd.DataFrame({"h2": model.communalities_, "uniqueness": model.uniquenesses_}, index=model.loadings_.index)


def factor_correlations(model: Any) -> pd.DataFrame:
    """Return the correlations Φ of the factors (k, k); raise ParameterError for a model that does not estimate them."""
    _require(model, "factor_correlations_", "correlations of factors")
    names = [str(name) for name in model.get_feature_names_out()]
    return pd.DataFrame(model.factor_correlations_, index=pd.Index(names, name="factor"), columns=names)


def item_correlations(model: Any) -> pd.DataFrame:
    """Return the correlations of the items that were analyzed (m, m); raise ParameterError for a model of none."""
    _require(model, "correlations_", "correlations of items")
    items = model.loadings_.index
    return pd.DataFrame(model.correlations_, index=items, columns=list(map(str, items)))


def fit_figures(model: Any) -> pd.DataFrame:
    """Return the figures of the fit, one a row: the last objective, what the model has of the usual figures, its indices of fit, ω."""
    history = getattr(model, "objective_history_", None)
    figures: dict[str, float] = {} if history is None else {"objective": float(history[-1])}
    figures |= {name.rstrip("_"): float(value) for name in _FIGURES if (value := getattr(model, name, None)) is not None}
    for name in ("fit_", "omega_"):
        figures |= {str(key): float(value) for key, value in getattr(model, name, {}).items()}
    return pd.DataFrame({"value": figures}).rename_axis("figure")


def group_factors(model: Any) -> pd.DataFrame:
    """Return the congruences and the impact of each factor in each group of ``model.comparison_``; raise DataError without one."""
    comparison = getattr(model, "comparison_", None)
    if comparison is None:
        raise DataError("the model has no comparison of groups, expected one; run dfact compare (compare_groups) first")
    names = [str(name) for name in model.get_feature_names_out()]
    parts = [comparison.factors(names), comparison.impact(names)]
    parts = [parts[0], *([] if parts[1] is None else [parts[1].add_prefix("impact_").rename(columns={"impact_impact": "impact"})])]
    table: pd.DataFrame = pd.concat(parts, axis=1).rename_axis(["groups", "factor"])
    return table


STATISTICS: Mapping[str, Callable[[Any], pd.DataFrame]] = {
    "communalities": communalities,
    "factor-correlations": factor_correlations,
    "item-correlations": item_correlations,
    "fit": fit_figures,
    "groups": group_factors,
}
"""Functions that make the tables, by their names in ``dfact export --table``."""


def write_statistics(model: Factorization, path: str | PathLike[str], table: str, *, overwrite: bool = False) -> None:
    """Write one of the tables of :data:`STATISTICS` to a .csv, .parquet or .xlsx; tables of items have their texts, if they are known.

    Raises
    ------
    ParameterError
        ``path`` has another ending, or the model does not have the table.
    DataError
        The model has no comparison of groups.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    path, frame = Path(path), STATISTICS[table](model)
    check_destination(path, overwrite=overwrite, formats=LABELLED_FORMATS)
    labels = {str(name): list(map(str, frame.index.get_level_values(level))) for level, name in enumerate(frame.index.names)}
    known = item_texts(model) if "item" in labels else {}
    labels |= {"text": [known.get(item, "") for item in labels["item"]]} if known else {}
    values = frame.to_numpy(np.float64)
    if path.suffix in WORKBOOKS:
        described = pd.DataFrame(labels).set_index(next(iter(labels)))
        write_workbook(
            path, {table: pd.concat([described, pd.DataFrame(values, described.index, frame.columns)], axis=1)}, overwrite=overwrite
        )
        return
    with open_table(path, list(map(str, frame)), values.dtype, tuple(labels), overwrite=overwrite) as write:
        write(0, np.array(list(labels.values()), dtype=object).T, values)


def _require(model: Any, attribute: str, what: str) -> None:
    if not hasattr(model, attribute):
        raise ParameterError(f"the {type(model).__name__} has no {what}, expected a fitted FactorAnalysis; choose another table")
