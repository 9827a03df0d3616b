"""SPSS, Stata and SAS files: what they say about their columns, and what independent readers find in them."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dfact.errors import DataError, ParameterError
from dfact.formats.isolation import server
from dfact.formats.statistical import readstat, sas, spss, stata
from dfact.imports.readers.base import MissingCodes, ReadOptions, Table
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.formats import open_table
from tests.conftest import REAL_DATA
from tests.suites.reader import Columns, ReaderSuite, read

pyreadstat = pytest.importorskip("pyreadstat")

INPUTS = REAL_DATA / "inputs"
shared = pytest.mark.skipif(not INPUTS.exists(), reason="the files of users are not next to the project")
LABELS = ("007", "1.50", " a", "x,y;z\tw", 'say "no"', "Zoë", "True", "1e5", "two words")
"""Texts without spaces at their ends, which SPSS and SAS fill with spaces."""


class StatisticalSuite(ReaderSuite):
    labels = LABELS

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        raise NotImplementedError

    def write(self, columns: Columns, path: Path) -> None:
        self.save(pd.DataFrame({name: list(cells) for name, cells in columns.items()}), path)

    def position(self, row: int) -> str:
        return f"row {row} (counted from 0)"

    def read_little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readstat, "_BATCH_ENTRIES", 300)

    @pytest.mark.further
    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(readstat, "_PART_ENTRIES", 20)
        table = self.open({"q": range(23), "id": [f"p{i}" for i in range(23)]}, tmp_path)
        parts = pickle.loads(pickle.dumps(table.parts()))
        batches = [batch for part in parts for batch in read_cells(part, ["q"], ["id"], [])]
        assert len(parts) == 3
        np.testing.assert_array_equal(np.concatenate([batch.numbers[:, 0] for batch in batches]), range(23))
        assert [cell for batch in batches for cell in batch.texts["id"].to_pylist()] == [f"p{i}" for i in range(23)]
        assert 0 < sum(part.n_bytes for part in parts) <= (tmp_path / self.name).stat().st_size

    @pytest.mark.further
    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        self.write({"q": range(50), "id": [f"person {i}" for i in range(50)]}, tmp_path / self.name)
        data = (tmp_path / self.name).read_bytes()
        for length in np.linspace(1, 0.9 * len(data), 12, dtype=int):
            (tmp_path / self.name).write_bytes(data[:length])
            with pytest.raises(DataError, match=rf"^{self.name} .*export it again"):
                read(open_table(tmp_path / self.name), ["q"], ["id"])


class TestSav(StatisticalSuite):
    name = "t.sav"
    columns = ("b", "a.b", "é", "A_b")

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path)


class TestCompressedSav(TestSav):
    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path, row_compress=True)


@pytest.mark.further
class TestZsav(TestSav):
    name = "T.ZSAV"

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_sav(frame, path, compress=True)


@pytest.mark.further
class TestSavWithoutNumberOfRows(TestSav):
    """As Qualtrics writes it."""

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        super().save(frame, path)
        data = bytearray(path.read_bytes())
        data[80:84] = (-1).to_bytes(4, "little", signed=True)
        path.write_bytes(data)

    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = self.open({"q": range(23)}, tmp_path)
        assert table.parts() == [table]

    @pytest.mark.parametrize("at_once", [1, 2, 3])
    def test_columns_are_read_in_groups(self, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "is_child", True)  # which knows the other number
        monkeypatch.setattr(readstat, "_COLUMNS_OF_UNKNOWN_LENGTH", at_once)
        table = self.open({f"q{j}": [j, 10 * j] for j in range(5)}, tmp_path)
        matrix, texts, _ = read(table, ["q3", "q0", "q4"], ["q1", "q2"])
        np.testing.assert_array_equal(matrix, [[3, 0, 4], [30, 0, 40]])
        assert texts == {"q1": ["1", "10"], "q2": ["2", "20"]}

    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        """Truncation is visible in the dictionary alone."""


class TestDta(StatisticalSuite):
    name = "t.dta"
    columns = ("b", "a_b", "é", "A_b")
    labels = ReaderSuite.labels

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_dta(frame, path)


class TestXpt5(StatisticalSuite):
    name = "t.xpt"
    columns = ("b", "a_b", "c", "A_b2")
    smallest = -(2.0**-200)
    version = 5

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_xport(frame, path, file_format_version=self.version)

    @pytest.mark.parametrize("rows", range(12))
    def test_blank_rows_are_no_padding(self, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row of spaces is a row unless it may fill the last record of 80 bytes."""
        texts = ["a", *[""] * rows, "a" * 17]
        table = self.open({"t": texts}, tmp_path)
        self.read_little(monkeypatch)
        assert read(table, [], ["t"])[1] == {"t": [text or None for text in texts]}


