"""Distances of the populations of an admixture: Hudson's F_ST of the frequencies, without their sampling errors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.genetics.admixture import Admixture

_BLOCKS = 100  # of consecutive SNPs, each left out once for the standard errors
_COLUMNS = 2048  # whose matrices are in memory together
_LARGEST_VARIANCE = 0.25  # of a frequency that no individual tells of
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Distances:
    """F_ST of each pair of populations."""

    values: Floats
    """(K, K), 0 on the diagonal."""
    errors: Floats
    """Standard errors by a jackknife over blocks of SNPs (K, K); NaN for fewer than two SNPs."""
    corrected: bool
    """Whether sampling errors of the frequencies are taken off."""


def population_distances(model: Admixture) -> Distances:
    """Return Hudson's F_ST of the populations, Σ (p − p')² / Σ (p (1 − p') + p' (1 − p)) over the SNPs.

    Estimates of two frequencies differ by more than the frequencies do: E(p̂ − p̂')² = (p − p')² + V(p̂ − p̂'), and E p̂p̂' = pp' + C(p̂, p̂').
    The variances and covariances are those of the curvature of the log likelihood, which the model keeps, and at most those of a single
    allele: at a bound, where a population lacks an allele, the curvature alone would overstate them. A model that was fitted with too low
    a memory limit keeps no curvature: its distances are too large, the more so the closer two populations are.

    References
    ----------
    Hudson et al. (1992); Bhatia et al. (2013); for the jackknife over blocks, Busing et al. (1999).
    """
    P, sums = model.allele_frequencies_, getattr(model, "sums_", None)
    k, m = P.shape
    n_blocks = min(_BLOCKS, m)
    block_of = np.arange(m) * n_blocks // m
    within, between = np.zeros((n_blocks, k, k)), np.zeros((n_blocks, k, k))
    for start in range(0, m, _COLUMNS):
        part = slice(start, start + _COLUMNS)
        p = P[:, part].T.astype(np.float64)
        covariance: Any = np.zeros((len(p), k, k)) if sums is None else _covariances(sums.curvature[:, part], p)
        variance = covariance.diagonal(axis1=1, axis2=2)
        squares = (p[:, :, None] - p[:, None, :]) ** 2 - variance[:, :, None] - variance[:, None, :] + 2 * covariance
        products = p[:, :, None] * p[:, None, :] - covariance
        np.add.at(within, block_of[part], squares)
        np.add.at(between, block_of[part], p[:, :, None] + p[:, None, :] - 2 * products)
    for sum_ in (within, between):
        sum_[:, np.arange(k), np.arange(k)] = 0
    total = _ratio(within.sum(axis=0), between.sum(axis=0))
    if n_blocks < 2:
        return Distances(total, np.full((k, k), np.nan), sums is not None)
    left_out = _ratio(within.sum(axis=0) - within, between.sum(axis=0) - between)
    errors = np.sqrt((n_blocks - 1) / n_blocks * np.square(left_out - left_out.mean(axis=0)).sum(axis=0))
    return Distances(total, errors, sums is not None)


def _ratio(within: Floats, between: Floats) -> Floats:
    return np.divide(within, between, out=np.zeros_like(within), where=between > 0)


def _covariances(curvature: Floats, p: Floats) -> Floats:
    """Return the covariances (c, K, K) of frequencies p (c, K), given the curvatures (K(K+1)/2, c) of the log likelihood."""
    k = p.shape[1]
    first, second = np.tril_indices(k)
    C = np.empty((len(p), k, k))
    C[:, first, second] = C[:, second, first] = curvature.T
    covariances: Floats = np.linalg.inv(C + np.eye(k) / _LARGEST_VARIANCE).astype(np.float64)
    scales = np.sqrt(np.minimum(1, p * (1 - p) / covariances.diagonal(axis1=1, axis2=2)))
    return covariances * scales[:, :, None] * scales[:, None, :]
