"""The sections of an HTML report that all models have: what was fitted, how, and how well."""

from typing import Any

import numpy as np
import pandas as pd

from dfact.models.cp.elastic import ElasticCP
from dfact.report.document import Block, DefinitionList, Section, Text, number_format, table_of, with_intervals
from dfact.report.figures import distributions_figure, errors_figure, history_figure, stability_figure
from dfact.report.html.context import ReportContext
from dfact.report.html.images import picture
from dfact.report.presenters.base import summary_lines
from dfact.report.presenters.cp.plots import ordered, path_plot
from dfact.report.reconstruction import item_errors
from dfact.report.selection import score_plot
from dfact.selection.result import Selection

_FOR_THE_RUN = ("executor", "callbacks")
_FEWEST = 20  # rows of which a histogram is drawn


def overview(subject: ReportContext) -> Section:
    """What was fitted, and on what."""
    model, dataset = subject.model, subject.dataset
    facts = [(name.capitalize(), text) for name, text in summary_lines(model)]
    print_ = model.fingerprint_
    facts.append(("Data", f"fingerprint {print_}" if print_ else "no fingerprint: the data was no stored dataset as it was imported"))
    if dataset is not None:
        facts.append(("Missing", f"{dataset.missing_rate:.2%} of the entries"))
        if dataset.confounders is not None:
            facts.append(("Confounders", ", ".join(str(name) for name in dataset.confounders)))
    else:
        facts.append(("Missing", "not told: the report was made without the data"))
    facts.append(("Written by", ", ".join(f"{package} {version}" for package, version in subject.versions.items())))
    return Section("overview", "What was fitted", [DefinitionList(facts)])


def convergence(subject: ReportContext) -> Section | None:
    """The objective on its way."""
    model = subject.model
    history = getattr(model, "objective_history_", None)
    if history is None or len(history) < 2:
        return None
    history = np.asarray(history, np.float64)
    lagrangians = getattr(model, "lagrangian_history_", None)
    alt = f"Line of the objective over {len(history)} steps: it begins at {history[0]:.4g} and ends at {history[-1]:.4g}."
    last = "The last point is that of the model itself, every row at its optimum."
    drawn = picture(lambda: history_figure(history, lagrangians), alt, f"The objective at the start and after each step. {last}")
    return Section("convergence", "Convergence", [drawn])


def choice(subject: ReportContext) -> Section | None:
    """How the parameters were chosen, if a selection chose them."""
    found = getattr(subject.model, "selection_", None)
    if found is None:
        return None
    best = dict(zip(found.names, found.values[found.best], strict=True))
    chosen = ", ".join(f"{name} = {value}" for name, value in best.items())
    told = f"{len(found.values)} candidates were compared by {found.criterion.replace('_', ' ')}; the rule “{found.rule}” took {chosen}."
    table = found.table.set_index(found.names)
    indexed = table.rename(columns={"standard error": "se"})
    span = f"from {np.nanmin(found.scores):.4g} to {np.nanmax(found.scores):.4g}"
    alt = f"{found.criterion} of {len(found.values)} candidates, {span}; chosen: {chosen}."
    if isinstance(subject.model, ElasticCP) and found.names == ["lam"]:
        along = indexed[["rank", "zeros", "relative_error", found.criterion]]
        drawn = picture(
            lambda: path_plot(Selection(along, best, subject.model)), alt, "Rank, zeros and error over λ; the line is at what was chosen."
        )
    else:
        error = "se" if "se" in indexed else None
        label = "mean squared error of hidden answers" if found.criterion == "error" else found.criterion.replace("_", " ")
        bars = " Bars are one standard error." if error else ""
        drawn = picture(lambda: score_plot(indexed, best, found.criterion, error, label), alt, f"The score of each candidate.{bars}")
    flat = found.table.assign(chosen=["chosen" if i == found.best else "" for i in range(len(found.values))])
    rows = flat.set_index(found.names[0])
    return Section(
        "selection",
        "How it was chosen",
        [Text(told), drawn, table_of(rows, "The candidates", formats=dict.fromkeys((found.criterion, "standard error"), "{:.5g}"))],
    )


