"""Sessions of a fit across sites: the same passes everywhere, on the rows of a site, and on none at the coordinator.

Every site and the coordinator run the same solver. It depends on the data only through the sums of passes, so it needs the same
passes everywhere. A site sums over its own partitions, in its own tree, and contributes the root. The coordinator adds the roots in
the order of the sites, and returns the total. These are the sums of :func:`dfact.concatenate`, bit for bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.block_state import CheckpointedState, PartitionStates
from dfact.engine.column_map import ColumnMap
from dfact.engine.environment import Environment, current_environment, distinct
from dfact.engine.memory_plan import Plan, WorkerResources, make_plan
from dfact.engine.partitions import Leaves, Partitions, TreeSum
from dfact.engine.passes import PartialSums, RunPass, TiledPass
from dfact.engine.requests import FusedPass
from dfact.engine.session import Arrays, CheckpointableSession, Executor
from dfact.engine.threads import single_threaded
from dfact.engine.tiles import TileStates, TileStep, n_columns, split_sums
from dfact.errors import FederationError
from dfact.sites.carriers import CarriedPass, Carriers, CarriersPass, is_weighted
from dfact.sites.exchange import RECORDED, Exchange
from dfact.sites.gate import Gate
from dfact.sites.messages import Message, short
from dfact.sites.packing import check_finite, check_same_shape, packed_message, unpacked
from dfact.sites.released import check_counts

P = TypeVar("P", bound=PartialSums)
_TILED = "tiled"
"""Prefix of the streams of a checkpoint with tiled sums."""


class Channel(Protocol):
    """A site's way to the coordinator."""

    def contribute(self, step: int, message: Message, rows: int = 0, details: Mapping[str, Any] | None = None) -> Message:
        """Log a contribution to a step with the number of rows behind it and ``details``, send it, and return the total."""
        ...


@dataclass
class Steps:
    """The number of steps of a run so far, over all of its sessions."""

    count: int = 0