@pytest.mark.further
class TestXpt8(TestXpt5):
    version = 8


class _LowerCase(Table):
    """A table with the names of its columns in lower case; portable files have upper case."""

    def __init__(self, table: Table) -> None:
        self.table, self.name, self.columns = table, table.name, [name.lower() for name in table.columns]

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for rows in self.table.record_batches([name.upper() for name in numbers], [name.upper() for name in texts], missing):
            yield rows.rename_columns([*numbers, *texts])


class TestPor(StatisticalSuite):
    name = "t.por"
    columns = ("b", "a.b", "c", "a_b")
    labels = tuple(text for text in LABELS if text.isascii() and "\t" not in text)

    def save(self, frame: pd.DataFrame, path: Path) -> None:
        pyreadstat.write_por(frame, path)

    def open(self, columns: Columns, folder: Path) -> Table:
        return _LowerCase(super().open(columns, folder))

    def test_parts_hold_the_rows_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = super().open({"q": range(23)}, tmp_path)
        assert table.parts() == [table]

    def test_truncated_files_are_refused(self, tmp_path: Path) -> None:
        """The rows end with a mark, so that every truncation is visible, but columns are in upper case."""
        self.write({"Q": range(50)}, tmp_path / self.name)
        data = (tmp_path / self.name).read_bytes()
        for length in np.linspace(1, 0.9 * len(data.rstrip(b"Z\r\n")), 12, dtype=int):
            (tmp_path / self.name).write_bytes(data[:length])
            with pytest.raises(DataError, match=rf"^{self.name} .*export it again"):
                read(open_table(tmp_path / self.name), ["Q"])


def opened(name: str, **options: str) -> Table:
    return open_table(INPUTS / name, ReadOptions(**options))


def raw(table: Table, *names: str) -> NDArray[np.float64]:
    """Return columns with declared codes as numbers."""
    return np.concatenate([batch.numbers for batch in read_cells(table, names or table.columns, [], [])])


def is_declared(values: NDArray[np.float64], missing: MissingCodes) -> NDArray[np.bool_]:
    within = [(values >= low) & (values <= high) for low, high in missing.ranges]
    return np.any([np.isin(values, missing.values), *within], axis=0)


def valid(table: Table, name: str) -> NDArray[np.float64]:
    values = raw(table, name)[:, 0]
    return values[~np.isnan(values) & ~is_declared(values, table.variables[name].missing)]


ORACLES: Mapping[str, Any] = json.loads((INPUTS / "oracles.json").read_text()) if INPUTS.exists() else {}
READ = [name for name, oracle in ORACLES.items() if name.split("/")[0] in ("spss", "stata", "sas") and "values" in oracle]


