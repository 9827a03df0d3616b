"""import_table: formats, columns, codes, ranges, positions of errors, memory."""

import codecs
import gzip
import json
import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dfact
from benchmarks.faults.fits import in_forked_process
from dfact import DataError, ParameterError, StoreError, import_table
from dfact.data.examples import ipip_ascado
from dfact.data.statistics import as_float
from dfact.imports.readers.text import delimited
from dfact.imports.tables import participants

FORMATS = ["t.csv", "t.CSV", "t.tsv", "t.txt", "t.csv.gz", "t.tsv.gz", "t.parquet"]
SEEDS = [0, 1]


def survey(seed, n=300, m=6):
    """Answers 1 to 5 with gaps (no row or column without any), an id, a continuous and a categorical confounder."""
    rng = np.random.default_rng(seed)
    answers = rng.integers(1, 6, (n, m)).astype(float)
    answers[rng.random((n, m)) < 0.3] = np.nan
    answers[:, 0] = rng.integers(1, 6, n)
    answers[:2, 1:] = [[1] * (m - 1), [5] * (m - 1)]
    frame = pd.DataFrame(answers, columns=[f"Q{j}" for j in range(m)])
    frame.insert(0, "id", [f"p{i:04}" for i in range(n)])
    frame["age"] = np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n).round(2))
    frame["sex"] = rng.choice(["f", "m"], n)
    return frame


def save(frame, path):
    """The frame in the format of the path's ending; answers as whole numbers where they are."""
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        answers = [name for name in frame if str(name).startswith("Q")]
        whole = (frame[answers].stack() % 1 == 0).all()
        text = frame.astype(dict.fromkeys(answers, "Int64")) if whole else frame
        text.to_csv(path, index=False, sep="," if ".csv" in path.name.lower() else "\t")
    return path


def written(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def answers_of(dataset):
    """The values in the file's units, NaN where missing."""
    values = as_float(dataset.source.read(0, dataset.shape[0]), dataset.missing_code, np.dtype(np.float64))
    return values + dataset.offset


def imported(tmp_path, text, name="t.csv", items="Q*", **options):
    return import_table(written(tmp_path / name, text), tmp_path / "d.zarr", items=items, **options)


def refused(tmp_path, text, match, kind=DataError, name="t.csv", items="Q*", **options):
    """Assert that the import fails with all parts of ``match`` in its message and leaves no files."""
    with pytest.raises(kind) as caught:
        imported(tmp_path, text, name, items, **options)
    for words in [match] if isinstance(match, str) else match:
        assert words in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


# ---------------------------------------------------------------- formats


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_every_format_gives_the_same_dataset(tmp_path, seed):
    frame = survey(seed)
    prints = set()
    for i, name in enumerate(FORMATS):
        (tmp_path / str(i)).mkdir()
        source = save(frame, tmp_path / str(i) / name)
        ds = import_table(source, tmp_path / f"{i}.zarr", items="Q*", id_column="id", confounders=["age", "sex"])
        np.testing.assert_array_equal(answers_of(ds), frame.filter(like="Q").to_numpy())
        np.testing.assert_array_equal(ds.confounders["age"], frame["age"])
        assert ds.confounders["sex"].tolist() == frame["sex"].tolist()
        assert ds.row_labels.tolist() == frame["id"].tolist()
        prints.add(ds.fingerprint)
    assert len(prints) == 1


@pytest.mark.further
@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float32", "Int32", "bool", "str", "category", "decimal"])
def test_parquet_types(tmp_path, kind):
    values = np.array([[0, 1, 1], [1, 0, 1]])
    columns = {f"Q{j}": values[:, j] for j in range(3)}
    if kind == "decimal":
        table = pa.table({name: pa.array(column).cast(pa.decimal128(21, 1)) for name, column in columns.items()})
    elif kind == "category":
        table = pa.table({name: pa.array(column.astype(str)).dictionary_encode() for name, column in columns.items()})
    else:
        table = pa.table({name: pa.array(pd.Series(column).astype(kind)) for name, column in columns.items()})
    pq.write_table(table, tmp_path / "t.parquet")
    ds = import_table(tmp_path / "t.parquet", tmp_path / "d.zarr", items="*")
    np.testing.assert_array_equal(answers_of(ds), values)
    assert ds.dtype == np.uint8


def test_parquet_with_mixed_types_nulls_and_dotted_names(tmp_path):
    table = pa.table({"a": [1, None, 3], "a.b": [True, False, None], "c": ["2", "NA", " 4"], "d": pa.array([None, 5, 1], pa.uint64())})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    ds = import_table(tmp_path / "t.parquet", tmp_path / "d.zarr", items=["d", "a.b", "c", "a"], missing="NA")
    np.testing.assert_array_equal(answers_of(ds), [[np.nan, 1, 2, 1], [5, 0, np.nan, np.nan], [1, np.nan, 4, 3]])


@pytest.mark.further
@pytest.mark.parametrize(
    "text",
    [
        'Q1,Q2\n"4","5"\n"",3\n',
        b"\xef\xbb\xbfQ1,Q2\n4,5\n,3\n",
        b'\xef\xbb\xbf"Q1","Q2"\r\n4,5\r\n,3\r\n\r\n\r\n',
        "\nQ1,Q2\n\n4.0, 5\n\n\nNaN,3e0",
        'Q1,note,Q2\n4,"two\nlines, and a ""quote""",5\n,x,3\n',
    ],
    ids=["quoted", "bom", "bom-crlf-blank-lines", "blank-lines-spaces", "line-break-in-cell"],
)
def test_ways_to_write_the_same_text(tmp_path, text):
    ds = imported(tmp_path, text)
    np.testing.assert_array_equal(answers_of(ds), [[4, 5], [np.nan, 3]])
    assert ds.column_labels.tolist() == ["Q1", "Q2"]


@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ";"), ("t.dat", "|"), ("t.txt", " ")])
def test_delimiter(tmp_path, name, delimiter):
    ds = imported(tmp_path, "Q1,Q2\n1,2\n3,4\n".replace(",", delimiter), name, delimiter=delimiter)
    np.testing.assert_array_equal(answers_of(ds), [[1, 2], [3, 4]])


