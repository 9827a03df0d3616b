"""Kernels of packed genotypes against a NumPy decoder."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.genetics.genotype_file import pack
from dfact.genetics.kernels import MISSING, TILE, count_codes, unpack_rows

ALLELES = np.array([0, MISSING, 1, 2], np.uint8)


def decode(packed: NDArray[np.uint8], n: int) -> NDArray[np.uint8]:
    """Persons × variants, by whole bytes."""
    return ALLELES[(packed[:, :, None] >> np.array([0, 2, 4, 6])) & 3].reshape(len(packed), -1)[:, :n].T


@pytest.mark.parametrize("seed", range(3))
def test_unpacking_transposes_and_counts_a2(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 3 * TILE)), int(rng.integers(1, 3 * TILE))
    packed = rng.integers(0, 256, (m, -(-n // 4)), dtype=np.uint8)
    expected = decode(packed, n)
    first = 4 * int(rng.integers(0, -(-n // 4)))
    out = np.full((n - first, m), 77, np.uint8)
    unpack_rows(packed, first, out)
    assert np.array_equal(out, expected[first:])
    counts = np.empty((m, 4), np.int64)
    count_codes(packed, n, counts)
    assert np.array_equal(counts, np.stack([(expected == value).sum(axis=0) for value in ALLELES], axis=1))


@pytest.mark.parametrize("seed", range(2))
def test_packing_is_the_inverse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    genotypes = rng.choice(ALLELES, (int(rng.integers(1, 40)), int(rng.integers(1, 40))))
    assert np.array_equal(decode(pack(genotypes), genotypes.shape[1]).T, genotypes)
