"""Commands and code of README and guides run as they stand; output they show is compared with what is printed.

Each section runs from its beginning in a folder of its own, with the files of the demos. Commands run in this process
through the function that ``dfact`` on the PATH calls; ``tests/cli/test_cli.py`` and ``.ci/run`` start it as a program.
"""

import io
import logging
import pkgutil
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest

import dfact
from benchmarks.faults.fits import forked_workers
from dfact.catalogue import BY_COMMAND, CATALOGUE, SLICES
from dfact.cli.demo_kinds import CLUSTER_SCRIPT, KINDS
from dfact.cli.demonstration import FOLDER
from dfact.cli.main import cli, main
from dfact.cli.types import OutputLocation
from dfact.cli.update import DRIFT
from dfact.data.examples.questionnaires import write_survey
from dfact.engine.passes import PARTIAL_SUMS
from dfact.imports.readers.formats import formats
from dfact.models.estimator import MODELS, SAVED_TYPES
from dfact.sites.demo import FEDERATED_SCRIPT
from tests.cases import exhaustive_after, exhaustive_unless
from tests.documentation.demos import LEFT, demo, leave_files, parsed, run_demo
from tests.documentation.pages import ELSEWHERE, PAGES, ROOT, SECTIONS, TEXTS, UNRUN, Block, elsewhere, spans
from tests.object_store.test_object_store import bucket, server  # noqa: F401  # fixtures

ALL_BLOCKS = [block for blocks in SECTIONS.values() for block in blocks]
REPRESENTATIVE = {name for name in SECTIONS if name.startswith("README")} | {
    "extending: extending",
    "extending: From an empty folder",
    "failures: failures",
    "import: A table of answers",
    "limits: limits",
    "memory: memory",
    "psychometrics: Describe items and scales",
    "tour: Five steps in the shell",
    "tour: The same in Python",
}
"""The sections that are followed unless all cases are asked for."""
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()


# The reader's data


def lay_out(blocks: list[Block]) -> None:
    """Leave the files here that a section reads and does not make: those of the demos, and results of other sections."""
    text = "\n".join(block.text for block in blocks if not elsewhere(block.text) or block.commands())
    if "survey.csv" in text or "thesis.model" in text:
        demo("spss" if "thesis.model" in text else "questionnaire")
    leave_files(text)
    if re.search(r"(?<![/\w])survey.csv", text):  # the reader's own data
        shutil.copy(Path(FOLDER, "survey.csv"), "survey.csv")
    if "heart.csv" in text:
        write_heart()
    if "thesis.model" in text and "dfact fit fa" not in text:
        shutil.copytree(Path(_factor_analysis().name, "thesis.model"), "thesis.model")


def write_heart() -> None:
    """Write a generated table of the shape of the one that the guide on tensors fetches."""
    rng, names = (
        np.random.default_rng(0),
        ["age", "sex", "pain", "pressure", "cholesterol", "sugar", "ecg", "rate", "angina", "depression", "slope", "vessels", "thal"],
    )
    grades = rng.choice(5, 400, p=[0.4, 0.25, 0.15, 0.13, 0.07])
    values = (rng.random((400, 13)) + 0.3 * grades[:, None] * (np.arange(13) < 5)).round(2).astype(object)
    values[rng.random(values.shape) < [0.05] * 10 + [0.3, 0.6, 0.5]] = "?"
    pd.DataFrame(values, columns=names).assign(grade=grades).to_csv("heart.csv", index=False)


@cache
def _factor_analysis() -> TemporaryDirectory[str]:
    """Fit the factor analysis of the guide on psychometrics."""
    folder = TemporaryDirectory()
    with chdir(folder.name):
        demo("spss")
        run(next(line for block in ALL_BLOCKS for line in block.commands() if " thesis.model " in line))
    return folder


def upload_waves(url: str) -> None:
    """Write two parts under the names that Spark gives to the values of a column."""
    import obstore

    for wave, rows in (("a", slice(0, 500)), ("b", slice(500, 560))):
        with TemporaryDirectory() as folder:
            file = Path(folder) / "survey.csv"
            write_survey(file, rows)
            buffer = io.BytesIO()
            pd.read_csv(file).replace(-9, np.nan).replace(0, np.nan).to_parquet(buffer)
        obstore.put(obstore.store.from_url(url), f"waves/wave={wave}/part-0.parquet", buffer.getvalue())


