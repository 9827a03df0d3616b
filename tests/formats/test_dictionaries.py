"""Dictionaries next to a table: REDCap's, UK Biobank's and codebooks, found by their headers."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dfact.errors import DataError, ParameterError
from dfact.formats.redcap import RedcapDictionary
from dfact.formats.uk_biobank import UKBiobankDictionary, place_of, stands_for_no_answer
from dfact.imports.dictionaries.base import Dictionary, EventColumns, UntouchedBoxes, describe
from dfact.imports.dictionaries.kinds import open_dictionary, recognize_dictionary
from dfact.imports.dictionaries.table import CodebookTable
from dfact.imports.readers.base import MissingCodes, Variable
from dfact.imports.readers.number_marks import NumberMarks
from dfact.imports.tables.stack import ONCE, find_events
from tests.conftest import REAL_DATA

INPUTS = REAL_DATA / "inputs"
needs_inputs = pytest.mark.skipif(not INPUTS.is_dir(), reason="the files of other programs are not next to the project")
REDCAP_HEADER = (
    "Variable / Field Name,Form Name,Section Header,Field Type,Field Label,"
    '"Choices, Calculations, OR Slider Labels",Text Validation Type OR Show Slider Number,'
    "Text Validation Min,Text Validation Max,Identifier?,Field Annotation"
)
API_HEADER = (
    "field_name,form_name,section_header,field_type,field_label,select_choices_or_calculations,"
    "text_validation_type_or_show_slider_number,text_validation_min,text_validation_max,identifier,field_annotation"
)
FIELDS = """\
record_id,intake,,text,Study ID,,,,,,
email,intake,,text,E-mail,,email,,,y,
dob,intake,,text,Born,,date_ymd,,,,
height,intake,,text,"Height, m",,number_comma_decimal,0,3,,
mood,intake,,radio,"<div class=""rich""><p>Mood &amp;
sleep</p></div> BMI < 18","0, Bad, or worse | 1, So so | 2, Good",,,,,
group,intake,,dropdown,Group,"a, Control | b, Treated",,,,,
mixed,intake,,dropdown,Mixed,"1, One | 2, Two | UNK, Unknown",,,,,
sex,intake,,radio,Sex,"0, Female | 1, Male",,,,,
smoker,intake,,yesno,Smokes,,,,,,@NOMISSING
agrees,intake,,truefalse,Agrees,,,,,,
pain,intake,,slider,Pain,none | some | worst,,-1,10,,
bmi,intake,,calc,BMI,[weight]/[height],,,,,
meds,drugs,,checkbox,Takes,"1, A, or B | -9, None | x-Y, Other",,,,,
notes,drugs,,notes,Remarks,,,,,,
scan,drugs,,file,Scan,,,,,,
intro,drugs,,descriptive,Hello,,,,,,
"""
REDCAP_COLUMNS = [
    *("record_id", "redcap_event_name", "redcap_data_access_group", "email", "dob", "height", "mood", "group", "mixed", "sex", "smoker"),
    *("agrees", "pain", "bmi", "intake_complete", "meds___1", "meds____9", "meds___x_y", "meds___nask", "notes", "scan"),
    *("drugs_timestamp", "drugs_complete", "own"),
]


def redcap(folder: Path, header: str = REDCAP_HEADER, codings: Sequence[Path] = ()) -> Dictionary:
    (folder / "fields.csv").write_text(f"{header}\n{FIELDS}", encoding="utf-8-sig")
    return open_dictionary(folder / "fields.csv", codings)


@pytest.mark.parametrize("header", [REDCAP_HEADER, API_HEADER])
def test_redcap_fields_become_descriptions_of_columns(header: str, tmp_path: Path) -> None:
    dictionary = redcap(tmp_path, header)
    found = dictionary.variables(REDCAP_COLUMNS)
    assert isinstance(dictionary, RedcapDictionary)
    assert set(REDCAP_COLUMNS) - set(found) == {"meds___nask", "own"}
    assert found["mood"].wording == "Mood & sleep BMI < 18"
    assert found["mood"].labels == {0: "Bad, or worse", 1: "So so", 2: "Good"}
    assert (found["group"].type, found["group"].categories, found["group"].labels) == ("text", ("a", "b"), {})
    assert (found["mixed"].type, found["mixed"].labels) == ("number", {1: "One", 2: "Two"})
    assert found["height"].marks == NumberMarks(",")
    assert found["dob"].type == "date"
    assert {name for name, variable in found.items() if variable.texts.get("TRUE") == 1 and variable.texts.get("FALSE") == 0} == {
        *("sex", "smoker", "agrees", "meds___1", "meds____9", "meds___x_y")
    }
    assert found["smoker"].labels == {1: "Yes", 0: "No"}
    assert [found[f"meds___{code}"].wording for code in ("1", "_9", "x_y")] == ["Takes: A, or B", "Takes: None", "Takes: Other"]
    assert (found["pain"].limits, found["pain"].labels) == ((-1, 10), {})
    assert dictionary.id_column(REDCAP_COLUMNS) == "record_id"
    assert dictionary.id_column(["email"]) is None


def test_redcap_items_are_choices_and_sliders_and_never_identifiers(tmp_path: Path) -> None:
    dictionary = redcap(tmp_path)
    assert dictionary.default_items(REDCAP_COLUMNS) == ["mood", "group", "mixed", "sex", "smoker", "agrees", "pain"]
    assert dictionary.expand("meds", REDCAP_COLUMNS) == ["meds___1", "meds____9", "meds___x_y"]
    assert {name: variable.excluded for name, variable in dictionary.variables(REDCAP_COLUMNS).items() if variable.excluded} == {
        "record_id": "holds the ids of the records",
        "redcap_event_name": "is written by REDCap",
        "redcap_data_access_group": "is written by REDCap",
        "email": "is marked as an identifier",
        "intake_complete": "is the status of a form",
        "drugs_timestamp": "is the time of a survey",
        "drugs_complete": "is the status of a form",
        "notes": "holds notes",
        "scan": "holds files",
    }


def test_redcap_missing_data_codes_come_from_the_project_information(tmp_path: Path) -> None:
    (tmp_path / "project.csv").write_text('project_id,missing_data_codes\n7,"-99, Refused | NASK, Not asked"\n')
    found = redcap(tmp_path, codings=[tmp_path / "project.csv"]).variables(REDCAP_COLUMNS)
    assert found["mood"].missing == MissingCodes((-99.0, "NASK"))
    assert found["mood"].labels[-99] == "Refused"
    assert found["group"].missing.values == (-99.0, "NASK")
    assert found["smoker"].missing == MissingCodes()
    assert "NASK" in found["meds___nask"].excluded


def test_redcap_events_follow_their_list(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("event_name,arm_num,unique_event_name\nVisit,1,visit_arm_1\nStart,1,start_arm_1\n")
    dictionary = redcap(tmp_path, codings=[tmp_path / "events.csv"])
    expected = EventColumns("record_id", "redcap_event_name", order=("visit_arm_1", "start_arm_1"))
    assert dictionary.event_columns(REDCAP_COLUMNS) == expected
    assert dictionary.event_columns(["record_id", "mood"]) is None
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other.csv has columns \['a', 'b'\], expected a column 'missing_data_codes'"):
        redcap(tmp_path, codings=[tmp_path / "other.csv"])


def test_boxes_of_a_form_that_was_not_opened_are_missing(tmp_path: Path) -> None:
    dictionary = redcap(tmp_path)
    forms = dictionary.untouched_boxes(REDCAP_COLUMNS, ["mood", "meds____9"])
    assert forms == (UntouchedBoxes("drugs_complete", ("meds___1", "meds____9", "meds___x_y")),)
    assert dictionary.untouched_boxes(REDCAP_COLUMNS, ["mood"]) == ()
    assert dictionary.untouched_boxes([name for name in REDCAP_COLUMNS if name != "drugs_complete"], ["meds___1"]) == ()
    cells = {
        "drugs_complete": ["0", "0", "2", " 0 ", None, "", "0"],
        "meds___1": ["0", "0", "0", "0", "FALSE", None, "TRUE"],
        "meds____9": ["0", "1", "0", "", "0", "", "0"],
        "meds___x_y": ["0", "0", "0", None, "0", "", "0"],
    }
    assert forms[0].rows(pa.RecordBatch.from_pydict(cells)).tolist() == [True, False, False, True, True, True, False]


def test_redcap_columns_are_recognized_without_a_dictionary() -> None:
    columns = ["study_id", "redcap_event_name", "redcap_repeat_instrument", "redcap_repeat_instance", "q1", "f_complete"]
    found = recognize_dictionary(columns)
    assert isinstance(found, RedcapDictionary)
    assert found.event_columns(columns) == EventColumns("study_id", *columns[1:4])
    assert found.default_items(columns) is None
    assert {name for name, variable in found.variables(columns).items() if variable.excluded} == {*columns[1:4], "f_complete"}
    assert recognize_dictionary(["id", "q1", "task_complete"]) is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,f,,radio,A,,,,,,\n", r"fields.csv: line 2 has the choices '', expected 'code, label"),
        ("a,f,,text,A,,,,,,\na,f,,text,B,,,,,,\n", r"line 3 has the field 'a' of line 2 again"),
        ("a,f,,text\n", r"line 2 has 4 cells, expected 11"),
    ],
)
def test_damaged_redcap_dictionaries_are_refused(rows: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "fields.csv").write_text(f"{REDCAP_HEADER}\n{rows}")
    with pytest.raises(DataError, match=message):
        open_dictionary(tmp_path / "fields.csv")


def read_rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def oracle(name: str) -> Any:
    return json.loads((INPUTS / "oracles.json").read_text())[name]


@needs_inputs
@pytest.mark.parametrize(
    "name",
    [
        *("clinical-trial-1", "longitudinal", "simple", "checkboxes-1", "survey", "blank-for-gray-status", "repeating-instruments"),
        *("decimal-comma", "validation-types-1"),
    ],
)
def test_redcap_projects(name: str) -> None:
    expected, folder = oracle(f"redcap/{name}"), INPUTS / "redcap" / name
    dictionary = open_dictionary(next(folder.glob("dictiona*.csv")))
    assert isinstance(dictionary, RedcapDictionary)
    rows = read_rows(folder / "data.csv")
    columns = list(rows[0])
    assert (len(rows), len(columns)) == (expected["rows"], expected["columns"])
    described = dictionary.variables(columns)
    assert set(described) == set(columns)
    assert Counter(known.type for known in dictionary.fields.values()) == expected["field_types"]
    assert [known.name for known in dictionary.fields.values() if known.identifier] == expected["identifiers"]
    assert all(described[name].excluded for name in expected["identifiers"])
    items = dictionary.default_items(columns) or []
    assert [item for item in items if dictionary.fields[item].type != "slider"] == expected["answer_fields"]
    assert [column for column in columns if "___" in column and not described[column].excluded] == expected["checkbox_columns"]
    for item, counts in expected["counts"].items():
        assert Counter(row[item] for row in rows) == counts
        variable = described[item]
        assert all(text in variable.texts or float(text) in variable.labels for text in counts if text)


@needs_inputs
def test_redcap_doubts_are_left_to_the_user() -> None:
    folder = INPUTS / "redcap"
    race = open_dictionary(folder / "clinical-trial-1/dictionary.csv").variables(["race"])["race"]
    assert race.labels[6] == "Missing"
    assert not race.missing
    assert Counter(row["race"] for row in read_rows(folder / "clinical-trial-1/data.csv"))["6"] == 14
    sex = open_dictionary(folder / "simple/dictionary.csv").variables(["sex"])["sex"]
    assert Counter(sex.labels[sex.texts[row["sex"]]] for row in read_rows(folder / "simple/data.csv")) == {"Female": 2, "Male": 3}
    height = open_dictionary(folder / "decimal-comma/dictionay.csv").variables(["height", "bmi"])
    assert (height["height"].marks, height["bmi"].marks) == (NumberMarks(","), None)
    dictionary = open_dictionary(folder / "checkboxes-1/dictionary.csv")
    rows = read_rows(folder / "checkboxes-1/data.csv")
    (form,) = dictionary.untouched_boxes(list(rows[0]), ["check_two___a"])
    batch = pa.RecordBatch.from_pydict({column: [row[column] for row in rows] for column in form.columns})
    assert form.rows(batch).tolist() == [False, False, False, True]


SPELLINGS = ["{}-{}.{}", "f.{}.{}.{}", "x{}_{}_{}", "X{}.{}.{}", "n_{}_{}_{}", "ts_{}_{}_{}", "p{}_i{}_a{}", "participant.p{}_i{}_a{}"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("seed", range(3))
def test_names_of_uk_biobank(spelling: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for place in rng.integers(0, 50_000, (20, 3)).tolist():
        assert place_of(spelling.format(*place)) == tuple(place)


def test_parts_of_names_of_uk_biobank_may_be_absent() -> None:
    assert [place_of(name) for name in ("p31", "p53_i2", "p6142_a3")] == [(31, 0, 0), (53, 2, 0), (6142, 0, 3)]
    assert not any(place_of(name) for name in ("31", "eid", "p31_a1_i2", "f.31.0", "q31-0.0", "31-0.0.1", "p"))


@pytest.mark.parametrize("eid", ["eid", "f.eid", "n_eid", "participant.eid"])
def test_columns_of_uk_biobank_are_recognized_without_a_dictionary(eid: str) -> None:
    columns = [eid, "p20510_i0", "p20510_i1", "p4080_i0_a0", "p4080_i0_a1", "p4080_i1_a0", "own"]
    found = recognize_dictionary(columns)
    assert isinstance(found, UKBiobankDictionary)
    assert found.id_column(columns) == eid
    assert found.instances(columns) == {
        "p20510_i0": ("20510", "0"),
        "p20510_i1": ("20510", "1"),
        "p4080_i0_a0": ("4080_a0", "0"),
        "p4080_i0_a1": ("4080_a1", "0"),
        "p4080_i1_a0": ("4080_a0", "1"),
    }
    assert found.expand("4080", columns) == found.expand("p4080", columns) == columns[3:6]
    assert found.expand("own", columns) == []
    described = found.variables(columns)
    assert described["p20510_i0"].doubtful.ranges == ((-np.inf, -1),)
    assert described[eid].excluded
    assert recognize_dictionary(["id", *columns[1:]]) is None


DICTIONARY = """\
FieldID\tField\tValueType\tNotes\tCoding
20510\t"Little interest\tCategorical single\tasks for "mood" "\t504
21059\tBothered\tCategorical single\t\t1018
6142\tEmployment\tCategorical multiple\t\t100295
4080\tPressure\tInteger\t\tNA
1568\tCups\tInteger\t\t100373
20000\tScore\tContinuous\t\t
41270\tDiagnoses\tCategorical single\t\t19
53\tDate\tDate\t\t
30\tUncoded\tCategorical single\t\t77
"""
CODINGS = """\
Coding\tValue\tMeaning
504\t-818\tPrefer not to answer
504\t1\tNot at all
504\t4\tNearly every day
1018\t-602\tBothered a lot
1018\t-600\tNot bothered at all
1018\t-313\tNot applicable
100295\t-7\tNone of the above
100295\t-3\tPrefer not to answer
100295\t1\tIn paid employment
100373\t-10.000\tLess than one
100373\t-1\tDo not know
100373\t-3\tPrefer not to answer
19\tA01\tA01 "Typhoid
19\tB99\tUndisclosed
"""


def biobank(folder: Path, codings: Iterable[str] = ("codings.tsv",)) -> Dictionary:
    (folder / "fields.tsv").write_text(DICTIONARY)
    (folder / "codings.tsv").write_text(CODINGS)
    return open_dictionary(folder / "fields.tsv", [folder / name for name in codings])


BIOBANK_COLUMNS = [
    *("eid", "20510-0.0", "21059-0.0", "6142-0.0", "6142-0.1", "6142-1.0", "4080-0.0", "1568-0.0", "20000-0.0", "41270-0.0"),
    *("53-0.0", "30-0.0", "999-0.0"),
]


def test_uk_biobank_codes_are_missing_by_their_meaning(tmp_path: Path) -> None:
    found = biobank(tmp_path).variables(BIOBANK_COLUMNS)
    assert {name: variable.missing.values for name, variable in found.items() if variable.missing} == {
        "20510-0.0": (-818,),
        "21059-0.0": (-313,),
        "6142-0.0": (-3,),
        "6142-0.1": (-3,),
        "6142-1.0": (-3,),
        "1568-0.0": (-1, -3),
        "41270-0.0": ("B99",),
    }
    assert found["6142-0.0"].labels[-7] == "None of the above"
    assert found["21059-0.0"].labels == {-602: "Bothered a lot", -600: "Not bothered at all", -313: "Not applicable"}
    assert found["1568-0.0"].labels[-10] == "Less than one"
    assert found["20510-0.0"].wording == '"Little interest'
    assert {name: variable.type for name, variable in found.items() if variable.type != "number"} == {
        "eid": None,
        "41270-0.0": "text",
        "53-0.0": "date",
        "30-0.0": None,
        "999-0.0": None,
    }


PLATFORM_DICTIONARY = """\
entity,name,type,coding_name,is_multi_select,is_sparse_coding,title,units
participant,eid,string,,,,Participant ID,
participant,p20510_i0,integer,data_coding_504,,,"Recent little interest, or pleasure | Instance 0",
participant,p20510_i1,integer,data_coding_504,,,"Recent little interest, or pleasure | Instance 1",
participant,p1568_i0,integer,data_coding_100373,,yes,Cups | Instance 0,cups/week
participant,p6142_i0,string,data_coding_100295,yes,,Employment | Instance 0,
participant,p4080_i0_a1,float,,,,Pressure | Instance 0 | Array 1,mmHg
participant,p53_i0,date,,,,Date | Instance 0,
hesin,dnx_hesin_id,string,,,,Identifier,
"""


@pytest.mark.parametrize("prefix", ["", "participant."])
def test_the_dictionary_of_the_platform_of_uk_biobank(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "app.data_dictionary.csv").write_text(PLATFORM_DICTIONARY)
    cells = [line.split("\t") for line in CODINGS.splitlines()[1:]]
    lines = ["coding_name,code,meaning,display_order", *(f"data_coding_{coding},{code},{text},1" for coding, code, text in cells)]
    (tmp_path / "app.codings.csv").write_text("\n".join(lines) + "\n")
    found = open_dictionary(tmp_path / "app.data_dictionary.csv", [tmp_path / "app.codings.csv"])
    columns = [f"{prefix}{name}" for name in ("eid", "p20510_i0", "p20510_i1", "p1568_i0", "p6142_i0", "p4080_i0_a1", "p53_i0")]
    described = [found.variables(columns)[column] for column in columns]
    interest, cups, employment, pressure, date = described[1], *described[3:]
    assert interest.wording == described[2].wording == "Recent little interest, or pleasure"
    assert interest.labels == {-818: "Prefer not to answer", 1: "Not at all", 4: "Nearly every day"}
    assert interest.missing.values == (-818,)
    assert (cups.measure, cups.missing.values) == ("scale", (-1, -3))
    assert employment.labels[1] == "In paid employment"
    assert (pressure.type, pressure.wording, pressure.labels) == ("number", "Pressure", {})
    assert date.type == "date"
    assert described[0].excluded
    assert found.expand("20510", columns) == columns[1:3]


def test_negative_codes_without_a_coding_are_doubtful(tmp_path: Path) -> None:
    found = biobank(tmp_path).variables(BIOBANK_COLUMNS)
    assert {name for name, variable in found.items() if variable.doubtful} == {"30-0.0", "999-0.0"}
    found = biobank(tmp_path, []).variables(BIOBANK_COLUMNS)
    assert {name for name, variable in found.items() if not variable.doubtful} == {"eid", "4080-0.0", "20000-0.0", "53-0.0"}


def test_a_coding_of_its_own_file_is_numbered_by_the_name(tmp_path: Path) -> None:
    (tmp_path / "coding504.tsv").write_text("coding\tmeaning\n-818\tPrefer not to answer\n1\tNot at all\n4\tNearly every day\n")
    found = biobank(tmp_path, ["coding504.tsv"]).variables(BIOBANK_COLUMNS)
    assert found["20510-0.0"].missing.values == (-818,)
    assert found["21059-0.0"].doubtful
    (tmp_path / "one.tsv").write_text("coding\tmeaning\n1\tNo\n")
    with pytest.raises(ParameterError, match=r"one.tsv holds one coding without its number"):
        biobank(tmp_path, ["one.tsv"])
    with pytest.raises(DataError, match=r"fields.tsv has columns .*, expected coding, value and meaning"):
        biobank(tmp_path, ["fields.tsv"])


def test_the_choices_of_one_question_are_no_items_side_by_side(tmp_path: Path) -> None:
    dictionary = biobank(tmp_path)
    dictionary.check_items(["6142-0.0", "6142-1.0", "4080-0.0"])
    with pytest.raises(DataError, match=r"6142-0.0 to 6142-0.1 hold the 2 choices of one question \(Employment\).*expand"):
        dictionary.check_items(["6142-0.0", "6142-0.1"])


def test_a_field_that_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fields.csv").write_text("FieldID,Field,ValueType,Coding\n31,Sex,Categorical single,9\nx,Age,Integer,\n")
    with pytest.raises(DataError, match=r"fields.csv: line 3 has the field 'x', expected a number"):
        open_dictionary(tmp_path / "fields.csv")


@needs_inputs
def test_uk_biobank_examples() -> None:
    folder, expected = INPUTS / "ukb/ukbwranglr", oracle("ukb/ukbwranglr")
    rows = read_rows(folder / "dummy_ukb_main.tsv", "\t")
    columns = list(rows[0])
    assert (len(rows), len(columns)) == (expected["rows"], expected["columns"])
    dictionary = open_dictionary(folder / "dummy_Data_Dictionary_Showcase.tsv", folder / "dummy_Codings.tsv")
    assert isinstance(dictionary, UKBiobankDictionary)
    assert len(dictionary.fields) == expected["fields"]
    for number, instances in expected["instances"].items():
        assert sorted({int(dictionary.instances(columns)[name][1]) for name in dictionary.expand(number, columns)}) == instances
    described = dictionary.variables(columns)
    assert set(described) == set(columns)
    assert described["21000-0.0"].missing.values == (-1, -3)
    assert not any(variable.doubtful for variable in described.values())
    names = [place_of(name) for name in (INPUTS / "ukb/ukbtools/ukbxxxx.tab").read_text().partition("\n")[0].split("\t")]
    assert (len(names), names.count(None)) == (oracle("ukb/ukbtools")["columns"], 1)


@needs_inputs
def test_codings_of_the_mental_health_questionnaire() -> None:
    folder = INPUTS / "ukb/phesant"
    dictionary = open_dictionary(folder / "outcome-info_20400-20553.tsv", sorted(folder.glob("datacode-*.tsv")))
    found = dictionary.variables([f"{number}-0.0" for number in (*range(20505, 20521), 20400)])
    assert found.pop("20400-0.0").type == "date"
    assert len(found) == 16
    for variable in found.values():
        assert variable.labels == {-818: "Prefer not to answer", 1: "Not at all", 2: "Several days", 3: "More than half the days"} | {
            4: "Nearly every day"
        }
        assert variable.missing.values == (-818,)
        assert not variable.doubtful


@needs_inputs
@pytest.mark.parametrize(("coding", "missing"), [(1018, {-818, -313}), (100001, set()), (504, {-818}), (100286, {-3}), (506, {-818, -121})])
def test_meanings_of_codings(coding: int, missing: set[int]) -> None:
    rows = read_rows(INPUTS / f"ukb/phesant/datacode-{coding}.tsv", "\t")
    assert {int(row["coding"]) for row in rows if stands_for_no_answer(row["meaning"])} == missing


def codebook(folder: Path, text: str, name: str = "items.csv") -> Dictionary:
    (folder / name).write_text(text, encoding="utf-8-sig")
    return open_dictionary(folder / name)


def test_codebooks_describe_their_items(tmp_path: Path) -> None:
    dictionary = codebook(
        tmp_path,
        "item;text;levels;missing;keying\n"
        "q1;I worry;0=never | 1=now, and then | 2=often;-9=refused | 99;1\n"
        "q2;I sleep;never < sometimes < often;NA, -9;-1\n"
        "q3;;;;R\n",
    )
    assert isinstance(dictionary, CodebookTable)
    found = dictionary.variables(["id", "q3", "q2", "q1"])
    assert found["q1"] == Variable(
        "q1",
        wording="I worry",
        labels={0: "never", 1: "now, and then", 2: "often", -9: "refused"},
        missing=MissingCodes((-9.0, 99.0)),
        key=1,
    )
    assert found["q2"] == Variable(
        "q2", "text", "I sleep", categories=("never", "sometimes", "often"), ordered=True, missing=MissingCodes(("NA", -9.0)), key=-1
    )
    assert found["q3"] == Variable("q3", key=-1)
    assert dictionary.reversed_items(["q3", "q2", "q1"], "Keying") == ["q3", "q2"]
    with pytest.raises(ParameterError, match=r"items.csv has no column 'sign' with the keying"):
        dictionary.reversed_items(["q1"], "sign")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item,levels\nq1,1=a | b\n", r"items.csv: line 2, column 'levels' holds '1=a \| b', expected different codes"),
        ("item,levels\nq0,\nq1,a<b<a\n", r"items.csv: line 3, column 'levels' holds 'a<b<a'"),
        ("item,levels\nq1,often\n", r"line 2, column 'levels' holds 'often'"),
        ("item,text\nq1,a\nq1,b\n", r"line 3 has the item 'q1' again"),
        ('item,text\nq1,"a\n', r"line 2"),
    ],
)
def test_invalid_codebooks_are_refused_with_the_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        codebook(tmp_path, text).variables(["q1"])


def test_keying_is_one_or_minus_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"items.csv: line 2, column 'keying' holds 'maybe', expected 1 or -1"):
        codebook(tmp_path, "item,text,keying\nq1,a,maybe\n").reversed_items(["q1"], "keying")


def test_other_tables_are_no_dictionaries(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"items.csv has columns \['a', 'b'\], expected those of a dictionary: 'Variable / Field Name'"):
        codebook(tmp_path, "a,b\n1,2\n")
    (tmp_path / "coding504.tsv").write_text("coding\tmeaning\n1\tNo\n")
    (tmp_path / "items.csv").write_text("item,text\nq1,a\n")
    with pytest.raises(ParameterError, match=r"codings= \(--codings\) is given with items.csv"):
        open_dictionary(tmp_path / "items.csv", tmp_path / "coding504.tsv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_dictionaries_of_any_delimiter_and_unicode(encoding: str, delimiter: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(delimiter.join(["item", "text"]) + "\nq1" + delimiter + "Müde?\n", encoding=encoding)
    assert open_dictionary(tmp_path / "x.txt").variables(["q1"])["q1"].wording == "Müde?"


def test_dictionaries_in_other_formats_of_tables(tmp_path: Path) -> None:
    rows: Mapping[str, list[str | None]] = {"item": ["q1", "q2"], "text": ["Müde?", None], "missing": [None, "9"]}
    pq.write_table(pa.table(rows), tmp_path / "items.parquet")
    found = open_dictionary(tmp_path / "items.parquet").variables(["q1", "q2"])
    assert (found["q1"].wording, found["q2"].missing.values) == ("Müde?", (9,))


def test_row_names_of_r_are_items_where_the_item_is_a_text(tmp_path: Path) -> None:
    dictionary = codebook(tmp_path, "rownames,ItemLabel,Item,Keying\nA1,q_146,Am indifferent,-1\nA2,q_1162,Inquire,1\nage,NA,NA,NA\n")
    assert dictionary.variables(["A1"])["A1"].wording == "Am indifferent"
    assert dictionary.reversed_items(["A1", "A2", "age"], "Keying") == ["A1"]


def test_a_dictionary_overrides_what_the_file_says(tmp_path: Path) -> None:
    dictionary = codebook(tmp_path, "item,text,levels\nq1,New,\nq2,,1=a | 2=b\n")
    file = {name: Variable(name, "number", f"old {name}", {1.0: "x"}) for name in ("q1", "q2", "q3")}
    found = describe(file, dictionary, ["q1", "q2", "q3", "q4"])
    assert found["q1"] == Variable("q1", "number", "New", {1.0: "x"})
    assert found["q2"] == Variable("q2", "number", "old q2", {1.0: "a", 2.0: "b"})
    assert found["q3"] == file["q3"]
    assert describe(file, None, []) == file


@needs_inputs
def test_the_longitudinal_project() -> None:
    folder = INPUTS / "redcap/longitudinal"
    rows = read_rows(folder / "data.csv")
    columns = list(rows[0])
    for codings in ([], [folder / "event.csv"]):
        where = open_dictionary(folder / "dictionary.csv", codings).event_columns(columns)
        assert where is not None
        texts = {name: pa.array([row[name] for row in rows]) for name in (where.record, *where.slots)}
        found = find_events("data.csv", where, texts, lambda row: f"line {row + 2}")
        assert (len(found.ids), len(found.labels), len(rows)) == (3, 12, 18)
        expected = [row["unique_event_name"] for row in read_rows(folder / "event.csv")]
        assert set(found.labels) == set(expected)
        if codings:
            assert list(found.labels) == expected


@needs_inputs
def test_the_repeating_instruments() -> None:
    folder = INPUTS / "redcap/repeating-instruments"
    rows = read_rows(folder / "data.csv")
    where = open_dictionary(folder / "dictionary.csv").event_columns(list(rows[0]))
    assert where is not None
    texts = {name: pa.array([row[name] for row in rows]) for name in (where.record, *where.slots)}
    found = find_events("data.csv", where, texts, lambda row: f"line {row + 2}")
    assert found.labels == (ONCE, "bp 1", "bp 2", "bp 3")
