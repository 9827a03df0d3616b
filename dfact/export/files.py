"""Row factors and loadings as csv, parquet, Zarr, Excel, .Q, .Q_se and .P files, written atomically by chunks of rows.

Components have the order, the signs and the names that they have in the model.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.errors import DataError, ParameterError, StoreError
from dfact.export.effects import effects_table, impact_table, require_confounders
from dfact.export.row_files import FREQUENCIES, MEMBERSHIPS, STANDARD_ERRORS, number_files, open_rows, open_table
from dfact.export.spreadsheets import FORMATS as WORKBOOKS
from dfact.export.spreadsheets import require_openpyxl, write_workbook
from dfact.export.stability import stability_table, tensor_stability_table
from dfact.export.tables import Texts, item_scales, item_texts, require_own_items
from dfact.models.estimator import Factorization
from dfact.storage.groups import ensure_absent
from dfact.storage.location import Location, check_ending, parse_location, suffix
from dfact.storage.remote_files import describe

FORMATS = (".csv", ".parquet", ".zarr")
TABLES = (".csv", ".parquet")
ROW_FORMATS = (*FORMATS, MEMBERSHIPS)
FITTED_ROW_FORMATS = (*ROW_FORMATS, STANDARD_ERRORS)
LABELLED_FORMATS = (*TABLES, *WORKBOOKS)
ITEM_FORMATS = (*LABELLED_FORMATS, FREQUENCIES)
TABLE_FORMATS = (*LABELLED_FORMATS, MEMBERSHIPS, STANDARD_ERRORS, FREQUENCIES)
"""Endings of a table whose kind they tell."""
_MAX_ROWS = 1 << 18  # whose labels are held in memory


def write_factors(
    path: str | PathLike[str],
    factors: NDArray[Any] | zarr.Array[Any],
    columns: Sequence[str],
    labels: NDArray[Any] | zarr.Array[Any] | None = None,
    *,
    errors: NDArray[Any] | zarr.Array[Any] | None = None,
    populations: NDArray[Any] | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write row factors (n, k) with their labels (n,), or row numbers, to a .csv, .parquet or .zarr; memberships also to a .Q.

    A table has a column ``row``, one with the ``populations`` (n,) of the rows if there are any, "" where unknown, and one for each
    factor, with empty cells for NaN. In a csv file, labels that a spreadsheet would
    interpret as formulas get an apostrophe. A Zarr group has the arrays
    ``factors``, ``row`` and ``component``, which xarray opens. A .Q file has the numbers alone.
    ``columns`` name the factors as written: in their own order, or in the ``order`` given. Standard ``errors`` (n, k) of the
    factors are further columns of a table, such as ``population1_se``, and the array ``standard_errors`` of a Zarr group.
    ``progress`` is called with (rows written, number of rows).

    Raises
    ------
    ParameterError
        ``path`` has another ending.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    path = parse_location(path)
    check_destination(path, overwrite=overwrite, formats=FITTED_ROW_FORMATS)
    n, k = factors.shape
    step = min(Layout.of((n, k)).chunk_rows, _MAX_ROWS, n)
    label_names = ("row",) if populations is None else ("row", "population")
    with open_rows(path, n, columns, factors.dtype, step, overwrite, errors is not None, label_names) as write:
        for start in range(0, n, step):
            stop = min(start + step, n)
            names = np.arange(start, stop).astype(str) if labels is None else labels[start:stop]
            rows = [np.asarray(array[start:stop]) for array in (factors, errors) if array is not None]
            of_rows = np.asarray(names, dtype=object)
            if populations is not None:
                of_rows = np.column_stack([of_rows, np.asarray(populations[start:stop], object)])
            write(start, of_rows, np.hstack(rows))
            if progress is not None:
                progress(stop, n)


def write_model_factors(
    model: Factorization, path: str | PathLike[str], *, overwrite: bool = False, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the factors, memberships or scores of the fitted rows with :func:`write_factors`, and standard errors if there are any.

    A .Q_se file has the standard errors of the memberships, and a .Q file the memberships alone.
    """
    require_numbers(model, path)
    names, labels, factors = list(map(str, model.get_feature_names_out())), model.row_labels_, model.row_factors()
    if not factors.shape[0]:
        raise DataError("the model has no factors of rows, as it was fitted across sites; export those of a site's own model")
    errors = getattr(model, "memberships_se_", None)
    if (ending := suffix(parse_location(path))) in (MEMBERSHIPS, STANDARD_ERRORS):
        factors, errors = (errors if ending == STANDARD_ERRORS else factors), None
    populations = model.row_populations_
    write_factors(path, factors, names, labels, errors=errors, populations=populations, overwrite=overwrite, progress=progress)


