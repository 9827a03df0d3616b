"""What an HTML report is about: the model, the data if it is given, and what things are called."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dfact.data.dataset import Dataset
from dfact.errors import ParameterError
from dfact.models.cp.path import SolutionPath
from dfact.models.estimator import Factorization
from dfact.models.traits import Vocabulary
from dfact.report.component_order import ComponentOrder
from dfact.report.figures import Groups, clustered
from dfact.report.row_statistics import RowStatistics

MOST_ITEMS = 2000  # in tables and heat maps; a tree of them all takes memory with their square


@dataclass(frozen=True, eq=False)
class ReportContext:
    """A fitted model and what is known beside it."""

    model: Any
    dataset: Dataset | None
    versions: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    solutions: SolutionPath | None = None

    def __post_init__(self) -> None:
        known = {str(item) for item in self.all_loadings.index}
        for name, given in (("texts", self.texts), ("groups", self.groups)):
            if given and not known & set(given):
                found, items = (", ".join(list(some)[:5]) for some in (given, self.all_loadings.index.astype(str)))
                raise ParameterError(f"{name} are of {found}, …, which are no items of the model; expected some of {items}, …")

    @cached_property
    def words(self) -> Vocabulary:
        vocabulary: Vocabulary = self.model.traits.vocabulary
        return vocabulary

    @cached_property
    def names(self) -> list[str]:
        """Of the components."""
        return [str(name) for name in self.model.get_feature_names_out()]

    @cached_property
    def all_loadings(self) -> pd.DataFrame:
        """Of all items, with the signs of the exported tables, in the order of the model."""
        return ComponentOrder.of(self.model).loadings(self.model)[list(self.model.get_feature_names_out())]

    @cached_property
    def shown(self) -> NDArray[np.intp]:
        """The numbers of the items that are shown, in their order: all, or those with the largest loadings."""
        sizes = self.all_loadings.abs().max(axis=1).to_numpy()
        return np.sort(np.argsort(-sizes, kind="stable")[:MOST_ITEMS])

    @property
    def loadings(self) -> pd.DataFrame:
        """Of the items that are shown."""
        return self.all_loadings.iloc[self.shown]

    @cached_property
    def order(self) -> tuple[NDArray[np.intp], Groups]:
        """Of the items that are shown: with like ones together, and their groups."""
        if self.model.traits.tensor:  # whose slices have an order, mode by mode
            return np.arange(len(self.shown)), []
        return clustered(self.loadings, dict(self.groups))

    @cached_property
    def statistics(self) -> RowStatistics:
        """Of the row factors."""
        return RowStatistics.of(self.signed_model._row_factors)

    @cached_property
    def signed_model(self) -> Any:
        """Of a CP model a copy with the signs of the exported tables; any other as it is."""
        if not self.model.traits.tensor:
            return self.model
        arrangement, signed = ComponentOrder.of(self.model), copy(self.model)
        first, *others = self.model.factors_
        signed.factors_ = [
            SignFlipped(first, arrangement.row_signs),
            *(np.asarray(A) * signs for A, signs in zip(others, arrangement.signs, strict=True)),
        ]
        return signed

    def described(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of items with their texts and groups as first columns, if there are any."""
        out = table.copy()
        for name, given in (("group", self.groups), ("text", self.texts)):
            if given:
                out.insert(0, name, [given.get(str(item), "") for item in table.index])
        return out


def checked_model(model: Any) -> Any:
    """The model, refused if it is none, or not fitted."""
    if not isinstance(model, Factorization):
        raise ParameterError(f"a {type(model).__name__} cannot be reported; expected a fitted model or a path to one")
    check_is_fitted(model)
    return model


@dataclass(frozen=True, eq=False)
class SignFlipped:
    """Row factors (n, k), in memory or in a store, with other signs."""

    rows: Any
    signs: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        signed: NDArray[Any] = np.asarray(self.rows[rows]) * self.signs
        return signed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of them in memory."""
        return np.asarray(self[:], dtype=dtype)
