"""The rates of theorem 1 of the grade-of-membership paper: errors against ρ, N and J, with the fitted slopes beside the theorem's.

    python -m benchmarks.gom.rates [--repetitions 6] [--plot rates.png]

The data are those of the paper's simulations: three classes of equal size, responses from 0 to 4, Θ = ρB. Theorem 1 bounds the largest
error of a subject's memberships, and the relative error of the item parameters,

    max over i of ‖Π̂(i, :) − Π(i, :)‖₁ = O(√(log N / (ρN))),   ‖Θ̂ − Θ‖ / ‖Θ‖ = O(√(log N / (ρN))),

if J grows with N. Before that condition, its proof has √(log(N + J) / (ρJ)) for memberships: a subject has J answers. For the items it has
√(max(N, J) log(N + J) / (ρNJ)). The slopes are of log errors, divided by the root of the logarithm, on log ρ, log N or log J. The bounds
are upper ones: an error may fall faster, so a slope should be at most the theorem's. Along J alone there is no threshold: with the number
of subjects fixed, the error of the items has a floor near 1/√(ρN), below the bound, which more items do not lower.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.common import GOM_ALGORITHMS, exit_code, lone_pure_subjects, report
from benchmarks.gom.simulations import hamming, relative
from dfact.data.synthetic import PlantedMemberships, gom_simulation

Thresholds = list[tuple[str, bool]]

ALGORITHMS = ("srsc", "crsc, kmeans", "crsc, svm-cone")
ERRORS = ("largest", "hamming", "relative")
"""Largest ℓ1 error of a subject's memberships, its mean over the subjects, and the relative error of the item parameters."""
_SLACK = 0.1
"""Excess over a slope of the theorem up to which it counts as held: the settings are few, and far from infinite."""


@dataclass(frozen=True)
class Experiment:
    """Settings along one axis, with the slopes of the theorem's bounds."""

    axis: str
    settings: Sequence[tuple[float, int, int]]
    """ρ, N and J of each."""
    slope: float = -0.5
    """Slope of the bounds of all errors."""
    of_theorem: bool = True
    """Whether the theorem itself has the slope, not just a step of its proof."""

    def values(self) -> list[float]:
        """Return the position of each setting on the axis."""
        return [float(setting["ρNJ".index(self.axis)]) for setting in self.settings]


