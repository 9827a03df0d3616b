"""Confounders: their kinds, their plausible ranges, and the encoding into [0, 1] of fitted and of new participants."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact import DataError, ParameterError, StoreError
from dfact.cli.main import main
from dfact.data.confounders import INTERCEPT, ConfounderEncoding, PlausibleRange, as_frame, is_categorical, normalize
from tests.conftest import planted_answers

SEEDS = [0, 1]


def people(seed, n=200):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 12, n)),
            "sex": rng.choice(np.array(["f", "m", "x", None], dtype=object), n, p=[0.5, 0.3, 0.1, 0.1]),
            "site": rng.integers(1, 12, n) * 1.0,
            "group": rng.choice([0, 1, 2], n),
            "smoker": rng.random(n) < 0.3,
        }
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3], True),
        ([1.0, 2.0, np.nan], True),
        (list(range(10)), True),
        (list(range(11)), False),
        ([1.5, 2], False),
        ([1, np.inf], False),
        (["1", "2"], True),
        ([True, False], True),
        (pd.array([1, None, 3], "Int8"), True),
        (pd.array([True, None], "boolean"), True),
        (pd.Categorical([1.5, 2.5]), True),
    ],
)
def test_kind_is_inferred_from_the_values(values, expected):
    assert is_categorical(pd.Series(values)) is expected


@pytest.mark.parametrize("seed", SEEDS)
def test_the_reference_is_the_commonest_level_the_first_of_equals(seed):
    rng = np.random.default_rng(seed)
    counts = dict(zip("abcd", rng.permutation([1, 7, 9, 4]).tolist(), strict=True))
    frame = normalize(pd.DataFrame({"site": rng.permutation(np.repeat([*counts], [*counts.values()])), "even": ["x", "y", "z"] * 7}))
    encoding = ConfounderEncoding.fit(frame)
    commonest = max(counts, key=counts.get)
    others = [level for level in counts if level != commonest]
    names, matrix = encoding.differences()
    assert names == (*(f"site={level} − site={commonest}" for level in others), "even=y − even=x", "even=z − even=x")
    assert encoding.difference_sizes() == [*((counts[level], counts[commonest]) for level in others), (7, 7), (7, 7)]
    assert encoding.columns[:4] == ("site=a", "site=b", "site=c", "site=d"), "columns stay in the order of the levels"
    assert [encoding.columns[row.argmin()] for row in matrix[:3]] == [f"site={commonest}"] * 3
    assert [encoding.columns[j] for j in encoding.contrast_columns()[:3]] == [f"site={level}" for level in others]


@pytest.mark.parametrize("kind", ["object", "float64", "str", "Int64", "category"])
def test_one_level_has_one_name(kind):
    values = ["1", "2", None] if kind == "str" else [1, 2, None]
    column = normalize(pd.DataFrame({"a": pd.Series(values, dtype=kind)}))["a"]
    assert column.cat.categories.tolist() == ["1", "2"]
    assert column.isna().tolist() == [False, False, True]


def test_declared_kinds():
    frame = normalize(pd.DataFrame({"a": [1, 2, 1], "b": [1.5, 2.0, np.nan]}), {"a": "continuous", "b": "categorical"})
    assert frame["a"].tolist() == [1.0, 2.0, 1.0]
    assert frame["b"].cat.categories.tolist() == ["1.5", "2"]


@pytest.mark.parametrize("given", ["frame", "series", "dict", "array", "vector"])
def test_confounders_are_accepted_in_every_form(given):
    x = np.linspace(20, 60, 12)
    forms = {
        "frame": pd.DataFrame({"age": x}, index=range(5, 17)),
        "series": pd.Series(x, name="age"),
        "dict": {"age": x},
        "array": x[:, None],
        "vector": x,
    }
    frame = as_frame(forms[given], 12)
    assert frame.columns.tolist() == (["confounder_0"] if given in ("array", "vector") else ["age"])
    np.testing.assert_array_equal(frame.iloc[:, 0], x)
    assert frame.index.tolist() == list(range(12))
    with pytest.raises(DataError, match="12 rows, expected 13 as in the data"):
        as_frame(forms[given], 13)


@pytest.mark.parametrize("seed", SEEDS)
def test_encoding_follows_the_definition(seed):
    raw = people(seed)
    encoding = ConfounderEncoding.fit(normalize(raw))
    C = pd.DataFrame(encoding.encode(normalize(raw)), columns=encoding.columns)
    levels = [f"sex={s}" for s in "fmx"] + [f"site={s}" for s in range(1, 12)]
    # Sites 1 to 11 are too many to be levels.
    expected = ["age", "1-age", *levels[:3], "site", "1-site", "group=0", "group=1", "group=2", "smoker=False", "smoker=True", INTERCEPT]
    assert C.columns.tolist() == expected
    assert C.to_numpy().min() >= 0
    assert C.to_numpy().max() <= 1
    assert (C[INTERCEPT] == 1).all()
    np.testing.assert_allclose(C["age"] + C["1-age"], 1)
    age = raw["age"]
    given = age.notna()
    np.testing.assert_allclose(C["age"][given], ((age - age.min()) / (age.max() - age.min()))[given])
    np.testing.assert_allclose(C["age"][~given], C["age"][given].mean())
    given = raw["sex"].notna()
    for level in "fmx":
        np.testing.assert_array_equal(C[f"sex={level}"][given], (raw["sex"] == level)[given])
        np.testing.assert_allclose(C[f"sex={level}"][~given], C[f"sex={level}"][given].mean())
    np.testing.assert_allclose(C[[f"sex={s}" for s in "fmx"]].sum(axis=1), 1)
    assert encoding.missing_counts() == {"age": int(age.isna().sum()), "sex": int(raw["sex"].isna().sum())}


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_values_keep_the_means(seed):
    """They take the mean, so every column's mean equals the mean of those who answered."""
    raw = normalize(people(seed))
    encoding = ConfounderEncoding.fit(raw)
    C = encoding.encode(raw)
    answered = raw.notna().all(axis=1)
    alone = ConfounderEncoding.fit(raw[["age"]]).encode(raw[["age"]])
    np.testing.assert_allclose(alone[:, 0].mean(), C[raw["age"].notna(), 0].mean())
    assert answered.sum() < len(raw)


