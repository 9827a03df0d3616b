"""Agreement of fits between kinds of processors, and between the two precisions.

    python -m benchmarks.versions.blas_kernels [--numba]

The small fits of ``tests/golden`` run in processes whose OpenBLAS takes the kernels of processors with AVX-512, AVX2 and SSE
(OPENBLAS_CORETYPE), in both precisions. Each process checks with threadpoolctl that every OpenBLAS took them. ``--numba`` adds
processes in which Numba, too, compiles for the older processor, without its newer instructions; their kernels are compiled anew, in
some minutes. For each model the table has the largest differences from the first processor and between the precisions: of the final
objective, relative to it; and of the fitted arrays, relative to the largest entry of each. Thresholds are those of the guide on limits.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from benchmarks.common import exit_code, report
from dfact.models.estimator import Factorization
from tests.golden.recipes import ATTRIBUTES, RECIPES

PRECISIONS = ("float64", "float32")
OBJECTIVE = {"float64": 1e-12, "float32": 1e-5}
"""Differences of final objectives between processors that the guide on limits states."""
FACTORS = {"float64": 1e-10, "float32": 1e-3}
"""Those of fitted arrays."""
BETWEEN = 1e-4
"""Difference of final objectives between the precisions that the guide states."""
_HISTORIES = ("objective_history_", "lagrangian_history_")
_SAME = ("pure_subjects_",)  # numbers of rows


@dataclass(frozen=True)
class Processor:
    """A kind of processor by the variables that choose its kernels."""

    name: str
    core: str
    """OPENBLAS_CORETYPE."""
    numba: Mapping[str, str] = field(default_factory=dict)


PROCESSORS = (Processor("AVX-512", "SkylakeX"), Processor("AVX2", "Haswell"), Processor("SSE", "Nehalem"))
COMPILED = (
    Processor("AVX2, Numba too", "Haswell", {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}),
    Processor("SSE, Numba too", "Nehalem", {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}),
)

Fitted = dict[str, NDArray[Any]]


def fit_all(precision: str, recipes: Sequence[str], core: str) -> Fitted:
    """Fit the recipes in this precision. Return their fitted arrays by "recipe/attribute"; refuse another OpenBLAS kernel."""
    found = {pool["filepath"]: pool["architecture"] for pool in threadpool_info() if pool["internal_api"] == "openblas"}
    if not found or set(found.values()) != {core}:
        sys.exit(f"OpenBLAS runs the kernels of {sorted(set(found.values()))}, expected {core}: this processor lacks their instructions")
    if (cpu := os.environ.get("NUMBA_CPU_NAME")) and cpu != numba.config.CPU_NAME:
        sys.exit(f"Numba compiles for {numba.config.CPU_NAME}, expected {cpu}")
    Factorization._working_dtype = lambda *_: np.dtype(precision)  # type: ignore[method-assign]  # recipes have no such parameter
    arrays: Fitted = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name in recipes:
            model = RECIPES[name]()
            for attribute in ATTRIBUTES:
                value = getattr(model, attribute, None)
                if value is None:
                    continue
                several = isinstance(value, list) and np.ndim(value[0])
                for i, array in enumerate(value if several else [value]):
                    arrays[f"{name}/{attribute}{i or ''}"] = np.asarray(array, np.float64)
    return arrays


def run(processor: Processor, precision: str, recipes: Sequence[str], folder: Path) -> Fitted:
    """Fit the recipes in a process with the kernels of this processor."""
    target = folder / f"{processor.name}-{precision}.npz"
    environment = os.environ | processor.numba | {"OPENBLAS_CORETYPE": processor.core, "OPENBLAS_NUM_THREADS": "1"}
    if processor.numba:
        environment["NUMBA_CACHE_DIR"] = str(folder / processor.name)
    arguments = ["--child", str(target), precision, processor.core, *recipes]
    subprocess.run([sys.executable, "-m", __spec__.name if __spec__ else __name__, *arguments], env=environment, check=True)
    with np.load(target) as stored:
        return dict(stored)


def final_objective(fitted: Fitted, recipe: str) -> float:
    """Return the end of the objective's history, or the fuzzy modularity; NaN for a model with neither."""
    history = fitted.get(f"{recipe}/objective_history_", fitted.get(f"{recipe}/modularity_"))
    return float("nan") if history is None else float(np.ravel(history)[-1])


def differences(found: Fitted, expected: Fitted, recipe: str) -> tuple[float, float, str]:
    """Return the relative difference of the final objectives, the largest one of the fitted arrays, and the name of that array."""
    a, b = (final_objective(fitted, recipe) for fitted in (found, expected))
    objective = 0.0 if np.isnan(b) else abs(a - b) / abs(b)
    largest, where = 0.0, ""
    for key, reference in expected.items():
        name, attribute = key.split("/")
        if name != recipe or attribute in _HISTORIES:
            continue
        difference = np.abs(found[key] - reference).max(initial=0) / max(np.abs(reference).max(initial=0), np.finfo(float).tiny)
        if attribute in _SAME:
            difference = float("inf") if difference else 0.0
        if difference > largest:
            largest, where = float(difference), attribute
    return objective, largest, where


def compare(processors: Sequence[Processor], recipes: Sequence[str]) -> list[tuple[str, bool]]:
    """Compare all processors with the first one, and the precisions with each other; report the table. Return the thresholds."""
    rows: list[dict[str, Any]] = []
    fitted: dict[tuple[str, str], Fitted] = {}
    with tempfile.TemporaryDirectory() as folder:
        for processor in processors:
            for precision in PRECISIONS:
                fitted[processor.name, precision] = run(processor, precision, recipes, Path(folder))
                print(f"{processor.name}, {precision}: fitted", flush=True)
    first = processors[0].name
    pairs = [(processor.name, precision, first, precision) for processor in processors[1:] for precision in PRECISIONS]
    for name, precision, *reference in [*pairs, (first, "float32", first, "float64")]:
        for recipe in recipes:
            objective, factors, where = differences(fitted[name, precision], fitted[reference[0], reference[1]], recipe)
            compared = f"{name} with {first}" if reference[1] == precision else "float32 with float64"
            kind = precision if reference[1] == precision else "both"
            rows.append(
                {"recipe": recipe, "compared": compared, "precision": kind, "objective": objective, "factors": factors, "in": where}
            )
    thresholds = []
    for precision in PRECISIONS:
        worst = {key: max(row[key] for row in rows if row["precision"] == precision) for key in ("objective", "factors")}
        for key, limit in (("objective", OBJECTIVE[precision]), ("factors", FACTORS[precision])):
            thresholds.append((f"{precision}, {key}: {worst[key]:.1e} between processors (threshold {limit:.0e})", worst[key] <= limit))
    worst_objective = max(row["objective"] for row in rows if row["precision"] == "both")
    text = f"objectives of float32: {worst_objective:.1e} from those of float64 (threshold {BETWEEN:.0e})"
    thresholds.append((text, worst_objective <= BETWEEN))
    report("blas_kernels", rows, thresholds)
    return thresholds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numba", action="store_true", help="also compile Numba's kernels for the older processors")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        target, precision, core, *recipes = options.child
        np.savez(target, **fit_all(precision, recipes, core))
        return 0
    print(f"this processor: {llvm.get_host_cpu_name()}")
    return exit_code(compare((*PROCESSORS, *(COMPILED if options.numba else ())), options.recipes))


if __name__ == "__main__":
    sys.exit(main())
