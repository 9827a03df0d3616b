"""Experiments of the ICQF paper: loadings of samples and of two cohorts (table 2), diagnosis (AUC), numbers of factors (table 1).

python -m benchmarks.bounded_nmf.paper [stability] [replication] [auc] [table1 N]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dfact
from benchmarks.common import QUESTIONNAIRES, REAL_DATA, answers, exit_code, report
from benchmarks.factor_analysis import number_of_factors
from dfact.data.synthetic import icqf_simulation
from dfact.engine.threads import single_threaded
from dfact.selection.criteria import select_by_criterion
from dfact.selection.cross_validation.block_cross_validation import block_cross_validate

Thresholds = list[tuple[str, bool]]


def l1_nmf(M: NDArray[Any], k: int, **parameters: Any) -> dfact.NMF:
    """Return the paper's ℓ1-NMF: the weight β = 0.1 of both ℓ1 norms, whatever the shape of the answers."""
    n, m = M.shape
    return dfact.NMF(k, alpha_W=0.1 / m, alpha_H=0.1 / n, l1_ratio=1, **parameters)


MODELS: dict[str, Callable[..., Any]] = {
    "ICQF": lambda _, k, **parameters: dfact.ICQF(k, **parameters),
    "L1NMF": l1_nmf,
    "FA": lambda _, k: dfact.FactorAnalysis(k),
}
"""The model of k factors of answers M, by the name of the method."""
SHARES = (0.2, 0.4, 0.6, 0.8)
TOLERANCES = (1e-4, 1e-6)  # tolerances of ICQF and ℓ1-NMF: the default, and convergence
# Table 2: correlations on the questionnaire CBCL of two studies, HBN and ABCD, by the share of the participants.
TABLE_2 = {
    "ICQF": ("0.85, 0.69", "0.92, 0.77", "0.94, 0.84", "0.89, 0.84"),
    "L1NMF": ("0.76, 0.62", "0.75, 0.63", "0.75, 0.63", "0.76, 0.63"),
    "FA": ("0.54, 0.35", "0.62, 0.42", "0.62, 0.32", "0.51, 0.43"),
}
# Its last row: correlations between the loadings of the two studies, and their standard deviations over the factors.
TABLE_2_STUDIES = {"ICQF": "0.75 (0.07)", "L1NMF": "0.68 (0.08)", "FA": "0.71 (0.03)"}
COHORTS: dict[str, tuple[slice, int, tuple[tuple[str, str], ...]]] = {
    # file: item columns, k, pairs of countries
    "big5.tsv.gz": (slice(7, 57), 5, (("US", "GB"), ("US", "IN"))),
    "sd3.tsv.gz": (slice(0, 27), 3, (("US", "GB"),)),
}
REPLICATION_NOTES = """Two countries of one questionnaire stand in for the two studies. A model of k factors is fitted to either: the mean
correlation of the greedily matched loadings over the factors, its standard deviation, and, to either direction, the share of the other
country's variance that a model explains with the first country's loadings, relative to the country's own (retained)."""

DISTINCT = slice(0, 60)  # in eqsq the columns S1-S60 repeat E1-E60; SQ shows that both are the systemizing answers
AUC_DATA: dict[str, tuple[str, str, slice, int, str | None]] = {
    # name: file, separator, item columns, k, a score of other items
    "ipip_ascado": (*QUESTIONNAIRES["ipip_ascado"][:4], None),
    "big5": (*QUESTIONNAIRES["big5"][:4], None),
    "eqsq": ("eqsq.tsv.gz", "\t", DISTINCT, 8, "EQ"),
    "npi": ("npi.csv", ",", slice(1, 41), 7, None),
}
AUC_SHARES = (0.2, 0.8)
AUC_NOTES = """Labels: gender as given, men against women, others and not given left out; for a scale, whether the
score on it is above the median, its items left out of the fit. The score is the mean of the standardized answers, each
with the sign of its loading on the first principal component of the scale. EQ is the file's score of empathizing, its
answers are not in the file: columns E1-E60 and S1-S60 hold the same, the systemizing ones. npi is a list of forced choices.
k factors, for the other scales' items in proportion; a fifth of the participants is held out, `train` the share fitted.
Factors and answers are standardized, then logistic regression with C = 1 and balanced classes; answers: mean-imputed."""

TRUE, NOISES = 10, (0.1, 0.2, 0.3)
# Table 1: mean |k − 10| by noise.
TABLE_1 = {
    "ICQF-BCV": (0.10, 0.11, 0.77),
    "L1NMF-BCV": (0.17, 2.37, 2.40),
    "ICQF-BIC1": (0.10, 0.67, 2.40),
    "ICQF-CCC": (1.33, 1.14, 0.96),
    "ICQF-dispersion": (0.23, 0.93, 2.60),
    "FA-PA": number_of_factors.PAPER["PA"],
    "FA-MAP": number_of_factors.PAPER["MAP"],
}
TABLE_1_THRESHOLDS = (0.2, 0.2, 0.4)


