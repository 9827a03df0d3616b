"""Some inputs of the fuzz benchmark on every reader: each is read as it stands or refused in words."""

from collections.abc import Iterator

import pytest

from benchmarks import fuzz

EACH = 20


@pytest.fixture(scope="module")
def workers() -> Iterator[list[fuzz.Worker]]:
    found = [fuzz.Worker(), fuzz.Worker()]
    yield found
    for worker in found:
        worker.close()


@pytest.mark.parametrize("target", list(fuzz.TARGETS))
def test_damaged_inputs(target: str, workers: list[fuzz.Worker]) -> None:
    outcomes = list(fuzz.run([(target, 7, number) for number in range(EACH)], workers))
    assert [(number, words) for (_, _, number), verdict, words in outcomes if verdict == "failed"] == []
    assert {verdict for _, verdict, _ in outcomes} <= {"right", "refused"}
    assert len(outcomes) == EACH


def test_what_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz._outcome(lambda: fuzz.expect(False, "other values"))[0] == "failed"
    assert fuzz._outcome(lambda: next(iter([])))[0] == "failed"
    monkeypatch.setattr(fuzz, "SECONDS", -1.0)
    worker = fuzz.Worker()
    try:
        ((_, verdict, words),) = fuzz.run([("npy", 0, 0)], [worker])
    finally:
        worker.close()
    assert (verdict, words) == ("failed", "no end after -1 s")
