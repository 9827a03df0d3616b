"""PCA and NMF in place of scikit-learn's: the tables of the guide, and what is accepted, refused and equal."""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import decomposition
from sklearn.base import clone

import dfact
from dfact.errors import ParameterError

GUIDE = Path(dfact.__file__).parent / "guides" / "from-scikit-learn.md"
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "PCA": {"svd_solver": "randomized", "iterated_power": 3, "n_oversamples": 20, "power_iteration_normalizer": "QR"},
    "NMF": {"solver": "mu", "beta_loss": "kullback-leibler", "shuffle": True, "verbose": 1},
}


def frame(seed: int = 0, n: int = 60, m: int = 9) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = rng.random((n, 4)) @ rng.random((4, m)) + 0.3 * rng.random((n, m))
    return pd.DataFrame(X, columns=[f"item{j}" for j in range(m)])


def said(name: str) -> dict[str, str]:
    """Return what the guide says of each name of scikit-learn's class."""
    _, _, table = GUIDE.read_text().partition(f"| scikit-learn's `{name}` | dfact's |")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table.split("\n\n")[0], re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


@pytest.mark.parametrize("name", ["PCA", "NMF"])
def test_the_guide_names_all_that_scikit_learn_has(name: str) -> None:
    kind = getattr(decomposition, name)
    fitted = kind(2, tol=0).fit(frame())  # without a warning
    parameters = set(inspect.signature(kind).parameters)
    attributes = {attribute for attribute in vars(fitted) if attribute.endswith("_") and not attribute.startswith("_")}
    methods = {method for method in dir(fitted) if not method.startswith(("_", "set_fit_", "set_transform_"))}
    methods = {method for method in methods - parameters - attributes if callable(getattr(fitted, method, None))}
    assert set(said(name)) == parameters | attributes | methods


@pytest.mark.parametrize("name", ["PCA", "NMF"])
def test_what_the_guide_calls_the_same_is_there(name: str) -> None:
    kind, theirs = getattr(dfact, name), inspect.signature(getattr(decomposition, name)).parameters
    fitted = kind(2).fit(frame())
    for each, text in said(name).items():
        word = re.split(r"[ ,:;]", text)[0]
        if each not in theirs:
            assert word == "the", each
            assert hasattr(fitted, each), each
        elif word in ("the", "another"):
            assert each in fitted.get_params(), each
        elif word == "accepted":
            assert each in kind.foreign
            assert each not in REFUSED[name]
        elif word == "named":
            assert text.split("`")[1] in fitted.get_params()
        else:
            assert word == "refused"
            assert each in REFUSED[name]


@pytest.mark.parametrize(("name", "parameter"), [(name, each) for name, values in REFUSED.items() for each in values])
def test_parameters_of_scikit_learn_alone_are_refused_with_what_to_do(name: str, parameter: str) -> None:
    value, kind = REFUSED[name][parameter], getattr(dfact, name)
    assert parameter in inspect.signature(getattr(decomposition, name)).parameters
    expected = rf"{parameter} is {value!r}, a parameter of scikit-learn's {name} that dfact's has not; \w+"
    with pytest.raises(ParameterError, match=expected):
        kind(2, **{parameter: value})
    with pytest.raises(ParameterError, match=expected):
        kind(2).set_params(**{parameter: value})
    default = inspect.signature(getattr(decomposition, name)).parameters[parameter].default
    assert kind(2, **{parameter: default}).get_params() == kind(2).get_params()


def test_a_parameter_of_neither_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'svd_solvers'"):
        dfact.PCA(2, svd_solvers="full")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="Invalid parameter 'svd_solvers'"):
        dfact.PCA(2).set_params(svd_solvers="full")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n_components", [None, 0.3, 0.8, 0.95, 0.999, 3])
def test_numbers_of_components_are_those_of_scikit_learn(n_components: float | None, seed: int) -> None:
    X = frame(seed, 40 + seed, 12)
    settings: dict[str, Any] = {"random_state": 0, "svd_solver": "full", "copy": True}
    ours, theirs = dfact.PCA(n_components, **settings).fit(X), decomposition.PCA(n_components, **settings).fit(X)
    assert ours.n_components_ == theirs.n_components_
    assert clone(ours).n_components == n_components
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-9)
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9, err_msg=name)
    np.testing.assert_allclose([ours.score(X)], [theirs.score(X)], rtol=1e-6)


def test_fewer_rows_than_columns_and_more_columns_than_a_gram_matrix_usually_has() -> None:
    X = np.random.default_rng(0).normal(size=(7, 30))
    for n_components in (None, 0.7):
        ours, theirs = dfact.PCA(n_components).fit(X), decomposition.PCA(n_components).fit(X)
        assert ours.n_components_ == theirs.n_components_
    wide = np.random.default_rng(1).normal(size=(600, 530)) * np.linspace(3, 0.1, 530)
    assert dfact.PCA(0.5).fit(wide).n_components_ == decomposition.PCA(0.5, svd_solver="full").fit(wide).n_components_


def test_a_share_survives_saving_and_stays_in_an_update(tmp_path: Path) -> None:
    X = frame(3)
    model = dfact.PCA(0.9).fit(X)
    dfact.save_model(model, tmp_path / "m")
    loaded: Any = dfact.load_model(tmp_path / "m")
    assert (loaded.n_components, loaded.n_components_) == (0.9, model.n_components_)
    grown = loaded.partial_fit(frame(4))
    assert grown.n_components_ == model.n_components_
    assert grown.transform(X[:1]).shape == (1, model.n_components_)


def test_shares_that_need_all_variances_are_refused_where_these_are_not_computed() -> None:
    X = frame().to_numpy()
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    for n_components in (0.9, None):
        with pytest.raises(ParameterError, match=rf"n_components is {n_components} for data with missing entries, .*missing='mean'"):
            dfact.PCA(n_components).fit(holes)
        with pytest.raises(ParameterError, match=rf"n_components is {n_components} for 20 rows of 600 columns, expected an integer"):
            dfact.PCA(n_components).fit(np.random.default_rng(0).normal(size=(20, 600)))
    assert 1 <= dfact.PCA(0.9, missing="mean").fit(holes).n_components_ <= 9
    for value in (0, 1.0, 1.5, 0.0, True, "mle"):
        with pytest.raises(ParameterError, match=r"n_components is .*a share of the variance between 0 and 1, or None"):
            dfact.PCA(value).fit(X)  # type: ignore[arg-type]
