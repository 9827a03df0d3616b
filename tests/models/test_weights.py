"""Fits with weights of the rows: weighted moments, scales of weights, rows of weight 0, parity, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.engine.passes import RunPass
from dfact.linalg.correlation import MomentsPass
from dfact.models.fit_task import FitTask
from tests.cases import exhaustive_after, of_slice
from tests.conftest import CutRows, planted_answers
from tests.suites.estimator import assert_same_fit

Array = NDArray[Any]
SEEDS = [0, 1, 2]
pytestmark = pytest.mark.filterwarnings("ignore:the uniqueness of", "ignore:.*more parameters")


def survey(seed: int, n: int = 400, m: int = 9, missing: float = 0.1) -> tuple[Array, Array]:
    """Answers, each item with variance, and survey weights."""
    rng = np.random.default_rng(seed)
    M = planted_answers(n, m, 3, seed, missing)
    M[(np.nan_to_num(M) == 0).all(axis=1), 0] = 1
    return M, rng.gamma(2, 1, n)


def models() -> dict[str, Any]:
    own = {"icqf": dfact.ICQF(2, bounds=(0, 4), q_max=4, tol=1e-7, max_iter=1000), "nmf": dfact.NMF(2)}
    return own | dict(zip(["fa"], of_slice("FactorAnalysis", 2), strict=False))


def weighted_moments(x: Array, w: Array) -> tuple[Array, Array]:
    """Means and unbiased covariances of complete rows, as R's cov.wt: Σw(x − x̄)²/Σw · n/(n − 1), n = (Σw)²/Σw²."""
    p = w / w.sum()
    centred = x - p @ x
    return p @ x, (centred * p[:, None]).T @ centred / (1 - (p**2).sum())


# Weighted moments.
@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_weighted_correlations_are_those_of_the_formulas(seed: int, missing: str) -> None:
    M, w = survey(seed)
    w[::7] = 0
    model = dfact.FactorAnalysis(2, missing=missing, dtype="float64").fit(M, sample_weight=w)
    complete, m = ~np.isnan(M).any(axis=1), M.shape[1]
    R = np.eye(m)
    for i in range(m):
        rows = complete if missing == "listwise" else ~np.isnan(M[:, i])
        mean, covariances = weighted_moments(M[rows][:, [i]], w[rows])
        assert model.mean_[i] == pytest.approx(mean[0], rel=1e-12)
        assert model.scale_[i] == pytest.approx(np.sqrt(covariances[0, 0]), rel=1e-12)
        for j in range(i):
            both = complete if missing == "listwise" else ~np.isnan(M[:, [i, j]]).any(axis=1)
            _, C = weighted_moments(M[both][:, [i, j]], w[both])
            R[i, j] = R[j, i] = C[0, 1] / np.sqrt(C[0, 0] * C[1, 1])
    np.testing.assert_allclose(model.correlations_, R, atol=1e-12)
    used = w[(complete if missing == "listwise" else ~np.isnan(M).all(axis=1)) & (w > 0)]
    assert model.n_observations_ == len(used)
    assert model.n_effective_ == pytest.approx(used.sum() ** 2 / (used**2).sum(), rel=1e-12)
    assert model.weighted_


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_effective_numbers_of_pairs_are_kishs(missing: float) -> None:
    M, w = survey(3, missing=missing)
    task = dfact.FactorAnalysis(2).prepare(M, sample_weight=w)
    with task.open_session() as session:
        moments = session.run(RunPass(MomentsPass(np.dtype("float64"), complete_only=False, weighted=True), np.zeros(M.shape[1])))
    for i, j in ((0, 0), (1, 4), (8, 2)):
        both = ~np.isnan(M[:, [i, j]]).any(axis=1)
        assert moments.counts[i, j] == both.sum()
        assert moments.effective_counts[i, j] == pytest.approx(w[both].sum() ** 2 / (w[both] ** 2).sum(), rel=1e-12)


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_equal_weights_are_none(name: str, weight: float) -> None:
    M, _ = survey(1)
    first, second = models()[name].fit(M), models()[name].fit(M, sample_weight=np.full(len(M), weight))
    tolerance = {"fa": 1e-12, "nmf": 1e-9, "icqf": 2e-3}[name]  # iterations amplify the rounding of sums of weighted terms
    np.testing.assert_allclose(second.components_, first.components_, atol=tolerance)
    assert second.n_effective_ == pytest.approx(len(M))
    assert (first.weighted_, second.weighted_) == (False, True)


