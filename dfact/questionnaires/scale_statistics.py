"""Figures of the scales of a questionnaire, and of all items together, from the moments of the answers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.errors import warn
from dfact.linalg.correlation import Moments, is_indefinite, smoothed
from dfact.questionnaires.alpha_jackknife import jackknife_interval
from dfact.questionnaires.fit_indices import SINGULAR
from dfact.questionnaires.reliability import (
    alpha,
    alpha_if_dropped,
    alpha_interval,
    average_correlation,
    bartlett,
    item_rest_correlations,
    lambda6,
    n_group_factors,
    omega,
    sampling_adequacy,
    schmid_leiman,
    steiger,
)
from dfact.questionnaires.scales import Scale

Array = NDArray[np.float64]
_LISTED = 8
"""Number of items that a message names."""
_FIGURES = ("alpha", "se", "ci_low", "ci_high", "std_alpha", "lambda6", "omega", "omega_total", "omega_hierarchical", "ecv", "average_r")


@dataclass(frozen=True)
class Associations:
    """Covariances and correlations of items that are keyed alike."""

    C: Array
    R: Array
    n: int
    """Number of rows that contributed."""
    counts: Array
    """Number of rows of each pair (m, m)."""
    effective_counts: Array
    """Kish's effective number of the rows of each pair (m, m); without weights their number."""
    kind: str
    """Adjective of the correlations, for messages."""

    @classmethod
    def of(cls, moments: Moments, keys: Array, correlations: Array | None = None) -> "Associations":
        """Return those of columns with these keys 1 or −1: a reversed item changes the signs of its row and column.

        ``correlations`` (m, m) take the place of Pearson's.
        """
        signs = np.outer(keys, keys)
        R = moments.correlations()
        if correlations is not None:
            R = np.where(np.isnan(R.diagonal()[:, None] + R.diagonal()), np.nan, correlations)
        kind = "pairwise" if correlations is None else "polychoric"
        return cls(moments.covariances() * signs, R * signs, int(moments.rows), moments.counts, moments.effective_counts, kind)

    def part(self, columns: NDArray[np.intp]) -> "Associations":
        """Return those of some of the items."""
        pairs = np.ix_(columns, columns)
        parts = {name: getattr(self, name)[pairs] for name in ("C", "R", "counts", "effective_counts")}
        return replace(self, **parts)

    @property
    def n_of_pairs(self) -> float:
        """The number of participants that tests and intervals take for n: the harmonic mean over pairs of items of the (effective)
        number who answered both.

        The variance of a correlation is inversely proportional to the number of its own participants, so the sum of the variances is
        that of complete data with this number.
        """
        pairs = self.effective_counts[np.triu_indices(len(self.C), 1)]
        return float(1 / np.mean(1 / pairs)) if len(pairs) and pairs.min() > 0 else 0.0


def describe_scale(
    scale: Scale, own: Associations, alpha_se: float, names: list[str], figures: Mapping[str, Array], group_factors: int, interval: str
) -> dict[str, Any]:
    """Return the row of a scale, and set the figures of its items within it."""
    varying = ~np.isnan(own.R.diagonal())
    chosen, columns = own.part(np.flatnonzero(varying)), scale.columns[varying]
    labels = [names[j] for j in columns]
    notes = [f"without {quoted(np.array(names)[scale.columns[~varying]])}: no variance"] if not varying.all() else []
    C, R, m = chosen.C, chosen.R, len(columns)
    lowest = int(chosen.counts.min()) if m else 0
    row: dict[str, Any] = {"items": m, "n": chosen.n, "n_pairwise_min": lowest} | dict.fromkeys(_FIGURES, np.nan)
    if m < 2:
        notes.append("one item" if m else "no item")
    elif np.isnan(R).any():
        notes.append(_undefined_pair(R, labels))
    else:
        figures["r_drop"][columns] = item_rest_correlations(C)
        figures["alpha_if_dropped"][columns] = alpha_if_dropped(C)
        row["alpha"] = alpha(C)
        row["se"] = alpha_se
        if np.isnan(row["alpha"]):
            notes.append("no alpha: the items have a constant sum")
        if interval == "feldt":
            row["ci_low"], row["ci_high"] = alpha_interval(row["alpha"], chosen.n_of_pairs, m)
        else:
            row["ci_low"], row["ci_high"] = jackknife_interval(row["alpha"], alpha_se, chosen.n)
        row["std_alpha"], row["average_r"] = alpha(R), average_correlation(R)
        reason = _irregular(chosen, labels)
        if reason:
            notes.append(f"lambda6: {reason}")
        else:
            row["lambda6"] = lambda6(R)
        R = _smoothed(chosen, f"scale {scale.name!r}", "omega") if is_indefinite(R) else R
        split = schmid_leiman(R, n_group_factors(m, group_factors))
        row |= {"omega": omega(R), "omega_total": split.omega_total}
        row |= {"omega_hierarchical": split.omega_hierarchical, "ecv": split.ecv}
    return row | {"note": "; ".join(notes)}