@pytest.mark.further
def test_many_blocks_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 1 << 18)
    rng = np.random.default_rng(3)
    values = np.round(rng.normal(size=(2000, 150)), 6)
    frame = pd.DataFrame(values, columns=[f"Q{j}" for j in range(150)])
    done = []
    ds = import_table(save(frame, tmp_path / "t.csv"), tmp_path / "d.zarr", items="Q*", shift=False, progress=lambda *at: done.append(at))
    np.testing.assert_array_equal(answers_of(ds), values.astype(np.float32))
    size = (tmp_path / "t.csv").stat().st_size
    read, written = ([(n, total) for n, total, unit in done if unit == each] for each in ("bytes read", "rows written"))
    assert [at[:2] for at in done] == [*sorted(read), *sorted(written)]
    assert 0.9 * size < read[-1][0] == read[-1][1] <= size
    assert written[-1] == (2000, 2000)


@pytest.mark.further
def test_row_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 1 << 10)
    values = np.random.default_rng(0).random((3, 3000))
    text = ",".join(f"Q{j}" for j in range(3000)) + "\n" + "\n".join(",".join(map(str, row)) for row in values)
    np.testing.assert_array_equal(answers_of(imported(tmp_path, text, shift=False)), values.astype(np.float32))


# ---------------------------------------------------------------- columns


@pytest.mark.further
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("Q*", ["Q2", "Q1", "Q10"]),
        ("Q1", ["Q1"]),
        (["Q10", "Q1"], ["Q10", "Q1"]),
        (["x", "Q*"], ["x", "Q2", "Q1", "Q10"]),
        (["Q1", "Q*", "Q1"], ["Q1", "Q2", "Q10"]),
        ("Q?", ["Q2", "Q1"]),
        ("*", ["Q2", "x", "Q1", "[b]*", "Q10"]),
        ("[b]*", ["[b]*"]),
    ],
)
def test_items(tmp_path, items, expected):
    text = "id,Q2,x,Q1,[b]*,age,Q10\nu,2,7,1,3,30,0\nv,3,6,1,3,31,9\n"
    ds = imported(tmp_path, text, items=items, id_column="id", confounders={"age": "continuous"})
    assert ds.column_labels.tolist() == expected
    row = dict(zip(["Q2", "x", "Q1", "[b]*", "Q10"], [2, 7, 1, 3, 0], strict=True))
    assert answers_of(ds)[0].tolist() == [row[name] for name in expected]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"items": ["Q1", "Qq2"]}, ["t.csv", "'Qq2'", "closest are", "Q2"]),
        ({"items": "Z*"}, ["t.csv", "no column matches 'Z*'", "id, Q1, Q2, age"]),
        ({"id_column": "ID"}, ["t.csv", "'ID'"]),
        ({"confounders": ["agee"]}, ["t.csv", "'agee'", "age"]),
        ({"valid_range": {"Z*": (0, 1)}}, ["t.csv", "valid_range", "'Z*'"]),
        ({"valid_range": {"age": (0, 1)}}, ["valid_range", "'age'"]),
    ],
)
def test_unknown_column(tmp_path, options, match):
    refused(tmp_path, "id,Q1,Q2,age\na,1,2,3\n", match, **options)