class _FederatedSession(CheckpointableSession):
    """Base of the sessions of sites and of the coordinator, with the number of the step and the tiled sums of all sites.

    A checkpoint records the totals of passes without their tiled sums. Processes save their versions one after the other, so a fault may
    leave one a tiled pass behind another. So each version also has the tiled sums since the one before it, which are then sent again.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._tiled: dict[int, Arrays] = {}
        """Tiled sums of all sites by step: of the last pass, and of one before it that no version holds yet."""
        self._pending = False
        """Whether those of the last pass wait for a step on tiles; until then no version is saved."""
        self._unsaved = False

    def run(self, request: RunPass[P]) -> P:
        if not self._pending:
            self._tiled = {}  # by now, every process has saved a version with them
        total, step, pass_ = self._total(request), self._steps.count, request.pass_
        self._steps.count += 1
        self._pending = isinstance(pass_, TiledPass)
        if not isinstance(pass_, TiledPass):
            return total
        small: Any
        small, self._tiled[step] = split_sums(total, pass_.tiled)
        self._unsaved = True
        result: P = small
        return result

    def _total(self, request: RunPass[P]) -> P:
        """Return the total of a pass over all sites."""
        raise NotImplementedError

    def _with_tiled(self, recorded: PartialSums) -> PartialSums:
        """Return the total of this step, which a checkpoint has recorded, with its tiled sums if they are there."""
        return replace(recorded, **self._tiled.get(self._steps.count, {}))

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        self._unsaved, states = False, PartitionStates(len(self._tiled))
        for step, arrays in self._tiled.items():
            states.put(step, [arrays])
        return [saved for step in self._tiled if (saved := states.save([step], group, f"{_TILED}-{step:06d}")) is not None]

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        for state in states:
            [[self._tiled[state.first]]] = state

    @property
    def save_due(self) -> bool:
        return self._unsaved  # else versions could be several tiled passes apart

    def step_tiles(
        self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str = "", sums: Mapping[str, NDArray[Any]] | None = None
    ) -> PartialSums:
        if sums is None:
            sums = self._tiled[self._steps.count - 1] if self._pending else {}
            self._pending = False
        return self._run_step(step, given, prefix, sums)

    def _run_step(self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str, sums: Mapping[str, NDArray[Any]]) -> PartialSums:
        raise NotImplementedError


class SiteSession(_FederatedSession):
    """The session of a site on its own partitions. The gate decides what leaves.

    The ``inner`` session has these ``partitions`` alone, numbered from 0; in the data of all, the first one has the number ``first``.
    """

    def __init__(
        self, inner: CheckpointableSession, partitions: Partitions, first: int, steps: Steps, channel: Channel, gate: Gate
    ) -> None:
        super().__init__(steps)
        self._inner, self._partitions, self._first, self._channel, self._gate = inner, partitions, first, channel, gate
        self.tile_states = inner.tile_states

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._inner.__exit__(kind, error, trace)

    def _total(self, request: RunPass[P]) -> P:
        what, own = pass_name(request), self._own(request)
        slices = self._slices(own)
        if slices:
            sums, carriers = self._carried(own)
            sums.count_gathered()
            details = self._gate.check(sums, slices, what, request.broadcast, carriers)
            message = packed_message(sums, what)
            rows = sum(each.stop - each.start for each in slices)
            reply = self._channel.contribute(self._steps.count, message, rows, details)
            _require_tiled(reply, request, "the checkpoint of the coordinator is ahead of this site")
            check_same_shape(reply, message)
            check_finite(reply)
        else:
            reply = self._channel.contribute(self._steps.count, Message({"kind": "nothing", "pass": what}))
        total: P = unpacked(reply)
        return total

    def _carried(self, own: RunPass[Any]) -> tuple[Any, Carriers]:
        """Run a pass over the rows of this site; return its sums, and what carries them."""
        if not isinstance(own.pass_, TiledPass):
            both = self._inner.run(replace(own, pass_=CarriedPass.of(own.pass_)))
            return both.sums, both.carriers
        sums = self._inner.run(own)
        sums = replace(sums, **self._inner.tiled_sums())
        return sums, self._inner.run(RunPass(CarriersPass(is_weighted(own.pass_)), sample=own.sample))

    def _own(self, request: RunPass[P]) -> RunPass[P]:
        """Return a request with the numbers that sampled partitions of this site have here, without those of other sites."""
        if request.sample is None:
            return request
        numbers = (number - self._first for number in request.sample)
        return replace(request, sample=tuple(number for number in numbers if number in self._partitions.numbers))

    def _slices(self, request: RunPass[Any]) -> list[slice]:
        """Return the rows of this site that the sums of its own request cover."""
        p = self._partitions
        return [slice(0, p.source.shape[0])] if request.sample is None else [p.layout.rows(number, number + 1) for number in request.sample]

    def replayed(self, sums: PartialSums) -> None:
        reply = self._channel.contribute(self._steps.count, RECORDED)
        if reply.fields.get("kind") == "send":  # the coordinator has lost the total
            rows = self._partitions.source.shape[0]
            total = self._with_tiled(sums)
            details = self._gate.check(total, [slice(0, rows)], "recorded")
            self._channel.contribute(self._steps.count, packed_message(total, "recorded"), rows, details)
        self._steps.count += 1

    def _run_step(self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str, sums: Mapping[str, NDArray[Any]]) -> PartialSums:
        return self._inner.step_tiles(step, given, prefix, sums)

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        return self._inner.rows(name)

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        return self._inner.write_rows(name, convert, target)

    def map_columns(self, request: ColumnMap) -> NDArray[Any]:
        return self._inner.map_columns(request)

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        return [*super().save(group), *self._inner.save(group)]

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        super().restore([state for state in states if state.stream.startswith(_TILED)])
        self._inner.restore([state for state in states if not state.stream.startswith(_TILED)])

    @property
    def save_due(self) -> bool:
        return super().save_due or self._inner.save_due

    @property
    def environments(self) -> list[Environment]:
        return self._inner.environments


class CoordinatorSession(_FederatedSession):
    """The session of the coordinator, which has no rows: it adds up what the sites contribute."""

    def __init__(self, exchange: Exchange, sites: Mapping[str, int], steps: Steps, layout: Layout, columns: int) -> None:
        super().__init__(steps)
        self._exchange, self._sites, self._layout = exchange, sites, layout
        self.tile_states = TileStates(columns)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        # The coordinator's own matrix products would give other bits with more threads.
        self._stack.enter_context(single_threaded())
        self._stack.callback(self.tile_states.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _total(self, request: RunPass[P]) -> P:
        what = pass_name(request)
        found = self._exchange.collect(self._steps.count)
        recorded = next((site for site in self._sites if found[site].fields.get("kind") == "recorded"), None)
        message = self._add(found, request, what) if recorded is None else self._exchange.ask(recorded)
        _require_tiled(message, request, f"the checkpoint of site {recorded} is ahead of the coordinator")
        total: P = unpacked(message)
        self._exchange.publish(message)
        return total

    def replayed(self, sums: PartialSums) -> None:
        self._exchange.publish(packed_message(self._with_tiled(sums), "recorded"))
        self._steps.count += 1

    def _add(self, found: Mapping[str, Message], request: RunPass[Any], what: str) -> Message:
        """Add the roots of the sites' trees, in the order of the sites."""
        for site in self._sites:
            if found[site].fields.get("pass") != what:
                raise FederationError(
                    f"site {site} runs the pass {short(found[site].fields.get('pass'))}, expected {what!r}; are its versions the same?"
                )
        ranges = self._layout.partition_ranges
        sampled = request.partitions(self._layout.n_partitions)
        taking = [site for site, own in zip(self._sites, ranges, strict=True) if any(number in own for number in sampled)]
        leaves = Leaves.of(sampled, ranges)
        total: TreeSum[PartialSums] = TreeSum(leaves)
        for number, site in enumerate(taking):
            if found[site].fields.get("kind") != "sums":
                raise FederationError(f"site {site} sends nothing for the pass {what}, expected the sums over its rows")
            try:
                check_finite(found[site])
                sums = unpacked(found[site])
                check_same_shape(found[site], found[taking[0]])
                check_counts(sums, self._sites[site])
                total.add((leaves.segment_depth, number), sums)
            except FederationError as error:
                raise FederationError(f"site {site}: {error}") from error
        return packed_message(total.result, what)

    def _run_step(self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str, sums: Mapping[str, NDArray[Any]]) -> PartialSums:
        return self.tile_states.run(step, given, prefix, sums, lambda _: {}, lambda function, items: list(map(function, items)))

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        return iter(())

    @property
    def environments(self) -> list[Environment]:
        return distinct([current_environment()])


