"""ICQF: the paper's numbers, optimality, planted recovery, parity of inputs and executors, invalid input."""

import gc
import warnings
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import NMF

import dfact
from dfact.data.examples import ipip_ascado
from dfact.data.synthetic import icqf_simulation
from dfact.models.bounded_nmf.passes import ADMMPass, MMPass
from dfact.models.bounded_nmf.solvers import ADMM
from tests.cases import exhaustive_after, exhaustive_unless
from tests.conftest import planted_answers
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
both_solvers = pytest.mark.parametrize("solver", ["admm", "mm"])


def objective(model: dfact.ICQF, M: Array, C: Array | None = None) -> float:
    """½‖O∘(M − [W, C]Qᵀ)‖² + β‖W‖₁ + βγ‖Q‖₁ from the fitted arrays alone."""
    W, Qr, Qc = np.asarray(model.factors_, float), model.components_.astype(float), model.confounder_components_.astype(float)
    n, m = M.shape
    R = W @ Qr + (0 if C is None else C @ Qc)
    q_max = model.q_max if model.q_max is not None else (model.bounds[1] if model.bounds else np.nanmax(M))
    return float(0.5 * np.nansum((M - R) ** 2) + model.beta * W.sum() + model.beta * n / m * q_max * (Qr.sum() + Qc.sum()))


def real(questionnaires: Path, name: str) -> Array:
    file, separator, columns = {
        "ipip": ("ipip_ascado.csv", ",", slice(0, 40)),
        "big5": ("big5.tsv.gz", "\t", slice(7, 57)),
        "eqsq": ("eqsq.tsv.gz", "\t", slice(0, 120)),
    }[name]
    X = pd.read_csv(questionnaires / file, sep=separator).iloc[:, columns].to_numpy(np.float32)
    M = np.where(X > 0, X - 1, np.float32(np.nan))
    return np.asarray(M[~np.isnan(M).all(axis=1)])


def packaged() -> Array:
    """The questionnaire that ships with the package, from 0 up, NaN where missing."""
    X = pd.read_csv(ipip_ascado()).iloc[:, :40].to_numpy(np.float64)
    M = np.where(X > 0, X - 1, np.nan)
    return np.asarray(M[~np.isnan(M).all(axis=1)])


@pytest.mark.parametrize("solver", exhaustive_unless(lambda solver: solver == "mm", ["admm", "mm"]))
# The paper's own implementation, run to 1e-8 or 1500 iterations (the empty rows add nothing).
@pytest.mark.parametrize(("name", "k", "top", "reference", "enough"), [("big5", 5, 4, 457998.0, 400), ("eqsq", 8, 3, 450401.0, 600)])
def test_objective_of_the_papers_implementation(
    questionnaires: Path, name: str, k: int, top: int, reference: float, enough: int, solver: str
) -> None:
    M = real(questionnaires, name)
    max_iter = enough if solver == "admm" else 30
    model = dfact.ICQF(k, solver=solver, bounds=(0, top), max_iter=max_iter, tol=1e-7).fit(M)
    assert objective(model, M) <= 1.0005 * reference
    assert objective(model, M) == pytest.approx(model.objective_history_[-1], rel=1e-5)


@pytest.mark.further
@pytest.mark.parametrize(
    ("solver", "dtype"), exhaustive_after(2, [("mm", "float32"), ("admm", "float64"), ("mm", "float64"), ("admm", "float32")])
)
def test_objective_on_the_packaged_questionnaire(dtype: str, solver: str) -> None:
    M = packaged()
    model = dfact.ICQF(4, solver=solver, max_iter=1500, tol=1e-8, dtype=dtype).fit(M)
    assert model.converged_
    # 13854.5 was computed with the empty row, which changes γ = n/m·q_max by a thousandth of it.
    assert objective(model, M) <= 1.0005 * 13854.5
    W, Q = np.asarray(model.factors_), model.components_
    assert W.min() >= 0
    assert W.max() <= 1
    assert Q.min() >= 0
    assert Q.max() <= 4
    assert (W @ Q).max() <= 4 + 4e-4 * 4


