"""Datasets on disk: complete or refused, the same fingerprint for the same data, readable by xarray."""

import errno
import itertools
import json
import pickle
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import dfact
from benchmarks.faults.fits import in_forked_process
from dfact import DataError, StoreError, import_array, import_table, open_dataset
from dfact.cli.info import dataset_text
from dfact.data import stored_dataset
from dfact.data.coerce import as_dataset
from dfact.data.dataset import fingerprint
from dfact.data.run_digests import RunDigests, run_rows
from dfact.data.stored_dataset import DenseWriter, write_metadata
from dfact.imports.writing.writer import dataset_writer
from dfact.storage import replacement
from dfact.storage.groups import create_group
from tests.cases import unseal
from tests.suites.zarr_store import ZarrStoreSuite

SEEDS = [0, 1]


def answers(seed, n=120, m=6):
    array = np.random.default_rng(seed).integers(0, 6, (n, m), dtype=np.uint8)
    array[:, 0] = 1
    return array


def sparse_answers(seed):
    array = answers(seed)
    array[np.random.default_rng(seed).random(array.shape) < 0.6] = 0
    array[:, 0] = 1
    return sp.csr_array(array)


def sparse_answers_with_a_zero():
    """A zero is stored; rows 3 and 4 have three entries and none."""
    array = sparse_answers(0).toarray()
    array[3], array[4] = [1, 0, 2, 0, 3, 0], 0
    X = sp.csr_array(array)
    X.data[X.indptr[5]] = 0
    return X


def full(seed):
    """Everything a dataset can have."""
    age = np.random.default_rng(seed).normal(50, 9, 120)
    return {
        "missing": [5],
        "row_labels": [f"p{i}" for i in range(120)],
        "column_labels": [f"Q{j}" for j in range(6)],
        "valid_range": (0, 4),
        "confounders": {"age": age, "sex": ["f", "m", None] * 40, "pay/year": np.arange(120)},
    }


class TestLocalStore(ZarrStoreSuite):
    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "stores")

    def keys(self, location: str) -> list[str]:
        return sorted(path.relative_to(location).as_posix() for path in Path(location).rglob("*") if path.is_file())

    def put(self, location: str, content: bytes) -> None:
        Path(location).parent.mkdir(parents=True)
        Path(location).write_bytes(content)

    def remove(self, location: str) -> None:
        Path(location).unlink()

    def content(self, location: str) -> bytes:
        return Path(location).read_bytes()

    def replace(self, location: str, content: bytes) -> None:
        Path(location).write_bytes(content)


@pytest.mark.parametrize("seed", SEEDS)
def test_round_trip(tmp_path, seed):
    array, options = answers(seed), full(seed)
    ds = import_array(array, tmp_path / "d.zarr", **options)
    again = pickle.loads(pickle.dumps(open_dataset(str(tmp_path / "d.zarr"))))
    for opened in (ds, again):
        np.testing.assert_array_equal(opened.source.read(0, 120), array)
        assert (opened.shape, opened.dtype, opened.missing_code) == ((120, 6), np.uint8, 5)
        assert opened.row_labels.tolist() == options["row_labels"]
        assert opened.column_labels.tolist() == options["column_labels"]
        np.testing.assert_array_equal(opened.valid_range, [[0, 4]] * 6)
        np.testing.assert_array_equal(opened.offset, 0)
        np.testing.assert_array_equal(opened.confounders["age"], options["confounders"]["age"])
        np.testing.assert_array_equal(opened.confounders["pay/year"], np.arange(120))
        assert opened.confounders["sex"].astype(object).where(opened.confounders["sex"].notna(), None).tolist() == ["f", "m", None] * 40
        assert opened.fingerprint == ds.fingerprint
        assert opened.missing_rate == pytest.approx((array == 5).mean())
        assert "120×6 uint8" in repr(opened)


