"""Commands and code of README and guides run as they stand; output they show is compared with what is printed.

Each section runs from its beginning in a folder of its own, with data in place of the reader's. Commands run in this process
through the function that ``dfact`` on the PATH calls; ``tests/cli/test_cli.py`` and ``.ci/run`` start it as a program.
"""

import io
import pkgutil
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest

import dfact
from benchmarks.faults.fits import forked_workers
from dfact.cli.main import cli, main
from dfact.data.examples import ipip_ascado, ipip_ascado_items, ipip_ascado_items_file
from dfact.data.readers.formats import formats
from dfact.engine.passes import PARTIAL_SUMS
from dfact.models.estimator import MODELS, SAVED_TYPES
from tests.cases import exhaustive_unless
from tests.documentation.pages import ELSEWHERE, PAGES, ROOT, SECTIONS, TEXTS, UNRUN, Block, elsewhere
from tests.genotypes import planted_genotypes, write_bed
from tests.object_store.test_object_store import bucket, server  # noqa: F401  # fixtures

EXAMPLE = ["AS", "SC", "AD", "DO"]
ALL_BLOCKS = [block for blocks in SECTIONS.values() for block in blocks]
LONG = {"README: A five-minute tour", "README: The same in Python", "README: Your own data", "import: A table of answers"}
REPRESENTATIVE = {name for name in SECTIONS if name.startswith("README")} | {
    "extending: extending",
    "extending: From an empty folder",
    "failures: failures",
    "import: A table of answers",
    "limits: limits",
    "memory: memory",
    "psychometrics: Describe items and scales",
}
"""The sections that the default run follows."""
"""Sections that take too long for the quick tier."""


# The reader's data


def survey(path: Path, rows: slice, letter: str = "Q", scales: int = 4) -> None:
    """Write answers of the example under other names, with a few codes of missing ones."""
    answers = pd.read_csv(ipip_ascado())[rows]
    items = answers[[name for name in answers if name[:2] in EXAMPLE[:scales]]]
    frame = items.set_axis([f"{letter}{j + 1}" for j in range(items.shape[1])], axis=1)
    frame = frame[(frame != 0).any(axis=1)]
    frame.iloc[3, 2] = -9
    frame.insert(0, "person", [f"p{i}" for i in frame.index])
    frame["age"], frame["sex"] = answers["age"], answers["gender"].map({0: None, 1: "m", 2: "f", 3: "d"})
    frame.to_csv(path, index=False)


def imported(table: str, *others: str) -> Callable[[Path], None]:
    """Import the table as the pages do, with the other files that the command reads."""

    def make(path: Path) -> None:
        for name in (table, *others):
            READERS_FILES[name](path.with_name(name))
        run_of_pages(f"dfact import {table}", path.parent, table, path.name, *others)

    return make


def factored(path: Path) -> None:
    """Fit the factor analysis of the guide on psychometrics."""
    data = path.with_name("thesis.zarr")
    copy_earlier("thesis.zarr", path.parent)
    run_of_pages("dfact fit fa thesis.zarr", path.parent, data.name, path.name)


def run_of_pages(beginning: str, folder: Path, *names: str) -> None:
    """Run the first command of the pages with this beginning, with files of these names in a folder."""
    command = next(line for block in ALL_BLOCKS for line in block.commands() if beginning in line)
    for name in names:
        command = command.replace(name, str(folder / name))
    run(command)