@pytest.mark.parametrize(
    ("seed", "rho", "missing"),
    [(i % 3, rho, missing) for i, (missing, rho) in enumerate(product([0.0, 0.2], [np.sqrt(2), 2.0, 3.0, 10.0]))],
)
def test_proposition_1_the_lagrangian_never_increases(rho: float, missing: float, seed: int) -> None:
    M = icqf_simulation(0.2, seed).M
    M[np.random.default_rng(seed).random(M.shape) < missing] = np.nan
    # Its proof bounds the change of A by that of Z, which holds where no bound of Z is active: there strictly.
    free = dfact.ICQF(10, solver="admm", bounds=(0, 1e6), q_max=100, rho=rho, max_iter=150, tol=0).fit(M).lagrangian_history_[1:]
    assert len(free) == 149
    assert np.diff(free).max() <= 1e-12 * free[0]
    # With active bounds the exactly solved two-array ADMM rises too, by up to 1.3e-7 for ρ near √2.
    bounded = dfact.ICQF(10, solver="admm", bounds=(0, 100), rho=rho, max_iter=150, tol=0).fit(M).lagrangian_history_[1:]
    assert np.diff(bounded).max() <= (1e-12 if rho >= 3 else 3e-7) * bounded[0]
    assert bounded[-1] < bounded[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_proposition_2_factors_are_far_off_with_another_number_of_them(seed: int) -> None:
    """‖W* − W‖² ≥ (√(k/k*) − 1)²‖W*‖² for factors matched as well as possible, and more for a k farther from k*."""
    planted = icqf_simulation(0.0, seed)
    (n, true), errors = planted.W.shape, {}
    for k in (5, 8, 10, 13, 20):
        W = np.asarray(dfact.ICQF(k, bounds=(0, 100), max_iter=500, tol=1e-5).fit(planted.M).factors_)
        A, B = (np.hstack([X, np.zeros((n, max(k, true) - X.shape[1]))]) for X in (planted.W, W))
        squares = ((A[:, :, None] - B[:, None, :]) ** 2).sum(axis=0)
        errors[k] = float(squares[linear_sum_assignment(squares)].sum() / (planted.W**2).sum())
        assert errors[k] >= (np.sqrt(k / true) - 1) ** 2
    assert errors[10] < 0.05
    assert errors[10] < errors[8] < errors[5]
    assert errors[10] < errors[13] < errors[20]


@both_solvers
def test_planted_factors_are_recovered(solver: str) -> None:
    """One dataset may fail: about five of two hundred end in a local optimum, with either solver."""
    recovered = 0
    for seed in range(8):
        planted = icqf_simulation(0.1, seed)
        model = dfact.ICQF(10, solver=solver, bounds=(0, 100), max_iter=500, tol=1e-5).fit(planted.M)
        similarity = np.corrcoef(planted.Q.T, model.components_)[:10, 10:]
        rows, columns = linear_sum_assignment(-similarity)
        factors = np.corrcoef(planted.W.T, np.asarray(model.factors_).T)[:10, 10:][rows, columns]
        recovered += bool(similarity[rows, columns].min() >= 0.9 and factors.min() >= 0.85)
    assert recovered >= 7


@both_solvers
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_the_solution_is_stationary(missing: float, solver: str) -> None:
    """Within the bounds, neither side's coordinates can lower the objective."""
    M = planted_answers(300, 20, 3, seed=5, missing=missing)
    model = dfact.ICQF(3, solver=solver, bounds=(0, 100), q_max=3, max_iter=5000, tol=1e-13).fit(M)
    W, Q = np.asarray(model.factors_), model.components_
    residual = np.nan_to_num(W @ Q - M)
    for X, gradient, top in (
        (W, residual @ Q.T + 0.1, 1.0),
        (Q, W.T @ residual + 0.1 * 300 / 20 * 3, 3.0),
    ):
        inner = (X > 1e-6) & (top - 1e-6 > X)
        scale = np.abs(gradient).max()
        assert np.abs(gradient[inner]).max() <= 2e-3 * scale
        assert gradient[X <= 1e-6].min(initial=0) >= -2e-3 * scale
        assert gradient[top - 1e-6 <= X].max(initial=0) <= 2e-3 * scale


def test_mm_reaches_the_objective_of_the_admm_in_fewer_passes_with_little_state(monkeypatch: pytest.MonkeyPatch) -> None:
    M = packaged()
    admm = dfact.ICQF(4, solver="admm", max_iter=1500, tol=1e-8).fit(M)
    largest = 0
    step = MMPass.step

    def watched(self: MMPass, block: Any, state: Any, broadcast: Any) -> Any:
        nonlocal largest
        new, sums = step(self, block, state, broadcast)
        largest = max(largest, sum(array.nbytes for name, array in new.arrays().items() if name != "factors"))
        return new, sums

    monkeypatch.setattr(MMPass, "step", watched)
    model = dfact.ICQF(4, solver="mm").fit(M)
    assert objective(model, M) <= 1.0005 * objective(admm, M)
    assert (np.asarray(model.factors_) @ model.components_).max() <= 4 + 0.01
    assert model.converged_
    enough = int(np.argmax(admm.objective_history_ <= 1.0005 * admm.objective_history_[-1])) + 1
    assert model.n_iter_ <= 0.6 * enough
    assert largest <= 0.05 * M.nbytes


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("seed", [0, 1])
def test_without_penalty_and_bounds_it_is_non_negative_factorization(seed: int, missing: float) -> None:
    M = planted_answers(400, 30, 4, seed=seed, missing=missing)
    model = dfact.ICQF(4, beta=0, w_max=np.inf, q_max=np.inf, bounds=(0, np.inf), max_iter=3000, tol=1e-9).fit(M)
    W, Q = np.asarray(model.factors_), model.components_
    residual = np.nan_to_num(W @ Q - M)
    assert model.objective_history_[-1] == pytest.approx(0.5 * np.square(residual).sum())
    for X, gradient in ((W, residual @ Q.T), (Q, W.T @ residual)):
        assert np.abs(np.where(X > 1e-9, gradient, np.minimum(gradient, 0))).max() <= 1e-3 * np.abs(M[~np.isnan(M)]).sum() / len(M)
    if not missing:
        peer = NMF(4, init="nndsvd", tol=1e-4, max_iter=1000).fit(M)
        assert model.objective_history_[-1] <= 1.001 * 0.5 * peer.reconstruction_err_**2


@both_solvers
@pytest.mark.parametrize("inner", ["cd", "fista"])
def test_the_l2_penalty_is_minimised(solver: str, inner: str) -> None:
    M = planted_answers(300, 20, 3, seed=6, missing=0.1)
    settings: dict[str, Any] = {"penalty": "l2", "beta": 2.0, "bounds": (0, 100), "q_max": 3, "max_iter": 5000, "tol": 1e-13}
    model = dfact.ICQF(3, solver=solver, subproblem_solver=inner, **settings).fit(M)
    W, Q = np.asarray(model.factors_), model.components_
    residual = np.nan_to_num(W @ Q - M)
    gamma = 300 / 20 * 3
    value = 0.5 * np.square(residual).sum() + 2.0 / 2 * np.square(W).sum() + 2.0 * gamma / 2 * np.square(Q).sum()
    assert model.objective_history_[-1] == pytest.approx(value, rel=1e-6)
    for X, gradient, top in ((W, residual @ Q.T + 2 * W, 1.0), (Q, W.T @ residual + 2 * gamma * Q, 3.0)):
        inner_entries = (X > 1e-6) & (top - 1e-6 > X)
        scale = np.abs(gradient - (2 * W if X is W else 2 * gamma * Q)).max()
        assert np.abs(gradient[inner_entries]).max() <= 2e-3 * scale
        assert gradient[X <= 1e-6].min(initial=0) >= -2e-3 * scale


@both_solvers
@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_both_inner_solvers_reach_the_same_solution(solver: str, penalty: str) -> None:
    M = packaged()
    cd, fista = (
        dfact.ICQF(4, solver=solver, penalty=penalty, subproblem_solver=inner, max_iter=500, tol=1e-6).fit(M).objective_history_[-1]
        for inner in ("cd", "fista")
    )
    assert fista == pytest.approx(cd, rel=1e-3)


@both_solvers
def test_integer_weights_equal_repeated_rows(solver: str) -> None:
    M = planted_answers(200, 15, 2, seed=3, missing=0.1)
    C = pd.DataFrame({"sex": ["f", "m"] * 100})
    weights = np.random.default_rng(0).integers(0, 4, 200)
    weights[:2] = 1
    settings: dict[str, Any] = {"solver": solver, "bounds": (0, 3), "max_iter": 100, "tol": 0}
    weighted = dfact.ICQF(2, **settings).fit(M, confounders=C, sample_weight=weights)
    rows = np.repeat(np.arange(200), weights)
    repeated = dfact.ICQF(2, **settings).fit(M[rows], confounders=C.iloc[rows].reset_index(drop=True))
    np.testing.assert_allclose(weighted.objective_history_, repeated.objective_history_, rtol=1e-7)
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=1e-5)
    np.testing.assert_allclose(weighted.factors_[rows], repeated.factors_, atol=1e-5)
    assert weighted.explained_share_ == pytest.approx(repeated.explained_share_)
    np.testing.assert_allclose(weighted.transform(M, confounders=C), weighted.factors_, atol=1e-6)
    twice = dfact.ICQF(2, **settings).fit(M, confounders=C, sample_weight=2.5 * weights)
    np.testing.assert_allclose(twice.components_, weighted.components_, atol=1e-3)


