"""Every command and snippet of the README, run as it stands, and what it shows compared with what comes out.

A section is run from its beginning in a folder of its own, with the data that stands in there for the reader's. Commands run in
this process, which is what the ``dfact`` on the PATH calls; ``tests/cli/test_cli.py`` and ``.ci/run`` start it as a program.
"""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.cli.main import cli, main
from dfact.data.examples import ipip_ascado
from tests.object_store.test_object_store import bucket, server  # noqa: F401  # fixtures

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE = ["AS", "SC", "AD", "DO"]

ELSEWHERE = {
    "pip install": ".ci/run installs from a fresh environment",
    "openssl": "tests/tls/test_tls.py",
    "dask scheduler": "tests/tls/test_tls.py",
    "dask worker": "tests/tls/test_tls.py",
    "10.0.0.1": "tests/tls/test_tls.py",
}
"""What is not run here: a part of the block or line, and where it is."""
TREE = "dfact/cli       commands"
"""The one indented block that is no command."""


# The README's parts


@dataclass(frozen=True)
class Block:
    """An indented or fenced block, and in which line it begins."""

    line: int
    kind: str
    text: str


def blocks(text: str, first: int) -> Iterator[Block]:
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        begin, kind = i, "shell"
        if lines[i].startswith("```"):
            kind = lines[i][3:]
            i = lines.index("```", i + 1) + 1
            yield Block(first + begin, kind, "\n".join(lines[begin + 1 : i - 1]))
        elif lines[i].startswith("    "):
            while i < len(lines) and lines[i].startswith("    "):
                i += 1
            yield Block(first + begin, kind, "\n".join(line[4:] for line in lines[begin:i]))
        else:
            i += 1


def sections() -> dict[str, list[Block]]:
    parts = re.split(r"(?m)^(?=## )", README)
    found, line = {}, 1
    for part in parts:
        found[part.splitlines()[0].strip("# ")] = list(blocks(part, line))
        line += part.count("\n")
    return found


SECTIONS = {title: found for title, found in sections().items() if found}


def elsewhere(text: str) -> bool:
    return any(part in text for part in ELSEWHERE)


# The reader's data


def survey(path: Path, rows: slice, letter: str = "Q", scales: int = 4) -> None:
    """Answers of the example under other names, with a few codes of missing ones."""
    answers = pd.read_csv(ipip_ascado())[rows]
    items = answers[[name for name in answers if name[:2] in EXAMPLE[:scales]]]
    frame = items.set_axis([f"{letter}{j + 1}" for j in range(items.shape[1])], axis=1)
    frame = frame[(frame != 0).any(axis=1)]
    frame.iloc[3, 2] = -9
    frame.insert(0, "person", [f"p{i}" for i in frame.index])
    frame["age"], frame["sex"] = answers["age"], answers["gender"].map({0: None, 1: "m", 2: "f", 3: "d"})
    frame.to_csv(path, index=False)


def triplets(path: Path) -> None:
    """The example's answers as response times, 60 % of them."""
    answers = pd.read_csv(ipip_ascado())[:120].filter(regex="|".join(f"^{scale}" for scale in EXAMPLE))
    frame = answers.melt(ignore_index=False, var_name="service", value_name="seconds").reset_index(names="user")
    frame[frame["seconds"] > 0].sample(frac=0.6, random_state=0).to_csv(path, index=False)


def fluorescence(path: Path) -> None:
    """Three substances in five samples, as the amino acids' data has them."""
    rng = np.random.default_rng(0)
    emission, excitation = (
        np.stack([np.exp(-(((np.arange(n) - n * c) / (n * 0.12)) ** 2)) for c in centers])
        for n, centers in ((60, (0.2, 0.45, 0.7)), (30, (0.3, 0.5, 0.8)))
    )
    X = np.einsum("ir,rj,rk->ijk", rng.uniform(0.2, 2, (5, 3)), emission, excitation)
    np.savez(path, X=X + rng.normal(0, 0.01, X.shape))


def imported(table: str) -> Callable[[Path], None]:
    """As the README imports the table."""

    def make(path: Path) -> None:
        PLACEHOLDERS[table](path.with_name(table))
        every = (line for block in SECTIONS["Your own questionnaire"] for line in commands(block))
        command = next(line for line in every if f"import {table}" in line)
        run(command.replace(table, str(path.with_name(table))).replace(path.name, str(path)))

    return make


OLD, NEW = slice(0, 120), slice(120, 180)
PLACEHOLDERS: dict[str, Callable[[Path], None]] = {
    "survey.csv": lambda path: survey(path, OLD),
    "new_people.csv": lambda path: survey(path, NEW),
    "phq9.csv": lambda path: survey(path, slice(0, 80), "P", 1),
    "gad7.csv": lambda path: survey(path, slice(40, 120), "G", 2),
    "times.csv": triplets,
    "amino.npz": fluorescence,
}
"""The reader's files, made of the example's answers."""
DATASETS: dict[str, Callable[[Path], None]] = {"cohort.zarr": imported("survey.csv"), "new_people.zarr": imported("new_people.csv")}
"""What an earlier section has left, in sections that do not make it themselves."""


