"""Experiments 1-4 of the grade-of-membership paper (section 7.3), and expected responses without noise.

    python -m benchmarks.gom.simulations [--repetitions 20]

The paper repeats each setting 100 times. The norm of the Hamming error is the sum over all entries, up to 2N;
the paper's error lies between 0 and 1, as with the norm of matrices: for two classes it is half of this norm.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import GOM_ALGORITHMS, exit_code, lone_pure_subjects, report
from dfact.data.synthetic import PlantedMemberships, gom_simulation

Thresholds = list[tuple[str, bool]]

SPECTRAL = [name for name in GOM_ALGORITHMS if name != "srm"]
REGULARIZED = [name for name in SPECTRAL if name != "ssc"]
LEVELS = 4
TAUS = (0.2, 0.6, 1, 2, 3, 4, 5, 6, 7)
RHOS = (0.2, 0.6, 1, 1.4, 1.8, 2.2, 2.6, 3)
SIZES = (800, 1600, 3200, 5600, 8000)
CANDIDATES = range(2, 9)
"""Numbers of classes among which modularity chooses."""


def hamming(estimate: NDArray[Any], planted: NDArray[Any]) -> float:
    """Return (1/N)·min over permutations of Σ|Π̂ − Π|."""
    costs = np.abs(estimate[:, :, None] - planted[:, None, :]).sum(axis=0)
    return float(costs[linear_sum_assignment(costs)].sum() / len(planted))


def relative(estimate: NDArray[Any], planted: NDArray[Any]) -> float:
    """Return the minimum over permutations of ‖Θ̂ − Θ‖ / ‖Θ‖."""
    costs = np.square(estimate[:, :, None] - planted[:, None, :]).sum(axis=0)
    return float(np.sqrt(costs[linear_sum_assignment(costs)].sum()) / np.linalg.norm(planted))


def outcome(model: dfact.GradeOfMembership, planted: PlantedMemberships, candidates: Sequence[int]) -> dict[str, float]:
    """Return the errors with known K, the K chosen by modularity, and the seconds of the fit."""
    with lone_pure_subjects():
        chosen = dfact.selection.select_by_modularity(model, planted.R, candidates).best_params["n_components"]
        began = time.perf_counter()
        model.fit(planted.R)
        seconds = time.perf_counter() - began
    return {
        "hamming": hamming(model.memberships_, planted.memberships),
        "relative": relative(model.components_.T, planted.item_parameters),
        "K_right": float(chosen == model.n_components),
        "seconds": seconds,
    }


def averages(
    plant: Callable[[int], PlantedMemberships],
    repetitions: int,
    algorithms: Iterable[str],
    *,
    levels: int = LEVELS,
    tau: Callable[[tuple[int, ...]], float] | None = None,
    candidates: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Return means over datasets that all algorithms share; the median of the seconds."""
    outcomes: dict[str, list[dict[str, float]]] = {name: [] for name in algorithms}
    for seed in range(repetitions):
        planted = plant(seed)
        for name, found in outcomes.items():
            model = dfact.GradeOfMembership(
                planted.memberships.shape[1],
                **GOM_ALGORITHMS[name],
                tau=None if tau is None else tau(planted.R.shape),
                max_response=levels,
                random_state=seed,
            )
            found.append(outcome(model, planted, candidates or CANDIDATES))
    frames = {name: pd.DataFrame(found) for name, found in outcomes.items()}
    return [{"algorithm": name, **frame.mean(), "seconds": frame["seconds"].median()} for name, frame in frames.items()]


def of(rows: Sequence[dict[str, Any]], algorithm: str, what: str) -> NDArray[np.float64]:
    return np.array([row[what] for row in rows if row["algorithm"] == algorithm])


def beats_srsc(rows: Sequence[dict[str, Any]], where: str) -> Thresholds:
    """Return thresholds for both errors of "crsc" with either vertex hunting."""
    thresholds: Thresholds = []
    for algorithm in ("crsc, kmeans", "crsc, svm-cone"):
        ratios = [float((of(rows, algorithm, error) / of(rows, "srsc", error)).max()) for error in ("hamming", "relative")]
        thresholds.append(
            (f"{where}: {algorithm} has {ratios[0]:.3f} and {ratios[1]:.3f} × the errors of srsc (threshold < 1)", max(ratios) < 1)
        )
    return thresholds


def errors_fall(rows: Sequence[dict[str, Any]], along: str) -> Thresholds:
    """Return thresholds for the fall of each error from setting to setting, for the spectral methods."""
    thresholds: Thresholds = []
    for algorithm in SPECTRAL:
        steps = np.concatenate([of(rows, algorithm, error)[1:] / of(rows, algorithm, error)[:-1] for error in ("hamming", "relative")])
        thresholds.append(
            (f"{algorithm}: errors fall as {along} grows, to at most {steps.max():.3f} of the step before (threshold < 1)", max(steps) < 1)
        )
    return thresholds


