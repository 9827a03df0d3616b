"""import_triplets: labels and numbers, duplicates, positions of errors, memory."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import in_forked_process
from dfact import DataError, ParameterError, StoreError, import_triplets
from dfact.cli.main import main
from dfact.data.sources.sparse import StoredCSRSource
from dfact.imports.arrays import triplets as triplets_module
from dfact.imports.readers.columnar import columns
from dfact.imports.readers.text import delimited
from dfact.imports.writing import bucket_file
from dfact.imports.writing.bucket_file import BucketFile

SEEDS = [0, 1]
FORMATS = ["t.csv", "t.tsv", "t.csv.gz", "t.txt.gz", "t.parquet"]


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables in many batches, distributed in many parts to many buckets."""
    monkeypatch.setattr(triplets_module, "_BUCKET_ENTRIES", 50)
    monkeypatch.setattr(triplets_module, "_BATCH_ENTRIES", 70)
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", 512)
    monkeypatch.setattr(columns, "BATCH_ENTRIES", 100)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, in which the import may leave nothing."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert not list(folder.glob("dfact-triplets*"))


def ratings(seed: int, n: int = 60, m: int = 14, share: float = 0.3, kind: str = "tenths") -> tuple[pd.DataFrame, NDArray[Any]]:
    """Shuffled triplets with numbers of rows and columns, and the array with NaN where there is none."""
    rng = np.random.default_rng(seed)
    values = {"tenths": rng.normal(0, 3, (n, m)).round(1), "whole": rng.integers(-5, 300, (n, m)).astype(float)}[kind]
    values[rng.random((n, m)) > share] = np.nan
    values[rng.integers(n)] = np.nan
    rows, columns = np.nonzero(~np.isnan(values))
    order = rng.permutation(len(rows))
    rows, columns = rows[order], columns[order]
    return pd.DataFrame({"row": rows, "column": columns, "value": values[rows, columns]}), values


def labelled(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"user": [f"Käthe {i}" for i in frame["row"]], "film": [f"f,{j}" for j in frame["column"]], "stars": frame["value"]}
    )


def save(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="," if ".csv" in path.name else "\t")
    return path


def written(path: Path, text: str | bytes) -> Path:
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def dense(dataset: dfact.Dataset) -> NDArray[Any]:
    return np.asarray(dataset.source.read(0, dataset.shape[0]))


USER = {"row": "user", "column": "film", "value": "stars"}

# ---------------------------------------------------------------- round trips


@pytest.mark.further
@pytest.mark.parametrize(("seed", "kind", "small"), [(0, "tenths", False), (1, "whole", False), (2, "tenths", True), (0, "whole", True)])
def test_numbers_in_every_format(tmp_path: Path, seed: int, kind: str, small: bool, request: pytest.FixtureRequest) -> None:
    if small:
        request.getfixturevalue("small_runs")
    prints = set()
    for i, name in enumerate(FORMATS):
        frame, values = ratings(seed, kind=kind)
        frame = frame.sample(frac=1, random_state=i)  # another order each time
        (tmp_path / str(i)).mkdir()
        dataset = import_triplets(save(frame, tmp_path / str(i) / name), tmp_path / f"{i}.zarr", shape=values.shape)
        assert dataset.dtype == ("int16" if kind == "whole" else "float32")
        np.testing.assert_array_equal(dense(dataset), values.astype(np.float32))
        assert isinstance(dataset.source, StoredCSRSource)
        assert dataset.missing_rate == pytest.approx(np.isnan(values).mean())
        assert dataset.label_source is None
        assert dataset.column_labels.tolist() == [str(j) for j in range(values.shape[1])]
        prints.add(dataset.fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("seed", "name"), list(zip([0, 1, 0, 1, 0], FORMATS, strict=True)))
def test_labels_as_they_first_appear(tmp_path: Path, seed: int, name: str, small: bool, request: pytest.FixtureRequest) -> None:
    if small:
        request.getfixturevalue("small_runs")
    frame = labelled(ratings(seed)[0])
    dataset = import_triplets(save(frame, tmp_path / name), tmp_path / "d.zarr", **USER)
    assert dataset.row_labels.tolist() == frame["user"].unique().tolist()
    assert dataset.column_labels.tolist() == frame["film"].unique().tolist()
    expected = frame.pivot_table(values="stars", index="user", columns="film").loc[dataset.row_labels, dataset.column_labels]
    np.testing.assert_array_equal(dense(dataset), expected.to_numpy(np.float32))