# Running the blocks


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    if arguments[:1] == ["demo"]:
        demo(*arguments[1:])
        return
    assert program == "dfact", f"{command!r}: expected a command of dfact, or a line in ELSEWHERE"
    expected = DRIFT if "--check" in arguments else 0  # the guide on updates checks rows that differ
    assert main(arguments) == expected, command


def execute(block: Block, folder: Path, names: dict[str, Any]) -> None:
    file = folder / f"{block.where.replace(':', '-')}.py"  # Numba's cache and tracebacks need the source
    file.write_text(block.text)
    library = logging.getLogger("dfact")
    level = library.level
    try:
        exec(compile(block.text, str(file), "exec"), names)
    finally:
        library.setLevel(level)  # which a page sets


def file_of(block: Block) -> str | None:
    """Return the name of the file that a block shows, which its first line states: ``# pyproject.toml``."""
    found = re.match(r"# (\S+\.(?:py|toml))\n", block.text)
    return found[1] if found else None


def write_file(block: Block, name: str, folder: Path) -> None:
    """Write a file of a package that a guide shows; its entry points become known, as an installation makes them."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(f"{block.text}\n")
    if name == "pyproject.toml":
        project = tomllib.loads(block.text)["project"]
        installed = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
        groups = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
            for group, names in project["entry-points"].items()
        ]
        (installed / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let packages in the folder be imported, and forget them afterwards."""
    registries: tuple[dict[str, Any], ...] = (sys.modules, MODELS, SAVED_TYPES, PARTIAL_SUMS)
    before = [set(registry) for registry in registries]
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry) - known:
            if str(getattr(registry[name], "__module__", name)).startswith("dfact_"):
                del registry[name]


def compare(block: Block, printed: str) -> None:
    """Check that a block of output was printed; … stands for any lines, and decimal figures may differ in their last places."""
    pattern = ""
    for text in block.text.splitlines():
        pattern += r"(?:.*\n)*?" if text == "…" else re.sub(r"\d+\\\.\d+", r"(\\d+\\.\\d+)", re.escape(text)) + r" *\n"
    found = re.search(pattern, printed)
    assert found, f"{block.where} shows\n{block.text}\nbut the output is\n{printed}"
    figures = [float(figure) for figure in re.findall(r"\d+\.\d+", block.text)]
    np.testing.assert_allclose([float(figure) for figure in found.groups()], figures, rtol=0.02, atol=0.002, err_msg=block.where)


