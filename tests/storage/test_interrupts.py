"""Signals while storage is read or removed: not mistaken for damage, and nothing is left by halves."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import dfact
from dfact.errors import StoppedError
from dfact.signals import handle_signals
from dfact.storage.arrays import read_errors
from dfact.storage.files import TemporaryFolder
from dfact.storage.groups import remove
from tests.conftest import planted_answers

pytestmark = pytest.mark.faults


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_not_mistaken_for_damaged_data(number: int) -> None:
    with handle_signals(), pytest.raises(StoppedError) as found, read_errors("a store"):
        send(number)
    assert found.value.signal == number


def test_a_folder_is_removed_whatever_signal_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rmtree = TemporaryFolder("state"), shutil.rmtree

    def signalled(*arguments: Any, **settings: Any) -> None:
        send(signal.SIGTERM)
        rmtree(*arguments, **settings)

    monkeypatch.setattr(shutil, "rmtree", signalled)
    with handle_signals():
        folder.remove()
    assert not folder.path.exists()


def test_a_store_whose_removal_is_interrupted_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of which half is left would be refused."""
    location = tmp_path / "a.zarr"
    dfact.import_array(planted_answers(200, 20, 3, 0, 0.1), location)

    def killed(path: Path, **_: Any) -> None:
        (path / "zarr.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(location)
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["a.zarr.incomplete"]
    remove(location)
    assert list(tmp_path.iterdir()) == []
