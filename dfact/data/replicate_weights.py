"""Replicate weights of a survey: their checks, and the variance that estimates with each of them give.

A survey with strata and clusters has, besides its main weights, R columns of replicate weights, each of which leaves out or reweights
some of the clusters. With the estimate θ by the main weights and θ_r by the replicate weights r, the variance is Σ_r a_r (θ_r − θ)²
(Rust & Rao 1996; Wolter 2007, chapters 3 and 4):

    jk1        a_r = (R − 1)/R     one cluster left out at a time
    jkn        a_r = (n_h − 1)/n_h one of the n_h clusters of stratum h left out; given as ``scales``
    brr        a_r = 1/R           balanced halves of two clusters in each stratum
    fay        a_r = 1/(R(1 − ρ)²) halves whose weights are multiplied by ρ and 2 − ρ instead of 0 and 2 (Judkins 1990)
    bootstrap  a_r = 1/R           clusters drawn with replacement
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.sources.entrance import as_numbers
from dfact.data.weights import check_weights
from dfact.errors import DataError, ParameterError
from dfact.lazy import is_data_frame, pd

METHODS = {"jk1": "JK1", "jkn": "JKn", "brr": "BRR", "fay": "Fay's BRR", "bootstrap": "bootstrap"}
"""Names of the methods in a sentence."""
_BLOCK = 1 << 16  # rows at a time


@dataclass(frozen=True, eq=False)
class ReplicateWeights:
    """Replicate weights of the rows of a dataset: ``Dataset.replicate_weights``.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> from dfact.data.replicate_weights import ReplicateWeights
    >>> jackknife = 4 / 3 * (1 - np.eye(4))  # each of four rows left out once
    >>> ReplicateWeights.of(jackknife, 4, method="jk1").scales
    array([0.75, 0.75, 0.75, 0.75])
    """

    values: NDArray[np.float64] | zarr.Array[Any]
    """(n, R): weights of the rows; in a store, chunks are columns."""
    names: tuple[str, ...]
    """Names of the columns."""
    method: str
    """"jk1", "jkn", "brr", "fay" or "bootstrap"."""
    scales: NDArray[np.float64]
    """Factors a_r of the variance (R,)."""

    @classmethod
    def of(
        cls,
        values: Any,
        n: int,
        *,
        method: str | None,
        fay: float | None = None,
        scales: float | Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Check the weights (n, R) and return them with the factors of the method's variance.

        Parameters
        ----------
        values : array or table (n, R)
            Weights of the rows in each replicate, at least 0.
        n : int
            Number of rows.
        method : str or None
            How the replicates were made.
        fay : float, optional
            Fay's factor ρ, of the method "fay" alone.
        scales : float or sequence of R floats, optional
            Factors a_r of the method "jkn": one number for all replicates, or one for each.
        names : sequence of R str, optional
            Names of the replicates; by default those of the columns of a table.

        Returns
        -------
        ReplicateWeights
            The weights with the factors of the method's variance.

        Raises
        ------
        DataError
            Another number of rows; fewer than two replicates; a weight that is missing, infinite or negative, or a replicate of zeros.
        ParameterError
            No method, or an unknown one; Fay's factor or scales that are missing, out of range, or of another method.
        """
        if names is None and is_data_frame(values):
            names = [str(name) for name in values]
        array = values if isinstance(values, zarr.Array) else as_numbers("the table of replicate weights", values, "weights of at least 0")
        if array.ndim != 2 or array.shape[0] != n or array.shape[1] < 2:
            found = "×".join(map(str, array.shape))
            raise DataError(f"the replicate weights are {found}, expected {n} rows, those of the dataset, and at least 2 columns")
        R = array.shape[1]
        names = tuple(f"replicate {r + 1}" for r in range(R)) if names is None else tuple(names)
        made = cls(array, names, str(method), _scales(method, R, fay, scales))
        for r in range(R):
            check_weights(made.column(r))
        return made

    @property
    def n_replicates(self) -> int:
        """Number R of replicates."""
        return int(self.values.shape[1])

    @property
    def label(self) -> str:
        """Describe them, such as "80 replicate weights (BRR)"."""
        return f"{self.n_replicates} replicate weights ({METHODS[self.method]})"

    def column(self, r: int) -> pd.Series[float]:
        """Return the weights of replicate r (n,).

        Parameters
        ----------
        r : int
            Number of the replicate, from 0.

        Returns
        -------
        Series (n,)
            Weights by row, named as the replicate.
        """
        return pd.Series(np.asarray(self.values[:, r], np.float64), name=self.names[r])

    @cached_property
    def df(self) -> int:
        """Degrees of freedom of the variance: the rank of the replicate weights less 1, as in R's survey (Lumley 2004).

        That is the number of clusters minus the number of strata, for a jackknife of all clusters and for balanced halves.
        """
        R = self.n_replicates
        gram = np.zeros((R, R))
        for start in range(0, self.values.shape[0], _BLOCK):
            block = np.asarray(self.values[start : start + _BLOCK], np.float64)
            gram += block.T @ block
        # The rank of the columns scaled to length 1, whose eigenvalues sum to R.
        length = np.sqrt(gram.diagonal())
        eigenvalues = np.linalg.eigvalsh(gram / np.outer(length, length))
        return max(int((eigenvalues > 1e-9 * R).sum()) - 1, 1)

    def take(self, rows: NDArray[np.intp]) -> Self:
        """Return the weights of some of the rows.

        Parameters
        ----------
        rows : array (n',) of int
            Numbers of the rows.

        Returns
        -------
        ReplicateWeights
            Of these rows (n', R).
        """
        return type(self)(np.asarray(self.values)[rows], self.names, self.method, self.scales)

    def digest(self) -> bytes:
        """Return a digest of the weights and the method.

        Returns
        -------
        bytes
            Equal for equal weights and methods.
        """
        digest = hashlib.blake2b(f"{self.method} {list(self.names)} {self.scales.tolist()}".encode(), digest_size=16)
        for r in range(self.n_replicates):
            digest.update(np.ascontiguousarray(self.column(r)).data)
        return digest.digest()

    def standard_error(self, replicates: NDArray[Any], estimate: Any) -> NDArray[np.float64]:
        """Return the standard errors √Σ_r a_r (θ_r − θ)² of estimates θ (…) from those by each replicate (R, …).

        Parameters
        ----------
        replicates : array (R, …)
            Estimates with the weights of each replicate.
        estimate : array (…)
            Estimates with the weights themselves.

        Returns
        -------
        array (…)
            One standard error for each estimate.
        """
        return np.asarray(np.sqrt(np.tensordot(self.scales, (np.asarray(replicates) - estimate) ** 2, 1)))


