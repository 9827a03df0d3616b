"""Zarr's event loop."""

from dfact.internals.checks import require

require("zarr", "zarr.core.sync:sync")

from zarr.core.sync import sync  # noqa: E402  # after the check

__all__ = ["sync"]