@pytest.mark.further
@pytest.mark.usefixtures("packages")
@pytest.mark.filterwarnings("always:the anchor of F")  # printed; the guide on psychometrics explains it
@pytest.mark.parametrize(
    "name",
    exhaustive_unless(lambda case: case.id in REPRESENTATIVE, [pytest.param(name, id=name) for name in SECTIONS]),
)
def test_section(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = SECTIONS[name]
    store = request.getfixturevalue("bucket") if any("s3://bucket" in block.text for block in blocks) else "s3://bucket"
    lay_out(blocks)
    if any("s3://bucket/waves" in block.text for block in blocks):
        upload_waves(store)
    capsys: pytest.CaptureFixture[str] = request.getfixturevalue("capsys")
    capsys.readouterr()
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks:
        if (file := file_of(block)) is not None:
            write_file(block, file, tmp_path)
        elif block.kind == "sh":
            for command in block.commands():
                run(command.replace("s3://bucket", store))
        elif elsewhere(block.text):
            continue
        elif block.kind == "python":
            with forked_workers() if "LocalCluster(" in block.text else nullcontext():
                execute(block, tmp_path, names)
        elif block.kind == "toml":
            Path("job.toml").write_text(block.text)
        elif block.kind == "text":
            compare(block, printed)
        else:
            pytest.fail(f"{block.where}: a block of {block.kind!r}, expected sh, python, toml or text")
        printed, warned = capsys.readouterr()
        for factor in re.findall("the anchor of (F[0-9]+)", warned):
            assert re.search(rf"[^.]*\b{factor}\b[^.]* anchor\b", TEXTS[block.page]), (
                f"{block.where} does not explain the warning of {factor}"
            )
    assert "Traceback" not in printed


@pytest.mark.needs("questionnaires")
@pytest.mark.further
def test_tables_for_papers_are_those_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tour has the same answers in another format."""
    monkeypatch.chdir(tmp_path)
    blocks = SECTIONS["psychometrics: Write the tables"]
    lay_out(blocks)
    for block in blocks:
        for command in block.commands():
            if "apa" in command:
                run(command)
    rows = {line for file in tmp_path.glob("*.md") for line in file.read_text().splitlines()}
    shown = [line for page in ("tour", "psychometrics") for line in TEXTS[page].splitlines() if re.search(r"\| [−.\d]+ \|", line)]
    assert len(shown) >= 10
    assert [line for line in shown if line not in rows] == []


def test_no_block_is_left_out_without_a_reason() -> None:
    text = "\n".join(block.text for block in ALL_BLOCKS)
    assert [part for part in ELSEWHERE if part not in text] == [], "reasons without a block"


def test_representative_sections_exist() -> None:
    assert SECTIONS.keys() >= REPRESENTATIVE


def test_commands_of_a_page_do_not_stop_at_the_results_of_others() -> None:
    """A reader runs all commands of a page in one folder, so that each writes outputs of its own, or replaces them."""
    written: dict[tuple[str, str], str] = {}
    for block in ALL_BLOCKS:
        if block.kind != "sh" or block.page == "extending":  # its commands belong to the package that it writes
            continue
        for line in block.commands():
            context = parsed(line)
            names = [str(parameter.name) for parameter in context.command.params if isinstance(parameter.type, OutputLocation)]
            outputs = {str(context.params[name]) for name in names} - {"None"}
            if not context.params.get("plan_only"):
                found = {output: written[block.page, output] for output in outputs if (block.page, output) in written}
                assert not found or context.params["overwrite"], f"{block.where}: {line!r} would be refused, as {found} exist"
                written |= {(block.page, output): block.where for output in outputs}
    assert len(written) >= 50


# The demos


def test_files_of_guides_are_those_of_the_demos() -> None:
    text = "\n".join(TEXTS.values())
    named = set(re.findall(rf"{FOLDER}/([\w-]+(?:\.[\w-]+)*)", text))
    left = set().union(*LEFT.values())
    assert named - left == set(), "no demo leaves these"
    assert set().union(*({*each.files} for each in KINDS.values())) - named == {"cohort.bim", "cohort.fam"}, "no page uses these"


def commands_of(kind: str) -> list[list[str]]:
    """Return the commands of dfact that a demo runs."""
    steps = (step for step in KINDS[kind].steps if step.command.startswith("dfact "))
    return [shlex.split(step.command) + ["--overwrite"] * step.writes for step in steps]


@pytest.mark.parametrize("kind", KINDS)
def test_commands_of_a_demo_are_those_of_its_guide(kind: str) -> None:
    chosen = KINDS[kind]
    blocks = [block for block in ALL_BLOCKS if block.page in (chosen.guide, "import")]
    shown = [shlex.split(line) for block in blocks for line in block.text.replace("\\\n", " ").splitlines() if block.kind == "sh"]
    missing = [shlex.join(command) for command in [*commands_of(kind), shlex.split(chosen.next)] if command not in shown]
    assert missing == NOT_SHOWN.get(kind, [])
    first = next(block for block in ALL_BLOCKS if block.page == chosen.guide and block.kind == "sh")
    assert f"dfact demo {kind}".removesuffix(" questionnaire") in first.text.splitlines(), "the guide starts with its demo"


NOT_SHOWN = {
    "questionnaire": ["dfact export dfact-demo/factors4.model dfact-demo/factors.csv --table factors --overwrite"],
    "cluster": ["dfact fit icqf dfact-demo/answers.zarr dfact-demo/alone.model --components 4 --overwrite"],
}
"""Commands of demos that no guide needs."""


def test_the_script_of_the_cluster_is_that_of_its_guide() -> None:
    assert f"```python\n{CLUSTER_SCRIPT}```" in TEXTS["clusters"]
    assert f"```python\n{FEDERATED_SCRIPT}```" in TEXTS["federated"]


@pytest.mark.further
@pytest.mark.parametrize(
    "kind", exhaustive_after(1, ["federated", *(kind for kind in KINDS if kind not in ("questionnaire", "federated"))])
)
def test_a_demo_leaves_its_files_and_names_its_guide(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made, printed = run_demo(kind)
    chosen = KINDS[kind]
    left = {path.name for path in Path(made.name, FOLDER).iterdir()}
    expected = LEFT[kind] - {"all.model"} | ({"all-0.1.model", "all-0.5.model", "all-0.9.model"} if kind == "ratings" else set())
    assert left == expected
    assert f"dfact help {chosen.guide}" in printed
    shown = [shlex.split(line) for line in printed.replace("\\\n", " ").splitlines() if line.startswith("  dfact ")]
    assert [command for command in commands_of(kind) if command not in shown] == []
    assert shlex.split(printed[printed.rindex("prints:") + 7 :].replace("\\\n", " ")) == shlex.split(chosen.next)


# Names in sentences


def in_pages(pattern: str) -> list[tuple[str, str]]:
    deployment = UNRUN["deploy"].read_text()
    commands = re.findall(r"(?m)^ +(dfact .+)$", deployment)
    codes = {page: spans(text) for page, text in TEXTS.items() if page != "changelog"}  # which also has names that are gone
    codes["deploy"] = [*spans(deployment), *commands]
    return [(page, code) for page, found in codes.items() for code in found if re.match(pattern, code)]


def options_of(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return found.union(*map(options_of, command.commands.values())) if isinstance(command, click.Group) else found


OF_OTHERS = {"--help", "--no-dashboard", "--death-timeout", "--geno", "--maf", "--indep-pairwise"}
"""Options of every command, of Dask's, and of PLINK's."""


def test_commands_in_sentences_exist() -> None:
    found = in_pages(r"dfact [a-z]")
    for page, text in found:
        command: click.Command = cli
        rest = text.split()[1:]
        while rest and isinstance(command, click.Group):
            assert rest[0] in command.commands, f"{page}: {text}"
            command = command.commands[rest.pop(0)]
        unknown = {word for word in rest if word.startswith("--")} - options_of(command)
        assert not unknown, f"{page}: {text}"
    assert len(found) >= 10


def test_options_and_names_in_sentences_exist() -> None:
    unknown = [(page, text) for page, text in in_pages("--") if text.split()[0].split("=")[0] not in options_of(cli) | OF_OTHERS]
    for page, text in in_pages(r"dfact(\.\w+)+(\(|$)"):
        try:
            pkgutil.resolve_name(text.partition("(")[0])  # imports modules, whatever other tests have imported
        except (ImportError, AttributeError):
            unknown.append((page, text))
    assert unknown == []


def test_formats_names_every_ending() -> None:
    listed = {word.lower() for word in re.findall(r"\.\w+", TEXTS["formats"])}
    endings = {f".{part}" for each in formats() for suffix in each.suffixes for part in suffix.strip(".").split(".")}
    assert endings - listed == set()


def test_paths_in_sentences_exist() -> None:
    paths = in_pages(r"(dfact|tests|benchmarks|deploy)/[\w/.]+$") + in_pages(r"\.ci/")
    assert [(page, path) for page, path in paths if not (ROOT / path).exists()] == []
    assert len(paths) >= 5


@pytest.mark.parametrize("page", [*PAGES, *UNRUN])
def test_links_and_pictures_exist(page: str) -> None:
    path = (PAGES | UNRUN)[page]
    text = path.read_text()
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert [target for target in targets if not target.startswith("https://") and not (path.parent / target).exists()] == []
    assert all('alt="' in image for image in re.findall(r"<img[^>]+>", text))


def test_the_job_is_that_of_its_section() -> None:
    (toml,) = (block for block in ALL_BLOCKS if block.kind == "toml" and file_of(block) is None and not elsewhere(block.text))
    assert [step["run"] for step in tomllib.loads(toml.text)["step"]] == ["import", "select icqf", "stability", "report"]


@pytest.mark.further
def test_sources_of_the_same_import_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import guide imports one table from the shell and from Python."""
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in SECTIONS["import: A table of answers"] if "survey.csv" in block.text]
    demo()
    for block in blocks:
        if block.kind == "python":
            execute(block, tmp_path, {})
        for command in block.commands() if block.kind == "sh" else ():
            if "survey.csv" in command:
                run(command)
    assert dfact.open_dataset("cohort.zarr").fingerprint == dfact.open_dataset("survey.zarr").fingerprint