@pytest.mark.needs("questionnaires")
def test_equal_weights_give_the_same_bits_of_whole_answers() -> None:
    M, _ = survey(2)
    M = np.where(np.isnan(M), np.nan, np.rint(M)).astype(np.float32)
    first, second = dfact.FactorAnalysis(2).fit(M), dfact.FactorAnalysis(2).fit(M, sample_weight=np.full(len(M), 0.7))
    for attribute in ("correlations_", "mean_", "scale_", "components_", "factors_"):
        np.testing.assert_array_equal(getattr(second, attribute), getattr(first, attribute))


@pytest.mark.parametrize("name", models())
def test_only_the_ratios_of_weights_matter(name: str) -> None:
    M, w = survey(3)
    first, second = (models()[name].fit(M, sample_weight=scale * w) for scale in (1, 1024))
    np.testing.assert_allclose(second.components_, first.components_, atol=1e-12 if name != "icqf" else 2e-3)
    assert not np.allclose(models()[name].fit(M).components_, first.components_, atol=1e-3)


@pytest.mark.parametrize("name", models())
def test_a_row_of_weight_0_does_not_count(name: str) -> None:
    M, w = survey(4)
    w[:50] = 0
    first, second = (models()[name].fit(X, sample_weight=v) for X, v in ((M, w), (M[50:], w[50:])))
    np.testing.assert_allclose(first.components_, second.components_, atol=1e-10 if name == "fa" else 2e-3)
    assert first.n_effective_ == pytest.approx(second.n_effective_)


@pytest.mark.needs("questionnaires")
def test_whole_weights_do_not_repeat_the_rows_of_a_factor_analysis() -> None:
    M, _ = survey(5, missing=0)
    w = np.random.default_rng(5).integers(1, 4, len(M))
    weighted, repeated = dfact.FactorAnalysis(2).fit(M, sample_weight=w), dfact.FactorAnalysis(2).fit(np.repeat(M, w, axis=0))
    np.testing.assert_allclose(weighted.correlations_, repeated.correlations_, atol=1e-12)
    assert (weighted.scale_ > repeated.scale_).all()
    assert weighted.n_effective_ < len(M) < repeated.n_observations_


def test_nmf_minimises_the_weighted_objective() -> None:
    M, w = survey(6, missing=0)
    n, m = M.shape
    penalties = {"alpha_W": 0.1 / m, "alpha_H": 0.1 / n, "l1_ratio": 1}
    model = dfact.NMF(2, **penalties, tol=1e-9, max_iter=2000, dtype="float64").fit(M, sample_weight=w)
    v, W, H = w / w.mean(), model.factors_, model.components_
    value = 0.5 * (v[:, None] * (M - W @ H) ** 2).sum() + 0.1 * (v @ W.sum(axis=1)) + 0.1 * H.sum()
    assert model.objective_history_[-1] == pytest.approx(value, rel=1e-9)
    gradient = -(v[:, None] * W).T @ (M - W @ H) + 0.1
    assert abs(gradient[H > 0]).max() < 1e-2 * abs((v[:, None] * W).T @ M).max()
    assert (gradient[H == 0] > -1e-2 * abs((v[:, None] * W).T @ M).max()).all()
    np.testing.assert_allclose(model.transform(M), W, atol=1e-6)


@pytest.mark.needs("questionnaires")
def test_the_number_of_factors_takes_the_effective_number() -> None:
    M, w = survey(7, missing=0)
    w[:300] = 1e-6  # the fits see 100 rows
    from dfact.questionnaires.factor_analysis.number_of_factors import number_of_factors

    found, few = number_of_factors(dfact.FactorAnalysis(), M, sample_weight=w), number_of_factors(dfact.FactorAnalysis(), M)
    assert found.parallel_analysis.reference is not None
    assert few.parallel_analysis.reference is not None
    assert found.parallel_analysis.reference[0] > few.parallel_analysis.reference[0]


