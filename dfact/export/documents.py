"""Results as JSON documents: what the commands print with ``--json``. The guide ``programs`` describes them, and the exit codes.

A table is a list of objects, one for each row, with its labels under their names. NaN, infinity and missing values are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from dfact.data.dataset import Dataset
from dfact.engine.memory_plan import Plan
from dfact.export.growth import growth_document
from dfact.lazy import is_data_frame, pd
from dfact.models.provenance import Comparison, SelectionRecord, Stability, TensorStability

SCHEMA = 1
"""Version of the documents: it rises when a field changes or goes, not when one is added."""


def to_json(kind: str, document: Mapping[str, Any]) -> str:
    """Return a document of this kind as JSON text, with its version and that of dfact."""
    head = {"kind": kind, "schema": SCHEMA, "dfact": version("dfact")}
    return json.dumps(plain(head | dict(document)), ensure_ascii=False, allow_nan=False, indent=1)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: tables as lists of objects, arrays as lists, NaN and infinity as null, other objects as text."""
    if is_data_frame(value):
        return _records(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value.tolist()]
    if isinstance(value, (list, tuple, set, range)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    names = [
        str(name) if name is not None else ("label" if table.index.nlevels == 1 else f"label{i}")
        for i, name in enumerate(table.index.names)
    ]
    columns = [str(name) for name in table]
    rows = zip(table.index, table.astype(object).to_numpy(), strict=True)
    return [
        dict(zip(names, map(plain, label if isinstance(label, tuple) else (label,)), strict=True))
        | {name: None if cell is pd.NA else plain(cell) for name, cell in zip(columns, cells, strict=True)}
        for label, cells in rows
    ]


def dataset_document(dataset: Dataset) -> dict[str, Any]:
    """Describe a dataset: its size, and its items with their codebook."""
    low, high = dataset.valid_range[:, 0] + dataset.offset, dataset.valid_range[:, 1] + dataset.offset
    observed = dataset.statistics.observed.reshape(dataset.shape[1], -1).sum(axis=1)
    items = [
        {"item": str(name), "low": low[j], "high": high[j], "observed": observed[j]}
        for j, name in enumerate(dataset.column_labels.tolist())
    ]
    for described, item in zip(items, dataset.codebook or (), strict=False):
        described |= {
            "wording": item.wording,
            "levels": [{"code": code, "label": label} for code, label in item.levels],
            "missing": [{"code": each.code, "label": each.label, "count": each.count} for each in item.missing],
            "scale": item.scale,
            "key": item.key,
            "changes": item.changes,
        }
    confounders = [{"name": each.name, "levels": each.levels, "missing": _n_missing(each)} for each in dataset.stored_confounders()]
    return {
        "location": dataset.path,
        "shape": dataset.shape,
        "dtype": dataset.dtype,
        "missing_rate": dataset.missing_rate,
        "dropped_rows": dataset.dropped_rows,
        "weights": None if dataset.weights is None else dataset.weights.name,
        "fingerprint": dataset.fingerprint,
        "confounders": confounders,
        "items": items,
    }


def _n_missing(confounder: Any) -> int:
    values = confounder.values
    return int((np.isnan(values) if confounder.levels is None else values < 0).sum())


def model_document(model: Any) -> dict[str, Any]:
    """Describe a fitted model: its parameters, the figures of the fit, loadings, and the records that accompany it."""
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name not in ("executor", "callbacks")}
    figures = {
        name.removesuffix("_"): value
        for name, value in vars(model).items()
        if name.endswith("_") and isinstance(value, (bool, int, float, np.generic))
    }
    selection, comparison = getattr(model, "selection_", None), getattr(model, "comparison_", None)
    return {
        "class": type(model).__name__,
        "parameters": parameters,
        "figures": figures,
        "components": list(model.get_feature_names_out()),
        "fingerprint": model.fingerprint_,
        "loadings": model.loadings_,
        "selection": None if selection is None else selection_record_document(selection),
        "comparison": None if comparison is None else comparison_document(comparison, model),
        "stability": stability_document(model) if hasattr(model, "stability_") else None,
        "growth": growth_document(model) if hasattr(model, "growth_") else None,
        "sites": asdict(model.sites_) if hasattr(model, "sites_") else None,
    }


