"""Polychoric correlations: the tables of all pairs of items, and the correlation of each table.

The levels of the items, s_j to s_{j+1} − 1 for item j, are the slots of a bit matrix (S, words): bit i of a slot is set if row i gave
this answer. The table of two items is a block of the Gram matrix G (S, S) of the slots, a number of common bits for each pair of
them. Of G, the rows ``first`` to ``last`` − 1 of the lower triangle are stored one after the other, each with its diagonal entry.
If the rows of the data have weights, the entries of G are sums of weights. Then the slots of each row (rows, m) take the place of the
bits, as a row contributes to m²/2 of the entries alone.

Additional shape letters: S slots, L levels of an item.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dfact.kernels.jit import kernel, subroutine

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]
Bits = NDArray[np.uint64]

LIMIT = 0.9999
"""Largest absolute value of an estimate."""
WORD = 64
"""Number of rows in a word."""
_STRIP = 128  # words of 4 slots, and of the slots they are paired with one after the other, fit in a first-level cache
_TILE = 64  # slots whose strips fit in a second-level cache
_ROWS, _ITEMS = 256, 128  # their slots fit in a second-level cache, and one item's rows of G for all of them in a first-level one
_STEPS, _TOLERANCE = 60, 1e-9  # of Fisher scoring
_LEAST = 1e-14  # a smaller probability is a rounding error
(_X10, _W10), (_X20, _W20) = (np.polynomial.legendre.leggauss(nodes) for nodes in (10, 20))


@intrinsic
def popcount(_context, _word):  # type: ignore[no-untyped-def]  # types of Numba, not of Python
    """Count the bits of a word by the processor's instruction; Numba has none."""
    return types.uint64(types.uint64), lambda _, builder, _signature, arguments: builder.ctpop(arguments[0])


@subroutine
def contributes(row: NDArray[np.generic], missing_code: float, complete_only: bool) -> bool:
    """Return whether a row (m) has any answer, or with ``complete_only`` all."""
    answered = 0
    for j in range(row.size):
        value = np.float64(row[j])
        answered += value == value and value != missing_code
    return answered == row.size if complete_only else answered > 0


@subroutine
def level_of(value: float, missing_code: float, low: float, fractions: Integers, j: int) -> int:
    """Return an answer's level above the lowest one, −1 if there is none. An answer to item j that is not a whole number is added to
    fractions (m).
    """
    if value != value or value == missing_code:
        return -1
    level = int(value - low)
    if value - low != level:
        fractions[j] += 1
        return -1
    return level


@kernel
def pack_levels(
    values: NDArray[np.generic],
    missing_code: float,
    low: Floats,
    starts: Integers,
    last: int,
    complete_only: bool,
    bits: Bits,
    fractions: Integers,
) -> int:
    """Set the bits (S, words), zero before, of the answers of values (n, m) to items 0 to ``last`` − 1, and count the contributing rows.

    An answer is missing if it is NaN or the missing code. Level v of item j has slot s_j + v − low_j. Answers that are not whole
    numbers are added to fractions (m), and have no bit. Rows without answers, and with ``complete_only`` those with missing ones, do
    not contribute.
    """
    rows = 0
    for i in range(values.shape[0]):
        if contributes(values[i], missing_code, complete_only):
            rows += 1
            word, bit = i // WORD, np.uint64(1) << np.uint64(i % WORD)
            for j in range(last):
                level = level_of(np.float64(values[i, j]), missing_code, low[j], fractions, j)
                if level >= 0:
                    bits[starts[j] + level, word] |= bit
    return rows


@kernel
def find_slots(
    values: NDArray[np.generic],
    missing_code: float,
    low: Floats,
    starts: Integers,
    last: int,
    complete_only: bool,
    weights: Integers,
    slots: NDArray[np.signedinteger],
    fractions: Integers,
) -> int:
    """Set slots (n, last) to those of the answers, −1 for none, and count the contributing rows; see :func:`pack_levels`.

    Rows of weight 0 do not contribute either. The weights (n) of all rows that do not contribute are set to 0.
    """
    rows = 0
    for i in range(values.shape[0]):
        if weights[i] > 0 and contributes(values[i], missing_code, complete_only):
            rows += 1
            for j in range(last):
                level = level_of(np.float64(values[i, j]), missing_code, low[j], fractions, j)
                slots[i, j] = starts[j] + level if level >= 0 else -1
        else:
            weights[i] = 0
            slots[i] = -1
    return rows


