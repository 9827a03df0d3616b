"""Sums as messages, and what is checked of those of another participant."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.checkpoint import pack, unpack
from dfact.engine.passes import PARTIAL_SUMS, PartialSums, Released
from dfact.engine.requests import FusedSums
from dfact.errors import FederationError
from dfact.sites.messages import Message, short


def packed_message(sums: PartialSums, what: str) -> Message:
    """Return sums as a message."""
    arrays: list[NDArray[Any]] = []
    described, _ = pack(sums, arrays.append)
    return Message({"kind": "sums", "pass": what, "sums": described}, arrays)


def unpacked(message: Message) -> Any:
    """Return the sums of a message, in arrays of their own; raise FederationError if it holds none of a registered class."""
    described, count = message.get("sums", dict), len(message.arrays)
    if sorted(_array_numbers(described)) != list(range(count)):
        raise FederationError(f"a message's sums do not refer to each of its {count} arrays once")
    try:
        return unpack(described, [np.array(array) for array in message.arrays])
    except (TypeError, ValueError) as error:
        raise FederationError(f"sums of type {described['type']!r} have other fields than this version of dfact expects") from error


def _array_numbers(described: Mapping[str, Any], depth: int = 0) -> Iterator[int]:
    """Yield the numbers of the arrays of sums; refuse a description that is not what :func:`dfact.engine.checkpoint.pack` returns."""
    kind = described.get("type")
    known = PARTIAL_SUMS.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(known.disclosure, Released) or depth > 1:
        raise FederationError(f"a message holds sums of type {short(kind)}, expected one that dfact knows")
    names = {field.name for field in fields(known)}
    if described.keys() - {"type"} != names:
        raise FederationError(f"sums of type {kind!r} have other fields than this version of dfact expects")
    for name in names:
        value = described[name]
        if known is FusedSums and isinstance(value, list) and all(isinstance(part, dict) for part in value):
            for part in value:
                yield from _array_numbers(part, depth + 1)
        elif known is not FusedSums and type(value) is int:
            yield value
        else:
            raise FederationError(f"{name} of a message's sums is {short(value)}, expected the number of an array")


def check_finite(message: Message) -> None:
    """Refuse sums that hold infinity or no number."""
    for number, array in enumerate(message.arrays):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FederationError(f"array {number} of the sums holds a value that is not finite, expected numbers")


def check_same_shape(message: Message, expected: Message) -> None:
    """Refuse sums of another class, or of another type or shape in any array, than those expected."""
    if message.fields.get("sums") != expected.fields.get("sums"):
        raise FederationError("the sums are of another type than expected")
    found, known = ([(array.dtype.str, array.shape) for array in each.arrays] for each in (message, expected))
    if found != known:
        number = next((i for i, (mine, theirs) in enumerate(zip(found, known, strict=False)) if mine != theirs), len(known))
        here, there = (str(each[number]) if number < len(each) else "nothing" for each in (found, known))
        raise FederationError(f"array {number} of the sums is {here}, expected {there}")
