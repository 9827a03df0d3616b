"""How often ElasticCP ends more than 1% above the best of ten starts, on planted tensors.

    python -m benchmarks.cp.starts --before FOLDER [--tensors 200] [--first 0]

FOLDER is a checkout of an earlier version. Each tensor is fitted by the defaults of both versions, and by this one from ten single
random starts. The tensors have three or four modes, and two to five components of five kinds, which are normal, positive, sparse,
collinear, or positive and fitted as such; 0, 30 or 60% of their entries are missing. Two minutes on one core.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import exit_code, report

KINDS = ("normal", "positive", "sparse", "collinear", "nonnegative")
SHAPES = ((30, 15, 10), (60, 20, 8), (16, 10, 8, 5), (100, 12, 4))
SHARES = (0.0, 0.3, 0.6)
_STARTS, _EXCESS, _BAR = 10, 0.01, 0.02
_FIT = """
import sys, json, warnings
import numpy as np
import dfact
warnings.simplefilter("ignore")
data, found = np.load(sys.argv[1]), []
for name, parameters in json.loads(sys.argv[2]).items():
    model = dfact.ElasticCP(**parameters).fit(data[name])
    found.append([float(model.objective_history_[-1]), model.rank_])
print(json.dumps(found))
"""


def vectors(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    if kind in ("positive", "nonnegative"):
        return rng.random(shape)
    A = rng.standard_normal(shape)
    if kind == "sparse":
        return A * (rng.random(shape) < 0.4)
    return A if kind == "normal" else rng.standard_normal((shape[0], 1)) + 0.6 * A


def planted(seed: int) -> tuple[str, int, NDArray[np.float64]]:
    """Return the kind, the number of components, and a tensor of unit variance and noise, NaN where missing."""
    rng = np.random.default_rng([20, seed])
    kind, shape = KINDS[seed % len(KINDS)], SHAPES[seed % len(SHAPES)]
    share, rank = SHARES[seed // (len(KINDS) * len(SHAPES)) % len(SHARES)], int(rng.integers(2, 6))
    factors = [vectors(kind, (size, rank), rng) for size in shape]
    factors = [A / np.maximum(np.linalg.norm(A, axis=0), 1e-9) for A in factors]
    weights = rng.uniform(0.5, 2, rank)
    Z = sum(weights[r] * reduce(np.multiply.outer, [A[:, r] for A in factors]) for r in range(rank))
    Z = Z / np.std(Z) + 0.3 * rng.standard_normal(shape)
    Z[rng.random(shape) < share] = np.nan
    return kind, rank, Z


def default_ends(root: Path, data: Path, fits: dict[str, dict[str, Any]]) -> list[tuple[float, int]]:
    """Return the final objective and the rank of each fit with the version at ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _FIT, str(data), json.dumps(fits)]
    done = subprocess.run(command, env=environment, cwd=data.parent, check=True, stdout=subprocess.PIPE)
    return [(objective, rank) for objective, rank in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the earlier version")
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first tensor")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    versions = {"now": Path(__file__).resolve().parents[2]} | ({"before": options.before.resolve()} if options.before else {})
    tensors = {f"{seed}": planted(seed) for seed in range(options.first, options.first + options.tensors)}
    fits: dict[str, dict[str, Any]] = {
        name: {"n_components": rank, "nonnegative": kind == "nonnegative", "random_state": int(name), "executor": "inline"}
        for name, (kind, rank, _) in tensors.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "tensors.npz"
        np.savez(data, **{name: Z for name, (_, _, Z) in tensors.items()})
        found = {version: default_ends(root, data, fits) for version, root in versions.items()}
    rows: list[dict[str, Any]] = []
    for i, (name, (kind, rank, Z)) in enumerate(tensors.items()):
        single = [
            float(dfact.ElasticCP(**fits[name] | {"init": "random", "n_init": 1, "random_state": seed}).fit(Z).objective_history_[-1])
            for seed in range(_STARTS)
        ]
        best = min(single)
        row: dict[str, Any] = {"tensor": name, "kind": kind, "components": rank, "shape": "×".join(map(str, Z.shape))}
        row |= {"missing": float(np.isnan(Z).mean()), "single starts above": sum(end > (1 + _EXCESS) * best for end in single)}
        for version, ends in found.items():
            row |= {f"above, {version}": ends[i][0] / best - 1, f"rank, {version}": ends[i][1]}
        rows.append(row)
    thresholds = []
    for version in found:
        above = sum(row[f"above, {version}"] > _EXCESS for row in rows)
        text = f"{version}: {above} of {len(rows)} default fits end more than {_EXCESS:.0%} above the best of ten starts"
        thresholds.append((f"{text} (threshold {_BAR:.0%})", version == "before" or above <= _BAR * len(rows)))
    report("elastic_cp_starts", [row for row in rows if any(row[f"above, {version}"] > _EXCESS for version in found)], thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
