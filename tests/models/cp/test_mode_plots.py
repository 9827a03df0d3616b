"""The factor matrices of a tensor as figures, and the ranking of a mode's slices by the leading components."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dfact
from dfact.errors import ParameterError
from dfact.models.cp.plots import leading_plot, leading_sums, mode_heatmap, mode_table
from dfact.report.presenters.base import mode_plot
from tests.models.cp.test_penalty_selection import planted


@pytest.fixture(scope="module")
def model() -> Any:
    return dfact.ElasticCP(3, lam=1e-6, n_init=1, max_iter=200, random_state=0).fit(planted((12, 7, 6), 3, 0))


def test_sums_of_the_leading_vectors_do_not_depend_on_their_signs(model: Any) -> None:
    expected = leading_sums(model, 2, 2)
    table = mode_table(model, 2)
    assert abs(expected.iloc[0]) == expected.abs().max()
    assert (expected.abs().diff().dropna() <= 0).all()
    factors = [np.array(A) for A in model.factors_]
    first, second = (sign * table.iloc[:, r] for r, sign in enumerate(np.prod([np.sign(A.sum(axis=0)) for A in factors[:2]], axis=0)[:2]))
    assert_allclose(expected.sort_index(), (first + second).sort_index(), rtol=1e-6)
    turned = dfact.ElasticCP(3, lam=1e-6)
    turned.__dict__.update(model.__dict__)
    turned.factors_ = [factors[0] * [-1, 1, 1], factors[1] * [1, -1, 1], factors[2] * [-1, -1, 1]]
    assert_allclose(leading_sums(turned, 2, 2).sort_index(), expected.sort_index(), rtol=1e-6)


def test_figures_show_unit_vectors_and_ranked_sums(model: Any) -> None:
    pytest.importorskip("matplotlib")
    for n in range(3):
        (image,) = mode_heatmap(model, n).axes[0].images
        assert_allclose(np.square(np.asarray(image.get_array())).sum(axis=0), 1, rtol=1e-6)
    bars = [bar.get_width() for bar in leading_plot(model, 2, 6).axes[0].patches]
    assert_allclose(bars, leading_sums(model, 2, 3))  # three are left
    assert len(mode_plot(model, 1).axes[0].images) == 1
    with pytest.raises(ParameterError, match="mode is 4, expected a mode of the tensor, from 1 to 3"):
        mode_plot(model, 4)
    with pytest.raises(ParameterError, match="leading is 0"):
        leading_sums(model, 2, 0)


def test_matrices_have_no_modes_to_plot() -> None:
    pca = dfact.PCA(1).fit(np.random.default_rng(0).normal(size=(20, 4)))
    with pytest.raises(ParameterError, match="the model is a PCA, whose data have two modes, expected one of a tensor; leave out --mode"):
        mode_plot(pca, 1)