@pytest.mark.further
def test_labels_may_be_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": [30, 7, 30], "column": [1.5, 1.5, -2], "value": [1, 2, 3]})
    for name in ("t.csv", "t.parquet"):
        dataset = import_triplets(save(frame, tmp_path / name), tmp_path / f"{name}.zarr")
        assert dataset.row_labels.tolist() == ["30", "7"]
        assert [float(label) for label in dataset.column_labels] == [1.5, -2]
        np.testing.assert_array_equal(dense(dataset), [[1, 3], [2, np.nan]])


def test_labels_of_missing_values_are_kept(tmp_path: Path) -> None:
    text = "row,column,value\na,x,\nb,y,2\nc,x,NA\nb,z,-9\na,y,nan\nb,x,4\nd,y,NA\n"
    dataset = import_triplets(written(tmp_path / "t.csv", text), tmp_path / "d.zarr", missing=["NA", -9])
    assert dataset.row_labels.tolist() == ["a", "b", "c", "d"]
    assert dataset.column_labels.tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(dense(dataset), [[np.nan] * 3, [4, 2, np.nan], [np.nan] * 3, [np.nan] * 3])
    statistics = dataset.statistics
    assert (statistics.n_empty_rows, statistics.empty_rows, dataset.dropped_rows) == (3, [0, 2, 3], 0)
    assert statistics.observed.tolist() == [1, 1, 0]
    assert dataset.valid_range.tolist() == [[2, 4]] * 3


def test_rows_and_columns_without_any_entry(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": [3, 3], "column": [1, 4], "value": [0.5, 2]})
    dataset = import_triplets(save(frame, tmp_path / "t.csv"), tmp_path / "d.zarr", shape=(6, 5))
    expected = np.full((6, 5), np.nan)
    expected[3, [1, 4]] = 0.5, 2
    np.testing.assert_array_equal(dense(dataset), expected)
    assert dataset.statistics.n_empty_rows == 5
    with pytest.raises(DataError, match="column '0' has no observed entry"):
        dfact.ICQF(2).fit(dataset)
    data = import_triplets(written(tmp_path / "u.csv", "row,column,value\na,x,\nb,y,2\nb,x,4\nc,x,1\n"), tmp_path / "u.zarr")
    with pytest.warns(UserWarning, match=r"row 'a' has no observed entry \(1 in total\)"):
        dfact.ICQF(1).fit(data)


@pytest.mark.further
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 254], "uint8"),
        ([0, 255], "int16"),
        ([-1, 5], "int16"),
        ([0, 1 << 20], "int32"),
        ([0, 1 << 40], "float64"),
        ([0.5, 3], "float32"),
        ([0.5, 1e300], "float64"),
    ],
)
def test_stored_types(tmp_path: Path, values: list[float], dtype: str) -> None:
    frame = pd.DataFrame({"row": [0, 1], "column": [1, 0], "value": values})
    dataset = import_triplets(save(frame, tmp_path / "t.csv"), tmp_path / "d.zarr", shape=(2, 2))
    assert dataset.dtype == dtype
    np.testing.assert_array_equal(dense(dataset), [[np.nan, values[0]], [values[1], np.nan]])


def test_xarray_opens_it_and_a_fit_is_that_of_the_array(tmp_path: Path) -> None:
    frame, values = ratings(0, n=200, share=0.6, kind="whole")
    frame["value"] += 5
    values += 5
    data = import_triplets(save(frame, tmp_path / "t.csv"), tmp_path / "d.zarr", shape=values.shape)
    assert set(xr.open_zarr(tmp_path / "d.zarr").data_vars) >= {"observed", "minimum"}
    with pytest.warns(UserWarning, match="no observed entry"):
        found, expected = (dfact.ICQF(2, bounds=(0, 310), max_iter=20).fit(X) for X in (data, values.astype(np.float32)))
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("small_runs")
def test_progress_and_overwrite(tmp_path: Path) -> None:
    frame, values = ratings(0)
    source = save(frame, tmp_path / "t.csv")
    done: list[tuple[int, int]] = []
    for _ in range(2):
        import_triplets(source, tmp_path / "d.zarr", shape=values.shape, overwrite=True, progress=lambda *now: done.append(now))
    assert done[-1] == (60, 60)
    assert len(done) > 8
    with pytest.raises(StoreError, match="exists already"):
        import_triplets(source, tmp_path / "d.zarr", shape=values.shape)


# ---------------------------------------------------------------- duplicates


