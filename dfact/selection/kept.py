"""What a selection has finished, kept in a store, so that it can go on after an interruption."""

from collections.abc import Mapping
from dataclasses import astuple
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.records import Records
from dfact.selection.warm_fits import Score

Key = tuple[int, int, int]
"""Repeat, fold, and number of the group of configurations."""


class Kept:
    """Finished groups of configurations; in a store if ``path`` is given, each whole or not there.

    ``identity`` is what the scores follow from: a store of another one is refused. Its ``seed`` may be None if any
    will do; that of the store is taken then.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        given = identity["seed"]
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
        self.entries: dict[Key, tuple[list[Score], NDArray[Any]]] = {}
        self._records = None if path is None else Records(path, "selection", identity, drawn=self.seed)
        if self._records is not None:
            self.seed = int(self._records.drawn)
            self._records.remove_torn()
            for name in self._records.names():
                self._read(self._records, name)

    def _read(self, records: Records, name: str) -> None:
        found, arrays = records.read(name)
        scores, loadings = arrays
        repeat, fold, group = found["key"]
        self.entries[repeat, fold, group] = [Score(float(a), int(b), float(c), int(d)) for a, b, c, d in scores], loadings

    def add(self, key: Key, scores: list[Score], loadings: NDArray[Any]) -> None:
        self.entries[key] = scores, loadings
        if self._records is not None:
            rows = np.asarray([astuple(score) for score in scores], float)
            self._records.write("{}-{}-{}".format(*key), [rows, loadings], key=key)

    def done(self, repeat: int, fold: int) -> tuple[int, NDArray[Any] | None]:
        """How many groups a fold has finished, without a gap, and the loadings of the last."""
        number = 0
        while (repeat, fold, number) in self.entries:
            number += 1
        return number, self.entries[repeat, fold, number - 1][1] if number else None
