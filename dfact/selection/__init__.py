"""Choosing what a fit cannot choose by itself."""

from dfact.selection.modularity import select_by_modularity
from dfact.selection.result import Selection

__all__ = ["Selection", "select_by_modularity"]
