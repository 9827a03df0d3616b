"""Tables in APA style as one HTML page, from which they can be copied into a word processor."""

from collections.abc import Sequence
from importlib.metadata import version

from markupsafe import Markup, escape

from dfact.questionnaires.apa.table import ApaTable
from dfact.report.html.page import load_template


def render_tables(tables: Sequence[ApaTable]) -> str:
    """Render a page of tables, numbered from 1. Its policy allows only its own style."""
    template, assets = load_template("apa.html", "dfact.questionnaires.apa", style="apa.css")
    return template.render(tables=tables, version=version("dfact"), emphasized=emphasized, **assets)


def emphasized(text: str) -> Markup:
    """Put the parts of a text between asterisks in italics."""
    parts = (Markup("<i>{}</i>").format(part) if i % 2 else escape(part) for i, part in enumerate(text.split("*")))
    return Markup().join(parts)