def test_wrong_delimiter_is_named(tmp_path):
    refused(tmp_path, "Q1;Q2\n1;2;3\n", ["'Q1;Q2'", "delimiter="], items=["Q1"])


@pytest.mark.parametrize(
    "options",
    [
        {"items": []},
        {"items": ["Q1", "age"], "confounders": ["age"]},
        {"id_column": "age", "confounders": ["age"]},
        {"confounders": {"age": "number"}},
        {"missing": [None]},
        {"empty_rows": "keep"},
        {"delimiter": ",,"},
    ],
)
def test_wrong_argument(tmp_path, options):
    refused(tmp_path, "Q1,age\n1,2\n", "", ParameterError, **options)


def test_duplicate_column_name_is_refused(tmp_path):
    text = "Q1,Q2,Q1,c,c\n1,2,3,4,5\n"
    refused(tmp_path, text, ["t.csv", "2 columns named 'Q1'"])
    refused(tmp_path, text, ["2 columns named 'c'"], items=["Q2"], confounders=["c"])
    assert imported(tmp_path, text, items=["Q2"]).shape == (1, 1)


# ---------------------------------------------------------------- codes, types, ranges


@pytest.mark.further
@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ((), None),
        (["NA", "refused"], [[0, 1, 7], [-9, np.nan, 7], [np.nan, 9, 7], [5, 0, 7]]),
        ([0, "NA", "refused"], [[np.nan, 1, 7], [-9, np.nan, 7], [np.nan, 9, 7], [5, np.nan, 7]]),
        (["0", -9.0, "NA", "refused", np.nan], [[np.nan, 1, 7], [np.nan, np.nan, 7], [np.nan, 9, 7], [5, np.nan, 7]]),
    ],
)
@pytest.mark.filterwarnings("ignore:answers to 'Q1'")  # -9 and 9 are asked about
def test_missing_codes(tmp_path, missing, expected):
    text = 'Q1,Q2,Q3\n0,1,7\n-9,NA,7\n"refused",9,7\n5,0.0,7\n'
    if expected is None:
        refused(tmp_path, text, ["line 3", "'Q2'", "'NA'", "missing="], missing="refused", default_missing=False)
        refused(tmp_path, text, ["line 4", "'Q1'", "'refused'", "missing="], missing=missing)
    else:
        answers = {} if -9.0 in missing else {"not_missing": {"Q1": -9}}
        np.testing.assert_array_equal(answers_of(imported(tmp_path, text, missing=missing, **answers)), expected)


@pytest.mark.parametrize("missing", [0, "0", "0.0", (0,)])
def test_a_single_code(tmp_path, missing):
    np.testing.assert_array_equal(answers_of(imported(tmp_path, "Q1\n0\n2\n", missing=missing, empty_rows="drop")), [[2]])


@pytest.mark.further
@pytest.mark.parametrize(
    ("low", "high", "shift", "dtype"),
    [
        (0, 1, True, "uint8"),
        (1, 255, True, "uint8"),
        (0, 254, False, "uint8"),
        (0, 255, True, "int16"),
        (-1, 1, False, "int16"),
        (-100, 154, True, "uint8"),
        (-32767, 0, False, "int16"),
        (-32768, 0, False, "int32"),
        (1, 40000, True, "int32"),
        (-(2**31) + 1, 2**31 - 1, False, "int32"),
        (0, 2**31, True, "float64"),
        (0.5, 1, True, "float32"),
        (0.5, 1e300, True, "float64"),
    ],
)
def test_smallest_type_that_holds_the_answers(tmp_path, low, high, shift, dtype):
    ds = imported(tmp_path, f"Q1,Q2\n{low},{high}\n,{low}\n", shift=shift)
    assert ds.dtype == dtype
    assert ds.missing_code == {"uint8": 255, "int16": -(2**15), "int32": -(2**31)}.get(dtype)
    np.testing.assert_array_equal(answers_of(ds), [[low, high], [np.nan, low]])
    np.testing.assert_array_equal(ds.valid_range + ds.offset[:, None], [[low, high]] * 2)
    assert ds.valid_range[0, 0] == (0 if shift else low)


