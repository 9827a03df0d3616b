"""Passes that visit only some partitions: their sums, the states they leave, what is read for them, losses and errors."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray

import dfact
from benchmarks.faults.fits import Processes
from dfact.data.sources import dask as dask_rows
from dfact.data.sources.base import ArraySource, RowSource, ZarrSource
from dfact.engine.block_state import BlockState
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.cluster.session import DistributedExecutor
from dfact.engine.executors import InlineExecutor, ThreadsExecutor
from dfact.engine.memory_plan import make_plan
from dfact.engine.partitions import partitions
from dfact.engine.passes import Block, Pass, RunPass
from dfact.engine.session import CheckpointableSession, Executor, Session
from tests.engine import test_cluster_session as common
from tests.engine.test_cluster_session import (
    FLOAT32,
    N_PARTITIONS,
    Kill,
    Sums,
    Walk,
    held,
    inside,
    owner,
    processed_partitions,
    rows_of,
    tiny_partitions,
)

ROWS = 128  # of a partition, with tiny_partitions
EVERYTHING = range(N_PARTITIONS)
Sample = tuple[int, ...]
Requests = list[RunPass[Sums]]
Sources = dict[int, RowSource]
Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Change(Pass[BlockState, Any, Sums]):
    """What ``walk`` does to the state and sums; partitions without a state get one. Sums tell the order in which they were added."""

    walk: Walk = field(default_factory=Walk)
    dtype: np.dtype[Any] | None = FLOAT32

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[BlockState, Sums]:
        new, sums = RunPass(self.walk, broadcast).step(block, state.arrays())
        return BlockState(others=new), Sums(np.append(sums.weighted, new["x"].sum()) / np.float64(3), sums.count)


@dataclass(frozen=True)
class Peek(Change):
    """The same sums; the state stays as it is, or none."""

    changes_state: ClassVar[bool] = False

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[BlockState, Sums]:
        _, sums = super().step(block, BlockState(others={name: array.copy() for name, array in state.arrays().items()}), broadcast)
        return state, sums


@dataclass(frozen=True)
class Expecting(Change):
    """Waits at each partition until the next one of the sample is being read."""

    sample: Sample = ()
    begun: Mapping[int, threading.Event] = field(default_factory=dict)

    def step(self, block: Block, state: BlockState, broadcast: Any) -> tuple[BlockState, Sums]:
        following = [number for number in self.sample if number * ROWS > block.start]
        assert not following or self.begun[following[0] * ROWS].wait(100), "the next one was not begun"
        return super().step(block, state, broadcast)


def sampled(kind: type[Change], sample: Sample, *settings: Any, **others: Any) -> RunPass[Sums]:
    """A pass of this kind over a sample."""
    return RunPass(kind(*settings, **others), sample=sample)


def values() -> NDArray[np.uint8]:
    """Codes 0..3, and 4 for missing."""
    return np.random.default_rng(0).integers(0, 5, (N_PARTITIONS * ROWS - 7, 16)).astype(np.uint8)


def opened(executor: Executor, source: RowSource | None = None, **plan: Any) -> Any:
    """A session on the source, by default the values in memory."""
    with tiny_partitions():
        found = partitions(source or ArraySource(values()), 4, None)
    return executor.open(found, replace(make_plan(found.source, FLOAT32, common.FOOTPRINT, executor.workers(None)), **plan))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The values in chunks of so many rows, of which those of 128 and 512 end with partitions. 0: row-compressed. 1: in memory."""
    folder = tmp_path_factory.mktemp("values")
    with tiny_partitions():
        sparse = dfact.import_array(sp.csr_array(values()), folder / "sparse.zarr", missing=4).source
    found: Sources = {0: sparse, 1: ArraySource(values())}
    for rows in (50, 128, 300, 512):
        found[rows] = ZarrSource(zarr.create_array(folder / f"{rows}.zarr", data=values(), chunks=(rows, 16)))
    return found


