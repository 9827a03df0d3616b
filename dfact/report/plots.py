"""Plots, with Matplotlib (the optional extra ``plot``)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dfact.errors import DfactError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LABELS = 150


def loadings_heatmap(model: Any) -> "Figure":
    """A heat map of the loadings, items × factors; items stand with the factor on which they load most.

    Save it with ``figure.savefig("loadings.png")``. The figure is made without pyplot, so it needs no
    screen and leaves your backend alone.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DfactError("plots need Matplotlib, which is not installed: pip install 'dfact[plot]'") from error
    loadings = model.loadings_
    values = loadings.to_numpy()
    order = np.lexsort((-values.max(axis=1), values.argmax(axis=1)))
    n_items, n_factors = values.shape
    figure = Figure(figsize=(3 + 0.5 * n_factors, 1.5 + min(0.22 * n_items, 30)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values[order], aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    axes.set_xticks(range(n_factors), loadings.columns, rotation=45, ha="right")
    if n_items <= _MOST_LABELS:
        axes.set_yticks(range(n_items), [str(loadings.index[i]) for i in order])
    axes.set_ylabel("item")
    figure.colorbar(image, ax=axes, label="loading")
    return figure
