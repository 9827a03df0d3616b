"""What every place of stores keeps to: a store is complete or refused, and nothing is removed that may not be."""

from typing import Any

import numpy as np
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.errors import StoreError
from tests.conftest import planted_answers

N, M, K = 1000, 40, 3


def answers() -> NDArray[np.float64]:
    return planted_answers(N, M, K, seed=5, missing=0.1)


class ZarrStoreSuite:
    """A subclass has a fixture ``location``, under which stores are named, and reaches what lies there without dfact."""

    def keys(self, location: str) -> list[str]:
        """Everything that lies under the location."""
        raise NotImplementedError

    def put(self, location: str, content: bytes) -> None:
        raise NotImplementedError

    def remove(self, location: str) -> None:
        raise NotImplementedError

    def reach(self, client: Client) -> None:
        """Let the workers of a cluster read what lies there."""

    @pytest.mark.faults
    def test_a_failed_writer_removes_what_it_wrote(self, location: str) -> None:
        bad = answers()
        bad[-1, 0] = np.inf
        with pytest.raises(dfact.DataError, match="row 999"):
            dfact.import_array(bad, f"{location}/x.zarr")
        assert self.keys(f"{location}/x.zarr") == []

    @pytest.mark.further
    def test_what_is_there_is_replaced_only_when_asked(self, location: str) -> None:
        X = answers()
        dfact.import_array(X[:100], f"{location}/x.zarr")
        with pytest.raises(StoreError, match="exists already"):
            dfact.import_array(X[:50], f"{location}/x.zarr")
        assert dfact.open_dataset(f"{location}/x.zarr").shape == (100, M)
        assert dfact.import_array(X[:50], f"{location}/x.zarr", overwrite=True).shape == (50, M)
        assert dfact.open_dataset(f"{location}/x.zarr").shape == (50, M)

    def test_what_is_not_ours_is_never_removed(self, location: str) -> None:
        self.put(f"{location}/x.zarr/notes.txt", b"mine")
        with pytest.raises(StoreError, match="is not a dfact store"):
            dfact.import_array(np.ones((5, 2)), f"{location}/x.zarr", overwrite=True)
        assert self.keys(f"{location}/x.zarr") == ["notes.txt"]

    @pytest.mark.further
    @pytest.mark.faults
    @pytest.mark.parametrize("executor", ["inline", "threads", "distributed"])
    def test_a_chunk_lost_after_opening(self, executor: str, location: str, request: pytest.FixtureRequest) -> None:
        dataset = dfact.import_array(answers(), f"{location}/x.zarr")
        self.remove(f"{location}/x.zarr/values/c/0/0")
        where: Any = executor
        if executor == "distributed":
            where = request.getfixturevalue("client")
            self.reach(where)
        with pytest.raises(StoreError, match=r"cannot read rows .* of .*/x.zarr/.*values: its chunk values/c/0/0 is missing"):
            dfact.ICQF(K, max_iter=3, random_state=1, executor=where).fit(dataset)
        with pytest.raises(StoreError, match="has 0 chunks, expected 1"):
            dfact.open_dataset(f"{location}/x.zarr")
