"""Growth of a model as text and as a document: rows that were added, and how they differ."""

from __future__ import annotations

from typing import Any

from dfact.lazy import pd
from dfact.models.growth.drift import Drift
from dfact.text import escape_lines


def drift_text(model: Any, drift: Drift) -> str:
    """Describe how new rows differ: a line, and a table of the tests that reject."""
    table = drift.table(model.column_labels_, model.get_feature_names_out())
    words = model.vocabulary
    tests = int(table["p"].notna().sum())
    about = (
        f"{drift.rows:.0f} new {words.rows}, {tests} tests of {words.items} and {words.components}, familywise error rate {drift.level:g}"
    )
    if drift.clusters:
        about += f", {drift.clusters:.0f} clusters taken as independent"
    if not drift.found:
        return f"{about}: no drift"
    shown = drifted(table)
    formats = {"difference": "{:+.3f}".format, "adjusted_p": "{:.2g}".format}
    listed = shown.to_string(index=False, formatters=formats)
    return f"{about}: drift in {len(shown)}\n\n{escape_lines(listed)}"


def drifted(table: pd.DataFrame) -> pd.DataFrame:
    """Return what differs by the tests of a table of drift, the most significant first."""
    return table[table["drifted"]].sort_values("adjusted_p", kind="stable")[["of", "compared", "difference", "adjusted_p"]]


def drift_document(model: Any, drift: Drift) -> dict[str, Any]:
    """Describe the comparison of new rows with those that a model has seen."""
    table = drift.table(model.column_labels_, model.get_feature_names_out())
    return {"level": drift.level, "n_new": drift.rows, "n_clusters": round(drift.clusters), "drift": drift.found, "tests": table}


def growth_document(model: Any) -> dict[str, Any]:
    """Describe the rows that a model has seen, and what a complete fit would gain."""
    growth = model.growth_
    return {
        "fitted_rows": growth.fitted_rows,
        "added_rows": growth.added_rows,
        "gain": growth.gain_share,
        "gain_error": growth.gain_error,
        "refit": growth.gain.worth_a_fit,
    }


def growth_lines(model: Any) -> list[tuple[str, str]]:
    """Describe the rows that were added to a model in a line; none if there are none."""
    growth = getattr(model, "growth_", None)
    return [] if growth is None or growth.added_rows == 0 else [("growth", growth.describe())]
