"""The state of a model in its copies: pickled ones, deep copies and clones."""

from typing import Any

import numpy as np
import zarr

from dfact.data.lazy_results import is_cluster
from dfact.data.memory_limit import free_memory
from dfact.errors import StoreError
from dfact.storage.files import is_temporary
from dfact.storage.zarr_stores import location_of


def picklable_state(model: Any) -> dict[str, Any]:
    """Return the attributes of a model for another process, or for a deep copy.

    A Dask client or cluster becomes the address of its scheduler; None if it is closed, or within this process. Arrays in a temporary
    folder, which goes with this process or with the model, become arrays in memory.

    Raises
    ------
    StoreError
        These arrays need more than half of the free memory.
    """
    state = dict(vars(model))
    if is_client(executor := state.get("executor")):
        state["executor"] = client_address(executor)
    temporary = {name: value for name, value in state.items() if isinstance(value, zarr.Array) and is_temporary(location_of(value.store))}
    size, free = sum(value.nbytes for value in temporary.values()), free_memory()
    if temporary and size > free.size / 2:
        raise StoreError(
            f"{', '.join(temporary)} of the model lie in a temporary folder and have {size / 2**30:.1f} GiB, expected at most half of the "
            f"{free} to pickle or copy them; save the model instead: dfact.save_model(model, path)"
        )
    return state | {name: np.asarray(value) for name, value in temporary.items()}


def is_client(executor: Any) -> bool:
    """Return whether an executor is a Dask client or cluster, without importing Dask."""
    return is_cluster(executor) or hasattr(executor, "scheduler_info")


def client_address(client: Any) -> str | None:
    """Return the address of the scheduler of a Dask client or cluster; None if it is closed, or no other process can reach it."""
    if is_cluster(client):
        address = client.scheduler_address if client.status.name == "running" else ""
    else:
        address = "" if client.scheduler is None else str(client.scheduler.address)
    return None if address.startswith("inproc://") or "://" not in address else address