@pytest.mark.parametrize("seed", SEEDS)
def test_new_participants(seed):
    fitted = normalize(people(seed))
    encoding = ConfounderEncoding.fit(fitted)
    new = pd.DataFrame(
        {
            "smoker": [True, None, False],
            "group": [1, 9, np.nan],
            "site": [-5, 5, 99],
            "sex": ["unheard of", "m", None],
            "age": [1e9, -1e9, np.nan],
            "more": [0, 0, 0],
        }
    )
    C = pd.DataFrame(encoding.encode(new), columns=encoding.columns)
    means = {name: mean for c in encoding.confounders for name, mean in zip(c.columns, c.means, strict=True)}
    np.testing.assert_allclose(C["age"], [1, 0, means["age"]])
    np.testing.assert_allclose(C["1-age"], [0, 1, means["1-age"]])
    np.testing.assert_array_equal(C["site"], [0, np.clip((5 - fitted["site"].min()) / np.ptp(fitted["site"]), 0, 1), 1])
    np.testing.assert_allclose(C["sex=f"], [means["sex=f"], 0, means["sex=f"]])
    np.testing.assert_allclose(C["sex=m"], [means["sex=m"], 1, means["sex=m"]])
    np.testing.assert_allclose(C["group=1"], [1, means["group=1"], means["group=1"]])
    np.testing.assert_allclose(C["smoker=True"], [1, means["smoker=True"], 0])
    assert C.to_numpy().min() >= 0
    assert C.to_numpy().max() <= 1
    with pytest.raises(DataError, match=r"expected those of the fitted model, .*; pass also \['age'\]"):
        encoding.encode(new.drop(columns="age"))


@pytest.mark.parametrize("kind", ["int64", "float64", "Int64", "str", "object", "category"])
def test_new_levels_match_independently_of_their_type(kind):
    encoding = ConfounderEncoding.fit(normalize(pd.DataFrame({"group": [1, 2, 2, 3]})))
    new = pd.DataFrame({"group": pd.Series([3, 1]).astype(kind)})
    np.testing.assert_array_equal(encoding.encode(new)[:, :3], [[0, 0, 1], [1, 0, 0]])


def test_levels_in_natural_order():
    encoding = ConfounderEncoding.fit(normalize(pd.DataFrame({"site": ["10", "9", "b", "a", "1.5"]})))
    assert encoding.columns == ("site=1.5", "site=9", "site=10", "site=a", "site=b", INTERCEPT)