def drawn(rng: np.random.Generator) -> Sample:
    return tuple(sorted(rng.choice(N_PARTITIONS, int(rng.integers(1, N_PARTITIONS)), replace=False).tolist()))


def mixed(seed: int, walk: Walk | None = None, n: int = 6) -> Requests:
    """Passes of all kinds, of which the first makes a state in a part of the partitions, and the last in all."""
    rng, walk = np.random.default_rng(seed), walk or Walk()
    some = [sampled((Change, Peek)[rng.integers(2)], drawn(rng), walk, FLOAT32 if rng.random() < 0.6 else None) for _ in range(n - 2)]
    all_ = RunPass(walk)
    return [sampled(Change, drawn(rng), walk), *(all_ if rng.random() < 0.2 else request for request in some), all_]


def take(session: Session, passes: Sequence[RunPass[Sums]], first: int = 1) -> list[bytes]:
    """The sums of these passes, which are numbered from ``first``."""
    sums = [session.run(request.with_broadcast(np.float32(number))) for number, request in enumerate(passes, first)]
    return [np.append(part.weighted, part.count).tobytes() for part in sums]


def course(session: CheckpointableSession, passes: Sequence[RunPass[Sums]]) -> tuple[list[bytes], bytes]:
    with session:
        return take(session, passes), rows_of(session)


def inline(passes: Sequence[RunPass[Sums]]) -> tuple[list[bytes], bytes]:
    return course(opened(InlineExecutor()), passes)


@cache
def inline_mixed(seed: int, n: int = 6) -> tuple[list[bytes], bytes]:
    """What ``mixed`` passes without a folder give."""
    return inline(mixed(seed, n=n))


@pytest.fixture(
    scope="module",
    params=[
        "inline",
        "2 threads",
        "1 worker",
        "3 workers",
        pytest.param("8 workers", marks=pytest.mark.exhaustive),
    ],
)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if "worker" in request.param:
        with inside(int(request.param[0])) as client:
            yield DistributedExecutor(client)
    else:
        yield InlineExecutor() if request.param == "inline" else ThreadsExecutor(2)


@cache
def by_hand(sample: Sample, number: int) -> list[bytes]:
    """The sums of a first pass over these partitions."""
    parts, whole = list[Sums](), opened(InlineExecutor())._partitions
    for part in (whole.part(i, i + 1) for i in sample):
        sums = [Change().step(block, BlockState(), np.float32(number))[1].accumulator() for block in part.blocks(FLOAT32)]
        sums[0].add(sums[1])
        parts.append(sums[0])
    while len(parts) > 1:  # neighbours two by two, and their sums again
        for left, right in zip(parts[::2], parts[1::2], strict=False):
            left.add(right)
        parts = parts[::2]
    return [np.append(parts[0].weighted, parts[0].count).tobytes()]


@pytest.mark.parametrize("kind", [Change, Peek])
def test_a_pass_processes_its_partitions_and_adds_them_up_by_position(executor: Executor, kind: type[Change], tmp_path: Path) -> None:
    samples = [(0,), (17,), (23,), (0, 23), (3, 4, 5, 11, 23), tuple(EVERYTHING)]
    samples += [drawn(np.random.default_rng(seed)) for seed in range(2)]
    for number, sample in enumerate(samples, 1):
        with opened(executor) as session:
            assert take(session, [sampled(kind, sample, Walk(str(tmp_path)))], number) == by_hand(sample, number)
    assert processed_partitions(tmp_path) == Counter((number, i) for number, sample in enumerate(samples, 1) for i in sample)


@pytest.mark.parametrize("seed", range(2))  # each has every second plan
def test_mixed_passes_give_the_same_bits_everywhere(executor: Executor, seed: int, sources: Sources) -> None:
    plans = [(128, 0, 99), (512, 5, 99), (512, 0, 0), (50, 99, 99), (300, 0, 3), (0, 0, 99), (0, 99, 3), (1, 0, 2)]
    passes, expected = mixed(seed), inline_mixed(seed)
    for rows, resident, states in plans[seed % 2 :: 2]:
        assert course(opened(executor, sources[rows], resident_values=resident, resident_states=states), passes) == expected


