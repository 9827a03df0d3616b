"""Damaged and hostile inputs for everything that reads files: each gives what stands there, or is refused in words.

Every input is a good one with a few mutations: bytes (flipped, cut off, put in, doubled), files (deleted, emptied,
swapped), JSON (other types, huge and negative numbers, NaN, deep nesting), cells and encodings of tables. It is read in
a worker process, with a limit of time and of address space. What is right is held against a reading that shares no code
with dfact's; a store whose chunks were hit must give the values it had.
"""

# ruff: noqa: ARG001  # every reader takes the same arguments
import argparse
import contextlib
import csv
import gc
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import scipy.sparse as sp
import zarr

import dfact
from benchmarks.common import exit_code, report
from dfact.cli.info import stored_model_text
from dfact.models import persistence
from dfact.models.provenance import SelectionRecord, Stability

SECONDS, ROOM = 60.0, 1 << 30  # for an input: time, and bytes of address space beyond those of the process
N, M = 40, 6


class WrongError(Exception):
    """A result that is neither what was there nor what the changed bytes say."""


def expect(good: Any, what: str) -> None:
    if not good:
        raise WrongError(what)


# Mutations


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to three small wounds."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        length = min(rng.choice([1, 1, 2, 8, 64]), len(out) - at)
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rng.randbytes(rng.choice([1, 4, 32]))
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length]
            case 5:
                out[at : at + length] = rng.choice([b"\0", b"\xff", b"\x7f"]) * length
            case _:
                out[at : at + length] = rng.randbytes(length)
    return bytes(out)


DEEP = "put the nesting here"
"""What stands for values nested so deep that Python's own writer would not write them."""


def as_json(tree: Any, rng: random.Random) -> str:
    depth = rng.choice([5, 300, 5000])
    return json.dumps(tree).replace(f'"{DEEP}"', '[{"a":' * depth + "0" + "}]" * depth)


STRANGE: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice([None, True, False, "", "x", "../other", "/etc/passwd", "\0", "é\ud800", "NaN", "9" * 400, "a" * 70000]),
    lambda rng: rng.choice([0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)]),
    lambda rng: rng.choice([0.5, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), -float("inf")]),
    lambda rng: rng.choice([[], {}, [[]], [None], {"": None}, [1, "a"], [-1, -1], [2**40, 2**40], {"name": "pickle"}]),
    lambda _: DEEP,
]


def mutate_json(tree: Any, rng: random.Random) -> Any:
    """Another value, a name or an entry that is gone, doubled or renamed, somewhere in a JSON document."""
    if isinstance(tree, (dict, list)) and tree and rng.random() < 0.8:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        match rng.randrange(12):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, dict):
                tree[rng.choice(["x", "", "../x", key + "_"])] = tree.pop(key)
            case 2 if isinstance(tree, list):
                tree.append(tree[key])
            case _:
                tree[key] = mutate_json(tree[key], rng)
        return tree
    if isinstance(tree, (int, float)) and not isinstance(tree, bool) and rng.random() < 0.5:
        return rng.choice([tree + 1, tree - 1, -tree, tree * 2, tree * 10**6, float(tree), str(tree)])
    return rng.choice(STRANGE)(rng)


