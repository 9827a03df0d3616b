"""Starts of memberships by binomial likelihood: spectral, or from labelled rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.linalg.binomial.codes import Codes, FilledCodes
from dfact.linalg.binomial.passes import CodeCounts, LabelPass, ProjectionPass, StartPass
from dfact.linalg.points import Coordinates, EmbedPass, take
from dfact.linalg.svd import right_singular
from dfact.linalg.vertex_hunting import successive_projection

_TOLERANCE = 1e-2  # of the singular vectors: the fit that follows moves the start by more
_FINE = 1e-4, 1 << 24  # the tolerance up to a number of entries: few people may have several maxima, among which the start decides
_RANGE = (0.005, 0.995)  # of the frequencies of a start


def means(counts: CodeCounts) -> NDArray[np.float64]:
    """Return the mean of the observed entries of each column (m,); 0 for a column without any."""
    observed = np.maximum(counts.observed, 1)
    column_means: NDArray[np.float64] = counts.totals / observed
    return column_means


def spectral_start(codes: Codes, counts: CodeCounts, k: int, dtype: np.dtype[Any]) -> Solver[NDArray[np.float64]]:
    """Return frequencies P (K, m) and leave memberships in the state: the rows are projected on K pure ones, found among them.

    With column means for missing entries, successive projection finds the pure rows among the left singular vectors, and P is
    the least-squares solution.
    """
    fill = means(counts)
    view = FilledCodes(codes, fill, dtype)
    fine, limit = _FINE
    tolerance = fine if counts.observed.sum() <= limit else _TOLERANCE
    V, sigma = yield from right_singular(len(fill), k, dtype, view=view, tolerance=tolerance)
    if not sigma[-1] > np.sqrt(100 * np.finfo(dtype).eps) * sigma[0] / 10:
        rank = int((sigma > np.sqrt(100 * np.finfo(dtype).eps) * sigma[0] / 10).sum())
        raise DataError(f"the data have rank {rank}, expected at least n_components={k}; fit fewer components")
    basis = V / sigma
    yield from run(EmbedPass(dtype, view), basis.astype(dtype))
    [rows] = yield from successive_projection([Coordinates(k)], [k])
    corners = yield from take(Coordinates(k), rows)
    projection = np.asarray(np.linalg.solve(corners.T, basis.T).T, np.float64)
    sums = yield from run(StartPass(view, dtype), projection)
    P: NDArray[np.float64] = np.clip(np.linalg.lstsq(sums.gram, sums.cross.T, rcond=None)[0] / codes.trials, *_RANGE)
    return P


def labelled_start(codes: Codes, counts: CodeCounts, k: int, n_labels: int, seed: int, dtype: np.dtype[Any]) -> Solver[NDArray[np.float64]]:
    """Return frequencies P (K, m) and leave memberships in the state, by projection: (count + ½)/(M·N + 1) of the rows with each label.

    Further components begin near the mean of all rows, apart from one another at random.
    """
    sums = yield from run(LabelPass(codes, n_labels, dtype), None)
    P: NDArray[np.float64] = np.empty((k, len(counts.totals)))
    P[:n_labels] = (sums.totals + 0.5) / (codes.trials * sums.observed + 1)
    noise = np.random.default_rng(seed).standard_normal((k - n_labels, P.shape[1]))
    P[n_labels:] = means(counts) / codes.trials + 0.1 * noise
    P = np.clip(P, *_RANGE)
    yield from run(ProjectionPass(codes, dtype), P)
    return P
