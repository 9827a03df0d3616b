"""The web pages of documentation in a browser: a small site of some guides and records, and of one model."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.pages import ROOT
from tests.documentation.test_reference import SITE, reference
from tests.report.test_html_report import browser  # noqa: F401  # a fixture

GUIDES = ("dfact/guides/import.md", "dfact/guides/memory.md", "dfact/guides/changelog.md", "benchmarks/README.md")
CLASSES = ("dfact.ICQF", "dfact.Description", "dfact.Item", "dfact.MemoryPlanError")
RECORDS = ("Benchmarks", "Changelog")


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811, ARG001  # skips first
    """Build the small site; links to pages that it lacks are not followed."""
    if find_spec("sphinx") is None:
        pytest.skip("Sphinx is not installed: pip install 'dfact[site]'")
    sources, output = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    for page in (*GUIDES, "dfact/guides/references.md"):
        (sources / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, sources / page)
    shutil.copyfile(SITE / "conf.py", sources / "conf.py")
    shutil.copytree(SITE / "static", sources / "static")
    (sources / "reference").mkdir()
    for name in CLASSES:
        (sources / "reference" / f"{name}.rst").write_text(reference.reference()[f"{name}.rst"])
    pages = "\n".join([*GUIDES, *(f"reference/{name}" for name in CLASSES)])
    (sources / "index.md").write_text(f"# Site\n\n```{{toctree}}\n{pages}\n```\n")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-Q", str(sources), str(output)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return output


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:  # noqa: F811
    opened = browser.new_page(viewport={"width": 1000, "height": 900})
    opened.set_default_timeout(100_000)
    yield opened
    opened.close()


@pytest.mark.further
@pytest.mark.parametrize(
    ("query", "first"),
    [("missing", "How do I import my own data?"), ("memory", "How much memory and time does a fit take?"), ("icqf", "dfact.ICQF")],
)
def test_searches_find_names_and_guides_before_records(query: str, first: str, site: Path, page: Any) -> None:
    page.goto(f"{(site / 'search.html').as_uri()}?q={query}")
    page.wait_for_selector("#search-results ul.search li a")
    page.wait_for_function("!document.querySelector('#search-progress')?.textContent")
    found = page.eval_on_selector_all("#search-results ul.search > li > a", "all => all.map(one => one.textContent)")
    assert found[0] == first
    guides = [number for number, title in enumerate(found) if title.startswith("How ")]
    records = [number for number, title in enumerate(found) if title in RECORDS]
    assert guides
    assert records or query == "icqf"
    assert max(guides) < min(records, default=len(found))


@pytest.mark.further
@pytest.mark.parametrize("name", ["reference/dfact.ICQF", "dfact/guides/memory"])
def test_pages_fit_a_phone(name: str, site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    cut = "all => all.filter(one => one.getBoundingClientRect().right > 400).map(one => one.textContent.slice(0, 60))"
    assert page.eval_on_selector_all("article dt, article dd > p, article > section > p", cut) == []
    if name.startswith("reference"):
        widths = page.eval_on_selector_all("dl.field-list dd > p", "all => all.map(one => one.clientWidth)")
        assert min(widths) >= 200
