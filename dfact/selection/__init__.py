"""Selection of what a fit cannot determine by itself, and the stability of what it found.

One public function, one file. The other modules are shared parts without public names. Selection may
import models and everything below them; it runs fits through executors alone.
"""

from dfact.selection.block_cross_validation import block_cross_validate
from dfact.selection.bootstrap import bootstrap
from dfact.selection.core_consistency import core_consistency
from dfact.selection.criteria import select_by_criterion
from dfact.selection.held_out_entries import select_by_held_out
from dfact.selection.modularity import select_by_modularity
from dfact.selection.result import Selection
from dfact.selection.solution_path import select_on_path

__all__ = [
    "Selection",
    "block_cross_validate",
    "bootstrap",
    "core_consistency",
    "select_by_criterion",
    "select_by_held_out",
    "select_by_modularity",
    "select_on_path",
]
