"""What a selection has finished, kept in a folder, so that it can go on after an interruption."""

import json
from collections.abc import Mapping
from dataclasses import astuple
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dfact.errors import ParameterError, StoreError
from dfact.selection.warm_fits import Score

_HEAD = "selection.json"
Key = tuple[int, int, int]
"""Repeat, fold, and number of the group of configurations."""


class Kept:
    """Finished groups of configurations; in a folder if ``path`` is given, an entry a file that is written whole or not at all.

    ``identity`` is what the scores follow from: another one is refused. Its ``seed`` may be None if any
    will do; that of the folder is taken then.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self.seed = identity["seed"]
        self.entries: dict[Key, tuple[list[Score], NDArray[Any]]] = {}
        if self._path is not None:
            self._open(self._path, dict(identity))
        if self.seed is None:
            self.seed = int(np.random.SeedSequence().generate_state(1)[0])

    def _open(self, path: Path, identity: dict[str, Any]) -> None:
        identity = json.loads(json.dumps(identity))
        head = path / _HEAD
        if head.exists():
            self._check(head, identity)
            for file in sorted(path.glob("*.npz")):
                self._read(file)
            return
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path} holds something else than a selection; give checkpoint a new folder")
        if self.seed is None:
            self.seed = int(np.random.SeedSequence().generate_state(1)[0])
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write(head, json.dumps(identity | {"drawn": self.seed}, indent=1).encode())
        except OSError as error:
            raise StoreError(f"cannot write the checkpoint {path}: {error}") from error

    def _check(self, head: Path, identity: dict[str, Any]) -> None:
        try:
            found = json.loads(head.read_text())
            self.seed = int(found.pop("drawn"))
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"cannot read the checkpoint {head}: {error!r}; remove it to begin again") from error
        for name, value in identity.items():
            if found.get(name) != value:
                was = f"{name} was {found.get(name)!r} there and is {value!r} now"
                raise ParameterError(f"the checkpoint {head.parent} belongs to another selection: {was}; give another folder, or remove it")

    def _read(self, file: Path) -> None:
        try:
            with np.load(file, allow_pickle=False) as entry:
                scores = [Score(float(a), int(b), float(c), int(d)) for a, b, c, d in entry["scores"]]
                repeat, fold, group = map(int, entry["key"])
                self.entries[repeat, fold, group] = scores, entry["loadings"]
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise StoreError(f"cannot read {file} of a checkpoint: {error!r}; remove it, and it is computed again") from error

    def add(self, key: Key, scores: list[Score], loadings: NDArray[Any]) -> None:
        self.entries[key] = scores, loadings
        if self._path is None:
            return
        from io import BytesIO

        entry = BytesIO()
        np.savez(entry, key=np.asarray(key), scores=np.asarray([astuple(score) for score in scores], float), loadings=loadings)
        try:
            _write(self._path / "{}-{}-{}.npz".format(*key), entry.getvalue())
        except OSError as error:
            raise StoreError(f"cannot write the checkpoint {self._path}: {error}") from error

    def done(self, repeat: int, fold: int) -> tuple[int, NDArray[Any] | None]:
        """How many groups a fold has finished, without a gap, and the loadings of the last."""
        number = 0
        while (repeat, fold, number) in self.entries:
            number += 1
        return number, self.entries[repeat, fold, number - 1][1] if number else None


def _write(file: Path, content: bytes) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(file)
