"""K-means of directions over all rows: a search on a sample of them, then Lloyd's iteration by passes.

:func:`kmeans` is the entry. It runs a search for each of several k: the points are the leading k coordinates of the rows' embedding
(:class:`dfact.linalg.row_points.EmbedPass`), scaled to length 1, and k is also the number of clusters, the ``width`` of the search. A
search has several solutions, of which one is chosen; the centres of all solutions are packed one below the other.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dfact.engine.block_state import BlockState
from dfact.engine.passes import Block, PartialSums, Pass, RunPass, Withheld, Workspace
from dfact.engine.requests import Solver, drive, run
from dfact.engine.session import Session
from dfact.errors import DataError
from dfact.kernels.assignment import member_weights
from dfact.linalg.row_points import Coordinates, Embedding, RowMaximum, take

_SAMPLE = 1 << 15  # number of rows on which the clusters are searched
_BLOCK = 1 << 11  # sampled rows whose products with a search's centres fit into the second-level cache
_POINTS = 1 << 11  # sampled rows that may start a cluster
_STARTS = 5
_ROUNDS = 5  # rounds of trials, each of which moves one centre of one of the two best solutions
_TRIALS, _TRIAL_STEPS = 10, 5
_FINALISTS, _JUDGING_STEPS = 3, 2  # solutions per search, and steps over all rows that choose between them: a sample is too small
_SAME = 1e-5  # solutions are the same if their sums of squared distances differ by less, relatively
_PROMISE = 3e-3  # a trial is continued if it is worse than the last finalist by less than this, relatively
_SAMPLE_TOLERANCE, _TOLERANCE = 3e-5, 1e-4  # relative decrease of the sum of squared distances below which the iteration ends
_MAX_STEPS = 100

Centers = NDArray[np.float64]
"""The centres (k, k) of one solution."""
"""Function that assigns all points to the centres of these solutions, and returns the sums over the clusters."""
Solutions = list[tuple[float, Centers]]
"""Solutions, each as its sum of squared distances and its centres."""


@dataclass
class ClusterSums(PartialSums, name="kmeans_clusters", disclosure=Withheld("has sums over clusters, which may have a single row")):
    """Sums over the members of the clusters of several solutions, one below the other."""

    directions: NDArray[Any]
    """Sums of directions (c, d); only the leading k coordinates count for a solution with k clusters."""
    counts: NDArray[Any]
    """Numbers of members (c,)."""


@dataclass
class Finalists(PartialSums, name="kmeans_candidates", disclosure=Withheld("has centres of clusters, which may have a single row")):
    """The best solutions of s searches, padded with zeros."""

    centers: NDArray[Any]
    """Centres (s, _FINALISTS, k, k)."""
    counts: NDArray[Any]
    """Numbers of solutions (s,)."""


@dataclass(frozen=True)
class LloydPass(Pass[Embedding, "_Packed", ClusterSums]):
    """Sums and counts of the clusters about the broadcast centres of several solutions."""

    dtype: None = None
    state_type = Embedding

    def step(self, block: Block, state: Embedding, broadcast: "_Packed") -> tuple[Embedding, ClusterSums]:
        X = state.embedding
        return state, broadcast.astype(X.dtype).sums(X, block.work)


@dataclass(frozen=True)
class NearestPass(Pass[Embedding, "_Packed", RowMaximum]):
    """The row nearest to each of the broadcast centres, one solution after the other."""

    dtype: None = None
    state_type = Embedding

    def step(self, block: Block, state: Embedding, broadcast: "_Packed") -> tuple[Embedding, RowMaximum]:
        X = state.embedding
        packed = broadcast.astype(X.dtype)
        products = packed.products(X, block.work)
        weights = products.copy()
        member_weights(X, packed.widths, packed.halves, weights, np.empty(len(weights)))
        closeness = np.where(weights > 0, weights * products, -np.inf)  # c·x orders directions x by their distance from c
        nearest = closeness.argmax(axis=1)
        highest = np.take_along_axis(closeness, nearest[:, None], axis=1)[:, 0]
        rows = np.where(highest > -np.inf, block.start + nearest, -1)
        return state, RowMaximum(highest, rows, np.empty((len(rows), 0)))


@dataclass(frozen=True)
class SearchPass(Pass[BlockState, NDArray[np.float32], Finalists]):
    """The finalists of each search in the broadcast sample X (d, n) of the points; one block runs each search."""

    widths: tuple[int, ...]
    n_rows: int
    seed: int
    dtype: None = None

    def step(self, block: Block, state: BlockState, broadcast: NDArray[np.float32]) -> tuple[BlockState, Finalists]:
        count, width = len(self.widths), max(self.widths)
        result = Finalists(block.work.zeros((count, _FINALISTS, width, width)), block.work.zeros((count,)))
        for s, k in enumerate(self.widths):
            # Searches run at blocks far from each other, so that all workers get some. The last, usually the longest, starts first.
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
    """Centres (c, d), with zeros after the leading k coordinates."""
    halves: NDArray[Any]
    """½‖c‖² (c,)."""

    @classmethod
    def pack(cls, solutions: Sequence[Centers]) -> "_Packed":
        widths = np.array([len(centers) for centers in solutions])
        packed = np.zeros((widths.sum(), widths.max()))
        for end, centers in zip(np.cumsum(widths), solutions, strict=True):
            packed[end - len(centers) : end, : len(centers)] = centers
        return cls(widths, packed, np.square(packed).sum(axis=1) / 2)

    def astype(self, dtype: np.dtype[Any]) -> "_Packed":
        return _Packed(self.widths, self.centers.astype(dtype), self.halves.astype(dtype))

    def products(self, X: NDArray[Any], work: Workspace) -> NDArray[Any]:
        """Return the products (c, n) of the centres with the points X (d, n)."""
        return work.matmul(self.centers, X[: self.centers.shape[1]], "products")

    def sums(self, X: NDArray[Any], work: Workspace, name: str | None = None) -> ClusterSums:
        """Return the sums of the directions of the points X (d, n) in each cluster, in the workspace's array of this name."""
        weights, counts = self.products(X, work), np.empty(len(self.centers))
        member_weights(X, self.widths, self.halves, weights, counts)
        return ClusterSums(work.matmul(weights, X[: self.centers.shape[1]].T, name), counts)


