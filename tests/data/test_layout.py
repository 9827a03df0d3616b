"""The cutting of rows into blocks, partitions and chunks, for data of any shape."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfact.data.layout import Layout, Sizes, cut_into

SMALL = Sizes(block_entries=1 << 6, block_rows=(8, 64), partition_entries=1 << 8, small_partition_entries=1 << 6, chunk_entries=1 << 9)


@given(n=st.integers(1, 10**10), m=st.integers(1, 10**7), share=st.floats(0, 1), sizes=st.sampled_from([None, SMALL]))
def test_parts_nest_and_cover_the_rows(n: int, m: int, share: float, sizes: Sizes | None) -> None:
    found = Layout.of((n, m), sizes)
    assert found.partition_rows % found.block_rows == found.chunk_rows % found.partition_rows == 0
    assert (found.n_partitions - 1) * found.partition_rows < n <= found.n_partitions * found.partition_rows
    assert found.n_partitions <= Sizes().max_partitions
    sample = found.sample(share)
    assert list(sample) == sorted(set(sample))
    assert set(sample) <= set(range(found.n_partitions))
    assert 2 * len(sample) <= found.n_partitions


def test_given_sizes_are_those_of_a_context() -> None:
    with cut_into(**vars(SMALL)):
        found = Layout.of((300, 4)), Layout.of_stored((300, 40), 1200), Layout.of((300, 4)).with_segments((100, 200))
    given = (
        Layout.of((300, 4), SMALL),
        Layout.of_stored((300, 40), 1200, SMALL),
        Layout.of((300, 4), SMALL).with_segments((100, 200), SMALL),
    )
    assert found == given
    assert found[0].n_partitions == 19
    assert Layout.of((300, 4)) == Layout.of((300, 4), Sizes()) != found[0]


def test_contexts_add_up_hold_in_all_threads_and_end_with_an_error() -> None:
    default, shape = Layout.of((300, 4)), (300, 4)
    with ThreadPoolExecutor(1) as thread, suppress(ZeroDivisionError), cut_into(block_rows=(8, 16)):
        with cut_into(small_partition_entries=1 << 6):
            inner = thread.submit(Layout.of, shape).result()
        assert (inner.block_rows, inner.n_partitions) == (16, 19)
        assert Layout.of(shape) == thread.submit(Layout.of, shape).result() == Layout.of(shape, Sizes(block_rows=(8, 16)))
        raise ZeroDivisionError
    assert Layout.of(shape) == default


def test_other_names_are_refused() -> None:
    with pytest.raises(TypeError, match="block_row"), cut_into(block_row=1):
        pass
