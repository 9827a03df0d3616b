"""A document as one self-contained HTML page: it works offline, in light and dark, with sortable tables, and prints."""

import base64
import hashlib
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from dfact.report.document import Document, Drawing, Section
from dfact.report.html.images import render


def render_page(document: Document) -> str:
    """Render the page. Its policy allows only its own style and script, by their digests, and images as data URIs."""
    template, assets = load_template("report.html", style="report.css", script="report.js")
    sections = [_with_images(section) for section in document.sections]
    return template.render(title=document.title, kind=document.kind, version=version("dfact"), sections=sections, **assets)


def load_template(name: str, package: str = "dfact.report.html.assets", **assets: str) -> tuple[Template, dict[str, Any]]:
    """Load a template, which escapes what it shows, and the texts and digests of its assets, which are dfact's own files."""
    folder = files(package)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    texts = {kind: (folder / asset).read_text(encoding="utf-8") for kind, asset in assets.items()}
    digests = {f"{kind}_hash": _digest(text) for kind, text in texts.items()}
    template = environment.from_string((folder / name).read_text(encoding="utf-8"))
    return template, {kind: Markup(text) for kind, text in texts.items()} | digests


def _with_images(section: Section) -> dict[str, Any]:
    """Return the fields of a section for the template, with its drawings rendered."""
    blocks = [render(block) if isinstance(block, Drawing) else block for block in section.blocks]
    return {"name": section.name, "title": section.title, "blocks": blocks}


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
