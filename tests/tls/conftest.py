"""Fixtures of the tests of TLS."""

import pytest
from distributed.comm import registry
from distributed.comm.tcp import TLSBackend


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask alone accepts and opens the connections of this process: a test that imports all modules has imported the check, too."""
    monkeypatch.setitem(registry.backends, "tls", TLSBackend())
