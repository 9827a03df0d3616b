"""Simulated groups of equal loadings: what they keep, and that they are the same for any blocks and executors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.layout import Layout
from dfact.engine.passes import Block
from dfact.questionnaires.groups.equal_loadings import EqualLoadingsFits, SimulatedRows
from dfact.questionnaires.groups.factor_congruences import DEFAULT_DRAWS, FactorCongruences, resolve_draws
from dfact.questionnaires.groups.fits import GroupRows
from dfact.questionnaires.groups.mantel_test import Groups
from dfact.selection import compare_groups
from dfact.selection.running.results_store import ResultsStore
from dfact.stability.resamples import RefittedLoadings
from tests.cases import exhaustive_after

K, M, N = 2, 6, 400


def simulated(seed: int, *, missing: float = 0.0, weighted: bool = False, inflation: float = 1.0) -> tuple[Any, ...]:
    """Return a view of group 2, the block, the rows' factors, and the common and the group's own loadings."""
    rng = np.random.default_rng(seed)
    W, own_W, Q, own = rng.random((N, K)), rng.random((N, K)), 2 * rng.random((K, M)), 2 * rng.random((K, M))
    answers = np.clip(own_W @ own + rng.normal(0, 0.3, (N, M)), 0, 4)
    answers[rng.random((N, M)) < missing] = np.nan
    covariates = np.column_stack([W, own_W, *([np.arange(1.0, N + 1)] if weighted else [])])
    strata = rng.integers(0, 3, N)
    rows = GroupRows.choose(seed, 5, strata, 2, Layout.of((len(strata), 4)), weighted=weighted)
    view = SimulatedRows(rows, Q, own, K, inflation, np.array([np.zeros(M), np.full(M, 4.0)]), weighted)
    return view, Block(answers, covariates, 0, 0), strata == 2, W, Q, answers - own_W @ own


@pytest.mark.parametrize("seed", range(2))
def test_rows_have_their_factors_under_the_common_loadings_and_residuals_of_the_group(seed: int) -> None:
    view, block, members, W, Q, residuals = simulated(seed)
    found = view(block).values
    assert found.shape == (members.sum(), M)
    drawn = found - W[members] @ Q
    inside = (found > 0) & (found < 4)
    own = residuals[members]
    partners = np.array([np.abs(own - row).mean(axis=1).argmin() for row in np.where(inside, drawn, np.nan_to_num(drawn))])
    exact = inside.all(axis=1)
    assert exact.sum() > 20
    assert_allclose(drawn[exact], own[partners[exact]], atol=1e-12)  # residuals of one other row, together
    assert len(np.unique(partners[exact])) > 10
    assert_array_equal(found, view(block).values)  # the same in every pass


@pytest.mark.parametrize("weighted", [False, True])
def test_missing_answers_and_weights_stay(weighted: bool) -> None:
    view, block, members, *_ = simulated(3, missing=0.4, weighted=weighted)
    found = view(block)
    assert_array_equal(np.isnan(found.values), np.isnan(block.values[members]))
    if weighted:
        assert_array_equal(found.covariates[:, 0], 1.0 + np.flatnonzero(members))
    else:
        assert found.covariates is None
    assert np.nanmin(found.values) >= 0
    assert np.nanmax(found.values) <= 4


def test_residuals_of_other_items_are_inflated() -> None:
    spread = []
    for inflation in (1.0, 2.0):
        view, block, members, W, Q, _ = simulated(4, missing=0.5, inflation=inflation)
        found = view(block).values
        residuals = np.where((found > 0) & (found < 4), found - W[members] @ Q, np.nan)
        spread.append(np.nanstd(residuals))
    assert spread[1] > 1.3 * spread[0]


def questionnaire(seed: int, n: int = 300, *, moved: bool = False) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return 12 items of 2 factors; group b has more of both and misses a fifth, with ``moved`` it has three other loadings."""
    rng = np.random.default_rng(seed)
    groups = np.resize(["a", "b", "a"], n)
    inside = groups == "b"
    W = np.clip((1 + rng.normal(size=(n, 2)) + 0.8 * inside[:, None]) / 4, 0, 1)
    Q = np.kron(np.eye(2), np.full(6, 3.0))
    other = Q.copy()
    if moved:
        other[:, :3] = Q[::-1, :3]
    M = np.clip(np.rint(np.where(inside[:, None], W @ other, W @ Q) + rng.normal(0, 0.5, (n, 12))), 0, 4)
    lost = (rng.random(M.shape) < 0.2) & inside[:, None]
    lost[:, 0] = False
    M[lost] = np.nan
    return M, groups


