"""Modules, classes and functions stay small enough to understand, and no folder hides another behind a prefix."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.layers import ROOT, imported_modules, modules, nodes

MODULE_LINES = 600
"""Lines of a module, which may be long if it is one idea."""
METHODS = 25
FUNCTION_LINES = 60
"""Lines of a function without its signature and its docstring."""
PARAMETERS = 12
SMALL_LINES = 100
SMALL_SINGLES = 35
"""Modules below ``SMALL_LINES`` that exactly one other imports: many are two halves of one idea. Join some; the number only falls."""

_COMMAND = "a parameter for each option of a command"
_IMPORT = "a parameter for each statement about the data"
_MODEL = "a parameter for each setting of a model, as scikit-learn has them"
_STUDY = "a parameter for each setting of a study"
_KERNEL = "arrays that a kernel cannot take in an object"
REASONS = {
    "questionnaires/commands/compare.py compare": _COMMAND,
    "questionnaires/commands/describe.py describe": _COMMAND,
    "cli/stability.py stability": _COMMAND,
    "batch/deploy.py deploy": _COMMAND,
    "sites/command.py join": _COMMAND,
    "imports/arrays/array.py import_array": _IMPORT,
    "imports/arrays/triplets.py import_triplets": _IMPORT,
    "genetics/importer.py import_genotypes": _IMPORT,
    "imports/tables/table.py import_table": _IMPORT,
    "engine/cluster/session.py ClusterSession": "every call of a session, and what repeats it after the loss of a worker",
    "engine/shard.py Shard": "every call of a session, on the partitions of one process",
    "kernels/active_set.py solve_block": _KERNEL,
    "kernels/bound_fill.py bound_fill": _KERNEL,
    "kernels/bound_fill.py bounded_step": _KERNEL,
    "kernels/expectile_dense.py surrogate_rows": _KERNEL,
    "genetics/admixture.py __init__": _MODEL,
    "models/bounded_nmf/icqf.py __init__": _MODEL,
    "models/bounded_nmf/nmf.py __init__": _MODEL,
    "models/cp/base.py CPModel": "what both models of tensors share of the interface of scikit-learn",
    "models/cp/elastic.py __init__": _MODEL,
    "models/estimator.py Factorization": "what all models share of the interface of scikit-learn",
    "models/expectile/estimator.py ExpectileMF": "fits that share reads, and linear measurements",
    "models/expectile/estimator.py __init__": _MODEL,
    "questionnaires/factor_analysis/estimator.py FactorAnalysis": "fits from the data, from correlations, and from further rows",
    "questionnaires/factor_analysis/estimator.py __init__": _MODEL,
    "models/gom/estimator.py __init__": _MODEL,
    "models/pca/estimator.py PCA": "complete and missing entries, genotypes, and the interface of scikit-learn's PCA",
    "models/pca/estimator.py __init__": _MODEL,
    "report/presenters/base.py Presenter": "a method for each part of a report",
    "selection/cross_validation/block_cross_validation.py block_cross_validate": _STUDY,
    "questionnaires/groups/comparison.py compare_groups": _STUDY,
    "stability/bootstrap.py bootstrap": _STUDY,
    "models/cp/selection.py select_components": _STUDY,
}
"""Why a class has more methods, or a function more lines or parameters, than others."""


def large(name: str, path: Path) -> Iterator[str]:
    """Yield the classes and functions of a module that need a reason for their size."""
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            if sum(isinstance(each, ast.FunctionDef) for each in node.body) > METHODS:
                yield f"{name} {node.name}"
        elif isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            parameters = [each for each in [*node.args.args, *node.args.kwonlyargs] if each.arg not in {"self", "cls"}]
            if len(parameters) > PARAMETERS or (body and (body[-1].end_lineno or 0) - body[0].lineno >= FUNCTION_LINES):
                yield f"{name} {node.name}"


def test_large_classes_and_functions_have_a_reason() -> None:
    found = {each for name, path in modules().items() for each in large(name, path)}
    assert sorted(found - set(REASONS)) == []
    assert {each for each in REASONS if each.split()[0] in modules()} <= found, "a reason that is no longer needed"


def test_modules_are_one_idea() -> None:
    assert [name for name, path in modules().items() if len(path.read_text().splitlines()) > MODULE_LINES] == []


def test_small_modules_serve_several_others() -> None:
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path in modules().values():
        for module in imported_modules(path):
            importers[module].add(path)
    small = [
        path.relative_to(ROOT).as_posix()
        for path in modules().values()
        if path.name != "__init__.py" and len(importers[path]) == 1 and len(path.read_text().splitlines()) < SMALL_LINES
    ]
    assert len(small) <= SMALL_SINGLES, small


def siblings() -> dict[str, int]:
    """Prefixes that at least three modules of one folder have in common, as ``folder/prefix_``."""
    found: dict[str, int] = defaultdict(int)
    for path in modules().values():
        if path.name != "__init__.py":
            found[f"{(path.parent / path.stem.split('_')[0]).relative_to(ROOT).as_posix()}_"] += 1
    return {prefix: count for prefix, count in sorted(found.items()) if count >= 3}


def test_no_three_siblings_have_a_common_prefix() -> None:
    assert siblings() == {}
