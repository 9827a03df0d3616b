"""Plots that several families of models share, with Matplotlib (the optional extra ``plot``)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dfact.errors import DfactError
from dfact.export.tables import item_texts
from dfact.models.estimator import Factorization
from dfact.storage.files import atomic_file
from dfact.storage.location import Location, suffix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
_MAX_LABELS = 150
_MAX_LENGTH = 48  # characters of an item's name and text
_SHORT, _INCHES = 20, 0.07  # labels of more characters widen a figure by inches for each


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of this size in inches; without pyplot it needs no display and leaves the backend unchanged."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DfactError("plots need Matplotlib, which is not installed; install it: pip install 'dfact[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Location, *, overwrite: bool = False) -> None:
    """Write a figure atomically, in the format of the ending of ``path``, one of ``FORMATS``."""
    with atomic_file(path, overwrite=overwrite) as partial:
        figure.savefig(partial, format=suffix(path)[1:])


def loadings_heatmap(model: Factorization) -> "Figure":
    """Plot loadings, items × factors, as a heat map, with items grouped by the factor on which they load most.

    Save the figure with ``figure.savefig("loadings.png")``.
    """
    sizes = model.loadings_.abs().to_numpy()
    order = np.lexsort((-sizes.max(axis=1), sizes.argmax(axis=1)))
    return heatmap(with_item_labels(model.loadings_.iloc[order], item_texts(model)), "item", "loading")


def with_item_labels(table: pd.DataFrame, texts: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of items with the beginnings of their texts in its labels."""
    labels = [f"{item} {texts.get(str(item), '')}".rstrip() for item in table.index]
    short = [label if len(label) <= _MAX_LENGTH else f"{label[: _MAX_LENGTH - 1].rstrip()}…" for label in labels]
    return table.set_axis(pd.Index(short, name=table.index.name)) if texts else table


def signed_heatmap(model: Factorization) -> "Figure":
    """Plot loadings of either sign as :func:`loadings_heatmap` does, but white at 0."""
    figure = loadings_heatmap(model)
    center_colors(figure, model.loadings_.abs().to_numpy().max())
    return figure


def center_colors(figure: "Figure", largest: float) -> None:
    """Colour a heat map from ``-largest`` to ``largest``, white at 0."""
    (image,) = figure.axes[0].images
    image.set_cmap("RdBu_r")
    image.set_clim(-largest, largest)


def heatmap(table: pd.DataFrame, rows: str, value: str, maximum: float | None = None) -> "Figure":
    """Plot a table of numbers from 0 to ``maximum`` (by default the largest) as a heat map, NaN in grey.

    ``rows`` and ``value`` name the rows and the numbers. Up to 150 rows are labelled.
    """
    n_rows, n_columns = table.shape
    labelled = n_rows <= _MAX_LABELS
    labels = [str(label) for label in table.index] if labelled else []
    width = 3 + 0.5 * n_columns + _INCHES * max(0, max(map(len, labels), default=0) - _SHORT)
    figure = new_figure(width, 1.5 + (0.22 * n_rows if labelled else 10))
    axes = figure.add_subplot(facecolor="0.8")
    image = axes.imshow(table.to_numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=maximum, interpolation="nearest")
    axes.set_xticks(range(n_columns), table.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels, parse_math=False)  # texts may contain dollar signs
    axes.set_ylabel(rows if labelled else f"{n_rows} {rows}s")
    figure.colorbar(image, ax=axes, label=value)
    return figure
