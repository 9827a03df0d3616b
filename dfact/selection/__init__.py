"""Selection: choose the size and penalties of a model, and measure its stability.

Imports models, by their public names, and everything below them. Each public function has a module of its own. What they
share (masks, folds, the scheduler of fits, results that survive an interruption) has no public name.

    block_cross_validation    by the error of held-out blocks, for any model
    held_out_entries          by the loss of held-out entries, for expectiles
    criteria                  by BIC or by the consensus of restarts
    modularity                the number of classes
    entry_cross_validation    the number of populations
    solution_path             the number of components of a tensor, along λ
    tensor_selection          the same by any criterion, for the command
    replicability             the number of components of a tensor, by fits to other rows
    number_of_factors         parallel analyses, MAP and BIC, for factor analysis
    core_consistency          whether components of a tensor share what is one
    bootstrap                 refits to resampled participants
    tensor_bootstrap          the same for tensors
    reselection               the selection repeated in each resample
    block_bootstrap           refits to resampled blocks of SNPs, for standard errors of memberships
    groups                    congruence of factors between groups, and items that favour one
    item_screens              the items' part of it
    scheduler                 run many fits: in memory, or in fused passes over stored data
"""

from dfact.selection.block_bootstrap import block_bootstrap
from dfact.selection.block_cross_validation import block_cross_validate
from dfact.selection.bootstrap import bootstrap
from dfact.selection.core_consistency import core_consistency
from dfact.selection.criteria import select_by_criterion
from dfact.selection.entry_cross_validation import cross_validate_entries
from dfact.selection.groups import compare_groups
from dfact.selection.held_out_entries import select_by_held_out, select_each_by_held_out
from dfact.selection.modularity import select_by_modularity
from dfact.selection.number_of_factors import select_number_of_factors
from dfact.selection.replicability import replicability
from dfact.selection.result import Selection
from dfact.selection.solution_path import select_on_path

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
    "select_by_modularity",
    "select_each_by_held_out",
    "select_number_of_factors",
    "select_on_path",
]
