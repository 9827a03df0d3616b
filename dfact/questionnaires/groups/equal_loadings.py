"""Fits of a bounded model to simulated groups that have the same loadings and differ in whatever else the groups differ in."""

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.passes import Block, BlockView
from dfact.models.fit_task import FitTask
from dfact.questionnaires.groups.fits import GroupFits, GroupRows
from dfact.selection.running.estimators import with_parameters
from dfact.stability.resamples import RefittedLoadings

Array = NDArray[np.float64]
_LEAST_FREE = 0.25  # share of the answers that count as free at least, when few are left for many factors


@dataclass(frozen=True, eq=False)
class SimulatedRows:
    """A view of the rows of a group with simulated answers: [W, C]Qᵀ and resampled residuals, within the range of each item.

    W, which the first covariates of a block hold, are the row's factors under the common loadings Q. The residuals come from another row
    of the group in the block, and where that lacks an answer, of a third one: from the group's own loadings and the factors under
    these, the next covariates. Those from the common loadings would contain what the groups differ in. Missing answers stay
    missing. The draws are seeded by the block, so that they depend on no worker, and are the same in every pass.
    """

    rows: GroupRows
    loadings: Array
    """Qᵀ (k+c, m), the k factors first."""
    own: Array
    """The group's own loadings (k+c, m)."""
    n_components: int
    inflation: float
    """Factor of residuals of other items than the row's: they are smaller than the noise, as factors were fitted to them."""
    limits: Array
    """Lowest and highest answer of each item (2, m)."""
    weighted: bool
    """Whether the last covariate holds weights."""

    def __call__(self, block: Block) -> Block:
        chosen = self.rows(block)
        assert chosen.covariates is not None, "the first covariates are the factors"
        M, W, k = chosen.values, chosen.covariates, self.n_components
        others = np.ascontiguousarray(W[:, 2 * k :])
        C = others[:, :-1] if self.weighted else others
        generator = np.random.default_rng(np.random.SeedSequence(self.rows.seed, spawn_key=(self.rows.number, block.index)))
        expected = np.hstack([W[:, :k], C]) @ self.loadings.astype(M.dtype)
        model = np.hstack([W[:, k : 2 * k], C]) @ self.own.astype(M.dtype)
        residuals = np.subtract(M, model, out=block.work.array("residuals", M.shape, M.dtype))
        simulated = block.work.array("simulated", M.shape, M.dtype)
        n, missing = len(M), np.isnan(M)
        drawn = generator.integers(max(n, 1), size=n)
        np.take(residuals, drawn, axis=0, out=simulated, mode="clip")
        lacking = np.isnan(simulated, out=block.work.array("lacking", M.shape, bool))
        for j in np.flatnonzero(lacking.any(axis=0)):
            answered = np.flatnonzero(~missing[:, j])
            third = generator.integers(max(len(answered), 1), size=int(lacking[:, j].sum()))
            simulated[lacking[:, j], j] = residuals[answered[third], j] if len(answered) else np.nan
        # Residuals of the same items as the row's are orthogonal to the loadings, as noise is that changes no factor.
        mixed = (lacking != missing).sum(axis=1) / np.maximum((~(lacking & missing)).sum(axis=1), 1)
        simulated *= (1 + (self.inflation - 1) * mixed[:, None]).astype(M.dtype)
        simulated += expected
        simulated[missing] = np.nan
        np.clip(simulated, *self.limits.astype(M.dtype), out=simulated)
        return chosen.with_matrix(simulated, covariates=others if others.shape[1] else None)


@dataclass(frozen=True, eq=False)
class EqualLoadingsFits(GroupFits):
    """Fits to simulated groups of equal loadings, by the numbers of :class:`~dfact.stability.resamples.GroupFits`.

    Each row keeps its factors under the loadings that were fitted to all rows, its missing answers, its confounders and its weight. So
    the groups differ in means, variances and whatever else their factors differ in, and in their residuals, but not in the loadings.
    """

    loadings: Array = field(default_factory=lambda: np.empty((0, 0)))
    own: tuple[Array, ...] = ()
    inflation: tuple[float, ...] = ()
    limits: Array = field(default_factory=lambda: np.empty((2, 0)))
    covariates: NDArray[Any] | None = None
    """Covariates of the fits; ``task`` has the factors before them."""

    @classmethod
    def from_fits(
        cls,
        fits: GroupFits,
        refits: Sequence[RefittedLoadings],
        groups: Sequence[Dataset],
        labels: NDArray[Any],
        executor: Any,
        memory_limit: Any,
    ) -> "EqualLoadingsFits":
        """Fit the model of ``fits`` to all rows together, and prepare the fits to simulated groups, given the ``refits`` to the groups."""
        dataset, task = fits.task.dataset, fits.task
        pooled = with_parameters(fits.model, executor=executor, memory_limit=memory_limit)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the fit itself has warned
            pooled = pooled.fit(dataset)
        loadings = _all_loadings(pooled.components_, getattr(pooled, "confounder_components_", None))
        common = np.asarray(pooled.row_factors(), task.dtype)
        own, free = common.copy(), []
        for number, (group, refit) in enumerate(zip(groups, refits, strict=True)):
            own[labels == number] = _factors_under(pooled, refit, dataset)[labels == number]
            used = int((own[labels == number] > 0).sum())
            free.append(max(1 - used / int(group.statistics.observed.sum()), _LEAST_FREE))
        extended = np.column_stack([array for array in (common, own, task.covariates) if array is not None])
        m, size = dataset.shape[1], task.dtype.itemsize
        footprint = replace(task.footprint, work_per_row=task.footprint.work_per_row + 4 * size * m + 16 * len(loadings))
        return cls(
            fits.model,
            replace(task, covariates=np.ascontiguousarray(extended, task.dtype), footprint=footprint),
            fits.seed,
            fits.strata,
            None,
            fits.problems,
            loadings,
            tuple(_all_loadings(refit.components, refit.confounders) for refit in refits),
            tuple(1 / np.sqrt(free)),
            np.stack([dataset.statistics.minimum, dataset.statistics.maximum]),
            task.covariates,
        )

    def _view(self, which: int) -> BlockView:
        rows, group = self.rows_of_group(which), which % len(self.problems)
        weighted = bool(getattr(self.task.problem, "weighted", False))
        return SimulatedRows(rows, self.loadings, self.own[group], self.task.problem.k, self.inflation[group], self.limits, weighted)

    def _task(self, which: int) -> FitTask[Any]:
        return replace(super()._task(which), covariates=self.covariates)


def _all_loadings(components: NDArray[Any], confounders: NDArray[Any] | None) -> Array:
    """Return Qᵀ (k+c, m)."""
    return np.vstack([components] if confounders is None else [components, confounders]).astype(np.float64)


def _factors_under(model: Any, refit: RefittedLoadings, dataset: Dataset) -> NDArray[Any]:
    """Return the factors (n, k) of all rows under the loadings of a refit."""
    other = copy(model)
    other.components_ = refit.components
    if refit.confounders is not None:
        other.confounder_components_ = refit.confounders
    return np.asarray(other.transform(dataset))
