"""Tables 4 and 5 of the grade-of-membership paper on the public questionnaires, and sparse against dense ratings.

python -m benchmarks.gom.tables [--largest 15] [--repeats 7]
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

import dfact
from benchmarks.common import REAL_DATA, exit_code, lone_pure_subjects, report, side_by_side

Thresholds = list[tuple[str, bool]]


@dataclass(frozen=True)
class Published:
    """The results that the paper prints for one questionnaire, 0 = no response."""

    items: list[str]
    levels: int
    best: dict[str, tuple[tuple[int, ...], str]]
    """Of each method the best K (all of them where its modularities tie) and the modularity, table 4."""
    shares: tuple[float, float]
    """Highly pure and highly mixed subjects with "crsc", table 5."""
    precision: float
    """To which the shares are expected: starts of K-means differ."""
    seconds: float
    faster: float | None = None
    """At least so many times faster than the paper."""


PAPER = {
    "ipip_ascado": Published(
        [f"{scale}{i}" for scale in ("AS", "SC", "AD", "DO") for i in range(1, 11)],
        5,
        {"srsc": ((4,), "0.0021"), "crsc": ((2,), "0.0067"), "ssc": ((4,), "0.0021"), "srm": ((4,), "0.0019")},
        (0.6036, 0.2112),
        0.002,
        0.0467,
    ),
    "kims": Published(
        [f"Q{i}" for i in range(1, 40)],
        5,
        {"srsc": ((3,), "0.0027"), "crsc": ((2,), "0.0081"), "ssc": ((3,), "0.0027"), "srm": ((3,), "0.0024")},
        (0.6040, 0.1947),
        0.002,
        0.0345,
    ),
    "npi": Published(
        [f"Q{i}" for i in range(1, 41)],
        2,
        {"srsc": ((4,), "0.0017"), "crsc": ((2,), "0.0054"), "ssc": ((4,), "0.0017"), "srm": ((8, 14), "0.00028")},
        (0.6249, 0.1882),
        0.003,
        1.5903,
        faster=5,
    ),
}


def file_of(name: str) -> Path:
    path = REAL_DATA / f"{name}.csv"
    if not path.exists():
        sys.exit(f"{path.name} is missing: this benchmark needs the real questionnaires in {REAL_DATA}")
    return path


def responses(name: str) -> NDArray[np.float64]:
    """Return the recorded answers, 0 = no response, without subjects who gave none."""
    R = pd.read_csv(file_of(name), usecols=PAPER[name].items)[PAPER[name].items].to_numpy(np.float64)
    return R[R.any(axis=1)]


def stored(name: str, folder: Path) -> dfact.Dataset:
    """Return the answers as a dataset of uint8."""
    return dfact.import_table(file_of(name), folder / f"{name}.zarr", items=PAPER[name].items, missing=0, empty_rows="drop")


def inputs(name: str, folder: Path) -> dict[str, Any]:
    return {"float64": responses(name), "float32, stored": stored(name, folder)}


def model(name: str, method: str, n_components: int = 2) -> dfact.GradeOfMembership:
    return dfact.GradeOfMembership(n_components, method=method, max_response=PAPER[name].levels, random_state=0)


def table_4(largest: int) -> Thresholds:
    """Compute table 4: the best K and its modularity, for arrays in float64 and stored answers in float32."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, paper in PAPER.items():
            data = inputs(name, Path(folder))
            for method, (best, digits) in paper.best.items():
                for precision, X in data.items():
                    with lone_pure_subjects():
                        selection = dfact.selection.select_by_modularity(model(name, method), X, range(2, largest + 1))
                    k = selection.best_params["n_components"]
                    modularity = selection.table.loc[k, "modularity"]
                    printed = f"{modularity:.{len(digits) - 2}f}"
                    rows.append(
                        {
                            "data": name,
                            "method": method,
                            "precision": precision,
                            "K": k,
                            "K_paper": best[-1],
                            "modularity": modularity,
                            "paper": digits,
                            "equal": k in best and printed == digits,
                        }
                    )
    thresholds = [
        (
            f"{precision}: {sum(not r['equal'] for r in own)} of {len(own)} entries differ from the paper's digits",
            all(r["equal"] for r in own),
        )
        for precision in ("float64", "float32, stored")
        for own in [[row for row in rows if row["precision"] == precision]]
    ]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    gap = max(abs(a["modularity"] / b["modularity"] - 1) for a, b in pairs)
    thresholds.append((f"float32 and float64 choose the same K; modularities within {gap:.1e}", all(a["K"] == b["K"] for a, b in pairs)))
    report("gom_table_4", rows, thresholds)
    return thresholds


