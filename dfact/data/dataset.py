"""Datasets: values with labels, missing code, valid ranges and confounders, in memory or in a Zarr store.

Facts about genotypes are the variants of the columns and the populations of the rows. The kind of a dataset chooses the words for its
rows, columns and entries, here alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.codebook import Codebook
from dfact.data.confounders import ConfounderSummary, PlausibleRange
from dfact.data.replicate_weights import ReplicateWeights
from dfact.data.run_digests import DIGEST_BYTES
from dfact.data.sources.base import RowSource, RowSubset
from dfact.data.statistics import ColumnStatistics
from dfact.data.weights import WeightSummary, check_weights, weight_series
from dfact.errors import DataError
from dfact.lazy import pd
from dfact.storage.arrays import member, read_labels, read_numbers, write_array, write_labels
from dfact.storage.groups import kind_at, open_group
from dfact.storage.location import Location
from dfact.text import html_view

VARIANTS = "variants"
"""Name of the group of the variants in the store."""
_TEXTS = ("chromosome", "name", "A1", "A2")
_NUMBERS = {"cM": np.float64, "position": np.int64}
COLUMNS = ("chromosome", "name", "cM", "position", "A1", "A2")
"""Columns of the table of variants, as in PLINK's .bim files. A genotype is the number of its A2 alleles."""
FREQUENCY = "frequency"
"""Further column: the frequency of A2 in the data, NaN without any genotype."""


@dataclass(frozen=True, eq=False)
class Genotypes:
    """Facts about the rows and the columns of genotypes; none for other data."""

    population: pd.Categorical | None = None
    """Population of each row, missing where unknown."""
    dropped_variants: int = 0
    """Number of variants that the import dropped."""
    read: Callable[[], pd.DataFrame | None] | None = None
    """Function that reads the table of variants, which is large; None without one."""

    @cached_property
    def variants(self) -> pd.DataFrame | None:
        """Chromosome, name, cM, position, A1, A2 and the frequency of A2 of each column, which counts A2; None for other data."""
        return None if self.read is None else self.read()


def write_variants(group: zarr.Group, variants: pd.DataFrame, frequency: NDArray[np.float64]) -> None:
    """Write the table of variants, an array for each of its columns, and the frequencies of A2."""
    members = group.create_group(VARIANTS)
    for name in _TEXTS:
        write_labels(members, name, variants[name].to_numpy(object), "column")
    for name, dtype in _NUMBERS.items():
        write_array(members, name, variants[name].to_numpy(dtype), ("column",))
    write_array(members, FREQUENCY, frequency, ("column",))


def read_variants(group: zarr.Group, n: int) -> pd.DataFrame | None:
    """Read the table of n variants, None if the group has none; raise StoreError if a column of it is missing or damaged."""
    if member(group, VARIANTS) is None:
        return None
    texts = {name: read_labels(group, f"{VARIANTS}/{name}", n) for name in _TEXTS}
    numbers = {name: read_numbers(group, f"{VARIANTS}/{name}", n) for name in _NUMBERS}
    stored = f"{VARIANTS}/{FREQUENCY}"
    further = {FREQUENCY: read_numbers(group, stored, n)} if stored in group else {}
    return pd.DataFrame({name: (texts | numbers)[name] for name in COLUMNS} | further)


UNKNOWN = ("", "-")
"""Texts of an unknown population."""


def population_texts(populations: Any) -> NDArray[np.object_] | None:
    """Return the name of the population of each row, "" where unknown; None without any."""
    if populations is None:
        return None
    texts = ["" if pd.isna(name) else str(name).strip() for name in populations]
    return np.array(["" if text in UNKNOWN else text for text in texts], dtype=object)


KIND = "dataset"


