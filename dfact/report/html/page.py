"""A fitted model as one self-contained HTML file: it works offline, in light and dark, with sortable tables, and prints."""

import base64
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dfact.report.document import Document, Drawing, Section
from dfact.report.export import check_destination
from dfact.report.html.images import render
from dfact.report.plots import new_figure
from dfact.report.presenters.sections import make_document
from dfact.storage.files import atomic_file

if TYPE_CHECKING:
    from dfact.models.cp.path import SolutionPath
    from dfact.models.estimator import Factorization

FORMATS = (".html", ".htm")


def write_report(
    model: "Factorization | str | PathLike[str]",
    path: str | PathLike[str],
    data: Any = None,
    *,
    texts: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    solutions: "SolutionPath | None" = None,
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
    document = make_document(model, data, texts, groups, solutions)
    with atomic_file(path) as partial:
        partial.write_bytes(_render_page(document).encode("utf-8", "replace"))


def _render_page(document: Document) -> str:
    """Render the page. Its policy allows only its own style and script, by their digests, and images as data URIs."""
    page = files("dfact.report.html.assets")
    style, script = ((page / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((page / "report.html").read_text(encoding="utf-8")).render(
        title=document.title,
        kind=document.kind,
        version=version("dfact"),
        style=Markup(style),  # style and script are dfact's own files
        style_hash=_digest(style),
        script=Markup(script),
        script_hash=_digest(script),
        sections=[_with_images(section) for section in document.sections],
    )


def _with_images(section: Section) -> dict[str, Any]:
    """Return the fields of a section for the template, with its drawings rendered."""
    blocks = [render(block) if isinstance(block, Drawing) else block for block in section.blocks]
    return {"name": section.name, "title": section.title, "blocks": blocks}


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
