"""Targets: delimited text, parquet, Arrow, and tables of triplets."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import codecs
import csv
import gzip
import io
import random
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

import dfact
from benchmarks.fuzz.mutations import mutate_bytes, mutate_file, mutate_text
from benchmarks.fuzz.target import M, N, Target, answers, expect, read_values
from dfact.imports.readers.columnar import arrow, parquet
from dfact.imports.readers.text import delimited

IMPORT: dict[str, Any] = {"items": "Q*", "id_column": "id", "confounders": ["age", "sex"], "missing": [-9, "NA"], "empty_rows": "drop"}


MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", ".")


def check_table(
    dataset: dfact.Dataset,
    rows: list[dict[str, Any]],
    columns: list[str],
    *,
    items: str = "Q*",
    id_column: str = "id",
    decimal: str = ".",
) -> None:
    """Compare a dataset with cells read by a reader that shares no code with dfact."""

    def number(cell: Any) -> float:
        text = "" if cell is None else str(cell).strip()
        if decimal != ".":
            text = text.replace(".", "x").replace(decimal, ".") if isinstance(cell, str) and text not in MISSING else text
        value = float("nan") if text in MISSING else float(text)
        return float("nan") if value == -9 else value

    names = [name for name in columns if fnmatchcase(name, items)]
    expect(list(dataset.column_labels) == names, "other items")
    values = np.array([[number(row[name]) for name in names] for row in rows])
    kept = ~np.isnan(values).all(axis=1)
    expect(kept.sum() == dataset.shape[0], "other rows")
    # Values are stored from the lowest one up, in single precision.
    rounding = 2.0**-22 * (np.nanmax(values) - np.nanmin(values)) + 2.0**-126
    np.testing.assert_allclose(read_values(dataset), values[kept], rtol=1e-6, atol=rounding)
    if id_column in columns:
        labels = [row[id_column] for row, keep in zip(rows, kept, strict=True) if keep]
        # pandas and NumPy drop NUL at the end of a text.
        expect([label.rstrip("\0") for label in dataset.row_labels] == [str(label).rstrip("\0") for label in labels], "other labels")


def text_rows(path: Path, delimiter: str, encoding: str = "utf-8", n_headers: int = 1) -> tuple[list[dict[str, Any]], list[str]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    marked = next((name for mark, name in MARKS.items() if data.startswith(mark)), encoding)
    lines = data.decode(marked, "surrogateescape")
    limit = csv.field_size_limit(max(len(lines), 1 << 17))
    records = [record for record in csv.reader(io.StringIO(lines, newline=""), delimiter=delimiter) if record]
    csv.field_size_limit(limit)
    columns = records[0] if n_headers == 1 else joined_names(*records[:2])
    return [dict(zip(columns, record, strict=True)) for record in records[n_headers:]], columns


MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def joined_names(upper: list[str], lower: list[str]) -> list[str]:
    """Return the names of two header lines, of which the upper one has a question above the first of its columns."""
    names: list[str] = []
    question = ""
    for j, (above, below) in enumerate(zip(upper, lower, strict=True), start=1):
        question = above or question
        name = ": ".join(text for text in (question, "" if below == "Response" else below) if text) if above or below else f"column {j}"
        before = sum(name in (other, other.rsplit(" (", 1)[0]) for other in names)
        names.append(f"{name} ({before + 1})" if before else name)
    return names


def text_target(
    name: str, delimiter: str, *, encoding: str = "utf-8", decimal: str = ".", n_headers: int = 1, part_bytes: int | None = None
) -> Target:
    """Return a target of delimited text; with ``part_bytes``, all texts are quoted and the file is read in parts of this size."""
    prefix = "Mood: " if n_headers == 2 else ""
    options: dict[str, Any] = {"header_rows": n_headers} if n_headers > 1 else {}
    options |= {} if decimal == "." else {"decimal": decimal, "delimiter": delimiter}
    options |= {} if encoding.startswith("utf-") else {"encoding": encoding}
    options |= {"items": f"{prefix}Q*", "confounders": [f"{prefix}age", f"{prefix}sex"]}

    def make(folder: Path) -> None:
        table = answers()
        table["id"] = table["id"] if encoding == "utf-8" else "é" + table["id"]
        text = table.to_csv(sep=delimiter, index=False, decimal=decimal, quoting=csv.QUOTE_NONNUMERIC if part_bytes else csv.QUOTE_MINIMAL)
        data = (f"{delimiter}Mood{delimiter * (M + 1)}\n{text}" if n_headers == 2 else text).encode(encoding)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)

    def read(folder: Path, out: Path, same: bool) -> None:
        with mock.patch.object(delimited, "_PART_BYTES", part_bytes or 1 << 23):
            dataset = dfact.import_table(folder / name, out / "d.zarr", **IMPORT | options)
        rows = text_rows(folder / name, delimiter, options.get("encoding", "utf-8"), n_headers)
        check_table(dataset, *rows, items=options["items"], decimal=decimal)

    return Target(make, mutate_file(name, lambda data, rng: mutate_text(data, rng, delimiter, encoding)), read)


def typed_answers() -> pd.DataFrame:
    numbers = {f"Q{j}": "Int16" if j % 2 else "float32" for j in range(M)}
    return answers().astype(numbers)


def parquet_target() -> Target:
    def make(folder: Path) -> None:
        typed_answers().to_parquet(folder / "t.parquet", row_group_size=16)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.import_table(folder / "t.parquet", out / "d.zarr", **IMPORT)
        table = pq.ParquetFile(folder / "t.parquet").read()
        check_table(dataset, table.to_pylist(), table.column_names)

    return Target(make, mutate_file("t.parquet", mutate_bytes), read)


PART_NAMES = ["part-9.parquet", "_part.parquet", ".parquet", "part.PARQUET", "part.csv", "é\n.parquet"]
KEYS = ["sex=", "sex", "sex=m=f", "Q1=3", "sex=%00", "sex=__HIVE_DEFAULT_PARTITION__"]


def folder_target() -> Target:
    """Return the target of a folder of parts as Spark writes it, with a column in the names of its folders."""

    def parts(folder: Path) -> list[Path]:
        return sorted(folder.rglob("*.parquet"), key=lambda path: path.relative_to(folder).parts)

    def make(folder: Path) -> None:
        table = typed_answers()
        for sex, rows in table.groupby("sex"):
            own = folder / "t" / f"sex={sex}"
            own.mkdir(parents=True)
            for i in range(2):
                rows.drop(columns="sex")[10 * i :][:10].to_parquet(own / f"part-{i}.parquet", index=False)
                (own / f".part-{i}.parquet.crc").write_bytes(b"crc")
        for name in ("_metadata", "_SUCCESS"):
            (folder / "t" / name).write_bytes(b"")

    def mutate(folder: Path, rng: random.Random) -> bool:
        part, other = rng.choice(parts(folder)), rng.choice(parts(folder))
        match rng.randrange(10):
            case 0:
                part.unlink()
            case 1:
                part.write_bytes(b"")
            case 2:
                part.write_bytes(other.read_bytes())
            case 3:
                part.rename(part.with_name(rng.choice(PART_NAMES)))
            case 4:
                part.parent.rename(part.parent.with_name(rng.choice(KEYS)))
            case 5:
                rows = pq.ParquetFile(part).read().to_pandas()
                name = rng.choice(list(rows))
                changed = [rows.drop(columns=name), rows.rename(columns={name: "new"}), rows.astype({name: str}), rows[:0]]
                rng.choice(changed).to_parquet(part, index=False)
            case _:
                part.write_bytes(mutate_bytes(part.read_bytes(), rng))
        return False

    def read(folder: Path, out: Path, same: bool) -> None:
        with mock.patch.object(parquet, "_PART_BYTES", 1):
            dataset = dfact.import_table(folder / "t", out / "d.zarr", **IMPORT)
        shown = [path for path in sorted((folder / "t").rglob("*"), key=lambda path: path.relative_to(folder).parts) if path.is_file()]
        shown = [path for path in shown if path.suffix.lower() == ".parquet" and not path.name.startswith(("_", "."))]
        tables = [pq.ParquetFile(path).read() for path in shown]
        columns = [name for name in tables[0].column_names if name != "sex"]
        check_table(dataset, [row for table in tables for row in table.to_pylist()], columns)

    return Target(make, mutate, read)


def arrow_target(name: str, save: Callable[[Path, pa.Table], None], load: Callable[[Path], pa.Table]) -> Target:
    def make(folder: Path) -> None:
        table = typed_answers()
        table["sex"] = pd.Categorical(table["sex"])
        save(folder / name, pa.Table.from_pandas(table, preserve_index=False))

    def read(folder: Path, out: Path, same: bool) -> None:
        with mock.patch.object(arrow, "_PART_BYTES", 1):
            dataset = dfact.import_table(folder / name, out / "d.zarr", **IMPORT)
        table = load(folder / name)
        check_table(dataset, table.to_pylist(), table.column_names)

    return Target(make, mutate_file(name, mutate_bytes), read)


def save_ipc(path: Path, table: pa.Table, create: Callable[[Any, pa.Schema], Any]) -> None:
    with path.open("wb") as stream, create(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)


def load_ipc(path: Path, open_reader: Callable[[Any], Any]) -> pa.Table:
    with path.open("rb") as stream, open_reader(stream) as reader:
        return reader.read_all()


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


TABLE_TARGETS = {
    "csv": text_target("t.csv", ","),
    "tsv.gz": text_target("t.tsv.gz", "\t"),
    "csv in parts": text_target("t.csv", ",", part_bytes=100),
    "csv cp1252": text_target("t.csv", ",", encoding="cp1252"),
    "csv utf-16": text_target("t.csv", ",", encoding="utf-16"),
    "csv decimal comma": text_target("t.csv", ";", decimal=","),
    "csv two headers": text_target("t.csv", ",", n_headers=2),
    "parquet": parquet_target(),
    "parquet folder": folder_target(),
    "arrow": arrow_target(
        "t.arrow",
        lambda path, table: save_ipc(path, table, pa.ipc.new_file),
        lambda path: load_ipc(path, pa.ipc.open_file),
    ),
    "arrow stream": arrow_target(
        "t.arrows",
        lambda path, table: save_ipc(path, table, pa.ipc.new_stream),
        lambda path: load_ipc(path, pa.ipc.open_stream),
    ),
    "feather": arrow_target("t.feather", lambda path, table: feather.write_feather(table, path, chunksize=16), feather.read_table),
    "triplets csv": triplets_target("t.csv"),
    "triplets parquet": triplets_target("t.parquet"),
}
