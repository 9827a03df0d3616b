"""scikit-learn's estimator checks on every model."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

import dfact
from tests.cases import installed, of_slice

# check: reason, for each estimator that fails it by design
_SURVEY_WEIGHTS = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    "weights are survey weights, of which only the ratios matter: an integer weight does not equal copies of the row",
)
EXPECTED_FAILURES: dict[str, dict[str, str]] = {
    "ICQF": {},
    "ExpectileMF": dict.fromkeys(
        ("check_estimator_sparse_array", "check_estimator_sparse_matrix"),
        "predict returns the entries of all columns, not one for each row",
    ),
    "PCA": {},
    "NMF": _SURVEY_WEIGHTS,
    "FactorAnalysis": _SURVEY_WEIGHTS,
    "ElasticCP": {},
    "CPALS": {},
    "Admixture": {},
    "GradeOfMembership": dict.fromkeys(
        ("check_pipeline_consistency", "check_transformer_n_iter"),
        "its data, rounded to whole numbers, has rank 1: two classes are refused",
    ),
}


ESTIMATORS = [
    dfact.ICQF(n_components=2, max_iter=30),
    dfact.GradeOfMembership(n_components=2),
    *([dfact.Admixture(n_components=1, ploidy=254)] if installed("genetics") else []),
    dfact.ExpectileMF(n_components=2, max_iter=30),
    dfact.NMF(n_components=2, max_iter=30),
    dfact.NMF(n_components=2, loss="kullback-leibler", max_iter=30),
    dfact.NMF(n_components=2, max_iter=30),
    *of_slice("FactorAnalysis", n_components=1),
    dfact.PCA(n_components=1),
    dfact.ElasticCP(n_components=2, max_iter=30),
    dfact.CPALS(n_components=2, max_iter=30),
]
ALWAYS = "check_fit_score_takes_y"
"""The check that every estimator takes, also without exhaustive cases."""
REPRESENTATIVE = dfact.ICQF
"""The estimator that takes all checks: the methods that scikit-learn calls belong to a base class."""


def cases() -> Iterator[Any]:
    """All checks of all estimators; those that fail by design are marked with their reason."""
    for estimator in ESTIMATORS:
        kind = type(estimator).__name__
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Estimator .* does not inherit from")  # see dfact.models.scikit_learn
            checks = list(estimator_checks_generator(estimator, expected_failed_checks=EXPECTED_FAILURES[kind], mark="xfail"))
        for case in checks:
            values, marks = getattr(case, "values", case), list(getattr(case, "marks", ()))
            check: partial[None] = values[1]
            options = "".join(f"-{name}={value}" for name, value in check.keywords.items())
            name = f"{check.func.__name__}{options}"
            if name != ALWAYS and not isinstance(estimator, REPRESENTATIVE):
                marks.append(pytest.mark.exhaustive)
            yield pytest.param(*values, marks=marks, id=f"{kind}-{name}")


@pytest.mark.filterwarnings(
    "ignore:SCIPY_ARRAY_API",
    "ignore:.*array_api",
    "ignore:.* have no response",
    "ignore:only the subject that defines",
    "ignore:the uniqueness of",
    "ignore:.*more parameters",
    "ignore:row .* has no observed entry",
)
@pytest.mark.parametrize(("estimator", "check"), list(cases()))
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
