"""Codes of missing answers of which an import was not told."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact


def table(folder: Path, low: int, high: int, codes: list[Any], seed: int = 0) -> Path:
    """Write a table of 60 answers from ``low`` to ``high`` to each of three items, with the codes among those of the first."""
    X = np.random.default_rng(seed).integers(low, high + 1, (60, 3)).astype(object)
    X[:2] = [[low] * 3, [high] * 3]
    X[5 : 5 + len(codes), 0] = codes
    path = folder / "answers.csv"
    pd.DataFrame(X, columns=["Q1", "Q2", "Q3"]).to_csv(path, index=False)
    return path


@pytest.mark.further
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize(
    ("low", "high", "codes", "found"),
    [
        (1, 7, [99, 99], "answers to 'Q1' are 99 (2×) and the others from 1 to 7, .*--missing=99"),
        (0, 4, [9, -9, None], "answers to 'Q1' are -9 (1×), 9 (1×) and the others from 0 to 4, .*--missing=-9 --missing=9"),
        (0, 1, [-1, 88, 98], "answers to 'Q1' are 88 (1×), 98 (1×) and the others from -1 to 1"),
    ],
)
def test_forgotten_codes_are_asked_about(tmp_path: Path, low: int, high: int, codes: list[Any], found: str, shift: bool) -> None:
    with pytest.warns(UserWarning, match=found.replace("(", r"\(").replace(")", r"\)")):
        dfact.import_table(table(tmp_path, low, high, codes), tmp_path / "d.zarr", items="Q*", default_missing=False, shift=shift)


@pytest.mark.further
@pytest.mark.parametrize(
    ("low", "high", "codes", "settings"),
    [
        (1, 7, [], {}),
        (0, 9, [], {}),
        (-2, 2, [], {"default_missing": False}),
        (-1, 1, [], {"default_missing": False}),
        (0, 7, [9], {}),
        (1, 60, [99, 999], {}),
        (1, 7, [99], {"missing": 99}),
        (1, 7, [99], {"valid_range": (1, 99)}),
        (1, 7, [99], {"missing": {"Q1": 99}}),
    ],
)
def test_answers_are_not_asked_about(tmp_path: Path, low: int, high: int, codes: list[Any], settings: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):
        dfact.import_table(table(tmp_path, low, high, codes), tmp_path / "d.zarr", items="Q*", **settings)


def test_a_warning_names_a_few_of_many_items(tmp_path: Path) -> None:
    X = np.random.default_rng(0).integers(1, 6, (40, 8))
    X[3, :7] = 99
    pd.DataFrame(X, columns=[f"Q{j}" for j in range(8)]).to_csv(tmp_path / "a.csv", index=False)
    with pytest.warns(UserWarning, match=r"answers to 'Q0', 'Q1', 'Q2', 'Q3', 'Q4' and 2 more are 99 \(7×\) and the others from 1 to 5"):
        dfact.import_table(tmp_path / "a.csv", tmp_path / "d.zarr", items="Q*")
