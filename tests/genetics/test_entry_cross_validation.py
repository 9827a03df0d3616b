"""Cross-validation of an admixture by single entries: the same errors as of separate fits, on shared reads."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import xlogy

import dfact
from dfact import Admixture, DataError, ParameterError
from dfact.kernels.binomial import mask_codes_by_fold
from dfact.selection import cross_validate_entries
from tests.conftest import CutRows


def genotypes(seed: int, n: int = 150, m: int = 200, k: int = 3) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.binomial(2, np.eye(k)[rng.integers(0, k, n)] @ rng.random((k, m)))


def separate_error(X: NDArray[Any], k: int, n_folds: int, seed: int) -> float:
    """The error of fits to masked copies of the data."""
    total, held_out = 0.0, np.empty(X.shape, np.uint8)
    for fold in range(n_folds):
        mask_codes_by_fold(X.astype(np.uint8), 0, fold, n_folds, seed, True, held_out)
        test = held_out != 255
        model = Admixture(k).fit(np.where(test, np.nan, X).astype(np.float32))
        g, mu = X[test], 2 * (model.memberships_.astype(float) @ model.allele_frequencies_)[test]
        total += float((xlogy(g, g / mu) + xlogy(2 - g, (2 - g) / (2 - mu))).sum())
    return total / X.size


@pytest.fixture(scope="module")
def separate_errors() -> list[float]:
    """The errors of separate fits with 2 and 3 components."""
    seed = dfact.selection.running.results_store.resolve_random_state(0)
    assert seed is not None
    return [separate_error(genotypes(1), k, 3, seed) for k in (2, 3)]


@pytest.mark.further
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_errors_are_those_of_separate_fits(dtype: Any, separate_errors: list[float], cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 12)
    selection = cross_validate_entries(Admixture(), genotypes(1).astype(dtype), [2, 3], n_folds=3, random_state=0)
    np.testing.assert_allclose(selection.table["deviance"], separate_errors, rtol=2e-3)
    assert selection.best_params == {"n_components": 3}
    assert selection.model.selection_.criterion == "deviance"


def test_a_selection_resumes_from_its_results(tmp_path: Any) -> None:
    X = genotypes(2, 90, 80)
    expected = cross_validate_entries(Admixture(), X, [1, 2], n_folds=2, random_state=0)
    first, again = (cross_validate_entries(Admixture(), X, [1, 2], n_folds=2, random_state=0, checkpoint=tmp_path / "cv") for _ in range(2))
    for found in (first, again):
        assert found.table.equals(expected.table)
        np.testing.assert_array_equal(found.model.allele_frequencies_, expected.model.allele_frequencies_)


def test_invalid_arguments_are_refused() -> None:
    X = genotypes(0, 40, 30)
    with pytest.raises(ParameterError, match="n_folds is 1"):
        cross_validate_entries(Admixture(), X, [1], n_folds=1)
    with pytest.raises(ParameterError, match="no candidates"):
        cross_validate_entries(Admixture(), X, [])
    with pytest.raises(ParameterError, match="model is a ICQF"):
        cross_validate_entries(dfact.ICQF(), X, [1])  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ParameterError, match="model is supervised"):
        cross_validate_entries(Admixture(supervised=True), X, [1])
    with pytest.raises(DataError, match=r"holds 0\.5, expected whole numbers"):
        cross_validate_entries(Admixture(), np.where(X == 1, 0.5, X), [1])
