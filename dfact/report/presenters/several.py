"""The document that compares several models of the same items: their components matched, loadings side by side, fits and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.errors import ParameterError
from dfact.linalg.congruence import centred_congruences, congruence, match
from dfact.models.cp.factor_match import match_components
from dfact.models.estimator import Factorization
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.models.persistence import load_model, running_versions, saved_versions
from dfact.models.scikit_learn import check_is_fitted
from dfact.report.comparison import MARKS
from dfact.report.document import Block, Document, Section, Table, Text, make_table
from dfact.report.presenters.base import MAX_ITEMS, Presenter, find_presenter
from dfact.report.presenters.sections import format_value
from dfact.storage.location import parse_location

Array = NDArray[np.float64]
_NONE = "–"


@dataclass(frozen=True, eq=False)
class _Member:
    """A model with its label on the page."""

    label: str
    presenter: Presenter[Factorization]

    @property
    def model(self) -> Any:
        return self.presenter.model

    @cached_property
    def names(self) -> list[str]:
        """Names of the components; of a tensor, of those that are left."""
        return self.presenter.names[: self.model.rank_] if self.model.traits.tensor else self.presenter.names

    @cached_property
    def loadings(self) -> pd.DataFrame:
        """Loadings of these components, items × components."""
        return self.presenter.all_loadings.iloc[:, : len(self.names)]


@dataclass(frozen=True, eq=False)
class _Match:
    """The components of another model, matched one to one with those of the first one, so that the sum of congruences is largest."""

    partners: NDArray[np.intp]
    """Component of the other model for each of the first one (k,), −1 without one."""
    congruences: Array
    """Congruence of each pair (k,), in absolute value; NaN without a partner."""
    similarity: Array
    """Congruence of all components (k, l)."""
    signs: Array
    """1 or −1 for each item and component of the other model (m, l), by which its loadings are multiplied."""

    @property
    def left(self) -> list[int]:
        """Components of the other model that match none."""
        return sorted({*range(self.similarity.shape[1])} - {*self.partners.tolist()})

    @classmethod
    def of(cls, first: _Member, other: _Member) -> "_Match":
        shape = len(other.loadings), len(other.names)
        partners, signs = np.full(len(first.names), -1), np.ones(shape)
        if first.model.traits.tensor:
            modes = [[np.asarray(A, np.float64)[:, : len(one.names)].T for A in one.model.factors_[1:]] for one in (first, other)]
            found = match_components(*modes)
            similarity = np.abs(np.prod([congruence(A, B) for A, B in zip(*modes, strict=True)], axis=0))
            rows, columns = np.flatnonzero(found.columns >= 0), found.columns[found.columns >= 0]
            signs[:, columns] = np.repeat([mode[rows] for mode in found.signs], [A.shape[1] for A in modes[1]], axis=0)
        else:
            similarity = congruence(*_comparable(first, other))
            rows, columns = match(np.abs(similarity))
            signs[:, columns] = np.where(similarity[rows, columns] < 0, -1.0, 1.0)
        partners[rows] = columns
        congruences = np.full(len(first.names), np.nan)
        congruences[rows] = np.abs(similarity[rows, columns])
        return cls(partners, congruences, similarity, signs)


def _comparable(first: _Member, other: _Member) -> tuple[Array, Array]:
    """Return the loadings (k, m) of two models; of classes of both, the differences from their mean."""
    A, B = (np.asarray(one.loadings, np.float64).T for one in (first, other))
    if first.model.traits.centred_matching and other.model.traits.centred_matching and min(len(A), len(B)) > 1:
        return A - A.mean(axis=0), B - B.mean(axis=0)
    return A, B


def compare_models(
    models: Sequence[Factorization | str | PathLike[str]], texts: Mapping[str, str] | None = None, groups: Mapping[str, str] | None = None
) -> Document:
    """Describe several models, or saved ones by their paths: each is compared with the first one.

    Raises ParameterError for fewer than two models, or for models of other items.
    """
    if len(models) < 2:
        raise ParameterError(f"models are {len(models)}, expected at least two to compare")
    first, *others = members = _members(models, texts or {}, groups or {})
    for other in others:
        _require_same_items(first, other)
    matches = [_Match.of(first, other) for other in others]
    sections = [
        _fits(members),
        _matched(first, others, matches),
        _loadings(first, others, matches),
        _selections(members),
        _settings(members),
    ]
    kinds = dict.fromkeys(type(member.model).__name__ for member in members)
    return Document(", ".join(kinds), f"Comparison of {', '.join(member.label for member in members)}", sections)


def _members(models: Sequence[Any], texts: Mapping[str, str], groups: Mapping[str, str]) -> list[_Member]:
    saved = [isinstance(model, (str, PathLike)) for model in models]
    fitted = [load_model(model) if path else model for model, path in zip(models, saved, strict=True)]
    versions = [saved_versions(model) if path else running_versions() for model, path in zip(models, saved, strict=True)]
    stems = [
        Path(str(parse_location(model))).stem if path else f"model {i}"
        for i, (model, path) in enumerate(zip(models, saved, strict=True), 1)
    ]
    labels = (
        stems
        if len({*stems}) == len(stems)
        else [str(model) if path else stem for model, path, stem in zip(models, saved, stems, strict=True)]
    )
    if len({*labels}) < len(labels):
        raise ParameterError(f"models are {', '.join(labels)}, expected each one once")
    members = []
    for label, model, version in zip(labels, fitted, versions, strict=True):
        kind = find_presenter(model)
        check_is_fitted(model)
        members.append(_Member(label, kind(model, None, version, texts, groups)))
        if not members[-1].names:
            raise ParameterError(f"{label} has no component left, expected at least one to compare; fit it with a smaller penalty")
    return members


def _require_same_items(first: _Member, other: _Member) -> None:
    ours, theirs = ([str(item) for item in one.presenter.all_loadings.index] for one in (first, other))
    kinds = [f"a tensor with slices of {one.model.slice_shape_}" if one.model.traits.tensor else "a matrix" for one in (first, other)]
    if kinds[0] != kinds[1]:
        raise ParameterError(f"{other.label} is a model of {kinds[1]}, {first.label} one of {kinds[0]}; compare models of the same data")
    if ours == theirs:
        return
    i = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
    found, expected = (repr(items[i]) if i < len(items) else f"none, as it has {len(items)}" for items in (theirs, ours))
    item = first.presenter.words.item
    raise ParameterError(
        f"{item} {i + 1} of {other.label} is {found}, of {first.label} {expected}; expected models of the same {item}s in the same order"
    )


def _fits(members: Sequence[_Member]) -> Section:
    """Show the summaries of the models side by side, and the figures of their fits."""
    summaries = {member.label: dict(member.presenter.summary()) for member in members}
    names = dict.fromkeys(name for summary in summaries.values() for name in summary if name)
    facts = pd.DataFrame({label: [summary.get(name, _NONE) for name in names] for label, summary in summaries.items()}, index=list(names))
    blocks: list[Block] = [Text(_same_data(members)), make_table(facts.rename_axis("figure"), "The models")]
    figures = {
        member.label: {
            "objective": float(history[-1]) if (history := getattr(member.model, "objective_history_", None)) is not None else np.nan,
            "explained": float(getattr(member.model, "explained_share_", np.nan)),
            "iterations": float(getattr(member.model, "n_iter_", np.nan)),
            "remaining": float(getattr(member.model, "remaining_", np.nan)),
        }
        for member in members
    }
    table = pd.DataFrame(figures).T.rename_axis("model").dropna(axis=1, how="all")
    formats = {"objective": "{:.6g}", "explained": "{:.2%}", "iterations": "{:.0f}", "remaining": "{:.1g}"}
    caption = (
        "Objective of each fit, explained share of the data, iterations, and estimated distance of the objective from its limit. "
        "Objectives are comparable between models of one class with the same data and penalties only"
    )
    return Section("fits", "What was fitted", [*blocks, make_table(table, caption, formats=formats)])


def _same_data(members: Sequence[_Member]) -> str:
    """Return whether the models were fitted to the same data, as far as their fingerprints tell."""
    prints = {member.model.fingerprint_ for member in members}
    if None in prints:
        return "Whether all models were fitted to the same rows is not recorded: some were not fitted to an unchanged stored dataset."
    if len(prints) == 1:
        return f"All models were fitted to the same data, of the fingerprint {next(iter(prints))}."
    listed = ", ".join(f"{member.label} to {member.model.fingerprint_}" for member in members)
    return f"The models were fitted to different data ({listed}), so that differences between them may be differences between the rows."


def _matched(first: _Member, others: Sequence[_Member], matches: Sequence[_Match]) -> Section:
    """Show which components match, how similar they are, and the similarity of all."""
    words, columns = first.presenter.words, dict[str, list[Any]]()
    n_left = sum(len(found.left) for found in matches)
    start = len(first.names)
    for other, found in zip(others, matches, strict=True):
        partners = [other.names[j] if j >= 0 else _NONE for j in found.partners] + [_NONE] * n_left
        partners[start : start + len(found.left)] = [other.names[j] for j in found.left]
        start += len(found.left)
        columns[other.label] = partners
        columns[f"congruence with {other.label}"] = [*found.congruences, *[np.nan] * n_left]
        if _is_bounded(first, other):
            columns[f"centred congruence with {other.label}"] = [*_centred(first, other, found), *[np.nan] * n_left]
        correlations = _correlations(first, other, found)
        if correlations is not None:
            columns[f"correlation with {other.label}"] = [*correlations, *[np.nan] * n_left]
    table = pd.DataFrame(columns, index=pd.Index([*first.names, *[_NONE] * n_left], name=first.label))
    formats = {name: "{:.3f}" for name in columns if name.startswith(("congruence", "centred", "correlation"))}
    measure = (
        "the product of the cosines of their vectors of modes 2 to N"
        if first.model.traits.tensor
        else "Tucker's congruence of their loadings"
    )
    about = f"Each model's {words.components} are matched one to one with those of {first.label}, so that the sum of their congruences"
    about += f" is largest: {measure}"
    about += ", those of two models of classes minus their mean" if first.model.traits.centred_matching else ""
    blocks: list[Block] = [Text(f"{about}.")]
    if not first.model.traits.tensor:
        marks = dict.fromkeys(MARKS[not _is_bounded(first, other)] for other in others if not first.model.traits.centred_matching)
        blocks += map(Text, marks)
    caption = f"Matched {words.components}; a correlation compares the {first.presenter.factors} over the same {words.rows}"
    blocks.append(make_table(table, caption, formats=formats))
    for other, found in zip(others, matches, strict=True):
        similarity = pd.DataFrame(found.similarity, pd.Index(first.names, name=first.label), other.names)
        blocks.append(
            make_table(similarity, f"Congruence of all {words.components} of {first.label} (rows) and {other.label}", shaded=other.names)
        )
    return Section("matched", f"Which {words.components} are the same", blocks)


def _is_bounded(first: _Member, other: _Member) -> bool:
    """Check whether the loadings of both models are not negative, so that unrelated ones are congruent, too."""
    return all(one.model.traits.nonnegative and not one.model.traits.centred_matching for one in (first, other))


def _centred(first: _Member, other: _Member, found: _Match) -> Array:
    """Return the congruences of matched loadings less each item's mean over the factors (k,), NaN without a partner."""
    A, B = _comparable(first, other)
    rows, centred = np.flatnonzero(found.partners >= 0), np.full(len(A), np.nan)
    if len(rows) > 1:
        centred[rows] = centred_congruences(A[rows], B[found.partners[rows]])
    return centred


