"""Tables of the elastic-net PARAFAC paper: a solution path (1), recovery of planted factors (2, 3), clustering of images (4).

    python -m benchmarks.cp.paper [--tables 1 2 3 4] [--starts random svd] [--repetitions N] [--tsne [FOLDER]]

By default all tables are computed, with 50, 50 and 30 simulations, and with images clustered from 5 starts.
CP-ALS needs TensorLy (pip install 'dfact[tensor]') and is omitted without it. The paper's images, COIL-20, are not
available: table 4 uses scikit-learn's digits, and drawings of balls on a turntable. With --tsne it also clusters two t-SNE components of
the factors, as the paper does, and draws those of the first start into FOLDER (figures 3 and 4); some ten seconds for each fit.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count, islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE

import dfact
from benchmarks.common import exit_code, report
from benchmarks.cp.paper_figures import TABLE_2, TABLE_3, Figures
from dfact.data.synthetic import PlantedTensor, elastic_cp_simulation
from dfact.engine.threads import single_threaded
from dfact.models.cp.path import SolutionPath
from dfact.report.plots import new_figure

Thresholds = list[tuple[str, bool]]
Factors = list[NDArray[np.float64]]

ALPHAS = (0.2, 0.8, 0.98)
NAMES = {"bcd": ("SPML", "SPMS"), "stochastic": ("SPMLR", "SPMSR")}  # tolerances of the paper: for the path and its refinement
TABLE_4 = """The paper, on COIL-20: CP-ALS 0.637 (rank 20) and 0.561 (30), refined solutions of its stochastic solver 0.724 and 0.752
from random starts; of clusters, it says, of two t-SNE components of the factors. This is not COIL-20: K-means (the best of 20 starts)
on the image mode's factors, each of length 1 (`accuracy`), and with --tsne on two t-SNE components of them (`t-SNE`); `pixels` on the
images as they are. `asked zeros` is the least share
of zeros of the factors' entries, `zeros` that of the first step of the path (α = 0.8, λ from 0.1 to 10) that has it, the last if
none; refined. LRTI as in tables 2 and 3. digits: scikit-learn's, 1797 images of 8×8. balls: 20 objects of 4 to 9 balls
on a turntable, seen from 72 angles, 1440 images of 20×20. Images are mode 1, from 0 to 1."""
RECOVERY_NOTES = """SPML(α): a step of the path, SPMS(α): the same refined; of the stochastic solver SPMLR and SPMSR. The step is the one
of section 7.1.2, which knows the truth: of the smallest rank not below the true one the last whose zeros are all true.
LRTI: α = 0 and λ = ‖Δ∘Z‖^(4/3)/100, with the same prior. `score` is of matched components, `by weight` of the first with the
first, as they are sorted: what the paper describes. `true zeros`: the share found of all; `false zeros`: of those found.
`excess error`: the relative error on the observed entries minus that of the planted tensor."""


def found_factors(factors: Sequence[Any]) -> Factors:
    """Return factors (I_n, R) without vanished components, heaviest first."""
    found = [np.asarray(A, np.float64) for A in factors]
    weights = prod(np.linalg.norm(A, axis=0) for A in found)
    order = np.argsort(-weights, kind="stable")
    return [A[:, order[weights[order] > 1e-9 * weights.max()]] for A in found]


def cosines(truth: Factors, found: Factors) -> NDArray[np.float64]:
    """Return equation 57 for each pair of a true and an estimated component (R, R̂)."""
    units = ([M / np.linalg.norm(M, axis=0) for M in pair] for pair in zip(truth, found, strict=True))
    return np.asarray(prod(A.T @ B for A, B in units))


def true_zeros(truth: Factors, found: Factors) -> int:
    """Count the zeros that matched components have in common."""
    i, j = linear_sum_assignment(-cosines(truth, found))
    return sum(int(((A[:, i] == 0) & (B[:, j] == 0)).sum()) for A, B in zip(truth, found, strict=True))


def zeros(factors: Factors) -> int:
    return sum(int((A == 0).sum()) for A in factors)


def relative_error(Z: NDArray[np.float64], factors: Factors) -> float:
    """Return the relative error on the observed entries."""
    X = np.einsum("ir,jr,kr->ijk", *factors)
    return float(np.sqrt(np.nansum((Z - X) ** 2) / np.nansum(Z**2)))


def outcome(sim: PlantedTensor, factors: Sequence[Any], seconds: float) -> dict[str, float]:
    truth, found = found_factors(sim.factors), found_factors(factors)
    scores = cosines(truth, found)
    right, rank = true_zeros(truth, found), scores.shape[0]
    return {
        "score": scores[linear_sum_assignment(-scores)].sum() / rank,
        "by weight": scores.diagonal().sum() / rank,
        "excess error": relative_error(sim.Z, found) - relative_error(sim.Z, truth),
        "true rank": float(scores.shape[1] == rank),
        "true zeros": right / sim.zeros,
        "false zeros": 1 - right / max(zeros(found), 1) if zeros(found) else 0.0,
        "seconds": seconds,
    }


def chosen(path: SolutionPath, sim: PlantedTensor) -> int:
    """Return the step that section 7.1.2 chooses."""
    table, truth = path.table, found_factors(sim.factors)
    ranks = table["rank"]
    # (1) the smallest rank not below the true one
    enough = ranks[ranks >= truth[0].shape[1]]
    steps = table.index[ranks == (enough.min() if len(enough) else ranks.max())].tolist()
    found = {i: found_factors(path.at(i, refined=True).factors_) for i in steps}
    # (2) the last whose zeros are all true, (3) the last with fewer zeros than the truth, (4) our own choice: the first
    right = [i for i in steps if true_zeros(truth, found[i]) == zeros(found[i])]
    fewer = [i for i in steps if zeros(found[i]) < sim.zeros]
    return int((right or fewer or steps[:1])[-1])


Method = Callable[[PlantedTensor, int, int], Iterator[tuple[str, Sequence[Any]]]]
"""Names and factors of what is found in a simulation from a rank, with a seed."""


def of_path(alpha: float, solver: str, init: str) -> Method:
    def find(sim: PlantedTensor, start: int, seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        path = dfact.ElasticCP(start, l1_ratio=alpha, solver=solver, init=init, random_state=seed).path(sim.Z)
        step = chosen(path, sim)
        for name, refined in zip(NAMES[solver], (False, True), strict=True):
            yield f"{name}({alpha:g})", path.at(step, refined=refined).factors_

    return find


def lrti(init: str) -> Method:
    def find(sim: PlantedTensor, start: int, seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        yield "LRTI", _lrti(sim.Z, start, seed, init).factors_

    return find


def _lrti(Z: NDArray[Any], rank: int, seed: int, init: str = "random") -> dfact.ElasticCP:
    """Fit with ℓ2 penalties alone, at a hundredth of the λ that leaves no component if all variances are 1."""
    lam = 0.01 * float(np.nansum(np.square(Z, dtype=np.float64))) ** (2 / 3)
    return dfact.ElasticCP(rank, l1_ratio=0.0, lam=lam, init=init, random_state=seed).fit(Z)


def cp_als(init: str) -> Method:
    def find(sim: PlantedTensor, start: int, seed: int) -> Iterator[tuple[str, Sequence[Any]]]:
        yield "CP-ALS", _cp_als(sim.Z, start, seed, init).factors_

    return find


def _cp_als(Z: NDArray[Any], rank: int, seed: int, init: str = "random") -> dfact.CPALS:
    return dfact.CPALS(rank, init=init, max_iter=200, random_state=seed).fit(Z)


def recovery(
    methods: Sequence[Method], size: int, rank: int, start: int, missing: float, repetitions: int, paper: Figures
) -> list[dict[str, Any]]:
    """Average over simulations at 20 dB that all methods share; count true ranks; take the median of the seconds of a complete path."""
    outcomes: dict[str, list[dict[str, float]]] = {}
    for seed in range(repetitions):
        sim = elastic_cp_simulation(size, rank, seed, snr=20, missing=missing)
        for method in methods:
            began = time.perf_counter()
            found = list(method(sim, start, seed))
            seconds = time.perf_counter() - began
            for name, factors in found:
                outcomes.setdefault(name, []).append(outcome(sim, factors, seconds))
    rows = []
    for name, results in outcomes.items():
        frame = pd.DataFrame(results)
        scores = {"score": frame["score"].mean(), "sd": frame["score"].std(ddof=0), "lowest": frame["score"].min()}
        means = {**frame.mean().drop("score"), "true rank": int(frame["true rank"].sum()), "seconds": frame["seconds"].median()}
        known = dict(zip(("paper score", "paper zeros"), paper.get(name, (np.nan, np.nan)), strict=True))
        rows.append({"method": name, **scores, **means, "slowest": frame["seconds"].max(), **known})
    return rows


def _name(table: str, init: str) -> str:
    return table if init == "random" else f"{table}_{init}"


def of(rows: Sequence[dict[str, Any]], method: str) -> dict[str, Any]:
    return next(row for row in rows if row["method"] == method)


def table_2(repetitions: int, size: int = 20, rank: int = 10, init: str = "random") -> Thresholds:
    """Compute a half of table 2: no entry is missing, and the start has the true rank."""
    peers = [cp_als(init)] if find_spec("tensorly") else []
    methods = [*peers, lrti(init), *(of_path(alpha, "bcd", init) for alpha in (0, *ALPHAS))]
    rows = recovery(methods, size, rank, rank, 0.0, repetitions, TABLE_2[init])
    thresholds: Thresholds = []
    for alpha in ALPHAS if init == "random" else ():  # one start by singular vectors may end in a lower optimum, as the paper's does
        score = of(rows, f"SPMS({alpha:g})")["score"]
        thresholds.append((f"α = {alpha:g}: the refined path has a mean score of {score:.4f} (threshold 0.95)", score >= 0.95))
    report(_name("elastic_cp_table_2", init), rows, thresholds)
    print(f"{init} starts, {size}×{size}×{size}, {rank} components, 20 dB, {repetitions} simulations. {RECOVERY_NOTES}")
    if not peers:
        print("TensorLy is not installed: without CP-ALS.")
    return thresholds


def table_3(repetitions: int, size: int = 50, rank: int = 9, init: str = "random") -> Thresholds:
    """Compute a half of table 3: a quarter is missing, and the start has one component too many."""
    methods = [lrti(init), of_path(0, "bcd", init), *(of_path(alpha, solver, init) for solver in NAMES for alpha in ALPHAS)]
    rows = recovery(methods, size, rank, rank + 1, 0.25, repetitions, TABLE_3[init])
    thresholds: Thresholds = []
    for solver in NAMES if init == "random" else ():
        for alpha in ALPHAS:
            row = of(rows, f"{NAMES[solver][1]}({alpha:g})")
            name, hits, score, seconds = (row[key] for key in ("method", "true rank", "score", "seconds"))
            thresholds.append((f"{name}: true rank {hits} of {repetitions} times (threshold: always)", hits == repetitions))
            thresholds.append((f"{name}: mean score {score:.5f} (threshold 0.999)", score >= 0.999))
            if solver == "bcd":
                thresholds.append((f"{name}: a whole path takes {seconds:.1f} s (threshold 15; the paper 322)", seconds < 15))
    report(_name("elastic_cp_table_3", init), rows, thresholds)
    print(f"{init} starts, {size}×{size}×{size}, {rank} components from {rank + 1}, 25% missing, 20 dB, {repetitions} simulations.")
    print(RECOVERY_NOTES)
    return thresholds


def table_1(repetitions: int) -> Thresholds:
    """Compute table 1: paths from rank 3 for simulations 6×6×6 of rank 2 without noise that have 12 zeros, as in the paper."""
    sims = ((seed, elastic_cp_simulation(6, 2, seed)) for seed in count())
    rows, shown = [], None
    for start, (seed, sim) in enumerate(islice((pair for pair in sims if pair[1].zeros == 12), repetitions)):
        path = dfact.ElasticCP(3, l1_ratio=0.2, random_state=start).path(sim.Z)
        table = path_table(path, sim)
        rows.append({"seed": seed, **_shape_of_path(table)})
        if shown is None and rows[-1]["all found"]:
            shown = seed, table
    frame = pd.DataFrame(rows)
    if shown is not None:
        print(f"\nThe path of simulation {shown[0]}, as the paper prints its own: IS1 1 algorithm 1, 0 algorithm 2 (refined)")
        print(shown[1].to_string(index=False, float_format=lambda value: f"{value:.1e}"))
    found = frame[frame["all found"]]
    falls, right = int(frame["rank falls"].sum()), int((frame["ranks"] == "3210").sum())
    thresholds: Thresholds = [
        (f"the rank falls to 0 and never rises on {falls} of {len(frame)} paths (threshold: all)", falls == len(frame)),
        (f"it takes the steps 3, 2, 1, 0 on {right} (threshold: nine of ten)", right >= 0.9 * len(frame)),
        (f"all 12 zeros and no other are found on {len(found)} (threshold: some, as on the paper's)", len(found) > 0),
    ]
    if len(found):
        worst, most = found["refined error"].max(), found["iterations"].median()
        thresholds.append((f"there the refined error is {worst:.1e} at most (threshold 1e-5; the paper 1.6e-6)", worst < 1e-5))
        thresholds.append((f"in {most:g} iterations, the median (threshold 20; the paper 9, to its own limit)", most <= 20))
    report("elastic_cp_table_1", rows, thresholds)
    print(
        f"At rank 2 no zero is ever lost again on {int(frame['zeros grow'].sum())} of {len(frame)} paths, and all are true ones on\n"
        f"{int(frame['all true'].sum())}. Neither is a law of the method: the paper's own path goes from 4 zeros to 3 at λ = 1e-4."
    )
    return thresholds


def path_table(path: SolutionPath, sim: PlantedTensor) -> pd.DataFrame:
    """Return a row for each λ, followed by one for each refinement; NZT of the NZS zeros are true ones."""
    truth = found_factors(sim.factors)
    rows = []
    for i, step in enumerate(path.steps):
        for refined in [False, True] if step.refined_iterations else [False]:
            found = found_factors(path.at(i, refined=refined).factors_)
            right = true_zeros(truth, found) if step.rank else 0
            iterations = step.refined_iterations if refined else len(step.objectives)
            counts = {"R": found[0].shape[1], "NZS": zeros(found), "NZT": right, "IS1": int(not refined)}
            lam, error = 1e-8 if refined else step.lam, relative_error(sim.Z, found)
            rows.append({"lambda": lam, **counts, "rel_err": error, "iters": iterations})
    return pd.DataFrame(rows)


def _shape_of_path(table: pd.DataFrame) -> dict[str, Any]:
    steps = table[table["IS1"] == 1]
    two = steps[steps["R"] == 2]
    refined = table[(table["IS1"] == 0) & (table["R"] == 2) & (table["NZS"] == 12) & (table["NZT"] == 12)]
    found = len(refined) > 0
    return {
        "ranks": "".join(map(str, steps["R"].drop_duplicates())),
        "rank falls": bool((steps["R"].diff().dropna() <= 0).all() and steps["R"].iloc[-1] == 0),
        "zeros grow": bool((two["NZS"].diff().dropna() >= 0).all()),
        "all true": bool((two["NZS"] == two["NZT"]).all()),
        "most true": int(two["NZT"].max()) if len(two) else 0,
        "all found": found,
        "lambda": table["lambda"].loc[refined.index[0] - 1] if found else np.nan,
        "error": table["rel_err"].loc[refined.index[0] - 1] if found else np.nan,
        "refined error": refined["rel_err"].iloc[0] if found else np.nan,
        "iterations": refined["iters"].iloc[0] if found else np.nan,
    }


Images = tuple[NDArray[np.float64], NDArray[np.intp]]
"""Images (n, height, width) from 0 to 1, and which object each shows."""


def digits() -> Images:
    data = load_digits()
    return data.images / 16, data.target


def balls(objects: int = 20, views: int = 72, size: int = 20) -> Images:
    """Draw objects of 4 to 9 opaque shaded balls each, rotated about the vertical axis by equal angles."""
    rng = np.random.default_rng(0)
    images = np.zeros((objects * views, size, size))
    y, x = np.meshgrid(*2 * [np.linspace(-1, 1, size)], indexing="ij")
    for start in range(0, len(images), views):
        n = rng.integers(4, 10)
        centres, radii, shades = rng.uniform(-0.6, 0.6, (n, 3)), rng.uniform(0.1, 0.3, n), rng.uniform(0.3, 1, n)
        for view in range(views):
            turned = (centres[:, 0] + 1j * centres[:, 2]) * np.exp(2j * np.pi * view / views)
            for i in np.argsort(turned.imag):  # from the back
                far = ((x - turned.real[i]) ** 2 + (y - centres[i, 1]) ** 2) / radii[i] ** 2
                images[start + view][far < 1] = shades[i] * np.sqrt(1 - far[far < 1])
    return images, np.repeat(np.arange(objects), views)


def accuracy(features: NDArray[np.float64], labels: NDArray[np.intp], seed: int) -> float:
    """Return the share of the images in the cluster of their object, for the best assignment of clusters to objects."""
    k = len(np.unique(labels))
    with single_threaded():
        clusters = KMeans(k, n_init=20, random_state=seed).fit_predict(features)
    together = pd.crosstab(labels, clusters).to_numpy()
    return float(together[linear_sum_assignment(-together)].sum() / len(labels))


def embedded(features: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return two t-SNE components of the features."""
    with single_threaded():
        found = TSNE(2, init="pca", random_state=seed, perplexity=min(30.0, (len(features) - 1) / 3)).fit_transform(features)
    return np.asarray(found, np.float64)


