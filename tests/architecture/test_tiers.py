"""The tiers of the tests: what the default ones cover, and which further ones a change touches."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from dfact.catalogue import INSTALLED, SLICES, Slice
from tests import tiers

REPRESENTATIVES = {
    "a killed worker": "tests/faults/test_faults.py::test_a_killed_worker",
    "a resumed checkpoint": "tests/engine/test_checkpoint.py::test_an_interrupted_fit_resumes_and_ends_with_the_same_bits",
    "a server of objects": "tests/object_store/test_object_store.py::test_object_store_gives_the_bits_of_a_folder",
    "TLS": "tests/tls/test_tls.py::test_a_fit_with_certificates_is_the_fit_without_a_cluster",
    "manifests": "tests/batch/test_deploy.py::test_rendered_manifests_are_valid",
    "a page in a browser": "tests/report/test_html_report.py::test_policy_blocks_foreign_scripts_and_images",
    "a fit across sites": "tests/sites/test_bits.py::test_a_fit_has_the_bits_of_the_concatenated_data",
}

OBLIMIN = tiers.ROOT / "dfact" / "questionnaires" / "kernels" / "oblimin.py"


def decorators_of(path: Path) -> dict[str, str]:
    """The decorators of each test of a file, as text."""
    found = ast.walk(ast.parse(path.read_bytes()))
    return {node.name: " ".join(map(ast.unparse, node.decorator_list)) for node in found if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mechanism", REPRESENTATIVES)
def test_a_default_test_represents_each_mechanism(mechanism: str) -> None:
    file, _, name = REPRESENTATIVES[mechanism].partition("::")
    decorators = decorators_of(tiers.ROOT / file)[name]
    assert not re.search(r"mark\.(further|exhaustive)\b", decorators)


@pytest.mark.needs("questionnaires")
def test_a_module_touches_the_tests_that_import_it_the_nearest_first() -> None:
    distances = {str(path.relative_to(tiers.ROOT)): number for path, number in tiers.distances([OBLIMIN]).items()}
    assert distances["tests/questionnaires/test_rotation_kernels.py"] == 1
    assert distances["tests/questionnaires/test_rotation.py"] > 1


def names(path: Path, slice_: Slice) -> bool:
    """Return whether a test, or a module of tests or benchmarks behind it, has a name of a slice in its text."""
    known = [rf"dfact\.{slice_.name}\b", *(rf"\b{name.rpartition('.')[2]}\b" for name in slice_.names)]
    known += [rf"\b{entry.name}\b" for entry in slice_.models]
    read = [path]
    for each in read:
        helpers = [file for file in tiers.imports(each) if not file.is_relative_to(tiers.ROOT / "dfact")]
        read += [file for file in helpers if file not in read]
    return any(re.search("|".join(known), file.read_text()) for file in read)


@pytest.mark.parametrize("slice_", INSTALLED, ids=lambda each: each.name)
def test_a_slice_touches_its_own_tests_and_those_of_others_that_name_it(slice_: Slice) -> None:
    package, tests = tiers.ROOT / "dfact", tiers.ROOT / "tests"
    reached = set(tiers.distances((package / slice_.name).rglob("*.py")))
    assert [path for path in reached if path.is_relative_to(package) and tiers.slice_of(path) != slice_.name] == []
    assert set((tests / slice_.name).rglob("test_*.py")) <= reached
    others = [path for each in SLICES if each is not slice_ for path in (tests / each.name).rglob("test_*.py") if path in reached]
    assert [path for path in others if not names(path, slice_)] == []


@pytest.mark.parametrize("file", ["dfact/engine/passes.py", "dfact/storage/groups.py", "dfact/kernels/jit.py"])
def test_a_module_below_the_models_touches_the_tests_of_all_slices(file: str) -> None:
    reached = tiers.distances([tiers.ROOT / file])
    touched = {each.name: any(path.is_relative_to(tiers.ROOT / "tests" / each.name) for path in reached) for each in INSTALLED}
    assert all(touched.values()), touched


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("dfact/guides/pca.md", "tests/documentation/test_pages.py"),
        pytest.param("dfact/batch/guides/jobs.md", "tests/documentation/test_pages.py", marks=pytest.mark.needs("batch")),
        pytest.param(
            "dfact/batch/manifests/kubernetes/base/disruptionbudget.yaml", "tests/batch/test_deploy.py", marks=pytest.mark.needs("batch")
        ),
        ("tests/tls/conftest.py", "tests/tls/test_tls.py"),
        ("tests/suites/estimator.py", "tests/models/pca/test_pca.py"),
        ("dfact/cli/main.py", "tests/cli/test_help.py"),  # which starts it as a program
        ("dfact/report/html/assets/report.js", "tests/report/test_html_report.py"),
        ("tests/golden/figures.json", "tests/golden/test_golden.py"),
    ],
)
def test_a_file_touches_the_tests_that_read_or_start_it(file: str, test: str) -> None:
    assert (tiers.ROOT / file).exists()
    assert tiers.ROOT / test in tiers.distances([tiers.ROOT / file])


def test_a_changed_file_of_tests_always_runs_and_others_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "changed", lambda _: {tiers.ROOT / "tests/faults/test_fuzz.py", tiers.ROOT / "dfact/errors.py"})
    monkeypatch.setattr(tiers, "BUDGET", 50.0)
    found, costs = tiers.touched("main"), tiers.seconds()
    assert found.chosen[0] == "tests/faults/test_fuzz.py"
    assert sum(costs.get(name, (0.0, 0.0))[1] for name in found.chosen[1:]) <= 50
    assert found.left
    assert not set(found.chosen) & set(found.left)


def test_all_further_tests_count_as_touched_without_the_commit() -> None:
    if subprocess.run(["git", "-C", str(tiers.ROOT), "rev-parse"], capture_output=True, check=False).returncode:
        pytest.skip("the sources are not a clone")
    assert tiers.changed("0" * 40) is None
    found = tiers.touched("0" * 40)
    assert {name for name, (_, further) in tiers.seconds().items() if further and (tiers.ROOT / name).exists()} <= {
        *found.chosen,
        *found.left,
    }
