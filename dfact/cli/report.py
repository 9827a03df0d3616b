"""``dfact report``."""

from collections.abc import Sequence
from pathlib import Path

import click

from dfact.cli.options import ending_among, example, location_type, overwrite_option, path_type, read_dataset
from dfact.data.codebook import read_items
from dfact.storage.location import Location


def _formats(_: click.Context) -> Sequence[str]:
    from dfact.report.html.page import FORMATS

    return FORMATS


@click.command(epilog=example("dfact report survey.model survey.html --data survey.zarr"))
@click.argument("model", type=location_type)
@click.argument("out", metavar="REPORT", type=location_type, callback=ending_among(_formats))
@click.option("--data", type=location_type, metavar="DATASET", help="What the model was fitted to: adds missing rates and errors by item.")
@click.option("--items", type=path_type, metavar="FILE", help="A csv file of the items, with columns item and text, group or both.")
@overwrite_option
def report(model: Location, out: Path, data: Location | None, items: Path | None, overwrite: bool) -> None:
    """Write a model as a page to read.

    One HTML file, REPORT, that loads nothing and opens in any browser: what was fitted and on what, the items of each
    factor, all loadings as a heat map and as a table that sorts, how the factors are distributed and go together,
    and, where the fitted MODEL has them, confounders, convergence, how it was chosen, and stability. Needs Matplotlib.
    """
    from dfact.report.html.page import write_report

    texts, groups = ({}, {}) if items is None else read_items(items)
    dataset = None if data is None else read_dataset(data)
    write_report(model, out, dataset, texts=texts, groups=groups, overwrite=overwrite)
    click.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, open it in a browser")