@pytest.mark.parametrize(("seed", "small"), [(0, False), (1, True)])
@pytest.mark.parametrize("rule", ["mean", "first", "last", "sum"])
def test_duplicates(tmp_path: Path, seed: int, rule: str, small: bool, request: pytest.FixtureRequest) -> None:
    if small:
        request.getfixturevalue("small_runs")
    rng = np.random.default_rng(seed)
    n = 1000
    frame = pd.DataFrame({"row": rng.integers(0, 20, n), "column": rng.integers(0, 15, n), "value": rng.integers(0, 90, n)})
    dataset = import_triplets(save(frame, tmp_path / "t.csv"), tmp_path / "d.zarr", shape=(20, 15), duplicates=rule)
    expected = frame.groupby(["row", "column"])["value"].agg(rule).unstack().reindex(index=range(20), columns=range(15))
    np.testing.assert_array_equal(dense(dataset), expected.to_numpy(np.float32))
    highest = expected.max(axis=None)
    assert dataset.dtype == ("float32" if rule == "mean" else "uint8" if highest < 255 else "int16")


def test_infinite_sum_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "row,column,value\na,x,1.5e308\na,x,1.5e308\n", "row 0, column 'x' is infinite", duplicates="sum")


def test_missing_value_is_no_duplicate(tmp_path: Path) -> None:
    dataset = import_triplets(written(tmp_path / "t.csv", "row,column,value\na,x,1\na,x,\n"), tmp_path / "d.zarr")
    np.testing.assert_array_equal(dense(dataset), [[1]])


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_the_first_duplicate_is_named(tmp_path: Path, name: str) -> None:
    lines = [f"p{i},c{i % 7},1" for i in range(300)]
    lines[211] = lines[17]
    refused(
        tmp_path,
        "\n".join(["row,column,value", *lines, lines[100]]) + "\n",
        ["t.csv", "row 'p17' and column 'c3' have values at line 19 and line 213", "duplicates= 'mean', 'first'"],
        name=name,
    )


