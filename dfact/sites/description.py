"""Descriptions: what a site says of its data before a fit, what all sites together are, and the contract that each must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.codebook import Codebook
from dfact.data.concatenate import find_difference
from dfact.data.confounders import ConfounderSummary, PlausibleRange
from dfact.data.dataset import Dataset
from dfact.data.sources.base import DenseSource, RowSource
from dfact.data.sources.concatenated import ConcatenatedSource
from dfact.data.statistics import ColumnStatistics
from dfact.data.weights import MAX_EXPONENT, WeightSummary
from dfact.errors import DataError, DfactError, FederationError
from dfact.lazy import pd
from dfact.sites.messages import Message, short
from dfact.sites.policy import WithheldError
from dfact.storage.seals import json_digest


@dataclass(frozen=True, eq=False)
class AbsentRows(DenseSource):
    """Rows that are at another site: their number and columns are known, not their values."""

    full_shape: tuple[int, ...]
    entry_type: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.full_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.entry_type

    @property
    def present_rows(self) -> int:
        return 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        raise DataError("these rows are at another site, which sends sums alone")

    def slice(self, rows: slice) -> RowSource:
        start, stop, _ = rows.indices(self.shape[0])
        return replace(self, full_shape=(max(0, stop - start), *self.shape[1:]))


@dataclass(frozen=True, eq=False)
class PooledDataset(Dataset):
    """The data of all sites, of which a process holds the rows of one, or none."""

    summaries: tuple[ConfounderSummary, ...] = ()
    """Summaries of the confounders of all rows."""
    summary_of_weights: WeightSummary | None = None
    """Summary of the weights of all rows."""

    def confounder_summaries(self) -> tuple[ConfounderSummary, ...]:
        return self.summaries

    def weight_summary(self) -> WeightSummary | None:
        return None if self.weights is None else self.summary_of_weights

    def with_weights(self, weights: Any) -> Dataset:
        assert weights is None, "no process has the weights of all rows"
        if self.weights is None:
            return self
        return replace(self, weights=None, stored_fingerprint=json_digest({"unweighted": self.stored_fingerprint}))


@dataclass(frozen=True, eq=False)
class Description:
    """Columns, and statistics of the rows, of one site or of several."""

    sites: tuple[tuple[str, int], ...]
    """Names and numbers of rows of the sites, in the order of the names."""
    columns: tuple[str, ...]
    slice_shape: tuple[int, ...]
    """Sizes of the modes after the first; the number of columns alone for a matrix."""
    dtype: str
    missing_code: int | None
    codebook: tuple[str, ...] | None
    """A JSON text for each item."""
    mode_labels: tuple[tuple[str, ...] | None, ...]
    confounders: tuple[ConfounderSummary, ...]
    confounder_ranges: dict[str, tuple[float, float]]
    weights: WeightSummary | None
    """Summary of the weights of the rows; None without weights."""
    fingerprint: str
    """Digest of the data, which a resumed fit must find again."""
    n_empty_rows: int
    extremes: bool
    """Whether lowest and highest answers are stated; if not, they are the ends of the ranges, which the contract declares."""
    offset: NDArray[np.float64]
    observed: NDArray[np.int64]
    valid_range: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @classmethod
    def of(cls, name: str, dataset: Dataset, *, extremes: bool) -> Description:
        """Describe a site's data; with ``extremes``, lowest and highest answers too."""
        _require_federable(dataset)
        statistics, limits = dataset.statistics, np.asarray(dataset.valid_range, np.float64)
        unknown = np.full(statistics.observed.shape, np.nan)
        return cls(
            sites=((name, dataset.shape[0]),),
            columns=tuple(str(label) for label in dataset.column_labels),
            slice_shape=dataset.shape[1:],
            dtype=dataset.dtype.str,
            missing_code=dataset.missing_code,
            codebook=None if dataset.codebook is None else tuple(dataset.codebook.to_texts()),
            mode_labels=tuple(None if labels is None else tuple(map(str, labels)) for labels in dataset.mode_labels),
            confounders=tuple(_without_extremes(each, dataset, extremes=extremes) for each in dataset.confounder_summaries()),
            confounder_ranges={name: (each.low, each.high) for name, each in dataset.confounder_ranges.items()},
            weights=dataset.weight_summary(),
            fingerprint=dataset.fingerprint,
            n_empty_rows=statistics.n_empty_rows,
            extremes=extremes,
            offset=np.asarray(dataset.offset, np.float64),
            observed=statistics.observed,
            valid_range=limits if extremes else np.full_like(limits, np.nan),
            minimum=statistics.minimum if extremes else unknown,
            maximum=statistics.maximum if extremes else unknown,
        )

    @classmethod
    def from_message(cls, message: Message, least_rows: int = 1) -> Description:
        """Read a description; raise FederationError if it is not what :meth:`message` returns, or of fewer rows at a site.

        A contract has no rows.
        """
        values = dict(message.fields)
        values.pop("kind", None)
        names = [field.name for field in fields(cls)]
        if set(values) != {name for name in names if name not in _ARRAYS} or len(message.arrays) != len(_ARRAYS):
            raise FederationError(f"a description has the fields {sorted(values)[:20]}, expected those of this version of dfact")
        arrays: dict[str, Any] = dict(zip(_ARRAYS, message.arrays, strict=True))
        try:
            found = cls(**_parsed(values), **arrays)
            found._check_fields(least_rows)
            found._check_arrays()
            found.columns_alone()
        except FederationError:
            raise
        except (DfactError, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise FederationError(f"a description is invalid ({short(str(error))}), expected that of a dataset") from error
        return found

    def message(self, kind: str) -> Message:
        """Return the description as a message of this kind."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _ARRAYS}
        values["confounders"] = [asdict(each) for each in self.confounders]
        values["weights"] = None if self.weights is None else asdict(self.weights)
        return Message({"kind": kind, **values}, [getattr(self, name) for name in _ARRAYS])

    def _check_fields(self, least_rows: int) -> None:
        """Refuse sizes that no data has, names that occur twice, and summaries of other rows."""
        names, rows = [name for name, _ in self.sites], sum(n for _, n in self.sites)
        unique = len(set(names)) == len(names) and len(set(self.columns)) == len(self.columns)
        if not 0 < len(names) <= _MAX_SITES or not unique or not all(least_rows <= n <= _MAX_ROWS for _, n in self.sites):
            raise FederationError(f"a description has {len(names)} sites with {rows} rows, expected each once, as each column, with rows")
        if self.dtype not in _DTYPES or not 0 < len(self.slice_shape) <= _MAX_MODES:
            raise FederationError(f"a description has entries {short(self.dtype)} of {len(self.slice_shape)} modes, expected numbers")
        modes = tuple(size if labels is None else len(labels) for size, labels in zip(self.slice_shape[1:], self.mode_labels, strict=True))
        if len(self.columns) != self.slice_shape[0] or modes != self.slice_shape[1:]:
            raise FederationError(f"a description has other numbers of labels than the sizes {self.slice_shape} of its modes")
        if len({each.name for each in self.confounders}) != len(self.confounders):
            raise FederationError("a description has a confounder twice")
        for each in self.confounders:
            if each.n_rows != rows or each.n_missing > rows or (each.levels and sum(each.levels.values()) != rows - each.n_missing):
                raise FederationError(f"a description has {short(each.name)} with {each.n_rows} rows, expected the {rows} of the data")
        if self.weights is not None and (self.weights.n_rows != rows or self.weights.n_positive > rows):
            raise FederationError(f"a description has weights of {self.weights.n_rows} rows, expected the {rows} of the data")

    def _check_arrays(self) -> None:
        m, columns = prod(self.slice_shape), len(self.columns)
        expected = {"offset": (columns,), "observed": (m,), "valid_range": (columns, 2), "minimum": (m,), "maximum": (m,)}
        for name, shape in expected.items():
            array = getattr(self, name)
            kind = "i" if name == "observed" else "f"
            if array.shape != shape or array.dtype.kind != kind:
                raise FederationError(f"{name} of a description is an array {array.dtype} {array.shape}, expected numbers {shape}")
        if not np.isfinite(self.offset).all():
            raise FederationError("offset of a description holds a value that is not finite, expected numbers")
        rows = sum(n for _, n in self.sites)
        if not ((self.observed >= 0) & (self.observed <= rows)).all():
            raise FederationError(f"a description has {self.observed.max()} observed entries in a column of {rows} rows")

    def difference(self, dataset: Dataset) -> str | None:
        """Return the first difference of a site's data from this contract; None without. Answers beyond its ranges raise WithheldError."""
        expected, labels = self.columns_alone(), [str(label) for label in dataset.column_labels]
        if len(labels) != len(self.columns):
            return f"it has {len(labels)} columns, expected {len(self.columns)}"
        other = np.flatnonzero(np.asarray(dataset.offset) != self.offset)
        if other.size and labels == list(self.columns):
            j = int(other[0])
            told = f"answers to {labels[j]!r} do not begin at {self.offset[j]:g}, as those of the contract do"
            raise WithheldError(told, f"they begin at {dataset.offset[j]:g}; import the data with the valid_range of the contract")
        difference = find_difference(expected, dataset)
        if difference is None and not self.extremes:
            low, high = dataset.valid_range.T
            beyond = np.flatnonzero((low < self.valid_range[:, 0]) | (high > self.valid_range[:, 1]))
            if beyond.size:
                j = beyond[0]
                found, limits = (f"{low[j]:g} to {high[j]:g}", "{:g} to {:g}".format(*self.valid_range[j]))
                told = f"answers to {labels[j]!r} are beyond the range of the contract from {limits}"
                raise WithheldError(told, f"they range from {found}; correct the data or the contract")
        return difference

    def merge(self, other: Description) -> Description:
        """Return the description of the rows of both; the contract has made sure that their columns are the same."""
        return replace(
            self,
            sites=(*self.sites, *other.sites),
            confounders=tuple(mine.merge(theirs) for mine, theirs in zip(self.confounders, other.confounders, strict=True)),
            weights=None if self.weights is None or other.weights is None else self.weights.merge(other.weights),
            fingerprint=json_digest({"first": self.fingerprint, "others": other.fingerprint}),
            n_empty_rows=self.n_empty_rows + other.n_empty_rows,
            observed=self.observed + other.observed,
            valid_range=np.column_stack(
                [np.minimum(self.valid_range, other.valid_range)[:, 0], np.maximum(self.valid_range, other.valid_range)[:, 1]]
            ),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    def with_ranges(self, contract: Description) -> Description:
        """Return the description with the ranges of the contract as lowest and highest answers."""
        limits = np.asarray(contract.valid_range)
        per_column = np.repeat(limits, len(self.observed) // max(1, len(limits)), axis=0) if len(limits) != len(self.observed) else limits
        seen = self.observed > 0
        low, high = np.where(seen, per_column[:, 0], np.inf), np.where(seen, per_column[:, 1], -np.inf)
        return replace(self, valid_range=limits, minimum=low, maximum=high, extremes=True)

    def columns_alone(self) -> PooledDataset:
        """Return a dataset with these columns, levels and ranges, and no rows."""
        return replace(self, sites=((self.sites[0][0], 0),)).dataset()

    @property
    def table_bytes(self) -> int:
        """Memory of the confounders, the weights and the strata of all rows, which every process of a run holds."""
        return 8 * (2 * len(self.confounders) + 2 * (self.weights is not None) + 1) * sum(n for _, n in self.sites)

    def dataset(self, name: str | None = None, own: Dataset | None = None) -> PooledDataset:
        """Return the data of all sites, of which the rows of the site with this name are present."""
        dtype = np.dtype(self.dtype)
        sources: list[RowSource] = [
            own.source if own is not None and site == name else AbsentRows((n, *self.slice_shape), dtype) for site, n in self.sites
        ]
        n = sum(count for _, count in self.sites)
        statistics = ColumnStatistics(self.observed.copy(), self.minimum.copy(), self.maximum.copy(), n, [], self.n_empty_rows)
        labels = np.array(self.columns, dtype=object)
        return PooledDataset(
            source=ConcatenatedSource(tuple(sources)),
            missing_code=self.missing_code,
            column_labels=labels,
            valid_range=self.valid_range,
            offset=self.offset,
            statistics=statistics,
            confounder_source=self._confounder_rows(name, own),
            weights=self._weights(name, own),
            codebook=None if self.codebook is None else Codebook.from_texts(self.codebook, self.columns),
            confounder_ranges={name: PlausibleRange(*limits) for name, limits in self.confounder_ranges.items()},
            labels=None if own is None or own.label_source is None else np.asarray(own.row_labels.astype(str), object),
            mode_labels=tuple(None if names is None else np.array(names, object) for names in self.mode_labels),
            stored_fingerprint=self.fingerprint,
            summaries=self.confounders,
            summary_of_weights=self.weights,
        )

    def _weights(self, name: str | None, own: Dataset | None) -> pd.Series[float] | None:
        """Return the weights of all rows, of which those at other sites are missing."""
        if self.weights is None:
            return None
        present = None if own is None else own.weights
        parts = [np.full(n, np.nan) if present is None or site != name else present.to_numpy() for site, n in self.sites]
        return pd.Series(np.concatenate(parts), name="sample_weight")

    def _confounder_rows(self, name: str | None, own: Dataset | None) -> pd.DataFrame | None:
        """Return a table of the confounders of all rows, of which those at other sites are missing."""
        if not self.confounders:
            return None
        tables = []
        for site, n in self.sites:
            if own is not None and site == name:
                tables.append(own.confounders)
                continue
            columns: dict[str, Any] = {
                each.name: pd.Categorical.from_codes(np.full(n, -1), pd.Index(sorted(each.levels), dtype=object))
                if each.levels
                else np.full(n, np.nan)
                for each in self.confounders
            }
            tables.append(pd.DataFrame(columns))
        joined = {}
        for each in self.confounders:
            parts = [pd.Series(table[each.name]) for table in tables if table is not None]
            whole = pd.concat([part.astype(object) if each.levels else part for part in parts], ignore_index=True)
            joined[each.name] = pd.Categorical(whole, categories=sorted(each.levels)) if each.levels else whole.to_numpy(np.float64)
        return pd.DataFrame(joined)


_MAX_SUMS, _LARGEST = 100, 1e290  # of the exact sums of confounders and weights, which are added without an overflow
_MAX_SITES, _MAX_ROWS, _MAX_MODES = 10_000, 1 << 40, 7
_DTYPES = {np.dtype(order + kind).str for order in "<>" for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")}
_ARRAYS = ("offset", "observed", "valid_range", "minimum", "maximum")


def pool(descriptions: Sequence[Description], contract: Description | None) -> Description:
    """Return the description of all sites, in the order of their names.

    Without a contract the first site's columns count, and every site must state its lowest and highest answers.
    """
    ordered = sorted(descriptions, key=lambda each: each.sites)
    silent = next((each for each in ordered if not each.extremes), None)
    if silent is not None and contract is None:
        found = f"site {silent.sites[0][0]} does not state the lowest and highest answers to its items"
        raise FederationError(f"{found}, expected that all sites do, or a contract with the ranges; give the coordinator a contract")
    pooled = ordered[0]
    for each in ordered[1:]:
        pooled = pooled.merge(each)
    return pooled.with_ranges(contract) if contract is not None and silent is not None else pooled


def _parsed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a description from JSON, each of its type."""
    texts = values["codebook"]
    return {
        "sites": tuple((_text(name), _count(n)) for name, n in values["sites"]),
        "columns": tuple(_text(label) for label in values["columns"]),
        "slice_shape": tuple(_count(size) for size in values["slice_shape"]),
        "dtype": _text(values["dtype"]),
        "missing_code": None if values["missing_code"] is None else _count(values["missing_code"], lowest=-(1 << 63)),
        "codebook": None if texts is None else tuple(_text(text) for text in texts),
        "mode_labels": tuple(None if names is None else tuple(map(_text, names)) for names in values["mode_labels"]),
        "confounders": tuple(_summary(each) for each in values["confounders"]),
        "confounder_ranges": {_text(name): (float(low), float(high)) for name, (low, high) in values["confounder_ranges"].items()},
        "weights": None if values["weights"] is None else _weight_summary(values["weights"]),
        "fingerprint": _text(values["fingerprint"]),
        "n_empty_rows": _count(values["n_empty_rows"]),
        "extremes": values["extremes"] is True,
    }


def _summary(each: dict[str, Any]) -> ConfounderSummary:
    counts = _count(each["n_rows"]), _count(each["n_missing"])
    levels = {_text(level): _count(count) for level, count in each["levels"].items()}
    limits, sums = (float(each["minimum"]), float(each["maximum"])), tuple(map(float, each["sums"]))
    if len(sums) > _MAX_SUMS or not all(abs(part) < _LARGEST for part in sums) or np.isnan(limits).any():
        raise ValueError("a confounder without a finite sum")
    return ConfounderSummary(_text(each["name"]), *counts, levels, *limits, sums)


def _weight_summary(found: dict[str, Any]) -> WeightSummary:
    counts, exponent = (_count(found["n_rows"]), _count(found["n_positive"])), _count(found["exponent"], lowest=-2 * MAX_EXPONENT)
    sums, squares = tuple(map(float, found["sums"])), tuple(map(float, found["squares"]))
    common = None if found["common"] is None else float(found["common"])
    finite = all(abs(part) < _LARGEST for part in (*sums, *squares))
    if exponent > MAX_EXPONENT or max(len(sums), len(squares)) > _MAX_SUMS or not finite or not (common is None or 0 < common < np.inf):
        raise ValueError("weights without finite sums, or not above 0")
    return WeightSummary(*counts, common, found["whole"] is True, exponent, sums, squares)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is not a text")
    return value


def _count(value: Any, lowest: int = 0) -> int:
    if type(value) is not int or not lowest <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]} is not a number in range")
    return value


def _without_extremes(each: ConfounderSummary, dataset: Dataset, *, extremes: bool) -> ConfounderSummary:
    """Return a summary whose minimum and maximum are the declared range, unless extremes are stated."""
    if extremes or each.levels:
        return each
    limits = dataset.confounder_ranges.get(each.name)
    if limits is None:
        found = f"the confounder {each.name!r} is continuous and has no declared range, and the policy lets no extremes leave"
        raise FederationError(f"{found}; declare its range in the import (--confounder-range {each.name} LOW HIGH)")
    return replace(each, minimum=limits.low, maximum=limits.high)


def _require_federable(dataset: Dataset) -> None:
    """Refuse data that fits across sites do not take yet."""
    if dataset.source.is_sparse:
        raise FederationError("the data is sparse, expected dense data for a fit across sites; import it as a dense array")
    if dataset.replicate_weights is not None:
        raise FederationError("the data has replicate weights, which belong to one sample; use Dataset.with_weights(dataset.weights)")
