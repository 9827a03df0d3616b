"""Congruences of factors between groups: the fits that they need, their test against equal loadings, and their intervals."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.errors import DataError, ParameterError
from dfact.linalg.congruence import centred_congruences, congruences, unit
from dfact.linalg.several_tests import holm
from dfact.progress import Iteration
from dfact.questionnaires.groups.congruence_tests import DRAWS_PER_TEST, CongruenceTests
from dfact.questionnaires.groups.equal_loadings import EqualLoadingsFits
from dfact.questionnaires.groups.fits import GroupFits
from dfact.questionnaires.groups.mantel_test import Groups
from dfact.questionnaires.rotation import rotate_to_target
from dfact.selection.running.results_store import ResultsStore
from dfact.selection.running.scheduler import run_fits
from dfact.stability.refits import Matching, Refits, converged_start, refit_inputs
from dfact.stability.resamples import RefittedLoadings

Array = NDArray[np.float64]
DEFAULT_DRAWS = 200
NO_TEST = "not asked for"
CLUSTERED = "simulated answers of the bounded models take people as independent, and clusters are given"
POLYCHORIC = "polychoric correlations give variance 1 to the variables of each group, so that other variances look like other loadings"


def resolve_draws(n_resamples: int | None, n_tests: int, *, test: bool) -> int:
    """Return the number of draws, by default 200, or 20 for each test if these are more; refuse fewer than the tests need."""
    needed = DRAWS_PER_TEST * n_tests if test else 0
    if n_resamples is None:
        return max(DEFAULT_DRAWS, needed)
    if n_resamples < needed:
        remedy = f"use n_resamples={needed} or more (--resamples {needed}), or test=False (--no-test)"
        raise ParameterError(f"too few draws for a test of {n_tests} factors: n_resamples is {n_resamples}; {remedy}")
    return n_resamples


@dataclass(frozen=True, eq=False)
class FactorComparison:
    """The factors' part of a :class:`dfact.models.provenance.Comparison`: arrays (g, k) for g groups other than the reference."""

    congruence: Array
    rotated: Array | None
    centred: Array | None
    population: Array
    low: Array
    high: Array
    p: Array
    n_resamples: int
    untested: str


