"""The cutting of rows into blocks, partitions and chunks, for data of any shape."""

from hypothesis import given
from hypothesis import strategies as st

from dfact.data import layout
from dfact.data.layout import Layout


@given(n=st.integers(1, 10**10), m=st.integers(1, 10**7), share=st.floats(0, 1))
def test_parts_nest_and_cover_the_rows(n: int, m: int, share: float) -> None:
    found = Layout.of((n, m))
    assert found.partition_rows % found.block_rows == found.chunk_rows % found.partition_rows == 0
    assert (found.n_partitions - 1) * found.partition_rows < n <= found.n_partitions * found.partition_rows
    assert found.n_partitions <= layout._MAX_PARTITIONS
    sample = found.sample(share)
    assert list(sample) == sorted(set(sample))
    assert set(sample) <= set(range(found.n_partitions))
    assert 2 * len(sample) <= found.n_partitions