def experiment_1(repetitions: int) -> Thresholds:
    """Vary τ = α·M·max(N, J) at ρ = 1, N = 800."""
    rows = [
        {"alpha": alpha, **row}
        for alpha in TAUS
        for row in averages(
            lambda seed: gom_simulation(1, 800, seed), repetitions, REGULARIZED, tau=lambda shape, alpha=alpha: alpha * LEVELS * max(shape)
        )
    ]
    thresholds: Thresholds = []
    for algorithm in REGULARIZED:
        spread = max(of(rows, algorithm, error).max() / of(rows, algorithm, error).min() for error in ("hamming", "relative"))
        thresholds.append((f"{algorithm}: the largest error over all τ is {spread:.3f} × the smallest (threshold 1.2)", spread <= 1.2))
    report("gom_experiment_1", rows, thresholds)
    return thresholds


def experiment_2(repetitions: int) -> Thresholds:
    """Vary ρ at N = 800."""
    rows = [
        {"rho": rho, **row}
        for rho in RHOS
        for row in averages(lambda seed, rho=rho: gom_simulation(rho, 800, seed), repetitions, GOM_ALGORITHMS)
    ]
    thresholds = beats_srsc([row for row in rows if row["rho"] == 1], "ρ = 1, N = 800") + errors_fall(rows, "ρ")
    for algorithm in SPECTRAL:
        right = float(of([row for row in rows if row["rho"] == 1], algorithm, "K_right")[0])
        thresholds.append((f"{algorithm}: K found in {right:.0%} of the runs at ρ = 1, N = 800 (threshold 95%)", right >= 0.95))
    report("gom_experiment_2", rows, thresholds)
    return thresholds


def experiment_3(repetitions: int, sizes: Sequence[int] = SIZES) -> Thresholds:
    """Vary N at ρ = 0.2, J = N/4; with a fifth of the repetitions from 3200 subjects."""
    rows = [
        {"N": n, **row}
        for n in sizes
        for row in averages(
            lambda seed, n=n: gom_simulation(0.2, n, seed), repetitions if n < 3200 else max(1, repetitions // 5), GOM_ALGORITHMS
        )
    ]
    thresholds = beats_srsc(rows, "ρ = 0.2, the worst N") + errors_fall(rows, "N")
    report("gom_experiment_3", rows, thresholds)
    return thresholds


def toy(seed: int) -> PlantedMemberships:
    """Return a toy example: 20 subjects, 7 of them pure in each of two classes; 10 items on which they differ by up to 4; M = 5."""
    r = np.linspace(0.2, 0.8, 6)
    memberships = np.vstack([np.repeat(np.eye(2), 7, axis=0), np.column_stack([r, 1 - r])])
    rising = np.linspace(0.5, 4.5, 10)
    item_parameters = np.column_stack([rising, rising[::-1]])
    R = np.random.default_rng(seed).binomial(5, memberships @ item_parameters.T / 5)
    return PlantedMemberships(R, memberships, item_parameters)


def experiment_4(repetitions: int) -> Thresholds:
    """Fit the toy example. The paper shows Π and Θ in a figure only, so its errors, from one dataset, are for orientation."""
    paper = {"srsc": (0.0650, 0.1142), "crsc, kmeans": (0.0529, 0.1034), "ssc": (0.0654, 0.1146), "srm": (0.0772, 0.1251)}
    rows = averages(toy, repetitions, GOM_ALGORITHMS, levels=5, candidates=range(2, 6))
    for row in rows:
        row["half_hamming"] = row["hamming"] / 2
        row["paper_hamming"], row["paper_relative"] = paper.get(row["algorithm"], (np.nan, np.nan))
    report("gom_experiment_4", rows)
    return []


def noiseless() -> Thresholds:
    """Recover Π and Θ from the expected responses ΠΘᵀ."""
    rows = []
    for n in (200, 800):
        planted = gom_simulation(1, n, 0)
        for name, parameters in GOM_ALGORITHMS.items():
            model = dfact.GradeOfMembership(3, **parameters, max_response=LEVELS, random_state=0).fit(planted.expected)
            errors = hamming(model.memberships_, planted.memberships), relative(model.components_.T, planted.item_parameters)
            rows.append({"N": n, "algorithm": name, "hamming": errors[0], "relative": errors[1]})
    worst = max(max(row["hamming"], row["relative"]) for row in rows)
    thresholds = [(f"without noise every algorithm returns Π and Θ within {worst:.1e} (threshold 1e-8)", worst <= 1e-8)]
    report("gom_noiseless", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    repetitions = parser.parse_args().repetitions
    thresholds = noiseless() + experiment_1(repetitions) + experiment_2(repetitions) + experiment_3(repetitions)
    return exit_code(thresholds + experiment_4(10 * repetitions))


if __name__ == "__main__":
    sys.exit(main())
