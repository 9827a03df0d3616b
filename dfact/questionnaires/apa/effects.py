"""Impact and effects of confounders as tables in APA style."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.export.effects import ADJUSTED, anchor_lines, anchor_rule, difference_names, require_confounders
from dfact.export.files import check_destination
from dfact.export.tables import Texts, item_texts, require_own_items
from dfact.models.bounded_nmf.effects import group_effects
from dfact.questionnaires.apa.table import ApaTable, Cell, Group, described, number
from dfact.questionnaires.apa.write import FORMATS, write_tables
from dfact.storage.location import parse_location


def effects_tables(model: Any, texts: Texts = None) -> list[ApaTable]:
    """Return the tables of the impact of the confounders on the factors and of their effects on the items.

    If the model has its stability, the mean of the refits is given too, with the interval of the estimate over them.

    Raises
    ------
    ParameterError
        The model was fitted without confounders, or ``texts`` contain none of its items.
    """
    require_confounders(model)
    require_own_items(model, texts=texts)
    known, labels = item_texts(model, texts), [str(label) for label in model.column_labels_]
    items = [described(label, known.get(label, "")) for label in labels]
    factors = [Cell(name) for name in model.get_feature_names_out()]
    split, anchored = group_effects(model), [f"{name}: {text}" for name, text in anchor_lines(model)]
    n = f"*N* = {model.row_factors().shape[0]:,}."
    impact_note = f"{n} Impact is the adjusted difference of a factor. {ADJUSTED}"
    effects_note = f"{n} An effect is the adjusted difference of an item at equal factors, in points. {anchor_rule()}"
    return [
        _table(model, "Impact of Confounders on Factors", "Factor", factors, split.impact, "impact", impact_note),
        _table(model, f"Effects of Confounders on {len(items)} Items", "Item", items, split.effects, "confounder", effects_note, anchored),
    ]


def write_apa_effects(model: Any, path: str | PathLike[str], *, texts: Texts = None, overwrite: bool = False) -> None:
    """Write impact and effects of confounders as tables in APA style to an .html or .md file; see :func:`effects_tables`.

    Raises
    ------
    ParameterError
        ``path`` has another ending, or the model was fitted without confounders.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    check_destination(parse_location(path), overwrite=overwrite, formats=FORMATS)
    write_tables(effects_tables(model, texts), path, overwrite=overwrite)


def _table(
    model: Any,
    title: str,
    kind: str,
    rows: Sequence[Cell],
    values: NDArray[np.float64],
    prefix: str,
    note: str,
    anchored: Sequence[str] = (),
) -> ApaTable:
    """Return a table with a group of rows for each difference; ``prefix`` names the parts of the stability with its intervals."""
    stability: Any = getattr(model, "stability_", None)
    mean, low, high = (getattr(stability, f"{prefix}_{part}", None) for part in ("mean", "low", "high"))
    headings = [kind, "Estimate"]
    if mean is not None:
        headings += ["Mean of refits", f"{stability.level:.0%} CI"]
    groups = []
    for i, name in enumerate(difference_names(model)):
        cells = [[row, Cell(number(value))] for row, value in zip(rows, values[i], strict=True)]
        if mean is not None and low is not None and high is not None:
            ends = zip(cells, mean[i], low[i], high[i], strict=True)
            cells = [[*cell, Cell(number(m)), Cell(f"[{number(a)}, {number(b)}]")] for cell, m, a, b in ends]
        groups.append(Group(name, cells))
    if anchored:
        groups.append(Group("Anchor", [[Cell(line), *[Cell("")] * (len(headings) - 1)] for line in anchored]))
    return ApaTable(title, headings, groups, note)