def lay_out(folder: Path, found: list[Block]) -> None:
    """The files that a section names; what its commands make is not there."""
    text = "\n".join(block.text for block in found if not elsewhere(block.text))
    for name, make in PLACEHOLDERS.items():
        if name in text:
            make(folder / name)
    for name, make in DATASETS.items():
        if re.search(rf"(?<![/\w]){name}", text) and not re.search(rf"import \S+ {name}", text):
            make(folder / name)


# Running them


def commands(block: Block) -> list[str]:
    return [line for line in block.text.replace("\\\n", " ").splitlines() if not elsewhere(line)]


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "dfact", f"{command!r}: expected a command of dfact, or a line in ELSEWHERE"
    assert main(arguments) == 0, command


def compare(shown: str, printed: str, line: int) -> None:
    """What is shown, with … for any lines, is what came out; figures may differ in their last places, and spaces end no line."""
    pattern = ""
    for text in shown.splitlines():
        pattern += r"(?:.*\n)*?" if text == "…" else re.sub(r"\d+\\\.\d+", r"(\\d+\\.\\d+)", re.escape(text)) + r" *\n"
    found = re.search(pattern, printed)
    assert found, f"README.md:{line} shows\n{shown}\nbut what comes out is\n{printed}"
    figures = [float(figure) for figure in re.findall(r"\d+\.\d+", shown)]
    np.testing.assert_allclose([float(figure) for figure in found.groups()], figures, rtol=0.02, atol=0.002, err_msg=f"README.md:{line}")


@pytest.mark.parametrize("title", SECTIONS)
def test_section(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    found = SECTIONS[title]
    store = request.getfixturevalue("bucket") if any("s3://bucket" in block.text for block in found) else "s3://bucket"
    lay_out(tmp_path, found)
    capsys: pytest.CaptureFixture[str] = request.getfixturevalue("capsys")
    capsys.readouterr()
    names: dict[str, Any] = {}
    printed = ""
    for block in found:
        if block.text.startswith(TREE) or (elsewhere(block.text) and not commands(block)):
            continue
        if block.kind == "shell":
            for command in commands(block):
                run(command.replace("s3://bucket", store))
        elif elsewhere(block.text):
            continue
        elif block.kind == "python":
            exec(compile(block.text, f"README.md, line {block.line}", "exec"), names)
        elif block.kind == "toml":
            Path("job.toml").write_text(block.text)
        elif block.kind == "text":
            compare(block.text, printed, block.line)
        else:
            pytest.fail(f"README.md:{block.line}: a block of {block.kind!r}")
        printed = capsys.readouterr().out
    assert "Traceback" not in printed
    if title == "Your own questionnaire":
        assert dfact.open_dataset("cohort.zarr").fingerprint == dfact.open_dataset("survey.zarr").fingerprint, (
            "from the shell and from Python"
        )


# What stands in its sentences


def spans() -> list[str]:
    """The inline code."""
    prose = re.sub(r"(?ms)^```.*?^```|^    .*?$", "", README)
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose)]


def test_commands_in_sentences_exist() -> None:
    found = 0
    for text in spans():
        words = text.split()
        if words[0] == "dfact" and len(words) > 1 and words[1] != "--version":
            found += 1
            command: click.Command = cli
            rest = words[1:]
            while rest and isinstance(command, click.Group):
                command = command.commands[rest.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= options, text
    assert found >= 10


def test_options_and_names_in_sentences_exist() -> None:
    leaves = [command for command in cli.commands.values() if not isinstance(command, click.Group)]
    leaves += [one for group in cli.commands.values() if isinstance(group, click.Group) for one in group.commands.values()]
    options = {option for command in leaves for parameter in command.params for option in parameter.opts}
    for text in spans():
        if text.startswith("--"):
            assert text.split()[0].split("=")[0] in options | {"--help"}, text
        if name := re.fullmatch(r"dfact((?:\.\w+)+)", text):
            there: Any = dfact
            for part in name[1].strip(".").split("."):
                there = getattr(there, part)


def test_links_and_pictures_are_there() -> None:
    places = re.findall(r"\]\(([^)]+)\)", README) + re.findall(r'src="([^"]+)"', README)
    here = [place for place in places if not place.startswith("https://")]
    assert len(here) >= 4
    for place in here:
        assert (ROOT / place).exists(), place
    assert all('alt="' in image for image in re.findall(r"<img[^>]+>", README))


def test_every_command_is_told_of() -> None:
    assert [name for name in cli.commands if f"dfact {name}" not in README] == []


def test_the_job_is_that_of_its_section() -> None:
    (toml,) = (block for found in SECTIONS.values() for block in found if block.kind == "toml")
    assert [step["run"] for step in tomllib.loads(toml.text)["step"]] == ["import", "select icqf", "stability", "report"]


def test_no_block_is_left_out_without_a_reason() -> None:
    every = "\n".join(block.text for found in SECTIONS.values() for block in found)
    assert all(part in every for part in ELSEWHERE), "a reason without its block"
