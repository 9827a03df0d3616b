"""Targets: delimited text, parquet, and tables of triplets."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import csv
import gzip
import io
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import dfact
from benchmarks.fuzz.mutations import mutate_bytes, mutate_file, mutate_text
from benchmarks.fuzz.target import M, N, Target, answers, expect, read_values

IMPORT: dict[str, Any] = {"items": "Q*", "id_column": "id", "confounders": ["age", "sex"], "missing": [-9, "NA"], "empty_rows": "drop"}


def check_table(dataset: dfact.Dataset, rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Compare a dataset with cells read by Python's own csv module or by pyarrow."""

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
