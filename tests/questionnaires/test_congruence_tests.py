"""Tests and intervals of congruences, on draws whose distribution is known."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from dfact.linalg.congruence import centred_congruences, congruences, unit
from dfact.linalg.several_tests import holm
from dfact.questionnaires.groups.congruence_tests import CongruenceTests

M, B = 20, 199


def test_holm_multiplies_by_the_number_that_remains() -> None:
    assert_allclose(holm(np.array([[0.01, 0.04], [0.03, 0.5]])), [[0.04, 0.09], [0.09, 0.5]])
    assert_allclose(holm(np.array([0.6, 0.7])), [1, 1])
    assert_allclose(holm(np.array([0.6, np.nan, 0.01])), [0.6, np.nan, 0.02])  # NaN is not a test and does not count


def test_congruence_ignores_lengths_and_centring_separates_the_unrelated() -> None:
    rng = np.random.default_rng(0)
    A, C = rng.uniform(0, 1, (2, 4, 400))
    assert_allclose(congruences(A, 3 * A), 1)
    assert_allclose(centred_congruences(A, 3 * A), 1)
    assert (congruences(A, C) > 0.7).all()  # unrelated, but all positive
    assert (np.abs(centred_congruences(A, C)) < 0.4).all()
    assert_allclose(congruences(A, 0 * A), 0)


def _trial(rng: np.random.Generator, angle: float, noise: float, count: int = B) -> tuple[CongruenceTests, float]:
    """Draw two noisy samples of loadings (1, M) at an angle, and draws around their mean with the same noise."""
    first, second = np.linalg.qr(rng.normal(size=(M, 2)))[0].T
    a, b = first, np.cos(angle) * first + np.sin(angle) * second

    def sample(of: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        return of + rng.normal(0, noise, (size, 1, M))

    A, C = unit(sample(a, 1)[0]), unit(sample(b, 1)[0])
    mean = (A + C) / 2
    draws = sample(mean[0], count), sample(mean[0], count)
    return CongruenceTests.of(A, C, draws, 0.95), float(np.cos(angle))


@pytest.mark.parametrize("seed", range(2))
def test_equal_loadings_are_rejected_at_the_level(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = [_trial(rng, 0.0, 0.05, 39)[0] for _ in range(300)]
    assert 0.02 <= np.mean([test.p[0] <= 0.05 for test in found]) <= 0.09
    assert np.mean([test.high[0] == 1 for test in found]) >= 0.94
    assert all(test.low[0] <= test.high[0] for test in found)
    assert np.mean([test.observed[0] for test in found]) < 0.96  # two samples agree less than their populations
    assert np.median([test.population[0] for test in found]) > 0.985


@pytest.mark.further
@pytest.mark.parametrize("angle", [0.3, 0.6])
def test_intervals_cover_the_congruence_of_the_populations(angle: float) -> None:
    rng = np.random.default_rng(round(10 * angle))
    covered, rejected, estimates = [], [], []
    for _ in range(200):
        test, truth = _trial(rng, angle, 0.04)
        covered.append(test.low[0] <= truth <= test.high[0])
        rejected.append(test.p[0] <= 0.05)
        estimates.append(test.population[0])
    assert 0.9 <= np.mean(covered) <= 0.99
    assert np.mean(rejected) > (0.2 if angle == 0.3 else 0.95)
    assert abs(np.median(estimates) - truth) < 0.015


def test_what_no_draw_can_tell_is_not_determined() -> None:
    rng = np.random.default_rng(0)
    A = unit(rng.normal(size=(2, M)))
    A[1] = 0
    draws = rng.normal(size=(2, B, 2, M))
    test = CongruenceTests.of(A, A, (draws[0], draws[1]), 0.95)
    assert np.isnan(test.low).all()
    assert np.isnan(test.high).all()
    opposite = CongruenceTests.of(A, -A, (A + 0.01 * draws[0], A + 0.01 * draws[1]), 0.95)
    assert opposite.p[0] == 1 / (B + 1)
    assert np.isnan(opposite.low[0])  # the populations would be less congruent than 0
