"""Payloads between driver and workers: what arrives is what was sent, at aligned addresses."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.faults.fits import SOLVERS, bits, small_partitions
from dfact.engine.cluster.transport import Pickled, packed, unpacked
from dfact.engine.executors import LocalSession


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24.0).reshape(4, 6)[::2, ::3],
        read_only(np.arange(5, dtype=np.int16)),
        np.empty((0, 7), np.float32),
        np.asarray(2.5),
        np.asarray(["a", None, 3], dtype=object),
    ],
    ids=["C", "Fortran", "strided", "read-only", "empty", "scalar", "objects"],
)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_arrays_arrive_as_they_were_sent(array: NDArray[Any], offset: int) -> None:
    content = b"x" * offset + packed({"array": array, "others": [array, 1]})
    found = unpacked(memoryview(content)[offset:])
    assert found["others"][0] is found["array"], "an array that is sent twice is one array"
    arrived = found["array"]
    np.testing.assert_array_equal(arrived, array)
    assert arrived.dtype == array.dtype
    assert arrived.shape == array.shape
    assert arrived.flags.writeable == array.flags.writeable
    assert arrived.flags.aligned
    if array.flags.forc:
        assert (arrived.flags.c_contiguous, arrived.flags.f_contiguous) == (array.flags.c_contiguous, array.flags.f_contiguous)


def test_payloads_without_arrays_and_of_values_that_hold_some() -> None:
    assert unpacked(packed(None)) is None
    assert unpacked(packed(("a", {1: b"__main__"}))) == ("a", {1: b"__main__"})
    sent = Pickled({"rows": np.arange(3)})
    arrived = unpacked(packed([sent]))[0]
    np.testing.assert_array_equal(arrived.value["rows"], sent.value["rows"])


def test_objects_of_a_script_are_sent_with_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's classes travel by value, as workers have another ``__main__``, and arrays travel apart."""
    script = ModuleType("__main__")
    exec("class Sums:\n    def __init__(self, total):\n        self.total = total", vars(script))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", script)
        content = packed(script.Sums(np.arange(1000.0)))
    arrived = unpacked(content)
    assert type(arrived).__name__ == "Sums"
    np.testing.assert_array_equal(arrived.total, np.arange(1000.0))


@pytest.mark.parametrize("name", SOLVERS)
def test_what_a_fit_sends_has_the_bits_of_what_it_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided array arrives without strides, and BLAS may round a product of either otherwise: no solver sends one."""
    solver = SOLVERS[name]
    X = solver.data(0)
    with small_partitions():
        expected = bits(solver.make(executor="inline").fit(X))
        run, step = LocalSession.run, LocalSession.step_tiles
        monkeypatch.setattr(LocalSession, "run", lambda session, request: run(session, unpacked(packed(request))))
        monkeypatch.setattr(LocalSession, "step_tiles", lambda session, *sent, **named: step(session, *unpacked(packed(sent)), **named))
        assert bits(solver.make(executor="inline").fit(X)) == expected
