"""Docstrings, comments, messages, help texts and guides are plain technical English: none of the patterns that came before it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT, nodes

PAGES = [
    *sorted(ROOT.glob("**/guides/*.md")),
    *(
        path
        for name in ("README.md", "deploy/README.md", "benchmarks/README.md", ".github/CONTRIBUTING.md")
        if (path := ROOT.parent / name).exists()
    ),
]
FRAGMENT = re.compile(r"(Of|What|Who|Whoever|Where|As|How) ")
"""Beginnings of summaries that make a fragment of them."""
PHRASE = re.compile(r"\b(at hand|behind the|go on with|goes on with|anew|nobody)\b", re.IGNORECASE)
SPELLING = re.compile(
    r"\b(minim|maxim|optim|normal|regular|summar|organ|recogn)is(e|es|ed|er|ers|ing|ation|ations)\b"
    r"|\banalys(e|ed|er|ing)\b"
    r"|\bdata sets?\b"
    r"|(?-i:\bSLURM\b(?!_))"
    r"|\d %(?=[\s.,;:)|?%]|$)",
    re.IGNORECASE,
)
"""What the project spells in another way: minimize, analyze, dataset, Slurm, 5%. Names of variables such as SLURM_JOB_ID are not meant."""


GRAMMAR = re.compile(
    r"(?<!there )\b(is|are) no (?!longer|more|less|fewer|better|worse|larger|smaller|later|earlier|higher|lower|one\b)(?=[a-z])"
    r"|\bbut for\b"
    r"|\bno(thing| one)?( [a-z]+){0,2} but\b"
    r"|\bfiles? of (an? )?(SPSS|Stata|SAS|PLINK|Excel|R\b)"
    r"|\bless (the|its|their|that of)\b"
    r"|\b(the same|to the( last)?) bits?\b"
    r"|\b(end|ends|ended) with( code)? \d+\b"
    r"|\bbeside (each other|(that|those) of)\b"
    r"|\bbits (is|are) (that|those) of\b",
    re.IGNORECASE,
)
"""What is not idiomatic, such as "is no number" for "is not a number", "ends with 75" for "exits with code 75"."""


PADDING = re.compile(
    r"\b(perform|do|does|done|did|carr(y|ies|ied) out|conduct|undertak)(e|es|s|ed|en|ing)?"
    r" (the |an? |its |their )?([a-z]+ )?([a-z]+ing|[a-z]+(tion|ment|ysis))s? of\b"
    r"|\butili[sz](e|es|ed|ing|ation)\b"
    r"|(?<!not )(?<!-)\bvery\b(?!-)"
    r"|\b(in order to|mak(e|es|ing) use of|(is|are) able to|due to the fact|it (should|must) be noted)\b"
    r"|(?<=[a-z.,)\]`]) ---? (?=[a-z`(])|(?<=[a-z])---?(?=[a-z])"
    r"|(?<=[a-z)`][a-z)`])!(?=\W*(\s|$))",
    re.IGNORECASE,
)
"""What makes a sentence longer or louder, not clearer: nouns for verbs ("performs sorting of"), "utilize", "very", a dash of two hyphens
between words, and exclamation marks."""


LONGEST = 32
"""Highest number of words of a sentence in a guide. A piece of code counts as one; letters of formulas and numbers do not count."""


def fragments(path: Path) -> Iterator[str]:
    """Summaries of docstrings, those of attributes among them, that begin with a banned word."""
    for line, text in docstrings(path):
        summary = text.strip().partition("\n")[0]
        if FRAGMENT.match(summary):
            yield f"{line}: {summary}"


def as_running_text(source: str) -> str:
    """Return a module with literals and comments joined that continue on the next line."""
    return re.sub(r'"\s+f?"|\n\s*#', " ", source)


def phrases(source: str, path: Path, banned: re.Pattern[str]) -> Iterator[str]:
    """Banned phrases in comments and in all text of a module: docstrings, messages, help."""
    if not banned.search(" ".join(as_running_text(source).split())):
        return  # without the time of parsing
    texts = [(node.lineno, node.value) for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for line, text in [*texts, *comments(source)]:
        for found in banned.finditer(" ".join(text.split())):
            yield f"{line}: … {found.string[max(found.start() - 30, 0) : found.end() + 20]} …"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a module with their lines, those of attributes among them."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments with their lines; those on consecutive lines are one."""
    first, last, texts = 0, 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if texts and token.start[0] > last + 1:
                yield first, " ".join(texts)
                texts = []
            first, last = (first if texts else token.start[0]), token.start[0]
            texts.append(token.string.lstrip("# "))
    if texts:
        yield first, " ".join(texts)