def draw(points: NDArray[np.float64], labels: NDArray[np.intp], title: str, file: Path) -> None:
    """Draw the components with the number of each image's object: figures 3 and 4."""
    figure = new_figure(6, 6)
    axes = figure.add_subplot()
    axes.scatter(*points.T, s=0)
    for (x, y), label in zip(points, labels, strict=True):
        axes.text(x, y, str(label), color=f"C{label % 10}", fontsize=6, ha="center", va="center")
    axes.set_title(title)
    figure.savefig(file)


def solutions(Z: NDArray[np.float64], rank: int, seed: int, shares: Sequence[float]) -> Iterator[tuple[str, float, Factors]]:
    """Yield method, requested share of zeros, and factors."""
    if find_spec("tensorly"):
        yield "CP-ALS", np.nan, [np.asarray(A) for A in _cp_als(Z, rank, seed).factors_]
    yield "LRTI", np.nan, [np.asarray(A) for A in _lrti(Z, rank, seed).factors_]
    path = dfact.ElasticCP(rank, l1_ratio=0.8, random_state=seed).path(Z, (10.0 ** np.arange(-1, 1.1, 0.25)).tolist())
    steps = path.table[path.table["rank"] > 0]
    found = steps["zeros"] / (steps["rank"] * sum(Z.shape))
    for share in shares:
        step = steps.index[found >= share][0] if (found >= share).any() else steps.index[-1]
        yield "SPMS(0.8)", share, [np.asarray(A) for A in path.at(step, refined=True).factors_]


