"""ICQF's solver without n×m state, compared with the ADMM, and as plain NMF with scikit-learn's.

python -m benchmarks.bounded_nmf.mm_and_admm [--rows 100000]
"""

import argparse
import sys
import time
import warnings
from contextlib import suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

import dfact
from benchmarks.common import QUESTIONNAIRES, answers, exit_code, report
from dfact.models.bounded_nmf.passes import ADMMPass, MMPass

Thresholds = list[tuple[str, bool]]
TOLERANCE = 1.0005  # multiple of the ADMM's converged objective
AS_NMF: dict[str, Any] = {"beta": 0, "w_max": np.inf, "q_max": np.inf, "bounds": (0, np.inf)}


class Watched:
    """Records the largest state that a pass kept for the blocks besides the factors; passes run inline."""

    def __init__(self, pass_: type[Any]) -> None:
        self.pass_, self.step, self.sizes = pass_, pass_.step, dict[int, int]()
        self.bytes = 0

    def __enter__(self) -> Self:
        watch, step = self, self.step

        def watched(pass_: Any, block: Any, state: Any, broadcast: Any) -> Any:
            new, sums = step(pass_, block, state, broadcast)
            watch.sizes[block.index] = sum(
                array.nbytes for name, array in new.arrays().items() if name in ("split", "positions", "multipliers")
            )
            watch.bytes = max(watch.bytes, sum(watch.sizes.values()))
            return new, sums

        self.pass_.step = watched
        return self

    def __exit__(self, *_: object) -> None:
        self.pass_.step = self.step


def fitted(pass_: type[Any], M: NDArray[np.float32], k: int, top: float, **settings: Any) -> tuple[Any, float, int]:
    """Return the fitted model, the seconds, and the bytes of state."""
    with Watched(pass_) as watch:
        began = time.perf_counter()
        model = dfact.ICQF(k, bounds=(0, top), executor="inline", **settings).fit(M)
        return model, time.perf_counter() - began, watch.bytes


def against_the_admm(names: list[str]) -> Thresholds:
    rows: list[dict[str, Any]] = []
    for name in names:
        *_, k, top, _ = QUESTIONNAIRES[name]
        M = answers(name)
        # Far beyond the default tolerance, where the objective still falls.
        admm, admm_seconds, admm_state = fitted(ADMMPass, M, k, top, solver="admm", max_iter=1500, tol=1e-8)
        converged = admm.objective_history_[-1]
        close, seconds, state = fitted(MMPass, M, k, top, max_iter=1500, tol=1e-8)
        default, default_seconds, _ = fitted(MMPass, M, k, top)
        model = np.asarray(close.factors_, np.float64) @ close.components_
        rows.append(
            {
                "data": name,
                "admm_objective": converged,
                "ratio": close.objective_history_[-1] / converged,
                "beyond_bounds": max(0.0, float(model.max() - top)),
                "admm_passes": admm.n_iter_,
                "passes": close.n_iter_,
                "admm_passes_to_1.0005": reached(admm.objective_history_, TOLERANCE * converged),
                "passes_to_1.0005": reached(close.objective_history_, TOLERANCE * converged),
                "admm_s": admm_seconds,
                "s": seconds,
                "state_share": state / admm_state,
                "ratio_at_1e-4": default.objective_history_[-1] / converged,
                "passes_at_1e-4": default.n_iter_,
                "s_at_1e-4": default_seconds,
            }
        )
    worst, beyond, state_share = (max(row[key] for row in rows) for key in ("ratio", "beyond_bounds", "state_share"))
    passes = max(row["passes_to_1.0005"] / row["admm_passes_to_1.0005"] for row in rows)
    whole = max(row["passes"] / row["admm_passes"] for row in rows)
    thresholds = [
        (f"objective at most {worst:.5f} × the ADMM's converged one (threshold {TOLERANCE})", worst <= TOLERANCE),
        (f"bounds left by at most {beyond:.4f} (threshold 0.01)", beyond <= 0.01),
        (
            f"{passes:.0%} of the ADMM's passes or fewer to 1.0005 × its objective, {whole:.0%} to tol=1e-8 (threshold 60%)",
            max(passes, whole) <= 0.6,
        ),
        (f"multipliers take {state_share:.1%} of the ADMM's state (threshold 5%)", state_share <= 0.05),
    ]
    report("icqf_mm", rows, thresholds)
    return thresholds