@pytest.mark.further
@pytest.mark.parametrize(
    ("valid_range", "limits"),
    [
        (None, [[1, 7], [1, 7], [1, 7]]),
        ((0, 10), [[0, 10]] * 3),
        ({"Q1": (0, 4), "R": (1, 9)}, [[0, 4], [2, 5], [1, 9]]),
        ({"Q*": (1, 5)}, [[1, 5], [1, 5], [3, 7]]),
        ({"Q1": (0, 4), "*": (-1, 8)}, [[0, 4], [-1, 8], [-1, 8]]),
    ],
)
@pytest.mark.parametrize("shift", [True, False])
def test_valid_range(tmp_path, valid_range, limits, shift):
    text = "Q1,Q2,R\n1,2,3\n4,5,7\n"
    ds = imported(tmp_path, text, items="*", valid_range=valid_range, shift=shift)
    lowest = np.array(limits)[:, 0] * shift
    np.testing.assert_array_equal(ds.offset, lowest)
    np.testing.assert_array_equal(ds.valid_range, np.array(limits) - lowest[:, None])
    np.testing.assert_array_equal(answers_of(ds), [[1, 2, 3], [4, 5, 7]])


def test_range_of_fractions_holds_after_rounding(tmp_path):
    ds = imported(tmp_path, "Q1,Q2\n0.1,0.7\n0.30000001,0.2\n", valid_range=(0.1, 0.7))
    values = ds.source.read(0, 2)
    assert values.dtype == np.float32
    assert (values >= ds.valid_range[:, 0]).all()
    assert (values <= ds.valid_range[:, 1]).all()


@pytest.mark.parametrize("lowest", [-16_385, -999_999_999])
def test_a_far_negative_answer_leaves_the_others_their_digits(tmp_path, lowest):
    text = f"Q1,Q2\n0.125,1.5\n{lowest},3.25\n2.75,4\n"
    dataset = imported(tmp_path, text)
    np.testing.assert_allclose(answers_of(dataset), [[0.125, 1.5], [lowest, 3.25], [2.75, 4]], atol=1e-6)


def test_a_range_that_leaves_the_answers_no_digits_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"t\.csv: the lowest valid answer is -1\.5e\+39 with answers up to 2\.5, expected a range"):
        imported(tmp_path, "Q1\n0.5\n2.5\n", valid_range=(-1.5e39, 4))
    assert not (tmp_path / "d.zarr").exists()
    with pytest.raises(DataError, match=r"the lowest valid answer is -1e\+20 with answers up to 4"):
        imported(tmp_path, "Q1\n1\n4\n", valid_range=(-1e20, 4))
    for text, valid_range in (("Q1\n-2e39\n2.5e39\n", (-1e40, 1e40)), ("Q1,Q2\n0,0.5\n0,1\n", (-1, 4))):
        imported(tmp_path, text, valid_range=valid_range)
        shutil.rmtree(tmp_path / "d.zarr")


def test_range_with_a_fraction_keeps_fractions(tmp_path):
    ds = imported(tmp_path, "Q1\n1\n2\n", valid_range=(0.5, 3))
    assert ds.dtype == np.float32
    np.testing.assert_array_equal(answers_of(ds), [[1], [2]])


@pytest.mark.parametrize("valid_range", [(5, 1), (0, 1, 2), (0, np.inf), {"Q1": (5, 1)}, {"Q1": 3}])
def test_wrong_range(tmp_path, valid_range):
    refused(tmp_path, "Q1\n1\n", "valid_range", valid_range=valid_range)


