"""Signals to stop: obeyed once, wherever they come, and taken for nothing else."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dfact
from dfact.data.store import reading
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.engine.interrupts import asked, obeying, stopping_on_signals
from dfact.errors import StoppedError
from tests.conftest import planted_answers
from tests.test_checkpoint import same

pytestmark = pytest.mark.faults


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_not_taken_for_the_damage_of_what_is_read(number: int) -> None:
    with stopping_on_signals(), pytest.raises(StoppedError) as found, reading("a store"):
        send(number)
    assert found.value.signal == number


def test_a_signal_that_nobody_asked_for_in_time_stops_at_the_end() -> None:
    with stopping_on_signals():
        with pytest.raises(StoppedError), obeying():
            send(signal.SIGTERM)
        assert asked() == signal.SIGTERM
        with pytest.raises(ZeroDivisionError), obeying():  # an error goes before
            raise ZeroDivisionError
    assert asked() is None


def test_a_signal_behind_the_last_pass_of_a_fit_stops_it_and_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, rows = planted_answers(200, 20, 3, 0, 0.1), CheckpointedSession.rows

    def model(name: str) -> Any:
        return dfact.ICQF(3, max_iter=4, tol=0, random_state=0, checkpoint=tmp_path / name, checkpoint_every=100)

    def signalled(session: CheckpointedSession, name: str) -> Any:
        send(signal.SIGTERM)
        return rows(session, name)

    monkeypatch.setattr(CheckpointedSession, "rows", signalled)
    with stopping_on_signals(), pytest.raises(StoppedError, match="holds 7 steps"):
        model("one").fit(X)
    monkeypatch.undo()
    assert resume_point(tmp_path / "one") == 7
    same(model("one").fit(X), model("other").fit(X))
