"""The document of a report: the sections that all models share, between those of the presenter of the model."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import WORDS, Dataset
from dfact.export.growth import drifted
from dfact.export.stability import remarks, resamples_text
from dfact.models.cp.path import SolutionPath
from dfact.models.estimator import Factorization
from dfact.models.persistence import load_model, running_versions, saved_versions
from dfact.models.provenance import Comparison
from dfact.models.reconstruction import entries
from dfact.models.scikit_learn import check_is_fitted
from dfact.report.comparison import FORMATS, HEADINGS, MARKS, describe_columns, describe_dif, describe_groups
from dfact.report.document import Block, DefinitionList, Document, Drawing, Section, Text, make_table, number_format, with_intervals
from dfact.report.figures import comparison_figure, distributions_figure, errors_figure, stability_figure
from dfact.report.plots import with_item_labels
from dfact.report.presenters.base import MAX_ITEMS, TOP, Presenter, environments_text, find_presenter, sites_lines
from dfact.report.row_statistics import RowStatistics
from dfact.report.selection import OF_GENOTYPES
from dfact.selection.running.estimators import fitted_dataset

_NOT_SHOWN = ("executor", "callbacks")  # parameters that belong to the process that fitted
_MIN_HISTOGRAM_ROWS = 20
_Presenter = Presenter[Factorization]


def make_document(
    model: Factorization | str | PathLike[str],
    data: Any = None,
    texts: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    solutions: SolutionPath | None = None,
) -> Document:
    """Describe a fitted model, or a saved one by its path, with the data it was fitted to if given."""
    if isinstance(model, (str, PathLike)):
        fitted, versions = load_model(model), saved_versions(model)
    else:
        fitted, versions = model, running_versions()
    kind = find_presenter(fitted)
    check_is_fitted(fitted)
    dataset = None if data is None else fitted_dataset(fitted, data)
    presenter = kind(fitted, dataset, versions, texts or {}, groups or {})
    words, k = presenter.words, len(presenter.names)
    sections = [
        overview(presenter),
        None if words.of_snps else top_items(presenter),
        loadings(presenter),
        items(presenter),
        presenter.component_section(),
        distributions(presenter),
        errors(presenter),
        None if dataset is None else presenter.errors_section(dataset),
        growth(presenter),
        stability(presenter),
        comparison(presenter),
        selection(presenter),
        None if solutions is None else presenter.solutions_section(solutions),
        convergence(presenter),
        parameters(presenter),
        origin(presenter),
    ]
    title = f"{k} {words.components if k > 1 else words.component} of {presenter.size_text()}"
    return Document(type(fitted).__name__, title, [section for section in sections if section is not None])


def overview(presenter: _Presenter) -> Section:
    """Describe the model and its data."""
    model, dataset = presenter.model, presenter.dataset
    facts = [(name.capitalize(), text) for name, text in (*presenter.summary(), *sites_lines(model))]
    if dataset is not None:
        facts.append(("Missing", f"{dataset.missing_rate:.2%} of the entries"))
        if dataset.confounders is not None:
            facts.append(("Confounders", ", ".join(str(name) for name in dataset.confounders)))
    else:
        facts.append(("Missing", "unknown: the report was written without the data"))
    return Section("overview", "What was fitted", [DefinitionList(facts)])


def top_items(presenter: _Presenter) -> Section:
    """Describe each component by its items."""
    about, table = presenter.top_items(TOP)
    cards = presenter.item_cards(presenter.names, table, number_format(table["loading"].to_numpy(np.float64)))
    return Section("top", f"What the {presenter.words.components} are", [Text(about), cards])


def loadings(presenter: _Presenter) -> Section:
    """Show the loadings as a plot and as a sortable table."""
    words = presenter.words
    table = presenter.loadings.iloc[presenter.order[0]]
    blocks: list[Block] = []
    if len(table) < len(presenter.all_loadings):
        blocks.append(Text(f"The {len(table)} of {len(presenter.all_loadings)} {words.items} with the largest {words.loading}s are shown."))
    blocks.append(presenter.loadings_drawing())
    shown = presenter.with_texts(table)
    blocks.append(make_table(shown, f"{words.loadings}, {len(table)} {words.items}", shaded=list(table)))
    return Section("loadings", words.loadings, blocks)


def items(presenter: _Presenter) -> Section | None:
    """Show the wording, the levels and the missing codes of the items, if the fitted data has a codebook."""
    codebook = presenter.model.codebook_
    if codebook is None:
        return None
    words = WORDS[presenter.model.data_kind_ or "answers"]  # those of the columns, also of a tensor
    described = {item.name: (item.levels_text, item.missing_text, ", ".join(item.changes), item.source) for item in codebook}
    names = [name for name in presenter.loadings.iloc[presenter.order[0]].index.astype(str) if name in described]
    columns = pd.DataFrame(
        [described[name] for name in names], pd.Index(names, name=words.column), ["answers", "missing", "changed", "file"]
    )
    texts: list[Block] = []
    for name, title in (("answers", "Answers"), ("file", "File")):
        if columns[name].nunique() == 1 and columns[name].iloc[0]:  # once instead of in every row
            texts.append(Text(f"{title} of all {words.columns}: {columns.pop(name).iloc[0]}."))
    columns = columns[[name for name in columns if columns[name].any()]]
    if columns.empty and not texts and not codebook.texts:
        return None
    caption = f"Texts of the {words.columns}, codes with their labels, and missing {words.entries} by code with their numbers at the import"
    return Section("items", f"The {words.columns} and their {words.entries}", [*texts, make_table(presenter.with_texts(columns), caption)])


def convergence(presenter: _Presenter) -> Section | None:
    """Show the history of the objective."""
    drawing = presenter.history_drawing()
    return None if drawing is None else Section("convergence", "Convergence", [drawing])


def selection(presenter: _Presenter) -> Section | None:
    """Show the candidates of the selection that set the parameters, if there was one."""
    record = getattr(presenter.model, "selection_", None)
    if record is None:
        return None
    best = dict(zip(record.names, record.values[record.best], strict=True))
    chosen = ", ".join(f"{name} = {value}" for name, value in best.items())
    words = OF_GENOTYPES if presenter.words.of_snps else {}
    criterion = words.get(record.criterion, record.criterion.replace("_", " "))
    about = f"{len(record.values)} candidates were compared by {criterion}; the rule “{record.rule}” chose {chosen}."
    span = f"from {np.nanmin(record.scores):.4g} to {np.nanmax(record.scores):.4g}"
    alt = f"{criterion} of {len(record.values)} candidates, {span}; chosen: {chosen}."
    drawing = presenter.selection_drawing(record, best, alt)
    flat = record.table.assign(chosen=["chosen" if i == record.best else "" for i in range(len(record.values))])
    formats = dict.fromkeys((record.criterion, "standard error"), "{:.5g}")
    formats = {words.get(name, name): style for name, style in formats.items()}
    candidates = make_table(flat.set_index(record.names[0]).rename(columns=words), "The candidates", formats=formats)
    notes = [Text(note) for note in presenter.selection_notes(record)]
    return Section("selection", "How it was chosen", [Text(about), *notes, drawing, candidates])


def distributions(presenter: _Presenter) -> Section:
    """Show the distributions and correlations of the row factors."""
    words, names = presenter.words, presenter.names
    factors, statistics = presenter.factors, RowStatistics.of(presenter.model.row_factors())
    described = f"{factors} of {statistics.n} {words.rows}"
    alt = f"Histograms of the {described}; the table below has their means, ranges and shares at 0."
    drawing = Drawing(lambda: distributions_figure(statistics, names, words.rows), alt, f"Distributions of the {described}.")
    table = statistics.table(names).rename_axis(words.component)
    blocks: list[Block] = [drawing] if statistics.n >= _MIN_HISTOGRAM_ROWS else []
    blocks.append(make_table(table, f"Statistics of the {described}", formats={"share at 0": "{:.1%}"}))
    if len(names) > 1:
        correlations = pd.DataFrame(statistics.correlations, index=pd.Index(names, name=words.component), columns=names)
        blocks.append(make_table(correlations, f"Correlations of the {factors} over the {words.rows}", shaded=names))
    blocks += presenter.row_tables()
    return Section("rows", f"The {words.rows}", blocks)


def errors(presenter: _Presenter) -> Section | None:
    """Show how well each item is reconstructed, and its share of missing entries."""
    if presenter.dataset is None:
        return None
    words = presenter.words
    table = item_errors(presenter.model, presenter.dataset).rename_axis(words.item)
    order = np.argsort(-table["explained"].fillna(-np.inf).to_numpy(), kind="stable") if "explained" in table else np.arange(len(table))
    shown = table.iloc[order[:MAX_ITEMS]]
    blocks: list[Block] = []
    if "explained" in table and table["explained"].notna().any():
        along = presenter.item_axis(table.index)
        span = f"from {table['explained'].min():.0%} to {table['explained'].max():.0%}"
        alt = f"Explained share of the variance of {len(table)} {words.items}, {span}."
        caption = (
            "Share of the variance about the mean that the model explains in the data it was fitted to; below 0, the mean fits better."
        )
        drawn = table["explained"] if along is not None else with_item_labels(table, presenter.item_texts)["explained"]
        blocks.append(Drawing(lambda: errors_figure(drawn, "explained share of the variance", along), alt, caption))
    if len(shown) < len(table):
        blocks.append(Text(f"The table has {len(shown)} of {len(table)} {words.items}."))
    entries = words.entries
    caption = f"{entries.capitalize()} and errors by {words.item}: observed, share missing, mean and standard deviation of the {entries}, "
    caption += "root mean squared error"
    if any(item.key < 0 for item in presenter.model.codebook_ or ()):
        caption += f"; {words.entries} as they were given: {words.items} whose key is -1 are reversed by dfact describe, not here"
    blocks.append(make_table(presenter.with_texts(shown), caption, formats={"missing": "{:.1%}", "explained": "{:.1%}"}))
    return Section("errors", f"Errors by {presenter.item}", blocks)


def stability(presenter: _Presenter) -> Section | None:
    """Show how the model varies over refits, if that was computed."""
    result = getattr(presenter.model, "stability_", None)
    if result is None:
        return None
    if own := presenter.stability_section():
        return own
    names, words, shown = presenter.names, presenter.words, presenter.shown
    medians = np.nanmedian(result.similarity, axis=0)
    about = f"{resamples_text(result, words.rows)}, with their {words.components} matched to the model's."
    texts = ", ".join(f"{name} has the median {value:.2f}" for name, value in zip(names, medians, strict=True))
    drawing = Drawing(
        lambda: stability_figure(result, names),
        f"Points of each refit: {texts}.",
        "Similarity of each refit's loadings to the model's: 1 is the same direction; bars show medians.",
    )
    caption = (
        f"Median and 5th percentile of the similarities, and the numbers of {words.loading}s that are selected, that have a "
        f"{result.level:.0%} interval, and whose interval excludes 0"
    )
    formats = {"median": "{:.3f}", "5%": "{:.3f}", "selected": "{:.0f}", "intervals": "{:.0f}", "off 0": "{:.0f}"}
    summary = make_table(result.summary(names).rename_axis(words.component), caption, formats=formats)
    order = shown[presenter.order[0]]
    centre = result.mean if result.estimate is None else result.estimate
    mean, low, high = (pd.DataFrame(part[:, order].T, columns=names) for part in (centre, result.low, result.high))
    caption = f"{words.loading.capitalize()} of each {words.item} in the fit to all {words.rows}, with its {result.level:.0%} interval"
    table = make_table(presenter.with_texts(mean.set_index(presenter.all_loadings.index[order])), caption, shaded=names)
    notes = [Text(text) for text in remarks(presenter.model)]
    blocks: list[Block] = [Text(about), drawing, summary, *notes, with_intervals(table, low, high, number_format(centre))]
    if result.sparse:
        frequency = pd.DataFrame(result.selected[:, order].T, presenter.all_loadings.index[order], names)
        caption = f"Selection frequency of each {words.loading}: the share of the refits in which it is not 0"
        formats = dict.fromkeys(names, "{:.2f}")
        blocks.append(make_table(presenter.with_texts(frequency), caption, shaded=names, formats=formats))
    blocks += _effects_over_refits(presenter, order)
    return Section("stability", "Stability", blocks)


def _effects_over_refits(presenter: _Presenter, order: NDArray[np.intp]) -> list[Block]:
    """Show the impact and the effects of the confounders over the refits with their intervals, for items in this order."""
    model: Any = presenter.model
    result = model.stability_
    if result.confounder_mean is None or result.impact_mean is None:
        return []
    effects, items = list(model.confounder_effects_), presenter.all_loadings.index[order]
    refits = f"over the refits, each anchored, with its {result.level:.0%} interval"
    captions = (
        f"Mean impact of the confounders on the factors {refits}",
        f"Mean effect of the confounders on each item at equal factors, in points, {refits}",
    )
    impact, of_items = (
        [pd.DataFrame(getattr(result, f"{prefix}_{part}").T, columns=effects) for part in ("mean", "low", "high")]
        for prefix in ("impact", "confounder")
    )
    of_items = [part.iloc[order] for part in of_items]
    frames = impact[0].set_index(pd.Index(presenter.names, name="factor")), presenter.with_texts(of_items[0].set_index(items))
    return [
        with_intervals(make_table(frame, caption, shaded=effects), low, high, number_format(mean.to_numpy()))
        for frame, caption, (mean, low, high) in zip(frames, captions, (impact, of_items), strict=True)
    ]


_HEADINGS = {"chi_square": "χ²", "smd": "SMD", "delta": "Δ", "se": "standard error", "p_adjusted": "adjusted p"}
_FORMATS = {_HEADINGS.get(name, name): style for name, style in FORMATS.items()}


def comparison(presenter: _Presenter) -> Section | None:
    """Show how the factors and items differ between groups of rows, if that was computed."""
    result = getattr(presenter.model, "comparison_", None)
    if result is None:
        return None
    names, words = presenter.names, presenter.words
    matched = f"its {words.components} were matched with the model's"
    about = f"The model was fitted to each group separately, and {matched}: {describe_groups(result)}."
    congruences = result.factors(names)
    shown = congruences["rotated" if "rotated" in congruences else "congruence"]
    texts = ", ".join(f"{name} {value:.3f}" for name, value in zip(shown.index.get_level_values(1), shown, strict=True))
    signed = result.centred is None  # loadings that cannot be negative have no intervals
    drawing = Drawing(
        lambda: comparison_figure(result, names),
        f"{'Points with intervals' if signed else 'Points'}: {texts}.",
        f"Congruence of the loadings of two groups{', with the interval of that of their populations' if signed else ''}. {MARKS[signed]}",
    )
    table = make_table(
        _named_by_group(result, congruences),
        f"Congruences, with p values of equal loadings adjusted by Holm. {describe_columns(result)}",
        formats=_FORMATS,
    )
    blocks: list[Block] = [Text(about), drawing, table, *_items_by_group(result, names)]
    return Section("groups", "Groups", blocks)


def _items_by_group(result: Comparison, names: list[str]) -> list[Block]:
    """Show the differences of the groups in the factors, and the items that function differently."""
    blocks: list[Block] = []
    impact = result.impact(names)
    if impact is not None and not impact["impact"].isna().all():
        caption = (
            "Impact: differences of the groups in the factors, in standard deviations within the groups, with intervals of "
            f"{result.level:.0%}. Items with differential functioning do not count"
        )
        blocks.append(make_table(_named_by_group(result, impact), caption, formats=_FORMATS))
    blocks.append(Text(describe_dif(result)))
    dif_items = result.dif_items
    if len(dif_items):
        caption = (
            "Items with differential functioning: effect at equal factors in points with its standard error (SE), and in standard "
            "deviations (SD) of the item; p adjusted by Benjamini and Hochberg over items and groups; mean difference in points at equal "
            "totals of the scale (Mantel), with its ETS class (A negligible, B moderate, C large)"
        )
        formats = {HEADINGS.get(name, name): style for name, style in FORMATS.items()}
        blocks.append(make_table(_named_by_group(result, dif_items, HEADINGS), caption, formats=formats))
    tables = [
        table[[name for name in columns if name in table]]
        for table, columns in (
            (result.effects, ("difference", "effect", "se", "size", "p_adjusted")),
            (result.mantel_tests, ("scale", "n", "smd", "class", "delta")),
        )
        if table is not None
    ]
    if tables:
        flags = [table["flagged"] for table in (result.effects, result.mantel_tests) if table is not None]
        flagged = pd.concat(flags, axis=1).any(axis=1)
        shown = pd.concat(tables, axis=1)[flagged]
        if len(shown) > len(dif_items):
            caption = f"Items that one test flags at least, {len(shown)} of {len(flagged)}"
            blocks.append(make_table(_named_by_group(result, shown[:MAX_ITEMS]), caption, formats=_FORMATS))
    return blocks


def _named_by_group(result: Comparison, table: pd.DataFrame, headings: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Return the table with short headings, rows named by their second level, and a column for the group if there are several."""
    groups, rows = table.index.get_level_values(0), table.set_index(table.index.get_level_values(1))
    rows = rows.dropna(axis=1, how="all").rename(columns=headings or _HEADINGS)
    if len(result.levels) > 2:
        rows.insert(0, result.by, list(groups))
    return rows