# ---------------------------------------------------------------- errors with their position


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("row", [0, 5, 299])
def test_every_error_names_column_and_line(tmp_path, name, row):
    position = f"row {row} " if name == "t.parquet" else f"line {row + 2}"
    good = survey(row)
    cases = [
        ("Q3", 77, {"valid_range": (1, 5)}, ["holds 77", "range 1 to 5", "missing=", "valid_range="]),
        ("Q3", -1, {"valid_range": {"Q3": (0, 5)}}, ["holds -1", "range 0 to 5"]),
        ("Q2", np.inf, {}, ["infinite"]),
        ("Q2", -np.inf, {"valid_range": (1, 5)}, ["infinite"]),
        ("Q1", "often", {}, ["'often'", "expected a number", "missing=", "items="]),
        ("id", "", {"id_column": "id"}, ["no id"]),
        ("id", "p0100", {"id_column": "id"}, ["'p0100'", "expected unique ids"]),
        ("age", "old", {"confounders": ["age"]}, ["'old'", "confounder_missing=", "categorical"]),
        ("age", np.inf, {"confounders": {"age": "continuous"}}, ["finite"]),
    ]
    for column, value, options, words in cases:
        frame = good.astype({column: object})
        frame.loc[row, column] = value
        if name == "t.parquet" and isinstance(value, str):
            frame[column] = frame[column].map(str, na_action="ignore")
        source = save(frame.astype({"Q1": object}), tmp_path / name) if column != "Q1" else _saved_as_text(frame, tmp_path / name)
        with pytest.raises(DataError) as caught:
            import_table(source, tmp_path / "d.zarr", items="Q*", **options)
        for part in [name, column, position, *words]:
            assert part in str(caught.value), (part, str(caught.value))
        assert [path.name for path in tmp_path.iterdir()] == [name]


def _saved_as_text(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="," if ".csv" in path.name.lower() else "\t")
    return path


@pytest.mark.further
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_error_after_cells_of_several_lines_names_the_line(tmp_path, name):
    rows = ['1,"a\nb",2'] * 100_000
    text = "Q1,note,Q2\n" + "\n".join([*rows, "", '3,x,"no"', *rows[:9]])
    refused(tmp_path, text, ["line 200003", "'Q2'", "'no'"], name=name)
    refused(tmp_path, text.replace('"no"', "8"), ["line 200003", "'Q2'", "holds 8"], name=name, valid_range=(1, 5))


@pytest.mark.parametrize(("row", "count"), [("1", 1), ("1,2,3", 3)])
def test_row_of_the_wrong_length(tmp_path, row, count):
    refused(tmp_path, f"Q1,Q2\n1,2\n\n{row}\n4,5\n", ["t.csv", "line 4", f"{count} cells", "expected 2"])


@pytest.mark.parametrize("rows", [3, 500_000])
def test_quotation_mark_that_is_not_closed(tmp_path, rows):
    refused(tmp_path, 'Q1,Q2\n1,2\n1,"2\n' + "3,4\n" * rows, ["t.csv", "line 3"])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"Q1,Q2", "no rows"),
        (b"Q1,Q2\n", "no rows"),
        ("Q1,Qé\n1,2\n".encode("latin-1"), "not UTF-8"),
        (codecs.BOM_UTF16_LE + b"Q", "byte 0x51 at 2 is not utf-16"),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz"])
def test_file_without_a_table_is_refused(tmp_path, name, data, match):
    refused(tmp_path, data, [name, match], name=name)


def test_text_that_is_not_utf8(tmp_path):
    text = "Q1,note,sex\n1,é,m\n2,o,é\n".encode("latin-1")
    refused(tmp_path, text, ["t.csv: byte 0xe9 at 14 is not UTF-8", "say --encoding cp1252, latin-1 or mac-roman"], confounders=["sex"])
    assert imported(tmp_path, text).shape == (2, 1)


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(StoreError, match=r"gone\.csv does not exist"):
        import_table(tmp_path / "gone.csv", tmp_path / "d.zarr", items="*")
    with pytest.raises(DataError, match="is a folder without files of a table"):
        import_table(tmp_path, tmp_path / "d.zarr", items="*")
    refused(tmp_path, "Q1\n1\n", ["'.doc'", ".parquet"], ParameterError, name="t.doc")


def test_damaged_file(tmp_path):
    refused(tmp_path, b"no parquet", ["t.parquet", "parquet", "begins with"], DataError, name="t.parquet")
    (tmp_path / "t.parquet").unlink()
    source = written(tmp_path / "t.csv.gz", "Q1\n" + "".join(f"{i * 7919 % 100003}\n" for i in range(200_000)))
    source.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    with pytest.raises(StoreError, match=r"t\.csv\.gz cannot be read"):
        import_table(source, tmp_path / "d.zarr", items="*")


