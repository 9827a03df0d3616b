"""Bootstrap stability: the draws, the refits, their matching, and the results."""

import itertools
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from distributed import Client
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.engine.passes import Block
from dfact.errors import DataError, MemoryPlanError, ParameterError
from dfact.models.provenance import Stability
from dfact.progress import Iteration
from dfact.selection import bootstrap
from dfact.selection.running.scheduler import run_fits
from dfact.stability.intervals import Variance, factor_intervals
from dfact.stability.refits import Matching
from dfact.stability.resamples import ClusterResample, Clusters, Half, Refit, RefittedLoadings, Resample, ResampleFits
from tests.cases import exhaustive_after, exhaustive_unless, of_slice
from tests.conftest import CutRows, planted_answers
from tests.models.test_adding_a_factorization import PoissonMF, counts


def drawn_rows(shape: tuple[int, ...], seed: int, number: int, strata: NDArray[Any] | None = None) -> NDArray[np.intp]:
    """Return the number of times that each row of a dataset is drawn."""
    resample, step = Resample.draw(Layout.of(shape), seed, number, weighted=False, strata=strata), Layout.of(shape).block_rows
    starts = range(0, shape[0], step)
    return np.concatenate([resample.multiplicity(i, start, min(step, shape[0] - start)) for i, start in enumerate(starts)])


def answers(n: int, m: int, seed: int) -> NDArray[np.float64]:
    """Return planted answers with at least one above 0 in each row."""
    M = planted_answers(n, m, 3, seed, 0.1)
    M[(np.nan_to_num(M) == 0).all(axis=1), 0] = 1
    return M


def models() -> dict[str, Any]:
    return {
        "icqf": dfact.ICQF(3, beta=0.01, bounds=(0, 3), q_max=3),
        "admm": dfact.ICQF(3, bounds=(0, 3), q_max=3, solver="admm", max_iter=30),
        "nmf": dfact.NMF(3),
        "gom": dfact.GradeOfMembership(3, method="srsc", max_response=3),
        "emf": dfact.ExpectileMF(3, tau=0.3, ridge=0.1, tol=1e-9),  # the scale of its start is that of all rows
        **dict(zip(["fa"], of_slice("FactorAnalysis", 3), strict=False)),
    }


def same(first: Stability, second: Stability) -> bool:
    parts = ("similarity", "mean", "low", "high", "selected")
    return all(np.array_equal(getattr(first, part), getattr(second, part), equal_nan=True) for part in parts)


# Draws.
@pytest.mark.parametrize("n", [5, 2048, 2049, 5000])
def test_n_of_n_rows_are_drawn_with_replacement(n: int) -> None:
    draws = np.stack([drawn_rows((n, 4), 1, number) for number in range(200)])
    assert (draws.sum(axis=1) == n).all()
    # The count of a row is binomial with n draws of probability 1/n: mean 1, variance 1 − 1/n, P(0) = (1 − 1/n)ⁿ.
    assert_allclose(draws.mean(), 1)
    assert_allclose(draws.var(), 1 - 1 / n, rtol=0.2 if n < 10 else 0.02)
    assert_allclose((draws == 0).mean(), (1 - 1 / n) ** n, rtol=0.1 if n < 10 else 0.02)
    together = np.cov(draws[:, 0], draws[:, -1])[0, 1]  # −1/n for rows of the same or of different blocks
    assert abs(together + 1 / n) < 4 / np.sqrt(200)
    assert_array_equal(draws[3], drawn_rows((n, 4), 1, 3))
    assert not np.array_equal(draws[3], drawn_rows((n, 4), 2, 3))


