"""``dfact import``, ``dfact import-array``, ``dfact import-triplets``, ``dfact join``."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dfact.cli.options import example, list_option, location_type, overwrite_option, path_type, read_dataset
from dfact.storage.location import Location

_KINDS = ("categorical", "continuous")


def confounder_kinds(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str | None]:
    """NAME or NAME:KIND; a name may hold a colon itself."""
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
@click.argument("source", type=path_type)
@click.argument("destination", metavar="DEST", type=location_type)
@list_option("--items", "Columns with the answers, by name or pattern; repeat it or separate by commas.", required=True, metavar="NAMES")
@click.option("--id-column", metavar="NAME", help="Column with the participants' labels.")
@click.option(
    "--confounder",
    "confounders",
    multiple=True,
    metavar="NAME[:KIND]",
    callback=confounder_kinds,
    show_default=False,
    help="Column with a confounder, of KIND categorical or continuous; repeatable. By default text and few whole numbers are categorical.",
)
@list_option("--missing", "Codes of a missing answer, beside empty cells; repeat it or separate by commas.", metavar="CODES")
@list_option("--confounder-missing", "The same for confounders.", metavar="CODES")
@click.option("--no-shift", is_flag=True, help="Keep the answers as they are; otherwise the lowest valid one is stored as 0.")
@click.option(
    "--valid-range", type=float, nargs=2, metavar="LOW HIGH", help="A value outside is an error.", show_default="the range of the data"
)
@click.option("--empty-rows", type=click.Choice(["error", "drop"]), default="error", help="What becomes of a row without any answer.")
@click.option("--delimiter", metavar="CHARACTER", help="What separates the cells, where the ending (.csv, .tsv, .txt) does not tell.")
@overwrite_option
def import_command(source: Path, destination: Location, no_shift: bool, **settings: Any) -> None:
    """Make a dataset of a table.

    SOURCE is a csv, tsv or txt file, each also with .gz, or a parquet file; DEST is a folder.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.table import import_table
    from dfact.progress import Progress

    with closing(Progress("import")) as progress:
        dataset = import_table(source, destination, shift=not no_shift, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


@click.command("import-array", epilog=example("dfact import-array amino.npz amino.zarr --key X"))
@click.argument("source", type=path_type)
@click.argument("destination", metavar="DEST", type=location_type)
@click.option("--key", metavar="NAME", help="Which array of an .npz file.", show_default="the only one")
@click.option("--row-labels", metavar="NAME", help="Array of the .npz file with the labels of the first mode.")
@click.option("--column-labels", metavar="NAME", help="Array of the .npz file with the labels of the second mode.")
@list_option("--missing", "Codes of a missing entry, beside NaN; repeat it or separate by commas.", metavar="CODES")
@click.option("--empty-rows", type=click.Choice(["error", "drop"]), default="error", help="What becomes of a row without any entry.")
@overwrite_option
def import_array_command(
    source: Path, destination: Location, missing: list[str], overwrite: bool, empty_rows: Any, **keys: str | None
) -> None:
    """Make a dataset of an array of two or more modes.

    SOURCE is NumPy's .npy or .npz file, the mode with the participants, or samples, first; DEST is a folder.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.array import import_array
    from dfact.data.readers.numpy_files import read_array_file
    from dfact.progress import Progress

    try:
        codes = [float(code) for code in missing]
    except ValueError as error:
        raise click.BadParameter(f"{','.join(missing)!r} are not numbers", param_hint="--missing") from error
    array = read_array_file(source, keys["key"])
    labels: dict[str, Any] = {name: read_array_file(source, keys[name]) for name in ("row_labels", "column_labels") if keys[name]}
    with closing(Progress("import")) as progress:
        dataset = import_array(
            array, destination, missing=codes or None, empty_rows=empty_rows, overwrite=overwrite, progress=progress.update, **labels
        )
    click.echo(dataset_text(dataset))


def matrix_shape(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """NxM."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)\s*[x×]\s*(\d+)", value.strip(), re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{value!r} is no shape such as 1000x300.")
    return int(found[1]), int(found[2])


@click.command("import-triplets", epilog=example("dfact import-triplets ratings.csv ratings.zarr --row user --column film --value stars"))
@click.argument("source", type=path_type)
@click.argument("destination", metavar="DEST", type=location_type)
@click.option("--row", metavar="NAME", default="row", help="Column that says which row an entry is in.")
@click.option("--column", metavar="NAME", default="column", help="Column that says which column it is in.")
@click.option("--value", metavar="NAME", default="value", help="Column with the entries.")
@click.option(
    "--shape",
    metavar="NxM",
    callback=matrix_shape,
    help="Rows and columns of the dataset, where they are given by number, from 0; otherwise what names them are labels.",
)
@click.option(
    "--duplicates",
    type=click.Choice(["error", "mean", "first", "last", "sum"]),
    default="error",
    help="What becomes of several values for one row and column.",
)
@list_option("--missing", "Codes of a missing value, beside empty cells; repeat it or separate by commas.", metavar="CODES")
@click.option("--delimiter", metavar="CHARACTER", help="What separates the cells, where the ending (.csv, .tsv, .txt) does not tell.")
@overwrite_option
def import_triplets_command(source: Path, destination: Location, **settings: Any) -> None:
    """Make a dataset of a table with one entry in each line.

    A line says the entry's row, its column and its value; whatever no line says is missing. SOURCE is a csv,
    tsv or txt file, each also with .gz, or a parquet file; DEST is a folder.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.triplets import import_triplets
    from dfact.progress import Progress

    with closing(Progress("import")) as progress:
        dataset = import_triplets(source, destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


@click.command(epilog=example("dfact join cohort.zarr phq9.zarr gad7.zarr ipip.zarr"))
@click.argument("destination", metavar="DEST", type=location_type)
@click.argument("datasets", metavar="DATASET DATASET...", type=location_type, nargs=-1)
@click.option(
    "--how",
    type=click.Choice(["outer", "inner"]),
    default="outer",
    help="Keep whoever is in any of the datasets, or in all of them.",
)
@click.option("--prefix", is_flag=True, help="Put the dataset's name before every item; otherwise only before those that several have.")
@overwrite_option
def join(destination: Location, datasets: tuple[Location, ...], **settings: Any) -> None:
    """Put several questionnaires side by side in one dataset, DEST.

    The DATASETs were imported with --id-column: participants are matched by their labels, and miss the
    answers to the questionnaires that they are not in. Confounders are united.
    """
    from dfact.cli.info import dataset_text
    from dfact.data.ingest.join import join_datasets
    from dfact.progress import Progress

    if len(datasets) < 2:
        raise click.UsageError("Two or more datasets are needed after DEST.")
    with closing(Progress("join")) as progress:
        dataset = join_datasets([read_dataset(path) for path in datasets], destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))
