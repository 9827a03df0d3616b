"""Words for a comparison of groups, for the report and the terminal."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dfact.models.provenance import Comparison
from dfact.text import escape_lines

FORMATS = {
    "congruence": "{:.3f}",
    "rotated": "{:.3f}",
    "centred": "{:.3f}",
    "population": "{:.3f}",
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
MARKS = {
    True: "From 0.95 on factors count as the same, below 0.85 as different.",
    False: "Unrelated non-negative loadings are congruent, too. From a centred congruence of 0.9 on factors count as the same, "
    "below 0.6 as different.",
}
"""Which congruences count as the same, of loadings with signs and of non-negative ones."""


def describe_groups(comparison: Comparison) -> str:
    """Return the groups with their sizes, and what the factors' figures come from."""
    sizes = ", ".join(f"{level} ({size})" for level, size in zip(comparison.levels, comparison.sizes, strict=True))
    return f"groups of {comparison.by}: {sizes}; {_describe_draws(comparison)}"


def describe_columns(comparison: Comparison) -> str:
    """Return what the columns of the table of factors are."""
    texts = []
    if comparison.rotated is not None:
        texts.append("rotated: after rotation to the model's factors, which p and the interval refer to")
    if comparison.centred is not None:
        texts.append("centred: less each item's mean over the factors")
    if not np.isnan(comparison.population).all():
        texts.append("population: estimate for the two populations, with its interval from low to high")
    return f"{'; '.join(texts).capitalize()}." if texts else ""


def _describe_draws(comparison: Comparison) -> str:
    """Return what the intervals and the tests of the factors are, and what they cannot show."""
    undetermined = np.isnan(comparison.low) | np.isnan(comparison.high)
    texts = [f"{comparison.n_resamples} draws"]
    if not undetermined.all():
        texts = [f"intervals of {comparison.level:.0%} from {comparison.n_resamples} draws"]
    if undetermined.any() and not undetermined.all():
        texts.append(f"{int(undetermined.sum())} ends of intervals (NaN) are not determined")
    if comparison.factors_untested:
        texts.append(f"no test of equal loadings: {comparison.factors_untested}")
    else:
        texts.append(f"p values of equal loadings, adjusted by Holm; the smallest possible one is {comparison.lowest_p:.3f}")
    return "; ".join(texts)


def describe_dif(comparison: Comparison) -> str:
    """Return how many items have differential functioning and which tests looked for them, or why no test was possible."""
    effects, mantel_tests, tests = comparison.effects, comparison.mantel_tests, comparison.item_tests
    mantel = f"Mantel's test was not possible, because {comparison.unscreened}"
    if mantel_tests is not None:
        mantel = f"Mantel's test within scales flags {int(mantel_tests['flagged'].sum())}"
    if effects is None or tests is None:
        which = "" if mantel_tests is None else " at equal factors"
        return f"No test of items{which} was possible, because {comparison.untested}; {mantel}."
    found = f"Of {len(comparison.items)} items, {len(comparison.dif_items)} have differential functioning (DIF)"
    anchors = f"{int(tests.anchors.sum())} of {tests.anchors.size} differences are anchors"
    return f"{found}: the test at equal factors flags {int(effects['flagged'].sum())}, {anchors}; {mantel}."


def comparison_text(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the comparison as text with its tables, for factors of these names."""
    parts = [describe_groups(comparison), _text(comparison.factors(names)), describe_columns(comparison)]
    impact = comparison.impact(names)
    if impact is not None:
        parts += ["Differences of the groups in the factors, in standard deviations within the groups:", _text(impact)]
    parts.append(describe_dif(comparison))
    if len(comparison.dif_items):
        parts.append(_text(comparison.dif_items))
    return escape_lines("\n\n".join(parts))


def _text(table: pd.DataFrame) -> str:
    return table.to_string(formatters={name: style.format for name, style in FORMATS.items() if name in table})
