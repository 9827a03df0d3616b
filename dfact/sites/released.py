"""Sums that may leave a site: what they hold, and where they say how many rows are behind them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.driver import FusedSums
from dfact.engine.passes import PartialSums
from dfact.errors import FederationError
from dfact.models.binomial.growth import FigureSums
from dfact.models.pca.passes import HeldOutSquares

SUMS: Mapping[str, str] = {
    "alpha_sums": "sums of the changes of alpha without each row, and of their squares",
    "binomial_figures": "log likelihoods and gradients of allele frequencies, summed over rows; sums and moments of memberships",
    "binomial_counts": "numbers of observed genotypes",
    "binomial_deviance": "sums of deviances",
    "binomial_projection": "sums of log likelihoods",
    "binomial_start": "products of random numbers and genotypes, summed over rows",
    "binomial_step": "gradients and curvatures of allele frequencies, summed over rows",
    "binomial_totals": "sums of memberships",
    "binomial_value": "sums of log likelihoods",
    "binomial_window": "products of changes of memberships, summed over rows",
    "bounded_nmf": "products of row factors with one another and with the answers, summed over rows",
    "bounded_nmf_differences": "products of confounders with one another, with factors and with residuals, summed over rows",
    "bounded_nmf_rows": "sums of squares of residuals; moments of answers and of row factors",
    "column_parts": "which columns are connected by rows with entries in both",
    "counted_tables": "numbers of rows for each pair of answers to two items",
    "cp": "products of row factors with one another and with the data, summed over rows",
    "cp_growth": "products of row factors with one another and with the data, summed over rows; moments of row factors",
    "cp_rows": "sums of squared residuals",
    "cp_slices": "sums of squares of the data's slices",
    "cp_support": "numbers of row factors above zero",
    "cp_unfolding_grams": "products of the data's columns, summed over rows",
    "expectile": "products of row factors with one another and with the data, summed over rows",
    "expectile_growth": "products of row factors and gradients, summed over rows; moments of row factors",
    "expectile_rows": "sums of losses",
    "factor_scores": "moments of scores and of residuals",
    "fused": "the sums of several fits that share a pass",
    "item_sums": "sums and numbers of answers to the items, and of their products",
    "moments": "products of the columns, summed over rows",
    "nmf_divergence": "products of row factors and quotients, summed over rows",
    "nmf_divergence_rows": "sums of divergences",
    "nmf_losses": "sums of losses",
    "none": "nothing",
    "pca_columns": "sums and squares of the columns",
    "pca_expectation": "products of expected scores with one another and with the data, summed over rows",
    "pca_held_out": "sums of squared held-out errors",
    "pca_likelihood": "sums of log likelihoods",
    "pca_measured_scores": "moments of scores and of residuals",
    "pca_pairs": "products of the columns, summed over rows",
    "pca_residuals": "sums of squared residuals",
    "pca_scores": "products of scores, summed over rows",
    "squared_errors": "sums of squared held-out errors",
    "svd_gram": "products of the columns, summed over rows",
    "svd_product": "products of sketches and data, summed over rows",
    "svd_signs": "squares of positive and negative scores, summed over rows",
    "svd_tiles": "products of the columns' sketches",
    "weighted_moments": "weights, and products of the columns, summed over rows",
}
"""The sums that may leave a site by their names in messages and checkpoints, with what they hold. All others stay: sums that hold
single rows, such as rows that a search has found, and sums that have not been reviewed yet."""
WITHHELD: Mapping[str, str] = {"weighted_tables": "has sums of weights by cell, which do not tell how many rows are behind them"}
"""Reasons for sums that stay."""
COUNTS: Mapping[str, tuple[str, ...]] = {
    "alpha_sums": ("rows",),
    "counted_tables": ("rows",),
    "item_sums": ("counts",),
    "moments": ("counts", "rows"),
    "pca_columns": ("rows",),
    "pca_likelihood": ("rows",),
    "pca_pairs": ("counts", "rows"),
    "weighted_moments": ("counts", "rows"),
}
"""The fields of sums that hold the numbers of rows behind them, which missing answers make fewer than the rows of a pass."""


PRODUCTS = frozenset({"cp_unfolding_grams", "moments", "pca_pairs", "svd_gram", "weighted_moments"})
"""Sums with the products of all pairs of columns, which are those of every combination of columns."""
CONNECTIONS = frozenset({"column_parts"})
"""Sums that tell which columns rows connect, without the numbers of these rows."""


def check_counts(sums: PartialSums, rows: int) -> None:
    """Refuse numbers of rows behind sums that a site with so many rows cannot have."""
    for part, _ in flatten(sums, None):
        for name in COUNTS.get(part.checkpoint_name or "", ()):
            counts = np.asarray(getattr(part, name))
            if counts.size and not (counts.min() >= 0 and counts.max() <= rows):
                found = f"{name} of the sums has numbers of rows from {counts.min():g} to {counts.max():g}"
                raise FederationError(f"{found}, expected at most the {rows} rows that the site has stated")


def groups(sums: PartialSums) -> int:
    """Return the number of groups to which the rows of these sums are dealt."""
    figures = sums.log_likelihood if isinstance(sums, FigureSums) else sums.squares if isinstance(sums, HeldOutSquares) else np.empty(1)
    return max(1, figures.size)


def arrays_of(sums: PartialSums, broadcast: Any, n_items: int) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield the arrays of sums, each with the number of items that it is about: all, or those whose pairs it has."""
    for part, given in flatten(sums, broadcast):
        if isinstance(part, FusedSums):
            continue
        of_part = part.items_of(given)
        about = n_items if of_part is None else of_part
        for field in fields(part):
            yield np.asarray(getattr(part, field.name)), about


def flatten(sums: PartialSums, broadcast: Any) -> Iterator[tuple[PartialSums, Any]]:
    """Yield the sums with what their pass was given, and those of each fit if they are fused."""
    yield sums, broadcast
    if isinstance(sums, FusedSums):
        for part, given in zip(sums.parts, broadcast or [None] * len(sums.parts), strict=True):
            yield from flatten(part, given)
