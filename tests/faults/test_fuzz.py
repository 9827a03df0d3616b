"""Some inputs of the fuzz benchmark on every reader: each is read as it stands or refused in words."""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dfact
from benchmarks import fuzz

EACH, USED, LOADED = 10, 3, 20


@pytest.fixture(scope="module")
def workers() -> Iterator[list[fuzz.Worker]]:
    found = [fuzz.Worker(), fuzz.Worker()]
    yield found
    for worker in found:
        worker.close()


@pytest.mark.parametrize("target", list(fuzz.TARGETS))
def test_damaged_inputs(target: str, workers: list[fuzz.Worker]) -> None:
    count = USED if target.startswith("forged") else EACH
    outcomes = list(fuzz.run([(target, 7, number) for number in range(count)], workers))
    assert [(number, words) for (_, _, number), verdict, words in outcomes if verdict == "failed"] == []
    assert {verdict for _, verdict, _ in outcomes} <= {"right", "refused"}
    assert len(outcomes) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", list(fuzz.FORGED))
def test_a_forged_model_is_loaded_or_refused_in_words(name: str, tmp_path: Path) -> None:
    fuzz.forged_target(name).make(tmp_path)
    verdicts = set()
    for number in range(LOADED):
        path = tmp_path / f"{number}.model"
        shutil.copytree(tmp_path / "m.model", path)
        fuzz.forge_model(path, random.Random(f"{name} {number}"))
        verdict, words = fuzz._outcome(lambda path=path: dfact.load_model(path))  # type: ignore[misc]
        assert verdict != "failed", words
        verdicts.add(verdict)
    assert "refused" in verdicts


class Endless:
    """In place of an input's number: whoever asks for it waits for ever."""

    def __format__(self, _: str) -> str:
        while True:
            time.sleep(60)


@pytest.mark.slow
def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz._outcome(lambda: fuzz.expect(False, "other values"))[0] == "failed"
    assert fuzz._outcome(lambda: next(iter([])))[0] == "failed"
    monkeypatch.setattr(fuzz, "SECONDS", 0.0)
    worker = fuzz.Worker()
    try:
        ((_, verdict, words),) = fuzz.run([("npy", 0, Endless())], [worker])  # type: ignore[list-item]
    finally:
        worker.close()
    assert (verdict, words) == ("failed", "no end after 0 s")
