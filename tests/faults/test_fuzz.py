"""Some inputs of the fuzz benchmark for every reader and command: each is right or refused with a message."""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dfact
from benchmarks.fuzz import models, runner, target
from tests.cases import exhaustive_after, exhaustive_unless

EACH, USED, LOADED = 3, 2, 8
REPRESENTATIVE = {
    *(
        "csv",
        "triplets csv",
        "parquet folder",
        "xlsx",
        "sav",
        "dta",
        "rds",
        "mat 4",
        "h5ad",
        "bed",
        "REDCap",
        "dense dataset",
        "sparse model",
    ),
    *("forged icqf", "checkpoint gom", "job files", "command lines of imports"),
}
"""Of each kind of input, the one that the default run damages."""


@pytest.fixture(scope="module")
def workers() -> Iterator[list[runner.Worker]]:
    """One process: a second one would prepare all inputs once more, while other tests need its core."""
    worker = runner.Worker()
    yield [worker]
    worker.close()


@pytest.mark.further
@pytest.mark.parametrize("target", exhaustive_unless(REPRESENTATIVE.__contains__, runner.TARGETS))
def test_damaged_inputs_are_read_or_refused(target: str, workers: list[runner.Worker]) -> None:
    count = USED if target.startswith(("forged", "checkpoint", "command", "job")) else EACH
    outcomes = list(runner.run([(target, 7, number) for number in range(count)], workers))
    assert [(number, words) for (_, _, number), verdict, words in outcomes if verdict == "failed"] == []
    assert {verdict for _, verdict, _ in outcomes} <= {"right", "refused"}
    assert len(outcomes) == count


@pytest.mark.further
@pytest.mark.parametrize("name", exhaustive_after(2, models.FORGED))
def test_forged_model_is_loaded_or_refused(name: str, tmp_path: Path) -> None:
    models.forged_target(name).make(tmp_path)
    verdicts = set()
    for number in range(LOADED):
        path = tmp_path / f"{number}.model"
        shutil.copytree(tmp_path / "m.model", path)
        models.forge_model(path, random.Random(f"{name} {number}"))
        verdict, words = runner._outcome(lambda path=path: dfact.load_model(path))  # type: ignore[misc]
        assert verdict != "failed", words
        verdicts.add(verdict)
    assert "refused" in verdicts


class Endless:
    """An input number that never returns its text: it computes, or waits."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits

    def __format__(self, _: str) -> str:
        while True:
            if self.waits:
                time.sleep(60)


def test_failures_are_reported() -> None:
    assert runner._outcome(lambda: target.expect(False, "other values"))[0] == "failed"
    assert runner._outcome(lambda: next(iter([])))[0] == "failed"


@pytest.mark.parametrize(
    ("waits", "limits", "words"),
    [(False, {"SECONDS": 0.1}, "no end after 0.1 s of processor time"), (True, {"WAITING": 0.0}, "no end after 0 s")],
)
def test_timeouts_are_reported(monkeypatch: pytest.MonkeyPatch, waits: bool, limits: dict[str, float], words: str) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(runner, name, limit)
    worker = runner.Worker()
    try:
        found = list(runner.run([("npy", 0, Endless(waits=waits))], [worker]))  # type: ignore[list-item]
    finally:
        worker.close()
    assert [answer[1:] for answer in found] == [("failed", words)]