def congruences_of(model: Any, M: Any, groups: Any, draws: int, frame: pd.DataFrame | None = None) -> FactorCongruences:
    dataset = as_dataset(M, frame)
    by = Groups.of(groups, dataset, None)
    found = FactorCongruences(model, by, draws, test=True)
    found.fit(dataset, frame, by.datasets(dataset), ResultsStore(None, {"seed": 1}), ())
    return found


@pytest.mark.further
@pytest.mark.parametrize(
    "model",
    exhaustive_after(1, [dfact.FactorAnalysis(2), dfact.ICQF(2), dfact.NMF(2, max_iter=20)]),
    ids=lambda model: type(model).__name__,
)
def test_moved_items_are_found_and_other_means_and_missing_answers_are_not(model: Any) -> None:
    for moved in (False, True):
        M, groups = questionnaire(5, moved=moved)
        result = compare_groups(model.fit(M), M, groups, n_resamples=40, random_state=0)
        assert (result.p.min() <= 0.05) == moved
        assert result.lowest_p == 2 / 41
        if model.traits.nonnegative:
            assert np.isnan([result.population, result.low, result.high]).all()
        else:
            assert ((result.high == 1) | moved).all()
            assert (result.population >= result.low).all()
        assert (result.rotated is None) == (result.centred is not None) == model.traits.nonnegative
        assert (result.centred is None) or ((result.centred.min() < 0.7) == moved)


@pytest.mark.further
def test_confounders_and_weights_go_with_the_simulated_rows() -> None:
    M, groups = questionnaire(6)
    frame = pd.DataFrame({"group": groups, "age": np.linspace(20, 60, len(M))})
    model = dfact.ICQF(2, tol=1e-3, executor="inline").fit(M, confounders=frame, sample_weight=np.resize([1.0, 2.0], len(M)))
    settings: dict[str, Any] = {"confounders": frame, "sample_weight": np.resize([1.0, 2.0], len(M)), "random_state": 0}
    result = compare_groups(model, M, "group", n_resamples=40, **settings)
    assert np.isfinite(result.p).all()
    assert (result.p > 0.05).all()


def test_simulated_draws_do_not_depend_on_shared_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    M, groups = questionnaire(7)
    model = dfact.ICQF(2, executor="inline").fit(M)
    alone = congruences_of(model, M, groups, 3)._draws
    monkeypatch.setattr(EqualLoadingsFits, "fits_in_memory", lambda *_: False)
    shared = congruences_of(model, M, groups, 3)._draws
    for first, second in zip(alone, shared, strict=True):
        for one, other in zip(first, second, strict=True):
            assert_allclose(one.components, other.components, atol=1e-3)
    assert not np.allclose(alone[0][0].components, alone[1][0].components, atol=1e-3)


def test_a_test_gets_enough_draws_or_none() -> None:
    assert resolve_draws(None, 4, test=True) == DEFAULT_DRAWS
    assert resolve_draws(None, 12, test=True) == 240
    assert resolve_draws(30, 12, test=False) == 30
    with pytest.raises(dfact.ParameterError, match=r"too few draws for a test of 12 factors.*--resamples 240.*--no-test"):
        resolve_draws(239, 12, test=True)


def test_polychoric_loadings_are_not_tested_with_the_reason() -> None:
    M, groups = questionnaire(8)
    model = dfact.FactorAnalysis(2, correlation="polychoric", executor="inline").fit(M)
    tested = FactorCongruences(model, Groups.of(groups, as_dataset(M), None), 30, test=True)
    assert "give variance 1" in tested._untested


@pytest.mark.parametrize("seed", range(2))
def test_rotation_alone_lowers_the_congruence_and_is_undone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(2, 10))
    model = dfact.FactorAnalysis(2).fit(rng.normal(size=(300, 2)) @ loadings + rng.normal(0, 0.3, (300, 10)))
    found = FactorCongruences(model, Groups("g", ("a", "b"), np.zeros(300, np.intp), False), 2, test=True)
    H = model.components_.astype(float)
    turned = np.array([[0.8, 0.6], [-0.6, 0.8]]) @ H
    first, second = (found._comparable(RefittedLoadings(loadings, None, model.scale_)) for loadings in (H, turned))
    assert_allclose((first * second).sum(axis=1), 1, atol=1e-9)
