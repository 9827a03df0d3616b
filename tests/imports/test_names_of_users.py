"""Names as users write them: of parts, and ids with spaces and capitals."""

import random
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact import DataError
from dfact.cli.main import main
from dfact.storage.input_files import natural_key
from tests.imports.test_import_table import answers_of


def test_parts_are_read_as_people_count_them(tmp_path: Path) -> None:
    folder = tmp_path / "p.parquet"
    folder.mkdir()
    numbers = list(range(12))
    random.Random(1).shuffle(numbers)
    for i in numbers:
        pd.DataFrame({"q": [i + 1.0, i + 1.0]}).to_parquet(folder / f"part.{i}.parquet")
    dataset = dfact.import_table(folder, tmp_path / "d.zarr", items="q", not_missing={"q": [7, 8, 9]})
    np.testing.assert_array_equal(answers_of(dataset)[:, 0], np.repeat(np.arange(12) + 1, 2))


def test_names_of_parts_in_their_natural_order() -> None:
    names = ["a", "a01", "a1", "a1b2", "a1b10", "a.2", "a.10", "a.10.1", "b", "part-00001-f3", "part-00010-0a"]
    shuffled = random.Random(2).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == names


def survey(folder: Path, name: str, ids: list[str]) -> Path:
    answers = np.random.default_rng(len(name)).integers(1, 5, (len(ids), 2))
    frame = pd.DataFrame(answers, columns=[f"{name}1", f"{name}2"])
    frame.insert(0, "id", ids)
    frame.to_csv(folder / f"{name}.csv", index=False)
    dfact.import_table(folder / f"{name}.csv", folder / f"{name}.zarr", items=f"{name}*", id_column="id")
    return folder / f"{name}.zarr"


IDS = [f"P{i:03}" for i in range(40)]


def test_ids_that_differ_by_spaces_are_one_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = survey(tmp_path, "a", IDS), survey(tmp_path, "b", [f"{label} " for label in IDS])
    with warnings.catch_warnings(action="error"):
        assert main(["join", str(tmp_path / "j.zarr"), str(first), str(second)]) == 0
    assert dfact.open_dataset(tmp_path / "j.zarr").shape == (40, 4)
    printed = capsys.readouterr().out
    assert [f"{name}: 40 participants, 40 of them in all datasets, 0 in no other" in printed for name in "ab"] == [True, True]
    with pytest.raises(DataError, match="the id 'P001' in column 'id' is at line 3 and line 4, expected unique ids"):
        survey(tmp_path, "c", ["P000", "P001", " P001"])


@pytest.mark.parametrize("how", ["outer", "inner"])
def test_ids_that_differ_by_case_are_warned_of(how: str, tmp_path: Path) -> None:
    first, second = survey(tmp_path, "a", IDS), survey(tmp_path, "b", [*(label.lower() for label in IDS[:30]), *IDS[30:]])
    notes: list[str] = []
    with pytest.warns(UserWarning, match=r"30 participant\(s\) of b have labels that differ .* such as 'p000' and 'P000'; write"):
        dfact.join_datasets([first, second], tmp_path / "j.zarr", how=how, note=notes.append)
    assert notes[1] == "b: 40 participants, 10 of them in all datasets, 30 in no other"


def test_datasets_without_common_participants_are_warned_of(tmp_path: Path) -> None:
    first, second = survey(tmp_path, "a", IDS), survey(tmp_path, "b", [f"{i}" for i in range(40)])
    with pytest.warns(UserWarning, match=r"no participant in common .*: a \('P000', .*, …\) and b \('0', '1', '2', …\); write"):
        dfact.join_datasets([first, second], tmp_path / "j.zarr")


def test_ids_with_nul_characters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,q\nP1,1\nP\x002,2\n")
    with pytest.raises(DataError, match="line 3 has an id with a NUL character in column 'id', expected text"):
        dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="q", id_column="id")


@pytest.mark.parametrize("value", [4.5, 4.0])
def test_answers_that_are_all_the_same_are_written(value: float, tmp_path: Path) -> None:
    """Chunks that hold the fill value alone are stored, too."""
    dataset = dfact.import_table(pd.DataFrame({"q": [value] * 5, "r": [value] * 5}), tmp_path / "d.zarr", items=["q", "r"])
    np.testing.assert_array_equal(answers_of(dataset), np.full((5, 2), value))
