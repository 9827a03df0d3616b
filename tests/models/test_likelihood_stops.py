"""Fits by likelihood end at a maximum: a slow pass near a saddle is not the end."""

import warnings

import numpy as np
import pytest

from benchmarks.admixture import stopping
from dfact.models.binomial.fit import has_converged


@pytest.mark.parametrize("seed", [3, 0, 11, 13, 21])
@pytest.mark.parametrize("name", stopping.SETS)
def test_default_fits_end_where_tight_ones_do(name: str, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        short, passes, tight = stopping.shortfall(*stopping.SETS[name](seed))
    assert short < 0.01
    assert passes <= tight


def test_a_pause_is_not_the_end() -> None:
    """Three passes gain next to nothing, then the fit leaves the saddle."""
    pause = [-2e4 + 1e-9 * i for i in range(4)]
    history = [*np.linspace(-2.2e4, -2e4, 13), *pause]
    assert not any(has_converged(history[:n], 1e-7) for n in range(1, len(history) + 1))
    settled = [-2e4 - 2.0**-i for i in range(60)]
    passes = next(n for n in range(1, 61) if has_converged(settled[:n], 1e-7))
    assert settled[-1] - settled[passes - 1] < 1e-5
    assert 13 < passes < next(n for n in range(1, 61) if has_converged(settled[:n], 1e-9))


def test_slow_passes_are_not_the_end() -> None:
    """Passes that gain little, and hardly less than those before, have far to go."""
    slow = [-2e4 - 0.01 * 0.99**i for i in range(900)]
    passes = next(n for n in range(1, 901) if has_converged(slow[:n], 1e-7))
    assert -2e4 - slow[passes - 1] < 2e-4
    assert slow[passes - 1] - slow[passes - 2] < 1e-5


def test_large_data_is_judged_by_a_share_of_its_likelihood() -> None:
    history = [-1e8 + 0.004 * i for i in range(20)]
    assert has_converged(history, 1e-7)
    assert not has_converged([100 * (value + 1e8) - 1e8 for value in history], 1e-7)