@shared
class TestFilesOfUsers:
    @pytest.mark.further
    @pytest.mark.parametrize("name", READ)
    def test_values_are_those_of_independent_readers(self, name: str) -> None:
        table, oracle = opened(name), ORACLES[name]
        for column, expected in oracle["values"].items():
            values = valid(table, column)
            assert len(values) == expected["n"], column
            assert [values.min(), values.max()] == [expected["min"], expected["max"]]
            assert values.mean() == pytest.approx(expected["mean"], abs=1e-6)
        if "rows" in oracle:
            assert (len(raw(table, next(iter(oracle["values"])))), len(table.columns)) == (oracle["rows"], oracle["columns"])

    @pytest.mark.further
    @pytest.mark.parametrize("name", READ)
    def test_wordings_and_labels_are_those_of_independent_readers(self, name: str) -> None:
        variables, oracle = opened(name).variables, ORACLES[name]
        described = {column: {"wording": text} for column, text in oracle.get("wording", {}).items()} | oracle.get("variables", {})
        for column, expected in described.items():
            assert variables[column].wording == expected["wording"]
            if "levels" in expected:
                assert {f"{code:g}": label for code, label in variables[column].labels.items()} == expected["levels"]
        labels = [dict(each.labels) for each in variables.values()]
        for codes in oracle.get("value_labels", {}).values():
            untagged = {float(code): label for code, label in codes.items() if int(code) < 2**31 - 30}
            assert untagged in labels

    @pytest.mark.further
    @pytest.mark.parametrize("name", [name for name in READ if "missing_by_kind" in ORACLES[name]])
    def test_kinds_of_missing_answers_are_counted(self, name: str) -> None:
        table = opened(name)
        for column, expected in ORACLES[name]["missing_by_kind"].items():
            (batch,) = read_cells(table, [column], [], [])
            values = batch.numbers[:, 0]
            tagged = {f".{tag}": count for tag, count in batch.tagged.get(column, {}).items()}
            untagged = int(np.isnan(values).sum()) - sum(tagged.values())
            if "system" in expected:
                codes = Counter(values[is_declared(values, table.variables[column].missing)])
                assert {f"{code:g}": count for code, count in codes.items()} == expected["user"]
                assert untagged == expected["system"]
            else:
                assert tagged | ({".": untagged} if untagged else {}) == expected

    def test_weighted_sums(self) -> None:
        table = opened("spss/nhis2000_subset.sav")
        weight, lift = raw(table, "WTFA_SA", "LIFT").T
        answered = lift < 6
        assert weight.sum() == 201_698_125
        assert np.average(lift[answered], weights=weight[answered]) == pytest.approx(2.258013, abs=1e-6)
        assert raw(opened("spss/poll_cs_sample.zsav"), "SampleWeight_Final_").sum() == pytest.approx(118_186)

    def test_an_answer_that_is_labelled_missing_and_does_not_occur(self) -> None:
        table = opened("spss/poll_cs_sample.zsav")
        variable = table.variables["opinion_gastax"]
        assert variable.labels[9] == "No response"
        assert not variable.missing
        assert Counter(raw(table, "opinion_gastax")[:, 0]) == {1: 1975, 2: 2554, 3: 2374, 4: 2546}
        assert [table.variables[name].measure for name in ("agecat", "drivefreq", "opinion_gastax")] == ["ordinal"] * 3

    @pytest.mark.parametrize("name", ["spss/hotel.sav", "stata/hotel_stata8.dta", "sas/hotel.xpt"])
    def test_the_same_answers_in_all_formats(self, name: str) -> None:
        np.testing.assert_array_equal(raw(opened(name)), ORACLES["spss/hotel.sav"]["answers"])

    def test_declared_codes_and_ranges(self) -> None:
        missing = {name: each.missing for name, each in opened("spss/sample_missing.sav").variables.items() if each.missing}
        assert missing == {
            "mynum": MissingCodes((-1,), ((2000, 3000),)),
            "mylabl": MissingCodes((-1,)),
            "myord": MissingCodes((-1, -2, -3)),
        }
        missing = {name: each.missing for name, each in opened("spss/simple_alltypes.sav").variables.items() if each.missing}
        assert missing == {"x": MissingCodes((7, 8, 99)), "z": MissingCodes((999,), ((-999, 0),))}
        assert opened("spss/missing_char.sav").variables["mychar"].missing == MissingCodes(("Z",))
        only = opened("spss/missing_test.sav").variables["var1"]
        assert (only.missing, only.labels) == (MissingCodes((1,)), {1: "missing"})
        np.testing.assert_array_equal(raw(opened("spss/sample_missing.sav"), "mylabl", "myord")[4:], [[1, 1], [-1, -1], [np.nan, -3]])

    def test_raw_cells_of_all_types(self) -> None:
        (batch,) = read_cells(opened("spss/sample_missing.sav"), [], ["mychar", "mydate", "dtime", "mytime"], [])
        assert [batch.texts[j][0].as_py() for j in range(4)] == ["a", "2018-05-06", "2018-05-06 10:10:10", "10:10:10"]
        assert [batch.texts[j][3].as_py() for j in range(4)] == ["d", "1583-01-01", "1583-01-01 00:00:00", "16:10:10"]
        assert [batch.texts[j][6].as_py() for j in range(4)] == [None] * 4

    @pytest.mark.parametrize("name", ["spss/sample.sav", "spss/sample.zsav", "spss/sample.por", "stata/sample.dta", "sas/sample.xpt"])
    def test_one_table_of_all_types_in_all_formats(self, name: str) -> None:
        table = opened(name)
        (batch,) = read_cells(table, table.columns[1:2] + table.columns[4:6], table.columns, [])
        expected = [[1.1, 1, 1], [1.2, 2, 2], [-1000.3, 1, 3], [-1.4, 2, 1], [1000.3, 1, 1]]
        np.testing.assert_allclose(batch.numbers, expected, rtol=1e-14)
        assert [each.type for each in table.variables.values()] == ["text", "number", "date", "date", "number", "number", "date"]
        assert [column[1].as_py() for column in batch.texts.columns][2:4] == ["1880-05-06", "1880-05-06 10:10:10"]
        assert [column[4].as_py() for column in batch.texts.columns] == ["e", "1000.3", None, None, "1", "1", None]

    def test_dates_beyond_those_of_python(self) -> None:
        table = opened("spss/datetime.sav")
        assert {each.type for each in table.variables.values()} == {"date"}
        (batch,) = read_cells(table, [], table.columns, [])
        assert batch.texts["date.posix"].to_pylist() == ["201416-09-22 00:00:00", "2014-09-23 15:59:20"]
        assert opened("spss/simple_alltypes.sav").variables["quarter"].type == "date"

    def test_dates_of_transport_files_are_those_beside_them_as_text(self) -> None:
        table = opened("sas/dates_xpt_v8.xpt")
        (batch,) = read_cells(table, ["missings"], table.columns, [])
        for name in ("dt", "dates", "times"):
            text = {"dt": "string_dt", "dates": "string_dates", "times": "string_times"}[name]
            assert batch.texts[name].to_pylist() == batch.texts[text].to_pylist()
        assert table.variables["seconds"].wording.startswith("this variable counts the number of seconds since 1960-01-01T")

    def test_names_and_labels_outside_ascii(self) -> None:
        assert opened("spss/hebrews.sav").columns == ["ותק_ב"]
        umlauts = opened("spss/umlauts.sav").variables["var1"]
        assert umlauts.wording == "This is an ä-umlaut"
        assert umlauts.labels == {1: "the ä umlaut", 2: "the ü umlaut", 3: "the ö umlaut"}

    def test_labels_in_the_order_of_their_codes(self) -> None:
        variable = opened("spss/ordered_category.sav").variables["Col1"]
        assert list(variable.labels.items()) == [(1, "high"), (2, "low"), (3, "medium")]
        assert variable.measure == "ordinal"

    def test_labelled_text(self) -> None:
        table = opened("spss/labelled-str.sav")
        assert table.variables["gender"].categories == ("F", "M")
        assert next(iter(read_cells(table, [], ["gender"], []))).texts["gender"].to_pylist() == ["M", "F"]

    def test_wide_text(self) -> None:
        assert read(opened("spss/test_width.sav"), ["Finished"], ["ResponseId"])[1]["ResponseId"][0] == "R_0001xAxQxIo2PVH"

    @pytest.mark.parametrize("name", ["tagged-na-double", "tagged-na-int"])
    def test_tags_with_their_labels(self, name: str) -> None:
        table = opened(f"stata/{name}.dta")
        (batch,) = read_cells(table, ["x"], [], [])
        assert batch.tagged == {"x": {"a": 1, "h": 1, "z": 1}}
        np.testing.assert_array_equal(batch.numbers[:, 0], [1, 2, 3, 4, 5, np.nan, np.nan, np.nan])
        assert (table.variables["x"].tags, table.variables["x"].labels) == ({"a": "apple", "z": ".zebra"}, {})

    def test_tags_of_sas(self) -> None:
        table = opened("sas/missing_test.sas7bdat", labels=str(INPUTS / "sas" / "missing_formats.sas7bcat"))
        (batch,) = read_cells(table, table.columns, [], [])
        assert batch.tagged == {f"var{j}": {tag: 1} for j, tag in enumerate("ABCXYZ_", 1)}
        assert table.variables["var1"].tags == {"A": "missing"}
        np.testing.assert_array_equal(batch.numbers, [[np.nan] * 8 + [1]])

    def test_labels_come_from_the_catalogue(self) -> None:
        table = opened("sas/hadley.sas7bdat")
        assert not any(each.labels or each.categories for each in table.variables.values())
        labelled = opened("sas/hadley.sas7bdat", labels=str(INPUTS / "sas" / "hadley_formats.sas7bcat"))
        assert labelled.variables["workshop"].labels == {1: "R", 2: "SAS"}
        assert labelled.variables["gender"].categories == ("f", "m")
        assert labelled.variables["q1"].wording == "The instructor was well prepared"
        np.testing.assert_array_equal(raw(labelled, "q1", "q3"), raw(table, "q1", "q3"))

    def test_catalogues_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(ParameterError, match=r"with the formats A, expected one that a column uses \(\$GENDER, WORKSHOP\)"):
            opened("sas/hadley.sas7bdat", labels=str(INPUTS / "sas" / "missing_formats.sas7bcat"))
        with pytest.raises(ParameterError, match=r"no catalogue of SAS, expected a \.sas7bcat file"):
            opened("sas/hadley.sas7bdat", labels=str(INPUTS / "sas" / "hadley.sas7bdat"))

    def test_compressed_files_of_sas(self) -> None:
        np.testing.assert_allclose(raw(opened("sas/sample_bincompressed.sas7bdat"), "mynum")[:, 0], [1.1, 1.2, -1000.3, -1.4, 1000.3])

    def test_foreign_content_is_named(self) -> None:
        with pytest.raises(DataError, match=r"^encrypted\.sav is encrypted, .*save it without a password"):
            opened("spss/encrypted.sav")
        with pytest.raises(DataError, match=r"^idl_save_file\.sav does not have the format SPSS: its content is an IDL save file"):
            opened("spss/idl_save_file.sav")

    @pytest.mark.further
    def test_all_other_files_open(self) -> None:
        files = [path for room in ("spss", "stata", "sas") for path in (INPUTS / room).iterdir() if path.suffix != ".sas7bcat"]
        for path in files:
            if path.name not in ("encrypted.sav", "idl_save_file.sav"):
                table = open_table(path)
                assert list(table.variables) == table.columns
                assert all(len(batch.texts) > 0 for batch in read_cells(table, [], table.columns[:4], []))
        assert len(files) == 34