EXPERIMENTS = (
    Experiment("ρ", [(rho, 800, 200) for rho in (0.25, 0.5, 1, 2)]),
    Experiment("N", [(1, n, n // 4) for n in (400, 800, 1600)]),
    Experiment("J", [(1, 800, m) for m in (50, 100, 200, 400)], of_theorem=False),
)
"""J is N/4 where N varies."""


def largest_error(estimate: Any, planted: Any) -> float:
    """Return the maximum over the subjects of ‖Π̂(i, :) − Π(i, :)‖₁, with the permutation of the lowest sum."""
    costs = np.abs(estimate[:, :, None] - planted[:, None, :]).sum(axis=0)
    found, classes = linear_sum_assignment(costs)
    return float(np.abs(estimate[:, found] - planted[:, classes]).sum(axis=1).max())


def errors(algorithm: str, planted: PlantedMemberships, seed: int) -> dict[str, float]:
    """Fit the responses, and return the errors."""
    model = dfact.GradeOfMembership(3, **GOM_ALGORITHMS[algorithm], max_response=4, random_state=seed, executor="inline")
    with lone_pure_subjects():
        model.fit(planted.R)
    Pi = np.asarray(model.memberships_)
    known = ~np.isnan(Pi[:, 0])  # a subject without any response has none
    return {
        "largest": largest_error(Pi[known], planted.memberships[known]),
        "hamming": hamming(Pi[known], planted.memberships[known]),
        "relative": relative(model.components_.T, planted.item_parameters),
    }


def measure(experiment: Experiment, repetitions: int) -> pd.DataFrame:
    """Return the errors of each setting, algorithm and repetition."""
    rows = []
    for setting, value in zip(experiment.settings, experiment.values(), strict=True):
        rho, n, m = setting
        for seed in range(repetitions):
            planted = gom_simulation(rho, n, seed, m)
            for algorithm in ALGORITHMS:
                found = errors(algorithm, planted, seed)
                rows.append({"axis": experiment.axis, "at": value, "N": n, "J": m, "algorithm": algorithm, "seed": seed, **found})
    return pd.DataFrame(rows)


def fit_slope(frame: pd.DataFrame, error: str) -> tuple[float, float]:
    """Return the slope of log(error / √log(N + J)) on the log of the axis, and its standard error over the repetitions."""
    scaled = np.log(frame[error] / np.sqrt(np.log(frame["N"] + frame["J"])))
    slopes = [np.polyfit(np.log(frame["at"][rows]), scaled[rows], 1)[0] for rows in frame.groupby("seed").groups.values()]
    return float(np.mean(slopes)), float(np.std(slopes, ddof=1) / np.sqrt(len(slopes))) if len(slopes) > 1 else float("nan")


def run(experiment: Experiment, repetitions: int) -> tuple[pd.DataFrame, Thresholds]:
    """Measure along one axis, and report errors and slopes."""
    frame, thresholds, rows = measure(experiment, repetitions), Thresholds(), list[dict[str, Any]]()
    for algorithm, part in frame.groupby("algorithm", sort=False):
        for error in ERRORS:
            means = part.groupby("at")[error].mean()
            slope, se = fit_slope(part, error)
            row = {"algorithm": algorithm, "error": error, **{f"{experiment.axis}={at:g}": mean for at, mean in means.items()}}
            rows.append({**row, "slope": slope, "se": se, "theorem": experiment.slope})
            if experiment.of_theorem and error != "hamming":  # the theorem says nothing of the mean beyond what it says of the largest
                text = f"{algorithm}: slope of the {error} error in {experiment.axis} {slope:.2f} ± {se:.2f}, theorem {experiment.slope:g}"
                thresholds.append((f"{text} (threshold {experiment.slope + _SLACK:g})", slope <= experiment.slope + _SLACK))
    report(f"gom_rates_{'rho' if experiment.axis == 'ρ' else experiment.axis}", rows, thresholds)
    return frame, thresholds


def plot(frames: Sequence[pd.DataFrame], path: str) -> None:
    """Plot the mean errors over each axis on logarithmic scales, with a dashed line of the theorem's slope from the first point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, len(frames), sharex="col")
    for column, (frame, experiment) in enumerate(zip(frames, EXPERIMENTS, strict=True)):
        for row, (error, label) in enumerate((("largest", "largest error of memberships"), ("relative", "relative error of items"))):
            panel = axes[row, column]
            for number, (algorithm, part) in enumerate(frame.groupby("algorithm", sort=False)):
                means = part.groupby("at").agg({error: "mean", "N": "first", "J": "first"})
                panel.loglog(means.index, means[error], "o-", color=f"C{number}", label=algorithm)
                bound = np.sqrt(np.log(means["N"] + means["J"])) * means.index.to_numpy() ** experiment.slope
                panel.loglog(means.index, means[error].iloc[0] * bound / bound.iloc[0], "--", color=f"C{number}", linewidth=0.8)
            panel.set_xticks(experiment.values(), [f"{value:g}" for value in experiment.values()])
            panel.minorticks_off()
            panel.set_ylabel(label)
        axes[1, column].set_xlabel(experiment.axis)
    axes[0, 0].legend(title="dashed: theorem 1")
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=6, help="datasets of each setting")
    parser.add_argument("--plot", metavar="FILE", help="write the picture to this file, such as rates.png")
    arguments = parser.parse_args()
    found = [run(experiment, arguments.repetitions) for experiment in EXPERIMENTS]
    if arguments.plot:
        plot([frame for frame, _ in found], arguments.plot)
    return exit_code([threshold for _, thresholds in found for threshold in thresholds])


if __name__ == "__main__":
    sys.exit(main())
