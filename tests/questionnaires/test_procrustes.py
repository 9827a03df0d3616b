"""Rotation to a target: what is recovered, and that nothing is closer."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import ortho_group

from dfact.linalg.congruence import congruences
from dfact.questionnaires.rotation import rotate_to_target


@pytest.mark.parametrize("seed", range(3))
def test_rotated_loadings_return_to_the_target(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(3, 10))
    orthogonal, any_combination = ortho_group.rvs(3, random_state=seed), rng.normal(size=(3, 3))
    assert_allclose(rotate_to_target(orthogonal @ target, target, oblique=False), target, atol=1e-12)
    assert_allclose(rotate_to_target(any_combination @ target, target, oblique=True), target, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_no_combination_of_the_factors_is_more_congruent_and_no_rotation_is_closer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, 3, 10))
    oblique, orthogonal = rotate_to_target(A, B, oblique=True), rotate_to_target(A, B, oblique=False)
    for _ in range(50):
        assert (congruences(rng.normal(size=(3, 3)) @ A, B) <= congruences(oblique, B) + 1e-12).all()
        other = ortho_group.rvs(3, random_state=rng) @ A
        assert np.linalg.norm(orthogonal - B) <= np.linalg.norm(other - B) + 1e-12
    assert_allclose(orthogonal.T @ orthogonal, A.T @ A, atol=1e-12)  # a rotation keeps the products of items