def _correlations(first: _Member, other: _Member, found: _Match) -> Array | None:
    """Return the correlations of the row factors of matched components (k,), if both models have the same rows; else None.

    A component of which one of the signs of the loadings is reversed has its row factors reversed, too.
    """
    if first.model.fingerprint_ is None or first.model.fingerprint_ != other.model.fingerprint_:
        return None
    A, B = first.model.row_factors(), other.model.row_factors()
    rows = np.flatnonzero(found.partners >= 0)
    columns = found.partners[rows]
    signs = _row_signs(other, found)[columns]
    n, sums, step = 0, np.zeros((5, len(rows))), Layout.of(A.shape).chunk_rows
    shift: tuple[Array, Array] | None = None
    for start in range(0, A.shape[0], step):
        X, Y = (np.asarray(factors[start : start + step], np.float64) for factors in (A, B))
        X, Y = X[:, rows], Y[:, columns] * signs
        complete = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
        X, Y = X[complete], Y[complete]
        if not len(X):
            continue
        shift = (X.mean(axis=0), Y.mean(axis=0)) if shift is None else shift  # centring first avoids cancellation
        X, Y = X - shift[0], Y - shift[1]
        n += len(X)
        sums += [part.sum(axis=0) for part in (X, Y, X * X, Y * Y, X * Y)]
    correlations = np.full(len(first.names), np.nan)
    if n:
        x, y, xx, yy, xy = sums / n
        scale = np.sqrt(np.maximum(xx - x * x, 0) * np.maximum(yy - y * y, 0))
        correlations[rows] = np.divide(xy - x * y, scale, out=np.full(len(rows), np.nan), where=scale > 0)
    return correlations


