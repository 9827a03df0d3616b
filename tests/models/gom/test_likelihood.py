"""Refinement of grade of membership by likelihood: ascent, held-out answers, missing entries, one result on all executors."""

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

import dfact
from dfact import DataError, GradeOfMembership, ParameterError
from dfact.cli.main import main
from tests.cases import exhaustive_after
from tests.suites.estimator import EstimatorSuite

Array = NDArray[Any]
ALONE = "ignore:only the subject that defines"  # of the spectral estimate


def planted(seed: int, n: int = 400, m: int = 40, k: int = 3, levels: int = 4, missing: float = 0.2) -> tuple[Array, Array, Array]:
    """Memberships, few of them pure, item parameters, and responses with NaN where missing."""
    rng = np.random.default_rng(seed)
    Pi = np.vstack([np.eye(k)[rng.integers(0, k, n // 10)], rng.dirichlet(np.full(k, 0.8), n - n // 10)])
    Theta = rng.beta(0.5, 0.5, (m, k)) * levels
    R = rng.binomial(levels, Pi @ Theta.T / levels).astype(np.float32)
    R[rng.random(R.shape) < missing] = np.nan
    return Pi, Theta, R


def fit(X: Any, likelihood: str = "binomial", **parameters: Any) -> GradeOfMembership:
    return GradeOfMembership(3, **{"random_state": 0, "likelihood": likelihood, "max_response": 4, **parameters}).fit(X)


def log_likelihood(model: GradeOfMembership, X: Array) -> float:
    f, R = model.inverse_transform(np.asarray(model.memberships_, np.float64)) / 4, np.nan_to_num(X)
    return float((~np.isnan(X) * (xlogy(R, f) + xlog1py(4 - R, -f))).sum())


def deviance(model: GradeOfMembership, X: Array, held_out: Array) -> float:
    """Mean deviance of the answers that are held out, from their expectations."""
    mu, g = np.clip(model.inverse_transform(np.asarray(model.memberships_, np.float64)), 4e-5, 4 - 4e-5)[held_out], X[held_out]
    return float((xlogy(g, g / mu) + xlogy(4 - g, (4 - g) / (4 - mu))).mean())


@pytest.mark.filterwarnings(ALONE)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["crsc", "srsc"])
def test_the_likelihood_rises_and_is_that_of_the_model(seed: int, method: str) -> None:
    _, _, X = planted(seed)
    model = fit(X, method=method, dtype="float64", tol=1e-9)
    assert all(after >= before - 1e-9 * abs(before) for before, after in pairwise(model.log_likelihood_history_))
    assert log_likelihood(model, X) == pytest.approx(model.log_likelihood_, rel=1e-9)
    assert model.log_likelihood_ == model.log_likelihood_history_[-1]
    assert (np.diff(model.memberships_.sum(axis=0)) <= 0).all()
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1)
    assert 0 < model.components_.min() <= model.components_.max() < 4
    spectral = fit(X, "none", method=method)
    assert not hasattr(spectral, "log_likelihood_history_")
    np.testing.assert_array_equal(np.sort(model.pure_subjects_), np.sort(spectral.pure_subjects_))
    assert model.highly_pure_share_ == pytest.approx((model.memberships_.max(axis=1) >= 0.9).mean())


@pytest.mark.filterwarnings(ALONE)
@pytest.mark.parametrize("seed", range(3))
def test_held_out_answers_are_predicted_better_where_few_are_pure(seed: int) -> None:
    Pi, Theta, X = planted(seed, missing=0.0)
    held_out = np.random.default_rng(seed).random(X.shape) < 0.2
    train = np.where(held_out, np.nan, X).astype(np.float32)
    spectral, refined = (deviance(fit(train, likelihood), X, held_out) for likelihood in ("none", "binomial"))
    assert refined < 0.9 * spectral
    mu = (Pi @ Theta.T)[held_out]
    truth = float((xlogy(X[held_out], X[held_out] / mu) + xlogy(4 - X[held_out], (4 - X[held_out]) / (4 - mu))).mean())
    assert refined < 1.2 * truth


@pytest.mark.filterwarnings(ALONE, "ignore:.*have no response")
@pytest.mark.parametrize(
    ("name", "items", "k", "expected"),
    exhaustive_after(1, [("ipip_ascado", 40, 2, 0.607), ("ipip_ascado", 40, 4, 0.549), ("kims", 39, 4, 0.570)]),
)
def test_held_out_answers_of_questionnaires_are_predicted(name: str, items: int, k: int, expected: float, questionnaires: Path) -> None:
    """The deviance varies by some 0.01 between draws of the held-out answers."""
    answers = pd.read_csv(questionnaires / f"{name}.csv").filter(regex=r"^(AS|SC|AD|DO|Q)\d+$").to_numpy(np.float32) - 1
    assert answers.shape[1] == items
    X, found = np.where(answers < 0, np.nan, answers), []
    for seed in range(3):
        held_out = (np.random.default_rng(seed).random(X.shape) < 0.2) & ~np.isnan(X)
        train = np.where(held_out, np.nan, X)
        spectral, refined = (
            GradeOfMembership(k, max_response=4, likelihood=likelihood, random_state=0).fit(train) for likelihood in ("none", "binomial")
        )
        responding = held_out & ~np.isnan(spectral.memberships_[:, :1])  # the spectral method takes the lowest answer as missing
        assert deviance(refined, X, responding) < 0.9 * deviance(spectral, X, responding)
        found.append(deviance(refined, X, held_out))
    assert np.mean(found) == pytest.approx(expected, abs=0.02)


@pytest.mark.filterwarnings("ignore:.*have no response")
def test_missing_answers_are_left_out_and_zeros_are_answers() -> None:
    """Half of the subjects lack half of the answers: taken as 0, these would lower the classes' expected responses."""
    Pi, Theta, X = planted(4, n=600, missing=0.0)
    X[::2, ::2] = np.nan
    X[5], X[6] = np.nan, 0
    model, complete = fit(X), fit(np.nan_to_num(X))
    assert np.isnan(model.memberships_[5]).all()
    assert np.isfinite(np.delete(model.memberships_, 5, axis=0)).all(), "zeros are answers"
    assert model.n_unobserved_ == 1

    def error(fitted: GradeOfMembership) -> float:
        expected = fitted.inverse_transform(np.nan_to_num(np.asarray(fitted.memberships_, np.float64)))
        return float(np.delete(np.abs(expected - Pi @ Theta.T), [5, 6], axis=0).mean())

    assert error(model) < 0.3
    assert error(complete) > 2 * error(model)


def test_transform_is_that_of_the_likelihood() -> None:
    _, _, X = planted(2)
    model = fit(X, tol=1e-9)
    np.testing.assert_allclose(model.transform(X), model.memberships_, atol=0.01)


def test_invalid_data_and_parameters_are_refused() -> None:
    Pi, Theta, X = planted(0, 60, 12)
    with pytest.raises(ParameterError, match="likelihood is 'multinomial', expected 'none' or 'binomial'"):
        fit(X, "multinomial")
    with pytest.raises(ParameterError, match=r"the highest response is 4\.5, expected a whole number"):
        fit(X, max_response=4.5)
    with pytest.raises(DataError, match="expected whole numbers from 0"):
        fit(Pi @ Theta.T)
    with pytest.raises(ParameterError, match="max_iter is 0"):
        fit(X, max_iter=0)


def test_the_command_refines_a_shifted_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, X = planted(3, 200, 12, missing=0.1)
    X[0] = np.arange(12) % 5
    table = pd.DataFrame(np.where(np.isnan(X), -9, X + 2).astype(int), columns=[f"Q{j}" for j in range(12)])
    table.to_csv(tmp_path / "r.csv", index=False)
    dfact.import_table(tmp_path / "r.csv", tmp_path / "r.zarr", items=["Q*"], missing=[-9])
    assert main(["fit", "gom", str(tmp_path / "r.zarr"), str(tmp_path / "r.model"), "--likelihood", "binomial", "--seed", "0"]) == 0
    assert "binomial, converged after" in capsys.readouterr().out
    loaded = dfact.load_model(tmp_path / "r.model")
    expected = GradeOfMembership(3, likelihood="binomial", random_state=0).fit(X + 2)
    np.testing.assert_array_equal(np.asarray(loaded.memberships_), expected.memberships_)
    assert loaded.log_likelihood_ == expected.log_likelihood_


@pytest.mark.further
class TestEstimator(EstimatorSuite):
    model = GradeOfMembership
    parameters: ClassVar = {"n_components": 3, "random_state": 0, "likelihood": "binomial", "max_iter": 20}
    rows = "memberships_"
    tolerance = 0.5
    derived = ("item_parameters_",)

    def data(self) -> Array:
        return planted(8, 2000, 40)[2]
