"""The sets of rows on which the results of a site rest, by a keyed digest of each row."""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.catalogue import find_part
from dfact.data.dataset import Dataset
from dfact.sites.tasks import Task

Digests = NDArray[np.uint64]
_DIGEST = 8  # bytes
_ENTRIES = 1 << 20  # that are read at once


class RowSets:
    """Sets of rows of a dataset. A digest of a row has the key of the site, and is that of its contents: the rows may be in any order."""

    def __init__(self, dataset: Dataset, key: bytes) -> None:
        self._dataset, self._key = dataset, key

    def at_joining(self) -> Iterator[tuple[str, Digests]]:
        """Yield the sets that the description of the data rests on: all rows, their labels, and all rows with their weights."""
        yield "answers", self._rows
        if self._dataset.label_source is not None:
            yield "labels", self._keyed(str(label).encode() for label in self._dataset.row_labels)
        if self._dataset.weights is not None:
            weights = self._dataset.weights.to_numpy(np.float64)
            pairs = zip(self._rows.tolist(), weights.tolist(), strict=True)
            yield "weighted rows", self._keyed(f"{row} {weight!r}".encode() for row, weight in pairs)

    def of_task(self, task: Task) -> Iterator[tuple[str, Digests]]:
        """Yield the sets that a task looks at in addition to all rows: those with all answers, to all items or to those of a scale."""
        given = [task.parameters.get("missing"), task.arguments.get("missing"), *task.grid.get("missing", ())]
        if "listwise" not in given:
            return
        names, columns = ["complete rows"], [np.arange(self._dataset.statistics.observed.size)]
        if task.kind == "describe":
            scales = find_part("scales", "a description")
            found = scales.resolve_scales(self._dataset, task.arguments.get("scales"), task.arguments.get("keys")).scales
            names += [f"rows that are complete in {scale.name!r}" for scale in found]
            columns += [scale.columns for scale in found]
        complete = [[~missing[:, each].any(axis=1) for each in columns] for missing in map(self._missing, self._read())]
        for name, masks in zip(names, zip(*complete, strict=True), strict=True):
            yield name, self._rows[np.concatenate(masks)]

    def of_slices(self, slices: Sequence[slice]) -> Digests:
        """Return the set of these rows."""
        return np.concatenate([self._rows[rows] for rows in slices])

    def of_blocks(self, blocks: NDArray[np.intp]) -> Iterator[tuple[str, Digests]]:
        """Yield the set of each block."""
        for number in np.unique(blocks):
            yield f"block {number + 1}", self._rows[blocks == number]

    @cached_property
    def _rows(self) -> Digests:
        """(n,): the digest of the answers and the confounders of each row."""
        found = (row.tobytes() for rows in self._read() for row in np.ascontiguousarray(rows).reshape(len(rows), -1))
        confounders = self._dataset.confounders
        if confounders is None:
            return self._keyed(found)
        values = confounders.itertuples(index=False)
        return self._keyed(row + "\0".join(map(str, each)).encode() for row, each in zip(found, values, strict=True))

    def _missing(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        values = rows.reshape(len(rows), -1)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
        return missing if self._dataset.missing_code is None else missing | (values == self._dataset.missing_code)

    def _read(self) -> Iterator[NDArray[Any]]:
        n, step = self._dataset.shape[0], max(1, _ENTRIES // int(np.prod(self._dataset.shape[1:])))
        return (np.asarray(self._dataset.source.read(start, min(start + step, n))) for start in range(0, n, step))

    def _keyed(self, texts: Iterable[bytes]) -> Digests:
        return _digests(texts, self._key)


def deal_rows(labels: Iterable[Any], key: bytes, count: int) -> NDArray[np.intp]:
    """Return the block of each row in cross-validation: the key deals rows with these labels, or numbers, to blocks of equal sizes.

    With the blocks of all sites as ``groups``, and without strata, :func:`dfact.selection.block_cross_validate` repeats a selection across
    sites on the data of all.
    """
    order = np.argsort(_digests((f"block {label}".encode() for label in labels), key), kind="stable")
    found = np.empty(len(order), np.intp)
    found[order] = np.arange(len(order)) % count
    return found


def _digests(texts: Iterable[bytes], key: bytes) -> Digests:
    return np.frombuffer(b"".join(hmac.digest(key, text, "sha256")[:_DIGEST] for text in texts), "<u8")
