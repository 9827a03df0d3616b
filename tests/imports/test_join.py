"""join_datasets: matching, order, missing answers, types, confounders, memory, errors."""

import tracemalloc
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import dfact
from dfact import DataError, ParameterError, StoreError, import_array, import_table, join_datasets
from dfact.cli.main import main
from dfact.data.sources.base import ZarrSource
from dfact.data.statistics import as_float
from dfact.data.stored_dataset import open_dataset
from dfact.imports.joins import join as join_module
from dfact.imports.writing import bucket_file
from tests.cases import exhaustive_after

SEEDS = [0, 1]


def answers(ids, items, seed, levels=4, missing=0.2):
    """Whole answers 0 to levels − 1 of these ids, some missing; every row and every column has one."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, levels, (len(ids), len(items))).astype(float)
    values[rng.random(values.shape) < missing] = np.nan
    values[:, 0] = rng.integers(0, levels, len(ids))
    values[0] = rng.integers(0, levels, len(items))
    return pd.DataFrame(values, index=pd.Index(ids, name="id"), columns=items)


def in_store(tmp_path, name, frame, **settings):
    """The frame as a table that was imported with its ids; columns that are not items are confounders."""
    frame.to_csv(tmp_path / f"{name}.csv")
    confounders = [column for column in frame.columns if column in ("age", "sex")]
    settings = {"shift": False, "id_column": "id", "confounders": confounders, "overwrite": True} | settings
    return import_table(tmp_path / f"{name}.csv", tmp_path / f"{name}.zarr", items="*", **settings)


def labelled(tmp_path, name, X, ids, **settings):
    return import_array(X, tmp_path / f"{name}.zarr", row_labels=ids, overwrite=True, **settings)


def table(dataset):
    """The answers as they were given, NaN where missing."""
    values = as_float(dataset.source.read(0, dataset.shape[0]), dataset.missing_code, np.dtype(np.float64))
    return pd.DataFrame(values + dataset.offset, index=list(dataset.row_labels), columns=list(dataset.column_labels))


def merged(frames, how):
    """What the join should be, by pandas, in the order of the rows that we promise."""
    order = list(dict.fromkeys(label for frame in frames for label in frame.index))
    frame = pd.concat(frames, axis=1, join=how)
    return frame.loc[[label for label in order if label in frame.index]]


def people(n, *, first=0, seed=None):
    ids = [f"p{i:05d}" for i in range(first, first + n)]
    return ids if seed is None else list(np.random.default_rng(seed).permutation(ids))


def assert_same(dataset, frame):
    pd.testing.assert_frame_equal(table(dataset), frame, check_names=False, check_index_type=False, check_column_type=False)


CASES = {
    "overlapping": [people(40), people(40, first=25), people(50, first=10)],
    "disjoint": [people(20), people(20, first=20), people(5, first=60)],
    "identical": [people(30)] * 3,
    "shuffled": [people(40, seed=1), people(60, seed=2), people(40, first=30, seed=3)],
}


@pytest.mark.filterwarnings("ignore:no participant in common")
@pytest.mark.further
@pytest.mark.parametrize("case", CASES)
def test_a_join_is_the_merge_of_the_tables(tmp_path, case):
    frames = [answers(ids, [f"{name}{j}" for j in range(4 + d)], d) for d, (name, ids) in enumerate(zip("abc", CASES[case], strict=True))]
    parts = [in_store(tmp_path, name, frame) for name, frame in zip("abc", frames, strict=True)]
    for how in ("outer", "inner"):
        expected = merged(frames, how)
        if not len(expected):
            with pytest.raises(DataError, match=r"no participant is in all datasets.*a: 'p00000', 'p00001'.*; b: 'p00020'"):
                join_datasets(parts, tmp_path / "inner.zarr", how=how)
            assert (case, how) == ("disjoint", "inner")
            continue
        joined = join_datasets(parts, tmp_path / f"{how}.zarr", how=how)
        assert_same(joined, expected)
        assert joined.dtype == np.uint8
        assert joined.missing_rate == pytest.approx(expected.isna().to_numpy().mean())
        # It is the dataset that an import of the merged table makes.
        assert joined.fingerprint == in_store(tmp_path, "merged", expected, valid_range=(0, 3)).fingerprint


@pytest.mark.further
def test_rows_keep_the_order_of_the_first_then_of_the_new(tmp_path):
    parts = [labelled(tmp_path, name, np.ones((len(ids), 1)), list(ids)) for name, ids in {"a": "zbq", "b": "cqa", "d": "acyb"}.items()]
    assert list(join_datasets(parts, tmp_path / "j.zarr").row_labels) == list("zbqcay")
    parts = [labelled(tmp_path, name, np.ones((len(ids), 1)), list(ids)) for name, ids in {"a": "zbqa", "b": "aqb", "d": "baq"}.items()]
    assert list(join_datasets(parts, tmp_path / "i.zarr", how="inner").row_labels) == list("bqa")


@pytest.mark.further
def test_paths_names_and_memory(tmp_path):
    """A mapping or a sequence, paths or datasets: the same result."""
    a, b = (in_store(tmp_path, name, answers(people(9, first=i), [name], i)) for i, name in enumerate("ab"))
    prints = {
        join_datasets(datasets, tmp_path / "j.zarr", overwrite=True).fingerprint
        for datasets in ([a, b], [str(a.path), b.path], {"x": a, "y": b.path}, (a, b))
    }
    assert len(prints) == 1
    # Onto one of its own sources, which is read to the end before it is replaced.
    assert join_datasets([a, b], a.path, overwrite=True).fingerprint in prints


@pytest.mark.parametrize("seed", SEEDS)
def test_each_column_keeps_its_range_and_offset(tmp_path, seed, capsys):
    rng = np.random.default_rng(seed)
    ids = people(30, seed=seed)
    low, high = rng.integers(-3, 3, 6), rng.integers(4, 9, 6)
    frame = pd.DataFrame({f"a{j}": rng.integers(low[j], high[j] + 1, 30) for j in range(6)}, index=pd.Index(ids, name="id"))
    ranges = {name: (int(low[j]), int(high[j])) for j, name in enumerate(frame.columns)}
    a = in_store(tmp_path, "a", frame, valid_range=ranges, shift=True)
    other = answers(people(30, first=20), ["b0", "b1"], seed)
    b = in_store(tmp_path, "b", other, valid_range=(0, 10))
    joined = join_datasets([a, b], tmp_path / "j.zarr")
    expected = np.array([*([0, high[j] - low[j]] for j in range(6)), [0, 10], [0, 10]])
    for dataset in (joined, open_dataset(joined.path)):
        assert dataset.valid_range.shape == (8, 2)
        np.testing.assert_array_equal(dataset.valid_range, expected)
        np.testing.assert_array_equal(dataset.offset, [*low, 0, 0])
        np.testing.assert_array_equal(dataset.valid_range[:6], a.valid_range)
    assert_same(joined, merged([frame, other], "outer"))
    assert main(["info", str(joined.path)]) == 0
    assert f"answers {min(low.min(), 0)} to 10 (differs between items), stored as 0 to {expected.max()}" in capsys.readouterr().out


@pytest.mark.further
@pytest.mark.parametrize(
    ("first", "second", "dtype", "code"),
    [
        (np.array([[0], [254]], np.uint8), np.array([[3], [2]], np.uint8), "uint8", 255),
        (np.array([[0], [255]], np.uint8), np.array([[3], [2]], np.uint8), "int16", -(2**15)),  # no number is left for missing
        (np.array([[0], [4]], np.uint8), np.array([[-1], [2]], np.int8), "int16", -(2**15)),
        (np.array([[0], [4]], np.int32), np.array([[7], [2]], np.uint16), "uint8", 255),
        (np.array([[0], [4]], np.uint8), np.array([[70000], [2]], np.int32), "int32", -(2**31)),
        (np.array([[0], [4]], np.uint8), np.array([[2**32 - 1], [2]], np.uint32), "float64", None),
        (np.array([[0], [4]], np.uint8), np.array([[0.5], [2]], np.float32), "float32", None),
        (np.array([[0], [4]], np.uint8), np.array([[0.1], [2]], np.float64), "float64", None),
        (np.array([[0], [2**24 + 1]], np.int32), np.array([[0.5], [2]], np.float32), "float64", None),
        (np.array([[0.5], [np.nan], [1]], np.float32), np.array([[0.1], [2], [np.nan]], np.float64), "float64", None),
    ],
)
def test_types_are_unified_without_loss(tmp_path, first, second, dtype, code):
    parts = [
        labelled(tmp_path, name, X, list("pqrs")[i : i + len(X)], empty_rows="drop")
        for i, (name, X) in enumerate(zip("ab", (first, second), strict=True))
    ]
    joined = join_datasets(parts, tmp_path / "j.zarr")
    assert (joined.dtype, joined.missing_code) == (dtype, code)
    assert joined.dropped_rows == sum(part.dropped_rows for part in parts)
    found = table(joined)
    for j, part in enumerate(parts):
        column = found.iloc[:, j].dropna()
        assert dict(column) == dict(table(part).iloc[:, 0].dropna())


def test_missing_codes_are_unified(tmp_path):
    a = labelled(tmp_path, "a", np.array([[1, 9], [2, 3]], np.uint8), ["p", "q"], missing=9)
    b = labelled(tmp_path, "b", np.array([[-9, 5], [9, -9]], np.int16), ["q", "r"], missing=-9)
    joined = join_datasets([a, b], tmp_path / "j.zarr")
    assert joined.missing_code == 255
    np.testing.assert_array_equal(joined.source.read(0, 3), [[1, 255, 255, 255], [2, 3, 255, 5], [255, 255, 9, 255]])


def test_colliding_columns_are_prefixed(tmp_path):
    a = in_store(tmp_path, "a", answers(people(5), ["Q1", "Q2"], 0))
    b = in_store(tmp_path, "b", answers(people(5), ["Q2", "Q3"], 1))
    assert list(join_datasets([a, b], tmp_path / "j.zarr").column_labels) == ["Q1", "a.Q2", "b.Q2", "Q3"]
    both = join_datasets({"first": a, "second": b}, tmp_path / "j.zarr", prefix=True, overwrite=True)
    assert list(both.column_labels) == ["first.Q1", "first.Q2", "second.Q2", "second.Q3"]
    c = in_store(tmp_path, "c", answers(people(5), ["b.Q2"], 1))
    with pytest.raises(DataError, match=r"two columns 'b\.Q2', expected unique labels"):
        join_datasets([a, b, c], tmp_path / "j.zarr", overwrite=True)


def with_confounders(frame, **columns):
    return frame.assign(**{name: pd.Series(values, index=frame.index, dtype=object) for name, values in columns.items()})


def test_confounders_are_joined_by_participant(tmp_path):
    ages = np.arange(20.5, 50.5)
    a = with_confounders(answers(people(20), ["a"], 0), age=[*ages[:15], *[None] * 5], sex=["f", "m"] * 10)
    b = with_confounders(answers(people(20, first=10), ["b"], 1)[::-1], age=ages[10:][::-1])
    joined = join_datasets([in_store(tmp_path, "a", a), in_store(tmp_path, "b", b)], tmp_path / "j.zarr")
    assert list(joined.row_labels) == people(20) + people(10, first=20)[::-1]
    assert list(joined.confounders["age"]) == [*ages[:20], *ages[20:][::-1]]
    assert list(joined.confounders["sex"].astype(object).fillna("?")) == ["f", "m"] * 10 + ["?"] * 10
    inner = join_datasets([open_dataset(tmp_path / "b.zarr"), open_dataset(tmp_path / "a.zarr")], tmp_path / "i.zarr", how="inner")
    assert list(inner.confounders["age"]) == list(ages[10:20][::-1])
    assert list(inner.confounders["sex"]) == ["m", "f"] * 5


@pytest.mark.further
@pytest.mark.parametrize(
    ("of_a", "of_b", "message"),
    [
        (
            {"age": [30.5, 31.5, 32.5]},
            {"age": [31.5, 40.25, 41.5]},
            r"confounder 'age' of participant 'p00002' is 32\.5 in a and 40\.25 in b \(1 part",
        ),
        ({"sex": ["f", "m", "f"]}, {"sex": ["f", "m", "f"]}, r"confounder 'sex' of participant 'p00001' is 'm' in a and 'f' in b \(2 part"),
        (
            {"age": [30.5, 31.5, 32.5]},
            {"age": [1, 2, 1]},
            r"confounder 'age' is continuous in a and categorical in b, expected one kind; import both with",
        ),
    ],
)
def test_confounders_that_disagree_are_refused(tmp_path, of_a, of_b, message):
    a = in_store(tmp_path, "a", with_confounders(answers(people(3), ["a"], 0), **of_a))
    b = in_store(tmp_path, "b", with_confounders(answers(people(3, first=1), ["b"], 1), **of_b))
    with pytest.raises(DataError, match=message):
        join_datasets([a, b], tmp_path / "j.zarr")
    assert not (tmp_path / "j.zarr").exists()


def test_conflict_message_names_the_dataset_of_each_value(tmp_path):
    frames = {"a": [None, "f"], "b": ["m", None], "c": ["f", "f"]}
    parts = [in_store(tmp_path, n, with_confounders(answers(people(2), [n], i), sex=s)) for i, (n, s) in enumerate(frames.items())]
    with pytest.raises(DataError, match="confounder 'sex' of participant 'p00000' is 'm' in b and 'f' in c"):
        join_datasets(parts, tmp_path / "j.zarr")


def test_unmatched_or_duplicate_labels_are_refused(tmp_path):
    a = labelled(tmp_path, "a", np.ones((6, 1)), list("pqrqrp"))
    b = labelled(tmp_path, "b", np.ones((2, 1)), list("pq"))
    with pytest.raises(DataError, match=r"a has duplicate row labels 'q', 'r', 'p' \(rows 1 and 3 are both 'q'\), expected unique ones"):
        join_datasets([b, a], tmp_path / "j.zarr")
    bare = import_array(np.ones((2, 1)), tmp_path / "bare.zarr")
    # A row that was dropped leaves the others labelled by their numbers, which say nothing of who it is.
    numbered = import_array(np.array([[1], [np.nan], [1]]), tmp_path / "numbered.zarr", empty_rows="drop")
    assert list(numbered.row_labels) == ["0", "2"]
    for dataset, name in ((bare, "bare"), (numbered, "numbered")):
        with pytest.raises(DataError, match=rf"{name} has no row labels.*--id-column"):
            join_datasets([b, dataset], tmp_path / "j.zarr")
    assert not (tmp_path / "j.zarr").exists()


def test_invalid_inputs_of_a_join_are_refused(tmp_path):
    ids = list("pq")
    a = labelled(tmp_path, "a", np.ones((2, 1)), ids)
    with pytest.raises(DataError, match="s is sparse, expected a dense dataset"):
        join_datasets([a, labelled(tmp_path, "s", sp.csr_array(np.ones((2, 1))), ids)], tmp_path / "j.zarr")
    with pytest.raises(DataError, match=r"t has shape \(2, 3, 4\), expected two modes"):
        join_datasets([a, labelled(tmp_path, "t", np.ones((2, 3, 4)), ids)], tmp_path / "j.zarr")
    empty = labelled(tmp_path, "e", np.array([[1, np.nan], [1, 2]]), ["p", "r"], column_labels=["w", "x"])
    with pytest.raises(DataError, match="the joined dataset: column 'x' has no answer"):
        join_datasets([a, empty], tmp_path / "j.zarr", how="inner")
    for datasets, message in [([a], r"holds 1 dataset\(s\)"), (a, "a single dataset"), ([a, a.path], "two datasets have the name 'a'")]:
        with pytest.raises(ParameterError, match=message):
            join_datasets(datasets, tmp_path / "j.zarr")
    with pytest.raises(ParameterError, match="how is 'left', expected 'outer' or 'inner'"):
        join_datasets({"a": a, "b": a}, tmp_path / "j.zarr", how="left")
    with pytest.raises(StoreError, match="exists already"):
        join_datasets({"a": a, "b": a}, tmp_path / "a.zarr")
    with pytest.raises(StoreError, match="does not exist"):
        join_datasets([a, tmp_path / "none.zarr"], tmp_path / "j.zarr")
    assert not list(tmp_path.glob("j.zarr*"))


@pytest.fixture
def small_chunks(cut_rows):
    """Chunks of a few hundred answers, as though the data were large."""
    cut_rows(block_entries=1 << 8, block_rows=(16, 64), chunk_entries=1 << 8, partition_entries=1 << 8)


@pytest.fixture
def reads_of(monkeypatch):
    """How often each run of rows was read, by the width of the source."""
    counts = Counter()
    read = ZarrSource.read

    def counted(self, start, stop):
        counts[self.shape[1], start] += 1
        return read(self, start, stop)

    monkeypatch.setattr(ZarrSource, "read", counted)
    return counts


def reads_per_chunk(counts, dataset):
    width, n_chunks = dataset.shape[1], -(-dataset.shape[0] // dataset.source.chunk_rows)
    assert n_chunks > 5
    mine = [count for (source_width, _), count in counts.items() if source_width == width]
    return sum(mine) / n_chunks, max(mine)


@pytest.mark.further
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("seed", "how"), [(0, "outer"), (1, "inner")])
def test_chunks_are_read_at_most_twice_on_average(tmp_path, reads_of, seed, how):
    rng = np.random.default_rng(seed)
    n = 700
    orders = [people(n), people(n, first=200), people(n, first=100, seed=seed), people(n)[::-1]]
    frames = [answers(ids, [f"{name}{j}" for j in range(3 + d)], rng) for d, (name, ids) in enumerate(zip("abcd", orders, strict=True))]
    parts = [in_store(tmp_path, name, frame, valid_range=(0, 3)) for name, frame in zip("abcd", frames, strict=True)]
    reads_of.clear()
    joined = join_datasets(parts, tmp_path / "j.zarr", how=how)
    counts = Counter(reads_of)
    assert_same(joined, merged(frames, how))
    (first, _), (second, _), shuffled, (reverse, _) = (reads_per_chunk(counts, part) for part in parts)
    assert first <= 1, "in their order"
    assert second <= 1, "in their order"
    assert shuffled == (1, 1), "put in order in a file, read once"
    assert reverse <= 2, "from the end"


@pytest.mark.further
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", SEEDS)
def test_direct_and_sorted_reading_give_the_same_result(tmp_path, monkeypatch, seed):
    n = 500
    parts = [
        in_store(
            tmp_path, name, answers(people(n, first=100 * d, seed=10 * seed + d), [f"{name}{j}" for j in range(4)], d), valid_range=(0, 3)
        )
        for d, name in enumerate("ab")
    ]
    prints = set()
    for most in (0, 10**9):
        monkeypatch.setattr(join_module, "_MAX_READS", most)
        prints.add(join_datasets(parts, tmp_path / "j.zarr", overwrite=True).fingerprint)
    assert len(prints) == 1


@pytest.mark.further
@pytest.mark.parametrize("order", exhaustive_after(1, ["shuffled", "sorted"]))
def test_memory_does_not_hold_the_answers(tmp_path, cut_rows, order):
    cut_rows(chunk_entries=1 << 16, partition_entries=1 << 16, block_entries=1 << 14)
    n, m = 5000, 400
    rng = np.random.default_rng(0)
    ids = people(n)
    parts = [
        labelled(tmp_path, name, rng.integers(0, 5, (n, m), dtype=np.uint8), rng.permutation(ids) if order == "shuffled" else ids)
        for name in "ab"
    ]
    join_datasets(parts, tmp_path / "j.zarr")
    tracemalloc.start()
    joined = join_datasets(parts, tmp_path / "j.zarr", overwrite=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = joined.shape[0] * joined.shape[1]
    assert size == 4_000_000
    assert peak < size / 2, f"{peak / 1e6:.1f} MB"


@pytest.mark.usefixtures("small_chunks")
def test_interrupted_join_leaves_no_partial_store(tmp_path, monkeypatch):
    ids = people(500, seed=0)
    parts = [in_store(tmp_path, name, answers(order, [name], 0)) for name, order in {"a": people(500), "b": ids}.items()]
    before = {path.name for path in tmp_path.iterdir()}

    def stop(done, total):
        assert total == 500
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join_datasets(parts, tmp_path / "j.zarr", progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == before
    # A full disk while rows are put in order.
    monkeypatch.setattr(join_module, "_MAX_READS", 0)

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bucket_file, "TemporaryFile", full)
    with pytest.raises(StoreError, match=r"cannot sort rows in .*: No space left on device; set TMPDIR to a disk with .* GiB free"):
        join_datasets(parts, tmp_path / "j.zarr")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_progress_counts_rows(tmp_path):
    parts = [in_store(tmp_path, name, answers(people(30, first=i), [name], 0)) for i, name in enumerate("ab")]
    seen = []
    join_datasets(parts, tmp_path / "j.zarr", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (31, 31)


@pytest.mark.further
@pytest.mark.parametrize("seed", SEEDS)
def test_fit_of_a_join_gives_the_bits_of_the_merged_table(tmp_path, seed):
    """All is bit-identical, confounders included."""
    rng = np.random.default_rng(seed)
    frames = [
        answers(people(80, first=40 * d, seed=seed + d), [f"{name}{j}" for j in range(6)], seed + d, missing=0.1)
        for d, name in enumerate("abc")
    ]
    ages = dict(zip(people(160), rng.uniform(20, 60, 160), strict=True))
    parts = [
        in_store(tmp_path, name, with_confounders(f, age=[ages[i] for i in f.index]), valid_range=(0, 3))
        for name, f in zip("abc", frames, strict=True)
    ]
    joined = join_datasets(parts, tmp_path / "j.zarr")
    frame = merged(frames, "outer")
    confounders = pd.DataFrame({"age": [ages[i] for i in frame.index]})
    fits = [
        dfact.ICQF(n_components=3, max_iter=15, tol=0).fit(joined),
        dfact.ICQF(n_components=3, max_iter=15, tol=0).fit(frame.to_numpy(np.float32), confounders=confounders),
    ]
    for name in ("factors_", "components_", "objective_history_"):
        np.testing.assert_array_equal(*(np.asarray(getattr(fit, name)) for fit in fits))


def test_command_line(tmp_path, capsys):
    a = in_store(tmp_path, "phq", answers(people(12), ["Q1", "Q2"], 0))
    b = in_store(tmp_path, "gad", answers(people(12, first=6), ["Q1", "R"], 1))
    out = tmp_path / "all.zarr"
    assert main(["join", str(out), str(a.path), str(b.path)]) == 0
    printed = capsys.readouterr()
    assert "18 participants × 4 items, uint8, 255 = missing" in printed.out
    assert "phq.Q1, Q2, gad.Q1, R" in printed.out
    assert "18 of 18" in printed.err
    assert main(["join", str(out), str(a.path), str(b.path)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["join", str(out), str(a.path), str(b.path), "--how", "inner", "--prefix", "--overwrite"]) == 0
    joined = open_dataset(out)
    assert joined.shape == (6, 4)
    assert list(joined.column_labels) == ["phq.Q1", "phq.Q2", "gad.Q1", "gad.R"]
    capsys.readouterr()
    assert main(["join", str(out), str(a.path)]) == 2
    assert "Got 1 dataset(s) after DEST, expected two or more." in capsys.readouterr().err
    assert main(["join", str(out), str(a.path), str(tmp_path / "gad.csv"), "--overwrite"]) == 1
    assert "is a file, expected a dataset" in capsys.readouterr().err