@both_solvers
def test_each_item_stays_within_its_range(solver: str, tmp_path: Path) -> None:
    M = planted_answers(400, 12, 3, seed=4, missing=0.1)
    M[:, :6] = np.minimum(M[:, :6], 1)
    top = np.where(np.arange(12) < 6, 1.0, 3.0)
    dataset = dfact.import_array(M, tmp_path / "d.zarr", valid_range=np.column_stack([np.zeros(12), top]))
    model = dfact.ICQF(3, solver=solver, max_iter=500).fit(dataset)
    R = np.asarray(model.factors_) @ model.components_
    assert (R - top).max() <= 1e-3 * 3
    assert (R[:, :6].max(axis=0) > 0.9).any()
    assert (model.components_ <= top + 1e-6).all()
    given = dfact.ICQF(3, solver=solver, max_iter=500, bounds=(0, top)).fit(M)
    np.testing.assert_array_equal(given.components_, model.components_)
    W, Q = np.asarray(model.factors_), model.components_
    value = 0.5 * np.nansum((M - W @ Q) ** 2) + 0.1 * W.sum() + 0.1 * 400 / 12 * (Q @ top).sum()
    assert model.objective_history_[-1] == pytest.approx(value, rel=1e-6)
    assert model.inverse_transform(W)[:, :6].max() <= 1
    dfact.save_model(model, tmp_path / "m.model")
    np.testing.assert_array_equal(dfact.load_model(tmp_path / "m.model").transform(M), model.transform(M))


