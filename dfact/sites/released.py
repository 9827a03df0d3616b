"""The sums that may leave a site: what their classes declare (:class:`dfact.engine.passes.Released`), and what they hold."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.passes import PartialSums, Released
from dfact.engine.requests import FusedSums
from dfact.errors import FederationError


def flatten(sums: PartialSums, broadcast: Any) -> Iterator[tuple[PartialSums, Any]]:
    """Yield the sums with what their pass was given, and those of each fit if they are fused."""
    yield sums, broadcast
    if isinstance(sums, FusedSums):
        for part, given in zip(sums.parts, broadcast or [None] * len(sums.parts), strict=True):
            yield from flatten(part, given)


def declared(sums: PartialSums) -> Iterator[tuple[PartialSums, Released]]:
    """Yield the sums that may leave, and those of each fit if they are fused, with what their class declares of them."""
    for part, _ in flatten(sums, None):
        if isinstance(part.disclosure, Released):
            yield part, part.disclosure


def check_counts(sums: PartialSums, rows: int) -> None:
    """Refuse numbers of rows behind sums that a site with so many rows cannot have."""
    for part, about in declared(sums):
        for name in about.counts:
            counts = np.asarray(getattr(part, name))
            if counts.size and not (counts.min() >= 0 and counts.max() <= rows):
                found = f"{name} of the sums has numbers of rows from {counts.min():g} to {counts.max():g}"
                raise FederationError(f"{found}, expected at most the {rows} rows that the site has stated")


def arrays_of(sums: PartialSums, broadcast: Any, n_items: int) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield the arrays of sums, each with the number of items that it is about: all, or those whose pairs it has."""
    for part, given in flatten(sums, broadcast):
        if isinstance(part, FusedSums):
            continue
        of_part = part.items_of(given)
        about = n_items if of_part is None else of_part
        for field in fields(part):
            yield np.asarray(getattr(part, field.name)), about
