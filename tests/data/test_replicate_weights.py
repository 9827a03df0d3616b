"""Replicate weights of surveys: the variance formulas against closed forms, their import, and what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.linalg import hadamard

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.data.replicate_weights import ReplicateWeights
from dfact.errors import DataError, ParameterError
from tests.cases import of_slice


def jackknife(n: int) -> NDArray[np.float64]:
    """Each of n rows left out once."""
    return np.asarray(n / (n - 1) * (1 - np.eye(n)))


def balanced(strata: NDArray[np.intp], second: NDArray[np.bool_], replicates: int, fay: float = 0.0) -> NDArray[np.float64]:
    """Balanced halves of two clusters in each stratum (n, R); the other half has the weight ``fay``."""
    signs = hadamard(replicates)[1 + strata].astype(float) * np.where(second, 1, -1)[:, None]
    return np.where(signs > 0, 2 - fay, fay)


def weighted_mean(x: NDArray[Any], replicates: ReplicateWeights) -> NDArray[np.float64]:
    return np.array([np.average(x, weights=replicates.column(r)) for r in range(replicates.n_replicates)])


@pytest.mark.parametrize("seed", range(3))
def test_jackknife_variance_of_a_mean_is_that_of_a_simple_random_sample(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=25)
    replicates = ReplicateWeights.of(jackknife(25), 25, method="jk1")
    assert_allclose(replicates.standard_error(weighted_mean(x, replicates), x.mean()), x.std(ddof=1) / 5)
    assert replicates.df == 24


@pytest.mark.parametrize(("strata", "replicates", "fay"), [(3, 4, 0.0), (7, 8, 0.5), (5, 8, 0.3)])
def test_balanced_halves_have_the_variance_of_two_clusters_in_each_stratum(strata: int, replicates: int, fay: float) -> None:
    rng = np.random.default_rng(strata)
    x, stratum, second = rng.normal(size=2 * strata), np.repeat(np.arange(strata), 2), np.tile([False, True], strata)
    method: dict[str, Any] = {"method": "fay", "fay": fay} if fay else {"method": "brr"}
    weights = ReplicateWeights.of(balanced(stratum, second, replicates, fay), 2 * strata, **method)
    differences = x[1::2] - x[::2]
    # The mean of the strata's means has the variance Σ_h (x_h1 − x_h2)²/4/H² (Wolter 2007, section 3.2).
    expected = np.sqrt((differences**2).sum() / 4) / strata
    assert_allclose(weights.standard_error(weighted_mean(x, weights), x.mean()), expected)
    assert weights.df == strata


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 5, 4)])
def test_stratified_jackknife_has_the_variance_of_the_strata(sizes: tuple[int, ...]) -> None:
    stratum = np.repeat(np.arange(len(sizes)), sizes)
    n_h = np.asarray(sizes)[stratum]
    values = np.where(stratum[:, None] == stratum, n_h / (n_h - 1), 1.0)
    np.fill_diagonal(values, 0)
    x = np.random.default_rng(0).normal(size=len(stratum))
    weights = ReplicateWeights.of(values, len(x), method="jkn", scales=(n_h - 1) / n_h)
    totals = np.array([weights.column(r) @ x for r in range(len(x))])
    # The total of all strata: Σ_h n_h s_h².
    expected = np.sqrt(sum(n * x[stratum == h].var(ddof=1) for h, n in enumerate(sizes)))
    assert_allclose(weights.standard_error(totals, x.sum()), expected)
    assert weights.df == len(x) - len(sizes)


def test_bootstrap_columns_have_the_variance_about_the_estimate() -> None:
    drawn = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 30).T.astype(float)
    weights, x = ReplicateWeights.of(drawn, 40, method="bootstrap"), np.arange(40.0)
    means = weighted_mean(x, weights)
    assert_allclose(weights.standard_error(means, x.mean()), np.sqrt(((means - x.mean()) ** 2).mean()))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"values": jackknife(5)}, DataError, "are 5×5, expected 6 rows"),
        ({"values": np.ones((6, 1))}, DataError, "at least 2 columns"),
        ({"values": -jackknife(6)}, DataError, "replicate 1 of row 1 is -1.2"),
        ({"values": np.where(np.eye(6) > 0, np.nan, 1)}, DataError, "replicate 1 of row 0 is missing"),
        ({"method": None}, ParameterError, "method of the replicate weights is None, expected one of jk1, jkn, brr"),
        ({"method": "fay"}, ParameterError, "Fay's factor is None"),
        ({"fay": 0.5}, ParameterError, "Fay's factor is 0.5 with the method 'jk1'"),
        ({"method": "fay", "fay": 1.0}, ParameterError, "expected 0 ≤ ρ < 1"),
        ({"method": "jkn"}, ParameterError, "scales .* are missing"),
        ({"scales": 0.5}, ParameterError, "given with the method 'jk1'"),
        ({"method": "jkn", "scales": [0.5, 0.5]}, ParameterError, "expected 6 finite numbers above 0"),
    ],
)
def test_replicate_weights_that_do_not_fit_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"values": jackknife(6), "method": "jk1"} | change
    dataset = as_dataset(np.arange(12.0).reshape(6, 2)).with_weights(np.ones(6))
    with pytest.raises(error, match=message):
        dataset.with_replicate_weights(**arguments)


def test_replicate_weights_belong_to_the_main_weights() -> None:
    dataset = as_dataset(np.arange(12.0).reshape(6, 2))
    with pytest.raises(DataError, match="has no weights"):
        dataset.with_replicate_weights(jackknife(6), method="jk1")
    weighted = dataset.with_weights(np.ones(6)).with_replicate_weights(jackknife(6), method="jk1")
    assert weighted.with_weights(np.arange(1.0, 7)).replicate_weights is None
    assert weighted.with_weights(None).replicate_weights is None
    assert weighted.fingerprint != dataset.with_weights(np.ones(6)).fingerprint


def survey(seed: int, n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    answers = np.clip(np.rint(2 + rng.normal(size=(n, 1)) + rng.normal(size=(n, 5))), 0, 4)
    frame = pd.DataFrame(answers, columns=[f"Q{j}" for j in range(5)]).astype("Int64")
    frame.loc[7] = pd.NA
    stratum, second = np.arange(n) // 2 % 7, np.arange(n) % 2 == 1
    frame["w"] = rng.uniform(0.5, 2, n)
    halves = balanced(stratum, second, 8, 0.5) * frame["w"].to_numpy()[:, None]
    return pd.concat([frame, pd.DataFrame(halves, columns=[f"RW{r}" for r in range(8)])], axis=1)


def test_replicate_weights_are_imported_beside_the_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = survey(0).assign(id=np.arange(120))
    frame.to_csv(tmp_path / "s.csv", index=False)
    command = ["import", str(tmp_path / "s.csv"), str(tmp_path / "s.zarr"), "--items", "Q*", "--id-column", "id", "--empty-rows", "drop"]
    method = ["--weight", "w", "--replicate-weights", "RW*", "--replicate-method", "fay", "--fay", "0.5"]
    assert main([*command, *method]) == 0
    assert "8 replicate weights (Fay's BRR), 7 degrees of freedom" in capsys.readouterr().out
    dataset = dfact.open_dataset(tmp_path / "s.zarr")
    assert dataset.replicate_weights is not None
    assert_array_equal(np.asarray(dataset.replicate_weights.values), frame.drop(index=7).filter(like="RW"))
    assert_allclose(dataset.replicate_weights.scales, 1 / (8 * 0.25))
    for missing, message in ((method[:2] + method[4:], "no column, expected"), (method[2:], "no weight, expected"), (method[:4], "None")):
        assert main([*command, "--overwrite", *missing]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(DataError, match="replicate weights, which a join leaves out"):
        dfact.join_datasets({"a": dataset, "b": dataset}, tmp_path / "joined.zarr")
    assert main([*command, "--overwrite", "--weight", "w", "--replicate-weights", "X*", "--replicate-method", "brr"]) == 1
    assert "no column matches 'X*'" in capsys.readouterr().err


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_description_has_the_standard_errors_of_the_survey(missing: str) -> None:
    frame = survey(1).drop(index=7).reset_index(drop=True)
    X, w, halves = frame.filter(like="Q").astype(float), frame["w"].to_numpy(), frame.filter(like="RW").to_numpy()
    dataset = as_dataset(X).with_weights(w).with_replicate_weights(halves, method="fay", fay=0.5)
    found = dfact.describe(dataset, missing=missing, keys={"Q0": -1, "Q1": -1, "Q2": -1, "Q3": -1, "Q4": -1})
    by_replicate = [dfact.describe(X, sample_weight=column, missing=missing) for column in halves.T]
    plain = dfact.describe(X, sample_weight=w, missing=missing)
    squares = sum((r.scales["alpha"] - plain.scales["alpha"]) ** 2 for r in by_replicate) / (8 * 0.25)
    assert_allclose(found.scales["se"], np.sqrt(squares))
    assert_allclose(found.items["mean_se"], np.sqrt(sum((r.items["mean"] - plain.items["mean"]) ** 2 for r in by_replicate) / 2))
    assert (found.interval, plain.interval) == ("replicates", "jackknife")
    assert_allclose(found.scales["ci_high"] - found.scales["alpha"], 2.364624 * found.scales["se"], rtol=1e-6)  # t of 7 degrees of freedom
    with pytest.raises(ParameterError, match=r"expected one of 'jackknife', 'feldt'$"):
        dfact.describe(X, interval="replicates")


@pytest.mark.parametrize(("name", "seed"), [("icqf", 0), ("nmf", 1), ("fa", 2)])
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_refits_are_those_with_each_replicate_weight(name: str, seed: int, executor: str) -> None:
    frame = survey(seed, 240).drop(index=7).reset_index(drop=True)
    X, w, halves = frame.filter(like="Q").to_numpy(float), frame["w"].to_numpy(), frame.filter(like="RW").to_numpy()
    dataset = as_dataset(X).with_weights(w).with_replicate_weights(halves, method="fay", fay=0.5)
    kinds: dict[str, Any] = {"icqf": dfact.ICQF(1, bounds=(0, 4)), "nmf": dfact.NMF(1)}
    kinds |= dict(zip(["fa"], of_slice("FactorAnalysis", 1), strict=False))
    model = kinds[name].set_params(executor=executor, dtype="float64").fit(dataset)
    found = dfact.selection.bootstrap(model, dataset)
    assert found.resampling == "8 replicate weights (Fay's BRR)"
    assert found.estimate is not None
    assert found.se is not None
    tight = {} if name == "fa" else {"tol": 1e-5, "init": found.estimate}
    again = [type(model)(**model.get_params() | tight).fit(X, sample_weight=column).components_ for column in halves.T]
    assert_allclose(found.mean, np.mean(again, axis=0), rtol=2e-2)
    if name == "nmf":
        assert np.isnan(found.se).all()
        return
    assert_allclose(found.se, np.sqrt(((np.stack(again) - found.estimate) ** 2).sum(axis=0) / 2), rtol=0.2)
    determined = ~np.isnan(found.low)
    assert determined.any()
    assert_allclose((found.high - found.low)[determined] / 2, (2.364624 * found.se)[determined], rtol=1e-6)
    with pytest.raises(ParameterError, match="there are no replicate weights"):
        dfact.selection.bootstrap(kinds[name].fit(X), X, resampling="replicates")