def distributions(subject: ReportContext) -> Section:
    """How the factors of the rows are distributed, and how they go together."""
    words, statistics, names = subject.words, subject.statistics, subject.names
    what = {"class": "memberships", "component": "row factors"}.get(words.component, "factors")
    alt = f"Histograms of the {what} of {statistics.n} {words.rows}; the table below has their means, ranges and shares at 0."
    drawn = picture(lambda: distributions_figure(statistics, names, words.rows), alt, f"The {what} of {statistics.n} {words.rows}.")
    table = statistics.table(names).rename_axis(words.component)
    blocks: list[Block] = [drawn] if statistics.n >= _FEWEST else []
    blocks.append(table_of(table, f"The {what} of {statistics.n} {words.rows} in figures", formats={"share at 0": "{:.1%}"}))
    if len(names) > 1:
        correlations = pd.DataFrame(statistics.correlations, index=pd.Index(names, name=words.component), columns=names)
        blocks.append(table_of(correlations, f"Correlations of the {what} over the {words.rows}", shaded=names))
    expected = getattr(subject.model, "factor_correlations_", None)
    if expected is not None and len(names) > 1 and subject.model.rotation == "promax":
        table = pd.DataFrame(expected, index=pd.Index(names, name=words.component), columns=names)
        blocks.append(
            table_of(table, "Correlations of the factors as the rotation has them (of the factors, not of the scores)", shaded=names)
        )
    return Section("rows", f"The {words.rows}", blocks)


def errors(subject: ReportContext) -> Section | None:
    """How well each item is rebuilt, and how much of it is missing."""
    if subject.dataset is None:
        return None
    words = subject.words
    table = item_errors(subject.model, subject.dataset).rename_axis(words.items.removesuffix("s"))
    order = np.argsort(-table["explained"].fillna(-np.inf).to_numpy(), kind="stable") if "explained" in table else np.arange(len(table))
    shown = table.iloc[order[:2000]]
    percent = {"missing": "{:.1%}", "explained": "{:.1%}"}
    blocks: list[Block] = []
    if "explained" in table and table["explained"].notna().any():
        along = ordered(table.index) if subject.model.traits.tensor else None
        span = f"from {table['explained'].min():.0%} to {table['explained'].max():.0%}"
        alt = f"Explained share of the variance of {len(table)} {words.items}, {span}."
        caption = (
            "Share of the variance about the mean that the model explains, of the data it was fitted to; below 0 the mean does better."
        )
        drawn = picture(lambda: errors_figure(table["explained"], "explained share of the variance", along), alt, caption)
        blocks.append(drawn)
    if len(shown) < len(table):
        blocks.append(Text(f"The table has {len(shown)} of {len(table)} {words.items}."))
    caption = "Answers and errors by item: observed, share missing, mean and standard deviation of the answers, root mean squared error"
    blocks.append(table_of(subject.described(shown), caption, formats=percent))
    return Section(
        "errors", f"Errors by {'column' if words.items == 'columns' else 'slice of mode 2' if words.items == 'slices' else 'item'}", blocks
    )


def stability(subject: ReportContext) -> Section | None:
    """How the model varies over refits, if that was computed."""
    found = getattr(subject.model, "stability_", None)
    if found is None:
        return None
    names, words, shown = subject.names, subject.words, subject.shown
    middle = np.nanmedian(found.similarity, axis=0)
    told = f"{found.n_refits} refits on resampled {words.rows}, their {words.components} matched with the model's."
    alt = (
        "Points of each refit: " + ", ".join(f"{name} has the median {value:.2f}" for name, value in zip(names, middle, strict=True)) + "."
    )
    drawn = picture(
        lambda: stability_figure(found, names),
        alt,
        "Similarity of each refit's loadings to the model's; 1 is the same direction, the bar is the median.",
    )
    caption = f"Median and 5th percentile of the similarities, and how many {words.loading}s have a {found.level:.0%} interval without 0"
    summary = table_of(
        found.summary(names).rename_axis(words.component), caption, formats={"median": "{:.3f}", "5 %": "{:.3f}", "loadings": "{:.0f}"}
    )
    order = shown[subject.order[0]]
    mean, low, high = (pd.DataFrame(part[:, order].T, columns=names) for part in (found.mean, found.low, found.high))
    caption = f"Mean {words.loading} of each item over the refits, with the ends of its {found.level:.0%} interval"
    table = table_of(mean.set_index(subject.all_loadings.index[order]), caption, shaded=names)
    style = number_format(found.mean)
    return Section("stability", "Stability", [Text(told), drawn, summary, with_intervals(table, low, high, style)])


def parameters(subject: ReportContext) -> Section:
    """With which parameters."""
    model = subject.model
    given = {name: value for name, value in model.get_params(deep=False).items() if name not in _FOR_THE_RUN}
    defaults = type(model)().get_params(deep=False)
    rows = [
        (name, _format_value(value), "" if _format_value(value) == _format_value(defaults[name]) else "set")
        for name, value in given.items()
    ]
    table = pd.DataFrame(rows, columns=["parameter", "value", "set or default"]).set_index("parameter")
    table["set or default"] = table["set or default"].replace("", "default")
    return Section("parameters", "Parameters", [table_of(table, f"Parameters of the {type(model).__name__}")])


def _format_value(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"array {'×'.join(map(str, value.shape))}"
    if isinstance(value, (list, tuple)) and any(hasattr(entry, "shape") for entry in value):
        return ", ".join(map(_format_value, value))
    return str(value)
