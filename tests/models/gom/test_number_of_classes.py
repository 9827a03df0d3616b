"""The number of classes by parallel analysis and by held-out answers, when the classes have equal and unequal sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.models.gom.number_of_classes import CRITERIA, select_number_of_classes
from dfact.report.presenters.base import find_presenter
from dfact.report.selection import classes_plot, selection_text


def answers(seed: int, sizes: list[int], n: int = 400, m: int = 30, mixed: float = 0.2) -> NDArray[np.float64]:
    """Draw binomial answers from 0 to 4 of classes of these relative sizes; a share of the memberships is mixed."""
    rng = np.random.default_rng(seed)
    k, shares = len(sizes), np.array(sizes) / sum(sizes)
    Pi = np.eye(k)[rng.choice(k, n, p=shares)]
    of_mixed = rng.random(n) < mixed
    Pi[of_mixed] = rng.dirichlet(k * shares, int(of_mixed.sum()))
    return rng.binomial(4, Pi @ rng.beta(0.6, 0.6, (k, m))).astype(float)


def categories(seed: int, sizes: list[int], n: int = 800, m: int = 40, levels: int = 4) -> NDArray[np.float64]:
    """Draw answers from 0 whose categories have any probabilities in each class: they vary more than binomial ones."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(len(sizes), n, p=np.array(sizes) / sum(sizes))
    cumulative = rng.dirichlet(np.full(levels, 0.5), (len(sizes), m)).cumsum(axis=2)[classes, :, :-1]
    return (rng.random((n, m))[..., None] > cumulative).sum(axis=2).astype(float)


def select(R: Any, candidates: Any = range(1, 7), criterion: str = "PA", **settings: Any) -> Any:
    model = dfact.GradeOfMembership(random_state=0, executor=settings.pop("executor", "inline"), max_response=4)
    return select_number_of_classes(model, R, candidates, criterion=criterion, **{"random_state": 0} | settings)


