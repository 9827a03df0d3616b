"""Matching of the components of two CP decompositions by their vectors of modes 2 to N, and the factor match score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.linalg.congruence import congruence, match


@dataclass(frozen=True, eq=False)
class FactorMatch:
    """Components of a second decomposition matched one to one with the components of a first."""

    similarity: NDArray[np.float64]
    """|Π_n cos| over modes 2 to N of each component of the first with its match (R,); 0 for a component without one."""
    columns: NDArray[np.intp]
    """Component of the second that matches each of the first (R,), −1 without one."""
    signs: list[NDArray[np.float64]]
    """For each mode, 1 or −1 for each component (R,), with which the matched vectors have the direction of the first's."""

    @property
    def score(self) -> float:
        """Factor match score: the mean of the similarities."""
        return float(self.similarity.mean())


def match_components(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> FactorMatch:
    """Match components by their vectors (R, I_n) and (R', I_n) of the same modes so that the sum of |Π_n cos| is the largest.

    Scale and sign of a vector do not matter. Without weights, as in the replicability analysis of Adali et al. (2022).

    References
    ----------
    Acar et al. (2011) on the score; Adali et al. (2022) on its use without weights.
    """
    cosines = [congruence(np.asarray(A, np.float64), np.asarray(B, np.float64)) for A, B in zip(first, second, strict=True)]
    products = np.abs(np.prod(cosines, axis=0))
    rows, found = match(products)
    similarity, columns = np.zeros(len(products)), np.full(len(products), -1)
    similarity[rows], columns[rows] = products[rows, found], found
    signs = [np.where(cosine[np.arange(len(columns)), columns] < 0, -1.0, 1.0) for cosine in cosines]
    return FactorMatch(similarity, columns, signs)
