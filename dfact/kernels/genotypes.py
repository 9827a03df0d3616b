"""Genotypes packed as in PLINK's .bed files: two bits for each person, variant by variant.

Codes, from the low bits of a byte: 0 is A1/A1, 1 is missing, 2 is A1/A2, 3 is A2/A2. Unpacked, a genotype is its number of A2 alleles.

Additional shape letter: b = ⌈n/4⌉ bytes of a variant.
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

MISSING = 9
"""Code of a missing genotype among the numbers of alleles."""
TILE = 256
"""Number of persons and of variants of a tile, whose bytes fit in a first-level cache, and whose genotypes in a second-level cache."""
_QUARTER = TILE // 4
_ALLELES = np.uint32(0x2190)
"""Genotypes of the four codes, in 4 bits each: a shift by 4 · code looks one up."""


@kernel
def count_codes(packed: NDArray[np.uint8], n: int, counts: NDArray[np.int64]) -> None:
    """Set counts (m, 4) to the number of persons with each code, of packed (m, b) with n persons."""
    full = n // 4
    histogram = np.empty(256, np.int64)
    for j in range(packed.shape[0]):
        histogram[:] = 0
        for i in range(full):
            histogram[packed[j, i]] += 1
        counts[j] = 0
        for byte in range(256):
            for person in range(4):
                counts[j, (byte >> 2 * person) & 3] += histogram[byte]
        for i in range(4 * full, n):
            counts[j, (packed[j, i // 4] >> 2 * (i % 4)) & 3] += 1


@kernel
def unpack_rows(packed: NDArray[np.uint8], first: int, out: NDArray[np.uint8]) -> None:
    """Set out (rows, m) to the genotypes of the persons ``first``, … in packed (m, b); ``first`` is a multiple of 4.

    The bytes of a tile are transposed, then decoded along the variants: both loops stay in the cache, and the second is vectorized.
    """
    rows, m = out.shape
    start = first // 4
    tile = np.empty((_QUARTER, TILE), np.uint8)
    for i0 in range(0, rows, TILE):
        n_bytes = min(_QUARTER, (rows - i0 + 3) // 4)
        for j0 in range(0, m, TILE):
            width = min(TILE, m - j0)
            for j in range(width):
                for i in range(n_bytes):
                    tile[i, j] = packed[j0 + j, start + i0 // 4 + i]
            for i in range(n_bytes):
                codes = tile[i, :width]
                for person in range(min(4, rows - i0 - 4 * i)):
                    row = out[i0 + 4 * i + person, j0 : j0 + width]
                    shift = np.uint32(2 * person)
                    for j in range(width):
                        code = (np.uint32(codes[j]) >> shift) & np.uint32(3)
                        row[j] = (_ALLELES >> (code << np.uint32(2))) & np.uint32(15)
