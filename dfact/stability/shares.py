"""Refits of models to shares of the rows, and the correlation of their loadings with those of all rows (Lam et al. 2023, table 2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.lazy import pd
from dfact.linalg.congruence import congruence, match
from dfact.linalg.several_tests import adjusted
from dfact.models.estimator import Factorization
from dfact.parameters import check_count, random_generator
from dfact.progress import Iteration, Reporter, TimeLeft
from dfact.selection.running.estimators import fitted_dataset, with_parameters
from dfact.stability.refits import fitted_confounders, fitted_weights

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_BAND = 1.96  # standard errors on either side of a mean


@dataclass(frozen=True, eq=False)
class ShareCorrelations:
    """Correlations of the loadings of models fitted to shares of the rows with those of the same models fitted to all rows."""

    shares: tuple[float, ...]
    correlations: Mapping[str, NDArray[np.float64]]
    """Pearson correlations (shares, repeats, k) of each model, for each of its factors that of the matched factor; NaN for a refit that
    failed. All models have the same rows in a repeat."""

    def scores(self, name: str) -> NDArray[np.float64]:
        """Return the mean correlation over a model's factors (shares, repeats)."""
        return np.asarray(self.correlations[name].mean(axis=2))

    def summary(self) -> pd.DataFrame:
        """Return the mean and the standard deviation of the scores over the repeats: shares × (model, "mean" or "sd")."""
        columns = {}
        for name in self.correlations:
            scores = self.scores(name)
            counts = (~np.isnan(scores)).sum(axis=1)
            mean = np.where(counts > 0, np.nansum(scores, axis=1) / np.maximum(counts, 1), np.nan)
            squares = np.nansum((scores - mean[:, None]) ** 2, axis=1) / np.maximum(counts - 1, 1)
            columns[name, "mean"], columns[name, "sd"] = mean, np.where(counts > 1, np.sqrt(squares), np.nan)
        return pd.DataFrame(columns, index=pd.Index(self.shares, name="share"))

    def tests(self) -> pd.DataFrame:
        """Return Wilcoxon's signed-rank tests of the first model against each other one, at each share.

        The pairs are the two models' scores of the same rows, and the alternative is that the first model's are higher. ``adjusted`` are
        the p values by Benjamini and Hochberg over all tests of the table. A test at which no pair differs has p = 1, as has the share 1.
        """
        from scipy.stats import wilcoxon  # takes long to import

        first, *others = self.correlations
        rows = []
        for other in others:
            for number, share in enumerate(self.shares):
                difference = self.scores(first)[number] - self.scores(other)[number]
                known = difference[~np.isnan(difference)]
                p = float(wilcoxon(known, alternative="greater").pvalue) if known.any() else (1.0 if len(known) else np.nan)
                median = float(np.median(known)) if len(known) else np.nan
                rows.append({"share": share, "model": first, "versus": other, "pairs": len(known), "median difference": median, "p": p})
        table = pd.DataFrame(rows, columns=["share", "model", "versus", "pairs", "median difference", "p"])
        return table.assign(adjusted=adjusted(table["p"].to_numpy(np.float64)))

    def bands(self, name: str) -> NDArray[np.float64]:
        """Return the mean score of a model at each share, with the ends of its interval of 95% over the repeats (3, shares)."""
        table, counts = self.summary()[name], (~np.isnan(self.scores(name))).sum(axis=1)
        mean = table["mean"].to_numpy()
        half = _BAND * np.nan_to_num(table["sd"].to_numpy()) / np.sqrt(np.maximum(counts, 1))
        return np.stack([mean, mean - half, mean + half])


def matched_correlations(A: NDArray[Any], B: NDArray[Any], *, signed: bool) -> NDArray[np.float64]:
    """Return Pearson's correlation of each row of A (k, m) with the row of B (l, m) that is matched with it, one to one.

    The matching has the largest sum (Hungarian method). With ``signed`` loadings a factor may be flipped. A row of A without a partner,
    as l < k, has NaN; so has a constant one.
    """
    centred = [np.asarray(X, np.float64) - np.mean(X, axis=1, keepdims=True, dtype=np.float64) for X in (A, B)]
    scores = congruence(*centred)
    scores = np.abs(scores) if signed else scores
    rows, columns = match(scores)
    found = np.full(len(scores), np.nan)
    found[rows] = scores[rows, columns]
    found[~centred[0].any(axis=1)] = np.nan
    return found


