"""What the tests of all commands share."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dfact.cli.main import main

Ended = Callable[[Sequence[str], int, str], None]


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Runs a command in an empty folder; it must end with this code and message, and leave nothing behind."""

    def check(arguments: Sequence[str], code: int, message: str) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(arguments) == code
        assert message in " ".join(capsys.readouterr().err.split())
        assert not list(tmp_path.iterdir()), "nothing is left behind"

    return check
