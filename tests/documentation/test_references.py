"""Citations in docstrings, comments, guides and README, and the guide ``references``, which lists their sources."""

import re
from collections.abc import Iterator

import pytest

from tests.documentation.pages import ROOT, TEXTS

ENTRY = re.compile(r"^- \*\*(.+ \(\d{4}\))\.\*\* (.+?\.) \*(.+)\.\*")
NAME = r"(?:ten |van |von |de |De )?[A-ZÅÄÖØÉ](?![A-Z]+\b)[\w’'\-]+"  # not an abbreviation
NAMES = rf"{NAME}(?:, {NAME})*(?:,? & {NAME}| and others| et al\.)?"
IN_TEXT = re.compile(rf"({NAMES}) \(((?:18|19|20)\d\d)[),]")
IN_PARENTHESES = re.compile(rf"[(;,] ?({NAMES}) ((?:18|19|20)\d\d)(?=[,;)])")


def key(names: str, year: str) -> str:
    """The key of a source: three authors or more are the first one et al."""
    authors = re.split(r",? & |, ", names)
    return f"{names if len(authors) < 3 else f'{authors[0]} et al.'} ({year})"


def citations(text: str) -> Iterator[str]:
    """Yield the keys that a text cites, which may break over lines, also of comments."""
    flat = re.sub(r"\s*\n[\s#]*", " ", text)
    for pattern in (IN_TEXT, IN_PARENTHESES):
        yield from (key(*found) for found in pattern.findall(flat))


def texts() -> Iterator[tuple[str, str]]:
    """Yield the pages without the list, and the modules, with their names."""
    yield from ((page, text) for page, text in TEXTS.items() if page != "references")
    for path in sorted((ROOT / "dfact").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def entries() -> list[str]:
    return [line for line in TEXTS["references"].splitlines() if line.startswith("- ")]


def keys() -> list[str]:
    found = [ENTRY.match(line) for line in entries()]
    assert [line for line, match in zip(entries(), found, strict=True) if match is None] == []
    return [match[1] for match in found if match is not None]


def test_every_citation_resolves_and_every_source_is_cited() -> None:
    cited: dict[str, list[str]] = {}
    for where, text in texts():
        for source in citations(text):
            cited.setdefault(source, []).append(where)
    missing = {source: where for source, where in cited.items() if source not in keys()}
    assert missing == {}, "add these sources to dfact/guides/references.md"
    assert [source for source in keys() if source not in cited] == [], "nothing cites these sources; remove them"


def test_sources_are_listed_once_in_order_with_links_of_their_identifiers() -> None:
    plain = str.maketrans("äöüéåÄÖÜÉÅ", "aoueaAOUEA")
    listed = keys()
    assert len(set(listed)) == len(listed)
    assert listed == sorted(listed, key=lambda source: source.lower().translate(plain))
    for line in entries():
        for text, link in re.findall(r"\[([^\]]+)\]\((\S+)\)", line):
            kind, _, identifier = text.partition(":")
            site = {"doi": "https://doi.org/", "arXiv": "https://arxiv.org/abs/"}[kind]
            assert link == site + identifier.replace("(", "%28").replace(")", "%29")
            assert re.fullmatch(r"10\.\d{4,}/\S+" if kind == "doi" else r"\d{4}\.\d{4,5}", identifier)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("as in Olsson (1979).", ["Olsson (1979)"]),
        ("(Harman & Jones 1966; Jöreskog 1977, unweighted)", ["Harman & Jones (1966)", "Jöreskog (1977)"]),
        ("the interval of Feldt, Woodruff & Salih (1987), which", ["Feldt et al. (1987)"]),
        ("    Lorenzo-Seva &\n    ten Berge (2006)", ["Lorenzo-Seva & ten Berge (2006)"]),
        ("# Boyd et al. (2011, section 3)\n# and (Boyd et al. 2011, section 3)", ["Boyd et al. (2011)"] * 2),
        ("gradient descent (FISTA, Beck & Teboulle 2009), at most", ["Beck & Teboulle (2009)"]),
        ("Up to 2000 rows. Above 2000 rows, in 2017", []),
    ],
)
def test_citations_are_found(text: str, expected: list[str]) -> None:
    assert list(citations(text)) == expected
