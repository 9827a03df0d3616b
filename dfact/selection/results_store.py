"""What a selection has finished, kept in a store, so that it can go on after an interruption."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.session import CheckpointableSession, Session
from dfact.models.estimator import RUNTIME_PARAMETERS
from dfact.models.parameters import describe_value
from dfact.selection.fold_fits import Score
from dfact.storage.location import Location, parse_location
from dfact.storage.records import Records

Key = tuple[int, int, int]
"""Repeat, fold, and number of the group of configurations."""


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Parameters for people, which differs where they do."""
    return ", ".join(f"{name}={describe_value(value)}" for name, value in parameters.items())


def model_text(model: Any) -> str:
    """The estimator and its parameters, but for those that change nothing of a model."""
    known = {name: value for name, value in model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
    return f"{type(model).__name__}({parameters_text(known)})"


class FinishedResults:
    """What a selection has finished, in a store if ``path`` is given: records, each whole or not there.

    ``identity`` is what they follow from: a store of another one is refused. Its ``seed`` may be None if any
    will do; that of the store is taken then.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        given = identity["seed"]
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
        self._records = None if path is None else Records(path, "selection", identity, seed=self.seed)
        if self._records is not None:
            self.seed = int(self._records.recorded_seed)
            self._records.remove_incomplete()

    def place(self, name: str) -> Location | None:
        """For the checkpoint of a fit, beside the records."""
        return None if self._records is None else parse_location(f"{self._records.location}/{name}")


class ResultsStore(FinishedResults):
    """FinishedResults groups of configurations."""

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        super().__init__(path, identity)
        self.entries: dict[Key, tuple[list[Score], NDArray[Any]]] = {}
        if self._records is not None:
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


Results = Sequence[NDArray[Any]]
"""What comes of a fit."""


class BatchResults(FinishedResults):
    """Batches of fits that share their reads: the results of those that have finished, and the passes of the one at hand.

    Fits of a kind (``what``) are numbered. What comes of one does not depend on those it shares its reads with, so that a
    run that goes on may have other batches than before; but passes that are kept are those of all fits of their batch.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any], every: int) -> None:
        super().__init__(path, identity)
        self._every = every

    def results(self, what: str) -> list[Results]:
        """Of the fits that have finished, from the first on."""
        if self._records is None:
            return []
        found: list[Results] = []
        for name in self._records.names(f"{what}-"):
            attributes, arrays = self._records.read(name)
            found += [[next(arrays) for _ in range(length)] for length in attributes["lengths"]]
        return found

    def add(self, what: str, first: int, batch: Sequence[Results]) -> None:
        """The results of a batch, from fit number ``first`` on."""
        if self._records is not None:
            arrays = [array for results in batch for array in results]
            self._records.write(f"{what}-{first:06d}", arrays, lengths=[len(results) for results in batch])

    def begun(self, what: str, first: int) -> int | None:
        """How many fits, from number ``first`` on, are in the midst of their passes."""
        prefix = _passes(what, first)
        names = [] if self._records is None else self._records.names(prefix)
        return int(names[0].removeprefix(prefix)) if names else None

    def keeping(self, session: CheckpointableSession, what: str, first: int, count: int) -> Session:
        """The session with its passes kept: those of ``count`` fits from number ``first`` on."""
        if self._records is None:
            return session
        self._records.check_owner()
        name = f"{_passes(what, first)}{count:06d}"
        _remove_passes(self._records, but=name)
        return CheckpointedSession(session, parse_location(f"{self._records.location}/{name}"), self._every, {})

    def last(self) -> Location | None:
        """The place for the checkpoint of the fit that follows from all results."""
        if self._records is not None:
            _remove_passes(self._records)
        return self.place("model")


def _passes(what: str, first: int) -> str:
    return f"passes-{what}-{first:06d}-"


def _remove_passes(records: Records, but: str = "") -> None:
    for name in records.names("passes-"):
        if name != but:
            # Torn first, which it is for good if the rest is interrupted.
            records.group[name].attrs.put({})
            records.remove(name)