@pytest.mark.parametrize("seed", SEEDS)
def test_csr_round_trip(tmp_path, seed):
    X = sparse_answers(seed)
    ds = import_array(X, tmp_path / "d.zarr", **full(seed))
    again = pickle.loads(pickle.dumps(open_dataset(tmp_path / "d.zarr")))
    for opened in (ds, again):
        np.testing.assert_array_equal(opened.source.read(0, 120), X.toarray())
        assert (opened.shape, opened.dtype, opened.missing_code) == ((120, 6), np.uint8, 5)
        assert opened.row_labels.tolist() == full(seed)["row_labels"]
        assert opened.fingerprint == ds.fingerprint
        assert "120×6 uint8" in repr(opened)
    shown = dataset_text(ds)
    assert f"CSR, {X.nnz} entries stored ({X.nnz / 720:.2%})" in shown
    assert "120 rows × 6 columns, uint8, 5 = missing" in shown


# ---------------------------------------------------------------- fingerprint


@pytest.mark.parametrize("seed", SEEDS)
def test_fingerprint_is_independent_of_chunks_and_location(tmp_path, seed):
    array, options = answers(seed), full(seed)
    stored = import_array(array, tmp_path / "d.zarr", **options)
    lazy = import_array(da.from_array(array, chunks=(7 + seed, 2)), tmp_path / "e.zarr", **options)
    assert lazy.fingerprint == stored.fingerprint
    # Computed from the values, not read from the store.
    assert stored.with_confounders(stored.confounders).fingerprint == stored.fingerprint
    assert as_dataset(array).fingerprint == as_dataset(da.from_array(array, chunks=(11, 6))).fingerprint


@pytest.mark.further
@pytest.mark.parametrize(
    "change",
    [
        lambda X, _: X.__setitem__((77, 3), (X[77, 3] + 1) % 5),
        lambda X, _: X.__setitem__(slice(None), X[::-1].copy()),
        lambda _, o: o.update(missing=[5, 4]),
        lambda _, o: o.update(missing=[0]),
        lambda _, o: o["row_labels"].__setitem__(9, "someone"),
        lambda _, o: o["column_labels"].__setitem__(2, "other"),
        lambda _, o: o.update(valid_range=(0, 5)),
        lambda _, o: o["confounders"]["age"].__setitem__(4, 3.5),
        lambda _, o: o["confounders"]["sex"].__setitem__(0, "m"),
        lambda _, o: o["confounders"].pop("age"),
        lambda _, o: o.update(confounders={("Age" if k == "age" else k): v for k, v in o["confounders"].items()}),
    ],
)
def test_fingerprint_changes_with_values_and_metadata(originals, tmp_path, change):
    array, options = answers(0), full(0) | {"valid_range": (0, 6)}
    change(array, options)
    assert import_array(array, tmp_path / "e.zarr", **options).fingerprint != open_dataset(originals / "wide.zarr").fingerprint


@pytest.mark.further
@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.data.__setitem__(7, 2),
        lambda X: X.indices.__setitem__(slice(X.indptr[3], X.indptr[4]), [0, 2, 3]),
        lambda X: X.indptr.__setitem__(4, X.indptr[3] + 1),  # two entries go over to the next row
        lambda X: X.resize((120, 7)),
        lambda X: X.eliminate_zeros(),
    ],
)
def test_fingerprint_of_sparse_data_changes_with_every_part(originals, tmp_path, change):
    X = sparse_answers_with_a_zero()
    change(X)
    assert import_array(X, tmp_path / "e.zarr").fingerprint != open_dataset(originals / "zero.zarr").fingerprint


@pytest.mark.further
@pytest.mark.parametrize(("seed", "sparse"), [(0, False), (1, True)])
def test_fingerprint_is_independent_of_the_sizes_of_updates(seed, sparse):
    rng = np.random.default_rng(seed)
    step, n = run_rows((3000,)), 1000
    rows = rng.integers(0, 3, (n, 3000)).astype(np.float32)
    X = sp.csr_array(rows) if sparse else rows
    dataset = as_dataset(X)

    def updated(X, cuts):
        runs = RunDigests((3000,))
        for start, stop in itertools.pairwise([0, *sorted(cuts), n]):
            runs.update(X[start:stop])
        return fingerprint(dataset, runs.finish(), 0.0)

    def joined(X):
        digests = b""
        for start in range(0, n, 2 * step):
            runs = RunDigests((3000,))
            runs.update(X[start : start + 2 * step])
            digests += runs.finish()
        return fingerprint(dataset, digests, 0.0)

    assert n % step > 0
    prints = {updated(X, rng.integers(0, n + 1, size)) for size in (0, 1, 7, 40)} | {joined(X), dataset.fingerprint}
    assert len(prints) == 1
    i, j = rng.choice(n, 2, replace=False)  # within a run or in two
    for order in ([i, j], [0, 1], [step - 1, step], [0, n - 1]):
        swapped = rows.copy()
        swapped[order] = rows[order[::-1]]
        changed = sp.csr_array(swapped) if sparse else swapped
        other = updated(changed, [])
        assert other == joined(changed)
        assert other not in prints
    blocks = np.concatenate([rows[step : 2 * step], rows[:step], rows[2 * step :]])
    assert updated(sp.csr_array(blocks) if sparse else blocks, []) not in prints


