"""Codes of which nothing says whether they are answers: by their label, their sign, and their distance from all other codes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dfact.imports.coding.no_answer import labels_of_no_answer

_TAILS = (66, 77, 88, *range(95, 100), 666, 777, 888, *range(995, 1000), 6666, 7777, 8888, *range(9995, 10000), 77777, 88888, 99998, 99999)
_LIMITS = (-(2**31), -(2**31) + 1, 2**31 - 1, -(2**15), 2**15 - 1)
USUAL = np.array([*range(-9, 0), 7, 8, 9, *range(-98, -70), *_TAILS, *(-code for code in _TAILS), *_LIMITS, 999999, -999999], np.float64)
"""Numbers that questionnaires, registers and programs use for no answer."""
MOST_LEVELS = 20
"""Number of different answers above which a column is a measurement."""
_LOWEST, _SINGLE_DIGITS, _FAR = 7, 9, 10


def doubtful_labels(labels: Mapping[float, str]) -> tuple[float, ...]:
    """Return the codes with labels that may stand for no answer, ascending: by the label, the sign, or the distance from the others."""
    ascending = {code: labels[code] for code in sorted(labels)}
    found = labels_of_no_answer(ascending)
    others = np.array([code for code in ascending if code not in found])
    return tuple(sorted(found | far_codes(others, any_negative=True)))


def far_codes(values: NDArray[np.float64], ends: NDArray[np.float64] | None = None, *, any_negative: bool = False) -> set[float]:
    """Return the codes at the ends of the ascending answers to choose from that are far from all others.

    These are usual codes at least as far from the others as those are from one another, such as 99 among 1 to 7; a usual code above
    a gap in numbers without another one, such as 9 among 1 to 7; and those with a sign that no other has, such as -1 among 0 to 3, but
    not -2 of -2 to 2. A gap is none, and a sign is usual, where the lowest and highest answers to other items, ``ends`` (m, 2), say so.
    With ``any_negative``, negative numbers need not be usual codes.
    """
    codes = values.tolist()
    ends = np.empty((0, 2)) if ends is None else ends
    counted = [code for code in codes if code >= 0]
    if len(counted) < 2:
        counted = codes
    top = next((k for k in range(2, len(counted)) if _is_gap(counted[:k], counted[k:], ends)), len(counted))
    found = set(counted[top:])
    codes = [code for code in codes if code not in found]
    for k in range(1, len(codes) - 1):
        if codes[k - 1] >= 0 or not (any_negative or _is_usual(codes[k - 1])):
            break
        if codes[k] - codes[k - 1] > codes[-1] - codes[k]:  # -2 to 2 is a usual scale
            found |= set(codes[:k])
    codes = [code for code in codes if code not in found]
    signed = [code for code in codes if code < 0]
    if len(codes) - len(signed) >= 2 and signed and (any_negative or all(map(_is_usual, signed))):
        is_mirrored = -signed[0] == codes[-1] or bool(np.any((ends[:, 0] == signed[0]) & (ends[:, 1] == -signed[0])))
        found |= set() if is_mirrored else set(signed)
    return found


def _is_usual(code: float) -> bool:
    return bool(np.isin(code, USUAL))


def _is_gap(low: list[float], high: list[float], ends: NDArray[np.float64]) -> bool:
    """Check whether the higher codes are all usual ones, far above the lower ones or above a gap in their sequence."""
    first, last, step, gap = high[0], high[-1], low[1] - low[0], high[0] - low[-1]
    if first < _LOWEST or not all(map(_is_usual, high)):
        return False
    is_even = bool(np.all(np.diff(low) == step))
    if is_even and len(high) == 1 and gap == step:  # 1, 5, 9
        return False
    if last <= _SINGLE_DIGITS and np.any(
        ((low[-1] < ends[:, 1]) & (ends[:, 1] < first)) | ((last < ends[:, 1]) & (ends[:, 1] <= 2 * last))
    ):
        return False
    return gap >= low[-1] - low[0] or (is_even and gap > step)


def is_measured(values: NDArray[np.float64]) -> bool:
    """Check whether values are measurements: fractions, or more different ones than a scale has besides usual codes."""
    rest = values[~np.isin(values, USUAL) | ((values > 0) & (values <= MOST_LEVELS))]
    return rest.size > MOST_LEVELS or bool(np.any(rest != np.floor(rest)))


def far_of_counts(counts: Mapping[float, int]) -> set[float]:
    """Return the far codes of a column, given the numbers of its values."""
    values = np.array(sorted(counts))
    if not is_measured(values):
        return far_codes(values)
    is_code = np.isin(values, USUAL)
    rest = values[~is_code]
    return far_values({code: counts[code] for code in values[is_code].tolist()}, (float(rest[0]), float(rest[-1])))


def far_values(counts: Mapping[float, int], rest: tuple[float, float]) -> set[float]:
    """Return the usual codes of a measurement that are far from the rest, which has these limits.

    They are the only negative numbers, or as far above the rest as its range. One of one digit, or less far than ten ranges above,
    occurs several times.
    """
    low, high = rest
    width = high - low
    return {
        code
        for code, n in counts.items()
        if (code < 0 <= low and (n > 1 or -code > _SINGLE_DIGITS)) or (code - high >= width > 0 and (n > 1 or code - high >= _FAR * width))
    }
