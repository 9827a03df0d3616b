"""R's files: data frames, factors, labelled columns, row names, matrices, and damaged files."""

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dfact.data import memory_limit
from dfact.errors import DataError, DfactError, ParameterError, StoreError
from dfact.imports.readers.base import MissingCodes, ReadOptions
from dfact.imports.readers.columnar import columns
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_array, open_table
from tests.conftest import REAL_DATA
from tests.suites.reader import Columns, ReaderSuite, read

rdata = pytest.importorskip("rdata")
FILES = REAL_DATA / "inputs" / "r"
real = pytest.mark.skipif(not FILES.exists(), reason="needs the folder of real data")


class Vector:
    """An object of R with attributes; "_" in their names stands for "."."""

    def __init__(self, values: Any, **attributes: Any) -> None:
        self.values = values
        self.attributes = {name.replace("__", "."): value for name, value in attributes.items()}


def write(path: Path, value: Any, **form: Any) -> None:
    """Write an object, or the objects of a dict if the suffix is .rda."""
    from rdata.conversion.to_r import DEFAULT_CLASS_MAP

    def build(vector: Vector, converter: Any) -> Any:
        built = converter.convert_to_r_object(vector.values)
        built.attributes = converter.convert_to_r_attributes(vector.attributes)
        built.info.attributes, built.info.object = True, "class" in vector.attributes
        return built

    writer = rdata.write_rda if path.suffix in {".rda", ".RData"} else rdata.write_rds
    writer(path, value, constructor_dict={**DEFAULT_CLASS_MAP, Vector: build}, **form)


def texts(*cells: str | None) -> Any:
    return np.array(cells, dtype=object)


def data_frame(row_names: Any = None, **cells: Any) -> Vector:
    names = np.arange(1, 4, dtype=np.int32) if row_names is None else row_names
    return Vector(list(cells.values()), names=texts(*cells), row__names=names, **{"class": "data.frame"})


def tagged(letter: str) -> float:
    return float(np.uint64(0x7FF0_0000_0000_07A2 | ord(letter) << 32).view(np.float64))


def frame_of(cells: Columns) -> Vector:
    n_rows = len(next(iter(cells.values())))
    row_names = np.ma.array([0, -n_rows], mask=[True, False], dtype=np.int32)
    return data_frame(row_names, **{name: column(list(each)) for name, each in cells.items()})


def column(cells: list[Any]) -> Any:
    if any(isinstance(cell, str) for cell in cells):
        return texts(*cells)
    return np.array([np.nan if cell is None else cell for cell in cells], np.float64)


class TestRds(ReaderSuite):
    name = "t.rds"
    form: ClassVar[dict[str, Any]] = {"compression": "gzip"}

    def write(self, columns: Columns, path: Path) -> None:
        write(path, frame_of(columns), **self.form)

    def position(self, row: int) -> str:
        return f"row {row + 1} (counted from 1)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(columns, "BATCH_ENTRIES", 40)


class TestRdsOfXz(TestRds):
    form: ClassVar[dict[str, Any]] = {"compression": "xz"}


class TestRdsAsText(TestRds):
    form: ClassVar[dict[str, Any]] = {"file_format": "ascii", "compression": None, "format_version": 2}


class TestRda(TestRds):
    name = "t.RData"
    form: ClassVar[dict[str, Any]] = {"compression": "bzip2"}

    def write(self, columns: Columns, path: Path) -> None:
        write(path, {"answers": frame_of(columns)}, **self.form)


class TestRdaOfOldR(TestRda):
    name = "t.rda"
    form: ClassVar[dict[str, Any]] = {"compression": None, "format_version": 2}


