"""Plugin of pytest that records the branches that each test covers, those of the commands it starts among them.

``benchmarks.suite.coverage`` runs the suite with it. It needs ``pip install coverage``.
"""

import os
from collections.abc import Generator
from typing import Any

import coverage
import pytest

TEST = "DFACT_COVERED_BY"
"""Environment variable: the test that starts a process."""


class Contexts:
    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        os.environ[TEST] = item.nodeid
        self._measured.switch_context(item.nodeid)
        result = yield
        self._measured.switch_context("")
        return result


def pytest_configure(config: pytest.Config) -> None:
    if (measured := coverage.Coverage.current()) is not None:  # started in each process by the sitecustomize of the benchmark
        config.pluginmanager.register(Contexts(measured))
