"""The section of a report on the stability of a CP decomposition."""

import numpy as np
import pandas as pd

from dfact.export.stability import written_stability
from dfact.models.cp.base import CPModel
from dfact.report.document import Block, Drawing, Section, Text, make_table, number_format, with_intervals
from dfact.report.figures import stability_figure
from dfact.report.presenters.base import Presenter


def stability_section(presenter: Presenter[CPModel]) -> Section:
    """Show how the components vary over refits to resampled slices of mode 1."""
    result = written_stability(presenter.model)
    names, level = presenter.names[: len(result.weight)], f"{result.level:.0%}"
    scores = result.factor_match_scores
    about = (
        f"{result.n_refits} refits on resampled slices of mode 1, with their components matched to the model's by the vectors of the other "
        f"modes. Factor match score: median {np.median(scores):.3f}, 5th percentile {np.quantile(scores, 0.05):.3f}."
    )
    if hasattr(presenter.model, "selection_"):
        about += " The number of components and the penalty were chosen on the same data; the refits do not repeat that choice."
    medians = np.median(result.similarity, axis=0)
    texts = ", ".join(f"{name} has the median {value:.2f}" for name, value in zip(names, medians, strict=True))
    caption = "Similarity of each refit's components to the model's: 1 is the same; bars show medians."
    drawing = Drawing(lambda: stability_figure(result, names), f"Points of each refit: {texts}.", caption)
    caption = (
        f"Median and 5th percentile of the similarities, weight with the ends of its {level} interval, and the number of entries whose "
        f"{level} interval excludes 0"
    )
    formats = {"median": "{:.3f}", "5%": "{:.3f}", "loadings": "{:.0f}"}
    summary = make_table(result.summary(names), caption, formats=formats)
    index = presenter.all_loadings.index[presenter.shown]
    parts = (result.estimate, result.low, result.high, result.selected)
    estimate, low, high, selected = (pd.DataFrame(part[:, presenter.shown].T, index, names) for part in parts)
    caption = f"Vectors of modes 2 to N at length 1, without penalties, with their {level} intervals"
    table = with_intervals(make_table(presenter.with_texts(estimate), caption, shaded=names), low, high, number_format(result.estimate))
    blocks: list[Block] = [Text(about), drawing, summary, table]
    if result.sparse:
        caption = "Selection frequency of each entry: the share of the penalized refits in which it is not 0"
        blocks.append(make_table(presenter.with_texts(selected), caption, formats=dict.fromkeys(names, "{:.0%}")))
    return Section("stability", "Stability", blocks)
