"""The estimate of how far a history of objectives is from its end."""

from math import isnan
from typing import Any

import numpy as np
import pytest

import dfact
from dfact.progress import remaining_change, remaining_tail
from tests.conftest import planted_answers
from tests.models.expectile.test_emf import planted


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.7, 0.89])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_remaining_change_of_a_geometric_series(ratio: float, sign: int) -> None:
    history = [1000 + sign * 500 * ratio**i for i in range(30)]
    for n in (11, 16):
        if (rest := abs(history[n - 1] - 1000)) > 1e-9:
            assert remaining_change(history[:n]) == pytest.approx(rest / history[n - 1], rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_small_step_does_not_make_the_remaining_change_small(seed: int) -> None:
    steps = np.random.default_rng(seed).uniform(0, 2, 40) * 0.97 ** np.arange(40)
    history = 1000 + np.cumsum(steps[::-1])[::-1]
    history[20] = history[19]  # one step by chance
    assert remaining_change([*history[:21]]) > 1e-4


@pytest.mark.parametrize("ratio", [0.95, 0.98, 0.99])
def test_the_remaining_change_of_a_slow_series_is_not_underestimated(ratio: float) -> None:
    history = [1000 + 500 * ratio**i for i in range(200)]
    for n in (50, 100, 200):
        assert remaining_change(history[:n], quarter=True) > 0.3 * (history[n - 1] - 1000) / history[n - 1]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("n", [20, 100, 1000])
def test_the_remaining_tail_of_a_power_is_what_is_left(power: float, n: int) -> None:
    history = [1000 + 500 * t**-power for t in range(1, n + 1)]
    rest = (history[-1] - 1000) / history[-1]
    assert 0.9 * rest <= remaining_tail(history) <= 1.1 * rest + 1e-12
    assert n < 100 or remaining_change(history) < 0.9 * rest


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.95])
def test_the_remaining_tail_of_a_geometric_series_is_not_underestimated(ratio: float) -> None:
    history = [1000 + 500 * ratio**i for i in range(40)]
    assert remaining_change(history) <= remaining_tail(history) <= 40 * (history[-1] - 1000) / history[-1] + 1e-12


def test_too_few_values_give_no_estimate() -> None:
    assert isnan(remaining_change([1.0] * 10))
    assert isnan(remaining_tail([1.0] * 10))
    assert remaining_change([1.0] * 11) == remaining_tail([1.0] * 11) == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tol", [1e-3, 1e-5])
@pytest.mark.parametrize("noisy", [False, True])
def test_a_stopped_fit_is_near_its_limit(seed: int, tol: float, noisy: bool) -> None:
    rng = np.random.default_rng(seed)
    M = planted_answers(1500, 30, 4, seed, 0.1)
    M = np.where(rng.random(M.shape) < 0.3 * noisy, rng.integers(0, 4, M.shape), M)  # its end is slow
    found, end = (dfact.ICQF(4, tol=t, max_iter=1000, random_state=0).fit(M) for t in (tol, 1e-8))
    assert found.converged_
    assert found.remaining_ < tol
    assert found.objective_history_[-1] < (1 + 3 * tol) * end.objective_history_[-1]


SKEWED: dict[str, Any] = {
    # rows, columns, components, share observed, noise; parameters; least and most iterations
    "slow": ((400, 100, 4, 0.35, 0.5), {"n_components": 6, "tau": 0.1, "ridge": 1.0}, (30, 100)),
    "fast": ((1500, 60, 3, 0.7, 0.05), {"n_components": 3, "tau": 0.2, "ridge": 0.1}, (11, 11)),
}


@pytest.mark.further
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SKEWED)
def test_a_stopped_expectile_factorization_is_near_its_limit(name: str, seed: int) -> None:
    size, parameters, (least, most) = SKEWED[name]
    _, V = planted(seed, *size)
    found, end = (dfact.ExpectileMF(**parameters, **p).fit(V) for p in ({}, {"tol": 0, "max_iter": 500}))
    assert found.converged_
    assert found.remaining_ < found.tol
    assert found.objective_history_[-1] <= (1 + 2 * found.tol) * end.objective_history_[-1]
    assert least <= found.n_iter_ <= most


@pytest.mark.further
@pytest.mark.parametrize("seed", range(3))
def test_measurements_are_fitted_close_to_convergence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((400, 14, 11))
    b = np.einsum("pij,ij->p", A, rng.standard_normal((14, 2)) @ rng.standard_normal((2, 11))) + rng.exponential(3, 400)
    found, end = (dfact.ExpectileMF(2, tau=0.1, **p).fit_measurements(A, b, (14, 11)) for p in ({}, {"tol": 0, "max_iter": 1000}))
    assert found.converged_
    assert found.remaining_ < found.tol
    assert found.objective_history_[-1] <= (1 + 2 * found.tol) * end.objective_history_[-1]