def wellbeing(path: Path) -> None:
    """Write a file of SPSS: five statements with labels, a declared missing code and an impossible age."""
    pyreadstat = pytest.importorskip("pyreadstat")
    rng = np.random.default_rng(0)
    mood = rng.integers(0, 2, (60, 1)) + rng.integers(1, 4, (60, 5))
    mood[:, 2] = 5 - mood[:, 2]
    mood[rng.random((60, 5)) < 0.05] = 9
    frame = pd.DataFrame(mood, columns=[f"mood{j}" for j in range(1, 6)])
    frame.insert(0, "person", [f"p{i:02}" for i in range(60)])
    frame["age"], frame["sex"] = rng.integers(18, 80, 60), rng.integers(1, 3, 60)
    frame.loc[4, "age"] = 567658
    words = ["was cheerful", "was full of energy", "felt tired", "woke up rested", "enjoyed my day"]
    labels = {1: "never", 2: "sometimes", 3: "often", 4: "always", 9: "refused"}
    pyreadstat.write_sav(
        frame,
        path,
        column_labels=["", *(f"I {text}" for text in words), "Age in years", "Sex"],
        variable_value_labels={f"mood{j}": labels for j in range(1, 6)} | {"sex": {1: "female", 2: "male"}},
        missing_ranges={f"mood{j}": [9] for j in range(1, 6)},
        variable_measure={f"mood{j}": "ordinal" for j in range(1, 6)} | {"sex": "nominal"},
    )


def study(path: Path) -> None:
    """Write the example as a file of SPSS."""
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.read_csv(ipip_ascado())
    texts = ipip_ascado_items()
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


def scales(path: Path) -> None:
    """Write the scales and the keys of the example."""
    pd.read_csv(ipip_ascado_items_file())[["item", "scale", "key"]].to_csv(path, index=False)


def diary(path: Path) -> None:
    rng = np.random.default_rng(0)
    sleep = rng.choice(["badly", "fairly", "well", "NA"], (40, 3), p=[0.3, 0.3, 0.3, 0.1])
    frame = pd.DataFrame(sleep, columns=["sleep1", "sleep2", "sleep3"])
    frame["calm"] = rng.choice(["no", "yes"], 40)
    frame.insert(0, "person", [f"p{i}" for i in range(40)])
    frame.to_csv(path, index=False)


def records(path: Path) -> None:
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


def redcap_dictionary(path: Path) -> None:
    header = ["Variable / Field Name", "Form Name", "Field Type", "Field Label", "Choices, Calculations, OR Slider Labels", "Identifier?"]
    choices = "0, Not at all | 1, Several days | 2, More than half the days | 3, Nearly every day"
    words = ["Little interest", "Feeling down", "Trouble sleeping", "Feeling tired"]
    rows = [["record_id", "phq", "text", "Record", "", ""]]
    rows += [[f"phq{j}", "phq", "radio", text, choices, ""] for j, text in enumerate(words, 1)]
    rows += [["age", "phq", "text", "Age", "", ""]]
    pd.DataFrame(rows, columns=header).to_csv(path, index=False)


UKB_FIELDS = {20510: "Recent feelings of depression", 20514: "Recent lack of interest", 20517: "Trouble sleeping", 20518: "Recent changes"}


def biobank(path: Path) -> None:
    """Write columns of UK Biobank: four fields at two instances."""
    rng = np.random.default_rng(0)
    names = [f"{number}-{instance}.0" for number in UKB_FIELDS for instance in (0, 1)]
    frame = pd.DataFrame(rng.choice([1, 2, 3, 4, -818], (50, len(names)), p=[0.3, 0.3, 0.2, 0.1, 0.1]), columns=names)
    frame.insert(0, "eid", 1_000_000 + np.arange(50))
    frame.to_csv(path, sep="\t", index=False)


def biobank_fields(path: Path) -> None:
    fields = pd.DataFrame({"FieldID": list(UKB_FIELDS), "Field": list(UKB_FIELDS.values())})
    fields.assign(ValueType="Categorical single", Coding=504).to_csv(path, sep="\t", index=False)


def biobank_codings(path: Path) -> None:
    meanings = ["Not at all", "Several days", "More than half the days", "Nearly every day", "Prefer not to answer"]
    pd.DataFrame({"Coding": 504, "Value": [1, 2, 3, 4, -818], "Meaning": meanings}).to_csv(path, sep="\t", index=False)


def upload_waves(url: str) -> None:
    """Write two parts under the names that Spark gives to the values of a column."""
    import obstore

    for wave, rows in (("a", OLD), ("b", NEW)):
        with TemporaryDirectory() as folder:
            file = Path(folder) / "survey.csv"
            survey(file, rows)
            buffer = io.BytesIO()
            pd.read_csv(file).replace(-9, np.nan).replace(0, np.nan).to_parquet(buffer)
        obstore.put(obstore.store.from_url(url), f"waves/wave={wave}/part-0.parquet", buffer.getvalue())