def test_speed_ups_stand_in_one_place() -> None:
    """Predictions for many workers depend on a measurement: the guide on clusters has those of one, and other pages refer to it."""
    texts = {page: text for page, text in TEXTS.items() if page != "clusters"} | {page: path.read_text() for page, path in UNRUN.items()}
    predicted = re.compile(r"times as fast\s+on\s+\d+\s+workers|half\s+the\s+efficiency\s+up\s+to\s+\d")
    assert [(page, found[0]) for page, text in texts.items() for found in predicted.finditer(text)] == []
    assert "speed-up" in TEXTS["clusters"]


# The README


README = TEXTS["README"]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130
    assert len(re.sub(r"\]\([^)]*\)", "]", README).split()) <= 950
    assert len(spans(README)) <= 12
    assert len(re.findall(r"(?m)^\|", README)) <= 12


def test_readme_has_a_reader_s_own_data_before_models_and_tours() -> None:
    titles = re.findall(r"(?m)^## (.+)$", README)
    assert titles[:3] == ["Install and see it work", "Your own data", "Which model for which question"]
    linked = [README.index(f"({page}.md)") for page in ("dfact/guides/tour", "dfact/guides/how-do-i", "dfact/guides/changelog")]
    assert min(linked) > README.index("## Where to go next")


