"""Loadings of factors as a table in APA style."""

from os import PathLike

import numpy as np
import pandas as pd

from dfact.errors import ParameterError
from dfact.export.files import check_destination
from dfact.export.tables import Texts, item_texts, require_own_items
from dfact.models.bounded_nmf.icqf import ICQF
from dfact.models.estimator import Factorization
from dfact.models.traits import Vocabulary
from dfact.questionnaires.apa.table import ANSWERED, UNDEFINED, ApaTable, Cell, Group, described, level_of_significance, number
from dfact.questionnaires.apa.write import FORMATS, write_tables
from dfact.questionnaires.factor_analysis.estimator import FactorAnalysis
from dfact.storage.location import parse_location

SALIENT = 0.40
"""Absolute loading of a factor analysis from which it is bold."""


def loadings_table(model: Factorization, texts: Texts = None) -> ApaTable:
    """Return the loadings of a model of factors, with the items sorted by the factor on which they load most.

    A factor analysis also has communalities, explained variances, correlations of the factors, and its fit in the note. Its
    loadings are bold from 0.40 on; of other models, the largest of each item.

    Raises
    ------
    ParameterError
        The components of the model are not factors of items, or ``texts`` contain none of its items.
    """
    words = model.vocabulary
    if model.traits.tensor or (words.component, words.items) != (Vocabulary.component, Vocabulary.items):
        found = f"the {type(model).__name__} has {words.components} of {words.items}"
        raise ParameterError(f"{found}, expected a model with factors of items for a table in APA style; export a .csv or .xlsx")
    require_own_items(model, texts=texts)
    table, known = model.loadings_, item_texts(model, texts)
    names = [described(label, known.get(str(label), "")) for label in table.index]
    if isinstance(model, FactorAnalysis):
        return _factor_analysis(model, table, names)
    values = table.to_numpy(np.float64)
    bold = (np.abs(values) == np.abs(values).max(axis=1, keepdims=True)) & (values != 0)
    cells = [[Cell(number(value), chosen) for value, chosen in zip(*row, strict=True)] for row in zip(values, bold, strict=True)]
    sentences = [f"*N* = {model.row_factors().shape[0]:,}.", *_sentences(model), "The largest loading of each item is in bold."]
    return _table(f"Factor Loadings of {len(table)} Items", table, names, cells, [], " ".join(sentences))