def test_fingerprint_depends_on_the_shape(tmp_path):
    array = np.arange(24)
    shapes = [(4, 6), (6, 4), (4, 3, 2), (4, 2, 3)]
    prints = {import_array(array.reshape(shape), tmp_path / f"{i}.zarr").fingerprint for i, shape in enumerate(shapes)}
    assert len(prints) == 4


# ---------------------------------------------------------------- xarray, bare Zarr


def test_xarray_reads_a_dataset(tmp_path):
    array, options = answers(0), full(0)
    import_array(array, tmp_path / "d.zarr", **options)
    with xr.open_zarr(tmp_path / "d.zarr") as opened:
        assert opened["values"].dims == ("row", "column")
        np.testing.assert_array_equal(opened["values"], np.where(array == 5, np.nan, array.astype(float)))
        assert opened["row"].values.tolist() == options["row_labels"]
        assert opened["column"].values.tolist() == options["column_labels"]
        np.testing.assert_array_equal(opened["confounder_sex"], [0, 1, np.nan] * 40)
        assert opened["confounder_sex"].attrs["levels"] == ["f", "m"]
        np.testing.assert_array_equal(opened["valid_maximum"], 4)


def test_xarray_reads_a_tensor(tmp_path):
    array = np.random.default_rng(0).normal(size=(9, 3, 4, 2))
    array[2, 1, 0, 1] = np.nan
    import_array(array, tmp_path / "d.zarr")
    with xr.open_zarr(tmp_path / "d.zarr") as opened:
        assert opened["values"].dims == ("row", "column", "mode_3", "mode_4")
        np.testing.assert_array_equal(opened["values"], array)


def test_xarray_reads_csr_values(sparse):
    X = sparse_answers(0)
    with xr.open_zarr(sparse) as opened:
        assert opened["row"].values.tolist() == full(0)["row_labels"]
    with xr.open_zarr(sparse, group="values", mask_and_scale=False) as opened:
        assert (opened["data"].dims, opened["indices"].dims, opened["indptr"].dims) == (("entry",), ("entry",), ("position",))
        assert opened["data"].attrs["_FillValue"] == 5
        assert (opened.attrs["encoding-type"], opened.attrs["shape"]) == ("csr_matrix", [120, 6])
        again = sp.csr_array(tuple(opened[name].values for name in ("data", "indices", "indptr")), shape=opened.attrs["shape"])
        np.testing.assert_array_equal(again.toarray(), X.toarray())


def test_bare_zarr_arrays_have_no_labels(tmp_path):
    group = zarr.create_group(tmp_path / "g.zarr")
    for array in (zarr.create_array(tmp_path / "x.zarr", shape=(4, 3), dtype="f4"), group.create_array("x", shape=(4, 3), dtype="f4")):
        array[...] = 1
        ds = as_dataset(array)
        assert ds.row_labels.tolist() == [0, 1, 2, 3]
        assert ds.fingerprint == as_dataset(np.ones((4, 3), np.float32)).fingerprint


# ---------------------------------------------------------------- what is refused


