"""``dfact plot``."""

import click

from dfact.cli.options import example, overwrite_option
from dfact.cli.types import InputLocation, OutputLocation
from dfact.storage.location import Location


@click.command(
    epilog=example("dfact plot dfact-demo/factors4.model loadings.png", "dfact plot dfact-demo/spectra.model wavelengths.png --mode 2")
)
@click.argument("model", type=InputLocation())
@click.argument("out", type=OutputLocation("dfact.report.plots:FORMATS"))
@click.option("--mode", type=click.IntRange(1), metavar="NUMBER", help="Mode of a tensor, whose vectors are drawn as a heat map.")
@click.option(
    "--leading",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Number of components with the largest weights, over which the vectors of --mode are summed; the sums are drawn as bars.",
)
@overwrite_option
def plot(model: Location, out: Location, mode: int | None, leading: int | None, overwrite: bool) -> None:
    """Plot a fitted model.

    Draws the loadings of the items of MODEL to OUT, a .png, .pdf or .svg file; of a tensor, the vectors of all modes. Needs Matplotlib.
    """
    from dfact.models.persistence import load_model
    from dfact.report.plots import save_figure
    from dfact.report.presenters.base import items_plot, mode_plot
    from dfact.report.selection import check_plot

    if leading is not None and mode is None:
        raise click.UsageError("--leading applies to --mode NUMBER; give the mode whose vectors are summed.")
    check_plot(out, overwrite=overwrite)
    fitted = load_model(model)
    save_figure(items_plot(fitted) if mode is None else mode_plot(fitted, mode, leading), out, overwrite=overwrite)
    click.echo(f"{out}: {'loadings' if mode is None else f'mode {mode}'} of {model}")
