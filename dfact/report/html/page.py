"""A document as one self-contained HTML page: it works offline, in light and dark, with sortable tables, and prints."""

import base64
import hashlib
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dfact.report.document import Document, Drawing, Section
from dfact.report.html.images import render


def render_page(document: Document) -> str:
    """Render the page. Its policy allows only its own style and script, by their digests, and images as data URIs."""
    page = files("dfact.report.html.assets")
    style, script = ((page / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((page / "report.html").read_text(encoding="utf-8")).render(
        title=document.title,
        kind=document.kind,
        version=version("dfact"),
        style=Markup(style),  # style and script are dfact's own files
        style_hash=_digest(style),
        script=Markup(script),
        script_hash=_digest(script),
        sections=[_with_images(section) for section in document.sections],
    )


def _with_images(section: Section) -> dict[str, Any]:
    """Return the fields of a section for the template, with its drawings rendered."""
    blocks = [render(block) if isinstance(block, Drawing) else block for block in section.blocks]
    return {"name": section.name, "title": section.title, "blocks": blocks}


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
