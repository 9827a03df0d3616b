"""Answers far from all others of their item: codes that may stand for no answer, although nothing is said about them."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store

from dfact.imports.coding.answers import AnswerCoding, code_text
from dfact.imports.coding.doubtful_codes import MOST_LEVELS, USUAL, far_codes, far_values, is_measured
from dfact.imports.tables.spool import Spooled, spooled_code


def far_answers(rows: Spooled, coding: AnswerCoding, store: Store) -> tuple[Counter[tuple[int, str]], dict[int, str]]:
    """Count answers that are far from the others, by item and code; and say what the others are, by item.

    Items with a declared range, or with levels that their values must have, are not asked about, and neither are codes with a label
    or those that the user calls answers. The rows are read again only if the lowest or highest answer of an item is a usual code.
    """
    low, high = rows.statistics.minimum, rows.statistics.maximum
    asked = np.array([not np.isfinite(item.limits).all() and not item.is_explained for item in coding.items])
    columns = np.flatnonzero(asked & (((low < 0) & np.isin(low, USUAL)) | ((high > 0) & np.isin(high, USUAL) & (high != 7))))
    found, others = Counter[tuple[int, str]](), dict[int, str]()
    if not columns.size:
        return found, others
    values, measured = _count(rows, store, columns)
    for i, j in enumerate(columns.tolist()):
        item = coding.items[j]
        counts = {code: n for code, n in values[i].items() if code not in item.doubtful}
        if not counts:
            continue
        sure = {*item.answers, *(code for code, _ in item.levels)}
        if i in measured:
            codes = far_values({code: n for code, n in counts.items() if code not in sure}, measured[i])
            ends = measured[i]
        else:
            rest = np.flatnonzero(asked & (np.arange(len(asked)) != j))
            codes = far_codes(np.array(sorted(counts)), np.stack([low[rest], high[rest]], axis=1)) - sure
            kept = [value for value in counts if value not in codes]
            ends = min(kept), max(kept)
        found.update({(j, code_text(code)): counts[code] for code in codes})
        limits = list(dict.fromkeys(code_text(float(end)) for end in ends))
        others[j] = f" (the others are {'from ' if len(limits) > 1 else ''}{' to '.join(limits)})"
    return found, others


def _count(rows: Spooled, store: Store, columns: NDArray[np.intp]) -> tuple[list[Counter[float]], dict[int, tuple[float, float]]]:
    """Count the values of these columns; of a measurement, which has many, the usual codes, and return the limits of the others."""
    counts: list[Counter[float]] = [Counter() for _ in columns]
    measured: dict[int, tuple[float, float]] = {}
    for block in _blocks(rows, store, columns):
        for i in range(len(columns)):
            values, n = np.unique(block[:, i][~np.isnan(block[:, i])], return_counts=True)
            if i not in measured and len(values) <= MOST_LEVELS + USUAL.size:
                counts[i].update(dict(zip(values.tolist(), n.tolist(), strict=True)))
                values = np.array(list(counts[i]))
                if not is_measured(values):
                    continue
                n = np.array([counts[i].pop(value) for value in values.tolist()])
            is_code = np.isin(values, USUAL)
            counts[i].update(dict(zip(values[is_code].tolist(), n[is_code].tolist(), strict=True)))
            before = measured.get(i, (np.inf, -np.inf))
            rest = values[~is_code]
            measured[i] = min(before[0], rest.min(initial=np.inf)), max(before[1], rest.max(initial=-np.inf))
    return counts, measured


def _blocks(rows: Spooled, store: Store, columns: NDArray[np.intp]) -> Iterator[NDArray[np.float64]]:
    """Yield these columns of the spooled rows, NaN for missing."""
    for each in rows.objects:
        for _, block in each.read(store):
            chosen = block[:, columns].astype(np.float64)
            chosen[chosen == spooled_code(block.dtype)] = np.nan
            yield chosen
