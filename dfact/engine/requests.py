"""Solvers as generators, which yield requests, and their drivers, which have a session answer these.

A helper of a solver is a generator too, and is called by ``yield from``::

    def solver(max_iter):
        for _ in range(max_iter):
            sums = yield from run(pass_, broadcast)
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.column_map import ColumnFunction, ColumnMap
from dfact.engine.environment import Environment
from dfact.engine.passes import Block, BlockView, PartialSums, Pass, Released, RunPass, TiledPass
from dfact.engine.session import Arrays, Session, StateRows
from dfact.engine.tiles import TileBroadcast, TileStep, split_sums

P = TypeVar("P", bound=PartialSums)
B = TypeVar("B")
T = TypeVar("T")


@dataclass(frozen=True)
class Memo:
    """A request for the result of ``compute``, which a resumed fit reads from its checkpoint; see :meth:`Session.memo`."""

    name: str
    compute: Callable[[], Arrays]


@dataclass(frozen=True)
class ReadState:
    """A request for a state array by rows, to be read before the next pass."""

    name: str


@dataclass(frozen=True)
class StepTiles:
    """A request for the small sums of a step on every tile of columns, which gets the tiled sums of the pass before it."""

    step: TileStep
    given: Mapping[str, NDArray[Any]]
    """Arrays (…, columns) by name, of which each tile gets its columns."""


@dataclass(frozen=True)
class ReadTiles:
    """A request for a state array of the tiles as one array."""

    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ReadEnvironments:
    """A request for the environments of the processes that took part so far."""


Request = RunPass[Any] | Memo | ReadState | StepTiles | ReadTiles | ReadEnvironments | ColumnMap
Solver = Generator[Request, Any, T]
"""A generator of requests that returns a T."""


def run(
    pass_: Pass[Any, B, P],
    broadcast: B | TileBroadcast,
    view: BlockView | None = None,
    *,
    sample: tuple[int, ...] | None = None,
    reset: bool = False,
) -> Solver[P]:
    """Run a pass as a :class:`~dfact.engine.passes.RunPass` says, and return its sums; those that are tiled come without columns."""
    sums: P = yield RunPass(pass_, broadcast, view, sample, reset)
    return sums


def memo(name: str, compute: Callable[[], Arrays]) -> Solver[Arrays]:
    """Return the result of ``compute``, or the recorded one."""
    arrays: Arrays = yield Memo(name, compute)
    return arrays


def state_rows(name: str) -> Solver[StateRows]:
    """Return a state array by rows, to be read before the next pass."""
    rows: StateRows = yield ReadState(name)
    return rows


def step_tiles(step: TileStep, given: Mapping[str, NDArray[Any]] | None = None) -> Solver[Any]:
    """Run a step on every tile of columns and return its small sums, added up in the order of the tiles.

    The first step after a tiled pass gets its sums. ``given`` contains arrays (…, columns), of which each tile gets its columns.
    """
    sums = yield StepTiles(step, given or {})
    return sums


def map_columns(function: ColumnFunction, given: Mapping[str, NDArray[Any]], *, column_seconds: float) -> Solver[NDArray[Any]]:
    """Return a function of arrays (…, columns), which is called for tiles of columns, on workers if there is enough work."""
    array: NDArray[Any] = yield ColumnMap(function, given, column_seconds)
    return array


def read_tiles(name: str, dtype: np.dtype[Any]) -> Solver[NDArray[Any]]:
    """Return a state array of the tiles (…, columns)."""
    array: NDArray[Any] = yield ReadTiles(name, dtype)
    return array


def read_environments() -> Solver[list[Environment]]:
    """Return the environments of the processes that took part so far."""
    found: list[Environment] = yield ReadEnvironments()
    return found


def drive(solver: Solver[T], session: Session) -> T:
    """Run a solver in a session and return its result."""
    reply: Any = None
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = session.run(request) if isinstance(request, RunPass) else _answer(request, session, "")


def _answer(
    request: Memo | ReadState | StepTiles | ReadTiles | ReadEnvironments | ColumnMap,
    session: Session,
    prefix: str,
    sums: Arrays | None = None,
) -> Any:
    """Answer a request that runs no pass; ``prefix`` distinguishes the solvers that share the session, ``sums`` are those for a step."""
    if isinstance(request, Memo):
        return session.memo(prefix + request.name, request.compute)
    if isinstance(request, StepTiles):
        return session.step_tiles(request.step, request.given, prefix, sums)
    if isinstance(request, ReadTiles):
        return session.tiles(prefix + request.name, request.dtype)
    if isinstance(request, ColumnMap):
        return session.map_columns(request)
    if isinstance(request, ReadEnvironments):
        return session.environments
    return StateRows(session, prefix + request.name)


@dataclass(frozen=True)
class FusedSolver(Generic[T]):
    """One of the solvers that share their reads."""

    solver: Solver[T]
    view: BlockView | None = None
    """Its view of the data; None for the data as it is."""


@dataclass(frozen=True)
class Member:
    """One of the passes that are fused."""

    name: str
    """Name of the solver."""
    request: RunPass[Any]
    """Request of the solver, without its broadcast."""


@dataclass
class FusedSums(PartialSums, name="fused", disclosure=Released("the sums of several fits that share a pass")):
    """The sums of each member."""

    parts: list[Any]

    def accumulator(self) -> Self:
        return type(self)([part.accumulator() for part in self.parts])

    def count_gathered(self) -> None:
        for part in self.parts:
            part.count_gathered()

    def add(self, other: Self) -> None:
        for part, other_part in zip(self.parts, other.parts, strict=True):
            part.add(other_part)


@dataclass(frozen=True)
class FusedPass(Pass[BlockState, Sequence[Any], FusedSums]):
    """The passes of several members on one read of each block. State: the arrays of each member, under names with its own as prefix."""

    members: tuple[Member, ...]
    dtype: np.dtype[Any] | None
    keeps_others: bool = False
    """Whether solvers without a member keep their state, as they wait for the members' sample. Otherwise they have finished."""

    def step(self, block: Block, state: BlockState, broadcast: Sequence[Any]) -> tuple[BlockState, FusedSums]:
        old: dict[str, StateArrays] = {}
        for name, array in state.others.items():
            member_name, _, own_name = name.partition(".")
            old.setdefault(member_name, {})[own_name] = array
        new: dict[str, StateArrays] = {}
        parts = []
        view, viewed = None, block
        for member, member_broadcast in zip(self.members, broadcast, strict=True):
            request = member.request
            if request.view != view:  # consecutive members with the same view share the viewed block
                view, viewed = request.view, block if request.view is None else request.view(block)
            own = replace(request, view=None, broadcast=member_broadcast)
            new[member.name], part = own.step(viewed, old.pop(member.name, {}))
            parts.append(part)
        kept = (old if self.keeps_others else {}) | new
        arrays = {f"{name}.{own_name}": array for name, states in kept.items() for own_name, array in states.items()}
        return BlockState(others=arrays), FusedSums(parts)


