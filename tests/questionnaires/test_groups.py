"""Comparison of groups: draws, fits to groups, congruences with their tests, and items with differential functioning."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.base import clone

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.errors import DataError, ParameterError
from dfact.linalg.congruence import congruence, match
from dfact.models.provenance import Comparison
from dfact.questionnaires.groups.fits import GroupFits
from dfact.report.comparison import comparison_text, describe_dif
from dfact.selection import compare_groups
from dfact.selection.running.scheduler import run_fits
from dfact.stability.resamples import RefittedLoadings, ResampleFits
from tests.conftest import REAL_DATA

DIF = [7, 23]


def questionnaire(seed: int, n: int = 2000, dif: float = 0.5, impact: float = 0.2) -> tuple[NDArray[np.float32], pd.DataFrame]:
    """Return 40 items 0 to 4 of 4 factors; group b has more of factor 0, and answers items 7 and 23 higher by ``dif``."""
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.arange(n) % 2)
    W = np.clip(rng.beta(1.2, 1.8, (n, 4)) * rng.binomial(1, 0.8, (n, 4)), 0, 1)
    W[:, 0] = np.clip(W[:, 0] + impact * g, 0, 1)
    Q = np.zeros((40, 4))
    Q[np.arange(40), np.arange(40) % 4] = rng.uniform(1.5, 3, 40)
    Q += (rng.random((40, 4)) < 0.15) * rng.uniform(0.3, 1, (40, 4)) * (Q == 0)
    expected = W @ Q.T + rng.uniform(0.3, 1.2, 40)
    expected[:, DIF] += dif * g[:, None]
    answers = np.clip(np.rint(expected + rng.normal(0, 0.7, (n, 40))), 0, 4).astype(np.float32)
    return answers, pd.DataFrame({"group": np.where(g == 1, "b", "a")})


def traits(seed: int, n: int = 300, moved: bool = False) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return 12 items of 2 traits and groups; with ``moved`` three items of the first trait are of the second in group b."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(["a", "b"], n)
    loadings = np.kron(np.eye(2), np.ones(6))
    other = loadings.copy()
    if moved:
        other[:, :3] = loadings[::-1, :3]
    F = rng.normal(size=(n, 2))
    expected = np.where((groups == "b")[:, None], F @ other, F @ loadings)
    return np.clip(np.rint(2 + expected + rng.normal(size=(n, 12))), 0, 4), groups


MODELS = {"icqf": dfact.ICQF(2, beta=0.01, tol=1e-8), "nmf": dfact.NMF(2), "fa": dfact.FactorAnalysis(2)}


@pytest.mark.further
@pytest.mark.parametrize("name", list(MODELS))
def test_fit_to_a_group_is_that_of_its_rows_alone(name: str) -> None:
    M, groups = traits(0)
    model = clone(MODELS[name]).set_params(dtype="float64", executor="inline")
    M[0] = [0, 4] * 6  # so that both groups have the range of all
    labels = (groups == "b").astype(int)
    dataset = as_dataset(M)
    members = [dataset.take_rows(np.flatnonzero(labels == group)) for group in (0, 1)]
    fits = GroupFits.of_groups(model, dataset, members, labels, seed=0)
    found: dict[int, Any] = {}
    run_fits(fits, [0, 1, 2, 3], found.__setitem__, "inline", None)
    for group in (0, 1):
        assert isinstance(found[group], RefittedLoadings)
        expected = model.fit(M[labels == group]).components_
        assert_allclose(found[group].components, expected, rtol=1e-3, atol=1e-3)
    assert not np.allclose(found[2].components, found[0].components)  # a resample


def allow_few_resamples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dfact.questionnaires.groups.comparison._LEAST_RESAMPLES", 2)
    patch.setattr("dfact.questionnaires.groups.factor_congruences.DRAWS_PER_TEST", 1)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow fewer resamples than a standard error needs, for tests of other figures."""
    allow_few_resamples(monkeypatch)