def mutate_store(folder: Path, rng: random.Random) -> bool:
    """Change a file of a Zarr store. Returns whether its values must still be what they were, if it can be read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    documents = [path for path in files if path.name == "zarr.json"]
    chunks = [path for path in files if path.name != "zarr.json"]
    match rng.randrange(10):
        case 0:
            rng.choice(files).unlink()
        case 1:
            first, second = rng.sample(files, 2)
            first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
            first.write_bytes(second_bytes)
            second.write_bytes(first_bytes)
            return False  # minima and maxima are alike
        case 2:
            rng.choice(files).write_bytes(b"")
        case 3 | 4 | 5:
            chunk = rng.choice(chunks)
            chunk.write_bytes(mutate_bytes(chunk.read_bytes(), rng))
        case 6:
            document = rng.choice(documents)
            document.write_bytes(mutate_bytes(document.read_bytes(), rng))
            return False
        case _:
            document = rng.choice([documents[0], *documents])
            tree = json.loads(document.read_text())
            if rng.random() < 0.7:
                tree.pop("consolidated_metadata", None)  # a copy for xarray, which hides the rest here
            document.write_text(as_json(mutate_json(tree, rng), rng))
            return False
    return True


CELLS = ["", " ", "1e400", "-1e400", "1e-400", "NaN", "inf", "-inf", "nan", "NA", "-9", "0x10", "1_000", "1,5", "9" * 400, "1e308", "3.5"]
CELLS += ['"', '""', '"a', "a\nb", "\0", "é", "'", "=1+1", "\r", "-0", "2147483648", "16777217", "1e20", "x" * 140000, "١", "True", " 2 "]


def mutate_text(data: bytes, rng: random.Random, delimiter: str) -> bytes:
    """Other cells, rows of other lengths, other encodings, quotes; or wounds in the bytes."""
    rows = [line.split(delimiter) for line in data.decode().splitlines()]
    encoding, ending = "utf-8", "\n"
    for _ in range(rng.randint(1, 3)):
        row = rng.choice([rng.randrange(len(rows)), rng.randrange(len(rows)), 0])
        cell = rng.randrange(len(rows[row])) if rows[row] else 0
        match rng.randrange(13):
            case 0:
                rows[row].insert(cell, rng.choice(CELLS))
            case 1:
                del rows[row][cell : cell + rng.choice([1, 100])]
            case 2:
                rows.insert(row, list(rows[rng.randrange(len(rows))]))
            case 3 if len(rows) > 1:
                del rows[row : row + rng.choice([1, 1, 1000])]
                rows = rows or [[""]]
            case 4:
                encoding = rng.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-7"])
            case 5:
                ending = rng.choice(["\r\n", "\r", "\n\n", "\0\n", "\x0b"])
            case 6:
                return mutate_bytes(data, rng)
            case 7 if rows[row]:
                rows[row][cell] = f'"{rows[row][cell]}"'
            case _ if rows[row]:
                rows[row][cell] = rng.choice(CELLS)
    return ending.join(delimiter.join(row) for row in rows).encode(encoding, "replace")


# Targets


@dataclass
class Target:
    """A reader: how to make what it reads, to damage it, and to read it, which raises WrongError where the result is none."""

    make: Callable[[Path], None]
    mutate: Callable[[Path, random.Random], bool]
    read: Callable[[Path, Path, bool], None]
    """Takes the folder of the input, a folder for the result, and whether the input says what it said."""


def mutate_file(name: str, change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], bool]:
    def mutate(folder: Path, rng: random.Random) -> bool:
        path = folder / name
        zipped = name.endswith(".gz")
        if zipped and rng.random() < 0.7:  # else in what gzip made of it
            path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()), rng)))
        else:
            path.write_bytes((mutate_bytes if zipped else change)(path.read_bytes(), rng))
        return False

    return mutate


def answers() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, 5, (N, M)), columns=[f"Q{j}" for j in range(M)]).astype(object)
    table = table.mask(pd.DataFrame(rng.random((N, M)) < 0.1, columns=table.columns), -9)
    table.insert(0, "id", [f"p{i}" for i in range(N)])
    table["age"], table["sex"] = rng.integers(18, 80, N) + 0.5, rng.choice(["f", "m"], N)
    return table


IMPORT: dict[str, Any] = {"items": "Q*", "id_column": "id", "confounders": ["age", "sex"], "missing": [-9, "NA"], "empty_rows": "drop"}


def read_values(dataset: dfact.Dataset) -> Any:
    """All values as they were in the file, NaN where missing."""
    from dfact.data.layout import Layout
    from dfact.data.statistics import as_float

    parts = [dataset.source.read(rows.start, rows.stop) for rows in dataset.source.read_ranges(Layout.of(dataset.shape))]
    values = as_float(np.concatenate(parts), dataset.missing_code, np.dtype(np.float64))
    with np.errstate(invalid="ignore"):  # NaN of any bits
        return values + dataset.offset.reshape(-1, *(1,) * (values.ndim - 2))


def check_table(dataset: dfact.Dataset, rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Against cells read by Python alone."""

    def number(cell: Any) -> float:
        text = "" if cell is None else str(cell).strip()
        value = float("nan") if text in ("", "NA") else float(text)
        return float("nan") if value == -9 else value

    items = [name for name in columns if fnmatchcase(name, "Q*")]
    expect(list(dataset.column_labels) == items, "other items")
    values = np.array([[number(row[name]) for name in items] for row in rows])
    kept = ~np.isnan(values).all(axis=1)
    expect(kept.sum() == dataset.shape[0], "other rows")
    np.testing.assert_allclose(read_values(dataset), values[kept], rtol=1e-6)
    labels = [row["id"] for row, keep in zip(rows, kept, strict=True) if keep]
    expect(list(dataset.row_labels) == labels, "other labels")