@pytest.mark.parametrize("resident", [0, 99])
def test_dask_arrays_give_the_bits_of_those_in_memory(resident: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(dask_rows, "_CHUNK_BYTES", (1 << 10, 1 << 13))
    with inside(3) as client:
        with tiny_partitions():
            source, _ = dask_rows.persist_rows(da.from_array(values(), chunks=(400, 9)), client)
        assert len(source.chunks) > 3
        assert course(opened(DistributedExecutor(client), source, resident_values=resident), mixed(resident)) == inline_mixed(resident)


@dataclass(frozen=True)
class Inverted:
    """A view of blocks with other values."""

    def __call__(self, block: Block) -> Block:
        return block.with_matrix(3 - block.values)


def test_a_pass_gets_a_view_of_the_blocks_and_may_discard_their_states(executor: Executor) -> None:
    plain, fresh, sample = RunPass(Walk()), RunPass(Walk(), reset=True), drawn(np.random.default_rng(0))
    viewed, viewed_again = RunPass(Walk(), view=Inverted()), RunPass(Walk(), view=Inverted(), reset=True, sample=sample)
    with opened(executor) as session:
        first, second, third = take(session, [plain, plain, fresh])
        by_view = take(session, [viewed_again, viewed], 3)
    with opened(executor, ArraySource(np.where(values() == 4, 4, 3 - values()))) as session:
        inverted = take(session, [fresh], 3)
        assert take(session, [replace(viewed_again, view=None)], 3) == by_view[:1]
    with opened(InlineExecutor()) as session:
        assert take(session, [plain], 3) == [third] != inverted
        take(session, [replace(fresh, sample=sample)], 3)
        assert take(session, [viewed], 4) == by_view[1:]
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("resident_states", [1, 99])
def test_partitions_outside_the_sample_keep_their_state(executor: Executor, resident_states: int, tmp_path: Path) -> None:
    rng, found = np.random.default_rng(resident_states), list[dict[int, bytes]]()
    first, other, third = drawn(rng), drawn(rng), drawn(rng)
    visits = [(Peek, other), (Change, first), (Peek, other), (Change, tuple(EVERYTHING)), (Change, third), (Peek, other)]
    with opened(executor, resident_states=resident_states) as session:
        for number, (kind, sample) in enumerate(visits, 1):
            take(session, [sampled(kind, sample)], number)
            stored = session.save(zarr.create_group(tmp_path / f"{number}.zarr"))
            states = {i: b"".join(block["x"].tobytes() for block in blocks) for part in stored for i, blocks in enumerate(part, part.first)}
            found.append({i: state for i, state in states.items() if state})
    assert [set(states) for states in found] == [set(), set(first), set(first), *[set(EVERYTHING)] * 3]
    changed = [{i for i, state in after.items() if before.get(i) != state} for before, after in pairwise(found)]
    assert changed == [set(first), set(), set(EVERYTHING), set(third), set()]


@pytest.mark.parametrize("seed", range(2))
def test_states_of_some_partitions_are_restored_on_other_executors(seed: int, tmp_path: Path) -> None:
    passes, sums, states = mixed(seed, n=12), list[bytes](), list[Any]()
    with inside(3) as three, inside(8) as eight:
        executors: list[Executor] = [DistributedExecutor(three), ThreadsExecutor(2), DistributedExecutor(eight), InlineExecutor()]
        for i, executor in enumerate(executors + executors[-2::-2]):
            with opened(executor, resident_states=i % 3) as session:
                session.restore(states)
                sums += take(session, passes[2 * i : 2 * i + 2], 2 * i + 1)
                states = session.save(zarr.create_group(tmp_path / f"{i}.zarr"))
                rows = rows_of(session) if i == 5 else b""
    assert (sums, rows) == inline_mixed(seed, 12)


@pytest.mark.parametrize("seed", range(2))
def test_a_checkpoint_of_some_states_resumes_on_other_executors(executor: Executor, seed: int, tmp_path: Path) -> None:
    passes, sample = mixed(seed, n=7), drawn(np.random.default_rng(seed))
    passes[1:3] = sampled(Peek, sample), sampled(Change, sample)  # so that the first version holds the states of some partitions
    expected, rows = inline(passes)
    path = tmp_path / "checkpoint.zarr"
    for by, n in ((InlineExecutor(), 3), (executor, 6), (ThreadsExecutor(3), 7)):
        with suppress(common.StopHereError), CheckpointedSession(opened(by), path, 2, {}) as session:
            sums = take(session, passes[:n])
            raise common.StopHereError
    with CheckpointedSession(opened(executor), path, 2, {}) as session:
        assert take(session, passes) == sums == expected
        assert np.concatenate(list(session.rows("x"))).tobytes() == rows


def partitions_of(request: RunPass[Sums]) -> set[int]:
    return set(request.partitions(N_PARTITIONS))


def repeated(passes: Sequence[RunPass[Sums]], lost: set[int]) -> Counter[tuple[int, int]]:
    """Return the passes that are repeated for partitions that are lost after these passes."""
    changing = [(number, request) for number, request in enumerate(passes, 1) if request.pass_.changes_state]
    return Counter((number, i) for number, request in changing for i in lost & partitions_of(request))


@pytest.mark.parametrize("seed", range(4))
def test_passes_that_change_no_state_are_not_repeated(seed: int, tmp_path: Path) -> None:
    """And a checkpoint in the middle saves what comes before it."""
    rng, passes, sums, saved = np.random.default_rng(seed), mixed(seed, Walk(str(tmp_path)), 10), list[bytes](), 0
    expected = Counter[tuple[int, int]]()
    with inside(4) as client, opened(DistributedExecutor(client)) as session:
        for n, pass_ in enumerate(passes):
            if n and len(session._workers.owners) > 1 and rng.random() < 0.5:
                victim = session._workers.owners[int(rng.integers(len(session._workers.owners)))]
                expected += repeated(passes[:n], held(session, victim.address)) - repeated(passes[:saved], set(EVERYTHING))
                session._workers.remove([victim])
            sums += take(session, [pass_], n + 1)
            expected += Counter((n + 1, i) for i in partitions_of(pass_))
            if n == 4:
                session.save(zarr.create_group(tmp_path / "state.zarr"))
                saved = n + 1
        assert processed_partitions(tmp_path) == expected
        assert (sums, rows_of(session)) == inline_mixed(seed, 10)


@pytest.mark.exhaustive
@pytest.mark.faults
def test_killed_workers_do_not_change_the_bits(processes: Processes, tmp_path: Path, monkeypatch: Patch) -> None:
    """One between passes, one in a pass that changes no state, and one in a pass that does."""
    monkeypatch.setattr("dfact.engine.cluster.watchdog.POLL_SECONDS", 0.2)  # the driver soon looks after workers that do not answer
    samples = [tuple(sorted({0, 12, 23, *drawn(np.random.default_rng(seed))})) for seed in range(6)]

    def passes(walk: Walk) -> Requests:
        return [
            RunPass(walk),
            *(sampled(kind, sample, walk) for kind, sample in zip([Change, Peek] * 3, samples, strict=True)),
            RunPass(walk),
        ]

    doomed = passes(Walk(str(tmp_path), (Kill(5, 12), Kill(6, 0))))
    with common.workers(processes, 4) as client, opened(DistributedExecutor(client)) as session:
        sums = take(session, doomed[:3])
        for n, partition in ((4, 23), (5, 12), (6, 0)):
            before, lost = processed_partitions(tmp_path), held(session, owner(session, partition))
            if n == 4:
                processes.kill(common.stem(client, owner(session, partition)))
            sums += take(session, doomed[n - 1 : n], n)
            earlier = Counter({key: count for key, count in processed_partitions(tmp_path).items() if key[0] < n})
            assert earlier == before + repeated(doomed[: n - 1], lost)
        sums += take(session, doomed[6:], 7)
        assert common.kills_done(tmp_path) == 2
        assert (sums, rows_of(session)) == inline(passes(Walk()))


def note_reads(patch: Patch, note: Callable[[int, int], Any]) -> None:
    """Call ``note`` before each read, with its first row and the one behind its last."""
    read = ZarrSource.read

    def noted(self: ZarrSource, start: int, stop: int) -> NDArray[Any]:
        note(self.offset + start, self.offset + stop)
        return read(self, start, stop)

    patch.setattr(ZarrSource, "read", noted)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [50, 128, 512])
