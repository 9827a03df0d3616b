"""How far fits by likelihood end below those with a tolerance of 1e-12, and the time of SCOPE's example.

    python -m benchmarks.admixture.stopping [--sets 200] [--before FOLDER]

Admixture and GradeOfMembership are fitted to simulated data of 60 to 400 rows, on which default fits must end within 0.01 nat. FOLDER is a
checkout of an earlier version, made for instance by ``git worktree add FOLDER COMMIT``. SCOPE's example is then imported and fitted by the
programs of both versions in turn, which may take 1.1 times as long as before; the passes are counted, too.
"""

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import REAL_DATA, exit_code, report

_SHORT, _SLOWER, _REPEATS = 0.01, 1.1, 7
_PROGRAM = """
import sys
from dfact.cli.main import main
sys.exit(main(["import", "a.bed", sys.argv[1]]) or main(["fit", "admixture", sys.argv[1], sys.argv[2], "-k", "6"]))
"""

Array = NDArray[np.float64]


def genotypes(seed: int) -> tuple[Any, Array]:
    """Return a model of two to six populations, and genotypes of as many, 3% of them missing."""
    rng = np.random.default_rng(seed)
    k, n, m = 2 + seed % 5, (60, 100, 150)[seed % 3], (120, 200, 400)[seed // 3 % 3]
    p = rng.uniform(0.1, 0.9, m) * 9
    G = rng.binomial(2, rng.dirichlet([0.5] * k, n) @ rng.beta(p, 9 - p, (k, m))).astype(np.float64)
    G[rng.random(G.shape) < 0.03] = np.nan
    return dfact.Admixture(k, max_iter=3000), G


def answers(seed: int) -> tuple[dfact.GradeOfMembership, Array]:
    """Return a model of two to five classes, and answers: of so many classes, or rounded factors, 10% of them missing."""
    rng = np.random.default_rng(seed)
    k, n, m = 2 + seed % 4, (100, 240, 400)[seed % 3], (12, 16, 30)[seed // 3 % 3]
    if seed % 2:
        X = np.clip(np.round(rng.random((n, k)) @ rng.random((k, m)) * 4 + 0.5 * rng.normal(size=(n, m))), 0, 6)
    else:
        X = rng.binomial(4, rng.dirichlet([0.4] * k, n) @ rng.uniform(0.05, 0.95, (k, m))).astype(np.float64)
    X[rng.random(X.shape) < 0.1] = np.nan
    return dfact.GradeOfMembership(k, likelihood="binomial", random_state=seed, max_iter=3000), X


SETS = {"Admixture": genotypes, "GradeOfMembership": answers}


def shortfall(model: Any, X: Array) -> tuple[float, int, int]:
    """Return by how many nats the fit ends below that with a tolerance of 1e-12, and the passes of both."""
    found = model.fit(X)
    likelihood, passes = found.log_likelihood_, found.n_iter_
    tight = model.set_params(tol=1e-12).fit(X)
    return tight.log_likelihood_ - likelihood, passes, tight.n_iter_


def seconds(sources: Path, folder: Path) -> float:
    """Return the time in which the program of a version imports and fits SCOPE's example, which lies in the folder."""
    environment = os.environ | {"PYTHONPATH": str(sources)}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        outputs = [f"{temporary}/a.zarr", f"{temporary}/a.model"]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", _PROGRAM, *outputs], cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - began


def scope_example(folder: Path) -> None:
    """Write SCOPE's example into a folder."""
    source = REAL_DATA.parent / "genotypes" / "scope"
    for suffix in ("bed", "fam"):
        (folder / f"a.{suffix}").write_bytes((source / f"example_1k.{suffix}").read_bytes())
    (folder / "a.bim").write_bytes(gzip.decompress((source / "example_1k.bim.gz").read_bytes()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=200, help="datasets for each model")
    parser.add_argument("--before", type=Path, help="checkout of an earlier version")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rows: list[dict[str, Any]] = []
    thresholds = []
    for name, simulate in SETS.items():
        short, passes, tight = np.array([shortfall(*simulate(1000 + i)) for i in range(options.sets)]).T
        rows.append({"fit": name, "sets": options.sets, "nats short": short.max(), "passes": passes.mean(), "tight": tight.mean()})
        thresholds.append((f"{name} ends within {_SHORT} nat of a tolerance of 1e-12", bool(short.max() <= _SHORT)))
    if options.before is not None:
        with tempfile.TemporaryDirectory() as temporary:
            scope_example(folder := Path(temporary))
            versions = (Path(dfact.__file__).parents[1], options.before.resolve())
            pairs = [[seconds(version, folder) for version in versions] for _ in range(_REPEATS + 1)][1:]  # the first compiles kernels
            now, before = map(statistics.median, zip(*pairs, strict=True))
        rows.append({"fit": "SCOPE's example", "seconds": now, "before": before})
        thresholds.append((f"SCOPE's example takes at most {_SLOWER} times the seconds before", now <= _SLOWER * before))
    report("likelihood_stopping", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
