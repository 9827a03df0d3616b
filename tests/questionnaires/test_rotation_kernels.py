"""The oblimin rotation from one start: the criterion there, and no gradient at its end, by formulas of matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ortho_group

from dfact.questionnaires.kernels.oblimin import minimize_oblimin

Array = NDArray[np.float64]


def criterion(A: Array, T: Array) -> tuple[float, Array]:
    """¼ Σ_{r≠s} Σ_j λ_jr² λ_js² for Λ = A T⁻ᵀ, and its gradient by T along the columns' unit spheres."""
    k = len(T)
    pattern = A @ np.linalg.inv(T).T
    others = pattern**2 @ (1 - np.eye(k))
    gradient = -(pattern.T @ (pattern * others) @ np.linalg.inv(T)).T
    return float((pattern**2 * others).sum()) / 4, gradient - T * (T * gradient).sum(axis=0)


@pytest.mark.parametrize(("m", "k"), [(9, 2), (20, 4), (21, 7)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_end_is_a_minimum_below_the_start(m: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    simple = np.eye(k)[np.arange(m) % k] * rng.uniform(0.4, 0.9, (m, 1))
    A = (simple + 0.1 * rng.normal(size=(m, k))) @ ortho_group.rvs(k, random_state=seed + 9)
    start = ortho_group.rvs(k, random_state=seed)
    T = start.copy()
    assert minimize_oblimin(A, T, 1e-9, 0) == pytest.approx(criterion(A, start)[0], rel=1e-12)
    np.testing.assert_array_equal(T, start)
    value = minimize_oblimin(A, T, 1e-7, 5000)
    found, gradient = criterion(A, T)
    assert value == pytest.approx(found, rel=1e-12)
    assert value < criterion(A, start)[0]
    assert np.linalg.norm(gradient) < 1e-6
    np.testing.assert_allclose(np.linalg.norm(T, axis=0), 1, rtol=1e-12)


def test_a_start_without_slope_is_kept() -> None:
    A, T = np.array([[0.5, 0.0], [0.7, 0.0], [0.6, 0.0]]), np.eye(2)
    assert minimize_oblimin(A, T, 1e-9, 100) == pytest.approx(0, abs=1e-15)
    np.testing.assert_array_equal(T, np.eye(2))