def write_loadings(
    model: Factorization,
    path: str | PathLike[str],
    *,
    texts: Texts = None,
    scales: Texts = None,
    below: float = 0.0,
    overwrite: bool = False,
) -> None:
    """Write the loadings (the item parameters of a grade of membership) to a .csv, .parquet or .xlsx; those of an admixture also to a .P.

    The table has a column ``item``, named by the kind of the data (``SNP``, ``measurement``), with the labels, columns ``text`` and
    ``scale`` where they are known, and one for each factor. Texts and scales by item replace those in the codebook of the fitted data.
    Loadings with an absolute value less than ``below`` become empty cells. A .P file has all numbers, and nothing else.

    Texts are never formulas: cells of an .xlsx are marked as text, and in a csv file, labels and texts that a spreadsheet would
    interpret as formulas get an apostrophe.

    Raises
    ------
    ParameterError
        ``path`` has another ending; ``texts`` or ``scales`` contain none of the items; ``below`` is negative, or, for a .P file,
        other than 0.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    DfactError
        ``path`` ends in .xlsx, and openpyxl is not installed.
    """
    path = parse_location(path)
    if suffix(path) != FREQUENCIES:
        _write_items(path, model, "loadings", model.loadings_, texts, scales, below, overwrite)
        return
    if below or texts or scales:
        given = f"below is {below!r}, expected 0" if below else "texts or scales are given, expected none"
        raise ParameterError(f"{given}, since {path} has all frequencies and nothing else; write a .csv, .parquet or .xlsx")
    check_destination(path, overwrite=overwrite, formats=ITEM_FORMATS)
    number_files(path).write_frequencies(model, path, overwrite=overwrite)


def write_confounder_loadings(
    model: Factorization,
    path: str | PathLike[str],
    *,
    texts: Texts = None,
    scales: Texts = None,
    below: float = 0.0,
    overwrite: bool = False,
) -> None:
    """Write the loadings on the encoded confounder columns, as :func:`write_loadings` does.

    They are parameters of the model; differences between its levels are not effects (see :func:`write_confounder_effects`).
    """
    require_confounders(model)
    fitted: Any = model
    _write_items(path, model, "confounders", fitted.confounder_loadings_, texts, scales, below, overwrite)


def write_confounder_effects(
    model: Factorization,
    path: str | PathLike[str],
    *,
    texts: Texts = None,
    scales: Texts = None,
    below: float = 0.0,
    overwrite: bool = False,
) -> None:
    """Write the effects of the confounders on the items at equal factors, in points, as :func:`write_loadings` writes loadings.

    Each difference has a column, and if the model has its stability further ones with mean, ends of the interval and standard error.
    """
    require_confounders(model)
    _write_items(path, model, "effects", effects_table(model), texts, scales, below, overwrite)


