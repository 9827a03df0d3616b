"""Types of option values: what users write is read back, anything else is refused by a message."""

from contextlib import suppress

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfact.cli.types import BlockShape, Counts, MatrixShape, NumberOrWord, Numbers, OutputLocation

COUNTS = st.integers(0, 300)


@given(st.lists(st.tuples(COUNTS, COUNTS).map(sorted), min_size=1, max_size=5))
def test_counts_and_ranges_are_read(ranges: list[list[int]]) -> None:
    text = " , ".join(str(first) if first == last else f"{first} - {last}" for first, last in ranges)
    expected = dict.fromkeys(number for first, last in ranges for number in range(first, last + 1))
    assert Counts().convert(text, None, None) == list(expected)


@given(st.lists(st.floats(allow_nan=False), min_size=1, unique_by=lambda number: number))
def test_numbers_are_read_in_their_order(values: list[float]) -> None:
    assert Numbers().convert(",".join(map(repr, values)), None, None) == values


@given(st.tuples(COUNTS, COUNTS), st.sampled_from("xX×"))
def test_shapes_are_read(shape: tuple[int, int], mark: str) -> None:
    assert MatrixShape().convert(f"{shape[0]} {mark} {shape[1]}", None, None) == shape


@pytest.mark.further
@given(st.text() | st.from_regex(r"[0-9., x-]+", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    for kind in (Counts(), Numbers(), MatrixShape(), BlockShape(), NumberOrWord("same"), OutputLocation()):
        with suppress(click.UsageError):
            kind.convert(text, None, None)


@pytest.mark.parametrize("text", ["1-99999999999", "9" * 5000, f"{'9' * 5000}x3"])
def test_numbers_too_large_for_any_use_are_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="expected"):
        (MatrixShape() if "x" in text else Counts()).convert(text, None, None)
