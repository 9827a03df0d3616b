"""scikit-learn's own checks, on every estimator."""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import dfact

# check: reason, for each estimator that fails it by design
EXPECTED_FAILURES: dict[str, dict[str, str]] = {
    "ICQF": {},
    "L1NMF": {},
    "FactorAnalysis": {},
    "GradeOfMembership": {"check_pipeline_consistency": "its data, rounded to whole numbers, has rank 1: two classes are refused"},
}


@pytest.mark.filterwarnings(
    "ignore:SCIPY_ARRAY_API",
    "ignore:.*array_api",
    "ignore:.* have no response",
    "ignore:nobody but the subject",
    "ignore:the uniqueness of",
    "ignore:.*more parameters",
)
@parametrize_with_checks(
    [
        dfact.ICQF(n_components=2, max_iter=30),
        dfact.GradeOfMembership(n_components=2),
        dfact.L1NMF(n_components=2, max_iter=30),
        dfact.FactorAnalysis(n_components=1),
    ],
    expected_failed_checks=lambda e: EXPECTED_FAILURES[type(e).__name__],
)
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
