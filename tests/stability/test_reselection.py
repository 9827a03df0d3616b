"""The selection repeated in each resample: what is drawn, what is chosen, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.errors import ParameterError
from dfact.export.stability import remarks, stability_table
from dfact.selection import block_cross_validate, bootstrap
from dfact.selection.cross_validation.folds import assign_folds, resolve_groups
from dfact.stability.reselection import _draw
from tests.conftest import planted_answers


def factors(n: int, k: int, seed: int) -> NDArray[np.float64]:
    """Answers to 4k items of k unrelated factors."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(n, k)) @ np.kron(np.eye(k), np.ones(4)) + rng.normal(size=(n, 4 * k)))


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_a_row_are_in_one_block(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(100, size=100))
    groups = resolve_groups(rows, 100)
    assert groups is not None
    folds = assign_folds((100, 12), (5, 3), 5, rng, rng.integers(0, 2, 100)[rows], groups)
    blocks = [set(folds.rows[groups == group]) for group in np.unique(groups)]
    assert all(len(block) == 1 for block in blocks)
    counts = np.bincount([block.pop() for block in blocks], minlength=5)
    assert counts.max() - counts.min() <= 1
    with pytest.raises(ParameterError, match="expected a label for each of 100 rows"):
        resolve_groups(rows[:-1], 100)


def test_each_row_on_its_own_is_what_no_groups_are() -> None:
    plain, grouped = (assign_folds((40, 9), (4, 3), 4, np.random.default_rng(0), None, g) for g in (None, np.arange(40)))
    assert_array_equal(plain.rows, grouped.rows)
    assert_array_equal(plain.fold_of_block, grouped.fold_of_block)


@pytest.mark.parametrize("strata", [None, np.arange(60) % 3])
def test_resamples_take_rows_with_their_weights(strata: Any) -> None:
    X, w = np.arange(240.0).reshape(60, 4), np.arange(1.0, 61)
    resample, rows = _draw(as_dataset(X).with_weights(w), None, strata, 3, 1)
    assert_array_equal(resample.source.read(0, 60), X[rows])
    assert_array_equal(resample.weights, w[rows])
    assert len(np.unique(rows)) < 60
    if strata is not None:
        assert_array_equal(np.bincount(strata[rows]), [20, 20, 20])


@pytest.mark.needs("questionnaires")
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_each_resample_chooses_its_own_number_of_factors(seed: int) -> None:
    X = factors(300, 3, seed)
    model = dfact.selection.select_number_of_factors(dfact.FactorAnalysis(), X, range(1, 6)).model
    found = bootstrap(model, X, 12, reselect=True, random_state=seed)
    assert found.choices == [f"n_components={k}" for k in range(1, 6)]
    assert found.choice_counts is not None
    assert found.choice_counts.sum() == 12
    assert found.choice_counts.argmax() == 2
    assert np.median(found.similarity) > 0.95
    assert (~np.isnan(found.low)).all()
    fewer = bootstrap(model, X, 4, reselect=True, random_state=seed)
    assert_array_equal(fewer.similarity, found.similarity[:4])
    assert np.isnan(fewer.low).all()  # fewer than ten refits
    model.stability_ = found
    assert "Each resample repeated the selection and chose n_components=3" in remarks(model)[-1]
    assert stability_table(model).shape == (12, 15)


@pytest.mark.needs("questionnaires")
@pytest.mark.further
@pytest.mark.filterwarnings("ignore:the uniqueness")
def test_factor_that_few_resamples_have_has_no_interval() -> None:
    X = factors(300, 2, 0)
    model = dfact.selection.select_number_of_factors(dfact.FactorAnalysis(rotation="varimax"), X, range(1, 5)).model
    wide = dfact.FactorAnalysis(3, rotation="varimax").fit(X)
    wide.selection_ = model.selection_
    found = bootstrap(wide, X, 12, reselect=True, random_state=0)
    few = (found.similarity >= 0.85).mean(axis=0) < 0.5
    assert few.any()
    assert (found.similarity == 0).any()  # of refits with two factors
    assert_array_equal(np.isnan(found.low).all(axis=1), few)


def test_cross_validation_is_repeated_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    M = planted_answers(150, 12, 2, 0)
    dataset = dfact.import_array(M, tmp_path / "d.zarr")
    model = block_cross_validate(dfact.ICQF(bounds=(0, 4)), dataset, {"n_components": [1, 2, 3], "beta": [0.1]}, (4, 4), 4).model
    dfact.save_model(model, tmp_path / "m")
    assert main(["stability", str(tmp_path / "m"), str(tmp_path / "d.zarr"), "--resamples", "4"]) == 0
    assert "n_components and beta were chosen on the same data" in capsys.readouterr().out
    options = ["--resamples", "4", "--reselect", "--reselect-folds", "3", "--seed", "0"]
    assert main(["stability", str(tmp_path / "m"), str(tmp_path / "d.zarr"), *options]) == 0
    assert "Each resample repeated the selection and chose n_components=2, beta=0.1" in capsys.readouterr().out
    loaded = dfact.load_model(tmp_path / "m")
    assert loaded.stability_.choice_counts.sum() == 4
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "repeated the selection" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "s.csv"), "--table", "stability"]) == 0
    assert "_selected" in (tmp_path / "s.csv").read_text().splitlines()[0]


@pytest.mark.needs("questionnaires")
def test_selections_that_cannot_be_repeated_are_refused_by_name() -> None:
    X = factors(100, 2, 0)
    with pytest.raises(ParameterError, match="has no selection_ to repeat"):
        bootstrap(dfact.FactorAnalysis(2).fit(X), X, 4, reselect=True)
    model: Any = dfact.selection.select_number_of_factors(dfact.FactorAnalysis(), X, range(1, 4)).model
    with pytest.raises(ParameterError, match="expected resampling='bootstrap', not 'halves'"):
        bootstrap(model, X, 4, reselect=True, resampling="halves")
    model.selection_ = type(model.selection_)(**vars(model.selection_) | {"criterion": "median"})
    with pytest.raises(ParameterError, match="by 'median', which is not repeated on resamples"):
        bootstrap(model, X, 4, reselect=True)
