"""``dfact import``, ``dfact import-array``, ``dfact import-triplets``, ``dfact join``."""

from contextlib import closing
from typing import Any

import click

from dfact.cli.options import choice, cluster, example, list_option, overwrite_option, read_dataset, scheduler_option
from dfact.cli.types import MatrixShape
from dfact.jobs.declarations import InputLocation, InputPath, OutputLocation
from dfact.storage.location import Location, absolute

_KINDS = ("categorical", "continuous")


def confounder_kinds(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str | None]:
    """Parse NAME or NAME:KIND, where a name may contain a colon."""
    parsed: dict[str, str | None] = {}
    for value in values:
        name, _colon, kind = value.rpartition(":")
        parsed.update({name: kind} if kind in _KINDS else {value: None})
    return parsed


@click.command(
    "import",
    epilog=example(
        "dfact import survey.csv survey.zarr --items 'Q*' --id-column id --missing 0,-9",
        "  --confounder age:continuous --confounder sex:categorical",
    ),
)
@click.argument("source", type=InputPath())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@list_option(
    "--items",
    "Columns with the answers: names or patterns such as 'Q*'; repeatable or separated by commas.",
    required=True,
    metavar="NAMES",
)
@click.option("--id-column", metavar="NAME", help="Column with unique labels of the participants.")
@click.option(
    "--confounder",
    "confounders",
    multiple=True,
    metavar="NAME[:KIND]",
    callback=confounder_kinds,
    show_default=False,
    help="Column with a confounder, of KIND categorical or continuous; repeatable. By default, text and few distinct integers are "
    "categorical.",
)
@list_option(
    "--missing", "Codes of missing answers, such as -9; empty cells are always missing. Repeatable or separated by commas.", metavar="CODES"
)
@list_option(
    "--confounder-missing",
    "Codes of missing confounders, such as -9; empty cells are always missing. Repeatable or separated by commas.",
    metavar="CODES",
)
@click.option("--no-shift", is_flag=True, help="Store the answers unchanged instead of shifting the lowest valid answer to 0.")
@click.option(
    "--valid-range",
    type=float,
    nargs=2,
    metavar="LOW HIGH",
    help="Lowest and highest valid answer; others raise an error.",
    show_default="range of the data",
)
@choice("--empty-rows", "error drop", "Treatment of rows without any answer: an error, or drop them.")
@click.option("--delimiter", metavar="CHARACTER", help="Separator of the cells.", show_default="by the ending: .csv, .tsv or .txt")
@click.option(
    "--jobs",
    "n_jobs",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Number of parts of the file that are read side by side.",
    show_default="one for each core, or each thread of the cluster",
)
@scheduler_option
@overwrite_option
def import_command(source: Location, destination: Location, no_shift: bool, scheduler: str | None, **settings: Any) -> None:
    """Import a table as a dataset.

    SOURCE is a csv, tsv or txt file, optionally compressed (.gz), or a parquet file. DEST is the dataset, a Zarr store.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.table import import_table
    from dfact.progress import Progress

    if scheduler is not None:
        source = absolute(source)  # workers may have another working folder
    with cluster(scheduler) as client, closing(Progress("import")) as progress:
        dataset = import_table(source, destination, shift=not no_shift, progress=progress.update, executor=client, **settings)
    click.echo(dataset_text(dataset))


@click.command("import-array", epilog=example("dfact import-array amino.npz amino.zarr --key X"))
@click.argument("source", type=InputPath())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@click.option("--key", metavar="NAME", help="Name of the array in an .npz file.", show_default="the only array")
@click.option("--row-labels", metavar="NAME", help="Array of the .npz file with the labels of the first mode.")
@click.option("--column-labels", metavar="NAME", help="Array of the .npz file with the labels of the second mode.")
@list_option(
    "--missing", "Codes of missing entries, such as -9; NaN is always missing. Repeatable or separated by commas.", metavar="CODES"
)
@choice("--empty-rows", "error drop", "Treatment of rows without any entry: an error, or drop them.")
@overwrite_option
def import_array_command(
    source: Location, destination: Location, missing: list[str], overwrite: bool, empty_rows: Any, **keys: str | None
) -> None:
    """Import an array with two or more modes as a dataset.

    SOURCE is a NumPy file (.npy or .npz) whose first mode holds the participants or samples. DEST is the dataset, a Zarr store.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.array import import_array
    from dfact.data.readers.numpy_files import read_array_file
    from dfact.progress import Progress
    from dfact.storage.input_files import open_input_file

    try:
        codes = [float(code) for code in missing]
    except ValueError as error:
        raise click.BadParameter(f"{','.join(missing)!r} is not a list of numbers", param_hint="--missing") from error
    path = open_input_file(source).keep_local()
    array = read_array_file(path, keys["key"])
    labels: dict[str, Any] = {name: read_array_file(path, keys[name]) for name in ("row_labels", "column_labels") if keys[name]}
    with closing(Progress("import")) as progress:
        dataset = import_array(
            array, destination, missing=codes or None, empty_rows=empty_rows, overwrite=overwrite, progress=progress.update, **labels
        )
    click.echo(dataset_text(dataset))