def matched(full: NDArray[Any], part: NDArray[Any], absolute: bool) -> NDArray[np.float64]:
    """Return the correlations of greedily matched loadings (k, m): absolute if signs are arbitrary, 0 for a factor without loadings."""
    with np.errstate(invalid="ignore"):
        r = np.nan_to_num(np.corrcoef(full.astype(np.float64), part.astype(np.float64))[: len(full), len(full) :])
    r = np.abs(r) if absolute else r
    found = []
    for _ in range(min(r.shape)):
        i, j = np.unravel_index(r.argmax(), r.shape)
        found.append(r[i, j])
        r[i], r[:, j] = -np.inf, -np.inf
    return np.array(found)


def stability(data: dict[str, tuple[NDArray[np.float32], int]], repetitions: int) -> Thresholds:
    """Compare loadings of a share of the participants with those of all; ICQF and ℓ1-NMF with default stopping and converged."""
    rows = [row for name, (M, k) in data.items() for tol in TOLERANCES for row in _stability(name, M, k, tol, repetitions)]
    thresholds = []
    for row in rows[:: len(SHARES)]:
        others = max(row["L1NMF"], row["FA"])
        text = f"{row['data']}, a fifth of the participants, tol {row['tol']}: ICQF {row['ICQF']:.3f}, above both others ({others:.3f})"
        thresholds.append((text, row["ICQF"] > others))
    report("icqf_paper_stability", rows, thresholds)
    print("The paper's figures are of CBCL, in HBN and ABCD, with k of each method's own choice. FA: absolute correlations.")
    return thresholds


def _stability(name: str, M: NDArray[np.float32], k: int, tol: float, repetitions: int) -> Iterator[dict[str, Any]]:
    makes = {method: partial(make, **({} if method == "FA" else {"tol": tol, "max_iter": 1500})) for method, make in MODELS.items()}
    full = {method: make(M, k).fit(M).components_ for method, make in makes.items()}
    for position, share in enumerate(SHARES):
        row: dict[str, Any] = {"data": name, "tol": tol, "share": share}
        samples = [M[_sample(len(M), share, seed)] for seed in range(repetitions)]
        for method, make in makes.items():
            found = [matched(full[method], make(sample, k).fit(sample).components_, method == "FA") for sample in samples]
            row |= {method: np.mean(found), f"sd {method}": np.std(found), f"paper {method}": TABLE_2[method][position]}
        yield row


def replication(data: dict[str, tuple[NDArray[np.float32], NDArray[np.float32], int]]) -> None:
    """Compare the loadings of two cohorts, fitted to each, and apply each model to the other cohort."""
    rows = []
    for name, (first, second, k) in data.items():
        for method, make in MODELS.items():
            models = [make(M, k).fit(M) for M in (first, second)]
            found = matched(models[0].components_, models[1].components_, method == "FA")
            retained = [
                _explained(model, other) / _explained(own, other)
                for model, own, other in zip(models, models[::-1], (second, first), strict=True)
            ]
            row = {"data": name, "n": f"{len(first)}, {len(second)}", "k": k, "method": method}
            rows.append(row | {"r": found.mean(), "sd": found.std(), "paper": TABLE_2_STUDIES[method], "retained": min(retained)})
    report("icqf_paper_replication", rows)
    print(REPLICATION_NOTES)


def _explained(model: Any, M: NDArray[np.float32]) -> float:
    """Return the share of the variance of the answers about their column means that the model's loadings explain."""
    errors = M - model.inverse_transform(model.transform(M))
    return 1 - float(np.nansum(errors**2) / np.nansum((M - np.nanmean(M, axis=0, dtype=np.float64)) ** 2))


def _sample(n: int, share: float, seed: int) -> NDArray[np.intp]:
    return np.sort(np.random.default_rng(seed).permutation(n)[: round(share * n)])


@dataclass(frozen=True)
class Task:
    """A label to be predicted from answers."""

    data: str
    label: str
    M: NDArray[np.float32]
    y: NDArray[np.bool_]
    k: int


