"""Drawings as images of an HTML report, in the colours of light and of dark pages."""

import base64
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

import numpy as np

from dfact.report.document import Drawing
from dfact.report.plots import new_figure

COLORS = ("#2f7fc1", "#cf6a24", "#2a9767", "#b04fae", "#8b7d1d", "#c9485f", "#7070d2", "#4b8d9c")
"""Colours of lines and bars, each with a contrast of at least 3 to light and dark pages."""
_LIGHT = {"#000000": "#1c1e21"}
_DARK = {"#000000": "#e4e6ea", "#ffffff": "#16181d", "#4c4c4c": "#b9bdc6", "#cccccc": "#5a5f69"}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dfact",  # equal models give equal files
    "text.parse_math": False,  # labels may contain dollar signs
    "text.usetex": False,
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
}
_RASTER_DPI = 144  # of collections with many marks
_MAX_MARKS = 200  # marks of one collection drawn as vectors; larger collections are rasterized
_FONTS = re.compile(r"font: ((?:\w+ )*)([\d.]+px) [^;\"]+")
_TAG = re.compile(r"<[^>]*>")
_INLINE_STYLE = re.compile(r' style="([^"]*)"')
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # characters that XML forbids


@dataclass(frozen=True)
class Picture:
    """An image for light and for dark pages, as data URIs."""

    light: str
    dark: str
    width: int
    height: int
    alt: str
    caption: str
    kind: ClassVar[str] = "picture"


def render(drawing: Drawing) -> Picture:
    """Draw a figure as SVG, once, and recolour it for light and dark pages."""
    new_figure(1, 1)  # raises an error if Matplotlib is not installed
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = BytesIO()
    with rc_context({**_STYLE, "axes.prop_cycle": cycler(color=COLORS)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # the browser has glyphs that Matplotlib's font lacks
        figure = drawing.draw()
        for axes in figure.axes:
            for marks in axes.collections:
                marks.set_rasterized(max(len(marks.get_paths()), np.size(marks.get_offsets(), 0)) > _MAX_MARKS)
            _plain_logarithms(axes.xaxis)
            _plain_logarithms(axes.yaxis)
        figure.set(dpi=_RASTER_DPI, facecolor="none")
        # savefig would draw twice: the first time only for the layout, which drawing includes.
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    svg = _CONTROL.sub("", out.getvalue().decode("utf-8", "replace"))
    svg = _share_styles(_FONTS.sub(r"font: \1\2 system-ui, sans-serif", svg[svg.index("<svg") :]))
    width, height = figure.get_size_inches() * 96
    return Picture(_data_uri(svg, _LIGHT), _data_uri(svg, _DARK), round(width), round(height), drawing.alt, drawing.caption)


def _share_styles(svg: str) -> str:
    """Replace styles that several elements repeat by classes: the marks of a figure have one style, written for each of them."""
    counts = Counter(style for tag in _TAG.findall(svg) for style in _INLINE_STYLE.findall(tag))
    names = {style: f"s{number}" for number, style in enumerate(style for style, count in counts.items() if count > 2)}

    def with_class(found: re.Match[str]) -> str:
        return f' class="{names[found[1]]}"' if found[1] in names else found[0]

    svg = _TAG.sub(lambda tag: _INLINE_STYLE.sub(with_class, tag[0]), svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    start = svg.index(">") + 1
    return f"{svg[:start]}<style>{rules}</style>{svg[start:]}" if rules else svg


def _plain_logarithms(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers, since labels are not parsed as formulas; label minor ticks below one decade."""
    if axis.get_scale() == "linear":
        return
    low, high = sorted(abs(limit) for limit in axis.get_view_interval())
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:.3g}" if low > 0 and high < 10 * low else "")


def _data_uri(svg: str, colors: dict[str, str]) -> str:
    """Replace the neutral colours and encode the SVG. Text gets its colour from a style, since SVG leaves the default black out."""
    for old, new in colors.items():
        svg = svg.replace(old, new)
    start = svg.index(">") + 1
    styled = f"{svg[:start]}<style>text{{fill:{colors['#000000']}}}</style>{svg[start:]}"
    return f"data:image/svg+xml;base64,{base64.b64encode(styled.encode()).decode()}"
