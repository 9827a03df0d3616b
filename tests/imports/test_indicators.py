"""expand_categories: a column of 0 and 1 for each category of nominal items."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.statistics import as_float
from tests.conftest import CutRows

NAMES = ["colour", "age", "pet"]


def answers(seed: int, n: int = 60) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    M = np.column_stack([rng.integers(0, 4, n), rng.integers(20, 60, n), rng.choice([1, 3, 7], n)]).astype(float)
    M[rng.random(M.shape) < 0.1] = np.nan
    M[0], M[1] = (0, 30, 1), np.nan
    M[1, 1] = 20
    return M


def store(M: NDArray[np.float64], path: Path, **settings: Any) -> dfact.Dataset:
    return dfact.import_array(np.where(np.isnan(M), -9, M).astype(np.int16), path, missing=-9, column_labels=NAMES, **settings)


def values(dataset: dfact.Dataset) -> NDArray[Any]:
    stored = dataset.source.read(0, dataset.shape[0])
    return as_float(stored, dataset.missing_code, np.dtype(np.float64)) + dataset.offset


@pytest.mark.parametrize("seed", range(3))
def test_each_category_is_a_column(seed: int, tmp_path: Path, cut_rows: CutRows) -> None:
    cut_rows(partition_entries=1 << 6)
    M = answers(seed)
    weights, labels = np.random.default_rng(seed).random(len(M)), [f"p{i}" for i in range(len(M))]
    source = store(M, tmp_path / "a.zarr", row_labels=labels, weights=weights, confounders={"sex": ["f", "m"] * 30})
    found = dfact.expand_categories(source, tmp_path / "b.zarr", items=["colour", "p*"])
    assert list(found.column_labels) == ["colour=0", "colour=1", "colour=2", "colour=3", "age", "pet=1", "pet=3", "pet=7"]
    for j, label in enumerate(found.column_labels):
        name, _, code = label.partition("=")
        answer = M[:, NAMES.index(name)]
        expected = np.where(np.isnan(answer), np.nan, answer == float(code)) if code else answer
        assert_array_equal(values(found)[:, j], expected)
    assert list(found.row_labels) == labels
    assert_array_equal(found.weights, weights)
    assert found.confounders is not None
    assert list(found.confounders["sex"]) == ["f", "m"] * 30
    everything = dfact.expand_categories(source, tmp_path / "c.zarr")
    assert everything.dtype == np.uint8
    assert set(everything.valid_range.ravel()) == {0, 1}


def test_answers_shifted_by_the_import_are_named_by_their_codes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("colour\nred\nblue\nred\ngreen\n")
    levels = {"colour": {"red": 1, "green": 2, "blue": 3}}
    source = dfact.import_table(tmp_path / "a.csv", tmp_path / "a.zarr", items=["colour"], levels=levels)
    found = dfact.expand_categories(source, tmp_path / "b.zarr")
    assert list(found.column_labels) == ["colour=1", "colour=2", "colour=3"]
    assert_array_equal(values(found), [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]])
    assert found.codebook is not None
    assert [item.text for item in found.codebook] == ["colour: red", "colour: green", "colour: blue"]


@pytest.mark.parametrize("seed", range(2))
def test_classes_of_categories_are_transformed_to_the_same_memberships(seed: int, tmp_path: Path) -> None:
    """A model of categories fits, reports and transforms; new rows that lack categories have the columns of the fitted data."""
    rng = np.random.default_rng(seed)
    classes, n = rng.integers(0, 2, 300), 300
    M = np.where(rng.random((n, 8)) < 0.8, np.where(classes[:, None], [3, 0, 2, 1] * 2, [0, 3, 1, 2] * 2), rng.integers(0, 4, (n, 8)))
    nominal = dfact.expand_categories(dfact.import_array(M, tmp_path / "a.zarr"), tmp_path / "b.zarr")
    model = dfact.GradeOfMembership(2, random_state=0).fit(nominal)
    memberships = np.asarray(model.memberships_)
    assert not np.isnan(memberships).any()  # nobody is without a response
    found = memberships.argmax(axis=1) == classes
    assert max(found.mean(), 1 - found.mean()) > 0.95
    # The probabilities of an item's categories sum to 1.
    totals = model.item_parameters_.groupby([label.split("=")[0] for label in model.item_parameters_.index]).sum()
    np.testing.assert_allclose(totals, 1, atol=0.1)
    assert model.item_parameters_.index[0] == "0=0"
    few = dfact.expand_categories(dfact.import_array(M[:3], tmp_path / "few.zarr"), tmp_path / "new.zarr", like=nominal)
    np.testing.assert_allclose(model.transform(few)[:], memberships[:3], atol=1e-5)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    M = answers(0)
    store(M, tmp_path / "a.zarr")
    store(M[:5], tmp_path / "few.zarr")
    assert main(["indicators", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), "--items", "colour,pet"]) == 0
    assert "60 rows × 8 columns" in capsys.readouterr().out
    assert main(["indicators", str(tmp_path / "few.zarr"), str(tmp_path / "c.zarr"), "--like", str(tmp_path / "b.zarr")]) == 0
    assert "5 rows × 8 columns" in capsys.readouterr().out
    ours, like = (dfact.open_dataset(tmp_path / name) for name in ("c.zarr", "b.zarr"))
    assert_array_equal(values(ours), values(like)[:5])


def test_invalid_items_are_refused(tmp_path: Path) -> None:
    M = answers(1)
    source = store(M, tmp_path / "a.zarr")
    nominal = dfact.expand_categories(source, tmp_path / "b.zarr", items=["colour"])
    other = store(np.where(M == 3, 8, M), tmp_path / "other.zarr")
    renamed = dfact.import_array(np.nan_to_num(M[:, :1]), tmp_path / "renamed.zarr", column_labels=["hue"])
    fractions = dfact.import_array(np.nan_to_num(M) + 0.5, tmp_path / "half.zarr")
    many = dfact.import_array(np.arange(200.0)[:, None], tmp_path / "many.zarr")
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (source, {"items": ["hue"]}, dfact.ParameterError, "items has 'hue', which is not an item of the dataset"),
        (source, {"items": ["pet"], "like": nominal}, dfact.ParameterError, "items and like are both given"),
        (other, {"like": nominal}, dfact.DataError, r"has the category 'colour=8' \(1 in total\), expected those of like"),
        (renamed, {"like": nominal}, dfact.DataError, "column 'colour=0' of like comes from no item"),
        (fractions, {}, dfact.DataError, r"row .*, column '0' holds .*5, expected the code of a category"),
        (many, {}, dfact.DataError, "item '0' has more than 100 categories"),
        (nominal, {"items": ["*"], "overwrite": False}, dfact.StoreError, "exists already"),
    ]
    for data, settings, error, message in cases:
        target = tmp_path / ("b.zarr" if error is dfact.StoreError else "new.zarr")
        with pytest.raises(error, match=message):
            dfact.expand_categories(data, target, **settings)
        assert not (tmp_path / "new.zarr").exists()


@pytest.mark.further
@pytest.mark.parametrize("n_readers", [1, 2])
def test_rows_of_zeros_are_counted_at_import(n_readers: int, tmp_path: Path) -> None:
    """The import reports them, and a fit of classes warns of them unless 0 is a category."""
    rng = np.random.default_rng(0)
    M = rng.integers(1, 4, (90, 6)) * (rng.random((90, 6)) < 0.8)
    M[[4, 17, 80]] = 0
    rows = ["0,,0,0,,0" if i == 17 else ",".join(map(str, row)) for i, row in enumerate(M)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c,d,e,f", *rows]) + "\n")
    notes: list[str] = []
    source = dfact.import_table(tmp_path / "a.csv", tmp_path / "a.zarr", items=list("abcdef"), note=notes.append, n_readers=n_readers)
    expected = (M == 0).all(axis=1).sum()
    assert any(f"a.csv: {expected} of 90 participants answered 0 to all items; if 0 is not an answer" in note for note in notes)
    with pytest.warns(UserWarning, match=f"{expected} of 90 subjects have no response, as 0 counts as none; .*dfact indicators"):
        dfact.GradeOfMembership(2, method="ssc").fit(source)
    dfact.GradeOfMembership(2, method="ssc").fit(dfact.expand_categories(source, tmp_path / "b.zarr"))
    notes.clear()
    dfact.import_table(tmp_path / "a.csv", tmp_path / "c.zarr", items=list("abcdef"), missing=0, empty_rows="drop", note=notes.append)
    assert not any("answered 0" in note for note in notes)
