"""Lazy results: dask arrays with one row for each row of another dask array, computed chunk by chunk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.dask import check_chunk, persist_chunks, rechunk_rows
from dfact.lazy import is_data_frame

if TYPE_CHECKING:
    from distributed import Client

Solve = Callable[..., NDArray[Any]]
"""Function of a model, a range of rows, and covariates of these rows by keyword."""


def map_rows(array: Any, solve: Solve, model: Any, covariates: Mapping[str, Any], *, columns: int, dtype: np.dtype[Any]) -> Any:
    """Return a dask array (n, columns) of the results of ``solve`` for each chunk of rows; computes nothing yet.

    The graph holds the model once. ``covariates`` are tables and arrays with a row for each row of the array; each chunk
    receives its own rows of them. Chunks begin at block boundaries, so the bits equal those of all rows at once.
    """
    import dask
    import dask.array as da
    from dask.highlevelgraph import HighLevelGraph
    from dask.task_spec import Task, TaskRef

    array = rechunk_rows(array, Layout.of(array.shape).block_rows)
    shared_model = dask.delayed(model, traverse=False)
    name = f"dfact-transform-{uuid4().hex}"
    layer = {}
    for i, (start, stop) in enumerate(pairwise(accumulate(array.chunks[0], initial=0))):
        task = partial(
            _solve_chunk,
            solve,
            declared=((stop - start, *array.shape[1:]), array.dtype),
            result=((stop - start, columns), dtype),
            covariates={key: _slice_rows(table, slice(start, stop)) for key, table in covariates.items()},
        )
        key, chunk = (name, i, 0), (array.name, i, *(0,) * (array.ndim - 1))
        layer[key] = Task(key, task, TaskRef(shared_model.key), TaskRef(chunk))
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[array, shared_model])
    return da.Array(graph, name, chunks=(array.chunks[0], (columns,)), dtype=dtype, meta=np.empty((0, 0), dtype))


def _slice_rows(table: Any, rows: slice) -> Any:
    return table.iloc[rows] if is_data_frame(table) else table[rows]


def _solve_chunk(
    solve: Solve,
    model: Any,
    chunk: Any,
    *,
    declared: tuple[Any, np.dtype[Any]],
    result: tuple[Any, np.dtype[Any]],
    covariates: dict[str, Any],
) -> NDArray[Any]:
    values = check_chunk(chunk, *declared)
    return np.asarray(solve(model, values, **covariates), result[1]) if len(values) else np.empty(*result)


def compute_chunks(array: Any, client: Client | None) -> Iterator[NDArray[Any]]:
    """Yield the computed chunks in order, from the client's or the active client's cluster; without a client, all in one array."""
    client = active_client() if client is None else client
    if client is None:
        yield np.asarray(array)
        return
    futures = persist_chunks(array, client)
    for key in list(futures):
        yield futures.pop(key).result()  # popped, so that the cluster releases each chunk once it has been fetched


def active_client() -> Client | None:
    """Return Dask's default client, None if there is none."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
