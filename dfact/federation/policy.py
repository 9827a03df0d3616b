"""The policy of a site: what may leave it, and for whom."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np

from dfact.data.dataset import Dataset
from dfact.engine.driver import FusedSums
from dfact.engine.passes import PartialSums
from dfact.errors import FederationError, ParameterError
from dfact.models.binomial.growth import FigureSums
from dfact.psychometrics.polychoric import PairTables

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
}
"""The sums that may leave a site by their names in messages and checkpoints, with what they hold. All others stay: sums that hold
single rows, such as rows that a search has found, and sums that have not been reviewed yet."""


@dataclass(frozen=True)
class Policy:
    """The permissions that a site gives to a coordinator.

    A file in TOML has these fields, each optional.

    Parameters
    ----------
    models : tuple of str
        Names of the models that may be fitted; all by default.
    tasks : tuple of str
        What may be asked: "fit", "select" and "describe"; all by default.
    forbidden_sums : tuple of str
        Names of sums that do not leave although dfact's list of :data:`SUMS` permits them.
    min_rows : int
        Number of rows behind each sum, at least: of the data, of a pass over a sample of it, of the answers to an item, and of each
        level of a confounder.
    min_cell : int
        Number of rows behind each cell of a table of two items, at least, except empty cells.
    max_passes : int
        Number of passes over the rows for a coordinator, at most.
    extremes : bool
        Whether the lowest and the highest answer to each item leave. If not, ranges come from the contract.
    """

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("fit", "select", "describe")
    forbidden_sums: tuple[str, ...] = ()
    min_rows: int = 50
    min_cell: int = 10
    max_passes: int = 10_000
    extremes: bool = False

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Policy":
        """Read a policy from a file in TOML; raise ParameterError for other fields or types than those above."""
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ParameterError(f"there is no policy at {path}") from None
        except ValueError as error:
            raise ParameterError(f"the policy {path} is not TOML: {error}") from error
        known = {field.name: field.type for field in fields(cls)}
        for name, value in found.items():
            if name not in known:
                raise ParameterError(f"the policy {path} has the field {name!r}, expected some of {', '.join(known)}")
            kind: Any = known[name]
            listed = bool(get_args(kind))
            valid = isinstance(value, list) and all(isinstance(each, str) for each in value) if listed else type(value) is kind
            if not valid or (kind is int and value < 0):
                expected = "a list of texts" if listed else "true or false" if kind is bool else "a whole number of at least 0"
                raise ParameterError(f"{name} of the policy {path} is {value!r}, expected {expected}")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return cls(**values)

    def check_task(self, task: str, model: str | None) -> None:
        """Refuse a task that this policy does not name."""
        if task not in self.tasks:
            raise FederationError(f"the policy forbids to {task}; it allows {', '.join(self.tasks) or 'nothing'}")
        if self.models and model is not None and model not in self.models:
            raise FederationError(f"the policy forbids the model {model}; it allows {', '.join(self.models)}")

    def check_data(self, dataset: Dataset) -> None:
        """Refuse data of which sums would have too few rows behind them, before anything leaves."""
        n = dataset.shape[0]
        if n < self.min_rows:
            raise FederationError(f"the data has {n} rows, fewer than min_rows={self.min_rows} of the policy")
        observed = dataset.statistics.observed
        few = np.flatnonzero((observed > 0) & (observed < self.min_rows))
        if few.size:
            label = str(dataset.column_labels.reshape(-1)[few[0]]) if observed.size == len(dataset.column_labels) else str(few[0])
            found = f"column {label!r} has {observed[few[0]]} observed entries ({few.size} such columns)"
            raise FederationError(f"{found}, fewer than min_rows={self.min_rows} of the policy; leave it out")
        for each in dataset.confounder_summaries():
            for level, count in each.levels.items():
                if 0 < count < self.min_rows:
                    found = f"the level {level!r} of the confounder {each.name!r} has {count} rows"
                    raise FederationError(f"{found}, fewer than min_rows={self.min_rows} of the policy; merge it with another")

    def check_sums(self, sums: PartialSums, rows: int, what: str) -> None:
        """Refuse sums that may not leave. ``rows`` is the number of rows behind them, ``what`` the name of the pass."""
        for part in flatten(sums):
            name = part.checkpoint_name
            if name not in SUMS:
                raise FederationError(f"{what} returns {name or type(part).__name__!r}, which shows single rows or is not known not to")
            if name in self.forbidden_sums:
                raise FederationError(f"the policy forbids {what}: {SUMS[name]} do not leave")
            if isinstance(part, PairTables):
                self._check_cells(part, what)
            if isinstance(part, FigureSums):  # whose rows may be dealt to groups
                rows //= max(1, part.log_likelihood.size)
        if rows < self.min_rows:
            raise FederationError(f"{what} sums over {rows} rows, fewer than min_rows={self.min_rows} of the policy")

    def _check_cells(self, tables: PairTables, what: str) -> None:
        counts = tables.counts
        small = counts[(counts > 0) & (counts < self.min_cell)]
        if small.size:
            found = f"{what} has {small.size} cells of fewer than min_cell={self.min_cell} rows, the smallest of {small.min()}"
            raise FederationError(f"{found}, in tables of two items; merge rare levels in the data of all sites")


def flatten(sums: PartialSums) -> Iterator[PartialSums]:
    """Yield the sums, and those of each fit if they are fused."""
    yield sums
    if isinstance(sums, FusedSums):
        for part in sums.parts:
            yield from flatten(part)
