"""``dfact import``, ``dfact import-array``, ``dfact import-triplets``, ``dfact indicators``, ``dfact join``."""
# Long because it declares the options of five commands.

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from dfact.catalogue import find_part, installed_part
from dfact.cli.answer_options import (
    confounder_missing_option,
    empty_cells_option,
    levels_option,
    missing_option,
    not_missing_option,
    recode_option,
)
from dfact.cli.options import (
    Option,
    choice,
    cluster,
    example,
    list_option,
    metrics_server,
    overwrite_option,
    read_dataset,
    scheduler_option,
)
from dfact.cli.types import InputLocation, InputPath, MatrixShape, OutputLocation
from dfact.storage.location import Location, absolute

if TYPE_CHECKING:
    from dfact.data.dataset import Dataset

_GENOTYPES = installed_part("import_options")
_genotype_options: Option = _GENOTYPES.genotype_options if _GENOTYPES else lambda command: command
_KINDS = ("categorical", "continuous")


def confounder_kinds(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str | None]:
    """Parse NAME or NAME:KIND, where a name may contain a colon."""
    parsed: dict[str, str | None] = {}
    for value in values:
        name, _colon, kind = value.rpartition(":")
        parsed.update({name: kind} if kind in _KINDS else {value: None})
    return parsed


def range_by_name(_: click.Context, __: click.Parameter, values: tuple[tuple[str, float, float], ...]) -> dict[str, tuple[float, float]]:
    """Return the ranges by the names of their confounders."""
    return {name: (low, high) for name, low, high in values}