@pytest.mark.parametrize("seed", [0, 1])
def test_an_adaptive_rho_stays_above_its_bound_and_converges(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    M = icqf_simulation(0.1, seed).M
    seen: list[float] = []
    broadcast = ADMM.broadcast

    def watched(self: ADMM, Q: Any) -> Any:
        found = broadcast(self, Q)
        seen.append(found[2])
        return found

    monkeypatch.setattr(ADMM, "broadcast", watched)
    settings: dict[str, Any] = {"solver": "admm", "bounds": (0, 100), "max_iter": 1000, "tol": 1e-7}
    adaptive = dfact.ICQF(10, rho="adaptive", **settings).fit(M)
    assert min(seen) >= np.sqrt(2)
    assert len(set(seen)) > 1
    fixed = dfact.ICQF(10, **settings).fit(M)
    assert adaptive.converged_
    assert adaptive.objective_history_[-1] <= 1.01 * fixed.objective_history_[-1]


@pytest.mark.parametrize("with_confounders", [False, True])
def test_transform_of_the_training_rows_returns_their_factors(with_confounders: bool) -> None:
    M = planted_answers(500, 30, 3, seed=1, missing=0.1)
    C = pd.DataFrame({"age": np.random.default_rng(0).normal(40, 9, 500), "sex": ["f", "m"] * 250}) if with_confounders else None
    model = dfact.ICQF(3).fit(M, confounders=C)
    np.testing.assert_allclose(model.transform(M, confounders=C), model.factors_, atol=1e-6)
    part = slice(100, 140)
    some = model.transform(M[part], confounders=None if C is None else C[part])
    np.testing.assert_allclose(some, model.factors_[part], atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_missing_entries_never_influence_the_result(seed: int, tmp_path: Path) -> None:
    M = planted_answers(400, 25, 3, seed=seed, missing=0.2)
    fitted = []
    for code in (255, 9, 77):
        X = np.where(np.isnan(M), code, M).astype(np.uint8)
        dataset = dfact.import_array(X, tmp_path / f"{code}.zarr", missing=code)
        fitted.append(dfact.ICQF(3).fit(dataset))
    fitted.append(dfact.ICQF(3).fit(M.astype(np.float32)))
    for other in fitted[1:]:
        assert_same_bits(fitted[0], other)


def assert_same_bits(a: dfact.ICQF, b: dfact.ICQF) -> None:
    for name in ("components_", "confounder_components_", "factors_", "objective_history_", "lagrangian_history_"):
        np.testing.assert_array_equal(np.asarray(getattr(a, name)), np.asarray(getattr(b, name)), err_msg=name)


def test_every_kind_of_input_gives_the_same_model(tmp_path: Path) -> None:
    M = planted_answers(3000, 20, 3, seed=2, missing=0.1).astype(np.float32)
    frame = pd.DataFrame(M, columns=[f"Q{j}" for j in range(20)])
    codes = np.where(np.isnan(M), 255, M).astype(np.uint8)
    dataset = dfact.import_array(codes, tmp_path / "d.zarr", missing=255)
    inputs = {
        "DataFrame": frame,
        "Fortran order": np.asfortranarray(M),
        "dask": da.from_array(M, chunks=(700, 20)),
        "xarray": xr.DataArray(M, dims=("person", "item")),
        "Zarr": zarr.create_array(tmp_path / "x.zarr", data=M, chunks=(333, 9)),
        "Dataset": dataset,
        "path": tmp_path / "d.zarr",
        "string": str(tmp_path / "d.zarr"),
    }
    reference = dfact.ICQF(3).fit(M)
    for kind, X in inputs.items():
        model = dfact.ICQF(3).fit(X)
        assert isinstance(model.factors_, zarr.Array) == (kind in ("Zarr", "Dataset", "path", "string")), kind
        assert_same_bits(reference, model)
    named = dfact.ICQF(3).fit(frame.set_axis([f"p{i}" for i in range(3000)]))
    assert list(named.loadings_.index) == list(frame.columns)
    assert list(named.row_labels_[:2]) == ["p0", "p1"]
    full = np.nan_to_num(M)
    assert_same_bits(dfact.ICQF(3).fit(full), dfact.ICQF(3).fit(sp.csr_array(full)))


class TestEstimator(EstimatorSuite):
    model = dfact.ICQF
    parameters: ClassVar = {"n_components": 3, "random_state": 4, "max_iter": 8}
    derived = ("loadings_", "confounder_loadings_", "confounder_effects_", "confounder_impact_")

    @pytest.fixture(scope="class", params=[("admm", "nndsvd"), ("mm", "nndsvd"), ("mm", "random")], ids="-".join)
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        return dict(zip(("solver", "init"), request.param, strict=True))

    def data(self) -> Array:
        return planted_answers(2_500, 30, 3, seed=3, missing=0.1).astype(np.float32)

    def fit_inputs(self, n: int) -> dict[str, Any]:
        return {"confounders": pd.DataFrame({"age": np.random.default_rng(0).normal(40, 9, n)})}


@both_solvers
@pytest.mark.parametrize("seed", [0, 1])
def test_single_precision_agrees_with_double(seed: int, solver: str) -> None:
    M = planted_answers(2000, 40, 4, seed=seed, missing=0.05)
    single, double = (dfact.ICQF(4, solver=solver, dtype=dtype, max_iter=100, tol=0).fit(M) for dtype in ("float32", "float64"))
    assert single.components_.dtype == np.float32
    assert double.components_.dtype == np.float64
    np.testing.assert_allclose(single.objective_history_, double.objective_history_, rtol=1e-4)


def test_confounders_absorb_the_variance_they_explain() -> None:
    rng = np.random.default_rng(0)
    planted = planted_answers(800, 20, 2, seed=7)
    group = rng.integers(0, 2, 800)
    M = np.clip(planted + 1.5 * group[:, None] * (np.arange(20) < 5), 0, 3)
    C = pd.DataFrame({"group": np.where(group, "b", "a")})
    model = dfact.ICQF(2, max_iter=500).fit(M, confounders=C)
    effect = model.confounder_loadings_
    assert list(effect.columns) == ["group=a", "group=b", "intercept"]
    difference = (effect["group=b"] - effect["group=a"]).to_numpy()
    assert difference[:5].mean() > 0.8
    assert np.abs(difference[5:]).mean() < 0.2
    encoded = model.confounder_encoding_.encode(pd.DataFrame({"group": pd.Categorical(C["group"])}))
    assert objective(model, M, encoded) == pytest.approx(model.objective_history_[-1], rel=1e-6)
    with pytest.raises(dfact.DataError, match=r"\['group'\]"):
        model.transform(M)
    R = model.inverse_transform(model.factors_, confounders=C)
    assert R.shape == M.shape
    assert np.square(M - R).mean() < np.square(M - M.mean(axis=0)).mean() / 2


def test_given_loadings_are_the_start() -> None:
    M = planted_answers(300, 15, 2, seed=8)
    first = dfact.ICQF(2, max_iter=400, tol=1e-9).fit(M)
    again = dfact.ICQF(2, init=first.components_, max_iter=400, tol=1e-4).fit(M)
    assert again.n_iter_ < first.n_iter_ / 2
    assert again.objective_history_[-1] == pytest.approx(first.objective_history_[-1], rel=1e-3)


def test_the_random_start_depends_on_the_seed() -> None:
    M = planted_answers(300, 15, 2, seed=9)
    a, b, c = (dfact.ICQF(2, init="random", random_state=seed).fit(M) for seed in (1, 1, 2))
    assert_same_bits(a, b)
    assert not np.array_equal(a.components_, c.components_)


def test_many_columns_start_from_the_block_iteration() -> None:
    M = planted_answers(400, 700, 3, seed=10).astype(np.float32)
    model = dfact.ICQF(3, max_iter=150).fit(M)
    assert model.objective_history_[-1] < 0.5 * np.square(M - M.mean()).sum()


def test_callbacks_receive_every_iteration() -> None:
    seen: list[Any] = []
    model = dfact.ICQF(2, max_iter=7, tol=0, callbacks=[seen.append]).fit(planted_answers(100, 10, 2, seed=0))
    assert [i.number for i in seen] == list(range(1, 8))
    assert model.n_iter_ == 7
    assert not model.converged_
    np.testing.assert_array_equal([i.objective for i in seen], model.objective_history_[:-1])


def test_passes_overwrite_only_their_state() -> None:
    M = planted_answers(50, 6, 2, seed=0, missing=0.1)
    before = M.copy()
    dfact.ICQF(2, max_iter=3).fit(M)
    np.testing.assert_array_equal(M, before)
    assert ADMMPass.__dataclass_params__.frozen  # type: ignore[attr-defined]


GOOD = planted_answers(60, 8, 2, seed=0)


def entry(value: float, row: int = 17, column: int = 3) -> pd.DataFrame:
    M = pd.DataFrame(GOOD, columns=[f"Q{j}" for j in range(8)])
    M.iloc[row, column] = value
    return M


@pytest.mark.parametrize(
    ("X", "parameters", "message"),
    [
        (entry(-1), {}, r"Negative values in data.*row 17, column 'Q3' holds -1"),
        (entry(np.inf), {}, r"(?i)infinity"),
        (entry(7), {"bounds": (0, 3)}, r"row 17, column 'Q3' holds 7, outside bounds=\(0, 3\)"),
        (entry(0).assign(Q2=np.nan), {}, r"column 'Q2' has no observed entry"),
        (GOOD, {"n_components": 9}, r"n_components=9 is larger.*n_features=8"),
        (GOOD, {"n_components": 0}, r"n_components is 0, expected an integer"),
        (GOOD, {"beta": -1}, r"beta is -1"),
        (GOOD, {"rho": 0}, r"rho is 0"),
        (GOOD, {"solver": "magic"}, r"solver is 'magic'"),
        (GOOD, {"penalty": "l0"}, r"penalty is 'l0'"),
        (GOOD, {"subproblem_solver": "magic"}, r"subproblem_solver is 'magic'"),
        (GOOD, {"rho": "adaptive"}, r"rho is 'adaptive', expected .*solver='admm'"),
        (GOOD, {"q_max": np.inf}, r"q_max is inf, expected finite"),
        (GOOD, {"bounds": (0, [1.0, 2.0])}, r"bounds has shape \(2,\), expected one number or one for each of 8 items"),
        (GOOD, {"bounds": (0, [3.0] * 7 + [1.0])}, r"column '7' holds .*outside the bounds of its item"),
        (GOOD, {"bounds": (3, 1)}, r"bounds is \(3, 1\)"),
        (GOOD, {"init": "magic"}, r"init is 'magic'"),
        (GOOD, {"init": np.ones((3, 8))}, r"init has shape \(3, 8\), expected .* \(2, 8\)"),
        (GOOD, {"dtype": "float16"}, r"float16, expected float32 or float64"),
        (GOOD, {"memory_limit": "1MB"}, r"needs at least .* limit is 1\.0 MiB|needs at least"),
        (np.array([["a", "b"], ["c", "d"]]), {}, r"(?i)string|convert|numeric"),
        (np.zeros((0, 4)), {}, r"0 sample|at least one row"),
        (np.zeros((4, 3, 2)), {}, r"dim 3|3 modes"),
    ],
)
def test_invalid_input_is_refused(X: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, dfact.MemoryPlanError), match=message):
        dfact.ICQF(**{"n_components": 2, **parameters}).fit(X)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), r"shape \(59,\), expected one for each of 60 rows"),
        (-np.ones(60), "row 0 is -1"),
        (np.full(60, np.nan), "row 0 is missing"),
        (np.zeros(60), "zero for every row"),
    ],
)
def test_invalid_weights_are_refused(weights: Array, message: str) -> None:
    with pytest.raises(dfact.DataError, match=message):
        dfact.ICQF(2).fit(GOOD, sample_weight=weights)


