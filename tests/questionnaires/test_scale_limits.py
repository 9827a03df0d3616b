"""Figures of scales stay in their range, and say why where they have none; items of an array may have ranges of their own."""

import numpy as np
import pandas as pd
import pytest

import dfact

_ROWS = "11110", "11121", "12120", "11020", "22221", "11221", "10001", "11011", "11110", "11111"
FEW = np.array([[int(answer) for answer in row] for row in _ROWS])


@pytest.mark.parametrize("interval", ["jackknife", "feldt"])
@pytest.mark.filterwarnings("ignore:the correlation with the rest", "ignore:items have answers in different ranges")
def test_intervals_of_alpha_end_at_1(interval: str) -> None:
    scale = dfact.describe(FEW, interval=interval).scales.iloc[0]
    assert scale.ci_low < scale.alpha < scale.ci_high <= 1
    assert scale.alpha == pytest.approx(0.69, abs=0.005)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:the correlation with the rest")
def test_alpha_of_items_with_a_constant_sum_is_not_defined(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(1, 6, 200)
    items = dfact.describe(pd.DataFrame({"a": a, "b": 6 - a, "c": rng.integers(1, 6, 200)})).items
    assert np.isnan(items.loc["c", "alpha_if_dropped"])
    assert items.loc["c", "note"] == "the other items of its scale have a constant sum"
    assert np.isfinite(items.loc[["a", "b"], "alpha_if_dropped"].to_numpy(float)).all()
    assert not items.loc[["a", "b"], "note"].any()


@pytest.mark.filterwarnings("ignore:the correlation with the rest")
def test_items_of_a_frame_have_their_own_ranges() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"mood": rng.integers(1, 6, 300), "worry": rng.integers(1, 6, 300), "slider": rng.integers(20, 101, 300)})
    with pytest.warns(UserWarning, match=r"'mood' from 1 to 5, 'slider' from 20 to 100.*valid_range"):
        items = dfact.describe(frame, scales={"s": ["mood", "worry"]}, keys={"worry": -1}).items
    np.testing.assert_allclose(items.loc["mood", ["floor", "ceiling"]].to_numpy(float), [(frame.mood == k).mean() for k in (1, 5)])
    assert items.loc["worry", "mean"] == pytest.approx(6 - frame.worry.mean())


def test_items_of_nearly_one_range_have_one(recwarn: pytest.WarningsRecorder) -> None:
    """An item to which the lowest answer is missing by chance is of the same scale as the others."""
    rng = np.random.default_rng(1)
    trait = rng.normal(size=300)
    X = np.clip(np.round(3 + trait[:, None] + rng.normal(size=(300, 4))), 1, 5)
    X[:, 0] = X[:, 0].clip(2)
    assert dfact.describe(X).items["floor"].iloc[0] == 0
    assert not recwarn.list