def test_every_guide_has_a_link() -> None:
    """Questions, in how-do-i or README, lead to all guides."""
    linked = set(re.findall(r"([\w-]+)\.md\)", TEXTS["how-do-i"] + README))
    assert set(PAGES) - {"README"} - linked == set()


def test_pages_install_what_their_commands_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, installed = (SECTIONS[name][0].text for name in ("README: Install and see it work", "tour: Install"))
    assert first == installed
    assert ("plot" in first) == any("--plot" in block.text for block in SECTIONS["tour: Five steps in the shell"])
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in README
    systems = {line.rpartition(":: ")[2] for line in project["classifiers"] if line.startswith("Operating System")}
    assert [system for system in systems if f"You need {system}" not in README] == []
    tour = " ".join(TEXTS["tour"].split())
    assert [
        extra for extra in project["optional-dependencies"].keys() - {"test", *(each.name for each in SLICES)} if f"`{extra}` (" not in tour
    ] == []
    assert [kind for kind in KINDS if f"demo {kind}`" not in tour and f"`{kind}`" not in tour] == ["questionnaire"]


def test_the_clone_stays_clean() -> None:
    """Git ignores the environments and folders that README and tour make, and Python runs in a folder below the clone."""
    text = README + TEXTS["tour"]
    made = {*re.findall(r"python3 -m venv (\S+)", text), *re.findall(r"mkdir -p (\S+)", text), FOLDER}
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert len(made) >= 3
    assert made - ignored == set()
    assert re.search(r"mkdir -p (\S+) && cd \1 && dfact demo", README)


def test_figures_of_the_readme_are_those_of_the_guides() -> None:
    memory = re.search(r"\| 500,000 × 1,000 answers \| \d+ s \| ([\d.]+) GiB, of 1 GiB allowed \|", TEXTS["memory"])
    assert memory is not None
    assert float(memory[1]) < 1
    assert "500,000 people\n  to 1,000 items, on disk, need less than 1 GiB" in README
    minutes = {page: re.findall(r"tests\s+take\s+(\w+)\s+minutes", text) for page, text in (("README", README), ("", CONTRIBUTING))}
    assert minutes == {"README": ["five"], "": ["five"]}
    shown = re.search(r"\| wall seconds of the tests \| \d+ \| (\d+) to (\d+) \|", CONTRIBUTING)
    assert shown is not None
    assert [round(int(seconds) / 60) for seconds in shown.groups()] == [5, 5]


