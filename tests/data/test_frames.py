"""Data frames are tables: the dataset is bit-identical to one from a file of the same cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dfact import DataError, Dataset, ParameterError, import_table, import_triplets


class Stream:
    """A frame of another library, of which only Arrow's interface is known."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)


FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas with categories": lambda frame: frame.astype({"mood": pd.CategoricalDtype(["low", "middle", "high"], ordered=True)}),
    "pandas with ids as the index": lambda frame: frame.set_index("id"),
    "pyarrow": pa.Table.from_pandas,
    "pyarrow in batches": lambda frame: pa.Table.from_batches(pa.Table.from_pandas(frame).to_batches(max_chunksize=7)),
    "another library": lambda frame: Stream(pa.Table.from_pandas(frame)),
    "a reader": lambda frame: pa.Table.from_pandas(frame).to_reader(max_chunksize=11),
}


def people(seed: int, n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.integers(0, 5, (n, 3)), columns=["Q1", "Q2", "Q3"]).astype("Int64")
    frame.loc[rng.random(n) < 0.2, "Q2"] = pd.NA
    frame["mood"] = rng.choice(["low", "middle", "high"], n)
    frame["age"] = rng.integers(20, 80, n) + 0.5
    frame["site"] = rng.choice(["north", "south"], n)
    frame.insert(0, "id", [f"p{i}" for i in range(n)])
    return frame


def imported(source: Any, path: Path) -> Dataset:
    levels = {"mood": ["low", "middle", "high"]}
    return import_table(source, path, items=["Q*", "mood"], id_column="id", confounders=["age", "site"], levels=levels)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_gives_the_dataset_of_a_file(kind: str, seed: int, tmp_path: Path) -> None:
    frame = people(seed)
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected, found = imported(tmp_path / "t.csv", tmp_path / "csv.zarr"), imported(FRAMES[kind](frame), tmp_path / "frame.zarr")
    assert found.fingerprint == expected.fingerprint
    n = expected.shape[0]
    np.testing.assert_array_equal(found.source.read(0, n), expected.source.read(0, n), strict=True)
    np.testing.assert_array_equal(found.row_labels, expected.row_labels)
    pd.testing.assert_frame_equal(found.confounders, expected.confounders)
    assert [item.levels for item in found.codebook.items] == [item.levels for item in expected.codebook.items]


def test_triplets_of_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": ["a", "b", "a"], "column": ["x", "x", "y"], "value": [1.0, 2.0, 3.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected, found = import_triplets(tmp_path / "t.csv", tmp_path / "a.zarr"), import_triplets(frame, tmp_path / "b.zarr")
    assert found.fingerprint == expected.fingerprint


def test_a_message_names_row_and_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"Q1": [1, 2, 3], "Q2": ["1", "often", "2"]})
    with pytest.raises(DataError, match=r"data frame: row 1 \(counted from 0\), column 'Q2' holds 'often'"):
        import_table(frame, tmp_path / "d.zarr", items=["Q1", "Q2"], levels={"Q2": ["1", "2"]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"Q1": [1, "two", object()]}), "give each column one type"),
        (pd.DataFrame([[1, 2]], columns=["Q1", "Q1"]), "name of its own"),
        (pd.DataFrame({"Q1": pd.Series([], dtype=float)}), "no rows"),
        (pd.DataFrame({"Q1": [[1], [2]]}), "expected answers"),
    ],
)
def test_frames_that_are_no_table(frame: pd.DataFrame, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        import_table(frame, tmp_path / "d.zarr", items=["Q1"])
    assert list(tmp_path.iterdir()) == []


def test_options_of_files_do_not_apply(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"delimiter is ';' for a data frame"):
        import_table(people(0), tmp_path / "d.zarr", delimiter=";")
