"""Codes of which nothing says whether they are answers: the import asks about them, with their numbers."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact import DataError, Dataset
from tests.imports.test_import_table import answers_of


def table(folder: Path, low: int, high: int, codes: list[Any], seed: int = 0) -> Path:
    """Write a table of 60 answers from ``low`` to ``high`` to each of three items, with the codes among those of the first."""
    X = np.random.default_rng(seed).integers(low, high + 1, (60, 3)).astype(object)
    X[: high - low + 1] = np.arange(low, high + 1)[:60, None]
    X[-1 - len(codes) : -1, 0] = codes
    path = folder / "answers.csv"
    pd.DataFrame(X, columns=["Q1", "Q2", "Q3"]).to_csv(path, index=False)
    return path


def imported(source: Any, folder: Path, **settings: Any) -> Dataset:
    return dfact.import_table(source, folder / "d.zarr", overwrite=True, **settings)


def codes_of(message: str, option: str = "--missing") -> dict[str, list[str]]:
    """Return the codes by item that the options of a message name."""
    found = re.findall(rf'{option} (?:"([^"]+)"|(\S+?))(?=,? |\)$)', message)
    return {name: codes.split(",") for name, codes in ((first or second).split("=", 1) for first, second in found)}


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "codes", "found"),
    [
        (1, 7, [99, 99], "Q1: 2 answer(s) are 99 (the others are from 1 to 7), which nothing declares as missing; say missing={'Q1': 99}"),
        (0, 4, [9, -9, None], "Q1: 1 answer(s) are -9 (the others are from 0 to 4); Q1: 1 answer(s) are 9 "),
        (0, 1, [-1, 88, 98], "Q1: 1 answer(s) are 88 (the others are from -1 to 1); Q1: 1 answer(s) are 98"),
        (1, 7, [9], "Q1: 1 answer(s) are 9 (the others are from 1 to 7)"),
        (1, 5, [7, 8, 9], "Q1: 1 answer(s) are 7 (the others are from 1 to 5); Q1: 1 answer(s) are 8 "),
        (0, 3, [-1], "Q1: 1 answer(s) are -1 (the others are from 0 to 3)"),
        (-2, 2, [-99], "Q1: 1 answer(s) are -99 (the others are from -2 to 2)"),
        (0, 100, [-99], "Q1: 1 answer(s) are -99 (the others are from 0 to 59)"),
        (120, 600, [-9, -9], "Q1: 2 answer(s) are -9 (the others are from "),
        (18, 80, [999, 999], "Q1: 2 answer(s) are 999 (the others are from 18 to 74)"),
        (1, 60, [99, 999], "Q1: 1 answer(s) are 999 (the others are from 1 to 60)"),
    ],
)
def test_far_codes_are_asked_about(tmp_path: Path, low: int, high: int, codes: list[Any], found: str, shift: bool) -> None:
    source = table(tmp_path, low, high, codes)
    settings = {"items": "Q*", "default_missing": False, "shift": shift}
    with pytest.raises(DataError, match=re.escape(found)) as raised:
        imported(source, tmp_path, **settings)
    assert not (tmp_path / "d.zarr").exists()
    remedy = codes_of(str(raised.value))
    cells = pd.read_csv(source)["Q1"]
    right = cells.mask(cells.isin([float(code) for code in remedy["Q1"]]))
    np.testing.assert_array_equal(answers_of(imported(source, tmp_path, missing=remedy, **settings))[:, 0], right)
    kept = codes_of(str(raised.value), "--not-missing")
    assert kept == remedy
    np.testing.assert_array_equal(answers_of(imported(source, tmp_path, not_missing=kept, **settings))[:, 0], cells)


@pytest.mark.parametrize(
    ("low", "high", "codes", "settings"),
    [
        (1, 7, [], {}),
        (0, 9, [], {}),
        (1, 8, [], {}),
        (1, 9, [], {}),
        (-2, 2, [], {"default_missing": False}),
        (-1, 1, [], {"default_missing": False}),
        (1, 60, [99], {}),
        (1, 7, [99], {"missing": 99}),
        (1, 7, [99], {"valid_range": (1, 99)}),
        (1, 7, [99], {"missing": {"Q1": 99}}),
        (1, 7, [99], {"not_missing": {"Q1": 99}}),
    ],
)
def test_answers_are_not_asked_about(tmp_path: Path, low: int, high: int, codes: list[Any], settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):
        imported(table(tmp_path, low, high, codes), tmp_path, items="Q*", **settings)


def test_other_items_show_that_a_gap_or_a_sign_belongs_to_the_scale(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": [*range(8), 9, 9], "b": [*range(8), 8, 10], "c": [-2, -1, 0, 1, 0, 1, 0, 1, 0, 1], "d": [-2, 2, 0, 1, -1] * 2}
    )
    answers = answers_of(imported(frame, tmp_path, items="*"))
    np.testing.assert_array_equal(answers, frame)
    for items, code in (("a", 9), ("c", -2)):
        with pytest.raises(DataError, match=rf"{items}: \d answer\(s\) are {code} "):
            imported(frame, tmp_path, items=items)


def test_a_question_lists_some_of_many_items(tmp_path: Path) -> None:
    X = np.random.default_rng(0).integers(1, 6, (40, 30))
    X[3, :27] = 99
    with pytest.raises(DataError, match=r"Q0: 1 answer\(s\) are 99 .*Q19: 1 answer\(s\) are 99 [^;]*; and 7 more, which"):
        imported(pd.DataFrame(X, columns=[f"Q{j}" for j in range(30)]), tmp_path, items="Q*")
