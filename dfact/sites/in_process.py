"""Sites in one process: each in a thread of its own, with messages in memory, to try a federation and to test it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from dfact.data.coerce import as_dataset
from dfact.errors import DfactError
from dfact.sites.coordinator import Hub, Run, SitesBase
from dfact.sites.description import Description
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site


@dataclass
class MemoryConnection:
    """A connection whose messages are encoded and decoded, as over a network, and counted."""

    hub: Hub
    name: str
    sent: int = 0
    received: int = 0
    messages: int = 0
    kept: list[bytes] | None = field(default=None, repr=False)
    """All bytes that have left the site, if they are wanted."""

    def call(self, message: Message) -> Message:
        data = message.encode()
        self.sent, self.messages = self.sent + len(data), self.messages + 1
        if self.kept is not None:
            self.kept.append(data)
        answer = self.hub.answer(self.name, Message.decode(data)).encode()
        self.received += len(answer)
        return Message.decode(answer)


class InProcessSites(SitesBase):
    """Datasets of one process as sites.

    Parameters
    ----------
    datasets : dict of str to dataset
        Data of each site by its name.
    policy : Policy, optional
        Policy of all sites.
    executors : dict of str to executor, optional
        Where sites run their passes, as estimators take it; by default a single thread.
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        *,
        policy: Policy | None = None,
        policies: Mapping[str, Policy] | None = None,
        contract: Description | None = None,
        wait: float = 60,
        keep_bytes: bool = False,
        checkpoints: Mapping[str, str | PathLike[str]] | None = None,
        logs: Mapping[str, str | PathLike[str]] | None = None,
        executors: Mapping[str, Any] | None = None,
    ) -> None:
        self._hub = Hub(list(datasets), wait=wait, contract=contract)
        self._run = Run(self._hub)
        self.results: dict[str, Any] = {}
        """The last result of each site."""
        self.failures: dict[str, str] = {}
        self.connections = {name: MemoryConnection(self._hub, name, kept=[] if keep_bytes else None) for name in datasets}
        sites = {
            name: Site(
                name,
                as_dataset(data),
                self.connections[name],
                policy=(policies or {}).get(name, policy),
                executor=(executors or {}).get(name, "inline"),
                checkpoint=(checkpoints or {}).get(name),
                log=(logs or {}).get(name),
            )
            for name, data in datasets.items()
        }
        self._threads = [threading.Thread(target=self._serve, args=(name, site), daemon=True) for name, site in sites.items()]
        for thread in self._threads:
            thread.start()

    def _serve(self, name: str, site: Site) -> None:
        try:
            site.join()
        except DfactError as error:
            self.failures[name] = str(error)
            return
        while True:
            try:
                run = site.next_task()
            except DfactError as error:
                self.failures[name] = str(error)
                return
            if run is None:
                return
            try:
                self.results[name] = site.carry_out(run)[1]
            except DfactError as error:
                self.failures[name] = str(error)

    def close(self) -> None:
        super().close()
        for thread in self._threads:
            thread.join()
