"""Selections, resamples and comparisons of hostile data: a result, or a refusal by name. NumPy's warnings are errors here."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact import selection
from tests.cases import exhaustive_after
from tests.suites.hostile_data import DATA, refusal

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of Heywood cases, rows without entries and the like


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    if "compare_groups" in selection.__all__:
        monkeypatch.setattr("dfact.questionnaires.groups.comparison._LEAST_RESAMPLES", 2)


def nmf() -> dfact.NMF:
    return dfact.NMF(1, max_iter=10)


def tensor(X: Array) -> Array:
    return np.stack([X, X[::-1], 2 * X], axis=2)


def compared(model: Any, X: Array) -> Any:
    """Compare two groups of 100 and 50 rows, which repeat those of X."""
    rows = np.resize(np.arange(len(X)), 150)
    groups = np.resize(["a", "b", "a"], 150)
    return selection.compare_groups(model.fit(X[rows]), X[rows], groups, n_resamples=4, test=False, random_state=0)


CALLS: dict[str, Callable[[Array], Any]] = {
    "blocks": lambda X: selection.block_cross_validate(nmf(), X, {"n_components": [1, 2]}, n_blocks=(3, 2), n_folds=2, random_state=0),
    "criterion": lambda X: selection.select_by_criterion(nmf(), X, n_components=[1, 2]),
    "held out": lambda X: selection.select_by_held_out(dfact.ExpectileMF(1, max_iter=10), X, {"n_components": [1, 2]}, random_state=0),
    "fa": lambda X: selection.select_number_of_factors(dfact.FactorAnalysis(1), X, n_components=[1, 2]),
    "path": lambda X: selection.select_penalty(dfact.ElasticCP(2, max_iter=10, random_state=0), tensor(X), lambdas=[0.1, 1.0]),
    "modularity": lambda X: selection.select_by_modularity(dfact.GradeOfMembership(1), X, n_components=[1, 2]),
    "classes": lambda X: selection.select_number_of_classes(dfact.GradeOfMembership(1), X, n_components=[1, 2]),
    "bootstrap": lambda X: selection.bootstrap(nmf().fit(X), X, n_resamples=3, random_state=0),
    "compare_groups": lambda X: compared(nmf(), X),
    "compare_groups of factors": lambda X: compared(dfact.FactorAnalysis(1), X),
}
REFUSALS = (
    "at least 2 to compare their correlations",
    "large entries",
    "small entries",
    "no observed entry",
    "expected items that vary",
    "do not vary together",
    "does not vary in group=",
    "has no answers in group=",
    "larger than the data allows",
    "at least 2 of each",
    "expected a larger one",  # share of held-out entries
    r"expected \(row blocks, column blocks\)",
    "have rank 1",
    "subjects have any response",
    "expected whole numbers",
)


VARYING = ("plain", "duplicate rows", "columns of all sizes", "rows of all sizes", "outlier")
"""Data that groups can be compared in; a fit of each group refuses the others."""


@pytest.mark.further
@pytest.mark.parametrize("dtype", exhaustive_after(1, ["float32", "float64"]))
@pytest.mark.parametrize("name", CALLS)
def test_hostile_data_give_a_result_or_a_refusal(name: str, dtype: str) -> None:
    for seed, case in enumerate(VARYING if name.startswith("compare_groups") else DATA):
        found = refusal(partial(CALLS[name], DATA[case](seed).astype(dtype)))
        assert not found or (case != "plain" and re.search("|".join(REFUSALS), found)), f"{case}: {found}"
