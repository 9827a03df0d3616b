"""A fitted model as one HTML file that loads nothing: it opens anywhere, in light and dark, sorts its tables, and prints."""

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
from dfact.report.document import Section
from dfact.report.export import check_destination
from dfact.report.html.context import ReportContext, checked_model
from dfact.report.html.item_sections import bins, classes, confounders, loadings, solutions, top_items
from dfact.report.html.sections import choice, convergence, distributions, errors, overview, parameters, stability
from dfact.report.plots import new_figure
from dfact.selection.fitted_data import fitted_dataset
from dfact.storage.files import atomic_file

FORMATS = (".html", ".htm")
_SECTIONS: tuple[Callable[[ReportContext], Section | None], ...] = (
    overview,
    top_items,
    loadings,
    confounders,
    classes,
    distributions,
    errors,
    bins,
    stability,
    choice,
    solutions,
    convergence,
    parameters,
)
"""In the order of the page; each says None where the model has nothing of the kind."""


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
    """Write what a fitted model says as one HTML file, whole or not at all.

    It tells what was fitted and on what, the items of each factor, all loadings as a heat map with like items together and
    as a table that sorts, the distributions and correlations of the factors, confounder loadings, convergence, how the
    parameters were chosen (``selection_``) and how stable the loadings are (``stability_``), each where the model has it.
    The same model gives the same file. Nothing in it is fetched from anywhere; labels are text, whatever they hold.

    Parameters
    ----------
    model : fitted estimator, or path to a saved one
        Any factorization; those that dfact does not know are shown plainly.
    path : path ending in .html
        Where the file goes.
    data : array of any kind, path or Dataset, optional
        What the model was fitted to, for what needs it: errors and missing rates by item, of expectile models errors by size.
    texts, groups : dicts from item to text, optional
        What the items say, and the group under which each stands in the heat map.
    solutions : SolutionPath, optional
        Of :meth:`dfact.ElasticCP.path`, to be drawn.
    overwrite : bool
        Whether a file that is there is replaced.

    Raises
    ------
    DfactError
        Matplotlib is not installed.
    DataError
        ``data`` is not what the model was fitted to.
    ParameterError
        Another ending; texts or groups of none of the model's items.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; nothing is left behind.

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
    new_figure(1, 1)  # is Matplotlib there?
    stored = isinstance(model, (str, PathLike))
    versions = saved_versions(model) if stored else running_versions()
    fitted = load_model(model) if stored else checked_model(model)
    dataset = None if data is None else fitted_dataset(fitted, data)
    _write(path, _rendered(ReportContext(fitted, dataset, versions, texts or {}, groups or {}, solutions)))


def _rendered(subject: ReportContext) -> str:
    """The page. Its policy allows its own style and script by their digests, pictures as data, and nothing else."""
    page = files("dfact.report.html.assets")
    style, script = ((page / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    k, name = len(subject.names), type(subject.model).__name__
    n, m = subject.model._row_factors.shape[0], len(subject.model.column_labels_)
    words = subject.words
    shape = f"{n} {words.rows} × {m} {words.items}"
    if hasattr(subject.model, "slice_shape_"):
        shape = f"a tensor {' × '.join(map(str, (n, *subject.model.slice_shape_)))}"
    return environment.from_string((page / "report.html").read_text(encoding="utf-8")).render(
        title=f"{k} {words.components if k > 1 else words.component} of {shape}",
        kind=name,
        version=version("dfact"),
        style=Markup(style),  # our own files
        style_hash=_digest(style),
        script=Markup(script),
        script_hash=_digest(script),
        sections=[section for make in _SECTIONS if (section := make(subject)) is not None],
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    with atomic_file(path) as unfinished:
        unfinished.write_bytes(text.encode("utf-8", "replace"))
