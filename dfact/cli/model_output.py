"""Output of fitted models and their plots."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dfact.storage.location import Location

if TYPE_CHECKING:
    from dfact.models.estimator import Factorization


@contextmanager
def model_output(model: Location | None, plot: Path | None, *, overwrite: bool) -> Iterator[Callable[["Factorization"], None]]:
    """Create the outputs before the work, so that errors in their paths appear at once; yield a function that writes the fitted model."""
    from dfact.models.persistence import KIND, write_model
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import items_plot
    from dfact.report.selection import check_plot
    from dfact.storage.groups import create_group

    if plot is not None:
        check_plot(plot, overwrite=overwrite)
    written: list[Factorization] = []
    with nullcontext() if model is None else create_group(model, KIND, overwrite=overwrite) as group:

        def write(fitted: "Factorization") -> None:
            written.append(fitted)
            if group is not None:
                write_model(group, fitted)

        yield write
    if plot is not None:  # after the model is complete, which a failing plot must not remove
        save_figure(items_plot(written[0]), plot)