def parameters(presenter: _Presenter) -> Section:
    """List the parameters of the model."""
    model = presenter.model
    values = {name: format_value(value) for name, value in model.get_params(deep=False).items() if name not in _NOT_SHOWN}
    defaults = type(model)().get_params(deep=False)
    rows = [(name, text, "default" if text == format_value(defaults[name]) else "set") for name, text in values.items()]
    table = pd.DataFrame(rows, columns=["parameter", "value", "set or default"]).set_index("parameter")
    return Section("parameters", "Parameters", [make_table(table, f"Parameters of the {type(model).__name__}")])


def origin(presenter: _Presenter) -> Section:
    """Describe what a repetition of the fit needs: the same data, processors and versions."""
    model = presenter.model
    facts = [
        ("Data", f"fingerprint {model.fingerprint_}" if model.fingerprint_ else "no fingerprint: not an unchanged stored dataset"),
        ("Processors", environments_text(model)),
        ("Written by", ", ".join(f"{package} {version}" for package, version in presenter.versions.items())),
    ]
    return Section("origin", "Data, processors and versions", [DefinitionList(facts)])


def format_value(value: Any) -> str:
    """Describe the value of a parameter; of an array, its shape."""
    if hasattr(value, "shape"):
        return f"array {'×'.join(map(str, value.shape))}"
    if isinstance(value, (list, tuple)) and any(hasattr(entry, "shape") for entry in value):
        return ", ".join(map(format_value, value))
    return str(value)


