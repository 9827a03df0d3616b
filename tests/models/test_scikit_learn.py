"""The parts of scikit-learn's interface that come from its own classes on first use."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

import dfact
from dfact.models.estimator import MODELS


def test_metadata_is_routed_through_a_pipeline() -> None:
    X, weights = np.random.default_rng(0).random((40, 6)), np.r_[np.zeros(20), np.ones(20)]
    with sklearn.config_context(enable_metadata_routing=True):
        model = dfact.ICQF(2, random_state=0, max_iter=5).set_fit_request(sample_weight=True)
        assert model.get_metadata_routing().fit.requests["sample_weight"] is True
        fitted = make_pipeline(model).fit(X, sample_weight=weights)[-1]
        alone = dfact.ICQF(2, random_state=0, max_iter=5).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(fitted.components_, alone.components_)
    assert fitted.weighted_


def test_a_clone_keeps_its_container() -> None:
    X = np.random.default_rng(0).random((30, 5))
    out = clone(dfact.ICQF(2, random_state=0, max_iter=3).set_output(transform="pandas")).fit_transform(X)
    assert list(out.columns) == ["F1", "F2"]
    with sklearn.config_context(transform_output="pandas"):
        assert list(dfact.ICQF(2, random_state=0, max_iter=3).fit(X).transform(X)) == ["F1", "F2"]


def test_representations_and_tags_are_those_of_scikit_learn() -> None:
    model = dfact.ICQF(3, beta=0.5)
    assert repr(model) == "ICQF(beta=0.5, n_components=3)"
    assert "ICQF" in model._repr_html_()
    assert get_tags(model).input_tags.allow_nan
    assert MODELS["ICQF"] is dfact.ICQF  # the class that scikit-learn's bases are added to is no further model


def test_invalid_names_and_unfitted_models_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid parameter 'rank' for estimator ICQF"):
        dfact.ICQF().set_params(rank=3)
    with pytest.raises(NotFittedError, match="This ICQF instance is not fitted yet"):
        dfact.ICQF().transform(np.ones((3, 3)))
    with pytest.raises(AttributeError, match="'ICQF' object has no attribute 'rank_'"):
        dfact.ICQF().rank_  # noqa: B018  # the access is what is tested
