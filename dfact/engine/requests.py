"""Solvers as generators: they yield requests, which :mod:`dfact.engine.driver` has a session answer.

A helper of a solver is a generator too, and is called by ``yield from``::

    def solver(max_iter):
        for _ in range(max_iter):
            sums = yield from run(pass_, broadcast)
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from dfact.engine.passes import Block, PartialSums, Pass
from dfact.engine.session import Arrays, StateRows

P = TypeVar("P", bound=PartialSums)
B = TypeVar("B")
T = TypeVar("T")

BlockView = Callable[[Block], Block]
"""A function that returns a solver's view of a block. It is sent to workers, so it must be a module's function or a dataclass."""


@dataclass(frozen=True)
class RunPass:
    """A request for the sums of a pass."""

    pass_: Pass[Any, Any, Any]
    broadcast: Any
    view: BlockView | None = None
    """View of the blocks for this pass alone, instead of the solver's."""


@dataclass(frozen=True)
class Memo:
    """A request for the result of ``compute``, which a resumed fit reads from its checkpoint; see :meth:`Session.memo`."""

    name: str
    compute: Callable[[], Arrays]


@dataclass(frozen=True)
class ReadState:
    """A request for a state array by rows, to be read before the next pass."""

    name: str


Request = RunPass | Memo | ReadState
Solver = Generator[Request, Any, T]
"""A generator of requests that returns a T."""


def run(pass_: Pass[Any, B, P], broadcast: B, view: BlockView | None = None) -> Solver[P]:
    """Run a pass over all rows and return its sums."""
    sums: P = yield RunPass(pass_, broadcast, view)
    return sums


def memo(name: str, compute: Callable[[], Arrays]) -> Solver[Arrays]:
    """Return the result of ``compute``, or the recorded one."""
    arrays: Arrays = yield Memo(name, compute)
    return arrays


def state_rows(name: str) -> Solver[StateRows]:
    """Return a state array by rows, to be read before the next pass."""
    rows: StateRows = yield ReadState(name)
    return rows
