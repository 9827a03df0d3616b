"""K-means over all rows: starts on a sample, then Lloyd's iteration by passes."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dfact.engine.passes import Block, Partial, Startless, State
from dfact.engine.session import Session
from dfact.kernels.clusters import assign, cluster_sums, nearest
from dfact.linalg.points import Best, Coordinates, take

_SAMPLE = 1 << 15  # rows on which the starts compete; no more are clustered without passes
_STARTS = 10
_MAX_PASSES = 100
_TOLERANCE = 1e-4  # of the sum of squared distances: what a pass must lower it by to be followed by another


@dataclass
class ClusterSums(Partial):
    """Of s searches' clusters, filled with zeros behind fewer."""

    sums: NDArray[Any]
    """(s, k, k) sums of the points of each cluster"""
    counts: NDArray[Any]
    """(s, k)"""
    inertia: NDArray[Any]
    """(s,) sums of the squared distances from the centres"""


@dataclass(frozen=True)
class LloydPass(Startless):
    """Sums and counts of each search's clusters about the shared centres (k, k)."""

    points: tuple[Coordinates, ...]
    dtype: None = None

    def step(self, block: Block, state: State | None, shared: Sequence[NDArray[Any]]) -> tuple[State | None, ClusterSums]:
        width = max(points.k for points in self.points)
        n = len(shared)
        result = ClusterSums(np.zeros((n, width, width)), np.zeros((n, width)), np.zeros(n))
        for s, (points, centers) in enumerate(zip(self.points, shared, strict=True)):
            X, labels, distances = _assigned(points, centers, block, state)
            cluster_sums(X, labels, result.sums[s], result.counts[s])
            result.inertia[s] = distances[labels >= 0].sum(dtype=np.float64)
        return state, result


@dataclass(frozen=True)
class NearestPass(Startless):
    """Of each cluster about the shared centres the row nearest to its centre, one search behind the other."""

    points: tuple[Coordinates, ...]
    dtype: None = None

    def step(self, block: Block, state: State | None, shared: Sequence[NDArray[Any]]) -> tuple[State | None, Best]:
        scores, rows = [], []
        for points, centers in zip(self.points, shared, strict=True):
            _, labels, distances = _assigned(points, centers, block, state)
            least, found = np.empty(len(centers)), np.empty(len(centers), np.int64)
            nearest(labels, distances, least, found)
            scores.append(-least)
            rows.append(np.where(found < 0, -1, block.start + found))
        return state, Best(np.concatenate(scores), np.concatenate(rows), np.empty((sum(map(len, shared)), 0)))


def _assigned(
    points: Coordinates, centers: NDArray[Any], block: Block, state: State | None
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """The points (k, rows), their clusters, and their squared distances from the centre."""
    X = np.ascontiguousarray(points.of(block, state).T)
    labels, distances = np.empty(X.shape[1], np.int64), np.empty(X.shape[1], X.dtype)
    assign(X, centers.astype(X.dtype), labels, distances)
    return X, labels, distances


def kmeans(session: Session, points: Sequence[Coordinates], n_rows: int, seed: int) -> list[NDArray[np.float64]]:
    """Centres (k, k) of k clusters of each search's points; all searches share the passes.

    scikit-learn's K-means, best of ten k-means++ starts, on all rows or a sample of 32768. From
    there Lloyd's iteration goes on over all rows until a pass gains less than 1e-4.
    """
    whole = n_rows <= _SAMPLE
    rows = np.arange(n_rows) if whole else np.sort(np.random.default_rng(seed).choice(n_rows, _SAMPLE, replace=False))
    coordinates = take(session, Coordinates(max(search.k for search in points)), rows)
    samples = [search.scaled(coordinates[:, : search.k].T).T for search in points]
    samples = [sample[sample.any(axis=1)] for sample in samples]
    centers = [centers_of(sample, search.k, seed) for sample, search in zip(samples, points, strict=True)]
    active = [] if whole else list(range(len(points)))
    inertia = np.full(len(points), np.inf)
    for _ in range(_MAX_PASSES):
        if not active:
            break
        result = session.run(LloydPass(tuple(points[s] for s in active)), [centers[s] for s in active])
        for i, s in enumerate(active):
            k, counts = points[s].k, result.counts[i, : points[s].k, None]
            centers[s] = np.where(counts > 0, result.sums[i, :k, :k] / np.maximum(counts, 1), centers[s])
        settled = inertia[active] - result.inertia <= _TOLERANCE * result.inertia
        inertia[active] = result.inertia
        active = [s for s, done in zip(active, settled, strict=True) if not done]
    return centers


def centers_of(X: NDArray[np.float64], k: int, seed: int) -> NDArray[np.float64]:
    """Centres (k, d) of the points X (n, d), by scikit-learn; on one thread, as its sums depend on the order of threads."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: the caller sees it in the vertices
        centers: NDArray[np.float64] = KMeans(k, n_init=_STARTS, random_state=seed).fit(X).cluster_centers_
    return centers


def nearest_rows(session: Session, points: Sequence[Coordinates], centers: Sequence[NDArray[np.float64]]) -> list[NDArray[np.int64]]:
    """Of every cluster the number of the row nearest to its centre (k,), for each search."""
    rows = session.run(NearestPass(tuple(points)), list(centers)).rows.astype(np.int64)
    return np.split(rows, np.cumsum([len(found) for found in centers])[:-1])