def _row_signs(other: _Member, found: _Match) -> Array:
    """Return the sign of the row factors (l,) that leaves the other model unchanged."""
    if not other.model.traits.tensor:
        return np.asarray(found.signs[0])
    starts = np.cumsum([0, *other.model.slice_shape_[:-1]])
    return np.asarray(np.prod(found.signs[starts], axis=0))


def _loadings(first: _Member, others: Sequence[_Member], matches: Sequence[_Match]) -> Section:
    """Show the loadings of matched components side by side, in the numbers and the shades of each model."""
    words = first.presenter.words
    sizes = np.max([one.loadings.abs().max(axis=1).to_numpy() for one in (first, *others)], axis=0)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:MAX_ITEMS])
    shown = shown[_item_order(first, shown)]
    tables = [_cells(first, first.loadings, shown)]
    tables += [_cells(other, other.loadings * found.signs, shown, found) for other, found in zip(others, matches, strict=True)]
    # Each component of the first model has its own column, then its partners'; components without a partner are last.
    places = [
        (0, a) if model == 0 else (model, int(matches[model - 1].partners[a]))
        for a in range(len(first.names))
        for model in range(len(tables))
    ]
    places = [(model, a) for model, a in places if a >= 0]
    places += [(model, a) for model, found in enumerate(matches, start=1) for a in found.left]
    labels = make_table(first.presenter.with_texts(first.loadings.iloc[shown, :0]), "")
    headings = [*labels.headings, *(tables[model].headings[1 + a] for model, a in places)]
    rows = [[*row, *(tables[model].rows[i][1 + a] for model, a in places)] for i, row in enumerate(labels.rows)]
    blocks: list[Block] = []
    if len(shown) < len(sizes):
        blocks.append(Text(f"The {len(shown)} of {len(sizes)} {words.items} with the largest {words.loading}s are shown."))
    reversed_signs = any((found.signs < 0).any() for found in matches)
    note = "; the signs of a component marked (−) are reversed" if reversed_signs else ""
    caption = f"{words.loadings} of matched {words.components} side by side, each shaded by the largest of its model{note}"
    return Section("loadings", f"{words.loadings} side by side", [*blocks, Table(caption, headings, rows)])


