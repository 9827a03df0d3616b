"""What a fitted model says, as small tables and as text."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype

from dfact.data.layout import Layout

_STRONG = 0.5  # of w_max


def top_items(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The items with the highest loadings of each factor: columns ``factor``, ``item``, ``loading``, and ``text`` if given."""
    return _largest(model.loadings_, n, "factor", texts)


def confounder_effects(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The items on which each encoded confounder column has the largest effect, in units of the answers."""
    return _largest(model.confounder_loadings_, n, "confounder", texts)


def _largest(loadings: pd.DataFrame, n: int, column: str, texts: Mapping[str, str] | None) -> pd.DataFrame:
    """The n largest entries of each column, without zeros."""
    rows: list[dict[str, Any]] = []
    for name, values in loadings.items():
        largest = values[values > 0].nlargest(n)
        rows += [{column: name, "item": str(item), "loading": float(value)} for item, value in largest.items()]
    table = pd.DataFrame(rows, columns=[column, "item", "loading"])
    if texts is not None:
        table["text"] = [texts.get(item, "") for item in table["item"]]
    return table


def factor_shares(model: Any) -> pd.DataFrame:
    """For each factor the shares of participants for whom it is ``strong`` (at least half of w_max) and ``absent`` (0), and its ``mean``.

    Row factors in a store are read by chunks.
    """
    factors = model.factors_
    n, k = factors.shape
    sums = np.zeros((3, k))
    for rows in row_chunks(factors):
        W = rows.astype(np.float64)
        sums += [(_STRONG * model.w_max <= W).sum(axis=0), (W == 0).sum(axis=0), W.sum(axis=0)]
    return pd.DataFrame((sums / n).T, index=pd.Index(model.get_feature_names_out(), name="factor"), columns=["strong", "absent", "mean"])


def row_chunks(rows: Any) -> Iterator[NDArray[Any]]:
    """An array (n, k), or one that lies in a store, chunk by chunk."""
    step = Layout.of(rows.shape).chunk_rows
    for start in range(0, rows.shape[0], step):
        yield np.asarray(rows[start : start + step])


def summary(model: Any) -> "pd.Series[Any]":
    """Size and figures of the fit."""
    n, k = model.factors_.shape
    return pd.Series(
        {
            "participants": n,
            "items": len(model.column_labels_),
            "factors": k,
            "confounder columns": len(model.confounder_components_),
            "objective": float(model.objective_history_[-1]),
            "iterations": model.n_iter_,
            "converged": model.converged_,
            "remaining": model.remaining_,
            "explained share": model.explained_share_,
            "loadings at zero": float((model.components_ == 0).mean()),
        },
        dtype=object,
    )


def remaining_text(remaining: float) -> str:
    """Describe the estimated distance of the objective from its end; an empty text where there is no estimate."""
    return "" if isnan(remaining) else f", estimated within {100 * remaining:.1g}% of its end"


def summary_lines(model: Any) -> list[tuple[str, str]]:
    """Size and figures of the fit, each with its name."""
    s = summary(model)
    columns = f", {s['confounder columns']} confounder columns" if s["confounder columns"] else ""
    stopped = "converged after" if s["converged"] else "stopped before it converged, after"
    return [
        ("model", f"{type(model).__name__}, {s['factors']} factors of {s['participants']} participants × {s['items']} items{columns}"),
        ("fit", f"{stopped} {s['iterations']} iterations, objective {s['objective']:.6g}{remaining_text(s['remaining'])}"),
        ("explained", f"{s['explained share']:.1%} of the variance of the answers"),
        ("sparsity", f"{s['loadings at zero']:.1%} of the loadings are zero"),
    ]


def summary_text(model: Any, *more: tuple[str, str]) -> str:
    """The summary for people, and below it ``more`` lines (name, text)."""
    return aligned([*summary_lines(model), *more])


def factors_text(model: Any, n: int = 5, texts: Mapping[str, str] | None = None) -> str:
    """The top items under each factor."""
    shares, items = factor_shares(model), top_items(model, n, texts)
    headings = [f"{row.Index}: strong for {row.strong:.0%} of the participants, absent for {row.absent:.0%}" for row in shares.itertuples()]
    return _under_headings(headings, items, "factor", list(shares.index))


def confounders_text(model: Any, n: int = 3, texts: Mapping[str, str] | None = None) -> str:
    """The largest effects under each confounder column, and who counts as average for want of a value."""
    columns = list(model.confounder_loadings_)
    effects = _under_headings([f"{column}:" for column in columns], confounder_effects(model, n, texts), "confounder", columns)
    missing = model.confounder_encoding_.missing_counts()
    return effects + "".join(f"\nmissing {name} of {count} participants: taken as the average" for name, count in missing.items())


def _under_headings(headings: list[str], table: pd.DataFrame, column: str, names: list[str]) -> str:
    parts = []
    for heading, name in zip(headings, names, strict=True):
        rows = table[table[column] == name].drop(columns=column)
        parts.append(f"{heading}\n{indented(table_text(rows)) if len(rows) else '  no item'}")
    return "\n".join(parts)


def table_text(table: pd.DataFrame, *, header: bool = False) -> str:
    """Columns side by side: numbers to the right with two decimals, text to the left."""
    columns = []
    for name, values in table.items():
        numbers = is_numeric_dtype(values)
        cells = [escape_control(name)] * header + [
            f"{value:.2f}" if isinstance(value, float) else escape_control(value) for value in values
        ]
        width = max(map(len, cells), default=0)
        columns.append([cell.rjust(width) if numbers else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def aligned(lines: list[tuple[str, str]]) -> str:
    """Names and what they stand for, one a line; an empty name goes on with the one above."""
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:<{width}}{escape_control(text)}" for name, text in lines)


def escape_control(text: Any) -> str:
    """Text that does nothing to a terminal: a label may hold what moves its cursor or changes its title."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def indented(text: str) -> str:
    """Each line two columns further to the right."""
    return "\n".join(f"  {line}" for line in text.splitlines())