def test_constant_continuous_confounder():
    frame = normalize(pd.DataFrame({"age": [1.5, 1.5, np.nan]}))
    np.testing.assert_array_equal(ConfounderEncoding.fit(frame).encode(frame), [[0, 1, 1]] * 3)


def test_no_confounders_leave_the_intercept():
    frame = pd.DataFrame(index=range(3))
    np.testing.assert_array_equal(ConfounderEncoding.fit(frame).encode(frame), np.ones((3, 1)))


@pytest.mark.parametrize("values", [[np.nan, np.nan], pd.Categorical([None, None])])
def test_confounder_without_any_value(values):
    with pytest.raises(DataError, match="'age' has no value"):
        ConfounderEncoding.fit(pd.DataFrame({"age": values}))


def test_infinite_confounder():
    with pytest.raises(DataError, match="'age' is infinite in row 1"):
        normalize(pd.DataFrame({"age": [1.5, -np.inf]}))


# ---------------------------------------------------------------- plausible values


def survey(folder, ages, **columns):
    """A table of two items with these ages."""
    rng = np.random.default_rng(len(ages))
    frame = pd.DataFrame({"Q1": rng.integers(0, 4, len(ages)), "Q2": rng.integers(0, 4, len(ages)), "age": ages, **columns})
    frame.loc[:1, ["Q1", "Q2"]] = [[0, 3], [3, 0]]
    frame.to_csv(folder / "survey.csv", index=False)
    return folder / "survey.csv"


