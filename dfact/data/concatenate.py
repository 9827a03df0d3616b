"""Concatenation of datasets with the same columns, whose rows keep blocks and partitions of their own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from dfact.data.codebook import compare_items
from dfact.data.coerce import as_dataset
from dfact.data.dataset import FREQUENCY, Dataset, Genotypes
from dfact.data.sources.base import RowSource
from dfact.data.sources.concatenated import ConcatenatedCSR, ConcatenatedSource
from dfact.data.sources.sparse import SparseSource
from dfact.errors import DataError
from dfact.lazy import pd


def concatenate(datasets: Sequence[Any]) -> Dataset:
    """Concatenate the rows of datasets with the same columns, such as those of several sites; no value is copied.

    Blocks and partitions do not cross from one dataset to the next, and sums are first formed within each. So the sums of a dataset do
    not depend on the others.

    Parameters
    ----------
    datasets : sequence of Dataset, paths or arrays
        Datasets with the same columns, levels, offsets, types and missing codes. Valid ranges that codebooks do not declare may differ;
        those of the result contain those of all datasets.

    Returns
    -------
    Dataset
        All rows, in the order of the datasets.

    Raises
    ------
    DataError
        The datasets differ in their columns, types, missing codes, levels, offsets or confounders; the message names the first
        difference. Or one has replicate weights.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> north, south = np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([[2.0, 2.0]])
    >>> dfact.concatenate([north, south]).shape
    (3, 2)
    """
    parts = [as_dataset(each) for each in datasets]
    if not parts:
        raise DataError("there are no datasets to concatenate, expected at least one")
    first = parts[0]
    for number, other in enumerate(parts[1:], start=1):
        difference = find_difference(first, other)
        if difference is not None:
            raise DataError(f"dataset {number} differs from dataset 0: {difference}")
    if any(part.replicate_weights is not None for part in parts):
        raise DataError("a dataset has replicate weights, which belong to one sample; use Dataset.with_weights(dataset.weights)")
    statistics = deepcopy(first.statistics)
    for part in parts[1:]:
        statistics.merge(part.statistics)
    ranges = [part.valid_range for part in parts]
    return replace(
        first,
        source=_source([part.source for part in parts]),
        valid_range=np.column_stack([np.min(ranges, axis=0)[:, 0], np.max(ranges, axis=0)[:, 1]]),
        statistics=statistics,
        confounder_source=None if first.confounders is None else pd.concat([part.confounders for part in parts], ignore_index=True),
        confounder_ranges={
            name: replace(limits, n_outside=sum(part.confounder_ranges[name].n_outside for part in parts))
            for name, limits in first.confounder_ranges.items()
        },
        path=None,
        dropped_rows=sum(part.dropped_rows for part in parts),
        weights=None if first.weights is None else pd.concat([part.weights for part in parts], ignore_index=True),
        labels=_labels(parts),
        genotypes=_genotypes(parts),
        stored_fingerprint=None,
    )


def find_difference(first: Dataset, other: Dataset) -> str | None:
    """Return the first difference of two datasets that keeps their rows apart, as found in the other and in the first; None without."""
    labels, others = ([str(label) for label in dataset.column_labels] for dataset in (first, other))
    for found, expected, what in (
        (other.shape[1:], first.shape[1:], "modes after the first of"),
        (other.dtype, first.dtype, "entries of type"),
        (other.missing_code, first.missing_code, "missing code"),
        (other.source.is_sparse, first.source.is_sparse, "sparse rows"),
        (str(other.source.implicit_value), str(first.source.implicit_value), "implicit value"),
        (other.weights is not None, first.weights is not None, "weights"),
        (_confounders(other), _confounders(first), "confounders"),
        (_plausible_ranges(other), _plausible_ranges(first), "plausible ranges of confounders"),
    ):
        if found != expected:
            return f"{what} {found}, expected {expected}"
    for j, (found_label, label) in enumerate(zip(others, labels, strict=True)):
        if found_label != label:
            return f"column {j} is {found_label!r}, expected {label!r}"
        if other.offset[j] != first.offset[j]:
            begin = f"answers of {label!r} begin at {other.offset[j]:g}, expected {first.offset[j]:g}"
            return f"{begin}; import both with the same valid_range"
    if (text := _other_alleles(first, other)) is not None:
        return text
    if other.codebook is not None and first.codebook is not None:
        for item, expected_item in zip(other.codebook, first.codebook, strict=True):
            difference = compare_items(item, expected_item)
            if difference is not None:
                found_text = f"item {item.name!r} {difference.first}, expected that it {difference.second}"
                return f"{found_text}; import both with the same {difference.remedy}"
    for mode, (names, expected_names) in enumerate(zip(other.mode_labels, first.mode_labels, strict=True), start=3):
        if not np.array_equal(np.asarray(names, object), np.asarray(expected_names, object)):
            return f"the labels of mode {mode} differ"
    return None


def _other_alleles(first: Dataset, other: Dataset) -> str | None:
    """Return the first SNP that counts another allele in the other dataset than in the first; None without."""
    ours, theirs = first.genotypes.variants, other.genotypes.variants
    if ours is None or theirs is None:
        return None
    different = np.flatnonzero((ours[["A1", "A2"]].to_numpy() != theirs[["A1", "A2"]].to_numpy()).any(axis=1))
    if not different.size:
        return None
    j = int(different[0])
    found, expected = (f"A1 {table['A1'].iloc[j]}, A2 {table['A2'].iloc[j]}" for table in (theirs, ours))
    named = f"SNP {first.column_labels[j]!r} has {found}, expected {expected} ({different.size} of {len(ours)} SNPs differ)"
    return f"{named}; align the alleles before the import (plink2 --ref-allele)"


def _confounders(dataset: Dataset) -> list[tuple[str, list[str] | None]]:
    """Return the names of the confounders, and the levels of the categorical ones."""
    return [(each.name, each.levels) for each in dataset.stored_confounders()]


def _plausible_ranges(dataset: Dataset) -> dict[str, tuple[float, float]]:
    return {name: (limits.low, limits.high) for name, limits in dataset.confounder_ranges.items()}


def _source(sources: Sequence[RowSource]) -> RowSource:
    sparse = [source for source in sources if isinstance(source, SparseSource)]
    return ConcatenatedCSR(tuple(sparse), implicit_value=sparse[0].implicit_value) if sparse else ConcatenatedSource(tuple(sources))


def _labels(parts: Sequence[Dataset]) -> Any:
    """Return the labels of all rows: None if no dataset has some, and numbers within a dataset that has none."""
    if all(part.label_source is None for part in parts):
        return None
    return np.concatenate([np.asarray(part.row_labels.astype(str), object) for part in parts])


def _genotypes(parts: Sequence[Dataset]) -> Genotypes:
    populations: list[Any] = [part.genotypes.population for part in parts]
    genotypes = replace(parts[0].genotypes, read=lambda: _joined_variants(parts))
    if any(population is None for population in populations):
        return replace(genotypes, population=None)
    joined = pd.Categorical(pd.concat([pd.Series(population.astype(object)) for population in populations], ignore_index=True))
    return replace(genotypes, population=joined)


def _joined_variants(parts: Sequence[Dataset]) -> pd.DataFrame | None:
    """Return the variants of the first dataset with the frequencies of all."""
    tables = [part.genotypes.variants for part in parts]
    if tables[0] is None or any(table is None or FREQUENCY not in table for table in tables):
        return None if tables[0] is None else tables[0].drop(columns=FREQUENCY, errors="ignore")
    observed = np.array([part.statistics.observed for part in parts])
    alleles = np.nan_to_num([table[FREQUENCY] for table in tables if table is not None]) * observed
    with np.errstate(invalid="ignore"):
        return tables[0].assign(**{FREQUENCY: alleles.sum(axis=0) / observed.sum(axis=0)})
