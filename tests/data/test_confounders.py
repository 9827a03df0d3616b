"""Confounders: their kinds, and the encoding into [0, 1] of fitted and of new participants."""

import numpy as np
import pandas as pd
import pytest

from dfact import DataError
from dfact.data.confounders import INTERCEPT, ConfounderEncoding, as_frame, is_categorical, normalize

SEEDS = [0, 1, 2]


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
    """They take the mean, so every column's mean is that of those who answered."""
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