def adequacy(associations: Associations, names: list[str], msa: Array) -> tuple[float, "pd.Series[float]", str]:
    """Return KMO and the test of sphericity with the reason if one is NaN, and set the sampling adequacy ``msa`` of the items.

    Indefinite correlations are smoothed for KMO and MSA, as psych does. Bartlett's test has no figure then: the determinant would be
    that of the smoothing.
    """
    columns = np.flatnonzero(~np.isnan(associations.R.diagonal()))
    chosen, labels = associations.part(columns), [names[j] for j in columns]
    R, test = chosen.R, pd.Series({"chi_square": np.nan, "df": np.nan, "p": np.nan})
    if len(columns) < 2:
        return np.nan, test, "fewer than two items vary"
    note = _undefined_pair(R, labels) if np.isnan(R).any() else _irregular(chosen, labels)
    if note and (np.isnan(R).any() or not is_indefinite(R)):
        return np.nan, test, f"no KMO and no Bartlett's test: {note}"
    if note:
        R, note = _smoothed(chosen, "all items", "KMO"), f"KMO of smoothed correlations and no Bartlett's test: {note}"
    else:
        complete = bool((chosen.counts == chosen.n).all())
        found = bartlett(R, chosen.n_of_pairs) if complete else steiger(R, chosen.effective_counts)
        test = pd.Series({"chi_square": found.chi_square, "df": float(found.df), "p": found.p}, name="Bartlett" if complete else "Steiger")
    kmo, msa[columns] = sampling_adequacy(R)
    return kmo, test, note


def _smoothed(associations: Associations, whose: str, figure: str) -> Array:
    """Return smoothed correlations, with a warning."""
    remedy = "missing='listwise' needs no smoothing" if associations.kind == "pairwise" else "leave out items, or add rows"
    found = f"the {associations.kind} correlations of {whose} have negative eigenvalues and were smoothed for {figure}"
    warn(f"{found}; {remedy}")
    return smoothed(associations.R)


def _undefined_pair(R: Array, labels: list[str]) -> str:
    i, j = np.argwhere(np.isnan(R))[0].tolist()
    return f"{labels[i]!r} and {labels[j]!r} do not vary together in common rows"


def _irregular(associations: Associations, labels: list[str]) -> str:
    """Return the reason why correlations cannot be inverted; "" if they can be."""
    values, vectors = np.linalg.eigh(associations.R)
    if values[0] > SINGULAR:
        return ""
    if is_indefinite(associations.R):
        return f"the {associations.kind} correlations have {(values < 0).sum()} negative eigenvalues, the lowest {values[0]:.2g}"
    return why_singular(vectors[:, 0], associations.n, labels)


def why_singular(direction: Array, n: int, labels: Sequence[str]) -> str:
    """Return why a combination of items, ``direction`` (m,), does not vary: too few participants, or items that follow from others."""
    m = len(labels)
    if n <= m:
        return f"{n} participants are too few for {m} items, whose correlations are singular for fewer than {m + 1}"
    weights = np.abs(direction)
    return f"{quoted(labels[int(j)] for j in np.flatnonzero(weights > 0.01 * weights.max()))} determine one another"


def quoted(labels: Iterable[str]) -> str:
    """List labels in quotes, at most eight of them."""
    names = [repr(str(label)) for label in labels]
    return ", ".join(names[:_LISTED] + [f"and {len(names) - _LISTED} more"] * (len(names) > _LISTED))
