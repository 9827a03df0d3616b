"""Drivers of solvers: one on its own, or many on the same data, whose passes are fused to share one read of every block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np

from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.passes import Block, Broadcast_contra, PartialSums, Pass, SampledPass, State, Sums_co, TiledPass, run_step
from dfact.engine.requests import BlockView, Memo, ReadEnvironments, ReadState, ReadTiles, RunPass, Solver, StepTiles
from dfact.engine.session import Arrays, Session, StateRows
from dfact.engine.tiles import TileBroadcast, split_sums

T = TypeVar("T")


def drive(solver: Solver[T], session: Session) -> T:
    """Run a solver in a session and return its result."""
    reply: Any = None
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = session.run(_viewed(request), request.broadcast) if isinstance(request, RunPass) else _answer(request, session, "")


def _answer(
    request: Memo | ReadState | StepTiles | ReadTiles | ReadEnvironments, session: Session, prefix: str, sums: Arrays | None = None
) -> Any:
    """Answer a request that runs no pass; ``prefix`` distinguishes the solvers that share the session, ``sums`` are those for a step."""
    if isinstance(request, Memo):
        return session.memo(prefix + request.name, request.compute)
    if isinstance(request, StepTiles):
        return session.step_tiles(request.step, request.given, prefix, sums)
    if isinstance(request, ReadTiles):
        return session.tiles(prefix + request.name, request.dtype)
    if isinstance(request, ReadEnvironments):
        return session.environments
    return StateRows(session, prefix + request.name)


@dataclass(frozen=True)
class ViewedPass(Pass[State, Broadcast_contra, Sums_co]):
    """Another pass on a view of each block."""

    view: BlockView
    pass_: Pass[State, Broadcast_contra, Sums_co]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.pass_.dtype

    @property
    def state_type(self) -> type[State]:
        return self.pass_.state_type

    def start(self, block: Block) -> State:
        return self.pass_.start(self.view(block))

    def step(self, block: Block, state: State, broadcast: Broadcast_contra) -> tuple[State, Sums_co]:
        return self.pass_.step(self.view(block), state, broadcast)


@dataclass(frozen=True)
class ViewedTiledPass(ViewedPass[State, Broadcast_contra, Any], TiledPass[State, Broadcast_contra, Any]):
    """A tiled pass on a view of each block."""

    pass_: TiledPass[State, Broadcast_contra, Any]

    @property
    def tiled(self) -> tuple[str, ...]:
        return self.pass_.tiled

    def zeros(self, n_columns: int) -> Any:
        return self.pass_.zeros(n_columns)

    def accumulate(self, block: Block, state: State, broadcast: Broadcast_contra, total: Any) -> State:
        return self.pass_.accumulate(self.view(block), state, broadcast, total)


def _viewed(request: RunPass) -> Pass[Any, Any, Any]:
    if request.view is None:
        return request.pass_
    if isinstance(request.pass_, TiledPass):
        return ViewedTiledPass(request.view, request.pass_)
    return ViewedPass(request.view, request.pass_)


def whole(block: Block) -> Block:
    """Return the block itself."""
    return block


@dataclass(frozen=True)
class FusedSolver(Generic[T]):
    """One of the solvers that share their reads."""

    solver: Solver[T]
    view: BlockView = whole
    """Its view of the data."""


@dataclass(frozen=True)
class Member:
    """One of the passes that are fused."""

    name: str
    """Name of the solver."""
    view: BlockView
    pass_: Pass[Any, Any, Any]


@dataclass
class FusedSums(PartialSums, name="fused"):
    """The sums of each member."""

    parts: list[Any]

    def accumulator(self) -> Self:
        return type(self)([part.accumulator() for part in self.parts])

    def add(self, other: Self) -> None:
        for part, other_part in zip(self.parts, other.parts, strict=True):
            part.add(other_part)


@dataclass(frozen=True)
class FusedPass(Pass[BlockState, Sequence[Any], FusedSums]):
    """The passes of several members on one read of each block. State: the arrays of each member, under names with its own as prefix."""

    members: tuple[Member, ...]
    dtype: np.dtype[Any] | None

    def step(self, block: Block, state: BlockState, broadcast: Sequence[Any]) -> tuple[BlockState, FusedSums]:
        # Members without a pass have finished, so their state is dropped.
        new: StateArrays = {}
        parts = []
        view: BlockView | None = None
        for member, member_broadcast in zip(self.members, broadcast, strict=True):
            prefix = f"{member.name}."
            arrays = {name.removeprefix(prefix): array for name, array in state.others.items() if name.startswith(prefix)}
            if member.view != view:  # consecutive members with the same view share the viewed block
                view, viewed = member.view, member.view(block)
            arrays, part = run_step(member.pass_, viewed, arrays, member_broadcast)
            new |= {prefix + name: array for name, array in arrays.items()}
            parts.append(part)
        return BlockState(others=new), FusedSums(parts)


@dataclass(frozen=True)
class SampledFusedPass(SampledPass[BlockState, Sequence[Any], FusedSums]):
    """The passes of several members over the same sample; the state of the other members stays as it is."""

    fused: FusedPass

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.fused.dtype

    def step(self, block: Block, state: BlockState, broadcast: Sequence[Any]) -> tuple[BlockState, FusedSums]:
        new, parts = self.fused.step(block, state, broadcast)
        names = {member.name for member in self.fused.members}
        others = {name: array for name, array in state.others.items() if name.split(".")[0] not in names}
        return BlockState(others=others | new.others), parts


def drive_together(
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
    requests: dict[int, RunPass] = {}
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
        samples = [pass_.partitions for number in numbers if isinstance(pass_ := requests[number].pass_, SampledPass)]
        if samples:
            numbers = [n for n in numbers if isinstance(pass_ := requests[n].pass_, SampledPass) and pass_.partitions == samples[0]]
        members = tuple(Member(_name(n), requests[n].view or solvers[n].view, requests[n].pass_) for n in numbers)
        fused = FusedPass(members, dtype)
        broadcasts = [_named(requests.pop(number).broadcast, f"{_name(number)}.") for number in numbers]
        sums = session.run(SampledFusedPass(samples[0], fused) if samples else fused, broadcasts)
        for number, member, part in zip(numbers, members, sums.parts, strict=True):
            tiled.pop(number, None)
            if isinstance(member.pass_, TiledPass):
                small, tiled[number] = split_sums(part, member.pass_.tiled)
                advance(number, small)
            else:
                advance(number, part)
    return [results[number] for number in range(len(solvers))]


def _named(broadcast: Any, prefix: str) -> Any:
    return replace(broadcast, name=prefix + broadcast.name) if isinstance(broadcast, TileBroadcast) else broadcast


def _name(number: int) -> str:
    return f"{number:06d}"