def table_4(
    data: dict[str, Images],
    seeds: int,
    ranks: Sequence[int] = (20, 30),
    shares: Sequence[float] = (0, 0.02, 0.1),
    *,
    tsne: bool = False,
    folder: Path | None = None,
) -> Thresholds:
    """Compute table 4: clusters of images by their factors, compared with clusters by their pixels."""
    rows: list[dict[str, Any]] = []
    for name, (Z, labels) in data.items():
        pixels = Z.reshape(len(Z), -1)
        rows += [{"data": name, "method": "pixels", "accuracy": accuracy(pixels, labels, seed)} for seed in range(seeds)]
        for rank in ranks:
            for seed in range(seeds):
                for method, share, factors in solutions(Z, rank, seed, shares):
                    found = found_factors(factors)
                    known = {"rank left": found[0].shape[1], "zeros": zeros(found) / sum(A.size for A in found)}
                    row = {"data": name, "method": method, "rank": rank, "asked zeros": share, **known}
                    units = found[0] / np.linalg.norm(found[0], axis=0)
                    rows.append({**row, "error": relative_error(Z, found), "accuracy": accuracy(units, labels, seed)})
                    if tsne:
                        points = embedded(units, seed)
                        rows[-1]["t-SNE"] = accuracy(points, labels, seed)
                        if folder is not None and seed == 0:
                            draw(points, labels, f"{name}, {method}", folder / f"{name}-{rank}-{method}-{share:g}.png")
    groups = pd.DataFrame(rows).groupby(["data", "rank", "method", "asked zeros"], dropna=False, sort=False)
    table = groups.mean().assign(sd=groups["accuracy"].std(ddof=0), lowest=groups["accuracy"].min(), highest=groups["accuracy"].max())
    report("elastic_cp_table_4", [{str(key): value for key, value in row.items()} for row in table.reset_index().to_dict("records")])
    print(f"{seeds} starts. {TABLE_4}")
    if not find_spec("tensorly"):
        print("TensorLy is not installed: without CP-ALS.")
    return []


