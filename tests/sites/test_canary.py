"""Values planted at a site, of a single row, are in no byte that leaves it or reaches another site."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dfact
from dfact.data.coerce import as_dataset
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy

MODELS: dict[str, Any] = {
    "icqf": lambda: dfact.ICQF(3, max_iter=3),
    "nmf": lambda: dfact.NMF(3, max_iter=3, loss="kullback-leibler"),
    "fa, polychoric": lambda: dfact.FactorAnalysis(2, rotation=None, correlation="polychoric"),
    "emf": lambda: dfact.ExpectileMF(3, ridge=0.1, max_iter=3, random_state=0),
    "pca": lambda: dfact.PCA(3),
    "cp": lambda: dfact.ElasticCP(3, lam=0.5, max_iter=3, random_state=0),
    "admixture": lambda: dfact.Admixture(3, ploidy=3, max_iter=3, init="random", random_state=1),
}
LABEL = "patient Őrs-7741"
pytestmark = pytest.mark.filterwarnings("ignore:the uniqueness of", "ignore:.* negative eigenvalues")


def canaries(row: np.ndarray[Any, Any], factors: np.ndarray[Any, Any]) -> list[bytes]:
    """Encodings of the label, of the answers of a row and of their bits, and of its factors, forwards and backwards."""
    found = [LABEL.encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le")]
    found += [b"7741", ascii(LABEL)[1:-1].encode()]
    for values in (row, row[::-1]):
        found += [values.astype(dtype).tobytes() for dtype in ("u1", "i2", "i4", "i8", "f4", "f8", ">f8")]
        found += [joint.join(map(str, values.tolist())).encode() for joint in ("", ",", ", ")]
    onehot = row[:, None] == np.arange(4)
    found += [np.packbits(onehot, bitorder=order).tobytes() for order in ("big", "little")]
    found += [number.tobytes() for value in factors if value for number in (np.float64(value), np.float32(value))]
    return found


@pytest.fixture(scope="module")
def sites() -> dict[str, Any]:
    rng, planted = np.random.default_rng(5), {}
    for name in ("north", "south"):
        M = rng.integers(0, 4, (150, 24)).astype(np.uint8)
        planted[name] = as_dataset(M)
    labels = np.array([f"p{number}" for number in range(150)], object)
    labels[77] = LABEL
    planted["north"] = replace(planted["north"], labels=labels)
    return planted


@pytest.mark.parametrize("name", MODELS)
def test_no_row_leaves(name: str, sites: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[str, list[bytes]] = {"north": [], "south": []}
    call = MemoryConnection.call

    def recorded(self: MemoryConnection, message: Message) -> Message:
        answer = call(self, message)
        reached[self.name].append(answer.encode())
        return answer

    monkeypatch.setattr(MemoryConnection, "call", recorded)
    with InProcessSites(sites, policy=Policy(extremes=True, min_cell=1, min_rows=3, max_numbers=1e9), keep_bytes=True) as federation:
        federation.fit(MODELS[name]())
        result = federation.results["north"]
    row, factors = np.asarray(sites["north"].source.read(77, 78))[0], np.asarray(result.row_factors())[77]
    sent = b"".join(federation.connections["north"].kept or ())
    assert len(sent) > 5000
    for canary in canaries(row, factors):
        assert canary not in sent
        assert canary not in b"".join(reached["south"])


def test_canaries_are_found_where_they_are() -> None:
    row, factors = np.arange(24) % 4, np.array([0.25, 1.5])
    for canary in canaries(row, factors):
        assert canary in b"\x01\x02" + canary
    assert row.astype("f8").tobytes() in Message({"kind": "x"}, [np.stack([row, row]).astype(float)]).encode()
    assert LABEL.encode() in Message({"kind": "x", "labels": [LABEL]}).encode()
