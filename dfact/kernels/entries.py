"""Entry-wise kernels: decoding of missing codes, column statistics, scattering and filling of values."""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel


@kernel
def decode(raw: NDArray[np.generic], missing_code: int, out: NDArray[np.floating]) -> None:
    """Set out (n, m) to raw (n, m), with NaN wherever raw equals the missing code."""
    for i in range(raw.shape[0]):
        for j in range(raw.shape[1]):
            value = raw[i, j]
            out[i, j] = np.nan if value == missing_code else value


@kernel
def mask_codes(values: NDArray[np.floating], codes: NDArray[np.float64]) -> None:
    """Set values (n, m) to NaN wherever they equal one of the codes, in place."""
    for code in codes:
        for i in range(values.shape[0]):
            for j in range(values.shape[1]):
                # Written without a branch, so that the loop is vectorized.
                values[i, j] = np.nan if values[i, j] == code else values[i, j]


@kernel
def mask_listed(values: NDArray[np.floating], starts: NDArray[np.int64], codes: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Set values (n, m) to NaN wherever they equal a code of their column, in place, and add the number to counts.

    The codes of column j are codes[starts[j] : starts[j + 1]].
    """
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            for k in range(starts[j], starts[j + 1]):
                if values[i, j] == codes[k]:
                    counts[k] += 1
                    values[i, j] = np.nan
                    break


@kernel
def first_invalid(
    values: NDArray[np.floating],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    starts: NDArray[np.int64],
    levels: NDArray[np.float64],
) -> int:
    """Return the first i·m + j whose value is outside [low_j, high_j] or, where column j has levels, none of them; −1 if there is none.

    The levels of column j are levels[starts[j] : starts[j + 1]]. NaN is valid.
    """
    m: int = values.shape[1]
    for i in range(values.shape[0]):
        outside = False
        for j in range(m):
            # Written without a branch, so that the loop is vectorized.
            outside |= (values[i, j] < low[j]) | (values[i, j] > high[j])
        if not outside and levels.size == 0:
            continue
        for j in range(m):
            value = values[i, j]
            if value < low[j] or value > high[j]:
                return i * m + j
            if value == value and starts[j + 1] > starts[j]:
                listed = False
                for k in range(starts[j], starts[j + 1]):
                    listed = listed or value == levels[k]
                if not listed:
                    return i * m + j
    return -1


@kernel
def recode(raw: NDArray[np.generic], missing_code: float, offset: NDArray[np.float64], new_code: float, out: NDArray[np.generic]) -> None:
    """Set out (n, m) to raw (n, m) minus the offset (m) of its column, and to new_code wherever raw is NaN or the missing code."""
    for i in range(raw.shape[0]):
        for j in range(raw.shape[1]):
            value = np.float64(raw[i, j])
            # Written without a branch, so that the loop is vectorized.
            out[i, j] = new_code if value == missing_code or value != value else value - offset[j]


@kernel
def all_whole(values: NDArray[np.floating]) -> bool:
    """Return whether every entry of values (n, m) that is not NaN is a whole number."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            if value == value and value != np.floor(value):
                return False
    return True


@kernel
def column_statistics(
    values: NDArray[np.floating],
    observed: NDArray[np.int64],
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    row_observed: NDArray[np.int64],
) -> None:
    """Add the rows of values (n, m; NaN = missing) to the running count, minimum and maximum (m) of every column.

    The number of observed entries of each row (n) is written to row_observed.
    """
    for i in range(values.shape[0]):
        count = 0
        for j in range(values.shape[1]):
            value = values[i, j]
            if value == value:
                count += 1
                observed[j] += 1
                minimum[j] = min(minimum[j], value)
                maximum[j] = max(maximum[j], value)
        row_observed[i] = count


@kernel
def stored_statistics(
    data: NDArray[np.floating],
    indices: NDArray[np.integer],
    indptr: NDArray[np.integer],
    observed: NDArray[np.int64],
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    row_observed: NDArray[np.int64],
) -> None:
    """Add what :func:`column_statistics` adds, for the stored entries of CSR values alone."""
    for i in range(indptr.size - 1):
        count = 0
        for e in range(indptr[i], indptr[i + 1]):
            value, j = data[e], indices[e]
            if value == value:
                count += 1
                observed[j] += 1
                minimum[j] = min(minimum[j], value)
                maximum[j] = max(maximum[j], value)
        row_observed[i] = count


@kernel
def scatter(data: NDArray[np.generic], indices: NDArray[np.integer], indptr: NDArray[np.integer], out: NDArray[np.generic]) -> None:
    """Write the stored entries of CSR values to out (n, m), whose other entries stay."""
    for i in range(indptr.size - 1):
        for e in range(indptr[i], indptr[i + 1]):
            out[i, indices[e]] = data[e]


@kernel
def _fill(values: NDArray[np.floating], fill: float, out: NDArray[np.floating]) -> None:
    replacement = out.dtype.type(fill)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            value = values[i, j]
            out[i, j] = value if value == value else replacement


def filled(values: NDArray[np.floating], fill: float = 0.0, out: NDArray[np.floating] | None = None) -> NDArray[np.floating]:
    """Return a copy of values (n, m), in ``out`` if it is given, with ``fill`` where they are NaN."""
    out = np.empty_like(values) if out is None else out
    _fill(values, fill, out)
    return out


@kernel
def squared_error(M: NDArray[np.floating], R: NDArray[np.floating], sample_weight: NDArray[np.floating]) -> float:
    """Return Σ (M − R)² over the entries of M (n, m) that are not NaN, each row times its sample_weight (n)."""
    zero = R.dtype.type(0)
    total = 0.0
    for i in range(M.shape[0]):
        row = zero
        for j in range(M.shape[1]):
            error = M[i, j] - R[i, j] if M[i, j] == M[i, j] else zero
            row += error * error
        total += float(sample_weight[i] * row)
    return total


@kernel
def residual_sums(M: NDArray[np.floating], R: NDArray[np.floating], sample_weight: NDArray[np.floating], out: NDArray[np.float64]) -> None:
    """Add Σ s, Σ s² and Σ s(M − R)^p for p = 1, 2, 3 over the rows in which M (n, m) is not NaN to the rows of out (5, m).

    s is the sample_weight (n).
    """
    for i in range(M.shape[0]):
        s = np.float64(sample_weight[i])
        for j in range(M.shape[1]):
            # Written without a branch, so that the loop is vectorized.
            observed = M[i, j] == M[i, j]
            error = np.float64(M[i, j]) - np.float64(R[i, j]) if observed else 0.0
            weight = s if observed else 0.0
            out[0, j] += weight
            out[1, j] += weight * weight
            out[2, j] += weight * error
            out[3, j] += weight * error * error
            out[4, j] += weight * error * error * error