def _item_order(first: _Member, shown: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the order of the shown items: by the component on which they load most, largest first; slices keep their order."""
    if first.model.traits.tensor:
        return np.arange(len(shown))
    values = np.abs(first.loadings.to_numpy(np.float64)[shown])
    return np.lexsort((-values.max(axis=1), values.argmax(axis=1)))


def _cells(member: _Member, loadings: pd.DataFrame, shown: NDArray[np.intp], found: _Match | None = None) -> Table:
    """Return the loadings of a model as a table with its own shades, and its label in the headings."""
    turned = [found is not None and bool((found.signs[:, a] < 0).any()) for a in range(len(member.names))]
    names = [f"{member.label}: {name}{' (−)' if sign else ''}" for name, sign in zip(member.names, turned, strict=True)]
    return make_table(loadings.iloc[shown].set_axis(names, axis=1), "", shaded=names)


def _selections(members: Sequence[_Member]) -> Section:
    """Show how the parameters of each model were chosen."""
    rows = {}
    for member in members:
        record = getattr(member.model, "selection_", None)
        if record is None:
            rows[member.label] = ["not by a selection", _NONE, _NONE, _NONE, np.nan]
            continue
        best = ", ".join(f"{name} = {value}" for name, value in zip(record.names, record.values[record.best], strict=True))
        rows[member.label] = [
            record.criterion.replace("_", " "),
            record.rule,
            f"{len(record.values)} candidates",
            best,
            record.scores[record.best],
        ]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["criterion", "rule", "candidates", "chosen", "score"]).rename_axis(
        "model"
    )
    return Section("selections", "How they were chosen", [make_table(table.dropna(axis=1, how="all"), "The selections of the models")])


def _settings(members: Sequence[_Member]) -> Section:
    """Show the parameters that differ between the models."""
    values = {
        member.label: {
            name: format_value(value) for name, value in member.model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS
        }
        for member in members
    }
    names = dict.fromkeys(name for parameters in values.values() for name in parameters)
    table = pd.DataFrame(
        {label: [parameters.get(name, _NONE) for name in names] for label, parameters in values.items()}, index=list(names)
    )
    table = table[table.nunique(axis=1) > 1].rename_axis("parameter")
    if table.empty:
        return Section("settings", "Settings", [Text("All parameters are equal.")])
    caption = "Parameters that differ; a dash stands for a parameter that a model does not have"
    return Section("settings", "Settings that differ", [make_table(table, caption)])