def cohort(path: Path, rows: slice, variants: int = 2000) -> None:
    """Write genotypes with the populations of the people who descend from one."""
    G, Q = planted_genotypes(160, 2000, 3, 0)
    populations = [("south", "west", "north")[q.argmax()] if q.max() > 0.8 else "-" for q in Q[rows]]
    fam = [f"0 p{i} 0 0 0 -9" for i in range(160)]
    write_bed(path, G[rows, :variants], fam=fam[rows], populations=populations)


def genotypes(path: Path) -> None:
    """Import the first variants of the cohort, enough for sections that show no figures."""
    cohort(path.with_name("cohort.bed"), SETTLED, FEW)
    run_of_pages("dfact import cohort.bed", path.parent, "cohort.bed", path.name)


def spectra(path: Path) -> None:
    """Make the spectra of three substances of the guide on tensors."""
    emission, excitation = (np.exp(-((np.arange(n) / n - np.array(c)[:, None]) ** 2) / 0.03) for n, c in SPECTRA)
    rng = np.random.default_rng(0)
    X = np.einsum("ir,rj,rk->ijk", rng.uniform(0.2, 2, (20, 3)), emission, excitation)
    dfact.import_array(X + rng.normal(0, 0.01, X.shape), path)


SPECTRA = ((60, (0.2, 0.45, 0.7)), (30, (0.3, 0.5, 0.8)))
"""Sizes of the modes, and the centers of the peaks."""


def demo(path: Path) -> None:
    run(f"dfact demo --output {path}")


@cache
def _made(name: str) -> TemporaryDirectory[str]:
    folder = TemporaryDirectory()
    EARLIER[name][1](Path(folder.name) / name)
    return folder


def copy_earlier(name: str, folder: Path) -> None:
    """Copy a result of another section, which is made once, with the files that it was made from."""
    shutil.copytree(_made(name).name, folder, dirs_exist_ok=True)


OLD, NEW = slice(0, 500), slice(500, 560)
SETTLED, NEWCOMERS, FEW = slice(0, 140), slice(140, 160), 500
READERS_FILES: dict[str, Callable[[Path], None]] = {
    "cohort.bed": lambda path: cohort(path, SETTLED),
    "newcomers.bed": lambda path: cohort(path, NEWCOMERS, FEW),
    "survey.csv": lambda path: survey(path, OLD),
    "new_people.csv": lambda path: survey(path, NEW),
    "phq9.csv": lambda path: survey(path, slice(0, 80), "P", 1),
    "gad7.csv": lambda path: survey(path, slice(40, 120), "G", 2),
    "wellbeing.sav": wellbeing,
    "thesis.sav": study,
    "scales.csv": scales,
    "diary.csv": diary,
    "records.csv": records,
    "dictionary.csv": redcap_dictionary,
    "biobank.tsv": biobank,
    "fields.tsv": biobank_fields,
    "codings.tsv": biobank_codings,
}
"""The reader's files: made of the example's answers, or written as other programs write them."""
EARLIER: dict[str, tuple[str, Callable[[Path], None]]] = {
    "dfact-demo": (r"dfact demo", demo),
    "cohort.zarr": (r"import \S+ cohort.zarr", imported("survey.csv")),
    "genotypes.zarr": (r"import \S+ genotypes.zarr", genotypes),
    "new_people.zarr": (r"import \S+ new_people.zarr", imported("new_people.csv")),
    "thesis.zarr": (r"import \S+ thesis.zarr", imported("thesis.sav", "scales.csv")),
    "thesis.model": (r"fit fa \S+ thesis.model", factored),
    "spectra.zarr": (r"import-array \S+ spectra.zarr", spectra),
}
"""Results of other sections: the command by which a section makes its own, and how to make it otherwise."""


def lay_out(folder: Path, blocks: list[Block]) -> None:
    """Write the files that a section reads and does not make."""
    text = "\n".join(block.text for block in blocks if not elsewhere(block.text) or block.commands())
    for name, make in READERS_FILES.items():
        if name in text:
            make(folder / name)
    for name, (command, _) in EARLIER.items():
        if re.search(rf"(?<![/\w]){name}", text) and not re.search(command, text):
            copy_earlier(name, folder)


