"""The number of classes by modularity, the range of its resamples, and nominal answers as codes and as indicators."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import dfact
from benchmarks.evidence.calibration import Counts, Experiment, Statement

TITLE = "Classes of grade of membership"
INTRODUCTION = """\
Three classes answer 24 items from 0 to 4. A share of the people belongs to one class alone; the others have mixed memberships.

Modularity finds the number of classes in nine of ten datasets where they are separated and most people are pure. With most people
mixed, with missing answers, and above all with classes that resemble each other it chooses two, never more than three: its choice
is a lower limit. The range of 95% of the resamples is not a confidence interval: it contains the modularity of 10,000 people of the same
population in 77 to 90% of datasets, less than a calibrated interval does (92%). So it is named a range of resamples, and has no bar.

`dfact select gom` counts eigenvalues by parallel analysis (PA) instead. These figures are of other datasets than those of the table: 800
people in 3 to 6 classes, 25 to 30% of them with mixed memberships. With binomial answers to 60 items, 12 datasets for each kind of sizes
(1 : 2 : … : K, 8 : 1 : … : 1, equal), PA was right in all, and modularity in 17%, 0% and 92%. With any probabilities of the categories,
25 to 99 items of 2 to 7 categories, 40 datasets, PA was right in 85% ± 6 (1 : 2 : … : K) and 72% ± 7 (8 : 1 : … : 1). It was wrong without
printing that the number cannot be told in 7% and 0%. The deviance of held-out answers was right in 24 of 24 binomial datasets, and chose
too few classes in 21 of 24 of the other kind. Three equal classes of sparse answers, 90% of them 0, are a limit: without its margin of 2%,
PA found too many in 11 of 12 datasets and printed in each that the number cannot be told. Modularity was right in 83% of them.

Nominal items have categories without an order. Two classes prefer different categories and have the same mean code.
Fitted to the codes, the classes are not found; fitted to indicators (`dfact indicators`) they are.
"""

K, N_ITEMS, LEVELS = 3, 24, 4
_POPULATION = 10_000
_RESAMPLES = 40


def memberships(rng: np.random.Generator, n: int, mixed: float, k: int = K) -> NDArray[np.float64]:
    """Draw memberships (n, k), of which a share is mixed uniformly and the others are pure."""
    Pi = np.eye(k)[rng.integers(0, k, n)]
    drawn = rng.random(n) < mixed
    Pi[drawn] = rng.dirichlet(np.ones(k), int(drawn.sum()))
    return Pi


_CLASSES: dict[str, tuple[int, float, float, float]] = {
    "200 people, 20% mixed": (200, 0.2, 1.0, 0.0),
    "500 people, 20% mixed": (500, 0.2, 1.0, 0.0),
    "1,000 people, 20% mixed": (1000, 0.2, 1.0, 0.0),
    "500 people, 90% mixed": (500, 0.9, 1.0, 0.0),
    "500 people, similar classes": (500, 0.2, 0.35, 0.0),
    "500 people, 20% missing": (500, 0.2, 1.0, 0.2),
}
"""Number of people, share of mixed memberships, separation of the classes, share of missing answers."""

MODULARITY = Statement("modularity", "The number of classes, by the highest fuzzy modularity.", "correct sizes")
FEWER = Statement("modularity, fewer", "The number of classes, by the highest fuzzy modularity.", "too few")
RANGE = Statement(
    "range of resamples",
    "Whether resampled_2.5% and resampled_97.5% of a number of classes contain the modularity of 10,000 people; not claimed.",
    "coverage",
    nominal=0.95,
)


def _answers(condition: str, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the answers of a sample, and of many people of the same population."""
    n, mixed, separation, missing = _CLASSES[condition]
    rng = np.random.default_rng(seed)
    Theta = LEVELS * (0.5 + separation * (rng.random((K, N_ITEMS)) - 0.5))

    def draw(size: int) -> NDArray[np.float64]:
        R = rng.binomial(LEVELS, memberships(rng, size, mixed) @ Theta / LEVELS).astype(float)
        R[rng.random(R.shape) < missing] = np.nan
        return R

    return draw(n), draw(_POPULATION)


