"""A shard: the partitions of one process, with their values, their state and the threads that visit them."""

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

import zarr
from numpy.typing import NDArray

from dfact.data.sources.dask import DaskRows
from dfact.engine.block_state import Blocks, CheckpointedState, PartitionStates
from dfact.engine.partitions import Partitions, prefetch, walk
from dfact.engine.passes import PartialSums, Pass, SampledPass, Workspace, visited_partitions
from dfact.engine.reduction import Node, TreeSum
from dfact.engine.threads import single_threaded

P = TypeVar("P", bound=PartialSums)
T = TypeVar("T")
Fetch = Callable[[Sequence[Hashable]], Mapping[Hashable, NDArray[Any]]]
_STREAM_BYTES = 1 << 26
"""State that one stream of a checkpoint holds at least, unless a thread has less."""


@dataclass
class _Run:
    """Partitions that are read together."""

    partitions: Partitions
    keep: bool
    """Whether their values are to stay in memory once they are read."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Visit:
    """Consecutive partitions of a run that go through a pass."""

    run: _Run
    partitions: Partitions


class Shard:
    """Runs passes over some partitions of a data set and keeps their state.

    Each partition knows the number of the last pass it has been through, so a pass that is asked for again, as after a
    fault, runs only where it has not run yet. Its sums are kept until the next pass. Calls must not overlap.
    """

    def __init__(self, n_partitions: int, threads: int, resident_states: int, resident_values: int, fetch: Fetch | None = None) -> None:
        """``fetch`` brings the chunks of a dask array here."""
        self._fetch = fetch
        self._n, self._threads = n_partitions, threads
        self._values_room = resident_values
        self._states = PartitionStates(resident_states)
        self._runs: list[_Run] = []
        self._done: dict[int, int] = {}
        self._pass = 0
        self._sums: TreeSum[Any] = TreeSum(n_partitions)
        self._work = threading.local()
        self._visited = itertools.count(1)
        self.visits = 0
        """Partitions visited so far, by all passes."""
        self.rows_per_second = 0.0
        """Of the last pass."""
        self._stopped = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(single_threaded())
        # The threads live as long as the shard, and with them their working arrays.
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._threads, "dfact-pass")) if self._threads > 1 else None
        self._stack.callback(self._states.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._runs, self._done, self._sums = [], {}, TreeSum(self._n)
        self._stack.close()

    @property
    def stateless(self) -> bool:
        """Whether no partition has a state."""
        return self._states.empty

    def add(self, partitions: Partitions, done: int) -> None:
        """Take over partitions that have been through the pass number ``done``; their states come by :meth:`restore` or :meth:`put`."""
        self._drop(partitions.numbers)
        for run in partitions.read_together():
            keep = run.source.chunk_rows is not None and self._values_room >= len(run)
            self._values_room -= len(run) if keep else 0
            self._runs.append(_Run(run, keep))
        self._runs.sort(key=lambda run: run.partitions.first)
        self._done |= dict.fromkeys(partitions.numbers, done)

    def put(self, number: int, blocks: Blocks) -> None:
        """The state of a partition's blocks that was taken over."""
        self._states.put(number, blocks)

    def restore(self, stored: CheckpointedState) -> None:
        """The states of consecutive partitions as a checkpoint holds them."""
        self._states.restore(stored)

    def hold(self, runs: Sequence[range]) -> list[range]:
        """Drop all partitions but these; returns those of them that are not here."""
        wanted = {number for run in runs for number in run}
        for run in consecutive(self._done.keys() - wanted):
            self._drop(run)
        return consecutive(wanted - self._done.keys())

    def _drop(self, numbers: range) -> None:
        kept: list[_Run] = []
        for run in self._runs:
            p = run.partitions
            pieces = [(p.first, min(p.last, numbers.start)), (max(p.first, numbers.stop), p.last)]
            kept += [_Run(p.part(a, b), run.keep) for a, b in pieces if a < b]
            self._values_room += run.keep * (len(p) - sum(b - a for a, b in pieces if a < b))
        self._runs = kept
        for number in numbers:
            self._done.pop(number, None)
            self._states.drop(number)

    def lags(self, number: int) -> bool:
        """Whether the pass of this number is to run on any partition."""
        return any(done == number - 1 for done in self._done.values())

    def sums(self, number: int) -> dict[Node, Any]:
        """The sums of the pass of this number over all partitions held here; none of an earlier one."""
        return self._sums.nodes if number == self._pass else {}

    def run(self, number: int, pass_: Pass[Any, P], broadcast: Any, *, wanted: bool = True) -> None:
        """Run the pass of this number where it has not run yet; of one that is repeated, while others are ahead, no sums are kept.

        Unless its sums are ``wanted``, a pass that leaves the states as they are is skipped.
        """
        began, current = time.perf_counter(), number >= self._pass
        numbers = visited_partitions(pass_, self._n)
        if number > self._pass:
            self._pass, self._sums = number, TreeSum(len(numbers))
        sums = self._sums if current else TreeSum[P](len(numbers))
        if isinstance(pass_, SampledPass):
            self._pass_over(number, set(numbers) if wanted or pass_.changes_state else set[int]())
        places = {number: place for place, number in enumerate(numbers)}
        todo = self._todo(number)

        def work(visit: _Visit) -> None:
            self._visit(visit, number, pass_, broadcast, sums, places)

        # The next visit's chunk is read during this one; longer visits read their own chunks one ahead. Those of a sample are short.
        read = pass_.dtype is not None and any(visit.partitions.source.chunk_rows is not None for visit in todo)
        self._each(work, todo, partial(self._loaded, sampled=isinstance(pass_, SampledPass)) if read else None)
        self._split_loaded()
        rows = sum(visit.partitions.source.shape[0] for visit in todo)
        if rows:
            self.rows_per_second = rows / max(time.perf_counter() - began, 1e-9)

    def _pass_over(self, number: int, others: set[int]) -> None:
        """Count all partitions but these ``others`` as having been through the pass."""
        self._done |= {i: number for i, done in self._done.items() if done == number - 1 and i not in others}

    def _todo(self, number: int) -> list[_Visit]:
        """The partitions that are still to go through this pass, by the runs they are read in."""
        todo = []
        for run in self._runs:
            lacking = consecutive(i for i in run.partitions.numbers if self._done[i] == number - 1)
            todo += [_Visit(run, run.partitions.part(part[0], part[-1] + 1)) for part in lacking]
        return todo

    def _loaded(self, visit: _Visit, *, sampled: bool) -> _Visit:
        """The same visit, with the values in memory if it is of a sample or of no more than a chunk."""
        self._keep(visit)
        source = visit.partitions.source
        if not sampled and (isinstance(source, DaskRows) or source.shape[0] > (source.chunk_rows or 0)):
            return visit
        partitions = self._fetched(visit.partitions)
        return replace(visit, partitions=partitions if partitions.source.chunk_rows is None else partitions.load())

    def _keep(self, visit: _Visit) -> None:
        """Load the whole run of a visit if it is to stay in memory."""
        run, part = visit.run, visit.partitions
        with run.lock:
            if run.keep and run.partitions.source.chunk_rows is not None:
                run.partitions = self._fetched(run.partitions).load()
        if run.keep and part.source.chunk_rows is not None:
            visit.partitions = run.partitions.part(part.first, part.last)

    def _visit(self, visit: _Visit, number: int, pass_: Pass[Any, P], broadcast: Any, sums: TreeSum[P], places: Mapping[int, int]) -> None:
        if pass_.dtype is not None:
            self._keep(visit)
        partitions = visit.partitions if pass_.dtype is None else self._fetched(visit.partitions)
        with closing(partitions.blocks(pass_.dtype, self._workspace())) as blocks:  # type: ignore[type-var]  # declared as an iterator, is a generator with close()
            for i in partitions.numbers:
                n_blocks = partitions.n_blocks(i)
                new: Blocks = []
                total = walk(islice(blocks, n_blocks), pass_, broadcast, self._states.take(i, n_blocks), new.append)
                if not isinstance(pass_, SampledPass) or pass_.changes_state:
                    self._states.put(i, new)
                self._done[i] = number
                sums.add((0, places[i]), total)
                self.visits = next(self._visited)

    def _fetched(self, partitions: Partitions) -> Partitions:
        """The partitions as they can be read: chunks of a dask array are brought here."""
        source = partitions.source
        if isinstance(source, DaskRows) and self._fetch is not None:
            return replace(partitions, source=source.loaded(self._fetch(source.keys)))
        return partitions

    def _workspace(self) -> Workspace:
        found: Workspace | None = getattr(self._work, "arrays", None)
        if found is None:
            found = self._work.arrays = Workspace()
        return found

    def _split_loaded(self) -> None:
        """Values in memory need not be read together: threads take single partitions of them from now on."""
        if any(len(run.partitions) > 1 and run.partitions.source.chunk_rows is None for run in self._runs):
            self._runs = [_Run(p, run.keep) for run in self._runs for p in run.partitions.read_together()]

    def _each(self, work: Callable[[Any], None], items: Sequence[T], prepare: Callable[[T], T] | None = None) -> None:
        """Do the work for each of the items, several at once; they are begun in their order.

        With ``prepare`` each thread has its next item prepared while it works on the one before.
        """
        following, stopped, lock = iter(items), threading.Event(), threading.Lock()

        def claimed() -> Iterator[T]:
            while not stopped.is_set():
                self._check_stopped()
                with lock:
                    item = next(following, None)
                if item is None:
                    return
                yield item

        def take() -> None:
            try:
                for item in claimed() if prepare is None else prefetch(map(prepare, claimed())):
                    work(item)
            except BaseException:
                stopped.set()
                raise

        if self._pool is None or len(items) < 2:
            take()
            return
        futures = [self._pool.submit(take) for _ in range(min(self._threads, len(items)))]
        try:
            wait(futures)
        finally:
            stopped.set()  # a signal may have ended the wait
            wait(futures)
        for future in futures:
            future.result()

    def stop(self) -> None:
        """End a pass in its midst, from another thread."""
        self._stopped.set()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise InterruptedError("the session has ended")

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        """A state array (k, rows) of the partitions ``first`` to ``last`` − 1 as (rows, k)."""
        return self._states.rows(name, range(first, last))

    def states(self, first: int, last: int) -> Iterator[tuple[int, Blocks]]:
        """The states of the partitions ``first`` to ``last`` − 1 that have one."""
        for number in range(first, last):
            blocks: Blocks = list(self._states.blocks(number))
            if blocks:
                yield number, blocks

    def store(self, group: zarr.Group, stream: str) -> list[CheckpointedState]:
        """Copy the states of all partitions to a checkpoint, as a few streams of this name and a number."""
        found: list[CheckpointedState] = []

        def work(numbers: range) -> None:
            state = self._states.store(numbers, group, f"{stream}-{numbers[0]:06d}")
            if state is not None:
                found.append(state)

        self._each(work, [part for run in consecutive(self._done) for part in self._streams(run)])
        return found

    def _streams(self, run: range) -> list[range]:
        """As many parts of a run as there are threads, unless they would be small."""
        size = sum(array.nbytes for state in self._states.blocks(run[0]) for array in state.values()) * len(run)
        parts = max(1, min(self._threads, size // _STREAM_BYTES, len(run)))
        edges = [run[0] + len(run) * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]


def consecutive(numbers: Iterable[int]) -> list[range]:
    """Numbers as runs of consecutive ones, in ascending order."""
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
