"""Dask arrays of results that have a row for each row of another one, chunk by chunk."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.dask import by_rows, declared, persisted

if TYPE_CHECKING:
    from distributed import Client

Solve = Callable[..., NDArray[Any]]
"""Called with a model, a run of rows, and by name what is known of them."""


def lazily(array: Any, solve: Solve, model: Any, known: Mapping[str, Any], *, columns: int, dtype: np.dtype[Any]) -> Any:
    """A dask array (n, columns) of what ``solve`` gives for each chunk of rows of the array; nothing is computed yet.

    The model is in the graph once. ``known`` are tables and arrays with a row for each of the array's, of which a
    chunk gets its own. Chunks begin where blocks do, so that the bits are those of all rows at once.
    """
    import dask
    import dask.array as da
    from dask.highlevelgraph import HighLevelGraph

    array = by_rows(array, Layout.of(array.shape).block_rows)
    sent = dask.delayed(model, traverse=False)
    name = f"dfact-transform-{uuid4().hex}"
    layer = {}
    for i, (start, stop) in enumerate(pairwise(accumulate(array.chunks[0], initial=0))):
        task = partial(
            _solved,
            solve,
            given=((stop - start, *array.shape[1:]), array.dtype),
            result=((stop - start, columns), dtype),
            known={key: _cut(table, slice(start, stop)) for key, table in known.items()},
        )
        layer[(name, i, 0)] = (task, sent.key, (array.name, i, *(0,) * (array.ndim - 1)))
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[array, sent])
    return da.Array(graph, name, chunks=(array.chunks[0], (columns,)), dtype=dtype, meta=np.empty((0, 0), dtype))


def _cut(table: Any, rows: slice) -> Any:
    return table.iloc[rows] if isinstance(table, pd.DataFrame) else table[rows]


def _solved(
    solve: Solve, model: Any, chunk: Any, *, given: tuple[Any, np.dtype[Any]], result: tuple[Any, np.dtype[Any]], known: dict[str, Any]
) -> NDArray[Any]:
    values = declared(chunk, *given)
    return np.asarray(solve(model, values, **known), result[1]) if len(values) else np.empty(*result)


def computed(array: Any, client: "Client | None") -> Iterator[NDArray[Any]]:
    """The array's chunks in order: on the client's cluster, or else the active one's, where they wait; without one all in memory."""
    client = active_client() if client is None else client
    if client is None:
        yield np.asarray(array)
        return
    futures = persisted(array, client)
    for key in list(futures):
        yield futures.pop(key).result()  # held no longer than it takes


def active_client() -> "Client | None":
    """The client that is the default one, if there is any."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