def write_confounder_impact(model: Factorization, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write the impact of the confounders on the factors to a .csv, .parquet or .xlsx, with the columns of the effects.

    Raises
    ------
    ParameterError
        ``path`` has another ending, or the model was fitted without confounders.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    require_confounders(model)
    path, table = parse_location(path), impact_table(model)
    check_destination(path, overwrite=overwrite, formats=LABELLED_FORMATS)
    if suffix(path) in WORKBOOKS:
        write_workbook(path, {"impact": table}, overwrite=overwrite)
        return
    with open_table(path, [str(column) for column in table], np.dtype(np.float64), ("factor",), overwrite=overwrite) as write:
        write(0, table.index.to_numpy(dtype=object), table.to_numpy(np.float64))


def write_item_tests(model: Factorization, path: str | PathLike[str], *, texts: Texts | None = None, overwrite: bool = False) -> None:
    """Write the tests of the items of ``model.comparison_`` to a .csv, .parquet or .xlsx, at full precision.

    The columns are as in :attr:`dfact.models.provenance.Comparison.effects`; columns of Mantel's test have with the prefix
    ``mantel_``, after the groups, the items, their texts if there are any, their scales and ETS classes. Flags are 1 or 0.

    Raises
    ------
    ParameterError
        ``path`` has another ending.
    DataError
        The model has no comparison, or one without tests of items.
    StoreError
        ``path`` exists (unless ``overwrite``), or cannot be written; no partial file remains.
    """
    path, comparison = parse_location(path), getattr(model, "comparison_", None)
    if comparison is None:
        raise DataError("the model has no comparison of groups, expected one; run dfact compare (compare_groups) first")
    if comparison.effects is None and comparison.mantel_tests is None:
        raise DataError(f"the comparison has no tests of items, because {comparison.untested}")
    check_destination(path, overwrite=overwrite, formats=LABELLED_FORMATS)
    require_own_items(model, texts=texts or {})
    mantel = None if comparison.mantel_tests is None else comparison.mantel_tests.add_prefix("mantel_")
    table = pd.concat([part for part in (comparison.effects, mantel) if part is not None], axis=1)
    items, known = table.index.get_level_values("item"), item_texts(model, texts or {})
    labels = {"groups": list(table.index.get_level_values(0)), "item": list(items)}
    labels |= {"text": [known.get(item, "") for item in items]} if known else {}
    labels |= {name: list(table.pop(f"mantel_{name}")) for name in ("scale", "class") if mantel is not None}
    values = table.to_numpy(np.float64)
    if suffix(path) in WORKBOOKS:
        described = pd.DataFrame(labels).set_index("groups")
        write_workbook(
            path, {"items": pd.concat([described, pd.DataFrame(values, described.index, table.columns)], axis=1)}, overwrite=overwrite
        )
        return
    with open_table(path, list(table), values.dtype, tuple(labels), overwrite=overwrite) as write:
        write(0, np.array(list(labels.values()), dtype=object).T, values)


def write_stability(
    model: Factorization,
    path: str | PathLike[str],
    *,
    texts: Texts = None,
    scales: Texts = None,
    below: float = 0.0,
    overwrite: bool = False,
) -> None:
    """Write the loadings over refits with their intervals and selection frequencies, as :func:`write_loadings` does.

    The columns are those of :func:`dfact.export.stability.stability_table`, and of a tensor those of
    :func:`dfact.export.stability.tensor_stability_table`. Raises ParameterError for a model without stability.
    """
    if not hasattr(model, "stability_"):
        raise ParameterError(f"the {type(model).__name__} has no stability, expected one; run dfact stability first")
    if below and not model.traits.tensor:
        raise ParameterError(f"below is {below!r}, expected 0 for intervals of loadings; leave it out (--suppress)")
    table = tensor_stability_table(model) if model.traits.tensor else stability_table(model)
    _write_items(path, model, "stability", table, texts, scales, below, overwrite)


def _write_items(
    path: str | PathLike[str],
    model: Factorization,
    name: str,
    table: pd.DataFrame,
    texts: Texts,
    scales: Texts,
    below: float,
    overwrite: bool,
) -> None:
    """Write a table of items, with their texts and scales if there are any."""
    path = parse_location(path)
    check_destination(path, overwrite=overwrite, formats=LABELLED_FORMATS)
    if not below >= 0:
        raise ParameterError(f"below is {below!r}, expected a number of at least 0")
    require_own_items(model, texts=texts, scales=scales)
    items = [str(item) for item in table.index]
    known = {"text": item_texts(model, texts), "scale": item_scales(model, scales)}
    labels = {model.vocabulary.item: items} | {
        column: [of_items.get(item, "") for item in items] for column, of_items in known.items() if of_items
    }
    values = np.where(np.abs(table.to_numpy()) < below, np.nan, table.to_numpy())
    columns = [str(column) for column in table]
    if suffix(path) in WORKBOOKS:
        described = pd.DataFrame(labels).set_index(model.vocabulary.item)
        write_workbook(path, {name: pd.concat([described, pd.DataFrame(values, described.index, columns)], axis=1)}, overwrite=overwrite)
        return
    with open_table(path, columns, values.dtype, tuple(labels), overwrite=overwrite) as write:
        write(0, np.array(list(labels.values()), dtype=object).T, values)


def require_numbers(model: Factorization, path: str | PathLike[str]) -> None:
    """Raise an error for a .Q file of a model without memberships, and for a .Q_se file of one without their standard errors."""
    if suffix(location := parse_location(path)) in (MEMBERSHIPS, STANDARD_ERRORS):
        number_files(location).require_memberships(model, location)


def check_destination(location: Location, *, overwrite: bool, formats: Sequence[str] = FORMATS) -> None:
    """Raise an error before the work if a location cannot be written."""
    check_ending(location, formats)
    if suffix(location) in (MEMBERSHIPS, STANDARD_ERRORS, FREQUENCIES):
        number_files(location)
    if suffix(location) == ".zarr":
        ensure_absent(location, overwrite=overwrite)
        return
    if suffix(location) in WORKBOOKS:
        require_openpyxl()
    if isinstance(location, str):
        _check_object(location, overwrite=overwrite)
        return
    path = location
    if path.is_dir():
        raise StoreError(f"{path} is a folder, expected a file; choose another path")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise StoreError(f"{path} lies in {folder}, which is a file, expected a folder; choose another path")
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists already, expected a new path; choose another one or replace it with overwrite=True (--overwrite)")


def _check_object(url: str, *, overwrite: bool) -> None:
    """Raise an error if there is an object of this name that is not to be replaced, or the bucket cannot be reached."""
    if describe(url) is not None and not overwrite:
        raise StoreError(f"{url} exists already, expected a new name; choose another one or replace it with overwrite=True (--overwrite)")
