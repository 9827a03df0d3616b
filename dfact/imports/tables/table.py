"""import_table: write a table on disk as a dataset, reading it once, in parallel, without loading it into memory."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dfact.data.confounders import Kind, check_ranges
from dfact.data.dataset import Dataset
from dfact.data.statistics import ColumnStatistics
from dfact.data.stored_dataset import open_dataset
from dfact.data.validation import EmptyRows, check_empty_rows, fill_limits, require_observed_columns, stored_limits
from dfact.errors import DataError, ParameterError
from dfact.imports.coding.answers import AnswerCoding
from dfact.imports.coding.rules import Codes, Levels, Range, Statements, Unlabelled, count_texts, plan_coding, unordered_texts
from dfact.imports.coding.tick_boxes import warn_of_boxes
from dfact.imports.dictionaries.base import Dictionary, describe
from dfact.imports.readers.base import Input, ReadOptions, Table, TextInNumbersError, Variable
from dfact.imports.readers.formats import TableSource, open_source, open_table
from dfact.imports.readers.frames import InputFrame
from dfact.imports.readers.number_marks import is_number
from dfact.imports.tables.arrangement import Arrangement, Counts, arrange, choose_events, choose_instances
from dfact.imports.tables.chunks import write_spooled
from dfact.imports.tables.dictionary import (
    default_id,
    find_dictionary,
    holds_labels,
    reversed_by_keying,
    with_forms,
    with_labels_as_texts,
)
from dfact.imports.tables.far_answers import far_answers
from dfact.imports.tables.items import check_columns, infer_items, join_parts, match_columns
from dfact.imports.tables.participants import ParticipantColumns, confounder_kinds, match_names
from dfact.imports.tables.spool import Progress, Spooled, spool
from dfact.imports.tables.stack import Stack
from dfact.imports.writing.storage_types import missing_code_for, storage_type
from dfact.imports.writing.tasks import TaskPool, open_pool
from dfact.imports.writing.writer import dataset_writer
from dfact.storage.groups import ensure_absent, scratch_store
from dfact.storage.location import parse_location
from dfact.storage.remote_files import Signature

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distributed import Client


_LOWEST_IN_SINGLE_PRECISION = 1 << 14
"""Magnitude of a negative offset whose subtraction leaves answers near 0 their thousandths in single precision."""


def import_table(
    source: TableSource,
    path: str | PathLike[str],
    *,
    items: str | Sequence[str] | None = None,
    id_column: str | None = None,
    confounders: Sequence[str] | Mapping[str, Kind | None] = (),
    levels: Levels | Mapping[str, Levels] | None = None,
    recode: Mapping[str, Mapping[float, float]] | None = None,
    missing: Codes | Mapping[str, Codes] = (),
    not_missing: Mapping[str, Codes] | None = None,
    empty_cells: float | str | Mapping[str, float | str] | None = None,
    default_missing: bool = True,
    confounder_missing: Codes | Mapping[str, Codes] | None = (),
    confounder_ranges: Mapping[str, Range] | None = None,
    weight: str | None = None,
    replicate_weights: str | Sequence[str] = (),
    replicate_method: str | None = None,
    replicate_scales: float | Sequence[float] | None = None,
    fay: float | None = None,
    reverse: str | Sequence[str] = (),
    unlabelled: Unlabelled = "error",
    shift: bool = True,
    valid_range: Range | Mapping[str, Range] | None = None,
    empty_rows: EmptyRows = "error",
    overwrite: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    header_rows: int | None = None,
    skip_rows: int | None = None,
    sheet: str | None = None,
    object: str | None = None,  # noqa: A002  # the name of the option, and of no use as a type here
    labels: str | PathLike[str] | None = None,
    dictionary: str | PathLike[str] | None = None,
    codings: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    third_mode: Stack | None = None,
    event: str | None = None,
    instance: int | str | None = None,
    n_readers: int | None = None,
    executor: "str | Executor | Client | None" = None,
) -> Dataset:
    """Write the answers of a table as a dataset, several parts of the table at a time.

    The table is read once. Its rows wait in compressed form next to ``path`` until the type of the stored values
    is known. An error leaves nothing of them and no partial dataset. Only the ids and the confounders need memory that grows
    with the number of rows; each task needs some 50 MB, and a parquet file with large row groups up to 2 MB for each column.
    The dataset does not depend on the number of tasks or on where they run. Whole numbers
    are stored in the smallest of uint8, int16 and int32 that holds them (float64 if none does),
    all other numbers in single precision, or in double precision where answers near 0 would lose their thousandths to a
    negative one of 16,384 or more.

    Parameters
    ----------
    source : str, path or data frame
        A data frame of pandas, polars, pyarrow or DuckDB (anything with ``__arrow_c_stream__``), or the path or URL of a table: a
        file, or a folder of parts, in one of the formats that ``dfact help formats`` lists. Text is UTF-8 with the column names in
        its first line, unless ``encoding`` and ``header_rows`` say otherwise; cells of .tsv and .txt files are separated by tabs.
    path : str or path
        Location of the new dataset (a folder, usually ``*.zarr``, or a URL such as ``s3://bucket/a.zarr``).
    items : name or pattern, or several
        The columns with the answers. A pattern such as "Q*" selects all matching columns, in
        the file's order, except the id, the confounders and columns without answers (dates, identifiers). A name
        with a minus, "-v3", is an item to reverse. May be left out if the file has one set of items: at least
        three columns with the same labelled levels, or three that are declared ordinal and whose names begin alike;
        with a dictionary of REDCap, the choices and sliders. Columns chosen so that have no answer are left out.
        The name of a field stands for its boxes or instances.
    id_column : name
        The column with the participants' labels, which must be unique. By default that of UK Biobank or REDCap, if
        the columns are theirs.
    confounders : names, or dict from name to "categorical", "continuous" or None (inferred)
        Columns of confounders. Text, and whole numbers with at most ten distinct values, are categorical by default. Dates that are
        declared continuous become years.
    levels : "a<b<c", list of texts, or dict from text to number; or dict from name or pattern to such levels
        The order of text answers, whose first level is 1. By default the order that the file declares.
    recode : dict from name or pattern to a dict from code to code
        Codes to replace, before missing codes are applied.
    missing : numbers or texts, or dict from name or pattern to such codes
        Codes for a missing answer, besides those that the file declares. Empty cells and NaN are always missing.
    not_missing : dict from name or pattern to codes
        Codes of items, confounders and the weight that are answers, although the file declares them as missing, or their label, sign or
        distance from the others suggests it.
    empty_cells : number or text, or dict from name or pattern to such an answer
        The answer that an empty cell is, such as 0 for boxes of which only those that are ticked have a 1; a text must be one of
        the ``levels``. By default, empty cells are missing.
    default_missing : bool
        Whether texts such as NA, N/A, null and "." are missing, too.
    confounder_missing : numbers or texts, or dict from name to such codes
        Codes for a missing value of a confounder.
    confounder_ranges : dict from name to pair of numbers
        Lowest and highest plausible value of confounders, which are then continuous; a value outside is missing, and
        ``Dataset.confounder_ranges`` counts these values. Without a range, values far from all others draw a warning.
    weight : name
        Column with the weights of the participants, such as survey weights, which become ``Dataset.weights``: numbers of at
        least 0, and some above 0. A participant without any answer, who is dropped, needs none.
    replicate_weights : name or pattern, or several
        Columns with the replicate weights of a survey, in addition to its ``weight``, such as "RW*", which become
        ``Dataset.replicate_weights``. Standard errors then take the survey's strata and clusters into account.
    replicate_method : "jk1", "jkn", "brr", "fay" or "bootstrap"
        Method by which the survey made them; see :mod:`dfact.data.replicate_weights` for the formulas. NHANES documents BRR or
        a jackknife by year, PISA has Fay's BRR with a factor of 0.5.
    replicate_scales : number, or one for each replicate
        Factors (n_h − 1)/n_h of "jkn".
    fay : float
        Fay's factor of "fay".
    reverse : name or pattern, or several
        Items to reverse: x becomes low + high − x, with the range that the levels or ``valid_range`` declare. "@Keying"
        stands for the items that the column Keying of the dictionary marks as reversed.
    unlabelled : {"error", "keep"}
        Treatment of a value without a label in an item whose values are labelled.
    shift : bool
        Store the answers from 0 up: the lowest valid value of each column is subtracted and stored as
        the dataset's ``offset``.
    valid_range : pair of numbers, or dict from name or pattern to such a pair
        Lowest and highest valid answer, in the file's units; a value outside raises an error. By default the
        range of the declared levels, else that of the data, one for all columns.
    empty_rows : {"error", "drop"}
        Treatment of a row without any answer: raise an error, or drop it. ``Dataset.dropped_rows`` counts dropped rows.
    overwrite : bool
        Replace an existing dataset at ``path``.
    progress : function
        Called with (bytes, total bytes, "bytes read") while the table is read, if its format knows them, then with (rows,
        total rows, "rows written").
    note : function
        Called with sentences about decisions that the import made.
    delimiter, encoding, decimal, thousands : text
        Separator of the cells, encoding, decimal mark, and mark between thousands of a text file; "space" stands for all kinds of it.
    header_rows, skip_rows : int
        Number of lines with column names, and of lines above them, such as notes.
    sheet : name
        Sheet of a workbook.
    object : name
        Table in a file of several.
    labels : str or path
        File with the value labels of a SAS file.
    dictionary : str or path
        A data dictionary of REDCap or UK Biobank, or a codebook with the columns item and text, levels, missing, scale or key;
        its statements override those of the file.
    codings : path or paths
        Codings of UK Biobank; project information (missing data codes) or the list of events of REDCap.
    third_mode : {"events", "instances"}
        Third mode of the dataset: the events of REDCap (rows below each other), or the instances of UK Biobank (columns side by
        side). Those without any answer are left out.
    event, instance : name, number
        The only event or instance to read.
    n_readers : int
        Number of tasks side by side; by default one for each core of this machine, at most 16, or each worker of the executor.
    executor : None, "inline", "threads", concurrent.futures.Executor, distributed.Client or cluster
        Place where the tasks run, by default threads of this process. Processes on other machines must reach ``source`` and
        ``path`` under the same names.

    Returns
    -------
    Dataset
        The new dataset, opened from ``path``.

    Raises
    ------
    DataError
        Codes that may stand for no answer, by their label, their sign or their distance from all others.
        An unknown column, text in place of a number, a value outside the valid range or infinite, an empty
        row or column, a row of the wrong length, a missing or duplicate id, an invalid weight; with the line in the file
        (the header is line 1), or the row of a parquet file, counted from 0.
    ParameterError
        An invalid argument.
    StoreError
        ``source`` cannot be read; ``path`` exists, or cannot be written. No partial dataset is left.

    Examples
    --------
    >>> import dfact
    >>> from dfact.data.examples import ipip_ascado
    >>> dfact.import_table(
    ...     ipip_ascado(), "ipip.zarr", items=["AS*", "SC*", "AD*", "DO*"], confounders=["age", "gender"], missing=0, empty_rows="drop"
    ... )
    <Dataset 1004×40 uint8, 0.60% missing at ipip.zarr>
    """
    path = parse_location(path)
    check_empty_rows(empty_rows)
    ensure_absent(path, overwrite=overwrite)
    file = open_source(source)
    opened = open_table(
        file,
        ReadOptions(
            delimiter, encoding, decimal, thousands, header_rows, skip_rows, sheet, object, None if labels is None else str(labels)
        ),
    )
    kinds = confounder_kinds(confounders)
    ranges = check_ranges(confounder_ranges or {}, kinds)
    kinds |= dict.fromkeys(ranges, "continuous")
    before = file.signature()
    of_people = {*kinds, weight}
    kept = {name: codes for name, codes in (not_missing or {}).items() if name in of_people}
    not_missing = {name: codes for name, codes in (not_missing or {}).items() if name not in of_people}
    user_rules = Statements(
        levels, recode, missing, not_missing, default_missing, reverse, valid_range, unlabelled, empty_cells, opened.marks
    )
    description = find_dictionary(opened, dictionary, codings)
    id_column = default_id(opened, description, kinds) if id_column is None else id_column
    replicates = match_names(opened.columns, replicate_weights, "replicate weights")
    people = ParticipantColumns(
        id=id_column,
        kinds=kinds,
        ranges=ranges,
        missing=confounder_missing,
        answers=kept,
        default_missing=default_missing,
        weight=weight,
        replicates=replicates,
        method=replicate_method,
        fay=fay,
        scales=replicate_scales,
        marks=opened.marks,
    )
    described = _DescribedTable(
        opened, description, people.names, user_rules, third_mode, event, None if instance is None else str(instance)
    )
    unanswered: list[str] = []
    with scratch_store(path) as scratch, open_pool(executor, n_readers, scratch) as pool:
        arranged = described.arrange(items)
        rows = _spool(arranged, empty_rows, pool, progress)
        if items is None and (unanswered := arranged.unanswered(rows.statistics)):
            answered = [item.name for item in arranged.items.items if item.name not in unanswered]
            with warnings.catch_warnings(action="ignore"):  # the first arrangement has warned
                arranged = described.arrange(answered)
            rows = _spool(arranged, empty_rows, pool, progress)
        table = arranged.table
        require_unchanged(file, before)
        arranged.require_no_doubt(table.name, rows.counts, *far_answers(rows, arranged.coding, scratch))
        arranged = arranged.with_answers(rows.statistics)
        statistics = arranged.of_items(rows.statistics)
        require_observed_columns(table.name, arranged.labels, statistics.observed)
        warn_of_boxes(table.name, arranged.items, statistics)
        if note is not None:
            for remark in [*opened.notes, *rows.remarks(table.name)]:  # of the file, not of its arrangement
                note(remark)
            _note_decisions(arranged, unanswered, rows.counts, statistics, description, note, chosen=items is None)
        participants = people.read(table, rows.texts, described.variables, rows.empty)
        limits = fill_limits(arranged.items.limits, statistics)
        offset = limits[:, 0] if shift else np.zeros(len(limits))
        dtype = _stored_type(table, statistics, offset, integers=rows.integers)
        with dataset_writer(
            path,
            (rows.n_kept, *arranged.shape),
            dtype,
            missing_code=missing_code_for(dtype),
            column_labels=arranged.labels,
            name=table.name,
            empty=empty_rows,
            overwrite=overwrite,
        ) as writer:
            writer.finish(
                write_spooled(rows, writer, arranged.of_columns(offset), dtype, pool, progress, arranged.layout),
                participants,
                valid_range=stored_limits(limits - offset[:, None], dtype),
                offset=offset,
                mode_labels=arranged.mode_labels,
                codebook=arranged.codebook(rows.counts, rows.statistics, f"{table.name}, {table.format}"),
            )
    pa.default_memory_pool().release_unused()  # otherwise Arrow's pool retains freed memory
    return open_dataset(path)


def _spool(arranged: Arrangement, empty_rows: EmptyRows, pool: TaskPool, progress: Progress | None) -> Spooled:
    """Read the table once, and store its rows in the pool's scratch store."""
    try:
        return spool(arranged.table, arranged.coding, empty_rows, pool, progress)
    except TextInNumbersError as error:
        raise _text_answers(arranged.table, [item.name for item in arranged.coding.items], error) from error


def require_unchanged(source: Input | InputFrame, before: Signature | tuple[Signature, ...]) -> None:
    """Raise DataError if the file has changed since it had the signature ``before``."""
    if source.signature() != before:
        raise DataError(f"{source} changed while it was read; import it again")


@dataclass(frozen=True)
class _DescribedTable:
    """A table with what its dictionary, its file and the user say about it."""

    table: Table
    dictionary: Dictionary | None
    text_columns: Sequence[str]
    """Columns that describe participants, and are not items."""
    user_rules: Statements
    stack: Stack | None
    event: str | None
    instance: str | None

    @cached_property
    def variables(self) -> Mapping[str, Variable]:
        """Variables of the table, as its file and its dictionary describe them."""
        variables = describe(self.table.variables, self.dictionary, self.table.columns)
        has_labels = self.dictionary is not None and holds_labels(self.table, variables)
        return {name: with_labels_as_texts(each) for name, each in variables.items()} if has_labels else variables

    def arrange(self, items: str | Sequence[str] | None) -> Arrangement:
        """Return these items, by default all, and their coding, at one event or instance, or at all of them as a mode."""
        table, events = choose_events(self.table, self.dictionary, self.stack, self.event)
        names, user_rules = self._select_items(table, items)
        columns, layout = choose_instances(table.name, self.dictionary, names, self.stack, self.instance)
        coding = replace(plan_coding(table, self.variables, list(columns.values()), user_rules), text_columns=tuple(self.text_columns))
        return arrange(table, with_forms(coding, self.dictionary, table), columns, layout, events)

    def _select_items(self, table: Table, items: str | Sequence[str] | None) -> tuple[list[str], Statements]:
        """Return the items, and the statements with the items that are named with a minus or by their keying, which are reversed."""
        dictionary, text_columns = self.dictionary, self.text_columns
        check_columns(table, text_columns)
        turned: list[str] = []
        if items is None:
            default = None if dictionary is None else dictionary.default_items(table.columns)
            names = [name for name in default or () if name not in text_columns] or infer_items(table, self.variables, text_columns)
        else:
            known = set(table.columns)
            given = join_parts([items] if isinstance(items, str) else list(items), known)
            if dictionary is not None:
                given = [column for name in given for column in ((name not in known and dictionary.expand(name, table.columns)) or [name])]
            turned = [name[1:] for name in given if name not in known and name[:1] == "-" and name[1:] in known]
            names = match_columns(table, self.variables, [name[1:] if name[1:] in turned else name for name in given], text_columns)
        check_columns(table, names)
        duplicate = next((name for name in text_columns if text_columns.count(name) > 1 or name in names), None)
        if duplicate is not None:
            raise ParameterError(f"column {duplicate!r} is named twice, expected once: as an item, the id, a confounder or the weight")
        for name in [self.user_rules.reverse] if isinstance(self.user_rules.reverse, str) else self.user_rules.reverse:
            turned += reversed_by_keying(dictionary, name[1:], names) if name.startswith("@") else [name]
        return names, replace(self.user_rules, reverse=turned)


def _note_decisions(
    arranged: Arrangement,
    unanswered: Sequence[str],
    counts: Counts,
    statistics: ColumnStatistics,
    description: Dictionary | None,
    note: Callable[[str], None],
    *,
    chosen: bool,
) -> None:
    """Report what the import decided: items, events that it left out, boxes and codes that are missing, negative codes that are answers."""
    if unanswered:
        note(f"{arranged.table.name}: left out, as they have no answer: {', '.join(unanswered)}")
    if chosen:
        names = ", ".join(item.name for item in arranged.items.items)
        note(f"{arranged.table.name}: the items are {names}{_levels_text(arranged.items)}")
    if arranged.left_out:
        note(f"{arranged.table.name}: left out, as none of the items has an answer there: {', '.join(arranged.left_out)}")
    for sentence in [*arranged.unopened_forms(counts), *arranged.frequent_missing_codes(counts)]:
        note(sentence)
    if description is not None and description.signs_are_meaningless and (codes := arranged.negative_answers(statistics)):
        note(f"{arranged.table.name}: negative codes that are answers: {codes}")


def _levels_text(coding: AnswerCoding) -> str:
    """Return the levels of a battery as the end of a sentence; "" for items with different levels."""
    first = coding.items[0].levels
    same = bool(first) and all(item.levels == first for item in coding.items)
    return f", a battery with the levels {' < '.join(label for _, label in first)}" if same else ""


def _text_answers(table: Table, items: Sequence[str], error: TextInNumbersError) -> DataError:
    """Return the error for text in a column of numbers; where most cells are a few texts, they are answers without a known order."""
    counts = count_texts(table, items if error.column in items else [error.column])
    texts = counts[error.column]
    n_texts = sum(count for text, count in texts.items() if not is_number(text))
    alike = [name for name, others in counts.items() if {*others} == {*texts}]
    return unordered_texts(table, error.column, alike) if 2 * n_texts > texts.total() and len(texts) <= _MAX_LEVELS else error


_MAX_LEVELS = 50
"""Largest number of distinct texts in a column of text answers; more are notes or names."""


def _stored_type(table: Table, statistics: ColumnStatistics, offset: NDArray[np.float64], *, integers: bool) -> np.dtype[Any]:
    """Return the smallest type that holds the answers minus the offset."""
    with np.errstate(over="ignore"):
        low, high = (statistics.minimum - offset).min(), (statistics.maximum - offset).max()
    if np.isinf(high):
        found = f"{statistics.minimum.min():g} to {statistics.maximum.max():g}"
        raise DataError(f"{table.name}: the answers range from {found}, expected a difference below 1.8e308; pass shift=False (--no-shift)")
    dtype = storage_type(low, high, integers=integers and np.array_equal(offset, np.floor(offset)))
    largest = np.maximum(np.abs(statistics.minimum), np.abs(statistics.maximum))
    far = (np.abs(offset) * np.finfo(np.float64).eps > 1e-6 * largest) & (largest > 0)
    if dtype.kind == "f" and far.any():
        i = int(np.flatnonzero(far)[0])
        raise DataError(
            f"{table.name}: the lowest valid answer is {offset[i]:g} with answers up to {largest[i]:g}, expected a range in which they "
            "keep their digits; declare it in missing= (--missing), give the range in valid_range= (--valid-range), or pass shift=False"
        )
    if dtype == np.float32 and -offset.min() > _LOWEST_IN_SINGLE_PRECISION:
        return np.dtype(np.float64)
    return dtype
