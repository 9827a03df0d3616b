"""Statistics of items and reliability of scales as tables in APA style."""

from collections.abc import Sequence

import numpy as np

from dfact.questionnaires.apa.table import ANSWERED, ApaTable, Cell, Group, described, level_of_significance, number
from dfact.questionnaires.description import INTERVALS, Description
from dfact.questionnaires.scales import ALL_ITEMS


def description_tables(description: Description) -> list[ApaTable]:
    """Return the tables of the items, grouped by scale, and of the scales."""
    return [_items(description), _scales(description)]


def _items(description: Description) -> ApaTable:
    items = description.items
    rows: dict[str, list[Sequence[Cell]]] = {str(name): [] for name in description.scales.index}
    for label, row in zip(items.index, items.to_dict("records"), strict=True):
        name = described(label, row.get("text", ""))
        shares = [number(100 * row[share], 1) for share in ("missing", "floor", "ceiling")]
        correlations = [number(row[figure], bounded=True) for figure in ("r_drop", "alpha_if_dropped")]
        figures = [*(number(row[figure]) for figure in ("mean", "sd", "skew")), *shares, *correlations]
        cells = [Cell(f"{name.text} (R)") if row["key"] < 0 else name, *map(Cell, figures)]
        rows.setdefault(row["scale"] or "no scale", []).append(cells)
    groups = [Group("" if list(rows) == [ALL_ITEMS] else scale, of_scale) for scale, of_scale in rows.items()]
    headings = ["Item", "*M*", "*SD*", "Skewness", "% missing", "% at floor", "% at ceiling", "Item–rest *r*", "α if dropped"]
    note = (
        f"*N* = {description.n:,}. Item–rest *r* is the correlation with the sum of the other items of the scale, "
        "and α if dropped is Cronbach's alpha without the item."
    )
    if (items["key"] < 0).any():
        note += " (R) marks items that were reversed."
    return ApaTable(f"Statistics of {len(items)} Items", headings, groups, note)


def _scales(description: Description) -> ApaTable:
    rows = []
    for name, row in zip(description.scales.index, description.scales.to_dict("records"), strict=True):
        figures = {figure: number(row[figure], bounded=True) for figure in ("alpha", "ci_low", "ci_high", *_FIGURES)}
        interval = number(np.nan) if np.isnan(row["ci_low"]) else f"[{figures['ci_low']}, {figures['ci_high']}]"
        texts = [str(name), f"{row['items']}", figures["alpha"], interval, *(figures[figure] for figure in _FIGURES)]
        rows.append([Cell(text) for text in texts])
    headings = ["Scale", "Items", "α", "95% CI", *_FIGURES.values()]
    correlations = "polychoric" if description.correlation == "polychoric" else "Pearson"
    note = (
        f"*N* = {description.n:,}. α is Cronbach's alpha with its {INTERVALS[description.interval]} interval, and ω is McDonald's omega "
        "of one factor by minimum residuals. ω total and ω hierarchical are the shares of all factors and of the general factor in the "
        f"variance of the sum, by the transformation of Schmid and Leiman. All omegas are from {correlations} correlations of the "
        "participants who answered "
        f"{ANSWERED[description.missing]}."
    )
    if not np.isnan(description.kmo):
        chi_square, df, p = description.bartlett
        test = f"{description.bartlett.name}'s χ²({df:.0f}) = {number(chi_square)}, *p* {level_of_significance(p)}"
        note += f" All items: KMO = {number(description.kmo, bounded=True)}, {test}."
    title = "Reliability" if len(rows) == 1 else f"Reliability of {len(rows)} Scales"
    return ApaTable(title, headings, [Group("", rows)], note)


_FIGURES = {"omega": "ω", "omega_total": "ω total", "omega_hierarchical": "ω hierarchical", "average_r": "Average *r*"}
"""Headings of columns by the figures of a scale."""
