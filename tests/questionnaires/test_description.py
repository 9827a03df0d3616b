"""Descriptions of questionnaires: published data against R's figures, bit-identical results everywhere, and what has no figure."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.errors import DataError, MemoryPlanError, ParameterError
from dfact.linalg.correlation import smoothed
from dfact.questionnaires.reliability import alpha, alpha_interval, bartlett, lambda6, omega, sampling_adequacy, steiger
from tests.cases import exhaustive_unless
from tests.conftest import REAL_DATA

FIGURES = ("alpha", "ci_low", "ci_high", "std_alpha", "lambda6", "omega", "omega_total", "omega_hierarchical", "ecv", "average_r")


def questionnaire(n: int, m: int, seed: int, missing: float = 0.02, scales: int = 2) -> NDArray[np.float64]:
    """Answers 1 to 5 to items of several scales, NaN where missing."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(n, scales)) + 0.5 * rng.normal(size=(n, 1))
    X = np.clip(np.rint(3 + traits[:, np.arange(m) * scales // m] + rng.normal(size=(n, m))), 1, 5)
    X[rng.random((n, m)) < missing] = np.nan
    return np.asarray(X, np.float64)


def halves(m: int) -> dict[str, list[str]]:
    return {"first": [str(j) for j in range(m // 2)], "second": [str(j) for j in range(m // 2, m)]}


def assert_same(a: dfact.Description, b: dfact.Description) -> None:
    """Compare bit for bit."""
    pd.testing.assert_frame_equal(a.items, b.items, check_exact=True)
    pd.testing.assert_frame_equal(a.scales, b.scales, check_exact=True)
    pd.testing.assert_series_equal(a.bartlett, b.bartlett, check_exact=True)
    assert (a.kmo, a.n, a.note) == (b.kmo, b.n, b.note)


@pytest.fixture(scope="module")
def bfi() -> pd.DataFrame:
    """Answers to 25 items of 5 scales; skips where they are not at hand."""
    if not (REAL_DATA / "psychometrics").is_dir():
        pytest.skip("the psychometric data is not next to the project")
    return pd.read_csv(REAL_DATA / "psychometrics" / "bfi.csv").iloc[:, 1:26]


BFI_ITEMS = REAL_DATA / "psychometrics" / "bfi_items.csv"


def expected(name: str) -> Any:
    return json.loads((REAL_DATA / "psychometrics" / "oracles" / f"{name}.json").read_text())


def pair_counts(data: pd.DataFrame) -> NDArray[np.float64]:
    """Number of rows in which both of two columns are observed (m, m)."""
    seen = data.notna().to_numpy(float)
    return np.asarray(seen.T @ seen)


def assert_as_in_r(description: dfact.Description, data: pd.DataFrame, rows: str) -> None:
    for scale, figures in expected("reliability")[rows].items():
        row, items = description.scales.loc[scale], description.items[description.items["scale"] == scale]
        names = {
            "alpha": "raw_alpha",
            "std_alpha": "std_alpha",
            "lambda6": "guttman_lambda6",
            "average_r": "average_r",
            "omega": "omega_total_minres_1",
        }
        for name, oracle in names.items():
            assert row[name] == pytest.approx(figures[oracle], abs=1e-6), (scale, name)
        # psych uses as n all who answered anything; with complete answers that is everyone who answered both items of a pair.
        n, m = (description.n if rows == "pairwise" else row["n"]), row["items"]
        assert alpha_interval(row["alpha"], n, m) == pytest.approx(figures["feldt95"], abs=1e-6)
        assert list(items.index) == figures["items"]
        assert list(items["key"]) == figures["key"]
        for name in ("r_drop", "alpha_if_dropped", "mean", "sd"):
            np.testing.assert_allclose(items[name], figures[name], atol=1e-6, err_msg=f"{scale} {name}")
    adequacy = expected("adequacy")[rows]
    assert description.n == adequacy["n"]
    assert description.kmo == pytest.approx(adequacy["kmo"], abs=1e-6)
    np.testing.assert_allclose(description.items["msa"], adequacy["msa"], atol=1e-6)
    # psych takes Bartlett's test with the number who answered anything for n; with missing answers, the description has Steiger's test.
    R = data.corr().to_numpy()
    assert bartlett(R, adequacy["n"]).chi_square == pytest.approx(adequacy["bartlett_chi2"], rel=1e-6)
    own = bartlett(R, adequacy["n"]) if rows == "listwise" else steiger(R, pair_counts(data))
    assert description.bartlett["chi_square"] == pytest.approx(own.chi_square, rel=1e-6)
    assert description.bartlett.name == ("Bartlett" if rows == "listwise" else "Steiger")
    assert description.bartlett["df"] == adequacy["df"]


@pytest.mark.parametrize("kind", ["array", "dataset"])
def test_bfi_is_as_in_r(bfi: pd.DataFrame, kind: str, tmp_path: Path) -> None:
    data: Any = bfi if kind == "array" else dfact.import_array(bfi, tmp_path / "bfi.zarr")
    description = dfact.describe(data, scales=BFI_ITEMS)
    assert_as_in_r(description, bfi, "pairwise")
    oracles = expected("omega_hierarchical")
    for scale in ("agree", "neuroticism"):
        assert description.scales.loc[scale, "omega_hierarchical"] == pytest.approx(oracles[scale]["omega_h"], abs=1e-4)
        assert description.scales.loc[scale, "omega_total"] == pytest.approx(oracles[scale]["omega_total"], abs=1e-4)
    if kind == "dataset":
        assert_same(description, dfact.describe(bfi, scales=BFI_ITEMS))


def test_complete_rows_of_bfi_are_as_in_r(bfi: pd.DataFrame) -> None:
    complete = dfact.describe(bfi.dropna(), scales=BFI_ITEMS, interval="feldt")
    assert_as_in_r(complete, bfi.dropna(), "listwise")
    oracles = expected("reliability")["listwise"]
    for scale, row in complete.scales.iterrows():
        assert [row["ci_low"], row["ci_high"]] == pytest.approx(oracles[scale]["feldt95"], abs=1e-6)
    listwise = dfact.describe(bfi, scales=BFI_ITEMS, missing="listwise")
    adequacy = expected("adequacy")["listwise"]
    assert (listwise.n, listwise.kmo) == (2436, pytest.approx(adequacy["kmo"], abs=1e-6))
    assert listwise.scales.loc["agree", "n"] == 2709


@pytest.mark.parametrize("rows", ["pairwise", "listwise"])
def test_general_factor_of_all_items_is_as_in_r(bfi: pd.DataFrame, rows: str) -> None:
    oracle = expected("omega_hierarchical")[rows]
    keys = dict(zip(bfi, oracle["key"], strict=True))
    description = dfact.describe(bfi if rows == "pairwise" else bfi.dropna(), keys=keys, group_factors=5)
    row = description.scales.loc["all"]
    assert row["omega_hierarchical"] == pytest.approx(0.461708 if rows == "pairwise" else oracle["omega_h"], abs=1e-5)
    assert row["omega_total"] == pytest.approx(0.874810 if rows == "pairwise" else oracle["omega_total"], abs=1e-5)
    assert row["ecv"] == pytest.approx(oracle["ECV"], abs=1e-4)
    assert row["std_alpha"] == pytest.approx(oracle["alpha_std"], abs=1e-6)
    assert row["lambda6"] == pytest.approx(oracle["lambda6"], abs=1e-6)


@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale")
@pytest.mark.parametrize(("missing", "weight", "seed"), [("pairwise", None, 0), ("pairwise", 2.5, 1), ("listwise", None, 2)])
def test_standard_error_of_alpha_is_that_of_leaving_out_each_row(missing: str, weight: float | None, seed: int) -> None:
    X = questionnaire(90, 5, seed, missing=0.15)
    X[:, 1], X[3] = 6 - X[:, 1], np.nan
    weights = None if weight is None else np.full(90, weight)
    row = dfact.describe(X, keys={"1": -1}, missing=missing, sample_weight=weights).scales.loc["all"]
    turned = pd.DataFrame(X).assign(**{"1": 6 - X[:, 1]}).drop(columns=[1]).dropna(how="all" if missing == "pairwise" else "any")
    without = np.array([alpha(turned.drop(index=i).cov().to_numpy()) for i in turned.index])
    n = len(without)
    assert row["se"] == pytest.approx(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()), rel=1e-9)
    assert (row["ci_high"] - row["ci_low"]) / 2 == pytest.approx(scipy.stats.t.ppf(0.975, n - 1) * row["se"])


def test_items_without_variance_do_not_change_the_interval_of_alpha() -> None:
    X = questionnaire(80, 4, 5)
    with_constant = np.column_stack([X, np.full(80, 3.0)])
    for column in ("alpha", "se", "ci_low"):
        assert dfact.describe(with_constant).scales.loc["all", column] == dfact.describe(X).scales.loc["all", column]


@pytest.mark.filterwarnings("ignore:the correlation with the rest of the scale")
@pytest.mark.parametrize("seed", range(3))
def test_missing_answers_call_for_steigers_test(seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(300, 8))
    X[np.random.default_rng(seed + 10).random(X.shape) < 0.3] = np.nan
    frame = pd.DataFrame(X)
    found = dfact.describe(X)
    R, n = frame.corr().to_numpy(), pair_counts(frame)
    by_pair = [(n[i, j] - 3) * np.arctanh(R[i, j]) ** 2 for i in range(8) for j in range(i)]
    assert found.bartlett["chi_square"] == pytest.approx(sum(by_pair))
    assert found.bartlett["p"] == pytest.approx(scipy.stats.chi2.sf(sum(by_pair), 28))
    assert re.search("Steiger's test .*answers are missing, and Bartlett's test needs complete ones", str(found))
    complete = str(dfact.describe(np.nan_to_num(X)))
    assert "Bartlett's test " in complete
    assert "answers are missing" not in complete


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_distributions_are_those_of_the_answers(seed: int) -> None:
    X = questionnaire(300, 6, seed, missing=0.1)
    items = dfact.describe(X).items
    frame = pd.DataFrame(X)
    np.testing.assert_array_equal(items["n"], frame.count())
    np.testing.assert_allclose(items["missing"], frame.isna().mean())
    np.testing.assert_allclose(items["mean"], frame.mean())
    np.testing.assert_allclose(items["sd"], frame.std())
    deviations = frame - frame.mean()
    np.testing.assert_allclose(items["skew"], (deviations**3).mean() / frame.std() ** 3, atol=1e-12)
    np.testing.assert_allclose(items["floor"], (frame == 1).sum() / frame.count())
    np.testing.assert_allclose(items["ceiling"], (frame == 5).sum() / frame.count())


@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
@pytest.mark.parametrize("seed", [0, 1])
def test_keys_have_the_effect_of_reversed_answers(seed: int, missing: str) -> None:
    X = questionnaire(300, 6, seed)
    turned = X.copy()
    turned[:, [1, 4]] = 6 - turned[:, [1, 4]]
    plain = dfact.describe(X, scales=halves(6), missing=missing)
    keyed = dfact.describe(turned, scales=halves(6), keys={"1": -1, "4": -1}, missing=missing)
    numbers = plain.items.select_dtypes("number").columns.drop("key")
    np.testing.assert_allclose(keyed.items[numbers], plain.items[numbers], atol=1e-9)
    np.testing.assert_allclose(keyed.scales[list(FIGURES)], plain.scales[list(FIGURES)], atol=1e-7)
    assert keyed.kmo == pytest.approx(plain.kmo, abs=1e-12)


def test_descriptions_and_reports_say_which_of_them_reverses_items(tmp_path: Path) -> None:
    table = pd.DataFrame(questionnaire(120, 4, 0, missing=0, scales=1), columns=list("abcd"))
    table[["b", "d"]] = 6 - table[["b", "d"]]
    table.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "items.csv").write_text("item,scale,key\na,s,1\nb,s,-1\nc,s,1\nd,s,-1\n")
    data = dfact.import_table(tmp_path / "a.csv", tmp_path / "a.zarr", items="*", dictionary=tmp_path / "items.csv")
    described = dfact.describe(data)
    assert ("reversed", "2 of 4 items, whose key is -1, before all figures below") in described.summary()
    assert described.items["mean"]["b"] == pytest.approx(6 - table["b"].mean())
    assert "reversed" not in dict(dfact.describe(table[["a", "c"]]).summary())
    dfact.write_report(dfact.NMF(1, max_iter=5).fit(data), tmp_path / "r.html", data=data)
    page = (tmp_path / "r.html").read_text()
    assert "answers as they were given: items whose key is -1 are reversed by dfact describe, not here" in page
    assert f"{table['b'].mean():.2f}" in page


def test_listwise_takes_the_complete_rows_of_each_scale() -> None:
    X = questionnaire(400, 8, 3, missing=0.05)
    description = dfact.describe(X, scales=halves(8), missing="listwise")
    for columns, scale in ((slice(0, 4), "first"), (slice(4, 8), "second")):
        part = X[:, columns]
        complete = part[~np.isnan(part).any(axis=1)]
        alone = dfact.describe(complete).scales.loc["all"]
        row = description.scales.loc[scale]
        assert row["n"] == len(complete)
        np.testing.assert_allclose(row[list(FIGURES)].astype(float), alone[list(FIGURES)].astype(float), atol=1e-9)
    assert description.n == (~np.isnan(X).any(axis=1)).sum()


@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_enter_means_covariances_and_the_effective_number(seed: int, missing: str) -> None:
    rng = np.random.default_rng(seed)
    X, w = questionnaire(400, 6, seed, missing=0), rng.uniform(0.2, 3, 400)
    w[:40] = 0
    description = dfact.describe(X, sample_weight=w, missing=missing)
    n_effective = w.sum() ** 2 / (w**2).sum()
    mean = np.average(X, axis=0, weights=w)
    C = (X - mean).T @ ((X - mean) * w[:, None]) / w.sum() * n_effective / (n_effective - 1)
    items, row = description.items, description.scales.loc["all"]
    np.testing.assert_allclose(items["mean"], mean)
    np.testing.assert_allclose(items["sd"], np.sqrt(C.diagonal()))
    np.testing.assert_allclose(items["floor"], np.average(X == 1, axis=0, weights=w))
    np.testing.assert_allclose(items["skew"], np.average((X - mean) ** 3, axis=0, weights=w) / C.diagonal() ** 1.5, atol=1e-12)
    assert (items["n"] == 360).all()
    assert (items["missing"] == 0).all()  # participants of weight 0 are left out
    assert row["alpha"] == pytest.approx(alpha(C), abs=1e-10)
    feldt = dfact.describe(X, sample_weight=w, missing=missing, interval="feldt").scales.loc["all"]
    assert (feldt["ci_low"], feldt["ci_high"]) == pytest.approx(alpha_interval(alpha(C), n_effective, 6), abs=1e-10)
    R = C / np.sqrt(np.outer(C.diagonal(), C.diagonal()))
    assert description.bartlett["chi_square"] == pytest.approx(bartlett(R, n_effective).chi_square)
    assert description.kmo == pytest.approx(sampling_adequacy(R)[0])


@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_equal_weights_change_nothing(missing: str) -> None:
    X = questionnaire(300, 6, 0, missing=0.05)
    plain = dfact.describe(X, scales=halves(6), missing=missing)
    equal = dfact.describe(X, scales=halves(6), missing=missing, sample_weight=np.full(300, 2.5))
    numbers = plain.items.select_dtypes("number").columns
    np.testing.assert_allclose(equal.items[numbers], plain.items[numbers], atol=1e-12)
    np.testing.assert_allclose(equal.scales[list(FIGURES)], plain.scales[list(FIGURES)], atol=1e-8)


def test_polychoric_figures_are_those_of_the_published_correlations(bfi: pd.DataFrame) -> None:
    R = pd.read_csv(REAL_DATA / "psychometrics" / "oracles" / "polychoric_bfi.csv", index_col=0).to_numpy()
    description = dfact.describe(bfi, scales=BFI_ITEMS, correlation="polychoric")
    pearson = dfact.describe(bfi, scales=BFI_ITEMS)
    keys = description.items["key"].to_numpy()
    keyed = R * np.outer(keys, keys)
    for i, scale in enumerate(description.scales.index):
        own = keyed[5 * i : 5 * i + 5, 5 * i : 5 * i + 5]
        row = description.scales.loc[scale]
        assert row["std_alpha"] == pytest.approx(alpha(own), abs=1e-6)
        assert row["lambda6"] == pytest.approx(lambda6(own), abs=1e-6)
        assert row["omega"] == pytest.approx(omega(own), abs=1e-6)
        assert row["alpha"] == pearson.scales.loc[scale, "alpha"]
    kmo, items = sampling_adequacy(R)
    assert description.kmo == pytest.approx(kmo, abs=1e-6)
    np.testing.assert_allclose(description.items["msa"], items, atol=1e-6)
    np.testing.assert_array_equal(description.items["r_drop"], pearson.items["r_drop"])


@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_polychoric_figures_exclude_constant_items_and_are_the_same_on_threads(missing: str) -> None:
    X = questionnaire(15_000, 8, 0)
    X[:, 2] = 3
    settings: dict[str, Any] = {"scales": halves(8), "correlation": "polychoric", "missing": missing}
    inline = dfact.describe(X, executor="inline", **settings)
    assert_same(dfact.describe(X, executor="threads", **settings), inline)
    assert inline.items.loc["2", "note"] == "no variance"
    without = dfact.describe(X[:, [0, 1, 3]], correlation="polychoric", missing=missing).scales.loc["all"]
    assert inline.scales.loc["first", "std_alpha"] == pytest.approx(without["std_alpha"], abs=1e-9)


def test_polychoric_correlations_need_categories() -> None:
    X = questionnaire(100, 4, 0)
    with pytest.raises(DataError, match=r"not whole numbers"):
        dfact.describe(X + 0.5, correlation="polychoric")


def stored(X: NDArray[np.float64], path: Path) -> dfact.Dataset:
    return dfact.import_array(X, path)


@pytest.mark.parametrize(
    ("n", "m", "missing"),
    exhaustive_unless(
        {(200, 8, "pairwise"), (20_000, 8, "listwise"), (15_000, 40, "pairwise")}.__contains__,
        [(*shape, missing) for shape in ((200, 8), (20_000, 8), (15_000, 40)) for missing in ("pairwise", "listwise")],
    ),
)
def test_bits_do_not_depend_on_storage_or_threads(n: int, m: int, missing: str, tmp_path: Path) -> None:
    """For 1, 2 and many partitions."""
    X = questionnaire(n, m, 0)
    settings: dict[str, Any] = {"scales": halves(8), "missing": missing}  # longer scales take most of the time to rotate
    first = dfact.describe(X, executor="inline", **settings)
    dataset = stored(X, tmp_path / "d.zarr")
    for data in (X, dataset, dataset.path):
        assert_same(dfact.describe(data, executor="threads", **settings), first)
    whole = dfact.describe(X[::-1], executor="inline", **settings)  # other partitions: sums of answers are exact
    np.testing.assert_array_equal(whole.items["r_drop"], first.items["r_drop"])
    np.testing.assert_array_equal(whole.scales["omega_hierarchical"], first.scales["omega_hierarchical"])


@pytest.mark.parametrize(("correlation", "missing"), [("pearson", "pairwise"), ("pearson", "listwise"), ("polychoric", "pairwise")])
def test_bits_are_those_of_a_cluster(client: Client, correlation: str, missing: str, tmp_path: Path) -> None:
    X = questionnaire(20_000, 12, 1)
    dataset = stored(X, tmp_path / "d.zarr")
    settings: dict[str, Any] = {"scales": halves(12), "correlation": correlation, "missing": missing, "group_factors": 2}
    inline = dfact.describe(dataset, executor="inline", **settings)
    assert_same(dfact.describe(dataset, executor=client, **settings), inline)
    assert_same(dfact.describe(dataset, executor="threads", **settings), inline)


@pytest.mark.parametrize("correlation", ["pearson", "polychoric"])
def test_weighted_bits_are_those_of_a_cluster(client: Client, correlation: str, tmp_path: Path) -> None:
    X, w = questionnaire(20_000, 6, 1), np.random.default_rng(0).gamma(2, 1, 20_000)
    dataset = dfact.import_array(X, tmp_path / "d.zarr", weights=w)
    settings: dict[str, Any] = {"scales": halves(6), "correlation": correlation, "group_factors": 2}
    inline = dfact.describe(dataset, executor="inline", **settings)
    assert_same(dfact.describe(dataset, executor=client, **settings), inline)
    assert_same(dfact.describe(X, sample_weight=w, executor="threads", **settings), inline)


@pytest.mark.parametrize("missing", ["pairwise", "listwise"])
def test_weighted_polychoric_figures_are_those_of_the_factor_analysis(missing: str) -> None:
    X, w = questionnaire(500, 6, 1, missing=0.02), np.random.default_rng(1).gamma(2, 1, 500)
    model = dfact.FactorAnalysis(1, correlation="polychoric", missing=missing).fit(X, sample_weight=w)
    description = dfact.describe(X, correlation="polychoric", missing=missing, sample_weight=w)
    assert description.kmo == pytest.approx(sampling_adequacy(model.correlations_)[0], abs=1e-9)
    seen = ~np.isnan(X)
    effective = (seen.T @ (w[:, None] * seen)) ** 2 / (seen.T @ (w[:, None] ** 2 * seen))
    listwise = missing == "listwise"
    test = bartlett(model.correlations_, model.n_effective_) if listwise else steiger(model.correlations_, effective)
    assert description.bartlett["chi_square"] == pytest.approx(test.chi_square)


def test_two_passes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from dfact.engine.executors import LocalSession

    passes = []
    original = LocalSession.run
    monkeypatch.setattr(LocalSession, "run", lambda self, *arguments: passes.append(arguments[0]) or original(self, *arguments))
    for missing in ("pairwise", "listwise"):
        passes.clear()
        dfact.describe(questionnaire(100, 6, 0), scales=halves(6), missing=missing)
        assert len(passes) == 2  # sums, and alpha without each participant


def test_negative_items_are_reported_with_the_remedy() -> None:
    X = questionnaire(300, 10, 0)
    X[:, 1] = 6 - X[:, 1]
    with pytest.warns(UserWarning, match=r"negative for '1', expected positive ones; .*key -1: keys="):
        items = dfact.describe(X, scales=halves(10)).items
    assert items.loc["1", "r_drop"] < 0
    assert list(items["key"]) == [1] * 10  # nothing is reversed unasked


def test_negative_alpha_is_shown() -> None:
    rng = np.random.default_rng(0)
    trait = rng.normal(size=(200, 1))
    X = np.rint(np.hstack([trait, -trait]) * 2 + rng.normal(size=(200, 2)))
    with pytest.warns(UserWarning, match="negative for '0', '1'"):
        row = dfact.describe(X).scales.loc["all"]
    assert row["alpha"] < 0
    assert row["ci_low"] < row["alpha"] < row["ci_high"]


def test_what_has_no_figure_has_a_reason() -> None:
    X = questionnaire(300, 7, 0)
    X[:, 3] = 2
    scales = {"long": ["0", "1", "2", "3"], "pair": ["4", "5"], "single": ["6"]}
    description = dfact.describe(X, scales=scales)
    items, table = description.items, description.scales
    assert items.loc["3", "note"] == "no variance"
    assert np.isnan(items.loc["3", ["skew", "r_drop", "alpha_if_dropped", "msa"]].astype(float)).all()
    without = dfact.describe(X[:, [0, 1, 2]]).scales.loc["all"]
    assert table.loc["long", "alpha"] == pytest.approx(without["alpha"], abs=1e-12)
    assert table.loc["long", "note"] == "without '3': no variance"
    assert np.isnan(items.loc[["4", "5"], "alpha_if_dropped"]).all()
    assert 0 < table.loc["pair", "alpha"] < 1
    assert np.isnan(table.loc["single", list(FIGURES)].astype(float)).all()
    assert table.loc["single", "note"] == "one item"
    assert 0 < description.kmo < 1


def test_items_that_determine_one_another_have_no_inverse() -> None:
    X = questionnaire(300, 6, 0, missing=0)
    X[:, 5] = X[:, 4]
    description = dfact.describe(X)
    assert np.isnan(description.kmo)
    assert description.bartlett.isna().all()
    assert description.note == "no KMO and no Bartlett's test: '4', '5' determine one another"
    row = description.scales.loc["all"]
    assert np.isnan(row["lambda6"])
    assert row["note"] == "lambda6: '4', '5' determine one another"
    assert row[["alpha", "omega", "omega_total", "omega_hierarchical"]].astype(float).between(0, 1).all()
    assert "determine one another" in str(description)


def test_indefinite_correlations_are_smoothed_with_a_warning() -> None:
    """Three pairs from different rows, whose correlations contradict one another."""
    rng = np.random.default_rng(0)
    X = np.full((600, 3), np.nan)
    for i, (a, b, sign) in enumerate([(0, 1, 1), (1, 2, 1), (0, 2, -1)]):
        rows = slice(200 * i, 200 * (i + 1))
        X[rows, a] = rng.integers(1, 6, 200)
        X[rows, b] = X[rows, a] if sign > 0 else 6 - X[rows, a]
        X[200 * i, b] = 3
    with (
        pytest.warns(UserWarning, match=r"pairwise correlations of scale 'all' .* smoothed for omega; missing='listwise'"),
        pytest.warns(UserWarning, match=r"pairwise correlations of all items .* smoothed for KMO; missing='listwise'"),
    ):
        description = dfact.describe(X)
    assert description.kmo == pytest.approx(sampling_adequacy(smoothed(pd.DataFrame(X).corr().to_numpy()))[0], abs=1e-6)
    assert description.items["msa"].between(0, 1).all()
    assert description.bartlett.isna().all()
    assert "KMO of smoothed correlations and no Bartlett's test: the pairwise correlations have 1 negative eig" in description.note
    assert f"{description.kmo:.3f}\nnote                KMO of smoothed correlations" in str(description)
    assert np.isnan(description.scales.loc["all", "lambda6"])
    assert np.isfinite(description.scales.loc["all", ["omega", "omega_total"]].astype(float)).all()


def test_pairs_without_common_rows_have_no_figures() -> None:
    X = questionnaire(400, 6, 0, missing=0)
    X[:200, 0], X[200:, 1] = np.nan, np.nan
    description = dfact.describe(X, scales=halves(6))
    assert "'0' and '1' do not vary together in common rows" in description.scales.loc["first", "note"]
    assert np.isnan(description.scales.loc["first", "alpha"])
    assert description.scales.loc["second", "alpha"] > 0
    assert "'0' and '1'" in description.note


def test_items_without_answers_and_rows_without_answers() -> None:
    X = questionnaire(100, 4, 0)
    X[:, 2], X[:5] = np.nan, np.nan
    description = dfact.describe(X)
    assert description.items.loc["2", "note"] == "no answers"
    assert description.n == 95
    assert np.isfinite(description.scales.loc["all", "alpha"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scales": {"a": ["0", "9"]}}, DataError, r"scales= has the item '9', expected names of columns such as '0'"),
        ({"scales": {"a": ["0"], "b": ["0"]}}, DataError, r"item '0' is in the scales 'a' and 'b', expected one"),
        ({"scales": {"a": "0"}}, ParameterError, r"scales\['a'\] is '0', expected a list of items"),
        ({"keys": {"0": 2}}, ParameterError, r"keys\['0'\] is 2, expected 1 or -1"),
        ({"keys": {"z": -1}}, DataError, r"keys= has the item 'z'"),
        ({"missing": "drop"}, ParameterError, r"missing is 'drop', expected 'pairwise' or 'listwise'"),
        ({"correlation": "rank"}, ParameterError, r"correlation is 'rank', expected"),
        ({"group_factors": 0}, ParameterError, r"group_factors is 0, expected an integer of at least 1"),
        ({"sample_weight": [1.0]}, DataError, r"sample_weight has shape \(1,\), expected one for each of 50 rows"),
        ({"memory_limit": "1MiB"}, MemoryPlanError, r"needs at least"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dfact.describe(questionnaire(50, 4, 0), **arguments)


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """A dataset whose codebook has scales and keys."""
    X = questionnaire(200, 6, 0)
    X[:, 2] = 6 - X[:, 2]
    frame = pd.DataFrame(X, columns=[f"Q{j}" for j in range(1, 7)])
    frame.to_csv(tmp_path / "survey.csv", index=False)
    rows = "".join(f"Q{j},=I am {j},{'calm' if j < 4 else 'open'},{-1 if j == 3 else 1}\n" for j in range(1, 7))
    (tmp_path / "items.csv").write_text("item,text,scale,key\n" + rows)
    dfact.import_table(tmp_path / "survey.csv", tmp_path / "survey.zarr", items="Q*", dictionary=tmp_path / "items.csv", valid_range=(1, 5))
    return tmp_path / "survey.zarr"


def test_codebooks_give_scales_keys_and_wordings(survey: Path) -> None:
    description = dfact.describe(survey)
    assert list(description.scales.index) == ["calm", "open"]
    assert list(description.items["key"]) == [1, 1, -1, 1, 1, 1]
    assert (description.items["r_drop"] > 0).all()
    assert description.items.loc["Q2", "text"] == "=I am 2"
    frame = pd.read_csv(survey.parent / "survey.csv")
    assert_same(dfact.describe(frame, scales=survey.parent / "items.csv"), description)
    with pytest.warns(UserWarning, match="negative for .*'Q3'"):
        assert list(dfact.describe(survey, keys={}).items["key"]) == [1] * 6


def test_command_prints_and_writes_the_tables(survey: Path, capsys: pytest.CaptureFixture[str]) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    folder = survey.parent
    for name in ("t.xlsx", "t.html", "t.csv"):
        assert main(["describe", str(survey), str(folder / name)]) == 0
    printed = capsys.readouterr().out
    assert "calm" in printed
    assert "=I am 2" in printed
    description = dfact.describe(survey)
    read = pd.read_csv(folder / "t.csv", index_col=0)
    np.testing.assert_allclose(read["r_drop"], description.items["r_drop"])
    workbook = openpyxl.load_workbook(folder / "t.xlsx")
    assert workbook.sheetnames == ["scales", "items", "adequacy"]
    cells = list(workbook["items"].iter_rows())
    names = [cell.value for cell in cells[0]]
    text = cells[2][names.index("text")]
    assert (text.value, text.data_type) == ("=I am 2", "s")  # no formula
    assert cells[1][names.index("r_drop")].value == pytest.approx(description.items["r_drop"].iloc[0])
    page = (folder / "t.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Steiger" in page
    assert main(["describe", str(survey), str(folder / "t.csv")]) == 1
    assert main(["describe", str(survey), str(folder / "t.csv"), "--table", "scales", "--overwrite"]) == 0
    assert list(pd.read_csv(folder / "t.csv")["scale"]) == ["calm", "open"]
    assert main(["describe", str(survey), str(folder / "t.pdf")]) != 0
    capsys.readouterr()
    assert main(["describe", str(survey), "--correlation", "polychoric", "--missing", "listwise", "--no-weights"]) == 0
    assert "polychoric" in capsys.readouterr().out
    assert main(["describe", str(survey), "--weights"]) == 1
    assert "has no weights, expected some for --weights" in capsys.readouterr().err
    (folder / "other.csv").write_text("item,scale\nQ1,a\nQ2,a\nQ4,a\n")
    capsys.readouterr()
    assert main(["describe", str(survey), "--items", str(folder / "other.csv")]) == 0
    assert "\na  " in capsys.readouterr().out


def test_command_uses_the_weights_of_the_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, w = questionnaire(200, 4, 0), np.random.default_rng(0).gamma(2, 1, 200)
    dataset, table = dfact.import_array(X, tmp_path / "d.zarr", weights=w), str(tmp_path / "t.csv")
    for flags, expected in ((["--weights"], dfact.describe(X, sample_weight=w)), ([], dfact.describe(X, sample_weight=w))):
        assert main(["describe", str(dataset.path), table, "--overwrite", *flags]) == 0
        assert "Weighted by" in capsys.readouterr().err
        np.testing.assert_allclose(pd.read_csv(table)[["mean", "r_drop"]], expected.items[["mean", "r_drop"]])
    assert main(["describe", str(dataset.path), table, "--overwrite", "--no-weights"]) == 0
    assert "Weighted" not in capsys.readouterr().err
    np.testing.assert_allclose(pd.read_csv(table)["mean"], dfact.describe(X).items["mean"])
    assert main(["describe", str(dataset.path), table, "--overwrite", "--correlation", "polychoric"]) == 0
    weighted = dfact.describe(X, sample_weight=w, correlation="polychoric")
    np.testing.assert_allclose(pd.read_csv(table)["msa"], weighted.items["msa"])
    assert not np.allclose(weighted.items["msa"], dfact.describe(X, correlation="polychoric").items["msa"], atol=1e-4)


def test_command_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dfact.import_array(questionnaire(200, 4, 0), tmp_path / "d.zarr")
    assert main(["describe", str(tmp_path / "d.zarr"), "--plan", "--memory-limit", "2GiB"]) == 0
    out = capsys.readouterr().out
    assert "limit of a process    2.00 GiB" in out
    assert "scale" not in out
    assert main(["describe", str(tmp_path / "d.zarr"), "--plan", "--memory-limit", "1MiB"]) == 1
    assert "needs at least" in capsys.readouterr().err
