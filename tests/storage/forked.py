"""A replacement in a process forked from the fork server, which is killed in its middle; nothing here imports a test."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dfact.storage import replacement
from dfact.storage.arrays import write_array
from dfact.storage.groups import create_group


def killed_replacement(path: str, supported: bool, kill_at: int) -> str:
    """Replace a group by a longer one and kill the process at a call; return the error, if there is one and it lives."""
    calls = -1  # before the replacement

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += calls >= 0
            return function(*arguments, **more)

        return call

    exchange = replacement._exchange if supported else lambda *_: False
    Path.rename, shutil.rmtree, replacement._exchange = map(counted, (Path.rename, shutil.rmtree, exchange))  # type: ignore[method-assign,assignment]  # in this process alone
    try:
        with create_group(path, "dataset", overwrite=True) as group:
            write_array(group, "a", np.arange(4), ("a",))
            calls = 0
    except Exception as error:
        return repr(error)
    return ""