def test_labelled_columns_of_haven(tmp_path: Path) -> None:
    labels = Vector(np.array([1.0, 2, 9, tagged("a")]), names=texts("No", "Yes", "Refused", "Never asked"))
    answers = np.array([1, 9, tagged("a")])
    answers.view(np.uint64)[2] = np.uint64(0x7FF0_0000_0000_07A2 | ord("a") << 32)
    labels.values.view(np.uint64)[3] = answers.view(np.uint64)[2]
    classes = texts("haven_labelled_spss", "haven_labelled", "vctrs_vctr", "double")
    q = Vector(
        answers, label="Do you smoke?", labels=labels, na_values=np.array([9.0]), na_range=np.array([7.0, 9.0]), **{"class": classes}
    )
    note = Vector(texts("x", None, "-"), label="Remarks", na_values=texts("-"))
    write(tmp_path / "t.rds", data_frame(q=q, note=note))
    table = open_table(tmp_path / "t.rds")
    variable = table.variables["q"]
    assert (variable.type, variable.wording, variable.labels) == ("number", "Do you smoke?", {1: "No", 2: "Yes", 9: "Refused"})
    assert variable.missing == MissingCodes((9.0,), ((7.0, 9.0),))
    assert variable.tags == {"a": "Never asked"}
    (batch,) = read_cells(table, ["q"], ["note"], [])
    np.testing.assert_array_equal(batch.numbers, [[1], [9], [np.nan]])
    assert batch.tagged == {"q": {"a": 1}}
    assert batch.texts["note"].to_pylist() == ["x", None, "-"]
    assert table.variables["note"].missing == MissingCodes(("-",))


@pytest.mark.parametrize("ordered", [True, False])
def test_factors_give_categories(ordered: bool, tmp_path: Path) -> None:
    classes = texts("ordered", "factor") if ordered else texts("factor")
    codes = np.ma.array([3, 1, 0], mask=[False, False, True], dtype=np.int32)
    q = Vector(codes, levels=texts("rare", "medium", "well"), **{"class": classes})
    write(tmp_path / "t.rds", data_frame(q=q))
    table = open_table(tmp_path / "t.rds")
    assert (table.variables["q"].type, table.variables["q"].categories) == ("text", ("rare", "medium", "well"))
    assert table.variables["q"].ordered == ordered
    assert read(table, [], ["q"])[1] == {"q": ["well", "rare", None]}


def test_types_of_columns(tmp_path: Path) -> None:
    day = Vector(np.array([18262.0, np.nan, -1.0]), **{"class": "Date"})
    time = Vector(np.array([0.0, 1e9, np.inf]), **{"class": texts("POSIXct", "POSIXt")})
    whole = np.ma.array([1, 2, 3], mask=[False, True, False], dtype=np.int32)
    large = Vector(np.array([2**60 + 1, 5, np.iinfo(np.int64).min]).view(np.float64), **{"class": "integer64"})
    cells = {"day": day, "time": time, "whole": whole, "large": large, "yes": np.array([True, False, True]), "c": np.ones(3, complex)}
    write(tmp_path / "t.rds", data_frame(**cells, many=[whole, whole, whole]))
    table = open_table(tmp_path / "t.rds")
    types = {name: variable.type for name, variable in table.variables.items()}
    assert types == {"day": "date", "time": "date", "whole": "number", "large": "number", "yes": "number", "c": None, "many": None}
    assert (table.variables["c"].excluded, table.variables["many"].excluded) == ("holds a vector", "holds a list")
    matrix, strings, _ = read(table, ["whole", "large", "yes"], ["day", "time", "large"])
    np.testing.assert_array_equal(matrix, [[1, 2.0**60, 1], [np.nan, 5, 0], [3, np.nan, 1]])
    assert strings["day"] == ["2020-01-01", None, "1969-12-31"]
    assert strings["time"] == ["1970-01-01 00:00:00", "2001-09-09 01:46:40", None]
    assert strings["large"] == [str(2**60 + 1), "5", None]
    with pytest.raises(DataError, match=r"column 'c' holds .*, expected numbers or text; leave it out"):
        read(table, ["c"])


def test_row_names_are_a_column_unless_they_are_numbers_from_one(tmp_path: Path) -> None:
    q = np.array([1.0, 2, 3])
    for names, expected in ((texts("a", "b", "c"), ["a", "b", "c"]), (np.array([61617, 2, 3], np.int32), ["61617", "2", "3"])):
        write(tmp_path / "t.rds", data_frame(names, q=q))
        table = open_table(tmp_path / "t.rds")
        assert table.columns == ["row names", "q"]
        assert table.variables["row names"].excluded == "holds the names of the rows"
        assert read(table, ["q"], ["row names"])[1] == {"row names": expected}
    for names in (texts("1", "2", "3"), np.ma.array([0, -3], mask=[True, False], dtype=np.int32)):
        write(tmp_path / "t.rds", data_frame(names, q=q))
        assert open_table(tmp_path / "t.rds").columns == ["q"]


