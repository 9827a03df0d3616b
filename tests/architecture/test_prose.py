"""Docstrings, comments, messages, help texts and guides are plain technical English: none of the patterns that came before it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.layers import ROOT, nodes

GUIDES = [
    *sorted((ROOT / "guides").glob("*.md")),
    *(ROOT.parent / name for name in ("README.md", "deploy/README.md", "benchmarks/README.md")),
]
FRAGMENT = re.compile(r"(Of|What|Who|Whoever|Where|As|How) ")
"""Beginnings of summaries that make a fragment of them."""
PHRASE = re.compile(r"\b(at hand|behind the|go on with|goes on with|anew|nobody)\b", re.IGNORECASE)


def fragments(path: Path) -> Iterator[str]:
    """Summaries of docstrings, those of attributes among them, that begin with a banned word."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            summary = node.value.value.strip().partition("\n")[0]
            if FRAGMENT.match(summary):
                yield f"{node.lineno}: {summary}"


def comments(source: str) -> Iterator[tuple[int, str]]:
    if not PHRASE.search(" ".join(source.split())):
        return  # without the time of looking for comments
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def phrases(source: str, path: Path) -> Iterator[str]:
    """Banned phrases in comments and in all text of a module: docstrings, messages, help."""
    texts = [(node.lineno, node.value) for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for line, text in [*texts, *comments(source)]:
        for found in PHRASE.finditer(" ".join(text.split())):
            yield f"{line}: … {found.string[max(found.start() - 30, 0) : found.end() + 20]} …"


def offenders(path: Path) -> list[str]:
    text = path.read_text()
    if path.suffix == ".md":
        return [f"{text[: found.start()].count(chr(10)) + 1}: {found[0]}" for found in PHRASE.finditer(text)]
    return [*fragments(path), *phrases(text, path)]


def found() -> dict[str, list[str]]:
    """Offending passages by file; a file of the package is called by its path within the project."""
    paths = [*sorted(ROOT.rglob("*.py")), *(path for path in GUIDES if path.exists())]
    return {path.relative_to(ROOT.parent).as_posix(): passages for path in paths if (passages := offenders(path))}


def test_prose_has_no_banned_patterns() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Of each row, its sum."""', 1),
        ('"""Offsets of the rows."""', 0),
        ('x = 1\n"""Where it lies."""', 1),
        ('def f():\n    """Return x."""\n    # go on\n    # with it', 0),
        ('raise ValueError(f"{x} is nobody\'s, begin\\n anew")', 2),
        ("x = 1  # the pass at hand", 1),
    ],
)
def test_patterns_are_found_where_they_stand(source: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    assert len(offenders(tmp_path / "module.py")) == expected
