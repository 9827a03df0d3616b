"""Plans of lazy arrays, by shape and type alone."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dfact
from tests.cases import of_slice

MODELS = [dfact.PCA(3), dfact.NMF(3), dfact.ICQF(3), *of_slice("FactorAnalysis", 3), dfact.ElasticCP(3)]


def never(shape: tuple[int, ...], dtype: str = "float64") -> da.Array:
    """Return an array whose blocks must not be computed."""

    def computed() -> Any:
        raise AssertionError("a block was computed")

    chunks = (10_000, *shape[1:])
    return da.map_blocks(lambda _: computed(), da.empty(shape, chunks=chunks), dtype=dtype, meta=np.empty((0, 0), dtype))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_an_array_larger_than_memory_is_planned_without_reading_it(model: Any) -> None:
    lazy = never((100_000_000, 512))  # 381 GiB
    plan = dfact.plan(model, lazy, memory_limit="4GiB")
    assert plan.shape == lazy.shape
    assert plan.n_partitions > 1000


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_the_plan_is_that_of_the_dataset(model: Any, dtype: str, tmp_path: Path) -> None:
    Y = np.random.default_rng(0).integers(0, 5, (30_000, 20)).astype(dtype)
    if Y.dtype.kind == "f":
        Y[::7, ::3] = np.nan
    stored = dfact.import_array(Y, tmp_path / "y.zarr")
    lazy, known = (dfact.plan(model, data, memory_limit="4GiB") for data in (never(Y.shape, dtype), stored))
    assert (lazy.working, lazy.driver, lazy.state, lazy.n_partitions) == (known.working, known.driver, known.state, known.n_partitions)