def test_a_duplicate_of_numbers_is_named(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": [3, 1, 3], "column": [2, 0, 2], "value": [1.0, 2, 3]})
    with pytest.raises(DataError, match=r"row 3 and column 2 have values at row 0 .* and row 2 "):
        import_triplets(save(frame, tmp_path / "t.parquet"), tmp_path / "d.zarr", shape=(4, 4))


# ---------------------------------------------------------------- what is refused


def refused(
    tmp_path: Path, text: str | bytes, match: str | list[str], kind: type[Exception] = DataError, name: str = "t.csv", **options: Any
) -> None:
    """Assert that the import fails with all parts of ``match`` in its message and leaves no files."""
    source = written(tmp_path / name, text)
    with pytest.raises(kind) as caught:
        import_triplets(source, tmp_path / "d.zarr", **options)
    for words in [match] if isinstance(match, str) else match:
        assert words in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


HEAD = "row,column,value\n"
SHAPE = {"shape": (3, 4)}


@pytest.mark.parametrize(
    ("text", "match", "options"),
    [
        (HEAD + "a,x,1\n\nb,y,inf\n", "t.csv: line 4, column 'value' is infinite", {}),
        (HEAD + "a,x,1\nb,y,-inf\n", "t.csv: line 3, column 'value' is infinite", {}),
        (HEAD + "a,x,1\nb,y,good\n", "t.csv: line 3, column 'value' holds the text 'good', expected a number", {}),
        (HEAD + "a,x,1\n,y,2\n", "t.csv: line 3 has no label in column 'row', expected one in every triplet", {}),
        (HEAD + 'a,x,1\nb,"  ",2\n', "t.csv: line 3 has no label in column 'column'", {}),
        (HEAD + "a,x,1\nb,y\n", "line 3 has 2 cells, expected 3", {}),
        (HEAD, "has a header but no rows", {}),
        (HEAD + "a,x,\nb,y,NA\n", "t.csv: no triplet has a value, expected at least one", {"missing": "NA"}),
        (HEAD + "0,0,1\n-1,0,1\n", "line 3, column 'row' holds -1, expected a whole number from 0 to 2", SHAPE),
        (HEAD + "0,0,1\n1,0,1\n1,4,1\n", "line 4, column 'column' holds 4, expected a whole number from 0 to 3", SHAPE),
        (HEAD + "0,0,1\n3,0,1\n", "line 3, column 'row' holds 3, expected a whole number from 0 to 2", SHAPE),
        (HEAD + "0,0,1\n1.5,0,1\n", "line 3, column 'row' holds 1.5, expected a whole number", SHAPE),
        (HEAD + "0,0,1\n1,,1\n", "line 3, column 'column' is empty, expected a whole number", SHAPE),
        (HEAD + "0,0,1\n1,inf,1\n", "line 3, column 'column' holds inf, expected a whole number", SHAPE),
        (HEAD + "0,0,1\nb,0,1\n", "line 3, column 'row' holds the text 'b', expected a number", SHAPE),
        (HEAD + "a,x,1\n", "there is no column 'rows'; the closest are row", {"row": "rows"}),
        (HEAD + "a,x,1\n", "there is no column 'stars'; its columns are row, column, value", {"value": "stars"}),
        (
            "row;column;value\na;x;1;2\n",
            "its entire header is one column, 'row;column;value'; name the separator: delimiter= (--delimiter)",
            {},
        ),
        ("row,column,value,row\na,x,1,b\n", "t.csv has 2 columns named 'row'", {}),
    ],
)
def test_invalid_triplets_are_refused(tmp_path: Path, text: str, match: str, options: dict[str, Any]) -> None:
    refused(tmp_path, text, match, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"duplicates": "max"}, "duplicates is 'max', expected one of 'error', 'mean', 'first', 'last', 'sum'"),
        ({"shape": 4}, "shape is 4, expected a pair of whole numbers from 1"),
        ({"shape": (3, 0)}, "shape is (3, 0), expected a pair"),
        ({"shape": (3, 1 << 31)}, "expected a pair of whole numbers from 1 to 2147483647"),
        ({"shape": (3, 2, 1)}, "expected a pair"),
        ({"column": "row"}, "row, column and value are 'row', 'row' and 'value', expected three different columns"),
        ({"missing": [None]}, "the code for a missing value is None, expected a number or a text"),
        ({"missing": ["\udcff"]}, "is not valid text, expected UTF-8"),
        ({"delimiter": ",,"}, "delimiter is ',,', expected comma, tab, semicolon, pipe, space or one ASCII character"),
    ],
)
def test_invalid_parameters_are_refused(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    refused(tmp_path, HEAD + "0,0,1\n", match, ParameterError, **options)


@pytest.mark.parametrize("kind", ["row", "column", "value"])
def test_error_in_parquet_names_the_row(tmp_path: Path, kind: str) -> None:
    columns: dict[str, list[Any]] = {"row": ["a", "b"], "column": ["x", "y"], "value": [1.0, 2.0]}
    columns[kind][1] = None if kind != "value" else np.inf
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\)"):
        import_triplets(tmp_path / "t.parquet", tmp_path / "d.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_missing_source_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        import_triplets(tmp_path / "t.csv", tmp_path / "d.zarr")


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("when", [1, 3, 5])
def test_source_changed_during_import_is_refused(tmp_path: Path, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, values = ratings(0, share=0.9)
    source, add = save(frame, tmp_path / "t.csv"), BucketFile.add
    seen: list[int] = []

    def grow(self: BucketFile, buckets: NDArray[Any], entries: NDArray[Any]) -> None:
        add(self, buckets, entries)
        seen.append(len(entries))
        if len(seen) == when:
            with source.open("a") as file:
                file.write("0,0,1\n" * 500)

    monkeypatch.setattr(BucketFile, "add", grow)
    with pytest.raises(DataError, match="changed while it was read; import it again"):
        import_triplets(source, tmp_path / "d.zarr", shape=values.shape)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("where", ["add", "read", "replace"])
def test_interrupt_leaves_no_partial_store(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = import_triplets(written(tmp_path / "t.csv", HEAD + "a,x,1\n"), tmp_path / "d.zarr").fingerprint

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BucketFile, where, stop)
    with pytest.raises(KeyboardInterrupt):
        import_triplets(written(tmp_path / "t.csv", HEAD + "a,x,2\n"), tmp_path / "d.zarr", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "t.csv"]
    assert dfact.open_dataset(tmp_path / "d.zarr").fingerprint == old


def test_a_full_temporary_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_file, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b", buffering=0))  # noqa: SIM115
    refused(tmp_path, HEAD + "a,x,1\n", ["cannot sort the triplets in", "No space left", "set TMPDIR"], StoreError)


# ---------------------------------------------------------------- buckets


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_cut_into_buckets_of_bounded_size(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triplets_module, "_BUCKET_ENTRIES", 40)
    counts = np.random.default_rng(seed).choice([0, 1, 60, 7], 50)
    bounds, sizes = triplets_module._cut_rows(counts)
    assert (bounds[0], bounds[-1]) == (0, 50)
    for start, stop, size in zip(bounds[:-1], bounds[1:], sizes, strict=True):
        assert stop > start
        assert size == counts[start:stop].sum()
        assert size <= 40 or stop - start == 1


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("seed", SEEDS)
def test_buckets_hold_their_records_in_order(seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.choice(np.repeat(np.arange(-1, 20), rng.choice([0, 1, 60], 21)), 500)
    records = np.arange(500 * np.prod(shape, dtype=int), dtype=np.int32).reshape(500, *shape)
    with BucketFile(np.bincount(numbers + 1, minlength=21)[1:], records.dtype, shape, purpose="test", what="records") as buckets:
        for part in np.array_split(np.arange(500), 7):
            buckets.add(numbers[part], records[part])
        assert len(buckets) == 20
        for i in range(20):
            np.testing.assert_array_equal(buckets.read(i), records[numbers == i])
            buckets.replace(i, records[numbers == i][::2])
        for i in range(20):
            np.testing.assert_array_equal(buckets.read(i), records[numbers == i][::2])


# ---------------------------------------------------------------- memory


@pytest.mark.further
@pytest.mark.process
@pytest.mark.parametrize(("name", "by"), [("t.csv", "numbers"), ("t.parquet", "labels")])
def test_memory_does_not_grow_with_the_triplets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str) -> None:
    sources = []
    for n in (100_000, 1_100_000):
        positions = np.random.default_rng(0).choice(6_000_000, n, replace=False)
        table = pa.table({"row": positions // 3000, "column": positions % 3000, "value": (positions % 97) / 4})
        source = tmp_path / f"{n}{name}"
        if name == "t.csv":
            pa.csv.write_csv(table, source)
        else:
            pq.write_table(table, source, row_group_size=1 << 17)
        sources.append(str(source))
    monkeypatch.setattr("tempfile.tempdir", None)  # the fork server starts with the first of these tests, and outlives its folder
    peaks = json.loads(in_forked_process("tests.data.forked", "peaks_of_triplets", json.dumps([str(tmp_path), by, sources])))
    assert peaks[1] < peaks[0] + 20, peaks  # a million entries more are 24 MB, and sorting them takes as much again


# ---------------------------------------------------------------- the command


def test_command_and_info(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "user;film;stars\nanna;alien;4\nbert;brazil;NA\nanna;brazil;2\nanna;alien;5\n"
    source = written(tmp_path / "t.data", text)
    arguments = ["import-triplets", str(source), str(tmp_path / "d.zarr"), "--row", "user", "--column", "film", "--value", "stars"]
    arguments += ["--delimiter", ";", "--missing", "NA"]
    assert main(arguments) == 1
    assert "row 'anna' and column 'alien' have values at line 2 and line 5" in capsys.readouterr().err
    assert main([*arguments, "--duplicates", "last"]) == 0
    found = capsys.readouterr().out
    for words in (
        "2 rows × 2 columns, uint8",
        "50.00% of the entries, at most 50.00% of a column (alien); 1 row(s) and 0 column(s) without any",
        "anna, bert, …",
        "CSR, 2 entries stored (50.00%), implicit entries = missing",
    ):
        assert words in found
    assert main(["info", str(tmp_path / "d.zarr")]) == 0
    assert capsys.readouterr().out == found
    assert main([*arguments, "--duplicates", "last", "--overwrite"]) == 0


@pytest.mark.further
@pytest.mark.parametrize("shape", ["3x4", "3X4", "3 × 4"])
def test_command_with_a_shape(tmp_path: Path, shape: str) -> None:
    source = written(tmp_path / "t.csv", HEAD + "0,3,1.5\n2,0,2\n")
    assert main(["import-triplets", str(source), str(tmp_path / "d.zarr"), "--shape", shape]) == 0
    same = import_triplets(source, tmp_path / "same.zarr", shape=(3, 4))
    assert dfact.open_dataset(tmp_path / "d.zarr").fingerprint == same.fingerprint


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "t.csv", HEAD + "0,3,1.5\n")
    assert main(["import-triplets", str(source), str(tmp_path / "d.zarr"), "--shape", "3,4"]) == 2
    assert "'3,4' is not a shape, expected such as 1000x300" in capsys.readouterr().err


def test_a_decimal_comma_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("row;column;value\na;x;1,5\nb;x;2\n")
    with pytest.raises(DataError, match=r"holds the text '1,5', expected a number; say --decimal ,"):
        dfact.import_triplets(tmp_path / "t.csv", tmp_path / "d.zarr", delimiter=";")
    command = ["import-triplets", str(tmp_path / "t.csv"), str(tmp_path / "d.zarr"), "--delimiter", ";", "--decimal", ","]
    assert main(command) == 0
    assert dfact.open_dataset(tmp_path / "d.zarr").source.read(0, 2).tolist() == [[1.5], [2.0]]