def tasks(name: str, table: pd.DataFrame, columns: slice, k: int, outside: str | None) -> Iterator[Task]:
    """Return the tasks of a questionnaire with 0 for missing: gender, each of several scales, and the score of other items."""
    items = table.iloc[:, columns]
    M = items.where(items > 0).to_numpy(np.float32) - 1
    scales = items.columns.str.rstrip("0123456789")
    gender = table["gender"].to_numpy()
    yield _task(name, "gender", M, np.where(np.isin(gender, (1, 2)), gender, np.nan), k)
    if outside:
        yield _task(name, f"{outside} above median", M, table[outside].to_numpy(np.float64), k)
    for scale in scales.unique() if scales.nunique() > 1 else ():
        own = np.asarray(scales == scale)
        yield _task(name, f"{scale} above median", M[:, ~own], scale_score(M[:, own]), round(k * (~own).mean()))


def _task(data: str, label: str, M: NDArray[np.float32], score: NDArray[Any], k: int) -> Task:
    kept = ~np.isnan(M).all(axis=1) & ~np.isnan(score)
    return Task(data, label, M[kept], score[kept] > np.median(score[kept]) if label != "gender" else score[kept] == 2, k)


def scale_score(M: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean of the standardized answers (n, m) with the signs of the first principal component; NaN without answers."""
    standard = (M - np.nanmean(M, axis=0, dtype=np.float64)) / np.nanstd(M, axis=0, dtype=np.float64)
    filled = np.nan_to_num(standard)
    first = np.linalg.eigh(filled.T @ filled)[1][:, -1]
    observed = (~np.isnan(M)).sum(axis=1)
    score: NDArray[np.float64] = filled @ np.sign(first) / np.where(observed, observed, np.nan)
    return score


def auc(of: Sequence[Task], splits: int) -> None:
    """Compute the AUC on held-out participants, from the factors of each method and from the answers."""
    rows: list[dict[str, Any]] = []
    for task in of:
        for share in AUC_SHARES:
            found = pd.DataFrame([_split_aucs(task, share, split) for split in range(splits)])
            rows.append({"data": task.data, "label": task.label, "k": task.k, "n": len(task.y), "train": share, **found.mean()})
            rows[-1]["largest sd"] = found.std(ddof=0).max()
    for share in AUC_SHARES:
        means = pd.DataFrame([row for row in rows if row["train"] == share])[[*MODELS, "answers"]].mean()
        rows.append({"data": "mean", "label": "", "train": share, **means})
    report("icqf_paper_auc", rows)
    print(AUC_NOTES)


def _split_aucs(task: Task, share: float, split: int) -> dict[str, float]:
    train, test = train_test_split(np.arange(len(task.y)), test_size=0.2, stratify=task.y, random_state=split)
    train = train[: round(share * len(task.y))]
    aucs = {}
    for method, make in MODELS.items():
        model = make(task.M[train], task.k).fit(task.M[train])
        aucs[method] = _predicted(model.factors_, task.y[train], model.transform(task.M[test]), task.y[test])
    return aucs | {"answers": _predicted(task.M[train], task.y[train], task.M[test], task.y[test])}


def _predicted(W: NDArray[Any], y: NDArray[np.bool_], W_test: NDArray[Any], y_test: NDArray[np.bool_]) -> float:
    regression = LogisticRegression(class_weight="balanced", max_iter=1000)
    model = make_pipeline(SimpleImputer(), StandardScaler(), regression).fit(W.astype(np.float64), y)
    return float(roc_auc_score(y_test, model.decision_function(W_test.astype(np.float64))))


Chooser = Callable[[NDArray[np.float64], Sequence[int], int], int]


def _by_bcv(make: Callable[[NDArray[np.float64]], Any]) -> Chooser:
    def choose(M: NDArray[np.float64], ks: Sequence[int], seed: int) -> int:
        return int(block_cross_validate(make(M), M, {"n_components": ks}, random_state=seed).best_params["n_components"])

    return choose


def _by_criterion(criterion: str) -> Chooser:
    def choose(M: NDArray[np.float64], ks: Sequence[int], seed: int) -> int:
        return int(select_by_criterion(_icqf(M), M, ks, criterion, random_state=seed).best_params["n_components"])

    return choose


def _by_correlations(criterion: str) -> Chooser:
    def choose(M: NDArray[np.float64], ks: Sequence[int], seed: int) -> int:
        del ks  # these methods choose among all numbers
        with single_threaded():
            return number_of_factors.CRITERIA[criterion](np.asarray(np.corrcoef(M, rowvar=False)), seed).n_factors

    return choose


def _icqf(M: NDArray[np.float64]) -> dfact.ICQF:
    del M  # its penalties do not depend on the number of answers
    return dfact.ICQF(bounds=(0, 100))


CHOOSERS: dict[str, Chooser] = {
    "ICQF-BCV": _by_bcv(_icqf),
    "L1NMF-BCV": _by_bcv(partial(l1_nmf, k=8)),
    "ICQF-BIC1": _by_criterion("bic1"),
    "ICQF-CCC": _by_criterion("ccc"),
    "ICQF-dispersion": _by_criterion("dispersion"),
    "FA-PA": _by_correlations("PA"),
    "FA-MAP": _by_correlations("MAP"),
}


def table_1(n_sets: int, ks: Sequence[int], methods: Sequence[str] = tuple(CHOOSERS)) -> Thresholds:
    """Compute the mean |k − 10| over simulated datasets, compared with the paper's."""
    rows: list[dict[str, Any]] = []
    for position, noise in enumerate(NOISES):
        data = [icqf_simulation(noise, seed).M for seed in range(n_sets)]
        for method in methods:
            began = time.perf_counter()
            found = np.array([CHOOSERS[method](M, ks, seed) for seed, M in enumerate(data)])
            seconds = (time.perf_counter() - began) / n_sets
            off = np.abs(found - TRUE)
            error = off.std(ddof=1) / n_sets**0.5 if n_sets > 1 else float("nan")
            row = {"noise": noise, "method": method, "mean |k-10|": off.mean(), "se": error, "paper": TABLE_1[method][position]}
            rows.append(row | {"fewest": int(found.min()), "most": int(found.max()), "sets": n_sets, "seconds a set": seconds})
    thresholds = _table_1_bars({(row["noise"], row["method"]): float(row["mean |k-10|"]) for row in rows})
    report("icqf_paper_table_1", rows, thresholds)
    print(f"k from {min(ks)} to {max(ks)}, for FA from all numbers; β = 0.1; ICQF within 0 and 100; BCV of 10 × 10 blocks in 10 folds.")
    return thresholds


def _table_1_bars(errors: dict[tuple[float, str], float]) -> Thresholds:
    thresholds: Thresholds = []
    for noise, most in zip(NOISES, TABLE_1_THRESHOLDS, strict=True):
        ours, other = (errors.get((noise, method), float("nan")) for method in ("ICQF-BCV", "L1NMF-BCV"))
        thresholds.append((f"noise {noise}: mean |k − 10| of ICQF-BCV is {ours:.2f} (threshold {most})", ours <= most))
        if noise > NOISES[0]:
            thresholds.append((f"noise {noise}: ICQF-BCV {ours:.2f} is better than ℓ1-NMF-BCV {other:.2f}", ours < other))
    return thresholds


def _stability_data() -> dict[str, tuple[NDArray[np.float32], int]]:
    data = {name: (answers(name), QUESTIONNAIRES[name][3]) for name in ("eqsq", "big5")}
    M, k = data["eqsq"]
    return data | {"eqsq, items once": (np.ascontiguousarray(M[:, DISTINCT]), k)}


def _cohorts() -> Iterator[tuple[str, tuple[NDArray[np.float32], NDArray[np.float32], int]]]:
    for file, (columns, k, pairs) in COHORTS.items():
        table = pd.read_csv(_real_file(file), sep="\t")
        items = table.iloc[:, columns]
        M = items.where(items > 0).to_numpy(np.float32) - 1
        for countries in pairs:
            first, second = (M[(table["country"] == country).to_numpy() & ~np.isnan(M).all(axis=1)] for country in countries)
            yield f"{file.partition('.')[0]}, {countries[0]} and {countries[1]}", (first, second, k)


def _real_file(file: str) -> Path:
    path = REAL_DATA / file
    if not path.exists():
        sys.exit(f"{path.name} is missing: this benchmark needs the real questionnaires in {REAL_DATA}")
    return path


def _real_tasks() -> Iterator[Task]:
    for name, (file, separator, columns, k, outside) in AUC_DATA.items():
        yield from tasks(name, pd.read_csv(_real_file(file), sep=separator), columns, k, outside)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="experiments, table1 followed by the datasets a noise level; by default all")
    parser.add_argument("--repetitions", type=int, default=5, help="of stability's samples and of auc's splits")
    parser.add_argument("--components", type=int, nargs=2, default=(2, 20), metavar=("LOW", "HIGH"), help="candidates of table1")
    options = parser.parse_args()
    n_sets = next((int(word) for word in options.which if word.isdigit()), 10)
    experiments = ("stability", "replication", "auc", "table1")
    which = [word for word in options.which if not word.isdigit()] or experiments
    unknown = set(which) - set(experiments)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}: expected {', '.join(experiments)}")
    thresholds: Thresholds = []
    if "stability" in which:
        thresholds += stability(_stability_data(), options.repetitions)
    if "replication" in which:
        replication(dict(_cohorts()))
    if "auc" in which:
        auc(list(_real_tasks()), options.repetitions)
    if "table1" in which:
        low, high = options.components
        thresholds += table_1(n_sets, range(low, high + 1))
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
