"""The tables of stability records, and explanations of their intervals and frequencies in the words that reports and commands print."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import ParameterError
from dfact.models.provenance import STABLE, Stability, TensorStability

_WHAT = {
    "bootstrap": "bootstrap samples of the {rows}",
    "halves": "halves of the {rows}",
}


def resamples_text(stability: Stability | TensorStability, rows: str) -> str:
    """Describe what the refits are of, such as "100 refits to bootstrap samples of the participants"."""
    what = _WHAT.get(stability.resampling, stability.resampling).format(rows=rows)
    drawn = stability.resampling in _WHAT or stability.resampling.endswith(" clusters")
    return f"{stability.n_refits} refits {'to' if drawn else 'with'} {what}"


def remarks(model: Any) -> list[str]:
    """Return sentences on the intervals and selection frequencies of ``model.stability_``, each of its own."""
    result: Stability | TensorStability = model.stability_
    loading = model.vocabulary.loading
    if isinstance(result, TensorStability):
        return _tensor_remarks(model, result, loading)
    lines = []
    if model.traits.loading_intervals:
        size = "the same size and parameters" if result.choices is None else "the chosen size and parameters"
        lines.append(
            f"An interval covers the {loading} that a model of {size} has in the population. It is not determined where the {loading} "
            "is at a bound or was set to 0 in some refits, or where refits often have another factor."
        )
    else:
        lines.append(f"Intervals of the {loading}s of this model miss their level; it has selection frequencies instead.")
    if result.sparse:
        lines.append(
            f"The selection frequency of a {loading} is the share of the refits in which it is not 0; {STABLE} and more count as selected."
        )
        bound = result.false_selections()
        if bound == bound:
            lines.append(f"At most {bound:.1f} selected {loading}s are expected by chance (Meinshausen & Bühlmann 2010).")
    return lines + selection_remarks(model)


def _tensor_remarks(model: Any, result: TensorStability, loading: str) -> list[str]:
    lines = [
        f"An interval covers the weight or {loading} of a decomposition of the same size in the population, without penalties and "
        "constraints. It is NaN for a component that refits often lose."
    ]
    if result.sparse:
        lines.append(f"The selection frequency of a {loading} is the share of the penalized refits in which it is not 0.")
    if hasattr(model, "selection_"):
        lines.append("The number of components and the penalty were chosen on the same data; the refits do not repeat that choice.")
    return lines


def selection_remarks(model: Any) -> list[str]:
    """Return a sentence on the parameters that were chosen on the same data, or how often each resample chose them; none for a model
    without a selection.
    """
    result: Stability = model.stability_
    if result.choices is not None and result.choice_counts is not None:
        counts = ", ".join(f"{text} {count} times" for text, count in zip(result.choices, result.choice_counts, strict=True) if count)
        return [f"Each resample repeated the selection and chose {counts}."]
    selection = getattr(model, "selection_", None)
    if selection is None:
        return []
    found = f"{' and '.join(selection.names)} {'was' if len(selection.names) == 1 else 'were'} chosen on the same data"
    return [
        f"{found}; intervals and frequencies leave out the variation of that choice, which --reselect (reselect=) repeats in each resample."
    ]


def stability_lines(model: Any) -> list[tuple[str, str]]:
    """Describe the stability of a model in named lines; none if it was not computed."""
    result = getattr(model, "stability_", None)
    if not isinstance(result, Stability):
        return []
    table = result.summary(model.get_feature_names_out())
    medians = ", ".join(f"{name} {value:.2f}" for name, value in table["median"].items())
    words = model.vocabulary
    lines = [("stability", f"{resamples_text(result, words.rows)}; median similarity of {medians}")]
    counts = [f"{table['intervals'].sum()} of {result.low.size} {words.loading}s have an interval of {result.level:.0%}"]
    if result.sparse:
        counts.append(f"{table['selected'].sum()} have a selection frequency of at least {STABLE}")
    return [*lines, ("", "; ".join(counts)), *(("", text) for text in selection_remarks(model))]


def stability_table(model: Any) -> pd.DataFrame:
    """Return the figures of ``model.stability_`` for each loading: items × five columns for each factor.

    The columns of a factor f are ``f``, the estimate at the centre of the interval, ``f_se``, ``f_low``, ``f_high`` and
    ``f_selected``, the selection frequency. NaN stands for an interval that is not determined.
    """
    result = getattr(model, "stability_", None)
    if not isinstance(result, Stability):
        raise ParameterError(f"the {type(model).__name__} has no stability of its loadings, expected one; compute it with dfact stability")
    estimate = result.mean if result.estimate is None else result.estimate
    se = np.full_like(estimate, np.nan) if result.se is None else result.se
    columns: dict[str, NDArray[np.float64]] = {}
    for name, *parts in zip(model.get_feature_names_out(), estimate, se, result.low, result.high, result.selected, strict=True):
        columns |= dict(zip((name, *(f"{name}_{part}" for part in ("se", "low", "high", "selected"))), parts, strict=True))
    return pd.DataFrame(columns, index=model.loadings_.index)


def written_stability(model: Any) -> TensorStability:
    """Return the stability of the components that are left."""
    result: TensorStability = model.stability_
    left = ~np.isnan(result.weight)
    return replace(
        result,
        similarity=result.similarity[:, left],
        estimate=result.estimate[left],
        low=result.low[left],
        high=result.high[left],
        selected=result.selected[left],
        weight=result.weight[left],
        weight_low=result.weight_low[left],
        weight_high=result.weight_high[left],
    )


def tensor_stability_table(model: Any) -> pd.DataFrame:
    """Return the loadings of the refits as a table, slices of modes 2 to N × (estimate, low, high, selected) of each component.

    The columns are named after the component, such as ``F1``, ``F1_low``, ``F1_high`` and ``F1_selected``.
    """
    result, columns = written_stability(model), {}
    for i, name in enumerate(model.get_feature_names_out()[: len(result.weight)]):
        columns[str(name)] = result.estimate[i]
        columns |= {f"{name}_{part}": getattr(result, part)[i] for part in ("low", "high", "selected")}
    return pd.DataFrame(columns, index=model.loadings_.index)
