"""Signals to stop: obeyed once, wherever they come, and taken for nothing else."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import dfact
from dfact.cli.main import main
from dfact.engine.checkpoint import CheckpointedSession, resume_point
from dfact.errors import StoppedError
from dfact.signals import defer_stop, handle_signals, requested_signal, shield
from dfact.storage import groups as store
from dfact.storage.files import TemporaryFolder
from dfact.storage.groups import read_errors, remove
from tests.conftest import planted_answers
from tests.engine.test_checkpoint import same

pytestmark = pytest.mark.faults


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_not_mistaken_for_damaged_data(number: int) -> None:
    with handle_signals(), pytest.raises(StoppedError) as found, read_errors("a store"):
        send(number)
    assert found.value.signal == number


def test_a_deferred_signal_that_was_not_checked_stops_at_the_end() -> None:
    with handle_signals():
        with pytest.raises(StoppedError), defer_stop():
            send(signal.SIGTERM)
        assert requested_signal() == signal.SIGTERM
        with pytest.raises(ZeroDivisionError), defer_stop():  # an error goes before
            raise ZeroDivisionError
    assert requested_signal() is None


def test_a_signal_after_the_last_pass_stops_the_fit_and_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, rows = planted_answers(200, 20, 3, 0, 0.1), CheckpointedSession.rows

    def model(name: str) -> Any:
        return dfact.ICQF(3, max_iter=4, tol=0, random_state=0, checkpoint=tmp_path / name, checkpoint_every=100)

    def signalled(session: CheckpointedSession, name: str) -> Any:
        send(signal.SIGTERM)
        return rows(session, name)

    monkeypatch.setattr(CheckpointedSession, "rows", signalled)
    with handle_signals(), pytest.raises(StoppedError, match="holds 7 steps"):
        model("one").fit(X)
    monkeypatch.undo()
    assert resume_point(tmp_path / "one") == 7
    same(model("one").fit(X), model("other").fit(X))


def test_a_signal_within_a_shielded_section_stops_later_fits() -> None:
    with handle_signals():
        with shield():
            send(signal.SIGTERM)
        assert requested_signal() == signal.SIGTERM  # which a fit that follows obeys
        with shield(), pytest.raises(StoppedError):
            send(signal.SIGTERM)


@pytest.mark.parametrize("at", ["_replace_atomically", "remove", "model_text"])
def test_a_fit_that_is_stopped_after_saving_its_model_is_complete(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the same command would find the model there, and be refused."""
    data, model, checkpoint = tmp_path / "a.zarr", tmp_path / "a.model", tmp_path / "checkpoint.zarr"
    dfact.import_array(planted_answers(200, 20, 3, 0, 0.1), data)
    home: Any = dfact.report.presenters.base if at == "model_text" else store
    function = getattr(home, at)

    def signalled(*arguments: Any) -> Any:
        if arguments[0] != store.partial_path(model):  # removed before anything begins
            send(signal.SIGTERM)
        return function(*arguments)

    monkeypatch.setattr(home, at, signalled)
    assert main(["fit", "icqf", str(data), str(model), "-k", "3", "--max-iter", "4", "--checkpoint", str(checkpoint)]) == 0
    assert dfact.load_model(model).n_iter_ == 4
    assert not checkpoint.exists()


def test_a_folder_is_removed_whatever_signal_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, rmtree = TemporaryFolder("state"), shutil.rmtree

    def signalled(*arguments: Any, **settings: Any) -> None:
        send(signal.SIGTERM)
        rmtree(*arguments, **settings)

    monkeypatch.setattr(shutil, "rmtree", signalled)
    with handle_signals():
        scratch.remove()
    assert not scratch.path.exists()


def test_a_store_whose_removal_is_interrupted_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of which half is left would be refused."""
    place = tmp_path / "a.zarr"
    dfact.import_array(planted_answers(200, 20, 3, 0, 0.1), place)

    def killed(path: Path) -> None:
        (path / "zarr.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(place)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr.incomplete"]
    remove(place)
    assert list(tmp_path.iterdir()) == []
