"""The questionnaire of the package in the formats of several programs, for ``dfact demo`` and the guides."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from dfact.data.examples import ipip_ascado, ipip_ascado_items, ipip_ascado_items_file

_SCALES = ("AS", "SC", "AD", "DO")


def write_answers(folder: Path) -> None:
    """Write the answers and the items as they come with dfact, and two waves of them as ``survey.csv`` and ``new_people.csv``."""
    shutil.copyfile(ipip_ascado(), folder / "answers.csv")
    shutil.copyfile(ipip_ascado_items_file(), folder / "items.csv")
    write_survey(folder / "survey.csv", slice(0, 500))
    write_survey(folder / "new_people.csv", slice(500, 560))


def write_survey(path: Path, rows: slice, letter: str = "Q", scales: int = 4) -> None:
    """Write some of the answers as Q1, Q2, …, with ids, a code -9 of missing answers, and words for the gender."""
    answers = pd.read_csv(ipip_ascado())[rows]
    items = answers[[name for name in answers if str(name).startswith(_SCALES[:scales])]]
    frame = items.set_axis([f"{letter}{j + 1}" for j in range(items.shape[1])], axis=1)
    frame = frame[(frame != 0).any(axis=1)]
    frame.iloc[3, 2] = -9
    frame.insert(0, "person", [f"p{i}" for i in frame.index])
    frame["age"], frame["sex"] = answers["age"], answers["gender"].map({0: None, 1: "m", 2: "f", 3: "d"})
    frame.to_csv(path, index=False)


def write_waves(folder: Path) -> None:
    """Write the answers of three waves of other people, ``wave1.csv`` to ``wave3.csv``, and the items.

    The waves are random parts of the same people, except that in the third all answer two items a point higher, as after a change of
    their wording.
    """
    answers = pd.read_csv(ipip_ascado())
    items = [str(name) for name in answers if str(name).startswith(_SCALES)]
    answers = answers[(answers[items] != 0).any(axis=1)]
    answers.insert(0, "person", [f"p{i:04}" for i in answers.index])
    order = np.random.default_rng(0).permutation(len(answers))
    for number, (start, stop) in enumerate(((0, 700), (700, 850), (850, len(answers))), 1):
        wave = answers.iloc[np.sort(order[start:stop])].copy()
        if number == 3:
            for item in ("AS3", "DO8"):
                wave[item] = wave[item].where(wave[item] == 0, np.minimum(wave[item] + 1, 5))
        wave.to_csv(folder / f"wave{number}.csv", index=False)
    shutil.copyfile(ipip_ascado_items_file(), folder / "items.csv")


def write_sites(folder: Path) -> None:
    """Write the answers of two sites with other people each, ``north.csv`` and ``south.csv``, and the items.

    They are those of the people who answered all items: an item that only a few people skipped could show their answers.
    """
    answers = pd.read_csv(ipip_ascado())
    items = [str(name) for name in answers if str(name).startswith(_SCALES)]
    answers = answers[(answers[[*items, "age"]] != 0).all(axis=1)]
    for name, people in (("north", answers[:500]), ("south", answers[500:])):
        people.to_csv(folder / f"{name}.csv", index=False)
    shutil.copyfile(ipip_ascado_items_file(), folder / "items.csv")


def write_spss_files(folder: Path) -> None:
    """Write the answers as ``thesis.sav``, the scales as ``scales.csv``, and a short questionnaire as ``wellbeing.sav``."""
    _write_thesis(folder / "thesis.sav")
    pd.read_csv(ipip_ascado_items_file())[["item", "scale", "key"]].to_csv(folder / "scales.csv", index=False)
    _write_wellbeing(folder / "wellbeing.sav")


def _write_thesis(path: Path) -> None:
    """Write the answers with their wording, labels and missing codes."""
    import pyreadstat

    frame, texts = pd.read_csv(ipip_ascado()), ipip_ascado_items()
    frame = frame[[*texts, "age", "gender"]]
    frame = frame[(frame[list(texts)] != 0).any(axis=1)]
    frame.insert(0, "person", [f"p{i:04}" for i in range(len(frame))])
    levels = {0: "no answer", 1: "strongly disagree", 2: "disagree", 3: "neither", 4: "agree", 5: "strongly agree"}
    pyreadstat.write_sav(
        frame,
        path,
        column_labels=["", *texts.values(), "Age in years", "Gender"],
        variable_value_labels=dict.fromkeys(texts, levels) | {"gender": {0: "no answer", 1: "male", 2: "female", 3: "other"}},
        missing_ranges={name: [0] for name in (*texts, "age", "gender")},
        variable_measure=dict.fromkeys(texts, "ordinal") | {"gender": "nominal"},
    )


def _write_wellbeing(path: Path) -> None:
    """Write five simulated statements with labels, a declared missing code and an impossible age."""
    import pyreadstat

    rng = np.random.default_rng(0)
    mood = rng.integers(0, 2, (60, 1)) + rng.integers(1, 4, (60, 5))
    mood[:, 2] = 5 - mood[:, 2]
    mood[rng.random((60, 5)) < 0.05] = 9
    names = [f"mood{j}" for j in range(1, 6)]
    frame = pd.DataFrame(mood, columns=names)
    frame.insert(0, "person", [f"p{i:02}" for i in range(60)])
    frame["age"], frame["sex"] = rng.integers(18, 80, 60), rng.integers(1, 3, 60)
    frame.loc[4, "age"] = 567658
    words = ["was cheerful", "was full of energy", "felt tired", "woke up rested", "enjoyed my day"]
    labels = {1: "never", 2: "sometimes", 3: "often", 4: "always", 9: "refused"}
    pyreadstat.write_sav(
        frame,
        path,
        column_labels=["", *(f"I {text}" for text in words), "Age in years", "Sex"],
        variable_value_labels=dict.fromkeys(names, labels) | {"sex": {1: "female", 2: "male"}},
        missing_ranges={name: [9] for name in names},
        variable_measure=dict.fromkeys(names, "ordinal") | {"sex": "nominal"},
    )
