"""Fits of a model to the rows of single groups, and to resamples of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.layout import Layout
from dfact.engine.passes import BlockView
from dfact.models.estimator import Factorization
from dfact.models.fit_task import FitTask
from dfact.stability.resamples import ClusterResample, Resample, ResampleFits


@dataclass(frozen=True, eq=False)
class GroupRows(Resample):
    """A view of the rows of one group, once each. ``strata`` number the groups from 1 on, and rows of none are 0."""

    group: int = 0

    @classmethod
    def choose(cls, seed: int, number: int, strata: NDArray[Any], group: int, layout: Layout, *, weighted: bool) -> "GroupRows":
        """Choose the rows of a group, for data with this layout. ``seed`` and ``number`` are for views that draw among them."""
        counts = np.stack([np.add.reduceat(strata == g, layout.block_starts, dtype=np.int64) for g in range(1, int(strata.max()) + 1)])
        return cls(seed, number, counts, weighted, strata, group)

    def multiplicity(self, index: int, start: int, size: int) -> NDArray[np.intp]:
        assert self.strata is not None, "groups are strata"
        return np.asarray(self.strata[start : start + size] == self.group, np.intp)

    def _rows_before(self, index: int) -> int:
        return int(self.counts[self.group - 1, :index].sum())


@dataclass(frozen=True, eq=False)
class GroupFits(ResampleFits):
    """Fits to the rows of single groups: all of them, and resamples of them.

    A fit is numbered (draw · groups + group); draw 0 are the groups themselves, others resamples.
    ``strata`` number the groups from 1 on, and rows of none are 0.
    """

    problems: tuple[Any, ...] = ()
    """The objective for each group, whose constants depend on its number of rows."""

    @classmethod
    def of_groups(
        cls,
        model: Factorization,
        dataset: Dataset,
        groups: Sequence[Dataset],
        labels: NDArray[Any],
        seed: int,
        clusters: NDArray[np.intp] | None = None,
    ) -> "GroupFits":
        """Prepare the fits to ``groups``, datasets of their rows, which ``labels`` (n,) number from 0 on; −1 is none.

        Resamples draw the ``clusters`` (n,) of each group, if there are any, else its rows.
        """
        if model.traits.copies_weights:
            groups = [group if group.weights is not None else group.with_weights(np.ones(group.shape[0])) for group in groups]
        fits = cls.make(model, dataset, seed=seed, strata=labels + 1, clusters=clusters)
        # Levels and ranges come from all rows, so that they do not differ between groups and draws.
        problems = [model.prepare(replace(group, statistics=dataset.statistics)).problem for group in groups]
        return replace(fits, problems=tuple(problems))

    def rows_of_group(self, which: int) -> GroupRows:
        """Return the view of the rows of the group of a fit."""
        assert self.strata is not None, "groups are strata"
        group, weighted = which % len(self.problems), self.model.traits.copies_weights
        return GroupRows.choose(self.seed, which, self.strata, group + 1, self.task.layout, weighted=weighted)

    def _view(self, which: int) -> BlockView:
        draw, group = divmod(which, len(self.problems))
        if not draw:
            return self.rows_of_group(which)
        weighted = self.model.traits.copies_weights
        if self.clusters is not None:
            whole = self._drawn_clusters(which)
            drawn = np.where(self.clusters.strata == group + 1, whole.drawn, 0)
            return ClusterResample.of_draws(self.task.layout, self.seed, which, self.clusters.units, drawn, weighted=weighted)
        resample = Resample.draw(self.task.layout, self.seed, which, weighted=weighted, strata=self.strata)
        others = np.arange(len(resample.counts)) != group + 1
        return replace(resample, counts=np.where(others[:, None], 0, resample.counts))

    def _task(self, which: int) -> FitTask[Any]:
        return replace(self.task, problem=self.problems[which % len(self.problems)])