def _scales(method: str | None, R: int, fay: float | None, scales: float | Sequence[float] | None) -> NDArray[np.float64]:
    """Return the factors of the variance (R,)."""
    if method not in METHODS:
        raise ParameterError(
            f"the method of the replicate weights is {method!r}, expected one of {', '.join(METHODS)} (--replicate-method)"
        )
    if (fay is not None) != (method == "fay") or (fay is not None and not 0 <= fay < 1):
        raise ParameterError(
            f"Fay's factor is {fay!r} with the method {method!r}, expected 0 ≤ ρ < 1 with 'fay' and none otherwise (--fay)"
        )
    if (scales is None) == (method == "jkn"):
        found = "missing" if scales is None else f"given with the method {method!r}"
        raise ParameterError(
            f"the scales (n_h − 1)/n_h of the replicates are {found}, expected with 'jkn' alone: one for each replicate, or one for all "
            "(--replicate-scales)"
        )
    if scales is not None:
        factors = as_numbers("scales", scales, "numbers above 0")
        factors = np.full(R, factors) if factors.ndim == 0 or factors.shape == (1,) else factors
        if factors.shape != (R,) or not (np.isfinite(factors) & (factors > 0)).all():
            raise ParameterError(
                f"the scales of the replicates are {factors.tolist()}, expected {R} finite numbers above 0, or one for all"
            )
        return factors
    factor = {"jk1": (R - 1) / R, "fay": 1 / (R * (1 - (fay or 0.0)) ** 2)}.get(str(method), 1 / R)
    return np.full(R, factor)
