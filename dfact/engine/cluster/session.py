"""The driver's side of a session on a Dask cluster: passes, the owners of partitions, recovery of lost workers, balance."""

import logging
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.engine.block_state import CheckpointedState, StateArrays
from dfact.engine.cluster.handshake import SessionEnvironments, driver_fields, run_task
from dfact.engine.cluster.journal import Journal
from dfact.engine.cluster.placement import Tree, build_call_tree, overlaps, split_runs, subtract_runs
from dfact.engine.cluster.reservation import Reservation, least_rest
from dfact.engine.cluster.rows import ChunkOfRows, WrittenRows, marker
from dfact.engine.cluster.scaling_demand import request_workers
from dfact.engine.cluster.transport import Pickled, packed, unpacked
from dfact.engine.cluster.watchdog import Watchdog
from dfact.engine.cluster.worker_shard import Report, Share
from dfact.engine.cluster.workers import Retry, SessionWorker, SessionWorkers, WorkersLost
from dfact.engine.column_map import ColumnMap, SolveTile
from dfact.engine.environment import Environment, computed_in, environments_from
from dfact.engine.memory_plan import Plan, WorkerResources, cluster_workers
from dfact.engine.partitions import Leaves, Node, Partitions, TreeSum, consecutive
from dfact.engine.passes import PartialSums, RunPass, TiledPass
from dfact.engine.session import Arrays, CheckpointableSession
from dfact.engine.threads import single_threaded
from dfact.engine.tiles import Tile, TileStates, TileStep, add_small, collect_sums, group_leaves, group_partitions, n_columns, tile_total
from dfact.errors import ClusterError
from dfact.monitoring import metrics

if TYPE_CHECKING:
    from distributed import Client

P = TypeVar("P", bound=PartialSums)
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
_ROWS_BYTES = 1 << 24  # size of the rows in one message to the driver
_TILES_BYTES = 1 << 26  # size of the tiles' states that the driver sends at once
_POLL_WORKERS_SECONDS = 1.0  # time between two checks for workers that have joined
_PARTITIONS_PER_THREAD = 4  # an adaptive cluster is asked for one thread per this number of partitions
# Partitions move if passes take this factor longer than with partitions in proportion to speed, and at least this many seconds
# longer, in this number of consecutive passes. Speeds measured in passes shorter than these seconds are not used.
_IMBALANCE, _MIN_GAIN_SECONDS, _MIN_PASSES = 1.25, 0.02, 3
_SMOOTHING = 0.25  # weight of the last pass in a worker's speed: other load on its machine varies
_COOLDOWN = 10  # minimum number of passes between two moves on up to 100 workers; in proportion on more, as each gets a message
logger = logging.getLogger("dfact.cluster")


