"""Data of a few sites, small enough that each has several partitions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.confounders import as_frame
from dfact.data.dataset import Dataset
from dfact.data.layout import cut_into
from tests.conftest import planted_answers

NAMES = ("east", "north", "south")
SIZES = (700, 190, 211)


@pytest.fixture(autouse=True, scope="package")
def _small_partitions() -> Iterator[None]:
    with cut_into(small_partition_entries=1 << 10):
        yield


def stored_sites(folder: Path, m: int = 40, seed: int = 0, **settings: Any) -> dict[str, Dataset]:
    """Return the datasets of the sites by name: answers 0 to 3, a tenth of them missing, with confounders."""
    n, rng = sum(SIZES), np.random.default_rng(seed)
    values = np.where(np.isnan(X := planted_answers(n, m, 4, seed, 0.1)), 9, X).astype(np.uint8)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "age": rng.normal(50, 10, n).round(1)})
    frame.loc[3, "age"] = np.nan
    found = {}
    common = {"missing": 9, "valid_range": (0, 3), "empty_rows": "drop", "confounder_ranges": {"age": (0, 100)}}
    settings = common | settings
    for name, rows in zip(NAMES, np.split(np.arange(n), np.cumsum(SIZES)[:-1]), strict=True):
        dfact.import_array(
            values[rows],
            folder / f"{name}.zarr",
            row_labels=[f"{name}-{row}" for row in rows],
            **{"confounders": as_frame(frame.iloc[rows].reset_index(drop=True), len(rows)), **settings},
        )
        found[name] = dfact.open_dataset(folder / f"{name}.zarr")
    return found