@pytest.mark.parametrize("weighted", [False, True])
def test_block_repeats_its_rows_as_drawn(weighted: bool) -> None:
    M, C = np.arange(20.0).reshape(5, 4), np.column_stack([np.arange(5.0), np.ones(5)])
    resample = Resample.draw(Layout.of((5, 4)), 7, 0, weighted=weighted)
    seen, multiplicity = resample(Block(M, C, 0, 0)), resample.multiplicity(0, 0, 5)
    assert seen.covariates is not None
    times = seen.covariates[:, -1].astype(int) if weighted else np.ones(5, int)
    assert_array_equal(np.repeat(seen.values, times, axis=0), np.repeat(M, multiplicity, axis=0))
    assert_array_equal(np.repeat(seen.covariates[:, 0], times), np.repeat(C[:, 0], multiplicity))
    assert_array_equal(C[:, -1], 1)


@pytest.mark.parametrize("n", [5, 2048, 2049, 5000])
@pytest.mark.parametrize("levels", [1, 3])
def test_halves_have_no_row_in_common(n: int, levels: int) -> None:
    step, strata = Layout.of((n, 4)).block_rows, None if levels == 1 else np.random.default_rng(n).integers(0, levels, n)

    def half(number: int) -> NDArray[np.intp]:
        view = Half.draw(Layout.of((n, 4)), 1, number, weighted=False, strata=strata)
        return np.concatenate([view.multiplicity(i, start, min(step, n - start)) for i, start in enumerate(range(0, n, step))])

    sizes = np.bincount(np.zeros(n, int) if strata is None else strata, minlength=levels)
    draws = np.stack([half(number) for number in range(60)])
    assert set(np.unique(draws)) == {0, 2}
    assert (draws.reshape(30, 2, n).sum(axis=1) <= 2).all()
    for level, size in enumerate(sizes):
        rows = slice(None) if strata is None else strata == level
        assert (draws[:, rows].sum(axis=1) == 2 * (size // 2)).all()
    if n > 5:  # each row is as likely as another to be drawn
        assert_allclose(draws[::2].mean(axis=0).std(), np.sqrt(1 / 30), rtol=0.1)
    assert not np.array_equal(draws[0], draws[2])


@pytest.mark.parametrize("weighted", [False, True])
def test_half_repeats_its_rows_twice(weighted: bool) -> None:
    M, C = np.arange(24.0).reshape(6, 4), np.ones((6, 1))
    view = Half.draw(Layout.of((6, 4)), 3, 1, weighted=weighted)
    seen = view(Block(M, C, 0, 0))
    assert seen.covariates is not None
    times = seen.covariates[:, -1].astype(int) if weighted else np.ones(len(seen.values), int)
    assert_array_equal(np.repeat(seen.values, times, axis=0), np.repeat(M, view.multiplicity(0, 0, 6), axis=0))


# Intervals.
@pytest.mark.parametrize("halves", [False, True])
def test_clusters_are_drawn_whole(halves: bool) -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 30, 500)
    strata = (clusters % 3 == 0).astype(int)
    drawn, layout = Clusters.of(clusters, strata), Layout.of((500, 2))
    assert len(drawn.strata) == len(np.unique(clusters))
    totals = np.zeros(500, int)
    for number in range(2):
        view = ClusterResample.draw_clusters(layout, 3, number, drawn, weighted=False, halves=halves)
        starts = [0, 100, 101, 380, 500]  # a row's draws do not depend on its block
        times = np.concatenate([view.multiplicity(b, start, end - start) for b, (start, end) in enumerate(pairwise(starts))])
        for c in np.unique(clusters):
            assert len(np.unique(times[clusters == c])) == 1
        of_clusters = np.array([times[clusters == c][0] for c in np.unique(clusters)])
        level = np.unique(clusters) % 3 == 0
        if halves:
            assert set(np.unique(of_clusters)) == {0, 2}
        for stratum in (True, False):
            expected = int((level == stratum).sum())
            assert of_clusters[level == stratum].sum() == (expected // 2 * 2 if halves else expected)
        assert view.counts.sum() == times.sum()
        totals += times
    assert not halves or set(np.unique(totals)) <= {0, 2}  # no cluster is in both halves


def test_standard_errors_of_a_bootstrap_of_clusters_are_those_of_other_clusters() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(50), 20)
    X = rng.normal(size=(1000, 1)) + 0.5 * rng.normal(size=(1000, 6)) + 0.7 * rng.normal(size=(50, 6))[clusters]
    model = dfact.PCA(1, executor="inline").fit(X)
    rows, whole = (bootstrap(model, X, 60, random_state=0, **given) for given in ({}, {"clusters": clusters}))
    assert rows.se is not None
    assert whole.se is not None
    assert whole.resampling == "bootstrap samples of 50 clusters"
    assert np.median(whole.se) > 1.4 * np.median(rows.se)
    of_means = []  # of other samples of 50 clusters
    for _ in range(60):
        other = rng.normal(size=(1000, 1)) + 0.5 * rng.normal(size=(1000, 6)) + 0.7 * rng.normal(size=(50, 6))[clusters]
        found = dfact.PCA(1, executor="inline").fit(other).components_
        of_means.append(found * np.sign(found.sum()))
    assert_allclose(np.median(whole.se), np.median(np.std(of_means, axis=0)), rtol=0.3)
    threads = bootstrap(copy(model).set_params(executor="threads"), X, 60, random_state=0, clusters=clusters + 7)
    assert_array_equal(threads.se, whole.se)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"stratify": np.arange(1000) % 2}, "50 clusters have rows in several strata"),
        ({"reselect": True}, "clusters are given, and reselect draws rows"),
        ({"clusters": np.arange(1000)}, "a cluster of its own for each of the 1000 rows"),
    ]
    for settings, message in refused:
        with pytest.raises((ParameterError, DataError), match=message):
            bootstrap(model, X, 4, **{"clusters": clusters} | settings)


