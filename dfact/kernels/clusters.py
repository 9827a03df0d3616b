"""K-means on one block: assignment to the nearest centre, sums for the new centres, the point nearest to each.

Shapes: d coordinates, n points, c centres. Points lie coordinates first, X (d, n).
"""

import numpy as np
from numpy.typing import NDArray

from dfact.kernels.jit import kernel

_TILE = 256  # points whose distances stay in the first-level cache


@kernel
def assign(X: NDArray[np.floating], centers: NDArray[np.floating], labels: NDArray[np.int64], distances: NDArray[np.floating]) -> None:
    """labels[i] = argmin_c ‖X[:, i] − centers[c]‖², distances[i] the minimum; −1 and infinity for the point 0, which has no direction."""
    d, n = X.shape
    distance = np.empty(_TILE, X.dtype)
    for start in range(0, n, _TILE):
        tile = min(_TILE, n - start)
        distance[:] = 0
        for j in range(d):
            for i in range(tile):
                distance[i] += X[j, start + i] * X[j, start + i]
        for i in range(tile):
            labels[start + i] = 0 if distance[i] > 0 else -1
            distances[start + i] = np.inf
        for c in range(len(centers)):
            distance[:] = 0
            for j in range(d):
                center = centers[c, j]
                for i in range(tile):
                    difference = X[j, start + i] - center
                    distance[i] += difference * difference
            for i in range(tile):
                if labels[start + i] >= 0 and distance[i] < distances[start + i]:
                    distances[start + i] = distance[i]
                    labels[start + i] = c


@kernel
def cluster_sums(X: NDArray[np.floating], labels: NDArray[np.int64], sums: NDArray[np.float64], counts: NDArray[np.float64]) -> None:
    """Add every point X (d, n) to the sums (c, d) and counts (c) of its cluster; −1 is in none."""
    d, n = X.shape
    for i in range(n):
        if labels[i] >= 0:
            counts[labels[i]] += 1
            for j in range(d):
                sums[labels[i], j] += X[j, i]


@kernel
def nearest(labels: NDArray[np.int64], distances: NDArray[np.floating], least: NDArray[np.float64], points: NDArray[np.int64]) -> None:
    """Of each cluster the point nearest to its centre: its distance in least (c), its number in points (c); the first of equals.

    A cluster without any point has infinity and −1.
    """
    least[:] = np.inf
    points[:] = -1
    for i in range(len(labels)):
        c = labels[i]
        if c >= 0 and distances[i] < least[c]:
            least[c] = distances[i]
            points[c] = i
