"""Weights of participants in datasets: import, checks, joins, the store."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest
import zarr

import dfact
from dfact import DataError, StoreError
from dfact.data.coerce import as_dataset
from dfact.data.weights import WeightSummary
from tests.conftest import unseal
from tests.imports.test_import_table import FORMATS, save, survey


def weighted_survey(seed: int) -> pd.DataFrame:
    frame = survey(seed, 120)
    frame["weight"] = np.random.default_rng(seed).gamma(2, 1, len(frame)).round(4)
    return frame


def table(folder: Path, lines: str, **settings: Any) -> dfact.Dataset:
    (folder / "t.csv").write_text(lines)
    return dfact.import_table(folder / "t.csv", folder / "t.zarr", items="Q*", weight="w", overwrite=True, **settings)


@pytest.mark.further
@pytest.mark.parametrize("name", FORMATS)
def test_a_column_of_weights_is_imported_from_every_format(tmp_path: Path, name: str) -> None:
    frame = weighted_survey(1)
    settings: dict[str, Any] = {"items": "Q*", "id_column": "id", "confounders": ["age", "sex"]}
    dataset = dfact.import_table(save(frame, tmp_path / name), tmp_path / "d.zarr", weight="weight", **settings)
    assert dataset.weights is not None
    assert dataset.weights.name == "weight"
    np.testing.assert_array_equal(dataset.weights, frame["weight"])
    assert dataset.confounders is not None
    assert list(dataset.confounders) == ["age", "sex"]
    plain = dfact.import_table(tmp_path / name, tmp_path / "plain.zarr", **settings)
    assert plain.weights is None
    assert plain.fingerprint == dataset.with_weights(None).fingerprint != dataset.fingerprint
    assert plain.with_weights(dataset.weights).fingerprint == dataset.fingerprint


STATISTICAL = {"t.sav": pyreadstat.write_sav, "t.dta": pyreadstat.write_dta, "t.xpt": pyreadstat.write_xport}


@pytest.mark.parametrize("name", STATISTICAL)
@pytest.mark.needs("formats")
def test_a_column_of_weights_is_imported_from_statistical_files(tmp_path: Path, name: str) -> None:
    frame = weighted_survey(3).drop(columns=["age", "sex"])
    STATISTICAL[name](frame, tmp_path / name)
    dataset = dfact.import_table(tmp_path / name, tmp_path / "d.zarr", items="Q*", id_column="id", weight="weight")
    assert dataset.weights is not None
    np.testing.assert_array_equal(dataset.weights, frame["weight"])
    assert dataset.weights.name == "weight"
    frame.loc[5, "weight"] = np.nan
    STATISTICAL[name](frame, tmp_path / name)
    with pytest.raises(DataError, match=r"weight 'weight' of row 5 \(counted from 0\) is missing"):
        dfact.import_table(tmp_path / name, tmp_path / "e.zarr", items="Q*", id_column="id", weight="weight")


def test_parallel_and_inline_imports_give_the_same_weights(tmp_path: Path) -> None:
    save(weighted_survey(2), tmp_path / "t.csv")
    first, second = (
        dfact.import_table(tmp_path / "t.csv", tmp_path / f"{executor}.zarr", items="Q*", weight="weight", executor=executor)
        for executor in ("inline", "threads")
    )
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("-1", "weight 'w' of line 3 is -1, expected finite weights of at least 0; correct it, or leave the row out"),
        ("inf", "weight 'w' of line 3 is inf"),
        ("", "weight 'w' of line 3 is missing"),
        ("NA", "weight 'w' of line 3 is missing"),
        ("heavy", "line 3, weight 'w' holds 'heavy', expected a finite number"),
    ],
)
def test_an_invalid_weight_is_refused_by_its_line(tmp_path: Path, cell: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(tmp_path, f"Q1,Q2,w\n1,2,1\n2,1,{cell}\n1,1,1\n")
    assert not (tmp_path / "t.zarr").exists()


def test_several_invalid_weights_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2 is -1 \(2 such rows in all\)"):
        table(tmp_path, "Q1,Q2,w\n1,2,-1\n2,1,1\n1,1,-2\n")
    with pytest.raises(DataError, match="weight 'w' is zero for every row"):
        table(tmp_path, "Q1,Q2,w\n1,2,0\n2,1,0\n1,1,0\n")


def test_a_dropped_row_needs_no_weight(tmp_path: Path) -> None:
    dataset = table(tmp_path, "Q1,Q2,w\n1,2,0.5\n,,\n1,1,0\n", empty_rows="drop")
    assert list(dataset.weights) == [0.5, 0]  # type: ignore[arg-type]  # it has weights
    X = np.array([[1.0, 2], [np.nan, np.nan], [1, 1]])
    imported = dfact.import_array(X, tmp_path / "a.zarr", weights=[0.5, np.nan, 2], empty_rows="drop")
    assert list(imported.weights) == [0.5, 2]  # type: ignore[arg-type]  # it has weights
    with pytest.raises(DataError, match="sample_weight of row 2 is -1"):
        dfact.import_array(X, tmp_path / "b.zarr", weights=[0.5, np.nan, -1], empty_rows="drop")
    with pytest.raises(DataError, match=r"sample_weight has shape \(2,\), expected one for each of 3 rows"):
        dfact.import_array(X, tmp_path / "b.zarr", weights=[1, 2])
    with pytest.raises(DataError, match="sample_weight holds a value that is not a number"):
        dfact.import_array(X, tmp_path / "b.zarr", weights=["a", "b", "c"])
    assert not (tmp_path / "b.zarr").exists()


def test_a_weight_is_neither_item_nor_confounder(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("Q1,Q2,Qw\n1,2,1\n2,1,0.5\n")
    path, items = tmp_path / "t.csv", "Q*"
    assert dfact.import_table(path, tmp_path / "d.zarr", items=items, weight="Qw").shape == (2, 2)
    with pytest.raises(dfact.ParameterError, match="'Qw' is named twice"):
        dfact.import_table(path, tmp_path / "e.zarr", items=items, weight="Qw", confounders=["Qw"])
    with pytest.raises(DataError, match="there is no column 'nowhere'"):
        dfact.import_table(path, tmp_path / "e.zarr", items=items, weight="nowhere")


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    dfact.import_array(np.eye(3) + 1, tmp_path / "d.zarr", weights=[1, 2, 3])
    stored = zarr.open_group(tmp_path / "d.zarr", mode="r+")
    unseal(stored)
    weights: Any = stored["weights"]
    weights[1] = -2
    with pytest.raises(StoreError, match="damaged: weights"):
        dfact.open_dataset(tmp_path / "d.zarr")
    del stored["weights"]
    with pytest.raises(StoreError, match="weights"):
        dfact.open_dataset(tmp_path / "d.zarr")


@pytest.mark.parametrize("seed", [0, 1])
def test_the_effective_number_is_that_of_kish(seed: int) -> None:
    w = np.random.default_rng(seed).gamma(1, 1, 50)
    summary = WeightSummary.of(w)
    assert summary.effective == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert WeightSummary.of(1e200 * w).effective == pytest.approx(summary.effective)
    assert WeightSummary.of(np.full(50, 0.3)).effective == pytest.approx(50)
    assert WeightSummary.of(np.array([0, 0, 5.0])).effective == 1
    assert WeightSummary.of(np.array([1.0, 1.7e308])).scale == 2.0**1023
    assert [WeightSummary.of(np.array([0.1, largest])).scale for largest in (0.1, 0.5, 0.6, 1, 5)] == [0.1, 0.5, 1, 1, 8]


@pytest.mark.parametrize("seed", [0, 1])
def test_summaries_of_parts_merge_into_that_of_all_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = np.exp(rng.normal(scale=20, size=90)) * (rng.random(90) > 0.2)
    parts = [WeightSummary.of(part) for part in np.split(w, [1, 40])]
    merged, whole = parts[0].merge(parts[1]).merge(parts[2]), WeightSummary.of(w)
    assert (merged.total, merged.mean, merged.effective) == (whole.total, whole.mean, whole.effective)
    assert (merged.n_rows, merged.n_positive, merged.scale, merged.whole) == (90, (w > 0).sum(), whole.scale, False)
    assert whole.scale / 2 < w.max() <= whole.scale
    assert merged.total == pytest.approx(w.sum())
    assert merged.mean == pytest.approx(w[w > 0].mean())


# Joins.
def joined(tmp_path: Path, weights: dict[str, Any], **settings: Any) -> dfact.Dataset:
    """Two questionnaires, of Ada and Ben, and of Ben and Eve, with these weights."""
    people = {"a": ["Ada", "Ben"], "b": ["Ben", "Eve"]}
    datasets = {
        name: dfact.import_array(np.array([[0, 3], [1, 2]]), tmp_path / f"{name}.zarr", row_labels=labels, weights=weights.get(name))
        for name, labels in people.items()
    }
    return dfact.join_datasets(datasets, tmp_path / "joined.zarr", prefix=True, **settings)


def test_a_join_has_the_weights_of_all_datasets(tmp_path: Path) -> None:
    dataset = joined(tmp_path, {"a": pd.Series([1, 0.5], name="design"), "b": pd.Series([0.5, 4], name="design")})
    assert dataset.weights is not None
    assert (dataset.weights.name, list(dataset.weights)) == ("design", [1, 0.5, 4])


def test_a_join_keeps_the_weights_of_one_dataset_if_they_suffice(tmp_path: Path) -> None:
    assert list(joined(tmp_path, {"a": [1, 0.5]}, how="inner").weights) == [0.5]  # type: ignore[arg-type]  # it has weights


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": [1, 0.5], "b": [0.25, 1]}, "the weight of participant 'Ben' is 0.5 in a and 0.25 in b"),
        ({"a": [1, 0.5]}, "participant 'Eve' has no weight .*--how inner"),
    ],
)
def test_participants_with_two_weights_or_none_are_refused(tmp_path: Path, weights: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        joined(tmp_path, weights)
    assert not (tmp_path / "joined.zarr").exists()


def test_weights_of_a_dataset_can_be_replaced() -> None:
    dataset = as_dataset(np.eye(4)).with_weights([1, 2, 3, 4])
    assert list(dataset.with_weights(np.ones(4)).weights) == [1, 1, 1, 1]  # type: ignore[arg-type]  # it has weights
    assert dataset.with_weights(None).weights is None
    assert dataset.take_rows(np.array([0, 2])).weights is None
    with pytest.raises(DataError, match="sample_weight of row 3 is missing"):
        dataset.with_weights([1, 2, 3, np.nan])
