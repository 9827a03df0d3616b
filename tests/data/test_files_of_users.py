"""Files as users have them: each test makes a small one, and knows the right values."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from dfact import DataError, describe, import_table
from dfact.data.readers.columnar.columns import read_cells
from dfact.data.readers.frames import InputFrame, open_frame
from tests.data.test_import_table import answers_of


def seconds_to_read(n_columns: int) -> float:
    names = [f"Q{j}" for j in range(n_columns)]
    table = open_frame(InputFrame(pd.DataFrame(np.ones((2, n_columns)), columns=names)))
    began = time.process_time()
    assert [cells.numbers.shape for cells in read_cells(table, names, [], [])] == [(2, n_columns)]
    return time.process_time() - began


def test_the_time_of_reading_grows_with_the_columns_not_with_their_square() -> None:
    seconds_to_read(100)  # what is imported and compiled once
    assert seconds_to_read(12_000) < 8 * min(seconds_to_read(3_000) for _ in range(3)) + 0.2


# ---------------------------------------------------------------- orders of texts

AGREES = np.random.default_rng(0).random((60, 6)) < np.repeat([[0.2], [0.8]], 30, axis=0)
AGREES[0] = [False, False, True, False, True, False]
YES_NO = {f"q{j}": np.where(AGREES[:, j], "Yes", "No").tolist() for j in range(6)}
"""Answers to six items; in two of them Yes is the first answer."""


def first_seen(cells: Sequence[str]) -> pa.DictionaryArray:
    """Return texts as polars and pyarrow encode them: numbered as they occur."""
    return pa.array(cells).dictionary_encode()


def as_views(cells: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return a dictionary as polars hands it over."""
    return pa.DictionaryArray.from_arrays(cells.indices, cells.dictionary.cast(pa.string_view()), ordered=cells.type.ordered)


def write_csv(rows: pa.Table, path: Path) -> Path:
    rows.to_pandas().to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def write_parquet(rows: pa.Table, path: Path) -> Path:
    pq.write_table(rows, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_arrow(rows: pa.Table, path: Path) -> Path:
    feather.write_feather(rows, str(path.with_suffix(".arrow")), compression="uncompressed")
    return path.with_suffix(".arrow")


SOURCES: dict[str, Callable[[pa.Table, Path], Any]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "pandas": lambda rows, _: rows.to_pandas(),
    "pyarrow": lambda rows, _: rows,
    "polars": lambda rows, _: pa.table({name: as_views(rows[name].combine_chunks()) for name in rows.column_names}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_texts_numbered_as_they_occur_have_no_order(kind: str, tmp_path: Path) -> None:
    rows = pa.table({name: first_seen(cells) for name, cells in YES_NO.items()})
    assert {tuple(rows[name].combine_chunks().dictionary.to_pylist()) for name in YES_NO} == {("No", "Yes"), ("Yes", "No")}
    source = SOURCES[kind](rows, tmp_path / "t")
    with pytest.raises(DataError, match=r"'q0' holds texts, whose order is not known: 'No' \(\d+\), 'Yes' \(\d+\)"):
        import_table(source, tmp_path / "d.zarr", items="q*")
    dataset = import_table(source, tmp_path / "d.zarr", items="q*", levels={"q*": "No<Yes"})
    np.testing.assert_array_equal(answers_of(dataset), 1 + AGREES)
    assert describe(dataset).scales["alpha"].iloc[0] == describe(1.0 + AGREES).scales["alpha"].iloc[0] > 0.7


@pytest.mark.parametrize("kind", SOURCES)
def test_the_remedy_for_texts_names_all_items_of_a_described_file(kind: str, tmp_path: Path) -> None:
    rows = pa.table({name: first_seen(cells) for name, cells in YES_NO.items()})
    source = SOURCES[kind](rows, tmp_path / "t")
    levels: dict[str, str] = {}
    while len(levels) < 6:
        with pytest.raises(DataError) as raised:
            import_table(source, tmp_path / "d.zarr", items="q*", levels=levels or None)
        names, order = re.search(r'--levels "(.*): (.*)" in their order', str(raised.value)).groups()
        assert order == "No<Yes"
        assert len(names.split(",")) == (1 if kind == "csv" else 6)
        levels |= dict.fromkeys(names.split(","), order)
    assert np.nanmean(answers_of(import_table(source, tmp_path / "d.zarr", items="q*", levels=levels))) > 1


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "csv"])
def test_a_declared_order_is_taken(kind: str, tmp_path: Path) -> None:
    levels = pa.array(["never", "sometimes", "often"])
    rows = pa.table({f"q{j}": pa.DictionaryArray.from_arrays(pa.array([j, 2, 0]), levels, ordered=True) for j in range(2)})
    dataset = import_table(SOURCES[kind](rows, tmp_path / "t"), tmp_path / "d.zarr", items="q*")
    np.testing.assert_array_equal(answers_of(dataset), [[1, 2], [3, 3], [1, 1]])


@pytest.mark.parametrize("parts", [(["low", "high"], ["low", "mid", "high"]), (["low", "mid", "high"], ["low", "high"])])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", ["parts", "row groups"])
def test_parts_that_disagree_have_no_order(parts: tuple[list[str], list[str]], ordered: bool, kind: str, tmp_path: Path) -> None:
    tables = [
        pa.table({"q": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(levels), ordered=ordered), "n": [1, 2]})
        for levels in parts
    ]
    source = tmp_path / "t.parquet"
    if kind == "parts":
        source.mkdir()
        for i, rows in enumerate(tables):
            pq.write_table(rows, source / f"{i}.parquet")
    else:
        with pq.ParquetWriter(source, tables[0].schema) as writer:
            for rows in tables:
                writer.write_table(rows)
    with pytest.raises(DataError, match="'q' holds texts, whose order is not known: 'high' .*--levels"):
        import_table(source, tmp_path / "d.zarr", items="q")
    dataset = import_table(source, tmp_path / "d.zarr", items="q", levels="low<mid<high")
    np.testing.assert_array_equal(
        answers_of(dataset)[:, 0], [1 + ["low", "mid", "high"].index(levels[i]) for levels in parts for i in (0, 1)]
    )