def text_rows(path: Path, delimiter: str) -> tuple[list[dict[str, Any]], list[str]]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig", "surrogateescape")
    limit = csv.field_size_limit(max(len(lines), 1 << 17))
    records = [record for record in csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter) if record]
    csv.field_size_limit(limit)
    return [dict(zip(records[0], record, strict=True)) for record in records[1:]], records[0]


def text_target(name: str, delimiter: str) -> Target:
    def make(folder: Path) -> None:
        answers().to_csv(folder / name, sep=delimiter, index=False)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.import_table(folder / name, out / "d.zarr", **IMPORT)
        check_table(dataset, *text_rows(folder / name, delimiter))

    return Target(make, mutate_file(name, lambda data, rng: mutate_text(data, rng, delimiter)), read)


def parquet_target() -> Target:
    def make(folder: Path) -> None:
        table = answers()
        numbers = {f"Q{j}": "Int16" if j % 2 else "float32" for j in range(M)}
        table.astype(numbers).to_parquet(folder / "t.parquet", row_group_size=16)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.import_table(folder / "t.parquet", out / "d.zarr", **IMPORT)
        table = pq.ParquetFile(folder / "t.parquet").read()
        check_table(dataset, table.to_pylist(), table.column_names)

    return Target(make, mutate_file("t.parquet", mutate_bytes), read)


def array_target(name: str, save: Callable[[Path, Any], None]) -> Target:
    def make(folder: Path) -> None:
        values = np.random.default_rng(1).random((N, M, 3))
        values[0, 0, 0] = np.nan
        save(folder / name, values)

    def read(folder: Path, out: Path, same: bool) -> None:
        from dfact.data.readers.numpy_files import read_array_file

        dataset = dfact.import_array(read_array_file(folder / name), out / "d.zarr", empty_rows="drop")
        loaded = np.load(folder / name, allow_pickle=False)
        values = loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]
        kept = ~np.isnan(values).reshape(len(values), -1).all(axis=1)
        np.testing.assert_allclose(read_values(dataset), values[kept], rtol=1e-6)

    return Target(make, mutate_file(name, mutate_bytes), read)


def triplets_target(name: str) -> Target:
    def make(folder: Path) -> None:
        rng = np.random.default_rng(2)
        row, column = np.divmod(rng.choice(N * M, 90, replace=False), M)
        table = pd.DataFrame({"row": [f"u{i}" for i in row], "column": [f"s{j}" for j in column], "value": rng.random(90).round(4)})
        table.to_csv(folder / name, index=False) if name.endswith("csv") else table.to_parquet(folder / name)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.import_triplets(folder / name, out / "d.zarr", duplicates="last", missing="NA")
        rows = text_rows(folder / name, ",")[0] if name.endswith("csv") else pq.ParquetFile(folder / name).read().to_pylist()
        cells = [(row["row"], row["column"], "" if row["value"] is None else str(row["value"]).strip()) for row in rows]
        known = {(row, column): float(value) for row, column, value in cells if value not in ("", "NA") and float(value) == float(value)}
        expect(list(dataset.row_labels) == list(dict.fromkeys(row for row, _, _ in cells)), "other row labels")
        expect(list(dataset.column_labels) == list(dict.fromkeys(column for _, column, _ in cells)), "other column labels")
        values = read_values(dataset)
        found = {(dataset.row_labels[i], dataset.column_labels[j]): values[i, j] for i, j in np.argwhere(~np.isnan(values))}
        expect(found.keys() == known.keys() and np.allclose([found[at] for at in known], list(known.values()), rtol=1e-6), "other entries")

    change: Any = (lambda data, rng: mutate_text(data, rng, ",")) if name.endswith("csv") else mutate_bytes
    return Target(make, mutate_file(name, change), read)


