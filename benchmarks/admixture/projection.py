"""Projections on a fitted admixture: how much nearer to the middle new individuals are placed than those of the fit.

    python -m benchmarks.admixture.projection [--data scope,planted,few,hapmap3]

In ten folds, models are fitted to nine tenths of the individuals, and the others are projected: on the estimated frequencies, and on
those that ``transform`` takes, which are corrected for their sampling errors. The errors are those to the true ancestry proportions where
these are known, and to those of a fit of all individuals. Slopes are of the regression on these: 1 without shrinkage.
"""

import argparse
import gzip
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import REAL_DATA, exit_code, report
from dfact.data.synthetic import PlantedAdmixture

FOLDS = 10
POPULATIONS = {"scope": 6, "planted": 4, "few": 3, "hapmap3": 3}
"""Number of populations for each dataset."""
SHAPES = {"planted": (1000, 3000), "few": (200, 2000)}

Array = NDArray[Any]


def genotypes(name: str) -> tuple[Array, Array | None]:
    """Return genotypes (n, m) and the true ancestry proportions, None if they are unknown."""
    if name in SHAPES:
        planted = PlantedAdmixture(*SHAPES[name], POPULATIONS[name])
        return np.concatenate(list(planted.blocks())), planted.Q
    folder, stem = REAL_DATA.parent / "genotypes" / name, {"scope": "example_1k"}.get(name, name)
    with tempfile.TemporaryDirectory() as temporary:
        bed = Path(temporary) / "a.bed"
        for suffix in (".bed", ".fam"):
            bed.with_suffix(suffix).write_bytes((folder / f"{stem}{suffix}").read_bytes())
        bed.with_suffix(".bim").write_bytes(gzip.decompress((folder / f"{stem}.bim.gz").read_bytes()))
        dataset = dfact.import_genotypes(bed, Path(temporary) / "a.zarr")
        G = dataset.source.read(0, dataset.shape[0]).astype(np.float32)
        G[dataset.missing_code == G] = np.nan
    return G, np.loadtxt(folder / "Q_true.txt.gz") if name == "scope" else None


def fit(G: Array, k: int) -> dfact.Admixture:
    """Fit tightly, so that maxima of the folds differ by their individuals alone."""
    return dfact.Admixture(k, tol=1e-8, max_iter=200).fit(G)


def order_like(Q: Array, other: Array) -> NDArray[np.intp]:
    """Return the order of the columns of Q in which they are nearest to those of the other proportions."""
    return linear_sum_assignment(np.square(Q[:, None, :] - other[:, :, None]).sum(axis=0))[1]


def compare(name: str) -> list[dict[str, Any]]:
    """Project each fold, and return the errors of the fit, of plain projections and of corrected ones."""
    G, truth = genotypes(name)
    k, complete = POPULATIONS[name], np.asarray(fit(G, POPULATIONS[name]).memberships_, np.float64)
    if truth is not None:
        complete = complete[:, order_like(complete, truth)]
    found = {"fitted": complete, "plain": np.empty_like(complete), "corrected": np.empty_like(complete)}
    for fold in np.array_split(np.random.default_rng(0).permutation(len(G)), FOLDS):
        rest = np.setdiff1d(np.arange(len(G)), fold)
        model = fit(G[rest], k)
        order = order_like(np.asarray(model.memberships_, np.float64), complete[rest])
        found["corrected"][fold] = np.asarray(model.transform(G[fold]))[:, order]
        found["plain"][fold] = np.asarray(model.set_params(unshrink=False).transform(G[fold]))[:, order]
    reference = complete if truth is None else truth
    rows = []
    for kind, Q in found.items():
        row = {"data": name, "shape": f"{G.shape[0]} × {G.shape[1]}", "memberships": kind}
        row["rmse"] = root_mean_square(Q - reference) if truth is not None else float("nan")
        row["ratio"] = row["rmse"] / root_mean_square(complete - reference) if truth is not None else float("nan")
        row["rmse_to_fitted"] = root_mean_square(Q - complete)
        row["slope_on_fitted"] = float(((Q - 1 / k) * (complete - 1 / k)).sum() / np.square(complete - 1 / k).sum())
        rows.append(row)
    return rows


def root_mean_square(error: Array) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.square(error).mean()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(POPULATIONS))
    arguments = parser.parse_args()
    rows, thresholds = [], []
    for name in arguments.data.split(","):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compare(name)
        rows += found
        fitted, plain, corrected = found
        del fitted
        key = "rmse_to_fitted" if np.isnan(plain["rmse"]) else "rmse"
        thresholds.append((f"{name}: the correction lowers the error of projections", corrected[key] < plain[key]))
    report("admixture_projection", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