def reached(history: NDArray[np.float64], target: float) -> int:
    """Return the number of passes until the objective first reached the target; one more than all passes if it never did."""
    below = np.flatnonzero(history <= target)
    return int(below[0]) + 1 if below.size else len(history) + 1


def planted(n: int, m: int, k: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    W = rng.random((n, k), np.float32) * (rng.random((n, k)) < 0.3)
    Q = 3 * rng.random((k, m), np.float32) * (rng.random((k, m)) < 0.3)
    return np.maximum(W @ Q + rng.normal(0, 0.5, (n, m)).astype(np.float32), 0).astype(np.float32)


class ReachedError(Exception):
    """An error that ends a fit whose objective has reached the target."""


def seconds_to(target: float, M: NDArray[np.float32], k: int) -> tuple[float, int]:
    """Return seconds and passes from the call of fit until the objective reaches the target."""
    passes = 0

    def stop(iteration: Any) -> None:
        nonlocal passes
        passes = iteration.number
        if iteration.objective <= target:
            raise ReachedError

    began = time.perf_counter()
    with suppress(ReachedError):
        dfact.ICQF(k, **AS_NMF, max_iter=2000, tol=0, callbacks=[stop]).fit(M)
        return float("inf"), passes
    return time.perf_counter() - began, passes


def race(name: str, M: NDArray[np.float32], k: int, repeats: int) -> dict[str, Any]:
    """Time scikit-learn's fit, and dfact's until it reaches the same objective; medians of runs in turn."""
    peer_seconds, seconds, whole = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(repeats):
            began = time.perf_counter()
            peer = NMF(k, init="nndsvd", solver="cd", tol=1e-4, max_iter=1000)
            W = peer.fit_transform(M)
            peer_seconds.append(time.perf_counter() - began)
            target = 0.5 * float(np.square(M - W @ peer.components_, dtype=np.float64).sum())
            to_it, passes = seconds_to(target, M, k)
            seconds.append(to_it)
            began = time.perf_counter()
            model = dfact.ICQF(k, **AS_NMF).fit(M)
            whole.append(time.perf_counter() - began)
    return {
        "data": name,
        "sklearn_s": float(np.median(peer_seconds)),
        "sklearn_iterations": peer.n_iter_,
        "sklearn_objective": target,
        "s_to_it": float(np.median(seconds)),
        "passes_to_it": passes,
        "times_sooner": float(np.median(peer_seconds) / np.median(seconds)),
        "whole_fit_s": float(np.median(whole)),
        "passes": model.n_iter_,
        "objective": model.objective_history_[-1],
        "relative_error": float(np.sqrt(2 * model.objective_history_[-1]) / np.linalg.norm(M)),
    }


def against_scikit_learn(names: list[str], n: int, repeats: int) -> Thresholds:
    rows = [race(f"{name}, 0 where missing", np.nan_to_num(answers(name)), QUESTIONNAIRES[name][3], repeats) for name in names]
    rows.append(race(f"planted {n} × 500", planted(n, 500, 20), 20, repeats))
    thresholds = []
    for row in rows:
        threshold = 5 if row["data"].startswith("planted") else 2
        thresholds.append(
            (
                f"{row['data']}: scikit-learn's objective {row['times_sooner']:.1f} × sooner (threshold {threshold})",
                row["times_sooner"] >= threshold,
            )
        )
    report("icqf_as_nmf", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of the planted data")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    thresholds = against_the_admm(list(QUESTIONNAIRES))
    return exit_code(thresholds + against_scikit_learn(["big5", "eqsq"], options.rows, options.repeats))


if __name__ == "__main__":
    sys.exit(main())
