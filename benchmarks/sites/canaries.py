"""What may not leave a site, as bytes in the forms in which it might, and the search for it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sites.cases import CANARY_ROW, LABEL, MISSING, SITES, canary_age, canary_label, site_answers

WINDOW = 24
"""Consecutive answers that are looked for; 4^24 possible ones occur by no accident."""
ROWS = (CANARY_ROW, 100, 311)
"""Rows of each site whose factors are looked for."""
LABELS, ANSWERS, COLUMNS, CONFOUNDER, FACTORS = "row labels", "answers of a row", "answers to an item", "a confounder", "row factors"
KINDS = (LABELS, ANSWERS, COLUMNS, CONFOUNDER, FACTORS)
_TYPES = ("u1", "<i4", "<i8", "<f4", "<f8")


@dataclass(frozen=True)
class Canary:
    """Bytes that belong to single rows of a site."""

    kind: str
    site: str
    pattern: bytes


def of_data(rows: int, columns: int) -> Iterator[Canary]:
    """Yield row labels, the answers of the planted row and of its neighbours to an item, and the planted confounder."""
    for number, site in enumerate(SITES):
        yield from (Canary(LABELS, site, text.encode()) for text in (canary_label(site), f"{LABEL}-{site}"))
        values = site_answers(rows, columns, 1 + number)
        windows = [(ANSWERS, values[CANARY_ROW, start : start + WINDOW]) for start in range(0, columns - WINDOW + 1, WINDOW // 2)]
        windows += [(COLUMNS, values[CANARY_ROW : CANARY_ROW + WINDOW, column]) for column in (0, columns - 1)]
        for kind, window in windows:
            yield from (Canary(kind, site, pattern) for pattern in _forms(window))
        age = canary_age(site)
        yield from (Canary(CONFOUNDER, site, np.array(age, kind).tobytes()) for kind in ("<f4", "<f8"))
        yield Canary(CONFOUNDER, site, repr(age).encode())


def _forms(answers: NDArray[Any]) -> Iterator[bytes]:
    """Yield answers as arrays, with and without NaN for missing ones, and as texts."""
    missing = answers == MISSING
    for kind in _TYPES:
        yield answers.astype(kind).tobytes()
        if missing.any() and "f" in kind:
            yield np.where(missing, np.nan, answers).astype(kind).tobytes()
    for separator in ("", " ", ",", ", ", "\t"):
        yield separator.join(map(str, answers)).encode()
        if separator:
            yield separator.join(str(float(answer)) for answer in answers).encode()


def of_factors(site: str, factors: NDArray[Any]) -> Iterator[Canary]:
    """Yield the factors of single rows, and those of a few rows for one component, if they are not trivial."""
    few = [factors[row] for row in ROWS] + [factors[row : row + 4, component] for row in ROWS for component in range(factors.shape[1])]
    for values in few:
        if len(np.unique(values[values != 0])) > 2:
            yield from (Canary(FACTORS, site, values.astype(kind).tobytes()) for kind in ("<f4", "<f8"))


def found(canaries: Iterable[Canary], texts: Sequence[bytes]) -> list[Canary]:
    """Return the canaries that occur in one of the texts."""
    everything = b"\n".join(texts)
    return [canary for canary in canaries if canary.pattern in everything]


def write(canaries: Iterable[Canary], path: Path) -> None:
    """Write the patterns for :mod:`benchmarks.sites.leak`."""
    path.write_text(json.dumps([canary.pattern.hex() for canary in canaries]))
