"""The default tests of processes, clusters and faults again and again: ``python -m benchmarks.suite.repeated --runs 1000``.

Each round runs them all in another order, on more processes than cores, until so many tests have run. It prints those that failed, with the
round's seed: ``python -m pytest -m "cluster or process or faults" -p benchmarks.suite.repeated --order SEED`` has the same order.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKERS = "cluster or process or faults"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, help="the seed of a random order of the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("order")) is not None:
        items.sort(key=lambda item: item.nodeid)
        random.Random(seed).shuffle(items)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="tests to run, those of all rounds together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done, seed, failed = 0, options.seed, Counter[str]()
    while done < options.runs:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-n", str(2 * (psutil.cpu_count() or 1)), "--dist", "load", "-m", MARKERS]
            command += ["-p", "benchmarks.suite.repeated", "--order", str(seed), f"--junitxml={report}"]
            output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
            cases = [case for case in ET.parse(report).iter("testcase") if case.find("skipped") is None]
        names = [f"{case.get('classname')}::{case.get('name')}" for case in cases if len(case) and case[0].tag in {"failure", "error"}]
        done += len(cases)
        failed.update(names)
        print(f"order {seed}: {len(cases)} tests, {len(names)} failed; {done} in all", flush=True)
        if names:
            print(output, flush=True)
        seed += 1
    for name, times in failed.most_common():
        print(f"failed {times} times: {name}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
