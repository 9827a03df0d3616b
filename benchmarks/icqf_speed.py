"""One ADMM iteration on eqsq on one thread, against the same steps written with NumPy arrays.

python -m benchmarks.icqf_speed
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's side on one thread, too
os.environ.setdefault("MKL_NUM_THREADS", "1")

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import dfact
from benchmarks.common import answers, exit_code, report, side_by_side

K, TOP, RHO, BETA = 8, 3, 3.0, 0.1


def dfact_fit(M: NDArray[np.floating], iterations: int) -> Callable[[], object]:
    model = dfact.ICQF(K, solver="admm", bounds=(0, TOP), max_iter=iterations, tol=0, executor="inline")
    return lambda: model.fit(M)


def numpy_iteration(M: NDArray[np.floating]) -> Callable[[], object]:
    """The paper's four steps on whole arrays, one coordinate sweep a side, in M's precision."""
    n, m = M.shape
    dtype = M.dtype.type
    mask, filled = (~np.isnan(M)).astype(dtype), np.nan_to_num(M)
    rng = np.random.default_rng(0)
    state = {"W": rng.random((n, K)).astype(dtype), "Q": rng.random((m, K)).astype(dtype)}
    state["Z"], state["A"] = np.clip(state["W"] @ state["Q"].T, 0, TOP), np.zeros((n, m), dtype)

    def sweep(X: NDArray[np.floating], H: NDArray[np.floating], G: NDArray[np.floating], penalty: float, top: float) -> None:
        for r in range(K):
            X[:, r] = np.clip(X[:, r] - (X @ G[:, r] - H[:, r] + dtype(penalty)) / G[r, r], 0, top)

    def iteration() -> None:
        W, Q, Z, A = state["W"], state["Q"], state["Z"], state["A"]
        B = Z + A / dtype(RHO)
        sweep(W, B @ Q, Q.T @ Q, BETA / RHO, 1)
        sweep(Q, B.T @ W, W.T @ W, BETA * n / m * TOP / RHO, TOP)
        R = W @ Q.T
        state["Z"] = np.clip((mask * filled + dtype(RHO) * R - A) / (dtype(RHO) + mask), 0, TOP)
        state["A"] = A + dtype(RHO) * (state["Z"] - R)

    return iteration


def main() -> int:
    M32 = answers("eqsq")
    M64 = M32.astype(np.float64)
    few, many = 20, 120
    times = side_by_side(
        {
            "few32": dfact_fit(M32, few),
            "many32": dfact_fit(M32, many),
            "few64": dfact_fit(M64, few),
            "many64": dfact_fit(M64, many),
            "numpy32": numpy_iteration(M32),
            "numpy64": numpy_iteration(M64),
        }
    )
    seconds = {
        "dfact float32": (times["many32"] - times["few32"]) / (many - few),
        "dfact float64": (times["many64"] - times["few64"]) / (many - few),
        "NumPy float32": times["numpy32"],
        "NumPy float64": times["numpy64"],
    }
    rows = [{"what": name, "ms_per_iteration": s * 1e3, "ns_per_entry": s * 1e9 / M32.size} for name, s in seconds.items()]
    ns, ratio = seconds["dfact float32"] * 1e9 / M32.size, seconds["NumPy float64"] / seconds["dfact float32"]
    same = seconds["NumPy float32"] / seconds["dfact float32"]
    bars = [
        (f"{ns:.2f} ns per entry and iteration in float32 on one thread (bar 2.5)", ns <= 2.5),
        (f"{ratio:.1f} × faster than NumPy's arrays as they come, float64 (bar 10); {same:.1f} × at the same precision", ratio >= 10),
    ]
    report("icqf_speed", rows, bars)
    return exit_code(bars)


if __name__ == "__main__":
    sys.exit(main())
