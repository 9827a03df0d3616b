"""Codebooks: what a dataset keeps of its items, and texts and groups of items from a csv file."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import dfact
from dfact import Codebook, Item, MissingCount
from dfact.cli.main import main
from dfact.data.codebook import compare_items
from dfact.data.examples import ipip_ascado_items, ipip_ascado_items_file
from dfact.errors import DataError, StoreError
from dfact.imports.dictionaries.table import read_items
from dfact.storage.arrays import write_labels
from dfact.storage.groups import open_store
from tests.cases import every
from tests.conftest import unseal

LEVELS = ((1.0, "never"), (2.0, "sometimes"), (3.0, "always"))
EVIL = "\x1b[31m<script>alert(1)</script> \u202e $x^{$ 評価 \x00"
MISSING = (MissingCount("9", "refused", 7), MissingCount("-1", "", 2))
ITEMS = (
    Item(
        "Q1", "I worry a lot", LEVELS, (1.0, 3.0), (MissingCount("9", "refused", 7), MissingCount("-1", "", 2)), 4, ("reversed",), "a.sav"
    ),
    Item("Q2", EVIL, LEVELS, source="a.sav"),
    Item("Q3"),
)


def stored(path: Path, items: Any = ITEMS, **settings: Any) -> dfact.Dataset:
    answers = np.random.default_rng(0).integers(1, 4, (20, 3))
    return dfact.import_array(answers, path, column_labels=["Q1", "Q2", "Q3"], codebook=Codebook(tuple(items)), **settings)


def test_a_dataset_keeps_its_codebook(tmp_path: Path) -> None:
    dataset = stored(tmp_path / "d.zarr", ITEMS[::-1])
    for opened in (dataset, dfact.open_dataset(tmp_path / "d.zarr"), pickle.loads(pickle.dumps(dataset))):
        assert opened.codebook == Codebook(ITEMS), "in the order of the columns"
    with_none = dfact.import_array(np.ones((2, 1)), tmp_path / "e.zarr")
    assert dfact.open_dataset(tmp_path / "e.zarr").codebook is with_none.codebook is None
    # Values and labels alone make the fingerprint of the data; that of the codebook is another.
    assert stored(tmp_path / "f.zarr", ()).fingerprint == dataset.fingerprint
    read = [json.loads(text) for text in xr.open_zarr(tmp_path / "d.zarr")["codebook"].values]
    assert read[0]["levels"] == [[1, "never"], [2, "sometimes"], [3, "always"]]
    assert read[2] == {"name": "Q3"}


def test_a_codebook_may_describe_some_columns(tmp_path: Path) -> None:
    numbers = Item("Q2", levels=((np.int64(0), "no"), (np.float32(1), "yes")), n_empty=np.int64(3))  # type: ignore[arg-type]
    codebook = stored(tmp_path / "d.zarr", [numbers]).codebook
    assert codebook is not None
    assert list(codebook) == [Item("Q1"), Item("Q2", levels=((0.0, "no"), (1.0, "yes")), n_empty=3), Item("Q3")]
    assert codebook["Q2"] is codebook.get("Q2")
    assert codebook.get("Q9") is None


@pytest.mark.further
def test_a_codebook_of_thousands_of_items_is_small_and_complete(tmp_path: Path) -> None:
    items = tuple(replace(ITEMS[0], name=f"Q{j}", wording=f"Item {j} of a long questionnaire, {j % 7}") for j in range(5000))
    X = np.ones((3, 5000), np.uint8)
    dataset = dfact.import_array(X, tmp_path / "d.zarr", column_labels=[item.name for item in items], codebook=Codebook(items))
    assert dataset.codebook == Codebook(items)
    assert sum(file.stat().st_size for file in (tmp_path / "d.zarr" / "codebook").rglob("*") if file.is_file()) < 100_000


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([Item("Q4")], "describes 'Q4', expected names of columns such as 'Q1'"),
        ([Item("Q1"), Item("Q1", "twice")], "describes 'Q1' twice, expected each column once"),
        ([Item("Q1", levels=((2, "b"), (1, "a")))], "expected ascending levels"),
        ([Item("Q1", levels=((np.inf, "b"),))], "expected a finite number"),
        ([Item("Q1", levels=(("1", "b"),))], "expected a finite number"),  # type: ignore[arg-type]
        ([Item("Q1", 5)], "expected texts"),  # type: ignore[arg-type]
        ([Item("Q1", valid_range=(3, 1))], "expected a range"),
        ([Item("Q1", missing=("9",))], "correct the item"),  # type: ignore[arg-type]
        ([Item("Q1", n_empty=-1)], "expected counts"),
        ([Item("Q1", "\ud800")], "expected valid Unicode"),
    ],
)
def test_invalid_items_are_refused(tmp_path: Path, items: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stored(tmp_path / "d.zarr", items)
    assert list(tmp_path.iterdir()) == []


DAMAGE = {
    "no JSON": ["{", '{"name": "Q2"}', '{"name": "Q3"}'],
    "a number": ["1", '{"name": "Q2"}', '{"name": "Q3"}'],
    "another column": ['{"name": "Q2"}', '{"name": "Q1"}', '{"name": "Q3"}'],
    "no name": ["{}", '{"name": "Q2"}', '{"name": "Q3"}'],
    "too few": ['{"name": "Q1"}'],
    **{
        field: [json.dumps({"name": "Q1"})[:-1] + f", {field}}}", '{"name": "Q2"}', '{"name": "Q3"}']
        for field in (
            '"levels": [[1, "a"], [1, "b"]]',
            '"levels": [[NaN, "a"]]',
            '"levels": [[1, 2]]',
            '"levels": [[1]]',
            '"levels": {"1": "a"}',
            '"levels": [[true, "a"]]',
            f'"levels": [[1{"0" * 400}, "a"]]',
            '"missing": [{"code": "9", "label": "", "count": -1}]',
            '"missing": [{"code": 9, "label": "", "count": 1}]',
            '"missing": [{"code": "9"}]',
            '"missing": [["9", "", 1]]',
            '"n_empty": 1.5',
            '"changes": "reversed"',
            '"changes": [1]',
            '"wording": null',
            '"source": ["a"]',
            '"wording": "\\ud800"',
            '"valid_range": [1]',
            '"valid_range": [2, 1]',
            '"__class__": "os"',
            f'"wording": {"[" * 100_000}{"]" * 100_000}',
        )
    },
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codebook") / "d.zarr"
    stored(path)
    return path


@pytest.mark.further
@every(case=DAMAGE)
def test_a_damaged_codebook_is_refused(template: Path, case: str) -> None:
    group = zarr.open_group(open_store(template))
    unseal(group)
    del group["codebook"]
    write_labels(group, "codebook", np.array(DAMAGE[case], dtype=object), "column")
    try:
        dfact.open_dataset(template)
    except StoreError as error:
        assert "import it again" in str(error) or "write the store again" in str(error), error  # noqa: PT017  # every() collects failures
    else:
        raise AssertionError("it was opened")


def test_a_lost_codebook_is_refused(tmp_path: Path) -> None:
    stored(tmp_path / "d.zarr")
    del zarr.open_group(open_store(tmp_path / "d.zarr"))["codebook"]
    with pytest.raises(StoreError, match="codebook"):
        dfact.open_dataset(tmp_path / "d.zarr")


def test_fingerprint_of_wording_and_levels() -> None:
    def of(**changes: Any) -> str:
        return Codebook((replace(ITEMS[0], **changes), *ITEMS[1:])).fingerprint

    assert of() == of(source="b.dta", missing=(), n_empty=0) == Codebook(ITEMS).fingerprint, "the same from every format"
    others = [of(wording="I worry"), of(levels=LEVELS[:2]), of(levels=((0.0, "never"), *LEVELS[1:])), of(changes=()), of(name="Q0")]
    assert len({of(), *others}) == len(others) + 1


ITEM = replace(ITEMS[0], changes=())


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (ITEM, None),
        (replace(ITEM, wording="Other words", source="b", missing=(), n_empty=0), None),
        (replace(ITEM, levels=()), None),
        (Item("Q1"), None),
        (replace(ITEM, valid_range=None), None),
        (replace(ITEM, levels=((1.0, "Never"), (2.0, "Sometimes"), (3.0, " ALWAYS "))), None),
        (replace(ITEM, changes=("9 recoded to 3",)), None),
        (replace(ITEM, changes=("reversed",)), "reverse="),
        (replace(ITEM, levels=LEVELS[:2]), "levels="),
        (replace(ITEM, levels=tuple((4 - code, label) for code, label in LEVELS[::-1])), "levels="),
        (replace(ITEM, valid_range=(0.0, 3.0)), "valid_range="),
    ],
)
def test_items_of_one_name_are_compared(other: Item, remedy: str | None) -> None:
    for difference in (compare_items(ITEM, other), compare_items(other, ITEM)):
        assert (difference is None) is (remedy is None)
        assert difference is None or difference.remedy.startswith(str(remedy))
        assert difference is None or difference.first != difference.second


@pytest.mark.further
def test_new_data_with_other_answers_are_refused(tmp_path: Path) -> None:
    model = dfact.ICQF(1, max_iter=2).fit(stored(tmp_path / "d.zarr"))
    flipped = tuple((4 - code, label) for code, label in LEVELS[::-1])
    for name, item, message in (
        ("direction", replace(ITEMS[0], changes=()), "item 'Q1' is not reversed in X and is reversed in the fitted data.*--reverse"),
        ("levels", replace(ITEMS[1], levels=flipped), "'Q2' has the levels 1 always, .* in X and has the levels 1 never, .*--levels"),
        ("range", replace(ITEMS[0], valid_range=(1.0, 4.0)), "'Q1' has the range 1 to 4 in X and has the range 1 to 3 .*--valid-range"),
    ):
        other = stored(tmp_path / f"{name}.zarr", [item])
        with pytest.raises(DataError, match=message):
            model.transform(other)
    for known in ((), [replace(ITEMS[1], levels=())], [replace(ITEMS[0], wording="Other words")]):
        model.transform(stored(tmp_path / "same.zarr", known, overwrite=True))
    model.transform(np.ones((2, 3)))


@pytest.mark.further
def test_join_unites_codebooks_and_refuses_other_answers(tmp_path: Path) -> None:
    people = {"row_labels": [f"p{i}" for i in range(20)]}
    first = stored(tmp_path / "a.zarr", **people)
    other = stored(tmp_path / "b.zarr", [replace(ITEMS[0], changes=()), replace(ITEMS[2], wording="Three")], **people)
    with pytest.raises(
        DataError, match=r"item 'Q1' is reversed in a and is not reversed in b.*--reverse\), or keep them apart with prefix"
    ):
        dfact.join_datasets([first, other], tmp_path / "j.zarr")
    assert not (tmp_path / "j.zarr").exists()
    joined = dfact.join_datasets([first, other], tmp_path / "j.zarr", prefix=True).codebook
    assert joined is not None
    assert [item.name for item in joined] == ["a.Q1", "a.Q2", "a.Q3", "b.Q1", "b.Q2", "b.Q3"]
    assert joined["a.Q1"] == replace(ITEMS[0], name="a.Q1")
    assert joined["b.Q3"].wording == "Three"
    # What one of them does not describe is not a difference.
    plain = stored(tmp_path / "c.zarr", (), **people)
    for partners in ([first, plain], [plain, first]):
        codebook = dfact.join_datasets(partners, tmp_path / "k.zarr", overwrite=True).codebook
        assert codebook is not None
        assert codebook["a.Q1"].wording == ITEMS[0].wording
    unknown = dfact.import_array(np.ones((20, 1)), tmp_path / "u.zarr", column_labels=["R"], **people)
    joined = dfact.join_datasets([unknown, first], tmp_path / "l.zarr").codebook
    assert joined == Codebook((Item("R"), *ITEMS))
    assert (
        dfact.join_datasets([unknown, dfact.import_array(np.ones((20, 1)), tmp_path / "v.zarr", **people)], tmp_path / "m.zarr").codebook
        is None
    )


def test_info_prints_items_without_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = stored(tmp_path / "d.zarr")
    assert dataset.codebook is not None
    assert main(["info", str(dataset.path)]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert f"codebook      2 item(s) with wording, 2 with levels, 1 with missing codes; fingerprint {dataset.codebook.fingerprint}" in lines
    start = lines.index("Q1  I worry a lot")
    assert lines[start + 1 : start + 5] == [
        "      levels   1 never, 2 sometimes, 3 always",
        "      missing  9 refused (7), -1 (2), empty (4)",
        "      changed  reversed",
        "      from     a.sav",
    ]
    assert "      levels   as above" in lines
    assert "\\x1b[31m<script>" in printed
    assert not {"\x1b", "\x00", "\u202e"} & set(printed)
    assert main(["info", str(dataset.path), "-n", "1"]) == 0
    assert "… 1 more; --items NAMES lists items by name or pattern" in capsys.readouterr().out
    assert main(["info", str(dataset.path), "-n", "1", "--items", "Q[23]"]) == 0
    chosen = capsys.readouterr().out.splitlines()
    assert "Q3" in chosen
    assert "Q1  I worry a lot" not in chosen
    assert main(["info", str(dataset.path), "--items", "X*"]) == 1
    assert "no item matches 'X*', expected names or patterns such as 'Q1'" in capsys.readouterr().err
    ranged = stored(tmp_path / "r.zarr", [Item("Q1", levels=LEVELS, valid_range=(0.0, 5.0)), Item("Q2", n_empty=2)])
    assert main(["info", str(ranged.path)]) == 0
    printed = capsys.readouterr().out
    assert "    valid    0 to 5" in printed
    assert "empty (2)" not in printed, "items of which the file says nothing are listed on demand"
    assert main(["info", str(ranged.path), "--items", "Q2"]) == 0
    assert "    missing  empty (2)" in capsys.readouterr().out
    plain = dfact.import_array(np.ones((2, 2)), tmp_path / "p.zarr")
    assert main(["info", str(plain.path), "--items", "Q1"]) == 1
    assert "has no codebook, expected one for --items" in capsys.readouterr().err


def test_models_show_the_wording_of_their_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = dfact.ICQF(1, max_iter=3).fit(stored(tmp_path / "d.zarr"))
    dfact.save_model(model, tmp_path / "m")
    loaded = dfact.load_model(tmp_path / "m")
    assert loaded.codebook_ == model.codebook_ == Codebook(ITEMS)
    assert main(["info", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr().out
    assert "I worry a lot (reversed)" in printed
    assert "\x1b" not in printed
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "l.csv")]) == 0
    assert main(["export", str(tmp_path / "m"), str(tmp_path / "l.parquet")]) == 0
    for table in (pd.read_csv(tmp_path / "l.csv"), pd.read_parquet(tmp_path / "l.parquet")):
        assert list(table) == ["item", "text", "F1"]
        assert table["text"][0] == "I worry a lot (reversed)"
    assert main(["info", str(tmp_path / "m"), "--items", "Q1"]) == 2
    assert "--items applies to datasets" in capsys.readouterr().err
    given = dfact.report.text(model, texts={"Q1": "Other words"})
    assert "Other words" in given
    assert "worry" not in given
    # Fitted again on data without a codebook, a model has none.
    assert loaded.fit(np.random.default_rng(0).random((9, 3))).codebook_ is None


def test_texts_and_groups_leave_out_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,text,group\nQ1,I sleep badly,sleep\nQ2,,mood\nQ3,I worry,\n", encoding="utf-8-sig")
    table = read_items(tmp_path / "items.csv")
    assert table.texts == {"Q1": "I sleep badly", "Q3": "I worry"}
    assert (table.scales, table.keys) == ({"Q1": "sleep", "Q2": "mood"}, {})
    assert read_items(ipip_ascado_items_file()).texts == ipip_ascado_items()


def test_items_have_scales_and_keys(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,scale,key\nQ1,sleep,-1\nQ2,mood,1\nQ3,mood,\n")
    table = read_items(tmp_path / "items.csv")
    assert (table.scales, table.keys) == ({"Q1": "sleep", "Q2": "mood", "Q3": "mood"}, {"Q1": -1, "Q2": 1})
    (tmp_path / "items.csv").write_text("item,scale,key\nQ1,sleep,often\n")
    with pytest.raises(DataError, match=r"items.csv: line 2, column 'key' holds 'often', expected 1 or -1"):
        _ = read_items(tmp_path / "items.csv").keys


def test_datasets_keep_scales_and_the_keys_of_what_they_store(tmp_path: Path) -> None:
    """An item that the import reverses counts the other way from then on."""
    (tmp_path / "items.csv").write_text("item,text,scale,key\nQ1,I am calm,fear,-1\nQ2,I worry,fear,1\nQ3,I sing,art,\n")
    (tmp_path / "a.csv").write_text("Q1,Q2,Q3\n1,3,2\n2,2,1\n3,1,3\n")
    settings = {"items": "Q*", "dictionary": tmp_path / "items.csv", "valid_range": (1, 3)}
    plain = dfact.import_table(tmp_path / "a.csv", tmp_path / "plain.zarr", **settings)
    turned = dfact.import_table(tmp_path / "a.csv", tmp_path / "turned.zarr", reverse="@key", **settings)
    for dataset, keys in ((plain, [-1, 1, 0]), (dfact.open_dataset(turned.path), [1, 1, 0])):
        assert dataset.codebook is not None
        assert [item.key for item in dataset.codebook] == keys
        assert [item.scale for item in dataset.codebook] == ["fear", "fear", "art"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"item,label\nQ1,a\n", r"has columns \['item', 'label'\], expected item, and text, scale, group or key"),
        (b"text\na\n", r"has columns \['text'\], expected item"),
        (b"", r"has columns \[\], expected item"),
        ("item,text\nQ1,é\n".encode("latin-1"), r"items.csv: byte 0xe9 at 13 is not UTF-8, expected text; save the file as UTF-8"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "items.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_items(tmp_path / "items.csv")
