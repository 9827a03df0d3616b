"""The identified differences that confounders make, impact and effects on items, as tables and texts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dfact.errors import ParameterError
from dfact.models.item_tests import NEGLIGIBLE

ADJUSTED = "The factors and loadings are adjusted for the confounders under this anchor alone."


def require_confounders(model: Any) -> None:
    """Raise ParameterError for a model that was fitted without confounders."""
    if getattr(model, "confounder_encoding_", None) is None:
        raise ParameterError(f"the {type(model).__name__} was fitted without confounders, expected a model with loadings on them")


def difference_names(model: Any) -> list[str]:
    """Return the names of the differences that the confounders of a model make."""
    return list(model.confounder_encoding_.differences()[0])


def impact_table(model: Any) -> pd.DataFrame:
    """Return the impact, factors × differences, with mean, interval and standard error over refits if they are known."""
    from dfact.models.bounded_nmf.effects import group_effects  # of one family, which others need not import

    factors = pd.Index([str(name) for name in model.get_feature_names_out()], name="factor")
    return _with_refits(model, pd.DataFrame(group_effects(model).impact.T, factors, difference_names(model)), "impact")


def effects_table(model: Any) -> pd.DataFrame:
    """Return the effects on the items, items × differences, with standard errors.

    If refits are known, the mean, interval and standard error are those over them.
    """
    effects = _with_refits(model, model.confounder_effects_, "confounder")
    if len(effects.columns) > len(model.confounder_effects_.columns):
        return effects  # with standard errors over the refits
    errors = model.confounder_errors_
    return pd.DataFrame({column: table[name] for name in effects for column, table in ((name, effects), (f"{name}, se", errors))})


def _with_refits(model: Any, table: pd.DataFrame, prefix: str) -> pd.DataFrame:
    stability = getattr(model, "stability_", None)
    parts = {part: getattr(stability, f"{prefix}_{part}", None) for part in ("mean", "low", "high", "se")}
    if any(values is None for values in parts.values()):
        return table
    columns: dict[str, Any] = {}
    for number, name in enumerate(table):
        columns[str(name)] = table[name]
        columns |= {f"{name}, {part}": values[number] for part, values in parts.items() if values is not None}
    return pd.DataFrame(columns, table.index)


def largest_effects(model: Any, n: int) -> pd.DataFrame:
    """Return for each difference the n items with the largest effects of either sign: ``confounder``, ``item``, ``effect``, its
    standard error ``se``, or if refits are known the ``interval`` over them.
    """
    errors = model.confounder_errors_
    rows = [
        {
            "confounder": str(name),
            "item": str(values.index[j]),
            "effect": float(values.iloc[j]),
            "se": float(errors[name].iloc[j]),
            "interval": ends[j].strip(),
        }
        for i, (name, values) in enumerate(model.confounder_effects_.items())
        for ends in [_interval(model, "confounder", i)]
        for j in np.argsort(-values.abs().fillna(0).to_numpy(), kind="stable")[:n]
        if values.iloc[j] and not np.isnan(values.iloc[j])
    ]
    table = pd.DataFrame(rows, columns=["confounder", "item", "effect", "se", "interval"])
    return table.drop(columns="se" if any(table["interval"]) else "interval")


def _interval(model: Any, prefix: str, row: int) -> list[str]:
    """Return the intervals of a difference over refits as texts, "" without stability."""
    stability = getattr(model, "stability_", None)
    low, high = (getattr(stability, f"{prefix}_{end}", None) for end in ("low", "high"))
    size = len(model.components_) if prefix == "impact" else len(model.column_labels_)
    if low is None or high is None:
        return [""] * size
    return [f" [{a:.2f}, {b:.2f}]" for a, b in zip(low[row], high[row], strict=True)]


def anchor_lines(model: Any) -> Iterator[tuple[str, str]]:
    """Yield for each difference its name with the numbers of rows, and how many items carry its anchor, with the factors of too few.

    For a difference with too few rows on one side, the text says that it is not given.
    """
    from dfact.models.bounded_nmf.effects import FEWEST, anchor_items

    sizes = model.confounder_encoding_.difference_sizes()
    for (name, rows), size in zip(anchor_items(model).groupby(level="difference", sort=False), sizes, strict=True):
        factors = rows.index.get_level_values("factor")
        counts = zip(factors, rows["anchors"], rows["items"], rows["weak"], strict=True)
        weak = [f"{factor} ({anchors} of {items})" for factor, anchors, items, is_weak in counts if is_weak]
        shown = f"{rows['anchors'].sum()} of {len(model.column_labels_)} {model.vocabulary.items}"
        text = f"{shown} show no difference beyond {NEGLIGIBLE:g} SD; the others are measured against them"
        groups = f" ({size[0]} and {size[1]} {model.vocabulary.rows})" if size else ""
        if size and min(size) < FEWEST:
            yield f"{name}{groups}", f"not given, as fewer than {FEWEST} {model.vocabulary.rows} are on one side"
            continue
        yield f"{name}{groups}", text + (f"; fewer than half on {', '.join(weak)}, where the anchor is arbitrary" if weak else "")


def anchor_rule() -> str:
    """Describe which items carry the anchor."""
    below = f"its effect is below {NEGLIGIBLE:g} standard deviations (SD) of its answers, or below twice its standard error"
    return f"An item counts as one without a difference, and belongs to the anchor, if {below}."


def headings(model: Any) -> list[str]:
    """Return a line for each difference: its name, its impact on each factor if there are intervals over refits, and its anchor.

    Without intervals an impact is not printed: its unit is that of the penalty, and nothing says how far it is from 0.
    """
    from dfact.models.bounded_nmf.effects import group_effects

    impact, names = group_effects(model).impact, [str(name) for name in model.get_feature_names_out()]
    lines = []
    for i, (name, anchored) in enumerate(anchor_lines(model)):
        ends = _interval(model, "impact", i)
        values = ", ".join(f"{factor} {value:+.2f}{end}" for factor, value, end in zip(names, impact[i], ends, strict=True))
        lines.append(f"{name}: impact {values}; {anchored}" if any(ends) and not np.isnan(impact[i]).all() else f"{name}: {anchored}")
    return lines
