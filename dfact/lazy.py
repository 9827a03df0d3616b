"""Lazy modules: libraries that take long to import, imported when one of their names is first used.

A module that uses one postpones its annotations (``from __future__ import annotations``) or quotes them, because they would use it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp
    from scipy import optimize, special
    from scipy.cluster import hierarchy
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    pd = _LazyModule("pandas")
    sp = _LazyModule("scipy.sparse")
    hierarchy = _LazyModule("scipy.cluster.hierarchy")
    optimize = _LazyModule("scipy.optimize")
    special = _LazyModule("scipy.special")

__all__ = ["hierarchy", "is_data_frame", "is_sparse", "optimize", "pd", "sp", "special"]


def is_data_frame(value: Any) -> TypeGuard[pd.DataFrame]:
    """Return whether a value is a pandas DataFrame; without pandas nothing is."""
    return "pandas" in sys.modules and isinstance(value, pd.DataFrame)


def is_sparse(value: Any) -> TypeGuard[sp.sparray | sp.spmatrix]:
    """Return whether a value is a sparse matrix or array of SciPy; without SciPy's module nothing is."""
    return "scipy.sparse" in sys.modules and sp.issparse(value)
