"""The subject of an HTML report: the model, its data if given, and the texts and groups of its items."""

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
from dfact.report.figures import Groups, order_by_similarity
from dfact.report.presenters.base import Presenter, find_presenter
from dfact.report.row_statistics import RowStatistics

MAX_ITEMS = 2000  # in tables and heat maps; clustering takes memory quadratic in their number


@dataclass(frozen=True, eq=False)
class ReportContext:
    """A fitted model with all that its report needs; derived tables are computed once."""

    model: Any
    dataset: Dataset | None
    versions: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    solutions: SolutionPath | None = None

    def __post_init__(self) -> None:
        items = self.all_loadings.index.astype(str)
        for name, labels in (("texts", self.texts), ("groups", self.groups)):
            if labels and not set(items) & set(labels):
                found, expected = (", ".join(list(some)[:5]) for some in (labels, items))
                raise ParameterError(f"{name} are for {found}, …, which are not items of the model; expected some of {expected}, …")

    @cached_property
    def words(self) -> Vocabulary:
        """Words for the parts of the model."""
        vocabulary: Vocabulary = self.model.traits.vocabulary
        return vocabulary

    @cached_property
    def presenter(self) -> Presenter:
        """Presenter of the family of the model."""
        return find_presenter(self.model)

    @cached_property
    def names(self) -> list[str]:
        """Names of the components."""
        return [str(name) for name in self.model.get_feature_names_out()]

    @cached_property
    def all_loadings(self) -> pd.DataFrame:
        """Loadings of all items, with the signs of the exported tables and the components in the order of the model."""
        return ComponentOrder.of(self.model).loadings(self.model)[list(self.model.get_feature_names_out())]

    @cached_property
    def shown(self) -> NDArray[np.intp]:
        """Positions of the items in the report: all, or those with the largest loadings."""
        sizes = self.all_loadings.abs().max(axis=1).to_numpy()
        return np.sort(np.argsort(-sizes, kind="stable")[:MAX_ITEMS])

    @property
    def loadings(self) -> pd.DataFrame:
        """Loadings of the items in the report."""
        return self.all_loadings.iloc[self.shown]

    @cached_property
    def order(self) -> tuple[NDArray[np.intp], Groups]:
        """Order of the items in the report, similar ones together, and their groups."""
        if self.model.traits.tensor:  # slices keep their order, mode by mode
            return np.arange(len(self.shown)), []
        return order_by_similarity(self.loadings, dict(self.groups))

    @cached_property
    def statistics(self) -> RowStatistics:
        """Statistics of the row factors."""
        return RowStatistics.of(self.signed_model.row_factors())

    @cached_property
    def signed_model(self) -> Any:
        """A copy of a tensor model with the signs of the exported tables; other models unchanged."""
        if not self.model.traits.tensor:
            return self.model
        order, signed = ComponentOrder.of(self.model), copy(self.model)
        first, *others = self.model.factors_
        signed.factors_ = [
            SignFlipped(first, order.row_signs),
            *(np.asarray(A) * signs for A, signs in zip(others, order.signs, strict=True)),
        ]
        return signed

    def with_texts(self, table: pd.DataFrame) -> pd.DataFrame:
        """Insert the texts and groups of the items as first columns, if there are any."""
        out = table.copy()
        for name, labels in (("group", self.groups), ("text", self.texts)):
            if labels:
                out.insert(0, name, [labels.get(str(item), "") for item in table.index])
        return out


def check_model(model: Any) -> Any:
    """Return the model; raise an error if it is not a fitted factorization."""
    if not isinstance(model, Factorization):
        raise ParameterError(f"a {type(model).__name__} cannot be reported, expected a fitted model or the path of one")
    check_is_fitted(model)
    return model


@dataclass(frozen=True, eq=False)
class SignFlipped:
    """Row factors (n, k), in memory or in a store, with signs flipped as they are read."""

    rows: Any
    signs: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        signed: NDArray[Any] = np.asarray(self.rows[rows]) * self.signs
        return signed

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Load all rows into memory."""
        return np.asarray(self[:], dtype=dtype)