# Running the blocks


def run(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "dfact", f"{command!r}: expected a command of dfact, or a line in ELSEWHERE"
    assert main(arguments) == 0, command


def execute(block: Block, folder: Path, names: dict[str, Any]) -> None:
    file = folder / f"{block.where.replace(':', '-')}.py"  # Numba's cache and tracebacks need the source
    file.write_text(block.text)
    exec(compile(block.text, str(file), "exec"), names)


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


@pytest.mark.usefixtures("packages")
@pytest.mark.filterwarnings("ignore:the anchor of factoranalysis")  # the guide on psychometrics explains it
@pytest.mark.parametrize(
    "name",
    exhaustive_unless(
        lambda case: case.id in REPRESENTATIVE,
        [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [], id=name) for name in SECTIONS],
    ),
)
def test_section(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = SECTIONS[name]
    store = request.getfixturevalue("bucket") if any("s3://bucket" in block.text for block in blocks) else "s3://bucket"
    lay_out(tmp_path, blocks)
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
        printed = capsys.readouterr().out
    assert "Traceback" not in printed


@pytest.mark.slow
def test_tables_for_papers_are_those_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README has the same answers in another format."""
    monkeypatch.chdir(tmp_path)
    blocks = SECTIONS["psychometrics: Write the tables"]
    lay_out(tmp_path, blocks)
    for block in blocks:
        for command in block.commands():
            if "apa" in command:
                run(command)
    rows = {line for file in tmp_path.glob("*.md") for line in file.read_text().splitlines()}
    shown = [line for page in ("README", "psychometrics") for line in TEXTS[page].splitlines() if re.search(r"\| [−.\d]+ \|", line)]
    assert len(shown) >= 10
    assert [line for line in shown if line not in rows] == []


def test_no_block_is_left_out_without_a_reason() -> None:
    text = "\n".join(block.text for block in ALL_BLOCKS)
    assert [part for part in ELSEWHERE if part not in text] == [], "reasons without a block"


def test_long_sections_exist() -> None:
    assert SECTIONS.keys() >= LONG


# Names in sentences


def spans(text: str) -> list[str]:
    """Return the inline code of a page."""
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


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
    (toml,) = (block for block in ALL_BLOCKS if block.kind == "toml" and file_of(block) is None)
    assert [step["run"] for step in tomllib.loads(toml.text)["step"]] == ["import", "select icqf", "stability", "report"]


def test_sources_of_the_same_import_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import guide imports one table from the shell and from Python."""
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in SECTIONS["import: A table of answers"] if "survey.csv" in block.text]
    survey(tmp_path / "survey.csv", OLD)
    for block in blocks:
        if block.kind == "python":
            execute(block, tmp_path, {})
        for command in block.commands() if block.kind == "sh" else ():
            if "survey.csv" in command:
                run(command)
    assert dfact.open_dataset("cohort.zarr").fingerprint == dfact.open_dataset("survey.zarr").fingerprint


# The README


def test_readme_is_short() -> None:
    assert len(TEXTS["README"].splitlines()) <= 250


def test_readme_links_every_guide() -> None:
    assert [page for page in PAGES if page not in ("README", "changelog") and f"(dfact/guides/{page}.md)" not in TEXTS["README"]] == []


def test_pages_name_every_command() -> None:
    text = "\n".join(TEXTS.values())
    assert [name for name in cli.commands if f"dfact {name}" not in text] == []


def test_the_map_of_layers_is_true() -> None:
    """README's last section names every layer with the first line of its docstring."""
    package = ROOT / "dfact"
    table = TEXTS["README"].rpartition("\n## ")[2]
    shown = dict(re.findall(r"(?m)^\| `(\w+)` \| (.+) \|$", table))
    layers = {path.parent.name: path for path in package.glob("*/__init__.py")}
    layers |= {path.stem: path for path in package.glob("*.py") if path.stem != "__init__"}
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