@click.command("import-triplets", epilog=example("dfact import-triplets ratings.csv ratings.zarr --row user --column film --value stars"))
@click.argument("source", type=InputPath())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@click.option("--row", metavar="NAME", default="row", help="Column with the rows of the entries.")
@click.option("--column", metavar="NAME", default="column", help="Column with the columns of the entries.")
@click.option("--value", metavar="NAME", default="value", help="Column with the values of the entries.")
@click.option(
    "--shape",
    metavar="NxM",
    type=MatrixShape(),
    help="Shape of the dataset, for tables that number rows and columns from 0. Without it, their names become labels.",
)
@choice("--duplicates", "error mean first last sum", "Treatment of several values for the same row and column.")
@list_option(
    "--missing", "Codes of missing values, such as -9; empty cells are always missing. Repeatable or separated by commas.", metavar="CODES"
)
@click.option("--delimiter", metavar="CHARACTER", help="Separator of the cells.", show_default="by the ending: .csv, .tsv or .txt")
@overwrite_option
def import_triplets_command(source: Location, destination: Location, **settings: Any) -> None:
    """Import a table with one entry per line as a dataset.

    Each line has the row, the column and the value of an entry; entries without a line are missing. SOURCE is a csv, tsv or
    txt file, optionally compressed (.gz), or a parquet file. DEST is the dataset, a Zarr store.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.triplets import import_triplets
    from dfact.progress import Progress

    with closing(Progress("import")) as progress:
        dataset = import_triplets(source, destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


@click.command(epilog=example("dfact join cohort.zarr phq9.zarr gad7.zarr ipip.zarr"))
@click.argument("destination", metavar="DEST", type=OutputLocation())
@click.argument("datasets", metavar="DATASET DATASET...", type=InputLocation(), nargs=-1)
@choice("--how", "outer inner", "Keep participants who are in any dataset (outer), or in all of them (inner).")
@click.option("--prefix", is_flag=True, help="Prefix every item with the name of its dataset, not only items that several datasets have.")
@overwrite_option
def join(destination: Location, datasets: tuple[Location, ...], **settings: Any) -> None:
    """Join several questionnaires into one dataset, DEST.

    Participants are matched by their labels, so the DATASETs must have been imported with --id-column. Unanswered
    questionnaires are treated as missing. Confounders of all datasets are combined.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.join import join_datasets
    from dfact.progress import Progress

    if len(datasets) < 2:
        raise click.UsageError(f"Got {len(datasets)} dataset(s) after DEST, expected two or more.")
    with closing(Progress("join")) as progress:
        dataset = join_datasets([read_dataset(path) for path in datasets], destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))
