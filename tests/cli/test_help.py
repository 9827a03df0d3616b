"""The help of all commands, and ``dfact help``: the guides in the terminal."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import dfact
from dfact.catalogue import CATALOGUE, INSTALLED, MISSING, SLICES, Entry, Slice
from dfact.cli.demo_kinds import KINDS
from dfact.cli.main import cli, main
from dfact.cli.update import DRIFT
from dfact.errors import DependencyError
from dfact.imports.readers.formats import open_table
from tests.cases import exhaustive_unless
from tests.documentation.demos import demo, leave_files, parsed

PACKAGE = Path(dfact.__file__).parent
GUIDES = {path.stem: path.read_text() for path in PACKAGE.glob("**/guides/*.md")}


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of a command and of those below it."""
    yield names
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, *names, name)


COMMANDS = list(commands(cli))
EXAMPLES = [names for names in COMMANDS if names not in [(), ("fit",), ("select",), ("site",)]]


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_has_usage_and_example(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*names, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['dfact', *names])}")
    if names in EXAMPLES:
        assert re.search(rf"Examples?:\n(    .*\n)*    dfact {' '.join(names)}", text)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\\b" not in text


def examples(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Return the commands of the examples in a help, as a shell reads them, and the job file that it shows."""
    assert main([*names, "--help"]) == 0
    text = capsys.readouterr().out
    block = re.search(r"\n  Examples?:\n((?:    .*\n)+)", text)
    assert block, text
    job = "".join(re.findall(r"(?m)^      (\[.*\n(?:      .*\n)+)", text))
    return textwrap.dedent(block[1]).replace("\\\n", " ").splitlines(), textwrap.dedent(job)


@pytest.mark.parametrize("names", EXAMPLES, ids=" ".join)
def test_examples_are_commands(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of an example parses as a command of its own; only kubectl is another program."""
    for line in examples(names, capsys)[0]:
        if not line.startswith("kubectl "):
            assert line.startswith("dfact "), line
            parsed(line)


RUN = [("info",), ("transform",), ("run",), ("fit", "gom"), ("help",)]
"""Commands whose examples represent all; they take less than a second each."""
STARTED = [names for names in EXAMPLES if names != ("site", "join")]  # which waits for a coordinator


@pytest.mark.further
@pytest.mark.parametrize(
    "names", exhaustive_unless(lambda case: case.values[0] in RUN, [pytest.param(names, id=" ".join(names)) for names in STARTED])
)
def test_examples_run(names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples run in the folder where the demos ran; those of jobs with the job that the help of run shows."""
    monkeypatch.chdir(tmp_path)
    lines, job = examples(names, capsys)
    if any("job.toml" in line for line in lines):
        job = examples(("run",), capsys)[1]
        remote = re.sub('"(?=dfact-demo|survey)', '"s3://bucket/', job).replace("[job]", '[job]\nstate = "s3://bucket/state"')
        Path("job.toml").write_text(remote if names == ("deploy",) else job)  # pods reach no files of this machine
    leave_files("\n".join([*lines, job]))
    for line in lines:
        program, *words = shlex.split(line)
        if words[:1] == ["demo"]:
            demo(*words[1:])
        elif program == "dfact":
            expected = DRIFT if "--check" in words else 0  # the rows that the example checks differ
            assert main(words) == expected, f"{line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("command", ["icqf", "cp"])
def test_tolerances_of_a_selection_state_their_criterion(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A fit stops by the estimated distance from its limit; fits that start near their solutions stop by the relative change."""
    criteria = {}
    for group in ("fit", "select"):
        assert main([group, command, "--help"]) == 0
        text = re.search(r"(?ms)^  --tol FLOAT(.*?)\[default", capsys.readouterr().out)
        assert text
        criteria[group] = " ".join(text[1].split())
    assert "estimated distance of the objective from its limit" in criteria["fit"]
    assert "relative change of the objective" in criteria["select"]
    assert "relative change" not in criteria["fit"]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_names_of_a_model_find_its_guide(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [f"{beginning}{entry.command}" for beginning in ("", "fit ", "select ")] if entry.command else []
    for name in [entry.name, f"dfact.{entry.name}", *commands]:
        assert main(["help", *name.split()]) == 0, name
        assert capsys.readouterr().out.startswith(GUIDES[entry.guide].partition("\n")[0].removeprefix("# "))
    assert re.search(rf"\b{entry.name}\b", GUIDES[entry.guide])


def test_every_command_and_kind_of_demo_finds_a_guide(capsys: pytest.CaptureFixture[str]) -> None:
    missing = {each.name for each in MISSING}
    kinds = [kind for kind, demo in KINDS.items() if missing.isdisjoint(demo.slices)]
    for name in [*(" ".join(names) for names in EXAMPLES), "fit", *kinds]:
        assert main(["help", *name.split()]) == 0, name
        assert capsys.readouterr().out.partition("\n")[0] in [
            *(text.partition("\n")[0].removeprefix("# ") for text in GUIDES.values()),
            "Usage: dfact fit [OPTIONS] COMMAND [ARGS]...",
            "Usage: dfact help [OPTIONS] [TOPIC]...",
        ]


def test_help_of_a_command_ends_with_its_guide(capsys: pytest.CaptureFixture[str]) -> None:
    for names in EXAMPLES:
        if names != ("help",):
            assert main([*names, "--help"]) == 0
            found = re.search(r"\n  Guide: dfact help ([\w-]+)\n$", capsys.readouterr().out)
            assert found, names
            assert found[1] in GUIDES, names


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


def test_the_catalogue_lists_the_guides_in_the_folders_of_slices() -> None:
    assert {each.name: sorted(each.guides) for each in INSTALLED} == {
        each.name: sorted(path.stem for path in (PACKAGE / each.name / "guides").glob("*.md")) for each in INSTALLED
    }
    assert [guide for each in INSTALLED for guide in each.topics.values() if guide not in GUIDES] == []


@pytest.mark.parametrize(("slice_", "topic"), [(each, topic) for each in SLICES for topic in [*each.guides, *each.topics, *each.demos]])
def test_a_topic_of_a_missing_slice_names_the_slice(
    slice_: Slice, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = tuple(each for each in INSTALLED if each is not slice_)
    monkeypatch.setattr("dfact.cli.help.INSTALLED", others)
    monkeypatch.setattr("dfact.cli.help.MISSING", (slice_,))
    monkeypatch.setattr("dfact.cli.help.KINDS", {kind: demo for kind, demo in KINDS.items() if kind not in slice_.demos})
    code, (printed, error) = main(["help", *topic.split()]), capsys.readouterr()
    if topic == "report":  # has a guide of the core too
        assert (code, error) == (0, "")
        return
    assert (code, printed) == (1, "")
    assert len(error.splitlines()) == 1
    assert error.rstrip().endswith(f'which is not installed: pip install "dfact[{slice_.name}]"')


def test_an_unknown_topic_is_refused_with_the_closest_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "memroy"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    listed = ", ".join(sorted(GUIDES))
    assert f"TOPIC is 'memroy', expected a command, a class, a kind of demo, or one of the guides {listed}; did you mean 'memory'?" in error


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
