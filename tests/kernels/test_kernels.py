"""Kernels against plain NumPy and SciPy: optimality conditions, reference solvers, formulas written out."""

import hashlib
import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, lsq_linear, minimize, nnls

import dfact.kernels
from dfact.kernels import active_set as rows_module
from dfact.kernels import pivoting as tableau
from dfact.kernels.active_set import solve_rows
from dfact.kernels.admm import admm_fill
from dfact.kernels.assignment import member_weights
from dfact.kernels.box_qp import coordinate_descent, fista
from dfact.kernels.entries import (
    all_whole,
    column_statistics,
    decode,
    filled,
    first_invalid,
    mask_codes,
    mask_listed,
    recode,
    squared_error,
)
from tests.cases import every

COMPILED = os.environ.get("NUMBA_DISABLE_JIT") != "1"
SEEDS = [0, 1, 2] if COMPILED else [0]
DTYPES = [np.float32, np.float64]
TOLERANCE = 1e-4  # what the models ask of solve_rows


def answers(seed, shape, dtype=np.float64, missing=0.2, top=3.0):
    """Answers between 0 and top, NaN where missing; read-only, as blocks are."""
    rng = np.random.default_rng(seed)
    M = rng.uniform(0, top, shape).astype(dtype)
    M[rng.random(shape) < missing] = np.nan
    M.flags.writeable = False
    return M


# --- all kernels -----------------------------------------------------------------------------------


def compiled():
    modules = [import_module(f"dfact.kernels.{module.name}") for module in pkgutil.iter_modules(dfact.kernels.__path__)]
    found = {name: value for module in modules for name, value in vars(module).items() if hasattr(value, "targetoptions")}
    return found.items()


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_kernels_are_serial_and_release_the_gil():
    assert {name for name, _ in compiled()} >= {"admm_fill", "coordinate_descent", "fista", "decode", "column_statistics", "squared_error"}
    for name, function in compiled():
        assert not function.targetoptions.get("parallel", False), name
        assert function.targetoptions["nogil"], name


def test_a_change_of_the_tableau_renews_the_cached_kernels():
    """Numba looks for changes only in the file of a cached kernel itself."""
    digest = hashlib.sha256(Path(tableau.__file__).read_bytes()).hexdigest()[:12]
    assert digest == rows_module.TABLEAU_DIGEST, f'write TABLEAU_DIGEST = "{digest}" in active_set.py'


@pytest.mark.process
def test_kernels_run_with_the_jit_off():
    """The same assertions, on one seed, hold for the Python that is compiled."""
    chosen = "(entries or statistics or decode or mask or whole or reference or two_array) and not (float32 or int16 or many)"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen]
    run = subprocess.run(command, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


# --- entries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("raw", "code"), [(np.uint8, 255), (np.int16, -9), (np.float64, 99)])
def test_decode(dtype, raw, code):
    values = np.random.default_rng(0).integers(0, 5, (7, 9)).astype(raw)
    values[::2, ::3] = code
    out = np.empty(values.shape, dtype)
    decode(values, code, out)
    np.testing.assert_array_equal(out, np.where(values == code, np.nan, values))


@pytest.mark.parametrize("dtype", DTYPES)
@every(seed=SEEDS)
def test_column_statistics_add_up_over_blocks(seed, dtype):
    M = answers(seed, (50, 11), dtype)
    M = np.where(np.arange(11) == 4, dtype(np.nan), M)  # a column without answers
    M[7] = np.nan
    observed, minimum, maximum = np.zeros(11, np.int64), np.full(11, np.inf), np.full(11, -np.inf)
    row_observed = np.empty(50, np.int64)
    for rows in (slice(0, 13), slice(13, 50)):
        column_statistics(M[rows], observed, minimum, maximum, row_observed[rows])
    seen = ~np.isnan(M)
    np.testing.assert_array_equal(observed, seen.sum(axis=0))
    np.testing.assert_array_equal(row_observed, seen.sum(axis=1))
    np.testing.assert_array_equal(minimum, np.where(seen, M, np.inf).min(axis=0))
    np.testing.assert_array_equal(maximum, np.where(seen, M, -np.inf).max(axis=0))


@pytest.mark.parametrize("dtype", DTYPES)
@every(seed=SEEDS)
def test_filled_and_squared_error_of_entries(seed, dtype):
    M, R = answers(seed, (40, 33), dtype), answers(seed + 10, (40, 33), dtype, missing=0)
    out = filled(M, 1.5)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, np.where(np.isnan(M), dtype(1.5), M))
    expected = np.nansum((M.astype(float) - R) ** 2)
    np.testing.assert_allclose(squared_error(M, R, np.ones(len(M), dtype)), expected, rtol=1e-6 if dtype == np.float32 else 1e-13)


