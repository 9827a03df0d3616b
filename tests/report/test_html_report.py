"""The HTML report in a real browser, and its figures against NumPy."""

import base64
import gzip
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import dfact
from dfact.cli.main import main
from dfact.data.coerce import as_dataset
from dfact.data.examples import ipip_ascado, ipip_ascado_items, ipip_ascado_items_file
from dfact.models.estimator import MODELS
from dfact.models.expectile.presenter import BinErrors, bins_figure, distributions_figure
from dfact.models.provenance import Stability
from dfact.report import row_statistics
from dfact.report.document import make_table, number_format
from dfact.report.figures import order_by_similarity
from dfact.report.html.images import COLORS, _share_styles
from dfact.report.presenters.base import find_presenter
from dfact.report.presenters.sections import item_errors
from dfact.report.presenters.sections import selection as selection_section
from dfact.report.row_statistics import RowStatistics
from dfact.selection.running.estimators import fitted_dataset
from dfact.text import format_bytes
from tests.cases import installed, of_slice
from tests.conftest import REAL_DATA, planted_answers
from tests.models.test_adding_a_factorization import PoissonMF, counts

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script>",
    "{{7*7}}",
    "$x^{$",
    "a & b",
    "\x08bell\x00",
    "評価",
    "it's",
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


# Reports of real data, with settings that take seconds
def ipip(folder: Path) -> Path:
    dataset = dfact.import_table(
        ipip_ascado(),
        folder / "d.zarr",
        items=["AS*", "SC*", "AD*", "DO*"],
        missing=[0],
        confounders={"age": "continuous", "gender": "categorical"},
        confounder_missing=[0],
        empty_rows="drop",
    )
    grid = {"n_components": [3, 4], "beta": [0.1, 0.2]}
    model: Any = dfact.selection.block_cross_validate(dfact.ICQF(max_iter=20), dataset, grid, n_folds=3, random_state=0).model
    model.stability_ = stability(model, 12)
    dfact.save_model(model, folder / "m")
    texts = ipip_ascado_items()
    groups = {item: item[:2] for item in texts}
    dfact.write_report(folder / "m", folder / "r.html", folder / "d.zarr", texts=texts, groups=groups)
    return folder / "r.html"


def real(name: str) -> Path:
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in the data folder")
    return path


def eqsq(folder: Path) -> Path:
    source = real("questionnaires/eqsq.tsv.gz")
    dataset = dfact.import_table(
        source, folder / "d.zarr", items=["E[0-9]*", "S[0-9]*"], missing=[0], confounders=["gender"], empty_rows="drop"
    )
    dfact.write_report(dfact.ICQF(6, max_iter=8).fit(dataset), folder / "r.html", dataset)
    return folder / "r.html"


def ordinal(folder: Path) -> Path:
    items = ["AS*", "SC*", "AD*", "DO*"]
    dictionary = ipip_ascado_items_file()
    dataset = dfact.import_table(ipip_ascado(), folder / "d.zarr", items=items, missing=[0], empty_rows="drop", dictionary=dictionary)
    model = dfact.FactorAnalysis(6, correlation="polychoric", rotation="oblimin").fit(dataset)
    dfact.write_report(model, folder / "r.html", dataset)
    return folder / "r.html"


def npi(folder: Path) -> Path:
    dataset = dfact.import_table(real("questionnaires/npi.csv"), folder / "d.zarr", items="Q*", missing=[0], empty_rows="drop")
    dfact.write_report(dfact.GradeOfMembership(3, method="srsc").fit(dataset), folder / "r.html", dataset)
    return folder / "r.html"


def amino(folder: Path) -> Path:
    X = np.load(real("tensors/amino.npz"))["X"]
    model = dfact.ElasticCP(4, l1_ratio=0, init="svd", max_iter=20)
    selection = dfact.selection.select_penalty(model, X, lambdas=[1e-6, 1e3, 1e5], rule="knee", random_state=0)
    dfact.write_report(selection.model, folder / "r.html", X, solutions=model.path(X, [1e-6, 1e5]))
    return folder / "r.html"


def latency(folder: Path) -> Path:
    X = np.load(real("latency/wsdream2_rt_8slots.npz"))["X"][:, :300, 0]
    X = X[:, ~np.isnan(X).all(axis=0)][~np.isnan(X).all(axis=1)]
    model = dfact.ExpectileMF(ridge=0.1, max_iter=10)
    selection = dfact.selection.select_by_held_out(model, X, {"n_components": [2, 4], "ridge": [0.1, 1]}, random_state=0)
    dfact.write_report(selection.model, folder / "r.html", X)
    return folder / "r.html"


def hapmap(folder: Path) -> Path:
    source = real("genotypes/hapmap3")
    for name in ("hapmap3.bed", "hapmap3.fam"):
        shutil.copy(source / name, folder / name)
    (folder / "hapmap3.bim").write_bytes(gzip.decompress((source / "hapmap3.bim.gz").read_bytes()))
    leading = dfact.report.read_memberships(source / "admixture.3.Q").argmax(axis=1)
    names = [("first", "second", "third")[number] for number in leading]
    dataset = dfact.import_genotypes(folder / "hapmap3.bed", folder / "d.zarr", population=names)
    dfact.write_report(dfact.Admixture(3, tol=1e-5).fit(dataset), folder / "r.html", dataset)
    return folder / "r.html"


