"""Shared parts of the benchmarks: timing side by side, peak memory, tables and JSON."""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd
import psutil
from numpy.typing import NDArray

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "questionnaires"
RESULTS = Path(__file__).parent / "results"

QUESTIONNAIRES: dict[str, tuple[Any, ...]] = {
    # name: file, separator, item columns, k, maximum after shifting,
    # converged objective of the paper's implementation
    "ipip_ascado": ("ipip_ascado.csv", ",", slice(0, 40), 4, 4, 13854.5),
    "big5": ("big5.tsv.gz", "\t", slice(7, 57), 5, 4, 457998.0),
    "eqsq": ("eqsq.tsv.gz", "\t", slice(0, 120), 8, 3, 450401.0),
}
FURTHER_QUESTIONNAIRES: dict[str, tuple[Any, ...]] = {
    "ecr": ("ecr.csv.gz", ",", slice(0, 36)),
    "sd3": ("sd3.tsv.gz", "\t", slice(0, 27)),
    "npi": ("npi.csv", ",", slice(1, 41)),
}

GOM_ALGORITHMS: dict[str, dict[str, Any]] = {
    # name: parameters of GradeOfMembership
    "crsc, kmeans": {"method": "crsc"},
    "crsc, svm-cone": {"method": "crsc", "vertex_hunting": "svm-cone"},
    "srsc": {"method": "srsc"},
    "ssc": {"method": "ssc"},
    "srm": {"method": "srm"},
}


def answers(name: str) -> NDArray[np.float32]:
    """Return answers from 0, NaN where missing, without rows that have no answer."""
    file, separator, columns, *_ = (QUESTIONNAIRES | FURTHER_QUESTIONNAIRES)[name]
    path = REAL_DATA / file
    if not path.exists():
        sys.exit(f"{path.name} is missing: this benchmark needs the real questionnaires in {REAL_DATA}")
    raw = pd.read_csv(path, sep=separator).iloc[:, columns].to_numpy(np.float32)
    M = np.where(raw > 0, raw - 1, np.float32(np.nan))
    return np.ascontiguousarray(M[~np.isnan(M).all(axis=1)])


def side_by_side(functions: dict[str, Callable[[], object]], repeats: int = 7) -> dict[str, float]:
    """Return the median seconds of each function; they run in turn, so that noise of the machine affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


class Peak:
    """Peak resident bytes of this process and all its children while the block runs."""

    def __enter__(self) -> Self:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.02):
            total = me.memory_info().rss
            for child in me.children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue  # it has just ended
            self.bytes = max(self.bytes, total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()


def wait_until(
    met: Callable[[], Any], told: str | Callable[[], str], seconds: float = 60, *, not_yet: tuple[type[Exception], ...] = ()
) -> Any:
    """Wait until a condition holds, and return its value; after so many seconds TimeoutError tells what was waited for.

    Errors of the types ``not_yet`` mean that what is asked does not answer yet.
    """
    end = time.monotonic() + seconds
    while True:
        with suppress(*not_yet):
            if value := met():
                return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s: {told if isinstance(told, str) else told()}")
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Return whether a process of this machine listens at the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def peak_bytes(pid: int | None = None) -> int:
    """Return the peak of a process's resident memory since it began, by default of this one; Linux only."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


@contextmanager
def lone_pure_subjects() -> Iterator[None]:
    """Ignore warnings about classes with a single pure subject, which the measured fits of grade of membership may find."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only the subject that defines the class", UserWarning)
        yield


def in_new_interpreter(module: str, function: str, arguments: str) -> str:
    """Call ``module.function`` in a new interpreter, whose memory is its own; arguments and result are JSON."""
    code = f"import json, sys, {module} as m; print('RESULT' + json.dumps(m.{function}(*json.loads(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", code, arguments], stdout=subprocess.PIPE, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[6:]


def call_in_new_process(module: str, function: str, *args: Any) -> Any:
    """Call ``module.function(*args)`` in a new process, so that its memory is its own; JSON in and out."""
    return json.loads(in_new_interpreter(module, function, json.dumps(args)))


def report(name: str, rows: Sequence[dict[str, Any]], thresholds: Sequence[tuple[str, bool]] = ()) -> None:
    """Print the rows as a table with the verdicts below, and write both as JSON to benchmarks/results."""
    print(f"\n{name}")
    print(pd.DataFrame(rows).to_string(index=False, float_format=lambda value: f"{value:.5g}"))
    for text, held in thresholds:
        print(("held:    " if held else "MISSED:  ") + text)
    RESULTS.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    result = {
        "benchmark": name,
        "machine": machine,
        "rows": list(rows),
        "thresholds": [{"threshold": text, "held": bool(held)} for text, held in thresholds],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, default=float))


def exit_code(thresholds: Sequence[tuple[str, bool]]) -> int:
    return 0 if all(held for _, held in thresholds) else 1
