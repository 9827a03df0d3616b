"""Targets: exports of REDCap and UK Biobank with their dictionaries, and tables with codebooks."""

# ruff: noqa: ARG001  # every reader takes the same arguments
import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dfact
from benchmarks.fuzz.datasets import check_dataset
from benchmarks.fuzz.mutations import Mutation, mutate_any, mutate_bytes, mutate_file, mutate_text
from benchmarks.fuzz.tables import check_table, text_rows
from benchmarks.fuzz.target import M, Target, answers

Rows = Sequence[Sequence[Any]]
REDCAP = [
    *("Variable / Field Name", "Form Name", "Field Type", "Field Label", "Choices, Calculations, OR Slider Labels"),
    *("Text Validation Type OR Show Slider Number", "Text Validation Min", "Text Validation Max", "Identifier?", "Field Annotation"),
]
FIELDS = [
    ["record_id", "intake", "text", "Study ID", "", "", "", "", "", ""],
    ["email", "intake", "text", "E-mail", "", "email", "", "", "y", ""],
    ["height", "intake", "text", "Height, m", "", "number_comma_decimal", "0", "3", "", ""],
    ["mood", "intake", "radio", "<b>Mood</b> &amp; sleep", "0, Bad, or worse | 1, So so | 2, Good", "", "", "", "", ""],
    ["sex", "intake", "radio", "Sex", "0, Female | 1, Male", "", "", "", "", ""],
    ["smoker", "intake", "yesno", "Smokes", "", "", "", "", "", "@NOMISSING"],
    ["pain", "intake", "slider", "Pain", "none | some | worst", "", "0", "10", "", ""],
    ["meds", "drugs", "checkbox", "Takes", "1, A, or B | -9, None | x-Y, Other", "", "", "", "", ""],
]
BIOBANK: dict[str, Rows] = {
    "fields.tsv": [
        ["FieldID", "Field", "ValueType", "Notes", "Coding"],
        [20510, "Little interest", "Categorical single", 'asks for "mood" ', 504],
        [21059, "Bothered", "Categorical single", "", 1018],
        [4080, "Pressure", "Integer", "", "NA"],
    ],
    "codings.tsv": [
        ["Coding", "Value", "Meaning"],
        [504, -818, "Prefer not to answer"],
        *([504, code, meaning] for code, meaning in enumerate(("Not at all", "Several days", "Often", "Nearly every day"), start=1)),
        *([1018, code, meaning] for code, meaning in ((-602, "A lot"), (-601, "A little"), (-600, "Not at all"), (-313, "Not applicable"))),
    ],
}


def write(path: Path, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n").writerows(rows)


def dictionary_target(tables: dict[str, Rows], table: str, dictionary: str, codings: str | None = None, **options: Any) -> Target:
    """Return a target of a table with a dictionary, any of whose files is damaged."""

    def make(folder: Path) -> None:
        for name, rows in tables.items():
            write(folder / name, rows)

    def read(folder: Path, out: Path, same: bool) -> None:
        more: dict[str, Any] = {} if codings is None else {"codings": folder / codings}
        dataset = dfact.import_table(folder / table, out / "d.zarr", dictionary=folder / dictionary, empty_rows="drop", **more, **options)
        check_dataset(dataset, None)
        expect_codebook(dataset)

    return Target(make, mutate_any(*(text_mutation(name) for name in tables)), read)


def expect_codebook(dataset: dfact.Dataset) -> None:
    """Raise an error unless the codebook describes the columns."""
    book = dataset.codebook
    names = [] if book is None else [item.name for item in book]
    if names != list(dataset.column_labels):
        raise AssertionError(f"a codebook of {names}")


def text_mutation(name: str) -> Mutation:
    delimiter = "\t" if name.endswith(".tsv") else ","

    def change(data: bytes, rng: random.Random) -> bytes:
        return mutate_text(data, rng, delimiter) if rng.random() < 0.7 else mutate_bytes(data, rng)

    return mutate_file(name, change)


def redcap_tables() -> dict[str, Rows]:
    rng = np.random.default_rng(5)
    boxes = ["meds___1", "meds____9", "meds___x_y"]
    header = [
        "record_id",
        "redcap_event_name",
        "email",
        "height",
        "mood",
        "sex",
        "smoker",
        "pain",
        "intake_complete",
        *boxes,
        "drugs_complete",
    ]
    visits = [[f"r{i}", f"v{k}_arm_1", "a@b.c", f"1,{50 + i}"] for i in range(12) for k in range(3) if k == 0 or rng.random() < 0.8]
    rows = [[*row, *rng.integers(0, (3, 2, 2, 11, 3, 2, 2, 2, 3))] for row in visits]
    events = [[f"Visit {k}", 1, f"v{k}_arm_1"] for k in (2, 1, 0)]
    return {
        "export.csv": [header, *rows],
        "fields.csv": [REDCAP, *FIELDS],
        "events.csv": [["event_name", "arm_num", "unique_event_name"], *events],
    }


def biobank_tables() -> dict[str, Rows]:
    rng = np.random.default_rng(6)
    columns = [f"{field}-{instance}.0" for field in (20510, 21059, 4080) for instance in range(3)]
    codes = [rng.choice([-818, 1, 2, 3, 4], (20, 3)), rng.choice([-602, -601, -600, -313], (20, 3)), rng.integers(90, 180, (20, 3))]
    rows = [[1000 + i, *row] for i, row in enumerate(np.hstack(codes).tolist())]
    return {"ukb.tsv": [["eid", *columns], *rows], **BIOBANK}


def codebook_target() -> Target:
    """Return a target of text answers with a codebook; a damaged table is compared with its cells."""
    order = ("never", "seldom", "some,times", "often", "always")
    levels = "|".join(f"{code}={label}" for code, label in enumerate(order))
    book = [["item", "text", "levels", "missing", "keying", "group"]]
    book += [[f"Q{j}", f"Question {j}", levels, "-9=refused", "-1" if j % 2 else "1", "mood"] for j in range(M)]

    def make(folder: Path) -> None:
        answers().to_csv(folder / "t.csv", index=False)
        write(folder / "items.csv", book)

    def read(folder: Path, out: Path, same: bool) -> None:
        dataset = dfact.import_table(
            folder / "t.csv", out / "d.zarr", items="Q*", id_column="id", dictionary=folder / "items.csv", empty_rows="drop"
        )
        check_dataset(dataset, None)
        expect_codebook(dataset)
        rows, columns = text_rows(folder / "t.csv", ",")
        if csv_of(folder / "items.csv") == [[str(cell) for cell in row] for row in book]:
            check_table(dataset, rows, columns)

    return Target(make, mutate_any(text_mutation("t.csv"), text_mutation("items.csv")), read)


def csv_of(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text("utf-8", "surrogateescape").splitlines(keepends=True)))


DICTIONARY_TARGETS = {
    "REDCap": dictionary_target(redcap_tables(), "export.csv", "fields.csv", "events.csv", third_mode="events"),
    "REDCap event": dictionary_target(
        redcap_tables(), "export.csv", "fields.csv", items=["mood", "pain", "meds"], confounders=["height"], event="v0_arm_1"
    ),
    "UK Biobank": dictionary_target(
        biobank_tables(), "ukb.tsv", "fields.tsv", "codings.tsv", items=["20510", "21059", "4080"], third_mode="instances"
    ),
    "codebook": codebook_target(),
}
