"""The anchor of group effects: optimal, invariant to the shift that a model does not determine, and as recovered from planted effects."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.linalg.anchor import anchor

SEEDS = range(40)


def planted(seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return effects, loadings and scales of few items, with ties in every third case, and factors without loadings in some."""
    rng = np.random.default_rng(seed)
    m, k = rng.integers(2, 30), rng.integers(1, 6)
    Q = rng.random((m, k)) * (rng.random((m, k)) < 0.5)
    if seed % 3 == 0:
        Q = np.round(2 * Q) / 2
    e = Q @ rng.normal(size=k) + np.where(rng.random(m) < 0.4, rng.normal(size=m), 0.0)
    if seed % 5 == 0:
        e = np.round(4 * e) / 4
    return e, Q, rng.uniform(0.3, 2, m) if seed % 2 else np.ones(m)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_other_shift_leaves_smaller_effects(seed: int) -> None:
    e, Q, s = planted(seed)
    found, rng = anchor(e, Q, s), np.random.default_rng(seed)
    assert_allclose(found.effects, e - Q @ found.shift, atol=1e-9)
    steps = rng.normal(size=(200, Q.shape[1])) * 10.0 ** rng.uniform(-6, 0, (200, 1))
    others = np.abs((e - (found.shift + steps) @ Q.T) / s).sum(axis=1)
    assert others.min() >= np.abs(found.effects / s).sum() - 1e-9  # the problem is convex: no neighbour is better, so none is


@pytest.mark.parametrize("seed", SEEDS)
def test_the_effects_do_not_depend_on_how_a_model_splits_them(seed: int) -> None:
    e, Q, s = planted(seed)
    shift = np.random.default_rng(seed).normal(size=Q.shape[1])
    found, moved = anchor(e, Q, s), anchor(e - Q @ shift, Q, s)
    assert_allclose(moved.effects, found.effects, atol=1e-8)
    assert_allclose(Q @ (moved.shift + shift), Q @ found.shift, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_a_minority_of_items_with_effects_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    Q = np.kron(np.eye(3), np.ones((11, 1))) * rng.uniform(0.3, 1, (33, 1))
    effects, shift = np.zeros(33), rng.normal(size=3)
    effects[[0, 1, 2, 3, 11, 12, 22]] = rng.choice([-0.5, 0.5], 7)
    found = anchor(Q @ shift + effects, Q, rng.uniform(0.8, 1.2, 33))
    assert_allclose(found.shift, shift, atol=1e-9)
    assert_allclose(found.effects, effects, atol=1e-9)


def test_units_of_items_and_factors_do_not_matter() -> None:
    e, Q, s = planted(7)
    found, scaled = anchor(e, Q, s), anchor(1e-9 * e, 1e6 * Q, 1e3 * s)
    assert_allclose(scaled.effects, 1e-9 * found.effects, atol=1e-20)


def test_a_shift_that_the_items_do_not_determine_is_the_smallest() -> None:
    Q = np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 0.0, 2.0]])
    found = anchor([0.5, 0.5, 0.5], Q)
    assert_allclose(found.shift, [0.1, 0.0, 0.2])  # the pseudo-inverse's: the second factor has no loadings
    assert anchor([0.5, 0.0], np.zeros((2, 2))).shift.tolist() == [0.0, 0.0]
    # Of all shifts from 1 to 2, that with the smallest squares of the effects.
    assert_allclose(anchor([0.0, 1.0, 2.0, 3.5], np.ones((4, 1))).shift, [1.625])


@pytest.mark.parametrize(
    ("effects", "loadings", "scale", "error", "message"),
    [
        ([[0.1, 0.2]], np.ones((2, 1)), None, dfact.errors.ParameterError, "anchor one difference at a time"),
        ([0.1, 0.2], np.ones((3, 1)), None, dfact.errors.ParameterError, "expected \\(m,\\), \\(m, k\\) and \\(m,\\)"),
        ([0.1, 0.2], np.ones((2, 1)), [1.0, 0.0], dfact.errors.ParameterError, "leave out items that do not vary"),
        ([0.1, np.nan], np.ones((2, 1)), None, dfact.DataError, "effects holds nan"),
    ],
)
def test_bad_input_is_named(effects: Any, loadings: Any, scale: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        anchor(effects, loadings, scale)
