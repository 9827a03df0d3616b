"""What every place of stores keeps to: a store is complete or refused, and nothing is removed that may not be."""

import json
import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.typing import NDArray

import dfact
from dfact.data.layout import cut_into
from dfact.data.stored_dataset import verify_dataset
from dfact.errors import StoreError
from dfact.storage.location import parse_location
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

    def content(self, location: str) -> bytes:
        raise NotImplementedError

    def replace(self, location: str, content: bytes) -> None:
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

    @pytest.fixture
    def versions(self, location: str) -> tuple[str, str]:
        """Two versions of a dataset, of the same shape."""
        X = answers()
        for name, values in (("now", X), ("before", X.max(initial=0, where=~np.isnan(X)) - X)):
            age = pd.DataFrame({"age": np.arange(N) + values[0, 0]})
            with cut_into(chunk_entries=256 * M, partition_entries=256 * M, block_rows=(64, 256)):
                dfact.import_array(values, f"{location}/{name}.zarr", confounders=age)
        return f"{location}/now.zarr", f"{location}/before.zarr"

    @pytest.mark.faults
    @pytest.mark.parametrize("executor", ["inline", "threads"])
    @pytest.mark.parametrize("key", ["values/c/2/0", "confounder_age/c/0", "maximum/c/0"])
    def test_a_chunk_of_another_version_is_not_read(self, key: str, executor: Any, versions: tuple[str, str]) -> None:
        now, before = versions
        self.replace(f"{now}/{key}", self.content(f"{before}/{key}"))
        reason = (
            rf"cannot read .*now.zarr.*: its chunk {key} has the checksum \w{{8}}, expected \w{{8}}: it is damaged, or of another version"
        )
        with pytest.raises(StoreError, match=f"{reason}; .*restore it, or write it again"):
            dfact.ICQF(K, max_iter=2, executor=executor).fit(now)
        if key.startswith("values"):
            with pytest.raises(StoreError, match=reason):  # as in the process of a worker
                pickle.loads(pickle.dumps(dfact.open_dataset(now).source)).read(0, N)
        with pytest.raises(StoreError, match=rf"1 of \d+ chunks are not those that were written:\n.*{key}"):
            verify_dataset(parse_location(now))

    @pytest.mark.faults
    def test_swapped_arrays_are_not_read(self, versions: tuple[str, str]) -> None:
        now, _ = versions
        parts = "minimum", "maximum"  # of the same shape and type
        for part in ("zarr.json", "c/0"):
            one, other = (self.content(f"{now}/{name}/{part}") for name in parts)
            self.replace(f"{now}/minimum/{part}", other)
            self.replace(f"{now}/maximum/{part}", one)
        with pytest.raises(StoreError, match=r"cannot read array 'm\w+imum' of .*: its chunk m\w+imum/c/0 has the checksum"):
            dfact.open_dataset(now)
        with pytest.raises(StoreError, match=r"2 of \d+ chunks are not those that were written"):
            verify_dataset(parse_location(now))

    @pytest.mark.faults
    @pytest.mark.parametrize("change", [{"missing_code": 4}, {"n_empty_rows": 7}, {"dropped_rows": 5}, {"fingerprint": "0" * 32}], ids=str)
    def test_changed_attributes_are_refused(self, change: dict[str, Any], versions: tuple[str, str]) -> None:
        now, _ = versions
        document = json.loads(self.content(f"{now}/zarr.json"))
        document["attributes"]["dfact"].update(change)
        self.replace(f"{now}/zarr.json", json.dumps(document).encode())
        for read in (dfact.open_dataset, verify_dataset):
            with pytest.raises(StoreError, match=r"now.zarr: its attributes have the digest \w+, expected \w+: one has been changed"):
                read(parse_location(now))

    @pytest.mark.faults
    def test_metadata_of_another_version_are_refused(self, versions: tuple[str, str]) -> None:
        now, before = versions
        self.replace(f"{now}/zarr.json", self.content(f"{before}/zarr.json"))  # complete in itself
        with pytest.raises(StoreError, match=r"its chunk \w+/c/0 has the checksum"):
            dfact.open_dataset(now)
        document = json.loads(self.content(f"{before}/values/zarr.json"))
        self.replace(f"{before}/values/zarr.json", json.dumps(document | {"fill_value": 1.0}).encode())
        with pytest.raises(StoreError, match=r"cannot read array 'values' of .*before.zarr.*: its values/zarr.json has the checksum"):
            dfact.open_dataset(before)

    @pytest.mark.faults
    def test_lost_and_damaged_chunks_are_named_by_verify(self, versions: tuple[str, str]) -> None:
        now, _ = versions
        assert re.fullmatch(r"\d+ chunks of \d+ arrays and all attributes are those that were written", verify_dataset(parse_location(now)))
        flipped = bytearray(self.content(f"{now}/values/c/1/0"))
        flipped[len(flipped) // 2] ^= 1
        self.replace(f"{now}/values/c/1/0", bytes(flipped))
        with pytest.raises(StoreError, match=r"cannot read rows 256 to 512 of .*/values: Stored and computed checksum do not match"):
            dfact.ICQF(K, max_iter=2).fit(now)
        self.remove(f"{now}/values/c/3/0")
        expected = r"(?s)2 of \d+ chunks .*chunk 1, 0 of array 'values' of .*checksum do not match.*its chunk values/c/3/0 is missing"
        with pytest.raises(StoreError, match=expected):
            verify_dataset(parse_location(now))

    @pytest.mark.faults
    def test_a_dataset_without_a_seal_is_compared_with_its_fingerprint(self, versions: tuple[str, str]) -> None:
        now, before = versions
        document = json.loads(self.content(f"{now}/zarr.json"))
        del document["attributes"]["dfact"]["seal"]
        self.replace(f"{now}/zarr.json", json.dumps(document).encode())
        assert verify_dataset(parse_location(now)).startswith("no seal: ")
        self.replace(f"{now}/values/c/2/0", self.content(f"{before}/values/c/2/0"))
        dfact.open_dataset(now)
        with pytest.raises(StoreError, match=r"now.zarr: its contents have the fingerprint \w+, expected \w+"):
            verify_dataset(parse_location(now))

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