def test_the_next_partition_is_read_while_one_is_computed(threads: int, rows: int, sources: Sources, monkeypatch: Patch) -> None:
    sample = (0, 2, 9, 11, 16, 22)  # neighbours would be read in one go
    begun = {i * ROWS: threading.Event() for i in sample}
    note_reads(monkeypatch, lambda start, _: begun[start].set())
    with opened(ThreadsExecutor(threads), sources[rows], resident_values=0) as session:
        assert (
            take(session, [RunPass(Expecting(sample=sample, begun=begun), sample=sample)])
            == inline([sampled(Change, sample), RunPass(Walk())])[0][:1]
        )


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [50, 128, 300, 512])
def test_a_chunk_is_decoded_once_at_most_for_each_partition(threads: int, rows: int, sources: Sources, monkeypatch: Patch) -> None:
    read, chunks = list[int](), (np.arange(len(values())) // rows).tolist()
    note_reads(monkeypatch, lambda start, stop: read.extend(range(start // rows, -(-stop // rows))))
    with opened(ThreadsExecutor(threads), sources[rows], resident_values=0) as session:
        for number in range(1, 5):
            sample = drawn(np.random.default_rng(number))
            take(session, [sampled(Change, sample)], number)
            needed = Counter(chunk for i in sample for chunk in set(chunks[i * ROWS : (i + 1) * ROWS]))
            assert set(read) == set(needed)
            assert Counter(read) <= needed
            read.clear()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_chunks_that_fit_into_memory_are_read_once(threads: int, sources: Sources, monkeypatch: Patch) -> None:
    read = list[int]()
    note_reads(monkeypatch, lambda start, stop: read.extend(range(start // 512, -(-stop // 512))))
    samples = [(0, 2, 3, 9), (1, 2, 8, 11), (5, 9, 10), (6, 8), tuple(EVERYTHING), (20,)]
    passes = [sampled(kind, sample) for kind, sample in zip([Change, Peek] * 3, samples, strict=True)]
    with opened(ThreadsExecutor(threads), sources[512], resident_values=99) as session:
        counts = [len(read) for number, pass_ in enumerate(passes, 1) if take(session, [pass_], number)]
    assert counts == [2, 2, 3, 3, 6, 6]
    assert sorted(read) == list(range(6))


@pytest.mark.parametrize("kind", [Change, Peek])
def test_an_error_in_a_block_reaches_the_caller(executor: Executor, kind: type[Change], sources: Sources) -> None:
    with opened(executor, sources[128], resident_values=0) as session:
        take(session, [RunPass(Walk())])
        with pytest.raises(ValueError, match=r"block \d+ is bad"):
            take(session, [sampled(kind, (2, 3, 7, 20), Walk(fails=2))], 2)


@pytest.mark.parametrize("bad", [1, 9, 22])
def test_an_error_of_the_reader_reaches_the_caller(executor: Executor, bad: int, sources: Sources, monkeypatch: Patch) -> None:
    def note(start: int, stop: int) -> None:
        assert threading.current_thread().name.startswith("dfact-read")
        if start <= bad * ROWS < stop:
            raise OSError("disk gone")

    note_reads(monkeypatch, note)
    with opened(executor, sources[128], resident_values=0) as session:
        take(session, [sampled(Change, (0, 5, 21, 23))])
        with pytest.raises(OSError, match="disk gone"):
            take(session, [sampled(Change, (1, 5, 9, 13, 22))], 2)
    if not isinstance(executor, DistributedExecutor):
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("dfact-read")]
