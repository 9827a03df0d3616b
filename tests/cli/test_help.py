"""The help of all commands, and ``dfact help``: the guides in the terminal."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import dfact
from dfact.cli.main import cli, main
from dfact.data.readers.formats import open_table
from dfact.errors import DependencyError

GUIDES = {path.stem: path.read_text() for path in (Path(dfact.__file__).parent / "guides").glob("*.md")}


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of a command and of those below it."""
    yield names
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *names, name)


COMMANDS = list(commands(cli))


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_has_usage_and_example(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*names, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['dfact', *names])}")
    if names not in [(), ("fit",), ("select",)]:
        assert re.search(rf"Examples?:\n(    .*\n)*    dfact {' '.join(names)}", text)
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.process
def test_help_imports_no_heavy_module() -> None:
    heavy = {"numba", "numpy", "pandas", "zarr", "sklearn", "distributed"}
    helps = f"[main([*names, '--help']) for names in {COMMANDS}]"
    code = f"import sys; from dfact.cli.main import main; {helps}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=400, check=True)


def test_topics_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert listed == {name: text.partition("\n")[0].removeprefix("# ") for name, text in GUIDES.items()}


@pytest.mark.parametrize("topic", GUIDES)
def test_a_guide_is_printed_as_text(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    printed = capsys.readouterr().out
    title = GUIDES[topic].partition("\n")[0].removeprefix("# ")
    assert printed.startswith(f"{title}\n{'=' * len(title)}\n")
    assert not [line for line in printed.splitlines() if line.startswith(("```", "|", "#")) or "](" in line]
    text = " ".join(printed.split()).replace("*", "")
    rows = re.findall(r"(?m)(?<=\|\n)^\| (.+) \|$", GUIDES[topic])  # all but the headers
    cells = [
        cell.strip().replace("*", "").replace("\\", "") for row in rows for cell in row.split("|") if not re.fullmatch(" ?:?-+:? ?", cell)
    ]
    assert [cell for cell in cells if "](" not in cell and cell not in text] == []


def test_code_is_indented_and_links_name_their_guides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "failures"]) == 0
    printed = capsys.readouterr().out
    assert "\n    dfact fit icqf " in printed
    assert "job (dfact help jobs)" in " ".join(printed.split())


def test_an_unknown_topic_is_refused_with_the_closest_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "memroy"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"TOPIC is 'memroy', expected one of {', '.join(sorted(GUIDES))}; did you mean 'memory'?" in error


def test_extensions_are_listed_without_an_import_and_errors_name_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = tmp_path / "other_words-2.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: other-words\nVersion: 2.0\n")
    names = "words = no_such_module:words\nfit.words = dfact.errors:DataError\n"
    (installed / "entry_points.txt").write_text(f"[dfact.commands]\n{names}[dfact.readers]\nwords = no_such_module:FORMATS\n")
    monkeypatch.syspath_prepend(tmp_path)
    for arguments in (["--help"], ["fit", "--help"], ["select", "--help"]):
        assert main(arguments) == 0
        assert re.search(r"Commands of other packages:\n +words +other-words 2\.0", capsys.readouterr().out)
    assert main(["words"]) == 1
    assert "'words' (no_such_module:words) cannot be loaded: No module named" in capsys.readouterr().err
    assert main(["fit", "words"]) == 1
    assert "is a type, expected a dfact ModelSpec; correct its entry point" in capsys.readouterr().err
    assert main(["verbs"]) == 2
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    assert open_table(tmp_path / "a.csv").columns == ["a", "b"]  # a format of dfact's own needs no other
    (tmp_path / "a.words").write_text("")
    with pytest.raises(DependencyError, match=r"'words'.*repair or uninstall other-words"):
        open_table(tmp_path / "a.words")
