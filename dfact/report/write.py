"""A report of a fitted model as an HTML file."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from dfact.errors import ParameterError
from dfact.export.files import check_destination
from dfact.models.cp.path import SolutionPath
from dfact.models.estimator import Factorization
from dfact.report.html.page import render_page
from dfact.report.plots import new_figure
from dfact.report.presenters.sections import make_document
from dfact.report.presenters.several import compare_models
from dfact.storage.files import atomic_file
from dfact.storage.location import parse_location

FORMATS = (".html", ".htm")


def write_report(
    model: Factorization | str | PathLike[str] | Sequence[Factorization | str | PathLike[str]],
    path: str | PathLike[str],
    data: Any = None,
    *,
    texts: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    solutions: SolutionPath | None = None,
    overwrite: bool = False,
) -> None:
    """Write a report of a fitted model, or a comparison of several, as one HTML file, atomically.

    The report shows the model and its data, the items of each factor, all loadings as a heat map with similar items together
    and as a sortable table, the distributions and correlations of the factors, and convergence. It adds impact and effects of confounders,
    the levels and missing codes of the items (``codebook_``), the selection that set the parameters (``selection_``), the
    stability of the loadings (``stability_``) and the comparison of groups (``comparison_``) if the model has them. Equal models
    give equal files. The file loads nothing, and labels are escaped.

    A report of several models compares each of them with the first one: their components are matched one to one by the congruence
    of their loadings, which stand side by side, with the figures of the fits, the selections, and the parameters that differ.

    Parameters
    ----------
    model : fitted estimator, or path of a saved one; or a list of two and more
        Any factorization; models that are not part of dfact get a plain presentation. Models of a list have the same items.
    path : path or URL ending in .html
        The file to write, or the object, such as ``s3://bucket/report.html``.
    data : array of any kind, path or Dataset, optional
        The data the model was fitted to: adds errors and missing rates by item, and for expectile models errors by size.
    texts, groups : dicts from item to text, optional
        Texts of the items, in place of the wording in the codebook of the fitted data; groups of the items in the heat map.
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
        ``path`` has another ending, texts or groups contain none of the model's items, or models of a list have other items.
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
    path = parse_location(path)
    check_destination(path, overwrite=overwrite, formats=FORMATS)
    new_figure(1, 1)  # raises an error before the work if Matplotlib is not installed
    if isinstance(model, Sequence) and not isinstance(model, str):
        if data is not None or solutions is not None:
            name = "data" if data is not None else "solutions"
            raise ParameterError(f"{name} is given for several models, expected None; leave it out, or report one model")
        document = compare_models(model, texts, groups)
    else:
        document = make_document(model, data, texts, groups, solutions)
    with atomic_file(path, overwrite=overwrite) as partial:
        partial.write_bytes(render_page(document).encode("utf-8", "replace"))