IMAGES = {"digits": digits, "balls": balls}
TABLES: dict[int, tuple[Callable[..., Thresholds], int]] = {  # with their repetitions, those of the paper for 2 and 3
    1: (table_1, 50),
    2: (table_2, 50),
    3: (table_3, 30),
    4: (lambda seeds, data, **settings: table_4({name: IMAGES[name]() for name in data}, seeds, **settings), 5),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", type=int, choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--starts", nargs="*", choices=["random", "svd"], default=["random", "svd"], help="halves of tables 2 and 3")
    parser.add_argument("--repetitions", type=int, help="of every table that is asked for")
    parser.add_argument("--images", nargs="*", choices=list(IMAGES), default=list(IMAGES), help="of table 4")
    parser.add_argument("--ranks", nargs="*", type=int, default=[20, 30], help="of table 4")
    parser.add_argument("--tsne", nargs="?", type=Path, const=False, help="t-SNE in table 4, drawn into this folder, if given")
    options = parser.parse_args()
    thresholds: Thresholds = []
    of_images = {"data": options.images, "ranks": options.ranks, "tsne": options.tsne is not None, "folder": options.tsne or None}
    halves = [{"init": init} for init in options.starts]
    alternatives: dict[int, list[dict[str, Any]]] = {2: halves, 3: halves, 4: [of_images]}
    for number in options.tables:
        run, repetitions = TABLES[number]
        for settings in alternatives.get(number, [{}]):
            thresholds += run(options.repetitions or repetitions, **settings)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
