"""The gate of a site: the one way out for sums, with its policy and its ledger."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.dataset import Dataset
from dfact.engine.passes import PartialSums
from dfact.errors import FederationError
from dfact.sites.carriers import Carriers
from dfact.sites.connections import connected_by_few, separates
from dfact.sites.ledger import Ledger
from dfact.sites.leverage import Products, products_of
from dfact.sites.policy import Policy
from dfact.sites.released import arrays_of, declared
from dfact.sites.row_sets import RowSets, deal_rows
from dfact.sites.tasks import Task


class Gate:
    """The way of sums out of a site: its policy and its ledger, applied to its data."""

    def __init__(self, policy: Policy, ledger: Ledger, dataset: Dataset) -> None:
        self._policy, self._ledger, self._dataset, self._passes = policy, ledger, dataset, 0
        observed = dataset.statistics.observed.reshape(-1)
        self._rows, self._items = dataset.shape[0], observed.size
        self._answers = int(observed[observed > 0].min(initial=self._rows))
        """Number of answers to the item that has the fewest."""
        self._samples: set[tuple[int, ...]] = set()
        """First rows of the slices of samples that the ledger has admitted."""

    @cached_property
    def _row_sets(self) -> RowSets:
        return RowSets(self._dataset, self._ledger.key)

    @cached_property
    def _products(self) -> Products:
        return products_of(self._dataset)

    @cached_property
    def _connected_by_few(self) -> list[str]:
        return connected_by_few(self._dataset, self._policy.min_cell)

    def admit_data(self) -> None:
        """Refuse data whose rows differ from those of an earlier result in a few."""
        for what, digests in self._row_sets.at_joining():
            self._ledger.admit(what, digests, self._policy.min_rows)

    def admit_task(self, task: Task) -> NDArray[np.intp] | None:
        """Refuse a task that looks at almost the rows of an earlier result. Returns the block of each row in cross-validation."""
        for what, digests in self._row_sets.of_task(task):
            self._ledger.admit(what, digests, self._policy.min_rows)
        self._ledger.pin_settings(str(task.model), task.deciding_settings(), self._policy.max_settings)
        if task.kind != "select":
            return None
        self._ledger.pin_blocks(task.row_blocks)
        blocks = deal_rows(self._dataset.row_labels, self._ledger.key, task.row_blocks)
        for what, digests in self._row_sets.of_blocks(blocks):
            self._ledger.admit(what, digests, self._policy.min_rows)
        return blocks

    def check(
        self, sums: PartialSums, slices: Sequence[slice], what: str, broadcast: Any = None, carriers: Carriers | None = None
    ) -> dict[str, Any]:
        """Refuse sums over slices of the rows that the policy does not permit, and more passes and numbers than it permits.

        Returns what the log says of them: the effective rows behind them, the largest share of one row in a sum of squares, and the numbers
        about an item that have left with them, in all runs. See :meth:`Policy.check_sums`.
        """
        if self._passes >= self._policy.max_passes:
            raise FederationError(f"the policy allows {self._policy.max_passes} passes, and {what} would be one more")
        rows = sum(each.stop - each.start for each in slices)
        self._policy.check_sums(sums, rows, what, broadcast)
        for part, about in declared(sums):
            if about.connections is not None:
                self._policy.check_connections(self._connected_by_few, what)
                if separates(getattr(part, about.connections).astype(np.int64), self._dataset):
                    raise FederationError(f"{what} would tell which columns are connected without the entries that a fold holds out")
        if any(about.products for _, about in declared(sums)):
            self._policy.check_products(self._products, f"the products of columns in {what}")
        details: dict[str, Any] = {}
        if carriers is not None and carriers.squares.size:
            self._policy.check_carriers(carriers, what)
            effective, share = float(carriers.effective.min()), float(carriers.shares.max())
            details = {"effective_rows": round(min(effective, rows), 1), "largest_share": round(share, 4)}
        if rows < self._rows and (firsts := tuple(each.start for each in slices)) not in self._samples:
            self._ledger.admit("a sample", self._row_sets.of_slices(slices), self._policy.min_rows)
            self._samples.add(firsts)
        spent = self._ledger.spend(arrays_of(sums, broadcast, self._items), self._policy.max_numbers * self._answers)
        self._passes += 1
        return {**details, "numbers_about_an_item": round(spent, 1), "share_of_answers": round(spent / self._answers, 4)}
