"""Arrow IPC files and streams, and Feather files."""

import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from dfact.errors import DataError, DfactError, StoreError
from dfact.imports.readers.columnar import arrow, columns
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_table
from tests.suites.reader import Columns, ReaderSuite, read


def arrow_table(cells: Columns) -> pa.Table:
    return pa.table({name: pa.array(each) for name, each in cells.items()})


def write_batches(rows: pa.Table, path: Path, size: int) -> None:
    new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with new(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=size)


class TestArrow(ReaderSuite):
    name = "t.arrow"
    size = 1000

    def write(self, columns: Columns, path: Path) -> None:
        write_batches(arrow_table(columns), path, self.size)

    def position(self, row: int) -> str:
        return f"row {row} (counted from 0)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 40)


class TestArrowOfSeveralBatches(TestArrow):
    name = "t.ipc"
    size = 7

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 6)


class TestArrowStream(TestArrowOfSeveralBatches):
    name = "t.arrows"


class TestFeather(TestArrow):
    name = "t.feather"

    def write(self, columns: Columns, path: Path) -> None:
        pyarrow.feather.write_feather(arrow_table(columns), path, compression="zstd")


def test_the_first_version_of_feather_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyarrow.feather.write_feather(pa.table({"q": [1]}), tmp_path / "t.feather", version=1)
    with pytest.raises(DataError, match="Feather of version 1, expected version 2"):
        open_table(tmp_path / "t.feather")


@pytest.mark.parametrize("name", ["t.arrow", "t.arrows"])
@pytest.mark.parametrize("part_bytes", [1, 1500, 1 << 30])
def test_parts_give_the_rows_of_the_table_in_order(name: str, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_PART_BYTES", part_bytes)
    values = np.random.default_rng(part_bytes % 89).normal(size=200)
    write_batches(pa.table({"q": values, "id": [f"p{i}" for i in range(200)]}), tmp_path / name, 13)
    table = open_table(tmp_path / name)
    parts = pickle.loads(pickle.dumps(table.parts()))
    assert (len(parts) > 1) == (name == "t.arrow" and part_bytes < 2000)
    batches = [batch for part in parts for batch in read_cells(part, ["q"], ["id"], [])]
    np.testing.assert_array_equal(np.concatenate([batch.numbers[:, 0] for batch in batches]), values)
    assert [text for batch in batches for text in batch.texts["id"].to_pylist()] == [f"p{i}" for i in range(200)]


def test_an_error_in_a_part_has_the_position_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_PART_BYTES", 1)
    write_batches(pa.table({"q": ["1"] * 17 + ["often"]}), tmp_path / "t.arrow", 5)
    part = open_table(tmp_path / "t.arrow").parts()[-1]
    with pytest.raises(DataError, match=re.escape("t.arrow: row 17 (counted from 0), column 'q' holds the text 'often'")):
        list(read_cells(part, ["q"], [], []))


@pytest.mark.parametrize("name", ["t.arrow", "t.arrows", "t.feather"])
@pytest.mark.parametrize("ordered", [True, False])
def test_dictionaries_give_categories(name: str, ordered: bool, tmp_path: Path) -> None:
    levels = ["never", "sometimes", "often"]
    frame = pd.DataFrame({"q": pd.Categorical(["often", None, "never"], categories=levels, ordered=ordered), "n": [1, 2, 3]})
    write_batches(pa.Table.from_pandas(frame), tmp_path / name, 2)
    variables = open_table(tmp_path / name).variables
    assert (variables["q"].categories, variables["q"].ordered) == (tuple(levels), ordered)
    assert (variables["q"].type, variables["n"].type, variables["n"].categories) == ("text", "number", ())


def test_values_that_are_no_cells_are_named(tmp_path: Path) -> None:
    write_batches(pa.table({"q": [1], "l": [[1, 2]]}), tmp_path / "t.arrow", 1)
    table = open_table(tmp_path / "t.arrow")
    assert table.variables["l"].excluded == "holds list<item: int64>"
    with pytest.raises(DataError, match="column 'l' holds list<item: int64>, expected numbers or text; leave it out"):
        read(table, ["l"])


@pytest.mark.parametrize("name", ["t.arrow", "t.arrows", "t.feather"])
@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_refused(name: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"q": np.arange(40), "id": [f"person {i}" for i in range(40)], "c": pd.Categorical(list("ab") * 20)})
    write_batches(pa.Table.from_pandas(frame), tmp_path / name, 9)
    good, refused = (tmp_path / name).read_bytes(), 0
    for _ in range(40):
        damaged = bytearray(good[: rng.integers(8, len(good))] if rng.random() < 0.3 else good)
        for at in rng.integers(0, len(damaged), 4):
            damaged[at] = rng.integers(256)
        (tmp_path / name).write_bytes(damaged)
        try:
            table = open_table(tmp_path / name)
            assert table.variables.keys() == set(table.columns)
            numbers, texts = ["q"] if "q" in table.columns else [], ["id", "c"] if {"id", "c"} <= set(table.columns) else []
            for batch in read_cells(table, numbers, texts, []):
                assert len(batch.numbers) >= 0
        except DfactError:
            refused += 1
    assert refused > 10


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_batches(pa.table({"q": range(100)}), tmp_path / "t.arrow", 10)
    (tmp_path / "t.arrow").write_bytes((tmp_path / "t.arrow").read_bytes()[:300])
    with pytest.raises(StoreError, match=r"t\.arrow cannot be read as an Arrow file"):
        open_table(tmp_path / "t.arrow")


def test_signalling_nan_is_missing(tmp_path: Path) -> None:
    values = np.array([0x3F800000, 0x7F800001], np.uint32).view(np.float32)  # 1, and NaN
    pyarrow.feather.write_feather(pa.table({"q": pa.array(values)}), tmp_path / "t.feather")
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.feather"), ["q"])[0][:, 0], [1, np.nan])
