"""Starts of memberships by binomial likelihood: spectral, from labelled rows, or random."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.block_state import StateArrays
from dfact.engine.passes import NoSums, PartialSums
from dfact.engine.requests import Solver, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from dfact.errors import DataError
from dfact.linalg.parts import Parts, find_column_parts
from dfact.linalg.row_points import Coordinates, EmbedPass, take
from dfact.linalg.svd import right_singular
from dfact.linalg.vertex_hunting import successive_projection
from dfact.models.binomial.codes import Codes, FilledCodes
from dfact.models.binomial.fit import maximize_likelihood
from dfact.models.binomial.passes import CodeCounts, LabelPass, ProjectionPass, StartPass, StepPass

_TOLERANCE = 1e-2  # of the singular vectors: the fit that follows moves the start by more
_FINE = 1e-4, 1 << 24  # the tolerance up to a number of entries: few people may have several maxima, among which the start decides
_SPREAD = 0.1  # standard deviation of random frequencies
_RANDOM_STARTS, _SHORT = 7, 30  # beside the spectral one, and passes of each
_FULL = 0.75  # share of the entries of every column with which rows connect them all well, and no pass is needed to see it
_RANGE = (0.005, 0.995)  # of the frequencies of a start


def means(counts: CodeCounts) -> NDArray[np.float64]:
    """Return the mean of the observed entries of each column (m,); 0 for a column without any."""
    observed = np.maximum(counts.observed, 1)
    column_means: NDArray[np.float64] = counts.totals / observed
    return column_means


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """The least-squares frequencies of each column, given QᵀQ (K, K) and the number of trials."""

    gram: NDArray[np.float64]
    trials: int

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        return {"P": np.clip(np.linalg.lstsq(self.gram, tile.sums["cross"], rcond=None)[0] / self.trials, *_RANGE)}, NoSums()


def spectral_start(codes: Codes, counts: CodeCounts, k: int, dtype: np.dtype[Any]) -> Solver[None]:
    """Leave frequencies with the tiles and memberships in the state: the rows are projected on K pure ones, found among them.

    With column means for missing entries, successive projection finds the pure rows among the left singular vectors, and the
    frequencies are the least-squares solution.
    """
    fill = means(counts)
    view = FilledCodes(codes, fill, dtype)
    fine, limit = _FINE
    tolerance = fine if counts.observed.sum() <= limit else _TOLERANCE
    V, sigma = yield from right_singular(len(fill), k, dtype, view=view, tolerance=tolerance)
    if not sigma[-1] > np.sqrt(100 * np.finfo(dtype).eps) * sigma[0] / 10:
        rank = int((sigma > np.sqrt(100 * np.finfo(dtype).eps) * sigma[0] / 10).sum())
        raise DataError(f"the data have rank {rank}, expected at least n_components={k}; fit fewer components")
    V /= sigma
    yield from run(EmbedPass(dtype, view), V.astype(dtype))
    [rows] = yield from successive_projection([Coordinates(k)], [k])
    corners = yield from take(Coordinates(k), rows)
    projection = (V @ np.linalg.inv(corners)).astype(dtype)
    del V  # the driver holds few arrays of all columns at once
    sums = yield from run(StartPass(view, dtype, k), projection)
    yield from step_tiles(LeastSquares(sums.gram, codes.trials))


@dataclass(frozen=True)
class LabelledColumns:
    """Frequencies (count + ½)/(M·N + 1) of the rows with each label; those of further components are near the given mean, at random."""

    k: int
    trials: int
    seed: int

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        labelled = (tile.sums["totals"] + 0.5) / (self.trials * tile.sums["observed"] + 1)
        return {"P": np.clip(np.vstack([labelled, self._random(tile, self.k - len(labelled))]), *_RANGE)}, NoSums()

    def _random(self, tile: Tile, count: int) -> NDArray[np.float64]:
        """Return frequencies near the mean of all rows."""
        noise = np.random.default_rng([self.seed, tile.number]).standard_normal((count, tile.given["mean"].shape[-1]))
        near: NDArray[np.float64] = tile.given["mean"] / self.trials + _SPREAD * noise
        return near


class RandomColumns(LabelledColumns):
    """Frequencies near the mean of all rows, at random."""

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        return {"P": np.clip(self._random(tile, self.k), *_RANGE)}, NoSums()


def labelled_start(codes: Codes, counts: CodeCounts, k: int, n_labels: int, seed: int, dtype: np.dtype[Any]) -> Solver[None]:
    """Leave frequencies with the tiles and memberships in the state, by projection on the frequencies of the rows with each label.

    Further components begin near the mean of all rows, apart from one another at random.
    """
    yield from run(LabelPass(codes, n_labels, dtype), None)
    yield from step_tiles(LabelledColumns(k, codes.trials, seed), {"mean": means(counts)})
    yield from run(ProjectionPass(codes, dtype), TileBroadcast("P", dtype))


def random_start(codes: Codes, counts: CodeCounts, k: int, seed: int, dtype: np.dtype[Any]) -> Solver[None]:
    """Leave frequencies near the mean of all rows with the tiles, at random, and memberships in the state. No single row is looked at."""
    yield from step_tiles(RandomColumns(k, codes.trials, seed), {"mean": means(counts)})
    yield from run(ProjectionPass(codes, dtype), TileBroadcast("P", dtype))


def start_best(codes: Codes, counts: CodeCounts, k: int, dataset: Dataset, pass_: StepPass) -> Solver[None]:
    """Leave the spectral start, or the best of it and random ones after a few passes if columns are hardly connected.

    Such data has many maxima, and with column means for missing entries the pure rows differ most by the columns that they have.
    """
    parts, best = Parts.one(len(counts.observed)), 0
    if counts.observed.min() < _FULL * dataset.shape[0]:
        parts = yield from find_column_parts(dataset, pass_.dtype, loose=True)
    if parts.loose or not parts.connected:
        ends = []
        for number in range(_RANDOM_STARTS + 1):
            yield from _numbered_start(number, codes, counts, k, pass_.dtype)
            maximum = yield from maximize_likelihood(pass_, tol=0.0, max_iter=_SHORT)
            ends.append(maximum.history[-1])
        best = int(np.argmax(ends))
    yield from _numbered_start(best, codes, counts, k, pass_.dtype)


def _numbered_start(number: int, codes: Codes, counts: CodeCounts, k: int, dtype: np.dtype[Any]) -> Solver[None]:
    """Leave the spectral start, number 0, or a random one."""
    if number:
        yield from random_start(codes, counts, k, number, dtype)
    else:
        yield from spectral_start(codes, counts, k, dtype)
