"""The sections of an HTML report on what the factors are: loadings, top items, confounders; and what single kinds of models have."""

from typing import Any

import numpy as np
import pandas as pd

from dfact.models.bounded_nmf.icqf import ICQF
from dfact.models.bounded_nmf.l1nmf import L1NMF
from dfact.models.expectile.estimator import ExpectileMF
from dfact.models.gom.estimator import GradeOfMembership
from dfact.report import text as tables
from dfact.report.document import Block, Card, Cards, Section, Text, number_format, table_of
from dfact.report.figures import bins_figure, classes_figure, items_heatmap
from dfact.report.html.context import ReportContext
from dfact.report.html.images import picture
from dfact.report.presenters.cp.plots import modes_plot, solutions_plot
from dfact.report.presenters.gom import tables as memberships
from dfact.report.presenters.gom.plots import membership_plot
from dfact.report.reconstruction import BinErrors

_TOP = 8
_MOST_CLASSES = 3  # that can be drawn in a triangle


def top_items(subject: ReportContext) -> Section:
    """The items by which each component is known."""
    model, words = subject.model, subject.words
    cards = []
    if isinstance(model, GradeOfMembership):
        table = memberships.distinctive_items(model, _TOP).rename(columns={"class": "factor", "response": "loading"})
        if len(model.components_) == 1:
            table = memberships.highest_items(model, _TOP).rename(columns={"class": "factor", "response": "loading"})
        about = "The items whose expected response in a class is most unlike that in the other classes."
    elif isinstance(model, (ICQF, L1NMF)):
        table, about = tables.top_items(model, _TOP), "The items with the largest loadings."
    else:
        table, about = _largest(subject), f"The {words.items} with the largest {words.loading} of either sign."
    style = number_format(table["loading"].to_numpy(np.float64))
    for name in subject.names:
        rows = table[table["factor"] == name]
        texts = [subject.texts.get(item, "") for item in rows["item"]]
        if "difference" in rows:
            beside = [f"{abs(value):.2f} {'above' if value > 0 else 'below'} the others" for value in rows["difference"]]
            texts = [f"{text} ({note})" if text else f"({note})" for text, note in zip(texts, beside, strict=True)]
        found = [(style.format(value), item, text) for item, value, text in zip(rows["item"], rows["loading"], texts, strict=True)]
        cards.append(Card(name, "", found))
    return Section("top", f"What the {words.components} are", [Text(about), Cards(cards)])


def _largest(subject: ReportContext) -> pd.DataFrame:
    """The items with the largest loadings, with the signs of the tables."""
    rows = [
        (name, str(item), float(values[item]))
        for name, values in zip(subject.names, (column for _, column in subject.all_loadings.items()), strict=True)
        for item in values.abs().nlargest(_TOP).index
    ]
    return pd.DataFrame(rows, columns=["factor", "item", "loading"])


def loadings(subject: ReportContext) -> Section:
    """All of them: a picture, and a table to sort."""
    model, words = subject.model, subject.words
    order, groups = subject.order
    table = subject.loadings.iloc[order]
    blocks: list[Block] = []
    if len(table) < len(subject.all_loadings):
        blocks.append(
            Text(f"{len(table)} of {len(subject.all_loadings)} {words.items} are shown, those with the largest {words.loading}s.")
        )
    if model.traits.tensor:
        blocks.append(_modes(subject))
    else:
        highest = float(model.n_levels_) if isinstance(model, GradeOfMembership) else None
        together = "in their groups, like ones together" if groups else "like ones together"
        alt = f"Heat map of {len(table)} {words.items} and {table.shape[1]} {words.components}; the table below has the same numbers."
        caption = f"{words.loadings}; {words.items} {together}."
        blocks.append(picture(lambda: items_heatmap(table, groups, words.loading, highest), alt, caption))
    shown = subject.described(table)
    blocks.append(table_of(shown, f"{words.loadings}, {len(table)} {words.items}", shaded=list(table)))
    return Section("loadings", words.loadings, blocks)


def _modes(subject: ReportContext) -> Block:
    model = subject.model
    sizes = " × ".join(str(A.shape[0]) for A in model.factors_)
    alt = f"The vectors of {model.rank_} components in each mode of a tensor {sizes}."
    return picture(lambda: modes_plot(subject.signed_model), alt, "The vectors of each mode, scaled to length 1.")


