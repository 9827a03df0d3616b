"""Signals to stop: obeyed once, wherever they come, and taken for nothing else."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dfact
from dfact import signals
from dfact.cli.main import main
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.errors import StoppedError
from dfact.signals import defer_stop, finish_before_stop, handle_signals, requested_signal
from dfact.storage import groups as store
from dfact.storage import replacement
from tests.conftest import planted_answers
from tests.engine.test_checkpoint import same

pytestmark = pytest.mark.faults


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_deferred_signal_that_was_not_checked_stops_at_the_end() -> None:
    with handle_signals():
        with pytest.raises(StoppedError), defer_stop():
            send(signal.SIGTERM)
        assert requested_signal() == signal.SIGTERM
        with pytest.raises(ZeroDivisionError), defer_stop():  # an error goes before
            raise ZeroDivisionError
    assert requested_signal() is None


class Finalized:
    """Sends a signal from a finalizer, whose exceptions Python prints and ignores."""

    def __del__(self) -> None:
        send(signal.SIGINT)


def in_finalizer() -> None:
    Finalized()


def in_callback_of_the_compiler() -> None:
    """Send a signal from a function that C code calls, as the compiler's cache of machine code does."""
    names = {"__name__": "numba.core.example", "send": send, "ctypes": ctypes}
    exec("def called():\n    send(2)\n    return 0\nctypes.CFUNCTYPE(ctypes.c_int)(called)()", names)


@pytest.mark.parametrize("somewhere", [in_finalizer, in_callback_of_the_compiler])
def test_a_signal_where_exceptions_are_ignored_stops_a_little_later(somewhere: Callable[[], None]) -> None:
    def command() -> None:
        somewhere()
        time.sleep(60)  # the signal ends it

    with handle_signals(), pytest.raises(StoppedError):
        command()


def test_a_signal_that_interrupts_the_lock_of_a_condition_stops_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits(*_: Any) -> None:
        condition = threading.Condition(threading.Lock())
        monkeypatch.setattr(condition, "_acquire_restore", lambda _: send(signal.SIGINT))
        with condition:
            condition.wait(0.001)

    monkeypatch.setattr("dfact.cli.demo._check_folder", waits)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "Stopped: nothing half-written was left behind.\n"


def test_a_signal_is_not_sent_again_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_LATER", 60)
    with handle_signals():
        in_finalizer()
        [again] = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    again.join()


def test_a_signal_after_the_last_pass_stops_the_fit_and_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, rows = planted_answers(200, 20, 3, 0, 0.1), CheckpointedSession.rows

    def model(name: str) -> Any:
        return dfact.ICQF(3, max_iter=4, tol=0, random_state=0, checkpoint=tmp_path / name, checkpoint_every=100)

    def signalled(session: CheckpointedSession, name: str) -> Any:
        send(signal.SIGTERM)
        return rows(session, name)

    monkeypatch.setattr(CheckpointedSession, "rows", signalled)
    with handle_signals(), pytest.raises(StoppedError, match="holds 8 steps"):
        model("one").fit(X)
    monkeypatch.undo()
    assert resume_point(tmp_path / "one") == 8
    same(model("one").fit(X), model("other").fit(X))


def test_a_signal_within_a_shielded_section_stops_later_fits() -> None:
    with handle_signals():
        with finish_before_stop():
            send(signal.SIGTERM)
        assert requested_signal() == signal.SIGTERM  # which a fit that follows obeys
        with finish_before_stop(), pytest.raises(StoppedError):
            send(signal.SIGTERM)


@pytest.mark.further
@pytest.mark.parametrize("at", ["_put_in_place", "remove", "model_text"])
def test_a_fit_that_is_stopped_after_saving_its_model_is_complete(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the same command would find the model there, and be refused."""
    data, model, checkpoint = tmp_path / "a.zarr", tmp_path / "a.model", tmp_path / "checkpoint.zarr"
    dfact.import_array(planted_answers(200, 20, 3, 0, 0.1), data)
    home: Any = {"model_text": dfact.report.presenters.base, "remove": store, "_put_in_place": replacement}[at]
    function = getattr(home, at)

    def signalled(*arguments: Any) -> Any:
        send(signal.SIGTERM)
        return function(*arguments)

    monkeypatch.setattr(home, at, signalled)
    assert main(["fit", "icqf", str(data), str(model), "-k", "3", "--max-iter", "4", "--checkpoint", str(checkpoint)]) == 0
    assert dfact.load_model(model).n_iter_ == 4
    assert not checkpoint.exists()


@pytest.mark.further
@pytest.mark.parametrize("plotted", [False, True])
def test_a_fit_that_is_killed_after_saving_its_model_is_ended_by_the_same_command(
    plotted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, model, checkpoint, plot = (tmp_path / name for name in ("a.zarr", "a.model", "checkpoint.zarr", "a.png"))
    dfact.import_array(planted_answers(200, 20, 3, 0, 0.1), data)
    command = ["fit", "icqf", str(data), str(model), "-k", "3", "--max-iter", "4", "--checkpoint", str(checkpoint)]
    command += ["--checkpoint-every", "1", *(["--plot", str(plot)] if plotted else [])]

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> Any:
        if arguments[0] in (checkpoint, plot):
            raise Killed

    remove = store.remove
    monkeypatch.setattr(store, "remove", lambda path: killed(path) or remove(path))
    if plotted:  # the plot is drawn between the model and the removal of the checkpoint
        monkeypatch.setattr(dfact.report.plots, "save_figure", lambda _, path, **__: killed(path))
    with pytest.raises(Killed):
        main(command)
    monkeypatch.undo()
    before = np.asarray(dfact.load_model(model).loadings_)
    assert resume_point(checkpoint)
    assert main([*command, "--seed", "1"]) != 0  # another fit
    assert "exists already" in capsys.readouterr().err
    monkeypatch.setattr(dfact.ICQF, "fit_prepared", None)
    assert main(command) == 0
    assert "is the result of checkpoint" in capsys.readouterr().err
    np.testing.assert_array_equal(dfact.load_model(model).loadings_, before)
    assert not checkpoint.exists()
    assert plot.exists() == plotted
    assert main(command) != 0  # the checkpoint is gone: an existing model is not replaced
    assert "exists already" in capsys.readouterr().err
