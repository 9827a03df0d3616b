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


HAPLOID, POLYPLOID, UNLISTED = range(3)
"""Kinds of calls that are not of two of a variant's two alleles: of one allele, of more than two, of an allele that is not listed."""


@kernel
def parse_calls(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64], n: int, out: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Set out (m, n) to the genotypes of lines of a VCF file, numbers of REF alleles, from the texts of the n persons.

    The line j has them at ``starts[j]`` to ``stops[j]``, separated by tabs; a call ends at a colon. A call with a missing allele is
    missing. Returns for each line the number of persons (m, 4), and the first one with a call of each kind, −1 without any.
    """
    m = len(starts)
    found = np.full((m, 4), -1, np.int64)
    for j in range(m):
        i, at, stop = 0, starts[j], stops[j]
        while at <= stop and i < n:
            alleles, reference, missing, listed, number, began = 1, 0, False, True, -1, at
            while True:
                symbol = text[at] if at < stop else np.uint8(9)
                if 48 <= symbol <= 57:
                    number = 10 * max(number, 0) + int(symbol) - 48
                elif symbol in (47, 124) and at == began:  # "/" or "|" before the first allele states the phase in VCF 4.4
                    began += 1
                elif symbol in (47, 124, 58, 9):
                    missing |= number < 0
                    listed &= number < 2
                    reference += number == 0
                    number = -1
                    if symbol not in (47, 124):
                        break
                    alleles += 1
                elif symbol != 46:
                    listed = False
                at += 1
            while at < stop and text[at] != 9:
                at += 1
            at += 1
            kind = 1 if alleles > 2 else 0 if alleles == 1 and not missing else 2 if not listed else -1
            if kind >= 0 and found[j, 1 + kind] < 0:
                found[j, 1 + kind] = i
            out[j, i] = 9 if missing or kind >= 0 else reference
            i += 1
        found[j, 0] = i if at > stop else n + 1
    return found