def offenders(path: Path, banned: re.Pattern[str]) -> list[str]:
    text = path.read_text()
    if path.suffix == ".md":
        lines = enumerate(text.splitlines(), 1)
        blocks = [list(block) for filled, block in groupby(lines, key=lambda line: bool(line[1].strip())) if filled]
        joined = [(block[0][0], " ".join(" ".join(line for _, line in block).split())) for block in blocks]
        return [f"{line}: {found[0]}" for line, block in joined for found in banned.finditer(block)]
    return list(phrases(text, path, banned))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a Markdown page with the lines where their blocks begin, without tables, code, headings and enumerations.

    A colon and a semicolon end a sentence, too. More than four commas make an enumeration.
    """
    prose, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        skipped = fenced or line.startswith(("```", "    ", "|", "#", "<"))
        prose.append("" if skipped else re.sub(r"^\s*([-*]|\d+\.) ", "\0", line))
    for filled, block in groupby(enumerate(prose, 1), key=lambda line: bool(line[1].strip())):
        first, *_ = lines = list(block)
        for item in " ".join(line for _, line in lines).split("\0") if filled else ():
            plain = re.sub(r"\]\([^)]*\)|`[^`]*`", " code ", item)
            for sentence in re.split(r"(?<!\bal)[.:;?!][*)”\"]*\s", plain):
                if sentence.count(",") <= 4:
                    yield first[0], sentence


def report(found: dict[Path, list[str]]) -> dict[str, list[str]]:
    """Offending passages by file; a file is called by its path within the project."""
    return {path.relative_to(ROOT.parent).as_posix(): passages for path, passages in found.items() if passages}


def test_prose_has_no_banned_patterns() -> None:
    package = sorted(ROOT.rglob("*.py"))
    found = {path: offenders(path, PHRASE) for path in [*package, *PAGES]}
    assert report(found) == {}
    assert report({path: [*fragments(path)] for path in package}) == {}


@pytest.mark.parametrize("banned", [SPELLING, GRAMMAR], ids=["spelling", "grammar"])
def test_all_folders_have_the_same_prose(banned: re.Pattern[str]) -> None:
    folders = (ROOT, *(ROOT.parent / name for name in ("tests", "benchmarks", "deploy")))
    modules = [path for folder in folders for path in sorted(folder.rglob("*.py")) if path != Path(__file__)]
    assert report({path: offenders(path, banned) for path in [*modules, *PAGES]}) == {}


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and tables of a Markdown page with the lines where they begin, without code."""
    text = re.sub(r"(?ms)^```.*?^```", lambda block: "\n" * block[0].count("\n"), text)
    for filled, block in groupby(enumerate(text.splitlines(), 1), key=lambda line: bool(line[1].strip())):
        first, *_ = lines = list(block)
        if filled and not all(line.startswith(("    ", "<")) for _, line in lines):
            yield first[0], re.sub(r"`[^`]+`", " code ", " ".join(line for _, line in lines))