def test_several_objects_are_asked_with_their_names_and_shapes(tmp_path: Path) -> None:
    q, matrix = np.array([1.0, 2, 3]), Vector(np.arange(6.0), dim=np.array([3, 2], np.int32))
    write(tmp_path / "t.rda", {"a": data_frame(q=q), "keys": {"x": q}, "waves": {"one": data_frame(q=q * 2), "two": q}, "m": matrix})
    with pytest.raises(ParameterError, match=r"t\.rda holds 2 objects, expected one: a \(data frame, 3 × 1\), waves\$one .*--object"):
        open_table(tmp_path / "t.rda")
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.rda", ReadOptions(object="waves$one")), ["q"])[0][:, 0], q * 2)
    np.testing.assert_array_equal(read(open_table(tmp_path / "t.rda", ReadOptions(object="m")), ["V2", "V1"])[0], [[3, 0], [4, 1], [5, 2]])
    np.testing.assert_array_equal(open_array(tmp_path / "t.rda").values, [[0, 3], [1, 4], [2, 5]])
    with pytest.raises(
        ParameterError, match=r"t\.rda has no data frame 'b', expected one of its objects: a \(data frame, 3 × 1\), keys \(list, 1\)"
    ):
        open_table(tmp_path / "t.rda", ReadOptions(object="b"))
    write(tmp_path / "t.rds", q)
    with pytest.raises(DataError, match=r"t\.rds holds t \(vector, 3\), expected a data frame"):
        open_table(tmp_path / "t.rds")


def test_arrays_have_labels_and_nan(tmp_path: Path) -> None:
    names = Vector([texts("a", "b"), None, texts("x", "y")], names=texts("", "", "time"))
    values = np.ma.array(np.arange(12), mask=np.arange(12) == 5, dtype=np.int32)
    write(tmp_path / "t.rds", Vector(values, dim=np.array([2, 3, 2], np.int32), dimnames=names))
    array = open_array(tmp_path / "t.rds")
    expected = np.arange(12.0).reshape(2, 3, 2, order="F")
    expected[1, 2, 0] = np.nan
    np.testing.assert_array_equal(array.values, expected)
    assert [None if labels is None else list(labels) for labels in array.labels] == [["a", "b"], None, ["x", "y"]]


@pytest.mark.further
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_refused(seed: int, tmp_path: Path) -> None:
    rng, refused, path = np.random.default_rng(seed), 0, tmp_path / "t.rds"
    q = Vector(np.array([1, 2, 1], np.int32), levels=texts("no", "yes"), **{"class": "factor"})
    write(path, data_frame(q=q, n=np.array([1.0, 2, 3]), t=texts("a", "b", None)), compression=None)
    good = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.3 else good)
        for at in rng.integers(0, len(damaged), 2):
            damaged[at] = rng.integers(256)
        path.write_bytes((gzip.compress, bz2.compress, lzma.compress)[seed % 3](damaged))
        try:
            table = open_table(path)
            list(read_cells(table, [name for name in table.columns if table.variables[name].type == "number"], [], []))
        except DfactError:
            refused += 1
    assert refused > 20
    path.write_bytes(gzip.compress(good)[:-30])
    with pytest.raises(StoreError, match=r"t\.rds cannot be read: .*; save it again in R"):
        open_table(path)


def test_a_text_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.rds"
    write(path, data_frame(q1=np.array([1.0, 2])), compression=None)
    good = path.read_bytes()
    assert good.count(b"\x02q1") == 1
    path.write_bytes(good.replace(b"\x02q1", b"\x02q\0"))
    with pytest.raises(DataError, match="zero byte"):
        open_table(path)


def test_foreign_content_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.rds").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(DataError, match=r"t\.rds is not an R data file: its content begins with b'a,b"):
        open_table(tmp_path / "t.rds")


def test_forged_lengths_take_no_memory(tmp_path: Path) -> None:
    """A sequence of R may stand for any number of values, and objects may nest to any depth."""
    head = b"X\n" + b"".join(int(each).to_bytes(4, "big") for each in (2, 0x30402, 0x20300))
    symbol = b"\x00\x00\x00\x01\x00\x04\x00\x09\x00\x00\x00\x0ecompact_intseq"
    state = b"\x00\x00\x00\x0e\x00\x00\x00\x03" + np.array([1e13, 1, 1], ">f8").tobytes()
    nil = b"\x00\x00\x00\xfe"
    (tmp_path / "t.rds").write_bytes(head + b"\x00\x00\x00\xee\x00\x00\x00\x02" + symbol + nil + state + nil)
    with pytest.raises(DataError, match=r"t\.rds cannot be read: its parser rdata requires more memory .* half of .* parquet"):
        open_table(tmp_path / "t.rds")
    (tmp_path / "t.rds").write_bytes(head + b"\x00\x00\x00\x13\x00\x00\x00\x01" * 100_000)
    with pytest.raises(DataError, match="nested in more than some"):
        open_table(tmp_path / "t.rds")