@pytest.mark.parametrize("seed", range(3))
def test_loadings_at_a_bound_have_no_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, at_zero, at_most = 2 + rng.normal(0, 0.1, 50), np.maximum(rng.normal(0, 0.1, 50), 0), np.minimum(4 + rng.normal(0, 0.1, 50), 4)
    samples = np.column_stack([inside, at_zero, at_most, np.full(50, 4.0), rng.uniform(0.001, 0.4, 50)])
    estimate = np.array([2, 0, 4, 4, 0.1])
    se, low, high = factor_intervals(estimate, samples, np.ones(50), 0.95, Variance(), nonnegative=True)
    assert_array_equal(np.isnan(low), [False, True, True, True, True])  # the last one is not at a bound, but its interval contains 0
    assert_allclose(high[0] - low[0], 2 * scipy.stats.t.ppf(0.975, 49) * samples[:, 0].std(ddof=1))
    assert_allclose(se, samples.std(axis=0, ddof=1))
    _, low, _ = factor_intervals(estimate, samples, np.ones(50), 0.95, Variance(), nonnegative=False)
    assert_array_equal(np.isnan(low), [False, True, True, True, True])  # refits of exactly 0 tell a penalty
    other = np.where(np.arange(50) < 3, 0.8, 1.0)  # 6% of the refits have another factor
    assert np.isnan(factor_intervals(estimate, samples, other, 0.95, Variance(), nonnegative=True)[1]).all()


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
def test_false_selections_have_the_published_bound(seed: int) -> None:
    M = answers(300, 12, seed)
    model = dfact.ICQF(3, beta=0.1, bounds=(0, 3)).fit(M)
    found = bootstrap(model, M, 20, resampling="halves", random_state=seed)
    q, p = found.selected.sum(), found.selected.size
    assert 0 < found.selected.min() + 1 < 2
    assert_allclose([found.false_selections(), found.false_selections(0.75)], [q**2 / (0.8 * p), q**2 / (0.5 * p)])
    assert np.isnan([found.false_selections(0.5), bootstrap(model, M, 4, random_state=0).false_selections()]).all()
    inside = found.selected == 1
    assert_allclose(np.median(found.se[inside] / bootstrap(model, M, 40, random_state=seed).se[inside]), 1, atol=0.35)
    with pytest.raises(ParameterError, match="expected an even number"):
        bootstrap(model, M, 5, resampling="halves")
    with pytest.raises(ParameterError, match="expected one of 'bootstrap'"):
        bootstrap(model, M, 4, resampling="jackknife")


