"""Tables of a grade of membership: classes, items, and the purity of subjects."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.export import tables
from dfact.export.tables import Texts, row_chunks, with_texts
from dfact.models.gom.estimator import GradeOfMembership
from dfact.models.gom.passes import MIXED, PURE
from dfact.text import escape_control, indented, table_text

LEVELS = ("highly pure", "moderately pure", "highly mixed")
"""Purity of a subject, by its highest membership: at least 0.9, between 0.7 and 0.9, at most 0.7."""
_WORDS = {"factor": "class", "loading": "response"}


def class_table(model: GradeOfMembership) -> pd.DataFrame:
    """Return for each class its ``size`` (sum of memberships) and ``share``, its pure and mixed subjects, and its ``pure_subject``.

    ``pure`` and ``mixed`` count the highly pure and the highly mixed subjects with their highest
    membership in the class. ``pure_share`` and ``mixed_share`` are shares of all subjects with a
    response and add up to those of the model. ``pure_subject`` is the label of the subject that
    identified the class. Memberships in a store are read by chunks.
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


def respondents(model: GradeOfMembership) -> Iterator[NDArray[Any]]:
    """Yield chunks of the memberships (rows, K) of subjects with any response."""
    for Pi in row_chunks(model.memberships_):
        yield Pi[~np.isnan(Pi[:, 0])]


def purity_level(memberships: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position in ``LEVELS`` of each subject; compares in the precision of the memberships, as the fit does."""
    highest = memberships.max(axis=1)
    return np.where(highest >= PURE, 0, np.where(highest <= MIXED, 2, 1))


def subject_labels(model: GradeOfMembership, rows: Any) -> list[str]:
    """Return the labels of these row numbers, or the numbers if subjects have no labels."""
    return [str(row if model.row_labels_ is None else model.row_labels_[int(row)]) for row in rows]


def highest_items(model: GradeOfMembership, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items with the highest responses in each class: columns ``class``, ``item``, ``response``, and ``text`` if known."""
    return with_texts(tables.highest_items(model.item_parameters_, n).rename(columns=_WORDS), model, texts)


def distinctive_items(model: GradeOfMembership, n: int = 5, texts: Texts = None) -> pd.DataFrame:
    """Return the items that separate each class most from the others: the columns of :func:`highest_items`, and ``difference``.

    ``difference`` is the response in the class minus the mean of those in the other classes. A model
    with one class has no such items.
    """
    return with_texts(tables.distinctive_items(model.item_parameters_, n).rename(columns=_WORDS), model, texts)


def classes_text(model: GradeOfMembership, n: int = 5, texts: Texts = None) -> str:
    """List the size and subjects of each class, and its items: the highest, and the most distinctive ones."""
    lists = {
        "highest responses": highest_items(model, n, texts),
        "most distinctive: response, and difference from the mean of the other classes": distinctive_items(model, n, texts),
    }
    parts = []
    for name, row in class_table(model).iterrows():
        parts.append(f"{name}: {row['share']:.1%} of the memberships, {row['pure']} highly pure, {row['mixed']} highly mixed")
        parts.append(f"  identified by subject {escape_control(row['pure_subject'])}")
        for heading, table in lists.items():
            items = table[table["class"] == name].drop(columns="class")
            if len(items):
                parts.append(indented(f"{heading}\n{indented(table_text(items))}"))
    return "\n".join(parts)
