"""Where fitted models and their plots go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization


@contextmanager
def places(model: Location | None, plot: Path | None, *, overwrite: bool) -> Iterator[Callable[["Factorization"], None]]:
    """Makes the places before the work, so that what cannot be written is known at once; what it yields takes the fitted model."""
    from dfact.models.persistence import KIND, write_model
    from dfact.report.export import check_destination
    from dfact.report.plots import FORMATS, new_figure, save_figure
    from dfact.report.presenters.base import items_plot
    from dfact.storage.groups import create_group

    if plot is not None:
        check_destination(plot, overwrite=overwrite, formats=FORMATS)
        new_figure(1, 1)  # is Matplotlib there?
    kept: list[Factorization] = []
    with nullcontext() if model is None else create_group(model, KIND, overwrite=overwrite) as group:

        def keep(fitted: "Factorization") -> None:
            kept.append(fitted)
            if group is not None:
                write_model(group, fitted)

        yield keep
    if plot is not None:  # once the model is there, which a plot that fails must not take along
        save_figure(items_plot(kept[0]), plot)
