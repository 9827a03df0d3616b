"""``dfact report`` and ``dfact plot``."""

import click

from dfact.cli.options import example, items_option, overwrite_option, read_dataset
from dfact.cli.types import InputLocation, OutputLocation
from dfact.storage.location import Location


@click.command(epilog=example("dfact report dfact-demo/factors4.model survey.html --data dfact-demo/answers.zarr"))
@click.argument("models", metavar="MODEL [MODEL...]", type=InputLocation(), nargs=-1, required=True)
@click.argument("out", metavar="REPORT", type=OutputLocation("dfact.report.write:FORMATS"))
@click.option("--data", type=InputLocation(), metavar="DATASET", help="Dataset of the fit: adds missing rates and errors by item.")
@items_option("text, scale (or group) or both; the texts replace the wording in MODEL.")
@overwrite_option
def report(models: tuple[Location, ...], out: Location, data: Location | None, items: Location | None, overwrite: bool) -> None:
    """Write a report of a model, or compare several, as an HTML page.

    REPORT is one HTML file that needs no network and opens in any browser. It shows the fit, the items of each factor, all
    loadings as a heat map and a sortable table, and the distributions and correlations of the factors. It adds confounders,
    convergence, the selection, the stability and the comparison of groups, if MODEL has them. Needs Matplotlib.

    With several models of the same items (dfact report four.model five.model both.html), each is compared with the first one:
    factors are matched by the congruence of their loadings, which stand side by side, with the figures of the fits, the
    selections, and the parameters that differ.
    """
    from dfact.imports.dictionaries.table import read_items
    from dfact.report.write import write_report
    from dfact.storage.files import file_size
    from dfact.text import format_bytes

    if len(models) > 1 and data is not None:
        raise click.UsageError("--data applies to the report of one model; remove it, or report one model.")
    table = None if items is None else read_items(items)
    texts, groups = ({}, {}) if table is None else (table.texts, table.scales)
    dataset = None if data is None else read_dataset(data)
    write_report(models[0] if len(models) == 1 else models, out, dataset, texts=texts, groups=groups, overwrite=overwrite)
    click.echo(f"{out}: {format_bytes(file_size(out))}, open it in a browser")


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