REPORTS: dict[str, Callable[[Path], Path]] = {
    "ipip": ipip,
    "ordinal": ordinal,
    "eqsq": eqsq,
    "npi": npi,
    "admixture": hapmap,
    "amino": amino,
    "latency": latency,
}
SECTIONS = {
    "ipip": {"loadings", "confounders", "errors", "stability", "selection", "convergence"},
    "ordinal": {"loadings", "items", "errors"},
    "eqsq": {"loadings", "confounders", "errors", "convergence"},
    "npi": {"loadings", "classes", "errors"},
    "admixture": {"loadings", "populations", "errors", "convergence"},
    "amino": {"loadings", "errors", "selection", "path", "convergence"},
    "latency": {"loadings", "errors", "bins", "selection", "convergence"},
}


def stability(model: Any, refits: int) -> Stability:
    k = len(model.components_)
    H = model.components_.astype(np.float64)
    similarity = 1 - np.random.default_rng(0).random((refits, k)) * np.linspace(0.05, 0.3, k)
    return Stability(similarity, H, H - 0.1, H + 0.1, 0.95, (H != 0).astype(float))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield opened
        opened.close()


class Opened:
    """A page with its errors and network requests."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.problems: list[str] = []
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.page.set_default_timeout(100_000)
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self._on_request(request.url, path))
        self.page.goto(path.as_uri())

    def _on_request(self, url: str, path: Path) -> None:
        if url != path.as_uri() and not url.startswith("data:"):
            self.problems.append(f"requested {url}")


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[Path], Opened]]:
    pages = []

    def look(path: Path) -> Opened:
        pages.append(Opened(browser, path))
        return pages[-1]

    yield look
    for one in pages:
        one.page.close()
        assert one.problems == []


@pytest.mark.filterwarnings("ignore:.* items of F. carry the anchor")  # of real people, as in the report itself
@pytest.mark.parametrize("name", REPORTS)
def test_reports_of_real_data(name: str, opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    page = opened(REPORTS[name](tmp_path)).page
    assert SECTIONS[name] <= set(page.eval_on_selector_all("main > section", "all => all.map(one => one.id)"))
    assert (tmp_path / "r.html").stat().st_size < 2e6
    sorts(page)
    pictures(page)
    light = page.eval_on_selector("img", "one => one.currentSrc")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, media="screen")
        assert page.evaluate(WORST_CONTRAST)[0] >= 4.5, page.evaluate(WORST_CONTRAST)
        pictures(page)
    prints(page, light)
    fits_a_phone(page)
    titles = page.eval_on_selector_all("main > section > h2", "all => all.map(one => one.textContent)")
    assert titles[0] == "What was fitted"
    assert titles[-1] == "Data, processors and versions"
    assert "numpy" not in page.inner_text("#overview")
    assert "numpy" in page.inner_text("#origin")


def fits_a_phone(page: Any) -> None:
    """Pictures are as wide as the page, so that no part of them is out of sight; a tap enlarges one, which then scrolls."""
    page.set_viewport_size({"width": 390, "height": 800})
    wait(page, "innerWidth === 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth || one.clientWidth > 390).length"
    assert page.eval_on_selector_all("picture", cut) == 0
    picture = page.locator("picture").first
    picture.click()
    assert picture.evaluate("one => one.scrollWidth") > 600
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture.click()
    assert page.eval_on_selector_all("picture", cut) == 0


def sorts(page: Any) -> None:
    """Sort a table by mouse and by keyboard."""
    table = page.locator("#loadings table").first
    head = table.locator("thead th.n").first
    column = head.evaluate("head => head.cellIndex")
    read = "(table, column) => [...table.tBodies[0].rows].map(row => parseFloat(row.cells[column].textContent))"
    before = table.evaluate(read, column)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert table.evaluate(read, column) == sorted(before, reverse=True)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert table.evaluate(read, column) == sorted(before)
    names = table.locator("thead th").first
    names.locator("button").focus()
    page.keyboard.press("Space")
    assert names.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") == "none"
    assert page.locator("th:not([scope])").count() == 0


def wait(page: Any, condition: str, *given: Any) -> None:
    """Wait for a condition; Playwright's own wait would evaluate text, which the report's policy forbids."""
    until(page, lambda: page.evaluate(condition, *given), condition)


def until(page: Any, holds: Callable[[], Any], what: str) -> None:
    """Wait at most a minute, while the page handles events."""
    for _ in range(3000):
        if holds():
            return
        page.wait_for_timeout(20)
    pytest.fail(f"timed out waiting for {what}")


def pictures(page: Any) -> None:
    # In one evaluation, since another colour scheme may load an image again at any moment.
    wait(page, "[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    texts = page.eval_on_selector_all("img", "all => all.map(one => one.alt)")
    assert texts
    assert all(len(text) > 20 for text in texts)


def prints(page: Any, light: str) -> None:
    """Print in light colours even in dark mode, with complete tables and without navigation."""
    wait(page, "light => document.images[0].currentSrc !== light", light)
    page.emulate_media(color_scheme="dark", media="print")
    wait(page, "light => document.images[0].currentSrc === light", light)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    # Browsers do not repeat a table header with buttons on each page.
    assert page.evaluate("getComputedStyle(document.querySelector('th button')).display") == "contents"
    hidden = "all => all.filter(one => one.scrollHeight > one.clientHeight + 1 && getComputedStyle(one).overflowY !== 'visible').length"
    assert page.eval_on_selector_all(".scroll", hidden) == 0
    page.emulate_media(media="screen")


WORST_CONTRAST = """() => {
  const numbers = text => text.match(/[\\d.e-]+/g).map(Number);
  const color = text => { const n = numbers(text); return text.startsWith("color(") ? n.map((v, i) => i < 3 ? 255 * v : v) : n; };
  const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = one => { for (; one; one = one.parentElement) {
    const c = color(getComputedStyle(one).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ""];
  for (const one of document.body.querySelectorAll("*:not(script)")) {
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
    const [a, b] = [light(color(getComputedStyle(one).color)), light(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[0]) worst = [contrast, one.outerHTML.slice(0, 99)];
  }
  return worst;
}"""


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("width", [400, 1280])
def test_tables_for_papers_fit_narrow_pages(width: int, opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    rng = np.random.default_rng(width)
    items = [f"Q{j}. Am good at making impromptu speeches, {j} times of ten" for j in range(12)]
    answers = pd.DataFrame(rng.normal(size=(300, 12)) + rng.normal(size=(300, 1)), columns=items)
    from dfact.questionnaires.tables import write_description

    write_description(dfact.describe(answers), tmp_path / "items.html", style="apa")
    page = opened(tmp_path / "items.html").page
    page.set_viewport_size({"width": width, "height": 800})
    wait(page, "width => innerWidth === width", width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widths = page.eval_on_selector_all("tbody th[scope=row]", "all => all.map(one => one.clientWidth)")
    assert len(widths) >= 12
    assert 150 <= min(widths) <= max(widths) <= 500
    hidden = "all => all.filter(one => one.getBoundingClientRect().right > innerWidth).length"
    assert page.eval_on_selector_all("caption", hidden) == 0


def test_labels_are_escaped(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    M = planted_answers(60, len(EVIL), 2, 0)
    dataset = as_dataset(pd.DataFrame(M, columns=EVIL), {EVIL[0]: ["x", EVIL[1]] * 30})
    model = dfact.ICQF(2, max_iter=5).fit(dataset)
    texts = dict(zip(EVIL, EVIL[::-1], strict=True))
    dfact.write_report(model, tmp_path / "r.html", dataset, texts=texts, groups=dict.fromkeys(EVIL[:4], EVIL[2]))
    page = opened(tmp_path / "r.html").page
    assert page.locator("script").count() == 1
    assert page.locator("img[src=x]").count() == 0
    found = page.eval_on_selector_all("#loadings tbody th", "all => all.map(one => one.textContent)")
    assert {label for label in EVIL if label.isprintable()} <= set(found)
    assert not {"49", "alert"} & set(found)
    pictures(page)


HOSTILE = [*EVIL, "javascript:alert(1)", "' onmouseover='alert(1)", "<svg/onload=alert(1)>", "${7*7}{% raw %}{#"]
HOSTILE += ["a\u2028b\u2029c", "<!--", "]]>"]
TAGS = """html head meta title link style body a header p h1 h2 h3 nav ul li main section dl div dt dd b i span figure picture source img
figcaption table caption thead tbody tr th td button footer script br"""


class Markup(HTMLParser):
    """The elements of a page: what could run, and what its policy allows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts, self.policies = 0, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS.split(), tag
        self.scripts += tag == "script"
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        assert all((given.get(name) or "#").startswith(("#", "data:")) for name in ("href", "src", "srcset")), given
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"] or "")


def hostile_pages(folder: Path) -> Iterator[Path]:
    """Write pages of all kinds whose labels, groups, levels, texts and names are hostile."""
    m = len(HOSTILE)
    answers = planted_answers(200, m, 2, 0)
    groups = {HOSTILE[1]: [HOSTILE[0], HOSTILE[11]] * 100}
    dataset = as_dataset(pd.DataFrame(answers, columns=HOSTILE), groups)
    texts = dict(zip(HOSTILE, HOSTILE[::-1], strict=True))
    factors: Any = dfact.ICQF(2, max_iter=3).fit(dataset)
    factors.comparison_ = dfact.selection.compare_groups(factors, dataset, HOSTILE[1], n_resamples=30, test=False, random_state=0)
    plain = as_dataset(pd.DataFrame(answers, columns=HOSTILE))
    cube = np.random.default_rng(0).random((30, m, 4)) + 0.1
    tensor = dfact.import_array(cube, folder / "c.zarr", column_labels=HOSTILE, mode_labels=[HOSTILE[9:13]])
    for name, model, data, given in (
        ("icqf", factors, dataset, {"texts": texts, "groups": dict.fromkeys(HOSTILE[:4], HOSTILE[2])}),
        ("fa", dfact.FactorAnalysis(2).fit(plain), plain, {"texts": texts}),
        ("emf", dfact.ExpectileMF(2, max_iter=3).fit(plain), plain, {}),
        ("gom", dfact.GradeOfMembership(2, random_state=0).fit(plain), plain, {"texts": texts}),
        ("cp", dfact.ElasticCP(2, max_iter=3).fit(tensor), tensor, {}),
    ):
        dfact.write_report(model, folder / f"{name}.html", data, **given)
        yield folder / f"{name}.html"
    if installed("genetics"):
        from dfact.genetics.examples import write_bed

        genotypes = np.random.default_rng(0).integers(0, 3, (40, m)).astype(np.uint8)
        people = dfact.import_genotypes(write_bed(folder / "g.bed", genotypes), folder / "g.zarr", population=HOSTILE[:2] * 20)
        dfact.write_report(dfact.Admixture(2, max_iter=3).fit(people), folder / "admixture.html", people)
        yield folder / "admixture.html"
    dfact.write_report([factors, dfact.NMF(2, max_iter=3).fit(plain)], folder / "several.html", texts=texts)
    yield folder / "several.html"


@pytest.mark.needs("questionnaires")
@pytest.mark.filterwarnings("ignore::UserWarning")  # few iterations; glyphs that the font lacks
def test_nothing_in_hostile_labels_runs(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    for path in hostile_pages(tmp_path):
        markup = Markup(path)
        assert markup.scripts == 1, path.name
        [policy] = markup.policies
        assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-"), policy
        assert "unsafe" not in policy
        page = opened(path).page
        if path.name != "several.html":  # which has tables alone
            pictures(page)
        page.mouse.move(300, 300)
        assert page.locator("script").count() == 1
        assert ("differential functioning" in page.content()) == (path.name == "icqf.html")
        if path.name != "admixture.html":  # which shows no labels of single variants
            assert {"{{7*7}}", "${7*7}{% raw %}{#"} <= set(page.locator("th, td, b").all_text_contents())


LEVELS = ((0.0, "never"), (1.0, "rarely"), (2.0, "often"), (3.0, "always <b>"))


def described(folder: Path, wordings: list[str], seed: int = 0) -> dfact.Dataset:
    """Answers 0 to 3 with a codebook; the first item is reversed, the last one has levels of its own."""
    m = len(wordings)
    items = [dfact.Item(f"Q{j}", text, LEVELS, missing=(dfact.MissingCount("9", "refused", 5),)) for j, text in enumerate(wordings)]
    items[0] = replace(items[0], changes=("reversed",), n_empty=3)
    items[-1] = replace(items[-1], levels=((0.0, "no"), (3.0, "yes")))
    labels = [item.name for item in items]
    X = planted_answers(80, m, 2, seed)
    X[:, 0] = np.maximum(X[:, 0], 1)  # a row of zeros counts as one without a response
    return dfact.import_array(X, folder / "d.zarr", column_labels=labels, codebook=dfact.Codebook(tuple(items)))


def test_the_codebook_is_shown_without_a_file_of_items(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    dataset = described(tmp_path, EVIL)
    model: Any = dfact.ICQF(2, max_iter=5).fit(dataset)
    model.stability_ = stability(model, 5)
    dfact.save_model(model, tmp_path / "m")
    assert main(["report", str(tmp_path / "m"), str(tmp_path / "r.html")]) == 0
    page = opened(tmp_path / "r.html").page
    assert page.locator("script").count() == 1
    assert page.locator("img[src=x]").count() == 0
    wording = {text for text in EVIL[1:] if text.isprintable()} | {f"{EVIL[0]} (reversed)"}
    for section in ("loadings", "items", "stability"):
        assert wording <= set(page.eval_on_selector_all(f"#{section} tbody td", "all => all.map(one => one.textContent)")), section
    assert page.locator("#top li").filter(has_text="評価").count() > 0
    rows = page.eval_on_selector_all("#items tbody tr", "all => all.map(row => [...row.cells].map(cell => cell.textContent))")
    by_item = {row[0]: row[1:] for row in rows}
    levels = "0 never, 1 rarely, 2 often, 3 always <b>"
    assert by_item["Q0"] == [f"{EVIL[0]} (reversed)", levels, "9 refused (5), empty (3)", "reversed"]
    assert by_item[f"Q{len(EVIL) - 1}"][1:] == ["0 no, 3 yes", "9 refused (5)", ""]
    pictures(page)


def test_policy_blocks_foreign_scripts_and_images(browser: Any, tmp_path: Path) -> None:
    dfact.write_report(dfact.ICQF(2, max_iter=3).fit(planted_answers(40, 6, 2, 0)), tmp_path / "r.html")
    one = Opened(browser, tmp_path / "r.html")
    one.page.evaluate("""() => { const s = document.createElement("script"); s.textContent = "window.seen = 1"; document.body.append(s);
        document.body.insertAdjacentHTML("beforeend", "<img src='http://127.0.0.1:9/x.png'>"); }""")
    until(one.page, lambda: len([text for text in one.problems if "Content Security Policy" in text]) == 2, "two problems")
    assert one.page.evaluate("window.seen") is None
    one.page.close()


def test_skip_link_and_contents_lead_to_their_targets(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    dfact.write_report(dfact.ICQF(2, max_iter=3).fit(planted_answers(40, 6, 2, 0)), tmp_path / "r.html")
    page = opened(tmp_path / "r.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    wait(page, "location.hash === '#main'")
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map(one => +one.tagName[1])")
    assert levels[0] == 1
    assert (np.diff(levels) <= 1).all()


@pytest.mark.needs("questionnaires")
def test_pages_of_items_and_scales_in_a_browser(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = np.rint(3 + rng.normal(size=(200, 1)) + rng.normal(size=(200, 8)))
    dataset = dfact.import_array(answers, tmp_path / "d.zarr", column_labels=EVIL[:8])
    description = dfact.describe(dataset, scales={"social confidence": EVIL[:4], EVIL[5]: EVIL[4:8]})
    from dfact.questionnaires.tables import write_description

    write_description(description, tmp_path / "r.html")
    page = opened(tmp_path / "r.html").page
    assert page.eval_on_selector_all("main > section", "all => all.map(one => one.id)") == ["adequacy", "scales", "items"]
    assert page.locator("#items tbody tr").count() == 8
    assert page.locator("#scales tbody tr").first.locator("td, th").nth(4).text_content() == f"{description.scales['alpha'].iloc[0]:.2f}"
    assert page.locator("#adequacy").text_content().count("e+") == 0
    # The figures of the scales are visible without scrolling.
    assert page.evaluate("(one => one.scrollWidth <= one.clientWidth)(document.querySelector('#scales table').parentElement)")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(WORST_CONTRAST)[0] >= 4.5
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.needs("questionnaires")
def test_apa_tables_in_a_browser(opened: Callable[[Path], Opened], tmp_path: Path) -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(300, len(EVIL))) + np.linspace(-1, 1, 300)[:, None], columns=EVIL)
    model = dfact.FactorAnalysis(2, rotation="oblimin").fit(X)
    from dfact.questionnaires.apa.loadings import write_apa_loadings

    write_apa_loadings(model, tmp_path / "t.html", texts=dict(zip(EVIL, EVIL[::-1], strict=True)))
    page = opened(tmp_path / "t.html").page
    assert page.locator("script, img").count() == 0
    names = page.eval_on_selector_all("tbody th[scope=row]", "all => all.map(one => one.textContent)")
    assert {f"{label}. {text}" for label, text in zip(EVIL, EVIL[::-1], strict=True) if (label + text).isprintable()} <= set(names)
    # Every row has the columns of the header, bold cells are bold, and rules are horizontal.
    spans = "row => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0)"
    assert set(page.eval_on_selector_all("tbody tr", f"all => all.map({spans})")) == {4}
    weights = page.eval_on_selector_all("tbody td", "all => all.map(one => +getComputedStyle(one.firstElementChild || one).fontWeight)")
    marked = [weight > 400 for weight in weights]
    assert any(marked)
    assert not all(marked)
    borders = "one => ['Left', 'Right'].map(side => parseFloat(getComputedStyle(one)['border' + side + 'Width']))"
    assert not np.any(page.eval_on_selector_all("table, th, td", f"all => all.map({borders})"))
    assert page.evaluate("parseFloat(getComputedStyle(document.querySelector('table')).borderTopWidth)") > 0
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"  # as on paper
    assert page.evaluate(WORST_CONTRAST)[0] >= 4.5
    page.set_viewport_size({"width": 390, "height": 800})
    wait(page, "innerWidth === 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# Tests without a browser
@cache
def fits() -> dict[str, tuple[Any, Any]]:
    """Return a fitted model of each class with its data."""
    rng = np.random.default_rng(0)
    M = planted_answers(80, 10, 2, 0, 0.1) + 1
    N = rng.normal(size=(80, 2)) @ rng.normal(size=(2, 8)) + rng.normal(size=(80, 8))
    Z = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in (9, 8, 7)))
    models: list[tuple[Any, Any]] = [
        (dfact.ICQF(2), M),
        (dfact.NMF(2), M),
        (dfact.NMF(2), M),
        (dfact.PCA(2), N),
        *((model, N) for model in of_slice("FactorAnalysis", 2)),
        (dfact.GradeOfMembership(2, random_state=0), np.nan_to_num(M)),
        (dfact.ExpectileMF(2, ridge=0.1), M),
        *([(dfact.Admixture(2, ploidy=5), np.rint(M))] if installed("genetics") else []),
        (dfact.ElasticCP(2, lam=0.1, random_state=0), Z),
        (dfact.CPALS(2), Z),
        (PoissonMF(2, max_iter=5), counts(0, 80, 10)),
    ]
    return {type(model).__name__: (model.fit(X), X) for model, X in models}


@pytest.mark.further
def test_the_codebook_of_the_data_is_replaced_by_given_texts(tmp_path: Path) -> None:
    model = dfact.GradeOfMembership(2, method="srsc", random_state=0).fit(described(tmp_path, [f"Question {j}" for j in range(12)]))
    dfact.write_report(model, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "Question 5" in text
    assert re.search("Question [0-9]+: near “(never|rarely|often)”", text), "levels in place of codes"
    dfact.write_report(model, tmp_path / "s.html", texts={"Q5": "Other words"})
    text = (tmp_path / "s.html").read_text()
    assert "Other words" in text
    assert "Question 5" not in text
    assert "Question 6" in text
    with pytest.raises(dfact.ParameterError, match="texts are for R1, …, which are not items of the model"):
        dfact.write_report(model, tmp_path / "t.html", texts={"R1": "Other words"})


def test_the_codebook_of_a_tensor_describes_its_second_mode(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.random((n, 2)) for n in (30, 5, 3)))
    items = tuple(dfact.Item(f"Q{j}", f"Question {j}", LEVELS) for j in range(5))
    labels = [item.name for item in items]
    visits = ["intake", "week <6>", "week <6>"]  # labels of a file may repeat
    dataset = dfact.import_array(X, tmp_path / "d.zarr", column_labels=labels, mode_labels=[visits], codebook=dfact.Codebook(items))
    dfact.write_report(dfact.ElasticCP(2, lam=0.01, random_state=0).fit(dataset), tmp_path / "r.html", dataset)
    text = (tmp_path / "r.html").read_text()
    section = text[text.index('<section id="items"') :]
    section = section[: section.index("</section>")]
    assert re.findall('<th scope="row"[^>]*>(.*?)</th>', section) == labels
    assert "Answers of all items: 0 never, 1 rarely, 2 often, 3 always &lt;b&gt;." in section
    assert all(item.wording in section for item in items)
    loadings = text[text.index('<section id="loadings"') :]
    found = re.findall('<th scope="row"[^>]*>(.*?)</th>', loadings[: loadings.index("</section>")])
    assert found[5:8] == ["mode 3: intake", "mode 3: week &lt;6&gt;", "mode 3: week &lt;6&gt;"]


@pytest.mark.further
@pytest.mark.parametrize("m", [8, 20])
def test_plots_name_items_with_the_beginning_of_their_wording(tmp_path: Path, m: int) -> None:
    dataset = described(tmp_path, ["Costs of $x^{$ per year, " + "very " * 20 + "long"] * m)
    for model in (dfact.ICQF(2, max_iter=3).fit(dataset), dfact.GradeOfMembership(2, method="srsc", random_state=0).fit(dataset)):
        figure = find_presenter(model)(model).items_plot()
        labels = {tick.get_text() for tick in figure.axes[0].get_yticklabels()}
        assert {label for label in labels if label.startswith("Q3")} == {"Q3 Costs of $x^{$ per year, very very very very…"}
        assert figure.get_size_inches()[0] > find_presenter(model)(without_codebook(model)).items_plot().get_size_inches()[0]
        figure.savefig(tmp_path / "plot.png")


def without_codebook(model: Any) -> Any:
    plain = copy(model)
    plain.codebook_ = None
    return plain


def test_every_model_has_a_report(tmp_path: Path) -> None:
    known = fits()
    assert {name for name, model in MODELS.items() if model.__module__.startswith("dfact.")} <= {*known, "CPModel"}
    for name, (model, X) in known.items():
        dfact.write_report(model, tmp_path / f"{name}.html", X)
        text = (tmp_path / f"{name}.html").read_text()
        assert f'<p class="kind">{name}</p>' in text
        assert 'id="loadings"' in text
        assert 'id="errors"' in text


@pytest.mark.parametrize("name", ["ICQF", "NMF", "FactorAnalysis", "GradeOfMembership", "ExpectileMF", "ElasticCP"])
def test_errors_by_item(name: str) -> None:
    model, X = fits()[name]
    table = item_errors(model, fitted_dataset(model, X))
    R = model.inverse_transform(np.asarray(model.row_factors(), np.float64))
    others = (0, *range(2, X.ndim))
    assert_allclose(table["observed"], (~np.isnan(X)).sum(axis=others))
    assert_allclose(table["rmse"], np.sqrt(np.nanmean((X - R) ** 2, axis=others)), rtol=1e-5)
    assert_allclose(table["explained"], 1 - np.nanmean((X - R) ** 2, axis=others) / np.nanvar(X, axis=others), atol=1e-5)
    assert_allclose(table["mean"], np.nanmean(X, axis=others), atol=1e-9)


@pytest.mark.further
def test_errors_of_stored_answers_are_in_their_units(tmp_path: Path) -> None:
    M = planted_answers(300, 8, 2, 1, 0.1)
    frame = pd.DataFrame(np.where(np.isnan(M), 0, M + 1).astype(int), columns=[f"q{j}" for j in range(8)])
    frame["age"] = np.arange(300) % 40 + 20
    frame.to_csv(tmp_path / "t.csv", index=False)
    dataset = dfact.import_table(tmp_path / "t.csv", tmp_path / "d.zarr", items="q*", missing=[0], confounders=["age"], empty_rows="drop")
    kept = np.nan_to_num(M + 1).any(axis=1)
    given = M[kept] + 1
    for model, shift in ((dfact.ICQF(2), 1), (dfact.ExpectileMF(2, ridge=0.1), 0), (dfact.GradeOfMembership(2, random_state=0), 0)):
        rows = np.asarray(model.fit_transform(dataset), np.float64)
        known = {"confounders": dataset.confounders} if shift else {}
        table = item_errors(model, fitted_dataset(model, dataset))
        assert_allclose(table["mean"], np.nanmean(given, axis=0))
        R = model.inverse_transform(rows, **known) + shift  # type: ignore[arg-type]
        assert_allclose(table["rmse"], np.sqrt(np.nanmean((given - R) ** 2, axis=0)), rtol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_errors_by_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((80, 60)) < 0.8, rng.lognormal(0, 2, (80, 60)), np.nan)
    model = dfact.ExpectileMF(3, ridge=0.1).fit(X)
    found = BinErrors.of(model, fitted_dataset(model, X))
    b, R = X[~np.isnan(X)], model.inverse_transform(model.row_factors_)[~np.isnan(X)]
    assert found.table["entries"].sum() == len(b)
    for (low, high), (_, row) in zip(zip(found.edges, found.edges[1:], strict=False), found.table.iterrows(), strict=True):
        inside = (low <= b) & (b < high)
        assert row["entries"] == inside.sum()
        assert_allclose(row["median"], np.median(np.abs(R - b)[inside] / b[inside]), rtol=2e-3)
        assert_allclose(row["absolute"], np.median(np.abs(R - b)[inside]), rtol=2e-3)
        curve = np.quantile(np.abs(R - b)[inside] / b[inside], np.arange(1, 100) / 100)
        assert_allclose(found.distributions[str(row.name)], curve, rtol=5e-3, atol=2e-5)
    lines = distributions_figure(found).axes[0].lines
    assert [line.get_label() for line in lines] == list(found.table.index)
    assert_allclose(lines[0].get_ydata(), np.arange(1, 100) / 100)
    assert [text.get_text() for text in bins_figure(found).axes[0].get_xticklabels()] == list(found.table.index)


@pytest.mark.parametrize("stored", [False, True])
def test_row_statistics(stored: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    W = np.random.default_rng(0).gamma(1, 1, (5000, 3)) * [1, 10, 0] + [0, 1e4, 0]
    W[:, 0] -= W[:, 0].min()
    W[7] = np.nan
    monkeypatch.setattr(row_statistics, "row_chunks", lambda rows: (np.asarray(rows[i : i + 700]) for i in range(0, 5000, 700)))
    rows: Any = zarr.create_array(tmp_path / "w", data=W, chunks=(700, 3)) if stored else W
    found, known = RowStatistics.of(rows), np.delete(W, 7, axis=0)
    assert found.n == 4999
    assert_allclose(found.mean, known.mean(axis=0))
    assert_allclose(found.deviation, known.std(axis=0), atol=1e-9)
    assert_allclose(found.correlations[:2, :2], np.corrcoef(known[:, :2].T))
    assert np.isnan(found.correlations[2]).all()
    assert found.counts.sum(axis=1).tolist() == [4999] * 3
    assert_allclose(found.zeros, (known == 0).mean(axis=0))


def test_similar_items_are_adjacent_within_their_groups() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.permutation(np.repeat(np.arange(3), 8))
    H = pd.DataFrame(np.eye(3)[kinds] + 0.1 * rng.random((24, 3)), index=[f"i{j}" for j in range(24)])
    order, groups = order_by_similarity(H, {})
    assert (np.diff(kinds[order]) != 0).sum() == 2
    assert groups == []
    order, groups = order_by_similarity(H, {f"i{j}": "ab"[j % 2] for j in range(20)})
    assert [size for _, size in groups] == [10, 10, 4]
    assert [name for name, _ in groups] == ["a", "b", ""]
    assert sorted(order) == list(range(24))
    for part in np.split(order, [10, 20]):
        assert (np.diff(kinds[part]) != 0).sum() <= 2


@pytest.mark.further
def test_a_report_of_a_thousand_items_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    M = pd.DataFrame(rng.integers(0, 4, (120, 1000)).astype(float), columns=[f"questionnaire{j % 7}_item{j}" for j in range(1000)])
    model: Any = dfact.ICQF(20, max_iter=1).fit(M)
    model.stability_ = stability(model, 50)
    dfact.write_report(model, tmp_path / "r.html", M)
    assert (tmp_path / "r.html").stat().st_size < 3e6


def test_styles_that_marks_share_are_written_once() -> None:
    mark, label = '<use x="1" style="fill: red"/>', '<text>a style="fill: red"</text>'
    assert _share_styles(f"<svg>{mark * 2}{label}</svg>") == f"<svg>{mark * 2}{label}</svg>"
    shared = '<use x="1" class="s0"/>' * 3
    assert _share_styles(f"<svg>{mark * 3}{label}</svg>") == f"<svg><style>.s0{{fill: red}}</style>{shared}{label}</svg>"


@pytest.mark.further
def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    model = dfact.ICQF(2).fit(planted_answers(40, 6, 2, 0))
    for name in "ab":
        dfact.write_report(model, tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_selected_model_records_its_selection(tmp_path: Path) -> None:
    M = planted_answers(60, 10, 2, 0)
    select = dfact.selection
    chosen = [
        select.block_cross_validate(dfact.ICQF(max_iter=5), M, {"n_components": [1, 2]}, n_folds=3, n_blocks=(3, 3), rule="1se"),
        select.select_by_criterion(dfact.ICQF(max_iter=5), M, [1, 2], n_restarts=0),
        select.select_by_modularity(dfact.GradeOfMembership(random_state=0), M + 1, [2, 3]),
        select.select_by_held_out(dfact.ExpectileMF(ridge=0.1, max_iter=5), M, {"n_components": [1, 2], "tau": [0.2]}),
        select.select_penalty(dfact.ElasticCP(2, random_state=0), M, lambdas=[1e-3, 1], random_state=0),
    ]
    for i, (selection, rule) in enumerate(zip(chosen, ["1se", "min", "max", "min", "min"], strict=True)):
        dfact.save_model(selection.model, tmp_path / f"{i}")
        choice = dfact.load_model(tmp_path / f"{i}").selection_
        assert dict(zip(choice.names, choice.values[choice.best], strict=True)) == selection.best_params
        assert choice.rule == rule
        assert_allclose(choice.scores, selection.table[choice.criterion])
        model = dfact.load_model(tmp_path / f"{i}")
        section = selection_section(find_presenter(model)(model))
        assert section is not None
        assert f"{len(selection.table)} candidates were compared" in section.blocks[0].text  # type: ignore[union-attr]
    assert_allclose(chosen[0].model.selection_.errors, chosen[0].table["se"])  # type: ignore[attr-defined]


def test_invalid_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    M = planted_answers(40, 6, 2, 0)
    stored = dfact.import_array(M, tmp_path / "d.zarr")
    other = dfact.import_array(np.roll(M, 1, axis=0), tmp_path / "e.zarr")
    model, path = dfact.ICQF(2, max_iter=3).fit(stored), tmp_path / "r.html"
    for data, message in ((M[:9], "data is 9×6, the model was fitted to 40×6"), (other, "the fingerprint"), (tmp_path / "no", "not exist")):
        with pytest.raises(dfact.DfactError, match=message):
            dfact.write_report(model, path, data)
    named = dfact.ICQF(2, max_iter=3).fit(pd.DataFrame(M, columns=list("abcdef")))
    with pytest.raises(dfact.DataError, match="column 0 of the data is 'f'"):
        dfact.write_report(named, path, pd.DataFrame(M, columns=list("fabcde")))
    with pytest.raises(dfact.ParameterError, match="which are not items of the model"):
        dfact.write_report(named, path, texts={"x": "y"})
    with pytest.raises(dfact.ParameterError, match=r"ends in '.pdf'"):
        dfact.write_report(model, tmp_path / "r.pdf")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(dfact.DfactError, match=r"dfact\[plot\]"):
            dfact.write_report(model, path)
    assert not list(tmp_path.glob("r.*"))
    dfact.write_report(model, path)
    with pytest.raises(dfact.StoreError, match="exists already"):
        dfact.write_report(model, path)


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = dfact.import_array(planted_answers(40, 3, 2, 0), tmp_path / "d.zarr", column_labels=["a", "b", "c"])
    dfact.save_model(dfact.ICQF(2, max_iter=3).fit(dataset), tmp_path / "m")
    (tmp_path / "items.csv").write_text("item,text,group\na,I am <i>,one\nb,,two\nz,unknown,\n")
    command = ["report", str(tmp_path / "m"), str(tmp_path / "r.html"), "--data", str(tmp_path / "d.zarr")]
    assert main([*command, "--items", str(tmp_path / "items.csv")]) == 0
    text = (tmp_path / "r.html").read_text()
    assert "I am &lt;i&gt;" in text
    assert dataset.fingerprint in text
    size = (tmp_path / "r.html").stat().st_size
    assert f"r.html: {format_bytes(size)}, open it in a browser" in capsys.readouterr().out
    assert size > 1000
    assert main(command) == 1
    assert main([*command, "--overwrite"]) == 0
    (tmp_path / "items.csv").write_text("name\na\n")
    assert main([*command, "--overwrite", "--items", str(tmp_path / "items.csv")]) == 1
    assert "expected item, and text, scale, group or key" in capsys.readouterr().err


def luminance(color: str) -> float:
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear: NDArray[np.float64] = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.further
def test_images_have_contrast_on_light_and_dark_pages(tmp_path: Path) -> None:
    pages = {"light": luminance("#ffffff"), "dark": luminance("#16181d")}
    for color in COLORS:
        for page in pages.values():
            a, b = sorted([luminance(color), page])
            assert (b + 0.05) / (a + 0.05) >= 3
    dfact.write_report(dfact.ICQF(2, max_iter=3).fit(planted_answers(40, 6, 2, 0)), tmp_path / "r.html")
    drawings = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", (tmp_path / "r.html").read_text())
    for i, (drawing, page) in enumerate(zip(drawings, [pages["dark"], pages["light"]] * (len(drawings) // 2), strict=True)):
        svg = base64.b64decode(drawing).decode()
        ink = re.search(r"text\{fill:(#\w+)\}", svg)
        assert ink is not None, i
        a, b = sorted([luminance(ink[1]), page])
        assert (b + 0.05) / (a + 0.05) >= 7
        assert "$" not in svg


def test_numbers_and_shades() -> None:
    assert [number_format(np.array([v])).format(v) for v in (0, 1234.5, 12.345, 0.7, 0.0123, 1e-7, 2e7)] == [
        "0.00", "1234.5", "12.35", "0.70", "0.0123", "1e-07", "2e+07"
    ]  # fmt: skip
    table = make_table(pd.DataFrame({"a": [1.0, -1.0, 0.0, np.nan, -0.001]}), "t", shaded=["a"])
    cells = [row[1] for row in table.rows]
    assert [cell.style for cell in cells] == ["p6", "m6", "", "", ""]
    assert [cell.text for cell in cells] == ["1.00", "-1.00", "0.00", "–", "0.00"]


def test_infinite_values_are_shown_without_a_shade() -> None:
    table = make_table(pd.DataFrame({"a": [np.inf, 2.0, -np.inf]}), "t", shaded=["a"])
    finite = make_table(pd.DataFrame({"a": [2.0]}), "t", shaded=["a"])
    assert [row[1].text for row in table.rows] == ["inf", "2.00", "-inf"]
    assert [row[1].style for row in table.rows] == ["", finite.rows[0][1].style, ""]


@pytest.mark.further
def test_greys_have_contrast_on_the_dark_page(tmp_path: Path) -> None:
    """Greys of plots that the command line shares are recoloured, text above all."""
    Pi = np.random.default_rng(0).dirichlet([0.3] * 3, 200)
    R = np.random.default_rng(1).binomial(4, np.vstack([np.eye(3)[[0, 1, 2] * 20], Pi]) @ np.random.default_rng(2).random((3, 12)))
    dfact.write_report(dfact.GradeOfMembership(3, random_state=0).fit(R + (R.sum(axis=1) == 0)[:, None]), tmp_path / "r.html")
    for drawing in re.findall(r'srcset="data:image/svg\+xml;base64,([\w+/=]+)', (tmp_path / "r.html").read_text()):
        for style in re.findall(r"<text style=\"([^\"]+)\"", base64.b64decode(drawing).decode()):
            fill = re.search(r"fill: (#\w+)", style)
            assert fill is None or (luminance(fill[1]) + 0.05) / (luminance("#16181d") + 0.05) >= 4.5, style