class SiteExecutor:
    """The executor of a site: another one on its own partitions, and the exchange with the coordinator.

    ``memory`` is what all processes of the run plan with, so that they form the same passes, and ``own`` what the site's passes may use.
    """

    kind = "site"

    def __init__(self, inner: Executor, own: WorkerResources, memory: WorkerResources, channel: Channel, gate: Gate) -> None:
        self._inner, self._own, self._memory, self._channel, self._gate = inner, own, memory, channel, gate
        self._steps = Steps()

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return self._memory

    def open(self, partitions: Partitions, plan: Plan) -> SiteSession:
        [segment] = [segment for segment in partitions.segments if segment.source.present_rows]
        own = segment.alone()
        local = make_plan(own.source, plan.dtype, plan.footprint, self._own, own.layout)
        local.check()
        return SiteSession(self._inner.open(own, local), own, segment.first, self._steps, self._channel, self._gate)


class CoordinatorExecutor:
    """The executor of the coordinator; ``memory`` is that of the sites, which are given with their numbers of rows."""

    kind = "sites"

    def __init__(self, exchange: Exchange, sites: Sequence[tuple[str, int]], memory: WorkerResources) -> None:
        self._exchange, self._sites, self._memory = exchange, dict(sites), memory
        self._steps = Steps()

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        return self._memory

    def open(self, partitions: Partitions, plan: Plan) -> CoordinatorSession:
        return CoordinatorSession(self._exchange, self._sites, self._steps, partitions.layout, n_columns(partitions.source))


def pass_name(request: RunPass[Any]) -> str:
    """Return the name of a pass; of fused passes, each name once."""
    pass_ = request.pass_
    if isinstance(pass_, FusedPass):
        names = dict.fromkeys(type(member.request.pass_).__name__ for member in pass_.members)
        return f"{len(pass_.members)} fits: {', '.join(names)}"
    return type(pass_).__name__


def _require_tiled(total: Message, request: RunPass[Any], found: str) -> None:
    """Refuse the total of a tiled pass that a checkpoint has recorded without its tiled sums."""
    if isinstance(request.pass_, TiledPass) and any(array.shape[-1:] == (0,) for array in total.arrays):
        text = f"{found} by more than one pass, and has no longer the sums by columns of {pass_name(request)}"
        raise FederationError(f"{text}; delete the checkpoints of this fit at all sites and at the coordinator, and start it again")
