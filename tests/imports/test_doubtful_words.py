"""Texts and codes of groups and weights that may stand for no answer, and names that look like them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.dataset import Dataset
from dfact.errors import DataError
from dfact.imports.coding.no_answer import sounds_like_no_answer


def imported(folder: Path, column: list[Any], seed: int = 0, **settings: Any) -> Dataset:
    """Import an item and a column named group, which ``settings`` make a confounder or a weight."""
    frame = pd.DataFrame({"q": np.random.default_rng(seed).integers(1, 6, len(column)), "group": column})
    return dfact.import_table(frame, folder / "words.zarr", items="q", overwrite=True, **settings)


@pytest.mark.parametrize("word", ["-", "--", "?", "99", "-9", "9", "unknown", "DK"])
def test_a_placeholder_among_words_is_asked_about(tmp_path: Path, word: str) -> None:
    column = ["female", "male"] * 20 + [word] * 3
    with pytest.raises(DataError, match=rf"group: 3 value\(s\) are {word.replace('?', '[?]')}, .*confounder_missing"):
        imported(tmp_path, column, confounders=["group"])
    levels = imported(tmp_path, column, confounders=["group"], confounder_missing={"group": word}).confounder_summaries()
    assert (levels[0].n_missing, levels[0].levels) == (3, {"female": 20, "male": 20})
    kept = imported(tmp_path, column, confounders=["group"], not_missing={"group": word}).confounder_summaries()
    assert (kept[0].n_missing, kept[0].levels) == (0, {"female": 20, "male": 20, word: 3})


def test_a_placeholder_among_few_numbers_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"group: 2 value\(s\) are -, "):
        imported(tmp_path, ["1", "2"] * 10 + ["-"] * 2, confounders=["group"])


@pytest.mark.parametrize(
    "column",
    [
        ["+", "-"] * 6,
        ["7", "8", "9"] * 6 + ["preschool"],
        ["K", "9", "10"] * 6,
        ["DK", "BO", "US", "GB", "IN", "CA", "DE", "(nu"] * 2,
        ["ND", "NC", "NS", "NY", "TX", "CA"] * 2,
    ],
    ids=["signs", "grades", "grades with a letter", "countries", "states"],
)
def test_levels_that_look_like_placeholders_are_not_asked_about(tmp_path: Path, column: list[str]) -> None:
    summary = imported(tmp_path, column, confounders={"group": "categorical"}).confounder_summaries()[0]
    assert summary.n_missing == 0
    assert set(summary.levels) == set(column)


@pytest.mark.parametrize("code", [99, 9999])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_far_weight_is_asked_about(tmp_path: Path, code: int, seed: int) -> None:
    weights = np.random.default_rng(seed).gamma(2, 0.5, 50).round(3)
    weights[:3] = code
    with pytest.raises(DataError, match=rf"weight 'group': 3 value\(s\) are {code}, .*not_missing="):
        imported(tmp_path, weights.tolist(), weight="group")
    kept = imported(tmp_path, weights.tolist(), weight="group", not_missing={"group": code}).weights
    np.testing.assert_array_equal(kept, weights)


@pytest.mark.parametrize(
    "label",
    [
        *("Decline to answer", "NIU", "Breakoff", "Partial interview", "Multiple response"),
        *("ungültig", "Keine Ahnung", "Filterfehler", "nicht bestimmbar", "Kann mich nicht erinnern", "Unplausibler Wert"),
        *("NSPP", "N.C.", "Perdido", "No sabría decir", "Bortfall", "Nu știu", "Nu răspund"),
    ],
)
def test_labels_of_no_answer(label: str) -> None:
    assert sounds_like_no_answer(label)


@pytest.mark.parametrize("label", ["trifft zu", "never", "nunca", "I decline invitations rarely", "Ahnung", "multiple", "nu", "proxy"])
def test_labels_of_answers(label: str) -> None:
    assert not sounds_like_no_answer(label)
