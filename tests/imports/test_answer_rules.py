"""Rules of answers: which columns are items, the order of texts, missing codes, recoding, reversal, levels."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dfact
from dfact import DataError, ParameterError
from dfact.imports.coding.answers import AnswerCoding
from dfact.imports.coding.no_answer import sounds_like_no_answer
from dfact.imports.coding.rules import Statements, parse_levels, plan_coding
from dfact.imports.readers.base import MissingCodes, Table, Variable
from dfact.imports.readers.columnar.columns import read_cells
from dfact.imports.readers.number_marks import NumberMarks
from dfact.imports.tables.items import infer_items
from tests.imports.test_import_table import answers_of

AGREEMENT = {1.0: "Disagree", 2.0: "Neutral", 3.0: "Agree", 9.0: "Refused"}


class DescribedTable(Table):
    """A table in memory with descriptions of its columns."""

    def __init__(self, cells: Mapping[str, Sequence[object]], *variables: Variable) -> None:
        self.name, self.columns, self._cells = "survey.sav", list(cells), cells
        self._variables = {variable.name: variable for variable in variables}

    @property
    def variables(self) -> Mapping[str, Variable]:
        return self._variables

    def record_batches(self, numbers: Sequence[str], texts: Sequence[str], missing: Sequence[str]) -> Iterator[pa.RecordBatch]:
        columns = [pa.array(np.array(self._cells[name], np.float64)) for name in numbers]
        columns += [pa.array([None if cell is None else str(cell) for cell in self._cells[name]], pa.string()) for name in texts]
        yield pa.record_batch(columns, [*numbers, *texts])


def likert(name: str, **fields: object) -> Variable:
    return Variable(name, "number", labels=AGREEMENT, missing=MissingCodes((9.0,)), **fields)


def coded(table: DescribedTable, names: Sequence[str], **said: object) -> tuple[np.ndarray, AnswerCoding, Counter[tuple[int, str]]]:
    coding = plan_coding(table, table.variables, names, Statements(**said))
    rows = [coding(batch) for batch in read_cells(table, coding.numbers, coding.texts, coding.missing_texts)]
    problem = rows[0].problem
    if problem is not None:
        raise coding.error(problem, table.name, table.row_position(problem.row))
    coding.require_no_doubt(table.name, coding.doubts(rows[0].counts))
    return rows[0].values, coding, rows[0].counts


# ---------------------------------------------------------------- the choice of items


def test_columns_with_the_same_levels_are_a_battery():
    table = DescribedTable({key: [1] for key in ["id", "a", "b", "c", "age"]}, *map(likert, "abc"), Variable("age", "number"))
    assert infer_items(table, table.variables, []) == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"which of its 5 columns are items"):
        infer_items(table, table.variables, ["a"])


def test_ordinal_columns_whose_names_begin_alike_are_a_battery():
    levels = [{1.0: f"no {j}", 2.0: f"yes {j}", 3.0: "often"} for j in range(3)]
    items = [Variable(f"bdi{j}", "number", labels=labels, measure="ordinal") for j, labels in enumerate(levels)]
    other = Variable("sex", "number", labels={1.0: "m", 2.0: "f"}, measure="nominal")
    table = DescribedTable({key: [1] for key in ["sex", "bdi0", "bdi1", "bdi2"]}, other, *items)
    assert infer_items(table, table.variables, []) == ["bdi0", "bdi1", "bdi2"]
    apart = [replace(item, name=name) for item, name in zip(items, ["agecat", "drivefreq", "opinion"], strict=True)]
    table = DescribedTable({key: [1] for key in ["agecat", "drivefreq", "opinion"]}, *apart)
    with pytest.raises(DataError, match="which of its 3 columns"):
        infer_items(table, table.variables, [])


def test_the_question_names_the_groups_with_a_line_to_copy():
    yes = [Variable(name, "number", labels={1.0: "Yes", 2.0: "No"}) for name in ("VITANY", "VITMUL", "HERB")]
    sex = Variable("SEX", "number", labels={1.0: "Male", 2.0: "Female"})
    table = DescribedTable({key: [1] for key in ["SEX", "VITANY", "VITMUL", "HERB"]}, sex, *yes)
    with pytest.raises(DataError) as caught:
        infer_items(table, table.variables, [])
    message = str(caught.value)
    assert "With the same answers: VITANY, VITMUL, HERB (1 Yes, 2 No). Others with labels: SEX" in message
    assert '--items "VITANY,VITMUL,HERB"' in message


@pytest.mark.parametrize(
    ("variable", "reason"),
    [(Variable("x", "date"), "is a date"), (Variable("x", excluded="is marked as an identifier"), "is marked as an identifier")],
)
def test_columns_without_answers_are_not_taken(variable, reason, tmp_path, monkeypatch):
    table = DescribedTable({"x": [1, 2], "y": [1, 3]}, variable)
    monkeypatch.setattr("dfact.imports.tables.table.open_table", lambda *_: table)
    source = tmp_path / "survey.sav"
    source.write_text("")
    with pytest.raises(DataError, match=f"column 'x' {reason}, expected answers; leave it out"):
        dfact.import_table(source, tmp_path / "d.zarr", items="x")
    assert list(dfact.import_table(source, tmp_path / "d.zarr", items="*").column_labels) == ["y"]


# ---------------------------------------------------------------- missing codes


def test_declared_codes_and_ranges_are_missing_and_counted():
    variable = Variable("q", "number", missing=MissingCodes((-1.0,), ((2000.0, 3000.0),)))
    table = DescribedTable({"q": [5, -1, 2000, 2500.5, 3000, 2500.5, np.nan, 1999]}, variable)
    values, coding, counts = coded(table, ["q"])
    np.testing.assert_array_equal(values[:, 0], [5, *[np.nan] * 6, 1999])
    assert counts == {(0, "-1"): 1, (0, "2000"): 1, (0, "2500.5"): 2, (0, "3000"): 1}
    item = coding.codebook(counts, [6], "survey.sav, SPSS").items[0]
    assert item.n_empty == 1
    assert [(missing.code, missing.count) for missing in item.missing] == [("-1", 1), ("2000", 1), ("2500.5", 2), ("3000", 1)]


def test_answers_win_over_declared_codes():
    variable = Variable("q", "number", missing=MissingCodes((9.0,), ((95.0, 99.0),)))
    table = DescribedTable({"q": [1, 9, 95, 96, 99]}, variable)
    np.testing.assert_array_equal(coded(table, ["q"], not_missing={"q": [9, 95]})[0][:, 0], [1, 9, 95, np.nan, np.nan])


def test_recoding_comes_before_missing_codes_and_exchanges_codes():
    table = DescribedTable({"q": [1, 2, 95, 96]}, Variable("q", "number", missing=MissingCodes((), ((95.0, 99.0),))))
    values, coding, counts = coded(table, ["q"], recode={"q": {95: 0, 1: 2, 2: 1}})
    np.testing.assert_array_equal(values[:, 0], [2, 1, 0, np.nan])
    assert coding.codebook(counts, [1], "").items[0].changes == ("95 recoded to 0", "1 recoded to 2", "2 recoded to 1")


@pytest.mark.parametrize(
    "label", ["Refused", "don't know", "Do not know", "Prefer not to answer", "MISSING", "Not ascertained", "n/a: skipped"]
)
def test_labels_that_sound_like_no_answer(label):
    assert sounds_like_no_answer(label)


@pytest.mark.parametrize("label", ["No Opinion", "Neutral", "Never", "None of the above", "Knowing"])
def test_labels_of_answers(label):
    assert not sounds_like_no_answer(label)


def test_a_doubtful_code_that_occurs_is_asked():
    variable = Variable("race", "number", labels={1.0: "White", 2.0: "Black", 6.0: "Missing"})
    table = DescribedTable({"race": [1, 6, 2, 6]}, variable)
    with pytest.raises(DataError, match=r"race: 2 answer\(s\) are 6 'Missing', which nothing declares as missing; .*--missing race=6"):
        coded(table, ["race"])
    np.testing.assert_array_equal(coded(table, ["race"], missing={"race": 6})[0][:, 0], [1, np.nan, 2, np.nan])
    np.testing.assert_array_equal(coded(table, ["race"], not_missing={"race": 6})[0][:, 0], [1, 6, 2, 6])
    absent = DescribedTable({"race": [1, 2]}, variable)
    np.testing.assert_array_equal(coded(absent, ["race"])[0][:, 0], [1, 2])


def test_a_text_may_be_missing_in_one_item_alone(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text("q,r\n1,4\n-,5\n2,-\n")
    with pytest.raises(DataError, match=r"line 4, column 'r' holds the text '-'"):
        dfact.import_table(source, tmp_path / "d.zarr", items="*", missing={"q": "-"})
    dataset = dfact.import_table(source, tmp_path / "d.zarr", items="*", missing={"q": "-", "*": ["-", 4]})
    np.testing.assert_array_equal(answers_of(dataset), [[1, np.nan], [np.nan, 5], [2, np.nan]])


# ---------------------------------------------------------------- levels


def test_values_without_a_label_are_refused_or_kept():
    table = DescribedTable({"q": [1, 2, 2.5]}, likert("q"))
    with pytest.raises(DataError, match=r"row 2 .*column 'q' holds 2.5, which has no label, expected one of 1 'Disagree', 2 'Neutral'"):
        coded(table, ["q"])
    values, coding, _ = coded(table, ["q"], unlabelled="keep")
    np.testing.assert_array_equal(values[:, 0], [1, 2, 2.5])
    assert np.isinf(coding.limits).all()
    with pytest.raises(ParameterError, match="unlabelled"):
        coded(table, ["q"], unlabelled="drop")


def test_the_valid_range_is_that_of_the_levels(tmp_path, monkeypatch):
    table = DescribedTable({"q": [2, 3], "r": [2, 2]}, likert("q"), likert("r"))
    monkeypatch.setattr("dfact.imports.tables.table.open_table", lambda *_: table)
    (tmp_path / "survey.sav").write_text("")
    dataset = dfact.import_table(tmp_path / "survey.sav", tmp_path / "d.zarr", items=["q", "r"])
    np.testing.assert_array_equal(dataset.valid_range + dataset.offset[:, None], [[1, 3], [1, 3]])


@pytest.mark.parametrize("seed", range(3))
def test_reversed_items_are_mirrored_in_the_declared_range(seed):
    rng = np.random.default_rng(seed)
    cells = rng.choice([1.0, 2.0, 3.0, 9.0, np.nan], (2, 50))
    table = DescribedTable({"q": cells[0], "r": cells[1]}, likert("q", wording="I am calm"), likert("r"))
    values, coding, counts = coded(table, ["q", "r"], reverse="q")
    plain = np.where(cells == 9, np.nan, cells)
    np.testing.assert_array_equal(values.T, [4 - plain[0], plain[1]])
    first, second = coding.codebook(counts, np.isnan(plain).sum(axis=1), "").items
    assert first.levels == ((1.0, "Agree"), (2.0, "Neutral"), (3.0, "Disagree"))
    assert first.text == "I am calm (reversed)"
    assert second.levels == ((1.0, "Disagree"), (2.0, "Neutral"), (3.0, "Agree"))
    unknown = DescribedTable({"q": [1, 5]}, Variable("q", "number"))
    with pytest.raises(DataError, match="the range of 'q' is not known"):
        coded(unknown, ["q"], reverse="q")
    np.testing.assert_array_equal(coded(unknown, ["q"], reverse="q", valid_range=(1, 7))[0][:, 0], [7, 3])


def test_codes_in_the_order_of_the_alphabet_draw_a_warning():
    labels = {1.0: "high", 2.0: "low", 3.0: "medium"}
    with pytest.warns(UserWarning, match=r"codes of 'q' follow the alphabet: 1 'high', 2 'low', 3 'medium'"):
        coded(DescribedTable({"q": [1]}, Variable("q", "number", labels=labels)), ["q"])


# ---------------------------------------------------------------- text answers


LEVELS = ["never", "often", "always"]


@pytest.mark.parametrize("levels", ["never < often<always", LEVELS, {"q": "never<often<always"}, {"q*": LEVELS}])
def test_text_answers_are_numbered_by_their_levels(levels):
    table = DescribedTable({"q": ["often", "never", None, "always", "NA", " "]}, Variable("q"))
    values, coding, _ = coded(table, ["q"], levels=levels)
    np.testing.assert_array_equal(values[:, 0], [2, 1, np.nan, 3, np.nan, np.nan])
    np.testing.assert_array_equal(coding.limits, [[1, 3]])


def test_levels_with_their_numbers():
    table = DescribedTable({"q": ["no", "yes"], "r": ["yes", "yes"]}, Variable("q"), Variable("r"))
    np.testing.assert_array_equal(coded(table, ["q", "r"], levels={"no": 0, "yes": 5})[0], [[0, 5], [5, 5]])


def test_an_unknown_text_is_named_with_the_closest_level():
    table = DescribedTable({"q": ["Agree", "Agre", "Other"]}, Variable("q"))
    with pytest.raises(DataError, match=r"row 1 .*column 'q' holds 'Agre', which is none of the levels; the closest is 'Agree'"):
        coded(table, ["q"], levels="Disagree<Agree")


@pytest.mark.parametrize("levels", ["a<b<a", "a<<b", "", []])
def test_invalid_levels(levels):
    with pytest.raises(ParameterError, match="levels"):
        parse_levels(levels)


def categories(name: str, *texts: str, ordered: bool = True) -> Variable:
    return Variable(name, "text", categories=texts, ordered=ordered)


def test_the_order_of_categories():
    def order(*texts: str, ordered: bool = True) -> np.ndarray:
        return coded(DescribedTable({"q": sorted(texts)}, categories("q", *texts, ordered=ordered)), ["q"])[0][:, 0]

    np.testing.assert_array_equal(order("low", "high", "medium"), [2, 1, 3])  # high, low, medium
    np.testing.assert_array_equal(order("high", "low", "medium"), [1, 2, 3])
    for texts in (["high", "low", "medium"], ["low", "high", "medium"], ["No", "Yes"], ["Yes", "No"]):
        found = ", ".join(rf"'{text}' \(1\)" for text in sorted(texts))
        with pytest.raises(DataError, match=rf"'q' holds texts, whose order is not known: {found}"):
            order(*texts, ordered=False)


def test_columns_of_the_same_texts_agree_on_their_order():
    cells = {"a": ["No", "Yes"], "b": ["Yes", "No"], "c": ["No", "No"], "d": ["Maybe", "No"]}
    declared = [categories("a", "No", "Yes"), categories("b", "Yes", "No"), categories("c", "No", "Yes")]
    table = DescribedTable(cells, *declared, categories("d", "No", "Maybe", "Yes"))
    with pytest.raises(DataError, match=r"No<Yes in 'a' and Yes<No in 'b'; .*say --levels \"a,c,b: No<Yes\" in their order"):
        coded(table, ["a", "b", "c"])
    np.testing.assert_array_equal(coded(table, ["a", "b", "c"], levels={"[abc]": "No<Yes"})[0], [[1, 2, 1], [2, 1, 1]])
    np.testing.assert_array_equal(coded(table, ["a", "c", "d"])[0], [[1, 1, 2], [2, 1, 1]])
    with pytest.raises(DataError, match=r"--levels \"b: Yes<No\" --levels \"d: No<Maybe<Yes\" in their order"):
        coded(table, ["b", "d"])


def test_text_answers_of_a_file_without_description_are_listed(tmp_path: Path):
    source = tmp_path / "t.csv"
    source.write_text("v1,v2\n" + "Agree,1\nDisagree,2\nAgree,NA\n" * 3)
    with pytest.raises(DataError, match=r"'v1' holds texts, whose order is not known: 'Agree' \(6\), 'Disagree' \(3\); .*--levels"):
        dfact.import_table(source, tmp_path / "d.zarr", items="*")
    dataset = dfact.import_table(source, tmp_path / "d.zarr", items="*", levels={"v1": "Disagree<Agree"})
    np.testing.assert_array_equal(answers_of(dataset), [[2, 1], [1, 2], [2, np.nan]] * 3)


def test_texts_that_stand_for_numbers():
    variable = Variable("q", texts={"TRUE": 1.0, "FALSE": 0.0}, labels={0.0: "No", 1.0: "Yes"})
    values, _, _ = coded(DescribedTable({"q": ["TRUE", "0", "FALSE", "1", None]}, variable), ["q"])
    np.testing.assert_array_equal(values[:, 0], [1, 0, 0, 1, np.nan])
    height = Variable("h", marks=NumberMarks(","))
    np.testing.assert_array_equal(coded(DescribedTable({"h": ["1,54", "2"]}, height), ["h"])[0][:, 0], [1.54, 2])


def test_statements_that_name_no_item():
    table = DescribedTable({"q": [1, 2]}, Variable("q", "number"))
    for said in ({"missing": {"r": 9}}, {"recode": {"r*": {1: 2}}}, {"reverse": "r"}, {"levels": {"r": "a<b"}}, {"not_missing": {"r": 1}}):
        with pytest.raises(DataError, match=f"{next(iter(said))} names 'r"):
            coded(table, ["q"], **said)


def test_names_with_a_minus_are_reversed(tmp_path: Path):
    source = tmp_path / "t.csv"
    source.write_text("v1,v2\n1,1\n5,2\n")
    dataset = dfact.import_table(source, tmp_path / "d.zarr", items=["v1", "-v2"], valid_range=(1, 5))
    np.testing.assert_array_equal(answers_of(dataset), [[1, 5], [5, 4]])
