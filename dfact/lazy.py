"""Lazy modules: libraries that take long to import, imported when one of their names is first used.

A module that uses one postpones its annotations (``from __future__ import annotations``), because they would use it.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import pandas as pd
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    pd = _LazyModule("pandas")

__all__ = ["is_data_frame", "pd"]


def is_data_frame(value: Any) -> "TypeGuard[pd.DataFrame]":
    """Return whether a value is a pandas DataFrame; without pandas nothing is."""
    return "pandas" in sys.modules and isinstance(value, pd.DataFrame)