class ClusterSession(CheckpointableSession):
    """A session with a shard on each worker, whose sums are combined along a tree of workers.

    The driver keeps a journal of all passes since the last checkpoint. When a worker is lost, the others divide its
    partitions among them, start these from the checkpoint and run the journal's passes for them alone. Then the interrupted
    pass is requested again; workers that have finished it reply from memory. So the bits are the same.
    """

    def __init__(self, client: "Client", partitions: Partitions, plan: Plan) -> None:
        self._client, self._partitions, self._layout = client, partitions, partitions.layout
        size = partitions.layout, plan.resident_states, plan.resident_values, plan.resident_sums
        self._workers = SessionWorkers(client, size, Reservation.of(plan))
        self._journal = Journal()
        self._saved: list[CheckpointedState] = []
        self._done = self._epoch = 0
        self._sent = b""
        """The pickled pass that all workers have received."""
        self._trees: tuple[bool, list[Tree[Share]]] | None = None
        """Whether the driver calls each worker itself, and the tree, or trees, of calls under the current assignment."""
        self._behind = False
        """Whether passes must be repeated for some partitions."""
        self._handed_over: list[dict[Node, PartialSums]] = []
        """Sums that workers handed over when they left in the current pass, by the keys of their shards."""
        self._summands: Sequence[int] = ()
        """The partitions of the current pass, in the order of its sums."""
        self._uneven_passes = self._cooldown = 0
        self._next_poll = 0.0
        self._group_size = 1
        """Number of partitions in a group, once a pass was tiled: workers own complete groups."""
        self.tile_states = TileStates(n_columns(partitions.source))
        self._pending = self._stateless = False
        """Whether the sums of the last pass wait for a step on tiles, and whether no partition had a state after it."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(metrics.fit())
            stack.enter_context(self._journal)
            # The driver's own matrix products would give other bits with more threads.
            stack.enter_context(single_threaded())
            stack.enter_context(request_workers(self._client, len(self._partitions) // _PARTITIONS_PER_THREAD))
            stack.callback(self.tile_states.close)
            stack.callback(self._workers.close)
            self._workers.add(self._workers.available())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # Passes

    def run(self, request: RunPass[P]) -> P:
        self._update_workers()
        if self.save_due and self._saved and self._journal.base == self._done:
            logger.warning("All workers are leaving; the checkpoint holds their state, and the fit waits for other workers")
            self._workers.release(self._workers.all)
        # Sums that wait for a step cannot move, and a worker that is leaving stays for it.
        self._pending = isinstance(request.pass_, TiledPass)
        if self._pending:
            self._align_groups()
        self._journal.append(packed(request.with_broadcast(None)), packed(self.tile_states.resolve(request.broadcast)))
        self._summands, self._handed_over = request.partitions(len(self._partitions)), []
        leaves = group_leaves(self._layout) if self._pending else Leaves.of(self._summands, self._layout.partition_ranges)
        sums, report = self._with_recovery(lambda: self._run_passes([self._done + 1], leaves))
        self._done += 1
        metrics.add(fit_passes=1)
        self._workers.end_pass()
        self._stateless = report.stateless
        if not self._pending:  # lost sums that wait for a step are computed again from the journal
            self._clear_stateless()
        if len(self._summands) == len(self._partitions):
            self._update_speeds(report)
        result: P = sums.result
        return result

    def _clear_stateless(self) -> None:
        if self._stateless:
            self._saved = []
            self._journal.clear(self._done)

    def step_tiles(
        self, step: TileStep, given: Mapping[str, NDArray[Any]], prefix: str = "", sums: Mapping[str, NDArray[Any]] | None = None
    ) -> PartialSums:
        if sums is not None:
            return self.tile_states.run(step, given, prefix, sums, lambda _: {}, lambda work, numbers: [work(number) for number in numbers])
        small: list[PartialSums] = []
        for number, (state, part) in enumerate(self._step_all(step, lambda number: self.tile_states.tile(number, {}, given, prefix))):
            self.tile_states.put(number, state, prefix)
            small.append(part)
        self._end_tiles()
        return add_small(small)

    def tiled_sums(self) -> Arrays:
        columns = self.tile_states.columns
        parts = [sums for sums, _ in self._step_all(collect_sums, lambda number: Tile(number, columns[number], {}, {}, {}))]
        self._end_tiles()
        return self.tile_states.join(parts)

    def _end_tiles(self) -> None:
        """Note that no further step gets the sums of the last pass."""
        if self._pending:
            self._pending = False
            self._clear_stateless()

    def _step_all(self, step: TileStep, tile: Callable[[int], Tile]) -> Iterator[tuple[StateArrays, PartialSums]]:
        """Step all tiles, as many at a time as the workers have threads, and yield the results in the order of the tiles."""
        first = 0
        while first < len(self.tile_states.columns):
            replies = self._with_recovery(partial(self._step_wave, step, tile, first))
            yield from replies
            first += len(replies)

    def _step_wave(self, step: TileStep, tile: Callable[[int], Tile], first: int) -> list[tuple[StateArrays, PartialSums]]:
        tiles = [tile(first)]
        size = sum(array.nbytes for arrays in (tiles[0].state, tiles[0].given) for array in arrays.values())
        wave = max(1, min(sum(worker.threads for worker in self._workers.owners), _TILES_BYTES // max(1, size)))
        tiles += map(tile, range(first + 1, min(first + wave, len(self.tile_states.columns))))
        return self._step_here(step, tiles) if self._workers.direct_calls else self._step_on_workers(step, tiles)

    def _step_on_workers(self, step: Callable[[Tile], R], tiles: Sequence[Tile]) -> list[R]:
        """Step some tiles, each on a worker that collects its sums from all others."""
        owners = self._workers.owners
        sources = [worker.shard for worker in owners] if self._pending else []
        message: dict[str, Any] = {"epoch": self._epoch, "pass_number": self._done, "sources": sources}
        message["groups"] = group_leaves(self._layout).counts
        shares = np.array_split(np.arange(len(tiles)), len(owners))
        calls = {
            worker: {"tiles": [tiles[i].number for i in share], "content": packed((step, [tiles[i] for i in share])), **message}
            for worker, share in zip(owners, shares, strict=True)
            if share.size
        }
        return [result for reply in self._workers.call_all("step_tiles", calls).values() for result in unpacked(reply)]

    def _step_here(self, step: TileStep, tiles: Sequence[Tile]) -> list[tuple[StateArrays, PartialSums]]:
        """Step some tiles in this process, one after the other, as the workers cannot reach each other."""
        results = []
        for tile in tiles:
            own: StateArrays = {}
            if self._pending:
                call = {"pass_number": self._done, "tiles": [tile.number]}
                replies = [unpacked(self._workers.call(worker, "tile_sums", **call)) for worker in self._workers.owners]
                own = tile_total([parts[0] for parts in replies], group_leaves(self._layout))
            results.append(step(replace(tile, sums=own)))
        return results

    def map_columns(self, request: ColumnMap) -> NDArray[Any]:
        threads = sum(worker.threads for worker in self._workers.owners)  # none before the first pass of a resumed fit
        if not request.suits_workers(threads):
            return request()
        step, tiles = SolveTile(request.function), request.tiles(request.parts(threads))
        return np.concatenate(self._with_recovery(lambda: self._step_on_workers(step, tiles)), axis=-1)

    @property
    def environments(self) -> list[Environment]:
        return self._workers.environments.distinct

    @property
    def save_due(self) -> bool:
        return self._workers.all_leaving

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        first, count = 0, 1
        while first < len(self._partitions):
            fetched, rows = self._with_recovery(partial(self._rows, name, first, count))
            first, count = first + fetched, max(1, _ROWS_BYTES * fetched // max(1, rows.nbytes))
            yield rows

    def _rows(self, name: str, first: int, count: int) -> tuple[int, NDArray[Any]]:
        """Return the number of partitions fetched, all of one worker and at most ``count``, and their rows."""
        part, worker = overlaps(range(first, first + count), self._workers.owned_runs)[0]
        last = part.stop
        return last - first, unpacked(self._workers.call(worker, "rows", name=name, first=first, last=last))

    def write_rows(self, name: str, convert: Callable[[NDArray[Any]], NDArray[Any]], target: zarr.Array[Any]) -> bool:
        rows = WrittenRows(name, convert, target, self._layout)
        with marker(target) as marker_name:
            return self._with_recovery(partial(self._write, rows, marker_name))

    def _write(self, rows: WrittenRows, marker_name: str) -> bool:
        """Let the workers write the rows, each the chunks whose first row it owns; returns False if they cannot reach all they need."""
        owners = self._workers.owners
        probe = {"content": packed((rows.target, marker_name))}
        if self._workers.direct_calls or not all(map(unpacked, self._workers.call_all("reaches", dict.fromkeys(owners, probe)).values())):
            return False
        pieces = self._workers.owned_runs
        n, step, layout = rows.target.shape[0], rows.target.chunks[0], rows.layout
        chunks: dict[SessionWorker, list[ChunkOfRows]] = {}
        for start in range(0, n, step):
            stop = min(start + step, n)
            owned = overlaps(range(layout.partition_of(start), layout.partition_of(stop - 1) + 1), pieces)
            sources = [(*worker.shard, part.start, part.stop) for part, worker in owned]
            chunks.setdefault(owned[0][1], []).append((start, stop, sources))
        content = packed(rows)
        self._workers.call_all("write", {worker: {"content": content, "chunks": own} for worker, own in chunks.items()})
        return True

    def save(self, group: zarr.Group) -> list[CheckpointedState]:
        def save_states() -> list[CheckpointedState]:
            # Streams have unique names: a worker that counts as lost may still be writing.
            content, owners = packed(group), self._workers.owners
            calls = {worker: {"content": content, "stream": f"{i}-{uuid4().hex}"} for i, worker in enumerate(owners)}
            saved = [description for reply in self._workers.call_all("save", calls).values() for description in unpacked(reply)]
            return [CheckpointedState.from_description(group, description) for description in saved]

        self._saved = self._with_recovery(save_states)
        self._journal.clear(self._done)
        return self._saved

    def restore(self, states: Sequence[CheckpointedState]) -> None:
        assert not self._workers.owners, "no pass has run yet"
        self._saved = list(states)

    def _run_passes(self, pass_numbers: Sequence[int], leaves: Leaves | None) -> tuple[TreeSum[Any], Report]:
        """Run passes of the journal on the partitions that lack them. Returns the sums of the last, if ``leaves`` of them are given."""
        sums, report = TreeSum[Any](leaves or Leaves(())), Report({}, stateless=True)
        entries = [self._journal[pass_number] for pass_number in pass_numbers]
        sent = [self._sent, *(pass_ for pass_, _ in entries)]
        message: dict[str, Any] = {"epoch": self._epoch, "pass_numbers": list(pass_numbers), "leaves": leaves and leaves.counts}
        message["passes"] = [None if pass_ == previous else pass_ for (pass_, _), previous in zip(entries, sent, strict=False)]
        message["broadcasts"] = [broadcast for _, broadcast in entries]
        calls = {self._workers.by_key(key): {"runs": runs, "below": below, **message} for (_, key, runs), below in self._calls()}
        # Sums that wait for a step are held by their workers, so a tiled pass is not interrupted.
        with nullcontext() if self._pending else self._workers.interruptible(self._epoch):
            replies = self._workers.call_all("run", calls)
        for reply in replies.values():
            nodes, worker_report = unpacked(reply)
            sums.update(nodes)
            report.update(worker_report)
        if report.interrupted:
            self._start_epoch()  # if the partitions cannot move after all, the pass continues under the new epoch
            raise Retry("A worker that is leaving interrupted the pass; the other workers continue it")
        for nodes in self._handed_over if leaves else ():  # these are copied, as the pass may be requested again
            sums.update({node: part.accumulator() for node, part in nodes.items()})
        self._sent = sent[-1]
        return sums, report

    def _calls(self) -> list[Tree[Share]]:
        """Return the workers that the driver calls, each with the trees of those that it calls in turn."""
        direct = self._workers.direct_calls
        if self._trees is None or self._trees[0] != direct:
            shares: list[Share] = [(*worker.shard, [(run.start, run.stop) for run in worker.runs]) for worker in self._workers.owners]
            firsts = [runs[0][0] for *_, runs in shares]
            self._trees = direct, [(share, []) for share in shares] if direct else [build_call_tree(shares, firsts)]
        return self._trees[1]

    # Recovery

    def _with_recovery(self, action: Callable[[], T]) -> T:
        """Return the action's result, after bringing all partitions to the last pass; repeat it when workers are lost meanwhile."""
        from dask import config

        losses, allowed = Counter[int](), int(config.get("distributed.scheduler.allowed-failures", 3))
        while True:
            try:
                self._recover()
                return action()
            except WorkersLost as lost:
                # Counted by partition: many workers may be lost independently, but not all workers that own the same partition.
                losses.update(partition for worker in lost.workers for run in worker.runs for partition in run)
                self._workers.remove(lost.workers)
                count = max(losses.values(), default=0)
                if count > allowed:
                    raise ClusterError(
                        f"one worker after the other was lost in the same pass, {count} in all: {lost}; is their memory limit too low?"
                    ) from lost
            except Retry as error:
                logger.warning("%s", error)

    def _recover(self) -> None:
        """Assign partitions without an owner to the workers, and repeat the journal's passes for them."""
        for worker in self._workers.all:
            if any(
                run.start % self._group_size or (run.stop % self._group_size and run.stop != len(self._partitions)) for run in worker.runs
            ):
                worker.runs = []  # its partitions could not be moved to form complete groups
        if not self._pending:
            self._evacuate()
        orphans = self._orphans()
        if orphans and self._handed_over:
            self._discard_handed_over(orphans)
            orphans = self._orphans()
        if orphans:
            self._assign(orphans)
            if self._done:
                metrics.add(partitions_recovered=sum(map(len, orphans)))
        if self._behind:
            for pass_numbers in self._journal.batches(self._done):
                self._run_passes(pass_numbers, None)
            self._behind = False

    def _orphans(self) -> list[range]:
        """Return the partitions without an owner."""
        return subtract_runs([range(len(self._partitions))], [run for worker in self._workers.all for run in worker.runs])

    def _evacuate(self) -> None:
        """Move the partitions of workers that leave to those that stay, with their sums of an unfinished pass, and let them go."""
        leaving = self._workers.evacuable
        owners = [worker for worker in leaving if worker.runs]
        if owners:
            began = time.monotonic()
            for worker in owners:
                worker.attempts += 1
            self._start_epoch()  # a pass that was requested before, and has not arrived yet, must not add to the sums
            message = {"epoch": self._epoch, "pass_number": self._done + 1}
            sums = self._workers.call_all("sums", dict.fromkeys(owners, message))
            workers, shares = self._fill([run for worker in owners for run in worker.runs])
            kept = [
                consecutive(partition for run in [*w.runs, *share] for partition in run) for w, share in zip(workers, shares, strict=True)
            ]
            if not self._move([*workers, *owners], [*kept, *([] for _ in owners)]):
                return
            self._handed_over += map(unpacked, sums.values())
            count = sum(len(run) for share in shares for run in share)
            logger.info("Moved %d partitions from leaving workers in %.1f s", count, time.monotonic() - began)
        if leaving:
            self._workers.release(leaving)

    def _discard_handed_over(self, lost: list[range]) -> None:
        """Discard the sums handed over that contain any of these partitions; all others of such a sum lose their owners too."""
        partitions = {partition for run in lost for partition in run}
        leaves = Leaves.of(self._summands, self._layout.partition_ranges).numbers
        for nodes in self._handed_over:
            for level, index in list(nodes):
                summed = self._summands[bisect_left(leaves, index << level) : bisect_left(leaves, index + 1 << level)]
                if not partitions.isdisjoint(summed):
                    del nodes[level, index]
                    runs = consecutive(summed)
                    for worker in self._workers.all:
                        worker.runs = subtract_runs(worker.runs, runs)

    def _fill(self, runs: list[range]) -> tuple[list[SessionWorker], list[list[range]]]:
        """Divide partitions among the workers that have less than their share; returns these workers and what each gets."""
        workers, weights = self._weights()
        share = len(self._partitions) / sum(weights)
        lacking = {worker: share * weight - worker.load for worker, weight in zip(workers, weights, strict=True)}
        workers = [worker for worker in workers if lacking[worker] > 0]
        return workers, split_runs(runs, [lacking[worker] for worker in workers], self._group_size)

    def _assign(self, orphans: list[range]) -> None:
        """Give partitions without an owner to the workers that have less than their share."""
        self._workers.wait_for_some()
        if not self._workers.owners:
            for worker in self._workers.all:
                worker.placed = True
        workers, shares = self._fill(orphans)
        saved = sorted(((range(state.first, state.last), state) for state in self._saved), key=lambda piece: piece[0].start)
        self._start_epoch()
        self._behind = True
        calls = {
            worker: [{"epoch": self._epoch, "content": packed(self._initial_state(run, saved))} for run in share]
            for worker, share in zip(workers, shares, strict=True)
            if share
        }
        # Runs are updated once all workers have their partitions: those that a shard got in an earlier, failed move may lack states.
        owned = {
            worker: consecutive(partition for run in [*worker.runs, *share] for partition in run)
            for worker, share in zip(workers, shares, strict=True)
        }
        try:
            self._workers.call_each("add", calls)
        except WorkersLost as lost:
            for worker in lost.workers:  # these partitions may be the cause of the loss
                worker.runs = owned.get(worker, worker.runs)
            raise
        for worker, runs in owned.items():
            worker.runs = runs

    def _start_epoch(self) -> None:
        """Start a new assignment of partitions; workers ignore calls that were sent under an earlier one."""
        self._epoch += 1
        self._sent, self._trees = b"", None

    def _initial_state(
        self, run: range, saved: Sequence[tuple[range, CheckpointedState]]
    ) -> tuple[Partitions, int, list[CheckpointedState]]:
        """Return partitions, the number of the pass before the journal's first, and their states after that pass."""
        states = [state.part(part.start, part.stop) for part, state in overlaps(run, saved)]
        return self._partitions.part(run.start, run.stop), self._journal.base, states

    # Balance

    def _update_workers(self) -> None:
        """Add workers that have joined, between passes, and move partitions from slow workers to fast ones."""
        self._cooldown -= 1
        if time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + _POLL_WORKERS_SECONDS
            available = self._workers.available()
            self._workers.remove_missing(available)
            self._workers.add(available)
        if sum(worker.load for worker in self._workers.all) < len(self._partitions):
            return  # partitions without an owner are assigned first, to new workers too
        joined = not all(worker.placed for worker in self._workers.all)
        if joined or (self._uneven_passes >= _MIN_PASSES and self._cooldown <= 0):
            self._balance()

    def _balance(self) -> None:
        """Distribute the partitions over the workers in proportion to their speed, if the busiest one gains half a partition's time.

        So measured speeds, which vary, move no partition to a worker that is not needed.
        """
        workers, weights = self._weights()
        self._uneven_passes, self._cooldown = 0, _COOLDOWN * max(100, len(workers)) // 100
        shares = split_runs([range(len(self._partitions))], weights, self._group_size)
        owned = ([worker.load for worker in workers], [sum(map(len, share)) for share in shares])
        present, future = (max(map(self._seconds, workers, weights, loads)) for loads in owned)
        single = max(self._seconds(worker, weight, 1) for worker, weight in zip(workers, weights, strict=True) if worker.load)
        if present - future >= single / 2:
            self._move(workers, shares)
        else:
            for worker in workers:
                worker.placed = True

    def _seconds(self, worker: SessionWorker, speed: float, load: int) -> float:
        """Return the time of a worker for partitions: it processes them in rounds, one partition or group on each thread."""
        round_ = self._group_size * worker.threads
        return -(-load // round_) * round_ / speed

    def _align_groups(self) -> None:
        """Let workers own complete groups of partitions from now on."""
        unit = group_partitions(self._layout)
        if unit != self._group_size and self._workers.owners:
            self._group_size = unit
            workers, weights = self._weights()
            self._move(workers, split_runs([range(len(self._partitions))], weights, unit))
        self._group_size = unit

    def _update_speeds(self, report: Report) -> None:
        """Update the workers' speeds, and count consecutive passes in which the slowest worker delayed the others."""
        owners = self._workers.owners
        for worker in owners:
            processed, seconds = report.seconds.get(worker.key, (0, 0.0))
            if processed and processed == worker.load:
                speed = self._seconds(worker, max(seconds, 1e-6), processed)  # of full rounds: threads without a partition wait
                worker.speed = speed if np.isnan(worker.speed) else worker.speed + _SMOOTHING * (speed - worker.speed)
        if any(np.isnan(worker.speed) for worker in owners):
            return
        slowest = max(self._seconds(worker, worker.speed, worker.load) for worker in owners)
        ideal = len(self._partitions) / sum(worker.speed for worker in owners)
        single = max(self._seconds(worker, worker.speed, 1) for worker in owners)  # of a partition, or a group, which cannot be divided
        uneven = slowest > max(_IMBALANCE * ideal, ideal + single, ideal + _MIN_GAIN_SECONDS)
        self._uneven_passes = self._uneven_passes + 1 if uneven else 0

    def _move(self, workers: Sequence[SessionWorker], shares: Sequence[list[range]]) -> bool:
        """Move partitions with their states, so that each worker has its share. Returns whether they have moved."""
        pieces = self._workers.owned_runs
        moves = {
            worker: [taken for run in subtract_runs(share, worker.runs) for taken in overlaps(run, pieces)]
            for worker, share in zip(workers, shares, strict=True)
        }
        self._start_epoch()
        calls = {
            worker: [
                {"epoch": self._epoch, "content": packed((self._partitions.part(run.start, run.stop), self._done)), "source": source.shard}
                for run, source in taken
            ]
            for worker, taken in moves.items()
            if taken
        }
        try:
            self._workers.call_each("take", calls)
        except WorkersLost as lost:
            self._workers.remove(lost.workers)
            return False
        except Retry as error:
            logger.warning("%s; partitions do not move", error)  # the next pass drops those that have been copied
            moved = False
        else:
            moved = True
            taken_over = [run for share in shares for run in share]
            for worker in set(self._workers.all).difference(workers):  # those that take part as sources alone
                worker.runs = subtract_runs(worker.runs, taken_over)
            for worker, share in zip(workers, shares, strict=True):
                worker.runs = share
        for worker in workers:
            worker.placed = True
        return moved

    def _weights(self) -> tuple[list[SessionWorker], list[float]]:
        """Return the workers in the order of their partitions, and their speeds; workers without partitions are in the middle,
        where they displace the fewest. In short passes the speeds are the numbers of threads.
        """
        staying = self._workers.staying
        found = set(staying)
        workers = [worker for worker in self._workers.owners if worker in found]
        middle = len(workers) // 2
        known = [worker for worker in workers if not np.isnan(worker.speed)]
        longest = max((self._seconds(worker, worker.speed, worker.load) for worker in known), default=0.0)
        workers[middle:middle] = [worker for worker in staying if not worker.runs]
        if longest < _MIN_GAIN_SECONDS:
            return workers, [float(worker.threads) for worker in workers]
        median = float(np.median([worker.speed / worker.threads for worker in known]))
        return workers, [worker.threads * median if np.isnan(worker.speed) else worker.speed for worker in workers]


class DistributedExecutor:
    """The workers of a Dask cluster."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    def workers(self, memory_limit: int | str | None) -> WorkerResources:
        watchdog = Watchdog(self.client)
        while not (workers := watchdog.worker_infos()):  # those that have just joined may be lost again
            with request_workers(self.client, 1):
                watchdog.some_workers()
        limits = {address: worker["memory_limit"] or sys.maxsize for address, worker in workers.items()}
        threads = max(worker["nthreads"] for worker in workers.values())
        return cluster_workers(list(limits.values()), threads, memory_limit, least_rest(self.client, limits))

    def open(self, partitions: Partitions, plan: Plan) -> ClusterSession:
        return ClusterSession(self.client, partitions, plan)

    def map(
        self,
        function: Callable[[T, D], Iterable[R]],
        tasks: Sequence[T],
        load: Callable[[], D],
        on_result: Callable[[T, R], None],
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Run each task as a Dask task, which returns its results together; see :class:`dfact.engine.session.Executor`."""
        import dask

        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "10GB"}):
            # The data is sent to the workers once, as the task that returns it.
            data = self.client.submit(load, pure=False)
            driver, used = driver_fields(), SessionEnvironments()
            futures = [self.client.submit(run_task, driver, Pickled((function, task, context)), data, pure=False) for task in tasks]
        try:
            for i, (environments, results) in Watchdog(self.client, progress=False).completed(futures):
                used.add(environments)
                with computed_in(partial(environments_from, list(environments.values()))):
                    for result in results:
                        on_result(tasks[i], result)
        finally:
            self.client.cancel(futures)