def refit_shares(
    models: Mapping[str, Factorization],
    dataset: Dataset,
    shares: Sequence[float] = SHARES,
    n_repeats: int = 10,
    *,
    random_state: Any = None,
    callbacks: Sequence[Callable[[Iteration], None]] = (),
) -> ShareCorrelations:
    """Refit fitted models to shares of the rows that they were fitted to, and correlate the loadings with their own.

    A repeat draws one order of the rows. A share takes the first rows of it, so smaller shares are parts of larger ones, and all models
    get the same rows. A refit has the model's parameters and its own start (``init``), and reads its rows from the data.

    Raises
    ------
    ParameterError
        No shares, or some that are not above 0 and at most 1.
    DataError
        The data differs from that of a fit, or a model could not be refitted to any of the drawn rows.

    References
    ----------
    Lam et al. (2023), figure 3 and table 2.
    """
    if not len(shares) or not all(0 < share <= 1 for share in shares):
        raise ParameterError(f"shares are {list(shares)!r}, expected numbers above 0 and up to 1 (--shares)")
    check_count("n_repeats", n_repeats, 1, 10_000)
    inputs = {name: _Inputs.of(model, dataset) for name, model in models.items()}
    n, entropy = dataset.shape[0], int(random_generator(random_state).randint(2**31))
    sizes = [max(1, round(share * n)) for share in shares]
    found = {name: np.full((len(sizes), n_repeats, len(each.loadings)), np.nan) for name, each in inputs.items()}
    total = len(sizes) * n_repeats * len(inputs)
    reporter, left, done, failures = Reporter(callbacks, total), TimeLeft(total), 0, dict[str, DataError]()
    for repeat in range(n_repeats):
        order = np.random.default_rng(np.random.SeedSequence([entropy, repeat])).permutation(n)
        for number, size in enumerate(sizes):
            for name, each in inputs.items():
                try:
                    found[name][number, repeat] = each.correlations(np.sort(order[:size]), repeat)
                except DataError as failure:  # an item may be constant or unanswered in few rows
                    failures.setdefault(name, failure)
                done += 1
                reporter.reached(done, left.text(done))
    for name, error in failures.items():
        if np.isnan(found[name]).all():
            raise DataError(f"{name} could not be refitted to any of the drawn rows, such as: {error}") from error
    return ShareCorrelations(tuple(map(float, shares)), found)


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Inputs of the refits of a model."""

    model: Any
    """The unfitted estimator."""
    dataset: Dataset
    confounders: pd.DataFrame | None
    loadings: NDArray[np.float64]
    """Those of the fit to all rows (k, m)."""
    signed: bool

    @classmethod
    def of(cls, model: Any, dataset: Dataset) -> _Inputs:
        if model.traits.tensor:
            raise ParameterError(f"model is a {type(model).__name__} of a tensor, whose rows have no shares; expected a model of a matrix")
        rows = fitted_weights(model, fitted_dataset(model, dataset), None)
        loadings = np.asarray(model.components_, np.float64)
        unfitted = with_parameters(model, callbacks=())
        return cls(unfitted, rows, fitted_confounders(model, rows, None), loadings, not model.traits.nonnegative)

    def correlations(self, rows: NDArray[np.intp], repeat: int) -> NDArray[np.float64]:
        """Refit to these rows, and return the correlations of the matched loadings (k,)."""
        part, weights = self.dataset.take_rows(rows), self.dataset.weights
        frame = None if self.confounders is None else self.confounders.iloc[rows].reset_index(drop=True)
        part = replace(part, confounder_source=frame, weights=None if weights is None else weights.iloc[rows].reset_index(drop=True))
        seeded = {"random_state": repeat} if "random_state" in self.model.get_params(deep=False) else {}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
            refit = with_parameters(self.model, **seeded).fit(part)
        return matched_correlations(self.loadings, refit.components_, signed=self.signed)
