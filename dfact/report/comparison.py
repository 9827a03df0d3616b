"""Words for a comparison of groups, for the report and the terminal."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from dfact.models.item_tests import NEGLIGIBLE, SHARE, ItemTests
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


HEADINGS = {
    "effect": "effect (points)",
    "se": "SE (points)",
    "size": "effect (SD)",
    "p_adjusted": "adjusted p",
    "smd": "Mantel (points)",
    "class": "ETS class",
}
"""Headings with units of the table of items with differential functioning."""


def describe_groups(comparison: Comparison) -> str:
    """Return the groups with their sizes, and what the factors' figures come from."""
    sizes = ", ".join(f"{level} ({size})" for level, size in zip(comparison.levels, comparison.sizes, strict=True))
    clusters = f"; {comparison.n_clusters} clusters of rows taken as independent" if comparison.n_clusters else ""
    return f"groups of {comparison.by}: {sizes}{clusters}; {_describe_draws(comparison)}"


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
    """Return how many items have differential functioning, what they were measured against and tested with, or why there was no test."""
    tests, m = comparison.item_tests, len(comparison.items)
    mantel = f"Mantel's test was not possible, because {comparison.unscreened}."
    if comparison.mantel_tests is not None:
        flagged = int(comparison.mantel_tests["flagged"].sum())
        count = f"{flagged} {'difference' if flagged == 1 else 'differences'}"
        mantel = f"Mantel's test, which compares people with equal totals of a scale, finds {count} of class B or C."
    if comparison.effects is None or tests is None:
        return f"Not tested: the items at equal factors, because {comparison.untested}. {mantel}"
    several, found = tests.anchors.size > m, len(comparison.dif_items)
    by = "by one test" if comparison.mantel_tests is None else "that Mantel's test finds, too"
    texts = [
        f"Differential functioning (DIF) was found in {found} of {tests.anchors.size} {'differences of items' if several else 'items'}: an "
        f"effect of {NEGLIGIBLE:g} standard deviations (SD) or more at equal factors, at a false discovery rate of {SHARE:.0%}, {by}."
    ]
    names = comparison.effects.index.get_level_values(0).unique()
    for name, anchors, of_item in zip(names, tests.anchors.astype(bool), np.abs(tests.size), strict=True):
        largest = f"the largest estimate among them is {of_item[anchors].max():.2f} SD" if anchors.any() else ""
        which = f"{name}: " if several else ""
        texts.append(
            f"{which}{anchors.sum()} of {m} items show no significant difference ({largest}); the others are measured against them."
        )
    return " ".join([*texts, *_describe_numbers(tests, comparison.items, names), mantel])


def _describe_numbers(tests: ItemTests, items: Sequence[str], names: Collection[str]) -> list[str]:
    """Return with how many factors the items were tested, and what follows if they ask for more than the model has."""
    texts = []
    for name, found in zip(names, tests.of_numbers(items), strict=False):
        k, asked, which = found["model"], found["asked"], f" ({name})" if len(names) > 1 else ""
        if asked > k:
            texts.append(
                f"Not tested: the impact on the model's factors{which}, because the items ask for {asked} factors within the groups by "
                f"parallel analysis, and the model has {k}; compare with a model of {asked}."
            )
        numbers = _listed([str(number) for number in found["tested"]])
        texts.append(
            f"An item is listed if it differs with {numbers} factors{which}; p is the largest of these. {k} "
            f"{'factors leave' if k > 1 else 'factor leaves'} a correlation of up to {found['residual']:.2f} within the groups, of "
            f"{_listed(found['pair'])}."
        )
    return texts


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([part for part in (", ".join(texts[:-1]), texts[-1]) if part])


def comparison_text(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the comparison as text with its tables, for factors of these names."""
    parts = [describe_groups(comparison), _text(comparison.factors(names)), describe_columns(comparison)]
    impact = comparison.impact(names)
    if impact is not None and not impact["impact"].isna().all():
        parts += ["Differences of the groups in the factors, in standard deviations within the groups:", _text(impact)]
    parts.append(describe_dif(comparison))
    if len(comparison.dif_items):
        parts.append(_text(comparison.dif_items, HEADINGS))
    return escape_lines("\n\n".join(parts))


def _text(table: pd.DataFrame, headings: Mapping[str, str] | None = None) -> str:
    names = headings or {}
    formats = {names.get(name, name): style.format for name, style in FORMATS.items() if name in table}
    return table.rename(columns=names).to_string(formatters=formats)
