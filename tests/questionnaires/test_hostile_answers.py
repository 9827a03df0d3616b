"""Descriptions of hostile answers: finite or NaN with a note, or refused with a message. NumPy's warnings are errors here."""

from functools import partial

import numpy as np
import pytest

import dfact
from tests.cases import exhaustive_after
from tests.suites.hostile_data import DATA, N, refusal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of items that correlate negatively with the rest


@pytest.mark.parametrize("dtype", exhaustive_after(1, ["float64", "float32"]))
@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
@pytest.mark.parametrize("correlation", ["pearson", "polychoric"])
def test_hostile_answers_are_described_or_refused(correlation: str, missing: str, dtype: str) -> None:
    refused: dict[str, str] = {}
    descriptions: dict[str, dfact.Description] = {}
    for seed, case in enumerate(DATA):
        X = DATA[case](seed).astype(dtype)
        weights = None if seed % 2 or len(X) < N else np.where(np.arange(N) % 3 == 1, 0.0, 1e9 ** (np.arange(N) % 2))
        describe = partial(dfact.describe, X, correlation=correlation, missing=missing, sample_weight=weights)
        if message := refusal(lambda: descriptions.update({case: describe()})):  # noqa: B023  (called at once)
            refused[case] = message
            continue
        description = descriptions[case]
        table = description.items[["mean", "sd", "skew", "missing"]].to_numpy(float)
        assert not np.isinf(table).any(), case
        assert (np.nan_to_num(description.items["sd"]) >= 0).all(), case
        assert np.isfinite(description.items["mean"][description.items["n"] > 0]).all(), case
    # Ordered answers are whole numbers of a few levels.
    extreme = {"large", "small", "columns of all sizes", "rows of all sizes", "outlier"}
    assert set(refused) == (extreme if correlation == "polychoric" else set()), refused
    assert all("not whole numbers" in message or "more than 10 levels" in message for message in refused.values()), refused


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_figures_do_not_depend_on_the_unit_of_single_precision_answers(size: float) -> None:
    """Squares of the answers leave the range of float32, so the sums are in double precision."""
    X = np.random.default_rng(3).integers(1, 6, (40, 4)).astype(np.float32)
    expected, found = (dfact.describe(unit * X) for unit in (np.float32(1), np.float32(size)))
    np.testing.assert_allclose(found.scales.select_dtypes("number"), expected.scales.select_dtypes("number"), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.items["sd"], expected.items["sd"] * size, rtol=1e-6)


def test_answers_beyond_double_precision_are_refused() -> None:
    X = np.array([[1e80, 2.0], [3.0, 1e80], [1.0, 4.0]])
    with pytest.raises(dfact.DataError, match="large entries: row 0, column '0' holds 1e\\+80"):
        dfact.describe(X)
