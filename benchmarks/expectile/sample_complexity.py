"""Theorem 2 of the expectile matrix factorization paper: how many Gaussian measurements recover a matrix of rank k exactly.

    python -m benchmarks.expectile.sample_complexity [--repetitions 10] [--plot FOLDER]

The theorem asks for p of the order of ((1 − ω)/ω)²·k³·n·log n measurements b_i = ⟨A_i, M*⟩ of an n×n matrix, with independent normal
entries of A_i, and ω ≤ ½. It is a sufficient number. A matrix of rank k has (2n − k)·k free numbers, so that fewer measurements cannot
suffice. Counted here is the share of random problems that the fit recovers to 1e-5, over p as a multiple of the free numbers.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.common import exit_code, report
from dfact.report.plots import new_figure, save_figure

SIZES = (8, 12, 16)
RANKS = (1, 2)
OMEGAS = (0.1, 0.3, 0.5)
MULTIPLES = (0.9, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Numbers of measurements, relative to the free numbers of the matrix."""
_RECOVERED = 1e-5
Thresholds = list[tuple[str, bool]]


def free_numbers(n: int, k: int) -> int:
    """Return the number of parameters of an n×n matrix of rank k."""
    return (2 * n - k) * k


def recovered(n: int, k: int, omega: float, p: int, seed: int) -> bool:
    """Fit p measurements of a random matrix, and return whether it is recovered."""
    rng = np.random.default_rng([seed, n, k, p])
    planted = rng.standard_normal((n, k)) @ rng.standard_normal((k, n))
    A = rng.standard_normal((p, n * n))
    model = dfact.ExpectileMF(k, tau=omega, max_iter=400, tol=1e-13, ridge=1e-10)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # too few measurements need not converge
        model.fit_measurements(A, A @ planted.ravel(), (n, n))
    error = np.linalg.norm(model.row_factors_ @ model.components_ - planted) / np.linalg.norm(planted)
    return bool(error <= _RECOVERED)


def curves(
    repetitions: int, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = RANKS, omegas: Sequence[float] = OMEGAS
) -> list[dict[str, Any]]:
    """Return the share of recovered matrices for each size, rank, ω and number of measurements."""
    rows = []
    for n in sizes:
        for k in ranks:
            for omega in omegas:
                row: dict[str, Any] = {"n": n, "k": k, "omega": omega, "free": free_numbers(n, k)}
                for multiple in MULTIPLES:
                    p = round(multiple * free_numbers(n, k))
                    row[f"{multiple:g}"] = float(np.mean([recovered(n, k, omega, p, seed) for seed in range(repetitions)]))
                rows.append(row | {"half at": _half(row)})
    return rows


def _half(row: dict[str, Any]) -> float:
    """Return the multiple of the free numbers from which at least half of the matrices are recovered."""
    reached = [multiple for multiple in MULTIPLES if row[f"{multiple:g}"] >= 0.5]
    return reached[0] if reached else float("inf")


def thresholds_of(rows: list[dict[str, Any]]) -> Thresholds:
    """Compare the shares with the theorem: enough measurements recover all, too few none, and the number grows no faster than n·log n."""
    least, most = (f"{MULTIPLES[i]:g}" for i in (0, -1))
    found: Thresholds = [
        (f"{least} × the free numbers recover none", all(row[least] == 0 for row in rows)),
        (f"{most} × the free numbers recover all", all(row[most] == 1 for row in rows)),
    ]
    for k in sorted({row["k"] for row in rows}):
        for omega in sorted({row["omega"] for row in rows}):
            of = [row for row in rows if row["k"] == k and row["omega"] == omega]
            rates = [row["half at"] * row["free"] / (row["n"] * np.log(row["n"])) for row in of]
            text = (
                f"k = {k}, ω = {omega}: p / (n log n) at half recovery does not grow with n, {', '.join(f'{rate:.2f}' for rate in rates)}"
            )
            found.append((text, rates[-1] <= 1.35 * rates[0]))
    for k in sorted({row["k"] for row in rows}):
        worst = {
            omega: max(row["half at"] for row in rows if row["k"] == k and row["omega"] == omega) for omega in {r["omega"] for r in rows}
        }
        low, high = min(worst), max(worst)
        bound = ((1 - low) / low) ** 2 / ((1 - high) / high) ** 2
        found.append(
            (
                f"k = {k}: ω = {low} needs {worst[low] / worst[high]:.2g} × as many as ω = {high}, at most {bound:.3g}",
                worst[low] <= bound * worst[high],
            )
        )
    return found


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """Draw the shares over the number of measurements, a panel for each rank."""
    ranks = sorted({row["k"] for row in rows})
    figure = new_figure(5 * len(ranks), 4)
    for panel, k in enumerate(ranks):
        axes = figure.add_subplot(
            1, len(ranks), panel + 1, title=f"rank {k}", xlabel="measurements / free numbers", ylabel="share recovered exactly"
        )
        for row in rows:
            if row["k"] == k:
                style = {8: ":", 12: "--"}.get(row["n"], "-")
                color = f"C{sorted({r['omega'] for r in rows}).index(row['omega'])}"
                label = f"n = {row['n']}, ω = {row['omega']}"
                axes.plot(MULTIPLES, [row[f"{multiple:g}"] for multiple in MULTIPLES], style, color=color, marker=".", label=label)
        axes.axvline(1, color="0.7", linewidth=0.8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save_figure(figure, folder / "emf_sample_complexity.png", overwrite=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw there")
    options = parser.parse_args()
    rows = curves(options.repetitions)
    thresholds = thresholds_of(rows)
    report("emf_sample_complexity", rows, thresholds)
    if options.plot:
        draw(rows, options.plot)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