def run_fused(
    solvers: Sequence[FusedSolver[T]],
    session: Session,
    dtype: np.dtype[Any],
    on_result: Callable[[int, T], None] = lambda _, __: None,
) -> list[T]:
    """Run solvers that share their reads, with blocks of this type, and return their results.

    Each fused pass consists of the next pass of every solver. ``on_result(number, result)`` is called when a solver ends, before
    the next fused pass, which drops the solver's state.
    """
    results: dict[int, T] = {}
    requests: dict[int, RunPass[Any]] = {}
    tiled: dict[int, Arrays] = {}  # sums of the solvers' last passes, for their steps on tiles

    def advance(number: int, reply: Any) -> None:
        """Send a reply to a solver and answer its requests, up to the next one for a pass."""
        while True:
            try:
                request = solvers[number].solver.send(reply)
            except StopIteration as end:
                results[number] = end.value
                on_result(number, end.value)
                return
            if isinstance(request, RunPass):
                requests[number] = request
                return
            sums = tiled.pop(number, None) if isinstance(request, StepTiles) else None
            reply = _answer(request, session, f"{_name(number)}.", sums)

    for number in range(len(solvers)):
        advance(number, None)
    while requests:
        numbers = sorted(requests)
        # Sampled passes first: a pass over all blocks waits until all solvers have requested one.
        sample = next((requests[n].sample for n in numbers if requests[n].sample is not None), None)
        numbers = [n for n in numbers if requests[n].sample == sample]
        own = [replace(requests[n], view=requests[n].view or solvers[n].view) for n in numbers]
        members = tuple(Member(_name(n), request.with_broadcast(None)) for n, request in zip(numbers, own, strict=True))
        broadcasts = [_named(requests.pop(n).broadcast, f"{_name(n)}.") for n in numbers]
        fused = FusedPass(members, dtype, keeps_others=sample is not None)
        sums = session.run(RunPass(fused, broadcasts, sample=sample))
        for number, member, part in zip(numbers, members, sums.parts, strict=True):
            tiled.pop(number, None)
            if isinstance(member.request.pass_, TiledPass):
                small, tiled[number] = split_sums(part, member.request.pass_.tiled)
                advance(number, small)
            else:
                advance(number, part)
    return [results[number] for number in range(len(solvers))]


def _named(broadcast: Any, prefix: str) -> Any:
    return replace(broadcast, name=prefix + broadcast.name) if isinstance(broadcast, TileBroadcast) else broadcast


def _name(number: int) -> str:
    return f"{number:06d}"
