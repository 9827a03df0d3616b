"""Search for the pure subjects of each candidate number of classes, and the projection that they define."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.requests import Solver, run
from dfact.errors import DataError
from dfact.linalg.kmeans import kmeans, nearest_rows
from dfact.linalg.row_points import Coordinates, DataRows, EmbedPass, take
from dfact.linalg.svd import View, right_singular
from dfact.linalg.vertex_hunting import cone_vertices, successive_projection
from dfact.models.binomial.codes import Codes
from dfact.models.gom.passes import MembershipSums, Regularized, ResponseCounts, Responses, SpanPass, modularity

_SVD_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Candidate:
    """Result of the search for one number of classes K."""

    projection: NDArray[np.float64]
    """P (J, K): memberships are the rows of max(0, R P), scaled to sum to 1."""
    pure_subjects: NDArray[np.int64]
    """Row numbers of the pure subjects (K,)."""
    modularity: float = float("nan")

    def with_score(self, sums: MembershipSums, counts: ResponseCounts) -> "Candidate":
        """Return the candidate with its modularity, and with its classes ordered by decreasing size."""
        order = np.argsort(-sums.sizes, kind="stable")
        return Candidate(self.projection[:, order], self.pure_subjects[order], modularity(sums.cross, counts.column_sums))


@dataclass(frozen=True)
class MembershipProblem:
    """The search for the classes of one of several numbers."""

    n_components: list[int]
    """Candidate numbers of classes."""
    levels: float
    """Highest possible response M."""
    responses: Responses

    @property
    def codes(self) -> Codes:
        """View of the responses as counts, for a likelihood."""
        return Codes(int(self.levels), self.responses.offset)


@dataclass(frozen=True)
class Directions:
    """Basis of the span of the responses' rows."""

    basis: NDArray[np.float64]
    """VΣ⁻¹ of the leading singular triples or, for "srm", the responses of the pure subjects (J, K)."""
    pure_subjects: NDArray[np.int64] | None = None
    """Pure subjects of "srm", which finds them together with the basis."""


@dataclass(frozen=True)
class Search:
    """Search for pure subjects in the responses."""

    responses: Responses
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    expected: bool
    """Whether the responses are expected responses ΠΘᵀ, without noise."""
    method: str
    vertex_hunting: str
    tau: float | None
    seed: int

    def directions(self, k: int) -> Solver[Directions]:
        """Find the K directions from which the candidates of up to K classes are made. A rank below K raises DataError.

        For "srm" this is also the hunt for pure subjects, which takes place among the responses themselves.
        """
        if self.method == "srm":
            points = DataRows(self.dtype, self.responses)
            [rows] = yield from successive_projection([points], [k])
            return Directions((yield from take(points, rows)).T, rows)
        V, sigma = yield from self._singular(k)
        return Directions(V / sigma)

    def _singular(self, k: int) -> Solver[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Compute singular vectors and values, in double precision if single cannot distinguish the last value from 0."""
        view: View = self.responses if self.tau is None else Regularized(self.responses, self.tau)
        for dtype in dict.fromkeys((self.dtype, np.dtype(np.float64))):
            V, sigma = yield from right_singular(self.shape[1], k, dtype, view=view, tolerance=_SVD_TOLERANCE)
            floor = np.sqrt(100 * np.finfo(dtype).eps) * sigma[0]
            if sigma[-1] > floor:
                return V, sigma
        raise DataError(f"the responses have rank {int((sigma > floor).sum())}, expected at least n_components={k}; fit fewer classes")

    def spans_rows(self, directions: Directions) -> Solver[bool]:
        """Return whether the rows of the responses lie in the span of the directions, as those of expected responses of this rank do."""
        basis = np.linalg.qr(directions.basis)[0]
        sums = yield from run(SpanPass(self.dtype, self.responses), basis.astype(self.dtype))
        return bool(1 - sums.inside / sums.all <= np.sqrt(np.finfo(self.dtype).eps))

    def candidates(self, directions: Directions, n_components: Sequence[int]) -> Solver[list[Candidate]]:
        """Find the pure subjects and the projection for each number of classes."""
        basis, rows = directions.basis, directions.pure_subjects
        if rows is not None:
            return [Candidate(np.asarray(np.linalg.pinv(basis[:, :k].T)), rows[:k]) for k in n_components]
        yield from run(EmbedPass(self.dtype, self.responses), basis.astype(self.dtype))
        candidates = []
        for k, subjects in zip(n_components, (yield from self._pure_subjects(n_components)), strict=True):
            candidates.append((yield from self._candidate(basis[:, :k], subjects)))
        return candidates

    def _candidate(self, basis: NDArray[np.float64], rows: NDArray[np.int64]) -> Solver[Candidate]:
        """Make the candidate with P = VΣ⁻¹·Y(I, :)⁻¹ for the pure subjects I, with Y = R VΣ⁻¹.

        Y differs from U and from D_τ^(½)U by factors of the rows alone, which cancel when the rows are scaled
        to sum to 1. The factors 1/‖U(I, :)‖ and D_τ(I, I)^(−½) of algorithm 2 are those that turn U*(I, :) into Y(I, :).
        """
        k = basis.shape[1]
        corners = (yield from take(Coordinates(k), rows)) if (rows >= 0).all() else np.zeros((k, k))
        if np.linalg.matrix_rank(corners) < k:
            raise DataError(f"the subjects fall into fewer than {k} distinct groups; fit fewer classes than n_components={k}")
        return Candidate(np.asarray(np.linalg.solve(corners.T, basis.T).T), rows)

    def _pure_subjects(self, n_components: Sequence[int]) -> Solver[list[NDArray[np.int64]]]:
        """Hunt for the pure subjects of each number of classes among the embedded rows: corners of a simplex, or of a cone ("crsc")."""
        if self.method in ("srsc", "ssc"):
            return (yield from successive_projection([Coordinates(k) for k in n_components], n_components))
        if self.vertex_hunting == "kmeans" and not self.expected:
            return (yield from nearest_rows((yield from kmeans(n_components, self.shape[0], self.seed))))
        points = [Coordinates(k, unit=True) for k in n_components]
        # Corners of expected responses lie on the margin itself; grouping them with nearby rows would move them.
        precision = 100 * float(np.finfo(self.dtype).eps)
        vertices: list[NDArray[np.int64]] = []
        for search in points:
            vertices += [(yield from cone_vertices(search, self.shape[0], precision, self.seed))]
        return vertices
