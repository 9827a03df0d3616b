"""README and guides, cut into sections and blocks of code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = {path.stem: path for pattern in ("guides/*.md", "*/guides/*.md") for path in sorted((ROOT / "dfact").glob(pattern))}
"""The guides of the core and of its slices."""
PAGES = {"README": ROOT / "README.md"} | GUIDES
TEXTS = {page: path.read_text() for page, path in PAGES.items()}
UNRUN = {name: ROOT / name / "README.md" for name in ("deploy", "benchmarks")}
"""Pages whose commands need a cluster or hours; their names and links are checked."""

ELSEWHERE = {
    "pip install": ".ci/run installs in a fresh environment",
    "python -m pytest": ".ci/run",
    "openssl": "tests/tls/test_tls.py",
    "export DASK_": "tests/tls/test_tls.py",
    "export OPENBLAS_": "tests/engine/test_environment.py",
    "export NPY_": "tests/engine/test_environment.py",
    "dask scheduler": "tests/tls/test_tls.py",
    "dask worker": "tests/tls/test_tls.py",
    "10.0.0.1": "tests/tls/test_tls.py",
    "127.0.0.1:8786": "tests/cli/test_cli.py",
    "_DFACT_COMPLETE": "tests/cli/test_cli.py",
    "heart+disease.zip": "tests/imports/test_group_tensor.py",
    "cat processed.": "tests/imports/test_group_tensor.py",
    "--sites": "tests/sites/test_commands.py",
    "site join": "tests/sites/test_commands.py",
    "sites = [": "tests/sites/test_commands.py",
}
"""Parts of blocks and lines that these tests do not run, and the tests that do."""


@dataclass(frozen=True)
class Block:
    """A fenced block of code and the line where it begins."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def where(self) -> str:
        return f"{PAGES[self.page].name}:{self.line}"

    def commands(self) -> list[str]:
        """Return the commands of a shell block that run in these tests."""
        lines = (re.sub("^((pip install|mkdir|cd) [^&]+&& )+", "", line) for line in self.text.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not elsewhere(line)]


def elsewhere(text: str) -> bool:
    return any(part in text for part in ELSEWHERE)


def _sections() -> Iterator[tuple[str, str, list[Block]]]:
    for page, text in TEXTS.items():
        title, blocks, fence = page, [], 0
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if line.startswith("```"):
                if fence:
                    blocks.append(Block(page, fence, lines[fence - 1][3:], "\n".join(lines[fence : number - 1])))
                fence = 0 if fence else number
            elif line.startswith("## ") and not fence:
                yield page, title, blocks
                title, blocks = line[3:], []
        assert not fence, f"{page}: the block of line {fence} does not end"
        yield page, title, blocks


SECTIONS = {f"{page}: {title}": blocks for page, title, blocks in _sections() if blocks}


def section(name: str) -> list[Block]:
    """Return the blocks of a section, such as "clusters: Encrypt a cluster"."""
    return SECTIONS[name]


def spans(text: str) -> list[str]:
    """Return the inline code of a page."""
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