def table_5(repeats: int) -> Thresholds:
    """Compute table 5: shares of highly pure and highly mixed subjects, and the time of a fit."""
    rows: list[dict[str, Any]] = []
    thresholds: Thresholds = []
    with tempfile.TemporaryDirectory() as folder:
        for name, paper in PAPER.items():
            data = inputs(name, Path(folder))
            models = {precision: model(name, "crsc", paper.best["crsc"][0][0]) for precision in data}
            with lone_pure_subjects():
                times = side_by_side({p: lambda fitted=models[p], X=X: fitted.fit(X) for p, X in data.items()}, repeats)
            for precision, fitted in models.items():
                pure, mixed = fitted.highly_pure_share_, fitted.highly_mixed_share_
                rows.append(
                    {
                        "data": name,
                        "precision": precision,
                        "highly_pure": pure,
                        "paper_pure": paper.shares[0],
                        "highly_mixed": mixed,
                        "paper_mixed": paper.shares[1],
                        "seconds": times[precision],
                        "paper_seconds": paper.seconds,
                        "times_faster": paper.seconds / times[precision],
                    }
                )
                gap = max(abs(pure - paper.shares[0]), abs(mixed - paper.shares[1]))
                thresholds.append(
                    (f"{name}, {precision}: shares within {gap:.4f} of the paper's (threshold {paper.precision})", gap <= paper.precision)
                )
            if paper.faster:
                ratio = min(row["times_faster"] for row in rows if row["data"] == name)
                thresholds.append(
                    (f"{name}: at least {ratio:.1f} × faster than in the paper (threshold {paper.faster:g})", ratio >= paper.faster)
                )
    report("gom_table_5", rows, thresholds)
    return thresholds


def synthetic_ratings(n: int, m: int, zeros: float, seed: int = 0) -> NDArray[np.float64]:
    """Return ratings 1 to 5 of m films by n users of three tastes, half of them pure; few films have many ratings."""
    rng = np.random.default_rng(seed)
    memberships = np.vstack([np.eye(3)[rng.integers(0, 3, n // 2)], rng.dirichlet(np.full(3, 0.5), n - n // 2)])
    popularity = memberships @ rng.pareto(1.2, (3, m))
    chance = rng.pareto(2, (n, 1)) * popularity * rng.random((n, m))
    rated = chance > np.quantile(chance, zeros)
    rated[np.arange(n), chance.argmax(axis=1)] = True
    return np.where(rated, 1 + rng.binomial(4, memberships @ rng.beta(2, 2, (3, m))), 0).astype(np.float64)


def ratings(n: int, m: int, repeats: int) -> Thresholds:
    """Compare dense and CSR synthetic ratings of MovieLens 100k's shape and sparsity."""
    dense = synthetic_ratings(n, m, 0.937)
    compressed = sp.csr_array(dense)
    rows: list[dict[str, Any]] = []
    for method in ("srsc", "crsc", "ssc", "srm"):
        models = {kind: dfact.GradeOfMembership(3, method=method, max_response=5, random_state=0) for kind in ("dense", "sparse")}
        with lone_pure_subjects():
            times = side_by_side(
                {
                    "dense": lambda models=models: models["dense"].fit(dense),
                    "sparse": lambda models=models: models["sparse"].fit(compressed),
                },
                repeats,
            )
        a, b = models["dense"], models["sparse"]
        rows.append(
            {
                "method": method,
                "zeros": 1 - compressed.nnz / dense.size,
                "modularity": a.modularity_,
                "same_pure_subjects": bool((a.pure_subjects_ == b.pure_subjects_).all()),
                "largest_difference": np.abs(a.memberships_ - b.memberships_).max(),
                "dense_seconds": times["dense"],
                "sparse_seconds": times["sparse"],
            }
        )
    gap = max(row["largest_difference"] for row in rows)
    thresholds = [
        ("sparse and dense ratings give the same pure subjects", all(row["same_pure_subjects"] for row in rows)),
        (f"sparse and dense ratings give memberships within {gap:.1e} (threshold 1e-6)", gap <= 1e-6),
    ]
    report("gom_synthetic_ratings", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=15, help="the most classes that are tried")
    parser.add_argument("--repeats", type=int, default=7, help="fits whose median time counts")
    options = parser.parse_args()
    return exit_code(table_4(options.largest) + table_5(options.repeats) + ratings(943, 1682, options.repeats))


if __name__ == "__main__":
    sys.exit(main())