@pytest.mark.usefixtures("few_resamples")
def test_congruence_is_that_of_separate_fits() -> None:
    M, groups = traits(1)
    model = dfact.FactorAnalysis(2, executor="inline").fit(M)
    result = compare_groups(model, M, groups, n_resamples=2, test=False, random_state=0)
    first, second = (dfact.FactorAnalysis(2).fit(M[groups == level]).components_.astype(float) for level in "ab")
    between = np.abs(congruence(first, second))
    rows, columns = match(between)
    assert_allclose(np.sort(result.congruence[0]), np.sort(between[rows, columns]), atol=1e-6)
    assert (result.rotated >= result.congruence - 0.005).all()
    assert np.isnan(result.p).all()
    assert result.factors_untested == "not asked for"
    assert result.n_resamples == 2


def assert_same(found: Comparison, expected: Comparison) -> None:
    for name in ("congruence", "low", "high", "p", "mantel"):
        assert_array_equal(getattr(found, name), getattr(expected, name))
    for name, value in vars(expected.item_tests).items():
        assert_array_equal(getattr(found.item_tests, name), value)


SETTINGS: dict[str, Any] = {"n_resamples": 4, "random_state": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dfact.Dataset:
    M, groups = traits(2)
    frame = pd.DataFrame({"group": groups})
    return dfact.import_array(M, tmp_path_factory.mktemp("groups") / "d.zarr", confounders=frame)


@pytest.fixture(scope="module")
def model(data: dfact.Dataset) -> dfact.ICQF:
    return dfact.ICQF(2, tol=1e-3, executor="inline").fit(data)


@pytest.fixture(scope="module")
def expected(data: dfact.Dataset, model: dfact.ICQF) -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        allow_few_resamples(patch)
        return compare_groups(model, data, "group", **SETTINGS)


@pytest.mark.further
@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("executor", ["threads", "distributed"])
def test_every_executor_gives_the_same_bits(
    executor: str, data: dfact.Dataset, expected: Comparison, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue("client") if executor == "distributed" else executor
    model = dfact.ICQF(2, tol=1e-3, executor=client).fit(data)
    assert_same(compare_groups(model, data, "group", **SETTINGS), expected)


@pytest.mark.further
@pytest.mark.usefixtures("few_resamples")
def test_an_interrupted_comparison_resumes_with_the_same_bits(
    data: dfact.Dataset, model: dfact.ICQF, expected: Comparison, tmp_path: Path
) -> None:
    interrupted: list[Any] = []
    resumed: list[Any] = []
    complete: list[Any] = []

    def interrupt(step: Any) -> None:
        interrupted.append(step)
        if len(interrupted) == 6:
            raise KeyboardInterrupt

    checkpoint = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        compare_groups(model, data, "group", checkpoint=checkpoint, callbacks=[interrupt], **SETTINGS)
    assert_same(compare_groups(model, data, "group", checkpoint=checkpoint, callbacks=[resumed.append], **SETTINGS), expected)
    assert_same(compare_groups(model, data, "group", callbacks=[complete.append], **SETTINGS), expected)
    assert len(resumed) < len(complete)


@pytest.mark.usefixtures("few_resamples")
def test_shared_reads_give_the_same_comparison(
    data: dfact.Dataset, model: dfact.ICQF, expected: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResampleFits, "fits_in_memory", lambda *_: False)
    shared = compare_groups(model, data, "group", **SETTINGS)
    assert_allclose(shared.congruence, expected.congruence, atol=2e-3)
    assert_array_equal(shared.mantel, expected.mantel)
    assert_array_equal(shared.item_tests.effect, expected.item_tests.effect)


def test_men_and_women_have_the_congruences_of_the_oracle() -> None:
    path = REAL_DATA / "psychometrics" / "bfi.csv"
    if not path.exists():
        pytest.skip("needs the shared psychometric data")
    data = pd.read_csv(path)
    oracle = json.loads((path.parent / "oracles" / "congruence_bfi_gender.json").read_text())["oblimin"]
    items = list(pd.read_csv(path.parent / "bfi_items.csv")["item"])
    dataset, labels = as_dataset(data[items].to_numpy(float)), (data["gender"] == 2).to_numpy().astype(int)
    members = [dataset.take_rows(np.flatnonzero(labels == group)) for group in (0, 1)]
    found: dict[int, Any] = {}
    fits = GroupFits.of_groups(dfact.FactorAnalysis(5, rotation="oblimin"), dataset, members, labels, seed=0)
    run_fits(fits, [0, 1], found.__setitem__, "inline", None)
    men, women = (found[group].components.astype(float) for group in (0, 1))
    assert_allclose(np.sort(np.abs(congruence(men, women)).max(axis=1)), np.sort(np.abs(oracle).max(axis=1)), atol=1e-5)


# Items with differential functioning.
@pytest.mark.further
@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize(("seed", "dif"), [(0, 0.5), (3, 0.0)])
def test_command_finds_planted_items_and_nothing_else(seed: int, dif: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, groups = questionnaire(seed, dif=dif)
    pd.DataFrame(answers, columns=[f"i{j:02d}" for j in range(40)]).astype(int).join(groups).to_csv(tmp_path / "t.csv", index=False)
    data, model = str(tmp_path / "d.zarr"), str(tmp_path / "m.model")
    assert main(["import", str(tmp_path / "t.csv"), data, "--items", "i*", "--confounder", "group"]) == 0
    assert main(["fit", "icqf", data, model, "-k", "4"]) == 0
    capsys.readouterr()
    arguments = ["--by", "group", "--resamples", "20", "--no-test", "--seed", str(seed)]
    assert main(["compare", model, data, *arguments]) == 0
    out = capsys.readouterr().out
    result = dfact.load_model(model).comparison_
    expected = [f"i{j:02d}" for j in DIF] if dif else []
    assert list(result.dif_items.index.get_level_values("item")) == expected
    assert f"was found in {len(expected)} of 40 items" in out
    assert all(item in out for item in expected)
    effects = result.effects
    assert list(effects.index[effects["flagged"]].get_level_values("item")) == expected  # the test at equal factors finds the same alone
    if dif:
        assert_allclose(effects["effect"].to_numpy()[DIF], 0.5, atol=0.12)
        assert list(result.dif_items["class"]) == ["C", "C"]
    congruent = result.congruence
    assert (congruent > 0.95).all()


def small(n: int = 240) -> tuple[Any, NDArray[np.float64], pd.DataFrame]:
    M, _ = traits(4, n)
    frame = pd.DataFrame({"site": np.resize(["x", "y", "z"], n), "age": np.random.default_rng(0).random(n)})
    return dfact.ICQF(2, tol=1e-3, executor="inline").fit(M, confounders=frame), M, frame


@pytest.mark.usefixtures("few_resamples")
def test_three_groups_are_compared_with_the_first_and_kept_with_the_model(tmp_path: Path) -> None:
    model, M, frame = small()
    model.comparison_ = result = compare_groups(model, M, "site", confounders=frame, n_resamples=4, random_state=0)
    assert result.congruence.shape == (2, 2)
    assert result.levels == ["x", "y", "z"]
    assert result.effects is not None
    assert len(result.effects) == 24
    dfact.save_model(model, tmp_path / "m.model")
    loaded = dfact.load_model(tmp_path / "m.model").comparison_
    assert isinstance(loaded, Comparison)
    for name in ("congruence", "p", "sizes", "mantel"):
        assert_array_equal(getattr(loaded, name), getattr(result, name))
    assert loaded.effects is not None
    assert_array_equal(loaded.effects, result.effects)
    dfact.write_report(model, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Congruences, with p values" in page
    assert "Impact: differences of the groups in the factors" in page
    assert not hasattr(model.fit(M, confounders=frame), "comparison_")  # of the earlier fit


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("seed", [0, 1])
def test_the_commonest_group_is_the_reference_unless_groups_are_named(seed: int) -> None:
    M, _ = traits(seed, 240)
    sites = np.random.default_rng(seed).permutation(np.repeat(["x", "y", "z"], [60, 110, 70]))
    model, settings = dfact.FactorAnalysis(2).fit(M), {"n_resamples": 2, "test": False, "random_state": 0}
    found: Any = compare_groups(model, M, sites, **settings)
    assert found.levels == ["y", "x", "z"]
    assert found.sizes.tolist() == [110, 60, 70]
    assert "y (110), x (60), z (70)" in comparison_text(found, ["F1", "F2"])
    assert compare_groups(model, M, sites, groups=["x", "y"], **settings).levels == ["x", "y"]


@pytest.mark.usefixtures("few_resamples")
def test_scales_of_items_are_the_given_ones_or_of_the_largest_loading() -> None:
    M, groups = traits(5)
    model = dfact.FactorAnalysis(2, executor="inline").fit(M)
    settings: dict[str, Any] = {"n_resamples": 2, "test": False, "random_state": 0}
    by_loading = compare_groups(model, M, groups, **settings)
    assert [len(set(by_loading.scales[part])) for part in (slice(6), slice(6, 12), slice(12))] == [1, 1, 2]
    given = compare_groups(model, M, groups, scales={"one": ["0", "1", "2", "3"]}, **settings)
    assert given.scales == ["one"] * 4 + [""] * 8
    assert given.mantel_tests is not None
    assert_array_equal(given.mantel_tests["chi_square"].isna(), [False] * 4 + [True] * 8)
    with pytest.raises(ParameterError, match=r"scales\['0'\] is 'one', expected a list of items; pass the items of each scale"):
        compare_groups(model, M, groups, scales={"0": "one"}, **settings)  # type: ignore[dict-item]


@pytest.mark.further
@pytest.mark.usefixtures("few_resamples")
def test_command_reads_scales_and_keys_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    M, groups = traits(5)
    labels, model, items = [f"i{j}" for j in range(12)], str(tmp_path / "m.model"), tmp_path / "items.csv"
    data = dfact.import_array(M, tmp_path / "d.zarr", column_labels=labels, confounders=pd.DataFrame({"group": groups}))
    dfact.save_model(dfact.FactorAnalysis(2, executor="inline").fit(data), model)
    pd.DataFrame({"item": labels[:4], "scale": "one", "key": [1, 1, 1, -1]}).to_csv(items, index=False)
    arguments = [model, str(data.path), "--by", "group", "--resamples", "2", "--no-test", "--seed", "0"]
    assert main(["compare", *arguments, "--items", str(items)]) == 0
    found = dfact.load_model(model).comparison_
    scales = {"one": labels[:4]}
    settings: dict[str, Any] = {"n_resamples": 2, "test": False, "random_state": 0}
    keys = dict(zip(labels, [1, 1, 1, -1], strict=False))
    assert_same(found, compare_groups(dfact.load_model(model), data, "group", scales=scales, keys=keys, **settings))
    assert found.scales == ["one"] * 4 + [""] * 8
    plain = compare_groups(dfact.load_model(model), data, "group", scales=scales, **settings)
    assert not np.array_equal(found.mantel, plain.mantel, equal_nan=True)  # the reversed item changes the totals
    items.write_text("item,scale\nabsent,one\n")
    assert main(["compare", *arguments, "--items", str(items)]) == 1
    assert "absent" in capsys.readouterr().err


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("seed", range(2))
def test_weights_of_two_are_rows_twice(seed: int) -> None:
    M, groups = traits(seed, 300, moved=True)
    twice = np.random.default_rng(seed + 10).integers(1, 3, len(M))
    settings: dict[str, Any] = {"n_resamples": 2, "test": False, "random_state": 0}
    model = dfact.FactorAnalysis(2, executor="inline", dtype="float64").fit(M, sample_weight=twice)
    weighted = compare_groups(model, M, groups, sample_weight=twice, **settings)
    rows = np.repeat(np.arange(len(M)), twice)
    repeated = compare_groups(model.fit(M[rows]), M[rows], groups[rows], **settings)
    assert_allclose(weighted.congruence, repeated.congruence, atol=1e-5)
    plain = compare_groups(model.fit(M), M, groups, **settings)
    assert not np.allclose(weighted.congruence, plain.congruence, atol=1e-3)
    # The difference of an item is weighted, and Mantel's test, which cannot be, is refused by name.
    assert_allclose(weighted.item_tests.difference, repeated.item_tests.difference, atol=1e-9)
    assert not np.allclose(weighted.item_tests.difference, plain.item_tests.difference, atol=1e-3)
    assert weighted.mantel_tests is None
    assert "Mantel's test was not possible, because it takes no survey weights" in describe_dif(weighted)


@pytest.mark.usefixtures("few_resamples")
def test_fractions_leave_out_mantels_test() -> None:
    M, groups = traits(6)
    M[3, 2] += 0.5
    model = dfact.FactorAnalysis(2, executor="inline").fit(M)
    with pytest.warns(UserWarning, match="item '2' has 1 answers that are not whole numbers"):
        result = compare_groups(model, M, groups, n_resamples=2, test=False, random_state=0)
    assert result.mantel_tests is None
    assert "Mantel's test was not possible, because item '2' has 1 answers" in describe_dif(result)
    assert result.effects is not None  # which takes any numbers


def test_resamples_that_cannot_be_fitted_are_refused_by_name() -> None:
    M, groups = traits(8)
    M[:, 4:] = 2
    for j in range(4, 12):  # an item that does not vary in every third resample of each group
        M[[np.flatnonzero(groups == level)[j] for level in "ab"], j] = 3
    model = dfact.FactorAnalysis(1, executor="inline").fit(M)
    message = r"[01] of 30 resamples could be fitted in all groups, expected at least 2; the resample 1 of group=a: items '0'"
    with pytest.raises(DataError, match=message), pytest.warns(UserWarning, match="refits failed, such as resample 1 of group=a"):
        compare_groups(model, M, groups, n_resamples=30, test=False, random_state=0)


def test_groups_that_cannot_be_compared_are_refused_by_name() -> None:
    M, groups = traits(7)
    model = dfact.FactorAnalysis(2).fit(M)

    def refused(error: type[Exception], message: str, by: Any = groups, data: Any = M, **settings: Any) -> None:
        with pytest.raises(error, match=message):
            compare_groups(settings.pop("model", model), data, by, **settings)

    few = np.where(np.arange(len(M)) < 49, "few", groups)
    refused(DataError, "group=few has 49 rows, expected at least 50; compare other groups", few)
    constant = M.copy()
    constant[groups == "b", 5] = 2
    refused(DataError, "item '5' does not vary in group=b", data=constant, model=dfact.FactorAnalysis(2).fit(constant))
    empty = M.copy()
    empty[groups == "a", 3] = np.nan
    with np.errstate(all="ignore"):
        refused(DataError, "item '3' has no answers in group=a", data=empty, model=dfact.FactorAnalysis(2).fit(empty))
    refused(DataError, "has the level 'a' alone", np.full(len(M), "a"))
    refused(ParameterError, "by is 'gender', expected a confounder of the data", "gender")
    refused(ParameterError, "is continuous, expected groups", np.linspace(0, 1, len(M)))
    refused(ParameterError, "groups hold 'c'", groups=["a", "c"])
    refused(ParameterError, "n_resamples is 10, expected an integer from 30 to 100000", n_resamples=10)
    refused(ParameterError, "test is 'no', expected True or False", test="no")
    refused(ParameterError, r"too few draws for a test of 2 factors: .* use n_resamples=40 or more \(--resamples 40\)", n_resamples=39)
    refused(ParameterError, "expected a fitted ICQF, NMF or FactorAnalysis", model=dfact.GradeOfMembership(2).fit(M))
    assert compare_groups(model, M, few, groups=["a", "b"], n_resamples=30, test=False).sizes.sum() == (few != "few").sum()


@pytest.mark.usefixtures("few_resamples")
def test_the_first_group_that_is_named_is_the_reference() -> None:
    M, groups = traits(3)
    model = dfact.FactorAnalysis(2).fit(M)
    settings: dict[str, Any] = {"n_resamples": 2, "test": False, "random_state": 0}
    found = {order: compare_groups(model, M, groups, groups=list(order), **settings) for order in ("ab", "ba", "bab")}
    assert {order: comparison.levels for order, comparison in found.items()} == {"ab": ["a", "b"], "ba": ["b", "a"], "bab": ["b", "a"]}
    assert_array_equal(found["ab"].sizes, found["ba"].sizes[::-1])
    forth, back = (found[order].impact(model.get_feature_names_out()) for order in ("ab", "ba"))
    assert list(forth.index.levels[0]) == ["b − a"]
    assert list(back.index.levels[0]) == ["a − b"]
    assert_allclose(forth["impact"].to_numpy(), -back["impact"].to_numpy(), atol=1e-6)
