"""Finished results of a selection in a store, from which it resumes after an interruption."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfact.engine.checkpoint import CheckpointedSession
from dfact.engine.session import CheckpointableSession, Session
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.models.parameters import describe_value
from dfact.storage.location import Location, parse_location
from dfact.storage.records import Records

Key = tuple[int, ...]
Results = Sequence[NDArray[Any]]
"""The arrays that a fit returns."""


def describe_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the parameters as text; different parameters have different texts."""
    return ", ".join(f"{name}={describe_value(value)}" for name, value in parameters.items())


def describe_model(model: Any) -> str:
    """Return the estimator's name and the parameters on which its results depend."""
    parameters = {name: value for name, value in model.get_params(deep=False).items() if name not in RUNTIME_PARAMETERS}
    return f"{type(model).__name__}({describe_parameters(parameters)})"


class ResultsStore:
    """The records of a selection at ``path``, each complete or absent; nothing is stored without a path.

    The results follow from the ``identity``: a store with another one is refused. Its ``seed`` may be None for
    any seed: that of an existing store is then used, otherwise one is drawn.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        seed = identity["seed"]
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._records = None if path is None else Records(path, "selection", identity, seed=self.seed)
        if self._records is not None:
            self.seed = int(self._records.recorded_seed)
            self._records.remove_incomplete()

    def checkpoint(self, name: str) -> Location | None:
        """Return the location for a fit's checkpoint beside the records."""
        return None if self._records is None else parse_location(f"{self._records.location}/{name}")


class KeyedResults(ResultsStore):
    """The arrays of finished fits by key, which says which fit it is."""

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        super().__init__(path, identity)
        self.entries: dict[Key, Results] = {}
        if self._records is not None:
            for name in self._records.names():
                attributes, arrays = self._records.read(name)
                self.entries[tuple(attributes["key"])] = list(arrays)

    def add(self, key: Key, results: Results) -> None:
        """Store the results of a fit."""
        self.entries[key] = results
        if self._records is not None:
            self._records.write("-".join(map(str, key)), results, key=key)


class BatchResults(ResultsStore):
    """Results of batches of fits that share their reads, and the checkpoint of the current batch.

    Fits of a ``stage`` are numbered. Results do not depend on the batch, so that a resumed run may form other
    batches than before. The checkpoint of a batch holds the passes of all its fits and serves the same batch alone.
    """

    def __init__(self, path: str | PathLike[str] | None, identity: Mapping[str, Any], every: int) -> None:
        super().__init__(path, identity)
        self._every = every

    def results(self, stage: str) -> list[Results]:
        """Return the results of the finished fits, from the first one."""
        if self._records is None:
            return []
        results: list[Results] = []
        for name in self._records.names(f"{stage}-"):
            attributes, arrays = self._records.read(name)
            results += [[next(arrays) for _ in range(length)] for length in attributes["lengths"]]
        return results

    def add(self, stage: str, first: int, batch: Sequence[Results]) -> None:
        """Store the results of a batch that begins with fit number ``first``."""
        if self._records is not None:
            arrays = [array for results in batch for array in results]
            self._records.write(f"{stage}-{first:06d}", arrays, lengths=[len(results) for results in batch])

    def pending_batch(self, stage: str, first: int) -> int | None:
        """Return the size of the interrupted batch that begins with fit number ``first``; None if there is none."""
        prefix = _checkpoint_prefix(stage, first)
        names = [] if self._records is None else self._records.names(prefix)
        return int(names[0].removeprefix(prefix)) if names else None

    def checkpointed(self, session: CheckpointableSession, stage: str, first: int, count: int) -> Session:
        """Return the session with a checkpoint for the batch of ``count`` fits from number ``first``; delete those of other batches."""
        if self._records is None:
            return session
        self._records.check_owner()
        name = f"{_checkpoint_prefix(stage, first)}{count:06d}"
        _remove_checkpoints(self._records, but=name)
        return CheckpointedSession(session, parse_location(f"{self._records.location}/{name}"), self._every, {})

    def final_checkpoint(self) -> Location | None:
        """Return the location for the checkpoint of the fit that follows from all results; delete those of batches."""
        if self._records is not None:
            _remove_checkpoints(self._records)
        return self.checkpoint("model")


def _checkpoint_prefix(stage: str, first: int) -> str:
    return f"passes-{stage}-{first:06d}-"


def _remove_checkpoints(records: Records, but: str = "") -> None:
    for name in records.names("passes-"):
        if name != but:
            # Without its attributes a record is incomplete, and stays so if its removal is interrupted.
            records.group[name].attrs.put({})
            records.remove(name)
