"""The contract of a pass: the step on one block, the sums that combine the blocks' results, and the request to run it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dfact.data.sources.sparse import to_dense
from dfact.data.statistics import as_float
from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.threads import cached_without_lock
from dfact.lazy import sp

R = TypeVar("R")
T = TypeVar("T")
_SMALL_CODES = 2  # bytes of integers that every floating type holds exactly


class Workspace:
    """Working arrays of one thread, reused from block to block and from pass to pass.

    Allocating an array for each block costs more than the arithmetic on it if the allocator
    returns freed memory to the system, as in the workers that Dask starts.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._lasting = 0
        self._made: dict[str, tuple[Any, Any]] = {}
        """The broadcast and the result of the last call of :meth:`once` with each name."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialized array in C order, in the memory of the last array of this name."""
        dtype = np.dtype(dtype)
        size = prod(shape) * dtype.itemsize
        buffer = self._arrays.get(name)
        if buffer is None or buffer.nbytes < size:
            buffer = self._arrays[name] = np.empty(size, np.uint8)
        array: NDArray[Any] = buffer[:size].view(dtype).reshape(shape)
        return array

    def until_next_block(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an uninitialized array whose memory is not reused until ``next_block``, for the sums of a block.

        In a fused pass the sums of one member wait until all members have processed the block.
        """
        self._lasting += 1
        return self.array(f"lasting {self._lasting}", shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        """Return an array of zeros that lasts until ``next_block``."""
        out = self.until_next_block(shape, dtype)
        out.fill(0)
        return out

    def next_block(self) -> None:
        """Release the lasting arrays, once the sums of the previous block have been added up."""
        self._lasting = 0

    def cached(self, name: str, broadcast: Any, make: Callable[[], T]) -> T:
        """Return the result of ``make``, which depends on this broadcast alone and is called again only for another broadcast.

        So each thread calls it once in a pass.
        """
        cached = self._made.get(name)
        if cached is None or cached[0] is not broadcast:
            cached = self._made[name] = broadcast, make()
        result: T = cached[1]
        return result

    def matmul(self, A: NDArray[Any] | sp.csr_array | sp.csc_array, B: NDArray[Any], name: str | None = None) -> NDArray[Any]:
        """Return A @ B in the array of this name, else in a lasting one. SciPy allocates the product of a CSR matrix itself."""
        if not isinstance(A, np.ndarray):
            return np.asarray(A @ B)
        shape, dtype = (A.shape[0], B.shape[1]), np.result_type(A, B)
        out = self.until_next_block(shape, dtype) if name is None else self.array(name, shape, dtype)
        np.matmul(A, B, out=out)
        return out

    def converted(self, name: str, values: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Return the values in this type, in the array of this name; the values themselves if they have the type already."""
        if values.dtype == dtype:
            return values
        out = self.array(name, values.shape, dtype)
        np.copyto(out, values, casting="unsafe")
        return out


def has_small_codes(dtype: np.dtype[Any]) -> bool:
    """Return whether dense entries of this type are codes of blocks as they are, without a conversion."""
    return dtype.kind in "iu" and dtype.itemsize <= _SMALL_CODES


def read_only(rows: R) -> R:
    """Return a read-only view of an array, or a CSR matrix as it is.

    All blocks are alike in this, since Numba compiles a kernel once for arrays that may be written and once for others.
    """
    if isinstance(rows, np.ndarray):
        rows = rows.view()
        rows.flags.writeable = False
    return rows


@dataclass(frozen=True, eq=False)
class Block:
    """A run of consecutive rows, the unit of a pass.

    Its entries come in four forms: ``stored`` as they were read; ``matrix`` in floating point; ``values``, the same as a dense
    array; ``codes``, dense and in the smallest type, for kernels that decode missing entries themselves.
    """

    stored: NDArray[Any] | sp.csr_array
    """The rows (rows, …) as the source stores them; read-only, as it may be the user's own array."""
    covariates: NDArray[Any] | None
    """The rows' covariates (rows, c), as the model encoded them."""
    index: int
    """Number of the block in the dataset, counted through all partitions."""
    start: int
    """Number of its first row in the dataset."""
    implicit_value: float = 0.0
    """Value of the entries that a CSR matrix does not store: 0, or NaN for missing."""
    work: Workspace = field(default_factory=Workspace)
    """Memory for the arrays of a step that neither the state nor the sums keep."""
    dtype: np.dtype[Any] | None = None
    """The floating type of the matrix; None if the stored type is used."""
    missing_code: int | None = None
    """A stored value that marks missing entries, in addition to NaN."""

    @cached_without_lock
    def matrix(self) -> NDArray[Any] | sp.csr_array:
        """The rows (rows, …) in floating point, NaN where missing; CSR if the source is. The array is read-only, and may lie in
        working memory that the next block overwrites.
        """
        if self.dtype is None:
            return self.stored
        return read_only(as_float(self.stored, self.missing_code, self.dtype, partial(self.work.array, "matrix")))

    def with_matrix(self, matrix: NDArray[Any] | sp.csr_array, **changes: Any) -> Block:
        """Return the block with another matrix."""
        return replace(self, stored=read_only(matrix), dtype=None, missing_code=None, **changes)

    @property
    def codes(self) -> tuple[NDArray[Any], float]:
        """All entries in their smallest type, and the value of missing ones: small integers are not decoded."""
        stored = self.stored
        if isinstance(stored, np.ndarray) and has_small_codes(stored.dtype):
            return stored, np.nan if self.missing_code is None else float(self.missing_code)
        return self.values, np.nan

    @cached_without_lock
    def values(self) -> NDArray[Any]:
        """The matrix as an array, with its implicit entries."""
        return self.matrix if isinstance(self.matrix, np.ndarray) else read_only(to_dense(self.matrix, self.implicit_value))


@dataclass(frozen=True)
class Released:
    """Declaration of sums that may leave a site (:mod:`dfact.sites`): they are over many rows, and none of their numbers is of one."""

    content: str
    """Words for the numbers in the sums, which messages and the list of releases print."""
    counts: tuple[str, ...] = ()
    """Fields with the numbers of rows that were summed, which missing answers make fewer than the rows of a pass."""
    groups: str | None = None
    """Field with a number for each of the groups to which rows are dealt; None for sums over all rows."""
    products: bool = False
    """Whether the sums hold the products of all pairs of columns, which are those of every combination of columns."""
    connections: str | None = None
    """Field that tells which columns rows connect, without the numbers of these rows."""


@dataclass(frozen=True)
class Withheld:
    """Declaration of sums that stay at a site."""

    reason: str
    """Why, as the end of a sentence about them."""


PARTIAL_SUMS: dict[str, type[PartialSums]] = {}
"""The classes of sums by the names under which checkpoints store them."""


@dataclass
class PartialSums:
    """Base class of the sums that a pass returns for a block: arrays and numbers that add up.

    Sums run in block order and in double precision, whatever the block's own precision. A subclass that
    combines its fields differently, for example by the maximum, overrides ``add``. A checkpoint stores the sums under the name
    that the class declares (``class Moments(PartialSums, name="moments")``), whichever module defines it; sums without a name
    cannot be stored. The class also declares whether they may leave a site, by ``disclosure``; sums of a class that does not, stay.
    A subclass does not inherit this.
    """

    checkpoint_name: ClassVar[str | None] = None
    disclosure: ClassVar[Released | Withheld | None] = None

    def __init_subclass__(cls, *, name: str | None = None, disclosure: Released | Withheld | None = None) -> None:
        cls.disclosure = disclosure
        if name is not None:
            cls.checkpoint_name = name
            PARTIAL_SUMS[name] = cls

    def accumulator(self) -> Self:
        """Return a copy in double precision, to which others can be added."""
        return type(self)(**{name: np.array(value, dtype=np.float64) for name, value in vars(self).items()})

    def count_gathered(self) -> None:
        """Add up rows that wait for others, so that the sums hold no single row; without such rows, do nothing."""

    def cells(self, broadcast: Any) -> Iterator[NDArray[Any]]:
        """Yield numbers of rows with two answers, with an answer and without another, or with the lowest or the highest answer.

        ``broadcast`` is what the pass was given. By default the sums have no such numbers.
        """
        del broadcast
        yield from ()

    def items_of(self, broadcast: Any) -> int | None:
        """Return the number of items whose pairs the sums are about; None if they are about all items."""
        del broadcast
        return None

    def add(self, other: Self) -> None:
        """Add ``other`` to this accumulator in place."""
        for name, total in vars(self).items():
            np.add(total, getattr(other, name), out=total)


@dataclass
class NoSums(PartialSums, name="none", disclosure=Released("nothing")):
    """The sums of a pass that changes the state alone."""


State = TypeVar("State", bound=BlockState)
Broadcast_contra = TypeVar("Broadcast_contra", contravariant=True)
Sums_co = TypeVar("Sums_co", bound=PartialSums, covariant=True)


class Pass(Protocol[State, Broadcast_contra, Sums_co]):
    """A computation over all blocks, declared as data; executors run it.

    The same arguments give bit-identical results, so a lost worker's partitions can be recomputed. A pass may
    write into its state argument and return it. It changes nothing else that outlives the call.
    """

    changes_state: ClassVar[bool] = True
    """Whether a step changes the state of its block. If not, the pass is not repeated for the partitions of a lost worker."""

    if TYPE_CHECKING:  # at run time, dataclasses would use the property as the default of their field

        @property
        def dtype(self) -> np.dtype[Any] | None:
            """The floating type of the blocks; None if the pass needs the state alone: no data is read, and blocks have no columns."""
            ...

    @property
    def state_type(self) -> type[State]:
        """The class of its states. Without one of its own, a pass gets what other passes have kept as :class:`BlockState`."""
        return BlockState  # type: ignore[return-value]  # the State of passes that do not set another class

    def start(self, block: Block) -> State:
        """Return the state of a block that has none yet; by default one without arrays, which fails if the pass needs some."""
        del block
        return self.state_type.of({})

    def step(self, block: Block, state: State, broadcast: Broadcast_contra) -> tuple[State, Sums_co]:
        """Process a block, given its state and the broadcast that all blocks share. Returns the new state and the block's sums.

        The sums may be lasting arrays of the block's workspace, as they are added up before the next block. The state must not
        refer to the workspace or to the block's matrix.
        """
        ...


class TiledPass(Pass[State, Broadcast_contra, Sums_co]):
    """Base class of the passes with sums over so many columns that these are combined by tiles; see :mod:`dfact.engine.tiles`.

    Such a pass adds the blocks of several partitions into one accumulator. Its session returns the tiled sums without columns, and
    passes them by tiles to the step of the next request for one. In a fused pass, it is an ordinary pass, whose sums travel whole.
    """

    if TYPE_CHECKING:

        @property
        def tiled(self) -> tuple[str, ...]:
            """Names of the sums whose last axis is the data's columns."""
            ...

    @abstractmethod
    def zeros(self, n_columns: int) -> Sums_co:
        """Return an accumulator in double precision, for data with this number of columns."""

    @abstractmethod
    def accumulate(self, block: Block, state: State, broadcast: Broadcast_contra, total: Any) -> State:
        """Process a block, given its state and the broadcast, and add its sums to ``total`` in place. Returns the new state."""

    def step(self, block: Block, state: State, broadcast: Broadcast_contra) -> tuple[State, Sums_co]:
        total = self.zeros(prod(block.stored.shape[1:]))
        return self.accumulate(block, state, broadcast, total), total


BlockView = Callable[[Block], Block]
"""A function that returns another view of a block. It is sent to workers, so it must be a module's function or a dataclass."""


@dataclass(frozen=True)
class RunPass(Generic[Sums_co]):
    """A request for the sums of a pass: what runs, with which broadcast, on which blocks, and from which state."""

    pass_: Pass[Any, Any, Sums_co]
    broadcast: Any = None
    view: BlockView | None = None
    """View of the blocks that the pass gets. If a solver shares its reads, it replaces the solver's own view."""
    sample: tuple[int, ...] | None = None
    """Numbers of the partitions to process, ascending; the blocks of the others keep their states. All if None."""
    reset: bool = False
    """Whether every block begins from the start of the pass, and its earlier state is discarded."""

    def __post_init__(self) -> None:
        assert self.sample is None or not isinstance(self.pass_, TiledPass), "sums of tiles run over all partitions"

    def with_broadcast(self, broadcast: Any) -> Self:
        """Return the same request with another broadcast."""
        return replace(self, broadcast=broadcast)

    def partitions(self, n: int) -> Sequence[int]:
        """Return the numbers of the partitions to process, of ``n`` in all, ascending."""
        return range(n) if self.sample is None else self.sample

    def step(self, block: Block, arrays: StateArrays) -> tuple[StateArrays, Sums_co]:
        """Run the pass on a block whose state is stored as ``arrays``. Returns the new arrays and the block's sums."""
        block, state = self._begin(block, arrays)
        state, sums = self.pass_.step(block, state, self.broadcast)
        return state.arrays(), sums

    def add_step(self, block: Block, arrays: StateArrays, total: Any) -> tuple[StateArrays, Any]:
        """Run the pass on a block as :meth:`step` does, and add its sums to ``total``. Returns the new arrays and the new total.

        At first ``total`` is None, or an accumulator of a tiled pass.
        """
        if isinstance(self.pass_, TiledPass) and total is not None:
            block, state = self._begin(block, arrays)
            new: BlockState = self.pass_.accumulate(block, state, self.broadcast, total)
            return new.arrays(), total
        arrays, sums = self.step(block, arrays)
        if total is None:
            return arrays, sums.accumulator()
        total.add(sums)
        return arrays, total

    def _begin(self, block: Block, arrays: StateArrays) -> tuple[Block, Any]:
        """Return what the pass sees of a block, and the state from which it begins."""
        seen = block if self.view is None else self.view(block)
        known = arrays and not self.reset
        return seen, self.pass_.state_type.of(arrays) if known else self.pass_.start(seen)