def test_a_file_beyond_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.rds", data_frame(q=np.zeros(2_000_000)), compression=None)  # more than the parser's process has at hand
    monkeypatch.setattr(memory_limit, "half_of_free_memory", lambda: 100.0)
    with pytest.raises(DataError, match=r"its parser rdata requires more memory .* half of .*parquet"):
        open_table(tmp_path / "t.rds")


@real
@pytest.mark.parametrize(
    ("name", "shape", "n_missing"),
    [("bfi.rda", (2800, 28), 731), ("spi.rda", (4000, 145), 5925), ("sasr.rda", (860, 63), 8838), ("mass.rda", (20, 15), 0)],
)
def test_shared_files_hold_what_r_finds_in_them(name: str, shape: tuple[int, int], n_missing: int) -> None:
    table = open_table(FILES / name)
    values = {name: variable for name, variable in table.variables.items() if not variable.excluded}
    numbers = [name for name, variable in values.items() if variable.type == "number"]
    factors = [name for name, variable in values.items() if variable.type == "text"]
    matrix, strings, _ = read(table, numbers, factors)
    codes = [[np.nan if text is None else values[name].categories.index(text) + 1 for text in strings[name]] for name in factors]
    found = np.column_stack([matrix, *codes]) if codes else matrix
    assert found.shape == shape
    assert np.isnan(found).sum() == n_missing
    means = dict(zip([*numbers, *factors], np.nanmean(found, axis=0), strict=True))
    expected = {
        "bfi.rda": {"A1": 2.413434, "N4": 3.185601, "age": 28.782143},
        "spi.rda": {"q_253": 4.551, "smoke": 2.194743},
        "sasr.rda": {"SASR1": 3.377072, "SASR2": 3.912863},
        "mass.rda": {"Gender": 1.3, "I find math interesting.": 3.6},
    }[name]
    assert {column: round(float(means[column]), 6) for column in expected} == expected
    if name == "bfi.rda":
        assert np.isnan(found[:, :25]).sum() == 508
        assert next(iter(read_cells(table, [], ["row names"], []))).texts["row names"][:2].to_pylist() == ["61617", "61618"]
    assert {variable.ordered for variable in values.values() if len(variable.categories) > 2} == {
        "mass.rda": {True},
        "sasr.rda": {False},
    }.get(name, set())


@real
def test_shared_file_of_haven() -> None:
    table = open_table(FILES / "made_haven_labelled.rds")
    x, y = table.variables["x"], table.variables["y"]
    assert (x.wording, x.labels, x.missing) == ("How often?", {1: "Never", 2: "Often", 9: "Refused"}, MissingCodes())
    assert (y.wording, y.labels) == ("With missing", {1: "No", 2: "Yes", 9: "Refused"})
    assert y.missing == MissingCodes((9.0,), ((7.0, 9.0),))
    matrix, strings, _ = read(table, ["x", "l"], ["o"])
    np.testing.assert_array_equal(matrix, [[1, 1], [2, np.nan], [9, 0], [np.nan, 1]])
    assert table.variables["o"].categories == ("low", "high")
    assert strings["o"] == ["low", "high", None, "low"]


@pytest.mark.further
@real
@pytest.mark.parametrize("path", sorted(FILES.glob("*")), ids=lambda path: path.name)
def test_shared_files_open_or_are_refused_with_their_objects(path: Path) -> None:
    if path.name in _WITHOUT_FRAME:
        with pytest.raises(DataError, match="expected a data frame"):
            open_table(path)
    else:
        table = open_table(path)
        assert sum(len(batch.numbers) for batch in read_cells(table, [], table.columns[:1], [])) > 0


_WITHOUT_FRAME = {
    "spi.keys.rda",
    "test_altrep_compact_intseq.rda",
    "test_ascii_v3.rds",
    "test_encodings_v3.rda",
    "test_nullable_int.rda",
}