SIZES = [[1, 1, 1], [1, 2, 3], [8, 1, 1, 1], [1, 2, 3, 4], [1]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_parallel_analysis_finds_classes_of_any_sizes(sizes: list[int], seed: int) -> None:
    assert select(answers(seed, sizes)).best_params == {"n_components": len(sizes)}


@pytest.mark.parametrize("seed", range(2))
def test_parallel_analysis_finds_classes_of_answers_that_are_not_binomial(seed: int) -> None:
    assert select(categories(seed, [6, 1, 1])).best_params == {"n_components": 3}


def test_modularity_merges_small_classes() -> None:
    found = select(answers(0, [8, 1, 1, 1]))
    assert found.table["modularity"].idxmax() < found.best_params["n_components"] == 4
    assert "a lower limit when sizes differ: it merges small classes with others" in selection_text(found)


@pytest.mark.further
def test_held_out_answers_find_small_classes_of_binomial_answers() -> None:
    R = answers(0, [8, 1, 1], m=40)
    found = select(R, range(1, 5), "deviance", n_folds=3)
    assert found.best_params == {"n_components": 3}
    assert list(found.table) == ["deviance", "se", "se_difference", "passes", "modularity"]
    assert "cannot be told" not in found.rule
    pd.testing.assert_frame_equal(select(R, range(1, 5), "deviance", n_folds=3, executor="threads").table, found.table, check_exact=True)


def test_deviance_is_that_of_the_predictions_of_one_class() -> None:
    """One class predicts each answer by the mean of its item over the answers that are not held out."""
    R = answers(0, [1, 1], n=120, m=12)
    found = select(R, [1], "deviance", n_folds=2).table.loc[1]
    # The folds are drawn, so that the deviance is near that from the means of all answers, and not below it.
    mu = np.broadcast_to(R.mean(axis=0), R.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(R > 0, R * np.log(R / mu), 0) + np.where(R < 4, (4 - R) * np.log((4 - R) / (4 - mu)), 0)
    assert terms.mean() < found["deviance"] < 1.05 * terms.mean()


def test_one_class_has_modularity_0() -> None:
    table = select(answers(0, [1, 2]), [1, 2], "modularity").table
    assert table["modularity"][1] == pytest.approx(0, abs=1e-12)
    assert np.isnan(select(answers(0, [1, 2]), [1, 2]).table["eigenvalue"][1])


def test_candidates_of_the_paper() -> None:
    R = answers(0, [1, 1], n=100, m=8)
    assert list(select(R, None, "modularity").table.index) == list(range(1, 9))
    assert list(select(R, None).table.index) == list(range(1, 9))


def test_notes_have_sizes_and_a_lower_limit() -> None:
    unequal, equal = (select(answers(1, sizes), [2], "modularity").rule for sizes in ([4, 1], [1, 1]))
    assert "is a lower limit when sizes differ" in unequal
    assert "lower limit" not in equal
    assert equal.startswith("Sizes of the classes, in shares of the memberships: 5")


def test_what_cannot_be_told_is_named() -> None:
    """Weak classes leave an eigenvalue near the random one; the report of the model says so, too."""
    found = [select(answers(seed, [60, 1], n=200, m=12, mixed=0.6), range(1, 4)) for seed in range(8)]
    vague = [each for each in found if "cannot be told" in each.rule]
    assert vague
    for each in vague:
        table, best = each.table, each.best_params["n_components"]
        distances = (table["eigenvalue"] / table["random"] - 1.02).abs().dropna()  # one class has no eigenvalue
        assert min(distances.get(k, 1.0) for k in (best, best + 1)) < 0.03
        model = each.model
        assert any("cannot be told" in note for note in find_presenter(model)(model).selection_notes(model.selection_))


def test_choice_outside_the_candidates_is_reported() -> None:
    with pytest.warns(UserWarning, match="PA finds 3 classes, expected one of the candidates 1 to 2; 2 was chosen"):
        assert select(answers(0, [1, 1, 1]), [1, 2]).best_params == {"n_components": 2}


def test_columns_of_nominal_items_are_made_uncorrelated(tmp_path: Path) -> None:
    """Without classes the columns of an item depend on each other, and are not taken for a class."""
    for sizes in ([1], [3, 1]):
        stored = dfact.import_array(categories(2, sizes, n=300, m=12, levels=3), tmp_path / f"{len(sizes)}.zarr")
        nominal = dfact.expand_categories(stored, tmp_path / f"{len(sizes)}-nominal.zarr")
        model = dfact.GradeOfMembership(random_state=0, executor="inline")
        assert select_number_of_classes(model, nominal, range(1, 5)).best_params == {"n_components": len(sizes)}


def test_missing_answers_and_subjects_without_any(tmp_path: Path) -> None:
    R = answers(3, [3, 1, 1], n=500)
    rng = np.random.default_rng(0)
    R[rng.random(R.shape) < 0.2] = np.nan
    assert select(R).best_params == {"n_components": 3}
    silent = np.vstack([R, np.zeros((60, R.shape[1]))])
    with pytest.warns(UserWarning, match="60 of 560 subjects have no response"):
        found = select(silent)
    # Those without any response form no class, and change nothing.
    assert_allclose(found.table["eigenvalue"], select(R).table["eigenvalue"], rtol=1e-6)
    with pytest.warns(UserWarning, match="60 of 560"):
        stored = select(dfact.import_array(silent, tmp_path / "silent.zarr"), executor="threads")
    assert_allclose(stored.table["eigenvalue"], found.table["eigenvalue"], rtol=1e-5)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_plots_and_records_of_every_criterion(criterion: str, tmp_path: Path) -> None:
    found = select(answers(0, [1, 1], n=100, m=10), [1, 2, 3], criterion)
    assert classes_plot(found).axes
    dfact.save_model(found.model, tmp_path / "m.model")
    record = dfact.load_model(tmp_path / "m.model").selection_
    assert record.names == ["n_components"]
    assert record.best == found.best_params["n_components"] - 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criterion": "aic"}, "criterion is 'aic', expected one of 'PA', 'deviance', 'modularity'"),
        ({"n_resamples": 10}, "n_resamples is 10 with criterion='PA', expected 0"),
        ({"candidates": []}, "n_components has no candidates"),
        ({"candidates": [41]}, "n_components=41 is larger than the data allows"),
        ({"criterion": "deviance", "n_folds": 1}, "n_folds is 1"),
    ],
)
def test_invalid_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dfact.ParameterError, match=message):
        select(answers(0, [1, 1], n=60, m=8), **settings)


def test_items_must_vary() -> None:
    R = np.ones((40, 5))
    R[:, 0] = np.random.default_rng(0).integers(1, 4, 40)
    with pytest.raises(dfact.DataError, match="1 of 5 items vary, expected at least 2"):
        select(R, [1])
