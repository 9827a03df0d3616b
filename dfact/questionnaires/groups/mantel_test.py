"""Groups of rows, and Mantel's test for items with differential functioning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.confounders import Confounder, as_frame, as_levels, level_name
from dfact.data.dataset import Dataset
from dfact.data.sources.entrance import as_column, name_of
from dfact.engine.memory_plan import Footprint
from dfact.engine.requests import drive
from dfact.errors import DataError, ParameterError, warn
from dfact.questionnaires.groups.mantel import MAX_LEVELS, Strata, mantel_tests
from dfact.questionnaires.scales import as_item_table

Array = NDArray[np.float64]
_LEAST_ROWS = 50  # of a group
_DTYPE = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of the rows."""

    by: str
    levels: tuple[str, ...]
    """The reference first."""
    labels: NDArray[np.intp]
    """Number of the level of each row (n,); −1 for none."""
    is_confounder: bool
    """Whether they are named as a confounder of the dataset."""

    @property
    def names(self) -> list[str]:
        """Names of the groups, such as "gender=1"."""
        return [f"{self.by}={level}" for level in self.levels]

    @classmethod
    def of(cls, by: Any, dataset: Dataset, chosen: Sequence[Any] | None) -> "Groups":
        named = isinstance(by, str)
        if named:
            frame = pd.DataFrame() if dataset.confounders is None else dataset.confounders
            if by not in frame:
                raise ParameterError(f"by is {by!r}, expected a confounder of the data, one of {list(frame)}; import it as a confounder")
        else:
            frame = as_frame(pd.Series(np.asarray(as_column(by, "by")), name=name_of(by) or "group"), dataset.shape[0])
        values = frame[by] if named else frame.iloc[:, 0]
        if not isinstance(values.dtype, pd.CategoricalDtype):
            raise ParameterError(f"{str(values.name)!r} is continuous, expected groups; cut it into categories, and pass those as by")
        fitted = Confounder.fit(values)
        existing = fitted.levels
        reference = existing[fitted.reference]
        wanted = (reference, *existing) if chosen is None else tuple(map(level_name, chosen))
        unknown = [level for level in wanted if level not in existing]
        if unknown:
            raise ParameterError(f"groups hold {unknown[0]!r}, expected some of {str(values.name)!r}: {', '.join(existing)}")
        levels = tuple(dict.fromkeys(wanted))
        if len(levels) < 2:
            raise DataError(f"{str(values.name)!r} has the level {levels[0]!r} alone, expected at least two groups")
        labels = np.asarray(pd.Index(levels).get_indexer(pd.Index(as_levels(values.astype(object)))), np.intp)
        return cls(str(values.name), levels, labels, named)

    def datasets(self, dataset: Dataset) -> list[Dataset]:
        """Return the rows of each group; refuse small groups, and items without answers or variance in one."""
        sizes = np.bincount(self.labels[self.labels >= 0], minlength=len(self.levels))
        small = int(sizes.argmin())
        if sizes[small] < _LEAST_ROWS:
            remedy = "compare other groups (groups=, --groups), or join it with another group"
            raise DataError(f"{self.by}={self.levels[small]} has {sizes[small]} rows, expected at least {_LEAST_ROWS}; {remedy}")
        members = []
        for number, level in enumerate(self.levels):
            rows = np.flatnonzero(self.labels == number)
            member = dataset.take_rows(rows)
            statistics = member.statistics
            for found, verb in ((statistics.observed == 0, "has no answers"), (statistics.minimum == statistics.maximum, "does not vary")):
                if found.any():
                    item = str(dataset.column_labels[int(np.flatnonzero(found)[0])])
                    remedy = "compare other groups (groups=, --groups), or import and fit without the item"
                    raise DataError(f"item {item!r} {verb} in {self.by}={level}, expected different answers; {remedy}")
            members.append(member if dataset.weights is None else member.with_weights(dataset.weights.to_numpy()[rows]))
        return members


def make_strata(
    model: Any,
    dataset: Dataset,
    groups: Groups,
    scales: Mapping[str, Sequence[str]] | str | PathLike[str] | None,
    keys: Mapping[str, int] | None,
) -> tuple[list[str], Strata]:
    """Return the scale of each item and the strata: by the arguments, by the codebook, or by the largest loadings."""
    names = [str(label) for label in model.column_labels_]
    codebook = {} if dataset.codebook is None else {item.name: item for item in dataset.codebook}
    by_item: Mapping[str, str]
    if scales is not None:
        table = as_item_table(scales)
        by_item, found = table.scales, table.keys
    elif any(item.scale for item in codebook.values()):
        by_item = {name: item.scale for name, item in codebook.items()}
        found = {name: item.key for name, item in codebook.items()}
    else:
        loadings = np.asarray(model.components_, np.float64)
        largest, factors = np.abs(loadings).argmax(axis=0), model.get_feature_names_out()
        by_item = {name: str(factors[i]) for name, i, used in zip(names, largest, np.abs(loadings).max(axis=0), strict=True) if used}
        found = dict(zip(names, np.sign(loadings[largest, np.arange(len(names))]), strict=True))
    signs = found if keys is None else keys
    unknown = [name for name in {**by_item, **signs} if name not in names]
    if unknown and not set(names) & set(by_item):
        raise ParameterError(f"scales name the items {unknown[:5]}, expected some of the model's, such as {names[:3]}")
    statistics = dataset.statistics
    narrow = statistics.maximum - statistics.minimum < MAX_LEVELS
    of_item = [by_item.get(name, "") if usable else "" for name, usable in zip(names, narrow, strict=True)]
    sizes = pd.Series(of_item).value_counts()
    of_item = [scale if scale and sizes[scale] > 1 else "" for scale in of_item]
    items = [np.flatnonzero(np.asarray(of_item, object) == scale) for scale in dict.fromkeys(filter(None, of_item))]
    reverse = np.asarray([signs.get(name, 1) < 0 for name in names])
    return of_item, Strata.of(statistics.minimum, statistics.maximum, reverse, items, len(groups.levels) - 1)


def mantel_figures(model: Any, dataset: Dataset, groups: Groups, scales: list[str], strata: Strata) -> tuple[list[str], Array | None, str]:
    """Return the scales of the items, the figures of Mantel's tests (statistics, g, m), and the reason if there are none."""
    if not strata.size or not any(scales):
        return scales, None, "it needs scales of at least two items with ordered answers"
    if dataset.weights is not None:
        return scales, None, "it takes no survey weights"
    covariates, footprint = groups.labels[:, None].astype(np.float64), Footprint(0, 0, 16 * strata.size, 0)
    with model.open_session(dataset, covariates=covariates, footprint=footprint) as session:
        found = drive(mantel_tests(strata, _DTYPE), session)
    if isinstance(found, np.ndarray):
        item = str(dataset.column_labels[int(np.flatnonzero(found)[0])])
        message = f"item {item!r} has {int(found[found > 0][0])} answers that are not whole numbers, expected ordered categories"
        warn(f"{message}; Mantel's test is left out")
        return [""] * len(scales), None, message
    first, test = found
    figures = [test.n, test.chi_square, test.smd, test.alpha, test.anchors, first.chi_square, first.smd, test.sd, test.alpha_se]
    return scales, np.stack(figures), ""
