"""Where the processor seconds of the tests go.

``python -m pytest -n auto --cpu-seconds FILE`` adds a line of JSON to the file for each test, and ``python -m tests.cpu_seconds FILE``
prints them by folder and marker, with the dearest tests; ``--record`` keeps those of each file. ``.ci/seconds`` does both for ``.ci/run``.
"""

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests import tiers

DEAREST = 100


class Spent(NamedTuple):
    test: str
    markers: tuple[str, ...]
    seconds: float

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def folder(self) -> str:
        return "/".join(self.file.split("/")[:2])


def total() -> float:
    """Return the processor seconds of this process and of all processes that it started, those that run and those that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:4])
    return seconds


class Recorder:
    """Plugin of pytest that writes the processor seconds of every test; each process of xdist adds its lines to the same file."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, 0.0

    def _write(self, test: str, markers: Iterable[str] = ()) -> None:
        now = total()
        with self._path.open("a") as file:
            file.write(json.dumps([test, sorted(set(markers)), round(now - self._before, 3)]) + "\n")
        self._before = now

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._write("(imports and collection)")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        result = yield
        self._write(item.nodeid, (mark.name for mark in item.iter_markers()))
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._write("(the end)")


def read(path: Path) -> list[Spent]:
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [Spent(test, tuple(markers), seconds) for test, markers, seconds in lines]


def tables(spent: list[Spent], kinds: Iterable[str]) -> str:
    """Return the tables of a run: by folder, by marker (a test with two counts in both), and the dearest tests."""
    everything = sum(each.seconds for each in spent)
    parts = [f"{everything:.0f} CPU s in all"]

    def table(title: str, keys: Callable[[Spent], Iterable[str]]) -> None:
        seconds, cases = Counter[str](), Counter[str]()
        for each in spent:
            for key in keys(each):
                seconds[key] += each.seconds
                cases[key] += 1
        lines = [f"| {key} | {cases[key]:,} | {value:.1f} |" for key, value in seconds.most_common()]
        parts.append("\n".join([f"| {title} | cases | CPU s |", "|---|--:|--:|", *lines]))

    wanted = set(kinds)
    table("folder", lambda each: [each.folder])
    table("marker", lambda each: wanted & set(each.markers) or ["none"])
    dearest = sorted(spent, key=lambda each: -each.seconds)[:DEAREST]
    parts.append("\n".join([f"the {DEAREST} dearest, CPU s", *(f"{each.seconds:7.2f}  {each.test}" for each in dearest)]))
    return "\n\n".join(parts)


def record(spent: list[Spent]) -> None:
    """Write the seconds of each file to ``tests/seconds.json``, from which the order of files and the choice of further tests follow.

    Those of a file's further tests stay where the run has none of them.
    """
    files: dict[str, dict[bool, float]] = {}
    for each in spent:
        if each.test.startswith("tests/"):
            seconds, further = files.setdefault(each.file, {}), "further" in each.markers
            seconds[further] = seconds.get(further, 0.0) + each.seconds
    known = {name: dict(enumerate(values)) for name, values in tiers.seconds().items() if (tiers.ROOT / name).exists()}
    merged = {name: {0: 0.0, 1: 0.0} | known.get(name, {}) | files.get(name, {}) for name in sorted(known.keys() | files.keys())}
    lines = (f'  "{name}": [{seconds[0]:.1f}, {seconds[1]:.1f}]' for name, seconds in merged.items())
    tiers.SECONDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    found = read(Path(sys.argv[-1]))
    print(tables(found, tiers.MARKERS))  # noqa: T201
    if "--record" in sys.argv:
        record(found)
