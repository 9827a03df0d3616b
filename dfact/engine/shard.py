"""A shard: the partitions of one process, with their values, their state and the threads that run passes on them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.engine.block_state import BlockStates, CheckpointedState, PartitionStates, StateArrays
from dfact.engine.partitions import Leaves, Node, Partitions, TreeSum, consecutive, reduce_blocks
from dfact.engine.passes import PartialSums, RunPass, TiledPass, Workspace
from dfact.engine.threads import prefetch, run_items, single_threaded
from dfact.engine.tiles import HeldSums, SumsStore, group_leaves, group_partitions, n_columns
from dfact.monitoring import metrics

P = TypeVar("P", bound=PartialSums)
T = TypeVar("T")
R = TypeVar("R")
_STREAM_BYTES = 1 << 26  # minimum size of a checkpoint's streams if a shard writes several


@dataclass
class _ReadRun:
    """Consecutive partitions that are read together."""

    partitions: Partitions
    resident: bool
    """Whether their values stay in memory once they are read."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _WorkItem:
    """Consecutive partitions of a run on which one thread runs a pass."""

    run: _ReadRun
    partitions: Partitions


class Shard:
    """Some partitions of a dataset in one process, with their state, on which passes run.

    The number of the last pass is recorded for each partition. A pass that is requested again, for example after a fault,
    therefore runs only where it has not run yet. Its sums are kept until the next pass. Calls must not overlap.
    """

    def __init__(self, layout: Layout, threads: int, resident_states: int, resident_values: int, resident_sums: int) -> None:
        """Initialize an empty shard for a dataset with this layout.

        States of up to ``resident_states`` partitions, values of up to ``resident_values``, and tiled sums of up to ``resident_sums``
        groups that wait for others stay in memory.
        """
        self._layout, self._n, self._threads = layout, layout.n_partitions, threads
        self._free_values = resident_values  # number of further partitions whose values may stay in memory
        self._states = PartitionStates(resident_states)
        self._runs: list[_ReadRun] = []
        self._done: dict[int, int] = {}  # number of the last pass on each partition
        self._pass = 0
        self._sums: TreeSum[Any] = TreeSum(Leaves(()))
        self._tiled = SumsStore(resident_sums)
        self._local = threading.local()
        self.n_processed = 0
        """Number of partitions processed so far, by all passes."""
        self.n_steps = 0
        """Number of partitions, arrays of states, tiles and chunks of rows that were processed, moved, read or written so far."""
        self._counting = threading.Lock()
        self.rows_per_second = 0.0
        """Speed of the last pass that processed any rows."""
        self._stopped, self._interrupted = threading.Event(), threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(single_threaded())
        # Threads, and thus their working arrays, live as long as the shard.
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._threads, "dfact-pass")) if self._threads > 1 else None
        self._stack.callback(self._states.close)
        self._stack.callback(self._tiled.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._runs, self._done, self._sums = [], {}, TreeSum(Leaves(()))
        self._stack.close()

    def advance(self) -> None:
        """Count a step, by which a driver sees that the shard makes progress."""
        with self._counting:
            self.n_steps += 1

    def _end_partition(self, rows: slice) -> None:
        """Count a step in which a pass has processed a partition with these rows."""
        with self._counting:
            self.n_steps += 1
            self.n_processed += 1
        metrics.add(partitions=1, rows=rows.stop - rows.start)

    @property
    def stateless(self) -> bool:
        """Whether no partition has a state."""
        return self._states.empty

    def add(self, partitions: Partitions, done: int) -> None:
        """Add partitions whose last pass has the number ``done``; :meth:`restore` or :meth:`put` set their states."""
        self._drop(partitions.numbers)
        for run in partitions.read_runs():
            resident = run.source.chunk_rows is not None and self._free_values >= len(run)
            self._free_values -= len(run) if resident else 0
            self._runs.append(_ReadRun(run, resident))
        self._runs.sort(key=lambda run: run.partitions.first)
        self._done |= dict.fromkeys(partitions.numbers, done)

    def put(self, partition: int, done: int, blocks: BlockStates) -> None:
        """Set the states of a partition's blocks, after its last pass with the number ``done``."""
        self._states.put(partition, blocks)
        self._done[partition] = done
        self.advance()

    def restore(self, saved: CheckpointedState) -> None:
        """Set the states of consecutive partitions from a checkpoint."""
        self._states.restore(saved, self.advance)

    def retain(self, runs: Sequence[range]) -> list[range]:
        """Drop all partitions except these, and return those of them that the shard lacks."""
        wanted = {partition for run in runs for partition in run}
        for run in consecutive(self._done.keys() - wanted):
            self._drop(run)
        return consecutive(wanted - self._done.keys())

    def _drop(self, dropped: range) -> None:
        remaining: list[_ReadRun] = []
        for run in self._runs:
            p = run.partitions
            pieces = [(p.first, min(p.last, dropped.start)), (max(p.first, dropped.stop), p.last)]
            remaining += [_ReadRun(p.part(a, b), run.resident) for a, b in pieces if a < b]
            self._free_values += run.resident * (len(p) - sum(b - a for a, b in pieces if a < b))
        self._runs = remaining
        for partition in dropped:
            self._done.pop(partition, None)
            self._states.drop(partition)

    def has_pending(self, pass_number: int) -> bool:
        """Return whether the pass with this number is still to run on any partition."""
        return any(done == pass_number - 1 for done in self._done.values())

    def sums(self, pass_number: int) -> dict[Node, Any]:
        """Return the sums of the pass with this number over the shard's partitions, or nothing if it is not the last."""
        nodes = self._sums.nodes if pass_number == self._pass else {}
        return {node: part.small if isinstance(part, HeldSums) else part for node, part in nodes.items()}

    def tile_sums(self, pass_number: int, tile: int) -> dict[Node, StateArrays]:
        """Return the sums of a tile over the shard's groups of partitions, in the tiled pass with this number if it is the last."""
        return {node: part.tile(tile) for node, part in self._sums.nodes.items()} if pass_number == self._pass else {}

    def drop_sums(self) -> None:
        """Drop the sums of the last pass."""
        self._start_sums(Leaves(()))

    def _start_sums(self, leaves: Leaves) -> None:
        for part in self._sums.nodes.values():
            if isinstance(part, HeldSums):
                part.release()
        self._sums = TreeSum(leaves)

    def run(self, pass_number: int, request: RunPass[P], *, wanted: bool = True) -> None:
        """Run the pass with this number on the partitions on which it has not run yet.

        An earlier pass may be repeated for the partitions of a lost worker; its sums are not kept. A pass that does not change the
        states is skipped unless its sums are ``wanted``. After :meth:`interrupt_pass` the pass ends early, unless it is tiled.
        """
        began = time.perf_counter()
        sampled = request.partitions(self._n)
        processed = sampled if wanted or request.pass_.changes_state else ()
        if len(processed) < self._n:
            self._skip(pass_number, processed)
        todo = self._todo(pass_number)
        if isinstance(request.pass_, TiledPass):
            self._run_groups(pass_number, request, todo)
        else:
            self._run_partitions(pass_number, request, todo, sampled)
        self._finish_pass(pass_number, todo, began)

    def _run_partitions(self, pass_number: int, request: RunPass[P], todo: Sequence[_WorkItem], sampled: Sequence[int]) -> None:
        """Run a pass that has sums for each partition."""
        leaves = Leaves.of(sampled, self._layout.partition_ranges)
        sums: TreeSum[P] = self._begin_pass(pass_number, leaves)
        numbers = dict(zip(sampled, leaves.numbers, strict=True))

        def work(item: _WorkItem) -> None:
            for partition, total in self._process(item, pass_number, request):
                sums.add((0, numbers[partition]), total)

        # The next item's chunk is read while the current one is processed. Items of several chunks prefetch their own chunks; those
        # of a sample are short and read as a whole.
        read = request.pass_.dtype is not None and any(item.partitions.source.chunk_rows is not None for item in todo)
        load = partial(self._load, sampled=request.sample is not None) if read else None
        self._run_items(work, todo, load, interruptible=True)

    def _run_groups(self, pass_number: int, request: RunPass[P], todo: Sequence[_WorkItem]) -> None:
        """Run a tiled pass, which has sums for groups of partitions."""
        pass_ = request.pass_
        assert isinstance(pass_, TiledPass), "other passes have sums for each partition"
        size, current = group_partitions(self._layout), pass_number >= self._pass
        leaves = group_leaves(self._layout)
        sums: TreeSum[HeldSums] = self._begin_pass(pass_number, leaves)
        numbers = leaves.numbers
        pieces = [
            _WorkItem(item.run, item.partitions.part(max(a, item.partitions.first), min(a + size, item.partitions.last)))
            for item in todo
            for a in range(item.partitions.first // size * size, item.partitions.last, size)
        ]
        groups = [list(group) for _, group in itertools.groupby(pieces, lambda piece: piece.partitions.first // size)]
        lengths = [sum(len(piece.partitions) for piece in group) for group in groups]
        assert all(
            length == min(size, self._n - group[0].partitions.first // size * size) for group, length in zip(groups, lengths, strict=True)
        ), "a shard owns all partitions of a group"

        def work(group: list[_WorkItem]) -> None:
            columns = n_columns(group[0].partitions.source)
            total = pass_.zeros(columns)
            self._accumulate(group, pass_number, request, total)
            if current:  # no other sums are wanted
                held = HeldSums(self._tiled, total, pass_.tiled, columns)
                del total
                sums.add((0, numbers[group[0].partitions.first // size]), held)
                del held
                self._tiled.limit(sums.nodes.values())

        self._run_items(work, groups)

    def _accumulate(self, group: Sequence[_WorkItem], pass_number: int, request: RunPass[P], total: P) -> None:
        """Add the sums of a tiled pass on a group of partitions to ``total``. The next chunk is read while the current one is processed."""
        read = request.pass_.dtype is not None
        items = (self._load(item, sampled=False) if read else item for item in group)
        for item in prefetch(items) if read and len(group) > 1 else items:
            for _ in self._process(item, pass_number, request, total):
                pass  # the sums are in the total

    def _process(self, item: _WorkItem, pass_number: int, request: RunPass[P], total: P | None = None) -> Iterator[tuple[int, P]]:
        """Run a pass on the partitions of an item, one after the other, and yield each with its sums; see :func:`reduce_blocks`."""
        pass_ = request.pass_
        if pass_.dtype is not None:
            self._load_resident(item)
        partitions = item.partitions.load() if pass_.dtype is not None and item.partitions.source.is_fetched else item.partitions
        with closing(partitions.blocks(pass_.dtype, self._workspace())) as blocks:  # type: ignore[type-var]  # declared as an iterator, is a generator with close()
            for i in partitions.numbers:
                if total is None and self._interrupted.is_set():
                    return
                n_blocks = partitions.n_blocks(i)
                new: BlockStates = []
                sums = reduce_blocks(islice(blocks, n_blocks), request, self._states.take(i, n_blocks), new.append, total)
                if pass_.changes_state:
                    self._states.put(i, new)
                self._done[i] = pass_number
                yield i, sums
                self._end_partition(partitions.layout.rows(i, i + 1))

    def _begin_pass(self, pass_number: int, leaves: Leaves) -> TreeSum[Any]:
        """Return the sums of a pass, to be added to; those of an earlier pass that is repeated are not kept."""
        if pass_number > self._pass:
            self._pass = pass_number
            self._start_sums(leaves)
        return self._sums if pass_number == self._pass else TreeSum(leaves)

    def _finish_pass(self, pass_number: int, todo: Sequence[_WorkItem], began: float) -> None:
        self._split_loaded()
        if self._interrupted.is_set() and self.has_pending(pass_number):  # its continuation counts
            return
        rows = sum(item.partitions.source.shape[0] for item in todo)
        metrics.add(passes=1)
        if rows:
            self.rows_per_second = rows / max(time.perf_counter() - began, 1e-9)
            metrics.set_gauges(rows_per_second=self.rows_per_second)

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results of a function for each item, computed on the shard's threads."""
        results: dict[int, R] = {}

        def work(pair: tuple[int, T]) -> None:
            results[pair[0]] = function(pair[1])
            self.advance()

        self._run_items(work, list(enumerate(items)))
        return [results[i] for i in range(len(items))]

    def _skip(self, pass_number: int, processed: Sequence[int]) -> None:
        """Mark the pass as done on those partitions that it does not process."""
        others = self._done.keys() - processed
        self._done |= {i: pass_number for i in others if self._done[i] == pass_number - 1}

    def _todo(self, pass_number: int) -> list[_WorkItem]:
        """Return the partitions on which this pass is still to run, grouped by the runs in which they are read."""
        todo = []
        for run in self._runs:
            lacking = consecutive(i for i in run.partitions.numbers if self._done[i] == pass_number - 1)
            todo += [_WorkItem(run, run.partitions.part(part[0], part[-1] + 1)) for part in lacking]
        return todo

    def _load(self, item: _WorkItem, *, sampled: bool) -> _WorkItem:
        """Return the same item, with its values in memory if the pass is sampled or the item is no longer than a chunk."""
        self._load_resident(item)
        source = item.partitions.source
        if source.chunk_rows is None or (not sampled and (source.is_fetched or source.shape[0] > source.chunk_rows)):
            return item
        return replace(item, partitions=item.partitions.load())

    def _load_resident(self, item: _WorkItem) -> None:
        """Load the complete run of an item if the run's values stay in memory."""
        run, part = item.run, item.partitions
        with run.lock:
            if run.resident and run.partitions.source.chunk_rows is not None:
                run.partitions = run.partitions.load()
        if run.resident and part.source.chunk_rows is not None:
            item.partitions = run.partitions.part(part.first, part.last)

    def _workspace(self) -> Workspace:
        workspace: Workspace | None = getattr(self._local, "workspace", None)
        if workspace is None:
            workspace = self._local.workspace = Workspace()
        return workspace

    def _split_loaded(self) -> None:
        """Split runs whose values are in memory into single partitions, as these need not be read together."""
        if any(len(run.partitions) > 1 and run.partitions.source.chunk_rows is None for run in self._runs):
            self._runs = [_ReadRun(p, run.resident) for run in self._runs for p in run.partitions.read_runs()]

    def _run_items(
        self, work: Callable[[T], None], items: Sequence[T], prepare: Callable[[T], T] | None = None, *, interruptible: bool = False
    ) -> None:
        """Call ``work`` for each item on the shard's threads; see :func:`run_items`. None starts in an interrupted pass."""

        def may_start() -> bool:
            if self._stopped.is_set():
                raise InterruptedError("the session has ended")
            return not (interruptible and self._interrupted.is_set())

        pool = None if len(items) < 2 else self._pool
        run_items(work, items, pool, self._threads, stopped=threading.Event(), prepare=prepare, may_start=may_start)

    def stop(self) -> None:
        """Stop a running pass, from another thread."""
        self._stopped.set()

    def interrupt_pass(self) -> None:
        """End a running pass, from another thread, once each thread has finished its partition; later passes end at once."""
        self._interrupted.set()

    def allow_passes(self) -> None:
        """Run complete passes again."""
        self._interrupted.clear()

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Return a state array (k, rows) of the partitions ``first`` to ``last`` − 1 as (rows, k)."""
        self.advance()
        return self._states.rows(name, range(first, last))

    def states(self, first: int, last: int) -> Iterator[tuple[int, int, BlockStates]]:
        """Yield the partitions ``first`` to ``last`` − 1: number, number of the last pass, block states (none if there is no state)."""
        for partition in range(first, last):
            blocks = self._states.block_states(partition)
            self.advance()
            yield partition, self._done[partition], blocks

    def save(self, group: zarr.Group, stream: str) -> list[CheckpointedState]:
        """Copy the states of all partitions to a checkpoint, as a few streams with this prefix."""
        saved: list[CheckpointedState] = []

        def work(part: range) -> None:
            state = self._states.save(part, group, f"{stream}-{part[0]:06d}", self.advance)
            if state is not None:
                saved.append(state)

        runs = [same for run in consecutive(self._done) for same in self._states.split_by_names(run)]
        self._run_items(work, [part for run in runs for part in self._split_streams(run)])
        return saved

    def _split_streams(self, run: range) -> list[range]:
        """Split a run into as many parts as there are threads, or fewer if they would be small."""
        size = sum(array.nbytes for state in self._states.block_states(run[0]) for array in state.values()) * len(run)
        parts = max(1, min(self._threads, size // _STREAM_BYTES, len(run)))
        edges = [run[0] + len(run) * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]
