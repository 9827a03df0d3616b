"""Models that grow: equality with the fit of all rows, descent of the surrogate, interrupted updates, refusals, drift."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scipy.special
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError
from dfact.models.bounded_nmf import solvers
from dfact.models.growth.baseline import Baseline, compute_baseline
from dfact.models.growth.drift import Drift
from dfact.models.growth.halves import estimate_gain
from tests.cases import exhaustive_unless
from tests.conftest import planted_answers

Array = NDArray[Any]
BOUNDS = {"bounds": (0.0, 4.0)}
NET = {"alpha_W": 1e-3, "l1_ratio": 0.5}


def continuous(n: int, seed: int, missing: float = 0.0) -> Array:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) @ np.kron(np.eye(2), np.full(5, 0.8)) + rng.normal(size=(n, 10))
    X[rng.random(X.shape) < missing] = np.nan
    return X


def categories(n: int, seed: int) -> Array:
    """The same in whole numbers from −2 to 2."""
    return np.clip(np.rint(continuous(n, seed)), -2, 2)


def answers(n: int, seed: int, m: int = 20, k: int = 3) -> Array:
    """Answers from 0 to 4 of people of one population; the loadings do not depend on the seed."""
    rng = np.random.default_rng(seed)
    Q = np.random.default_rng(99).gamma(1, 1.2, (k, m)) * (np.arange(m) % k == np.arange(k)[:, None])
    return np.clip(np.rint(rng.random((n, k)) @ Q + rng.normal(0.5, 0.6, (n, m))), 0, 4)


def batches(n: int, count: int) -> list[Array]:
    return np.array_split(np.arange(n), count)


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize(("missing", "weighted"), [(0.0, False), (0.15, False), (0.15, True)])
def test_a_factor_analysis_of_batches_is_that_of_all_rows(missing: float, weighted: bool) -> None:
    X = continuous(900, 1, missing)
    weights = np.random.default_rng(2).uniform(0.2, 3, len(X)) if weighted else None
    complete = dfact.FactorAnalysis(2).fit(X, sample_weight=weights)
    grown = dfact.FactorAnalysis(2)
    for rows in batches(len(X), 5):
        grown.partial_fit(X[rows], **({} if weights is None else {"sample_weight": weights[rows]}))
    for name in ("components_", "correlations_", "mean_", "scale_", "factor_correlations_", "n_effective_", "n_observations_"):
        np.testing.assert_allclose(getattr(grown, name), getattr(complete, name), rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(grown.transform(X), complete.transform(X), atol=1e-10)
    assert (grown.growth_.n_rows, grown.growth_.added_rows, grown.factors_.shape) == (900, 720, (900, 2))
    assert grown.growth_.gain.share == 0


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_polychoric_correlations_of_batches_are_those_of_all_rows(missing: Any) -> None:
    X = categories(900, 1)
    X[np.random.default_rng(3).random(X.shape) < 0.03] = np.nan
    X[:300] = np.clip(X[:300], -1, 1)  # the lowest and the highest answers come later
    X[300:600, 0] = np.nan
    parameters: dict[str, Any] = {"correlation": "polychoric", "missing": missing}
    complete, grown = dfact.FactorAnalysis(2, **parameters).fit(X), dfact.FactorAnalysis(2, **parameters)
    for rows in batches(len(X), 3):
        grown.partial_fit(X[rows])
    for name in ("components_", "correlations_", "mean_", "scale_", "n_effective_", "n_observations_", "thresholds_"):
        assert np.array_equal(getattr(grown, name), getattr(complete, name)), name
    np.testing.assert_array_equal(grown.transform(X), complete.factors_)
    assert "equals a complete fit" in grown.growth_.describe()
    X[600, 0] = 20
    with pytest.raises(DataError, match="item '0' has answers from -2 to 20, more than 10 levels"):
        grown.partial_fit(X[600:])


@pytest.mark.needs("questionnaires")
def test_tables_of_pairs_are_kept_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = categories(400, 2)
    model = dfact.FactorAnalysis(2, correlation="polychoric").fit(X[:300])
    dfact.save_model(model, tmp_path / "a.model")
    loaded = dfact.load_model(tmp_path / "a.model").partial_fit(X[300:])
    np.testing.assert_array_equal(loaded.correlations_, model.partial_fit(X[300:]).correlations_)
    grown = copy(model)
    monkeypatch.setattr("dfact.questionnaires.factor_analysis.growth.KEPT_BYTES", 1000)
    assert not hasattr(grown.partial_fit(X[:50]), "sums_")
    model.sums_ = replace(model.sums_, high=model.sums_.high + 1)
    dfact.save_model(model, tmp_path / "b.model")
    with pytest.raises(dfact.StoreError, match="counts, expected"):
        dfact.load_model(tmp_path / "b.model")
    with pytest.raises(DataError, match="tables of all pairs of items were not kept"):
        dfact.FactorAnalysis(2, correlation="polychoric").fit(X[:300]).partial_fit(X[300:])


@pytest.mark.needs("questionnaires")
def test_the_plan_counts_the_sums_that_a_factor_analysis_keeps() -> None:
    X = continuous(200, 3)
    model = dfact.FactorAnalysis(2).fit(X)
    assert model.prepare(X).footprint.driver == 4 * 8 * X.shape[1] ** 2
    assert model.prepare_update(X).footprint.driver == 2 * 4 * 8 * X.shape[1] ** 2


def objective(model: Any, X: Array) -> float:
    """The objective of all rows, each at its optimum given the loadings of the model."""
    W, Q, n = model.transform(X), model.components_, len(X)
    loss = 0.5 * np.nansum((X - W @ Q) ** 2)
    if isinstance(model, dfact.NMF):
        nets = (model.l1_ratio * F.sum() + (1 - model.l1_ratio) / 2 * (F**2).sum() for F in (W, Q))
        return float(loss + model.alpha_W * np.dot([X.shape[1], n], [*nets]))
    gamma = n / X.shape[1] * model.problem_.q_max
    return float(loss + model.beta * (W.sum() + (gamma * Q.sum(axis=0)).sum()))


@pytest.mark.further
@pytest.mark.parametrize("model", [dfact.ICQF(3, **BOUNDS), dfact.NMF(3, **NET), dfact.NMF(3)], ids=["icqf", "elastic-net nmf", "nmf"])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_a_surrogate_descends_above_the_objective(model: Any, missing: float) -> None:
    X = answers(600, 3)
    X[np.random.default_rng(3).random(X.shape) < missing] = np.nan
    model = type(model)(**model.get_params()).fit(X[:300])
    known = len(model.objective_history_)
    model.partial_fit(X[300:])
    history = model.objective_history_[known:]
    assert (np.diff(history[:-1]) <= 1e-4 * history[0]).all()  # bounds are penalized, so that it may rise a little
    assert history[-1] <= history[0]
    exact = objective(model, X)
    assert exact <= history[-1] * (1 + 1e-4)
    assert history[-1] <= 1.01 * exact


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ten_batches_end_near_the_complete_fit(seed: int) -> None:
    X = answers(3000, seed)
    complete, grown = dfact.ICQF(3, **BOUNDS).fit(X), dfact.ICQF(3, **BOUNDS)
    for rows in batches(len(X), 10):
        grown.partial_fit(X[rows])
    assert objective(grown, X) <= 1.002 * objective(complete, X)
    assert not grown.growth_.gain.worth_a_fit
    np.testing.assert_allclose(grown.problem_.gamma, complete.problem_.gamma)


def test_the_gain_is_estimated_without_the_optimism_of_own_loadings() -> None:
    # Own loadings lower the objective by 5 in their half and raise that of the other by 3: 1 is the gain, 4 the optimism.
    gain = estimate_gain([(100, 95, 100, 103), (100, 95, 100, 103)], 0.001)
    assert (gain.share, gain.error, gain.worth_a_fit) == (pytest.approx(0.01), 0.001, True)


def test_rows_of_another_population_advise_a_refit() -> None:
    X, others = answers(600, 0), answers(600, 1)[:, ::-1]  # the loadings belong to other items
    model = dfact.ICQF(3, **BOUNDS).fit(X).partial_fit(others)
    assert model.growth_.gain.worth_a_fit
    assert model.growth_.drift is not None
    assert model.growth_.drift.found
    assert "fit all rows again" in model.growth_.describe()


def test_confounders_of_new_rows_are_added() -> None:
    X = answers(400, 4)
    groups = np.random.default_rng(4).choice(["a", "b"], len(X))
    X[groups == "b", 0] = np.minimum(X[groups == "b", 0] + 1, 4)
    frame = pd.DataFrame({"group": groups})
    model = dfact.ICQF(3, **BOUNDS).fit(X[:250], confounders=frame[:250])
    model.partial_fit(X[250:], confounders=frame[250:])
    effects = model.confounder_effects_.iloc[:, 0]
    assert effects.abs().argmax() == 0
    with pytest.raises(DataError, match="confounders"):
        model.partial_fit(X)


def test_an_update_continues_after_saving_and_on_threads(tmp_path: Path) -> None:
    X = answers(500, 5)
    model = dfact.ICQF(3, **BOUNDS).fit(X[:300])
    dfact.save_model(model, tmp_path / "a.model")
    loaded = dfact.load_model(tmp_path / "a.model")
    loaded.set_params(executor="threads").partial_fit(X[300:])
    model.set_params(executor="inline").partial_fit(X[300:])
    for name in ("components_", "factors_", "objective_history_"):
        assert np.array_equal(getattr(loaded, name), getattr(model, name)), name
    assert loaded.factors_.shape == (500, 3)
    np.testing.assert_array_equal(loaded.growth_.baseline.items, model.growth_.baseline.items)


def test_an_interrupted_update_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    X = answers(400, 6)
    model = dfact.ICQF(3, **BOUNDS).fit(X[:200])
    before = dict(vars(model))
    steps = iter(range(3))

    def solve(*arguments: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return original(*arguments)

    original = solvers._solve
    monkeypatch.setattr(solvers, "_solve", solve)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[200:])
    assert all(vars(model)[name] is value for name, value in before.items())
    assert vars(model).keys() == before.keys()


FACTORS = pytest.mark.needs("questionnaires")


def without_sums() -> Any:
    model = dfact.FactorAnalysis(2).fit(continuous(100, 0))
    del model.growth_, model.sums_
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        pytest.param(without_sums, "saved by a version that kept no sums of its rows, expected some to add rows; fit again", marks=FACTORS),
        (lambda: dfact.ICQF(2, solver="admm", max_iter=20, tol=1, **BOUNDS).fit(answers(100, 0, 10)), "solver is 'admm'"),
        pytest.param(
            lambda: dfact.FactorAnalysis(2, correlation="polychoric").fit(categories(200, 0), sample_weight=np.arange(1, 201)),
            "polychoric tables of weights are rounded",
            marks=FACTORS,
        ),
        pytest.param(
            lambda: dfact.FactorAnalysis(2).fit(continuous(100, 0), sample_weight=np.arange(100)),
            "the new rows have no weights",
            marks=FACTORS,
        ),
    ],
    ids=["earlier version", "admm", "polychoric", "weights"],
)
def test_what_cannot_grow_is_refused(model: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        model().partial_fit(answers(20, 1, 10))


def figures(X: Array, W: Array, Q: Array) -> Baseline:
    return Baseline(**compute_baseline(X, W @ Q, W))


def test_figures_are_the_sums_of_residuals_and_factors() -> None:
    rng = np.random.default_rng(7)
    M, F, R, s = rng.normal(size=(30, 4)), rng.normal(size=(30, 2)), rng.normal(size=(30, 4)), rng.random(30)
    M[rng.random(M.shape) < 0.2] = np.nan
    F[3] = np.nan
    found = compute_baseline(M, R, F, s)
    known = np.arange(30) != 3
    error, w = (M - R)[known], np.where(np.isnan(M), 0, s[:, None])[known]
    np.testing.assert_allclose(found["items"], [w.sum(0), (w**2).sum(0), *(np.nansum(w * error**power, 0) for power in (1, 2, 3))])
    np.testing.assert_allclose(found["factors"], [s[known] @ F[known] ** power for power in (1, 2, 3, 4)])
    np.testing.assert_allclose(found["rows"], [s[known].sum(), (s[known] ** 2).sum()])


def skewed_rows(n: int, rng: np.random.Generator, m: int = 40) -> Baseline:
    """Figures of rows with the model's own factors: answers of ordered categories, a few missing, skewed factors."""
    F = rng.gamma(2, 0.5, (n, 3))
    M = np.clip(np.rint(F @ np.kron(np.eye(3), np.ones(m))[:, : 3 * m : 3] + rng.normal(0, 0.7, (n, m))), 0, 4)
    R = np.clip(F @ np.kron(np.eye(3), np.ones(m))[:, : 3 * m : 3], 0, 4)
    M[rng.random(M.shape) < 0.02] = np.nan
    return Baseline(**compute_baseline(M, R, F))