def lloyd(starts: Sequence[Centers], tolerance: float, max_steps: int) -> Solver[Solutions]:
    """Run Lloyd's iteration from each start, with Nesterov's momentum as long as it helps. Returns the solutions in that order.

    The squared distances of the directions x from the means of their clusters add up to Σ n − ‖Σx‖² / n over the clusters,
    so the iteration needs only sums over the points.
    """
    centers, means = list(starts), list(starts)
    inertia, age = np.full(len(starts), np.inf), np.zeros(len(starts))
    active = list(range(len(starts)))
    for _ in range(max_steps):
        if not active:
            break
        result = yield from run(LloydPass(), _Packed.pack([centers[s] for s in active]))
        ends, unconverged = np.cumsum([len(centers[s]) for s in active]), []
        for s, end in zip(active, ends, strict=True):
            k = len(centers[s])
            sums, counts = result.directions[end - k : end, :k], result.counts[end - k : end, None]
            mean = np.where(counts > 0, sums / np.maximum(counts, 1), centers[s])
            new = max(float((counts - np.square(sums).sum(axis=1, keepdims=True) / np.maximum(counts, 1)).sum()), 0.0)
            if abs(inertia[s] - new) > tolerance * new:
                unconverged.append(s)
            age[s] = age[s] + 1 if new <= inertia[s] else 0
            centers[s] = mean + max(age[s] - 1, 0) / (age[s] + 2) * (mean - means[s])
            means[s], inertia[s] = mean, min(inertia[s], new)
        active = unconverged
    return list(zip(inertia.tolist(), means, strict=True))


