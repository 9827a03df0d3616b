"""A fitted model as one self-contained HTML file: it works offline, in light and dark, with sortable tables, and prints."""

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dfact.models.cp.path import SolutionPath
from dfact.models.persistence import load_model, running_versions, saved_versions
from dfact.report.document import Drawing, Section
from dfact.report.export import check_destination
from dfact.report.html.context import ReportContext, check_model
from dfact.report.html.images import render
from dfact.report.html.item_sections import confounders, loadings, solutions, top_items
from dfact.report.html.sections import (
    convergence,
    distributions,
    errors,
    family_errors,
    family_rows,
    overview,
    parameters,
    selection,
    stability,
)
from dfact.report.plots import new_figure
from dfact.selection.fitted_data import fitted_dataset
from dfact.storage.files import atomic_file

FORMATS = (".html", ".htm")
_SECTIONS: tuple[Callable[[ReportContext], Section | None], ...] = (
    overview,
    top_items,
    loadings,
    confounders,
    family_rows,
    distributions,
    errors,
    family_errors,
    stability,
    selection,
    solutions,
    convergence,
    parameters,
)
"""Sections in the order of the page; each returns None if it does not apply to the model."""


def write_report(
    model: Any,
    path: str | PathLike[str],
    data: Any = None,
    *,
    texts: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    solutions: SolutionPath | None = None,
    overwrite: bool = False,
) -> None:
    """Write a report of a fitted model as one HTML file, atomically.

    The report shows the model and its data, the items of each factor, all loadings as a heat map with similar items together
    and as a sortable table, the distributions and correlations of the factors, and convergence. It adds confounder loadings,
    the selection that set the parameters (``selection_``) and the stability of the loadings (``stability_``) if the model has
    them. Equal models give equal files. The file loads nothing, and labels are escaped.

    Parameters
    ----------
    model : fitted estimator, or path of a saved one
        Any factorization; models that are not part of dfact get a plain presentation.
    path : path ending in .html
        The file to write.
    data : array of any kind, path or Dataset, optional
        The data the model was fitted to: adds errors and missing rates by item, and for expectile models errors by size.
    texts, groups : dicts from item to text, optional
        Texts of the items, and their groups in the heat map.
    solutions : SolutionPath, optional
        The result of :meth:`dfact.ElasticCP.path`, to be plotted.
    overwrite : bool
        Whether to replace an existing file.

    Raises
    ------
    DfactError
        Matplotlib is not installed.
    DataError
        ``data`` is not what the model was fitted to.
    ParameterError
        ``path`` has another ending, or texts or groups contain none of the model's items.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.

    Examples
    --------
    >>> import dfact, numpy as np, pathlib
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> dfact.write_report(dfact.ICQF(n_components=3).fit(answers), "report.html", answers)
    >>> pathlib.Path("report.html").read_text().startswith("<!DOCTYPE html>")
    True
    """
    path = Path(path)
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    new_figure(1, 1)  # raises an error before the work if Matplotlib is not installed
    stored = isinstance(model, (str, PathLike))
    versions = saved_versions(model) if stored else running_versions()
    fitted = load_model(model) if stored else check_model(model)
    dataset = None if data is None else fitted_dataset(fitted, data)
    page = _render_page(ReportContext(fitted, dataset, versions, texts or {}, groups or {}, solutions))
    with atomic_file(path) as partial:
        partial.write_bytes(page.encode("utf-8", "replace"))


def _render_page(context: ReportContext) -> str:
    """Render the page. Its policy allows only its own style and script, by their digests, and images as data URIs."""
    page = files("dfact.report.html.assets")
    style, script = ((page / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    k, name = len(context.names), type(context.model).__name__
    n, m = context.model.row_factors().shape[0], len(context.model.column_labels_)
    words = context.words
    shape = f"{n} {words.rows} × {m} {words.items}"
    if hasattr(context.model, "slice_shape_"):
        shape = f"a tensor {' × '.join(map(str, (n, *context.model.slice_shape_)))}"
    return environment.from_string((page / "report.html").read_text(encoding="utf-8")).render(
        title=f"{k} {words.components if k > 1 else words.component} of {shape}",
        kind=name,
        version=version("dfact"),
        style=Markup(style),  # style and script are dfact's own files
        style_hash=_digest(style),
        script=Markup(script),
        script_hash=_digest(script),
        sections=[_with_images(section) for make in _SECTIONS if (section := make(context)) is not None],
    )


def _with_images(section: Section) -> dict[str, Any]:
    """Return the fields of a section for the template, with its drawings rendered."""
    blocks = [render(block) if isinstance(block, Drawing) else block for block in section.blocks]
    return {"name": section.name, "title": section.title, "blocks": blocks}


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