def check_dataset(dataset: dfact.Dataset, whole: dict[str, Any] | None) -> None:
    """All that a dataset says, which fits together, and is what it was if that is known."""
    from dfact.cli.info import dataset_text

    n, m, *_ = dataset.shape
    found = {"values": read_values(dataset), "rows": list(dataset.row_labels), "columns": list(dataset.column_labels)}
    found |= {"range": dataset.valid_range.tolist(), "missing": dataset.missing_rate, "dropped": dataset.dropped_rows}
    found["confounders"] = None if dataset.confounders is None else dataset.confounders.astype(str).to_dict()
    expect(found["values"].shape == dataset.shape and len(found["rows"]) == n and len(found["columns"]) == m, "sizes that do not fit")
    dataset_text(dataset)
    if whole is not None:
        np.testing.assert_array_equal(found.pop("values"), whole["values"])
        expect(found == {name: value for name, value in whole.items() if name != "values"}, "a damaged store is read as another")
    else:
        ALL_ROWS.update(found)


ALL_ROWS: dict[str, Any] = {}


def write_dataset(kind: str, path: Path, first: int = 0) -> None:
    table = answers()
    values = table.filter(like="Q").astype(np.int16).to_numpy()
    confounders = table[["age", "sex"]]
    if kind == "sparse":
        matrix = sp.csr_array(np.where(np.random.default_rng(3).random((N, M)) < 0.4, values + 10.0, 0))
        dfact.import_array(matrix, path, implicit="missing", empty_rows="drop", row_labels=table["id"])
    elif kind == "tensor":
        dfact.import_array(np.random.default_rng(4).random((N, M, 3)), path)
    else:
        labels = [f"p{first + i}" for i in range(N)]
        dfact.import_array(values, path, missing=-9, row_labels=labels, confounders=confounders, empty_rows="drop")


def estimator(kind: str) -> Any:
    common: dict[str, Any] = {"n_components": 2, "max_iter": 2, "random_state": 0, "executor": "inline"}
    return {"dense": dfact.ICQF, "sparse": dfact.ExpectileMF, "tensor": dfact.ElasticCP}[kind](**common)


def dataset_target(kind: str) -> Target:
    original: dict[str, Any] = {}

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.open_dataset(folder / "d.zarr")
        ALL_ROWS.clear()
        check_dataset(dataset, original if same and original else None)
        if not original:
            original.update(ALL_ROWS)
        model = estimator(kind).fit(dataset)
        expect(np.isfinite(model.objective_history_).all(), "an objective that is no number")

    return Target(lambda folder: write_dataset(kind, folder / "d.zarr"), lambda f, rng: mutate_store(f / "d.zarr", rng), read)


def join_target() -> Target:
    original: dict[str, Any] = {}

    def make(folder: Path) -> None:
        write_dataset("dense", folder / "a.zarr")
        write_dataset("dense", folder / "b.zarr", first=10)
        path = folder / "b.zarr"
        shutil.rmtree(path)
        dfact.import_array(np.eye(N, 3) + 1, path, row_labels=[f"p{10 + i}" for i in range(N)])

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.join_datasets([folder / "a.zarr", folder / "b.zarr"], out / "j.zarr", prefix=True)
        ALL_ROWS.clear()
        check_dataset(dataset, original if same and original else None)
        if not original:
            original.update(ALL_ROWS)

    return Target(make, lambda folder, rng: mutate_store(folder / rng.choice(["a.zarr", "b.zarr"]), rng), read)


