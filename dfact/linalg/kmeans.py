"""K-means of directions over all rows: a search on a sample of them, then Lloyd's iteration by passes."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dfact.engine.passes import Block, PartialSums, State, StatelessStart, Workspace
from dfact.engine.session import Session
from dfact.errors import DataError
from dfact.kernels.kmeans import member_weights
from dfact.linalg.points import EMBEDDING, Coordinates, RowMaximum, take

_SAMPLE = 1 << 15  # rows in which the clusters are searched
_BLOCK = 1 << 11  # of them whose products with the centres of a search stay in the second-level cache
_POINTS = 1 << 11  # of them that may start a cluster
_STARTS = 5
_ROUNDS = 5  # of trials, in each of which a cluster of one of the two best solutions is begun elsewhere
_TRIALS, _TRIAL_STEPS = 10, 5
_FINALISTS, _JUDGING_STEPS = 3, 2  # solutions, and steps over all rows that show the best: the sample cannot tell them apart
_SAME = 1e-5  # solutions whose sums of squared distances differ by less, relatively, are one
_PROMISE = 3e-3  # what a trial may be worse by than the last finalist
_SAMPLE_TOLERANCE, _TOLERANCE = 3e-5, 1e-4  # of the sum of squared distances: what a step must lower it by to be followed by another
_MAX_STEPS = 100

Centers = NDArray[np.float64]
"""(k, k) of one solution."""
Evaluate = Callable[[Sequence[Centers]], "ClusterSums"]
Solutions = list[tuple[float, Centers]]
"""Sums of squared distances and centres, the best first."""


@dataclass
class ClusterSums(PartialSums, name="kmeans_clusters"):
    """Sums over the members of the clusters of several solutions, one below the other."""

    directions: NDArray[Any]
    """(c, d), the leading k of each solution of k clusters"""
    counts: NDArray[Any]
    """(c,)"""


@dataclass
class Finalists(PartialSums, name="kmeans_candidates"):
    """The solutions of s searches, filled with zeros."""

    centers: NDArray[Any]
    """(s, _FINALISTS, k, k)"""
    counts: NDArray[Any]
    """(s,)"""


@dataclass(frozen=True)
class LloydPass(StatelessStart):
    """Sums and counts of the clusters about the shared centres of several solutions."""

    dtype: None = None

    def step(self, block: Block, state: State | None, broadcast: "_Packed") -> tuple[State | None, ClusterSums]:
        assert state is not None, "no embedding was kept"
        X = state[EMBEDDING]
        return state, broadcast.astype(X.dtype).sums(X, block.work)


@dataclass(frozen=True)
class NearestPass(StatelessStart):
    """The row nearest to the centre of each cluster about the shared centres, one solution behind the other."""

    dtype: None = None

    def step(self, block: Block, state: State | None, broadcast: "_Packed") -> tuple[State | None, RowMaximum]:
        assert state is not None, "no embedding was kept"
        X = state[EMBEDDING]
        packed = broadcast.astype(X.dtype)
        products = packed.products(X, block.work)
        weights = products.copy()
        member_weights(X, packed.widths, packed.halves, weights, np.empty(len(weights)))
        closeness = np.where(weights > 0, weights * products, -np.inf)  # c·x: of directions x it decides
        found = closeness.argmax(axis=1)
        highest = np.take_along_axis(closeness, found[:, None], axis=1)[:, 0]
        rows = np.where(highest > -np.inf, block.start + found, -1)
        return state, RowMaximum(highest, rows, np.empty((len(rows), 0)))


@dataclass(frozen=True)
class SearchPass(StatelessStart):
    """The finalists of each search in the shared sample X (d, n) of the points; a search is the work of one block."""

    widths: tuple[int, ...]
    n_rows: int
    seed: int
    dtype: None = None

    def step(self, block: Block, state: State | None, broadcast: NDArray[np.float32]) -> tuple[State | None, Finalists]:
        count, width = len(self.widths), max(self.widths)
        result = Finalists(block.work.zeros((count, _FINALISTS, width, width)), block.work.zeros((count,)))
        for s, k in enumerate(self.widths):
            # Far from each other, for all workers to have some; the last, which is usually the longest, is begun first.
            row = (count - 1 - s) * self.n_rows // count
            if block.start <= row < block.start + block.matrix.shape[0]:
                solutions = search(broadcast[:k], self.seed, block.work)
                result.counts[s] = len(solutions)
                for i, (_, centers) in enumerate(solutions):
                    result.centers[s, i, :k, :k] = centers
        return state, result


@dataclass(frozen=True)
class _Packed:
    """The centres of several solutions one below the other."""

    widths: NDArray[np.int64]
    """Number of clusters of each solution."""
    centers: NDArray[Any]
    """(c, d), zeros behind the leading k coordinates"""
    halves: NDArray[Any]
    """(c,) ½‖c‖²"""

    @classmethod
    def of(cls, solutions: Sequence[Centers]) -> "_Packed":
        widths = np.array([len(centers) for centers in solutions])
        packed = np.zeros((widths.sum(), widths.max()))
        for end, centers in zip(np.cumsum(widths), solutions, strict=True):
            packed[end - len(centers) : end, : len(centers)] = centers
        return cls(widths, packed, np.square(packed).sum(axis=1) / 2)

    def astype(self, dtype: np.dtype[Any]) -> "_Packed":
        return _Packed(self.widths, self.centers.astype(dtype), self.halves.astype(dtype))

    def products(self, X: NDArray[Any], work: Workspace) -> NDArray[Any]:
        """Those of the centres with the points X (d, n), as (c, n)."""
        return work.matmul(self.centers, X[: self.centers.shape[1]], "products")

    def sums(self, X: NDArray[Any], work: Workspace, name: str | None = None) -> ClusterSums:
        """The sums of the directions of the points X (d, n) in each cluster, in the memory of this name."""
        weights, counts = self.products(X, work), np.empty(len(self.centers))
        member_weights(X, self.widths, self.halves, weights, counts)
        return ClusterSums(work.matmul(weights, X[: self.centers.shape[1]].T, name), counts)


def lloyd(evaluate: Evaluate, starts: Sequence[Centers], tolerance: float, max_steps: int) -> Solutions:
    """Lloyd's iteration from each start, with Nesterov's momentum as long as it helps; in the order of the starts.

    The squared distances of the directions x from the means of their clusters add up to Σ n − ‖Σx‖² / n over the clusters,
    so the sums are all that is needed of the points.
    """
    centers, means = list(starts), list(starts)
    inertia, age = np.full(len(starts), np.inf), np.zeros(len(starts))
    active = list(range(len(starts)))
    for _ in range(max_steps):
        if not active:
            break
        result = evaluate([centers[s] for s in active])
        ends, going = np.cumsum([len(centers[s]) for s in active]), []
        for s, end in zip(active, ends, strict=True):
            k = len(centers[s])
            sums, counts = result.directions[end - k : end, :k], result.counts[end - k : end, None]
            mean = np.where(counts > 0, sums / np.maximum(counts, 1), centers[s])
            found = max(float((counts - np.square(sums).sum(axis=1, keepdims=True) / np.maximum(counts, 1)).sum()), 0.0)
            if abs(inertia[s] - found) > tolerance * found:
                going.append(s)
            age[s] = age[s] + 1 if found <= inertia[s] else 0
            centers[s] = mean + max(age[s] - 1, 0) / (age[s] + 2) * (mean - means[s])
            means[s], inertia[s] = mean, min(inertia[s], found)
        active = going
    return list(zip(inertia.tolist(), means, strict=True))


def search(X: NDArray[Any], seed: int, work: Workspace) -> Solutions:
    """The best few ways to cluster the directions of the points X (k, n) into k.

    Lloyd's iteration from k-means++ starts, then rounds of trials: a centre of a good solution is moved to a point that
    k-means++ draws, far from the other centres (random swap clustering, Fränti 2018).
    """
    k, rng = len(X), np.random.default_rng(seed)
    n, X = X.shape[1], _directions(X)
    if X.shape[1] < k:
        raise DataError(f"{X.shape[1]} of {n} sampled rows have a direction, expected at least {k}, one for each cluster")
    blocks = [np.ascontiguousarray(X[:, first : first + _BLOCK]) for first in range(0, X.shape[1], _BLOCK)]
    points = X[:, :: max(1, X.shape[1] // _POINTS)].T.astype(np.float64)
    evaluate = partial(_sum_of_blocks, blocks, work)
    starts = [kmeans_plusplus(points, k, random_state=int(rng.integers(1 << 31)))[0] for _ in range(_STARTS)]
    best = _finalists(lloyd(evaluate, starts, _SAMPLE_TOLERANCE, _MAX_STEPS))
    for number in range(_ROUNDS if k > 1 else 0):
        moved = _moved(points, best[number % min(2, len(best))][1], rng)
        trials = _finalists(lloyd(evaluate, moved, 0.0, _TRIAL_STEPS))
        promising = [centers for inertia, centers in trials if inertia < (1 + _PROMISE) * best[-1][0]]
        best = _finalists(best + lloyd(evaluate, promising, _SAMPLE_TOLERANCE, _MAX_STEPS))
    return best


def _sum_of_blocks(blocks: Sequence[NDArray[Any]], work: Workspace, solutions: Sequence[Centers]) -> ClusterSums:
    packed = _Packed.of(solutions).astype(blocks[0].dtype)
    directions, counts = np.zeros(packed.centers.shape), np.zeros(len(packed.centers))
    for block in blocks:
        sums = packed.sums(block, work, "directions")
        directions += sums.directions
        counts += sums.counts
    return ClusterSums(directions, counts)


def _moved(points: NDArray[np.float64], centers: Centers, rng: np.random.Generator) -> list[Centers]:
    """The centres with one of them, each in turn, at a point drawn with its squared distance from the others as weight."""
    distances = np.maximum(1 + np.square(centers).sum(axis=1) - 2 * (points @ centers.T), 0)
    moved = []
    for c in rng.permutation(len(centers))[np.arange(_TRIALS) % len(centers)]:
        weights = np.cumsum(np.delete(distances, c, axis=1).min(axis=1))
        start = centers.copy()
        start[c] = points[np.searchsorted(weights, rng.random() * weights[-1])]
        moved.append(start)
    return moved


def _finalists(solutions: Solutions) -> Solutions:
    """The best few of the solutions that differ."""
    kept: Solutions = []
    for inertia, centers in sorted(solutions, key=lambda solution: solution[0]):
        if not kept or inertia - kept[-1][0] > _SAME * inertia:
            kept.append((inertia, centers))
    return kept[:_FINALISTS]


def kmeans(session: Session, widths: Sequence[int], n_rows: int, seed: int) -> list[Centers]:
    """Centres (k, k) of k clusters of the directions of each row's leading k coordinates, for each k of the widths.

    Up to 32768 rows by scikit-learn. Of more rows the solutions that :func:`search` finds in a sample of as many compete on
    all: there Lloyd's iteration continues until a pass gains less than 1e-4. All searches share the passes.
    """
    whole = n_rows <= _SAMPLE
    rows = np.arange(n_rows) if whole else np.sort(np.random.default_rng(seed).choice(n_rows, _SAMPLE, replace=False))
    sample = take(session, Coordinates(max(widths)), rows).T
    if whole:
        return [centers_of(_directions(sample[:k]).T, k, seed) for k in widths]
    found = session.run(SearchPass(tuple(widths), n_rows, seed), sample.astype(np.float32))
    starts = [[found.centers[s, i, :k, :k] for i in range(int(found.counts[s]))] for s, k in enumerate(widths)]

    def evaluate(solutions: Sequence[Centers]) -> ClusterSums:
        return session.run(LloydPass(), _Packed.of(solutions))

    judged = iter(lloyd(evaluate, [centers for group in starts for centers in group], _TOLERANCE, _JUDGING_STEPS))
    best = [min((next(judged) for _ in group), key=lambda solution: solution[0])[1] for group in starts]
    return [centers for _, centers in lloyd(evaluate, best, _TOLERANCE, _MAX_STEPS)]


def _directions(X: NDArray[Any]) -> NDArray[Any]:
    """The directions (k, r) of the points X (k, n) that have one."""
    norms = np.linalg.norm(X, axis=0)
    return np.asarray(X[:, norms > 0] / norms[norms > 0])


def centers_of(X: NDArray[np.float64], k: int, seed: int) -> NDArray[np.float64]:
    """Centres (k, d) of the points X (n, d), by scikit-learn; on one thread, as its sums depend on the order of threads."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: the caller sees it in the vertices
        centers: NDArray[np.float64] = KMeans(k, n_init=10, random_state=seed).fit(X).cluster_centers_
    return centers


def search_bytes(n_rows: int, k: int) -> int:
    """Bytes that a search works on: copies of the sample, and the products of a block of it with the centres of all trials."""
    return k * (24 * min(n_rows, _SAMPLE) + 4 * _TRIALS * _BLOCK)


def nearest_rows(session: Session, centers: Sequence[Centers]) -> list[NDArray[np.int64]]:
    """The number of the row nearest to the centre of every cluster (k,), for each search."""
    rows = session.run(NearestPass(), _Packed.of(centers)).rows.astype(np.int64)
    return np.split(rows, np.cumsum([len(found) for found in centers])[:-1])