def growth(presenter: Presenter[Factorization]) -> Section | None:
    """State how many rows were added since the last complete fit, what such a fit would gain, and how the last rows differ."""
    record = getattr(presenter.model, "growth_", None)
    if record is None or record.drift is None:
        return None
    words, drift = presenter.words, record.drift
    table = drift.table(presenter.model.column_labels_, presenter.names)
    tests = (
        f"The {drift.rows:.0f} {words.rows} of the last update were compared with those before: the mean residual and the missing share of "
        f"each {words.item}, the mean and the variance of each of the {words.components}. If they are a sample of the same population, any "
        f"of the {int(table['p'].notna().sum())} tests rejects with probability {drift.level:g}."
    )
    blocks: list[Block] = [Text(f"{record.describe()}."), Text(tests)]
    shown = drifted(table)
    if len(shown):
        caption = "What differs: means in standard deviations, missing shares as differences, variances as logarithms of their ratio"
        shown = shown.set_index("of").rename(columns={"adjusted_p": "adjusted p"}).rename_axis("of")
        blocks.append(make_table(shown, caption, formats={"difference": "{:+.3f}", "adjusted p": "{:.2g}"}))
    else:
        blocks.append(Text("None rejects."))
    return Section("growth", "Rows that were added", blocks)


def item_errors(model: Factorization, dataset: Dataset) -> pd.DataFrame:
    """Return for each item the number ``observed``, the share ``missing``, ``mean``, ``deviation``, ``rmse`` and ``explained``.

    ``mean`` and ``deviation`` describe the answers, ``rmse`` is the root mean squared error of the model's answers, and
    ``explained`` the share of the variance about the item's mean that the model explains. The items of a tensor are the slices
    of mode 2. For a model without ``inverse_transform`` the last two are left out.
    """
    m = len(model.column_labels_)
    count, total, squares, errors = np.zeros(m, np.int64), np.zeros(m), np.zeros(m), np.zeros(m)
    statistics = dataset.statistics
    observed = statistics.observed.reshape(m, -1) > 0
    low, high = (limit.reshape(m, -1) for limit in (statistics.minimum, statistics.maximum))
    middle = (np.where(observed, low, np.inf).min(axis=1) + np.where(observed, high, -np.inf).max(axis=1)) / 2
    shift = np.where(observed.any(axis=1), middle, 0) + dataset.offset
    for blocks in entries(model, dataset, model.row_factors()):
        M, R = (values.reshape(len(values), m, -1) - shift[:, None] for values in blocks)
        seen = ~np.isnan(M)
        count += seen.sum(axis=(0, 2))
        total += np.where(seen, M, 0).sum(axis=(0, 2))
        squares += np.where(seen, M * M, 0).sum(axis=(0, 2))
        errors += np.where(seen, (M - R) ** 2, 0).sum(axis=(0, 2))
    n = np.maximum(count, 1)
    variance = np.maximum(squares / n - (total / n) ** 2, 0)
    entries_of_item = np.prod(dataset.shape) // m
    table = pd.DataFrame({"observed": count, "missing": 1 - count / entries_of_item}, index=model.column_labels_.astype(str))
    table = table.rename_axis("item").assign(mean=total / n + shift, deviation=np.sqrt(variance))
    if hasattr(model, "inverse_transform"):
        share = np.divide(errors / n, variance, out=np.full(m, np.nan), where=variance > 1e-12 * (1 + (total / n) ** 2))
        table = table.assign(rmse=np.sqrt(errors / n), explained=1 - share)
    table.loc[count == 0, table.columns[2:]] = np.nan
    return table