def search(X: NDArray[Any], seed: int, work: Workspace) -> Solutions:
    """Find the best few clusterings of the directions of the points X (k, n) into k clusters, the best first.

    Lloyd's iteration runs from k-means++ starts, followed by rounds of trials: a centre of a good solution is moved to a point
    that k-means++ draws, far from the other centres (random swap clustering, Fränti 2018).
    """
    from sklearn.cluster import kmeans_plusplus  # takes long to import, and methods without clusters import this module, too

    k, rng = len(X), np.random.default_rng(seed)
    n, X = X.shape[1], _directions(X)
    if X.shape[1] < k:
        raise DataError(f"{X.shape[1]} of {n} sampled rows have a direction, expected at least {k}, one for each cluster")
    blocks = [np.ascontiguousarray(X[:, first : first + _BLOCK]) for first in range(0, X.shape[1], _BLOCK)]
    points = X[:, :: max(1, X.shape[1] // _POINTS)].T.astype(np.float64)
    solve = partial(drive, session=_BlocksSession(blocks, work))
    starts = [kmeans_plusplus(points, k, random_state=int(rng.integers(1 << 31)))[0] for _ in range(_STARTS)]
    best = _finalists(solve(lloyd(starts, _SAMPLE_TOLERANCE, _MAX_STEPS)))
    for number in range(_ROUNDS if k > 1 else 0):
        moved = _moved(points, best[number % min(2, len(best))][1], rng)
        trials = _finalists(solve(lloyd(moved, 0.0, _TRIAL_STEPS)))
        promising = [centers for inertia, centers in trials if inertia < (1 + _PROMISE) * best[-1][0]]
        best = _finalists(best + solve(lloyd(promising, _SAMPLE_TOLERANCE, _MAX_STEPS)))
    return best


@dataclass(frozen=True, eq=False)
class _BlocksSession(Session):
    """A session on points in memory, for Lloyd's iteration alone."""

    blocks: Sequence[NDArray[Any]]
    work: Workspace

    def run(self, request: RunPass[Any]) -> Any:
        return _sum_of_blocks(self.blocks, self.work, request.broadcast)

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        return iter(())  # the iteration keeps no state


def _sum_of_blocks(blocks: Sequence[NDArray[Any]], work: Workspace, packed: _Packed) -> ClusterSums:
    packed = packed.astype(blocks[0].dtype)
    directions, counts = np.zeros(packed.centers.shape), np.zeros(len(packed.centers))
    for block in blocks:
        sums = packed.sums(block, work, "directions")
        directions += sums.directions
        counts += sums.counts
    return ClusterSums(directions, counts)


def _moved(points: NDArray[np.float64], centers: Centers, rng: np.random.Generator) -> list[Centers]:
    """Return copies of the centres, each with one of them moved to a point drawn with its squared distance from the others as weight."""
    distances = np.maximum(1 + np.square(centers).sum(axis=1) - 2 * (points @ centers.T), 0)
    moved = []
    for c in rng.permutation(len(centers))[np.arange(_TRIALS) % len(centers)]:
        weights = np.cumsum(np.delete(distances, c, axis=1).min(axis=1))
        start = centers.copy()
        start[c] = points[np.searchsorted(weights, rng.random() * weights[-1])]
        moved.append(start)
    return moved


def _finalists(solutions: Solutions) -> Solutions:
    """Return the best few solutions that differ from each other, the best first."""
    distinct: Solutions = []
    for inertia, centers in sorted(solutions, key=lambda solution: solution[0]):
        if not distinct or inertia - distinct[-1][0] > _SAME * inertia:
            distinct.append((inertia, centers))
    return distinct[:_FINALISTS]


def kmeans(widths: Sequence[int], n_rows: int, seed: int) -> Solver[list[Centers]]:
    """Cluster the directions of each row's leading k coordinates into k clusters, for each k of the widths; returns centres (k, k).

    scikit-learn clusters up to 32768 rows. For more, :func:`search` finds solutions in a sample of that size, which then compete
    on all rows: Lloyd's iteration continues until a pass gains less than 1e-4. All searches share the passes.
    """
    complete = n_rows <= _SAMPLE
    rows = np.arange(n_rows) if complete else np.sort(np.random.default_rng(seed).choice(n_rows, _SAMPLE, replace=False))
    sample = (yield from take(Coordinates(max(widths)), rows)).T
    if complete:
        return [cluster_centers(_directions(sample[:k]).T, k, seed) for k in widths]
    found = yield from run(SearchPass(tuple(widths), n_rows, seed), sample.astype(np.float32))
    starts = [[found.centers[s, i, :k, :k] for i in range(int(found.counts[s]))] for s, k in enumerate(widths)]
    judged = iter((yield from lloyd([centers for group in starts for centers in group], _TOLERANCE, _JUDGING_STEPS)))
    best = [min((next(judged) for _ in group), key=lambda solution: solution[0])[1] for group in starts]
    return [centers for _, centers in (yield from lloyd(best, _TOLERANCE, _MAX_STEPS))]


def _directions(X: NDArray[Any]) -> NDArray[Any]:
    """Return the directions (k, r) of the nonzero points of X (k, n)."""
    norms = np.linalg.norm(X, axis=0)
    return np.asarray(X[:, norms > 0] / norms[norms > 0])


def cluster_centers(X: NDArray[np.float64], k: int, seed: int) -> NDArray[np.float64]:
    """Return the centres (k, d) of the points X (n, d) by scikit-learn, on one thread, as its sums depend on the order of threads."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with threadpool_limits(1), warnings.catch_warnings():
        # It warns of fewer distinct points than clusters, which the caller detects in the vertices.
        warnings.simplefilter("ignore", ConvergenceWarning)
        centers: NDArray[np.float64] = KMeans(k, n_init=10, random_state=seed).fit(X).cluster_centers_
    return centers


def search_bytes(n_rows: int, k: int) -> int:
    """Return the bytes that a search works on: copies of the sample, and the products of a block of it with all trials' centres."""
    return k * (24 * min(n_rows, _SAMPLE) + 4 * _TRIALS * _BLOCK)


def nearest_rows(centers: Sequence[Centers]) -> Solver[list[NDArray[np.int64]]]:
    """Return, for each search, the numbers (k,) of the rows nearest to its centres; −1 where a cluster has no member."""
    rows = (yield from run(NearestPass(), _Packed.pack(centers))).rows.astype(np.int64)
    return np.split(rows, np.cumsum([len(solution) for solution in centers])[:-1])
