"""Build the site: guides, reference of the Python library and of the commands, and a gallery, as static pages.

    python deploy/site/build.py OUTPUT

The sources are gathered in a temporary folder with the layout of the project, so that links between its pages hold in both.
Warnings are errors: a link, an anchor or a name that does not exist fails the build. Links to other sites are not followed.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.cmd.build import build_main

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGES = (
    "README.md",
    "deploy/README.md",
    "benchmarks/README.md",
    ".github/CONTRIBUTING.md",
    "dfact/guides/*.md",
    "dfact/*/guides/*.md",
    "benchmarks/pictures/*.png",
    "deploy/site/static/*.svg",
)
"""Files that lie in the sources where they lie in the project."""


def gather(sources: Path) -> None:
    """Write all sources of the site to a folder."""
    from commands import commands
    from gallery import gallery
    from reference import reference

    for pattern in PAGES:
        for page in ROOT.glob(pattern):
            target = sources / page.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
    for page in (HERE / "conf.py", HERE / "index.md", *(HERE / "sections").glob("*.md")):
        shutil.copyfile(page, sources / page.name)
    shutil.copytree(HERE / "static", sources / "static")
    for folder, pages in (("reference", reference()), ("commands", commands())):
        (sources / folder).mkdir()
        for name, text in pages.items():
            (sources / folder / name).write_text(text)
    gallery(sources)


def main() -> int:
    """Build the site in the folder that the command line names, and return Sphinx's exit code."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    output = Path(sys.argv[1]).resolve()
    with TemporaryDirectory() as temporary:
        sources, trees = Path(temporary) / "sources", Path(temporary) / "trees"
        sources.mkdir()
        gather(sources)
        return build_main(["-b", "html", "-W", "--keep-going", "-n", "-q", "-d", str(trees), str(sources), str(output)])


if __name__ == "__main__":
    sys.exit(main())