def confounder_codes(values: pd.Series[Any]) -> tuple[NDArray[Any], list[str] | None]:
    """Return a confounder's stored form: level numbers (−1 = missing) with the levels, or floats with None."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(np.int32), [str(level) for level in values.cat.categories]
    return values.to_numpy(np.float64), None


class StoredConfounder(NamedTuple):
    """A confounder as it is stored, of which no pandas is needed."""

    name: str
    values: NDArray[Any]
    """Floats, NaN where missing, or numbers of levels, −1 where missing."""
    levels: list[str] | None

    def column(self) -> Any:
        """Return the values as a column of a data frame."""
        return self.values if self.levels is None else pd.Categorical.from_codes(self.values.tolist(), pd.Index(self.levels, dtype="str"))


@dataclass(frozen=True, eq=False)
class Dataset:
    """The input of every estimator: an array of rows (participants) with its labels, ranges and statistics.

    Created by :func:`dfact.import_table`, :func:`dfact.import_array`, :func:`dfact.import_genotypes` and :func:`dfact.open_dataset`,
    and from arrays in memory by the estimators themselves.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> dataset = dfact.import_array(np.array([[1.0, 2.0], [3.0, np.nan]]), "answers.zarr", row_labels=["Ada", "Ben"])
    >>> dataset.shape, dataset.missing_rate, list(dataset.row_labels)
    ((2, 2), 0.25, ['Ada', 'Ben'])
    """

    source: RowSource
    """The rows, read by their numbers."""
    missing_code: int | None
    """Stored value that marks missing entries, in addition to NaN; None without one."""
    column_labels: NDArray[Any]
    """Labels of the columns (m,)."""
    valid_range: NDArray[np.float64]
    """Lowest and highest valid entry of each column (m, 2), in stored units."""
    offset: NDArray[np.float64]
    """Difference of each column's entries in the file from the stored ones (m,)."""
    statistics: ColumnStatistics
    """Counts and ranges of the columns."""
    confounder_source: pd.DataFrame | tuple[StoredConfounder, ...] | None = field(default=None, repr=False)
    """Confounders of the rows: a table (n, c), or where they are stored; None without any."""
    path: Location | None = None
    """Store of the dataset; None for data in memory."""
    dropped_rows: int = 0
    """Number of rows without any answer that the import dropped."""
    codebook: Codebook | None = field(default=None, repr=False)
    """One item for each column; None if nothing is known of them."""
    confounder_ranges: Mapping[str, PlausibleRange] = field(default_factory=dict, repr=False)
    """Plausible ranges by confounder, where they were declared."""
    weights: pd.Series[float] | None = field(default=None, repr=False)
    """Weights of the rows (n,), such as survey weights; None without any."""
    replicate_weights: ReplicateWeights | None = field(default=None, repr=False)
    """Replicate weights of a survey (n, R), in addition to its weights; None without any."""
    labels: NDArray[Any] | None = field(default=None, repr=False)
    """Labels of the rows (n,); None for rows without labels, or with labels in the store."""
    mode_labels: tuple[NDArray[Any] | None, ...] = ()
    """Labels of the third and further modes; None for a mode without labels."""
    genotypes: Genotypes = field(default=Genotypes(), repr=False)
    """Populations of the rows and variants of the columns; empty for other data."""
    stored_fingerprint: str | None = field(default=None, repr=False)
    """Fingerprint in the store; None for data in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all modes, the rows first: (n, m), for a tensor (I_1, …, I_N)."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored entries."""
        return self.source.dtype

    @property
    def missing_rate(self) -> float:
        """Proportion of missing entries."""
        return self.statistics.missing_rate

    @cached_property
    def confounders(self) -> pd.DataFrame | None:
        """Known influences on the rows, such as age or site, with a column for each; None without any."""
        source = self.confounder_source
        return pd.DataFrame({each.name: each.column() for each in source}) if isinstance(source, tuple) else source

    def confounder_summaries(self) -> tuple[ConfounderSummary, ...]:
        """Return what the encoding of the confounders takes from their values.

        Returns
        -------
        tuple of ConfounderSummary
            One for each confounder, empty without any.
        """
        frame = self.confounders
        return () if frame is None else tuple(ConfounderSummary.of(frame[name]) for name in frame.columns)

    def weight_summary(self) -> WeightSummary | None:
        """Summarize the weights of the rows, as fits need them.

        Returns
        -------
        WeightSummary or None
            None without weights.
        """
        return None if self.weights is None else WeightSummary.of(self.weights)

    def stored_confounders(self) -> tuple[StoredConfounder, ...]:
        """Return the confounders as they are stored.

        Returns
        -------
        tuple of StoredConfounder
            One for each confounder, empty without any.
        """
        source = self.confounder_source
        if source is None or isinstance(source, tuple):
            return source or ()
        return tuple(StoredConfounder(str(name), *confounder_codes(source[name])) for name in source)

    @cached_property
    def row_labels(self) -> pd.Index[Any]:
        """Labels of the rows; without labels, 0, 1, …."""
        labels: Any = self.label_source
        if isinstance(labels, zarr.Array) and self.path is not None:
            labels = read_labels(open_group(self.path, KIND), "row", self.shape[0])
        index: pd.Index[Any] = pd.RangeIndex(self.shape[0], name="row") if labels is None else pd.Index(labels, name="row")
        return index

    @property
    def label_source(self) -> NDArray[Any] | zarr.Array[Any] | None:
        """The row labels as an array in memory or in the store, where there may be too many to load; None without labels."""
        # The path may also lead to a bare Zarr array, which has no labels.
        if self.labels is not None or self.path is None or kind_at(self.path) != KIND:
            return self.labels
        labels = open_group(self.path, KIND).get("row")
        return labels if isinstance(labels, zarr.Array) else None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the values and the metadata; independent of chunking and location."""
        if self.stored_fingerprint is not None:
            return self.stored_fingerprint
        return fingerprint(self, self.source.digests(), self.source.implicit_value)

    def with_confounders(self, confounders: pd.DataFrame | None) -> Dataset:
        """Return the dataset with other confounders.

        Parameters
        ----------
        confounders : DataFrame (n, c) or None
            One column for each confounder; None for a dataset without any.

        Returns
        -------
        Dataset
            The same rows with these confounders.
        """
        return replace(self, confounder_source=confounders, confounder_ranges={}, stored_fingerprint=None)

    def with_weights(self, weights: Any) -> Dataset:
        """Return the dataset with other weights of its rows (n,); None for a dataset without weights.

        Its replicate weights, which belong to its own weights, are left out.

        Parameters
        ----------
        weights : array (n,) or None
            Weights of the rows, at least 0.

        Returns
        -------
        Dataset
            The same rows with these weights.

        Raises
        ------
        DataError
            A weight is missing, infinite or negative, or none is above 0.
        """
        if weights is None:
            return self if self.weights is None else replace(self, weights=None, replicate_weights=None, stored_fingerprint=None)
        series = weight_series(weights, self.shape[0])
        check_weights(series)
        return replace(self, weights=series, replicate_weights=None, stored_fingerprint=None)

    def with_replicate_weights(
        self, values: Any, *, method: str, fay: float | None = None, scales: float | Sequence[float] | None = None
    ) -> Dataset:
        """Return the dataset with replicate weights (n, R) in addition to its weights, as
        :meth:`dfact.data.replicate_weights.ReplicateWeights.of` takes them.

        Parameters
        ----------
        values : array or table (n, R)
            Weights of the rows in each replicate, at least 0.
        method : str
            How the replicates were made, such as "jk1", "jkn", "brr", "fay" or "bootstrap".
        fay : float, optional
            Fay's factor ρ, of the method "fay" alone.
        scales : float or sequence of R floats, optional
            Factors a_r of the method "jkn".

        Returns
        -------
        Dataset
            The same rows with these replicate weights.

        Raises
        ------
        DataError
            The dataset has no weights; or the errors of :meth:`dfact.data.replicate_weights.ReplicateWeights.of`.
        ParameterError
            The errors of that method.
        """
        if self.weights is None:
            raise DataError("the dataset has no weights, expected the main weights with its replicate weights; add them (--weight)")
        replicates = ReplicateWeights.of(values, self.shape[0], method=method, fay=fay, scales=scales)
        return replace(self, replicate_weights=replicates, stored_fingerprint=None)

    def take_rows(self, numbers: NDArray[np.intp]) -> Dataset:
        """Return the rows with these numbers, ascending, which become their labels; reads them once for the statistics.

        Parameters
        ----------
        numbers : array (n',) of int
            Numbers of the rows, ascending.

        Returns
        -------
        Dataset
            A view of these rows (n', m), without confounders, weights and populations.
        """
        source = RowSubset(self.source, numbers)
        statistics = ColumnStatistics.of_source(source, self.missing_code)
        rows_only: dict[str, Any] = {
            "confounder_source": None,
            "confounder_ranges": {},
            "weights": None,
            "genotypes": replace(self.genotypes, population=None),
            "replicate_weights": None,
        }
        return replace(self, source=source, statistics=statistics, labels=numbers, stored_fingerprint=None, **rows_only)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.shape))
        where = f" at {self.path}" if self.path else ""
        return f"<Dataset {size} {self.dtype}, {self.missing_rate:.2%} missing{where}>"

    def _repr_html_(self) -> str:
        """Return the dataset for a notebook: its size, and the first of its items."""
        confounders = [confounder.name for confounder in self.stored_confounders()]
        lines = [
            ("type", f"{self.dtype}, {self.missing_rate:.2%} missing"),
            ("location", str(self.path or "memory")),
            *([("confounders", ", ".join(confounders))] if confounders else []),
            *([("weights", str(self.weights.name))] if self.weights is not None else []),
        ]
        items = pd.DataFrame({"low": self.valid_range[:, 0] + self.offset, "high": self.valid_range[:, 1] + self.offset})
        items.index = pd.Index(self.column_labels.astype(str), name="item")
        if self.codebook is not None:
            items.insert(0, "wording", [item.text for item in self.codebook])
        return html_view(f"Dataset {'×'.join(map(str, self.shape))}", lines, {"": items})


def fingerprint(dataset: Dataset, digests: bytes, implicit_value: float) -> str:
    """Return BLAKE2b over the digests of the runs of the rows, in order, then over the metadata of the dataset."""
    implicit = " implicit: missing" if np.isnan(implicit_value) else ""
    digest = hashlib.blake2b(f"{dataset.shape[1:]} {dataset.dtype.str}{implicit}".encode(), digest_size=DIGEST_BYTES)
    digest.update(digests)
    labels = [str(label) for label in dataset.column_labels]
    ranges = [dataset.valid_range.tolist(), dataset.offset.tolist()]
    digest.update(json.dumps([dataset.shape[0], dataset.missing_code, labels, ranges]).encode())
    if not isinstance(dataset.row_labels, pd.RangeIndex):
        digest.update("\0".join(map(str, dataset.row_labels)).encode())
    for mode, names in enumerate(dataset.mode_labels, start=3):
        if names is not None:
            digest.update(json.dumps([mode, [str(label) for label in names]]).encode())
    if dataset.confounders is not None:
        for name, values in dataset.confounders.items():
            codes, levels = confounder_codes(values)
            digest.update(json.dumps([str(name), levels]).encode())
            digest.update(np.ascontiguousarray(codes).data)
    if dataset.weights is not None:
        digest.update(json.dumps(["weights", str(dataset.weights.name)]).encode())
        digest.update(np.ascontiguousarray(dataset.weights, np.float64).data)
    if dataset.replicate_weights is not None:
        digest.update(json.dumps(["replicate_weights"]).encode())
        digest.update(dataset.replicate_weights.digest())
    population = dataset.genotypes.population
    if population is not None:
        digest.update(json.dumps(["population", *map(str, population.categories)]).encode())
        digest.update(population.codes.astype(np.int32).data)
    return digest.hexdigest()


Kind = Literal["genotypes", "answers", "measurements", "values"]


@dataclass(frozen=True)
class Words:
    """Words for the parts of data, in the plural; properties give the singular."""

    rows: str
    columns: str
    entries: str

    @property
    def row(self) -> str:
        """Word for one row."""
        return self.rows.removesuffix("s")

    @property
    def column(self) -> str:
        """Word for one column."""
        return self.columns.removesuffix("s")

    @property
    def a_column(self) -> str:
        """Word for one column, with its article."""
        return f"{'an' if self.column[0] in 'aeiou' else 'a'} {self.column}"


WORDS: dict[Kind, Words] = {
    "genotypes": Words("individuals", "SNPs", "genotypes"),
    "answers": Words("participants", "items", "answers"),
    "measurements": Words("rows", "measurements", "values"),
    "values": Words("rows", "columns", "entries"),
}
"""Words by kind. Rows of measurements may be days, samples or people; those of other arrays anything."""


def kind_of(dataset: Dataset) -> Kind:
    """Return the kind of a dataset.

    Columns that an import described are answers; they are measurements if they have fractional values, and neither levels, nor
    wordings, nor scales.
    """
    if dataset.genotypes.variants is not None:
        return "genotypes"
    if dataset.codebook is None:
        return "values"
    described = any(item.levels or item.wording or item.scale or item.is_reversed for item in dataset.codebook)
    return "answers" if described or dataset.dtype.kind != "f" else "measurements"


def words_of(dataset: Dataset) -> Words:
    """Return the words for the parts of a dataset."""
    return WORDS[kind_of(dataset)]
