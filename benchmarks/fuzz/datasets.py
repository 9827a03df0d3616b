"""Targets: stored datasets, and two that are joined."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import dfact
from benchmarks.fuzz.mutations import mutate_store
from benchmarks.fuzz.target import M, N, Target, answers, expect, read_values


def check_dataset(dataset: dfact.Dataset, expected: dict[str, Any] | None) -> dict[str, Any]:
    """Check that a dataset is consistent, and equal to the expected contents if given; return its contents."""
    from dfact.cli.info import dataset_text

    n, m, *_ = dataset.shape
    found = {"values": read_values(dataset), "rows": list(dataset.row_labels), "columns": list(dataset.column_labels)}
    found |= {"range": dataset.valid_range.tolist(), "missing": dataset.missing_rate, "dropped": dataset.dropped_rows}
    found["confounders"] = None if dataset.confounders is None else dataset.confounders.astype(str).to_dict()
    expect(found["values"].shape == dataset.shape and len(found["rows"]) == n and len(found["columns"]) == m, "inconsistent sizes")
    dataset_text(dataset)
    if expected is not None:
        np.testing.assert_array_equal(found["values"], expected["values"])
        expect(all(found[name] == expected[name] for name in found if name != "values"), "a damaged store is read with other contents")
    return found


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
        found = check_dataset(dataset, original if same and original else None)
        if not original:
            original.update(found)
        model = estimator(kind).fit(dataset)
        expect(np.isfinite(model.objective_history_).all(), "an objective that is not finite")

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
        found = check_dataset(dataset, original if same and original else None)
        if not original:
            original.update(found)

    return Target(make, lambda folder, rng: mutate_store(folder / rng.choice(["a.zarr", "b.zarr"]), rng), read)
