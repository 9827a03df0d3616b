"""Selection: choose the size and penalties of a model.

Imports models, by their public names, and everything below them. Each public function has a module of its own, that for one family of
models in the folder of the family. What they share (masks, folds, the scheduler of fits, results that survive an interruption) has no
public name.

    cross_validation    by the errors of held-out entries
    criteria            by BIC or by the consensus of restarts
    grid, result        the candidates, and the rule that chooses one
    running             run many fits, and keep their results
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dfact.catalogue import absent, find_public

if TYPE_CHECKING:
    from dfact.models.cp.core_consistency import core_consistency
    from dfact.models.cp.penalty_selection import select_penalty
    from dfact.models.cp.replicability import replicability
    from dfact.models.expectile.held_out_entries import select_by_held_out, select_each_by_held_out
    from dfact.models.gom.modularity import select_by_modularity
    from dfact.models.gom.number_of_classes import select_number_of_classes
    from dfact.models.pca.number_of_components import select_number_of_components
    from dfact.selection.criteria import select_by_criterion
    from dfact.selection.cross_validation.block_cross_validation import block_cross_validate
    from dfact.selection.cross_validation.entry_cross_validation import cross_validate_entries
    from dfact.selection.cross_validation.hold_outs import select_by_hold_out
    from dfact.selection.result import Selection
    from dfact.stability.bootstrap import bootstrap

# Imported on first use: each takes its part of the models.
_MODULES = {
    "Selection": "dfact.selection.result",
    "block_cross_validate": "dfact.selection.cross_validation.block_cross_validation",
    "core_consistency": "dfact.models.cp.core_consistency",
    "cross_validate_entries": "dfact.selection.cross_validation.entry_cross_validation",
    "select_by_criterion": "dfact.selection.criteria",
    "select_by_hold_out": "dfact.selection.cross_validation.hold_outs",
}
__all__ = [
    "Selection",
    "block_bootstrap",
    "block_cross_validate",
    "bootstrap",
    "compare_groups",
    "core_consistency",
    "cross_validate_entries",
    "replicability",
    "select_by_criterion",
    "select_by_held_out",
    "select_by_hold_out",
    "select_by_modularity",
    "select_each_by_held_out",
    "select_number_of_classes",
    "select_number_of_components",
    "select_number_of_factors",
    "select_penalty",
]
for _name in absent("selection"):
    __all__.remove(_name)  # noqa: PYI056  (type checkers see a complete installation)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        return find_public(f"selection.{name}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
