"""Cost of checkpoints at the default interval for fits to data on disk, and the time of each part of a version.

    python -m benchmarks.engine.checkpoint_cost [--rows 500000] [--columns 1000] [--iterations 30] [--repeats 5] [--folder DIR]

Fits with and without a checkpoint alternate in balanced order; the cost is the median over pairs. ICQF fits planted
answers; expectile factorization fits skewed measurements of half the rows and a third of the columns.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dfact
from benchmarks.bounded_nmf import out_of_core
from benchmarks.common import exit_code, report
from benchmarks.expectile import speed
from dfact.data.synthetic import PlantedQuestionnaire
from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.executors import LocalSession

BAR = 0.05


@contextmanager
def timed(seconds: Counter[str]) -> Iterator[None]:
    """Sum the seconds of each part of writing a checkpoint, by name."""
    parts: list[tuple[Any, str]] = [
        (CheckpointedSession, "__enter__"),
        (CheckpointedSession, "_save"),
        (LocalSession, "save"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name in parts]
    for owner, name, function in before:
        setattr(owner, name, _watched(function, f"{owner.__name__}.{name}", seconds))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _watched(function: Callable[..., Any], name: str, seconds: Counter[str]) -> Callable[..., Any]:
    def watched(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds[name] += time.perf_counter() - began  # type: ignore[assignment]  # a counter of seconds

    return watched


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pairs(seconds: dict[bool, list[float]]) -> list[float]:
    """Return the relative extra time of each fit with a checkpoint over its pair without one."""
    return [kept / plain - 1 for plain, kept in zip(seconds[False], seconds[True], strict=True)]


def cost(name: str, make: Callable[..., Any], data: Path, folder: Path, repeats: int) -> dict[str, Any]:
    """Return a row of the table."""
    make().set_params(max_iter=2).fit(data)  # kernels are compiled, and pages are in memory
    seconds: Counter[str] = Counter()
    versions: list[int] = []
    times: dict[bool, list[float]] = {False: [], True: []}
    work: dict[bool, list[float]] = {False: [], True: []}  # processor seconds, which other processes disturb less
    checkpoint = folder / "checkpoint.zarr"
    for repeat in range(repeats):
        for kept in (False, True) if repeat % 2 else (True, False):
            model = make(checkpoint=checkpoint) if kept else make()
            began, worked = time.perf_counter(), time.process_time()
            with timed(seconds):
                model.fit(data)
            times[kept].append(time.perf_counter() - began)
            work[kept].append(time.process_time() - worked)
        steps = sorted(checkpoint.glob("steps-*"))
        [state] = checkpoint.glob("state-*")
        versions.append(len(steps))
        sums, state_size = sum(map(size, steps)) / len(steps), size(state)
        shutil.rmtree(checkpoint)
    number = sum(versions)
    state_seconds, version = seconds["LocalSession.save"] / number, seconds["CheckpointedSession._save"] / number
    return {
        "fit": name,
        "iterations": make().max_iter,
        "plain_s": statistics.median(times[False]),
        "kept_s": statistics.median(times[True]),
        "cost": statistics.median(pairs(times)),
        "of each pair": " ".join(f"{part:+.1%}" for part in pairs(times)),
        "cost in work": statistics.median(pairs(work)),
        "spread of plain": (max(times[False]) - min(times[False])) / statistics.median(times[False]),
        "versions": versions[0],
        "in versions": seconds["CheckpointedSession._save"] / sum(times[False]),
        "version_s": version,
        "state_s": state_seconds,
        "sums, markers, removal_s": version - state_seconds,
        "opening_s": seconds["CheckpointedSession.__enter__"] / repeats,
        "state_MB": state_size / 1e6,
        "sums_MB": sums / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the data goes and stays; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        answers = folder / f"planted-{options.rows}x{options.columns}.zarr"
        if not answers.exists():
            out_of_core.make(answers, PlantedQuestionnaire(options.rows, options.columns, 20))
        n, m = options.rows // 2, options.columns // 3
        measured = folder / f"skewed-{n}x{m}.zarr"
        if not measured.exists():
            speed.make(measured, n, m)
        known: dict[str, Any] = {"max_iter": options.iterations, "tol": 0}

        def icqf(**kept: Any) -> dfact.ICQF:
            return dfact.ICQF(20, q_max=3, bounds=(0, 3), **known, **kept)

        def emf(**kept: Any) -> dfact.ExpectileMF:
            return dfact.ExpectileMF(10, tau=0.1, **known, **kept)

        rows = [
            cost(f"ICQF mm, {options.rows}×{options.columns}, k = 20", icqf, answers, Path(temporary), options.repeats),
            cost(f"ExpectileMF, {n}×{m}, k = 10", emf, measured, Path(temporary), options.repeats),
        ]
    # The time of versions within a fit is measured more exactly than the difference of two fits.
    thresholds = [
        (
            f"{row['fit']}: checkpoints cost {row['cost']:.1%} of the fit, {row['in versions']:.1%} within them (threshold {BAR:.0%})",
            row["cost"] <= BAR,
        )
        for row in rows
    ]
    report("checkpoint_cost", rows, thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
