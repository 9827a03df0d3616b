"""The contract of a pass: what is done to one block, and how the partial results add up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dfact.data.sources.sparse import to_dense
from dfact.data.statistics import as_float

T = TypeVar("T")
_SMALL_CODES = 2  # bytes of integers that every floating type holds exactly
State = dict[str, NDArray[Any]]
"""What a pass keeps for a block between passes, rows last: (k, rows), or first: (rows, m)."""


class Workspace:
    """Working arrays of one thread, reused from block to block and from pass to pass.

    An array that is allocated anew for each block costs more than the arithmetic on it where the allocator
    returns freed memory to the system, as in the workers that Dask starts.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._lasting = 0
        self._made: dict[str, tuple[Any, Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An uninitialized array in C order; the memory of the last array of this name."""
        dtype = np.dtype(dtype)
        size = prod(shape) * dtype.itemsize
        held = self._arrays.get(name)
        if held is None or held.nbytes < size:
            held = self._arrays[name] = np.empty(size, np.uint8)
        found: NDArray[Any] = held[:size].view(dtype).reshape(shape)
        return found

    def lasting(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An uninitialized array whose memory nothing else gets until ``next_block``: what the sums of a block are made in.

        Several passes may share a visit of a block, and the sums of one wait for those of the others.
        """
        self._lasting += 1
        return self.array(f"lasting {self._lasting}", shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
        """An array that lasts, of zeros, to add to."""
        out = self.lasting(shape, dtype)
        out.fill(0)
        return out

    def next_block(self) -> None:
        """The sums of the block before have been added up: what was to last is free again."""
        self._lasting = 0

    def once(self, name: str, broadcast: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` computes from these shared values; it is called at the first block of a pass only."""
        held = self._made.get(name)
        if held is None or held[0] is not broadcast:
            held = self._made[name] = broadcast, make()
        found: T = held[1]
        return found

    def matmul(self, A: NDArray[Any] | sp.csr_array | sp.csc_array, B: NDArray[Any], name: str | None = None) -> NDArray[Any]:
        """A @ B in the memory of this name; without one, in memory that lasts. SciPy gives a row-compressed one's its own."""
        if not isinstance(A, np.ndarray):
            return np.asarray(A @ B)
        shape, dtype = (A.shape[0], B.shape[1]), np.result_type(A, B)
        out = self.lasting(shape, dtype) if name is None else self.array(name, shape, dtype)
        np.matmul(A, B, out=out)
        return out

    def converted(self, name: str, values: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """The values in this type, in the memory of this name; themselves where they have it already."""
        if values.dtype == dtype:
            return values
        out = self.array(name, values.shape, dtype)
        np.copyto(out, values, casting="unsafe")
        return out


@dataclass(frozen=True, eq=False)
class Block:
    """A run of rows as a pass sees it."""

    stored: NDArray[Any] | sp.csr_array
    """(rows, …) as the source has them; read-only, it may be the user's own array."""
    covariates: NDArray[Any] | None
    """(rows, c): what else is known of these rows, as the model encoded it."""
    index: int
    """Number of the block in the data set, counted through all partitions."""
    start: int
    """Number of its first row in the data set."""
    implicit_value: float = 0.0
    """What an entry is that a row-compressed matrix does not store: 0, or NaN for missing."""
    work: Workspace = field(default_factory=Workspace)
    """Memory for the arrays of a step that neither the state nor the sums keep."""
    dtype: np.dtype[Any] | None = None
    """The floating type of the matrix; None where it is what is stored."""
    missing_code: int | None = None
    """The stored value that stands for a missing one, beside NaN."""

    @cached_property
    def matrix(self) -> NDArray[Any] | sp.csr_array:
        """(rows, …) floating, NaN where missing; row-compressed where the source is. Read-only: it may lie in working memory
        that the next block overwrites.
        """
        if self.dtype is None:
            return self.stored
        matrix = as_float(self.stored, self.missing_code, self.dtype, partial(self.work.array, "matrix"))
        if isinstance(matrix, np.ndarray):
            matrix.flags.writeable = False
        return matrix

    def with_matrix(self, matrix: NDArray[Any] | sp.csr_array, **changes: Any) -> "Block":
        """Return the block with another matrix."""
        return replace(self, stored=matrix, dtype=None, missing_code=None, **changes)

    @property
    def codes(self) -> tuple[NDArray[Any], float]:
        """All entries in the type that takes the least to read, and the value of missing ones: small integers are not decoded."""
        stored = self.stored
        if isinstance(stored, np.ndarray) and stored.dtype.kind in "iu" and stored.dtype.itemsize <= _SMALL_CODES:
            return stored, np.nan if self.missing_code is None else float(self.missing_code)
        return self.values, np.nan

    @cached_property
    def values(self) -> NDArray[Any]:
        """The matrix with all its entries."""
        return self.matrix if isinstance(self.matrix, np.ndarray) else to_dense(self.matrix, self.implicit_value)


PARTIAL_SUMS: dict[str, type["PartialSums"]] = {}
"""All named sums: a checkpoint refers to them by these names."""


@dataclass
class PartialSums:
    """Base of the sums that a pass returns for a block: arrays and numbers that add up.

    Sums run in block order and in double precision, whatever the block's own precision. A subclass that
    combines otherwise, for example by the maximum, overrides ``add``. A checkpoint stores the sums under the name
    that the class declares (``class Moments(PartialSums, name="moments")``), wherever the class is defined.
    """

    checkpoint_name: ClassVar[str | None] = None

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        if name is not None:
            cls.checkpoint_name = name
            PARTIAL_SUMS[name] = cls

    def total(self) -> Self:
        """A copy in double precision, to add others to."""
        return type(self)(**{f.name: np.array(getattr(self, f.name), dtype=np.float64) for f in fields(self)})

    def add(self, other: Self) -> None:
        """Add ``other`` to this total in place."""
        for f in fields(self):
            total = getattr(self, f.name)
            total += getattr(other, f.name)


Broadcast_contra = TypeVar("Broadcast_contra", contravariant=True)
Sums_co = TypeVar("Sums_co", bound=PartialSums, covariant=True)


class Pass(Protocol[Broadcast_contra, Sums_co]):
    """Declared data; executors only run it.

    The same arguments give the same bits, so a task that was lost can simply run again. A pass may
    write into the state it is handed and return it: an executor that may have to run a task twice
    hands it a copy. It changes nothing else that outlives the call.
    """

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The floating type in which blocks arrive; None if the pass needs the state alone: nothing is read, blocks have no columns."""
        ...

    def start(self, block: Block) -> State | None:
        """State of a block that has none yet; None if the pass keeps none."""
        ...

    def step(self, block: Block, state: State | None, broadcast: Broadcast_contra) -> tuple[State | None, Sums_co]:
        """One visit of a block with what all blocks share.

        The sums may be lasting memory of the block's workspace: they are added up before the next block. The state may
        not be, nor may it refer to the block's matrix.
        """
        ...


class StatelessStart:
    """Base of the passes that need no state to begin with."""

    def start(self, block: Block) -> State | None:
        """None: there is nothing to begin with."""
        del block
        return None


@dataclass(frozen=True)
class SampledPass(StatelessStart):
    """Base of the passes that visit only some partitions; the others keep the state they have."""

    partitions: tuple[int, ...]
    """Numbers of the partitions to visit, ascending."""
    changes_state: ClassVar[bool] = True
    """Whether a step changes the state of its block. If not, the pass is not repeated for partitions that a lost worker held."""


@dataclass(frozen=True)
class SampledView(SampledPass):
    """Another pass, over some partitions only."""

    pass_: Pass[Any, Any]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        return self.pass_.dtype

    def start(self, block: Block) -> State | None:
        return self.pass_.start(block)

    def step(self, block: Block, state: State | None, broadcast: Any) -> tuple[State | None, Any]:
        return self.pass_.step(block, state, broadcast)


def visited_partitions(pass_: Pass[Any, Any], n_partitions: int) -> Sequence[int]:
    """Numbers of the partitions that a pass visits, ascending."""
    return pass_.partitions if isinstance(pass_, SampledPass) else range(n_partitions)
