"""What a fitted grade of membership says, as small tables and as text."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.models.gom.passes import MIXED, PURE
from dfact.report.text import indented, row_chunks, table_text

LEVELS = ("highly pure", "moderately pure", "highly mixed")
"""Of a subject, by its highest membership: at least 0.9, between, at most 0.7."""


def class_table(model: Any) -> pd.DataFrame:
    """For each class its ``size`` (sum of memberships), the ``share`` of it, its pure and mixed subjects, and its ``pure_subject``.

    ``pure`` and ``mixed`` count the highly pure and the highly mixed subjects with their highest
    membership in the class, ``pure_share`` and ``mixed_share`` are shares of all subjects with a
    response: over the classes they add up to those of the model. ``pure_subject`` is the label of the
    subject by which the class was found. Memberships in a store are read by chunks.
    """
    k = len(model.components_)
    sizes, counts = np.zeros(k), np.zeros((k, len(LEVELS)), np.int64)
    for Pi in respondents(model):
        sizes += Pi.sum(axis=0, dtype=np.float64)
        np.add.at(counts, (Pi.argmax(axis=1), purity_level(Pi)), 1)
    n = counts.sum()
    columns = {"size": sizes, "share": sizes / n, "pure": counts[:, 0], "pure_share": counts[:, 0] / n}
    columns |= {"mixed": counts[:, 2], "mixed_share": counts[:, 2] / n, "pure_subject": subject_labels(model, model.pure_subjects_)}
    return pd.DataFrame(columns, index=pd.Index(model.get_feature_names_out(), name="class"))


def respondents(model: Any) -> Iterator[NDArray[Any]]:
    """Chunks of the memberships (rows, K) of those who gave any response."""
    for Pi in row_chunks(model.memberships_):
        yield Pi[~np.isnan(Pi[:, 0])]


def purity_level(memberships: NDArray[Any]) -> NDArray[np.int64]:
    """Which of ``LEVELS`` each subject has. In the precision of the memberships, so that counts are those of the fit."""
    highest = memberships.max(axis=1)
    return np.where(highest >= PURE, 0, np.where(highest <= MIXED, 2, 1))


def subject_labels(model: Any, rows: Any) -> list[str]:
    """The labels of these row numbers, or the numbers where subjects have no labels."""
    return [str(row if model.row_labels_ is None else model.row_labels_[int(row)]) for row in rows]


def highest_items(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The items with the highest responses in each class: columns ``class``, ``item``, ``response``, and ``text`` if given."""
    Theta = model.item_parameters_
    rows = [
        (name, str(Theta.index[j]), float(values[j]))
        for name, values in zip(Theta.columns, Theta.to_numpy().T, strict=True)
        for j in np.argsort(-values, kind="stable")[:n]
    ]
    return _with_texts(pd.DataFrame(rows, columns=["class", "item", "response"]), texts)


def distinctive_items(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The items that part each class from the others most: the columns of :func:`highest_items`, and ``difference``.

    ``difference`` is the response in the class less the mean of those in the other classes. A model
    of one class has no such items.
    """
    Theta = model.item_parameters_
    k = Theta.shape[1]
    values = Theta.to_numpy(np.float64)
    differences = (values - values.mean(axis=1, keepdims=True)) * (k / max(k - 1, 1))
    rows = [
        (name, str(Theta.index[j]), values[j, c], differences[j, c])
        for c, name in enumerate(Theta.columns if k > 1 else ())
        for j in np.argsort(-np.abs(differences[:, c]), kind="stable")[:n]
    ]
    return _with_texts(pd.DataFrame(rows, columns=["class", "item", "response", "difference"]), texts)


def _with_texts(table: pd.DataFrame, texts: Mapping[str, str] | None) -> pd.DataFrame:
    return table if texts is None else table.assign(text=[texts.get(item, "") for item in table["item"]])


def summary(model: Any) -> "pd.Series[Any]":
    """Size and figures of the fit."""
    n, k = model.memberships_.shape
    return pd.Series(
        {
            "method": model.method,
            "subjects": n,
            "silent subjects": model.n_nonrespondents_,
            "items": len(model.column_labels_),
            "classes": k,
            "highest response": model.n_levels_,
            "modularity": model.modularity_,
            "highly pure share": model.highly_pure_share_,
            "highly mixed share": model.highly_mixed_share_,
        },
        dtype=object,
    )


def summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of the fit, each with its name."""
    s = summary(model)
    size = f"{s['subjects']} subjects × {s['items']} items"
    pure, mixed = f"{s['highly pure share']:.1%} of the subjects", f"{s['highly mixed share']:.1%}"
    lines = [
        ("model", f"{type(model).__name__}, {s['classes']} classes of {size}, responses 0 to {s['highest response']:g}"),
        ("fit", f"method {s['method']}{f', {model.vertex_hunting}' if s['method'] == 'crsc' else ''}; modularity {s['modularity']:.4g}"),
        ("purity", f"{pure} are highly pure (a membership of {PURE} or more), {mixed} highly mixed (none above {MIXED})"),
    ]
    if s["silent subjects"]:
        lines.append(("silent", f"{s['silent subjects']} without any response: their memberships are NaN"))
    return lines


def classes_text(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> str:
    """Size and subjects of each class, and under it its items: the highest, and those most unlike the other classes."""
    tables = {
        "highest responses": highest_items(model, n, texts),
        "most unlike the other classes: response, and difference to their mean": distinctive_items(model, n, texts),
    }
    parts = []
    for name, row in class_table(model).iterrows():
        parts.append(f"{name}: {row['share']:.1%} of the memberships, {row['pure']} highly pure, {row['mixed']} highly mixed")
        parts.append(f"  found by subject {row['pure_subject']}")
        for heading, table in tables.items():
            own = table[table["class"] == name].drop(columns="class")
            if len(own):
                parts.append(indented(f"{heading}\n{indented(table_text(own))}"))
    return "\n".join(parts)
