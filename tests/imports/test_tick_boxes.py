"""Boxes that are ticked or not: what an empty cell is."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyreadstat
import pytest

import dfact
from dfact import DataError
from dfact.cli.main import main
from tests.cases import needing
from tests.imports.test_import_table import answers_of

TICKED = np.random.default_rng(3).random((150, 6)) < [0.68, 0.5, 0.5, 0.3, 0.2, 0.1]
TICKED[7] = False
FOLLOWED = r"say (?:empty_cells= (?:and levels= )?\()?(--empty-cells [^)]+?)(?:\)|, or leave)"


def table(folder: Path, mark: Any, kind: str = "csv") -> Path:
    """Write boxes with this mark where they are ticked, and an answer of each person to a further question."""
    cells = pd.DataFrame({f"G2[SQ{j}]": pd.Series(np.where(TICKED[:, j], mark, None)) for j in range(6)})
    cells.insert(0, "q", np.arange(150) % 5 + 1)
    path = folder / f"boxes.{kind}"
    if kind == "csv":
        cells.to_csv(path, index=False)
    elif kind == "parquet":
        cells.to_parquet(path)
    else:
        numbers = cells.astype(float)
        numbers.columns = [name.translate({91: "_", 93: None}) for name in cells]
        pyreadstat.write_sav(numbers, str(path))
    return path


@pytest.mark.parametrize(
    ("mark", "kind"),
    needing("formats", lambda case: case[1] == "sav", [(1, "csv"), (1, "parquet"), (1, "sav"), ("Y", "csv"), ("Y", "parquet")]),
)
def test_the_remedy_for_boxes_gives_the_right_answers(tmp_path: Path, mark: Any, kind: str) -> None:
    source, target = table(tmp_path, mark, kind), tmp_path / "d.zarr"
    command = ["import", str(source), str(target), "--items", "G2*", "--overwrite"]
    with (
        pytest.warns(UserWarning, match="hold .* or no answer, so that the items do not vary")
        if mark == 1
        else pytest.raises(DataError, match=r"'Y' .*if an empty cell is an answer") as said
    ):
        dfact.import_table(source, target, items="G2*", empty_rows="drop")
    text = str(said[0].message) if mark == 1 else str(said.value)  # type: ignore[index]
    options = shlex.split(re.search(FOLLOWED, text)[1])  # type: ignore[index]
    assert main([*command, *options]) == 0
    answers = answers_of(dfact.open_dataset(target))
    np.testing.assert_array_equal(answers, TICKED + (0 if mark == 1 else 1))
    assert "empty cells are" in str(dfact.open_dataset(target).codebook)


def test_a_fit_of_items_that_do_not_vary_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="do not vary"):
        dataset = dfact.import_table(table(tmp_path, 1), tmp_path / "d.zarr", items="G2*", empty_rows="drop")
    for model in (dfact.ICQF(2), dfact.PCA(2), dfact.NMF(2), dfact.GradeOfMembership(2)):
        with pytest.raises(DataError, match=r"no item varies: 'G2\[SQ0\]' is 1, .* \(--empty-cells 0\)"):
            model.fit(dataset)
    dfact.NMF(1).fit(np.full((4, 2), 3.0))  # an array of any values, not of answers


def test_texts_that_stand_for_no_answer_are_not_empty(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("a,b,c,d\n1,1,Y,4\nNA,,NA,4\n,1,,5\n-9,1,Y,4\n")
    settings: dict[str, Any] = {"items": "*", "levels": {"c": "N<Y"}, "missing": {"a": -9}}
    dataset = dfact.import_table(source, tmp_path / "d.zarr", empty_cells={"a": 0, "c": "n"}, **settings)
    np.testing.assert_array_equal(answers_of(dataset), [[1, 1, 2, 4], [np.nan, np.nan, np.nan, 4], [0, 1, 1, 5], [np.nan, 1, 2, 4]])


def test_an_answer_of_empty_cells_that_is_no_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"empty_cells is 'maybe' for .*expected one of its levels, N, Y"):
        dfact.import_table(table(tmp_path, "Y"), tmp_path / "d.zarr", items="G2*", levels="N<Y", empty_cells="maybe")
    with pytest.raises(DataError, match=r"empty_cells is 'N' for .*expected a number"):
        dfact.import_table(table(tmp_path, 1), tmp_path / "d.zarr", items="G2*", empty_cells="N")


@pytest.mark.needs("formats")
def test_kinds_of_missing_values_are_not_empty(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, "a"], "b": [1.0, 2.0, 3.0]})
    pyreadstat.write_dta(frame, str(tmp_path / "t.dta"), missing_user_values={"a": ["a"]})
    with pytest.raises(DataError, match=r"item 'a' holds missing values of several kinds, \.a, expected empty cells alone"):
        dfact.import_table(tmp_path / "t.dta", tmp_path / "d.zarr", items="*", empty_cells={"a": 0})