def _model() -> dfact.GradeOfMembership:
    return dfact.GradeOfMembership(random_state=0, max_response=LEVELS, executor="inline")


def simulate_classes(condition: str, seed: int) -> Counts:
    """Choose the number of classes."""
    chosen = dfact.selection.select_by_modularity(_model(), _answers(condition, seed)[0], range(2, 6)).best_params["n_components"]
    return {MODULARITY.name: (float(chosen == K), 1.0), FEWER.name: (float(chosen < K), 1.0)}


def simulate_ranges(condition: str, seed: int) -> Counts:
    """Compare the ranges of the resamples with the scores of many people, for two classes and for the true number."""
    sample, population = _answers(condition, seed)
    candidates = range(2, K + 1)
    table = dfact.selection.select_by_modularity(_model(), sample, candidates, n_resamples=_RESAMPLES, random_state=seed).table
    large = dfact.selection.select_by_modularity(_model(), population, candidates).table["modularity"]
    inside = (table["resampled_2.5%"] <= large) & (large <= table["resampled_97.5%"])
    return {RANGE.name: (float(inside.sum()), float(len(inside)))}


CODES = Statement("classes by codes", "The largest membership of each person, from a fit to the codes.", "people in their class")
INDICATORS = Statement(
    "classes by indicators",
    "The largest membership of each person, from a fit to a column of 0 and 1 for each category.",
    "people in their class",
    bar=(0.95, 1.0),
)
_NOMINAL: dict[str, tuple[int, float]] = {
    "200 people": (200, 0.0),
    "500 people": (500, 0.0),
    "1,000 people": (1000, 0.0),
    "500 people, 20% missing": (500, 0.2),
    "500 people, unequal classes": (500, 0.0),
}


def simulate_nominal(condition: str, seed: int) -> Counts:
    """Find two classes whose members prefer other categories, with the same mean code, by codes and by indicators."""
    n, missing = _NOMINAL[condition]
    rng = np.random.default_rng(seed)
    classes = (rng.random(n) < (0.8 if condition.endswith("unequal classes") else 0.5)).astype(int)
    # Of the categories 0 to 3 one class prefers 0 and 3, the other 1 and 2: the mean code is 1.5 for both.
    preferred = np.array([[0.4, 0.1, 0.1, 0.4], [0.1, 0.4, 0.4, 0.1]])
    cumulative = preferred.cumsum(axis=1)[:, :-1]
    flipped = rng.random(N_ITEMS) < 0.5  # items in which the classes have each other's preferences
    of_item = np.where(flipped, 1 - classes[:, None], classes[:, None])
    R = (rng.random((n, N_ITEMS))[..., None] > cumulative[of_item]).sum(axis=2).astype(float)
    R[rng.random(R.shape) < missing] = np.nan
    model = dfact.GradeOfMembership(2, random_state=0, executor="inline")
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with one pure subject, and of answers that are all 0
        stored = dfact.import_array(R, Path(folder) / "codes.zarr")
        nominal = dfact.expand_categories(stored, Path(folder) / "nominal.zarr")
        return {
            CODES.name: (_agreement(model.fit(stored).memberships_, classes), float(n)),
            INDICATORS.name: (_agreement(model.fit(nominal).memberships_, classes), float(n)),
        }


def _agreement(found: NDArray[np.float64], classes: NDArray[np.int_]) -> float:
    """Count the people whose largest membership is in their class, after the best matching of the classes."""
    largest = np.nan_to_num(np.asarray(found)).argmax(axis=1)
    counts = np.zeros((2, 2))
    np.add.at(counts, (largest, classes), 1)
    return float(counts[linear_sum_assignment(-counts)].sum())


EXPERIMENTS = [
    Experiment([MODULARITY, FEWER], list(_CLASSES), simulate_classes, runs=50),
    Experiment([RANGE], ["200 people, 20% mixed", "1,000 people, 20% mixed", "500 people, similar classes"], simulate_ranges, runs=15),
    Experiment([CODES, INDICATORS], list(_NOMINAL), simulate_nominal, runs=25),
]
