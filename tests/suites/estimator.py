"""What every factorization keeps to, whatever it minimizes."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.typing import NDArray

import dfact
from dfact.data.layout import cut_into
from dfact.engine.block_state import SpillFile
from dfact.engine.memory_plan import Plan
from dfact.models.fit_task import FitTask
from tests.conftest import CutRows

Array = NDArray[Any]


def assert_same_fit(found: Any, expected: Any) -> None:
    """All numbers that the fits have found are bit-identical."""
    names = [
        name for name in vars(expected) if name.endswith("_") and not name.startswith("_") and name != "offset_"
    ]  # of what an import stored
    assert {"n_features_in_"} < set(names) <= set(vars(found))
    for name in names:
        value, other = getattr(expected, name), getattr(found, name)
        if isinstance(value, (np.ndarray, zarr.Array)):
            assert other.dtype == value.dtype, name
            np.testing.assert_array_equal(np.asarray(other), np.asarray(value), err_msg=name)
        elif isinstance(value, list):
            for part, other_part in zip(value, other, strict=True):
                np.testing.assert_array_equal(np.asarray(other_part), np.asarray(part), err_msg=name)
        elif is_dataclass(value):
            assert_same_parts(other, value, name)
        elif isinstance(value, (bool, int, float)):
            assert other == value or (value != value and other != other), name  # NaN


def assert_same_parts(found: Any, expected: Any, name: str) -> None:
    """The parts of a dataclass are bit-identical, those of its parts, too."""
    for part in fields(expected):
        value, other = getattr(expected, part.name), getattr(found, part.name)
        for found_part, expected_part in zip(other, value, strict=True) if isinstance(value, tuple) else [(other, value)]:
            if is_dataclass(expected_part):
                assert_same_parts(found_part, expected_part, f"{name}.{part.name}")
            else:
                np.testing.assert_array_equal(found_part, expected_part, err_msg=f"{name}.{part.name}")


class EstimatorSuite:
    """A subclass says how its model is made, and what it is fitted to."""

    model: Callable[..., Any]
    parameters: dict[str, Any]
    """Of fits to ``data``, few iterations of which are enough."""
    rows: str = "factors_"
    """The attribute with the rows' factors, in a list whose first element belongs to the rows."""
    sizes: ClassVar[dict[str, Any]] = {"block_entries": 1 << 11, "chunk_entries": 1 << 13, "partition_entries": 1 << 15}
    """Sizes with which the data has several partitions."""
    codes: bool = True
    """Whether the data are whole numbers below 255."""
    stores_rows: bool = True
    """Whether the rows' factors of stored data are stored."""
    tolerance: float = 0.0
    """How much transform of the fitted rows may differ from their factors, relatively."""
    shift: float = 0.0
    """How much it may differ in addition."""
    transforms: bool = True
    """Whether there is a transform."""
    derived: tuple[str, ...] = ()
    """Tables that a saved model must give again."""

    def data(self) -> Array:
        """Rows enough for several partitions, NaN where missing, in single precision."""
        raise NotImplementedError

    def fit_inputs(self, n: int) -> dict[str, Any]:
        """Further inputs of a fit to the first n rows."""
        del n
        return {}

    @pytest.fixture(scope="class", params=[{}], ids=["default"])
    @classmethod
    def variant(cls, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Parameters that differ; a subclass gives several."""
        found: dict[str, Any] = request.param
        return found

    @pytest.fixture
    def partitioned(self, cut_rows: CutRows) -> None:
        cut_rows(**self.sizes)

    @pytest.fixture(scope="class")
    @classmethod
    def reference(cls, variant: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[dfact.Dataset, Any]:
        """Data in several partitions as a dataset, and a fit to it, block after block, to which the fits of all tests are equal."""
        suite = cls()
        with cut_into(**suite.sizes):
            dataset = suite.stored(suite.data(), tmp_path_factory.mktemp("reference") / "d.zarr")
            assert dfact.plan(suite.make(variant), dataset).n_partitions > 1
            return dataset, suite.fit(variant, dataset, executor="inline")

    def make(self, variant: dict[str, Any], **changes: Any) -> Any:
        return type(self).model(**{**self.parameters, **variant, **changes})

    def fit(self, variant: dict[str, Any], X: Any, **changes: Any) -> Any:
        inputs = {} if isinstance(X, dfact.Dataset) else self.fit_inputs(X.shape[0])
        return self.make(variant, **changes).fit(X, **inputs)

    def stored(self, X: Array, path: Path) -> dfact.Dataset:
        inputs = self.fit_inputs(X.shape[0])
        if not self.codes:
            return dfact.import_array(X, path, **inputs)
        return dfact.import_array(np.where(np.isnan(X), 255, X).astype(np.uint8), path, missing=255, **inputs)

    def row_factors(self, model: Any) -> Any:
        found = getattr(model, self.rows)
        return found[0] if isinstance(found, list) else found

    @pytest.mark.usefixtures("partitioned")
    @pytest.mark.parametrize("executor", ["threads", "distributed"])
    def test_every_executor_gives_the_same_bits(
        self, executor: str, variant: dict[str, Any], reference: tuple[dfact.Dataset, Any], request: pytest.FixtureRequest
    ) -> None:
        dataset, expected = reference
        where = request.getfixturevalue("client") if executor == "distributed" else executor
        assert isinstance(self.row_factors(expected), zarr.Array) is self.stores_rows
        assert self.row_factors(expected).dtype == np.float32
        model = self.fit(variant, dataset, executor=where)
        assert_same_fit(model, expected)
        if self.transforms:
            rows = np.asarray(self.row_factors(expected))
            np.testing.assert_allclose(
                np.asarray(model.transform(dataset)), rows, rtol=self.tolerance, atol=self.tolerance / 1e3 + self.shift
            )
        in_memory = self.fit(variant, self.data(), executor=where)
        assert isinstance(self.row_factors(in_memory), np.ndarray)
        assert_same_fit(in_memory, expected)

    @pytest.mark.usefixtures("partitioned")
    def test_chunks_of_the_store_change_nothing(
        self, variant: dict[str, Any], reference: tuple[dfact.Dataset, Any], tmp_path: Path
    ) -> None:
        X = self.data()
        chunked = zarr.create_array(tmp_path / "raw.zarr", shape=X.shape, chunks=(777, 5, 2)[: X.ndim], dtype=X.dtype)
        chunked[:] = X
        assert_same_fit(self.fit(variant, chunked), reference[1])

    @pytest.mark.further
    @pytest.mark.usefixtures("partitioned")
    @pytest.mark.parametrize("executor", ["local", "distributed"])
    def test_state_on_disk_gives_the_same_bits(
        self,
        executor: str,
        variant: dict[str, Any],
        reference: tuple[dfact.Dataset, Any],
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        X, expected = self.data(), reference[1]
        written: list[Any] = []
        plan, write = FitTask.plan, SpillFile.write

        def tight(task: FitTask[Any], *arguments: Any) -> Plan:
            return replace(plan(task, *arguments), resident_states=1, resident_values=1)

        monkeypatch.setattr(FitTask, "plan", tight)
        monkeypatch.setattr(SpillFile, "write", lambda *arguments: written.append(arguments) or write(*arguments))
        if executor == "distributed":  # its workers write in processes of their own
            assert_same_fit(self.fit(variant, X, executor=request.getfixturevalue("client")), expected)
        else:
            for where in ("inline", "threads"):
                written.clear()
                assert_same_fit(self.fit(variant, X, executor=where), expected)
                assert written, where

    @pytest.mark.parametrize("in_store", [False, True], ids=["in memory", "stored"])
    def test_a_saved_model_is_the_same(self, in_store: bool, variant: dict[str, Any], tmp_path: Path) -> None:
        X = self.data()[:300]
        data = self.stored(X, tmp_path / "d.zarr") if in_store else X
        model = self.fit(variant, data)
        dfact.save_model(model, tmp_path / "x.model")
        loaded = dfact.load_model(tmp_path / "x.model")
        assert_same_fit(loaded, model)
        assert loaded.get_params() == model.get_params()
        assert isinstance(self.row_factors(loaded), zarr.Array) is (in_store and self.stores_rows)
        if self.transforms:
            inputs = {} if in_store else self.fit_inputs(X.shape[0])
            np.testing.assert_array_equal(np.asarray(loaded.transform(data, **inputs)), np.asarray(model.transform(data, **inputs)))
        for name in self.derived:
            pd.testing.assert_frame_equal(pd.DataFrame(getattr(loaded, name)), pd.DataFrame(getattr(model, name)))

    @pytest.mark.further
    def test_a_plan_that_does_not_hold_is_refused(self, variant: dict[str, Any], tmp_path: Path) -> None:
        dataset = self.stored(self.data()[:300], tmp_path / "d.zarr")
        assert dfact.plan(self.make(variant), dataset).fits
        with pytest.raises(dfact.MemoryPlanError, match="needs at least"):
            self.fit(variant, dataset, memory_limit="1MiB")