def ages(seed, n=300, odd=(567_658.0, 1_990.0)):
    values = np.round(np.random.default_rng(seed).normal(40, 12, n).clip(18, 90))
    values[5 : 5 + len(odd)] = odd
    return values


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source", ["table", "array"])
def test_values_outside_a_declared_range_are_missing(tmp_path, seed, source):
    values = ages(seed, odd=(567_658.0, -3.0, 110.0, 5.0))
    values[100] = np.nan
    given = {"confounder_ranges": {"age": (5, 110)}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if source == "table":
            dataset = dfact.import_table(survey(tmp_path, values), tmp_path / "d.zarr", items="Q*", confounders=["age"], **given)
        else:
            X = np.random.default_rng(seed).integers(0, 4, (300, 2))
            dataset = dfact.import_array(X, tmp_path / "d.zarr", confounders={"age": values}, **given)
    expected = np.where((values >= 5) & (values <= 110), values, np.nan)
    for opened in (dataset, dfact.open_dataset(tmp_path / "d.zarr")):
        np.testing.assert_array_equal(opened.confounders["age"], expected)
        assert opened.confounder_ranges == {"age": PlausibleRange(5.0, 110.0, 2)}
    assert dataset.with_confounders(None).confounder_ranges == {}


def test_few_whole_numbers_with_a_range_are_continuous(tmp_path):
    source = survey(tmp_path, [20, 30, 40, 400, 30])
    dataset = dfact.import_table(source, tmp_path / "d.zarr", items="Q*", confounders=["age"], confounder_ranges={"age": (5, 110)})
    assert dataset.confounders["age"].tolist()[:3] == [20.0, 30.0, 40.0]
    array = dfact.import_array(np.eye(3), tmp_path / "e.zarr", confounders={"age": [20, 30, 400]}, confounder_ranges={"age": (5, 110)})
    assert array.confounder_ranges["age"].n_outside == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("source", ["table", "array", "fit"])
def test_values_far_from_all_others_draw_one_warning(tmp_path, seed, source):
    values, X = ages(seed), np.random.default_rng(seed).integers(0, 4, (300, 2))
    table = survey(tmp_path, values)
    run = {
        "table": lambda: dfact.import_table(table, tmp_path / "d.zarr", items="Q*", confounders=["age"]),
        "array": lambda: dfact.import_array(X, tmp_path / "d.zarr", confounders={"age": values}),
        "fit": lambda: dfact.ICQF(1, max_iter=2).fit(planted_answers(300, 5, 1, seed), confounders={"age": values}),
    }[source]
    with pytest.warns(UserWarning, match="confounder 'age' has 2 value") as caught:
        run()
    (text,) = (str(warning.message) for warning in caught if "confounder" in str(warning.message))
    low, high = np.quantile(values, [0.25, 0.75])
    assert f"from 1990 to 567658 and quartiles of {low:g} and {high:g}" in text
    declare = "declare its range with confounder_ranges={'age': (LOW, HIGH)} (--confounder-range age LOW HIGH)"
    remedy = "set the implausible values of age to NaN" if source == "fit" else declare
    assert remedy in text
    assert caught[0].filename == __file__


@pytest.mark.parametrize("seed", SEEDS)
def test_plausible_columns_draw_no_warning(tmp_path, seed):
    rng = np.random.default_rng(seed)
    values = ages(seed, odd=())
    low, high = np.quantile(values, [0.25, 0.75])
    values[5] = high + 10 * (high - low)  # no farther than the limit
    visits = np.zeros(300)
    visits[:20] = rng.integers(1, 100, 20)  # most values are equal, so that none is far
    others = {"visits": visits, "income": rng.lognormal(10, 0.4, 300), "code": [f"c{i % 9}" for i in range(300)]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = dfact.import_table(survey(tmp_path, values, **others), tmp_path / "d.zarr", items="Q*", confounders=["age", *others])
        dfact.open_dataset(dataset.path)


@pytest.mark.parametrize(
    ("confounders", "ranges", "message"),
    [
        (["age"], {"sex": (0, 1)}, "names 'sex', expected one of the confounders, 'age'"),
        ([], {"age": (0, 1)}, "names 'age', expected one of the confounders, none"),
        ({"age": "categorical"}, {"age": (5, 110)}, "'age' is declared categorical and has a range"),
        (["age"], {"age": (110, 5)}, "is 110 to 5, expected two ascending finite numbers"),
        (["age"], {"age": (5, np.nan)}, "is 5 to nan, expected two ascending"),
    ],
)
def test_invalid_ranges_are_refused(tmp_path, confounders, ranges, message):
    source = survey(tmp_path, ages(0))
    with pytest.raises(ParameterError, match=message):
        dfact.import_table(source, tmp_path / "d.zarr", items="Q*", confounders=confounders, confounder_ranges=ranges)
    assert not (tmp_path / "d.zarr").exists()


def test_ranges_without_a_value_and_of_text_are_refused(tmp_path):
    source = survey(tmp_path, ages(0), town=["a", "b"] * 150)
    for name, message in (("age", "'age' has no value from 200 to 300"), ("town", "holds 'a', expected a finite number")):
        with pytest.raises(DataError, match=message):
            dfact.import_table(source, tmp_path / "d.zarr", items="Q*", confounders=[name], confounder_ranges={name: (200, 300)})
    with pytest.raises(DataError, match=r"'town' is continuous and holds text .*expected numbers"):
        dfact.import_array(np.eye(2), tmp_path / "d.zarr", confounders={"town": ["a", "b"]}, confounder_ranges={"town": (0, 1)})
    assert not (tmp_path / "d.zarr").exists()


@pytest.mark.parametrize("ranges", [{"age": [5, 110, -1]}, {"age": [110, 5, 0]}, {"age": ["5", 110, 0]}, {"age": [5]}, [1], "age"])
def test_damaged_ranges_are_refused(tmp_path, ranges):
    dataset = dfact.import_array(np.eye(2), tmp_path / "d.zarr", confounders={"age": [5.0, 7.5]}, confounder_ranges={"age": (5, 110)})
    file = Path(dataset.path) / "zarr.json"
    metadata = json.loads(file.read_text())
    metadata["attributes"]["dfact"]["confounder_ranges"] = ranges
    file.write_text(json.dumps(metadata))
    with pytest.raises(StoreError, match="is damaged"):
        dfact.open_dataset(dataset.path)


@pytest.mark.filterwarnings("default")
def test_command_line_counts_values_outside_and_prints_quantiles(tmp_path, capsys):
    values = ages(1)
    source, target = str(survey(tmp_path, values)), str(tmp_path / "d.zarr")
    command = ["import", source, target, "--items", "Q*", "--confounder", "age", "--overwrite"]
    assert main(command) == 0
    assert "Warning: confounder 'age' has 2 value(s) from 1990 to 567658" in capsys.readouterr().err
    assert main([*command, "--confounder-range", "age", "5", "110"]) == 0
    printed = capsys.readouterr()
    assert "Warning" not in printed.err
    plausible = values[values <= 110]
    quantiles = np.quantile(plausible, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
    listed = "min {:g}, 5% {:g}, 25% {:g}, median {:g}, 75% {:g}, 95% {:g}, max {:g}".format(*quantiles)
    assert f"age: continuous, {listed}, mean {plausible.mean():g}, 2 missing (2 outside 5 to 110)" in printed.out
    assert main(["info", target]) == 0
    assert "2 missing (2 outside 5 to 110)" in capsys.readouterr().out
    assert main([*command, "--confounder-range", "age", "five", "110"]) == 2


@pytest.mark.further
@pytest.mark.parametrize("name", ["big5.tsv.gz", "eqsq.tsv.gz"])
def test_impossible_ages_of_public_questionnaires(questionnaires, tmp_path, name):
    """One impossible age squeezes all others into a fraction of the scaled range, so that the confounder becomes an intercept."""
    options = {"items": ["E1", "E2"], "missing": [0], "empty_rows": "drop", "confounders": {"age": "continuous"}, "overwrite": True}
    with pytest.warns(UserWarning, match="confounder 'age' has .* value"):
        raw = dfact.import_table(questionnaires / name, tmp_path / "d.zarr", **options)
    checked = dfact.import_table(questionnaires / name, tmp_path / "d.zarr", **options, confounder_ranges={"age": (5, 110)})
    spreads = []
    for dataset in (raw, checked):
        x = ConfounderEncoding.fit(dataset.confounders).encode(dataset.confounders)[:, 0]
        spreads.append(np.quantile(x, 0.75) - np.quantile(x, 0.25))
    assert checked.confounder_ranges["age"].n_outside > 0
    assert spreads[1] > 10 * spreads[0]


@pytest.mark.further
@pytest.mark.parametrize("header", ["alter;gew;Q1;Q2", "alter\tgew\tQ1\tQ2"])
def test_a_decimal_comma_applies_to_confounders_and_weights(tmp_path, header):
    rng = np.random.default_rng(len(header))
    age, weight, answers = rng.uniform(18, 60, 40).round(1), rng.gamma(2, 1, 40).round(2), rng.integers(1, 6, (40, 2))
    separator = header[5]
    lines = [[f"{a}".replace(".", ","), f"{w}".replace(".", ","), *map(str, row)] for a, w, row in zip(age, weight, answers, strict=True)]
    lines[3][0] = "-9"
    source = tmp_path / "t.txt"
    source.write_text("\n".join([header, *map(separator.join, lines)]) + "\n")
    given = {"items": "Q*", "delimiter": separator, "overwrite": True}
    comma = {"decimal": ",", "confounder_missing": -9}
    dataset = dfact.import_table(source, tmp_path / "d.zarr", confounders=["alter"], weight="gew", **given, **comma)
    expected = age.copy()
    expected[3] = np.nan
    np.testing.assert_array_equal(dataset.confounders["alter"], expected)
    np.testing.assert_array_equal(dataset.weights, weight)

    with pytest.raises(DataError, match=r"weight 'gew' holds '\d+,\d+', expected a finite number of at least 0; say --decimal ,"):
        dfact.import_table(source, tmp_path / "d.zarr", weight="gew", **given)
    with pytest.raises(DataError, match=r"confounder 'alter' holds '\d+,\d+', expected a finite number; say --decimal ,"):
        dfact.import_table(source, tmp_path / "d.zarr", confounders={"alter": "continuous"}, **given)
    with pytest.raises(DataError, match=r"confounder 'alter' has \d+ levels in 40 participants, such as .*--decimal ,"):
        dfact.import_table(source, tmp_path / "d.zarr", confounders=["alter"], **given)
    half = [[f"{k % 12},5", *line[1:]] for k, line in enumerate(lines)]
    source.write_text("\n".join([header, *map(separator.join, half)]) + "\n")
    with pytest.warns(UserWarning, match=r"'alter' holds '\d+,\d+' and becomes categorical with \d+ levels, .*--decimal ,"):
        dfact.import_table(source, tmp_path / "d.zarr", confounders=["alter"], **given)
    with warnings.catch_warnings(action="error"):
        dfact.import_table(source, tmp_path / "d.zarr", confounders={"alter": "categorical"}, **given)


@pytest.mark.needs("formats")
def test_a_point_is_no_number_in_a_file_with_decimal_commas(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text("a;Q1\n1.500;1\n2,5;2\n")
    with pytest.raises(DataError, match=r"confounder 'a' holds '1\.500', expected a finite number; declare it in confounder_missing"):
        dfact.import_table(source, tmp_path / "d.zarr", items="Q*", confounders={"a": "continuous"}, delimiter=";", decimal=",")
