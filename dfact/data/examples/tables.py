"""Tables as diaries, REDCap and UK Biobank hold them, for ``dfact demo diary`` and the guide on import."""

from pathlib import Path

import numpy as np
import pandas as pd

from dfact.data.examples.questionnaires import write_survey

_FIELDS = {20510: "Recent feelings of depression", 20514: "Recent lack of interest", 20517: "Trouble sleeping", 20518: "Recent changes"}


def write_tables(folder: Path) -> None:
    """Write a diary, two questionnaires of partly the same people, an export of REDCap and columns of UK Biobank."""
    _write_diary(folder / "diary.csv")
    write_survey(folder / "phq9.csv", slice(0, 80), "P", 1)
    write_survey(folder / "gad7.csv", slice(40, 120), "G", 2)
    _write_records(folder / "records.csv")
    _write_dictionary(folder / "dictionary.csv")
    _write_biobank(folder)


def _write_diary(path: Path) -> None:
    rng = np.random.default_rng(0)
    sleep = rng.choice(["badly", "fairly", "well", "NA"], (40, 3), p=[0.3, 0.3, 0.3, 0.1])
    frame = pd.DataFrame(sleep, columns=["sleep1", "sleep2", "sleep3"])
    frame["calm"] = rng.choice(["no", "yes"], 40)
    frame.insert(0, "person", [f"p{i}" for i in range(40)])
    frame.to_csv(path, index=False)


def _write_records(path: Path) -> None:
    """Write a longitudinal export of REDCap."""
    rng = np.random.default_rng(0)
    n = 30
    frame = pd.DataFrame(rng.integers(0, 4, (2 * n, 4)), columns=[f"phq{j}" for j in range(1, 5)])
    frame.insert(0, "record_id", np.repeat(np.arange(1, n + 1), 2))
    frame.insert(1, "redcap_event_name", ["baseline_arm_1", "followup_arm_1"] * n)
    frame["age"] = [age for pair in zip(rng.integers(18, 80, n), [None] * n, strict=True) for age in pair]
    frame["age"] = frame["age"].astype("Int64")
    frame["phq_complete"] = 2
    frame.to_csv(path, index=False)


def _write_dictionary(path: Path) -> None:
    """Write the data dictionary of the REDCap project."""
    header = ["Variable / Field Name", "Form Name", "Field Type", "Field Label", "Choices, Calculations, OR Slider Labels", "Identifier?"]
    choices = "0, Not at all | 1, Several days | 2, More than half the days | 3, Nearly every day"
    words = ["Little interest", "Feeling down", "Trouble sleeping", "Feeling tired"]
    rows = [["record_id", "phq", "text", "Record", "", ""]]
    rows += [[f"phq{j}", "phq", "radio", text, choices, ""] for j, text in enumerate(words, 1)]
    rows += [["age", "phq", "text", "Age", "", ""]]
    pd.DataFrame(rows, columns=header).to_csv(path, index=False)


def _write_biobank(folder: Path) -> None:
    """Write four fields of UK Biobank at two instances, their dictionary and their codings."""
    rng = np.random.default_rng(0)
    codes = [1, 2, 3, 4, -818]
    names = [f"{number}-{instance}.0" for number in _FIELDS for instance in (0, 1)]
    frame = pd.DataFrame(rng.choice(codes, (50, len(names)), p=[0.3, 0.3, 0.2, 0.1, 0.1]), columns=names)
    frame.insert(0, "eid", 1_000_000 + np.arange(50))
    frame.to_csv(folder / "biobank.tsv", sep="\t", index=False)
    fields = pd.DataFrame({"FieldID": list(_FIELDS), "Field": list(_FIELDS.values())})
    fields.assign(ValueType="Categorical single", Coding=504).to_csv(folder / "fields.tsv", sep="\t", index=False)
    meanings = ["Not at all", "Several days", "More than half the days", "Nearly every day", "Prefer not to answer"]
    pd.DataFrame({"Coding": 504, "Value": codes, "Meaning": meanings}).to_csv(folder / "codings.tsv", sep="\t", index=False)
