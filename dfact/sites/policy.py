"""The policy of a site: what may leave it, and for whom."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.data.weights import WeightSummary
from dfact.engine.passes import PartialSums, Released
from dfact.errors import FederationError, ParameterError
from dfact.lazy import pd
from dfact.sites.carriers import Carriers, carriers_of_confounder, carriers_of_entries, carriers_of_weights
from dfact.sites.leverage import Products, leverage_of_confounders
from dfact.sites.released import flatten
from dfact.sites.settings import SETTINGS
from dfact.sites.tasks import Task

_ROUNDING = 1e-9
_COMBINED = 5  # times max_share is that of a row in a combination of columns, as this may be chosen to fit the row


class WithheldError(FederationError):
    """A refusal whose details describe the data: they stay at the site, and the coordinator gets ``told`` alone."""

    def __init__(self, told: str, details: str) -> None:
        super().__init__(f"{told}: {details}")
        self.told = told


def words_that_leave(error: Exception) -> str:
    """Return what the coordinator may know of an error of a site: messages of other errors may quote labels and values of rows."""
    if isinstance(error, WithheldError):
        return error.told
    return str(error) if isinstance(error, FederationError) else f"it has failed ({type(error).__name__}); its own output says why"


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
        Names of sums that do not leave although their class declares that they may, by :class:`dfact.engine.passes.Released`.
    min_rows : int
        Number of rows behind each sum, at least: of the data, of a pass over a sample of it, of the answers to an item or to two, of
        each level of a confounder, and of each block of rows in cross-validation. Also the effective number of rows (Kish 1965) by
        their weights in a sum: factors, values of a continuous confounder, and survey weights, also of each level.
    min_cell : int
        Number of rows behind each cell of a table of two items, of two confounders, or of an item's lowest and highest answers, at
        least, except empty cells. A missing answer counts as a level: the sums over all rows less those over the rows with an answer
        are sums over the rows without. Also the number of rows with answers to both of two items that connect further ones. Also the
        effective number of rows by their answers to an item above its lowest answer, and below its highest one.
    rows_per_component : int
        Number of rows for each component of a model, at least: the sums of a component that few rows have are sums over these rows.
    max_share : float
        Share of one row in a sum of squares, at most: of its factor, its answer to an item, or its value of a confounder.
    max_numbers : float
        Numbers about an item that leave, in all runs, at most, as a share of the answers to the item: with as many numbers as answers,
        someone may solve for the answers.
    max_passes : int
        Number of passes over the rows whose sums leave while the site's program runs, at most.
    extremes : bool
        Whether the lowest and the highest answer to each item leave. If not, ranges come from the contract.
    max_refusals : int
        Number of refusals that the coordinator reads, in all runs, at most: each is an answer of one bit. Then the site does not join.
    max_contracts : int
        Number of different contracts that the site compares its data with, in all runs, at most.
    max_settings : int
        Number of settings of each model's penalties, expectile, ridge and random start, in all runs, at most: the sums of fits that differ
        in them differ by the persons whose factor reaches a bound, or whose residual changes its sign.
    ranges : dict of str to (low, high)
        Narrower ranges of numbers that a coordinator may set, by the name of the parameter, as a table ``[ranges]``. Without, those of
        :data:`dfact.sites.settings.SETTINGS` hold.
    """

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("fit", "select", "describe")
    forbidden_sums: tuple[str, ...] = ()
    min_rows: int = 50
    min_cell: int = 10
    rows_per_component: int = 10
    max_share: float = 0.1
    max_numbers: float = 0.05
    max_passes: int = 10_000
    extremes: bool = False
    max_refusals: int = 20
    max_contracts: int = 1
    max_settings: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

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
            if name == "ranges":
                found[name] = _ranges(value, path)
                continue
            kind: Any = known[name]
            listed = bool(get_args(kind))
            valid = isinstance(value, list) and all(isinstance(each, str) for each in value) if listed else type(value) is kind
            if kind is float:
                valid = type(value) in (int, float) and value >= 0
            if not valid or (kind is int and value < 0):
                names = {bool: "true or false", float: "a number of at least 0"}
                expected = "a list of texts" if listed else names.get(kind, "a whole number of at least 0")
                raise ParameterError(f"{name} of the policy {path} is {value!r}, expected {expected}")
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        return cls(**values)

    def check_task(self, task: Task, rows: int) -> None:
        """Refuse a task that this policy does not name, or whose sums would have too few of the site's ``rows`` behind them."""
        if task.kind not in self.tasks:
            raise FederationError(f"the policy forbids to {task.kind}; it allows {', '.join(self.tasks) or 'nothing'}")
        if self.models and task.model is not None and task.model not in self.models:
            raise FederationError(f"the policy forbids the model {task.model}; it allows {', '.join(self.models)}")
        task.check_settings(self.ranges)
        needed, each = task.n_components * self.rows_per_component, rows // task.row_blocks
        if needed > rows:
            found = f"{task.n_components} components need {needed} rows with rows_per_component={self.rows_per_component} of the policy"
            raise FederationError(f"{found}, and the site has {rows}")
        if task.kind == "select" and each < self.min_rows:
            found = f"n_blocks has {task.row_blocks} blocks of rows, each with {each} of this site"
            most = rows // max(1, self.min_rows)
            raise FederationError(f"{found}, fewer than min_rows={self.min_rows} of the policy; it allows {most} blocks")

    def check_data(self, dataset: Dataset) -> None:
        """Refuse data of which sums would have too few rows behind them, before anything leaves."""
        n = dataset.shape[0]
        if n < self.min_rows:
            raise WithheldError(f"the data has fewer rows than min_rows={self.min_rows} of the policy", f"it has {n}")
        observed = dataset.statistics.observed.reshape(-1)
        few = np.flatnonzero((observed > 0) & (observed < self.min_rows))
        if few.size:
            label = str(dataset.column_labels.reshape(-1)[few[0]]) if observed.size == len(dataset.column_labels) else str(few[0])
            told = f"a column has fewer observed entries than min_rows={self.min_rows} of the policy, and more than none"
            raise WithheldError(told, f"column {label!r} has {observed[few[0]]} ({few.size} such columns); leave it out")
        self._check_missing("an answer", n - observed, "who skipped a question")
        self._check_missing("any answer", np.asarray(dataset.statistics.n_empty_rows), "without answers")
        for each in dataset.confounder_summaries():
            self._check_missing("a confounder", np.asarray(each.n_missing), f"without {each.name!r}")
            counts = dict(each.levels) or {"values": each.n_rows - each.n_missing}
            for level, count in counts.items():
                if 0 < count < self.min_rows:
                    told = f"a level of a confounder, or a continuous one, has fewer rows than min_rows={self.min_rows} of the policy"
                    raise WithheldError(told, f"{level!r} of {each.name!r} has {count} rows; merge it with another")
        self._check_pairs(dataset.confounders)
        self._check_weights(dataset)
        self._check_values(dataset)
        if dataset.confounders is not None:
            self.check_leverage(leverage_of_confounders(dataset), "the confounders")

    def _check_missing(self, lacked: str, counts: NDArray[Any], who: str) -> None:
        """Refuse data that a few rows lack: sums over all rows less those over the others are theirs."""
        if self._is_small(counts):
            told = f"fewer rows than min_cell={self.min_cell} of the policy lack {lacked}, and more than none"
            raise WithheldError(told, f"{counts[(counts > 0) & (counts < self.min_cell)].min()} {who}; leave them out, or what they lack")

    def _check_values(self, dataset: Dataset) -> None:
        """Refuse items that are the same for all but a few rows, and continuous confounders that are."""
        m = dataset.statistics.observed.size
        found = self._carried(carriers_of_entries(dataset), self.min_cell)
        if found is not None:
            number, details = found
            shown = str(dataset.column_labels.reshape(-1)[number % m]) if m == len(dataset.column_labels) else str(number % m)
            told = f"a column is the same for all but a few rows: min_cell={self.min_cell} or max_share={self.max_share:g} of the policy"
            raise WithheldError(told, f"{shown!r} {details}; leave it out, or merge it with another")
        weights = None if dataset.weights is None else dataset.weights.to_numpy()
        for each in dataset.confounder_summaries():
            if each.levels or dataset.confounders is None:
                continue
            limits = dataset.confounder_ranges.get(each.name)
            ends = (each.minimum, each.maximum) if limits is None else (limits.low, limits.high)
            found = self._carried(carriers_of_confounder(dataset.confounders[each.name], *ends, weights), self.min_rows)
            if found is not None:
                told = f"few rows decide a continuous confounder: min_rows={self.min_rows} or max_share={self.max_share:g} of the policy"
                raise WithheldError(told, f"{each.name!r} {found[1]}; leave it out, or make it a level of many rows")

    def _carried(self, carriers: Carriers, least: int) -> tuple[int, str] | None:
        """Return the first column of sums that fewer effective rows carry, or that one row dominates, in words; None without."""
        effective, shares = carriers.effective, carriers.shares
        bad = np.flatnonzero((effective < least * (1 - _ROUNDING)) | (shares > self.max_share * (1 + _ROUNDING)))
        if not bad.size:
            return None
        return int(bad[0]), f"has {effective[bad[0]]:.1f} effective rows, and a row with {shares[bad[0]]:.1%} of the squares"

    def check_carriers(self, carriers: Carriers, what: str) -> None:
        """Refuse sums weighted by factors that few rows have, or that one row dominates."""
        found = self._carried(carriers, self.min_rows)
        if found is not None:
            told = f"few rows carry the factors in {what}: min_rows={self.min_rows} or max_share={self.max_share:g} of the policy"
            raise WithheldError(told, f"column {found[0]} {found[1]}; fewer components, or a smaller penalty")

    def check_products(self, products: Products, what: str) -> None:
        """Refuse products of columns of which a combination is 0 for all rows but a few, or that are tables with cells of a few rows."""
        self.check_leverage(products.leverage, what)
        if self._is_small(products.cells):
            few = int(((products.cells > 0) & (products.cells < self.min_cell)).any(axis=0).sum())
            told = f"two items with two values have a cell of fewer rows than min_cell={self.min_cell} of the policy, in {what}"
            raise WithheldError(told, f"{few} pairs of items have; leave out rare items, or lower min_cell if such numbers may leave")

    def check_connections(self, few: Sequence[str], what: str) -> None:
        """Refuse to tell which columns are connected if fewer rows than those of a cell connect these ``few`` with others."""
        if few:
            told = f"fewer rows than min_cell={self.min_cell} of the policy connect columns, and more than none, in {what}"
            raise WithheldError(told, f"{few[0]!r} and others ({len(few)} such columns); leave out these rows, or the columns")

    def check_leverage(self, largest: float, what: str) -> None:
        """Refuse products of columns if a combination of these is 0 for all rows but a few."""
        if largest > _COMBINED * self.max_share * (1 + _ROUNDING):
            told = f"a combination of columns is 0 for all but a few rows, in {what}: max_share={self.max_share:g} of the policy"
            found = f"a row has {largest:.1%} of its squares, expected at most {_COMBINED * self.max_share:.0%}"
            raise WithheldError(told, f"{found}; leave out one of two columns that are almost the same, or correct the row")

    def _check_weights(self, dataset: Dataset) -> None:
        """Refuse weights with which few rows decide sums over many: of all rows, or of those of a level of a confounder."""
        if dataset.weights is None:
            return
        weights, confounders = dataset.weights.to_numpy(), dataset.confounders
        if not weights.all():
            told = "some rows have weight 0, so that they do not count in sums"
            raise WithheldError(told, f"there are {np.count_nonzero(weights == 0)}; leave them out")
        groups = {"all rows": np.full(len(weights), True)}
        for name, values in () if confounders is None else confounders.items():
            if isinstance(values.dtype, pd.CategoricalDtype):
                groups |= {f"{level!r} of {name!r}": (values == level).to_numpy() for level in values.cat.categories}
        for group, rows in groups.items():
            if rows.any() and (effective := WeightSummary.of(weights[rows]).effective) < self.min_rows:
                told = f"the weights give an effective number of rows below min_rows={self.min_rows} of the policy"
                raise WithheldError(told, f"{effective:.1f} for {group}; trim the largest weights")
            if rows.any() and (found := self._carried(carriers_of_weights(weights[rows]), self.min_rows)) is not None:
                told = f"few rows have other weights than the rest: min_rows={self.min_rows} or max_share={self.max_share:g} of the policy"
                raise WithheldError(told, f"in {group}, less some constant, the weight {found[1]}; leave the weights out, or trim them")

    def _check_pairs(self, confounders: "pd.DataFrame | None") -> None:
        """Refuse levels of two confounders that few rows have in common: the products of confounders hold their numbers."""
        if confounders is None:
            return
        levels = [name for name in confounders.columns if isinstance(confounders[name].dtype, pd.CategoricalDtype)]
        for first, second in combinations(levels, 2):
            table = pd.crosstab(confounders[first].cat.codes, confounders[second].cat.codes).to_numpy()  # a missing value has a code
            if self._is_small(table):
                told = f"levels of two confounders have fewer rows in common than min_cell={self.min_cell} of the policy"
                raise WithheldError(told, f"{first!r} and {second!r}; merge levels")

    def check_sums(self, sums: PartialSums, rows: int, what: str, broadcast: Any = None) -> None:
        """Refuse sums that may not leave.

        ``rows`` is the number of rows behind them, ``what`` the name of the pass, and ``broadcast`` what the pass was given.
        """
        for part, given in flatten(sums, broadcast):
            name = part.checkpoint_name or type(part).__name__
            declared = part.disclosure
            if not isinstance(declared, Released):
                reason = "does not declare that it shows no single rows" if declared is None else declared.reason
                raise FederationError(f"{what} returns {name!r}, which {reason}")
            if name in self.forbidden_sums:
                raise FederationError(f"the policy forbids {what}: {declared.content} do not leave")
            groups = 1 if declared.groups is None else max(1, np.size(getattr(part, declared.groups)))
            counts = [np.asarray(rows // groups), *(np.asarray(getattr(part, field)) for field in declared.counts)]
            behind = min((int(each[each > 0].min()) for each in counts if (each > 0).any()), default=0)
            if behind < self.min_rows:
                told = f"{what} sums over fewer rows than min_rows={self.min_rows} of the policy"
                raise WithheldError(told, f"over {behind}; rows with missing answers do not count in all sums")
            if any(map(self._is_small, part.cells(given))):
                told = f"{what} has cells of fewer rows than min_cell={self.min_cell} of the policy"
                raise WithheldError(
                    told, f"in {declared.content}, where a missing answer is a level; merge rare levels in the data of all sites"
                )

    def _is_small(self, cells: NDArray[Any]) -> bool:
        return bool(((cells > 0) & (cells < self.min_cell)).any())


def _ranges(found: Any, path: str | PathLike[str]) -> dict[str, tuple[float, float]]:
    """Return the table of ranges of a policy; raise ParameterError if it is not one."""
    known = {name for settings in SETTINGS.values() for name, setting in settings.items() if setting.low <= setting.high}
    for name, limits in found.items() if isinstance(found, dict) else [("", found)]:
        numbers = isinstance(limits, list) and len(limits) == 2 and all(type(each) in (int, float) for each in limits)
        if name not in known or not numbers or not limits[0] <= limits[1]:
            expected = f"a table of [LOW, HIGH] by parameter, some of {', '.join(sorted(known))}"
            raise ParameterError(f"ranges of the policy {path} has {name!r} = {limits!r}, expected {expected}")
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}
