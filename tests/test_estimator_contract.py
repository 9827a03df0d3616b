"""scikit-learn's own checks, on every estimator."""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import dfact

# check: reason, for each estimator that fails it by design
EXPECTED_FAILURES: dict[str, dict[str, str]] = {"ICQF": {}}


@pytest.mark.filterwarnings("ignore:SCIPY_ARRAY_API", "ignore:.*array_api")
@parametrize_with_checks([dfact.ICQF(n_components=2, max_iter=30)], expected_failed_checks=lambda e: EXPECTED_FAILURES[type(e).__name__])
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
