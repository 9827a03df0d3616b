"""Type of the chunks of a dask array."""

from typing import Any

import dask.array as da

from dfact.internals.checks import require

require("dask", "dask.array:Array._meta")


def chunk_type(array: da.Array) -> type[Any]:
    """Return the type of the array's chunks, as far as it is declared."""
    return type(array._meta)
