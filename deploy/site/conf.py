"""Settings of Sphinx for the site; ``build.py`` gathers its sources."""

import re
from pathlib import Path
from typing import Any

import dfact

project = "dfact"
author = "the dfact developers"
release = version = dfact.__version__
html_title = f"dfact {release}"

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc"]
nitpicky = True
nitpick_ignore_regex = [
    # Their documentation is another site, which a build without a network cannot look up.
    (r"py:.*", r"(click|collections|dask|distributed|matplotlib|numpy|pandas|pathlib|scipy|sklearn|typing|xarray|zarr)\..*"),
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["html_image"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the sections of the docstrings name types and shapes
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # reference.py lists them with their docstrings
numpydoc_class_members_toctree = False

html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")  # which Sphinx looks for where it is started
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


SECTION = re.compile(r"(Parameters|Attributes|Returns|Yields|Raises|Warns|References|Examples)$")
SOURCES = dict(
    re.findall(r"(?m)^- \*\*(.+?)\.\*\*.*?\((https://\S+)\)\.$", (Path(__file__).parent / "dfact/guides/references.md").read_text())
)
"""Links of the sources of the guide on references, by their names as docstrings cite them, such as ``Lam et al. (2023)``."""
SOURCE = re.compile("|".join(map(re.escape, SOURCES)))


def _marked_up(line: str) -> str:
    """Return a line of a docstring with links of its sources, and with the bars of absolute values escaped; code as it is."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    text = re.split(r"(``.+?``)", line)
    for number, part in enumerate(text):
        if not part.startswith("``"):
            escaped = re.sub(r"(?<!\\)\|", r"\|", part)
            text[number] = SOURCE.sub(lambda found: f"`{found[0]} <{SOURCES[found[0]]}>`__", escaped)
    return "".join(text)


def mark_up(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Mark up a docstring before numpydoc reads it: sources, bars, and above the first section the lines of indented formulas."""
    lines[:] = map(_marked_up, lines)
    literal = False
    for number, line in enumerate(lines):
        if SECTION.match(line):
            return
        if line and not line.startswith(" "):
            literal = line.endswith("::") or line.startswith(("- ", ".. ", ">>> "))
        elif line.startswith("    ") and not literal:
            lines[number] = f"    | {line[4:]}"


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", mark_up, priority=400)