def confounders(subject: ReportContext) -> Section | None:
    """What the confounders do to each item."""
    model = subject.model
    encoding = getattr(model, "confounder_encoding_", None)
    if encoding is None:
        return None
    table = model.confounder_loadings_
    table.index = table.index.astype(str)
    shown = table.iloc[subject.shown].iloc[subject.order[0]]
    told = "How much of an answer belongs to each level of a confounder, or to its range from the least (1-name) to the largest (name)."
    lacking = [f"{count} participants have no {name}: they count as the average" for name, count in encoding.missing_counts().items()]
    blocks: list[Block] = [Text(" ".join([told, *(f"{text[0].upper()}{text[1:]}." for text in lacking)]))]
    style, effects = number_format(table.to_numpy(np.float64)), tables.confounder_effects(model, _TOP)
    cards = []
    for name in table:
        rows = effects[effects["confounder"] == name]
        found = [
            (style.format(value), item, subject.texts.get(item, "")) for item, value in zip(rows["item"], rows["loading"], strict=True)
        ]
        cards.append(Card(str(name), "", found))
    blocks += [Cards(cards), table_of(subject.described(shown), "Loadings of the items on the confounders", shaded=list(table))]
    return Section("confounders", "Confounders", blocks)


def classes(subject: ReportContext) -> Section | None:
    """Who belongs to which class, and how purely."""
    model = subject.model
    if not isinstance(model, GradeOfMembership):
        return None
    table = memberships.class_table(model)
    table["moderate_share"] = _largest_share(table, model) - table["pure_share"] - table["mixed_share"]
    k = len(table)
    alt = "; ".join(f"{name}: {row['share']:.0%} of the memberships" for name, row in table.iterrows()) + "."
    if 1 < k <= _MOST_CLASSES:
        where = "on a line between two classes" if k == 2 else "in a triangle whose corners are the classes"
        drawn = picture(lambda: membership_plot(model), f"The subjects {where}. {alt}", f"Where the subjects stand, {where}.")
    else:
        caption = "The subjects by the class of their highest membership, and how pure they are."
        drawn = picture(lambda: classes_figure(table, memberships.LEVELS), alt, caption)
    columns = ["size", "share", "pure", "pure_share", "mixed", "mixed_share", "pure_subject"]
    formats = dict.fromkeys(("share", "pure share", "mixed share"), "{:.1%}")
    renamed = table[columns].rename(columns=lambda name: name.replace("_", " "))
    blocks: list[Block] = [
        drawn,
        table_of(renamed, "The classes: memberships, and subjects with their highest membership there", formats=formats),
    ]
    return Section("classes", "The classes", blocks)


def _largest_share(table: pd.DataFrame, model: Any) -> "pd.Series[float]":
    """Of all subjects with a response the share whose highest membership is in each class."""
    counts = np.zeros(len(table))
    for Pi in memberships.respondents(model):
        counts += np.bincount(Pi.argmax(axis=1), minlength=len(table))
    return pd.Series(counts / max(1, counts.sum()), index=table.index)


def solutions(subject: ReportContext) -> Section | None:
    """A solution path that was given."""
    path = subject.solutions
    if path is None:
        return None
    table = path.table.set_index("lambda")
    alt = f"Rank, zeros and relative error of {len(table)} solutions along increasing λ."
    drawn = picture(
        lambda: solutions_plot(path), alt, "Solutions along increasing λ: components that are left, their zeros, and the error."
    )
    return Section("path", "Solution path", [drawn, table_of(table, "The steps of the path", formats={"rank": "{:.0f}"})])


def bins(subject: ReportContext) -> Section | None:
    """How large errors are where entries are small or large."""
    model, dataset = subject.model, subject.dataset
    if not isinstance(model, ExpectileMF) or dataset is None:
        return None
    table = BinErrors.of(model, dataset).table
    told = "Relative errors |b̂ − b|/|b| of the entries that were fitted, in bins that end at quantiles of their size."
    alt = "; ".join(f"{name}: median {value:.0%}" for name, value in table["median"].items()) + "."
    drawn = picture(
        lambda: bins_figure(table),
        f"Bars of the median relative error by size of the entry. {alt}",
        "Median relative error; lines are the quartiles.",
    )
    formats = dict.fromkeys(("lower quartile", "median", "upper quartile"), "{:.1%}")
    return Section(
        "bins",
        "Errors by size",
        [Text(told), drawn, table_of(table, "Errors by size of the entry; absolute is the median |b̂ − b|", formats=formats)],
    )