# Refits.
@pytest.mark.further
@pytest.mark.parametrize(
    ("n", "name"),
    exhaustive_unless(lambda case: case in {(2049, "icqf"), (300, case[1])}, itertools.product((300, 2049), models())),
)
def test_refit_equals_a_fit_to_the_drawn_rows(name: str, n: int) -> None:
    M = answers(n, 12, n)
    model = models()[name].set_params(dtype="float64", executor="inline")
    found: dict[int, Any] = {}
    run_fits(ResampleFits.make(model, as_dataset(M), seed=5), [0, 1], found.__setitem__, "inline", None)
    for number in range(2):
        repeated = np.repeat(M, drawn_rows(M.shape, 5, number), axis=0)
        assert_allclose(found[number].components, model.fit(repeated).components_, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*carry the anchor")  # of few items
@pytest.mark.filterwarnings("ignore:.* items of icqf. carry the anchor")  # the groups differ in each answer
def test_confounders_are_resampled_with_their_rows() -> None:
    rng = np.random.default_rng(0)
    groups = pd.DataFrame({"group": rng.choice(["a", "b"], 400), "age": rng.random(400)})
    M = np.clip(planted_answers(400, 10, 2, 0) + (groups["group"] == "a").to_numpy()[:, None], 0, 4)
    model = dfact.ICQF(2, bounds=(0, 4), q_max=4, dtype="float64").fit(M, confounders=groups)
    found: list[Refit] = []
    fits = ResampleFits.make(model, as_dataset(M, groups), seed=0)
    run_fits(fits, [0], lambda _, refit: found.append(refit), "inline", None)
    multiplicity = drawn_rows(M.shape, 0, 0)
    # The ages are scaled by all rows: weights do not change the scale.
    again = dfact.ICQF(2, bounds=(0, 4), q_max=4, dtype="float64").fit(M, confounders=groups, sample_weight=multiplicity)
    [refit] = found
    assert isinstance(refit, RefittedLoadings)
    assert refit.confounders is not None
    assert_allclose(refit.components, again.components_, rtol=1e-5, atol=1e-6)
    assert_allclose(refit.confounders, again.confounder_components_, rtol=1e-5, atol=1e-6)
    assert np.median(bootstrap(model, M, 10, confounders=groups, random_state=0).similarity) > 0.95


@pytest.mark.parametrize(("name", "seed"), [("icqf", 0), ("nmf", 1), ("gom", 2), ("fa", 3)])
def test_planted_factors_are_found_again(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memberships = np.vstack([np.eye(3)[rng.integers(0, 3, 700)], rng.dirichlet([1, 1, 1], 300)])
    M = rng.binomial(3, memberships @ rng.uniform(0.1, 0.9, (3, 24))) if name == "gom" else answers(1000, 24, seed)
    model = models()[name].fit(M)
    found = bootstrap(model, M, 20, random_state=seed)
    assert found.similarity.shape == (20, 3)
    assert np.quantile(found.similarity, 0.05) > 0.95
    assert (np.isnan(found.low) == np.isnan(found.high)).all()
    determined = ~np.isnan(found.low)
    assert determined.any() == (name != "nmf")
    assert ((found.low < found.mean) & (found.mean < found.high))[determined].all()
    fewer, other = (bootstrap(model, M, 4, random_state=drawn) for drawn in (seed, seed + 1))
    assert_array_equal(found.similarity[:4], fewer.similarity)
    assert not (fewer.similarity == other.similarity).any()


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_factor_of_noise_is_unstable() -> None:
    medians = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((400, 2)) @ np.kron(np.eye(2), np.ones(8)) + rng.standard_normal((400, 16))
        found = bootstrap(dfact.FactorAnalysis(3, rotation="varimax").fit(X), X, 40, random_state=seed)
        medians.append(np.sort(np.median(found.similarity, axis=0)))
    noise, *planted = np.mean(medians, axis=0)
    assert noise < 0.85
    assert min(planted) > 0.98


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_intervals_of_factor_analysis_have_their_coverage() -> None:
    truth = np.kron(np.eye(2), np.linspace(0.4, 0.8, 6))
    inside = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((400, 2)) @ truth + rng.standard_normal((400, 12)) * np.sqrt(1 - (truth**2).sum(axis=0))
        model = dfact.FactorAnalysis(2, rotation="varimax").fit(X)
        found = bootstrap(model.set_params(executor="inline"), X, 40, level=0.9, random_state=seed)
        order = np.abs(model.components_ @ truth.T).argmax(axis=1)
        inside.append(((found.low <= truth[order]) & (truth[order] <= found.high)).mean())
    assert 0.8 < np.mean(inside) < 0.97


@pytest.mark.further
def test_intervals_of_warm_started_refits_cover_large_sample_loadings() -> None:
    rng = np.random.default_rng(1)
    Q = np.kron(np.eye(2), rng.uniform(1, 2.5, 6)) + 0.3

    def sample(n: int) -> NDArray[np.float64]:
        W = rng.random((n, 2)) * (rng.random((n, 2)) < 0.7)
        return np.clip(W @ Q + rng.normal(0, 0.3, (n, 12)), 0, 3)

    settings: dict[str, Any] = {"bounds": (0, 3), "q_max": 3, "tol": 1e-7, "max_iter": 1000, "executor": "inline"}
    truth = dfact.ICQF(2, **settings).fit(sample(20000)).components_
    inside = []
    for seed in range(6):
        X = sample(300)
        model = dfact.ICQF(2, **settings | {"tol": 1e-5}).fit(X)
        found = bootstrap(model, X, 40, level=0.9, random_state=seed)
        order = (model.components_ @ truth.T).argmax(axis=1)
        determined = ~np.isnan(found.low)
        inside.append(((found.low <= truth[order]) & (truth[order] <= found.high))[determined].mean())
    assert 0.78 < np.mean(inside) < 0.98


def test_unconverged_model_causes_a_warning() -> None:
    M = planted_answers(300, 12, 3, 0)
    model = dfact.ICQF(3, init="random", max_iter=1, random_state=0).fit(M).set_params(max_iter=500)
    with pytest.warns(
        UserWarning,
        match=r"has not converged: its similarity to the converged .* is 0\.\d+, expected at least 0.95; fit",
    ):
        warm = bootstrap(model, M, 3, random_state=0)
    cold = bootstrap(model, M, 3, random_state=0, warm_start=False)  # each refit has a random start of its own
    assert not same(warm, cold)
    assert len({tuple(row) for row in cold.similarity}) == 3


# Matching.
@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("seed", range(3))
def test_matching_undoes_permutations_and_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = dfact.FactorAnalysis(4).fit(rng.standard_normal((200, 4)) @ rng.standard_normal((4, 10)) + rng.standard_normal((200, 10)))
    H, order, signs = model.components_.astype(np.float64), rng.permutation(4), rng.choice([-1.0, 1.0], 4)
    similarity, loadings = Matching.of(model).match((H * signs[:, None])[order])
    assert_allclose(similarity, 1)
    assert_allclose(loadings, H)
    M = planted_answers(200, 10, 4, seed)
    nonnegative = dfact.ICQF(4).fit(M)
    H = nonnegative.components_.astype(np.float64)
    similarity, loadings = Matching.of(nonnegative).match(H[order])
    assert_allclose(loadings, H)
    H[1] = 0  # the similarity of a vanished factor is 0
    similarity, loadings = Matching.of(nonnegative).match(H[order])
    assert similarity[1] == 0
    assert_allclose(np.delete(similarity, 1), 1)


def test_classes_are_compared_by_differences_from_their_mean() -> None:
    M = planted_answers(300, 10, 2, 0) + 1
    model = dfact.GradeOfMembership(2, method="srsc").fit(M)
    mixed = np.repeat(model.components_.mean(axis=0, keepdims=True), 2, axis=0)
    assert_allclose(Matching.of(model).match(mixed + 0 * mixed)[0], 0, atol=1e-6)
    assert_allclose(Matching.of(model).match(model.components_[::-1])[0], 1)


# Executors.
@pytest.mark.further
@pytest.mark.parametrize("name", exhaustive_after(2, ["icqf", "gom", "emf"]))
def test_executors_and_stores_give_the_same_bits(
    name: str, tmp_path: Path, client: Client, cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows(partition_entries=1 << 14)
    M = answers(3000, 12, 2)
    dataset = dfact.import_array(M.astype(np.float32), tmp_path / "d.zarr", valid_range=(0, 3))
    model = models()[name].set_params(dtype="float32", executor="inline")
    if name == "icqf":
        model.set_params(tol=1e-6)
    model.fit(dataset)
    warm = bootstrap(model, dataset, 3, random_state=0)
    assert same(warm, bootstrap(model.set_params(executor=client), dataset, 3, random_state=0))
    if name != "gom":
        model.set_params(max_iter=4)
    in_memory = M.astype(np.float32)
    cold = bootstrap(model.set_params(executor="threads"), in_memory, 3, random_state=0, warm_start=False)
    # Fused on shared reads.
    monkeypatch.setattr(ResampleFits, "fits_in_memory", lambda *_: False)
    for executor in ("inline", "threads", client):
        assert same(cold, bootstrap(model.set_params(executor=executor), dataset, 3, random_state=0, warm_start=False))


@pytest.mark.further
def test_csr_data_is_resampled(tmp_path: Path) -> None:
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    X = sp.random_array((300, 30), density=0.3, rng=rng, format="csr") + sp.csr_array(np.ones((300, 1)) @ (np.arange(30) == 0)[None] * 1.0)
    model = dfact.ExpectileMF(2, ridge=0.1).fit(X)
    found = bootstrap(model, X, 3, random_state=0)
    assert same(found, bootstrap(model, dfact.import_array(X, tmp_path / "d.zarr"), 3, random_state=0))


def test_any_factorization_can_be_refitted() -> None:
    model = PoissonMF(2, max_iter=20)
    X = counts(0, 200, 10, 2)
    found = bootstrap(model.fit(X), X, 4, random_state=0)
    assert found.similarity.shape == (4, 2)


@pytest.mark.faults
def test_interrupted_bootstrap_resumes(tmp_path: Path) -> None:
    M = planted_answers(200, 10, 2, 0)
    model, reported = dfact.ICQF(2).fit(M), list[Iteration]()

    class StopError(Exception):
        pass

    def stop(iteration: Iteration) -> None:
        if iteration.number == 3:
            raise StopError

    with pytest.raises(StopError):
        bootstrap(model.set_params(executor="inline"), M, 6, random_state=0, checkpoint=tmp_path / "c", callbacks=[stop])
    found = bootstrap(model, M, 6, random_state=0, checkpoint=tmp_path / "c", callbacks=[reported.append])
    assert [(one.number, one.limit) for one in reported] == [(4, 6), (5, 6), (6, 6)]
    assert same(found, bootstrap(model, M, 6, random_state=0))
    more = bootstrap(model, M, 8, random_state=0, checkpoint=tmp_path / "c")
    assert_array_equal(more.similarity[:6], found.similarity)
    with pytest.raises(ParameterError, match="belongs to another"):
        bootstrap(model, M, 6, random_state=0, warm_start=False, checkpoint=tmp_path / "c")


@pytest.mark.needs("questionnaires")
def test_failed_resamples_cause_a_warning() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 1)) + rng.standard_normal((40, 8))
    X[2:, 0] = 0  # in every seventh resample this item does not vary
    model = dfact.FactorAnalysis(1).fit(X)
    with pytest.warns(UserWarning, match="of 60 refits failed, such as number .*item '0' does not vary"):
        found = bootstrap(model, X, 60, random_state=0)
    failed = np.isnan(found.similarity).all(axis=1)
    assert 1 <= failed.sum() < 25
    assert np.isfinite(found.summary(["f"])).all(axis=None)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    M = planted_answers(60, 8, 2, 0)
    model = dfact.ICQF(2).fit(M)
    for wrong, message in (
        ({"n_resamples": 1}, "n_resamples is 1, expected an integer from 2 to 100000"),
        ({"n_resamples": 2**31}, "n_resamples is 2147483648"),
        ({"n_resamples": True}, "n_resamples"),
        ({"level": 1}, "level is 1"),
    ):
        with pytest.raises(ParameterError, match=message):
            bootstrap(model, M, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not fitted"):
        bootstrap(dfact.ICQF(2), M)
    with pytest.raises(ParameterError, match="fitted model such as"):
        bootstrap(dfact.ICQF, M)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="the data is 59×8, the model was fitted to 60×8"):
        bootstrap(model, M[1:])
    with pytest.raises(DataError, match="fitted without confounders"):
        bootstrap(model, M, confounders={"a": np.arange(60.0)})
    with_ages = dfact.ICQF(2).fit(M, confounders={"age": np.arange(60.0)})
    with pytest.raises(DataError, match="pass those of its 60 rows"):
        bootstrap(with_ages, M)
    with pytest.raises(DataError, match="not those that the model was fitted with"):
        bootstrap(with_ages, M, confounders={"age": np.arange(60.0) + 1})
    stored = dfact.import_array(M, tmp_path / "a.zarr")
    other = dfact.import_array(M[::-1].copy(), tmp_path / "b.zarr")
    with pytest.raises(DataError, match="fingerprint"):
        bootstrap(dfact.ICQF(2).fit(stored), other)
    with pytest.raises(MemoryPlanError):
        bootstrap(dfact.ICQF(2).fit(stored).set_params(memory_limit="1MiB"), stored)


# Results.
def test_stability_is_stored_with_the_model(tmp_path: Path) -> None:
    M = planted_answers(100, 8, 2, 0)
    model: Any = dfact.ICQF(2).fit(M)
    model.stability_ = bootstrap(model, M, 4, random_state=0)
    assert np.isnan(model.stability_.low[model.stability_.selected < 1]).all()
    dfact.save_model(model, tmp_path / "m")
    assert same(dfact.load_model(tmp_path / "m").stability_, model.stability_)


@pytest.mark.further
def test_command_stores_the_stability(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    M = planted_answers(150, 8, 2, 0)
    dfact.import_array(M, tmp_path / "d.zarr")
    dataset = dfact.open_dataset(tmp_path / "d.zarr")
    dfact.save_model(dfact.ICQF(2, memory_limit="3GiB").fit(dataset), tmp_path / "m")
    before = dfact.load_model(tmp_path / "m")
    factors = np.asarray(before.factors_)
    call = ["stability", str(tmp_path / "m"), str(tmp_path / "d.zarr"), "--resamples", "5", "--seed", "1", "--level", "0.9"]
    assert main(call) == 0
    printed = capsys.readouterr().out
    model = dfact.load_model(tmp_path / "m")
    assert same(model.stability_, bootstrap(before, dataset, 5, level=0.9, random_state=1))
    assert_array_equal(np.asarray(model.factors_), factors)
    assert model.memory_limit == "3GiB"
    assert "5 refits to bootstrap samples of the participants" in printed
    for name, row in model.stability_.summary(model.get_feature_names_out()).iterrows():
        assert f"{row['median']:.3f}" in next(line for line in printed.splitlines() if line.startswith(str(name)))
    # A failed command does not change the model.
    assert main([*call[:-1], "1.5"]) == 1
    with monkeypatch.context() as patch:
        patch.setattr("dfact.models.persistence.write_array", _full)
        assert main(call[:-2]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert same(dfact.load_model(tmp_path / "m").stability_, model.stability_)
    assert main(["stability", str(tmp_path / "no"), str(tmp_path / "d.zarr")]) == 1
    assert main(["report", str(tmp_path / "m"), str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "5 refits to bootstrap samples of the participants" in page
    assert "that have a 90% interval, and whose interval excludes 0" in page


def _full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")
