"""Plots, with Matplotlib (the optional extra ``plot``)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from dfact.errors import DfactError
from dfact.storage.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
_MOST_LABELS = 150


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches; made without pyplot, it needs no screen and leaves your backend alone."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DfactError("plots need Matplotlib, which is not installed: pip install 'dfact[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure, whole or not at all; the ending of ``path`` says in which of ``FORMATS``."""
    with atomic_file(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:])


def loadings_heatmap(model: Any) -> "Figure":
    """A heat map of the loadings, items × factors; items stand with the factor on which they load most.

    Save it with ``figure.savefig("loadings.png")``.
    """
    values = model.loadings_.to_numpy()
    order = np.lexsort((-values.max(axis=1), values.argmax(axis=1)))
    return heatmap(model.loadings_.iloc[order], "item", "loading")


def heatmap(table: pd.DataFrame, rows: str, value: str, highest: float | None = None) -> "Figure":
    """A table of numbers from 0 to ``highest`` (by default of the table), NaN being grey; ``rows`` and ``value`` say what they are.

    Up to 150 rows are labelled.
    """
    n_rows, n_columns = table.shape
    labelled = n_rows <= _MOST_LABELS
    figure = new_figure(3 + 0.5 * n_columns, 1.5 + (0.22 * n_rows if labelled else 10))
    axes = figure.add_subplot(facecolor="0.8")
    image = axes.imshow(table.to_numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=highest, interpolation="nearest")
    axes.set_xticks(range(n_columns), table.columns, rotation=45, ha="right")
    axes.set_yticks(range(n_rows) if labelled else [], [str(label) for label in table.index] if labelled else [])
    axes.set_ylabel(rows if labelled else f"{n_rows} {rows}s")
    figure.colorbar(image, ax=axes, label=value)
    return figure
