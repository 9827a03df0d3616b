"""Columns and participants that an import or a join would lose without a word."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact


def stored(folder: Path, name: str, ids: list[str], seed: int = 0) -> dfact.Dataset:
    frame = pd.DataFrame({"id": ids, f"{name}1": np.random.default_rng(seed).integers(1, 6, len(ids))})
    return dfact.import_table(frame, folder / f"{name}.zarr", items=f"{name}1", id_column="id")


@pytest.mark.parametrize(
    ("first", "second"),
    [("001", "1"), ("1.0", "1"), ("P007", "p7"), ("e\u0301", "\u00e9"), ("site 03-012", "Site 3-12")],
    ids=["leading zeros", "decimal point", "zeros and case", "accents", "parts"],
)
def test_ids_that_are_written_in_two_ways_are_named(tmp_path: Path, first: str, second: str) -> None:
    one, other = stored(tmp_path, "a", [first, "x10", "x11"]), stored(tmp_path, "b", [second, "x10", "x11"], seed=1)
    with pytest.warns(
        UserWarning, match=r"1 participant\(s\) of b have labels that differ from others by case, spaces or zeros alone"
    ) as said:
        joined = dfact.join_datasets([one.path, other.path], tmp_path / "j.zarr")
    assert joined.shape == (4, 2)
    assert repr(first) in str(said[0].message)
    assert repr(second) in str(said[0].message)


def test_other_numbers_are_other_participants(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    one, other = stored(tmp_path, "a", ["10", "100", "x"]), stored(tmp_path, "b", ["1", "1000", "x"])
    dfact.join_datasets([one.path, other.path], tmp_path / "j.zarr")
    assert not list(recwarn)


@pytest.mark.parametrize("kind", ["frame", "parquet", pytest.param("xlsx", marks=pytest.mark.needs("formats"))])
def test_dates_that_a_pattern_leaves_out_are_named(tmp_path: Path, kind: str) -> None:
    source: Any = pd.DataFrame({"q1": [1, 2, 3], "q2": pd.to_datetime(["2024-01-02", "2024-03-04", "2024-02-05"]), "r": [3, 2, 1]})
    if kind != "frame":
        frame, source = source, tmp_path / f"t.{kind}"
        frame.to_parquet(source) if kind == "parquet" else frame.to_excel(source, index=False)
    with pytest.warns(UserWarning, match=r"1 column\(s\) of 'q\*' hold dates and are left out: q2"):
        dataset = dfact.import_table(source, tmp_path / "d.zarr", items=["q*", "r"])
    assert [*dataset.column_labels] == ["q1", "r"]
