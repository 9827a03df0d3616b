"""What an attacker has: sites of one process with the policy that ``dfact site join`` has without options, and what they have said."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.data.coerce import as_dataset
from dfact.errors import DfactError
from dfact.sites.contract import contract_of
from dfact.sites.in_process import InProcessSites
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.sessions import CoordinatorSession

Array = NDArray[Any]


@dataclass(frozen=True)
class Outcome:
    """Persons whose answers, or what was sought of them, were found exactly or to six digits, of those that were tried."""

    recovered: int
    tried: int
    stopped: str = ""
    """Words of the site, or why what left was of no use."""


@dataclass(frozen=True)
class Attack:
    """An attack in the table."""

    name: str
    honest: bool
    """Whether the coordinator runs dfact's own code, and only reads what it receives."""
    run: Callable[[], Outcome]
    audit: str
    """Figure of the audit of 6ce7c06, for attacks that were part of it."""
    quick: bool

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.run.__doc__ or "").split("\n")[0]


ATTACKS: dict[str, Attack] = {}


def attack(name: str, *, honest: bool, audit: str = "", quick: bool = False) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    """Put a function into the table of attacks."""

    def register(function: Callable[[], Outcome]) -> Callable[[], Outcome]:
        assert name not in ATTACKS, f"two attacks have the name {name}"
        ATTACKS[name] = Attack(name, honest, function, audit, quick)
        return function

    return register


def answers(n: int, m: int, seed: int, levels: int = 5) -> NDArray[np.float32]:
    """Return answers from 0 to levels − 1 of three factors."""
    rng = np.random.default_rng(seed)
    factors, loadings = rng.normal(size=(n, 3)), rng.uniform(0.3, 1, (3, m)) * (rng.random((3, m)) < 0.6)
    z = factors @ loadings + rng.normal(size=(n, m))
    return np.clip(np.rint(z + (levels - 1) / 2), 0, levels - 1).astype(np.float32) + np.float32(0)  # no negative zeros


@dataclass
class Coordinator:
    """The coordinator's end: it asks for fits, and reads what has arrived from each site."""

    sites: InProcessSites
    refused: list[str] = field(default_factory=list)
    """Words with which runs have ended early."""
    given: list[Any] = field(default_factory=list)
    """What each pass was given, such as the loadings, as the coordinator's own solver has computed it."""

    def fit(self, model: Any, **arguments: Any) -> Any:
        """Fit a model; None if the run has ended early."""
        return self._attempt(lambda: self.sites.fit(model, **arguments))

    def describe(self, **arguments: Any) -> Any:
        """Describe the data; None if the run has ended early."""
        return self._attempt(lambda: self.sites.describe(**arguments))

    def select(self, model: Any, grid: Mapping[str, Any], **arguments: Any) -> Any:
        """Select parameters; None if the run has ended early."""
        return self._attempt(lambda: self.sites.select(model, grid, **arguments))

    def _attempt(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except DfactError as error:
            self.refused.append(str(error))
            return None

    @property
    def words(self) -> str:
        """The first refusal, or that there was none."""
        return self.refused[0] if self.refused else "not refused"

    def forget(self, site: str = "north") -> None:
        """Forget what a site has sent so far."""
        kept = self.sites.connections[site].kept
        assert kept is not None, "all bytes are kept"
        kept.clear()
        self.given.clear()

    def messages(self, site: str = "north") -> Iterator[Message]:
        """Yield the messages of a site."""
        for data in list(self.sites.connections[site].kept or ()):
            yield Message.decode(data)

    def sums(self, kind: str, site: str = "north") -> list[Any]:
        """Return all sums of a kind that a site has sent, with their arrays by name."""
        found = []
        for message in self.messages(site):
            sums = message.fields["message"].get("sums") if message.fields["kind"] == "step" else None
            if sums is not None:
                parts = next((value for value in sums.values() if isinstance(value, list)), [sums])
                found += [_named(part, message) for part in parts if part["type"] == kind]
        return found


def _named(part: Mapping[str, Any], message: Message) -> Any:
    return SimpleNamespace(**{name: message.arrays[number] for name, number in part.items() if name != "type"})


@contextmanager
def coordinator(sites: Mapping[str, Any], **settings: Any) -> Iterator[Coordinator]:
    """Join sites with the default policy, and a contract of the data of all."""
    data = {name: as_dataset(each) for name, each in sites.items()}
    if "contract" not in settings:
        settings["contract"] = contract_of(as_dataset(np.vstack([np.asarray(each) for each in sites.values()])))
    given: list[Any] = []
    total = CoordinatorSession._total

    def noting(self: Any, request: Any) -> Any:
        given.append(request.broadcast)
        return total(self, request)

    CoordinatorSession._total = noting  # type: ignore[method-assign]
    try:
        with InProcessSites(data, policy=Policy(), wait=20, keep_bytes=True, **settings) as joined:
            yield Coordinator(joined, given=given)
    finally:
        CoordinatorSession._total = total  # type: ignore[method-assign]


def matches(found: Array, rows: Array) -> NDArray[np.intp]:
    """Return the numbers of the rows that equal what was found, to six digits."""
    equal = np.isclose(rows, found, rtol=1e-6, atol=1e-6) | (np.isnan(rows) & np.isnan(found))
    return np.flatnonzero(equal.all(axis=1))


def whole(values: Array, highest: int = 4) -> bool:
    """Return whether values are answers: whole numbers up to the highest, not all 0."""
    near = np.rint(values)
    return bool(np.abs(values - near).max() < 1e-4 and near.min() >= 0 and near.max() <= highest and near.any())