def model_target(kind: str) -> Target:
    def make(folder: Path) -> None:
        write_dataset(kind, folder / "d.zarr")
        dfact.save_model(estimator(kind).fit(dfact.open_dataset(folder / "d.zarr")), folder / "m.model")

    original: list[Any] = []

    def read(folder: Path, out: Path, same: bool) -> None:
        found = use_model(dfact.load_model(folder / "m.model"), folder / "d.zarr")
        expect(len(found) == N, "factors of other rows")
        if same and original:
            np.testing.assert_array_equal(found, original[0])
        original[:] = original or [found]

    return Target(make, lambda folder, rng: mutate_store(folder / "m.model", rng), read)


def use_model(model: Any, data: Path) -> Any:
    """The factors of the rows."""
    if hasattr(model, "reconstruct"):
        found = np.asarray(model.reconstruct())
    else:
        found = np.asarray(model.set_params(executor="inline").transform(dfact.open_dataset(data)))
    expect(found.dtype.kind == "f", "no factors")
    return found


FORGED: dict[str, tuple[str, Callable[[], Any]]] = {
    "icqf": ("dense", lambda: dfact.ICQF(2, max_iter=2, bounds=(0, 9))),
    "l1nmf": ("dense", lambda: dfact.L1NMF(2, max_iter=2)),
    "fa": ("dense", lambda: dfact.FactorAnalysis(2)),
    "gom": ("dense", lambda: dfact.GradeOfMembership(2, random_state=0)),
    "emf": ("sparse", lambda: dfact.ExpectileMF(2, max_iter=2)),
    "cp": ("tensor", lambda: dfact.ElasticCP(2, max_iter=2, random_state=0)),
    "cp given": ("tensor", lambda: dfact.ElasticCP(2, max_iter=2, random_state=0, prior=[np.ones(N), np.ones(M), np.ones(3)])),
}
"""Models whose documents are forged, and the data they are fitted to."""


def forged_target(name: str) -> Target:
    """A model whose document and arrays say something else, with all digests right again: used, or refused when it is loaded."""
    kind, make_estimator = FORGED[name]

    def make(folder: Path) -> None:
        write_dataset(kind, folder / "d.zarr")
        dataset = dfact.open_dataset(folder / "d.zarr")
        model = make_estimator().set_params(executor="inline").fit(dataset)
        if kind != "tensor":
            loadings = np.asarray(model.components_, float)
            model.stability_ = Stability(np.ones((2, len(loadings))), loadings, loadings, loadings, 0.95, np.ones(loadings.shape))
        scores = pd.DataFrame({"error": [1.0, 2.0], "n": [1.0, 2.0]}, index=pd.Index([2, 3], name="n_components"))
        model.selection_ = SelectionRecord.from_table(scores, 0, "error", "lowest")
        dfact.save_model(model, folder / "m.model")

    def read(folder: Path, out: Path, same: bool) -> None:
        from dfact.report.export import write_loadings, write_model_factors

        model = dfact.load_model(folder / "m.model")
        for use in (
            lambda: use_model(model, folder / "d.zarr"),
            lambda: stored_model_text(folder / "m.model", 5),
            lambda: dfact.write_report(folder / "m.model", out / "r.html"),
            lambda: write_loadings(model, out / "l.csv"),
            lambda: write_model_factors(model, out / "f.csv"),
        ):
            with contextlib.suppress(dfact.DfactError):  # a model may not be one of these data
                use()
        for path in out.iterdir():
            path.unlink()

    return Target(make, lambda folder, rng: forge_model(folder / "m.model", rng), read)