def selection_document(selection: Any) -> dict[str, Any]:
    """Describe a selection: its candidates, the chosen parameters and the model that was fitted with them."""
    return {
        "best": selection.best_params,
        "candidates": selection.table,
        # The selection of the model is this document.
        "model": None if selection.model is None else model_document(selection.model) | {"selection": None},
    }


def selection_record_document(record: SelectionRecord) -> dict[str, Any]:
    """Describe the selection that a stored model is the result of."""
    return {
        "criterion": record.criterion,
        "rule": record.rule,
        "best": dict(zip(record.names, record.values[record.best], strict=True)),
        "candidates": record.table,
    }


def stability_document(model: Any) -> dict[str, Any]:
    """Describe the variation of a model between refits: the similarity of each component, and the intervals of the loadings."""
    stability: Stability | TensorStability = model.stability_
    names, items = list(model.get_feature_names_out()), model.loadings_.index
    parts = {name: getattr(stability, name) for name in ("estimate", "low", "high", "selected")}
    loadings = [
        {"component": component, **dict(zip(_index_names(items), _labels(item), strict=True))}
        | {name: None if values is None else values[i, j] for name, values in parts.items()}
        for i, component in enumerate(names)
        if i < len(stability.low)
        for j, item in enumerate(items)
    ]
    return {
        "resampling": stability.resampling,
        "n_refits": stability.n_refits,
        "level": stability.level,
        "components": stability.summary(names),
        "loadings": loadings,
    }


def _index_names(index: pd.Index[Any]) -> list[str]:
    return [str(name or "label") for name in index.names]


def _labels(label: Any) -> Sequence[str]:
    return list(map(str, label)) if isinstance(label, tuple) else [str(label)]


def comparison_document(comparison: Comparison, model: Any) -> dict[str, Any]:
    """Describe a comparison of groups: the congruence of each factor, and the tests of the items. What was not tested has a reason."""
    names = list(model.get_feature_names_out())
    return {
        "by": comparison.by,
        "groups": [{"level": level, "n": n} for level, n in zip(comparison.levels, comparison.sizes, strict=True)],
        "level": comparison.level,
        "n_resamples": comparison.n_resamples,
        "factors": comparison.factors(names),
        "factors_untested": comparison.factors_untested,
        "impact": comparison.impact(names),
        "items": comparison.effects,
        "untested": comparison.untested,
        "number_of_factors": None if comparison.item_tests is None else comparison.item_tests.of_numbers(comparison.items),
        "n_clusters": comparison.n_clusters,
        "mantel_tests": comparison.mantel_tests,
        "unscreened": comparison.unscreened,
        "dif_items": comparison.dif_items,
    }


def description_document(description: Any) -> dict[str, Any]:
    """Describe a description of a questionnaire: its scales and items."""
    chi_square, df, p = description.bartlett
    return {
        "n": description.n,
        "correlation": description.correlation,
        "missing": description.missing,
        "interval": description.interval,
        "kmo": description.kmo,
        "sphericity": {"test": description.bartlett.name, "chi_square": chi_square, "df": df, "p": p},
        "note": description.note,
        "scales": description.scales,
        "items": description.items,
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """Describe a memory plan, in bytes."""
    workers = plan.workers
    return {
        "shape": plan.shape,
        "fits": plan.fits,
        "executor": workers.kind,
        "processes": workers.processes,
        "threads": workers.threads,
        "limit": workers.limit,
        "peak": plan.peak,
        "baseline": workers.baseline,
        "working": plan.working,
        "driver": plan.driver,
        "resident": plan.resident,
        "state": plan.state,
        "spilled": plan.spilled,
        "n_partitions": plan.n_partitions,
        "partition_rows": plan.partition_rows,
        "note": plan.note,
    }