def test_parquet_with_dates(tmp_path):
    pd.DataFrame({"Q1": [1], "day": [pd.Timestamp("2026-01-01")]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"column 'day' is a date"):
        import_table(tmp_path / "t.parquet", tmp_path / "d.zarr", items=["Q1", "day"])
    assert list(import_table(tmp_path / "t.parquet", tmp_path / "d.zarr", items="*").column_labels) == ["Q1"]


# ---------------------------------------------------------------- empty rows and columns, ids, confounders


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_empty_rows(tmp_path, name, seed):
    frame = survey(seed)
    empty = [4, 17, 299]
    frame.loc[empty, [f"Q{j}" for j in range(6)]] = np.nan
    source = save(frame, tmp_path / name)
    position = "row 4 " if name == "t.parquet" else "line 6"
    with pytest.raises(DataError, match=rf"{position}.*empty_rows='drop'"):
        import_table(source, tmp_path / "d.zarr", items="Q*")
    ds = import_table(source, tmp_path / "d.zarr", items="Q*", id_column="id", confounders=["sex"], empty_rows="drop")
    kept = frame.drop(index=empty)
    assert ds.dropped_rows == 3
    np.testing.assert_array_equal(answers_of(ds), kept.filter(like="Q").to_numpy())
    assert ds.row_labels.tolist() == kept["id"].tolist()
    assert ds.confounders["sex"].tolist() == kept["sex"].tolist()


def test_rows_keep_their_numbers_where_some_are_dropped(tmp_path):
    ds = imported(tmp_path, "Q1,Q2\n1,2\n,\n3,4\n", empty_rows="drop")
    assert ds.row_labels.tolist() == ["0", "2"]


@pytest.mark.parametrize("empty_rows", ["error", "drop"])
def test_empty_column(tmp_path, empty_rows):
    refused(tmp_path, "Q1,Q2\n1,\n2,9\n", ["t.csv", "'Q2'", "no answer"], missing=9, empty_rows=empty_rows)


def test_ids_stay_as_written(tmp_path):
    ds = imported(tmp_path, "id,Q1\n007,1\n7,2\nNA,3\n", id_column="id", missing="NA")
    assert ds.row_labels.tolist() == ["007", "7", "NA"]


def test_kinds_of_confounders(tmp_path):
    rows = "".join(f"1,{i + 20},{i % 2 + 1},{'ab'[i % 2]},{i % 3}\n" for i in range(12))
    text = "Q1,age,sex,site,group\n" + rows
    ds = imported(tmp_path, text, confounders=["age", "sex", "site", "group"])
    assert [str(dtype) for dtype in ds.confounders.dtypes] == ["float64", "category", "category", "category"]
    assert ds.confounders["sex"].cat.categories.tolist() == ["1", "2"]
    kinds = {"age": "categorical", "sex": "continuous"}
    ds = imported(tmp_path, text, confounders=kinds, overwrite=True)
    assert [str(dtype) for dtype in ds.confounders.dtypes] == ["category", "float64"]
    assert ds.confounders["age"].tolist()[:2] == ["20", "21"]


@pytest.mark.parametrize("rows", [1, 4, 1 << 20])
def test_missing_confounders_are_recognized(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(participants, "_PARSED_ROWS", rows)
    text = 'Q1,a,b\n0,0,x\n1,1.0,\n2,1,NA\n3,-9," "\n4,nan,NaN\n5,,y\n'
    ds = imported(tmp_path, text, confounders=["a", "b"], missing=[5], confounder_missing=[-9, "NA"], empty_rows="drop")
    assert ds.confounders["a"].astype(object).where(ds.confounders["a"].notna(), None).tolist() == ["0", "1", "1", None, None]
    assert ds.confounders["b"].astype(object).where(ds.confounders["b"].notna(), None).tolist() == ["x", None, None, None, None]


def test_bool_confounder_of_parquet_is_written_as_in_csv(tmp_path):
    frame = pd.DataFrame({"Q1": [1, 2], "smoker": [True, False]})
    ds = import_table(save(frame, tmp_path / "t.parquet"), tmp_path / "d.zarr", items="Q1", confounders="smoker")
    assert ds.confounders["smoker"].tolist() == ["True", "False"]


def test_confounder_without_any_value(tmp_path):
    refused(tmp_path, "Q1,a\n1,\n2,-9\n", ["'a'", "no value"], confounders=["a"], confounder_missing=-9)


def test_text_confounder_with_numbers_among_it_is_categorical(tmp_path):
    ds = imported(tmp_path, "Q1,a\n1,1\n2,2\n3,other\n", confounders=["a"])
    assert ds.confounders["a"].tolist() == ["1", "2", "other"]


# ---------------------------------------------------------------- all or nothing


def test_existing_path(tmp_path):
    first = imported(tmp_path, "Q1\n1\n2\n")
    # Refused before the table is read: there is none.
    with pytest.raises(StoreError, match="exists already"):
        import_table(tmp_path / "gone.csv", tmp_path / "d.zarr", items="*")
    with pytest.raises(DataError, match="infinite"):
        imported(tmp_path, "Q1\ninf\n", overwrite=True)
    assert dfact.open_dataset(tmp_path / "d.zarr").fingerprint == first.fingerprint
    assert imported(tmp_path, "Q1\n1\n3\n", overwrite=True).fingerprint != first.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "t.csv"]


def test_interrupt_leaves_no_partial_store_and_keeps_an_old_dataset(tmp_path):
    first = imported(tmp_path, "Q1\n1\n2\n")

    def interrupt(*_):
        raise KeyboardInterrupt

    for path in ["d.zarr", "e.zarr"]:
        with pytest.raises(KeyboardInterrupt):
            import_table(tmp_path / "t.csv", tmp_path / path, items="*", progress=interrupt, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "t.csv"]
    assert dfact.open_dataset(tmp_path / "d.zarr").fingerprint == first.fingerprint


def test_file_changed_during_import_is_refused(tmp_path):
    def change(*_):
        os.utime(tmp_path / "t.csv", (1, 1))

    refused(tmp_path, "Q1\n1\n2\n", ["t.csv", "changed"], progress=change)


# ---------------------------------------------------------------- real data, memory


def test_ipip(tmp_path):
    items = ["AS*", "SC*", "AD*", "DO*"]
    options = {"items": items, "confounders": ["age", "gender"], "missing": [0]}
    raw = pd.read_csv(ipip_ascado())
    answers = raw.iloc[:, :40].astype(float).where(raw.iloc[:, :40] != 0)
    empty = np.flatnonzero(answers.isna().all(axis=1))
    assert len(empty) == 1
    with pytest.raises(DataError, match=f"line {empty[0] + 2} "):
        import_table(ipip_ascado(), tmp_path / "d.zarr", **options)
    ds = import_table(ipip_ascado(), tmp_path / "d.zarr", confounder_missing=0, empty_rows="drop", **options)
    assert (ds.shape, ds.dtype, ds.missing_code, ds.dropped_rows) == ((1004, 40), np.uint8, 255, 1)
    assert (ds.offset == 1).all()
    assert (ds.valid_range == [0, 4]).all()
    np.testing.assert_array_equal(answers_of(ds), answers.drop(index=empty))
    assert sorted(ds.confounders["gender"].cat.categories) == ["1", "2", "3"]
    np.testing.assert_array_equal(ds.confounders["age"], raw["age"].drop(index=empty))


@pytest.mark.exhaustive
@pytest.mark.process
def test_memory_does_not_grow_with_the_file(tmp_path):
    m, repeats = 400, 10
    values = np.random.default_rng(0).integers(1, 6, (5000, m), np.uint8)
    header = [f"Q{j}" for j in range(m)]
    # Single digits between commas, as bytes.
    text = np.full((len(values), 2 * m), ord(","), np.uint8)
    text[:, ::2] = values + ord("0")
    text[:, -1] = ord("\n")
    batch = pa.record_batch(list(np.ascontiguousarray(values.T)), header)
    for size, times in (("small", 1), ("big", repeats)):
        (tmp_path / f"{size}.csv").write_bytes(",".join(header).encode() + b"\n" + text.tobytes() * times)
        with pq.ParquetWriter(tmp_path / f"{size}.parquet", batch.schema) as out:
            for _ in range(times):
                out.write_batch(batch)
    csv, parquet = json.loads(in_forked_process("tests.data.forked", "peaks_of_tables", json.dumps([str(tmp_path)])))
    assert csv[:2] == parquet[:2]
    assert csv[0] == 5000 * repeats
    # 40 MB of text, 160 MB as numbers; two tasks of at most 50 MB.
    assert csv[2] < 100
    assert parquet[2] < 100
