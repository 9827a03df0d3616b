"""Each demo names the extra that it needs, checks it before it writes, and needs no other."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from benchmarks.faults.fits import forked_workers
from dfact.catalogue import MISSING, SLICES
from dfact.cli.demo_kinds import KINDS
from dfact.cli.main import main
from tests.cases import exhaustive_unless

_EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
_DEVELOPERS = {"site", "test"}


def modules_of(extra: str) -> set[str]:
    """Return the names by which the distributions of an extra are imported, as far as they are installed."""
    wanted = {re.split(r"[\[<>=]", line)[0].lower() for line in _EXTRAS[extra]} - {"dfact"}
    return {module for module, names in packages_distributions().items() if wanted & {name.lower() for name in names}}


def hide(modules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make these modules and all within them as if they were not installed."""
    for name in [*modules, *(name for name in sys.modules if name.partition(".")[0] in modules)]:
        monkeypatch.setitem(sys.modules, name, None)


HERE = {kind: demo for kind, demo in KINDS.items() if not {each.name for each in MISSING}.intersection(demo.slices)}
"""The demos whose slices are installed."""


@pytest.mark.parametrize("kind", exhaustive_unless(lambda kind: kind in ("spss", "tensor"), HERE))
def test_a_demo_runs_with_the_extra_that_it_names_alone(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = KINDS[kind].extra
    needed = modules_of(extra) if extra else set()
    assert set(KINDS[kind].modules) <= needed
    hide(set().union(*(modules_of(extra) for extra in _EXTRAS if extra not in _DEVELOPERS)) - needed, monkeypatch)
    monkeypatch.chdir(tmp_path)
    with forked_workers():
        assert main(["demo", kind]) == 0


@pytest.mark.parametrize("kind", [kind for kind, demo in HERE.items() if demo.extra])
def test_a_demo_without_its_extra_says_what_to_install_and_writes_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install = f"pip install 'dfact[{KINDS[kind].extra}]'"
    hide(modules_of(str(KINDS[kind].extra)), monkeypatch)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", kind]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"dfact demo {kind} needs {', '.join(KINDS[kind].modules)}; install it with: {install}" in said
    assert [*tmp_path.iterdir()] == []
    assert main(["demo", "--help"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == [kind])
    assert line.endswith(f"(needs dfact[{KINDS[kind].extra}])")


@pytest.mark.parametrize(("kind", "slice_"), [(kind, slice_) for kind, demo in KINDS.items() for slice_ in demo.slices])
def test_a_demo_without_its_slice_says_what_to_install_and_writes_nothing(
    kind: str, slice_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dfact.cli.demo.MISSING", tuple(each for each in SLICES if each.name == slice_))
    monkeypatch.chdir(tmp_path)
    assert main(["demo", kind]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"part of dfact's {slice_} (" in said
    assert f'pip install "dfact[{slice_}]"' in said
    assert [*tmp_path.iterdir()] == []