def test_a_path_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dfact.StoreError, match="does not exist"):
        dfact.ICQF(2).fit(tmp_path / "nowhere.zarr")
    (tmp_path / "folder").mkdir()
    with pytest.raises(dfact.StoreError, match="is not a Zarr group"):
        dfact.ICQF(2).fit(tmp_path / "folder")


def test_rows_without_answers_are_reported_and_minimise_the_penalty() -> None:
    M = GOOD.copy()
    M[4] = np.nan
    with pytest.warns(UserWarning, match="row 4 has no observed entry"):
        model = dfact.ICQF(2).fit(M)
    np.testing.assert_array_equal(model.factors_[4], 0)


def test_confounders_must_match_the_rows() -> None:
    with pytest.raises(dfact.DataError, match="confounders have 3 rows, expected 60 as in the data"):
        dfact.ICQF(2).fit(GOOD, confounders={"age": [1.0, 2.0, 3.0]})


def test_a_failed_fit_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dfact.ICQF(2, callbacks=[stop]).fit(GOOD)
    assert list(tmp_path.iterdir()) == []


def test_temporary_factors_are_removed_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dfact.import_array(GOOD, tmp_path / "d.zarr")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = dfact.ICQF(2, max_iter=3).fit(dataset)
    assert list(tmp_path.glob("dfact-factors-*"))
    del model
    gc.collect()
    assert not list(tmp_path.glob("dfact-factors-*"))


def test_pandas_output() -> None:
    frame = entry(0)
    out = dfact.ICQF(2, max_iter=5).set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == ["F1", "F2"]
    assert list(out.index) == list(frame.index)


def test_valid_data_raises_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dfact.ICQF(2).fit(GOOD)
