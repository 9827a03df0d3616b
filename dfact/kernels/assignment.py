"""K-means on the directions of the points of one block: assignment of points to centres.

Shapes: d coordinates, n points, c centres of all searches one below the other. Points are stored coordinates first, X (d, n).
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel


@kernel
def member_weights(
    X: NDArray[np.floating],
    widths: NDArray[np.int64],
    halves: NDArray[np.floating],
    products: NDArray[np.floating],
    counts: NDArray[np.float64],
) -> None:
    """Assign the directions x = X[:k, i] / ‖X[:k, i]‖ to the nearest of the k centres of each search, with k = widths[s].

    products (c, n) holds C·X and is overwritten with the weights of the members: 1 / ‖X[:k, i]‖ for members of a centre's
    cluster, 0 for others, so that its product with Xᵀ is the sum of their directions. counts (c) are the numbers of members. The
    point 0 has no direction and is in no cluster. halves (c) are ½‖c‖²: argmin ‖x − c‖² = argmax c·X − ½‖c‖²‖X‖.
    """
    n = X.shape[1]
    zero, one = X.dtype.type(0), X.dtype.type(1)
    square, norm, highest, label = np.zeros(n, X.dtype), np.empty(n, X.dtype), np.empty(n, X.dtype), np.empty(n, np.int32)
    width = first = 0
    for k in widths:
        if k < width:
            square[:] = 0
            width = 0
        for j in range(width, k):
            for i in range(n):
                square[i] += X[j, i] * X[j, i]
        width = k
        for i in range(n):
            norm[i] = np.sqrt(square[i])
            highest[i] = -np.inf
            label[i] = -1
        for c in range(k):
            centre, half = np.int32(c), halves[first + c]
            for i in range(n):
                value = products[first + c, i] - half * norm[i]
                label[i] = centre if value > highest[i] else label[i]
                highest[i] = value if value > highest[i] else highest[i]
        for i in range(n):
            label[i] = label[i] if norm[i] > zero else np.int32(-1)
        for i in range(n):
            norm[i] = one / norm[i]
        for c in range(k):
            centre, members = np.int32(c), 0
            for i in range(n):
                members += label[i] == centre
            counts[first + c] = members
            for i in range(n):
                products[first + c, i] = norm[i] if label[i] == centre else zero
        first += k