def write_apa_loadings(model: Factorization, path: str | PathLike[str], *, texts: Texts = None, overwrite: bool = False) -> None:
    """Write the loadings of factors as a table in APA style to an .html or .md file; see :func:`loadings_table`.

    Raises
    ------
    ParameterError
        ``path`` has another ending, or the model has no factors of items.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    check_destination(parse_location(path), overwrite=overwrite, formats=FORMATS)
    write_tables([loadings_table(model, texts)], path, overwrite=overwrite)


def _factor_analysis(model: FactorAnalysis, table: pd.DataFrame, names: list[Cell]) -> ApaTable:
    values, k = table.to_numpy(np.float64), table.shape[1]
    cells = [[Cell(number(value, bounded=True), abs(round(value, 2)) >= SALIENT) for value in row] for row in values.tolist()]
    for row, communality in zip(cells, model.communalities_.tolist(), strict=True):
        row.append(Cell(number(communality, bounded=True)))
    explained, Phi = model.explained_, model.factor_correlations_
    rows = [
        ("Variance", [number(value) for value in explained["variance"]]),
        ("% of variance", [number(100 * value, 1) for value in explained["share"]]),
        ("Cumulative %", [number(100 * value, 1) for value in explained["cumulative"]]),
    ]
    below = [_group("Explained variance", rows, k + 2)]
    if not np.array_equal(Phi, np.eye(k)):
        correlations = [[number(Phi[a, b], bounded=True) for b in range(a)] + [UNDEFINED] for a in range(k)]
        below.append(_group("Factor correlations", list(zip(map(str, table), correlations, strict=True)), k + 2))
    title = f"Factor Loadings From an Exploratory Factor Analysis of {len(table)} Items"
    return _table(title, table, names, cells, ["*h*²"], _note(model), below)


def _table(
    title: str,
    table: pd.DataFrame,
    names: list[Cell],
    cells: list[list[Cell]],
    more: list[str],
    note: str,
    below: "list[Group] | None" = None,
) -> ApaTable:
    """Group the items (m) of a table of loadings by the factor of their largest loading, the largest first."""
    sizes = np.abs(table.to_numpy(np.float64))
    of_item, order = sizes.argmax(axis=1), np.argsort(-sizes.max(axis=1), kind="stable")
    groups = [
        Group(str(name), [[names[j], *cells[j]] for j in order[of_item[order] == a].tolist()])
        for a, name in enumerate(table)
        if (of_item == a).any()
    ]
    return ApaTable(title, ["Item", *map(str, table), *more], [*groups, *(below or [])], note, "Factor loading", table.shape[1])


def _group(heading: str, rows: list[tuple[str, list[str]]], width: int) -> Group:
    """Return rows of texts, with empty cells up to the width of the table."""
    return Group(heading, [[Cell(text) for text in [name, *texts, *[""] * (width - 1 - len(texts))]] for name, texts in rows])


def _note(model: FactorAnalysis) -> str:
    """Describe the sample, the extraction, the rotation and the fit of a factor analysis."""
    effective = (
        f" (Kish's effective *N* = {model.n_effective_:,.0f} by the weights, without strata and clusters)"
        if getattr(model, "weighted_", False)
        else ""
    )
    rotated = _rotation(model) if model.rotation and len(model.components_) > 1 else "without rotation"
    correlations = f"{'polychoric' if model.correlation == 'polychoric' else 'Pearson'} correlations"
    smoothed = " The correlations were smoothed." if model.smoothed_ else ""
    return " ".join(
        [
            f"*N* = {model.n_observations_:,}{effective}. Extraction by minimum residuals {rotated} from {correlations} "
            f"of the participants who answered {ANSWERED[model.missing]}.{smoothed}",
            f"Loadings of at least {number(SALIENT, bounded=True)} are in bold. *h*² = communality.",
            *_fit(model),
        ]
    )


def _rotation(model: FactorAnalysis) -> str:
    """Describe the rotation, and which program has the same promax."""
    kaiser = model.rotation != "oblimin" if model.kaiser is None else model.kaiser
    normalized = f"{'with' if kaiser else 'without'} Kaiser normalization"
    if model.rotation == "promax-spss":
        normalized = "Kaiser normalization of the target alone, as in SPSS"
    elif model.rotation == "promax" and kaiser:
        normalized += " of loadings and target, as in the R package psych"
    rotations = {"oblimin": "oblique oblimin rotation (γ = 0, ", "varimax": "orthogonal varimax rotation ("}
    return f"with {rotations.get(model.rotation or '', f'oblique promax rotation (κ = {model.kappa:g}, ')}{normalized})"


def _fit(model: FactorAnalysis) -> list[str]:
    """Return sentences about the indices of fit that are defined; χ² and BIC of polychoric correlations have no known distribution."""
    fit, polychoric = model.fit_, model.correlation == "polychoric"
    indices = []
    if not (polychoric or np.isnan(fit["chi_square"])):
        indices.append(f"χ²({fit['df']:.0f}) = {number(fit['chi_square'])}, *p* {level_of_significance(fit['p'])}")
    if not np.isnan(fit["rmsea"]):
        low, high = (number(fit[name], 3, bounded=True) for name in ("rmsea_low", "rmsea_high"))
        indices.append(f"RMSEA = {number(fit['rmsea'], 3, bounded=True)}, 90% CI [{low}, {high}]")
    shown = [name for name in ("cfi", "tli", "srmr") if not np.isnan(fit[name])]
    indices += [f"{name.upper()} = {number(fit[name], 3, bounded=True)}" for name in shown]
    if not (polychoric or np.isnan(fit["bic"])):
        indices.append(f"BIC = {number(fit['bic'])}")
    sentences = [f"{', '.join(indices)}."] if indices else []
    if not (polychoric or np.isnan(fit["rmsea"])):
        sentences.append(f"χ², *p* and the interval of RMSEA assume complete, normal {model.vocabulary.entries}.")
    if polychoric and len(indices) > 1:
        sentences.append("With polychoric correlations, RMSEA, CFI and TLI are descriptive.")
    return sentences


def _sentences(model: Factorization) -> list[str]:
    """Describe another model and its fit."""
    sentences = [f"{type(model).__name__} with {len(model.get_feature_names_out())} factors."]
    explaining = "factors"
    if isinstance(model, ICQF):
        sentences.append("Loadings are points of the answers' scale by which an answer rises as the factor goes from 0 to 1.")
        if model.confounder_encoding_ is not None:
            sentences.append("They are adjusted for confounders, whose effects on the items are anchored.")
            explaining = "factors and confounders"
    share = getattr(model, "explained_share_", None)
    if share is not None:
        sentences.append(f"The {explaining} explain {100 * share:.1f}% of the variance of the answers.")
    return sentences