def test_lists_of_models_follow_the_catalogue() -> None:
    """README, changelog and the map of the models name every class; how-do-i every command, and the guide on selection every selection."""
    maps = "".join(import_module(f"dfact.{room}").__doc__ or "" for room in ("models", *(each.name for each in SLICES)))
    for text in (TEXTS["README"], TEXTS["changelog"], maps):
        assert [entry.name for entry in CATALOGUE if not re.search(rf"\b{entry.name}\b", text)] == []
    assert isinstance(cli.commands["select"], click.Group)
    rows = [line for line in TEXTS["selection"].splitlines() if line.startswith("| ")]
    for entry in CATALOGUE:
        if entry.command in cli.commands["select"].commands:
            assert any(entry.name in row and f"`dfact select {entry.command}" in row for row in rows), entry.name
        assert entry.command is None or f"`dfact fit {entry.command}`" in TEXTS["how-do-i"]


def test_guides_name_every_choice_of_a_model() -> None:
    """The solvers, criteria, rules and other choices of fit and select stand on a model's guide, or on those that it refers to."""
    missing = []
    for group in ("fit", "select"):
        parent = cli.commands[group]
        assert isinstance(parent, click.Group)
        for name, command in parent.commands.items():
            text = "\n".join(TEXTS[page] for page in (BY_COMMAND[name].guide, "selection", "questionnaires"))
            choices = {
                (option.opts[0], str(each))
                for option in command.params
                if isinstance(option.type, click.Choice)
                for each in option.type.choices
            }
            shared = {(option, each) for option, each in choices if option in ("--dtype", "--executor")}
            missing += [(group, name, *each) for each in choices - shared if not re.search(rf"(?<![\w-]){each[1]}(?![\w-])", text)]
    assert missing == []


def test_pages_name_every_public_function_and_model() -> None:
    names = {
        name
        for package in (dfact, dfact.selection, dfact.report)
        for name in package.__all__
        if callable(value := getattr(package, name)) and not (isinstance(value, type) and issubclass(value, Exception))
    } - {"Description", "MissingCount"}  # results of functions, which pages show
    text = "\n".join(page for name, page in TEXTS.items() if name != "changelog")
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", text)) == []


def test_pages_import_no_private_path() -> None:
    """Only the guide on extensions needs modules inside the package, which it documents."""
    public = {"dfact", *(f"dfact.{name}" for name in ("examples", "report", "selection"))}
    found = [
        (page, module)
        for page, text in TEXTS.items()
        if page != "extending"
        for module in re.findall(r"(?m)^ *(?:from|import) (dfact[\w.]*)", text)
        if module not in public
    ]
    assert found == []


def test_pages_name_every_command() -> None:
    text = "\n".join(TEXTS.values())
    assert [name for name in cli.commands if f"dfact {name}" not in text] == []


def test_the_map_of_layers_is_true() -> None:
    """The guide on the architecture names every layer with the first line of its docstring."""
    package = ROOT / "dfact"
    table = TEXTS["architecture"].partition("\n## The layers")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"(?m)^\| `(\w+)` \| (.+) \|$", table))
    layers = {path.parent.name: path for path in package.glob("*/__init__.py")}
    layers |= {path.stem: path for path in package.glob("*.py") if not path.stem.startswith("__")}
    documented = {name: path.read_text().partition("\n")[0].strip('"').removesuffix(".") for name, path in layers.items()}
    guides = shown.pop("guides")
    assert (package / "guides").is_dir()
    assert guides
    assert shown == documented


def test_maps_in_docstrings_of_layers_name_modules() -> None:
    """The lines of a layer's map begin with names of its modules and packages."""
    package = ROOT / "dfact"
    missing = []
    for path in sorted(package.glob("*/__init__.py")):
        docstring = path.read_text().split('"""')[1]
        for names in re.findall(r"(?m)^    ([a-z_]+(?:, [a-z_]+)*)  +\S", docstring):
            modules = {module.stem for module in path.parent.iterdir()}
            missing += [f"{path.parent.name}: {name}" for name in names.split(", ") if name not in modules]
    assert missing == []