def padding(path: Path) -> list[str]:
    """Return what makes sentences longer or louder: in pages, and in all text of modules; in those of tests, answers are data."""
    source = path.read_text()
    if path.suffix == ".md":
        texts = [*paragraphs(source)]
    elif not PADDING.search(" ".join(as_running_text(source).split())):
        texts = []  # without the time of parsing
    elif path.is_relative_to(ROOT.parent / "tests"):
        texts = [*docstrings(path), *comments(source)]
    else:
        literals = [(node.lineno, node.value) for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        texts = [(line, text) for line, text in [*literals, *comments(source)] if " " in text]
    found = [(line, each) for line, text in texts for each in PADDING.finditer(" ".join(text.split()))]
    return [f"{line}: … {each.string[max(each.start() - 30, 0) : each.end() + 20]} …" for line, each in found]


def test_sentences_are_not_padded() -> None:
    folders = (ROOT, *(ROOT.parent / name for name in ("tests", "benchmarks", "deploy")))
    modules = [path for folder in folders for path in sorted(folder.rglob("*.py")) if path != Path(__file__)]
    assert report({path: padding(path) for path in [*modules, *PAGES]}) == {}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("It performs utilising of the cache -- very fast!", 4),
        ("The pass performs a computation of sums, and carries out the fitting of rows.", 2),
        ("In order to sort, it makes use of the index, which is able to grow.", 3),
        ("A fit carries out a task of the coordinator, and does nothing to the meaning of an answer.", 0),
        ("Rows--and columns--are read.", 2),
        ("It is not very many, and `a != b` or --option -- as in git -- stay.", 2),
        ("Computes sums, uses the index, and can grow. Is x! a factorial? n! is.", 0),
        ("Performance, every option --very-long, 3 - 2.", 0),
    ],
)
@pytest.mark.parametrize("kind", ["page.md", "module.py", "message.py"])
def test_padding_is_found(sentence: str, expected: int, kind: str, tmp_path: Path) -> None:
    quoted = {"page.md": f"# Head\n\n{sentence}\n", "module.py": f'"""{sentence}"""\n', "message.py": f"print({sentence!r})\n"}[kind]
    (path := tmp_path / kind).write_text(quoted)
    assert len(padding(path)) == expected


def test_sentences_of_guides_are_short() -> None:
    found = {
        path: [f"{line}: {text}" for line, text in sentences(path.read_text()) if len(re.findall(r"[^\W\d_]{2,}", text)) > LONGEST]
        for path in PAGES
    }
    assert report(found) == {}


def test_sentences_end_where_they_end() -> None:
    text = "# Head\n\nOne `a. b` (see [x](y.md)). Two,\nby Lam et al. (2023).\n\n| a. | b. |\n\n- Three.\n- Four\n\n```sh\nrun. it\n```\n"
    found = [sentence.split() for _, sentence in sentences(text) if sentence.strip()]
    assert [words[0] for words in found] == ["One", "Two,", "Three", "Four"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Of each row, its sum."""', 1),
        ('"""Offsets of the rows."""', 0),
        ('x = 1\n"""Where it lies."""', 1),
        ('def f():\n    """Return x."""\n    # go on\n    # with it', 1),
        ('raise ValueError(f"{x} is nobody\'s, begin\\n anew")', 2),
        ("x = 1  # the pass at hand", 1),
    ],
)
def test_patterns_are_found_where_they_stand(source: str, expected: int, tmp_path: Path) -> None:
    (path := tmp_path / "module.py").write_text(source)
    assert len([*fragments(path), *offenders(path, PHRASE)]) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Minimise f on a data\n    set."""', 2),
        ('"""Parallel analyses of SLURM_JOB_ID and 7%, at x % 3."""', 0),
        ('print(f"{x} analysed within 5 %")', 2),
        ("n = 5 % 3  # under SLURM", 1),
        ("# NaN is\n# no number", 1),
        ('print("They end with 75, and read no file but a file of SPSS")', 3),
        ("# Seconds, beside those of SciPy", 1),
        ('print("There is no number, it is no longer 3, 5 are no more than 6")', 0),
    ],
)
def test_wordings_are_found_where_they_stand(source: str, expected: int, tmp_path: Path) -> None:
    (path := tmp_path / "module.py").write_text(source)
    assert len([*offenders(path, SPELLING), *offenders(path, GRAMMAR)]) == expected


def test_pages_hold_no_conflict_of_a_merge() -> None:
    assert {path: path.read_text().count(mark) for path in PAGES for mark in ("\n<<<<<<< ", "\n>>>>>>> ") if mark in path.read_text()} == {}
