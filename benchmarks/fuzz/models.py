"""Targets: saved models, damaged, or forged with valid digests."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr

import dfact
from benchmarks.fuzz.datasets import estimator, write_dataset
from benchmarks.fuzz.mutations import STRANGE, mutate_json, mutate_store
from benchmarks.fuzz.target import M, N, Target, expect
from dfact.cli.info import stored_model_text
from dfact.models.persistence import write_array
from dfact.models.provenance import SelectionRecord, Stability


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
    """Return the factors of the rows."""
    if hasattr(model, "reconstruct"):
        found = np.asarray(model.reconstruct())
    else:
        found = np.asarray(model.set_params(executor="inline").transform(dfact.open_dataset(data)))
    expect(found.dtype.kind == "f", "no factors")
    return found


FORGED: dict[str, tuple[str, Callable[[], Any]]] = {
    "icqf": ("dense", lambda: dfact.ICQF(2, max_iter=2, bounds=(0, 9))),
    "nmf": ("dense", lambda: dfact.NMF(2, max_iter=2)),
    "fa": ("dense", lambda: dfact.FactorAnalysis(2)),
    "pca": ("dense", lambda: dfact.PCA(2, max_iter=2)),
    "gom": ("dense", lambda: dfact.GradeOfMembership(2, random_state=0)),
    "emf": ("sparse", lambda: dfact.ExpectileMF(2, max_iter=2)),
    "cp": ("tensor", lambda: dfact.ElasticCP(2, max_iter=2, random_state=0)),
    "cp given": ("tensor", lambda: dfact.ElasticCP(2, max_iter=2, random_state=0, slice_variances=[np.ones(N), np.ones(M), np.ones(3)])),
}
"""Models whose documents are forged, with the kind of their data."""


def forged_target(name: str) -> Target:
    """Return the target of a model with changed document and arrays but valid digests: it must work, or be refused when loaded."""
    kind, make_estimator = FORGED[name]

    def make(folder: Path) -> None:
        write_dataset(kind, folder / "d.zarr")
        dataset = dfact.open_dataset(folder / "d.zarr")
        model = make_estimator().set_params(executor="inline").fit(dataset)
        if kind != "tensor":
            loadings = np.asarray(model.components_, float)
            model.stability_ = Stability(np.ones((2, len(loadings))), loadings, loadings, loadings, 0.95, np.ones(loadings.shape))
        scores = pd.DataFrame({"error": [1.0, 2.0], "n": [1.0, 2.0]}, index=pd.Index([2, 3], name="n_components"))
        model.selection_ = SelectionRecord.from_table(scores, 0, "error", "min")
        dfact.save_model(model, folder / "m.model")

    def read(folder: Path, out: Path, same: bool) -> None:
        from dfact.export.files import write_loadings, write_model_factors

        model = dfact.load_model(folder / "m.model")
        for use in (
            lambda: use_model(model, folder / "d.zarr"),
            lambda: stored_model_text(folder / "m.model", 5),
            lambda: dfact.write_report(folder / "m.model", out / "r.html"),
            lambda: write_loadings(model, out / "l.csv"),
            lambda: write_model_factors(model, out / "f.csv"),
        ):
            with contextlib.suppress(dfact.DfactError):  # the model may not match the data
                use()
        for path in out.iterdir():
            path.unlink()

    return Target(make, lambda folder, rng: forge_model(folder / "m.model", rng), read)


def forge_model(path: Path, rng: random.Random) -> bool:
    """Change and swap values of the document and its arrays, and update the digests."""
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    attributes: Any = dict(group.attrs["dfact"])
    names, model = set(group.array_keys()), attributes["model"]
    for _ in range(rng.randint(1, 2)):
        entries = list(walk(model["fitted"])) + list(walk(model["parameters"]))
        parent, key = rng.choice(entries)
        match rng.randrange(5):
            case 0:
                model = mutate_json(model, rng)
            case 1:
                other, name = rng.choice(entries)
                parent[key] = json.loads(json.dumps(other[name]))
            case 2:
                parent[key] = rng.choice(STRANGE)(rng)
            case _:
                arrays = [found for parent, key in entries if isinstance(found := parent[key], dict) and str(found.get("array")) in names]
                forge_array(group, rng.choice(arrays), rng)
        if not isinstance(model, dict) or not all(isinstance(model.get(part), dict) for part in ("fitted", "parameters")):
            break
    attributes |= {"model": model, "digest": hashlib.blake2b(json.dumps(model, sort_keys=True).encode(), digest_size=16).hexdigest()}
    group.attrs["dfact"] = attributes
    return False


def walk(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every value of a JSON document, as its container and key."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from walk(tree[key])


def forge_array(group: Any, found: dict[str, Any], rng: random.Random) -> None:
    """Replace an array that the document names."""
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
    found |= {"array": name, "digest": write_array(group, name, np.ascontiguousarray(values))}
