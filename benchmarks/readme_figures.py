"""Pictures of the tour: run its commands in a temporary folder and take screenshots of the report.

    python -m benchmarks.readme_figures

It needs Chromium on the PATH and Playwright, and writes to ``benchmarks/pictures``.
"""

import shlex
import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

TOUR = Path(__file__).resolve().parents[1] / "dfact" / "guides" / "tour.md"
PICTURES = Path(__file__).resolve().parent / "pictures"
COLORS = 128


def tour() -> list[str]:
    """Return the commands of the tour, and before them the demo whose data they use."""
    section = TOUR.read_text().split("## Five steps in the shell")[1].split("\n## ")[0].replace("\\\n", " ")
    return ["dfact demo", *(line for line in section.splitlines() if line.startswith("dfact "))]


def screenshots(page: Path) -> dict[str, bytes]:
    """Return screenshots of the factors and the loadings in the report."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no Chromium on the PATH")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1000, "height": 4000})
        opened.goto(page.as_uri())
        found = {"factors": opened.locator("#top").screenshot(), "loadings": opened.locator("#loadings figure picture").first.screenshot()}
        browser.close()
    return found


def save(content: bytes, name: str) -> None:
    """Write a picture with few colours, to keep the file small."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    Image.open(BytesIO(content)).convert("RGB").quantize(COLORS).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for command in tour():
            print(f"$ {command}")
            subprocess.run(shlex.split(command), cwd=folder, check=True)
        found = {"errors": (folder / "errors.png").read_bytes(), **screenshots(folder / "survey.html")}
    for name, content in found.items():
        save(content, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