# Weights of datasets.
@pytest.mark.parametrize("name", models())
def test_weights_of_a_dataset_are_used_unless_left_out(name: str, tmp_path: Path) -> None:
    M, w = survey(8)
    dataset = dfact.import_array(M, tmp_path / "d.zarr", weights=w)
    explicit, own, path = (models()[name].fit(X, **inputs) for X, inputs in ((M, {"sample_weight": w}), (dataset, {}), (dataset.path, {})))
    np.testing.assert_array_equal(own.components_, explicit.components_)
    np.testing.assert_array_equal(path.components_, explicit.components_)
    plain = models()[name].fit(dataset.with_weights(None))
    np.testing.assert_array_equal(plain.components_, models()[name].fit(M).components_)
    replaced = models()[name].fit(dataset, sample_weight=w[::-1])
    np.testing.assert_array_equal(replaced.components_, models()[name].fit(M, sample_weight=w[::-1]).components_)
    dfact.save_model(own, tmp_path / "m.model")
    loaded = dfact.load_model(tmp_path / "m.model")
    assert (loaded.weighted_, loaded.n_effective_) == (True, own.n_effective_)
    np.testing.assert_array_equal(loaded.transform(dataset), own.transform(M))
    assert as_dataset(dataset.path).weights is not None


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize(
    ("weights", "message"),
    [(np.ones(3), "shape"), (np.full(400, -1.0), r"row 0 is -1 \(400 such rows"), (np.zeros(400), "zero for every row")],
)
def test_invalid_weights_are_refused(name: str, weights: Array, message: str) -> None:
    with pytest.raises(dfact.DataError, match=message):
        models()[name].fit(survey(0)[0], sample_weight=weights)


@pytest.mark.needs("questionnaires")
def test_an_item_that_does_not_vary_among_weighted_rows_is_refused() -> None:
    M, w = survey(9, missing=0)
    M[1:, 4], w[0] = 2, 0
    with pytest.raises(dfact.DataError, match="'4' do not vary together in the 399 rows"):
        dfact.FactorAnalysis(2).fit(M, sample_weight=w)


@pytest.mark.needs("questionnaires")
def test_indices_of_fit_take_the_effective_number() -> None:
    M, w = survey(15, missing=0)
    model = dfact.FactorAnalysis(2).fit(M, sample_weight=w)
    from dfact.questionnaires.fit_indices import fit_indices
    from dfact.questionnaires.minres import minres

    loadings = minres(model.correlations_, 2, 1000, 1e-6).loadings
    expected = fit_indices(model.correlations_, loadings, model.uniquenesses_, w.sum() ** 2 / (w**2).sum())
    assert model.fit_["chi_square"] == pytest.approx(expected["chi_square"], rel=1e-4)


# Parity.
@pytest.fixture
def partitioned(cut_rows: CutRows) -> None:
    cut_rows(block_entries=1 << 10, chunk_entries=1 << 13, partition_entries=1 << 11, small_partition_entries=1 << 10)


@pytest.mark.usefixtures("partitioned")
@pytest.mark.parametrize(
    ("name", "executor"),
    exhaustive_after(2, [("fa", "threads"), ("nmf", "distributed"), ("fa", "distributed"), ("nmf", "threads")]),
)
def test_every_executor_gives_the_same_bits(name: str, executor: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    M, w = survey(10, n=800)
    dataset = dfact.import_array(M, tmp_path / "d.zarr", weights=w)
    assert dfact.plan(models()[name], dataset).n_partitions > 1
    where = request.getfixturevalue("client") if executor == "distributed" else executor
    expected, found, array = (
        models()[name].set_params(executor=each).fit(X, **inputs)
        for each, X, inputs in (("inline", dataset, {}), (where, dataset, {}), (where, M, {"sample_weight": w}))
    )
    assert_same_fit(found, expected)
    assert_same_fit(array, expected)


@pytest.mark.needs("questionnaires")
def test_partitions_change_weighted_sums_by_rounding_alone(cut_rows: CutRows) -> None:
    M, w = survey(11, n=2000)
    one = dfact.FactorAnalysis(2).fit(M, sample_weight=w)
    cut_rows(block_entries=1 << 10, chunk_entries=1 << 13, partition_entries=1 << 11, small_partition_entries=1 << 10)
    many = dfact.FactorAnalysis(2).fit(M, sample_weight=w)
    np.testing.assert_allclose(many.correlations_, one.correlations_, atol=1e-13)


@pytest.mark.needs("questionnaires")
def test_a_dask_array_is_fitted_with_weights() -> None:
    da = pytest.importorskip("dask.array")
    M, w = survey(12)
    expected = dfact.FactorAnalysis(2).fit(M, sample_weight=w)
    np.testing.assert_array_equal(
        dfact.FactorAnalysis(2).fit(da.from_array(M, chunks=(100, 9)), sample_weight=w).factors_, expected.factors_
    )


@pytest.mark.needs("questionnaires")
def test_the_plan_counts_the_arrays_that_weights_need() -> None:
    M, w = survey(13)
    model = dfact.FactorAnalysis(2)
    plain, weighted = (FitTask.plan(model.prepare(M, sample_weight=weights)) for weights in (None, w))
    assert weighted.working > plain.working
    assert dfact.plan(model, as_dataset(M).with_weights(w)).working == weighted.working
