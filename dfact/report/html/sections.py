"""Sections of an HTML report on the fit: the model and its data, convergence, selection, rows, errors, stability, parameters."""

from typing import Any

import numpy as np
import pandas as pd

from dfact.report.document import Block, DefinitionList, Drawing, Section, Text, make_table, number_format, with_intervals
from dfact.report.figures import distributions_figure, errors_figure, history_figure, stability_figure
from dfact.report.html.context import MAX_ITEMS, ReportContext
from dfact.report.presenters.cp.plots import axis_values, path_plot
from dfact.report.reconstruction import item_errors
from dfact.report.selection import ERROR_LABEL, score_plot
from dfact.selection.result import Selection

_NOT_SHOWN = ("executor", "callbacks")  # parameters that belong to the process that fitted
_MIN_HISTOGRAM_ROWS = 20


def overview(context: ReportContext) -> Section:
    """Describe the model and its data."""
    model, dataset = context.model, context.dataset
    facts = [(name.capitalize(), text) for name, text in context.presenter.summary(model)]
    fingerprint = f"fingerprint {model.fingerprint_}" if model.fingerprint_ else "no fingerprint: not an unchanged stored dataset"
    facts.append(("Data", fingerprint))
    if dataset is not None:
        facts.append(("Missing", f"{dataset.missing_rate:.2%} of the entries"))
        if dataset.confounders is not None:
            facts.append(("Confounders", ", ".join(str(name) for name in dataset.confounders)))
    else:
        facts.append(("Missing", "unknown: the report was written without the data"))
    facts.append(("Written by", ", ".join(f"{package} {version}" for package, version in context.versions.items())))
    return Section("overview", "What was fitted", [DefinitionList(facts)])


def convergence(context: ReportContext) -> Section | None:
    """Show the history of the objective."""
    history = getattr(context.model, "objective_history_", None)
    if history is None or len(history) < 2:
        return None
    history = np.asarray(history, np.float64)
    lagrangians = getattr(context.model, "lagrangian_history_", None)
    alt = f"Line of the objective over {len(history)} steps, from {history[0]:.4g} to {history[-1]:.4g}."
    caption = "The objective at the start and after each step. The last point is that of the model itself, with every row at its optimum."
    return Section("convergence", "Convergence", [Drawing(lambda: history_figure(history, lagrangians), alt, caption)])


def selection(context: ReportContext) -> Section | None:
    """Show the candidates of the selection that set the parameters, if there was one."""
    record = getattr(context.model, "selection_", None)
    if record is None:
        return None
    best = dict(zip(record.names, record.values[record.best], strict=True))
    chosen = ", ".join(f"{name} = {value}" for name, value in best.items())
    criterion = record.criterion.replace("_", " ")
    about = f"{len(record.values)} candidates were compared by {criterion}; the rule “{record.rule}” chose {chosen}."
    table = record.table.set_index(record.names)
    renamed = table.rename(columns={"standard error": "se"})
    span = f"from {np.nanmin(record.scores):.4g} to {np.nanmax(record.scores):.4g}"
    alt = f"{record.criterion} of {len(record.values)} candidates, {span}; chosen: {chosen}."
    if context.model.traits.tensor and record.names == ["lam"]:
        path = Selection(renamed[["rank", "zeros", "relative_error", record.criterion]], best, context.model)
        drawing = Drawing(lambda: path_plot(path), alt, "Rank, zeros and error over λ; the line marks the chosen λ.")
    else:
        error = "se" if "se" in renamed else None
        label = ERROR_LABEL if record.criterion == "error" else criterion
        bars = " Bars show one standard error." if error else ""
        drawing = Drawing(lambda: score_plot(renamed, best, record.criterion, error, label), alt, f"Score of each candidate.{bars}")
    flat = record.table.assign(chosen=["chosen" if i == record.best else "" for i in range(len(record.values))])
    formats = dict.fromkeys((record.criterion, "standard error"), "{:.5g}")
    candidates = make_table(flat.set_index(record.names[0]), "The candidates", formats=formats)
    return Section("selection", "How it was chosen", [Text(about), drawing, candidates])


def distributions(context: ReportContext) -> Section:
    """Show the distributions and correlations of the row factors."""
    words, statistics, names = context.words, context.statistics, context.names
    factors = {"class": "memberships", "component": "row factors"}.get(words.component, "factors")
    alt = f"Histograms of the {factors} of {statistics.n} {words.rows}; the table below has their means, ranges and shares at 0."
    drawing = Drawing(
        lambda: distributions_figure(statistics, names, words.rows), alt, f"Distributions of the {factors} of {statistics.n} {words.rows}."
    )
    table = statistics.table(names).rename_axis(words.component)
    blocks: list[Block] = [drawing] if statistics.n >= _MIN_HISTOGRAM_ROWS else []
    blocks.append(make_table(table, f"Statistics of the {factors} of {statistics.n} {words.rows}", formats={"share at 0": "{:.1%}"}))
    if len(names) > 1:
        correlations = pd.DataFrame(statistics.correlations, index=pd.Index(names, name=words.component), columns=names)
        blocks.append(make_table(correlations, f"Correlations of the {factors} over the {words.rows}", shaded=names))
    estimated = getattr(context.model, "factor_correlations_", None)
    if estimated is not None and len(names) > 1 and context.model.rotation == "promax":
        table = pd.DataFrame(estimated, index=pd.Index(names, name=words.component), columns=names)
        blocks.append(
            make_table(table, "Correlations of the factors as estimated by the rotation (of the factors, not the scores)", shaded=names)
        )
    return Section("rows", f"The {words.rows}", blocks)