def forge_model(path: Path, rng: random.Random) -> bool:
    """Other values, values in each other's place, other arrays; with the digests right again."""
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    attributes: Any = dict(group.attrs["dfact"])
    model = attributes["model"]
    for _ in range(rng.randint(1, 2)):
        places = list(places_in(model["fitted"])) + list(places_in(model["parameters"]))
        parent, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                model = mutate_json(model, rng)
            case 1:
                other, name = rng.choice(places)
                parent[key] = json.loads(json.dumps(other[name]))
            case 2:
                parent[key] = rng.choice(STRANGE)(rng)
            case _:
                arrays = [found for parent, key in places if isinstance(found := parent[key], dict) and "array" in found]
                forge_array(group, rng.choice(arrays), rng)
        if not isinstance(model, dict) or not all(isinstance(model.get(part), dict) for part in ("fitted", "parameters")):
            break
    attributes |= {"model": model, "digest": hashlib.blake2b(json.dumps(model, sort_keys=True).encode(), digest_size=16).hexdigest()}
    group.attrs["dfact"] = attributes
    return False


def places_in(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a JSON document, as what holds it and its key."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from places_in(tree[key])


def forge_array(group: Any, found: dict[str, Any], rng: random.Random) -> None:
    """Another array in the place of one that the document names."""
    values = np.asarray(group[found["array"]])
    flat = values.reshape(-1)
    number = values.dtype.kind in "iuf"
    match rng.randrange(8):
        case 0:
            values = values[: rng.choice([0, 1, len(values) - 1])]
        case 1:
            values = values.T
        case 2:
            values = values[..., None]
        case 3:
            values = flat
        case 4:
            values = np.concatenate([values, values])
        case 5 if number:
            values = values.astype(rng.choice(["int8", "int64", "float16", "float32", "float64", "uint8", ">f8"]))
        case _ if number and flat.size:
            values = values.astype(rng.choice(["float32", "float64"]))
            values.reshape(-1)[rng.randrange(flat.size)] = rng.choice([float("nan"), float("inf"), -1, 0, 1e30, -1e30])
        case _:
            values = values.astype(str).astype(object) if number else np.arange(float(flat.size)).reshape(values.shape)
    name = f"forged_{len(list(group.array_keys()))}"
    found |= {"array": name, "digest": persistence._write_array(group, name, np.ascontiguousarray(values))}


TARGETS: dict[str, Target] = {
    "csv": text_target("t.csv", ","),
    "tsv.gz": text_target("t.tsv.gz", "\t"),
    "parquet": parquet_target(),
    "npy": array_target("x.npy", np.save),
    "npz": array_target("x.npz", lambda path, values: np.savez_compressed(path, x=values)),
    "triplets csv": triplets_target("t.csv"),
    "triplets parquet": triplets_target("t.parquet"),
    "join": join_target(),
    **{f"{kind} dataset": dataset_target(kind) for kind in ("dense", "sparse", "tensor")},
    **{f"{kind} model": model_target(kind) for kind in ("dense", "sparse", "tensor")},
    **{f"forged {name}": forged_target(name) for name in FORGED},
}


# One input


class Bench:
    """The good inputs in a folder of their own, and a place to damage copies of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        tempfile.tempdir = str(self._fresh("tmp"))

    def _fresh(self, name: str) -> Path:
        folder = self._root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def good(self, name: str) -> Path:
        """The good input, read once so that it is known to be, and what it says."""
        folder = self._root / "good" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            TARGETS[name].make(folder)
            TARGETS[name].read(folder, self._fresh("out"), False)
        return folder

    def try_one(self, name: str, seed: int, number: int) -> tuple[str, str]:
        """Right, refused or failed, and in which words."""
        target, rng = TARGETS[name], random.Random(f"{seed}/{name}/{number}")
        good, folder, out = self.good(name), self._root / "input", self._fresh("out")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        same = target.mutate(folder, rng)
        before = sorted(folder.iterdir())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verdict, words = _outcome(lambda: target.read(folder, out, same))
        numeric = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
        left = [path.name for path in out.iterdir() if verdict == "refused" or path.name not in ("d.zarr", "j.zarr")]
        left += self._temporary()
        left += [path.name for path in folder.iterdir() if path not in before]
        if verdict != "failed" and (left or numeric or len(caught) > 5):
            return "failed", f"left {left}" if left else f"warns: {(numeric or caught)[0]}"
        return verdict, words

    def _temporary(self) -> list[str]:
        """What lies in TMPDIR though nobody holds it; it is not held against the next input."""
        folder = self._root / "tmp"
        if any(folder.iterdir()):
            gc.collect()  # a fitted model's factors go when the model does
        left = [path.name for path in folder.iterdir()]
        self._fresh("tmp")
        return left


def _outcome(read: Callable[[], None]) -> tuple[str, str]:
    try:
        read()
    except dfact.DfactError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:
        return "failed", traceback.format_exc()
    return "right", ""


# Many inputs


def work(connection: Connection, root: str) -> None:
    """A worker: answers inputs until the pipe is closed."""
    bench = Bench(Path(root))
    allowed: set[str] = set()
    with contextlib.suppress(EOFError):
        while True:
            name, seed, number = connection.recv()
            if name not in allowed:  # imports and compiling are not the input's
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                bench.good(name)
                allowed.add(name)
                resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, resource.RLIM_INFINITY))
            connection.send(None)  # the clock starts
            connection.send(bench.try_one(name, seed, number))


class Worker:
    """A process that tries inputs, and another where it dies or has to."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._root = tempfile.mkdtemp(prefix="fuzz-")
        self._process = context.Process(target=work, args=(theirs, self._root), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, job: tuple[str, int, int]) -> None:
        self.job, self.began = job, float("inf")
        self.connection.send(job)

    def answer(self) -> tuple[str, str] | None:
        """What is known by now; None where it goes on."""
        try:
            while self.connection.poll():
                found: tuple[str, str] | None = self.connection.recv()
                if found is not None:
                    return found
                self.began = time.monotonic()
        except EOFError:
            self._process.join()
            return self._again(f"the process died with exit code {self._process.exitcode}")
        if time.monotonic() - self.began > SECONDS:
            return self._again(f"no end after {SECONDS:g} s")
        return None

    def _again(self, why: str) -> tuple[str, str]:
        self.close()
        self._start()
        return "failed", why

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
        shutil.rmtree(self._root, ignore_errors=True)


def run(jobs: Iterable[tuple[str, int, int]], workers: list[Worker]) -> Iterator[tuple[tuple[str, int, int], str, str]]:
    """(target, seed, number), the verdict and its words for every job, as they come."""
    waiting = iter(jobs)
    busy: list[Worker] = []

    def next_for(worker: Worker) -> None:
        job = next(waiting, None)
        if job is not None:
            worker.give(job)
            busy.append(worker)

    for worker in workers:
        next_for(worker)
    while busy:
        wait([worker.connection for worker in busy], timeout=0.5)
        for worker in list(busy):
            found = worker.answer()
            if found is not None:
                busy.remove(worker)
                yield worker.job, *found
                next_for(worker)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--one", type=int, metavar="NUMBER", help="try this input of the target alone, here, and say what becomes of it")
    arguments = parser.parse_args()
    if arguments.one is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(*Bench(Path(folder)).try_one(arguments.targets[0], arguments.seed, arguments.one))
        return 0
    jobs = [(arguments.targets[i % len(arguments.targets)], arguments.seed, i) for i in range(arguments.count)]
    counts = {name: {"target": name, "inputs": 0, "right": 0, "refused": 0, "failed": 0} for name in arguments.targets}
    workers = [Worker() for _ in range(os.cpu_count() or 1)]
    try:
        for (name, seed, number), verdict, words in run(jobs, workers):
            counts[name]["inputs"] += 1
            counts[name][verdict] += 1
            if verdict == "failed":
                print(f"{name}, --seed {seed} --one {number}: {words}", file=sys.stderr)
    finally:
        for worker in workers:
            worker.close()
    failures = sum(row["failed"] for row in counts.values())
    bars = [(f"of {arguments.count} inputs none fails: each is read as it stands or refused in words", failures == 0)]
    report("fuzz", list(counts.values()), bars)
    return exit_code(bars)


if __name__ == "__main__":
    sys.exit(main())
