"""Parquet: folders of parts, columns in the names of folders, categories, and parts for tasks that run side by side."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dfact.errors import DataError, StoreError
from dfact.imports.readers.base import Table
from dfact.imports.readers.columnar import columns, parquet
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_table
from tests.conftest import REAL_DATA
from tests.suites.reader import Columns, ReaderSuite, read

FOLDERS = REAL_DATA / "inputs" / "parquet"
real = pytest.mark.skipif(not FOLDERS.exists(), reason="needs the folder of real data")


def write_part(path: Path, **cells: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(each) for name, each in cells.items()}), path)


class TestFolder(ReaderSuite):
    """Parts of three rows, in which a column without a value has no type, next to the files that Spark and Hadoop leave."""

    name = "t"

    def write(self, columns: Columns, path: Path) -> None:
        cells = {name: list(each) for name, each in columns.items()}
        n = len(next(iter(cells.values())))
        for i, first in enumerate(range(0, max(n, 1), 3)):
            write_part(path / f"part-{i:05d}.parquet", **{name: each[first : first + 3] for name, each in cells.items()})
        for hidden in ("_SUCCESS", "_metadata", ".part-00000.parquet.crc", "_temporary/part-00000.parquet", "notes.md"):
            (path / hidden).parent.mkdir(exist_ok=True)
            (path / hidden).write_bytes(b"no part")

    def position(self, row: int) -> str:
        return f"part-{row // 3:05d}.parquet: row {row % 3} (counted from 0)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 4)


@pytest.mark.parametrize("part_bytes", [1, 2000, 1 << 30])
def test_parts_give_the_rows_of_the_table_in_order(part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(part_bytes % 97)
    monkeypatch.setattr(parquet, "_PART_BYTES", part_bytes)
    frame = pd.DataFrame({"q": rng.integers(0, 5, 300), "id": [f"p{i}" for i in range(300)]})
    (tmp_path / "t").mkdir()
    for i, first in enumerate((0, 40, 40, 210)):
        frame[first : (40, 40, 210, 300)[i]].to_parquet(tmp_path / "t" / f"{i}.parquet", row_group_size=17, index=False)
    table = open_table(tmp_path / "t")
    parts = pickle.loads(pickle.dumps(table.parts()))
    assert {1: len(parts) >= 18, 2000: 2 < len(parts) < 18, 1 << 30: len(parts) == 1}[part_bytes]
    assert sum(part.n_bytes for part in parts) == table.n_bytes > 0
    batches = [batch for part in parts for batch in read_cells(part, ["q"], ["id"], [])]
    np.testing.assert_array_equal(np.concatenate([batch.numbers[:, 0] for batch in batches]), frame.q)
    assert [text for batch in batches for text in batch.texts["id"].to_pylist()] == frame.id.tolist()
    assert table.row_position(211) == "3.parquet: row 1 (counted from 0)"


def test_an_error_in_a_part_has_the_position_in_its_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"q": ["1"] * 20 + ["often"]}), tmp_path / "t.parquet", row_group_size=4)
    part = open_table(tmp_path / "t.parquet").parts()[-1]
    with pytest.raises(DataError, match=re.escape("t.parquet: row 20 (counted from 0), column 'q' holds the text 'often'")):
        list(read_cells(part, ["q"], [], []))


def test_names_of_folders_become_columns(tmp_path: Path) -> None:
    for wave in (1, 2, 10):
        for site in ("a b", "__HIVE_DEFAULT_PARTITION__"):
            write_part(tmp_path / "t" / f"wave={wave}" / f"site={site.replace(' ', '%20')}" / "0.parquet", q=[wave * 1.5])
    table = open_table(tmp_path / "t")
    assert table.columns == ["q", "wave", "site"]
    assert {name: variable.type for name, variable in table.variables.items()} == {"q": "number", "wave": "number", "site": "text"}
    matrix, texts, _ = read(table, ["wave", "q"], ["site", "wave"])
    np.testing.assert_array_equal(matrix, [[1, 1.5], [1, 1.5], [2, 3], [2, 3], [10, 15], [10, 15]])
    assert texts == {"site": [None, "a b"] * 3, "wave": ["1", "1", "2", "2", "10", "10"]}
    np.testing.assert_array_equal(read(table, ["wave"])[0], matrix[:, :1])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"q": [1], "z": [1]}, r"has a column 'z', expected the columns of 0\.parquet"),
        ({}, r"has no column 'id', expected the columns of 0\.parquet"),
        ({"q": ["1"], "id": ["a"]}, r"has column 'q' as string, expected int64 as in 0\.parquet"),
    ],
)
def test_a_part_with_other_columns_or_types_is_named(other: dict[str, Any], named: str, tmp_path: Path) -> None:
    write_part(tmp_path / "t" / "0.parquet", q=[1], id=["a"])
    write_part(tmp_path / "t" / "1.parquet", **({"id": ["b"]} | other if "z" in other else other or {"q": [1]}))
    with pytest.raises(DataError, match=rf"t: 1\.parquet {named}"):
        open_table(tmp_path / "t")


def test_parts_may_order_columns_and_store_numbers_differently(tmp_path: Path) -> None:
    write_part(tmp_path / "t" / "0.parquet", q=[1, 2], id=["a", "b"])
    write_part(tmp_path / "t" / "1.parquet", id=["c"], q=[0.5])
    matrix, texts, _ = read(open_table(tmp_path / "t"), ["q"], ["id"])
    np.testing.assert_array_equal(matrix[:, 0], [1, 2, 0.5])
    assert texts == {"id": ["a", "b", "c"]}


def test_keys_of_folders_must_agree(tmp_path: Path) -> None:
    write_part(tmp_path / "t" / "wave=1" / "0.parquet", q=[1])
    write_part(tmp_path / "t" / "wave=2" / "site=a" / "0.parquet", q=[1])
    with pytest.raises(DataError, match=r"wave=2/site=a/0\.parquet is in folders with keys wave, site, expected wave"):
        open_table(tmp_path / "t")


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    for i in range(3):
        write_part(tmp_path / "t" / f"{i}.parquet", q=[i])
    (tmp_path / "t" / "1.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(StoreError, match=r"1\.parquet cannot be read as parquet"):
        open_table(tmp_path / "t")


def test_a_column_with_fewer_values_than_rows_is_refused(tmp_path: Path) -> None:
    """Arrow leaves out the rows of the row group without an error."""
    for i in range(2):
        write_part(tmp_path / "t" / f"{i}.parquet", q=[1.5, 2.5], id=["a", "b"])
    data = bytearray((tmp_path / "t" / "1.parquet").read_bytes())
    data[5] = 6  # the kind of the first page
    (tmp_path / "t" / "1.parquet").write_bytes(data)
    with pytest.raises(StoreError, match=r"1\.parquet is damaged: 2 of its rows are missing in a column; export it again"):
        read(open_table(tmp_path / "t"), ["q"], ["id"])


@pytest.mark.parametrize("name", ["q", "text"])
def test_text_that_is_no_utf8_is_refused(name: str, tmp_path: Path) -> None:
    cells = {"q": [b"1", b"2"], "text": [b"a", b"b"]} | {name: [b"1", b"\xff"]}
    table = pa.table({column: pa.array(each).view(pa.string()) for column, each in cells.items()})
    pq.write_table(table, tmp_path / "t.parquet")
    opened = open_table(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=rf"row 0 .*column '{name}': Invalid UTF8 .*the file is damaged, export it again"):
        list(read_cells(opened, ["q"], ["text"], []))


def categories(table: Table, name: str) -> tuple[tuple[str, ...], bool]:
    return table.variables[name].categories, table.variables[name].ordered


@pytest.mark.parametrize("ordered", [True, False])
def test_dictionaries_give_categories(ordered: bool, tmp_path: Path) -> None:
    levels = ["never", "sometimes", "often"]
    answers = pd.Categorical(["often", "never", "often", None], categories=levels, ordered=ordered)
    pd.DataFrame({"q": answers, "n": [1.0] * 4, "d": pd.Timestamp("2020-02-29")}).to_parquet(tmp_path / "t.parquet", row_group_size=2)
    table = open_table(tmp_path / "t.parquet")
    assert categories(table, "q") == (tuple(levels), ordered)
    assert {name: variable.type for name, variable in table.variables.items()} == {"q": "text", "n": "number", "d": "date"}
    assert read(table, [], ["q", "d"])[1] == {"q": ["often", "never", "often", None], "d": ["2020-02-29 00:00:00"] * 4}
    with pytest.raises(DataError, match=r"column 'd' holds timestamp\[.*\], expected numbers or text; leave it out"):
        read(table, ["d"])


def test_order_in_the_metadata_of_pandas_alone(tmp_path: Path) -> None:
    """As fastparquet writes it, whose files have no schema of Arrow."""
    answers = pd.Categorical(["b", "a"], categories=["c", "b", "a"], ordered=True)
    rows = pa.Table.from_pandas(pd.DataFrame({"q": answers}))
    with pq.ParquetWriter(tmp_path / "t.parquet", rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"pandas": rows.schema.metadata[b"pandas"].decode()})
    assert pq.read_schema(tmp_path / "t.parquet").field("q").type == pa.string()
    assert categories(open_table(tmp_path / "t.parquet"), "q") == (("c", "b", "a"), True)


def test_parts_with_other_dictionaries_give_no_order(tmp_path: Path) -> None:
    for i, levels in enumerate((["low", "high"], ["high", "low", "none"])):
        answers = pd.Categorical(levels[:2], categories=levels, ordered=True)
        (tmp_path / "t").mkdir(exist_ok=True)
        pd.DataFrame({"q": answers}).to_parquet(tmp_path / "t" / f"{i}.parquet")
    assert categories(open_table(tmp_path / "t"), "q") == (("low", "high", "none"), False)


@real
def test_spark_folder_with_keys() -> None:
    table = open_table(FOLDERS / "spark_hive")
    assert table.columns == ["num", "cat", "catnum"]
    matrix, texts, _ = read(table, ["num", "catnum"], ["cat"])
    np.testing.assert_array_equal(np.sort(matrix[:, 0]), np.arange(2000))
    assert {cat: texts["cat"].count(cat) for cat in set(texts["cat"])} == {"fred": 1000, "freda": 1000}
    files = [path for path in sorted((FOLDERS / "spark_hive").rglob("*.parquet")) if not path.name.startswith(".")]
    assert len(files) == 48
    np.testing.assert_array_equal(matrix[:, 0], np.concatenate([pq.ParquetFile(path).read()["num"].to_numpy() for path in files]))


@real
def test_spark_folder_with_parts_without_rows() -> None:
    table = open_table(FOLDERS / "spark_empty_parts")
    assert len(read(table, ["id"], ["Date"])[0]) == 2
    assert table.variables["Date"].type == "date"