def family_rows(context: ReportContext) -> Section | None:
    """Return the section on rows that only this family of models has."""
    return context.presenter.rows_section(context.model)


def errors(context: ReportContext) -> Section | None:
    """Show how well each item is reconstructed, and its share of missing entries."""
    if context.dataset is None:
        return None
    words = context.words
    table = item_errors(context.model, context.dataset).rename_axis(words.items.removesuffix("s"))
    order = np.argsort(-table["explained"].fillna(-np.inf).to_numpy(), kind="stable") if "explained" in table else np.arange(len(table))
    shown = table.iloc[order[:MAX_ITEMS]]
    blocks: list[Block] = []
    if "explained" in table and table["explained"].notna().any():
        along = axis_values(table.index) if context.model.traits.tensor else None
        span = f"from {table['explained'].min():.0%} to {table['explained'].max():.0%}"
        alt = f"Explained share of the variance of {len(table)} {words.items}, {span}."
        caption = (
            "Share of the variance about the mean that the model explains in the data it was fitted to; below 0, the mean fits better."
        )
        blocks.append(Drawing(lambda: errors_figure(table["explained"], "explained share of the variance", along), alt, caption))
    if len(shown) < len(table):
        blocks.append(Text(f"The table has {len(shown)} of {len(table)} {words.items}."))
    caption = "Answers and errors by item: observed, share missing, mean and standard deviation of the answers, root mean squared error"
    blocks.append(make_table(context.with_texts(shown), caption, formats={"missing": "{:.1%}", "explained": "{:.1%}"}))
    unit = {"columns": "column", "slices": "slice of mode 2"}.get(words.items, "item")
    return Section("errors", f"Errors by {unit}", blocks)


def family_errors(context: ReportContext) -> Section | None:
    """Return the section on errors that only this family of models has."""
    return None if context.dataset is None else context.presenter.errors_section(context.model, context.dataset)


def stability(context: ReportContext) -> Section | None:
    """Show how the model varies over refits, if that was computed."""
    result = getattr(context.model, "stability_", None)
    if result is None:
        return None
    names, words, shown = context.names, context.words, context.shown
    medians = np.nanmedian(result.similarity, axis=0)
    about = f"{result.n_refits} refits on resampled {words.rows}, with their {words.components} matched to the model's."
    texts = ", ".join(f"{name} has the median {value:.2f}" for name, value in zip(names, medians, strict=True))
    drawing = Drawing(
        lambda: stability_figure(result, names),
        f"Points of each refit: {texts}.",
        "Similarity of each refit's loadings to the model's: 1 is the same direction; bars show medians.",
    )
    caption = (
        f"Median and 5th percentile of the similarities, and the number of {words.loading}s whose {result.level:.0%} interval excludes 0"
    )
    formats = {"median": "{:.3f}", "5 %": "{:.3f}", "loadings": "{:.0f}"}
    summary = make_table(result.summary(names).rename_axis(words.component), caption, formats=formats)
    order = shown[context.order[0]]
    mean, low, high = (pd.DataFrame(part[:, order].T, columns=names) for part in (result.mean, result.low, result.high))
    caption = f"Mean {words.loading} of each item over the refits, with its {result.level:.0%} interval"
    table = make_table(mean.set_index(context.all_loadings.index[order]), caption, shaded=names)
    style = number_format(result.mean)
    return Section("stability", "Stability", [Text(about), drawing, summary, with_intervals(table, low, high, style)])


def parameters(context: ReportContext) -> Section:
    """List the parameters of the model."""
    model = context.model
    values = {name: value for name, value in model.get_params(deep=False).items() if name not in _NOT_SHOWN}
    defaults = type(model)().get_params(deep=False)
    rows = [
        (name, _format_value(value), "default" if _format_value(value) == _format_value(defaults[name]) else "set")
        for name, value in values.items()
    ]
    table = pd.DataFrame(rows, columns=["parameter", "value", "set or default"]).set_index("parameter")
    return Section("parameters", "Parameters", [make_table(table, f"Parameters of the {type(model).__name__}")])


def _format_value(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"array {'×'.join(map(str, value.shape))}"
    if isinstance(value, (list, tuple)) and any(hasattr(entry, "shape") for entry in value):
        return ", ".join(map(_format_value, value))
    return str(value)