@click.command(
    "import",
    epilog=example(
        "dfact import dfact-demo/survey.csv survey.zarr --items 'Q*' --id-column person",
        "    --missing 0,-9 --confounder age:continuous --confounder sex:categorical",
        "dfact import dfact-demo/cohort.bed cohort.zarr",
    ),
)
@click.argument("source", type=InputPath())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@list_option(
    "--items",
    "Columns with the answers: names or patterns such as 'Q*', or fields of the dictionary; -v3 is reversed. Repeatable or separated by "
    "commas. Not needed if the file has one set of items with the same labels, or with a dictionary of REDCap.",
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
    "categorical. Continuous dates become years.",
)
@levels_option
@recode_option
@missing_option
@not_missing_option
@empty_cells_option
@click.option("--no-default-missing", is_flag=True, help="Do not treat texts such as NA, N/A and null as missing.")
@list_option(
    "--reverse",
    "Items to reverse within their declared range, or @NAME for those that this column of the dictionary marks. Repeatable or separated "
    "by commas.",
    metavar="NAMES",
)
@choice("--unlabelled", "error keep", "Treatment of values without a label in items with labels.")
@confounder_missing_option
@click.option(
    "--confounder-range",
    "confounder_ranges",
    type=(str, float, float),
    multiple=True,
    metavar="NAME LOW HIGH",
    callback=range_by_name,
    show_default=False,
    help="Lowest and highest plausible value of a continuous confounder, such as age 5 110; values outside count as missing. Repeatable.",
)
@click.option(
    "--weight",
    metavar="NAME",
    help="Column with weights of the participants, such as survey weights: numbers of at least 0. Fits use them by default.",
)
@list_option(
    "--replicate-weights",
    "Columns with the replicate weights of a survey, besides its --weight: names or patterns such as 'RW*'. Repeatable or separated by "
    "commas.",
    metavar="NAMES",
)
@click.option(
    "--replicate-method",
    type=click.Choice(["jk1", "jkn", "brr", "fay", "bootstrap"]),
    help="Method by which the survey made its replicate weights.",
    show_default="none",
)
@click.option("--fay", type=float, metavar="FACTOR", help="Fay's factor of the replicate weights, such as 0.5.", show_default="none")
@list_option(
    "--replicate-scales",
    "Factors (n_h - 1)/n_h of the replicates of jkn: one for all, or one for each. Repeatable or separated by commas.",
    metavar="NUMBERS",
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
@click.option("--encoding", metavar="NAME", help="Encoding of a text file, such as cp1252.", show_default="UTF-8")
@click.option("--decimal", metavar="CHARACTER", help="Decimal mark of a text file.", show_default="a point")
@click.option("--thousands", metavar="CHARACTER", help="Mark between thousands in a text file, or 'space'.", show_default="none")
@click.option("--header-rows", type=click.IntRange(1), metavar="NUMBER", help="Number of lines with column names.", show_default="1")
@click.option("--skip-rows", type=click.IntRange(0), metavar="NUMBER", help="Number of lines above the column names.", show_default="0")
@click.option("--sheet", metavar="NAME", help="Sheet of a workbook.", show_default="the only one with cells")
@click.option("--object", metavar="NAME", help="Table in a file of several.", show_default="the only one")
@click.option("--labels", metavar="FILE", type=InputPath(), help="File with the value labels of a SAS file (.sas7bcat).")
@click.option(
    "--dictionary",
    metavar="FILE",
    type=InputPath(),
    help="Data dictionary of REDCap or UK Biobank, or a codebook with a column item and columns text, levels, missing, scale, or key.",
)
@click.option(
    "--codings",
    metavar="FILE",
    type=InputPath(),
    multiple=True,
    show_default=False,
    help="Codings of UK Biobank; project information (missing data codes) or list of events of REDCap. Repeatable.",
)
@choice(
    "--third-mode",
    "events instances",
    "Third mode: events of REDCap, or instances of UK Biobank.",
    show_default="asked where there are several",
)
@click.option("--event", metavar="NAME", help="The only event of REDCap to import.", show_default="asked where there are several")
@click.option(
    "--instance", metavar="NUMBER", help="The only instance of UK Biobank to import.", show_default="asked where there are several"
)
@click.option(
    "--n-readers",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Number of parts of the file that are read side by side.",
    show_default="one for each core, or each thread of the cluster",
)
@_genotype_options
@scheduler_option
@overwrite_option
def import_command(source: Location, destination: Location, **settings: Any) -> None:
    """Import a table or genotypes as a dataset.

    SOURCE is a table or a file of genotypes, in one of the formats that 'dfact help formats' lists, such as .csv, .sav, .parquet or
    .bed. DEST is the dataset, a Zarr store. Wordings, labels, and missing codes are taken from the file where it has them.
    """
    from dfact.cli.info import dataset_text
    from dfact.imports.readers.formats import holds_genotypes
    from dfact.progress import Progress

    genotypes = holds_genotypes(str(source))
    settings = {name: value for name, value in settings.items() if value is not None}
    if _GENOTYPES is not None:
        settings = _GENOTYPES.select_settings(settings, import_command, genotypes=genotypes)
    with closing(Progress("import")) as progress:
        if genotypes:
            importer = find_part("import_genotypes", f"the import of {source}")
            dataset = importer.import_genotypes(source, destination, progress=progress.update, note=click.echo, **settings)
        else:
            dataset = _import_table(source, destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


def _import_table(
    source: Location,
    destination: Location,
    *,
    no_shift: bool,
    no_default_missing: bool,
    items: list[str],
    replicate_scales: Sequence[str] = (),
    scheduler: str | None = None,
    **settings: Any,
) -> "Dataset":
    from dfact.imports.tables.table import import_table

    if scheduler is not None:
        source = absolute(source)  # workers may have another working folder
    try:
        scales = [float(text) for text in replicate_scales]
    except ValueError as error:
        raise click.UsageError(f"--replicate-scales is {','.join(replicate_scales)}, expected numbers.") from error
    with metrics_server(), cluster(scheduler) as client:
        return import_table(
            source,
            destination,
            items=items or None,
            shift=not no_shift,
            default_missing=not no_default_missing,
            replicate_scales=scales or None,
            note=click.echo,
            executor=client,
            **settings,
        )


@click.command("import-array", epilog=example("dfact import-array dfact-demo/spectra.npz spectra.zarr --object X"))
@click.argument("source", type=InputPath())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@click.option("--object", "--key", "array", metavar="NAME", help="Name of the array in a file of several.", show_default="the only array")
@click.option("--row-labels", metavar="NAME", help="Array of the file with the labels of the first mode.", show_default="as in the file")
@click.option(
    "--column-labels", metavar="NAME", help="Array of the file with the labels of the second mode.", show_default="as in the file"
)
@list_option(
    "--mode-labels", "Arrays of the file with the labels of the third and further modes, in their order, such as visits.", metavar="NAMES"
)
@click.option("--transpose", is_flag=True, help="Reverse the order of the modes, for example for a matrix of genes × cells.")
@choice("--implicit", "zero missing", "Meaning of the entries that a sparse matrix does not store.")
@list_option(
    "--missing", "Codes of missing entries, such as -9; NaN is always missing. Repeatable or separated by commas.", metavar="CODES"
)
@choice("--empty-rows", "error drop", "Treatment of rows without any entry: an error, or drop them.")
@overwrite_option
def import_array_command(
    source: Location,
    destination: Location,
    array: str | None,
    transpose: bool,
    implicit: Any,
    missing: list[str],
    mode_labels: list[str],
    overwrite: bool,
    empty_rows: Any,
    **label_arrays: str | None,
) -> None:
    """Import an array with two or more modes as a dataset.

    SOURCE is a file of NumPy (.npy, .npz), HDF5 (.h5, .hdf5), AnnData (.h5ad), MATLAB (.mat), NetCDF (.nc, .nc4), R (.rda,
    .rds) or Matrix Market (.mtx, .mtx.gz), or a Zarr store of Dask or xarray (.zarr). Its first mode holds the rows: participants,
    samples. DEST is the dataset, a Zarr store.
    """
    from dfact.cli.info import dataset_text
    from dfact.imports.arrays.array import import_array
    from dfact.imports.readers.base import ReadOptions
    from dfact.imports.readers.formats import open_array, open_labels
    from dfact.progress import Progress

    try:
        codes = [float(code) for code in missing]
    except ValueError as error:
        raise click.BadParameter(f"{','.join(missing)!r} is not a list of numbers", param_hint="--missing") from error
    opened = open_array(source, ReadOptions(object=array))
    if transpose:
        opened = opened.transpose()
    labels: dict[str, Any] = {name: open_labels(source, key) for name, key in label_arrays.items() if key}
    if mode_labels:
        labels["mode_labels"] = [open_labels(source, key) for key in mode_labels]
    with closing(Progress("import")) as progress:
        dataset = import_array(
            opened,
            destination,
            missing=codes or None,
            empty_rows=empty_rows,
            implicit=implicit,
            overwrite=overwrite,
            progress=progress.update,
            **labels,
        )
    for note in opened.notes:
        click.echo(note, err=True)
    click.echo(dataset_text(dataset))


@click.command(
    "import-triplets", epilog=example("dfact import-triplets dfact-demo/ratings.csv ratings.zarr --row user --column film --value stars")
)
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
@click.option("--decimal", metavar="CHARACTER", help="Decimal mark of a text file.", show_default="a point")
@click.option("--thousands", metavar="CHARACTER", help="Mark between thousands in a text file, or 'space'.", show_default="none")
@overwrite_option
def import_triplets_command(source: Location, destination: Location, **settings: Any) -> None:
    """Import a table with one entry per line as a dataset.

    Each line has the row, the column and the value of an entry; entries without a line are missing. SOURCE is a table in one
    of the formats that 'dfact help formats' lists. DEST is the dataset, a Zarr store.
    """
    from dfact.cli.info import dataset_text
    from dfact.imports.arrays.triplets import import_triplets
    from dfact.progress import Progress

    with closing(Progress("import")) as progress:
        dataset = import_triplets(source, destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


@click.command(
    epilog=example("dfact indicators dfact-demo/answers.zarr nominal.zarr --items AS1,AS2", "dfact fit gom nominal.zarr classes.model -k 3")
)
@click.argument("data", type=InputLocation())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@list_option(
    "--items", "Nominal items: names or patterns such as 'Q*'; by default all items. Repeatable or separated by commas.", metavar="NAMES"
)
@click.option(
    "--like",
    metavar="DATA",
    type=InputLocation(),
    help="Dataset made by this command, whose categories are used: for rows that a model fitted to it is to transform.",
)
@overwrite_option
def indicators(data: Location, destination: Location, items: tuple[str, ...], like: Location | None, overwrite: bool) -> None:
    """Give each category of nominal items a column of 0 and 1.

    The column Q3=2 of DEST is 1 for participants who answered 2 to Q3, else 0, and missing where the answer is. Models that take
    answers as counts or as ordered, such as gom, then describe each category separately. Other items stay as they are.
    """
    from dfact.cli.info import dataset_text
    from dfact.imports.joins.indicators import expand_categories
    from dfact.progress import Progress

    with closing(Progress("indicators")) as progress:
        dataset = expand_categories(
            read_dataset(data),
            destination,
            items=list(items) or None,
            like=None if like is None else read_dataset(like),
            overwrite=overwrite,
            progress=progress.update,
        )
    click.echo(dataset_text(dataset))


@click.command("stack-groups", epilog=example("dfact stack-groups dfact-demo/answers.zarr genders.zarr --by gender"))
@click.argument("data", type=InputLocation())
@click.argument("destination", metavar="DEST", type=OutputLocation())
@click.option("--by", required=True, metavar="NAME", help="Categorical confounder with the groups, such as the grade of a disease.")
@choice("--scale", "range none", "Scale each item to [0, 1] by its lowest and highest answer, or leave it as it is.")
@click.option("--max-missing", default=0.2, metavar="SHARE", help="Largest share of missing answers with which an item is kept.")
@click.option("--seed", "random_state", type=click.IntRange(0), default=0, metavar="NUMBER", help="Seed of the draws.")
@overwrite_option
def stack_groups_command(data: Location, destination: Location, **settings: Any) -> None:
    """Stack groups of participants into a tensor of groups × participants × items.

    The groups are the levels of a categorical confounder of DATA. As many participants as the smallest group has are drawn at random
    from each. Missing answers stay missing. 'dfact fit cp' and 'dfact select cp' then find which items change together from group to group.
    """
    from dfact.cli.info import dataset_text
    from dfact.imports.joins.group_tensor import stack_groups
    from dfact.progress import Progress

    with closing(Progress("stack-groups")) as progress:
        dataset = stack_groups(read_dataset(data), destination, progress=progress.update, **settings)
    click.echo(dataset_text(dataset))


@click.command(
    epilog=example(
        "dfact import dfact-demo/phq9.csv phq9.zarr --items 'P*' --id-column person --missing -9",
        "dfact import dfact-demo/gad7.csv gad7.zarr --items 'G*' --id-column person --missing -9",
        "dfact join both.zarr phq9.zarr gad7.zarr",
    )
)
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
    from dfact.imports.joins.join import join_datasets
    from dfact.progress import Progress

    if len(datasets) < 2:
        raise click.UsageError(f"Got {len(datasets)} dataset(s) after DEST, expected two or more.")
    with closing(Progress("join")) as progress:
        dataset = join_datasets(
            [read_dataset(path) for path in datasets], destination, progress=progress.update, note=click.echo, **settings
        )
    click.echo(dataset_text(dataset))