class FactorCongruences:
    """Fits to the groups and to draws, and the congruences of their factors.

    A draw has loadings of each group that would be equal in all groups without sampling error. Factor analysis: with U the
    groups' loadings and M their mean, a resample of the rows of a group has the loadings M + (U* − U). Bounded models, whose loadings
    at 0 resamples do not imitate: those of fits to simulated answers (``equal_loadings``).
    """

    def __init__(self, model: Any, groups: Groups, n_draws: int, *, test: bool, clusters: NDArray[np.intp] | None = None) -> None:
        self._model, self._groups, self._matching = model, groups, Matching.of(model)
        self._n_draws, self._untested = n_draws, "" if test else NO_TEST
        if test and getattr(model, "thresholds_", None) is not None:
            self._untested = POLYCHORIC
        self._clusters = clusters
        if test and clusters is not None and model.traits.nonnegative:
            self._untested = CLUSTERED
        correlations = getattr(model, "factor_correlations_", None)
        self._rotates = correlations is not None
        self._oblique = correlations is not None and not np.allclose(correlations, np.eye(len(correlations)))
        self._bounded = bool(model.traits.nonnegative)
        sizes = np.bincount(groups.labels[groups.labels >= 0])
        self._shares = sizes / sizes.sum()
        self._groups_loadings: list[RefittedLoadings] = []
        self._draws: list[list[RefittedLoadings]] = []

    def fit(
        self,
        dataset: Dataset,
        frame: pd.DataFrame | None,
        members: Sequence[Dataset],
        store: ResultsStore,
        callbacks: Sequence[Callable[[Iteration], None]],
    ) -> None:
        """Run the fits that ``store`` lacks."""
        model, groups, size = self._model, self._groups, len(self._groups.levels)
        refits = Refits(store, range((self._n_draws + 1) * size), callbacks, self._describe)
        if refits.pending:
            others = None if frame is None else frame.drop(columns=[groups.by] if groups.is_confounder and groups.by in frame else [])
            refit, inputs = refit_inputs(model, dataset, others)
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
                fits = GroupFits.of_groups(refit, inputs, members, groups.labels, store.seed, self._clusters)
            if "init" in model.get_params(deep=False):
                fits = converged_start(model, fits, self._matching)
            resources = model.executor, model.memory_limit
            run_fits(fits, [n for n in refits.pending if n < size], refits.keep, *resources)
            failed = [number for number in range(size) if number in refits.failed]
            if failed:
                raise DataError(f"{self._describe(failed[0])} cannot be fitted: {refits.failed[failed[0]]}")
            draws = [n for n in refits.pending if n >= size]
            if self._bounded and draws:
                fits = EqualLoadingsFits.from_fits(fits, refits.stored(range(size)), members, groups.labels, *resources)
            run_fits(fits, draws, refits.keep, *resources)
        loadings = refits.loadings()
        self._groups_loadings = [one for one in loadings[:size] if one is not None]
        draws_of_groups = [loadings[first : first + size] for first in range(size, len(loadings), size)]
        self._draws = [[one for one in draw if one is not None] for draw in draws_of_groups if all(one is not None for one in draw)]
        if len(self._draws) < 2:
            first = min(number for number in refits.failed if number >= size)
            few = f"{len(self._draws)} of {self._n_draws} resamples could be fitted in all groups, expected at least 2"
            raise DataError(f"{few}; the {self._describe(first)}: {refits.failed[first]}")

    def _describe(self, number: int) -> str:
        draw, group = divmod(number, len(self._groups.levels))
        kind = "simulated answers" if self._bounded else "resample"
        return f"{f'{kind} {draw} of ' if draw else ''}{self._groups.by}={self._groups.levels[group]}"

    def compare(self, level: float, *, adjust: bool = True) -> FactorComparison:
        """Return the congruences of the groups with the first one, with intervals of this level, and p values, by default after Holm."""
        unrotated = [self._matched(one) for one in self._groups_loadings]
        observed = [self._comparable(one) for one in self._groups_loadings]
        draws = [np.stack(group) for group in zip(*(self._comparable_draw(draw, observed) for draw in self._draws), strict=True)]
        tests = []
        for other in range(1, len(observed)):
            pair = draws[0], draws[other]
            if not self._bounded:
                mean = (observed[0] + observed[other]) / 2
                pair = mean + draws[0] - observed[0], mean + draws[other] - observed[other]
            tests.append(CongruenceTests.of(observed[0], observed[other], pair, level))
        p = np.stack([test.p for test in tests])
        zero = ~np.stack([loadings.any(axis=1) for loadings in observed]).all(axis=0)  # a penalty may have left a factor without loadings
        p[:, zero] = np.nan
        # The intervals of bounded models, whose draws are simulated, covered a congruence of .9 in 75% of samples of 200 people a group.
        absent = np.full(p.shape, np.nan) if self._bounded else None
        population, low, high = (
            np.stack(values) if absent is None else absent
            for values in zip(*((test.population, test.low, test.high) for test in tests), strict=True)
        )
        return FactorComparison(
            np.stack([congruences(unrotated[0], loadings) for loadings in unrotated[1:]]),
            np.stack([congruences(observed[0], loadings) for loadings in observed[1:]]) if self._rotates else None,
            np.stack([centred_congruences(unrotated[0], loadings) for loadings in unrotated[1:]]) if self._bounded else None,
            population,
            low,
            high,
            np.full(p.shape, np.nan) if self._untested else holm(p) if adjust else p,
            len(self._draws),
            self._untested,
        )

    def _matched(self, refit: RefittedLoadings) -> Array:
        """Return the loadings (k, m) in the order and with the signs of the model's factors, minus the matching's centre."""
        return np.asarray(self._matching.match(refit.components)[1] - self._matching.centre, np.float64)

    def _comparable_draw(self, draw: Sequence[RefittedLoadings], observed: Sequence[Array]) -> list[Array]:
        """Return the loadings of a draw whose congruences are tested, of each group.

        The model, to which factors are rotated, was fitted to the answers of all groups, and draws the observed loadings towards each
        other. A model fitted to a draw would have moved as the groups' loadings have on average, and is the target of the draw.
        """
        loadings = [self._comparable(one) for one in draw]
        if not self._rotates:
            return loadings
        moved = sum(share * (new - old) for share, new, old in zip(self._shares, loadings, observed, strict=True))
        return [self._comparable(one, unit(self._matching.loadings) + moved) for one in draw]

    def _comparable(self, refit: RefittedLoadings, target: Array | None = None) -> Array:
        """Return the loadings whose congruences are tested (k, m), each factor of length 1.

        Factors of rotated solutions are rotated to the target, by default those of the model. Their loadings are in the same unit for
        all groups, the standard deviation of the item in the model: the loadings of standardized answers would differ if the variances of
        the factors do.
        """
        if not self._rotates:
            return unit(self._matched(refit))
        loadings = refit.components.astype(np.float64)
        if refit.scale is not None and self._untested != POLYCHORIC:
            loadings = loadings * (refit.scale / self._model.scale_)
        return unit(rotate_to_target(loadings, self._matching.loadings if target is None else target, oblique=self._oblique))
