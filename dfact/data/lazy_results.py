"""Lazy results: dask arrays with one row for each row of another dask array, computed chunk by chunk."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from multiprocessing import parent_process
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from dfact.data.layout import Layout
from dfact.data.sources.dask import check_chunk, persist_chunks, rechunk_rows
from dfact.errors import ClusterError, ParameterError
from dfact.lazy import is_data_frame

if TYPE_CHECKING:
    from distributed import Client

Solve = Callable[..., NDArray[Any]]
"""Function of a model, a range of rows, and covariates of these rows by keyword."""
_clients: dict[tuple[int, str], Client] = {}
"""Clients of cluster objects by process and address; a cluster that is closed closes them."""
_lock = Lock()
_quick = False
"""Whether this process is a worker that has been told to end quickly."""


def map_rows(array: Any, solve: Solve, model: Any, covariates: Mapping[str, Any], *, columns: int, dtype: np.dtype[Any]) -> Any:
    """Return a dask array (n, columns) of the results of ``solve`` for each chunk of rows; computes nothing yet.

    The graph holds the model once. ``covariates`` are tables and arrays with a row for each row of the array; each chunk
    receives its own rows of them. The chunks of a task begin at block boundaries, so the bits equal those of all rows at once. Those of the
    result are those of the array.
    """
    import dask
    import dask.array as da
    from dask.highlevelgraph import HighLevelGraph
    from dask.task_spec import Task, TaskRef

    given, array = array.chunks[0], rechunk_rows(array, Layout.of(array.shape).block_rows)
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
    solved = da.Array(graph, name, chunks=(array.chunks[0], (columns,)), dtype=dtype, meta=np.empty((0, 0), dtype))
    return solved.rechunk((given, (columns,)))


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
    exit_quickly()
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


def client_of_cluster(executor: Any) -> Client | None:
    """Return the client of a cluster object, such as a ``distributed.LocalCluster``; None for anything else.

    It is the active client if that is connected to the cluster, else one that stays open until the cluster is closed.

    Raises
    ------
    ParameterError
        The cluster is asynchronous.
    ClusterError
        The cluster is closed.
    """
    if not is_cluster(executor):
        return None
    from distributed import Client

    if executor.asynchronous:
        raise ParameterError("the Dask cluster is asynchronous (asynchronous=True), expected a synchronous one; create it without that")
    if executor.status.name not in ("running", "created"):
        raise ClusterError("the Dask cluster is closed, expected a running one; start another, or run here: set_params(executor=None)")
    address = executor.scheduler_address
    client = active_client()
    if client is not None and client.scheduler is not None and client.scheduler.address == address:
        return client
    with _lock:
        client = _clients.get((os.getpid(), address))
        if client is None or client.status != "running":
            client = _clients[os.getpid(), address] = Client(executor, set_as_default=False)
    return client


def is_cluster(executor: Any) -> bool:
    """Return whether an executor is a cluster object of Dask, without importing Dask."""
    deploy = sys.modules.get("distributed.deploy.cluster")
    return deploy is not None and isinstance(executor, deploy.Cluster)


def exit_quickly() -> None:
    """Let this process, if it is that of a worker, end without a search of all objects for cycles.

    The modules of a fit make the search three times as long as in a worker without them, so that Dask kills workers of a busy machine.
    """
    global _quick  # noqa: PLW0603  # of this process
    if not _quick and parent_process() is not None:
        _quick = True
        atexit.register(gc.freeze)


def active_client() -> Client | None:
    """Return Dask's default client, None if there is none."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None