@kernel
def add_weights(slots: NDArray[np.signedinteger], weights: Integers, item: int, first: int, counts: Integers) -> None:
    """Add the weights (n) of rows with these slots (n, items) to counts, the rows of the lower triangle of G from slot ``first`` on.

    ``item`` is the item of this slot.
    """
    n, items = slots.shape
    base = first * (first + 1) // 2
    for t0 in range(0, n, _ROWS):
        for j0 in range(0, items, _ITEMS):
            for i in range(max(item, j0), items):
                j1 = min(j0 + _ITEMS, i + 1)
                for t in range(t0, min(t0 + _ROWS, n)):
                    r, weight = np.int64(slots[t, i]), weights[t]
                    if r >= 0:
                        row, out = slots[t, j0:j1], counts[r * (r + 1) // 2 - base : (r + 1) * (r + 2) // 2 - base]
                        for j in range(row.size):
                            c = np.uint64(np.int64(row[j]))  # an index without a sign saves a third of the time; −1 is then no slot
                            if c < out.size:
                                out[c] += weight


@kernel
def count_common(bits: Bits, first: int, last: int, counts: NDArray[np.integer]) -> None:
    """Add the numbers of common bits of the slots to counts, the rows ``first`` to ``last`` − 1 of the lower triangle of G."""
    words = bits.shape[1]
    base = first * (first + 1) // 2
    for w0 in range(0, words, _STRIP):
        w1 = min(w0 + _STRIP, words)
        for c0 in range(0, last, _TILE):
            for r in range(max(first, c0), last):
                row = bits[r, w0:w1]
                out = counts[r * (r + 1) // 2 - base : (r + 1) * (r + 2) // 2 - base]
                c1 = min(c0 + _TILE, r + 1)
                for c in range(c0, c1 - 3, 4):
                    y0, y1, y2, y3 = bits[c, w0:w1], bits[c + 1, w0:w1], bits[c + 2, w0:w1], bits[c + 3, w0:w1]
                    t0, t1, t2, t3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
                    for w in range(row.size):
                        x = row[w]
                        t0 += popcount(x & y0[w])
                        t1 += popcount(x & y1[w])
                        t2 += popcount(x & y2[w])
                        t3 += popcount(x & y3[w])
                    out[c] += t0
                    out[c + 1] += t1
                    out[c + 2] += t2
                    out[c + 3] += t3
                for c in range(c1 - (c1 - c0) % 4, c1):
                    y, t = bits[c, w0:w1], np.uint64(0)
                    for w in range(row.size):
                        t += popcount(row[w] & y[w])
                    out[c] += t


@subroutine
def integrate(rho: float, a: Floats, b: Floats, nodes: Floats, weights: Floats, panels: int, F: Floats) -> None:
    """Set F (L+1, L+1) to Φ₂ at the thresholds minus its value for ρ = 0, for the inner corners:

        (1/2π) ∫ exp(−(a² + b² − 2ab sin θ)/(2 cos² θ)) dθ  over 0 ≤ θ ≤ arcsin ρ,

    by Gauss and Legendre's rule in panels of which each is half as long as the one before, as the integrand changes fastest near ±π/2.
    """
    A, B, top = a.size, b.size, np.arcsin(rho)
    for i in range(1, A + 1):
        for j in range(1, B + 1):
            F[i, j] = 0.0
    for panel in range(panels):
        start = top * (1 - 0.5**panel)
        stop = top * (1 - 0.5 ** (panel + 1)) if panel < panels - 1 else top
        for q in range(nodes.size):
            angle = start + (stop - start) * 0.5 * (nodes[q] + 1)
            sine, scale = np.sin(angle), 0.5 / np.cos(angle) ** 2
            weight = weights[q] * (stop - start) / (4 * np.pi)
            for i in range(A):
                for j in range(B):
                    F[i + 1, j + 1] += weight * np.exp(-(a[i] * a[i] + b[j] * b[j] - 2 * sine * a[i] * b[j]) * scale)


@subroutine
def evaluate(rho: float, a: Floats, b: Floats, pa: Floats, pb: Floats, F: Floats, D: Floats) -> None:
    """Set F (L+1, L+1) to the distribution function Φ₂ at all corners, and D to its derivative by ρ, the density (Plackett 1954).

    a, b are the thresholds and pa, pb the distribution function there. Row and column 0 are corners at −∞ and keep their zeros; the last
    ones are corners at ∞.
    """
    size = abs(rho)
    if size < 0.5:
        integrate(rho, a, b, _X10, _W10, 1, F)
    else:
        integrate(rho, a, b, _X20, _W20, 1 if size < 0.8 else 3 if size < 0.95 else 6, F)
    A, B, rest = a.size, b.size, 1 - rho * rho
    for i in range(A):
        F[i + 1, B + 1] = pa[i]
        D[i + 1, B + 1] = 0.0
        for j in range(B):
            F[i + 1, j + 1] += pa[i] * pb[j]
            D[i + 1, j + 1] = np.exp(-(a[i] * a[i] + b[j] * b[j] - 2 * rho * a[i] * b[j]) / (2 * rest)) / (2 * np.pi * np.sqrt(rest))
    for j in range(B):
        F[A + 1, j + 1] = pb[j]
        D[A + 1, j + 1] = 0.0
    F[A + 1, B + 1] = 1.0
    D[A + 1, B + 1] = 0.0


@subroutine
def fill_empty_cell(table: Floats) -> None:
    """Let an empty cell of a 2×2 table count ½, and change the others so that the margins stay; two empty cells stay."""
    empty, row, column = 0, 0, 0
    for i in range(2):
        for j in range(2):
            if table[i, j] == 0:
                empty, row, column = empty + 1, i, j
    if empty == 1:
        for i in range(2):
            for j in range(2):
                table[i, j] += 0.5 if (i == row) == (j == column) else -0.5


@subroutine
def start_value(table: Floats, A: int, B: int) -> float:
    """Return 1.1 times Pearson's correlation of a table (A, B), within ±0.9; NaN if an item does not vary in it."""
    n, sx, sy, sxx, syy, sxy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(A):
        for j in range(B):
            t = table[i, j]
            n += t
            sx += t * i
            sy += t * j
            sxx += t * i * i
            syy += t * j * j
            sxy += t * i * j
    spread = (n * sxx - sx * sx) * (n * syy - sy * sy)
    if not spread > 1e-9:
        return np.nan
    start: float = min(max(1.1 * (n * sxy - sx * sy) / np.sqrt(spread), -0.9), 0.9)
    return start


@subroutine
def maximize_likelihood(table: Floats, a: Floats, b: Floats, pa: Floats, pb: Floats, F: Floats, D: Floats) -> tuple[float, float]:
    """Return the ρ that maximizes Σ n_ab log P_ab(ρ) of a table for given thresholds, and its standard error.

    Fisher scoring, kept within a bracket by the sign of the score. At the limit there is no standard error. Both are NaN if an item
    does not vary in the table.
    """
    A, B = a.size + 1, b.size + 1
    rho = start_value(table, A, B)
    if rho != rho:
        return np.nan, np.nan
    n = 0.0
    for i in range(A):
        for j in range(B):
            n += table[i, j]
    low, high, information = -LIMIT, LIMIT, 0.0
    for _ in range(_STEPS):
        evaluate(rho, a, b, pa, pb, F, D)
        score, information = 0.0, 0.0
        for i in range(A):
            for j in range(B):
                P = F[i + 1, j + 1] - F[i, j + 1] - F[i + 1, j] + F[i, j]
                d = D[i + 1, j + 1] - D[i, j + 1] - D[i + 1, j] + D[i, j]
                if P > _LEAST:
                    score += table[i, j] * d / P
                    information += n * d * d / P
                elif table[i, j] > 0:
                    score += table[i, j] * d / _LEAST
        if score > 0:
            low = rho
        else:
            high = rho
        last = rho
        rho += score / max(information, 1e-300)
        if not low < rho < high:
            rho = (low + high) / 2
        if abs(rho - last) < _TOLERANCE:
            break
    if abs(rho) > LIMIT - 1e-7:
        return np.sign(rho) * LIMIT, np.nan
    return rho, 1 / np.sqrt(max(information, 1e-300))


@kernel
def correlate_tables(
    counts: Floats,
    i: int,
    starts: Integers,
    cuts: Integers,
    thresholds: Floats,
    probabilities: Floats,
    levels: Integers,
    R: Floats,
    errors: Floats,
    common: Floats,
    squares: Floats,
) -> None:
    """Set R, errors and common (m, m) to the polychoric correlations of item i with all items before it, their standard errors, and
    the numbers of rows in their tables.

    If counts are sums of weights, squares (m, m) holds Σw² over the rows of each pair. Its table is then multiplied by Σw/Σw², so that
    it has Kish's effective number of rows, (Σw)²/Σw². Otherwise squares is empty.

    ``counts`` holds the rows of the lower triangle of G for item i. They are numbers of one type with and without weights, because
    code that is compiled for another type may round differently. Slot s is the category levels[s] of its item, or none if that is −1:
    levels without answers. The thresholds of item j, and the normal distribution function there, are entries cuts[j] to cuts[j + 1] − 1;
    later items than i may lack them.
    """
    most = 0
    for j in range(cuts.size - 1):
        most = max(most, cuts[j + 1] - cuts[j] + 1)
    table, F, D = np.zeros((most, most)), np.zeros((most + 1, most + 1)), np.zeros((most + 1, most + 1))
    base = starts[i] * (starts[i] + 1) // 2
    a, pa = thresholds[cuts[i] : cuts[i + 1]], probabilities[cuts[i] : cuts[i + 1]]
    for j in range(i):
        b, pb = thresholds[cuts[j] : cuts[j + 1]], probabilities[cuts[j] : cuts[j + 1]]
        n = 0.0
        for r in range(starts[i], starts[i + 1]):
            offset = r * (r + 1) // 2 - base
            if levels[r] >= 0:
                for c in range(starts[j], starts[j + 1]):
                    if levels[c] >= 0:
                        count = counts[offset + c]
                        table[levels[r], levels[c]] = count
                        n += count
        if squares.size and squares[i, j] > 0:
            scale = n / squares[i, j]
            n *= scale
            for r in range(a.size + 1):
                for c in range(b.size + 1):
                    table[r, c] *= scale
        if a.size == 1 and b.size == 1:
            fill_empty_cell(table)
        rho, error = maximize_likelihood(table, a, b, pa, pb, F, D)
        R[i, j] = R[j, i] = rho
        errors[i, j] = errors[j, i] = error
        common[i, j] = common[j, i] = n
