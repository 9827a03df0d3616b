"""Words for a comparison of groups, for the report and the terminal."""

from collections.abc import Sequence

import pandas as pd

from dfact.models.provenance import Comparison
from dfact.text import escape_lines

FORMATS = {
    "congruence": "{:.3f}",
    "low": "{:.3f}",
    "high": "{:.3f}",
    "p": "{:.3f}",
    "p_adjusted": "{:.3f}",
    "impact": "{:.2f}",
    "difference": "{:.3f}",
    "effect": "{:.3f}",
    "se": "{:.3f}",
    "size": "{:.2f}",
    "smd": "{:.3f}",
    "chi_square": "{:.2f}",
}
"""Formats of numbers by column."""


def describe_groups(comparison: Comparison) -> str:
    """Return the groups with their sizes, and what the factors' figures come from."""
    sizes = ", ".join(f"{level} ({size})" for level, size in zip(comparison.levels, comparison.sizes, strict=True))
    tests = f"p values of {comparison.n_permutations} permutations" if comparison.n_permutations else "no permutations"
    return f"groups of {comparison.by}: {sizes}; intervals of {comparison.level:.0%} from {comparison.n_resamples} resamples, {tests}"


def describe_screens(comparison: Comparison) -> str:
    """Return how many items favour a group and which tests looked for them, or why no test was possible."""
    effects, screen, tests = comparison.effects, comparison.screen, comparison.item_tests
    mantel = f"Mantel's test was not possible, because {comparison.unscreened}"
    if screen is not None:
        mantel = f"Mantel's test within scales flags {int(screen['flagged'].sum())}"
    if effects is None or tests is None:
        which = "" if screen is None else " at equal factors"
        return f"No test of items{which} was possible, because {comparison.untested}; {mantel}."
    found = f"Of {len(comparison.items)} items, {len(comparison.findings)} favour a group"
    anchors = f"{int(tests.anchors.sum())} of {tests.anchors.size} differences are anchors"
    return f"{found}: the test at equal factors flags {int(effects['flagged'].sum())}, {anchors}; {mantel}."


def comparison_text(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the comparison as text with its tables, for factors of these names."""
    parts = [describe_groups(comparison), _text(comparison.factors(names))]
    impact = comparison.impact(names)
    if impact is not None:
        parts += ["Differences of the groups in the factors, in standard deviations within the groups:", _text(impact)]
    parts.append(describe_screens(comparison))
    if len(comparison.findings):
        parts.append(_text(comparison.findings))
    return escape_lines("\n\n".join(parts))


def _text(table: pd.DataFrame) -> str:
    return table.to_string(formatters={name: style.format for name, style in FORMATS.items() if name in table})
