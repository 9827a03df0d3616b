"""Shared psychometric data with the figures that R programs report for it; tests skip where the folder is missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from tests.conftest import REAL_DATA

FOLDER = REAL_DATA / "psychometrics"
psychometrics = pytest.mark.skipif(not FOLDER.is_dir(), reason="the psychometric data is not next to the project")


def bfi() -> pd.DataFrame:
    """25 items with answers from 1 to 6, NaN where missing."""
    return pd.read_csv(FOLDER / "bfi.csv").iloc[:, 1:26]


def oracle(name: str | Path) -> NDArray[np.float64]:
    """A matrix of the folder ``oracles``."""
    return pd.read_csv(FOLDER / "oracles" / name, index_col=0).to_numpy(np.float64)


def factors(name: str, correlation: str, rotation: str) -> NDArray[Any]:
    """Loadings or correlations of five factors."""
    table = pd.read_csv(FOLDER / "oracles" / name)
    return table[(table.correlation == correlation) & (table.rotation == rotation)].loc[:, "f0":"f4"].to_numpy()
