"""Reports: a fitted model as text, tables, plots and one HTML page.

Imports export and everything below it; draws with Matplotlib and writes HTML. What a report shows of a family of models
is that family's presenter. Everything else reads the model's traits and works for any model.

    presenters    the document of a model: its sections, and what a presenter of a family overrides
    html          one page of a document; knows nothing of models
    plots         the canvas: figures in inches, saved completely or not at all
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dfact.catalogue import absent, find_public

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization
    from dfact.models.gom.plots import plot_memberships

__all__ = ["plot_memberships", "plot_structure", "read_frequencies", "read_memberships", "text"]
for _name in absent("report"):
    __all__.remove(_name)  # noqa: PYI056  (type checkers see a complete installation)


def text(model: "Factorization", top: int | None = None, texts: Mapping[str, str] | None = None) -> str:
    """Describe a fitted model: its size, the figures of its fit, and the leading items of each component.

    Parameters
    ----------
    model : fitted estimator
        Any of dfact's, or a subclass of its base.
    top : int, optional
        Number of items listed for each component; by default 5, and none of genotypes, as names of SNPs say nothing on a component.
    texts : dict from item to text, optional
        Wording of the items, printed next to their names, in place of the wording in the codebook of the fitted data.

    Returns
    -------
    str
        The text that ``dfact info`` prints, without what it reads from the store.

    Raises
    ------
    ParameterError
        ``model`` is not a factorization.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> print(dfact.report.text(dfact.ICQF(n_components=3).fit(answers)).splitlines()[0])
    model      ICQF, 3 factors of 200 participants × 12 items
    """
    from dfact.report.presenters.base import model_text

    return model_text(model, top, texts)


def __getattr__(name: str) -> Any:
    return find_public(f"report.{name}")


def __dir__() -> list[str]:
    return __all__