def edit(path, change):
    """Change the store's own attributes."""
    document = json.loads((path / "zarr.json").read_text())
    change(document["attributes"]["dfact"])
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Dense datasets, one with a wider range, and sparse ones, one of several chunks; tests that change them take copies."""
    folder = tmp_path_factory.mktemp("originals")
    import_array(answers(0), folder / "d.zarr", **full(0))
    import_array(answers(0), folder / "wide.zarr", **full(0) | {"valid_range": (0, 6)})
    import_array(sparse_answers_with_a_zero(), folder / "zero.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_dataset, "_CHUNK_ENTRIES", 50)
        patch.setattr(stored_dataset, "_INDPTR_CHUNK", 40)
        import_array(sparse_answers(0), folder / "s.zarr", **full(0))
    for path in folder.iterdir():
        unseal(path)
    return folder


@pytest.fixture
def stored(originals, tmp_path):
    return Path(shutil.copytree(originals / "d.zarr", tmp_path / "d.zarr"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda a: a.update(complete=False), "incomplete"),
        (lambda a: a.pop("complete"), "incomplete"),
        (lambda a: a.update(kind="model"), "holds a dfact model, expected a dataset"),
        (lambda a: a.update(format=99), "has format version 99, expected 1; a later version of dfact wrote it"),
        (lambda a: a.update(version=a.pop("format")), "has format version 1 of an unreleased dfact, expected 1; import it again"),
    ],
)
def test_incomplete_or_foreign_store_is_refused(stored, change, match):
    edit(stored, change)
    with pytest.raises(StoreError, match=match):
        open_dataset(stored)


@pytest.mark.parametrize("name", ["values", "column", "valid_minimum", "offset", "observed", "confounder_sex"])
@pytest.mark.parametrize("part", ["", "c"])
def test_missing_arrays_and_chunks_are_reported(stored, name, part):
    shutil.rmtree(stored / name / part)
    with pytest.raises(StoreError, match=rf"{name}.*again"):
        open_dataset(stored)


def test_missing_row_labels_are_reported(stored):
    shutil.rmtree(stored / "row" / "c")
    with pytest.raises(StoreError, match=r"row.*again"):
        _ = open_dataset(stored).row_labels


def test_one_missing_chunk_of_many_is_reported(tmp_path):
    ds = import_array(np.ones((40_000, 300), np.uint8), tmp_path / "d.zarr")
    assert ds.source.array.nchunks > 1
    (tmp_path / "d.zarr" / "values" / "c" / "1" / "0").unlink()
    with pytest.raises(StoreError, match="'values' has 2 chunks, expected 3"):
        open_dataset(tmp_path / "d.zarr")


@pytest.mark.parametrize("size", [0, 20, 40, -1])
def test_damaged_chunk_is_named_by_the_read(stored, size):
    chunk = stored / "values" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:size])
    with pytest.raises(StoreError, match=r"cannot read rows 0 to 120 of .*values"):
        open_dataset(stored).source.read(0, 120)


@pytest.fixture
def sparse(originals, tmp_path):
    return Path(shutil.copytree(originals / "s.zarr", tmp_path / "s.zarr"))


@pytest.mark.parametrize("part", ["", "c", "c/1", "zarr.json"])
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_missing_parts_of_csr_values_are_reported(sparse, name, part):
    lost = sparse / "values" / name / part
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    with pytest.raises(StoreError, match=rf"values/{name}' ?.*import it again"):
        open_dataset(sparse)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda a: a.pop("encoding-type"), "the encoding of 'values' is .*None.*, expected .*csr_matrix"),
        (lambda a: a.update({"encoding-version": "9"}), "the encoding of 'values' is .*9"),
        (lambda a: a.update(shape=[121, 6]), "the arrays of 'values' are inconsistent"),
        (lambda a: a.pop("shape"), "the arrays of 'values' are inconsistent"),
    ],
)
def test_csr_values_with_foreign_attributes_are_refused(sparse, change, match):
    document = json.loads((sparse / "values" / "zarr.json").read_text())
    change(document["attributes"])
    (sparse / "values" / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match=match):
        open_dataset(sparse)


def test_missing_metadata_of_csr_values_is_reported(sparse):
    (sparse / "values" / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"lacks its array 'values'"):
        open_dataset(sparse)


@pytest.mark.further
@pytest.mark.parametrize("size", [0, 20, -1])
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_damaged_chunk_of_csr_values_is_named_by_the_read(sparse, name, size):
    chunk = sparse / "values" / name / "c" / "1"
    chunk.write_bytes(chunk.read_bytes()[:size])
    source = open_dataset(sparse).source
    with pytest.raises(StoreError, match=rf"cannot read .* of .*values/{name}.*damaged or out of reach"):
        source.read(0, 120)
    assert source.read(0, 5).shape == (5, 6)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [("indices", 60, 6), ("indices", 60, -1), ("indptr", 60, -1), ("indptr", 60, 10**9), ("indptr", 60, 0)],
)
def test_invalid_csr_values_are_refused(sparse, name, at, value):
    """SciPy would access memory beyond its arrays."""
    source = open_dataset(sparse).source
    zarr.open_group(sparse, mode="r+", use_consolidated=False)[f"values/{name}"][at] = value
    with pytest.raises(StoreError, match=rf"of .*values/{name} are lost or invalid"):
        source.read(0, 120)


@pytest.mark.parametrize("name", ["indices", "indptr"])
def test_chunk_lost_after_opening(sparse, name):
    source = open_dataset(sparse).source
    (sparse / "values" / name / "c" / "1").unlink()
    with pytest.raises(StoreError, match=rf"of .*values/{name}: its chunk values/{name}/c/1 is missing"):
        source.read(0, 120)


def test_arrays_of_different_lengths(sparse):
    group = zarr.open_group(sparse, mode="r+", use_consolidated=False)
    group["values/indices"].resize((100,))
    with pytest.raises(StoreError, match="the arrays of 'values' are inconsistent"):
        open_dataset(sparse)


def test_paths_without_a_dataset_are_refused(tmp_path):
    (tmp_path / "file.zarr").write_text("not a store")
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "junk.zarr").mkdir()
    (tmp_path / "junk.zarr" / "zarr.json").write_text("{")
    zarr.create_group(tmp_path / "group.zarr")
    zarr.create_array(tmp_path / "array.zarr", shape=(2, 2), dtype="u1")
    for name, command in {
        "t.csv": "import .*t.csv t.zarr --items 'Q\\*'",
        "t.npy": "import-array .*t.npy t.zarr$",
    }.items():
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(StoreError, match=f"{name} is a file, expected a dataset; import it: dfact {command}"):
            open_dataset(tmp_path / name)
    for name, match in [
        ("gone.zarr", "does not exist"),
        ("file.zarr", "is a file, expected a dataset; import it"),
        ("empty.zarr", "is not a Zarr group"),
        ("junk.zarr", "is not a Zarr group"),
        ("array.zarr", "is not a Zarr group"),
        ("group.zarr", "is a Zarr group, expected a dfact dataset; write one with"),
    ]:
        with pytest.raises(StoreError, match=rf"{name} {match}"):
            open_dataset(tmp_path / name)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_unwritable_paths_are_reported(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        import_array(answers(0), tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


# ---------------------------------------------------------------- interrupted, disk full


def in_process(folder, function):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(2000, 300)), columns=[f"Q{j}" for j in range(300)])
    frame.to_csv(folder / "t.csv", index=False)
    return json.loads(in_forked_process("tests.data.forked", function, json.dumps([str(folder)])))


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
def test_killed_import_is_reported_as_interrupted(tmp_path):
    with pytest.raises(EOFError):  # it ended without an answer
        in_process(tmp_path, "killed")
    [remains] = tmp_path.glob("d.zarr.incomplete-*")
    with pytest.raises(StoreError, match=r"d\.zarr does not exist.*; its writer was interrupted: run the same command again"):
        open_dataset(tmp_path / "d.zarr")
    with pytest.raises(StoreError, match="incomplete"):
        open_dataset(remains)
    ds = import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="Q*")
    assert ds.shape == (2000, 300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.zarr", "t.csv"]


@pytest.mark.further
@pytest.mark.process
@pytest.mark.faults
def test_file_size_limit_is_reported(tmp_path):
    errors = in_process(tmp_path, "limited")
    assert len(errors) == 2
    assert all("cannot write" in error and "d.zarr" in error for error in errors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "warm.zarr", "warmer.zarr"]


@pytest.fixture
def small_disk(tmp_path):
    location = tmp_path / "disk"
    location.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(location)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of 3 MB cannot be mounted here (needs root)")
    yield location
    subprocess.run(["umount", str(location)], check=True)


@pytest.mark.further
@pytest.mark.parametrize("overwrite", [False, True])
def test_full_disk(tmp_path, small_disk, overwrite):
    big = np.random.default_rng(0).normal(size=(4000, 300))
    first = import_array(answers(0), small_disk / "d.zarr") if overwrite else None
    with pytest.raises(StoreError, match=r"cannot write .*d\.zarr: the disk is full"):
        import_array(big, small_disk / "d.zarr", overwrite=overwrite)
    pd.DataFrame(big).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(StoreError, match=r"cannot write .*d\.zarr: the disk is full"):
        import_table(tmp_path / "t.parquet", small_disk / "d.zarr", items="*", overwrite=overwrite)
    assert [path.name for path in small_disk.iterdir()] == (["d.zarr"] if first else [])
    if first:
        assert open_dataset(small_disk / "d.zarr").with_confounders(None).fingerprint == first.fingerprint


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), RuntimeError("worker")])
def test_failed_writer_leaves_no_partial_store(tmp_path, error):
    expected = StoreError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        write(tmp_path / "d.zarr", error)
    assert not list(tmp_path.iterdir())


def write(path, error):
    labels = np.array(["a", "b"], dtype=object)
    with dataset_writer(path, (4, 2), np.dtype(np.uint8), missing_code=255, column_labels=labels, name="X") as writer:
        writer.write([np.ones((2, 2), np.uint8)])
        raise error


@pytest.mark.parametrize("exchanges", [True, False])
def test_failed_rename_restores_the_old_dataset(exchanges, tmp_path, monkeypatch):
    first = import_array(answers(0), tmp_path / "d.zarr")
    rename = type(tmp_path).rename

    def fail(self, target):
        if exchanges or ".incomplete-" in self.name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(replacement, "_exchange", fail if exchanges else lambda *_: False)
    monkeypatch.setattr(type(tmp_path), "rename", rename if exchanges else fail)
    with pytest.raises(StoreError, match="Permission denied"):
        import_array(answers(1), tmp_path / "d.zarr", overwrite=True)
    assert open_dataset(tmp_path / "d.zarr").fingerprint == first.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


def test_writer_accepts_rows_in_batches_of_any_size(tmp_path):
    array = answers(0)
    labels = np.array([f"Q{j}" for j in range(6)], dtype=object)
    prints = set()
    for i, sizes in enumerate([[120], [1] * 120, [100, 20], [0, 64, 0, 56]]):
        with dataset_writer(tmp_path / f"{i}.zarr", (120, 6), np.dtype(np.uint8), missing_code=5, column_labels=labels, name="X") as writer:
            writer.finish(writer.write(np.split(array, np.cumsum(sizes)[:-1])))
        prints.add(open_dataset(tmp_path / f"{i}.zarr").fingerprint)
    assert len(prints) == 1


def test_metadata_can_be_read_without_the_values(stored):
    with create_group(stored.parent / "m.zarr", "dataset") as group:
        write_metadata(group, open_dataset(stored), numbered_rows=False)
        np.testing.assert_array_equal(group["valid_maximum"][...], 4)


def test_errors_are_also_the_builtin_kinds():
    assert issubclass(DataError, ValueError)
    assert issubclass(StoreError, OSError)
    assert issubclass(StoreError, dfact.DfactError)


def test_lazy_array_above_half_of_the_free_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count, not entries."""
    lazy = da.ones((1000, 40), chunks=(100, 40))  # 320,000 bytes
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=640_000))
    assert as_dataset(lazy).shape == (1000, 40)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=639_000))
    with pytest.raises(dfact.DataError, match=r"X is a lazy array of .* write it as a dataset first"):
        as_dataset(lazy)


def test_a_number_for_each_row_is_stored_in_chunks_that_the_compressor_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confounder of 3·10⁸ rows exceeds the 2 GiB of a chunk."""
    monkeypatch.setattr("dfact.storage.arrays._WHOLE_BYTES", 800)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.random(250), "site": rng.choice(["a", "b"], 250)})
    dataset = dfact.import_array(rng.random((250, 4)), tmp_path / "d.zarr", confounders=frame)
    assert zarr.open_group(tmp_path / "d.zarr", mode="r")["confounder_age"].chunks == (100,)
    pd.testing.assert_series_equal(dfact.open_dataset(dataset.path).confounders["age"], frame["age"])


def test_chunks_that_no_compressor_takes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with (
        create_group(tmp_path / "d.zarr", "dataset") as group,
        pytest.raises(
            dfact.DataError,
            match=r"values of 2000000000×5000 in float64 have chunks of 4\.5 GiB, expected at most 2\.0 GiB; store a smaller type",
        ),
    ):
        DenseWriter(group, (2_000_000_000, 5000), np.dtype(np.float64), None)
