"""Sections of an HTML report on the meaning of the components: top items, loadings, confounders, a solution path."""

import numpy as np

from dfact.report.document import Block, Card, Cards, Drawing, Section, Text, make_table, number_format
from dfact.report.figures import items_heatmap
from dfact.report.html.context import ReportContext
from dfact.report.presenters.bounded_nmf import confounder_effects
from dfact.report.presenters.cp.plots import solutions_plot

_TOP = 8  # items of each component


def top_items(context: ReportContext) -> Section:
    """Describe each component by its items."""
    about, table = context.presenter.top_items(context.model, context.all_loadings, _TOP)
    style = number_format(table["loading"].to_numpy(np.float64))
    cards = []
    for name in context.names:
        rows = table[table["factor"] == name]
        texts = [context.texts.get(item, "") for item in rows["item"]]
        if "difference" in rows:
            notes = [f"{abs(value):.2f} {'above' if value > 0 else 'below'} the others" for value in rows["difference"]]
            texts = [f"{text} ({note})" if text else f"({note})" for text, note in zip(texts, notes, strict=True)]
        items = [(style.format(value), item, text) for item, value, text in zip(rows["item"], rows["loading"], texts, strict=True)]
        cards.append(Card(name, "", items))
    return Section("top", f"What the {context.words.components} are", [Text(about), Cards(cards)])


def loadings(context: ReportContext) -> Section:
    """Show the loadings as a plot and as a sortable table."""
    words = context.words
    table = context.loadings.iloc[context.order[0]]
    blocks: list[Block] = []
    if len(table) < len(context.all_loadings):
        blocks.append(Text(f"The {len(table)} of {len(context.all_loadings)} {words.items} with the largest {words.loading}s are shown."))
    blocks.append(_modes(context) if context.model.traits.tensor else _heatmap(context))
    shown = context.with_texts(table)
    blocks.append(make_table(shown, f"{words.loadings}, {len(table)} {words.items}", shaded=list(table)))
    return Section("loadings", words.loadings, blocks)


def _heatmap(context: ReportContext) -> Drawing:
    words = context.words
    order, groups = context.order
    table, maximum = context.loadings.iloc[order], context.presenter.scale_maximum(context.model)
    similar = "in their groups, similar ones together" if groups else "similar ones together"
    alt = f"Heat map of {len(table)} {words.items} and {table.shape[1]} {words.components}; the table below has the same numbers."
    caption = f"{words.loadings}; {words.items} {similar}."
    return Drawing(lambda: items_heatmap(table, groups, words.loading, maximum), alt, caption)


def _modes(context: ReportContext) -> Drawing:
    model = context.model
    sizes = " × ".join(str(A.shape[0]) for A in model.factors_)
    alt = f"Vectors of {model.rank_} components in each mode of a tensor {sizes}."
    return Drawing(lambda: context.presenter.items_plot(context.signed_model), alt, "Vectors of each mode, scaled to length 1.")


def confounders(context: ReportContext) -> Section | None:
    """Show the effect of the confounders on each item."""
    model = context.model
    encoding = getattr(model, "confounder_encoding_", None)
    if encoding is None:
        return None
    table = model.confounder_loadings_
    table.index = table.index.astype(str)
    shown = table.iloc[context.shown].iloc[context.order[0]]
    about = "The part of an answer due to each level of a confounder, or to its range from the lowest value (1-name) to the highest (name)."
    missing = [f"{name} is missing for {count} participants, who count as average." for name, count in encoding.missing_counts().items()]
    blocks: list[Block] = [Text(" ".join([about, *(f"{text[0].upper()}{text[1:]}" for text in missing)]))]
    style, effects = number_format(table.to_numpy(np.float64)), confounder_effects(model, _TOP)
    cards = []
    for name in table:
        rows = effects[effects["confounder"] == name]
        items = [
            (style.format(value), item, context.texts.get(item, "")) for item, value in zip(rows["item"], rows["loading"], strict=True)
        ]
        cards.append(Card(str(name), "", items))
    blocks += [Cards(cards), make_table(context.with_texts(shown), "Loadings of the items on the confounders", shaded=list(table))]
    return Section("confounders", "Confounders", blocks)


def solutions(context: ReportContext) -> Section | None:
    """Show a solution path, if one was passed."""
    path = context.solutions
    if path is None:
        return None
    table = path.table.set_index("lambda")
    alt = f"Rank, zeros and relative error of {len(table)} solutions along increasing λ."
    caption = "Solutions along increasing λ: the number of remaining components, their zeros, and the error."
    drawing = Drawing(lambda: solutions_plot(path), alt, caption)
    return Section("path", "Solution path", [drawing, make_table(table, "The steps of the path", formats={"rank": "{:.0f}"})])