def test_squared_error_of_entries_that_are_all_missing():
    assert squared_error(np.full((3, 4), np.nan), np.ones((3, 4)), np.ones(3)) == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_mask_codes(dtype):
    values = np.array([[1, 98, 99], [99, 2.5, np.nan]], dtype)
    mask_codes(values, np.array([98.0, 99.0]))
    np.testing.assert_array_equal(values, np.array([[1, np.nan, np.nan], [np.nan, 2.5, np.nan]], dtype))


def columns_of_codes(rng, m):
    """Return up to three codes for each column, and the position of the first one of each."""
    codes = [rng.choice(6, rng.integers(0, 4), replace=False).astype(float) for _ in range(m)]
    return codes, np.concatenate([[0], np.cumsum([len(column) for column in codes])]), np.concatenate([*codes, np.empty(0)])


@pytest.mark.parametrize("seed", range(4))
def test_codes_of_a_column_are_masked_and_counted(seed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((50, 7)) < 0.1, np.nan, rng.integers(0, 6, (50, 7)))
    codes, starts, flat = columns_of_codes(rng, 7)
    counts = np.ones(len(flat), np.int64)
    masked = values.copy()
    mask_listed(masked, starts, flat, counts)
    expected = np.stack([np.where(np.isin(column, own), np.nan, column) for column, own in zip(values.T, codes, strict=True)], axis=1)
    np.testing.assert_array_equal(masked, expected)
    hits = [np.count_nonzero(values[:, j] == code) for j, own in enumerate(codes) for code in own]
    np.testing.assert_array_equal(counts, np.array(hits, np.int64) + 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("closed", [False, True])
def test_the_first_value_outside_limits_or_levels(seed, closed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((40, 5)) < 0.1, np.nan, rng.integers(0, 6, (40, 5)))
    low, high = np.full(5, -1.0), np.where(np.arange(5) == seed % 5, 4.0, np.inf)
    levels, starts, flat = columns_of_codes(rng, 5) if closed else ([np.empty(0)] * 5, np.zeros(6, np.int64), np.empty(0))
    invalid = (values < low) | (values > high)
    for j, own in enumerate(levels):
        if len(own):
            invalid[:, j] |= ~np.isnan(values[:, j]) & ~np.isin(values[:, j], own)
    found = first_invalid(values, low, high, starts, flat)
    assert found == (int(np.flatnonzero(invalid)[0]) if invalid.any() else -1)
    valid = np.where(invalid, np.nan, values)
    assert first_invalid(valid, low, high, starts, flat) == -1


@pytest.mark.parametrize("seed", range(3))
def test_recoding_subtracts_offsets_and_replaces_missing_codes(seed):
    rng = np.random.default_rng(seed)
    raw = rng.integers(1, 6, (30, 4)).astype(np.int16)
    offset, out = np.array([1.0, 0.0, -2.0, 1.0]), np.empty((30, 4), np.uint8)
    recode(raw, 5.0, offset, 255.0, out)
    np.testing.assert_array_equal(out, np.where(raw == 5, 255, raw - offset))
    floats = np.where(raw == 5, np.nan, raw)
    recode(floats, np.nan, offset, 255.0, out)
    np.testing.assert_array_equal(out, np.where(raw == 5, 255, raw - offset))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_whole(dtype):
    assert all_whole(np.array([[1, np.nan, -3]], dtype))
    assert all_whole(np.full((2, 2), np.nan, dtype))
    assert not all_whole(np.array([[1, np.nan, 2.5]], dtype))


# --- box-constrained quadratic programs ------------------------------------------------------------


def box_lasso(X, H, G, n_free, penalty, upper, sweeps, tolerance, solver=coordinate_descent, ridge=0.0):
    """The Lasso of every column with the same penalty and bound."""
    n = X.shape[1]
    return solver(X, H - X.dtype.type(penalty), G, n_free, np.full(n, ridge, X.dtype), np.full(n, upper, X.dtype), sweeps, tolerance)


def lasso(seed, k, n, dtype=np.float64, penalty=0.3):
    """A basis A (60, k), targets (60, n), with G = AᵀA and H = AᵀB; solutions touch both bounds of [0, 1]."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(0, 1, (60, k))
    B = A @ rng.uniform(-0.5, 1.5, (k, n)) + rng.normal(0, 0.3, (60, n))
    return A, B, (A.T @ A).astype(dtype), np.ascontiguousarray(A.T @ B).astype(dtype), penalty


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("solver", [coordinate_descent, fista])
@every(k=[1, 3, 8], seed=SEEDS, ridge=[0.0, 2.0])
def test_box_lasso_meets_the_optimality_conditions(seed, k, dtype, solver, ridge):
    _, _, G, H, penalty = lasso(seed, k, 40, dtype)
    X = np.random.default_rng(seed).uniform(0, 1, (k, 40)).astype(dtype)
    box_lasso(X, H, G, k, penalty, 1.0, 20000, 0.0 if dtype == np.float32 else 1e-14, solver, ridge)
    assert X.dtype == dtype
    assert X.min() >= 0
    assert X.max() <= 1
    gradient = G.astype(float) @ X - H + penalty + ridge * X
    small = (1e-5 if dtype == np.float32 else 1e-11) * np.abs(H).max()
    assert np.abs(gradient[(X > 0) & (X < 1)]).max(initial=0) <= small
    assert gradient[X == 0].min(initial=0) >= -small
    assert gradient[X == 1].max(initial=0) <= small
    if k == 8:
        assert (X == 0).any()
        assert (X == 1).any()


@every(seed=SEEDS)
def test_box_lasso_against_reference_float64(seed):
    A, B, G, H, penalty = lasso(seed, 5, 6)
    for beta in (0.0, penalty):
        X = np.full((5, 6), 0.5)
        box_lasso(X, H, G, 5, beta, 1.0, 5000, 1e-13)
        for i in range(6):
            if beta == 0:
                expected = lsq_linear(A, B[:, i], (0, 1), method="bvls", tol=1e-14).x
            else:
                expected = minimize(
                    lambda x, i=i: (0.5 * x @ G @ x - H[:, i] @ x + penalty * x.sum(), G @ x - H[:, i] + penalty),
                    np.full(5, 0.5),
                    jac=True,
                    bounds=[(0, 1)] * 5,
                    options={"ftol": 1e-15, "gtol": 1e-10},
                ).x
            np.testing.assert_allclose(X[:, i], expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_box_lasso_leaves_given_components(dtype):
    _, _, G, H, penalty = lasso(0, 6, 20, dtype)
    X = np.random.default_rng(1).uniform(-2, 2, (6, 20)).astype(dtype)
    given = X[4:].copy()
    box_lasso(X, H[:4], G, 4, penalty, 1.0, 2000, 0.0)
    np.testing.assert_array_equal(X[4:], given)
    reduced = H[:4] - G[:4, 4:] @ given
    Y = np.full((4, 20), 0.5, dtype)
    box_lasso(Y, np.ascontiguousarray(reduced), np.ascontiguousarray(G[:4, :4]), 4, penalty, 1.0, 2000, 0.0)
    np.testing.assert_allclose(X[:4], Y, atol=1e-4 if dtype == np.float32 else 1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_box_lasso_leaves_a_component_without_curvature(dtype):
    _, _, G, H, penalty = lasso(0, 3, 5, dtype)
    G[1], G[:, 1], H[1] = 0, 0, 0
    X = np.full((3, 5), 0.25, dtype)
    box_lasso(X, H, G, 3, penalty, 1.0, 50, 0.0)
    np.testing.assert_array_equal(X[1], dtype(0.25))
    assert np.isfinite(X).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_box_lasso_stops_at_the_tolerance(dtype):
    _, _, G, H, penalty = lasso(2, 5, 30, dtype)
    X = np.zeros((5, 30), dtype)
    sweeps = box_lasso(X, H, G, 5, penalty, 1.0, 1000, 1e-3)
    assert 1 < sweeps < 1000
    before = X.copy()
    assert box_lasso(X, H, G, 5, penalty, 1.0, 1, 0.0) == 1
    assert np.abs(X - before).max() <= 1e-3
    Y = np.zeros((5, 30), dtype)
    assert box_lasso(Y, H, G, 5, penalty, 1.0, sweeps - 1, 1e-3) == sweeps - 1
    box_lasso(Y, H, G, 5, penalty, 1.0, 1, 0.0)
    np.testing.assert_array_equal(Y, before)


# --- ADMM ------------------------------------------------------------------------------------------


@every(seed=SEEDS, rho=[0.5, 3.0], change=[1.0, 1.02])
def test_admm_equals_the_two_array_form(seed, rho, change):
    """Steps 3 and 4 with Z and A as two arrays, 20% missing, on models that leave the bounds."""
    lower, upper = np.full(17, 0.5), np.linspace(2, 2.9, 17)
    M = answers(seed, (12, 17), top=3.0)
    M = np.where(np.isnan(M), np.nan, np.clip(M, lower, upper))
    M.flags.writeable = False
    seen = ~np.isnan(M)
    S = filled(M, 1.0)
    B = np.empty_like(S)
    Z, A = np.where(seen, M, 1.0), np.zeros_like(S)
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0, 2, 12)
    active = 0
    for _ in range(30):
        R = rng.uniform(lower - 1, upper + 1, M.shape)
        before, rho = rho, rho * change
        residuals, old = np.zeros(2), Z
        squares, lagrangian = admm_fill(M, R, S, B, lower, upper, before, rho, weights, residuals)
        Z = np.clip((np.where(seen, M, 0) + rho * R - A) / (rho + seen), lower, upper)
        A = A + rho * (Z - R)
        np.testing.assert_allclose(np.clip(S, lower, upper), Z, rtol=0, atol=1e-12)
        np.testing.assert_allclose(np.where(seen, M - S, rho * (Z - S)), A, rtol=0, atol=1e-11)
        np.testing.assert_allclose(B, Z + A / rho, rtol=0, atol=1e-11)
        error = np.where(seen, np.square(M - R), 0)
        np.testing.assert_allclose(squares, weights @ error.sum(axis=1), rtol=1e-12)
        share = np.where(seen, 0.5 * np.square(M - Z), 0) + A * (Z - R) + rho / 2 * np.square(Z - R)
        np.testing.assert_allclose(lagrangian, weights @ share.sum(axis=1), rtol=1e-11)
        np.testing.assert_allclose(residuals, [np.square(Z - R).sum(), np.square(Z - old).sum()], rtol=1e-9)
        active += ((lower == Z) | (upper == Z)).sum()
    assert active > 100


@every(seed=SEEDS)
def test_admm_in_float32_is_that_in_float64(seed):
    M = answers(seed, (20, 37), np.float32)
    R = np.random.default_rng(seed).uniform(-1, 4, M.shape).astype(np.float32)
    S = np.random.default_rng(seed + 5).uniform(-1, 4, M.shape).astype(np.float32)
    S8, B, B8 = S.astype(float), np.empty_like(S), np.empty(M.shape)
    low, high, ones, none = np.zeros(37), np.full(37, 3.0), np.ones(20), np.empty(0)
    got = admm_fill(M, R, S, B, low.astype(np.float32), high.astype(np.float32), 3.0, 3.0, ones.astype(np.float32), none)
    expected = admm_fill(M.astype(float), R.astype(float), S8, B8, low, high, 3.0, 3.0, ones, none)
    assert S.dtype == B.dtype == np.float32
    np.testing.assert_allclose(S, S8, atol=1e-5)
    np.testing.assert_allclose(B, B8, atol=1e-5)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


# --- rows given the loadings -----------------------------------------------------------------------


class Rows:
    """A row problem of every kind: masks, confounders, bounds that hold at the solution."""

    def __init__(self, seed, n=8, m=12, k=3, c=0, dtype=np.float64, missing=0.25, w_max=1.0, lower=0.0, upper=3.0, penalty=0.1, ridge=0.0):
        rng = np.random.default_rng(seed)
        upper = np.linspace(1, 3, m) if isinstance(upper, str) else upper  # each item's own
        self.k, self.w_max, self.lower, self.upper, self.penalty, self.ridge = k, w_max, lower, upper, penalty, ridge
        Q = rng.uniform(0, 3, (k, m)) * (rng.random((k, m)) < 0.6)
        self.Q = np.vstack([Q, rng.uniform(0, 0.4, (c, m))]).astype(dtype)
        W = rng.uniform(-0.2, 1.2, (n, k)) * w_max
        C = rng.uniform(0, 1, (n, c))
        M = np.clip(np.hstack([W, C]) @ self.Q + rng.normal(0, 0.5, (n, m)), lower, upper).astype(dtype)
        M[rng.random((n, m)) < missing] = np.nan
        M.flags.writeable = False
        self.M, self.C = M, C.astype(dtype)

    def solve(self, tolerance=TOLERANCE, start=None):
        """(X, unfinished) from the middle of the box."""
        n = len(self.M)
        X = np.empty((len(self.Q), n), self.M.dtype)
        X[: self.k] = self.w_max / 2 if start is None else start
        X[self.k :] = self.C.T
        H = np.ascontiguousarray(self.Q[: self.k] @ filled(self.M).T)
        Q = self.Q.astype(np.float64)
        limits = [np.full(Q.shape[1], bound) for bound in (self.lower, self.upper)]
        unfinished = solve_rows(self.M, X, H, Q, self.k, self.penalty, self.ridge, self.w_max, *limits, tolerance)
        np.testing.assert_array_equal(X[self.k :], self.C.T)
        assert X[: self.k].min() >= 0
        assert X[: self.k].max() <= self.w_max
        return X.astype(float), unfinished

    def objective(self, i, w):
        """The value and gradient of row i at w."""
        Q = self.Q.astype(float)
        error = np.where(np.isnan(self.M[i]), 0, self.M[i].astype(float) - w @ Q[: self.k] - self.C[i].astype(float) @ Q[self.k :])
        value = 0.5 * error @ error + self.penalty * w.sum() + 0.5 * self.ridge * w @ w
        return value, self.penalty + self.ridge * w - Q[: self.k] @ error

    def reference(self, i):
        """The optimum of row i by SLSQP."""
        Q = self.Q.astype(float)
        offset = self.C[i].astype(float) @ Q[self.k :]
        inside = LinearConstraint(Q[: self.k].T, self.lower - offset, self.upper - offset)
        found = minimize(
            lambda w: self.objective(i, w),
            np.full(self.k, self.w_max / 3),
            jac=True,
            bounds=[(0, self.w_max)] * self.k,
            constraints=[inside],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert found.status in (0, 8), found.message  # 8: no descent is left at this precision
        return found.x

    def check_optimality(self, X, tolerance=TOLERANCE):
        """Feasible, and the gradient is balanced by multipliers ≥ 0 of the bounds that hold."""
        Q = self.Q.astype(float)
        width = self.upper - self.lower
        R = X.T @ Q
        assert (R - self.upper - tolerance * width).max() <= 1e-6
        assert (self.lower - tolerance * width - R).max() <= 1e-6
        near, edge = 2 * tolerance * width + 1e-6, 1e-5 * self.w_max
        for i, x in enumerate(X.T):
            w = x[: self.k]
            _, gradient = self.objective(i, w)
            normals = [np.eye(self.k)[w >= self.w_max - edge], -np.eye(self.k)[w <= edge]]
            normals += [Q[: self.k].T[R[i] >= self.upper - near], -Q[: self.k].T[R[i] <= self.lower + near]]
            pushing = np.vstack(normals).T
            residual = nnls(pushing, -gradient)[1] if pushing.shape[1] else np.linalg.norm(gradient)
            # An error of tolerance·w_max in w moves the gradient by this much.
            curvature = np.linalg.norm(Q[: self.k] @ Q[: self.k].T, 2)
            assert residual <= 2 * tolerance * curvature * self.w_max + 1e-4


FULL = {"lower": -1e9, "upper": 1e9}
CASES = [
    {},
    {"upper": 1.5},
    {"upper": 2.0, "lower": 0.7, "c": 2, "missing": 0.1, "penalty": 0.5},
    {"c": 2, "w_max": 4.0, "upper": 4.0},
    {"missing": 0.6},
    {"penalty": 0.0, "missing": 0.0, "upper": 2.0},
    {"penalty": 0.0, "ridge": 0.8, "upper": 2.0, "missing": 0.6},
    {"upper": "items"},
    FULL,
]


def feasible(case, seed, **more):
    """The problem, with loadings and an intercept that let every entry reach the lower bound where there is one."""
    rows = Rows(seed, **{**case, **more})
    if rows.lower > 0:
        np.maximum(rows.Q[: rows.k], 0.2, out=rows.Q[: rows.k])
        rows.Q[-1], rows.C[:, -1] = rows.lower - 0.1, 1
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@every(seed=SEEDS)
def test_rows_against_reference(seed, case, dtype):
    rows = feasible(case, seed, dtype=dtype)
    X, unfinished = rows.solve()
    assert unfinished == 0
    rows.check_optimality(X)
    for i, x in enumerate(X.T):
        w = x[: rows.k]
        best = rows.reference(i)
        # Where the data determine the factors they agree, and the objective does in any case.
        assert rows.objective(i, w)[0] <= rows.objective(i, best)[0] + 1e-3
        G = rows.Q[: rows.k, ~np.isnan(rows.M[i])].astype(float)
        if np.linalg.eigvalsh(G @ G.T)[0] > 0.5:
            np.testing.assert_allclose(w, best, atol=3e-3 * rows.w_max)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@every(dtype=DTYPES, seed=SEEDS)
def test_many_rows_meet_the_optimality_conditions(seed, case, dtype):
    rows = feasible(case, seed, n=60, m=90, k=9, dtype=dtype)
    X, unfinished = rows.solve()
    assert unfinished == 0
    rows.check_optimality(X)


@every(seed=SEEDS)
def test_rows_to_a_small_tolerance(seed):
    rows = Rows(seed, n=10, m=30, k=4, upper=1.8, missing=0.1)
    X, unfinished = rows.solve(tolerance=1e-8)
    assert unfinished == 0
    assert (X.T @ rows.Q).max() <= 1.8 + 1e-7
    for i, x in enumerate(X.T):
        np.testing.assert_allclose(x[:4], rows.reference(i), atol=2e-6)


def test_bounds_hold_in_these_cases():
    """The cases above are about bounds: without them, many rows would leave them."""
    rows = feasible(CASES[2], 0, n=60, m=40, k=4)
    rows.lower, rows.upper = -1e9, 1e9
    R = rows.solve()[0].T @ rows.Q
    assert (R > 2.0).any(axis=1).mean() > 0.5
    assert (R < 0.7).any(axis=1).mean() > 0.0


@every(seed=SEEDS)
def test_rows_do_not_depend_on_the_start(seed):
    rows = Rows(seed, n=40, m=60, k=6, upper=2.0)
    middle, zero, top = rows.solve(start=None)[0], rows.solve(start=0.0)[0], rows.solve(start=1.0)[0]
    np.testing.assert_allclose(zero, middle, atol=1e-3)
    np.testing.assert_allclose(top, middle, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_the_same_bit_for_bit_and_one_by_one(dtype):
    rows = Rows(3, n=30, m=50, k=6, upper=2.0, dtype=dtype)
    X = rows.solve()[0]
    np.testing.assert_array_equal(rows.solve()[0], X)
    for i in (0, 7, 29):
        alone = Rows(3, n=30, m=50, k=6, upper=2.0, dtype=dtype)
        alone.M, alone.C = rows.M[i : i + 1], rows.C[i : i + 1]
        np.testing.assert_allclose(alone.solve()[0][:, 0], X[:, i], atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("upper", [3.0, 1e9])
def test_rows_without_an_answer_are_zero(dtype, upper):
    rows = Rows(0, n=6, dtype=dtype, upper=upper)
    M = rows.M.copy()
    M[2:4] = np.nan
    rows.M = M
    X, unfinished = rows.solve()
    assert unfinished == 0
    np.testing.assert_allclose(X[:, 2:4], 0, atol=1e-7)
    assert X[:, :2].max() > 0.1


def test_a_lower_bound_lifts_rows_without_an_answer():
    rows = Rows(0, n=2, m=6, k=2, lower=0.5, upper=3.0)
    rows.Q[:] = [[1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]]
    M = rows.M.copy()
    M[0] = np.nan
    rows.M = M
    X, unfinished = rows.solve()
    assert unfinished == 0
    np.testing.assert_allclose(X[:, 0], 0.5, atol=2e-4 * 2.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("c", [1, 2])
def test_rows_whose_confounders_leave_the_bounds_are_counted(c, dtype):
    rows = Rows(1, n=10, c=c, upper=2.0, dtype=dtype)
    rows.C[:] = 0.5
    rows.Q[-1] = 0.2
    rows.Q[-1, 4] = 6.0  # times a confounder of at least 0.5
    rows.C[3:7, -1] = 1.0
    X, unfinished = rows.solve()
    assert unfinished == 10
    assert np.isfinite(X).all()
    rows.Q[-1, 4] = 2.5  # now only where the confounder is 1
    X, unfinished = rows.solve()
    assert unfinished == 4
    within = np.r_[0:3, 7:10]
    rows.M, rows.C = rows.M[within], rows.C[within]
    rows.check_optimality(X[:, within])


def test_rows_that_cannot_reach_the_lower_bound_are_counted():
    rows = Rows(1, n=5, lower=2.9, upper=3.0)
    X, unfinished = rows.solve()
    assert unfinished == 5
    assert np.isfinite(X).all()


def collinear(kind, Q, rng):
    if kind == "duplicate":
        Q[3] = Q[1]
    elif kind == "scaled":
        Q[3] = 0.5 * Q[1]
    elif kind == "sum":
        Q[4] = (Q[0] + Q[2]) / 2
    elif kind == "nearly":
        Q[3] = Q[1] + 1e-4 * rng.uniform(0, 1, Q.shape[1])
    elif kind == "zero":
        Q[2] = 0
    elif kind == "all zero":
        Q[:] = 0
    elif kind == "tiny":
        Q[2] *= 1e-6
    else:  # "items": the same item many times
        Q[:] = Q[:, :3].repeat(10, axis=1)


@pytest.mark.parametrize("kind", ["duplicate", "scaled", "sum", "nearly", "zero", "all zero", "tiny", "items"])
@every(penalty=[0.0, 0.1], upper=[1.5, 1e9], dtype=DTYPES)
def test_rows_with_collinear_loadings(kind, penalty, upper, dtype):
    rows = Rows(5, n=20, m=30, k=5, upper=upper, penalty=penalty, dtype=dtype)
    collinear(kind, rows.Q, np.random.default_rng(0))
    X, unfinished = rows.solve()
    assert unfinished == 0
    rows.check_optimality(X)


@every(seed=range(20))
def test_fewer_answers_than_components(seed):
    rows = Rows(seed, n=30, m=20, k=12, upper=2.0, missing=0.8, penalty=0.05)
    X, unfinished = rows.solve()
    assert unfinished == 0
    rows.check_optimality(X)


@every(seed=range(10))
def test_many_entries_at_the_bounds(seed):
    """A narrow range with an intercept in it: the bounds decide nearly every factor."""
    rows = Rows(seed, n=20, m=200, k=10, c=1, lower=0.9, upper=1.4, missing=0.3)
    rows.Q[-1], rows.C[:] = 1.0, 1.0
    rows.M = np.clip(rows.M + 1, 0.9, 1.4)
    X, unfinished = rows.solve()
    assert unfinished == 0
    rows.check_optimality(X)


# --- clusters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@every(seed=SEEDS)
def test_members_are_the_directions_nearest_to_a_centre(seed, dtype):
    rng = np.random.default_rng(seed)
    widths = np.array([3, 5, 5, 2, 1])
    X = (rng.standard_normal((5, 300)) * rng.uniform(0.5, 2, 300)).astype(dtype)
    X[:, 17] = 0
    C = np.zeros((widths.sum(), 5), dtype)
    for end, k in zip(np.cumsum(widths), widths, strict=True):
        C[end - k : end, :k] = rng.standard_normal((k, k))
    weights, counts = C @ X, np.empty(len(C))
    member_weights(X, widths, (np.square(C).sum(axis=1) / 2).astype(dtype), weights, counts)
    for end, k in zip(np.cumsum(widths), widths, strict=True):
        norms = np.linalg.norm(X[:k].astype(float), axis=0)
        directions = X[:k] / np.where(norms > 0, norms, 1)
        own = np.square(directions.T[:, None] - C[end - k : end, :k]).sum(axis=2).argmin(axis=1)
        expected = np.where((own == np.arange(k)[:, None]) & (norms > 0), 1 / np.where(norms > 0, norms, 1), 0)
        np.testing.assert_allclose(weights[end - k : end], expected, rtol=1e-5 if dtype == np.float32 else 1e-12)
        np.testing.assert_array_equal(counts[end - k : end], (expected > 0).sum(axis=1))