def clustered_rows(rng: np.random.Generator, n_clusters: int = 20, size: int = 30, m: int = 20) -> tuple[Array, Array]:
    """Answers with an intraclass correlation of .1, and the cluster of each row."""
    clusters = np.repeat(np.arange(n_clusters), size)
    own, common = (np.sqrt(share) * rng.normal(size=(count, m + 2)) for share, count in ((0.9, len(clusters)), (0.1, n_clusters)))
    noise = own + common[clusters]
    return noise[:, :2] @ np.kron(np.eye(2), np.ones(m // 2)) + noise[:, 2:], clusters


def test_clusters_that_differ_as_clusters_do_are_no_drift() -> None:
    rng = np.random.default_rng(0)
    model = dfact.PCA(2, executor="inline").fit(clustered_rows(rng, 200)[0])
    rows, whole = 0, 0
    for _ in range(30):
        X, clusters = clustered_rows(rng)
        found = model.drift(X, clusters=clusters)
        assert found.clusters == 20
        rows, whole = rows + model.drift(X).found, whole + found.found
    assert rows > 10
    assert whole <= 30 * 0.05 + 3 * np.sqrt(30 * 0.05 * 0.95)
    X[:, 3] += 1.0
    found = model.drift(X, clusters=clusters)
    assert found.adjusted["residual"][3] < 0.05
    plain = model.drift(X)
    for kind in ("residual", "missing", "mean", "variance"):
        np.testing.assert_allclose(getattr(found, kind), getattr(plain, kind), atol=1e-9)
        assert not (getattr(found, f"{kind}_p") < getattr(plain, f"{kind}_p") - 1e-9).any()


def test_the_variance_of_clusters_is_that_of_their_means(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model = dfact.PCA(2, executor="inline").fit(clustered_rows(rng, 100)[0])
    X, clusters = clustered_rows(rng)
    X[rng.random(X.shape) < 0.1] = np.nan
    found = model.drift(X, clusters=clusters)
    seen, residual = model.growth_.baseline, (X - model.inverse_transform(model.transform(X)))
    total, count = np.nansum(residual, axis=0), (~np.isnan(residual)).sum(axis=0)
    mean = total / count
    deviations = np.stack([np.nansum(residual[clusters == c] - mean, axis=0) for c in range(20)])
    se = np.sqrt(20 / 19 * (deviations**2).sum(axis=0) * (1 + count / seen.items[0])) / count
    t = (mean - seen.items[2] / seen.items[0]) / se
    expected = 2 * scipy.special.stdtr(19, -np.abs(t))
    larger = found.residual_p > model.drift(X).residual_p
    assert larger.sum() > 10
    np.testing.assert_allclose(found.residual_p[larger], expected[larger], rtol=1e-4)
    stored = dfact.import_array(X, tmp_path / "x.zarr")
    threads = copy(model).set_params(executor="threads").drift(stored, clusters=clusters[::-1].max() - clusters)
    for name, value in vars(found).items():
        np.testing.assert_array_equal(getattr(threads, name), value)


@pytest.mark.parametrize(
    "make", [lambda: dfact.ICQF(2), lambda: dfact.NMF(2), lambda: dfact.ExpectileMF(2, max_iter=20)], ids=["ICQF", "NMF", "ExpectileMF"]
)
def test_parts_of_clusters_add_up_to_all_rows(make: Any) -> None:
    rng = np.random.default_rng(2)
    X, clusters = clustered_rows(rng)
    X = np.clip(np.rint(X + 3), 0, 6)
    model = make().fit(X)
    found, plain = model.drift(X, clusters=clusters), model.drift(X)
    for kind in ("residual", "missing", "mean", "variance"):
        np.testing.assert_allclose(getattr(found, kind), getattr(plain, kind), atol=1e-5)
    assert found.rows == plain.rows


@pytest.mark.further
@pytest.mark.parametrize("n_sets", exhaustive_unless(lambda n_sets: n_sets == 60, [60, 2000]))
def test_false_alarms_of_drift_keep_to_their_rate(n_sets: int) -> None:
    """At most the level, by the margin of the simulation; the guide ``updates`` has the measured rates of fitted models."""
    rng = np.random.default_rng(8)
    seen = skewed_rows(5000, rng)
    alarms = sum(Drift.between(skewed_rows(500, rng), seen if i % 2 else skewed_rows(5000, rng)).found for i in range(n_sets))
    assert alarms / n_sets <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_sets)


def rare_rows(n: int, rng: np.random.Generator, kind: str, m: int = 60) -> Baseline:
    """Figures of rows without factors: answers that 2 to 10% give, counts, or a skewed quantity, about their expectations."""
    share = np.linspace(0.02, 0.1, m)
    if kind == "answers":
        M, R = (rng.random((n, m)) < share).astype(float), np.broadcast_to(share, (n, m))
    elif kind == "counts":
        M, R = rng.poisson(10 * share, (n, m)).astype(float), np.broadcast_to(10 * share, (n, m))
    else:
        M, R = rng.lognormal(0, 1, (n, m)), np.full((n, m), np.exp(0.5))
    return Baseline(**compute_baseline(M, R, rng.normal(size=(n, 2))))


@pytest.mark.parametrize("kind", ["answers", "counts", "skewed"])
@pytest.mark.parametrize("n", [30, 60, 150])
def test_rare_answers_are_no_drift(kind: str, n: int) -> None:
    """Few rows often lack an answer that few give, and a mean of skewed values is skewed."""
    rng = np.random.default_rng([n, len(kind)])
    seen, sets = rare_rows(2000, rng, kind), 100
    alarms = sum(Drift.between(seen, rare_rows(n, rng, kind)).found for _ in range(sets))
    assert alarms / sets <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / sets)


@pytest.mark.parametrize(
    "make", [lambda: dfact.ICQF(3, **BOUNDS), pytest.param(lambda: dfact.FactorAnalysis(3), marks=FACTORS)], ids=["icqf", "fa"]
)
def test_planted_drift_is_found_and_named(make: Any) -> None:
    X, new = answers(2000, 9), answers(1000, 10)
    model = make().fit(X)
    before = dict(vars(model))
    assert not model.drift(new, level=0.01).found
    new[:, [4, 11]] = new[:, [4, 11]] + 0.3 * X[:, [4, 11]].std(axis=0)
    new = np.minimum(new, 4.0)
    found = model.drift(new)
    assert set(np.flatnonzero(found.adjusted["residual"] <= 0.05)) >= {4, 11}
    new[:100, 7] = np.nan
    assert model.drift(new).adjusted["missing"][7] < 0.05
    assert all(vars(model)[name] is value for name, value in before.items())


@pytest.mark.further
def test_commands_check_update_and_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    X = answers(400, 11)
    names = [f"p{i}" for i in range(len(X))]
    for name, rows in (("old", slice(0, 250)), ("new", slice(250, 400))):
        dfact.import_array(X[rows].astype(np.int8), tmp_path / f"{name}.zarr", row_labels=names[rows], valid_range=(0, 4))
    model, old, new = (str(tmp_path / name) for name in ("a.model", "old.zarr", "new.zarr"))
    assert main(["fit", "icqf", old, model, "-k", "3"]) == 0
    assert main(["update", model, new, "--check"]) == 0
    assert "no drift" in capsys.readouterr().out
    assert dfact.load_model(model).growth_.added_rows == 0
    with monkeypatch.context() as patched:
        patched.setattr("dfact.models.persistence.write_array", interrupted)
        with pytest.raises(RuntimeError, match="full"):
            main(["update", model, new])
    assert dfact.load_model(model).growth_.added_rows == 0
    assert main(["update", model, new]) == 0
    assert "150 of 400 rows were added" in capsys.readouterr().out
    grown = dfact.load_model(model)
    assert list(grown.row_labels_) == names
    assert grown.factors_.shape == (400, 3)
    assert main(["update", model, new]) == 1
    assert "part of the model already" in capsys.readouterr().err
    moved = X[:150].copy()
    moved[:, 2] = np.minimum(moved[:, 2] + 1, 4)
    dfact.import_array(moved.astype(np.int8), tmp_path / "moved.zarr", valid_range=(0, 4))
    assert main(["update", model, str(tmp_path / "moved.zarr"), "--check", "--json"]) == 3
    assert '"drift": true' in capsys.readouterr().out
    assert main(["fit", "gom", old, str(tmp_path / "gom.model"), "-k", "2"]) == 0
    assert main(["update", str(tmp_path / "gom.model"), new]) == 1
    assert "singular vectors of all rows" in capsys.readouterr().err
    assert main(["info", model]) == 0
    assert "growth" in capsys.readouterr().out
    assert main(["report", model, str(tmp_path / "a.html")]) == 0
    assert "Rows that were added" in (tmp_path / "a.html").read_text()


def interrupted(*_: Any) -> None:
    raise RuntimeError("full")


def test_planted_answers_of_the_suite_grow() -> None:
    X = planted_answers(300, 15, 3, 0)
    for model in (dfact.NMF(3, **NET), dfact.NMF(3)):
        grown = type(model)(**model.get_params()).partial_fit(X[:200]).partial_fit(X[200:])
        assert objective(grown, X) <= 1.01 * objective(model.fit(X), X)


def test_an_nmf_grows_by_sparse_rows_and_not_by_divergence() -> None:
    X = planted_answers(300, 15, 3, 1)
    parts = [X[:200], X[200:]], [sp.csr_array(X[:200]), sp.csr_array(X[200:])]
    grown = [dfact.NMF(3, **NET).fit(first).partial_fit(rest) for first, rest in parts]
    np.testing.assert_allclose(objective(grown[1], X), objective(grown[0], X), rtol=1e-4)
    np.testing.assert_allclose(grown[1].growth_.baseline.items, grown[0].growth_.baseline.items, rtol=1e-2, atol=1e-1)
    model = dfact.NMF(3, loss="kullback-leibler", max_iter=5).fit(X[:200])
    assert not hasattr(model, "partial_fit")
    with pytest.raises(dfact.DataError, match="an NMF with the loss 'kullback-leibler' keeps no sums"):
        model.prepare_update(X[200:])
