"""Principal components of planted data on disk: time, accuracy of the singular values, and memory, next to other libraries.

    python -m benchmarks.pca.speed [--shapes 200000x500,20000x5000] [--components 10] [--threads 2] [--folder DIR] [--dask-ml PYTHON]

scikit-learn's randomized PCA gets the data in memory, after it has been read. dask-ml's PCA reads the same values from a Zarr array, if an
interpreter that has it is named. Each run is a process of its own. The errors are relative to the singular values of dfact in double
precision, iterated to 1e-10. With ``--missing`` entries are missing, which dfact alone accepts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import dfact
from benchmarks.common import Peak, call_in_new_process, exit_code, report
from dfact.models.pca import spectrum

_ROWS = 2048
_THRESHOLD = 1e-4  # relative error of the singular values that all must keep


def make(path: Path, n: int, m: int, k: int, missing: float = 0.0) -> None:
    """Write n rows of k components whose variances fall geometrically from 100 to 4, in noise of variance 1."""
    rng = np.random.default_rng(0)
    loadings = np.linalg.qr(rng.standard_normal((m, k)))[0].T * np.sqrt(np.geomspace(100, 4, k) * m / 100)[:, None]

    def blocks() -> Any:
        for start in range(0, n, _ROWS):
            count = min(_ROWS, n - start)
            X = (rng.standard_normal((count, k)) @ loadings + rng.standard_normal((count, m)) + 3).astype(np.float32)
            X[rng.random(X.shape, np.float32) < missing] = np.nan
            yield X

    array = zarr.create_array(path.with_suffix(".raw.zarr"), shape=(n, m), chunks=(_ROWS, m), dtype="float32", compressors=None)
    for number, X in enumerate(blocks()):
        array[number * _ROWS : number * _ROWS + len(X)] = X
    dfact.import_array(array, path)


def fit_dfact(path: str, k: int, threads: int, dtype: str | None) -> dict[str, Any]:
    """Fit to the stored data."""
    if dtype == "float64":
        spectrum._TOLERANCE["float64"] = 1e-10
    model = dfact.PCA(k, dtype=dtype, executor="inline" if threads == 1 else "threads")
    plan = dfact.plan(model, path)
    began = time.perf_counter()
    with Peak() as peak:
        model.fit(path)
    seconds = time.perf_counter() - began
    return _result(model.singular_values_, seconds, peak.bytes) | {"planned_GiB": plan.peak / 2**30, "passes": model.n_iter_}


def fit_scikit_learn(path: str, k: int) -> dict[str, Any]:
    """Fit scikit-learn's randomized PCA to the data in memory; the time leaves out reading."""
    from sklearn.decomposition import PCA

    dataset = dfact.open_dataset(path)
    X = dataset.source.read(0, dataset.shape[0])
    model, began = PCA(k, svd_solver="randomized", random_state=0), time.perf_counter()
    with Peak() as peak:
        model.fit_transform(X)
    return _result(model.singular_values_, time.perf_counter() - began, peak.bytes)


def _result(values: NDArray[Any], seconds: float, peak: int) -> dict[str, Any]:
    return {"values": values.tolist(), "seconds": seconds, "peak_GiB": peak / 2**30}


DASK_ML = """
import json, sys, time
import dask.array as da
import dask
from dask_ml.decomposition import PCA
path, k, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import resource
X = da.from_zarr(path)
began = time.perf_counter()
with dask.config.set(scheduler="threads", num_workers=threads):
    model = PCA(k, svd_solver="randomized", iterated_power=int(sys.argv[4]), random_state=0)
    scores = model.fit_transform(X).compute()
print("RESULT" + json.dumps({"values": model.singular_values_.tolist(), "seconds": time.perf_counter() - began,
                             "peak_GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
"""


def fit_dask_ml(python: str, path: Path, k: int, threads: int) -> dict[str, Any]:
    """Fit dask-ml's randomized PCA to the raw store with another interpreter, with 4 power iterations."""
    arguments = [str(path.with_suffix(".raw.zarr")), str(k), str(threads)]
    done = subprocess.run([python, "-c", DASK_ML, *arguments, "4"], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[6:])
    return found


def measure(path: Path, k: int, threads: int, dask_ml: str | None) -> list[dict[str, Any]]:
    """Return a row for each program, with its error."""
    module, n, m = "benchmarks.pca.speed", *dfact.open_dataset(path).shape
    truth = np.array(call_in_new_process(module, "fit_dfact", str(path), k, threads, "float64")["values"])
    found = {
        "dfact": call_in_new_process(module, "fit_dfact", str(path), k, threads, None),
        "scikit-learn": call_in_new_process(module, "fit_scikit_learn", str(path), k),
    }
    if dask_ml is not None:
        found["dask-ml"] = fit_dask_ml(dask_ml, path, k, threads)
    rows = []
    for name, result in found.items():
        error = float(np.abs(np.array(result.pop("values")) / truth - 1).max())
        rows.append({"program": name, "rows": n, "columns": m, "error": error, **result})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="200000x500,20000x5000")
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--missing", type=float, default=0.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--dask-ml", help="interpreter of an environment with dask-ml")
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shapes.split(","):
        n, m = map(int, shape.split("x"))
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            path = Path(folder) / "planted.zarr"
            make(path, n, m, arguments.components, arguments.missing)
            if arguments.missing:
                result = call_in_new_process("benchmarks.pca.speed", "fit_dfact", str(path), arguments.components, arguments.threads, None)
                rows.append({"program": "dfact", "rows": n, "columns": m} | {key: result[key] for key in result if key != "values"})
            else:
                rows += measure(path, arguments.components, arguments.threads, arguments.dask_ml)
    thresholds = [
        (f"{row['rows']} × {row['columns']}: error {row['error']:.1e} (threshold {_THRESHOLD:g})", row["error"] <= _THRESHOLD)
        for row in rows
        if row["program"] == "dfact" and "error" in row
    ]
    thresholds += [
        (
            f"{row['rows']} × {row['columns']}: peak {row['peak_GiB']:.2f} GiB (threshold {row['planned_GiB']:.2f}, as planned)",
            row["peak_GiB"] <= row["planned_GiB"],
        )
        for row in rows
        if row["program"] == "dfact"
    ]
    report("pca-speed", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