class TestWrittenHere:
    def test_portable_files_keep_declared_codes(self, tmp_path: Path) -> None:
        pyreadstat.write_por(pd.DataFrame({"q": [1.0, 2.0, 9.0, 8.0]}), tmp_path / "t.por", column_labels=["How often"])
        text = (tmp_path / "t.por").read_bytes().replace(b"\r\n", b"").rstrip(b"Z")
        text = text.replace(b"C9/How often", b"B8/9/C9/How often")  # a range of missing codes, before the label of the column
        lines = [text[i : i + 80].ljust(80, b"Z") for i in range(0, len(text), 80)]
        (tmp_path / "t.por").write_bytes(b"\r\n".join([*lines, b""]))
        table = open_table(tmp_path / "t.por")
        assert table.variables["Q"].missing == MissingCodes(ranges=((8, 9),))
        assert table.variables["Q"].wording == "How often"
        np.testing.assert_array_equal(raw(table)[:, 0], [1, 2, 9, 8])

    def test_what_sav_files_say(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"q": [1.0, 97, np.nan], "t": ["x", "Z", ""], "day": [1.0, 2, 3]})
        pyreadstat.write_sav(
            frame,
            tmp_path / "t.sav",
            column_labels=["How often?", "Text", ""],
            variable_value_labels={"q": {2: "often", 1: "never", 97: "refused"}, "t": {"x": "X", "Z": "none"}},
            missing_ranges={"q": [97, {"lo": 990, "hi": 999}], "t": ["Z"]},
            variable_measure={"q": "ordinal", "t": "nominal", "day": "scale"},
            variable_format={"day": "DATE11"},
        )
        q, t, day = open_table(tmp_path / "t.sav").variables.values()
        assert (q.type, q.wording, q.measure) == ("number", "How often?", "ordinal")
        assert q.labels == {1: "never", 2: "often", 97: "refused"}
        assert (set(q.missing.values), q.missing.ranges) == ({97}, ((990, 999),))
        assert (t.type, t.categories, t.missing) == ("text", ("x",), MissingCodes(("Z",)))
        assert (day.type, day.measure) == ("date", "scale")
        np.testing.assert_array_equal(raw(open_table(tmp_path / "t.sav"), "q")[:, 0], [1, 97, np.nan])

    @pytest.mark.parametrize(
        ("at", "value"),
        [(180, 255), (180, -2), (180, -1), (188, 4), (188, -4), ("labels", -(2**31)), ("labels", 3), ("count", 2**31 - 1), ("end", 8)],
    )
    def test_dictionaries_that_contradict_themselves_are_refused(self, at: int | str, value: int, tmp_path: Path) -> None:
        """ReadStat reads beyond its buffers in some of these files, which ends its process."""
        path = tmp_path / "t.sav"
        pyreadstat.write_sav(pd.DataFrame({"a": [1.0], "t": ["long text"]}), path, variable_value_labels={"a": {1: "yes"}})
        data = bytearray(path.read_bytes())
        record = data.index((3).to_bytes(4, "little") + (1).to_bytes(4, "little"), 176)
        columns = data.index((4).to_bytes(4, "little") + (1).to_bytes(4, "little") * 2, record)
        place = {"count": record + 4, "labels": columns + 8, "end": data.index((999).to_bytes(4, "little"))}.get(str(at), at)
        assert isinstance(place, int)
        data[place : place + 4] = value.to_bytes(4, "little", signed=True)
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"^t\.sav cannot be read"):
            open_table(path)

    def test_records_of_any_declared_size_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.sav"
        pyreadstat.write_sav(pd.DataFrame({"a": [1.0]}), path)
        data = bytearray(path.read_bytes())
        extension = data.index((7).to_bytes(4, "little"), 176)
        data[extension + 8 : extension + 16] = 2 * (2**31 - 1).to_bytes(4, "little")  # no file system has such a position
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"^t\.sav cannot be read"):
            open_table(path)

    def test_what_dta_files_say(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"q": [1, "a", "b", "b"], "i": pd.array([1, None, 3, 4], "Int64")})
        pyreadstat.write_dta(
            frame,
            tmp_path / "t.dta",
            column_labels=["How often?", ""],
            variable_value_labels={"q": {1: "never", "a": "refused"}},
            missing_user_values={"q": ["a", "b"]},
        )
        table = open_table(tmp_path / "t.dta")
        assert (table.variables["q"].labels, table.variables["q"].tags) == ({1: "never"}, {"a": "refused"})
        (batch,) = read_cells(table, ["q", "i"], ["i"], [])
        assert batch.tagged == {"q": {"a": 1, "b": 2}}
        np.testing.assert_array_equal(batch.numbers, [[1, 1], [np.nan, np.nan], [np.nan, 3], [np.nan, 4]])
        assert batch.texts["i"].to_pylist() == ["1", None, "3", "4"]

    def test_encodings_are_asked_for(self, tmp_path: Path) -> None:
        pyreadstat.write_xport(pd.DataFrame({"t": ["Zoe", "xyz"]}), tmp_path / "t.xpt", file_format_version=5)
        (tmp_path / "t.xpt").write_bytes((tmp_path / "t.xpt").read_bytes().replace(b"Zoe", "Zoë".encode("cp1252")))
        with pytest.raises(DataError, match=r"t\.xpt cannot be read in the format SAS transport: .*; pass encoding="):
            read(open_table(tmp_path / "t.xpt"), [], ["t"])
        table = open_table(tmp_path / "t.xpt", ReadOptions(encoding="windows-1252"))
        assert read(table, [], ["t"])[1] == {"t": ["Zoë", "xyz"]}
        with pytest.raises(DataError, match="its encoding is not utf-17: pass another"):
            read_cells(open_table(tmp_path / "t.xpt", ReadOptions(encoding="utf-17")), [], ["t"], [])

    @pytest.mark.further
    @pytest.mark.parametrize("version", [5, 8])
    def test_one_of_several_data_sets_is_chosen(self, version: int, tmp_path: Path) -> None:
        paths = [tmp_path / f"{name}.xpt" for name in ("first", "second")]
        for j, path in enumerate(paths):
            frame = pd.DataFrame({f"q{j}": [j, 2.0, 3.0], "t": ["a", "", "c"]})
            pyreadstat.write_xport(frame, path, file_format_version=version, table_name=path.stem)
        first, second = (path.read_bytes() for path in paths)
        (tmp_path / "both.xpt").write_bytes(first + second[240:])
        with pytest.raises(ParameterError, match=r"both\.xpt holds 2 datasets \((first, second|FIRST, SECOND)\), expected one; choose one"):
            open_table(tmp_path / "both.xpt")
        for name, table in (("first", open_table(paths[0])), ("second", open_table(paths[1]))):
            chosen = open_table(tmp_path / "both.xpt", ReadOptions(object=name))
            assert chosen.columns == table.columns
            np.testing.assert_array_equal(raw(chosen, chosen.columns[0]), raw(table, table.columns[0]))
        with pytest.raises(ParameterError, match=r"object is 'third', expected one of"):
            open_table(tmp_path / "both.xpt", ReadOptions(object="third"))

    @pytest.mark.parametrize("name", ["t.sav", "t.zsav", "t.por", "t.dta", "t.sas7bdat", "t.xpt"])
    @pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n" * 100, b"PK\x03\x04" + bytes(600)])
    def test_other_content_is_refused(self, name: str, content: bytes, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(content)
        found = "(does not have the format|is not an SPSS portable file)"
        with pytest.raises(DataError, match=rf"^{name} {found}.*; export it again, or correct its ending"):
            open_table(tmp_path / name)

    @pytest.mark.parametrize(
        ("find", "text", "expected"),
        [
            (spss._find_dates, "F8.2", None),
            (spss._find_dates, "WKDAY9", None),
            (spss._find_dates, "MOYR8", "1582-10"),
            (stata._find_dates, "%9.0g", None),
            (stata._find_dates, "%dN/D/Y", "1960-01-02"),
            (stata._find_dates, "%tcDD/NN/CCYY_HH:MM", "1960-01-01 00:00:00"),
            (stata._find_dates, "%tcHH:MM:SS", "00:00:00"),
            (stata._find_dates, "%tw", "1960w2"),
            (stata._find_dates, "%tm", "1960-02"),
            (stata._find_dates, "%tq", "1960-04"),
            (stata._find_dates, "%th", "1960-07"),
            (stata._find_dates, "%ty", "0001"),
            (sas._find_dates, "BEST12", None),
            (sas._find_dates, "$CHAR8", None),
            (sas._find_dates, "YYMMDD10", "1960-01-02"),
            (sas._find_dates, "E8601DA10", "1960-01-02"),
            (sas._find_dates, "DATETIME20", "1960-01-01 00:00:01"),
            (sas._find_dates, "TIME8", "00:00:01"),
        ],
    )
    def test_meaning_of_date_formats(self, find: Callable[[str], readstat.Dates | None], text: str, expected: str | None) -> None:
        dates = find(text)
        written = [None, None] if dates is None else dates.to_text(np.array([1.0, np.nan])).to_pylist()
        assert written == [expected, None]

    def test_whole_numbers_as_text_have_no_decimal_point(self, tmp_path: Path) -> None:
        frame = pd.DataFrame({"id": [1.0, np.nan, -3.0, 1e15], "age": [1.5, np.nan, -3.0, 0.25]})
        pyreadstat.write_sav(frame, tmp_path / "t.sav")
        texts = read(open_table(tmp_path / "t.sav"), [], ["age", "id"])[1]
        assert texts == {"age": ["1.5", None, "-3", "0.25"], "id": ["1", None, "-3", "1000000000000000"]}

    def test_more_rows_than_a_file_can_hold_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.dta"
        pd.DataFrame({"q": np.arange(50.0)}).to_stata(path, version=118, write_index=False)
        content = path.read_bytes()
        start = content.index(b"<N>") + 3
        path.write_bytes(content[:start] + (2**31 - 1).to_bytes(8, "little") + content[start + 8 :])
        with pytest.raises(DataError, match=r"t.dta .*export it again"):
            open_table(path).parts()
